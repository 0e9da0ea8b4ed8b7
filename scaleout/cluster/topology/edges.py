"""The links of one line of a dimension as edges of a directed graph, whatever the kind.

Maps a `Dimension` to `Edges`, and to the names of its nodes. Nodes are the ranks by their coordinate along the line,
``0`` to ``n - 1``, and then the switches. Every link is two edges, one each way. An edge is known by its *port* and
the *coordinate* of a rank, as `network.routes.links` numbers links; a link between switches is a port of the first
rank below it.

Closed forms route and charge what is regular; the edges are for all that is not: graphs, dragonflies, and lines with
links that are slow or broken.

Symbols: n ranks; V nodes; E edges.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.cluster.topology.kinds.kind import Floats, Ints, Port

if TYPE_CHECKING:
    from scaleout.cluster.topology.dimension import Dimension


class Edges(NamedTuple):
    """Edges of a line, shape ``(E,)`` each."""

    tails: Ints
    heads: Ints
    ports: Ints
    coordinates: Ints
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
def edges_of(dimension: "Dimension") -> Edges:
    """Return the edges of a line.

    >>> from scaleout.cluster.topology.dimension import Dimension
    >>> edges = edges_of(Dimension("ring", 3, 1e9, 1e-6))
    >>> list(zip(edges.tails.tolist(), edges.heads.tolist()))
    [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)]
    """
    rows = dimension.structure.edges(dimension)
    columns = zip(*rows, strict=True) if rows else [()] * 8
    kinds = ["int64"] * 5 + ["float64"] * 3
    return Edges._make(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True))


def num_nodes(dimension: "Dimension") -> int:
    """Return the number ``V`` of nodes of a line."""
    return dimension.size + len(switches_of(dimension))


@lru_cache(maxsize=64)
def switches_of(dimension: "Dimension") -> tuple[str, ...]:
    """Return the names of the nodes after the ranks."""
    return dimension.structure.switches(dimension)


@lru_cache(maxsize=64)
def ports_of(dimension: "Dimension") -> tuple[Port, ...]:
    """Return what every rank has of the links of a line."""
    return tuple(dimension.structure.ports(dimension))
