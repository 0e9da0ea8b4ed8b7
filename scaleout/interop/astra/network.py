"""Ranks and sizes to hops and times, as ASTRA-sim's analytical networks count them.

The time of a message between two ranks counts in the first dimension in which they differ, and in no other. A line is
the set of ranks that differ in some dimensions only. Knows neither contention (see `links`) nor collectives.

Symbols: N ranks of a dimension; d distance of two coordinates; alpha latency of a hop [ns]; beta bandwidth [B/ns].
A send takes ``floor(hops alpha + m / beta)`` ns; hops are 1 in FullyConnected, 2 in Switch, min(d, N - d) in Ring.
Source: ASTRA-sim 2.0 at commit 518bd51 (2026-03-26), behaviour as measured.
"""

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

RENDEZVOUS_BYTES = 8192
"""Size of the request that a receiver sends under the rendezvous protocol."""

HOPS: Mapping[str, Callable[[int, int], int]] = {
    "FullyConnected": lambda distance, size: 1,
    "Switch": lambda distance, size: 2,
    "Ring": lambda distance, size: min(distance, size - distance),
}
"""Kind of dimension to the hops between two coordinates at a distance of 1 to size - 1."""


class Dimension(NamedTuple):
    """One dimension of the network."""

    kind: str  # one of `HOPS`
    size: int
    stride: int  # difference of the rank numbers of neighbours
    latency_ns: float  # of one hop
    bytes_per_ns: float  # of a link

    def send_ns(self, distance: int, size_bytes: int) -> int:
        """Time of a message to the coordinate `distance` further on, without contention."""
        return int(HOPS[self.kind](distance, self.size) * self.latency_ns + size_bytes / self.bytes_per_ns)


class Network(NamedTuple):
    """A product of dimensions: ``rank = c0 + n0 (c1 + n1 c2 ...)``."""

    dimensions: tuple[Dimension, ...]

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return math.prod(dimension.size for dimension in self.dimensions)

    def crossed(self, source: int, target: int) -> tuple[int, int]:
        """Return the first dimension in which two ranks differ, and their distance there; 0 and 0 if they are one."""
        for number, dimension in enumerate(self.dimensions):
            distance = (target // dimension.stride - source // dimension.stride) % dimension.size
            if distance:
                return number, distance
        return 0, 0

    def send_ns(self, source: int, target: int, size_bytes: int) -> int:
        """Time of a message between two ranks; 0 from a rank to itself."""
        number, distance = self.crossed(source, target)
        return self.dimensions[number].send_ns(distance, size_bytes) if distance else 0


def build_network(
    *, topology: Sequence[str], npus_count: Sequence[int], bandwidth: Sequence[float], latency: Sequence[float]
) -> Network:
    """Build a network from the lists of a network.yml: kinds, sizes, GiB/s and ns, one entry a dimension."""
    strides = itertools.accumulate(npus_count, operator.mul, initial=1)
    rates = [gib_per_s * 2**30 / 1e9 for gib_per_s in bandwidth]
    return Network(tuple(map(Dimension, topology, npus_count, strides, latency, rates)))


class Lines:
    """The lines of a network along some of its dimensions; along all of them, one line of all ranks."""

    def __init__(self, network: Network, dimensions: tuple[int, ...]) -> None:
        along = [network.dimensions[number] for number in dimensions if number >= 0] or list(network.dimensions)
        offsets = [0]
        for dimension in along:
            offsets = [offset + dimension.stride * number for number in range(dimension.size) for offset in offsets]
        self._offsets = offsets
        self.size = len(offsets)
        self.first_of = tuple(  # (R,) the lowest rank of each rank's line
            rank - sum(rank // dimension.stride % dimension.size * dimension.stride for dimension in along)
            for rank in range(network.num_ranks)
        )

    def __len__(self) -> int:
        return len(self.first_of) // self.size

    def of(self, first: int) -> tuple[int, ...]:
        """Return the ranks of the line whose lowest rank is given, in ascending order."""
        return tuple(first + offset for offset in self._offsets)
