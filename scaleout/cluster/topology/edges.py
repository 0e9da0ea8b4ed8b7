"""The links of one line of a dimension as edges of a directed graph, whatever the kind.

Maps a `Dimension` to `Edges`, and to the names of its nodes. Nodes are the ranks' places along the line, ``0`` to
``n - 1``, and then the switches, routers or nodes of a graph that are no ranks. Every link is two edges, one each way.
An edge is known by its *port* and the *place* of a rank along the line, as `network.links` numbers links; what a
switch shares among ranks is a port of the first rank below it.

Closed forms elsewhere route and charge what is even; the edges are for all that is not: graphs, dragonflies, and
lines with links that are slow or broken.

Symbols: n ranks; V nodes; E edges.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.cluster.topology.dimension import Dimension

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Edges(NamedTuple):
    """Edges of a line, shape ``(E,)`` each."""

    tails: Ints
    heads: Ints
    ports: Ints
    places: Ints
    spans: Ints
    """Ranks below that share the edge: more than one for what switches have between them."""
    bytes_per_s: Floats
    latency_s: Floats
    """Of all edges of a route: the latency of a message."""
    reluctance_s: Floats
    """What a route adds to the latency of an edge when it weighs ways."""

    def chosen(self, which: npt.NDArray[np.bool_] | Ints) -> "Edges":
        """Return some of the edges, or all in another order."""
        return Edges._make(column[which] for column in self)

    def between(self, a: int, b: int) -> Ints:
        """Return which edges join two nodes, both ways."""
        low, high = np.minimum(self.tails, self.heads), np.maximum(self.tails, self.heads)
        return np.flatnonzero((low == min(a, b)) & (high == max(a, b)))


@lru_cache(maxsize=64)
def edges_of(dimension: Dimension) -> Edges:
    """Return the edges of a line.

    >>> from scaleout.cluster.topology.dimension import Dimension
    >>> edges = edges_of(Dimension("ring", 3, 1e9, 1e-6))
    >>> list(zip(edges.tails.tolist(), edges.heads.tolist()))
    [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)]
    """
    rows = _EDGES[dimension.kind](dimension)
    columns = zip(*rows, strict=True) if rows else [()] * 8
    kinds = ["int64"] * 5 + ["float64"] * 3
    return Edges._make(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True))


def num_nodes(dimension: Dimension) -> int:
    """Return the number ``V`` of nodes of a line."""
    return dimension.size + len(switches_of(dimension))


@lru_cache(maxsize=64)
def switches_of(dimension: Dimension) -> tuple[str, ...]:
    """Return the names of the nodes after the ranks."""
    if dimension.fabric is not None:
        return dimension.fabric.switches
    if dimension.kind == "switch":
        return ("switch",)
    if dimension.kind == "fat_tree":
        return tuple(f"switch-{level}-{k}" for level, span in _spans(dimension) for k in range(dimension.size // span))
    if dimension.kind == "dragonfly":
        _, routers, groups = dimension.radices
        return tuple(f"router-{group}-{router}" for group in range(groups) for router in range(routers))
    return ()


_Row = tuple[int, int, int, int, int, float, float, float]

_MINIMAL_S = 1.0
"""Reluctance of a dragonfly's global links: no way over two of them is weighed against one over one."""


def _ring(dimension: Dimension) -> list[_Row]:
    n, speed, latency_s = dimension.size, dimension.bytes_per_s, dimension.latency_s
    steps = (1, -1)[: max(0, n - 1)]  # two ranks share one link
    return [(i, (i + k) % n, port, i, 1, speed, latency_s, 0.0) for port, k in enumerate(steps) for i in range(n)]


def _mesh(dimension: Dimension) -> list[_Row]:
    n = dimension.size
    pairs = [(i, i + k, port) for port, k in enumerate((1, -1)) for i in range(n) if 0 <= i + k < n]
    return [(i, j, port, i, 1, dimension.bytes_per_s, dimension.latency_s, 0.0) for i, j, port in pairs]


def _pairs(dimension: Dimension) -> list[_Row]:
    n = dimension.size
    rest = (1, dimension.bytes_per_s, dimension.latency_s, 0.0)
    return [(i, (i + k) % n, k - 1, i, *rest) for k in range(1, n) for i in range(n)]


def _both(a: int, b: int, *, level: int, at: tuple[int, int], rest: tuple[float, float]) -> list[_Row]:
    """A link up from a node and down to it, both of the port of the first rank below."""
    return [(a, b, 2 * level, *at, *rest, 0.0), (b, a, 2 * level + 1, *at, *rest, 0.0)]


def _switch(dimension: Dimension) -> list[_Row]:
    n, rest = dimension.size, (dimension.bytes_per_s, dimension.latency_s / 2)
    return [row for i in range(n if n > 1 else 0) for row in _both(i, n, level=0, at=(i, 1), rest=rest)]


def _spans(dimension: Dimension) -> list[tuple[int, int]]:
    """Level and ranks below a switch of it, leaves first."""
    return [(level, math.prod(dimension.radices[:level])) for level in range(1, len(dimension.radices) + 1)]


def _fat_tree(dimension: Dimension) -> list[_Row]:
    """Half the latency of a switch stands on each of its links."""
    n, rows = dimension.size, []
    latencies = [0.0, *(dimension.level_latency_s or (dimension.latency_s,) * len(dimension.radices))]
    below, above = 0, n
    for level, (span, ports) in enumerate(dimension.levels):
        wider = span * dimension.radices[level]
        rest = (dimension.bytes_per_s * ports, (latencies[level] + latencies[level + 1]) / 2)
        for k in range(n // span):
            place = k * span
            rows += _both(below + k, above + place // wider, level=level, at=(place, span), rest=rest)
        below, above = above, above + n // wider
    return rows


def _dragonfly(dimension: Dimension) -> list[_Row]:
    """Half the latency of a router stands on each of its links; those between routers have their own besides."""
    ranks, routers, groups = dimension.radices
    router_s, local_s, global_s = dimension.level_latency_s or (dimension.latency_s, 0.0, 0.0)
    local, far = dimension.level_bytes_per_s or (dimension.bytes_per_s,) * 2
    n = dimension.size
    port = (dimension.bytes_per_s, router_s / 2)
    rows = [row for i in range(n) for row in _both(i, n + i // ranks, level=0, at=(i, 1), rest=port)]

    def between(group: int, router: int, port: int, to: int, rest: tuple[float, float, float]) -> _Row:
        number = group * routers + router
        return (n + number, n + to, port, number * ranks, ranks, *rest)

    for group in range(groups):
        for router in range(routers):
            for k in range(1, routers):
                to = group * routers + (router + k) % routers
                rows.append(between(group, router, 1 + k, to, (local, router_s + local_s, 0.0)))
        for offset in range(1, groups):
            for parallel in range(dimension.global_links_of_a_pair):
                router, link = divmod(parallel * (groups - 1) + offset - 1, dimension.global_links)
                back = (parallel * (groups - 1) + groups - offset - 1) // dimension.global_links
                to = (group + offset) % groups * routers + back
                rows.append(between(group, router, 1 + routers + link, to, (far, router_s + global_s, _MINIMAL_S)))
    return rows


def _graph(dimension: Dimension) -> list[_Row]:
    """Links as listed, dealt out to the ranks: a place says nothing about where the link is."""
    assert dimension.fabric is not None
    rows: list[_Row] = []
    for link in dimension.fabric.links:
        for tail, head in ((link.a, link.b), (link.b, link.a)):
            port, place = divmod(len(rows), dimension.size)
            rows.append((tail, head, port, place, 1, link.bytes_per_s, link.latency_s, 0.0))
    return rows


_EDGES: dict[str, Callable[[Dimension], list[_Row]]] = {
    "ring": _ring,
    "mesh": _mesh,
    "switch": _switch,
    "fully_connected": _pairs,
    "fat_tree": _fat_tree,
    "dragonfly": _dragonfly,
    "graph": _graph,
}
"""Kind of dimension to the edges of a line."""
