"""Rings side by side over direct links: how many a group has, and that they are rings."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.cluster.topology.dimension import graph_dimension
from scaleout.cluster.topology.fabric import fabric_of
from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import Topology, break_links, load_topology
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta.cost import collective_cost
from scaleout.network.alpha_beta.lower_bound import lower_bound_s
from scaleout.network.collectives import schedule, transfers
from scaleout.network.collectives.disjoint_rings import rings_of

V100 = load_topology("v100-node-8")


@pytest.mark.parametrize(
    ("ranks", "rings", "busbw"),
    [(2, 1, 22.55), (3, 2, 45.1), (4, 4, 85.2), (5, 2, 37.1), (6, 2, 45.7), (7, 4, 86.9), (8, 6, 134.3)],
)
def test_rings_of_eight_v100_explain_their_bus_bandwidth(ranks, rings, busbw):
    """nccl-tests from 512 MiB up (VIA-Research/vTrain, trace/v100): 22.5 GB/s a ring, but for the relayed ones."""
    group = place(V100, range(ranks))
    relayed = ranks == 5
    assert len(rings_of(group, relayed=relayed)) == rings
    cost = collective_cost("all_reduce", 2**30, group)
    assert cost.algorithm == ("relayed_rings" if relayed else "disjoint_rings")
    predicted = 2 * (ranks - 1) / ranks * 2**30 / cost.time_s / 1e9
    assert predicted == pytest.approx(busbw, rel=0.055)


def most_by_brute_force(p, room):
    """Most directed cycles through all p members of which no more than its room use an arc."""
    cycles = [tuple(zip((0, *way), (*way, 0), strict=True)) for way in itertools.permutations(range(1, p))]

    def most(start, room):
        found = 0
        for number in range(start, len(cycles)):
            if all(room.get(arc, 0) for arc in cycles[number]):
                left = {arc: count - (arc in cycles[number]) for arc, count in room.items()}
                found = max(found, 1 + most(number, left))
        return found

    return most(0, room)


@st.composite
def linked(draw):
    """Up to five ranks, any two of which are joined by none, one or two links."""
    p = draw(st.integers(2, 5))
    counts = {pair: draw(st.sampled_from([0, 1, 1, 2])) for pair in itertools.combinations(range(p), 2)}
    return p, counts


def joined(p, counts):
    """The links of ranks, and a slow switch that joins what they do not."""
    links = [(a, b, 25e9 * count, 1e-6) for (a, b), count in counts.items() if count]
    links += [(rank, "switch", 1e9, 1e-5) for rank in range(p)]
    return Topology("linked", (graph_dimension(fabric_of(p, ["switch"], links)),))


@given(linked())
@settings(max_examples=60, deadline=None)
def test_as_many_rings_as_brute_force_finds(graph):
    p, counts = graph
    single = 1 if 1 in counts.values() else 2  # two links everywhere are one that is twice as fast
    room = {arc: count // single for pair, count in counts.items() if count for arc in (pair, pair[::-1])}
    rings = rings_of(place(joined(p, counts), range(p)))
    assert len(rings) == most_by_brute_force(p, room)
    used = [arc for ring in rings for arc in ring]
    assert all(used.count(arc) <= room[arc] for arc in used)
    for ring in rings:
        after = dict(ring)
        assert len(ring) == p
        assert set(after.values()) == set(range(p))


@pytest.mark.parametrize("ranks", [(0, 1), (0, 1, 2), range(4), range(6), (1, 2, 3, 5, 6, 7), range(7), range(8)])
def test_every_part_reaches_everyone_and_no_wire_is_beaten(ranks):
    group = place(V100, ranks)
    found = schedule("all_gather", group, algorithm="disjoint_rings")
    received = np.zeros(len(ranks))
    for chain in found.chains:
        known = np.eye(len(ranks), dtype=bool)
        for round_ in chain:
            sources, destinations, fractions = transfers(round_, group)
            np.add.at(received, destinations, fractions * round_.repeat)
            for _ in range(round_.repeat):
                before = known.copy()
                np.logical_or.at(known, destinations, before[sources])
        assert known.all()
    assert received == pytest.approx(np.full(len(ranks), (len(ranks) - 1) / len(ranks)))
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        assert collective_cost(kind, 1e9, group).time_s > lower_bound_s(kind, 1e9, group)


def test_a_broken_link_takes_its_rings():
    assert len(rings_of(place(break_links(V100, ["0-1"]), range(8)))) == 5
    with pytest.raises(ConfigError, match="needs a group with a ring of links of its own, along one graph"):
        schedule("all_reduce", place(break_links(V100, ["0-1"]), range(2)), algorithm="disjoint_rings")


def test_a_search_that_would_take_too_long_takes_what_it_has():
    """Of 32 ranks that are all joined 31 rings would do (Tillson, J. Comb. Theory B 29, 1980)."""
    p = 32
    links = [(a, b, 1e9, 1e-6) for a, b in itertools.combinations(range(p), 2)]
    group = place(Topology("all", (graph_dimension(fabric_of(p, [], links)),)), range(p))
    assert 1 <= len(rings_of(group)) <= p - 1


@pytest.mark.parametrize(
    ("topology", "ranks", "algorithm", "message"),
    [
        ("torus-8x16", 8, "disjoint_rings", "needs a group with a ring of links of its own, along one graph"),
        ("graph-8", 8, "relayed_rings", "needs a group that is joined by links of its own, along one graph"),
        ("v100-node-8", 8, "relayed_rings", "is for groups without a ring of direct links; take 'disjoint_rings'"),
    ],
)
def test_groups_without_such_rings_are_told_so(topology, ranks, algorithm, message):
    with pytest.raises(ConfigError, match=message):
        schedule("all_reduce", place(load_topology(topology), range(ranks)), algorithm=algorithm)


@pytest.mark.parametrize("relayed", [False, True])
def test_a_thousand_ranks_in_a_line_are_searched_in_vain(relayed):
    """Member by member, not by calls within one another; over relays there is a ring, and it takes too long to find."""
    links = [(rank, rank + 1, 1e9, 1e-6) for rank in range(999)]
    group = place(Topology("line", (graph_dimension(fabric_of(1000, [], links)),)), range(1000))
    assert rings_of(group, relayed=relayed) == ()
