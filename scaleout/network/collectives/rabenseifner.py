"""Rabenseifner's algorithm: reduce-scatter by recursive halving, all-gather by recursive doubling.

In round k of the reduce-scatter the ranks whose numbers differ in bit k exchange half of what they still hold, so
the largest messages go to the nearest ranks; the all-gather goes back the same way. On a switch
``t = log2(p) alpha + (p - 1) / p n beta`` for each of the two. Of ranks that are no power of two an all-reduce has two
rounds of the whole buffer besides; reduce-scatter and all-gather need a power of two.

Symbols: p ranks; n bytes; alpha [s]; beta [s/B].
Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
"""

from scaleout.cluster.topology.placement import Placement
from scaleout.network.collectives.algorithm import Algorithm, exchange, folded, power_of_two
from scaleout.network.collectives.rounds import Round, Schedule


def _halving(num_ranks: int, extra: int) -> tuple[Round, ...]:
    return tuple(Round(exchange(bit, extra), 0.5 ** (bit + 1)) for bit in range(num_ranks.bit_length() - 1))


def _both(num_ranks: int, extra: int) -> tuple[Round, ...]:
    rounds = _halving(num_ranks, extra)
    return rounds + rounds[::-1]


def _reduce_scatter(placement: Placement) -> Schedule:
    return Schedule(_halving(placement.num_ranks, 0))


def _all_gather(placement: Placement) -> Schedule:
    return Schedule(_halving(placement.num_ranks, 0)[::-1])


def _all_reduce(placement: Placement) -> Schedule:
    return folded(placement, _both, added=lambda members: 1 - 1 / members)


ALGORITHM = Algorithm(
    "rabenseifner",
    "recursive halving, then recursive doubling",
    {"all_reduce": _all_reduce, "reduce_scatter": _reduce_scatter, "all_gather": _all_gather},
    power_of_two,
    ("all_reduce",),
)
