"""Routes over the edges of one line: the least latency, then the fewest hops, spread evenly over what is equal.

Maps pairs of ranks on a line to the edges (`cluster.topology.dimension`) that a message between them takes. Every node
passes what it has for a destination on to all its next hops in equal parts (ECMP), so that a route is a function of
the graph alone. Latencies are compared to the picosecond.

Symbols: V nodes; E edges; M messages; T distinct destinations; H pairs of a message and an edge.
Source: Hopps, Analysis of an Equal-Cost Multi-Path Algorithm, RFC 2992, for ECMP.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.cluster.topology.dimension import Dimension, Edges, edges_of, num_nodes
from scaleout.cluster.topology.kinds.kind import Floats, Ints, LineRoutes
from scaleout.network.collectives.rounds import TooManyMessagesError

Flags = npt.NDArray[np.bool_]

_PER_S = 1e12
_FAR = np.iinfo(np.int64).max // 4
"""Distance of what cannot be reached: two of them do not overflow."""

_GRAIN = 2.0**36
"""Shares are whole multiples of its inverse, so that sums of them are exact in any order."""

_CELLS = 2**25
"""Links and destinations of which it is kept whether the one leads to the other."""

_FEW_HOPS = 32
"""As many or fewer are found by comparing all distances each time; more by comparing those that have shrunk."""

_AT_ONCE = {True: 2**18, False: 2**21}
"""Links and destinations that are looked at at a time, where hops are few, as a cache holds, and where they are not."""

_MOST_COMPARED = 2 * 10**10
"""Distances that are compared at the most to find routes: half a minute."""

_MOST_SWEEPS = 30_000
"""How often distances are compared that have shrunk, at the most: two seconds beside what they are compared."""

_MOST_CROSSED = 2 * 10**7
"""Pairs of a message and a link of a dimension that are listed at a time at the most: 2 GB of memory."""


def check_crossed(dimension: Dimension, number: int) -> None:
    """Refuse messages that cross more links of a dimension than can be listed (`TooManyMessagesError`)."""
    if number > _MOST_CROSSED:
        what = "line" if dimension.kind == "mesh" else dimension.kind  # a ring without a link is one, too
        raise TooManyMessagesError(
            f"messages along a {what} of {dimension.size:,} ranks cross its links {number:,} times or more; "
            f"{_MOST_CROSSED:,} can be listed; take fewer ranks, a network of fewer hops or the model alpha_beta"
        )


class _Shortest(NamedTuple):
    """Shortest routes to T destinations."""

    on: Flags  # (E, T) whether an edge is on one
    hops: npt.NDArray[np.int32]  # (V, T) from a node


@dataclass(frozen=True, eq=False)
class Router:
    """The (E,) edges of a line that are whole, sorted by tail, and the first edge out of each node, (V + 1,)."""

    dimension: Dimension
    edges: Edges
    begins: Ints

    def ways(self, ends: tuple[Ints, Ints]) -> tuple[LineRoutes, Floats]:
        """Route messages between coordinates along the line, (M,) each, none to itself; each pair of ends only once.

        Returns
        -------
        LineRoutes, (M,) array of float
            Links of the messages, and the latency of each; infinite where no route is left, and then without links.
        """
        apart = self.part[ends[0]] != self.part[ends[1]]
        if apart.any():  # found at once, where routes to all ranks of a long line take half a minute
            return LineRoutes(_NOTHING[0], *_NOTHING), np.where(apart, np.inf, 0.0)
        n = self.dimension.size
        pairs, which = np.unique(ends[0] * n + ends[1], return_inverse=True)
        message, edge, share, latency_s = self._ways_of_pairs(pairs // n, pairs % n)
        order = np.argsort(message, kind="stable")
        counts = np.bincount(message, minlength=len(pairs))
        begins = np.cumsum(counts) - counts
        each = np.repeat(np.arange(len(which)), counts[which])
        row = np.arange(len(each)) - np.repeat(np.cumsum(counts[which]) - counts[which], counts[which])
        taken = order[begins[which][each] + row]
        edge = edge[taken]
        shares = np.round(share[taken] * _GRAIN) / _GRAIN
        return LineRoutes(each, self.edges.ports[edge], self.edges.coordinates[edge], shares), latency_s[which]

    @cached_property
    def part(self) -> Ints:
        """(V,) the lowest node of the part that each node is in: no edge leads from one part to another."""
        tails, heads, part = self.edges.tails, self.edges.heads, np.arange(len(self.begins) - 1)
        while (part[tails] != part[heads]).any():
            for one, other in ((tails, heads), (heads, tails)):
                np.minimum.at(part, part[one], part[other])
            while (part[part] != part).any():
                part = part[part]
        return part

    def _ways_of_pairs(self, sources: Ints, destinations: Ints) -> tuple[Ints, Ints, Floats, Floats]:
        """Pairs and edges, the shares of the pair's bytes, and the latency of each pair; few destinations at a time."""
        latency_s = np.full(len(sources), -1.0)
        if self._to_all is not None:
            parts = [
                self._walk(self._to_all, np.arange(len(sources)), (sources, destinations, destinations), latency_s)
            ]
        else:
            parts = [_NOTHING]
            wanted, column = np.unique(destinations, return_inverse=True)
            many = max(1, _CELLS // max(1, len(self.begins), len(self.edges.tails)))
            for first in range(0, len(wanted), many):
                chosen = np.flatnonzero((column >= first) & (column < first + many))
                shortest = self._shortest(wanted[first : first + many], len(wanted))
                parts.append(self._walk(shortest, chosen, (sources, destinations, column - first), latency_s))
        message, edge, share = (np.concatenate(rows) for rows in zip(*parts, strict=True))
        return message, edge, share, np.where(latency_s < 0, np.inf, latency_s)

    @cached_property
    def _to_all(self) -> _Shortest | None:
        """Shortest routes to every rank, if they are not too many to keep."""
        if max(len(self.begins), len(self.edges.tails)) * self.dimension.size > _CELLS:
            return None
        return self._shortest(np.arange(self.dimension.size), self.dimension.size)

    def _shortest(self, wanted: Ints, total: int) -> _Shortest:
        """Shortest routes to T destinations, of so many in all; refused where they would take long to find.

        The first one shows how many hops there are.
        """
        num_edges = max(1, len(self.edges.tails))
        sweeps = max(_FEW_HOPS, _MOST_SWEEPS // math.ceil(total / max(1, _AT_ONCE[False] // num_edges)))
        distance = self._far(wanted[:1])
        shrunk = wanted[:1]
        hops = 0
        while len(shrunk):
            if hops == sweeps or total * num_edges * min(hops, _FEW_HOPS) > _MOST_COMPARED:
                raise TooManyMessagesError(
                    f"routes to {total:,} ranks over the {len(self.edges.tails):,} links of a {self.dimension.kind} of "
                    f"many hops would take long to find; take fewer ranks, or a network of fewer hops"
                )
            hops, shrunk = hops + 1, self._nearer(distance, shrunk)
        few = hops <= _FEW_HOPS and bool((self.part == self.part[0]).all())  # else others may have more
        many = max(1, _AT_ONCE[few] // num_edges)
        found = [self._shortest_to(wanted[begin : begin + many], few=few) for begin in range(0, len(wanted), many)]
        return _Shortest(*(np.concatenate(arrays, axis=1) for arrays in zip(*found, strict=True)))

    @cached_property
    def _cost(self) -> Ints:
        """(E,) what edges cost; hops are the last digits, and a way through all nodes is not as far as no way."""
        num_nodes = len(self.begins) - 1
        edge_s = self.edges.latency_s + self.edges.reluctance_s
        per_s = min(_PER_S, _FAR / 2 / num_nodes**2 / max(float(edge_s.max(initial=0.0)), 1 / _PER_S))
        return np.round(edge_s * per_s).astype(np.int64) * num_nodes + 1

    def _far(self, wanted: Ints) -> Ints:
        """(V, T) distances of which none is known, but of destinations to themselves."""
        distance = np.full((len(self.begins) - 1, len(wanted)), _FAR, np.int64)
        distance[wanted, np.arange(len(wanted))] = 0
        return distance

    def _shortest_to(self, wanted: Ints, *, few: bool) -> _Shortest:
        """Shortest routes to T destinations: an edge is on one if the distance left shrinks by its own cost."""
        edges, distance = self.edges, self._far(wanted)
        if few:
            while self._all_nearer(distance):
                pass
        else:
            shrunk = wanted * len(wanted) + np.arange(len(wanted))
            while len(shrunk):
                shrunk = self._nearer(distance, shrunk)
        left = distance[edges.tails]
        on = (self._cost[:, None] + distance[edges.heads] == left) & (left < _FAR)
        return _Shortest(on, np.where(distance < _FAR, distance % len(distance), 0).astype(np.int32))

    def _all_nearer(self, distance: Ints) -> bool:
        """Shorten (V, T) distances by way of every edge, and return whether one has shrunk."""
        leaving = np.flatnonzero(np.diff(self.begins))
        through = np.minimum(distance[self.edges.heads] + self._cost[:, None], _FAR)
        better = np.minimum(distance[leaving], np.minimum.reduceat(through, self.begins[leaving], axis=0))
        same = np.array_equal(better, distance[leaving])
        distance[leaving] = better
        return not same

    def _nearer(self, distance: Ints, shrunk: Ints) -> Ints:
        """Shorten (V, T) distances by way of those that have shrunk, by their places; return which have shrunk now."""
        flat, width = distance.ravel(), distance.shape[1]
        into, begins = self._into
        node, column = np.divmod(shrunk, width)
        counts = begins[node + 1] - begins[node]
        row = np.repeat(np.arange(len(shrunk)), counts)
        edge = into[np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + begins[node][row]]
        through = flat[shrunk[row]] + self._cost[edge]
        reached = self.edges.tails[edge] * width + column[row]
        nearer = through < flat[reached]
        np.minimum.at(flat, reached[nearer], through[nearer])
        return np.unique(reached[nearer])

    @cached_property
    def _into(self) -> tuple[Ints, Ints]:
        """The (E,) edges sorted by head, and the first into each node, (V + 1,)."""
        order = np.argsort(self.edges.heads, kind="stable")
        return order, np.searchsorted(self.edges.heads[order], np.arange(len(self.begins)))

    def _walk(
        self, shortest: _Shortest, chosen: Ints, ends: tuple[Ints, Ints, Ints], latency_s: Floats
    ) -> tuple[Ints, Ints, Floats]:
        """Send all messages on, one hop at a time; parts of a message that meet at a node go on together."""
        edges, begins = self.edges, self.begins
        sources, destinations, column = ends
        num_nodes = len(begins) - 1
        message, node, share, passed_s = chosen, sources[chosen], np.ones(len(chosen)), np.zeros(len(chosen))
        found: list[tuple[Ints, Ints, Floats]] = [_NOTHING]
        # All routes of a message to a node have equally many hops, as hops count: its parts arrive together.
        crossed = 0
        check_crossed(self.dimension, int(shortest.hops[node, column[chosen]].sum(dtype=np.int64)))
        while len(message):
            counts = begins[node + 1] - begins[node]
            row = np.repeat(np.arange(len(message)), counts)
            edge = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + begins[node][row]
            on = shortest.on[edge, column[message[row]]]
            row, edge = row[on], edge[on]
            hops = np.bincount(row, minlength=len(message))
            part, gone_s = share[row] / hops[row], passed_s[row] + edges.latency_s[edge]
            crossed += len(row)
            check_crossed(self.dimension, crossed)
            found.append((message[row], edge, part))
            message, node = message[row], edges.heads[edge]
            arrived = node == destinations[message]
            np.maximum.at(latency_s, message[arrived], gone_s[arrived])
            key, merged = np.unique(message[~arrived] * num_nodes + node[~arrived], return_inverse=True)
            share = np.bincount(merged, part[~arrived], minlength=len(key)).astype(np.float64)
            passed_s = np.zeros(len(key))
            np.maximum.at(passed_s, merged, gone_s[~arrived])
            message, node = np.divmod(key, num_nodes)
        message, edge, part = (np.concatenate(rows) for rows in zip(*found, strict=True))
        return message, edge, part


_NOTHING = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


@lru_cache(maxsize=16)
def router(dimension: Dimension, broken: tuple[tuple[int, int], ...] = ()) -> Router:
    """Return the router of a line; the links between the pairs of nodes in `broken` are broken, both ways."""
    edges = edges_of(dimension)
    whole = np.ones(len(edges.tails), bool)
    for ends in broken:
        whole[edges.between(*ends)] = False
    left = edges.chosen(whole)
    by_tail = left.chosen(np.argsort(left.tails, kind="stable"))
    return Router(dimension, by_tail, np.searchsorted(by_tail.tails, np.arange(num_nodes(dimension) + 1)))
