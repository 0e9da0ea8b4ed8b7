"""The demand of a collective for the links: the rounds of its algorithm, for all its groups, as flows.

Maps groups, kind and algorithm to a `Demand`; knows nothing of time, sizes or of what else is in flight. Messages
that are alike by a `Symmetry` or a `Partition` are one flow, with the load of all. A pipelined schedule is one steady
flow over all links that its rounds use: what it sends over each link, for each byte over its busiest one.

Symbols: p members of a group; F flows; H pairs of a flow and a link; n bytes, as in `collectives.algorithm`.
"""

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, NoReturn

import numpy as np

from scaleout.cluster.topology.placement import Placement, arrange, congruent_members, place
from scaleout.cluster.topology.topology import Topology
from scaleout.network.alpha_beta.load import combined
from scaleout.network.collectives import ROOTED, Round, Schedule, schedule, transfers
from scaleout.network.collectives.rounds import (
    Combined,
    Everyone,
    Pattern,
    Ring,
    Shift,
    TooManyMessagesError,
    among,
    check_number,
    num_messages,
    uncombined,
)
from scaleout.network.flow.flows import Demand, Flows
from scaleout.network.routes.crossing import Crossing
from scaleout.network.routes.links import Ints, Links, Routes
from scaleout.network.routes.refinement import Loads, Partition
from scaleout.network.routes.symmetry import Pairs, Symmetry, links_of_orbits

_GRAIN = 2.0**40
"""Loads of a steady flow are whole multiples of its inverse, so that sums of them are exact in any order."""

_ROUTED_AT_ONCE = 2**14
"""About how many messages of rounds that follow each other are routed at once: what fits a cache."""

MOST_ROUNDS = 50_000
"""Rounds that are followed one by one at the most: seconds of time. Of more than that, those that are done again and
again go as one, with the bytes and the latency of all, if their messages have the same latency."""

Group = tuple[int, ...]

Alike = Symmetry | Partition
"""What says which ranks, links and messages are alike."""

NOTHING_ALIKE = Symmetry()

_Key = tuple[Pattern, tuple[int, ...] | None]
"""Pattern and dimensions: rounds that have them in common send the same messages."""


def _key(round_: Round) -> _Key:
    return round_.pattern, round_.dimensions


class _Sent(NamedTuple):
    """Messages of a round; of those between the same ends, which start, share links and end together, one."""

    sources: Ints
    destinations: Ints
    times: Ints  # how many it stands for


class _Plan(NamedTuple):
    """An algorithm on a group, whose ranks are in the order of its grid."""

    placement: Placement
    ranks: Ints
    schedule: Schedule
    kind: str
    algorithm: str

    @property
    def rounds(self) -> tuple[Round, ...]:
        return self.schedule.rounds

    @property
    def distinct(self) -> dict[_Key, Round]:
        """One of the rounds that send the same messages, in the order of the first of them."""
        return {_key(round_): round_ for round_ in self.rounds}


def messages_of(topology: Topology, groups: Sequence[Group], kind: str, algorithm: str) -> list[Pairs]:
    """Return the messages of the rounds of all groups, as ranks: what a `Symmetry` has to keep.

    Each set of messages once, and without rounds that are kept wherever the groups or the other rounds are: those in
    which everyone sends to everyone, or over a distance that is the sum of distances of others.
    """
    first = _plan(topology, groups[0], kind, algorithm)
    distinct = first.distinct
    chosen = [
        round_
        for (pattern, _), round_ in distinct.items()
        if not isinstance(uncombined(pattern), Everyone) and not _sum_of_others(round_, distinct)
    ]
    if not chosen:
        return []
    lying = _lying(topology, groups, kind)
    if lying is not None:
        ends = [transfers(round_, first.placement)[:2] for round_ in chosen]
        return [(lying[:, sources].ravel(), lying[:, destinations].ravel()) for sources, destinations in ends]
    plans = [_plan(topology, group, kind, algorithm) for group in groups]
    return [_spelled(plans, first.rounds.index(round_)) for round_ in chosen]


def demand_of(links: Links, symmetry: Alike, groups: Sequence[Group], kind: str, algorithm: str) -> Demand:
    """Return the demand of a collective of some groups for the links.

    The groups are alike up to where they lie, and whole orbits of the symmetry, which keeps their family and messages.
    """
    topology = links.topology
    members = np.unique(symmetry.representatives(np.array([rank for group in groups for rank in group], np.int64)))
    representatives = set(members.tolist())
    plans = _plans(topology, [group for group in groups if not representatives.isdisjoint(group)], kind, algorithm)
    first = plans[0]
    _check_everyone(len(members), first)
    if first.schedule.pipelined:
        busiest = _busiest(links, symmetry, _plan(topology, groups[0], kind, algorithm))
        return Demand(1, (_steady(links, symmetry, groups, plans, busiest),), (busiest,), steady=True)
    number_of: dict[_Key, int] = {}
    sent: list[_Sent] = []
    num_messages = 0
    for index, round_ in enumerate(first.rounds):
        if number_of.setdefault(_key(round_), len(sent)) == len(sent):
            sent.append(_sent(_representatives_of(symmetry, plans, index), round_))
            num_messages += int(sent[-1].times.sum())
            _check_number(num_messages, first)
    shares = [_share(round_, first.placement) for round_ in first.distinct.values()]
    flows = _flows(links, symmetry, sent, members)
    many = sum(round_.repeat for round_ in first.rounds) > MOST_ROUNDS
    rounds: list[tuple[Flows, float, int]] = []
    for round_ in first.rounds:
        number, times = number_of[_key(round_)], round_.repeat if many else 1
        if times > 1 and np.ptp(flows[number].latency_s):
            _refuse_rounds(round_.repeat, kind, algorithm, first.placement.num_ranks)
        sends = _train(flows[number], times) if many else flows[number]
        rounds += [(sends, shares[number] * round_.fraction * times, round_.chain)] * (round_.repeat // times)
    chains = tuple(chain for _, _, chain in rounds)
    return Demand(
        len(members),
        tuple(sends for sends, _, _ in rounds),
        tuple(fraction for _, fraction, _ in rounds),
        chain_of_round=chains if len(set(chains)) > 1 else (),
    )


def _train(flows: Flows, repeat: int) -> Flows:
    """A round that is repeated as one, which has the latency of all."""
    return replace(flows, latency_s=flows.latency_s * repeat, num_messages=flows.num_messages * repeat)


def _sum_of_others(round_: Round, rounds: Collection[_Key]) -> bool:
    """Whether a round sends over a distance that is the sum of unit distances, all among the rounds.

    >>> rounds = {(Shift(offsets), None) for offsets in ((1, 0), (0, 1), (2, 1))}
    >>> _sum_of_others(Round(Shift((2, 1)), 1.0), rounds), _sum_of_others(Round(Shift((0, 1)), 1.0), rounds)
    (True, False)
    """
    if not isinstance(round_.pattern, Shift) or sum(round_.pattern.offsets) == 1:
        return False
    far = round_.pattern.offsets
    singles = [tuple(int(at == along) for at in range(len(far))) for along, offset in enumerate(far) if offset]
    return all((Shift(single), round_.dimensions) in rounds for single in singles)


def _plan(topology: Topology, group: Group, kind: str, algorithm: str) -> _Plan:
    placement, ranks = arrange(topology, group)
    found = schedule(kind, placement, algorithm=algorithm)
    check_rounds(found, kind, algorithm, placement.num_ranks)
    order = _from_root(placement, ranks.index(group[0])) if kind in ROOTED else np.arange(len(ranks))
    plan = _Plan(placement, np.array(ranks, np.int64)[order], found, kind, algorithm)
    _check_number(sum(_size(round_, placement) for round_ in plan.distinct.values()), plan)
    return plan


def _plans(topology: Topology, groups: Sequence[Group], kind: str, algorithm: str) -> list[_Plan]:
    lying = _lying(topology, groups, kind) if len(groups) > 1 else None
    if lying is None:
        return [_plan(topology, group, kind, algorithm) for group in groups]
    first = _plan(topology, groups[0], kind, algorithm)
    return [first._replace(ranks=ranks) for ranks in lying]


def _lying(topology: Topology, groups: Sequence[Group], kind: str) -> Ints | None:
    """(G, p) the members of congruent groups in the order of their plans, if their roots are congruent as well."""
    found = congruent_members(topology, groups)
    if found is None or kind not in ROOTED:
        return found
    roots = found == np.array([group[:1] for group in groups])
    if (roots != roots[0]).any():
        return None
    return np.asarray(found[:, _from_root(place(topology, groups[0]), int(roots[0].argmax()))], np.int64)


def _from_root(placement: Placement, root: int) -> Ints:
    """Return the members of a grid in an order from a root on, as if the grid began there.

    They are moved round each dimension; where they are on a line the root's coordinate and the first change places.
    """
    extents = placement.extents if placement.regular else ()
    shape = placement.shape if placement.regular else (placement.num_ranks,)
    indices = np.arange(placement.num_ranks).reshape(shape, order="F")
    for axis, size in enumerate(shape):
        at = root // math.prod(shape[:axis]) % size
        moved = (np.arange(size) + at) % size
        if extents and extents[axis].is_line:
            moved = np.arange(size)
            moved[[0, at]] = at, 0
        indices = np.take(indices, moved, axis=axis)
    return indices.ravel(order="F")


def check_rounds(found: Schedule, kind: str, algorithm: str, num_ranks: int) -> None:
    """Refuse a schedule of more than `MOST_ROUNDS` rounds, unless it is pipelined."""
    if len(found.rounds) > MOST_ROUNDS and not found.pipelined:
        _refuse_rounds(len(found.rounds), kind, algorithm, num_ranks)


def _refuse_rounds(num_rounds: int, kind: str, algorithm: str, num_ranks: int) -> NoReturn:
    raise TooManyMessagesError(
        f"algorithm {algorithm!r} takes {num_rounds} rounds that are not alike in a group of {num_ranks} "
        f"ranks, too many to follow one by one; choose another algorithm for {kind} (--algorithm), "
        f"a smaller group, or the network model alpha_beta"
    )


def _check_everyone(num_senders: int, plan: _Plan) -> None:
    """Refuse rounds in which so many members send to everyone that they cannot be listed."""
    for round_ in plan.distinct.values():
        if isinstance(round_.pattern, Everyone):
            _check_number(num_senders * among(round_, plan.placement, np.zeros(1, np.int64)).size, plan)


def _check_number(number: int, plan: _Plan) -> None:
    check_number(
        number,
        algorithm=plan.algorithm,
        kind=plan.kind,
        num_ranks=plan.placement.num_ranks,
        remedy="the network model alpha_beta",
    )


def _size(round_: Round, placement: Placement) -> int:
    """Messages of a round that have to be listed whatever the symmetry, at the most."""
    if isinstance(uncombined(round_.pattern), Shift) and round_.dimensions is None:
        return 0
    return placement.num_ranks if isinstance(round_.pattern, Everyone) else num_messages(round_, placement)


def _spelled(plans: Sequence[_Plan], index: int) -> Pairs:
    """Messages of one round of some groups, as ranks; computed once for groups of the same placement."""
    rounds = {plan.placement: plan.rounds[index] for plan in plans}
    ends = {placement: transfers(round_, placement) for placement, round_ in rounds.items()}
    each = [(plan.ranks, ends[plan.placement]) for plan in plans]
    return _joined([(ranks[found.sources], ranks[found.destinations]) for ranks, found in each])


def demand_of_message(links: Links, source: int, destination: int, symmetry: Alike = NOTHING_ALIKE) -> Demand:
    """Return the demand of a message from an orbit representative, and of all that are alike by the symmetry."""
    pairs = np.array([source], np.int64), np.array([destination], np.int64)
    members = np.unique(symmetry.representatives(np.concatenate(pairs)))
    sent = _Sent(*pairs, np.ones(1, np.int64))
    return Demand(len(members), tuple(_flows(links, symmetry, [sent], members)), (1.0,))


def _share(round_: Round, placement: Placement) -> float:
    """Part of the round's fraction that each of its messages is: all of them the same."""
    if isinstance(round_.pattern, (Combined, Everyone, Shift)):
        return 1.0
    weights = transfers(replace(round_, fraction=1.0), placement).weights
    assert (weights == weights[0]).all()
    return float(weights[0])


def _joined(pairs: Sequence[Pairs]) -> Pairs:
    sources, destinations = zip(*pairs, strict=True)
    return np.concatenate(sources), np.concatenate(destinations)


def _representatives_of(symmetry: Alike, plans: Sequence[_Plan], index: int) -> Pairs:
    """Orbit representatives of the messages of one round; not all of them are listed first where avoidable."""
    round_ = plans[0].rounds[index]
    if not isinstance(round_.pattern, Everyone) and (
        not isinstance(round_.pattern, Shift) or round_.dimensions is not None
    ):
        return _representatives(symmetry, _spelled(plans, index))
    pairs = []
    for placement, ranks, *_ in plans:
        members = np.flatnonzero(symmetry.representatives(ranks) == ranks)
        if isinstance(round_.pattern, Everyone):
            joined = ranks[among(round_, placement, members)]
            sources, destinations = np.repeat(ranks[members], joined.shape[1]), joined.ravel()
            others = sources != destinations
            pairs.append((sources[others], destinations[others]))
        else:
            shape = placement.shape if placement.regular else (placement.num_ranks,)
            pairs.append((ranks[members], ranks[round_.pattern.moved(members, shape)]))
    return _joined(pairs)


def _representatives(symmetry: Alike, pairs: Pairs) -> Pairs:
    """Messages whose senders are orbit representatives."""
    sources, destinations = pairs
    ranks = np.arange(sources.max(initial=-1) + 1)
    chosen = (symmetry.representatives(ranks) == ranks)[sources]
    return sources[chosen], destinations[chosen]


def _sent(pairs: Pairs, round_: Round) -> _Sent:
    """Messages of a round once for each two ends: only rings over several dimensions send more."""
    sources, destinations = pairs
    if not isinstance(uncombined(round_.pattern), Ring):
        return _Sent(sources, destinations, np.ones(len(sources), np.int64))
    codes = sources * (destinations.max(initial=0) + 1) + destinations
    _, first, times = np.unique(codes, return_index=True, return_counts=True)
    order = np.argsort(first)
    chosen = first[order]
    return _Sent(sources[chosen], destinations[chosen], times[order])


def _flows(links: Links, symmetry: Alike, sent: Sequence[_Sent], members: Ints) -> list[Flows]:
    """Flows of some rounds; messages of small ones are routed at once."""
    found = []
    of_round = np.cumsum([0, *(len(each.sources) for each in sent)])
    batch = of_round[:-1] // _ROUTED_AT_ONCE
    for at in np.unique(batch, return_index=True)[1].tolist():
        rounds = sent[at : at + np.count_nonzero(batch == batch[at])]
        sources, destinations, times = (np.concatenate(each) for each in zip(*rounds, strict=True))
        crossing, latency_s = links.crossed(sources, destinations)
        if (times > 1).any():
            messages, crossed, shares = crossing.pairs
            crossing = Crossing.of(messages, crossed, shares * times[messages], len(sources))
        ends = np.cumsum([0, *(len(each.sources) for each in rounds)])
        copies = times * (symmetry.order if isinstance(symmetry, Symmetry) else 1)
        if isinstance(symmetry, Partition):  # which makes one flow of these in any case
            of_round = np.searchsorted(ends, np.arange(len(sources)), side="right")
            kinds = np.unique(np.stack((of_round, latency_s, times)), axis=1, return_inverse=True)[1].reshape(-1)
            chosen, copies, loads = symmetry.distinct(kinds, (sources, destinations), crossing.pairs)
            copies, times = copies * times[chosen], np.ones_like(chosen)
            sources, destinations, latency_s = sources[chosen], destinations[chosen], latency_s[chosen]
            crossing = Crossing.of(*loads, len(chosen))
            ends = np.searchsorted(chosen, ends)
        elif symmetry.digits:
            routes = Routes(*crossing.pairs, latency_s)
            crossing = Crossing.of(routes.messages, *links_of_orbits(links, symmetry, routes), len(sources))
        senders = np.searchsorted(members, sources)
        receivers = np.searchsorted(members, symmetry.representatives(destinations))
        found += [
            Flows(
                senders[begin:end], receivers[begin:end], latency_s[begin:end], crossing, begin,
                int(copies[begin:end].sum()), times[begin:end],
            )
            for begin, end in itertools.pairwise(ends.tolist())
        ]  # fmt: skip
    return found


def _steady(links: Links, symmetry: Alike, groups: Sequence[Group], plans: Sequence[_Plan], busiest: float) -> Flows:
    """One flow for each orbit of groups: the loads of all its rounds, over that of its busiest link."""
    own = NOTHING_ALIKE if isinstance(symmetry, Partition) else symmetry
    orbits: dict[bytes, int] = {}
    flows, found, weights = [], [], []
    for plan in plans if own is symmetry else plans[:1]:  # groups of a class are alike
        orbit = orbits.setdefault(np.sort(own.representatives(plan.ranks)).tobytes(), len(orbits))
        for index, round_ in enumerate(plan.rounds):
            routes = _representative_routes(links, own, plan, index)
            load = round_.repeat * round_.fraction * _share(round_, plan.placement) / busiest
            each = np.round(load * _GRAIN) / _GRAIN
            flows.append(np.full(len(routes.links), orbit))
            crossed, shares = links_of_orbits(links, own, routes)
            found.append(crossed)
            weights.append(each * shares)
    pairs, inverse = np.unique(np.stack((np.concatenate(flows), np.concatenate(found))), axis=1, return_inverse=True)
    total = np.round(np.bincount(inverse.reshape(-1), np.concatenate(weights)) * _GRAIN) / _GRAIN
    members = np.zeros(len(orbits), np.int64)
    loads: Loads = pairs[0], pairs[1], total
    if isinstance(symmetry, Partition):
        loads = symmetry.loads(loads, np.full(1, len(groups)))
    crossing, each = Crossing.of(*loads, len(orbits)), np.ones(len(orbits), np.int64)
    return Flows(members, members, np.zeros(len(orbits)), crossing, 0, len(groups), each)


def _representative_routes(links: Links, symmetry: Symmetry, plan: _Plan, index: int) -> Routes:
    """Routes of the orbit representatives of a round; combined messages have the share of representative members."""
    pattern = plan.rounds[index].pattern
    if not isinstance(pattern, Combined):
        return links.routes(*_representatives_of(symmetry, [plan], index))
    ends = _spelled([plan], index)
    routes = combined(pattern, links.routes(*ends), ends, np.zeros(len(ends[0]), np.int64))
    return routes._replace(shares=routes.shares * np.mean(symmetry.representatives(plan.ranks) == plan.ranks))


def _busiest(links: Links, symmetry: Alike, plan: _Plan) -> float:
    """Load of the busiest link, for each byte of the collective, of one isolated group, at the slowest link's speed.

    Counted in whole grains, round by round: the same to the last bit whatever the symmetry.
    """
    switched = any(isinstance(round_.pattern, Combined) for round_ in plan.rounds)
    own = NOTHING_ALIKE if switched else symmetry.keeping(plan.ranks)
    _check_everyone(int(np.count_nonzero(own.representatives(plan.ranks) == plan.ranks)), plan)
    total = np.zeros(len(links))
    for index, round_ in enumerate(plan.rounds):
        routes = _representative_routes(links, own, plan, index)
        whole = routes._replace(shares=np.round(routes.shares * _GRAIN) / _GRAIN)
        messages = np.bincount(*links_of_orbits(links, own, whole), minlength=len(links))
        total += round_.repeat * round_.fraction * _share(round_, plan.placement) * messages
    speeds = links.bytes_per_s(np.flatnonzero(total))
    return float((total[total > 0] / speeds).max() * speeds.min())
