"""Fat trees: levels of switches, over whose links messages spread evenly; a switch is one of a single level.

What the switches above a subtree carry is one bundle, up and down: the bandwidth of all ports in the subtree, over
every `oversubscription` up to it. A message turns at the lowest level ``l`` that joins both ends, through ``2 l - 1``
switches; a rank's port, with the network card, may have a latency of its own. See docs/models/topologies.md.

Symbols: n ranks along the dimension; m members, s apart.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from scaleout.cluster.topology.kinds.kind import (
    Carried,
    DimensionKind,
    Edge,
    Ends,
    Floats,
    Ints,
    LineRoutes,
    Lines,
    Port,
    RoundLoad,
    check_radices,
    up_and_down,
)
from scaleout.errors import ConfigError

if TYPE_CHECKING:
    from scaleout.cluster.topology.dimension import Dimension
    from scaleout.cluster.topology.files import DimensionFile
    from scaleout.cluster.topology.placement import Extent


class FatTree(DimensionKind):
    """Levels of switches."""

    name = "fat_tree"
    description = "a port into the leaves of a tree of switches"
    names_in_files: ClassVar[tuple[str, ...]] = ("leaf_spine",)
    takes = frozenset({"radices", "oversubscription", "level_latency_s", "in_network_reduction"})
    even = True

    def check(self, dimension: "Dimension") -> None:
        super().check(dimension)
        check_radices(dimension, order="leaves first", lower_bound=min(2, dimension.size), ports=True)
        radices, ratios = dimension.radices, dimension.oversubscription
        if len(ratios) != len(radices) - 1 or not all(math.isfinite(ratio) and ratio >= 1 for ratio in ratios):
            raise ConfigError(
                f"a fat tree of {len(radices)} levels has oversubscription {list(ratios)}; give a number of 1 or more "
                f"for each level but the last"
            )

    def read(self, entry: "DimensionFile", folder: Path) -> dict[str, Any]:
        if entry.kind != self.name and len(entry.radices) != 2:
            raise ConfigError(
                f"a {entry.kind} has radices {list(entry.radices)}; give two: ranks a leaf switch, and leaf switches"
            )
        return super().read(entry, folder)

    def latencies(self, latency_s: tuple[float, ...], radices: tuple[int, ...]) -> tuple[float, ...]:
        return (*latency_s, *(0.0 for _ in radices))  # all of it in the ports

    def resized(self, dimension: "Dimension", size: int) -> dict[str, Any]:
        """Another number of ranks is another number of switches below the top level."""
        radices = dimension.radices
        below = math.prod(radices[:-1])
        if size % below:
            raise ConfigError(f"{size} nodes are no multiple of the {below} below a switch of the top level")
        return {"size": size, "radices": (*radices[:-1], size // below)}

    def tapered(self, dimension: "Dimension", ratios: tuple[float, ...], leaf: int | None) -> dict[str, Any]:
        if leaf is not None:
            raise ConfigError(f"the tree has leaves of {dimension.radices[0]}; leave out @{leaf}")
        return {"oversubscription": ratios}

    def example(self, size: int) -> dict[str, Any]:
        leaf = max(d for d in range(1, size + 1) if size % d == 0 and d * d <= size)
        return {"radices": (leaf, size // leaf), "oversubscription": (2.0,)} if leaf > 1 else {"radices": (size,)}

    def switches(self, dimension: "Dimension") -> tuple[str, ...]:
        spans = [math.prod(dimension.radices[:level]) for level in range(1, len(dimension.radices) + 1)]
        return tuple(
            f"switch-{level}-{k}" for level, span in enumerate(spans, start=1) for k in range(dimension.size // span)
        )

    def edges(self, dimension: "Dimension") -> Iterator[Edge]:
        """Half the latency of a switch is on each of its links."""
        n = dimension.size
        radices = dimension.radices or (n,)
        latencies = _latencies_s(dimension)
        below, above = 0, n
        for level, (span, ports) in enumerate(dimension.levels):
            wider = span * radices[level]
            rest = (dimension.bytes_per_s * ports, (latencies[level] + latencies[level + 1]) / 2)
            for k in range(n // span):
                first = k * span
                yield from up_and_down(below + k, above + first // wider, level=level, at=(first, span), rest=rest)
            below, above = above, above + n // wider

    def ports(self, dimension: "Dimension") -> list[Port]:
        return [
            Port(0, role, dimension.bytes_per_s * ports, span=span)
            for span, ports in dimension.levels
            for role in ("up", "down")
        ]

    def links_of_a_rank(self, dimension: "Dimension") -> int:
        return 1

    def latency_of(self, dimension: "Dimension", hops: Any) -> Any:
        """Latency [s] of the turn that takes so many switches."""
        if not dimension.level_latency_s:
            return super().latency_of(dimension, hops)
        port_s, *ups = _latencies_s(dimension)
        turns = np.array([port_s + 2 * math.fsum(ups[:level]) + ups[level] for level in range(len(ups))])
        found = turns[(np.asarray(hops) - 1) // 2]
        return float(found) if np.ndim(found) == 0 else found

    def distance(self, dimension: "Dimension", ends: Ends) -> Ints:
        """Levels of links that the message climbs."""
        apart = [ends[0] // span != ends[1] // span for span, _ in dimension.levels]
        return np.asarray(np.sum(apart, axis=0), np.int64)

    def turns(self, dimension: "Dimension", weight: int, largest: int) -> Sequence[int]:
        """Below one switch any ranks, or subtrees, may be exchanged."""
        return [m for m in range(largest, 1, -1) if largest % m == 0]

    def fits(self, dimension: "Dimension", first: int, members: int, stride: int) -> bool:
        """Groups fill subtrees or lie within one."""
        width = members * stride
        return super().fits(dimension, first, members, stride) and all(
            (span % width == 0 or width % span == 0) and (span % stride == 0 or stride % span == 0)
            for span, _ in dimension.levels
        )

    def routes(self, dimension: "Dimension", ends: Ends) -> tuple[LineRoutes, Ints]:
        """Bundles up to the lowest level that joins both ends, and down from it."""
        parts = []
        hops = np.full(len(ends[0]), -1)
        for level, (span, _) in enumerate(dimension.levels):
            below = [end // span for end in ends] if span > 1 else ends
            message = np.flatnonzero(below[0] != below[1])
            hops[message] += 2
            coordinate = np.stack([each[message] for each in below], axis=1).ravel()
            coordinate *= span
            port = np.tile((2 * level, 2 * level + 1), len(message))
            parts.append(LineRoutes(np.repeat(message, 2), port, coordinate, np.ones(len(port))))
        return LineRoutes.joined(parts), hops

    def ring_load(self, extent: "Extent", *, both_ways: bool) -> RoundLoad:
        return _climbed(extent, [1 / below for below in _below(extent)])

    def everyone_load(self, extent: "Extent") -> RoundLoad:
        return _climbed(extent, [extent.size - below for below in _below(extent)])

    def shift_load(self, extent: "Extent", offset: int) -> RoundLoad:
        return _climbed(extent, [min(offset, extent.size - offset, below) / below for below in _below(extent)])

    def exchange_load(self, extent: "Extent", distance: int) -> RoundLoad:
        return _climbed(extent, [float(below <= distance) for below in _below(extent)])

    def carried(self, extent: "Extent", lines: Lines, ends: Ends, weights: Floats) -> Carried:
        """Bytes on each bundle of each level, up and down, for each port's worth of bandwidth."""
        m, (source, destination) = extent.size, ends
        hops = np.full(len(source), -1)
        carried = []
        for span, ports in extent.dimension.levels:
            below = extent.below(span)
            subtrees, groups = m // below, span // below
            apart = source // below != destination // below
            hops += 2 * apart
            for end in ends:
                bundle = (lines[0] * subtrees + end // below)[apart]
                carried.append(np.bincount(bundle, weights[apart], minlength=lines[1] * subtrees) * groups / ports)
        return np.concatenate(carried), hops

    def cut(self, extent: "Extent", j: int) -> float:
        """The ports of the smaller side."""
        return min(j, extent.size - j)


class Switch(FatTree):
    """One switch for all ranks."""

    name = "switch"
    description = "a port into a switch that never blocks"
    names_in_files = ()
    takes = frozenset({"in_network_reduction"})
    interchangeable = True
    movable = True
    part = "switch"

    check = DimensionKind.check
    read = DimensionKind.read
    resized = DimensionKind.resized
    latencies = DimensionKind.latencies

    def tapered(self, dimension: "Dimension", ratios: tuple[float, ...], leaf: int | None) -> dict[str, Any]:
        """Leaves under one level of spines, with the latency of the one switch: only bandwidth changes."""
        n = dimension.size
        if leaf is None:
            raise ConfigError(
                f"a switch never blocks; say how many of its {n} ranks are below a leaf switch, such as 2:1@{n // 2}"
            )
        if not 1 < leaf < n or n % leaf:
            raise ConfigError(f"leaves of {leaf} do not divide the {n} ranks; give a divisor between 1 and {n}")
        levels = {"radices": (leaf, n // leaf), "level_latency_s": (dimension.latency_s, 0.0, 0.0)}
        return {"kind": FatTree.name, "oversubscription": ratios, **levels}

    example = DimensionKind.example

    def switches(self, dimension: "Dimension") -> tuple[str, ...]:
        return ("switch",)

    def edges(self, dimension: "Dimension") -> Iterator[Edge]:
        return super().edges(dimension) if dimension.size > 1 else iter(())

    def ports(self, dimension: "Dimension") -> list[Port]:
        return super().ports(dimension) if dimension.size > 1 else []


def _latencies_s(dimension: "Dimension") -> list[float]:
    """Latency [s] of a rank's port, zero where the file gives none apart, and of a switch of each level."""
    levels = max(1, len(dimension.radices))
    given = dimension.level_latency_s or (dimension.latency_s,) * levels
    return [0.0] * (levels + 1 - len(given)) + list(given)


def _below(extent: "Extent") -> list[int]:
    """Members of one group in a subtree of each level, where it has any: ports first."""
    return [extent.below(span) for span, _ in extent.dimension.levels]


def _climbed(extent: "Extent", leaving: Sequence[float]) -> tuple[float, int]:
    """Load and hops where groups fill the coordinates and each rank of a level's subtrees sends `leaving` out of them.

    The bundle above carries the messages of all; its bandwidth is counted in ports.
    """
    crossed = [
        (messages * span / ports, 2 * level + 1)
        for level, (messages, below, (span, ports)) in enumerate(
            zip(leaving, _below(extent), extent.dimension.levels, strict=True)
        )
        if messages and below < extent.size
    ]
    return max(load for load, _ in crossed), crossed[-1][1]
