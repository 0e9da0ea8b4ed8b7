"""Direct algorithms: each rank sends to every other at once, in one round.

Reduce-scatter, all-gather and all-to-all: shards of ``n / p``; all-reduce is the first two, in two rounds. Broadcast
and reduce: the root sends to, or receives from, all others. On a switch ``t = alpha + (p - 1) / p n beta`` for a
round; on a ring the links carry every message over all its hops. That a rank must also issue ``p - 1`` messages is
not charged.

Symbols: p ranks; n bytes; alpha [s]; beta [s/B].
"""

from scaleout.cluster.topology.placement import Placement
from scaleout.network.collectives.algorithm import Algorithm, then
from scaleout.network.collectives.rounds import Edges, Everyone, Round, Schedule


def _shards(placement: Placement) -> Schedule:
    return Schedule((Round(Everyone(), 1 / placement.num_ranks),))


def _broadcast(placement: Placement) -> Schedule:
    return Schedule((Round(Edges.from_root(placement.num_ranks), 1.0),))


def _reduce(placement: Placement) -> Schedule:
    return Schedule((Round(Edges.from_root(placement.num_ranks).reversed(), 1.0),))


ALGORITHM = Algorithm(
    "direct",
    "each rank sends to every other at once",
    {
        "all_reduce": then(_shards, _shards),
        "reduce_scatter": _shards,
        "all_gather": _shards,
        "all_to_all": _shards,
        "broadcast": _broadcast,
        "reduce": _reduce,
    },
)
