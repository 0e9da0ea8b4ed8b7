"""Plans under `baseline` where messages of a pipeline and kernels share a device: the fastest of them, simulated.

Blocks (`evaluate`) know nothing of what runs at the same time, which makes a step longer, or by an anomaly of list
scheduling shorter by less than a thousandth. So what they say bounds a plan from below: whatever comes among the
fastest by it is simulated, until all that are among them were.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

from scaleout.contention import contention_of
from scaleout.plans.best import BASELINE, Choice, Found, Question
from scaleout.plans.evaluate import Estimate
from scaleout.plans.under_schedule import estimate_under


def contended(question: Question, found: Sequence[Found], *, pool: Executor, workers: int) -> list[Found]:
    """Return plans under `baseline`, the `top` fastest of them as they are with contention.

    Parameters
    ----------
    found : sequence of Found
        As they are without.
    """
    plans = {each.choice: each for each in found}
    if contention_of(question.device, question.topology) is None:
        return list(found)
    simulated: set[Choice] = {each.choice for each in found if each.plan.pipeline_parallel == 1}
    while True:
        first = sorted(plans.values(), key=lambda each: each.key)[: question.top]
        wanted = [each for each in first if each.choice not in simulated][:workers]
        if not wanted:
            return list(plans.values())
        for each, estimate in zip(wanted, pool.map(_estimate, [question] * len(wanted), wanted), strict=True):
            plans[each.choice] = replace(each, estimate=estimate)
            simulated.add(each.choice)


def _estimate(question: Question, found: Found) -> Estimate:
    return estimate_under(question, found.plan, BASELINE)
