"""Multiported bucket algorithms: on a torus, rings along all dimensions and both ways at once.

The buffer is cut into D slices, one a chain: slice r goes round dimension r first, then r + 1, and so on, each time
with what the dimensions before it have left. Slices are as large as makes their first rings take equally long.

Source: Sack and Gropp, Collective algorithms for multiported torus networks, ACM TOPC 1(2), 2015.
"""

import math
from dataclasses import replace
from math import fsum

from scaleout.cluster.topology.placement import Extent, Placement
from scaleout.network.collectives import ring
from scaleout.network.collectives.algorithm import Algorithm, along, on_dimension, several_dimensions, then
from scaleout.network.collectives.rounds import Round, Schedule


def rings_only(placement: Placement) -> str | None:
    """Demand a regular grid of rings or meshes, of two dimensions or more."""
    reason = several_dimensions(placement)
    if reason is None and not all(extent.structure.neighbours for extent in placement.extents):
        return "needs a torus or a grid: rings or meshes only"
    return reason


def _reduce_scatter(placement: Placement) -> Schedule:
    first_s = [_ring_s_per_byte(extent) for extent in placement.extents]
    total = fsum(1 / each for each in first_s)
    chains = [_chain(placement, number, 1 / (each * total)) for number, each in enumerate(first_s)]
    return Schedule(tuple(round_ for chain in chains for round_ in chain))


def _all_gather(placement: Placement) -> Schedule:
    return Schedule(_reduce_scatter(placement).rounds[::-1])


def _chain(placement: Placement, first: int, share: float) -> tuple[Round, ...]:
    """Reduce-scatter one part of the buffer along all dimensions, a given one first."""
    count = len(placement.extents)
    order = [(first + k) % count for k in range(count)]
    rounds: tuple[Round, ...] = ()
    for k, number in enumerate(order):
        within = math.prod(placement.shape[before] for before in order[:k])
        rounds_of_line = ring.BIDIRECTIONAL.schedules["reduce_scatter"](along(placement, number))
        rounds += on_dimension(rounds_of_line, number, fraction=share / within)
    return tuple(replace(round_, chain=first) for round_ in rounds)


def _ring_s_per_byte(extent: Extent) -> float:
    """Time that a bidirectional ring takes along an extent, for each byte: on a line it gains nothing."""
    ways = 2 if extent.wraps and extent.dimension.size > 2 else 1
    return (extent.size - 1) / extent.size * extent.stride / (ways * extent.dimension.bytes_per_s)


ALGORITHM = Algorithm(
    "multiported_bucket",
    "on a torus, parts of the buffer round all dimensions and both ways at once",
    {"all_reduce": then(_reduce_scatter, _all_gather), "reduce_scatter": _reduce_scatter, "all_gather": _all_gather},
    rings_only,
)
