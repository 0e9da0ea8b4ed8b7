"""Some dimensions of a network to the groups of ranks that a collective in these dimensions alone joins.

A line is the ranks that differ in the dimensions only; with all dimensions, all ranks are one. Knows no collectives.
"""

from scaleout.astra.network import Network


class Lines:
    """The lines of a network along some of its dimensions.

    Attributes
    ----------
    size : int
        Ranks of a line.
    first_of : tuple of int, length R
        The lowest rank of each rank's line.
    """

    def __init__(self, network: Network, dimensions: tuple[int, ...]) -> None:
        along = [network.dimensions[number] for number in dimensions if number >= 0] or list(network.dimensions)
        offsets = [0]
        for dimension in along:
            offsets = [offset + dimension.stride * step for step in range(dimension.size) for offset in offsets]
        self._offsets = offsets
        self.size = len(offsets)
        self.first_of = tuple(
            rank - sum(rank // dimension.stride % dimension.size * dimension.stride for dimension in along)
            for rank in range(network.num_ranks)
        )

    def __len__(self) -> int:
        return len(self.first_of) // self.size

    def of(self, first: int) -> tuple[int, ...]:
        """Return the ranks of the line whose lowest rank is given, in ascending order."""
        return tuple(first + offset for offset in self._offsets)
