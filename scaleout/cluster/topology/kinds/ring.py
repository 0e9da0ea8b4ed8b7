"""Rings: a full-duplex link between neighbours, the last and the first included.

Messages go the shorter way round; at half way they split evenly. Two ranks share one link, not two; one rank has none.
A group that does not reach all the way round lies on a line within the ring, as on a mesh.

Symbols: n ranks along the dimension; m members, s apart.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from scaleout.cluster.topology.kinds.kind import Ends, Floats, Ints, LineRoutes, Port, RoundLoad
from scaleout.cluster.topology.kinds.mesh import Mesh, along

if TYPE_CHECKING:
    from scaleout.cluster.topology.dimension import Dimension
    from scaleout.cluster.topology.placement import Extent


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
        return along(n, source, np.minimum(ahead, n - ahead), chosen, np.where(halved, 0.5, 1.0))

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
