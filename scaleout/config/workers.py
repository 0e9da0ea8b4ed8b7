"""Processes that end with the one that started them, however that ended: none outlives its command."""

import os
import signal
import threading
from multiprocessing import connection, parent_process


def leave_signals() -> None:
    """Leave signals to the process that started this one, which says what is to end."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def end_with_parent(order: connection.Connection | None = None) -> None:
    """End this process at once, whatever it is about, when its parent has ended, or sends something."""
    parent = parent_process()
    assert parent is not None
    ends: list[int | connection.Connection] = [parent.sentinel, *([] if order is None else [order])]

    def wait() -> None:
        connection.wait(ends)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
