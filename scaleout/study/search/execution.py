"""Where the steps of a search run: in processes that end with the one that started them, or in that one itself.

A step that the memory of the search knows is not computed again.
"""

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby, islice
from multiprocessing import Pipe, connection
from typing import Any, TypeVar

from scaleout.config.workers import end_with_parent, leave_signals, signals_held
from scaleout.errors import ScaleoutError
from scaleout.study.search.best import Best, Choice, Counts
from scaleout.study.search.checkpoint import Memory
from scaleout.study.search.evaluate import Estimate
from scaleout.study.search.request import SearchRequest

_TOGETHER = 64
Item = TypeVar("Item")


class _Here(Executor):
    """Runs everything in this process, at once."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Run a function."""
        return done(function(*arguments, **named))


def done(value: Any) -> Future[Any]:
    """Return a value as what is to come, which it is already."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@contextmanager
def pools_of(workers: int) -> Iterator[list[Executor]]:
    """Yield what runs functions: other processes, or this one if it is to be the only one.

    Where an exception ends it, such as an interrupt, the processes end at once, whatever they are about.

    Raises
    ------
    ScaleoutError
        If the system kills one of them.
    """
    if workers == 1:
        yield [_Here()]
        return
    with ExitStack() as stack:
        pools: list[Executor] = []
        ends = [Pipe(duplex=False) for _ in range(workers)]
        for end, _ in ends:
            pools.append(stack.enter_context(ProcessPoolExecutor(1, initializer=_begin_worker, initargs=(end,))))
        with signals_held():
            for pool in pools:
                pool.submit(os.getpid)  # the first task starts its process
        try:
            yield pools
        except BaseException as error:
            for _, order in ends:
                order.send(None)
            if not isinstance(error, BrokenProcessPool):
                raise
            raise ScaleoutError(
                "a worker process was killed, most likely for want of memory; give fewer --workers, or run the same "
                "command again: with --output it resumes"
            ) from None


def _begin_worker(order: connection.Connection) -> None:
    leave_signals()
    end_with_parent(order)


def batched(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    """Yield items in lists of at most so many.

    >>> list(batched("abc", 2))
    [['a', 'b'], ['c']]
    """
    rest = iter(items)
    while some := list(islice(rest, most)):
        yield some


TellPlans = Callable[[int, int, str, Best], None]
"""What is told of a search as it goes on: steps done, all steps, in words what these are, and the best so far."""


@dataclass
class SoFar:
    """What a search has until it ends, for who interrupts it: the best plans, and in words what is not tried yet."""

    best: Best | None = None
    counts: Counts = field(default_factory=Counts)
    left: str = ""


@dataclass(frozen=True)
class Execution:
    """How a search runs.

    Plans whose layers are alike go to one worker, which writes and weighs each layer once.

    Attributes
    ----------
    pools : sequence of Executor
        Of one process each, the workers.
    memory : Memory
        What was computed before; all that is computed is added to it as soon as it is.
    tell : function
        Called now and then with steps done, all steps, what these are, and the best so far.
    so_far : SoFar
        What is found, as it is found.
    """

    pools: Sequence[Executor]
    memory: Memory
    tell: TellPlans = lambda *_told: None
    so_far: SoFar = field(default_factory=SoFar)
    _worker_of: dict[Hashable, int] = field(default_factory=dict)

    def found(self, best: Best, left: str, *, under: Sequence[str] = ()) -> None:
        """Note the best plans, what is left to try, and schedules `under` which all is."""
        names = ", ".join(under)
        self.so_far.best, self.so_far.left = best, f"{left}; all plans under {names}" if names else left

    def share(self, plans: Mapping[Hashable, int]) -> None:
        """Give each worker about as many plans, by how many are `alike`: the most first, each to who has the fewest."""
        loads = [0] * len(self.pools)
        for alike, number in sorted(plans.items(), key=lambda item: -item[1]):
            worker = self._worker_of[alike] = loads.index(min(loads))
            loads[worker] += number

    def worker_of(self, alike: Hashable) -> int:
        """Return the worker of plans that are `alike`."""
        return self._worker_of.setdefault(alike, len(self._worker_of) % len(self.pools))

    def mapped(
        self,
        step: str,
        function: Callable[[SearchRequest, Sequence[Any]], list[Any]],
        request: SearchRequest,
        items: Sequence[Any],
        alike: Callable[[Any], Hashable] = lambda _item: None,
    ) -> list[Any]:
        """Return what a function makes of all items, as plain values and in their order; alike ones stand together."""
        starts: dict[str, tuple[Hashable, list[Any]]] = {}
        begin = 0
        for key, group in groupby(items, alike):
            for some in batched(group, _TOGETHER):
                starts[f"{step} {begin}"] = key, some
                begin += len(some)
        new = {
            self.pools[self.worker_of(key)].submit(function, request, some): name
            for name, (key, some) in starts.items()
            if name not in self.memory.steps
        }
        for number, future in enumerate(as_completed(new), start=1):
            self.memory.add_step(new[future], future.result())
            self.tell(number, len(new), f"groups of plans weighed for {step}", self.so_far.best or Best(1))
        return [value for name in starts for value in self.memory.steps[name]]

    def simulate(
        self,
        function: Callable[[SearchRequest, Choice], Estimate],
        request: SearchRequest,
        choices: Iterable[Choice],
        wanted: Callable[[Choice], bool] = lambda _choice: True,
    ) -> Iterator[tuple[Choice, Estimate | None]]:
        """Yield choices as they are simulated, with nothing if one is no longer `wanted` when it is its turn.

        The first are first, but a worker prefers those whose layers it has written, and takes others when none is left.
        """
        todo = dict.fromkeys(choices)
        idle, running = [*range(len(self.pools))], dict[Future[Estimate], tuple[Choice, int]]()
        while todo or running:
            while todo and idle:
                own = (choice for choice in todo if self.worker_of(choice[0].alike) == idle[0])
                choice = next(own, next(iter(todo)))
                del todo[choice]
                if not wanted(choice):
                    yield choice, None
                    continue
                worker = idle.pop(0)
                running[self.pools[worker].submit(function, request, choice)] = choice, worker
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                choice, worker = running.pop(future)
                idle.append(worker)
                yield choice, future.result()


@contextmanager
def execution_of(
    workers: int | None = None,
    memory: Memory | None = None,
    tell: TellPlans | None = None,
    so_far: SoFar | None = None,
) -> Iterator[Execution]:
    """Yield how a search runs, in as many processes as there are cores if not said, for as long as they run."""
    with pools_of(workers or os.cpu_count() or 1) as pools:
        yield Execution(pools, memory or Memory(), tell or (lambda *_told: None), so_far or SoFar())
