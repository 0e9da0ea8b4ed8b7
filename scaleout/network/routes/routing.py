"""Routes over the edges of one line: the least latency, then the fewest hops, spread evenly over what is equal.

Maps pairs of ranks on a line to the edges (`cluster.topology.dimension`) that a message between them takes. Every node
passes what it has for a destination on to all its next hops in equal parts (ECMP), so that a route is a function of
the graph alone. Latencies are compared to the picosecond.

Symbols: V nodes; E edges; M messages; T distinct destinations; H pairs of a message and an edge.
Source: Hopps, Analysis of an Equal-Cost Multi-Path Algorithm, RFC 2992, for ECMP.
"""

import itertools
from dataclasses import dataclass
from functools import cached_property, lru_cache

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

_CELLS = 2**24
"""Distances that are kept at a time."""

_CACHED = 2**18
"""Distances that are worked out at a time, which a cache holds."""

_MOST_COMPARED = 2 * 10**10
"""Distances that are compared at the most to find routes: half a minute."""

_MOST_CROSSED = 10**8
"""Pairs of a message and a link of a dimension that are listed at the most: gigabytes of memory."""


def check_crossed(dimension: Dimension, number: int) -> None:
    """Refuse messages that cross more links of a dimension than can be listed (`TooManyMessagesError`)."""
    if number > _MOST_CROSSED:
        raise TooManyMessagesError(
            f"messages along dimension {dimension.kind} of {dimension.size:,} ranks cross its links more than "
            f"{_MOST_CROSSED:,} times, too often to list; take fewer ranks or a network of fewer hops (--network "
            f"alpha_beta lists less)"
        )


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
    def _to_all(self) -> Flags | None:
        """Shortest routes to every rank, if they are not too many to keep."""
        if max(len(self.begins), len(self.edges.tails)) * self.dimension.size > _CELLS:
            return None
        return self._shortest(np.arange(self.dimension.size), self.dimension.size)

    def _shortest(self, wanted: Ints, total: int) -> Flags:
        """(E, T) whether an edge is on a shortest route to each of some destinations, of so many in all."""
        many = max(1, _CACHED // max(1, len(self.edges.tails)))
        begins = [0, *range(1, len(wanted), many), len(wanted)]  # one first: it soon shows how many hops there are
        parts = [self._shortest_to(wanted[begin:end], total) for begin, end in itertools.pairwise(begins)]
        return np.concatenate(parts, axis=1)

    def _shortest_to(self, wanted: Ints, total: int) -> Flags:
        """(E, T) whether an edge is on a shortest route: then the distance left shrinks by its own cost.

        All distances are compared as often as there are hops: where that turns out too often, it is refused.
        """
        edges, num_nodes = self.edges, len(self.begins) - 1
        # Hops are the last digits of a cost; a way through all nodes must not be as far as no way.
        edge_s = edges.latency_s + edges.reluctance_s
        per_s = min(_PER_S, _FAR / 2 / num_nodes**2 / max(float(edge_s.max(initial=0.0)), 1 / _PER_S))
        cost = np.round(edge_s * per_s).astype(np.int64)[:, None] * num_nodes + 1
        distance = np.full((num_nodes, len(wanted)), _FAR, np.int64)
        distance[wanted, np.arange(len(wanted))] = 0
        leaving = np.flatnonzero(np.diff(self.begins))
        left_to_compare = _MOST_COMPARED // (total * max(1, len(edges.tails)))
        while len(leaving):
            left_to_compare -= 1
            if left_to_compare < 0:
                raise TooManyMessagesError(
                    f"routes to {total:,} ranks over the {len(edges.tails):,} links of a {self.dimension.kind} of many "
                    f"hops would take long to find; take fewer ranks, or a network of fewer hops"
                )
            through = np.minimum(distance[edges.heads] + cost, _FAR)
            better = np.minimum(distance[leaving], np.minimum.reduceat(through, self.begins[leaving], axis=0))
            if np.array_equal(better, distance[leaving]):
                break
            distance[leaving] = better
        left = distance[edges.tails]
        return np.asarray((cost + distance[edges.heads] == left) & (left < _FAR))

    def _walk(
        self, shortest: Flags, chosen: Ints, ends: tuple[Ints, Ints, Ints], latency_s: Floats
    ) -> tuple[Ints, Ints, Floats]:
        """Send all messages on, one hop at a time; parts of a message that meet at a node go on together."""
        edges, begins = self.edges, self.begins
        sources, destinations, column = ends
        num_nodes = len(begins) - 1
        message, node, share, passed_s = chosen, sources[chosen], np.ones(len(chosen)), np.zeros(len(chosen))
        found: list[tuple[Ints, Ints, Floats]] = [_NOTHING]
        # All routes of a message to a node have equally many hops, as hops count: its parts arrive together.
        crossed = 0
        while len(message):
            counts = begins[node + 1] - begins[node]
            row = np.repeat(np.arange(len(message)), counts)
            edge = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + begins[node][row]
            on = shortest[edge, column[message[row]]]
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
