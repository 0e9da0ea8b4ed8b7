"""One bar of progress for what takes longer than two seconds, with the time left, where standard error is a terminal.

It shows by itself, however long one part of the work takes. Elsewhere, as in a log, it is a line now and then. An
interrupt ends the work with what is kept of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaleout.study.job import Tell

_AFTER_S = 2
_A_LINE_S = 30.0
"""From a line of progress to the next where there is no terminal."""


@contextmanager
def progress(*, kept: str, quiet: bool = False) -> "Iterator[Tell]":
    """Hand out what work calls as it goes on; `kept` is said of an interrupt.

    Raises
    ------
    KeyboardInterrupt
        With what is kept, on an interrupt.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    shown = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = quiet or not shown.is_terminal
    said = monotonic()
    bars = Progress(*columns, console=shown, disable=hidden, transient=True)
    bar = bars.add_task("reading what is asked", total=None)
    shows = Timer(_AFTER_S, bars.start)
    shows.daemon = True

    def tell(done: int, total: int, words: str) -> None:
        nonlocal said
        bars.update(bar, completed=done, total=total, description=words)
        if hidden and not quiet and monotonic() - said > _A_LINE_S:
            said = monotonic()
            shown.print(f"{done:,} of {total:,} {words}", soft_wrap=True, markup=False)

    shows.start()
    try:
        yield tell
    except KeyboardInterrupt as interrupt:
        if type(interrupt) is not KeyboardInterrupt:  # it has more to say than what is kept
            raise
        raise KeyboardInterrupt(kept) from None
    finally:
        shows.cancel()
        bars.stop()
