"""Messages over links that carry one at a time, first come, first served: the aware back end's network.

A message crosses each link of its route as a whole: it arrives ``floor(alpha + m / beta)`` ns after it started, and the
link is free after ``floor(m / beta)``. A ring has a link each way between neighbours and routes the shorter way,
clockwise where both are equal; a switch has one from and one to each rank; a fully connected network one for each pair.

Source: ASTRA-sim 2.0 at commit 518bd51 (2026-03-26), behaviour as measured.
"""

from collections.abc import Callable, Hashable, Sequence

from scaleout.interop.astra.clock import Clock
from scaleout.interop.astra.network import Dimension

Link = tuple[str | int, int]
"""What a link has in common with those of the other ranks, and the rank at one of its ends."""
Route = Callable[[int, int], Sequence[Hashable]]
"""Ranks to the links between them, in order."""


def route(dimension: Dimension) -> Callable[[int, int], Sequence[Link]]:
    """Return the routes between all ranks of a dimension."""
    size = dimension.size

    def find(source: int, target: int) -> Sequence[Link]:
        distance = (target - source) % size
        if dimension.kind == "Switch":
            return (("up", source), ("down", target))
        if dimension.kind == "FullyConnected":
            return ((distance, source),)
        if 2 * distance <= size:
            return [("right", (source + hop) % size) for hop in range(distance)]
        return [("left", (source - hop) % size) for hop in range(size - distance)]

    return find


def folded_route(dimension: Dimension) -> Route:
    """Return the routes of rank 0 where all ranks do the same: one link represents those of all ranks."""
    find = route(dimension)
    return lambda source, target: [kind for kind, _ in find(source, target)]


class Links:
    """The links of a network of one dimension, and the messages on them."""

    def __init__(self, clock: Clock, dimension: Dimension, find: Route) -> None:
        self._clock, self._dimension, self._find = clock, dimension, find
        self._free: dict[Hashable, int] = {}
        self.num_messages = 0

    def carry(self, source: int, target: int, size_bytes: int, deliver: Callable[[], None]) -> None:
        """Carry a message and call `deliver` when it has arrived."""
        transfer_ns = size_bytes / self._dimension.bytes_per_ns
        held_ns, passed_ns = int(transfer_ns), int(self._dimension.latency_ns + transfer_ns)
        way = iter(self._find(source, target))
        clock, free = self._clock, self._free
        self.num_messages += 1

        def hop() -> None:
            link = next(way, None)
            if link is None:
                self.num_messages -= 1
                deliver()
                return
            start_ns = max(clock.now_ns, free.get(link, 0))
            free[link] = start_ns + held_ns
            clock.at(start_ns + passed_ns, hop, known_ns=start_ns)

        hop()
