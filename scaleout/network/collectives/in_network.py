"""In-network algorithms: the switches add up what passes through them, and copy what several ranks are to have.

Everyone sends to everyone at once along one dimension whose switches can (NVLS, SHARP), so that a port carries ``n``
each way for all-reduce, broadcast and reduce: ``t = alpha + n beta`` on a switch. See docs/models/collectives.md.

Source: Graham et al., Scalable Hierarchical Aggregation Protocol (SHARP), COMHPC 2016; Klenk et al., An In-Network
Architecture for Accelerating Shared-Memory Multiprocessor Collectives, ISCA 2020.
"""

from collections.abc import Callable

from scaleout.cluster.topology.placement import Placement
from scaleout.network.collectives.algorithm import Algorithm, Scheduler
from scaleout.network.collectives.rounds import Combined, Edges, Everyone, Pattern, Round, Schedule


def _reducing_switches(placement: Placement) -> str | None:
    """Demand a group along one dimension whose switches reduce and multicast."""
    if len(placement.extents) == 1 and placement.extents[0].dimension.in_network_reduction:
        return None
    return "needs a group along one dimension whose switches reduce ('in_network_reduction: true' in the topology)"


def _once(
    pattern: Callable[[int], Pattern],
    *,
    sharded: bool = False,
    copied: bool = False,
    reduced: bool = False,
    surplus: Callable[[int], float] = lambda _num_ranks: 0.0,
) -> Scheduler:
    """One round of messages of the whole buffer or of a shard each, which switches forward while they come in."""

    def schedule(placement: Placement) -> Schedule:
        fraction = 1 / placement.num_ranks if sharded else 1.0
        round_ = Round(Combined(pattern(placement.num_ranks), copied=copied, reduced=reduced), fraction)
        return Schedule((round_,), pipelined=True, surplus=surplus(placement.num_ranks))

    return schedule


ALGORITHM = Algorithm(
    "in_network",
    "the switches add up and copy what passes through them",
    {
        "all_reduce": _once(  # from everyone to everyone, of which the switches make one message each
            lambda p: Everyone(), copied=True, reduced=True, surplus=lambda p: (p - 1) * (p - 2)
        ),
        "reduce_scatter": _once(lambda p: Everyone(), sharded=True, reduced=True),
        "all_gather": _once(lambda p: Everyone(), sharded=True, copied=True),
        "broadcast": _once(Edges.from_root, copied=True),
        "reduce": _once(lambda p: Edges.from_root(p).reversed(), reduced=True),
    },
    _reducing_switches,
    nccl="NVLS",
)
