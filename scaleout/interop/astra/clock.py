"""Events in order of time; of the same nanosecond, the one that was known first comes first.

Knows nothing of what happens.
"""

import heapq
from collections.abc import Callable


class Clock:
    """The current time and what is still to happen."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._queue: list[tuple[int, int, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time_ns: int, action: Callable[[], None], *, known_ns: int | None = None) -> None:
        """Let something happen, at the current time or later.

        Parameters
        ----------
        known_ns : int, optional
            Since when ASTRA-sim would know of the event, which settles the order within a nanosecond; now by default.
        """
        self._count += 1
        known_ns = self.now_ns if known_ns is None else known_ns
        heapq.heappush(self._queue, (time_ns, known_ns, self._count, action))

    def run(self) -> None:
        """Run until nothing is left to happen."""
        while self._queue:
            self.now_ns, _, _, action = heapq.heappop(self._queue)
            action()
