"""The best plans of a job: branch and bound over families of plans, on all cores.

Families of plans are bounded, divided and evaluated by `branch_and_bound`. The `top` fastest plans are kept, and the
Pareto front of time and memory up to `SLACK` slower than the fastest: the same as if every plan were evaluated.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from string import ascii_lowercase

from scaleout.config.collector import seldom_collected
from scaleout.study.search.best import Best, Choice, Counts, EvaluatedPlan, fastest_first
from scaleout.study.search.checkpoint import Memory
from scaleout.study.search.execution import Execution, TellPlans, execution_of
from scaleout.study.search.lower_bound import lower_bounds_of
from scaleout.study.search.request import SearchRequest
from scaleout.study.search.scheduled import Candidate, Simulated, candidates_of, simulate_best, under_baseline
from scaleout.study.search.space import Family, Plan, families
from scaleout.study.search.stages import Ledger
from scaleout.workloads.generate.profile import profile_key

_EXPLAINED = "error bars and explanation of the fastest"
"""What is left once all plans are evaluated."""


@dataclass(frozen=True)
class Answer:
    """The best plans, and what became of all others.

    Attributes
    ----------
    fastest : tuple of EvaluatedPlan
        The `top` fastest, in order.
    front : tuple of EvaluatedPlan
        Of each schedule, that of the fastest plan first, the plans up to `SLACK` slower than its fastest that none
        under it beats in both time and memory, fastest first: of all plans under `baseline`, and under other schedules
        of those that were simulated.
    evaluated : tuple of EvaluatedPlan
        All that were evaluated.
    nearest : (float, Plan) or None
        Of the plans that do not fit, the one that holds least, and how many bytes that is.
    simulated : Simulated or None
        What became of plans under other schedules, if there are any.
    """

    fastest: tuple[EvaluatedPlan, ...]
    front: tuple[EvaluatedPlan, ...]
    evaluated: tuple[EvaluatedPlan, ...]
    counts: Counts
    nearest: tuple[float, Plan] | None
    simulated: Simulated | None = None

    @property
    def labels(self) -> dict[Choice, str]:
        """What each plan of the answer is called: its number among the fastest; those of the front alone by letters."""
        found = {each.choice: str(number) for number, each in enumerate(self.fastest, start=1)}
        others = [each.choice for each in self.front if each.choice not in found]
        return found | {choice: letters(number) for number, choice in enumerate(others)}

    def best_under(self, schedule: str) -> EvaluatedPlan | None:
        """Return the fastest plan that was evaluated under a schedule."""
        under = [found for found in self.evaluated if found.schedule == schedule]
        return next(iter(fastest_first(under)), None)


def letters(number: int) -> str:
    """Return a, b, ..., z, aa, ab, ..."""
    more, last = divmod(number, len(ascii_lowercase))
    return (letters(more - 1) if more else "") + ascii_lowercase[last]


@seldom_collected()
def search(
    request: SearchRequest,
    *,
    memory: Memory | None = None,
    workers: int | None = None,
    tell: TellPlans = lambda *_told: None,
) -> Answer:
    """Find the best plans. The answer follows from the request, whatever runs when, or was known before.

    Parameters
    ----------
    memory : Memory, optional
        What was computed before; takes what is computed, as soon as it is.
    workers : int, optional
        Processes; as many as there are cores if not given, and none besides this one if 1.
    tell : function, optional
        Called now and then with steps done, all steps, what these are, and the best so far.
    """
    with execution_of(workers, memory, tell) as execution:
        return found_by(request, execution)


def found_by(request: SearchRequest, execution: Execution) -> Answer:
    """Find the best plans as `search` does, in processes that run already."""
    counts, todo = execution.so_far.counts, list[Family]()
    for family in families(request.base, request.num_ranks, request.batch, fixed=request.fixed):
        counts.enumerated += family.num_plans
        counts.indivisible += family.num_plans - len(family.plans)
        if family.plans:
            todo.append(family)
    places: dict[Hashable, int] = {}
    todo.sort(key=lambda family: places.setdefault(family.alike, len(places)))
    num_alike = Counter[Hashable]()
    for family in todo:
        num_alike[family.alike] += len(family.plans)
    execution.share(num_alike)
    scheduled = None
    bounds = execution.mapped("bounds", _weigh, request, todo, attrgetter("alike"))
    (evaluated, shown), nearest = under_baseline(request, todo, [bound_s for bound_s, _ in bounds], execution)
    counts.evaluated, counts.too_large = len(evaluated), len(nearest)
    counts.bounded = counts.enumerated - counts.indivisible - counts.evaluated - counts.too_large
    best = Best(request.top)
    best.add(shown)
    execution.found(best, _EXPLAINED, under=request.schedules)
    if request.schedules:
        may_be = [family for family, (_, bound_s) in zip(todo, bounds, strict=True) if best.may_have(bound_s)]
        of_some = partial(candidates_of, last_s=best.last_s)
        found = execution.mapped("candidates", of_some, request, may_be, attrgetter("alike"))
        candidates = [Candidate(promise_s, bound_s, Plan(*plan)) for promise_s, bound_s, plan in found]
        num_plans = counts.enumerated - counts.indivisible
        scheduled = simulate_best(request, candidates, num_plans, best, execution)
        evaluated += scheduled.found
        # What was simulated and does not count depends on what is done when, and is in no front.
        best = Best(request.top)
        best.add([*shown, *scheduled.found])
        execution.found(best, _EXPLAINED)
    return Answer(
        tuple(best.fastest), tuple(best.near), tuple(evaluated), counts, min(nearest, default=None), scheduled
    )


def _weigh(request: SearchRequest, some: Sequence[Family]) -> list[tuple[float, float]]:
    """Return two lower bounds of families, each of its first plan: under `baseline`, and under all schedules.

    New kernels of all are timed together. Without other schedules the second bound is none, 0.
    """
    lower_bounds = lower_bounds_of(request.topology, request.device)
    workloads = [request.blocks(family.plans[0]) for family in some]
    unlike = {profile_key(workload): workload for workload in workloads}
    ledgers = [Ledger.of(workload, lower_bounds.costs) for workload in unlike.values()]
    lower_bounds.costs.model.time_kernels(kernel for ledger in ledgers for kernel in ledger.kernels())
    return [
        (
            lower_bounds.spread_s(workload, collectives=True),
            lower_bounds.spread_s(workload, collectives=False) if request.schedules else 0.0,
        )
        for workload in workloads
    ]
