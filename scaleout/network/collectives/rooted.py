"""Broadcast, reduce and send: from one rank, or to it.

`binomial_tree`: the ranks that have the buffer double in each round, the farthest messages first, so that those of a
round do not cross: ``ceil(log2 p) (alpha + n beta)`` on a switch. `scatter_all_gather` is for large buffers on networks
on which a tree would cross the same links again and again. Reduce is the mirror image of broadcast in both.

Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005 (tree); van de Geijn, JPDC 22(2), 1994 (scatter).
"""

from dataclasses import replace

from scaleout.cluster.topology.placement import Placement
from scaleout.network.collectives import direct, ring
from scaleout.network.collectives.algorithm import Algorithm, Scheduler, then
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


def _pair(placement: Placement) -> str | None:
    count = placement.num_ranks
    return None if count <= 2 else f"needs a group of two ranks, sender and receiver, not {count}"


_DIRECT, _RING = direct.ALGORITHM.schedules, ring.BIDIRECTIONAL.schedules

BINOMIAL_TREE = Algorithm(
    "binomial_tree", "the ranks that have the buffer double in each round", {"broadcast": _broadcast, "reduce": _reduce}
)


def _round_the_root(first: Scheduler, second: Scheduler) -> Scheduler:
    """Compose two functions, of which that on the ring has a root like all others: `p - 1` shards more for it."""

    def schedule(placement: Placement) -> Schedule:
        p = placement.num_ranks
        return replace(then(first, second)(placement), surplus=(p - 1) / p)

    return schedule


SCATTER_ALL_GATHER = Algorithm(
    "scatter_all_gather",
    "shards from the root, gathered on a ring both ways",
    {
        "broadcast": _round_the_root(_DIRECT["scatter"], _RING["all_gather"]),
        "reduce": _round_the_root(_RING["reduce_scatter"], _DIRECT["gather"]),
    },
)

POINT_TO_POINT = Algorithm(
    "point_to_point",
    "one message from one rank to another",
    {"send": lambda pair: Schedule((Round(Edges((0,), (1,)), 1.0),))},
    _pair,
)
