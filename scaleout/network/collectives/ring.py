"""Ring algorithms: each rank sends to the next, all at once, or half of each message to the previous one.

All-reduce is reduce-scatter, then all-gather, of ``p - 1`` rounds each; a phase takes
``(p - 1) (alpha + n / p * beta)`` one way on a ring of links, and half the serialization both ways. For all-to-all each
rank passes on what is not its own; both ways a shard goes the shorter way round.

Symbols: p ranks; n bytes; alpha [s]; beta [s/B]. Source: Patarasuk and Yuan, JPDC 69(2), 2009.
"""

from collections.abc import Callable

from scaleout.cluster.topology.placement import Placement
from scaleout.network.collectives.algorithm import Algorithm, Scheduler, then
from scaleout.network.collectives.rounds import Ring, Round, Schedule


def _kinds(pattern: Ring, shards_under_way: Callable[[int], list[float]]) -> dict[str, Scheduler]:
    def phase(placement: Placement) -> Schedule:
        p = placement.num_ranks
        return Schedule((Round(pattern, 1 / p, repeat=p - 1),))

    def all_to_all(placement: Placement) -> Schedule:
        p = placement.num_ranks
        under_way = shards_under_way(p)
        rounds = tuple(Round(pattern, shards / p) for shards in under_way)
        return Schedule(rounds, surplus=sum(under_way) - (p - 1))

    return {"all_reduce": then(phase, phase), "reduce_scatter": phase, "all_gather": phase, "all_to_all": all_to_all}


def _both_ways(p: int) -> list[float]:
    # Each way, after k - 1 rounds, the shards for the ranks at distances k, k + 1, ..., p / 2 are still under way:
    # p / 2 - k of them whole, and half of the last if p is even. The pattern's message is both ways together.
    return [2 * ((p - 1) / 2 - (k - 1)) for k in range(1, p // 2 + 1)]


ALGORITHM = Algorithm(
    "ring",
    "each rank sends to the next on a ring",
    _kinds(Ring(), lambda p: [p - k for k in range(1, p)]),
    nccl="Ring",
)

BIDIRECTIONAL = Algorithm(
    "bidirectional_ring",
    "each rank sends half to the next and half to the previous on a ring",
    _kinds(Ring(both_ways=True), _both_ways),
)
