"""The best plans under schedules that are simulated: the most promising first, as far as asked, and what is left open.

A plan is a candidate if it fits and its least time (`least`) lets it be among the fastest. Its promise is what it takes
if all is hidden of gradients and parameters, which wait for little, and nothing of what layers communicate: an order,
never a reason to leave a plan out. What is left unsimulated keeps its least time, which says how much may be missed.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, replace
from typing import Any

from scaleout.plans.best import ROUNDING, Best, Choice, Found, Question
from scaleout.plans.bound import bound_of, least_of
from scaleout.plans.evaluate import Estimate, peak_of
from scaleout.plans.least import in_order, leasts_of
from scaleout.plans.prices import Spent, prices_of
from scaleout.plans.space import Plan
from scaleout.plans.stages import Stage, stages_of
from scaleout.plans.under_schedule import axis_of, estimate_under


@dataclass(frozen=True)
class Candidate:
    """A plan that fits and may be among the fastest, with its promise and its least time."""

    promise_s: float
    bound_s: float
    plan: Plan

    @property
    def key(self) -> tuple[Any, ...]:
        """Order: what promises most first."""
        return self.promise_s, self.bound_s, tuple(map(str, self.plan))


@dataclass(frozen=True)
class Simulated:
    """What became of plans under the schedules besides `baseline`; a plan counts once for each.

    Attributes
    ----------
    found : tuple of Found
        What was simulated and fits.
    choices : int
        All plans whose sizes divide, times the schedules.
    bounded : int
        That cannot be among the fastest by their least times, or do not fit.
    left : int
        That were not simulated, as enough of greater promise were.
    least_s : float or None
        The least time of those left that may be faster than the fastest; none if there is no such plan.
    """

    found: tuple[Found, ...]
    choices: int
    bounded: int
    left: int
    least_s: float | None


def candidates_of(question: Question, plans: Sequence[Plan], last_s: float) -> list[Candidate]:
    """Return which of some plans fit and may take less than the last of the fastest."""
    leasts = leasts_of(question.topology, question.device)
    ordered = all(map(in_order, question.schedules))
    found = []
    for plan in plans:
        workload = question.workload(plan)
        bound_s = leasts.kernels_s(workload, ordered=ordered)
        if bound_s * ROUNDING > last_s or peak_of(workload).total_bytes > question.memory_bytes:
            continue
        bound_s = max(bound_s, leasts.wires_s(workload))
        stages = stages_of(workload, prices_of(question.topology, question.device))
        in_the_way_s = bound_of(workload, least_of([_without_data(stage) for stage in stages]))
        found.append(Candidate(max(bound_s, in_the_way_s), bound_s, plan))
    return found


def _without_data(stage: Stage) -> Stage:
    """Return a stage that communicates no gradients and parameters."""

    def rest(spent: Spent) -> Spent:
        kept = {family: seconds for family, seconds in spent.exposed_s.items() if axis_of(family) != "data"}
        return Spent(spent.compute_s, kept)

    changes: dict[str, Any] = {"after_s": 0.0}
    for name, value in vars(stage).items():
        if isinstance(value, Spent):
            changes[name] = rest(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], Spent):
            changes[name] = tuple(map(rest, value))
    return replace(stage, **changes)


def simulate_best(
    question: Question,
    candidates: Sequence[Candidate],
    num_plans: int,
    best: Best,
    *,
    pool: Executor,
    workers: int,
    known: Mapping[Choice, Estimate],
    keep: Callable[[Found], None],
    tell: Callable[[int, int, int, Best], None],
) -> Simulated:
    """Simulate the fastest plan so far and the candidates of greatest promise under every schedule.

    What they take is added to the best.
    Which these are follows from the plans alone, so the answer is the same however many processes there are.
    """
    so_far = best.fastest[0].plan if best.fastest else None
    wanted = [each for each in candidates if _may_be_among(each, best)]
    wanted.sort(key=lambda each: (each.plan != so_far, each.key))
    first, rest = wanted[: question.simulations], wanted[question.simulations :]
    choices = [(candidate, schedule) for candidate in first for schedule in question.schedules]
    running: set[Future[Found]] = set()
    found, todo = list[Found](), iter(choices)
    skipped = 0
    while True:
        while len(running) < workers and (choice := next(todo, None)) is not None:
            candidate, schedule = choice
            if not _may_be_among(candidate, best):
                skipped += 1
            else:
                estimate = known.get((candidate.plan, schedule))
                running.add(pool.submit(_simulate, question, candidate.plan, schedule, estimate))
        if not running:
            break
        done, running = wait(running, return_when=FIRST_COMPLETED)
        new = [future.result() for future in done]
        fitting = [each for each in new if each.estimate.peak_bytes <= question.memory_bytes]
        skipped += len(new) - len(fitting)
        best.add(fitting)
        found += fitting
        for each in new:
            keep(each)
        tell(len(found) + skipped, len(choices), len(found), best)
    times = len(question.schedules)
    left = [each for each in rest if _may_be_among(each, best)]
    faster = [each.bound_s for each in left if each.bound_s < best.fastest[0].estimate.step_s * ROUNDING]
    total = num_plans * times
    bounded = total - len(found) - times * len(left)
    return Simulated(tuple(found), total, bounded, times * len(left), min(faster, default=None))


def _may_be_among(candidate: Candidate, best: Best) -> bool:
    return candidate.bound_s * ROUNDING <= best.last_s


def _simulate(question: Question, plan: Plan, schedule: str, known: Estimate | None) -> Found:
    return Found(plan, known or estimate_under(question, plan, schedule), schedule)
