"""Events in order of time; of events in the same nanosecond, the one that was known first runs first."""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable

from scaleout.errors import SimulationError

_LATEST_NS = 2**62
"""146 years; the sum of two such times still takes 64 bits."""


class Clock:
    """The current time and a queue of future events."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._queue: list[tuple[int, int, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time_ns: int, action: Callable[[], None], *, known_ns: int | None = None) -> None:
        """Schedule an action at the current time or later.

        `known_ns` is since when ASTRA-sim would know of it, by default now: the order within a nanosecond.
        """
        if time_ns > _LATEST_NS:
            raise SimulationError(
                f"a rank would be at work after {_LATEST_NS} ns, beyond what whole nanoseconds of 64 bits are added up "
                f"to; give smaller sizes and durations"
            )
        self._count += 1
        known_ns = self.now_ns if known_ns is None else known_ns
        heapq.heappush(self._queue, (time_ns, known_ns, self._count, action))

    def run(self) -> None:
        """Run until no event is left."""
        while self._queue:
            self.now_ns, _, _, action = heapq.heappop(self._queue)
            action()


class Signals:
    """Actions that wait for a signal of their key; either may come first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._early: Counter[Hashable] = Counter()
        self._waiting: dict[Hashable, deque[Callable[[], None]]] = defaultdict(deque)

    def signal(self, key: Hashable) -> None:
        """Run the action that has waited longest, or keep the signal for the next."""
        if self._waiting[key]:
            self._waiting[key].popleft()()
        else:
            self._early[key] += 1

    def wait(self, key: Hashable, action: Callable[[], None]) -> None:
        """Let an action wait; with a signal kept it runs in this nanosecond, after all events known by now."""
        if self._early[key]:
            self._early[key] -= 1
            self._clock.at(self._clock.now_ns, action)
        else:
            self._waiting[key].append(action)
