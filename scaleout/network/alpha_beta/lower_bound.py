"""The lower bound of the links: the time below which no algorithm can carry a collective out, whatever its rounds.

Counts the bytes that one rank must send or receive, and those that must cross a cut through a dimension: where links
differ, cuts between the nodes of a line ordered by coordinate and by the Fiedler vector (docs/models/collectives.md).

Symbols: p members; m members along a dimension, j on one side of a cut; n bytes as in `collectives.algorithm`.
Source: Fiedler, Czechoslovak Mathematical Journal 23(2), 1973, for the order in which cuts are sought.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from math import fsum

import numpy as np

from scaleout.cluster.topology.dimension import Edges, edges_of, num_nodes
from scaleout.cluster.topology.kinds.kind import Floats, Ints
from scaleout.cluster.topology.placement import Extent, Placement
from scaleout.network.collectives import BUS_FACTORS, check_kind, check_size
from scaleout.network.routes.links import links_of

_ALIKE = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
"""Kinds in which all members together send, or receive, what one does at the least, times their number."""

_MOST_NODES = 1536
"""Nodes of a line up to which cuts are sought."""

_CROSSING: dict[str, Callable[[float, int], float]] = {
    "all_reduce": lambda share, p: 1.0,  # the sum over the other side
    "reduce_scatter": lambda share, p: max(share, 1 - share),  # the other side's part in the shards of this one
    "all_gather": lambda share, p: max(share, 1 - share),  # the shards of the other side
    "all_to_all": lambda share, p: share * (1 - share) * p,  # from each rank of one side 1 / p to each of the other
    "broadcast": lambda share, p: 1.0,  # the buffer
    "reduce": lambda share, p: 1.0,
    # The shards of the side without the root, which may be either.
    "gather": lambda share, p: min(share, 1 - share),
    "scatter": lambda share, p: min(share, 1 - share),
    "send": lambda share, p: 1.0,
}
"""Kind to the bytes that cross a cut in the busier direction, for each of n, with a share of the ranks on one side."""


def _factor(kind: str, placement: Placement) -> float:
    """Bytes that a rank must send or receive, for each of n."""
    in_network = any(extent.dimension.in_network_reduction for extent in placement.extents)
    return 1.0 if in_network and kind == "all_reduce" else BUS_FACTORS[kind](placement.num_ranks)


def lower_bound_s(kind: str, size_bytes: float, placement: Placement) -> float:
    """Lower bound [s] of the time that the links need for the ``bytes`` of `collectives.algorithm`.

    It is the larger of the rank's and every cut's.

    Raises
    ------
    ConfigError
        If the kind is unknown, or the size is negative, next to nothing or beyond 2**63.

    >>> from scaleout.cluster.topology.placement import place
    >>> from scaleout.cluster.topology.topology import load_topology
    >>> group = place(load_topology("switch-128"), range(128))
    >>> lower_bound_s("all_to_all", 128e6, group) == 127e6 / 25e9
    True
    """
    check_kind(kind)
    check_size(size_bytes)
    placement = placement.carrying(kind)
    p = placement.num_ranks
    if p == 1:
        return 0.0
    if placement.topology is not None:
        return size_bytes * _over_links(kind, placement)
    egress = fsum(_egress(extent, regular=placement.regular) for extent in placement.extents)
    bounds = [_factor(kind, placement) * size_bytes / egress]
    for extent in placement.extents if placement.regular else ():
        lines = p // extent.size
        for j in {1, extent.size // 2}:
            capacity = extent.structure.cut(extent, j) * lines * extent.dimension.bytes_per_s
            bounds.append(_CROSSING[kind](j / extent.size, p) * size_bytes / capacity)
    return max(bounds)


def _over_links(kind: str, placement: Placement) -> float:
    """Seconds for each byte: what the links of a member need for what it sends, and cuts for what crosses them."""
    p = placement.num_ranks
    sends, cuts = _counted(placement)
    cuts = [(1 / p, float(sends.min())), *cuts]
    if any(capacity <= 0 for _, capacity in cuts):
        return math.inf
    of_all = _factor(kind, placement) * p / float(sends.sum()) if kind in _ALIKE else 0.0
    return max(of_all, *(_CROSSING[kind](share, p) / capacity for share, capacity in cuts))


@lru_cache(maxsize=256)
def _counted(placement: Placement) -> tuple[Floats, list[tuple[float, float]]]:
    """(p,) bytes/s of all links of each member; of each cut the share of the members on one side, and its bytes/s."""
    assert placement.topology is not None
    links, shape = links_of(placement.topology), placement.topology.shape
    coordinates = placement.topology.coordinates(placement.ranks)
    sends = np.zeros(placement.num_ranks)
    cuts = []
    for number in np.flatnonzero(np.ptp(coordinates, axis=0)).tolist():
        dimension = placement.topology.dimensions[number]
        edges = edges_of(dimension)
        at = coordinates[:, number]
        own, which = np.unique(np.array(placement.ranks) - at * math.prod(shape[:number]), return_inverse=True)
        out = np.zeros((num_nodes(dimension), len(own)))
        np.add.at(out, edges.tails, links.speeds_of(number, own))
        sends += out[at, which.reshape(-1)]
        # Messages between members cross on lines at any combination of their other coordinates.
        others = [np.unique(column) if d != number else [0] for d, column in enumerate(coordinates.T)]
        lines = np.ravel_multi_index(np.ix_(*others), shape, order="F").ravel()
        capacity = links.speeds_of(number, lines).sum(axis=1)
        share = np.bincount(at, minlength=len(out)) / placement.num_ranks
        for order in _orders(edges, capacity, dimension.size, len(out)):
            inside = share[order].cumsum()[:-1].tolist()
            cuts += list(zip(inside, _cuts(edges, capacity, order).tolist(), strict=True))
    half = 0.5 / placement.num_ranks
    return sends, [(share, capacity) for share, capacity in cuts if half < share < 1 - half]


def _orders(edges: Edges, capacity: Floats, num_ranks: int, nodes: int) -> Iterator[Ints]:
    """Orders of a line's nodes in which to look for thin cuts; a switch is at the mean coordinate of its neighbours."""
    if nodes > _MOST_NODES:
        return
    weights = np.zeros((nodes, nodes))
    np.add.at(weights, (edges.tails, edges.heads), capacity)
    laplacian = np.diag(weights.sum(axis=1)) - weights
    inner = laplacian[num_ranks:, num_ranks:]
    coordinates = np.arange(num_ranks, dtype=np.float64)
    means = np.linalg.lstsq(inner, -laplacian[num_ranks:, :num_ranks] @ coordinates, rcond=None)[0]
    yield np.argsort(np.concatenate((coordinates, means)), kind="stable")
    yield np.argsort(np.linalg.eigh(laplacian)[1][:, 1], kind="stable")


def _cuts(edges: Edges, capacity: Floats, order: Ints) -> Floats:
    """Capacity, one way, of the cut after the first, second, ... node but the last."""
    position = np.argsort(order)
    ahead = position[edges.tails] < position[edges.heads]
    change = np.zeros(len(order))
    np.add.at(change, position[edges.tails[ahead]], capacity[ahead])
    np.add.at(change, position[edges.heads[ahead]], -capacity[ahead])
    return np.asarray(np.maximum(change.cumsum()[:-1], 0.0))


def _egress(extent: Extent, *, regular: bool) -> float:
    """Bytes/s that a rank sends at most along one extent, to other members."""
    dimension, structure = extent.dimension, extent.structure
    if regular and structure.interchangeable:
        dimension = replace(dimension, size=extent.size)
    return structure.links_of_a_rank(dimension) * dimension.bytes_per_s
