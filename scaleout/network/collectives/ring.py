"""Ring algorithms, one way: each rank sends to the next, all at once, ``p - 1`` rounds a phase.

All-reduce is reduce-scatter, then all-gather. For all-to-all each rank passes on what is not its own; after ``k``
rounds ``p - k`` shards of every rank are still under way.

On a ring of links: ``t = (p - 1) (alpha + n / p * beta)`` for a phase, so each of the links in this direction
carries ``(p - 1) / p n``; the links in the other direction rest.

Symbols: p ranks; n bytes; alpha [s]; beta [s/B].
Source: Patarasuk and Yuan, JPDC 69(2), 2009.
"""

from scaleout.cluster.topology.placement import Placement
from scaleout.network.collectives.algorithm import Algorithm, then
from scaleout.network.collectives.rounds import Ring, Round, Schedule


def _phase(placement: Placement) -> Schedule:
    p = placement.num_ranks
    return Schedule((Round(Ring(), 1 / p, repeat=p - 1),))


def _all_to_all(placement: Placement) -> Schedule:
    p = placement.num_ranks
    return Schedule(tuple(Round(Ring(), (p - k) / p) for k in range(1, p)))


ALGORITHM = Algorithm(
    "ring",
    "each rank sends to the next on a ring",
    {"all_reduce": then(_phase, _phase), "reduce_scatter": _phase, "all_gather": _phase, "all_to_all": _all_to_all},
)
