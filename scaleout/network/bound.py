"""The wire bound: the time below which no algorithm can carry a collective out, whatever its steps.

From two counts only: the bytes that one rank must send or receive, against all its links in use; and the bytes that
must cross a cut through a dimension, against the links in the cut, which the groups that interleave on a ring
share. Latency counts nothing. Holds for messages that only members send and that take the shortest way, and without
reduction in the network.

Symbols: p members; m members along a dimension, j of them on one side of a cut; L = p / m lines of the group along
it; s groups that share a ring; n bytes, as in `collectives.convention`.
Source: Patarasuk and Yuan, JPDC 69(2), 2009, for the bytes that a rank must send in an all-reduce.
"""

import math
from collections.abc import Callable

from scaleout.collectives import BUS_FACTORS, check_kind
from scaleout.errors import ConfigError
from scaleout.placement import Extent, Placement

_CROSSING: dict[str, Callable[[float, int], float]] = {
    "all_reduce": lambda share, p: 1.0,  # the sum over the other side
    "reduce_scatter": lambda share, p: max(share, 1 - share),  # the other side's part in the shards of this one
    "all_gather": lambda share, p: max(share, 1 - share),  # the shards of the other side
    "all_to_all": lambda share, p: share * (1 - share) * p,  # from each rank of one side 1 / p to each of the other
    "broadcast": lambda share, p: 1.0,  # the buffer
    "reduce": lambda share, p: 1.0,
    "send": lambda share, p: 1.0,
}
"""Kind to the bytes that cross a cut in the busier direction, for each of n, with a share of the ranks on one side."""


def wire_bound(kind: str, size_bytes: float, placement: Placement) -> float:
    """Time [s] that the links need at the least: the larger of the rank's and every cut's.

    Parameters
    ----------
    kind : str
        One of `collectives.KINDS`.
    size_bytes : float
        The ``bytes`` of `collectives.convention`.
    placement : Placement
        Where the group lies.

    Raises
    ------
    ConfigError
        If the kind is unknown or the size is negative.

    >>> from scaleout.placement import place
    >>> from scaleout.topology import load_topology
    >>> group = place(load_topology("switch-128"), range(128))
    >>> wire_bound("all_to_all", 128e6, group) == 127e6 / 25e9
    True
    """
    check_kind(kind)
    if not (math.isfinite(size_bytes) and size_bytes >= 0):
        raise ConfigError(f"a collective of {size_bytes} bytes; give a size of zero or more")
    p = placement.num_ranks
    if p == 1:
        return 0.0
    egress = sum(_egress(extent, regular=placement.regular) for extent in placement.extents)
    bounds = [BUS_FACTORS[kind](p) * size_bytes / egress]
    for extent in placement.extents if placement.regular else ():
        lines = p // extent.size
        for j in {1, extent.size // 2}:
            capacity = _cut(extent, j) * lines * extent.dimension.bytes_per_s
            bounds.append(_CROSSING[kind](j / extent.size, p) * size_bytes / capacity)
    return max(bounds)


def _egress(extent: Extent, *, regular: bool) -> float:
    """Bytes/s that a rank sends at most along one extent, to other members."""
    dimension = extent.dimension
    if dimension.kind in ("switch", "fat_tree"):
        links = 1
    elif dimension.kind in ("ring", "mesh"):
        links = min(2, dimension.size - 1)
    else:
        links = extent.size - 1 if regular else dimension.size - 1
    return links * dimension.bytes_per_s


def _cut(extent: Extent, j: int) -> float:
    """Links of one line, each way, in a cut with j members on one side: a group's part of them."""
    if extent.dimension.kind in ("switch", "fat_tree"):
        return min(j, extent.size - j)
    if extent.dimension.kind == "fully_connected":
        return j * (extent.size - j)
    return (2 if extent.wraps and extent.dimension.size > 2 else 1) / extent.stride
