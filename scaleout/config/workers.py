"""Processes that end with the one that started them, however that ended: none outlives its command."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, parent_process

MOST_WORKERS = 256
"""Processes of this machine that one command may start."""

_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def leave_signals() -> None:
    """Leave signals to the process that started this one, which says what is to end."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold signals that ask this process to end, until it has started others; handlers are then as they were.

    What Python calls around a fork passes over exceptions: an interrupt in it would be printed, and lost.
    """
    seen: list[int] = []
    before = {number: signal.getsignal(number) for number in _ENDING}
    held = {number: handler for number, handler in before.items() if callable(handler)}
    try:
        for number in held:
            signal.signal(number, lambda number, _: seen.append(number))
    except ValueError:  # outside the main thread, where no signal is handled
        held.clear()
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
    if seen:
        signal.raise_signal(seen[0])


def end_with_parent(order: connection.Connection | None = None) -> None:
    """End this process at once, whatever it is about, when its parent has ended, or sends something."""
    parent = parent_process()
    assert parent is not None
    ends: list[int | connection.Connection] = [parent.sentinel, *([] if order is None else [order])]

    def wait() -> None:
        connection.wait(ends)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
