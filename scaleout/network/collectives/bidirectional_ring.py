"""Ring algorithms, both ways: half of each message goes to the next rank, half to the previous one.

As many rounds as the one-way ring, and on a ring of links half its serialization:
``t = (p - 1) (alpha + n / (2 p) * beta)`` for a phase. On a switch nothing is gained: a rank has one port.
For all-to-all a shard goes the shorter way round, ``p // 2`` rounds in all; the one at half way is split.

Symbols: p ranks; n bytes; alpha [s]; beta [s/B].
"""

from scaleout.cluster.topology.placement import Placement
from scaleout.network.collectives.algorithm import Algorithm, then
from scaleout.network.collectives.rounds import Ring, Round, Schedule


def _phase(placement: Placement) -> Schedule:
    p = placement.num_ranks
    return Schedule((Round(Ring(both_ways=True), 1 / p, repeat=p - 1),))


def _all_to_all(placement: Placement) -> Schedule:
    # Each way, after k - 1 rounds, the shards for the ranks at distances k, k + 1, ..., p / 2 are still under way:
    # p / 2 - k of them whole, and half of the last if p is even. The pattern's message is both ways together.
    p = placement.num_ranks
    one_way = [(p - 1) / 2 - (k - 1) for k in range(1, p // 2 + 1)]
    return Schedule(tuple(Round(Ring(both_ways=True), 2 * shards / p) for shards in one_way))


ALGORITHM = Algorithm(
    "bidirectional_ring",
    "each rank sends half to the next and half to the previous on a ring",
    {"all_reduce": then(_phase, _phase), "reduce_scatter": _phase, "all_gather": _phase, "all_to_all": _all_to_all},
)
