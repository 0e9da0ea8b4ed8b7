"""What every collective algorithm is: a name, and for each kind it can do a function from placement to schedule.

The kinds of collectives, what `bytes` means for each, and bandwidths in the manner of nccl-tests.

``bytes`` is the larger side, the full buffer of one rank, never a shard, as in nccl-tests:

=================  ==========================================================================
all_reduce         the buffer; every rank ends with the sum
reduce_scatter     the input; rank i ends with the i-th of p shards of the sum
all_gather         the output; each rank brings one of p shards
all_to_all         the input, as large as the output; one of p shards goes to each rank, the own one stays
broadcast, reduce  the buffer; the root is the first rank of the group
gather             the output of the root, the first rank; each rank brings one of p shards
scatter            the input of the root, the first rank; rank i ends with the i-th of p shards
send               the message, from the first to the second of two ranks
=================  ==========================================================================

Only the transport is charged: the additions of a reduction are free. Rounds have the root as member 0: closed forms
take the first in the order of the grid for it, routed messages the first of the group.

Symbols: p ranks; n bytes; t [s].
Source: nccl-tests, doc/PERFORMANCE.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from scaleout.cluster.topology.placement import Placement
from scaleout.config import validated
from scaleout.config.documents import LARGEST_INTEGER
from scaleout.config.units import BYTES
from scaleout.errors import ConfigError
from scaleout.network.collectives.rounds import Round, Schedule

Scheduler = Callable[[Placement], Schedule]


def any_placement(placement: Placement) -> str | None:
    """Put no condition on the group."""
    del placement
    return None


def several_dimensions(placement: Placement) -> str | None:
    """Demand a regular grid of two dimensions or more."""
    if not placement.regular:
        return "needs a group that is a regular grid in the topology"
    return None if len(placement.extents) > 1 else "needs a group that extends along two dimensions or more"


def power_of_two(placement: Placement) -> str | None:
    """Demand a power of two of ranks."""
    count = placement.num_ranks
    return None if count & (count - 1) == 0 else f"needs a power of two of ranks, not {count}"


@dataclass(frozen=True)
class Algorithm:
    """A collective algorithm."""

    name: str  # as the user writes it
    summary: str  # one line for `scaleout list`
    schedules: Mapping[str, Scheduler]  # kind to the function from a placement of two ranks or more to the schedule
    # placement to the reason why the algorithm cannot serve it, or None
    condition: Callable[[Placement], str | None] = any_placement
    unconditional: tuple[str, ...] = ()  # kinds for which it serves any group all the same
    nccl: str = ""  # what NCCL_ALGO calls it; empty where NCCL has no such algorithm

    def supports(self, kind: str, placement: Placement) -> str | None:
        """Return why the algorithm cannot do a kind of collective on a group, or None if it can."""
        if kind not in self.schedules:
            return f"does {', '.join(self.schedules)}, not {kind}"
        return None if kind in self.unconditional else self.condition(placement)


def then(first: Scheduler, second: Scheduler) -> Scheduler:
    """Compose two functions from placement to schedule: the rounds of the second after those of the first."""

    def schedule(placement: Placement) -> Schedule:
        one, other = first(placement), second(placement)
        return Schedule(one.rounds + other.rounds, surplus=one.surplus + other.surplus)

    return schedule


def along(placement: Placement, number: int) -> Placement:
    """Return the part of a group that lies along one of its extents: a line of the grid."""
    return Placement((placement.extents[number],), placement.startup_s)


def on_dimension(schedule: Schedule, number: int, *, fraction: float) -> tuple[Round, ...]:
    """Carry the rounds of a line over to all lines of a grid along one extent, on a fraction of the bytes."""
    return tuple(
        replace(round_, fraction=round_.fraction * fraction, dimensions=(number,)) for round_ in schedule.rounds
    )


KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send")
"""Every kind of collective; `send` is the message from one rank to another."""

ROOTED = ("broadcast", "reduce", "gather", "scatter")
"""Kinds from one rank to all, or back."""

BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda p: 2 * (p - 1) / p,
    "reduce_scatter": lambda p: (p - 1) / p,
    "all_gather": lambda p: (p - 1) / p,
    "all_to_all": lambda p: (p - 1) / p,
    "broadcast": lambda p: 1.0,
    "reduce": lambda p: 1.0,
    "gather": lambda p: (p - 1) / p,  # of the root
    "scatter": lambda p: (p - 1) / p,
    "send": lambda p: 1.0,
}
"""Kind to the bytes that a rank must send or receive, for each of ``n``, as a function of the ranks ``p``."""


def algorithm_bandwidth(size_bytes: float, time_s: float) -> float:
    """Bandwidth as the caller sees it: ``n / t``, in bytes/s; zero where there was nothing to do.

    >>> algorithm_bandwidth(8e9, 2.0)
    4000000000.0
    """
    return size_bytes / time_s if time_s else 0.0


def bus_bandwidth(kind: str, size_bytes: float, *, time_s: float, num_ranks: int) -> float:
    """Bandwidth as a link sees it, comparable over numbers of ranks: ``factor(p) n / t``, in bytes/s.

    Raises
    ------
    ConfigError
        If the kind is unknown.

    >>> bus_bandwidth("all_reduce", 8e9, time_s=2.0, num_ranks=4)
    6000000000.0
    """
    check_kind(kind)
    return algorithm_bandwidth(size_bytes, time_s) * BUS_FACTORS[kind](num_ranks)


def check_kind(kind: str) -> None:
    """Refuse a kind that is not in `KINDS`, naming the nearest."""
    if kind not in KINDS:
        raise ConfigError(f"unknown collective {kind!r}; {validated.nearest(kind, KINDS)}")


def check_size(size_bytes: float) -> None:
    """Refuse a size that is negative, next to nothing, infinite or beyond what a graph can hold."""
    if size_bytes and not BYTES.smallest <= size_bytes <= LARGEST_INTEGER:
        raise ConfigError(f"a collective of {size_bytes} bytes; give zero, or from {BYTES.smallest:g} to 2**63 bytes")
