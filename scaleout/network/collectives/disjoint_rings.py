"""Disjoint rings: where ranks are joined by links of their own, as many rings at once as the links have room for.

Each of R equal slices of the buffer, one a chain, goes round a ring of its own, a directed cycle through all members:
``2 (p - 1) (alpha + n / (p R) beta)`` for an all-reduce. In *relayed rings* members pass on what is not for them.

Symbols: p ranks; n bytes; R rings; alpha [s]; beta [s/B].
Source: NCCL, src/graph/search.cc, for rings of one graph side by side. See docs/models/collectives.md.
"""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from scaleout.cluster.topology.placement import Placement
from scaleout.network.collectives.algorithm import Algorithm, Scheduler, then
from scaleout.network.collectives.rounds import Edges, Round, Schedule

_MOST_TRIED = 20_000
"""Hops that are tried in all before the most rings found so far are taken."""
_MOST_RINGS = 64
"""NCCL's channels (MAXCHANNELS)."""
_MOST_MEMBERS = 1024
"""Of a group in which rings are searched: those of a node are a few."""

Arc = tuple[int, int]
"""From a member, to a member, by their places in the group."""

Way = tuple[Arc, ...]
"""The arcs of a ring, or of one hop of it: one, or two over a relay."""


def _capacities(placement: Placement) -> Counter[Arc]:
    """Rings that the link between two members carries each way; empty unless the group lies along one graph."""
    found: Counter[Arc] = Counter()
    extents, topology = placement.extents, placement.topology
    if topology is None or len(extents) != 1 or extents[0].dimension.fabric is None:
        return found
    coordinates = topology.coordinates(placement.ranks)
    number = int(np.ptp(coordinates, axis=0).argmax())
    place_of = {node: place for place, node in enumerate(coordinates[:, number].tolist())}
    factors = {change.ends: change.factor for change in topology.changes if change.dimension == number}
    speeds: dict[Arc, float] = {}
    for link in extents[0].dimension.fabric.links:
        if link.a in place_of and link.b in place_of:
            factor = factors.get((min(link.a, link.b), max(link.a, link.b)), 1.0)
            speeds[place_of[link.a], place_of[link.b]] = link.bytes_per_s * factor
    slowest = min((speed for speed in speeds.values() if speed > 0), default=1.0)
    for (a, b), speed in speeds.items():
        found[a, b] = found[b, a] = int(speed / slowest * (1 + 1e-9))
    return found


class _Search:
    """Depth-first search for rings; `room` is what arcs still have, `most` are the most rings found so far."""

    def __init__(self, size: int, room: Counter[Arc], *, relayed: bool) -> None:
        self.size, self.room, self.relayed = size, room, relayed
        self.most: list[Way] = []
        self.tried = 0
        self._next: list[list[int]] = [[] for _ in range(size)]  # members that a member has a link to, in order
        for source, destination in sorted(room):
            self._next[source].append(destination)

    def run(self) -> tuple[Way, ...]:
        """Find the most rings: no more than every member has room for."""
        sums = Counter[tuple[int, int]]()
        for arc, room in self.room.items():
            sums.update({(end, arc[end]): room for end in (0, 1)})
        bound = min(sums[end, member] for end in (0, 1) for member in range(self.size))
        if bound:
            self._add([], min(bound, _MOST_RINGS))
        return tuple(self.most)

    def _add(self, found: list[Way], bound: int) -> None:
        if len(found) > len(self.most):
            self.most = list(found)
        for ring in self._rings():
            # Rings may be found in any order; the one in which they grow is enough.
            if found and ring < found[-1]:
                continue
            self._add([*found, ring], bound)
            if len(self.most) >= bound or self.tried > _MOST_TRIED:
                return

    def _rings(self) -> Iterator[Way]:
        """Go from member to member, and back where no hop is left; what is yielded is out of the room meanwhile."""
        way: list[tuple[int, Way]] = []
        free = set(range(1, self.size))
        left = [self._hops(0, free)]
        while left:
            hop = self._take(left[-1])
            if hop is None:
                left.pop()
            else:
                way.append(hop)
                if hop[0]:
                    free.remove(hop[0])
                    left.append(self._hops(hop[0], free or {0}))
                    continue
                yield tuple(arc for _, arcs in way for arc in arcs)
            if way:
                member, arcs = way.pop()
                self.room.update(arcs)
                free.update({member} - {0})

    def _take(self, hops: Iterator[tuple[int, Way]]) -> tuple[int, Way] | None:
        """Take the next hop that there is room for; None if there is none, or enough were tried."""
        for member, arcs in hops:
            self.tried += 1
            if self.tried > _MOST_TRIED:
                return None
            if all(self.room[arc] for arc in arcs):
                self.room.subtract(arcs)
                return member, arcs
        return None

    def _hops(self, at: int, ends: set[int]) -> Iterator[tuple[int, Way]]:
        """Yield hops to any of some members: over their links, then over relays to those that there is no link to."""
        direct = self._next[at]
        yield from [(to, ((at, to),)) for to in direct if to in ends]
        if self.relayed:
            far = ends.difference(direct)
            joined = sorted((to, relay) for relay in direct for to in self._next[relay] if to in far)
            yield from [(to, ((at, relay), (relay, to))) for to, relay in joined]


@lru_cache(maxsize=1024)
def rings_of(placement: Placement, *, relayed: bool = False) -> tuple[Way, ...]:
    """Return rings through all members of a group that fit next to each other on its links.

    >>> from scaleout.cluster.topology.placement import place
    >>> from scaleout.cluster.topology.topology import load_topology
    >>> [len(rings_of(place(load_topology("v100-node-8"), range(p)))) for p in range(2, 9)]
    [1, 2, 4, 0, 2, 4, 6]
    """
    room = _capacities(placement) if placement.num_ranks <= _MOST_MEMBERS else None
    return _Search(placement.num_ranks, room, relayed=relayed).run() if room else ()


def _phase(*, relayed: bool) -> Scheduler:
    def schedule(placement: Placement) -> Schedule:
        p, rings = placement.num_ranks, rings_of(placement, relayed=relayed)
        rounds = []
        for chain, ring in enumerate(rings):
            sources, destinations = zip(*ring, strict=True)
            rounds.append(Round(Edges(sources, destinations), 1 / (p * len(rings)), repeat=p - 1, chain=chain))
        relays = sum(len(ring) - p for ring in rings)  # each passes on what its ring's members send
        return Schedule(tuple(rounds), surplus=(p - 1) / p * relays / len(rings))

    return schedule


def _joined(placement: Placement) -> str | None:
    """Demand a ring over direct links."""
    return None if rings_of(placement) else "needs a group with a ring of links of its own, along one graph"


def _relayed(placement: Placement) -> str | None:
    """Demand a ring over members that pass on, and none over direct links."""
    if rings_of(placement):
        return "is for groups without a ring of direct links; take 'disjoint_rings'"
    found = rings_of(placement, relayed=True)
    return None if found else "needs a group that is joined by links of its own, along one graph"


def _kinds(phase: Scheduler) -> dict[str, Scheduler]:
    return {"all_reduce": then(phase, phase), "reduce_scatter": phase, "all_gather": phase}


ALGORITHM = Algorithm(
    "disjoint_rings",
    "parts of the buffer round as many rings as direct links have room for",
    _kinds(_phase(relayed=False)),
    _joined,
)

RELAYED = Algorithm(
    "relayed_rings",
    "the same where no ring closes over direct links: members pass on what is not for them",
    _kinds(_phase(relayed=True)),
    _relayed,
)
