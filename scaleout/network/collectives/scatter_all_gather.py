"""Scatter, then all-gather: the root sends a shard to each rank, and the ranks gather them on a ring, both ways.

For large buffers on networks on which a tree would cross the same links again and again. Reduce is the mirror
image: reduce-scatter, then the shards go to the root.

Symbols: p ranks; n bytes.
Source: van de Geijn, JPDC 22(2), 1994.
"""

from scaleout.cluster.topology.placement import Placement
from scaleout.network.collectives import bidirectional_ring
from scaleout.network.collectives.algorithm import Algorithm, then
from scaleout.network.collectives.rounds import Edges, Round, Schedule


def _scatter(placement: Placement) -> Schedule:
    p = placement.num_ranks
    return Schedule((Round(Edges.from_root(p), 1 / p),))


def _gather(placement: Placement) -> Schedule:
    p = placement.num_ranks
    return Schedule((Round(Edges.from_root(p).reversed(), 1 / p),))


_RING = bidirectional_ring.ALGORITHM.schedules

ALGORITHM = Algorithm(
    "scatter_all_gather",
    "shards from the root, gathered on a ring both ways",
    {"broadcast": then(_scatter, _RING["all_gather"]), "reduce": then(_RING["reduce_scatter"], _gather)},
)
