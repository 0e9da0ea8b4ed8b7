"""Dimension-wise all-to-all: one all-to-all along each dimension, one after another, in chunks.

Along a dimension of ``m`` members a rank sends each of the others the ``1 / m`` of its buffer whose way leads
there. Every dimension carries the whole buffer, in messages that are larger and go less far than those of the
direct all-to-all; chunks follow one another, so that the dimensions work at the same time.

Source: ASTRA-sim's multi-dimensional all-to-all.
"""

from scaleout.cluster.topology.placement import Placement
from scaleout.network.collectives.algorithm import Algorithm, several_dimensions
from scaleout.network.collectives.rounds import Everyone, Round, Schedule


def _all_to_all(placement: Placement) -> Schedule:
    sizes = enumerate(placement.shape)
    return Schedule(tuple(Round(Everyone(), 1 / m, dimensions=(number,)) for number, m in sizes), pipelined=True)


ALGORITHM = Algorithm(
    "dimension_wise",
    "an all-to-all along each dimension, one after another, in chunks",
    {"all_to_all": _all_to_all},
    several_dimensions,
)
