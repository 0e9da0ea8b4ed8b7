"""Hierarchical algorithms: one dimension after another, each with what is left of the buffer, in chunks.

Reduce-scatter goes from the innermost dimension outwards, so that an outer one carries only ``1 / m`` of what the
one within it did; all-gather comes back; all-reduce is both. Chunks follow one another, so that the dimensions
work at the same time.

Within a dimension the best algorithm for it is used: on a ring of links the bidirectional ring (neighbours only,
both ways), elsewhere direct (one step, nothing carried twice), and in the network where switches reduce and multicast.
`hierarchical_direct` uses direct on rings and such switches as well: on rings fewer hops, more load, for small buffers.

Source: Cho et al., BlueConnect, IBM J. Res. Dev. 63(6), 2019; ASTRA-sim's multi-dimensional collectives.
"""

import math
from collections.abc import Callable

from scaleout.collectives import bidirectional_ring, direct, in_network
from scaleout.collectives.algorithm import Algorithm, Scheduler, along, on_dimension, several_dimensions
from scaleout.collectives.step import Schedule, Step
from scaleout.placement import Placement
from scaleout.topology import Dimension

_BEST = {
    "ring": bidirectional_ring.ALGORITHM,
    "mesh": bidirectional_ring.ALGORITHM,
    "switch": direct.ALGORITHM,
    "fat_tree": direct.ALGORITHM,
    "fully_connected": direct.ALGORITHM,
}


def _best(dimension: Dimension) -> Algorithm:
    """Algorithm that takes the least time for large buffers along a dimension."""
    return in_network.ALGORITHM if dimension.in_network_reduction else _BEST.get(dimension.kind, direct.ALGORITHM)


def _direct(dimension: Dimension) -> Algorithm:
    del dimension
    return direct.ALGORITHM


def _schedules(within: Callable[[Dimension], Algorithm]) -> dict[str, Scheduler]:
    def phase(placement: Placement, number: int, kind: str) -> tuple[Step, ...]:
        line = along(placement, number)
        members = math.prod(placement.shape[:number])
        schedule = within(line.extents[0].dimension).schedules[kind](line)
        return on_dimension(schedule, number, fraction=1 / members)

    def up(placement: Placement) -> tuple[Step, ...]:
        numbers = range(len(placement.shape))
        return tuple(step for number in numbers for step in phase(placement, number, "reduce_scatter"))

    def down(placement: Placement) -> tuple[Step, ...]:
        numbers = range(len(placement.shape))[::-1]
        return tuple(step for number in numbers for step in phase(placement, number, "all_gather"))

    return {
        "all_reduce": lambda placement: Schedule(up(placement) + down(placement), pipelined=True),
        "reduce_scatter": lambda placement: Schedule(up(placement), pipelined=True),
        "all_gather": lambda placement: Schedule(down(placement), pipelined=True),
    }


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
