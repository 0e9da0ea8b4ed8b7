"""The best plans of a job: branch and bound over families of plans, on all cores.

Families are ordered by a lower bound; those that cannot be among the best are never opened. Each plan of an opened
family is bounded, held against the memory, then evaluated. The `top` fastest plans are kept, and the Pareto front of
time and memory up to `SLACK` slower than the fastest: the same as if every plan were evaluated.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from typing import Any

from scaleout.study.search.best import ROUNDING, Best, Choice, Counts, EvaluatedPlan, Execution
from scaleout.study.search.evaluate import BASELINE, Estimate, evaluate, peak_bytes_of
from scaleout.study.search.lower_bound import bound_of, lower_bounds_of, stage_bounds_of
from scaleout.study.search.request import SearchRequest
from scaleout.study.search.scheduled import Simulated, candidates_of, contended, simulate_best
from scaleout.study.search.space import Family, Plan, families
from scaleout.study.search.stages import Ledger, stages_of
from scaleout.workloads.config import LayeredModel
from scaleout.workloads.generate.profile import profile_key


class _Here(Executor):
    """Runs everything in this process, at once."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Run a function."""
        future: Future[Any] = Future()
        future.set_result(function(*arguments, **named))
        return future


def pool_of(workers: int) -> Executor:
    """Return what runs functions in other processes, or in this one if it is to be the only one."""
    return ProcessPoolExecutor(workers, initializer=_leave_interrupts) if workers > 1 else _Here()


def _leave_interrupts() -> None:
    """Let the process that started this one answer to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


_MAPPED_TOGETHER, _OPENED_TOGETHER = 64, 4


@dataclass
class Opened:
    """What opening some families gave.

    `nearest` is the plan that holds least of those that do not fit, and what it holds.
    """

    evaluated: list[EvaluatedPlan] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    nearest: tuple[float, Plan] | None = None

    def add(self, other: "Opened") -> None:
        """Add what opening others gave."""
        self.evaluated += other.evaluated
        self.counts.add(other.counts)
        self.nearest = min(filter(None, (self.nearest, other.nearest)), default=None)


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
        return min(under, key=lambda found: found.key, default=None)


def search(
    request: SearchRequest,
    *,
    known: Mapping[Choice, Estimate] | None = None,
    workers: int | None = None,
    keep: Callable[[EvaluatedPlan], None] = lambda _found: None,
    tell: Callable[[int, int, int, Best], None] = lambda *_told: None,
) -> Answer:
    """Find the best plans.

    Parameters
    ----------
    known : mapping, optional
        Plans that were evaluated before, with their schedules, and their estimates.
    workers : int, optional
        Processes; as many as there are cores if not given, and none besides this one if 1.
    keep : function, optional
        Called with every plan as soon as it has been evaluated.
    tell : function, optional
        Called now and then with steps done, all steps, how many plans have been evaluated, and the best so far.
    """
    workers = workers or os.cpu_count() or 1
    opened, best = Opened(), Best(request.top)
    counts, todo = opened.counts, list[Family]()
    for family in families(request.base, request.num_ranks, request.batch, fixed=request.fixed):
        counts.enumerated += family.num_plans
        counts.indivisible += family.num_plans - len(family.plans)
        if family.plans:
            todo.append(family)
    simulated = None
    with pool_of(workers) as pool:
        execution = Execution(pool, workers, known or {}, keep, tell)
        bounds = list(_mapped(_weigh, request, [family.plans[0] for family in todo], pool))
        for new, done in _opened(request, todo, [under_baseline_s for under_baseline_s, _ in bounds], best, execution):
            opened.add(new)
            best.add(new.evaluated)
            for found in new.evaluated:
                keep(found)
            tell(done, len(todo), len(opened.evaluated), best)
        evaluated = opened.evaluated
        if request.schedules or request.options.clocks != "unthrottled":
            evaluated, best = contended(request, evaluated, execution), Best(request.top)
            best.add(evaluated)
        if request.schedules:
            may_be = [family for family, (_, bound_s) in zip(todo, bounds, strict=True) if best.may_have(bound_s)]
            candidates = _mapped(partial(candidates_of, last_s=best.last_s), request, may_be, pool)
            num_plans = counts.enumerated - counts.indivisible
            simulated = simulate_best(request, list(candidates), num_plans, best, execution)
            evaluated += simulated.found
    return Answer(tuple(best.fastest), tuple(best.near), tuple(evaluated), counts, opened.nearest, simulated)


def _opened(
    request: SearchRequest, todo: Sequence[Family], bounds: Sequence[float], best: Best, execution: Execution
) -> Iterator[tuple[Opened, int]]:
    """Open the families that may be wanted, the most promising first; yield what each gave, and how many are done."""
    order = sorted(range(len(todo)), key=lambda number: (bounds[number], number))
    done = 0
    running: dict[Future[Opened], int] = {}
    left = iter(_batched(order, _OPENED_TOGETHER))
    while True:
        while len(running) < 2 * execution.workers and (some := next(left, None)) is not None:
            wanted = [todo[number] for number in some if bounds[number] * ROUNDING <= best.limit()]
            pruned = sum(len(todo[number].plans) for number in some) - sum(len(family.plans) for family in wanted)
            done += len(some) - len(wanted)
            if pruned:
                yield Opened(counts=Counts(bounded=pruned)), done
            if wanted:
                choices = [(plan, BASELINE) for family in wanted for plan in family.plans]
                known = {choice: execution.known[choice] for choice in choices if choice in execution.known}
                running[execution.pool.submit(_open, request, wanted, known, best)] = len(wanted)
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            opened = future.result()
            done += running.pop(future)
            yield opened, done


def _weigh(request: SearchRequest, plans: Sequence[Plan]) -> list[tuple[float, float]]:
    """Return two lower bounds of families, each given by its first plan: under `baseline`, and under all schedules.

    New kernels of all are timed together. Without other schedules the second bound is infinite.
    """
    lower_bounds = lower_bounds_of(request.topology, request.device)
    workloads = [request.workload(plan) for plan in plans]
    unlike = {profile_key(workload): workload for workload in workloads}
    ledgers = [Ledger.of(workload, lower_bounds.costs) for workload in unlike.values()]
    lower_bounds.costs.model.time_kernels(kernel for ledger in ledgers for kernel in ledger.kernels())
    return [
        (
            lower_bounds.spread_s(workload, collectives=True),
            lower_bounds.spread_s(workload, collectives=False) if request.schedules else float("inf"),
        )
        for workload in workloads
    ]


def _open(request: SearchRequest, some: Sequence[Family], known: Mapping[Choice, Estimate], best: Best) -> Opened:
    """Evaluate those plans of some families that may be wanted, the most promising first."""
    lower_bounds = lower_bounds_of(request.topology, request.device)
    passes_s = cache(lambda plan: lower_bounds.passes_s(request.workload(plan)))

    def path_s(workload: LayeredModel) -> float:
        return bound_of(workload, stage_bounds_of(stages_of(workload, lower_bounds.costs)))

    best, opened, bounded = replace(best), Opened(), list[tuple[float, Plan]]()
    for family in some:
        for plan in family.plans:
            least, closely = family.lighter(plan)
            bounded.append((passes_s(closely if passes_s(least) * ROUNDING <= best.limit() else least), plan))
    for lowest_s, plan in sorted(bounded, key=lambda each: each[0]):
        if lowest_s * ROUNDING > best.limit():
            opened.counts.bounded += 1
            continue
        workload = request.workload(plan)
        peak_bytes = sum(peak_bytes_of(workload).values())
        if peak_bytes > request.memory_bytes:
            opened.counts.too_large += 1
            opened.nearest = min(filter(None, (opened.nearest, (peak_bytes, plan))))
        elif not (best.wants(lowest_s, peak_bytes) and best.wants(path_s(workload), peak_bytes)):
            opened.counts.bounded += 1
        else:
            estimate = known.get((plan, BASELINE)) or evaluate(
                workload, request.topology, request.device, host=request.options.host
            )
            opened.counts.evaluated += 1
            opened.evaluated.append(EvaluatedPlan(plan, estimate))
            best.add(opened.evaluated[-1:])
    return opened


def _mapped(
    function: Callable[[SearchRequest, Sequence[Any]], list[Any]],
    request: SearchRequest,
    items: Sequence[Any],
    pool: Executor,
) -> Iterator[Any]:
    """Return what a function makes of all items, in their order."""
    batches = _batched(items, _MAPPED_TOGETHER)
    return chain.from_iterable(pool.map(function, [request] * len(batches), batches))


def _batched(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[begin : begin + size] for begin in range(0, len(items), size)]
