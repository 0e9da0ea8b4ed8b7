"""Collective algorithms: kind, group and algorithm to the rounds of messages that carry the collective out.

Knows nothing of time: `network` costs the rounds. A file for each kind of algorithm, all of them in `ALGORITHMS`.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from scaleout.cluster.topology.placement import Placement
from scaleout.config import validated
from scaleout.config.units import counted
from scaleout.errors import ConfigError
from scaleout.network.collectives import (
    direct,
    disjoint_rings,
    double_binary_tree,
    hierarchical,
    in_network,
    multiported_bucket,
    recursive,
    ring,
    rooted,
)
from scaleout.network.collectives.algorithm import (
    BUS_FACTORS,
    KINDS,
    ROOTED,
    Algorithm,
    algorithm_bandwidth,
    bus_bandwidth,
    check_kind,
    check_size,
)
from scaleout.network.collectives.rounds import Messages, Round, Schedule, TooManyMessagesError, transfers

Cost = TypeVar("Cost")

ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        ring.ALGORITHM,
        ring.BIDIRECTIONAL,
        direct.ALGORITHM,
        recursive.DOUBLING,
        recursive.RABENSEIFNER,
        recursive.HALVING_DOUBLING,
        double_binary_tree.ALGORITHM,
        in_network.ALGORITHM,
        hierarchical.ALGORITHM,
        hierarchical.DIRECT,
        hierarchical.TREE,
        hierarchical.NVLS_TREE,
        multiported_bucket.ALGORITHM,
        disjoint_rings.ALGORITHM,
        disjoint_rings.RELAYED,
        direct.PAIRWISE,
        direct.DIMENSION_WISE,
        rooted.BINOMIAL_TREE,
        rooted.SCATTER_ALL_GATHER,
        rooted.POINT_TO_POINT,
    )
}
"""Name to algorithm. Of equally fast ones `auto` takes the first."""

__all__ = [
    "ALGORITHMS",
    "BUS_FACTORS",
    "KINDS",
    "ROOTED",
    "Algorithm",
    "Messages",
    "Round",
    "Schedule",
    "algorithm_bandwidth",
    "bus_bandwidth",
    "candidates",
    "check_chosen",
    "check_kind",
    "check_size",
    "hint",
    "possible",
    "schedule",
    "transfers",
]


def candidates(kind: str, placement: Placement) -> tuple[Algorithm, ...]:
    """Return the algorithms that can do a kind of collective on a group: the library's, if it has such.

    Raises
    ------
    ConfigError
        If the kind is unknown, or no algorithm can (a `send` in a group that is no pair).
    """
    check_kind(kind)
    found = tuple(a for a in ALGORITHMS.values() if a.supports(kind, placement) is None)
    if not found:
        reasons = [f"{a.name} {a.supports(kind, placement)}" for a in ALGORITHMS.values() if kind in a.schedules]
        raise ConfigError(
            f"no algorithm does {kind} on a group of {counted(placement.num_ranks, 'rank')}: {'; '.join(reasons)}"
        )
    if placement.library is None:
        return found
    chosen = placement.library.algorithms_for(kind, placement.links)
    served = (name for protocol in placement.library.protocols for name in protocol.algorithms)
    for name in (*placement.library.algorithms_for(kind), *served):
        if name not in ALGORITHMS:
            raise ConfigError(
                f"library {placement.library.name!r} names algorithm {name!r} for {kind}; "
                f"{validated.nearest(name, list(ALGORITHMS))}"
            )
    return tuple(algorithm for algorithm in found if algorithm.name in chosen) or found


def hint(name: str, able: Iterable[str]) -> str:
    """Return a hint for an unknown algorithm: which of those that are able NCCL calls so, or the nearest name.

    >>> hint("tree", ALGORITHMS)
    "did you mean 'hierarchical_tree', NCCL's Tree?"
    """
    words = list(able)
    of_nccl = {each.nccl.lower(): each for each in ALGORITHMS.values() if each.nccl and each.name in words}
    found = of_nccl.get(name.lower())
    return validated.nearest(name, words) if found is None else f"did you mean {found.name!r}, NCCL's {found.nccl}?"


def check_chosen(kind: str, name: str, *, where: str) -> None:
    """Refuse a kind that is none, and an algorithm that is none of that kind (`ConfigError`)."""
    check_kind(kind)
    able = [each for each, entry in ALGORITHMS.items() if kind in entry.schedules]
    if name not in able:
        raise ConfigError(f"{where}: no algorithm of {kind}; {hint(name, able)}")


def possible(names: Iterable[str], cost_of: Callable[[str], Cost]) -> dict[str, Cost]:
    """Return the cost of each algorithm of some names, but of those with more messages than can be routed.

    Raises
    ------
    TooManyMessagesError
        If that is all of them.
    """
    costs: dict[str, Cost] = {}
    refused: TooManyMessagesError | None = None
    for name in names:
        try:
            costs[name] = cost_of(name)
        except TooManyMessagesError as error:
            refused = error
    if refused is not None and not costs:
        raise refused
    return costs


def schedule(kind: str, placement: Placement, *, algorithm: str) -> Schedule:
    """Return the rounds of a collective (one of `KINDS`) on a group; a group of a single rank has none.

    Raises
    ------
    ConfigError
        If kind or algorithm are unknown, or the algorithm cannot do it on this group; the message says why.
    """
    check_kind(kind)
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"unknown collective algorithm {algorithm!r}; {hint(algorithm, [*ALGORITHMS, 'auto'])}")
    if placement.num_ranks == 1:
        return Schedule(())
    reason = ALGORITHMS[algorithm].supports(kind, placement)
    if reason is not None:
        raise ConfigError(f"algorithm {algorithm!r} cannot do {kind} on this group: it {reason}; choose 'auto'")
    return ALGORITHMS[algorithm].schedules[kind](placement)
