"""The best plans of a job: branch and bound over families of plans, on all cores.

Families are ordered by a lower bound; those that cannot be among the best are never opened. Each plan of an opened
family is bounded, held against the memory, then evaluated. The `top` fastest plans are kept, and the Pareto front of
time and memory up to `SLACK` slower than the fastest: the same as if every plan were evaluated.
"""

import os
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from scaleout.study.search.best import ROUNDING, Best, Counts, EvaluatedPlan, fastest_first
from scaleout.study.search.checkpoint import Memory
from scaleout.study.search.evaluate import BASELINE, Estimate, evaluate
from scaleout.study.search.execution import Execution, batched, done, pools_of
from scaleout.study.search.lower_bound import bound_of, lower_bounds_of, stage_bounds_of
from scaleout.study.search.request import SearchRequest
from scaleout.study.search.scheduled import Candidate, Simulated, candidates_of, simulate_best, simulated
from scaleout.study.search.space import Family, Plan, families
from scaleout.study.search.stages import Ledger, stages_of
from scaleout.workloads.config import LayeredModel
from scaleout.workloads.generate.profile import profile_key

_OPENED_TOGETHER = 4


class Considered(NamedTuple):
    """A plan whose first lower bound did not rule it out when its family was opened.

    `family` and `number` say which plan it is; `path_s` is its closer bound, -1 where it was not needed.
    """

    family: int
    number: int
    bound_s: float
    peak_bytes: float
    path_s: float
    evaluated: bool


@dataclass(frozen=True)
class Answer:
    """The best plans, and what became of all others.

    Attributes
    ----------
    fastest : tuple of EvaluatedPlan
        The `top` fastest, in order.
    front : tuple of EvaluatedPlan
        The plans up to `SLACK` slower than the fastest that none beats in both time and memory, fastest first; under
        schedules besides `baseline`, of those that were simulated.
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

    def best_under(self, schedule: str) -> EvaluatedPlan | None:
        """Return the fastest plan that was evaluated under a schedule."""
        under = [found for found in self.evaluated if found.schedule == schedule]
        return next(iter(fastest_first(under)), None)


def search(
    request: SearchRequest,
    *,
    memory: Memory | None = None,
    workers: int | None = None,
    tell: Callable[[int, int, int, Best], None] = lambda *_told: None,
) -> Answer:
    """Find the best plans. The answer follows from the request, whatever runs when, or was known before.

    Parameters
    ----------
    memory : Memory, optional
        What was computed before; takes what is computed, as soon as it is.
    workers : int, optional
        Processes; as many as there are cores if not given, and none besides this one if 1.
    tell : function, optional
        Called now and then with steps done, all steps, how many plans have been evaluated, and the best so far.
    """
    workers, memory = workers or os.cpu_count() or 1, memory or Memory()
    counts, todo = Counts(), list[Family]()
    for family in families(request.base, request.num_ranks, request.batch, fixed=request.fixed):
        counts.enumerated += family.num_plans
        counts.indivisible += family.num_plans - len(family.plans)
        if family.plans:
            todo.append(family)
    places: dict[Hashable, int] = {}
    todo.sort(key=lambda family: places.setdefault(family.alike, len(places)))
    scheduled = None
    with pools_of(workers) as pools:
        execution = Execution(pools, memory, tell)
        bounds = execution.mapped("bounds", _weigh, request, todo, attrgetter("alike"))
        evaluated, nearest = _evaluated(request, todo, [under_baseline_s for under_baseline_s, _ in bounds], execution)
        counts.evaluated, counts.too_large = len(evaluated), len(nearest)
        counts.bounded = counts.enumerated - counts.indivisible - counts.evaluated - counts.too_large
        evaluated, shown = simulated(request, evaluated, execution)
        best = Best(request.top)
        best.add(shown)
        if request.schedules:
            may_be = [family for family, (_, bound_s) in zip(todo, bounds, strict=True) if best.may_have(bound_s)]
            of_some = partial(candidates_of, last_s=best.last_s)
            found = execution.mapped("candidates", of_some, request, may_be, attrgetter("alike"))
            candidates = [Candidate(promise_s, bound_s, Plan(*plan)) for promise_s, bound_s, plan in found]
            num_plans = counts.enumerated - counts.indivisible
            scheduled = simulate_best(request, candidates, num_plans, best, execution)
            evaluated += scheduled.found
    return Answer(
        tuple(best.fastest), tuple(best.near), tuple(evaluated), counts, min(nearest, default=None), scheduled
    )


def _evaluated(
    request: SearchRequest, todo: Sequence[Family], bounds: Sequence[float], execution: Execution
) -> tuple[list[EvaluatedPlan], list[tuple[float, Plan]]]:
    """Return the plans that the answer does not rule out: the fastest first, and what those hold that do not fit.

    More may be evaluated while the best are not known yet, depending on what is done when; these are not returned.
    """
    best, all_considered = Best(request.top), list[Considered]()
    for considered, found in _opened(request, todo, bounds, best, execution):
        all_considered += considered
        best.add(found)
    estimates = execution.memory.estimates
    evaluated, too_large = list[EvaluatedPlan](), list[tuple[float, Plan]]()
    for each in all_considered:
        plan = todo[each.family].plans[each.number]
        if each.bound_s * ROUNDING > best.limit():
            continue
        if each.peak_bytes > request.memory_bytes:
            too_large.append((each.peak_bytes, plan))
        elif each.evaluated and best.wants(each.bound_s, each.peak_bytes) and best.wants(each.path_s, each.peak_bytes):
            evaluated.append(EvaluatedPlan(plan, estimates[plan, BASELINE]))
    return fastest_first(evaluated), too_large


def _opened(
    request: SearchRequest, todo: Sequence[Family], bounds: Sequence[float], best: Best, execution: Execution
) -> Iterator[tuple[list[Considered], list[EvaluatedPlan]]]:
    """Open the families that may be wanted, the most promising first; yield what each considered and evaluated."""
    order = sorted(range(len(todo)), key=lambda number: (bounds[number], number))
    alike = defaultdict[Hashable, list[int]](list)
    for number in order:
        alike[todo[number].alike].append(number)
    together = [some for numbers in alike.values() for some in batched(numbers, _OPENED_TOGETHER)]
    left = [deque[list[int]]() for _ in execution.pools]
    for some in sorted(together, key=lambda some: (bounds[some[0]], some[0])):
        left[execution.worker_of(todo[some[0]].alike)].append(some)
    memory, num_done, num_evaluated = execution.memory, 0, 0
    running: dict[Future[_Opening], tuple[str, int, int]] = {}
    while True:
        for worker, mine in enumerate(left):
            while mine and sum(each[2] == worker for each in running.values()) < 2:
                some = mine.popleft()
                wanted = [number for number in some if bounds[number] * ROUNDING <= best.limit()]
                num_done += len(some) - len(wanted)
                name = f"families {some[0]}"
                if (before := _remembered(todo, name, memory)) is not None:
                    running[done(before)] = name, len(wanted), worker
                elif wanted:
                    plans = [todo[number].plans for number in wanted]
                    known = {
                        plan: memory.estimates[plan, BASELINE]
                        for each in plans
                        for plan in each
                        if (plan, BASELINE) in memory.estimates
                    }
                    numbered = [(number, todo[number]) for number in wanted]
                    opening = execution.pools[worker].submit(_open, request, numbered, known, best)
                    running[opening] = name, len(wanted), worker
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            considered, found = future.result()
            name, count, _ = running.pop(future)
            num_done, num_evaluated = num_done + count, num_evaluated + len(found)
            yield considered, found
            for each in found:
                memory.add(each)
            memory.add_step(name, considered)
            execution.tell(num_done, len(todo), num_evaluated, best)


_Opening = tuple[list[Considered], list[EvaluatedPlan]]
"""What some families gave: the plans that were considered, and those of them that were evaluated."""


def _remembered(todo: Sequence[Family], name: str, memory: Memory) -> _Opening | None:
    """Return what opening some families gave before; None if they were not, or an estimate of them is lost."""
    if name not in memory.steps:
        return None
    considered = [Considered(*row) for row in memory.steps[name]]
    plans = [todo[each.family].plans[each.number] for each in considered if each.evaluated]
    if any((plan, BASELINE) not in memory.estimates for plan in plans):
        return None
    return considered, [EvaluatedPlan(plan, memory.estimates[plan, BASELINE]) for plan in plans]


def _weigh(request: SearchRequest, some: Sequence[Family]) -> list[tuple[float, float]]:
    """Return two lower bounds of families, each of its first plan: under `baseline`, and under all schedules.

    New kernels of all are timed together. Without other schedules the second bound is none, 0.
    """
    lower_bounds = lower_bounds_of(request.topology, request.device)
    workloads = [request.workload(family.plans[0]) for family in some]
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


def _open(
    request: SearchRequest, some: Sequence[tuple[int, Family]], known: Mapping[Plan, Estimate], best: Best
) -> _Opening:
    """Evaluate those plans of some families that may be wanted, the most promising first."""
    figures = request.figures
    passes_s, costs = figures.passes_s, figures.lower_bounds.costs

    def path_s(workload: LayeredModel) -> float:
        return bound_of(workload, stage_bounds_of(stages_of(workload, costs)))

    best, bounded = replace(best), list[tuple[float, int, int, Plan]]()
    for index, family in some:
        for number, plan in enumerate(family.plans):
            least, closely = family.lighter(plan)
            bound_s = passes_s(closely if passes_s(least) * ROUNDING <= best.limit() else least)
            bounded.append((bound_s, index, number, plan))
    considered, found = list[Considered](), list[EvaluatedPlan]()
    for bound_s, index, number, plan in sorted(bounded, key=lambda each: each[:3]):
        if bound_s * ROUNDING > best.limit():
            continue
        workload = request.workload(plan)
        peak_bytes = figures.peak_bytes(plan)
        closer_s, wanted = -1.0, peak_bytes <= request.memory_bytes and best.wants(bound_s, peak_bytes)
        if wanted:
            closer_s = path_s(workload)
            wanted = best.wants(closer_s, peak_bytes)
        considered.append(Considered(index, number, bound_s, peak_bytes, closer_s, wanted))
        if wanted:
            estimate = known.get(plan) or evaluate(
                workload, request.topology, request.device, host=request.options.host
            )
            found.append(EvaluatedPlan(plan, estimate))
            best.add(found[-1:])
    return considered, found
