"""Where a search runs: in processes of its own, or in this one."""

import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any


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
