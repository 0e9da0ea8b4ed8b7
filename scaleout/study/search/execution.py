"""Where the steps of a search run: in processes that end with the one that started them, or in that one itself.

A step that the memory of the search knows is not computed again.
"""

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from typing import Any

from scaleout.study.search.best import Best, Choice, EvaluatedPlan
from scaleout.study.search.checkpoint import Memory
from scaleout.study.search.evaluate import Estimate
from scaleout.study.search.request import SearchRequest

_TOGETHER = 64


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


def pool_of(workers: int) -> Executor:
    """Return what runs functions in other processes, or in this one if it is to be the only one."""
    return ProcessPoolExecutor(workers, initializer=_begin_worker) if workers > 1 else _Here()


def _begin_worker() -> None:
    """Leave Ctrl-C to the process that started this one, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


@dataclass(frozen=True)
class Execution:
    """How a search runs.

    Attributes
    ----------
    pool : Executor
        Of as many processes as there are workers.
    memory : Memory
        What was computed before; all that is computed is added to it as soon as it is.
    tell : function
        Called now and then with steps done, all steps, how many plans have been evaluated, and the best so far.
    """

    pool: Executor
    workers: int
    memory: Memory
    tell: Callable[[int, int, int, Best], None] = lambda *_told: None

    def mapped(
        self,
        step: str,
        function: Callable[[SearchRequest, Sequence[Any]], list[Any]],
        request: SearchRequest,
        items: Sequence[Any],
    ) -> list[Any]:
        """Return what a function makes of all items, as plain values and in their order."""
        starts = {f"{step} {begin}": items[begin : begin + _TOGETHER] for begin in range(0, len(items), _TOGETHER)}
        new = {
            self.pool.submit(function, request, some): name
            for name, some in starts.items()
            if name not in self.memory.steps
        }
        for future in as_completed(new):
            self.memory.add_step(new[future], future.result())
        return [value for name in starts for value in self.memory.steps[name]]

    def simulate(
        self,
        function: Callable[[SearchRequest, Choice], Estimate],
        request: SearchRequest,
        names: Mapping[Choice, Choice],
    ) -> None:
        """See that the memory has the estimates of some choices, each under its name there."""
        new = [choice for choice, name in names.items() if name not in self.memory.estimates]
        futures = {self.pool.submit(function, request, choice): names[choice] for choice in new}
        for future in as_completed(futures):
            plan, schedule = futures[future]
            self.memory.add(EvaluatedPlan(plan, future.result(), schedule))
