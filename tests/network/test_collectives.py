"""One contract for all collective algorithms, and the naive oracle for the closed forms of their load.

The oracle routes every message of a round, of all groups of the axis, hop by hop over the links of the topology.
"""

import itertools
import math
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.errors import ConfigError
from scaleout.network.collectives import (
    ALGORITHMS,
    KINDS,
    algorithm_bandwidth,
    bus_bandwidth,
    schedule,
)
from scaleout.testing import check_algorithm
from scaleout.testing.algorithms import kinds_on, loads_links, reaches, sends_what_it_must

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


def check_loads(algorithm, topology, groups):
    """Busiest link and farthest hop of every round, with all groups of the axis sending at the same time."""
    for kind in kinds_on(algorithm, place(topology, groups[0])):
        loads_links(algorithm, kind, topology, groups)


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


@each_algorithm
@given(mesh=meshes())
@settings(max_examples=40, deadline=None)
def test_data_reaches_everyone_who_needs_it_and_no_byte_is_sent_in_vain(algorithm, mesh):
    topology, groups = mesh
    placement = place(topology, groups[0])
    for kind in kinds_on(algorithm, placement):
        reaches(algorithm, kind, placement)
        sends_what_it_must(algorithm, kind, placement)


@each_algorithm
def test_algorithms_keep_the_contract_that_is_offered(algorithm):
    check_algorithm(algorithm.name)


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
