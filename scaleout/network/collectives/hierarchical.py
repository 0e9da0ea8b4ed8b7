"""Hierarchical algorithms: one dimension after another, each with what is left of the buffer, in chunks.

Reduce-scatter goes from the innermost dimension outwards, so that an outer one carries only ``1 / m`` of what the one
within it did; all-gather comes back. Within a dimension the best algorithm is used: bidirectional rings on rings of
links, in-network where switches reduce, else direct; `hierarchical_direct` is direct everywhere, for small buffers.
`hierarchical_tree` is NCCL's tree: rings within the nodes, and a double binary tree over the outermost dimension, so
that a port between nodes carries ``2 n / m``.

Source: Cho et al., BlueConnect, IBM J. Res. Dev. 63(6), 2019; ASTRA-sim's multi-dimensional collectives; Jeaugey,
Massively Scale Your Deep Learning Training with NCCL 2.4, developer.nvidia.com/blog, 2019.
"""

import math
from collections.abc import Callable

from scaleout.cluster.topology.placement import Placement
from scaleout.cluster.topology.topology import Dimension
from scaleout.network.collectives import direct, double_binary_tree, in_network, ring
from scaleout.network.collectives.algorithm import Algorithm, Scheduler, along, on_dimension, several_dimensions
from scaleout.network.collectives.rounds import Round, Schedule


def _best(dimension: Dimension) -> Algorithm:
    """Algorithm that takes the least time for large buffers along a dimension."""
    if dimension.in_network_reduction:
        return in_network.ALGORITHM
    return ring.BIDIRECTIONAL if dimension.structure.neighbours else direct.ALGORITHM


def _direct(dimension: Dimension) -> Algorithm:
    del dimension
    return direct.ALGORITHM


def _schedules(within: Callable[[Dimension], Algorithm]) -> dict[str, Scheduler]:
    def phase(placement: Placement, number: int, kind: str) -> tuple[Round, ...]:
        line = along(placement, number)
        members = math.prod(placement.shape[:number])
        schedule = within(line.extents[0].dimension).schedules[kind](line)
        return on_dimension(schedule, number, fraction=1 / members)

    def up(placement: Placement) -> tuple[Round, ...]:
        numbers = range(len(placement.shape))
        return tuple(round_ for number in numbers for round_ in phase(placement, number, "reduce_scatter"))

    def down(placement: Placement) -> tuple[Round, ...]:
        numbers = range(len(placement.shape))[::-1]
        return tuple(round_ for number in numbers for round_ in phase(placement, number, "all_gather"))

    return {
        "all_reduce": lambda placement: Schedule(up(placement) + down(placement), pipelined=True),
        "reduce_scatter": lambda placement: Schedule(up(placement), pipelined=True),
        "all_gather": lambda placement: Schedule(down(placement), pipelined=True),
    }


def _tree(placement: Placement) -> Schedule:
    """All-reduce over rings and, along the outermost extent, a double binary tree."""
    *inner, outer = range(len(placement.shape))

    def rings(number: int, kind: str) -> tuple[Round, ...]:
        schedule = ring.ALGORITHM.schedules[kind](along(placement, number))
        return on_dimension(schedule, number, fraction=1 / math.prod(placement.shape[:number]))

    up = tuple(round_ for number in inner for round_ in rings(number, "reduce_scatter"))
    down = tuple(round_ for number in inner[::-1] for round_ in rings(number, "all_gather"))
    trees = double_binary_tree.ALGORITHM.schedules["all_reduce"](along(placement, outer))
    between = on_dimension(trees, outer, fraction=1 / math.prod(placement.shape[:outer]))
    return Schedule(up + between + down, pipelined=True)


ALGORITHM = Algorithm(
    "hierarchical",
    "dimension by dimension, in chunks, with the best algorithm in each",
    _schedules(_best),
    several_dimensions,
)
DIRECT = Algorithm(
    "hierarchical_direct",
    "dimension by dimension, in chunks, directly in each",
    _schedules(_direct),
    several_dimensions,
)
TREE = Algorithm(
    "hierarchical_tree",
    "rings within the nodes and two trees over them, in chunks",
    {"all_reduce": _tree},
    several_dimensions,
)
