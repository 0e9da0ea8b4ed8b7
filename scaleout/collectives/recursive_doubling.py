"""Recursive doubling: in step k the ranks whose numbers differ in bit k exchange all they have.

All-reduce exchanges the whole buffer each time: ``t = log2(p) (alpha + n beta)`` on a switch, the fewest steps, for
small buffers. All-gather starts from the own shard, and what a rank has doubles each time:
``t = log2(p) alpha + (p - 1) / p n beta``. Needs a power of two of ranks.

Symbols: p ranks; n bytes; alpha [s]; beta [s/B].
Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
"""

from scaleout.collectives.algorithm import Algorithm, power_of_two
from scaleout.collectives.step import Exchange, Schedule, Step
from scaleout.placement import Placement


def _all_reduce(placement: Placement) -> Schedule:
    bits = range(placement.num_ranks.bit_length() - 1)
    return Schedule(tuple(Step(Exchange(bit), 1.0) for bit in bits))


def _all_gather(placement: Placement) -> Schedule:
    p = placement.num_ranks
    return Schedule(tuple(Step(Exchange(bit), 2**bit / p) for bit in range(p.bit_length() - 1)))


ALGORITHM = Algorithm(
    "recursive_doubling",
    "ranks that differ in bit k exchange all they have",
    {"all_reduce": _all_reduce, "all_gather": _all_gather},
    power_of_two,
)
