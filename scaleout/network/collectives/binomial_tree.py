"""Binomial tree: the ranks that have the buffer double in each of ``ceil(log2 p)`` rounds.

The farthest messages go first, so those of a round do not cross. ``t = ceil(log2 p) (alpha + n beta)`` on a switch.
Reduce goes back the same way.

Symbols: p ranks; n bytes; alpha [s]; beta [s/B].
Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
"""

from scaleout.cluster.topology.placement import Placement
from scaleout.network.collectives.algorithm import Algorithm
from scaleout.network.collectives.rounds import Edges, Round, Schedule


def _levels(num_ranks: int) -> list[Edges]:
    levels = []
    for bit in range((num_ranks - 1).bit_length())[::-1]:
        sources = range(0, num_ranks - (1 << bit), 2 << bit)
        levels.append(Edges(tuple(sources), tuple(source + (1 << bit) for source in sources)))
    return levels


def _broadcast(placement: Placement) -> Schedule:
    return Schedule(tuple(Round(edges, 1.0) for edges in _levels(placement.num_ranks)))


def _reduce(placement: Placement) -> Schedule:
    return Schedule(tuple(Round(edges.reversed(), 1.0) for edges in _levels(placement.num_ranks)[::-1]))


ALGORITHM = Algorithm(
    "binomial_tree", "the ranks that have the buffer double in each round", {"broadcast": _broadcast, "reduce": _reduce}
)
