"""Hierarchical algorithms: one dimension after another, each with what is left of the buffer, in chunks.

Reduce-scatter goes from the innermost dimension outwards, so that an outer one carries only ``1 / m`` of what the one
within it did; all-gather comes back. NCCL's trees, `hierarchical_tree` and `nvls_tree`, are double binary trees over
the outermost dimension.

Source: Cho et al., BlueConnect, IBM J. Res. Dev. 63(6), 2019; ASTRA-sim's multi-dimensional collectives; Jeaugey,
Massively Scale Your Deep Learning Training with NCCL 2.4, developer.nvidia.com/blog, 2019.
"""

import math
from collections.abc import Callable, Iterable

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


def _phases(
    placement: Placement, numbers: Iterable[int], kind: str, within: Callable[[Dimension], Algorithm]
) -> tuple[Round, ...]:
    """Rounds along one extent after another, each on what those within it leave of the buffer."""
    rounds: tuple[Round, ...] = ()
    for number in numbers:
        schedule = within(placement.extents[number].dimension).schedules[kind](along(placement, number))
        rounds += on_dimension(schedule, number, fraction=1 / math.prod(placement.shape[:number]))
    return rounds


def _schedules(within: Callable[[Dimension], Algorithm]) -> dict[str, Scheduler]:
    def up(placement: Placement) -> tuple[Round, ...]:
        return _phases(placement, range(len(placement.shape)), "reduce_scatter", within)

    def down(placement: Placement) -> tuple[Round, ...]:
        return _phases(placement, range(len(placement.shape))[::-1], "all_gather", within)

    return {
        "all_reduce": lambda placement: Schedule(up(placement) + down(placement), pipelined=True),
        "reduce_scatter": lambda placement: Schedule(up(placement), pipelined=True),
        "all_gather": lambda placement: Schedule(down(placement), pipelined=True),
    }


def _tree(within: Callable[[Dimension], Algorithm]) -> Scheduler:
    """All-reduce by some algorithm along the inner extents and by a double binary tree along the outermost."""

    def schedule(placement: Placement) -> Schedule:
        *inner, outer = range(len(placement.shape))
        up = _phases(placement, inner, "reduce_scatter", within)
        trees = _phases(placement, [outer], "all_reduce", lambda dimension: double_binary_tree.ALGORITHM)
        down = _phases(placement, inner[::-1], "all_gather", within)
        return Schedule(up + trees + down, pipelined=True)

    return schedule


ALGORITHM = Algorithm(
    "hierarchical",
    "dimension by dimension, in chunks, with the best algorithm in each",
    _schedules(_best),
    several_dimensions,
)
DIRECT = Algorithm(
    "hierarchical_direct",
    "dimension by dimension, in chunks, directly in each",
    _schedules(lambda dimension: direct.ALGORITHM),
    several_dimensions,
)
TREE = Algorithm(
    "hierarchical_tree",
    "rings within the nodes and two trees over them, in chunks",
    {"all_reduce": _tree(lambda dimension: ring.ALGORITHM)},
    several_dimensions,
    nccl="Tree",
)
NVLS_TREE = Algorithm(
    "nvls_tree",
    "the switches within the nodes, directly where they do not reduce, and two trees over the nodes, in chunks",
    {"all_reduce": _tree(_best)},
    several_dimensions,
    nccl="NVLSTree",
)
