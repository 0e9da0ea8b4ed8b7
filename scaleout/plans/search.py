"""The best plans of a job: branch and bound over families of plans, on all cores.

Families are weighed first by what their stages take at least; those that cannot be among the best are never opened.
Of an opened family each plan is bounded, then held against the memory, then evaluated. Kept are the `top` fastest
plans, and of those not more than `SLACK` slower than the fastest all that no plan beats in both time and memory. Both
are what evaluating every plan would give.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from scaleout.device import Device
from scaleout.plans.bound import bound_of, family_bound, least_of
from scaleout.plans.evaluate import Estimate, evaluate, peak_of
from scaleout.plans.prices import prices_of
from scaleout.plans.space import Family, Plan, families, workload_of
from scaleout.plans.stages import Ledger, stages_of
from scaleout.topology import Topology
from scaleout.workload import Transformer

SLACK = 1.25
"""Plans slower than the fastest by more than this factor are not looked at for their memory."""

_ROUNDING = 1 - 1e-9
_WEIGHED_TOGETHER, _OPENED_TOGETHER = 256, 16


@dataclass(frozen=True)
class Question:
    """What is searched.

    Attributes
    ----------
    base : Transformer
        The model, and all keys that no plan chooses.
    topology : Topology
    device : Device
    num_ranks : int
    batch : int
        Sequences in a step, over all replicas.
    memory_bytes : float
        What a rank may hold.
    top : int
        How many plans are wanted.
    fixed : mapping
        Keys of `Plan` that are not to be chosen.
    """

    base: Transformer
    topology: Topology
    device: Device
    num_ranks: int
    batch: int
    memory_bytes: float
    top: int = 10
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def workload(self, plan: Plan) -> Transformer:
        """Return the workload of a plan."""
        return workload_of(plan, self.base, self.batch)


@dataclass(frozen=True)
class Found:
    """A plan and its estimate."""

    plan: Plan
    estimate: Estimate

    @property
    def key(self) -> tuple[Any, ...]:
        """Order: fastest first, of equals the one that holds least, then by the plan itself."""
        return self.estimate.step_s, self.estimate.peak_bytes, tuple(map(str, self.plan))


@dataclass
class Counts:
    """Plans by what became of them.

    Attributes
    ----------
    enumerated : int
        All plans.
    indivisible : int
        Whose sizes do not divide.
    bounded : int
        That cannot be among those wanted, by their bounds.
    too_large : int
        That do not fit the memory.
    evaluated : int
    """

    enumerated: int = 0
    indivisible: int = 0
    bounded: int = 0
    too_large: int = 0
    evaluated: int = 0

    def add(self, other: "Counts") -> None:
        """Add others."""
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)


@dataclass
class Best:
    """The plans that are kept so far."""

    top: int
    fastest: list[Found] = field(default_factory=list)
    front: list[Found] = field(default_factory=list)

    def limit(self) -> float:
        """Seconds above which no plan is wanted."""
        if len(self.fastest) < self.top:
            return float("inf")
        return max(self.fastest[-1].estimate.step_s, SLACK * self.fastest[0].estimate.step_s)

    def wants(self, bound_s: float, peak_bytes: float) -> bool:
        """Whether a plan that takes no less may be kept."""
        if len(self.fastest) < self.top or bound_s * _ROUNDING <= self.fastest[-1].estimate.step_s:
            return True
        if bound_s * _ROUNDING > self.limit():
            return False
        return not any(
            found.estimate.step_s < bound_s * _ROUNDING and found.estimate.peak_bytes <= peak_bytes
            for found in self.front
        )

    def add(self, found: Iterable[Found]) -> None:
        """Keep those that are among the best."""
        new = list(found)
        self.fastest = sorted([*self.fastest, *new], key=lambda each: each.key)[: self.top]
        front: list[Found] = []
        for each in sorted([*self.front, *new], key=lambda each: each.key):
            if not front or each.estimate.peak_bytes < front[-1].estimate.peak_bytes:
                front.append(each)
        self.front = front

    @property
    def near(self) -> list[Found]:
        """The front, as far as it is complete."""
        last_s = SLACK * self.fastest[0].estimate.step_s if self.fastest else 0.0
        return [found for found in self.front if found.estimate.step_s <= last_s]


@dataclass(frozen=True)
class Opened:
    """What opening some families gave.

    `nearest` is the plan that holds least of those that do not fit, and what it holds.
    """

    found: tuple[Found, ...]
    counts: Counts
    nearest: tuple[float, Plan] | None


@dataclass(frozen=True)
class Answer:
    """The best plans, and what became of all others.

    Attributes
    ----------
    fastest : tuple of Found
        The `top` fastest, in order.
    front : tuple of Found
        The plans up to `SLACK` slower than the fastest that none beats in both time and memory, fastest first.
    evaluated : tuple of Found
        All that were evaluated.
    counts : Counts
    nearest : (float, Plan) or None
        Of the plans that do not fit, the one that holds least, and how many bytes that is.
    """

    fastest: tuple[Found, ...]
    front: tuple[Found, ...]
    evaluated: tuple[Found, ...]
    counts: Counts
    nearest: tuple[float, Plan] | None


def search(
    question: Question,
    *,
    known: Mapping[Plan, Estimate] | None = None,
    workers: int | None = None,
    keep: Callable[[Found], None] = lambda _found: None,
    tell: Callable[[int, int, Counts, Best], None] = lambda *_told: None,
) -> Answer:
    """Find the best plans.

    Parameters
    ----------
    question : Question
    known : mapping, optional
        Plans that were evaluated before, and their estimates.
    workers : int, optional
        Processes; as many as there are cores if not given, and none besides this one if 1.
    keep : function, optional
        Called with every plan as soon as it has been evaluated.
    tell : function, optional
        Called now and then with families done, all families, what became of the plans, and the best so far.
    """
    workers = workers or os.cpu_count() or 1
    counts = Counts()
    todo: list[Family] = []
    for family in families(question.base, question.num_ranks, question.batch, fixed=question.fixed):
        counts.enumerated += family.num_plans
        counts.indivisible += family.num_plans - len(family.plans)
        if family.plans:
            todo.append(family)
    best, nearest, evaluated = Best(question.top), None, list[Found]()
    with _pool(workers) as pool:
        chunks = list(_chunked(todo, _WEIGHED_TOGETHER))
        firsts = [[family.plans[0] for family in chunk] for chunk in chunks]
        bounds = [bound for some in pool.map(_weigh, [question] * len(chunks), firsts) for bound in some]
        order = sorted(range(len(todo)), key=lambda number: (bounds[number], number))
        done = 0
        running: dict[Future[Opened], int] = {}
        left = iter(_chunked(order, _OPENED_TOGETHER))
        while True:
            while len(running) < 2 * workers and (some := next(left, None)) is not None:
                wanted = [number for number in some if bounds[number] * _ROUNDING <= best.limit()]
                counts.bounded += sum(len(todo[number].plans) for number in some if number not in wanted)
                done += len(some) - len(wanted)
                if wanted:
                    plans = [plan for number in wanted for plan in todo[number].plans]
                    mine = {plan: known[plan] for plan in plans if plan in known} if known else {}
                    running[pool.submit(_open, question, plans, mine, best)] = len(wanted)
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                opened = future.result()
                done += running.pop(future)
                counts.add(opened.counts)
                best.add(opened.found)
                evaluated += opened.found
                nearest = min(filter(None, (nearest, opened.nearest)), default=None)
                for found in opened.found:
                    keep(found)
                tell(done, len(todo), counts, best)
    return Answer(tuple(best.fastest), tuple(best.near), tuple(evaluated), counts, nearest)


def _weigh(question: Question, plans: Sequence[Plan]) -> list[float]:
    """Return the bounds of families, each given by one of its plans; new kernels of all are timed together."""
    prices = prices_of(question.topology, question.device)
    workloads = [question.workload(plan) for plan in plans]
    ledgers = [Ledger.of(workload, prices) for workload in workloads]
    prices.learn(kernel for ledger in ledgers for kernel in ledger.kernels())
    return [family_bound(workload, ledger) for workload, ledger in zip(workloads, ledgers, strict=True)]


def _open(question: Question, plans: Sequence[Plan], known: Mapping[Plan, Estimate], best: Best) -> Opened:
    """Evaluate those plans of some families that may be wanted, the most promising first."""
    prices = prices_of(question.topology, question.device)
    best, counts, found, nearest = replace(best), Counts(), list[Found](), None
    bounded = []
    for plan in plans:
        workload = question.workload(plan)
        bounded.append((bound_of(workload, least_of(stages_of(workload, prices))), plan, workload))
    for bound_s, plan, workload in sorted(bounded, key=lambda each: each[0]):
        if bound_s * _ROUNDING > best.limit():
            counts.bounded += 1
            continue
        peak_bytes = peak_of(workload).total_bytes
        if peak_bytes > question.memory_bytes:
            counts.too_large += 1
            nearest = min(filter(None, (nearest, (peak_bytes, plan))))
        elif not best.wants(bound_s, peak_bytes):
            counts.bounded += 1
        else:
            estimate = known.get(plan) or evaluate(workload, question.topology, question.device)
            counts.evaluated += 1
            found.append(Found(plan, estimate))
            best.add(found[-1:])
    return Opened(tuple(found), counts, nearest)


def _chunked(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


class _Here(Executor):
    """Runs everything in this process, at once."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Run a function."""
        future: Future[Any] = Future()
        future.set_result(function(*arguments, **named))
        return future


def _pool(workers: int) -> Executor:
    return ProcessPoolExecutor(workers, initializer=_leave_interrupts) if workers > 1 else _Here()


def _leave_interrupts() -> None:
    """Let the process that started this one answer to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
