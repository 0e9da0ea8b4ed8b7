"""Rabenseifner's algorithm: reduce-scatter by recursive halving, all-gather by recursive doubling.

In step k of the reduce-scatter the ranks whose numbers differ in bit k exchange half of what they still hold, so
the largest messages go to the nearest ranks; the all-gather goes back the same way. On a switch
``t = log2(p) alpha + (p - 1) / p n beta`` for each of the two. Needs a power of two of ranks.

Symbols: p ranks; n bytes; alpha [s]; beta [s/B].
Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
"""

from scaleout.collectives.algorithm import Algorithm, power_of_two, then
from scaleout.collectives.step import Exchange, Schedule, Step
from scaleout.placement import Placement


def _reduce_scatter(placement: Placement) -> Schedule:
    bits = range(placement.num_ranks.bit_length() - 1)
    return Schedule(tuple(Step(Exchange(bit), 0.5 ** (bit + 1)) for bit in bits))


def _all_gather(placement: Placement) -> Schedule:
    return Schedule(_reduce_scatter(placement).steps[::-1])


ALGORITHM = Algorithm(
    "rabenseifner",
    "recursive halving, then recursive doubling",
    {
        "all_reduce": then(_reduce_scatter, _all_gather),
        "reduce_scatter": _reduce_scatter,
        "all_gather": _all_gather,
    },
    power_of_two,
)
