"""Meshes: a line of ranks, each with a full-duplex link to the next.

Groups that interleave share links: with a stride of ``s`` every link carries the messages of ``s`` groups.

Symbols: n ranks along the dimension; m members, s apart.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scaleout.cluster.topology.kinds.kind import (
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
        return along(dimension.size, source, np.abs(destination - source), (up, ~up), np.ones(len(up)))

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


Flags = npt.NDArray[np.bool_]


def along(n: int, source: Ints, hops: Ints, ways: tuple[Flags, Flags], share: Floats) -> tuple[LineRoutes, Ints]:
    """Links from rank to rank, to the next where the first flag is set and to the previous where the second is."""
    parts = []
    for port, (step, chosen) in enumerate(zip((1, -1), ways, strict=True)):
        taken = np.flatnonzero(chosen)
        message = np.repeat(taken, hops[taken])
        gone = np.arange(len(message)) - np.repeat(np.cumsum(hops[taken]) - hops[taken], hops[taken])
        coordinate = (source[message] + step * gone) % n
        parts.append(LineRoutes(message, np.full(len(message), port), coordinate, share[message]))
    return LineRoutes.joined(parts), hops
