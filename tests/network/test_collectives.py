"""One contract for all collective algorithms, and the naive oracle for the closed forms of their load.

The oracle routes every message of a round, of all groups of the axis, hop by hop over the links of the topology.
"""

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.cluster.topology.placement import arrange, place
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta.load import load_of
from scaleout.network.collectives import (
    ALGORITHMS,
    BUS_FACTORS,
    KINDS,
    algorithm_bandwidth,
    bus_bandwidth,
    schedule,
    transfers,
)
from scaleout.network.collectives.rounds import Combined, num_messages

HAND_ROUTED = ["ring", "switch", "fully_connected", "mesh", "fat_tree"]
"""Kinds of dimension whose routes `links_of` spells out anew; tests/cluster/test_kinds.py routes those of the table."""

each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=lambda a: a.name)


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]


@st.composite
def tree_levels(draw, size):
    """Radices of a fat tree of up to three levels, and how much each level but the last is oversubscribed."""
    first = draw(st.sampled_from(divisors(size)))
    second = draw(st.sampled_from(divisors(size // first)))
    split = draw(st.sampled_from([(size,), (first, size // first), (first, second, size // first // second)]))
    radices = tuple(radix for radix in split if radix > 1) or (1,)
    return radices, tuple(draw(st.sampled_from([1.0, 2.0, 4.0])) for _ in radices[1:])


@st.composite
def meshes(draw, max_ranks=48):
    """A topology, and all groups of an axis that lies in it as a grid: lists of ranks that partition the ranks."""
    dimensions, sets = [], []
    ranks = 1
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, min(12, max_ranks // ranks)))
        ranks *= size
        kind = draw(st.sampled_from(["ring", *HAND_ROUTED]))
        speed, latency = draw(st.sampled_from([1.0, 2.0, 3.0])), draw(st.sampled_from([1.0, 4.0]))
        levels = draw(tree_levels(size)) if kind == "fat_tree" else ()
        reduces = kind in ("switch", "fat_tree") and draw(st.booleans())
        dimensions.append(Dimension(kind, size, speed, latency, *levels, in_network_reduction=reduces))
        m = draw(st.sampled_from(divisors(size)))
        s = draw(st.sampled_from(divisors(size // m)))
        starts = [block + offset for block in range(0, size, m * s) for offset in range(s)]
        sets.append([[start + i * s for i in range(m)] for start in starts])
    topology = Topology("any", tuple(dimensions))
    weights = [math.prod(topology.shape[:d]) for d in range(len(dimensions))]
    groups = [
        [sum(w * c for w, c in zip(weights, point, strict=True)) for point in itertools.product(*along)]
        for along in itertools.product(*sets)
    ]
    return topology, groups


def links_of(dimension, source, destination):
    """Links of one line that a message takes, each with the share of the message, and its hops."""
    n = dimension.size
    if dimension.kind == "switch":
        return [(("out", source), 1.0), (("in", destination), 1.0)], 1
    if dimension.kind == "fully_connected":
        return [((source, destination), 1.0)], 1
    if dimension.kind == "mesh":
        way = 1 if destination > source else -1
        return [((way, place), 1.0) for place in range(source, destination, way)], abs(destination - source)
    if dimension.kind == "fat_tree":
        return climb(dimension, source, destination)
    ways = {1: (destination - source) % n, -1: (source - destination) % n}
    hops = min(ways.values())
    chosen = [way for way, distance in ways.items() if distance == hops]
    if n == 2:
        chosen = [1 if destination > source else -1]  # there is only one link
    share = 1.0 / len(chosen)
    return [((way, (source + way * i) % n), share) for way in chosen for i in range(hops)], hops


def climb(dimension, source, destination):
    """Bundles of a fat tree, named by what is below them; a byte on one of c ports' bandwidth counts as 1 / c."""
    links, levels, below, ports = [], 0, 1, 1.0
    for radix, ratio in zip(dimension.radices, (*dimension.oversubscription, 1.0), strict=True):
        if source // below == destination // below:
            break
        levels += 1
        links += [(("up", below, source // below), 1 / ports), (("down", below, destination // below), 1 / ports)]
        below *= radix
        ports = ports * radix / ratio
    return links, 2 * levels - 1


def route(topology, messages):
    """Busy time of the busiest link for one byte of the collective, and latency of the farthest message."""
    busy = defaultdict(float)
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


def likeness(pattern, group, source, destination):
    """What messages have in common that switches make one of where they meet; None if they make nothing."""
    if not isinstance(pattern, Combined):
        return None
    return min(group), None if pattern.reduced else source, None if pattern.copied else destination


def messages_of(round_, topology, groups):
    for group in groups:
        placement, ranks = arrange(topology, group)
        for source, destination, fraction in zip(*transfers(round_, placement), strict=True):
            yield ranks[source], ranks[destination], fraction, likeness(round_.pattern, group, source, destination)


def distinct(rounds):
    return list({(round_.pattern, round_.dimensions): round_ for round_ in rounds}.values())


def check_loads(algorithm, topology, groups):
    """Busiest link and farthest hop of every round, with all groups of the axis sending at the same time."""
    placement = place(topology, groups[0])
    for kind in KINDS:
        if placement.num_ranks == 1 or algorithm.supports(kind, placement) is not None:
            continue
        for round_ in distinct(schedule(kind, placement, algorithm=algorithm.name).rounds):
            busy, farthest = route(topology, messages_of(round_, topology, groups))
            load = load_of(round_, placement)
            assert load.busiest_s_per_byte == pytest.approx(busy, rel=1e-12)
            assert load.latency_s == pytest.approx(farthest, rel=1e-12)


@each_algorithm
@given(mesh=meshes())
@settings(max_examples=40, deadline=None)
def test_closed_forms_equal_brute_force(algorithm, mesh):
    topology, groups = mesh
    if place(topology, groups[0]).regular:
        check_loads(algorithm, topology, groups)
    else:  # on a tree, groups that neither fill subtrees nor lie within one
        assert any(dimension.kind == "fat_tree" for dimension in topology.dimensions)
        check_loads(algorithm, topology, groups[:1])


@each_algorithm
@pytest.mark.parametrize("kind", HAND_ROUTED)
def test_closed_forms_equal_brute_force_along_every_small_dimension(algorithm, kind):
    """Rings all round, and lines within them, whether or not their groups fill the ring."""
    for n, m in itertools.product(range(2, 13), range(2, 13)):
        for s in range(1, n // m + 1):
            tree = next(d for d in divisors(n)[::-1] if d * d <= n)
            levels = ((tree, n // tree), (2.0,)) if tree > 1 else ((n,), ())
            levels = levels if kind == "fat_tree" else ()
            reduces = algorithm.name == "in_network" and kind in ("switch", "fat_tree")
            topology = Topology("one", (Dimension(kind, n, 2.0, 3.0, *levels, in_network_reduction=reduces),))
            groups = [[offset + i * s for i in range(m)] for offset in range(s)]
            if kind == "fat_tree":  # what is beside the groups shares their bundles
                groups = [
                    [block + rank for rank in group] for block in range(0, n - m * s + 1, m * s) for group in groups
                ]
            if place(topology, groups[0]).regular:
                check_loads(algorithm, topology, groups)


@each_algorithm
@given(mesh=meshes(24), data=st.data())
@settings(max_examples=30, deadline=None)
def test_irregular_groups_are_routed_from_their_true_places(algorithm, mesh, data):
    topology, _ = mesh
    group = data.draw(st.lists(st.integers(0, topology.num_ranks - 1), min_size=1, max_size=9, unique=True))
    placement = place(topology, group)
    if not placement.regular:
        check_loads(algorithm, topology, [group])


def contributions(rounds, placement):
    """What each member's data may depend on when the rounds are done: a boolean (member, member) matrix."""
    known = np.eye(placement.num_ranks, dtype=bool)
    for round_ in rounds:
        sources, destinations, _ = transfers(round_, placement)
        assert len(sources) <= num_messages(round_, placement)
        for _ in range(round_.repeat):
            before = known.copy()
            np.logical_or.at(known, destinations, before[sources])
    return known


NEEDED = {
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


@each_algorithm
@given(mesh=meshes())
@settings(max_examples=40, deadline=None)
def test_data_reaches_everyone_who_needs_it(algorithm, mesh):
    topology, groups = mesh
    placement = place(topology, groups[0])
    for kind in KINDS:
        if placement.num_ranks > 1 and algorithm.supports(kind, placement) is None:
            rounds = schedule(kind, placement, algorithm=algorithm.name).rounds
            assert NEEDED[kind](contributions(rounds, placement)), kind


@each_algorithm
@given(mesh=meshes())
@settings(max_examples=40, deadline=None)
def test_enough_bytes_are_sent_and_none_to_oneself(algorithm, mesh):
    """All ranks together send p times what one must, and an all-gather gives each its n (p - 1) / p.

    Nobody adds up more than it receives, nor less in the mean than what adds every contribution once.
    """
    topology, groups = mesh
    placement = place(topology, groups[0])
    p = placement.num_ranks
    for kind in KINDS:
        if p == 1 or algorithm.supports(kind, placement) is not None:
            continue
        received = np.zeros(p)
        found = schedule(kind, placement, algorithm=algorithm.name)
        for round_ in found.rounds:
            sources, destinations, fractions = transfers(round_, placement)
            assert (sources != destinations).all()
            np.add.at(received, destinations, fractions * round_.repeat)
        if found.added is not None:
            assert (p - 1) / p * (1 - 1e-9) <= found.added <= received.max() * (1 + 1e-9)
        senders = {"gather": 1, "scatter": 1} | dict.fromkeys(("broadcast", "reduce", "send"), p - 1)
        assert received.sum() >= senders.get(kind, p) * BUS_FACTORS[kind](p) * (1 - 1e-9)
        if kind in ("all_gather", "all_to_all"):
            assert received.min() >= (p - 1) / p * (1 - 1e-9)
        if kind == "broadcast":
            assert received[1:].min() >= 1 - 1e-9
        if kind == "scatter":
            assert received[1:].min() >= (1 - 1e-9) / p
        if kind == "gather":
            assert received[0] >= (p - 1) / p * (1 - 1e-9)


@pytest.mark.parametrize("p", range(2, 40))
def test_each_tree_of_the_double_binary_tree_spans_all_ranks(p):
    placement = place(Topology("switch", (Dimension("switch", p, 1.0, 0.0),)), range(p))
    down = schedule("all_reduce", placement, algorithm="double_binary_tree").rounds
    down = down[len(down) // 2 :]
    assert len(down) <= p.bit_length()
    for half in (0, 1):
        reached, children = set(), defaultdict(int)
        for round_ in down:
            edges = list(zip(round_.pattern.sources, round_.pattern.destinations, strict=True))
            for parent, child in edges[half * len(edges) // 2 : (half + 1) * len(edges) // 2]:
                reached = reached or {parent}
                assert parent in reached
                assert child not in reached
                children[parent] += 1
                reached.add(child)
        assert reached == set(range(p))
        assert max(children.values()) <= 2


def test_every_kind_has_an_algorithm_for_any_group():
    placement = place(load_topology("torus-8x16"), range(6))
    for kind in KINDS[:-1]:
        assert any(algorithm.supports(kind, placement) is None for algorithm in ALGORITHMS.values())


@pytest.mark.parametrize(
    ("kind", "algorithm", "ranks", "message"),
    [
        ("all_reduce", "rings", 8, "unknown collective algorithm 'rings'; did you mean 'ring'"),
        ("all_reducee", "ring", 8, "unknown collective 'all_reducee'; did you mean 'all_reduce'"),
        ("reduce_scatter", "rabenseifner", 24, "'rabenseifner' cannot .* power of two of ranks, not 24; choose 'auto'"),
        ("all_to_all", "rabenseifner", 8, "it does all_reduce, reduce_scatter, all_gather, not all_to_all"),
        ("all_reduce", "hierarchical", 8, "extends along two dimensions or more"),
        ("all_reduce", "hierarchical", 9, "a regular grid in the topology"),
        ("send", "point_to_point", 8, "a group of two ranks, sender and receiver, not 8"),
    ],
)
def test_what_an_algorithm_cannot_do_is_said(kind, algorithm, ranks, message):
    placement = place(load_topology("torus-8x16"), range(ranks))
    with pytest.raises(ConfigError, match=message):
        schedule(kind, placement, algorithm=algorithm)


def test_bandwidths_follow_nccl_tests():
    """doc/PERFORMANCE.md: all-reduce 2 (p - 1) / p, reduce-scatter, all-gather, all-to-all (p - 1) / p, else 1."""
    assert algorithm_bandwidth(1e9, 0.5) == 2e9
    expected = {"all_reduce": 3e9, "reduce_scatter": 1.5e9, "all_to_all": 1.5e9, "broadcast": 2e9}
    for kind, value in expected.items():
        assert bus_bandwidth(kind, 1e9, time_s=0.5, num_ranks=4) == value
    with pytest.raises(ConfigError, match="unknown collective 'allreduce'; did you mean 'all_reduce'"):
        bus_bandwidth("allreduce", 1e9, time_s=0.5, num_ranks=4)
