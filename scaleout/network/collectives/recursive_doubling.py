"""Recursive doubling: in round k the ranks whose numbers differ in bit k exchange all they have.

All-reduce exchanges the whole buffer each time: ``t = log2(p) (alpha + n beta)`` on a switch, the fewest rounds, for
small buffers; where p is no power of two, ``floor(log2(p)) + 2`` rounds. All-gather starts from the own shard, and what
a rank has doubles each time: ``t = log2(p) alpha + (p - 1) / p n beta``, of a power of two of ranks alone.

Symbols: p ranks; n bytes; alpha [s]; beta [s/B].
Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
"""

from scaleout.cluster.topology.placement import Placement
from scaleout.network.collectives.algorithm import Algorithm, exchange, folded, power_of_two
from scaleout.network.collectives.rounds import Exchange, Round, Schedule


def _core(num_ranks: int, extra: int) -> tuple[Round, ...]:
    return tuple(Round(exchange(bit, extra), 1.0) for bit in range(num_ranks.bit_length() - 1))


def _all_reduce(placement: Placement) -> Schedule:
    return folded(placement, _core, added=lambda members: members.bit_length() - 1)


def _all_gather(placement: Placement) -> Schedule:
    p = placement.num_ranks
    return Schedule(tuple(Round(Exchange(bit), 2**bit / p) for bit in range(p.bit_length() - 1)))


ALGORITHM = Algorithm(
    "recursive_doubling",
    "ranks that differ in bit k exchange all they have",
    {"all_reduce": _all_reduce, "all_gather": _all_gather},
    power_of_two,
    ("all_reduce",),
)
