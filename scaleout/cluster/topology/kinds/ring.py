"""Meshes and rings: a line of ranks, each with a full-duplex link to the next; on a ring the last to the first too.

On a ring messages go the shorter way round; at half way they split evenly. Two ranks share one link, not two; one rank
has none. A group that does not reach all the way round lies on a line within the ring, as on a mesh. Groups that
interleave share links: with a stride of ``s`` every link carries the messages of ``s`` groups.

Symbols: n ranks along the dimension; m members, s apart.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from scaleout.cluster.topology.kinds.kind import (
    Bools,
    Carried,
    DimensionKind,
    Ends,
    Floats,
    Ints,
    LineRoutes,
    Lines,
    Port,
    RoundLoad,
)

if TYPE_CHECKING:
    from scaleout.cluster.topology.dimension import Dimension
    from scaleout.cluster.topology.placement import Extent


class Mesh(DimensionKind):
    """A line whose ends are not joined."""

    name = "mesh"
    description = "a link to each of two neighbours, on a line without ends joined"
    even = True
    neighbours = True
    part = "mesh"

    def ports(self, dimension: "Dimension") -> list[Port]:
        roles = (("next", 1, dimension.size - 1), ("previous", -1, 0))
        return [Port(0, role, dimension.bytes_per_s, offset, absent_at=(end,)) for role, offset, end in roles]

    def links_of_a_rank(self, dimension: "Dimension") -> int:
        return max(1, min(2, dimension.size - 1))

    def distance(self, dimension: "Dimension", ends: Ends) -> Ints:
        return ends[1] - ends[0]

    def fits(self, dimension: "Dimension", first: int, members: int, stride: int) -> bool:
        return members * stride <= dimension.size

    def window(self, dimension: "Dimension", first: int, width: int) -> int:
        return int(min(first, dimension.size - width) % width)

    def routes(self, dimension: "Dimension", ends: Ends) -> tuple[LineRoutes, Ints]:
        source, destination = ends
        up = destination > source
        return _along(dimension.size, source, np.abs(destination - source), (up, ~up), np.ones(len(up)))

    def ring_load(self, extent: "Extent", *, both_ways: bool) -> RoundLoad:
        """A ring over the members goes up and down the line, over two members at a time."""
        return float(extent.stride), extent.stride * min(2, extent.size - 1)

    def everyone_load(self, extent: "Extent") -> RoundLoad:
        """At a cut j members send to the ``m - j`` on the other side of a cut: at most ``floor(m^2 / 4)`` messages."""
        m, s = extent.size, extent.stride
        return float(s * (m * m // 4)), s * (m - 1)

    def shift_load(self, extent: "Extent", offset: int) -> RoundLoad:
        """``m - k`` members send up by k, and k members down by ``m - k``."""
        m, s, k = extent.size, extent.stride, offset
        return float(s * min(k, m - k)), s * max(k, m - k)

    def exchange_load(self, extent: "Extent", distance: int) -> RoundLoad:
        hops = extent.stride * distance
        return float(hops), hops

    def carried(self, extent: "Extent", lines: Lines, ends: Ends, weights: Floats) -> Carried:
        """Bytes on each gap between neighbouring members, up and down; gap i is between members i and i + 1."""
        m, (source, destination) = extent.size, ends
        up, hops = self._directions(extent, ends)
        carried = []
        for share, start in ((up, source), (1 - up, destination)):
            # A message covers the gaps start, ..., start + hops - 1: +1 at the first, -1 after the last, then add up.
            edge = np.zeros((lines[1], 2 * m + 1))
            np.add.at(edge, (lines[0], start), weights * share)
            np.add.at(edge, (lines[0], start + hops), -weights * share)
            covered = edge.cumsum(axis=1)[:, : 2 * m]
            carried.append((covered[:, :m] + covered[:, m:]).ravel())
        return np.concatenate(carried) * extent.stride, hops * extent.stride

    def _directions(self, extent: "Extent", ends: Ends) -> tuple[Floats, Ints]:
        """Part of each message that goes up, and gaps that it covers."""
        return (ends[1] > ends[0]).astype(np.float64), np.abs(ends[1] - ends[0])

    def cut(self, extent: "Extent", j: int) -> float:
        return 1 / extent.stride


class Ring(Mesh):
    """A mesh whose ends are joined; groups that are all the way round have closed forms of their own."""

    name = "ring"
    description = "a link to each of two neighbours"
    movable = True
    closed = True

    def ports(self, dimension: "Dimension") -> list[Port]:
        ports = [replace(port, absent_at=()) for port in super().ports(dimension)]
        return ports[: dimension.size - 1]

    def distance(self, dimension: "Dimension", ends: Ends) -> Ints:
        return np.asarray((ends[1] - ends[0]) % dimension.size, np.int64)

    def turns(self, dimension: "Dimension", weight: int, largest: int) -> Sequence[int]:
        return (largest,)

    def arranged(self, dimension: "Dimension", coordinates: Ints) -> tuple[int, Ints] | None:
        """All the way round, or a line within the ring, which may pass the end."""
        if len(coordinates) == 1:
            return 1, coordinates
        gaps = np.diff(coordinates, append=coordinates[0] + dimension.size)
        stride = int(gaps.min())
        wider = np.flatnonzero(gaps != stride)
        if len(wider) == 0:
            return stride, coordinates
        # No two members of a line may be half way round or more, lest messages leave the line.
        if len(wider) > 1 or 2 * (len(coordinates) - 1) * stride >= dimension.size:
            return None
        return stride, np.roll(coordinates, -(int(wider[0]) + 1))

    def siblings(self, dimension: "Dimension", coordinates: Ints, first: int, stride: int) -> list[Ints]:
        n, m, s = dimension.size, len(coordinates), stride
        starts = [block + offset for block in range(0, n - m * s + 1, m * s) for offset in range(s)]
        return [(first + start + s * np.arange(m)) % n for start in starts]

    def routes(self, dimension: "Dimension", ends: Ends) -> tuple[LineRoutes, Ints]:
        n, (source, destination) = dimension.size, ends
        ahead = (destination - source) % n
        halved = (2 * ahead == n) & (n > 2)
        chosen = (2 * ahead <= n, (2 * ahead > n) | halved)
        return _along(n, source, np.minimum(ahead, n - ahead), chosen, np.where(halved, 0.5, 1.0))

    def ring_load(self, extent: "Extent", *, both_ways: bool) -> RoundLoad:
        if not extent.wraps:
            return super().ring_load(extent, both_ways=both_ways)
        if extent.dimension.size == 2:
            return 1.0, 1
        # With two members the next is half way round, and messages split without being told to.
        halved = both_ways or extent.size == 2
        return (extent.stride / 2 if halved else float(extent.stride)), extent.stride

    def everyone_load(self, extent: "Extent") -> RoundLoad:
        """The m members send ``sum_k min(k, m - k) = floor(m^2 / 4)`` hops each, half of them each way."""
        if not extent.wraps:
            return super().everyone_load(extent)
        m, s = extent.size, extent.stride
        return (1.0, 1) if extent.dimension.size == 2 else (s * (m * m // 4) / 2, s * (m // 2))

    def shift_load(self, extent: "Extent", offset: int) -> RoundLoad:
        if not extent.wraps:
            return super().shift_load(extent, offset)
        near = extent.stride * min(offset, extent.size - offset)
        halved = 2 * offset == extent.size and extent.dimension.size > 2
        return (near / 2 if halved else float(near)), near

    def exchange_load(self, extent: "Extent", distance: int) -> RoundLoad:
        return self.shift_load(extent, distance) if extent.wraps else super().exchange_load(extent, distance)

    def _directions(self, extent: "Extent", ends: Ends) -> tuple[Floats, Ints]:
        if not (extent.wraps and extent.dimension.size > 2):
            return super()._directions(extent, ends)
        m = extent.size
        distance = (ends[1] - ends[0]) % m
        up = np.select([2 * distance < m, 2 * distance == m], [1.0, 0.5], 0.0)
        return up, np.minimum(distance, m - distance)

    def cut(self, extent: "Extent", j: int) -> float:
        return (2 if extent.wraps and extent.dimension.size > 2 else 1) / extent.stride


def _along(n: int, source: Ints, hops: Ints, ways: tuple[Bools, Bools], share: Floats) -> tuple[LineRoutes, Ints]:
    """Links from rank to rank, to the next where the first flag is set and to the previous where the second is."""
    parts = []
    for port, (step, chosen) in enumerate(zip((1, -1), ways, strict=True)):
        taken = np.flatnonzero(chosen)
        message = np.repeat(taken, hops[taken])
        gone = np.arange(len(message)) - np.repeat(np.cumsum(hops[taken]) - hops[taken], hops[taken])
        coordinate = (source[message] + step * gone) % n
        parts.append(LineRoutes(message, np.full(len(message), port), coordinate, share[message]))
    return LineRoutes.joined(parts), hops
