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
from typing import Any

from scaleout.study.search.best import ROUNDING, Best, Choice, Counts, EvaluatedPlan, Execution
from scaleout.study.search.cost import plan_costs_of
from scaleout.study.search.evaluate import BASELINE, Estimate, evaluate, peak_of
from scaleout.study.search.lower_bound import bound_of, family_bound, lower_bounds_of, stage_bounds_of
from scaleout.study.search.request import SearchRequest
from scaleout.study.search.scheduled import Candidate, Simulated, candidates_of, contended, kernels_s, simulate_best
from scaleout.study.search.space import Family, Plan, families
from scaleout.study.search.stages import Ledger, stages_of


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


_WEIGHED_TOGETHER, _OPENED_TOGETHER = 256, 16


@dataclass
class Opened:
    """What opening some families gave.

    `nearest` is the plan that holds least of those that do not fit, and what it holds; `candidates` are the plans that
    schedules may make one of the fastest.
    """

    evaluated: list[EvaluatedPlan] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    nearest: tuple[float, Plan] | None = None
    candidates: list[Candidate] = field(default_factory=list)

    def add(self, other: "Opened") -> None:
        """Add what opening others gave."""
        self.evaluated += other.evaluated
        self.counts.add(other.counts)
        self.nearest = min(filter(None, (self.nearest, other.nearest)), default=None)
        self.candidates += other.candidates


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
        for new, done in _opened(request, todo, counts, best, execution):
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
            num_plans = counts.enumerated - counts.indivisible
            simulated = simulate_best(request, opened.candidates, num_plans, best, execution)
            evaluated += simulated.found
    return Answer(tuple(best.fastest), tuple(best.near), tuple(evaluated), counts, opened.nearest, simulated)


def _opened(
    request: SearchRequest, todo: Sequence[Family], counts: Counts, best: Best, execution: Execution
) -> Iterator[tuple[Opened, int]]:
    """Open the families that may be wanted, the most promising first; yield what each gave, and how many are done."""
    batches = _batched(todo, _WEIGHED_TOGETHER)
    firsts = [[family.plans[0] for family in batch] for batch in batches]
    weighed = execution.pool.map(_weigh, [request] * len(batches), firsts)
    bounds = [bound for some in weighed for bound in some]
    order = sorted(range(len(todo)), key=lambda number: (bounds[number], number))
    done = 0
    running: dict[Future[Opened], int] = {}
    left = iter(_batched(order, _OPENED_TOGETHER))
    while True:
        while len(running) < 2 * execution.workers and (some := next(left, None)) is not None:
            wanted = [number for number in some if _may_be_wanted(bounds[number], best)]
            counts.bounded += sum(len(todo[number].plans) for number in some if number not in wanted)
            done += len(some) - len(wanted)
            if wanted:
                plans = [plan for number in wanted for plan in todo[number].plans]
                choices = [(plan, BASELINE) for plan in plans]
                known = {choice: execution.known[choice] for choice in choices if choice in execution.known}
                running[execution.pool.submit(_open, request, plans, known, best)] = len(wanted)
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            opened = future.result()
            done += running.pop(future)
            yield opened, done


_Bounds = tuple[float, float]
"""Lower bounds of all plans of a family: under `baseline`, and under the schedules of the request."""


def _may_be_wanted(bounds: _Bounds, best: Best) -> bool:
    under_baseline_s, under_others_s = bounds
    return under_baseline_s * ROUNDING <= best.limit() or under_others_s * ROUNDING <= best.last_s


def _weigh(request: SearchRequest, plans: Sequence[Plan]) -> list[_Bounds]:
    """Return the bounds of families, each given by one of its plans; new kernels of all are timed together."""
    costs = plan_costs_of(request.topology, request.device)
    workloads = [request.workload(plan) for plan in plans]
    ledgers = [Ledger.of(workload, costs) for workload in workloads]
    costs.model.time_kernels(kernel for ledger in ledgers for kernel in ledger.kernels())
    under_baseline_s = [family_bound(workload, ledger) for workload, ledger in zip(workloads, ledgers, strict=True)]
    if not request.schedules:
        return [(bound_s, float("inf")) for bound_s in under_baseline_s]
    lower_bounds = lower_bounds_of(request.topology, request.device)
    return [
        (bound_s, lower_bounds.spread_s(workload))
        for bound_s, workload in zip(under_baseline_s, workloads, strict=True)
    ]


def _open(request: SearchRequest, plans: Sequence[Plan], known: Mapping[Choice, Estimate], best: Best) -> Opened:
    """Evaluate those plans of some families that may be wanted, the most promising first."""
    costs = plan_costs_of(request.topology, request.device)
    best, opened, bounded = replace(best), Opened(), []
    candidates: dict[Plan, float] = {}  # and the bound of their kernels
    for plan in plans:
        workload = request.workload(plan)
        if request.schedules:  # which ask for the kernels anyway; nothing is faster under `baseline` either
            candidates[plan] = kernels_s(request, workload)
            if candidates[plan] * ROUNDING > best.limit():
                opened.counts.bounded += 1
                continue
        bounded.append((bound_of(workload, stage_bounds_of(stages_of(workload, costs))), plan, workload))
    for bound_s, plan, workload in sorted(bounded, key=lambda each: each[0]):
        if bound_s * ROUNDING > best.limit():
            opened.counts.bounded += 1
            continue
        peak_bytes = peak_of(workload).total_bytes
        if peak_bytes > request.memory_bytes:
            opened.counts.too_large += 1
            opened.nearest = min(filter(None, (opened.nearest, (peak_bytes, plan))))
        elif not best.wants(bound_s, peak_bytes):
            opened.counts.bounded += 1
        else:
            estimate = known.get((plan, BASELINE)) or evaluate(
                workload, request.topology, request.device, host=request.options.host
            )
            opened.counts.evaluated += 1
            opened.evaluated.append(EvaluatedPlan(plan, estimate))
            best.add(opened.evaluated[-1:])
    opened.candidates = candidates_of(request, candidates, best.last_s)
    return opened


def _batched(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[begin : begin + size] for begin in range(0, len(items), size)]
