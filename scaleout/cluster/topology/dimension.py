"""One dimension of a network: what a line of ranks is linked by, how fast, how far.

Every line of a dimension is wired alike; its kind (see `kinds`) says what its links are. `Edges` are those links as a
directed graph, whatever the kind, for all that closed forms do not cover. Nodes are the ranks by their coordinate, then
the switches; every link is two edges, each known by its *port* and the *coordinate* of a rank, as in
`network.routes.links`.

Symbols: n ranks along a dimension; V nodes; E edges.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.cluster.topology.fabric import Fabric
from scaleout.cluster.topology.kinds import KINDS, DimensionKind, find_kind
from scaleout.cluster.topology.kinds.graph import fields_of
from scaleout.cluster.topology.kinds.kind import Floats, Ints, Port
from scaleout.config import library
from scaleout.errors import ConfigError


@dataclass(frozen=True)
class Dimension:
    """One dimension of a network."""

    kind: str  # one of `kinds.KINDS`
    size: int  # ranks along it
    # what one link (ring, fully connected) or port (switch, tree, dragonfly) carries each way; on a graph the fastest
    # link
    bytes_per_s: float
    # one hop: to the neighbour (ring), through a switch or router, or over the link; on a graph the shortest
    latency_s: float
    # Fat trees: what a switch of each level joins, leaves first. Dragonflies: ranks, routers and groups. Their product
    # is the size.
    radices: tuple[int, ...] = ()
    # Fat trees only: bandwidth into over bandwidth out of the switches of each level but the last
    oversubscription: tuple[float, ...] = ()
    # Fat trees: of a switch of each level, if not all the same, and before them that of the ports, if they have one.
    # Dragonflies: of a router, and besides of a link within a group and of a global one.
    level_latency_s: tuple[float, ...] = ()
    global_links: int = 0  # dragonflies only: links of each router to other groups
    # dragonflies only: of a link within a group and of a global one, if not that of a port
    level_bytes_per_s: tuple[float, ...] = ()
    fabric: Fabric | None = None  # graphs only: nodes and links
    # kind of link, such as `nvlink`, by which the protocols of a library know it; empty if it does not matter
    link: str = ""
    # switches and fat trees only: the switches can add up what passes through them, and multicast (SHARP, NVLS)
    in_network_reduction: bool = False
    # What a rank's port carries of messages that reach it through the host: where ranks of a node share ports, those
    # that do not leave by the rank beside a port. Without such a detour as much as all others.
    through_host_bytes_per_s: float = math.inf
    link_type: str = ""  # name or file of the link type, which says what its parts cost; empty if that is not known
    # what all links of a rank carry together, where that was given: another size then changes the bandwidth of each
    rank_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        structure = find_kind(self.kind)
        if self.size < 1:
            raise ConfigError(f"a dimension has {self.size} ranks; give a size of 1 or more")
        for speed in (self.bytes_per_s, *self.level_bytes_per_s):
            if not (math.isfinite(speed) and speed > 0):
                raise ConfigError(f"a link carries {speed} B/s; give a bandwidth above zero")
        for latency_s in (self.latency_s, *self.level_latency_s):
            if not (math.isfinite(latency_s) and latency_s >= 0):
                raise ConfigError(f"a hop takes {latency_s} s; give a latency of zero or more")
        if not self.through_host_bytes_per_s > 0:
            raise ConfigError(f"the host carries {self.through_host_bytes_per_s} B/s; give a bandwidth above zero")
        if self.in_network_reduction and "in_network_reduction" not in structure.takes:
            raise ConfigError(
                f"a {self.kind} has no switches that reduce; leave out 'in_network_reduction', which a switch, a "
                f"fat_tree or a leaf_spine may have"
            )
        if ("fabric" in structure.takes) != (self.fabric is not None):
            raise ConfigError("a graph, and nothing else, has links of its own; give 'links' or 'file' to it alone")
        structure.check(self)

    @property
    def structure(self) -> DimensionKind:
        """What its kind says of its links."""
        return KINDS[self.kind]

    @property
    def detour(self) -> float:
        """How many times as long a port needs for messages that reach it through the host."""
        return max(1.0, self.bytes_per_s / self.through_host_bytes_per_s)

    @property
    def link_name(self) -> str:
        """Name of its link type, of a file that of the file."""
        return self.link_type and library.name_of(Path(self.link_type))

    @property
    def levels(self) -> list[tuple[int, float]]:
        """Of each level of a tree's links, ports first: ranks below one bundle, and its bandwidth in ports."""
        sizes = [math.prod(self.radices[:level]) for level in range(max(1, len(self.radices)))]
        ratios = [math.prod(self.oversubscription[:level]) for level in range(len(sizes))]
        return [(size, size / ratio) for size, ratio in zip(sizes, ratios, strict=True)]

    def resized(self, size: int) -> "Dimension":
        """Return the dimension with another size; `ConfigError` if levels or links say the size already."""
        found = replace(self, **self.structure.resized(self, size))
        return found if self.rank_bytes_per_s is None else found.sharing(self.rank_bytes_per_s)

    def sharing(self, bytes_per_s: float) -> "Dimension":
        """Return the dimension with so much bandwidth over all links of a rank together."""
        each = bytes_per_s / self.structure.links_of_a_rank(self)
        return replace(self, bytes_per_s=each, rank_bytes_per_s=bytes_per_s)

    def with_bandwidth(self, bytes_per_s: float) -> "Dimension":
        """Return the dimension with another bandwidth of a link or port, and all others in proportion."""
        factor = bytes_per_s / self.bytes_per_s
        return replace(
            self,
            bytes_per_s=bytes_per_s,
            level_bytes_per_s=tuple(each * factor for each in self.level_bytes_per_s),
            fabric=self.fabric and self.fabric.scaled(bandwidth=factor),
            rank_bytes_per_s=self.rank_bytes_per_s and self.rank_bytes_per_s * factor,
        )

    def with_latency(self, latency_s: float) -> "Dimension":
        """Return the dimension with another latency of a hop, and of levels and listed links all in proportion.

        `ConfigError` if there is no proportion, as the latency of a hop is zero and that of another is not.
        """
        others = [*self.level_latency_s, *(link.latency_s for link in (self.fabric.links if self.fabric else ()))]
        if not self.latency_s and any(others):
            raise ConfigError("the latency is zero, so that levels and links have none in proportion; change the file")
        factor = latency_s / self.latency_s if self.latency_s else 1.0
        return replace(
            self,
            latency_s=latency_s,
            level_latency_s=tuple(each * factor for each in self.level_latency_s),
            fabric=self.fabric and self.fabric.scaled(latency=factor),
        )

    def latency_of(self, hops: Any) -> Any:
        """Latency [s] of so many hops, in the shape of `hops`; on a fat tree of the turn that takes so many switches.

        >>> tree = Dimension("fat_tree", 4, 1e9, 1.0, (2, 2), (1.0,), level_latency_s=(1.0, 5.0))
        >>> tree.latency_of(3)  # leaf, spine, leaf
        7.0
        """
        return self.structure.latency_of(self, hops)


def graph_dimension(fabric: Fabric, *, link: str = "") -> Dimension:
    """Return the dimension that a fabric is."""
    return Dimension("graph", fabric.num_ranks, link=link, **fields_of(fabric))


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
def edges_of(dimension: Dimension) -> Edges:
    """Return the edges of a line.

    >>> edges = edges_of(Dimension("ring", 3, 1e9, 1e-6))
    >>> list(zip(edges.tails.tolist(), edges.heads.tolist()))
    [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)]
    """
    kinds = [(name, np.float64 if name.endswith("_s") else np.int64) for name in Edges._fields]
    rows = np.fromiter(dimension.structure.edges(dimension), np.dtype(kinds))
    return Edges._make(np.ascontiguousarray(rows[name]) for name in Edges._fields)


def num_nodes(dimension: Dimension) -> int:
    """Return the number ``V`` of nodes of a line."""
    return dimension.size + len(switches_of(dimension))


@lru_cache(maxsize=64)
def switches_of(dimension: Dimension) -> tuple[str, ...]:
    """Return the names of the nodes after the ranks."""
    return dimension.structure.switches(dimension)


@lru_cache(maxsize=64)
def ports_of(dimension: Dimension) -> tuple[Port, ...]:
    """Return what every rank has of the links of a line."""
    return tuple(dimension.structure.ports(dimension))
