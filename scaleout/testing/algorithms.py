"""What every collective algorithm keeps: data arrives, nothing is sent in vain, and closed forms equal brute force.

The oracle routes every message of a round, of all groups of the axis, hop by hop over the links of the topology.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scaleout.cluster.topology.dimension import Dimension, graph_dimension
from scaleout.cluster.topology.fabric import fabric_of
from scaleout.cluster.topology.placement import Placement, arrange, place
from scaleout.cluster.topology.topology import Topology
from scaleout.config.reading import nearest
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta.load import load_of
from scaleout.network.alpha_beta.lower_bound import lower_bound_s
from scaleout.network.collectives import ALGORITHMS, BUS_FACTORS, KINDS, Algorithm, Round, schedule, transfers
from scaleout.network.collectives.rounds import Combined, Pattern, num_messages

Message = tuple[int, int, float, Any]
"""From rank, to rank, share of the buffer, and what messages that switches make one of have in common."""

_ROUNDING = 1e-9

_SHAPES: tuple[tuple[tuple[str, int], ...], ...] = (
    (("ring", 2),), (("ring", 5),), (("ring", 8),), (("switch", 4),), (("switch", 6),), (("fully_connected", 8),),
    (("mesh", 4),), (("ring", 4), ("ring", 2)), (("switch", 4), ("ring", 4)), (("ring", 3), ("switch", 3)),
    (("switch", 2), ("ring", 2), ("ring", 2)),
)  # fmt: skip
"""Dimensions of the networks on which an algorithm is tried."""


def check_algorithm(name: str) -> None:
    """Hold a collective algorithm to the contract of all: for each kind that it does, on groups of fourteen networks.

    Data reaches every member that needs it; all members together send what one must and no byte more than the `surplus`
    that the schedule declares, and nobody sends to itself; no time is below the lower bound of the links; and the load
    of every round is that of its messages, routed one by one.

    Raises
    ------
    AssertionError
        Which law does not hold, and where.
    ConfigError
        If there is no such algorithm, or no group that was tried can be served.

    Examples
    --------
    >>> import scaleout.testing
    >>> scaleout.testing.check_algorithm("ring")
    """
    if name not in ALGORITHMS:
        raise ConfigError(f"unknown collective algorithm {name!r}; {nearest(name, ALGORITHMS)}")
    algorithm, tried = ALGORITHMS[name], 0
    for topology, groups in _groups():
        placement = place(topology, groups[0])
        for kind in kinds_on(algorithm, placement):
            try:
                reaches(algorithm, kind, placement)
                sends_what_it_must(algorithm, kind, placement)
                if topology.dimensions[0].kind != "graph":  # whose routes are looked for, not known in closed form
                    loads_links(algorithm, kind, topology, groups)
                keeps_bound(algorithm, kind, placement)
            except AssertionError as broken:
                members = f"ranks {groups[0]} of {topology.name}"
                raise AssertionError(f"algorithm {name}, {kind} on {members}: {broken}") from None
            tried += 1
    if not tried:
        raise ConfigError(f"algorithm {name!r} serves none of the groups that were tried; mend its condition")


def _groups() -> Iterator[tuple[Topology, list[list[int]]]]:
    """Yield networks, each with all its ranks and with the lines along each dimension."""
    for shape in _SHAPES:
        name = " x ".join(f"{kind}({size})" for kind, size in shape)
        dimensions = tuple(Dimension(kind, size, 2.0 + number, 3.0) for number, (kind, size) in enumerate(shape))
        topology = Topology(name, dimensions)
        yield topology, [list(range(topology.num_ranks))]
        inner = shape[0][1]
        if len(shape) > 1:
            yield topology, [list(range(first, first + inner)) for first in range(0, topology.num_ranks, inner)]
            yield topology, [list(range(first, topology.num_ranks, inner)) for first in range(inner)]

    reducing = Dimension("switch", 8, 2.0, 3.0, in_network_reduction=True)
    yield Topology("switch(8) that reduces", (reducing,)), [list(range(8))]
    for name, links in (("ring", [(0, 1), (1, 2), (2, 3), (3, 0)]), ("line", [(0, 1), (1, 2), (2, 3)])):
        fabric = fabric_of(4, (), [(a, b, 2.0, 3.0) for a, b in links])
        yield Topology(f"a graph, a {name} of 4", (graph_dimension(fabric),)), [list(range(4))]


def kinds_on(algorithm: Algorithm, placement: Placement) -> list[str]:
    """Return the kinds of collective that an algorithm does on a group; none for a group of one rank."""
    return [kind for kind in KINDS if placement.num_ranks > 1 and algorithm.supports(kind, placement) is None]


def _holds(law: Any, otherwise: str) -> None:
    if not law:
        raise AssertionError(otherwise)


# ---- Data


def contributions(rounds: Iterable[Round], placement: Placement) -> npt.NDArray[np.bool_]:
    """Return what each member's data may depend on when the rounds are done, shape (member, member)."""
    known = np.eye(placement.num_ranks, dtype=bool)
    for round_ in rounds:
        sources, destinations, _ = transfers(round_, placement)
        _holds(len(sources) <= num_messages(round_, placement), "more messages than `num_messages` says")
        for _ in range(round_.repeat):
            before = known.copy()
            np.logical_or.at(known, destinations, before[sources])
    return known


NEEDED: dict[str, Callable[[Any], Any]] = {
    "all_reduce": lambda known: known.all(),
    "reduce_scatter": lambda known: known.all(),
    "all_gather": lambda known: known.all(),
    "all_to_all": lambda known: known.all(),
    "broadcast": lambda known: known[:, 0].all(),
    "reduce": lambda known: known[0].all(),
    "gather": lambda known: known[0].all(),
    "scatter": lambda known: known[:, 0].all(),
    "send": lambda known: known[1, 0],
}
"""Kind of collective to whether everyone has what it needs."""


def reaches(algorithm: Algorithm, kind: str, placement: Placement) -> None:
    """Hold an algorithm to delivering; `AssertionError` if data does not reach a member that needs it."""
    rounds = schedule(kind, placement, algorithm=algorithm.name).rounds
    _holds(NEEDED[kind](contributions(rounds, placement)), "data does not reach everyone who needs it")


def sends_what_it_must(algorithm: Algorithm, kind: str, placement: Placement) -> None:
    """Hold the bytes of an algorithm to what must be sent, and to what its schedule says that it sends beyond.

    All ranks together send p times what one must and the `surplus` of the schedule, no more and no less, and an
    all-gather gives each its n (p - 1) / p, so that none is sent what it has or never needs. Nobody adds up more
    than it receives, nor less in the mean than what adds every contribution once.
    """
    p, received = placement.num_ranks, np.zeros(placement.num_ranks)
    found = schedule(kind, placement, algorithm=algorithm.name)
    for round_ in found.rounds:
        sources, destinations, fractions = transfers(round_, placement)
        _holds((sources != destinations).all(), "a member sends to itself")
        np.add.at(received, destinations, fractions * round_.repeat)
    if found.added is not None:
        least, most = (p - 1) / p * (1 - _ROUNDING), received.max() * (1 + _ROUNDING)
        _holds(least <= found.added <= most, f"adds {found.added:g} buffers a rank, not {least:g} to {most:g}")
    senders = {"gather": 1, "scatter": 1} | dict.fromkeys(("broadcast", "reduce", "send"), p - 1)
    sent = senders.get(kind, p) * BUS_FACTORS[kind](p)
    _holds(received.sum() >= sent * (1 - _ROUNDING), f"sends {received.sum():g} buffers, and {sent:g} must be sent")
    beyond = received.sum() - sent
    _holds(
        math.isclose(beyond, found.surplus, rel_tol=_ROUNDING, abs_tol=_ROUNDING * sent),
        f"sends {received.sum():g} buffers where {sent:g} must be sent, {beyond:g} more; send less, or if members pass "
        f"on for others, say so: Schedule(..., surplus={beyond:g})",
    )
    least_of = {
        "all_gather": (received, (p - 1) / p), "all_to_all": (received, (p - 1) / p), "broadcast": (received[1:], 1.0),
        "scatter": (received[1:], 1 / p), "gather": (received[:1], (p - 1) / p),
    }  # fmt: skip
    if kind in least_of:
        got, must = least_of[kind]
        _holds(got.min() >= must * (1 - _ROUNDING), f"a member receives {got.min():g} buffers, and needs {must:g}")


def keeps_bound(algorithm: Algorithm, kind: str, placement: Placement) -> None:
    """Hold the time that a byte takes to the lower bound of the links."""
    chains = schedule(kind, placement, algorithm=algorithm.name).chains
    busy = max(
        (math.fsum(r.repeat * load_of(r, placement).busiest_s_per_byte for r in chain) for chain in chains), default=0.0
    )
    bound = lower_bound_s(kind, 1e12, placement) / 1e12  # of a buffer so large that latency does not count
    _holds(busy >= bound * (1 - 1e-6), f"takes {busy:g} s a byte, and the links at least {bound:g}")


# ---- The oracle of the closed forms


def loads_links(algorithm: Algorithm, kind: str, topology: Topology, groups: Sequence[Sequence[int]]) -> None:
    """Hold busiest link and farthest hop of every round to brute force, with all groups sending at the same time."""
    placement = place(topology, list(groups[0]))
    rounds = schedule(kind, placement, algorithm=algorithm.name).rounds
    for round_ in {(each.pattern, each.dimensions): each for each in rounds}.values():
        busy, farthest = route(topology, messages_of(round_, topology, groups))
        load = load_of(round_, placement)
        _holds(np.isclose(load.busiest_s_per_byte, busy, rtol=1e-12), f"{round_}: a link carries more or less")
        _holds(np.isclose(load.latency_s, farthest, rtol=1e-12), f"{round_}: a message goes another way")


def messages_of(round_: Round, topology: Topology, groups: Sequence[Sequence[int]]) -> Iterator[Message]:
    """Yield the messages of a round of all groups."""
    for group in groups:
        placement, ranks = arrange(topology, list(group))
        for source, destination, fraction in zip(*transfers(round_, placement), strict=True):
            yield ranks[source], ranks[destination], fraction, likeness(round_.pattern, group, source, destination)


def likeness(pattern: Pattern, group: Sequence[int], source: int, destination: int) -> Any:
    """Return what messages have in common that switches make one of where they meet; None if they make nothing."""
    if not isinstance(pattern, Combined):
        return None
    return min(group), None if pattern.reduced else source, None if pattern.copied else destination


def route(topology: Topology, messages: Iterable[Message]) -> tuple[float, float]:
    """Return busy time of the busiest link for one byte of the collective, and latency of the farthest message."""
    busy: dict[Any, float] = defaultdict(float)
    farthest = 0.0
    passed = set()
    for source, destination, fraction, like in messages:
        at, to = (list(point) for point in topology.coordinates([source, destination]).tolist())
        latency = 0.0
        for d, dimension in enumerate(topology.dimensions):
            if at[d] != to[d]:
                line = (d, *at[:d], *at[d + 1 :])
                links, hops = links_of(dimension, at[d], to[d])
                for link, share in links:
                    if like is None or (line, link, like) not in passed:
                        busy[line, link] += share * fraction / dimension.bytes_per_s
                    passed.add((line, link, like))
                latency += hops * dimension.latency_s
                at[d] = to[d]
        farthest = max(farthest, latency)
    return max(busy.values(), default=0.0), farthest


def links_of(dimension: Dimension, source: int, destination: int) -> tuple[list[tuple[Any, float]], int]:
    """Return links of one line that a message takes, each with the share of the message, and its hops."""
    n = dimension.size
    if dimension.kind == "switch":
        return [(("out", source), 1.0), (("in", destination), 1.0)], 1
    if dimension.kind == "fully_connected":
        return [((source, destination), 1.0)], 1
    if dimension.kind == "mesh":
        way = 1 if destination > source else -1
        return [((way, place), 1.0) for place in range(source, destination, way)], abs(destination - source)
    if dimension.kind == "fat_tree":
        return _climb(dimension, source, destination)
    ways = {1: (destination - source) % n, -1: (source - destination) % n}
    hops = min(ways.values())
    chosen = [way for way, distance in ways.items() if distance == hops]
    if n == 2:
        chosen = [1 if destination > source else -1]  # there is only one link
    share = 1.0 / len(chosen)
    return [((way, (source + way * i) % n), share) for way in chosen for i in range(hops)], hops


def _climb(dimension: Dimension, source: int, destination: int) -> tuple[list[tuple[Any, float]], int]:
    """Return bundles of a fat tree, named by what is below; a byte on one of c ports' bandwidth counts as 1 / c."""
    links: list[tuple[Any, float]] = []
    levels, below, ports = 0, 1, 1.0
    for radix, ratio in zip(dimension.radices, (*dimension.oversubscription, 1.0), strict=True):
        if source // below == destination // below:
            break
        levels += 1
        links += [(("up", below, source // below), 1 / ports), (("down", below, destination // below), 1 / ports)]
        below *= radix
        ports = ports * radix / ratio
    return links, 2 * levels - 1
