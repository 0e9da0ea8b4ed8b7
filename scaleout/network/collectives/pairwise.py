"""Pairwise all-to-all: in each of ``p - 1`` rounds every rank sends to one and receives from one other.

In a round all ranks send over the same distance: by k ranks, or by a vector of offsets on a grid. On a switch
``t = (p - 1) (alpha + n / p * beta)``.

Symbols: p ranks; n bytes; alpha [s]; beta [s/B].
Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
"""

import itertools

from scaleout.cluster.topology.placement import Placement
from scaleout.network.collectives.algorithm import Algorithm
from scaleout.network.collectives.rounds import Round, Schedule, Shift


def _all_to_all(placement: Placement) -> Schedule:
    p = placement.num_ranks
    shape = placement.shape if placement.regular else (p,)
    offsets = itertools.product(*(range(size) for size in shape))
    return Schedule(tuple(Round(Shift(offset), 1 / p) for offset in offsets if any(offset)))


ALGORITHM = Algorithm(
    "pairwise", "one partner after another, all ranks over the same distance", {"all_to_all": _all_to_all}
)
