"""Branch and bound over families of plans, best first, on all cores.

A set of plans with one lower bound is divided into smaller sets that are bounded more closely, down to one plan, which
is evaluated. The set of the lowest bound comes first, so that whatever rules a plan out is known before the plan is
looked at, but for the few sets that are under way at the same time.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from heapq import heappop, heappush
from typing import NamedTuple

from scaleout.study.search.best import ROUNDING, Best, EvaluatedPlan, fastest_first
from scaleout.study.search.checkpoint import Memory
from scaleout.study.search.evaluate import BASELINE, Estimate, evaluate
from scaleout.study.search.execution import Execution
from scaleout.study.search.request import SearchRequest
from scaleout.study.search.space import Family, Plan

_TOGETHER = 16
"""Sets that a worker looks at before it hears of what others found."""


class PlanSet(NamedTuple):
    """Plans of a family with one lower bound.

    `level` counts what they were divided by: nothing, in a whole family; the lightest plan that does no more; one that
    recomputes as they do; each plan alone, bounded by its timed stages.
    """

    bound_s: float
    level: int
    family: int
    numbers: tuple[int, ...]


_CLOSELY, _ALONE = 2, 3


class Considered(NamedTuple):
    """A plan that no bound had ruled out when it was its turn: one that is too large, or was evaluated.

    `family` and `number` say which plan it is, `bound_s` is the bound of those that recompute as it does, and `path_s`
    its own, -1 if it is too large.
    """

    family: int
    number: int
    bound_s: float
    peak_bytes: float
    path_s: float


class Opened(NamedTuple):
    """What looking at some sets gave: the sets into which they divide, and of those of one plan what became of it."""

    sets: list[PlanSet]
    considered: list[Considered]
    found: list[EvaluatedPlan]


def evaluated_plans(
    request: SearchRequest, families: Sequence[Family], bounds: Sequence[float], execution: Execution, best: Best
) -> tuple[list[EvaluatedPlan], list[tuple[float, Plan]]]:
    """Return the plans that the answer does not rule out: the fastest first, and what those hold that do not fit.

    The times that rule plans out are those of `best` and, unless it is closed, the estimates of plans found. More may
    be evaluated while the best are not known yet, depending on what is done when; these are not returned.
    """
    memory, best = execution.memory, replace(best)
    step = "plans against those simulated" if best.closed else "plans"
    considered = _remembered(families, memory, step)
    if considered is None:
        considered = _considered(request, families, bounds, execution, replace(best))
        memory.add_step(step, considered)

    def found(each: Considered) -> EvaluatedPlan:
        plan = families[each.family].plans[each.number]
        return EvaluatedPlan(plan, memory.estimates[plan, BASELINE])

    best.add(found(each) for each in considered if each.path_s >= 0)
    wanted, too_large = list[EvaluatedPlan](), list[tuple[float, Plan]]()
    for each in considered:
        if each.bound_s * ROUNDING > best.limit():
            continue
        if each.path_s < 0:
            too_large.append((each.peak_bytes, families[each.family].plans[each.number]))
        elif best.wants(each.bound_s, each.peak_bytes) and best.wants(each.path_s, each.peak_bytes):
            wanted.append(found(each))
    return fastest_first(wanted), too_large


def _remembered(families: Sequence[Family], memory: Memory, step: str) -> list[Considered] | None:
    """Return the plans that were considered before; None if they were not, or an estimate of them is lost."""
    if step not in memory.steps:
        return None
    considered = [Considered(*row) for row in memory.steps[step]]
    plans = [families[each.family].plans[each.number] for each in considered if each.path_s >= 0]
    return considered if all((plan, BASELINE) in memory.estimates for plan in plans) else None


def _considered(
    request: SearchRequest, families: Sequence[Family], bounds: Sequence[float], execution: Execution, best: Best
) -> list[Considered]:
    """Look at sets of plans, the lowest bound first, until none is left that may be wanted."""
    considered, num_evaluated = list[Considered](), 0
    left: list[list[PlanSet]] = [[] for _ in execution.pools]
    for number, family in enumerate(families):
        every = PlanSet(bounds[number], 0, number, tuple(range(len(family.plans))))
        heappush(left[execution.worker_of(family.alike)], every)
    running: dict[Future[Opened], int] = {}
    num_plans = num_left = sum(len(family.plans) for family in families)
    num_judged = 0  # the most so far: a set that is divided is to be judged again
    while True:
        for worker, mine in enumerate(left):
            while mine and sum(each == worker for each in running.values()) < 2:
                some = [heappop(mine) for _ in range(min(_TOGETHER, len(mine)))]
                num_left -= sum(len(each.numbers) for each in some)
                if some[0].bound_s * ROUNDING <= best.limit():
                    known = _known(families, some, execution.memory)
                    with_families = [(each, families[each.family]) for each in some]
                    running[execution.pools[worker].submit(_open, request, with_families, known, best)] = worker
        if not running:
            return considered
        done = wait(running, return_when=FIRST_COMPLETED).done
        for future in [each for each in running if each in done]:
            worker, opened = running.pop(future), future.result()
            considered += opened.considered
            best.add(opened.found)
            for found in opened.found:
                execution.memory.add(found)
            for each in opened.sets:
                heappush(left[worker], each)
            num_left += sum(len(each.numbers) for each in opened.sets)
            num_evaluated += len(opened.found)
            execution.so_far.counts.evaluated = num_evaluated
            execution.found(best, f"{num_left:,} of {num_plans:,} plans", under=request.schedules)
            num_judged = max(num_judged, num_plans - num_left)
            what = "plans judged again, by simulated times" if best.closed else "plans judged"
            execution.tell(num_judged, num_plans, f"{what}, {num_evaluated:,} of them evaluated", best)


def _known(families: Sequence[Family], some: Sequence[PlanSet], memory: Memory) -> dict[Plan, Estimate]:
    """Return the estimates that were made before of the plans that are next to be evaluated."""
    plans = (families[each.family].plans[each.numbers[0]] for each in some if each.level == _ALONE)
    return {plan: memory.estimates[plan, BASELINE] for plan in plans if (plan, BASELINE) in memory.estimates}


def _open(
    request: SearchRequest, some: Sequence[tuple[PlanSet, Family]], known: Mapping[Plan, Estimate], best: Best
) -> Opened:
    """Divide those sets of plans that may be wanted, and evaluate those of one plan."""
    figures, opened, best = request.figures, Opened([], [], []), replace(best)
    path_s = figures.lower_bounds.path_s
    for (bound_s, level, index, numbers), family in some:
        if bound_s * ROUNDING > best.limit():
            continue
        if level < _CLOSELY:
            lighter = defaultdict[Plan, list[int]](list)
            for number in numbers:
                lighter[family.lighter(family.plans[number])[level]].append(number)
            opened.sets.extend(
                PlanSet(figures.passes_s(plan), level + 1, index, tuple(of)) for plan, of in lighter.items()
            )
            continue
        for number in numbers:
            plan = family.plans[number]
            peak_bytes = figures.peak_bytes(plan)
            if peak_bytes > request.memory_bytes:
                opened.considered.append(Considered(index, number, bound_s, peak_bytes, -1.0))
            elif not best.wants(bound_s, peak_bytes):
                continue
            elif level < _ALONE:
                opened.sets.append(PlanSet(path_s(request.blocks(plan)), _ALONE, index, (number,)))
            else:
                before_s = figures.passes_s(family.lighter(plan)[1])
                opened.considered.append(Considered(index, number, before_s, peak_bytes, bound_s))
                workload, host = request.blocks(plan), request.options.host
                estimate = known.get(plan) or evaluate(workload, request.topology, request.device, host=host)
                opened.found.append(EvaluatedPlan(plan, estimate))
                best.add(opened.found[-1:])
    return opened
