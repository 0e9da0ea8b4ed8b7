"""Fully connected ranks: one full-duplex link between each two; m members of a group."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

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


class FullyConnected(DimensionKind):
    """A link of each pair of ranks, which no others use."""

    name = "fully_connected"
    description = "a link to every other rank"
    even = True
    interchangeable = True
    movable = True
    part = "fully_connected"

    def ports(self, dimension: "Dimension") -> list[Port]:
        return [Port(0, "pair", dimension.bytes_per_s, offset) for offset in range(1, dimension.size)]

    def links_of_a_rank(self, dimension: "Dimension") -> int:
        return max(1, dimension.size - 1)

    def turns(self, dimension: "Dimension", weight: int, largest: int) -> Sequence[int]:
        """A port is a distance round the ranks, so only turns of all keep links on their ports."""
        return (largest,)

    def routes(self, dimension: "Dimension", ends: Ends) -> tuple[LineRoutes, Ints]:
        source, destination = ends
        count = len(source)
        port = (destination - source) % dimension.size - 1
        return LineRoutes(np.arange(count), port, source, np.ones(count)), np.ones(count, int)

    def ring_load(self, extent: "Extent", *, both_ways: bool) -> RoundLoad:
        return (0.5 if both_ways and extent.size > 2 else 1.0), 1

    def everyone_load(self, extent: "Extent") -> RoundLoad:
        return 1.0, 1

    def shift_load(self, extent: "Extent", offset: int) -> RoundLoad:
        return 1.0, 1

    def exchange_load(self, extent: "Extent", distance: int) -> RoundLoad:
        return 1.0, 1

    def carried(self, extent: "Extent", lines: Lines, ends: Ends, weights: Floats) -> Carried:
        """Bytes on the link of each two members, each way."""
        m = extent.size
        carried = np.bincount((lines[0] * m + ends[0]) * m + ends[1], weights, minlength=lines[1] * m * m)
        return carried.astype(np.float64), 1

    def cut(self, extent: "Extent", j: int) -> float:
        return j * (extent.size - j)
