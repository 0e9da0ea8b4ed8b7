"""Load of a round: how many messages the busiest link carries, and how far the farthest message goes.

Maps a `Round` on a `Placement` to a `Load`, with all groups of the axis active at once. Symmetric patterns on grids
have closed forms (`cluster.topology.kinds`); all else (trees, irregular groups) is routed over the members' grid, and
where coordinates matter over the links. Switches that reduce or multicast combine messages of a `Combined` round that
meet on a link: those added up for one member are one there, and so are all copies of one member's message.

Symbols: p members; m members along a dimension, b of them below a link; M messages; H links of all routes.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from scaleout.cluster.topology.kinds.kind import RoundLoad
from scaleout.cluster.topology.placement import Extent, Placement, kept_in_place, siblings
from scaleout.cluster.topology.topology import Topology
from scaleout.network.collectives.rounds import (
    Combined,
    Everyone,
    Exchange,
    Messages,
    Pattern,
    Ring,
    Round,
    Schedule,
    Shift,
    check_number,
    num_messages,
    transfers,
    uncombined,
)
from scaleout.network.routes.links import Floats, Ints, Links, Routes, links_of
from scaleout.network.routes.symmetry import Symmetry, group_of_rank, links_of_orbits, symmetry


def through_switches(pattern: Combined, extents: tuple[Extent, ...]) -> list[tuple[Floats, int]]:
    """Messages on each link along each extent if everyone sends to everyone, up and down by level; and hops.

    Up goes what b members send to ``m - b``, down what ``m - b`` send to b; a link's bandwidth is counted in ports.

    >>> from scaleout.network.collectives.rounds import Everyone
    >>> from scaleout.cluster.topology.topology import Dimension
    >>> switch = Extent(Dimension("switch", 8, 1e9, 0.0, in_network_reduction=True), 8)
    >>> through_switches(Combined(Everyone(), reduced=True), (switch,))
    [(array([7., 1.]), 1)]
    """
    return [_through(pattern, extent) for extent in extents]


def _through(pattern: Combined, extent: Extent) -> tuple[Floats, int]:
    m, loads, hops = extent.size, [], -1
    for span, ports in extent.dimension.levels:
        b = extent.below(span)
        if b < m:
            hops += 2
            for senders, receivers in ((b, m - b), (m - b, b)):
                messages = (1 if pattern.reduced else senders) * (1 if pattern.copied else receivers)
                loads.append(messages * (span // b) / ports)
    return np.array(loads), hops


def combined(pattern: Pattern, routes: Routes, ends: tuple[Ints, Ints], groups: Ints) -> Routes:
    """Return routes on which only one of the messages that switches combine has its share; the others have zero.

    The `ends` are ranks, (M,) each. Messages of different `groups`, (M,), are never combined.
    """
    if not isinstance(pattern, Combined):
        return routes
    kinds = {(True, True): groups, (True, False): ends[0], (False, True): ends[1]}
    alike = kinds.get((pattern.copied, pattern.reduced), np.arange(len(groups)))
    each = alike[routes.messages]
    first = np.unique(routes.links * (int(alike.max(initial=0)) + 1) + each, return_index=True)[1]
    shares = np.zeros_like(routes.shares)
    shares[first] = routes.shares[first]
    return routes._replace(shares=shares)


_QUICK_ROUNDS, _QUICK_MESSAGES = 256, 2**24
"""Most different rounds, and most messages of one, that `auto` weighs where they have to be routed."""

_AT_ONCE = 2**16
"""Messages that are routed at a time."""


@dataclass(frozen=True)
class Load:
    """What a round takes of the network."""

    latency_s: float  # latency of the farthest message: its hops times their latencies, over all dimensions
    # extent to the time that its links are busy, for each byte of the collective: one number a link, or one number if
    # all are alike or only the busiest matters
    seconds_per_byte: dict[int, Floats]

    @property
    def busiest_s_per_byte(self) -> float:
        """Serialization time of the round for each byte of the collective."""
        return max((float(links.max()) for links in self.seconds_per_byte.values()), default=0.0)


def load_of(round_: Round, placement: Placement) -> Load:
    """Return the load of one round of a schedule for a placement, done once."""
    if placement.topology is not None:
        return _over_links(round_, placement)
    closed_form = _closed_form(round_.pattern)
    if isinstance(round_.pattern, Combined) and not (placement.regular and closed_form):
        return _over_links(round_, kept_in_place(placement))
    if not placement.regular or closed_form is None:
        return _routed(transfers(round_, placement), placement) or _over_links(round_, kept_in_place(placement))
    numbers = round_.dimensions if round_.dimensions is not None else tuple(range(len(placement.extents)))
    loads = list(closed_form(round_.pattern, tuple(placement.extents[number] for number in numbers)))
    latency_s = 0.0
    seconds_per_byte = {}
    for number, load in zip(numbers, loads, strict=True):
        if load is None:
            return _over_links(round_, kept_in_place(placement))
        messages, hops = load
        dimension = placement.extents[number].dimension
        latency_s += dimension.latency_of(hops) if hops else 0.0
        if np.any(messages):
            seconds_per_byte[number] = np.atleast_1d(messages) * round_.fraction / dimension.bytes_per_s
    return Load(latency_s, seconds_per_byte)


def _ring(pattern: Ring, extents: tuple[Extent, ...]) -> Iterator[RoundLoad]:
    """On the innermost extent every member sends a message a round; on the next only one of those m, and so on."""
    share = 1.0
    for extent in extents:
        yield _times(extent.structure.ring_load(extent, both_ways=pattern.both_ways), share)
        share /= extent.size


def _everyone(pattern: Everyone, extents: tuple[Extent, ...]) -> Iterator[RoundLoad]:
    """Each of a line's members is passed by the messages of, or for, all p / m members that share its coordinate."""
    del pattern
    p = math.prod(extent.size for extent in extents)
    for extent in extents:
        found = extent.structure.everyone_load(extent)
        yield found and (found[0] * p / extent.size, found[1])


def _times(load: RoundLoad, factor: float) -> RoundLoad:
    return load and (load[0] * factor, load[1])


def _shift(pattern: Shift, extents: tuple[Extent, ...]) -> Iterator[RoundLoad]:
    for extent, offset in zip(extents, pattern.offsets, strict=True):
        yield extent.structure.shift_load(extent, offset) if offset else (0.0, 0)


def _exchange(pattern: Exchange, extents: tuple[Extent, ...]) -> Iterator[RoundLoad]:
    """One bit of a member's number belongs to one extent; there pairs ``2^j`` members apart swap."""
    bit = pattern.bit
    for extent in extents:
        bits = extent.size.bit_length() - 1
        yield extent.structure.exchange_load(extent, 1 << bit) if 0 <= bit < bits else (0.0, 0)
        bit -= bits


def is_quick(schedule: Schedule, placement: Placement) -> bool:
    """Whether the rounds of a schedule are few enough, and of few enough messages, to be routed in seconds."""
    patterns = {(uncombined(round_.pattern), round_.dimensions) for round_ in schedule.rounds}
    everyone = any(isinstance(pattern, Everyone) for pattern, _ in patterns)
    most = max((num_messages(round_, placement) for round_ in schedule.rounds), default=0)
    return len(patterns) <= _QUICK_ROUNDS and max(most, everyone * placement.num_ranks**2) <= _QUICK_MESSAGES


def check_routable(schedule: Schedule, placement: Placement, *, kind: str, algorithm: str) -> None:
    """Refuse an algorithm with more messages than can be routed, before any is (`TooManyMessagesError`).

    Those of rounds in which everyone sends to everyone are counted up to symmetry.
    """
    if placement.topology is None:
        return
    distinct = {(round_.pattern, round_.dimensions): round_ for round_ in schedule.rounds}.values()
    everyone = [isinstance(round_.pattern, Everyone) and round_.dimensions is None for round_ in distinct]
    number = sum(num_messages(each, placement) for each, to_all in zip(distinct, everyone, strict=True) if not to_all)
    number *= len(_groups(placement)) if placement.regular else 1
    if any(everyone):
        _, members = _representatives(_as_routed(placement.topology), _groups(placement))
        number += sum(map(len, members)) * placement.num_ranks
    remedy = "a topology without links that are slow or broken"
    check_number(number, algorithm=algorithm, kind=kind, num_ranks=placement.num_ranks, remedy=remedy)


def _over_links(round_: Round, placement: Placement) -> Load:
    """Route the messages of a group and its siblings over the links; count those links that the group itself uses."""
    assert placement.topology is not None
    links = _links(placement.topology)
    groups = _groups(placement)
    if isinstance(round_.pattern, Everyone) and round_.dimensions is None:
        as_routed = _as_routed(placement.topology)
        latency_s, carried = _everyone_over_links(as_routed, groups)
        mine = np.flatnonzero(carried)
        if len(groups) > 1:
            latency_s, of_group = _everyone_over_links(as_routed, (tuple(sorted(placement.ranks)),))
            mine = np.flatnonzero(of_group)
        carried = carried * round_.fraction
    else:
        each, anywhere = replace(round_, fraction=1.0, repeat=1), replace(placement, ranks=())
        latency_s, mine, _ = _carried(links, anywhere, (placement.ranks,), each)
        _, used, used_bytes = _carried(links, anywhere, groups, each)
        carried = np.zeros(len(links))
        carried[used] = used_bytes * round_.fraction
    busy = np.zeros(len(links))
    busy[mine] = carried[mine] / links.bytes_per_s(mine)
    of_port = busy.reshape(len(links.ports), -1)
    dimensions = np.array([port.dimension for port in links.ports])
    by_extent = {extent: of_port[dimensions == number].ravel() for extent, number in enumerate(_differ(placement))}
    return Load(latency_s, {extent: seconds for extent, seconds in by_extent.items() if seconds.any()})


@lru_cache(maxsize=4)
def _links(topology: Topology) -> Links:
    """Return the links of a topology, whose speeds and coordinates are worked out once for all rounds."""
    return links_of(topology)


def _as_routed(topology: Topology) -> Links:
    """Return the links as routes see them, where one that is slow is like any other: more ranks are alike."""
    return _links(replace(topology, changes=tuple(change for change in topology.changes if not change.factor)))


@lru_cache(maxsize=64)
def _differ(placement: Placement) -> tuple[int, ...]:
    """Return the dimensions in which the members of a group differ."""
    assert placement.topology is not None
    return tuple(np.flatnonzero(np.ptp(placement.topology.coordinates(placement.ranks), axis=0)).tolist())


@lru_cache(maxsize=64)
def _groups(placement: Placement) -> tuple[tuple[int, ...], ...]:
    """Return the groups that are active at the same time."""
    assert placement.topology is not None
    return tuple(sorted(siblings(placement.topology, placement.ranks))) if placement.regular else (placement.ranks,)


def _routes(
    links: Links, placement: Placement, groups: tuple[tuple[int, ...], ...], round_: Round
) -> Iterator[tuple[Routes, Floats]]:
    """Yield routes of a round of some groups, and the weight of each message, some at a time; combined ones at once."""
    sources, destinations, weights = transfers(round_, placement)
    ranks = np.array(groups)
    ends = ranks[:, sources].ravel(), ranks[:, destinations].ravel()
    weights = np.tile(weights, len(groups))
    if isinstance(round_.pattern, Combined):
        numbers = np.repeat(np.arange(len(groups)), len(sources))
        yield combined(round_.pattern, links.routes(*ends), ends, numbers), weights
        return
    for first in range(0, len(weights), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        yield links.routes(ends[0][some], ends[1][some]), weights[some]


@lru_cache(maxsize=256)
def _carried(
    links: Links, placement: Placement, groups: tuple[tuple[int, ...], ...], round_: Round
) -> tuple[float, Ints, Floats]:
    """Latency of the farthest message of a round of some groups, the links used, bytes on each a byte of a buffer."""
    latency_s, carried = 0.0, np.zeros(len(links))
    for routes, weights in _routes(links, placement, groups, round_):
        latency_s = max(latency_s, float(routes.latency_s.max(initial=0.0)))
        each = routes.shares if (weights == 1.0).all() else routes.shares * weights[routes.messages]
        carried += np.bincount(routes.links, each, minlength=len(links))
    used = np.flatnonzero(carried)
    return latency_s, used, carried[used]


@lru_cache(maxsize=64)
def _everyone_over_links(links: Links, groups: tuple[tuple[int, ...], ...]) -> tuple[float, Floats]:
    """Latency of the farthest, and (L,) messages on each link, where everyone sends to everyone; by orbits."""
    topology = links.topology
    found, of_groups = _representatives(links, groups)
    representative = found.representatives(np.arange(topology.num_ranks))
    carried, latency_s = np.zeros(len(links)), 0.0
    for group, senders in zip(groups, of_groups, strict=True):
        members = np.array(group)
        for some in np.array_split(senders, math.ceil(len(senders) * len(members) / _AT_ONCE)) if len(senders) else ():
            routes = links.routes(np.repeat(some, len(members)), np.tile(members, len(some)))
            carried += np.bincount(*links_of_orbits(links, found, routes), minlength=len(links))
            latency_s = max(latency_s, float(routes.latency_s.max(initial=0.0)))
    every_link = np.arange(len(links.ports))[:, None] * topology.num_ranks + representative
    return latency_s, carried[every_link.ravel()]


@lru_cache(maxsize=64)
def _representatives(links: Links, groups: tuple[tuple[int, ...], ...]) -> tuple[Symmetry, list[Ints]]:
    """Return the symmetry of a topology with some groups, and the members of each that stand for their orbits."""
    found = symmetry(links.topology, [group_of_rank(groups, links.topology.num_ranks)])
    members = [np.array(group) for group in groups]
    return found, [each[found.representatives(each) == each] for each in members]


_ClosedForm = Callable[[Any, tuple[Extent, ...]], Iterable[tuple[Any, int] | None]]

_CLOSED_FORMS: dict[type, _ClosedForm] = {Ring: _ring, Everyone: _everyone, Shift: _shift, Exchange: _exchange}
"""Pattern to the messages on the busiest link (or on each) and the hops of the farthest, for each extent."""


def _closed_form(pattern: Pattern) -> _ClosedForm | None:
    if isinstance(pattern, Combined):
        return through_switches if isinstance(pattern.pattern, Everyone) else None
    return _CLOSED_FORMS.get(type(pattern))


def _routed(messages: Messages, placement: Placement) -> Load | None:
    """Route every message over the grid, dimension 0 first, and add up what each link carries, by closed forms."""
    shape = placement.shape
    members = np.asarray(placement.members, np.int64) if placement.members else np.arange(placement.num_ranks)
    at = np.stack(np.unravel_index(members[messages.sources], shape, order="F"))
    to = np.stack(np.unravel_index(members[messages.destinations], shape, order="F"))
    latency_s = np.zeros(len(messages.sources))
    seconds_per_byte = {}
    for number, extent in enumerate(placement.extents):
        moving = at[number] != to[number]
        if moving.any():
            # The line is known by its other coordinates: those passed are the destination's, the rest the source's.
            others = np.delete(at, number, axis=0)[:, moving]
            sizes = shape[:number] + shape[number + 1 :]
            lines = np.ravel_multi_index(tuple(others), sizes) if sizes else np.zeros(others.shape[1], np.int64)
            count = math.prod(sizes)
            ends = (at[number, moving], to[number, moving])
            carried = extent.structure.carried(extent, (lines, count), ends, messages.weights[moving])
            if carried is None:
                return None
            links, hops = carried
            latency_s[moving] += extent.dimension.latency_of(hops)
            seconds_per_byte[number] = links / extent.dimension.bytes_per_s
        at[number] = to[number]
    return Load(float(latency_s.max(initial=0.0)), seconds_per_byte)
