"""One bar of progress for what takes longer than two seconds, with the time left, where standard error is a terminal.

It shows by itself, however long one part of the work takes, and never goes back. Elsewhere, as in a log, it is a line
now and then. An interrupt ends the work with what is kept of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Task

_AFTER_S = 2
_A_LINE_S = 30.0
"""From a line of progress to the next where there is no terminal."""


class Tell(Protocol):
    """Shows how many of how many are done, and of what; `until` is the share of all work that is over when they are."""

    def __call__(self, done: int, total: int, words: str, until: float = 1.0) -> None:
        """Show it."""


@dataclass
class Way:
    """How far work of several parts is.

    >>> way = Way()
    >>> way.share(1, 2, until=0.5), way.share(2, 2, until=0.5), way.share(1, 4), way.share(0, 4)
    (0.25, 0.5, 0.625, 0.625)
    """

    reached: float = 0.0
    begun: float = 0.0  # where this part began
    part: tuple[int, float] = (0, 0.0)

    def share(self, done: int, total: int, until: float = 1.0) -> float:
        """Return the share of all that is done; a part begins where its number or end is another."""
        if self.part != (total, until):
            self.part, self.begun = (total, until), self.reached
        self.reached = max(self.reached, self.begun + (until - self.begun) * done / max(total, 1))
        return self.reached


def time_of(task: "Task") -> str:
    """Say how long it takes still, as fast as until now; until anything is done, how long it took."""
    elapsed_s, share = task.elapsed or 0.0, task.completed
    seconds = int(elapsed_s * (1 - share) / share if share else elapsed_s)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} {'left' if share else 'so far'}"


@contextmanager
def progress(*, kept: str, quiet: bool = False) -> Iterator[Tell]:
    """Hand out what work calls as it goes on; `kept` is said of an interrupt.

    Raises
    ------
    KeyboardInterrupt
        With what is kept, on an interrupt.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
    from rich.text import Text

    class Time(ProgressColumn):
        def render(self, task: "Task") -> Text:
            return Text(time_of(task))

    shown = Console(stderr=True)
    hidden = quiet or not shown.is_terminal
    said, way = monotonic(), Way()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), Time())
    bars = Progress(*columns, console=shown, disable=hidden, transient=True)
    bar = bars.add_task("reading what is asked", total=1.0)
    shows = Timer(_AFTER_S, bars.start)
    shows.daemon = True

    def tell(done: int, total: int, words: str, until: float = 1.0) -> None:
        nonlocal said
        bars.update(bar, completed=way.share(done, total, until), description=f"{done:,} of {total:,} {words}")
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
