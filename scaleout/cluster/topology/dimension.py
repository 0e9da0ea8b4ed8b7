"""One dimension of a network: what a line of ranks is linked by, how fast, how far.

Every line of a dimension is wired alike, each on its own:

ring
    One full-duplex link between neighbours, the last and the first included. Messages go the shorter way round;
    at half way they split evenly. Two ranks share one link, not two; one rank has none.
mesh
    A ring without the link from the last to the first: a line.
switch
    One full-duplex port a rank into a switch that never blocks. The latency is from rank to rank.
fully_connected
    One full-duplex link between each two ranks.
fat_tree
    Levels of switches; `radices` says how many ranks a leaf switch has, how many leaves the switches of the next level
    join, and so on (two levels are a leaf-spine network). What the switches above a subtree carry is one bundle, up
    and down, over which messages spread evenly: the bandwidth of all ports in the subtree, over the product of
    `oversubscription` up to it. A message turns at the lowest level that joins both ends: ``2 l - 1`` switches for
    level ``l``, each of the latency, or of that of its level.
dragonfly
    `radices` says how many ranks a router has, how many routers a group, and how many groups there are. The routers
    of a group are fully connected; each router has `global_links` to other groups, which join every two groups by
    as many links: link q of a group's, counted over its routers, leads to the group ``1 + q mod (groups - 1)``
    further on. Routes are minimal: at most one hop to the router with the global link, it, and one hop from it; over
    parallel global links that are equally near a message spreads evenly. Not modelled: detours over a third group
    (Valiant, UGAL), which adaptive routing takes where minimal links are full.
graph
    The links of a `Fabric`, any at all; messages go the way of the least latency, and of those the one of the fewest
    hops; where several are equal, each node spreads them evenly over its next hops (ECMP).

Symbols: n ranks along a dimension.
Source: Kim, Dally, Scott and Abts, Technology-Driven, Highly-Scalable Dragonfly Topology, ISCA 2008; Hastings et al.,
Comparing Global Link Arrangements for Dragonfly Networks, CLUSTER 2015 (the circulant one is ours).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaleout.cluster.topology.fabric import Fabric
from scaleout.config import validated
from scaleout.errors import ConfigError

KINDS = {
    "ring": "a link to each of two neighbours",
    "switch": "a port into a switch that never blocks",
    "fully_connected": "a link to every other rank",
    "mesh": "a link to each of two neighbours, on a line without ends joined",
    "fat_tree": "a port into the leaves of a tree of switches",
    "dragonfly": "a port into a router of a group; groups are joined by global links",
    "graph": "the links that are listed",
}
"""Kind of dimension to what a rank has in it."""

UNEVEN = ("dragonfly", "graph")
"""Kinds in which it matters where a group lies, not only how far its members are apart."""

_LEVELLED = ("fat_tree", "dragonfly")


@dataclass(frozen=True)
class Dimension:
    """One dimension of a network.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    size : int
        Ranks along it.
    bytes_per_s : float
        What one link (ring, fully connected) or port (switch, tree, dragonfly) carries each way; on a graph the
        fastest link.
    latency_s : float
        One hop: to the neighbour (ring), through a switch or router, or over the link; on a graph the shortest.
    radices : tuple of int
        Fat trees: what a switch of each level joins, leaves first. Dragonflies: ranks, routers and groups. Their
        product is the size.
    oversubscription : tuple of float
        Fat trees only: bandwidth into over bandwidth out of the switches of each level but the last.
    level_latency_s : tuple of float
        Fat trees: of a switch of each level, if not all the same. Dragonflies: of a router, and besides of a link
        within a group and of a global one.
    global_links : int
        Dragonflies only: links of each router to other groups.
    level_bytes_per_s : tuple of float
        Dragonflies only: of a link within a group and of a global one, if not that of a port.
    fabric : Fabric, optional
        Graphs only: nodes and links.
    link : str
        Kind of link, such as `nvlink`, by which the protocols of a library know it; empty if it does not matter.
    in_network_reduction : bool
        Switches and fat trees only: the switches can add up what passes through them, and multicast (SHARP, NVLS).
    through_host_bytes_per_s : float
        What a rank's port carries of messages that reach it through the host: where ranks of a node share ports, those
        that do not leave by the rank beside a port. Without such a detour as much as all others.
    """

    kind: str
    size: int
    bytes_per_s: float
    latency_s: float
    radices: tuple[int, ...] = ()
    oversubscription: tuple[float, ...] = ()
    level_latency_s: tuple[float, ...] = ()
    global_links: int = 0
    level_bytes_per_s: tuple[float, ...] = ()
    fabric: Fabric | None = None
    link: str = ""
    in_network_reduction: bool = False
    through_host_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"unknown kind of dimension {self.kind!r}; {validated.nearest(self.kind, KINDS)}")
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
        if self.in_network_reduction and self.kind not in ("switch", "fat_tree"):
            raise ConfigError(
                f"a {self.kind} has no switches that reduce; leave out 'in_network_reduction', which a switch, a "
                f"fat_tree or a leaf_spine may have"
            )
        _check_levels(self)
        if self.kind == "dragonfly":
            _check_dragonfly(self)
        if (self.kind == "graph") != (self.fabric is not None):
            raise ConfigError("a graph, and nothing else, has links of its own; give 'links' or 'file' to it alone")
        if self.fabric is not None and self.fabric.num_ranks != self.size:
            raise ConfigError(f"the graph has {self.fabric.num_ranks} ranks, and the dimension's size is {self.size}")

    @property
    def detour(self) -> float:
        """How many times as long a port needs for messages that reach it through the host."""
        return max(1.0, self.bytes_per_s / self.through_host_bytes_per_s)

    @property
    def levels(self) -> list[tuple[int, float]]:
        """Of each level of a fat tree's links: ranks below one bundle, and its bandwidth in ports; ports first."""
        sizes = [math.prod(self.radices[:level]) for level in range(len(self.radices))]
        ratios = [math.prod(self.oversubscription[:level]) for level in range(len(self.radices))]
        return [(size, size / ratio) for size, ratio in zip(sizes, ratios, strict=True)]

    def latency_of(self, hops: Any) -> Any:
        """Latency [s] of so many hops, in the shape of `hops`; on a fat tree of the turn that takes so many switches.

        >>> tree = Dimension("fat_tree", 4, 1e9, 1.0, (2, 2), (1.0,), level_latency_s=(1.0, 5.0))
        >>> tree.latency_of(3)  # leaf, spine, leaf
        7.0
        """
        if self.kind != "fat_tree" or not self.level_latency_s:
            return hops * self.latency_s
        ups = [0.0, *self.level_latency_s]
        turns = np.array([2 * math.fsum(ups[1:level]) + ups[level] for level in range(1, len(ups))])
        found = turns[(np.asarray(hops) - 1) // 2]
        return float(found) if np.ndim(found) == 0 else found

    @property
    def global_links_of_a_pair(self) -> int:
        """Links between each two groups of a dragonfly."""
        _, routers, groups = self.radices
        return routers * self.global_links // (groups - 1) if groups > 1 else 0


def graph_dimension(fabric: Fabric, *, link: str = "") -> Dimension:
    """Return the dimension that a fabric is."""
    speeds, latencies = [link.bytes_per_s for link in fabric.links], [link.latency_s for link in fabric.links]
    return Dimension(
        "graph", fabric.num_ranks, max(speeds, default=1.0), min(latencies, default=0.0), fabric=fabric, link=link
    )


def _check_levels(dimension: Dimension) -> None:
    radices, ratios, kind = dimension.radices, dimension.oversubscription, dimension.kind
    if kind not in _LEVELLED:
        if radices or ratios or dimension.level_latency_s or dimension.level_bytes_per_s or dimension.global_links:
            raise ConfigError(
                f"a {kind} has no levels; leave out 'radices' and 'oversubscription'; give one bandwidth and latency"
            )
        return
    name, order = ("fat tree", "leaves first") if kind == "fat_tree" else ("dragonfly", "ranks, routers, groups")
    least = min(2, dimension.size) if kind == "fat_tree" else 1
    if min(radices, default=0) < least or math.prod(radices) != dimension.size:
        raise ConfigError(
            f"a {name} of {dimension.size} ranks has radices {list(radices)}; give one a level, {least} or more, "
            f"{order}, whose product is {dimension.size}"
        )
    if len(dimension.level_latency_s) not in (0, len(radices)):
        raise ConfigError(
            f"a {name} of {len(radices)} levels has {len(dimension.level_latency_s)} latencies; give one or one a level"
        )
    if kind == "fat_tree" and (
        len(ratios) != len(radices) - 1 or not all(math.isfinite(ratio) and ratio >= 1 for ratio in ratios)
    ):
        raise ConfigError(
            f"a fat tree of {len(radices)} levels has oversubscription {list(ratios)}; give a number of 1 or more for "
            f"each level but the last"
        )
    if kind == "fat_tree" and (dimension.level_bytes_per_s or dimension.global_links):
        raise ConfigError("a fat tree's levels follow from 'oversubscription'; give one bandwidth, and no global links")


def _check_dragonfly(dimension: Dimension) -> None:
    if len(dimension.radices) != 3:
        raise ConfigError(
            f"a dragonfly has radices {list(dimension.radices)}; give three: ranks a router, routers a group, groups"
        )
    if dimension.oversubscription:
        raise ConfigError(
            "a dragonfly has no 'oversubscription'; give a bandwidth each for ports, local and global links"
        )
    if len(dimension.level_bytes_per_s) not in (0, 2):
        raise ConfigError("a dragonfly has one bandwidth or three: of a port, a link within a group and a global link")
    _, routers, groups = dimension.radices
    if groups > 1 and dimension.global_links_of_a_pair < 1:
        raise ConfigError(
            f"a dragonfly of {groups} groups with {routers} routers of {dimension.global_links} global links cannot "
            f"join every two groups; give it {math.ceil((groups - 1) / routers)} 'global_links' or more"
        )
