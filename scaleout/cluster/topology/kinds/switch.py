"""Switches: one full-duplex port a rank into a switch that never blocks, a fat tree of a single level."""

from typing import TYPE_CHECKING

from scaleout.cluster.topology.kinds.fat_tree import FatTree
from scaleout.cluster.topology.kinds.kind import DimensionKind, Edge, Port

if TYPE_CHECKING:
    from scaleout.cluster.topology.dimension import Dimension


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
    example = DimensionKind.example

    def switches(self, dimension: "Dimension") -> tuple[str, ...]:
        return ("switch",)

    def edges(self, dimension: "Dimension") -> list[Edge]:
        return super().edges(dimension) if dimension.size > 1 else []

    def ports(self, dimension: "Dimension") -> list[Port]:
        return super().ports(dimension) if dimension.size > 1 else []
