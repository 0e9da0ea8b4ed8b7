"""In-network algorithms: the switches add up what passes through them, and copy what several ranks are to have.

Only along one dimension whose switches can: NVSwitch (NVLink SHARP, NVLS), InfiniBand switches with SHARP. Everyone
sends to everyone at once, and what meets on a link is one: messages to the same rank are added up, messages from the
same rank that are the same are copied where their ways part. So a port carries, each way, ``n`` for all-reduce, which
is both; out of a rank ``(p - 1) / p n`` and into it ``n / p`` for reduce-scatter, and the other way about for
all-gather; ``n`` for broadcast and reduce. ``t = alpha + n beta`` for an all-reduce on a switch, whatever ``p``.

The own shard does not pass the switch. Where it does (NVLS: the switch adds up the shards of all ranks for the one
that asks for it) the library's local bandwidth charges it.

Symbols: p ranks; n bytes; alpha [s]; beta [s/B].
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


def _everyone(placement: Placement) -> Pattern:
    del placement
    return Everyone()


def _from_root(placement: Placement) -> Edges:
    p = placement.num_ranks
    return Edges((0,) * (p - 1), tuple(range(1, p)))


def _to_root(placement: Placement) -> Edges:
    return _from_root(placement).reversed()


def _once(
    pattern: Callable[[Placement], Pattern], *, sharded: bool = False, copied: bool = False, reduced: bool = False
) -> Scheduler:
    """One round of messages of the whole buffer or of a shard each, which switches forward while they come in."""

    def schedule(placement: Placement) -> Schedule:
        fraction = 1 / placement.num_ranks if sharded else 1.0
        round_ = Round(Combined(pattern(placement), copied=copied, reduced=reduced), fraction)
        return Schedule((round_,), pipelined=True)

    return schedule


ALGORITHM = Algorithm(
    "in_network",
    "the switches add up and copy what passes through them",
    {
        "all_reduce": _once(_everyone, copied=True, reduced=True),
        "reduce_scatter": _once(_everyone, sharded=True, reduced=True),
        "all_gather": _once(_everyone, sharded=True, copied=True),
        "broadcast": _once(_from_root, copied=True),
        "reduce": _once(_to_root, reduced=True),
    },
    _reducing_switches,
)
