"""Topologies, their files, and where groups lie in them."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.cluster.topology.placement import Extent, arrange, place, siblings
from scaleout.cluster.topology.topology import Dimension, Topology, check_ranks, load_topology
from scaleout.config import library
from scaleout.errors import ConfigError

EXPECTED_RANKS = {
    "torus-8x16": 128,
    "ring-128": 128,
    "switch-128": 128,
    "torus-4x4x8": 128,
    "dgx-h200-16": 128,
    "dgx-h200-16-fat-tree": 128,
    "dgx-h200-16-ring": 128,
    "dgx-h200-16-torus": 128,
    "mi210-node": 4,
    "mi210-pair": 2,
    "h200-node-4": 4,
    "torus-32x32": 1024,
    "ring-1024": 1024,
    "switch-1024": 1024,
    "dgx-h200-128": 1024,
    "fat-tree-131072": 131072,
    "torus-64x64x32": 131072,
}


def ring(size: int) -> Dimension:
    return Dimension("ring", size, 25e9, 700e-9)


def switch(size: int) -> Dimension:
    return Dimension("switch", size, 50e9, 2e-6)


def test_every_shipped_topology_loads_and_says_where_its_numbers_are_from():
    assert set(library.names("topology")) >= set(EXPECTED_RANKS)
    for name in library.names("topology"):
        topology = load_topology(name)
        assert topology.num_ranks == EXPECTED_RANKS.get(name, topology.num_ranks)
        assert topology.source.count("bandwidth: ") == len(topology.dimensions)


def test_the_paper_torus_has_its_numbers():
    """Table II of the fused-computation-collectives paper: 2D torus, 200 Gb/s, 700 ns."""
    for dimension in load_topology("torus-8x16").dimensions:
        assert dimension.kind == "ring"
        assert dimension.bytes_per_s == 25e9
        assert dimension.latency_s == pytest.approx(700e-9)


def test_dimension_zero_is_innermost():
    torus = Topology("torus", (ring(8), ring(16)))
    assert torus.coordinates([0, 1, 8, 127]).tolist() == [[0, 0], [1, 0], [0, 1], [7, 15]]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_coordinates_name_each_rank_once(sizes):
    topology = Topology("any", tuple(switch(size) for size in sizes))
    coordinates = topology.coordinates(np.arange(topology.num_ranks))
    weights = np.cumprod([1, *sizes[:-1]])
    assert (coordinates @ weights == np.arange(topology.num_ranks)).all()


@pytest.mark.parametrize(
    ("kind", "radices", "ratios", "message"),
    [
        ("ring", (2, 4), (), "a ring has no levels; leave out 'radices' and 'oversubscription'"),
        ("fat_tree", (), (), "a fat tree of 8 ranks has radices []; give one a level, 2 or more, leaves first"),
        (
            "fat_tree",
            (2, 3),
            (1.0,),
            "has radices [2, 3]; give one a level, 2 or more, leaves first, whose product is 8",
        ),
        ("fat_tree", (8, 1), (1.0,), "has radices [8, 1]"),
        ("fat_tree", (2, 4), (), "a fat tree of 2 levels has oversubscription []; give a number of 1 or more for each"),
        ("fat_tree", (2, 4), (0.5,), "has oversubscription [0.5]"),
    ],
)
def test_levels_that_make_no_tree_are_refused(kind, radices, ratios, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        Dimension(kind, 8, 1.0, 0.0, radices, ratios)


def test_the_bundles_of_a_fat_tree():
    """Leaves of 4 at 2 : 1, pods of 2 leaves at 3 : 1: 4 ports share 2 ports' worth up, 8 share 8 / 6."""
    tree = Dimension("fat_tree", 24, 1.0, 0.0, (4, 2, 3), (2.0, 3.0))
    assert tree.levels == [(1, 1.0), (4, 2.0), (8, 8 / 6)]
    (large,) = load_topology("fat-tree-131072").dimensions[1:]
    assert large.levels == [(1, 1), (32, 32), (1024, 1024)]


def tree(*radices):
    return Topology("tree", (Dimension("fat_tree", 16, 1.0, 0.0, radices, (1.0,) * (len(radices) - 1)),))


@pytest.mark.parametrize(
    ("ranks", "regular"),
    [
        (range(4), True),  # a leaf
        (range(4, 12), False),  # not at a multiple of 8
        (range(8, 16), True),  # two leaves
        ([1, 5, 9, 13], True),  # one in each leaf
        ([0, 2, 4, 6], True),  # two in each of two leaves
        ([0, 3], False),  # pairs three apart cross leaves or not
        ([0, 1, 2], False),  # threes do not fill leaves of four
    ],
)
def test_groups_on_a_tree_fill_subtrees_or_lie_within_one(ranks, regular):
    assert place(tree(4, 4), ranks).regular == regular
    assert len(siblings(tree(4, 4), ranks)) == (16 // len(ranks) if regular else 1)


def test_groups_on_a_mesh_are_lines():
    mesh = Topology("mesh", (Dimension("mesh", 8, 1.0, 0.0),))
    assert [(extent.size, extent.stride) for extent in place(mesh, range(8)).extents] == [(8, 1)]
    assert not place(mesh, [0, 7]).regular
    assert siblings(mesh, [5, 7]) == ((5, 7), (0, 2), (1, 3), (4, 6))


def write(folder, text):
    path = folder / "mine.yaml"
    path.write_text(text)
    return str(path)


FILE = """
source: made up
dimensions:
  - kind: {kind}
    size: {size}
    {bandwidth}
    bandwidth_source: made up
    latency: {latency}
    latency_source: made up
"""
GOOD = {"kind": "fully_connected", "size": 4, "bandwidth": "bandwidth: 80 GB/s", "latency": "700 ns"}


def test_bandwidth_may_be_given_for_the_whole_rank(tmp_path):
    text = FILE.format(**(GOOD | {"bandwidth": "bandwidth_per_rank: 240 GB/s"}))
    assert load_topology(write(tmp_path, text)).dimensions[0].bytes_per_s == 80e9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "rings"}, "dimensions.0: unknown kind of dimension 'rings'; did you mean 'ring'?"),
        ({"size": 0}, "dimensions.0.size: must be greater than 0, not 0"),
        ({"bandwidth": "bandwidth: 0 GB/s"}, "give a bandwidth above zero"),
        ({"bandwidth": "bandwith: 80 GB/s"}, "unknown key 'dimensions.0.bandwith'; did you mean 'bandwidth'?"),
        ({"bandwidth": "{}"}, "not valid YAML"),
        ({"bandwidth": "# none"}, "give either 'bandwidth' (of a link or port) or 'bandwidth_per_rank'"),
        ({"latency": "700 parsecs"}, "unknown unit 'parsecs'"),
        ({"latency": "-1 ns"}, "must be finite and not negative"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, change, message):
    path = write(tmp_path, FILE.format(**(GOOD | change)))
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_topology(path)
    assert "mine.yaml" in str(caught.value)


@pytest.mark.parametrize("kind", ["switch", "graph"])
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("through_host: 0 GB/s, through_host_source: x", "the host carries 0.0 B/s; give a bandwidth above zero"),
        ("through_host: -2 GB/s, through_host_source: x", "must be finite and not negative"),
        ("through_host: fast, through_host_source: x", "'fast' is not a bandwidth"),
    ],
)
def test_a_way_through_the_host_needs_a_rate(tmp_path, kind, more, message):
    links = "links: [{between: [0, 1]}], links_source: x, " if kind == "graph" else ""
    sourced = "bandwidth: 1 GB/s, bandwidth_source: x, latency: 1 us, latency_source: x"
    text = f"source: x\ndimensions:\n  - {{kind: {kind}, size: 2, {sourced}, {links}{more}}}\n"
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_topology(write(tmp_path, text))


def test_a_misspelt_name_gets_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'torus-8x16'"):
        load_topology("torus-8x61")


def test_a_topology_without_dimensions_is_refused():
    with pytest.raises(ConfigError, match="has no dimensions"):
        Topology("empty", ())


def test_a_topology_of_more_dimensions_than_an_array_has_is_refused():
    line = Dimension("ring", 1, 1e9, 0.0)
    assert Topology("wide", (line,) * 32).coordinates([0]).shape == (1, 32)
    with pytest.raises(ConfigError, match="has 1,002 dimensions; give at most 32"):
        Topology("wider", (line,) * 1002)


@pytest.mark.parametrize("num_ranks", [63, 65, 128])
def test_ranks_that_differ_are_refused_with_both_numbers(num_ranks):
    with pytest.raises(ConfigError, match=f"the job has {num_ranks} ranks and topology 'ring-64' has 64; take"):
        check_ranks(Topology("ring-64", (ring(64),)), num_ranks)
    check_ranks(Topology("ring-64", (ring(64),)), 64)


TORUS = Topology("torus", (ring(8), ring(16)))


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (range(128), [(8, 1), (16, 1)]),
        (range(8), [(8, 1)]),
        (range(4, 8), [(4, 1)]),
        (range(16, 32), [(8, 1), (2, 1)]),
        (range(0, 128, 4), [(2, 4), (16, 1)]),  # stride 4 within a row of 8: two a row, in all 16 rows
        ([3, 11], [(2, 1)]),
        ([5, 5 + 64], [(2, 8)]),
        ([0, 1, 7], [(3, 1)]),  # neighbours across the seam of the ring
        (range(3), [(3, 1)]),  # 3 does not divide 8, but no message leaves the line
        ([77], []),
    ],
)
def test_a_group_of_a_mesh_axis_is_a_grid(ranks, expected):
    placement = place(TORUS, ranks)
    assert placement.regular
    assert [(extent.size, extent.stride) for extent in placement.extents] == expected
    assert placement.num_ranks == len(ranks)


@pytest.mark.parametrize("ranks", [range(6), [0, 1, 9], [0, 1, 3], range(5)])
def test_other_groups_are_irregular(ranks):
    placement = place(TORUS, ranks)
    assert not placement.regular
    assert placement.num_ranks == len(ranks)


def test_position_on_a_switch_does_not_matter():
    dgx = Topology("dgx", (switch(8), switch(16)))
    assert place(dgx, [0, 3, 4]) == place(dgx, [9, 10, 15])
    assert place(dgx, [0, 3]).extents == (Extent(switch(8), 2),)


def test_all_groups_of_an_axis_have_the_same_placement():
    mesh = np.arange(128).reshape(2, 16, 4)  # pp, dp, tp
    for axis in range(3):
        groups = np.moveaxis(mesh, axis, -1).reshape(-1, mesh.shape[axis])
        placements = {place(TORUS, group) for group in groups}
        assert len(placements) == 1
        assert hash(placements.pop()) is not None


def test_arrange_gives_the_ranks_in_grid_order():
    assert arrange(TORUS, [0, 1, 7])[1] == (7, 0, 1)
    assert arrange(TORUS, [16, 9, 17, 8])[1] == (8, 9, 16, 17)
    assert arrange(TORUS, [9, 3, 0])[1] == (0, 3, 9)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([0, 4], [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ([7, 0], [(7, 0), (1, 2), (3, 4), (5, 6)]),
        ([1, 2, 3], [(1, 2, 3), (4, 5, 6)]),  # two ranks are left over
        ([2], [(2,), (3,), (4,), (5,), (6,), (7,), (0,), (1,)]),
        ([0, 1, 3], [(0, 1, 3)]),  # no grid: no siblings
    ],
)
def test_siblings_fill_a_ring(ranks, expected):
    assert siblings(Topology("ring", (ring(8),)), ranks) == tuple(expected)


def test_siblings_fill_a_switch_in_any_order_and_a_product_of_dimensions():
    assert siblings(Topology("switch", (switch(6),)), [4, 1]) == ((1, 4), (0, 2), (3, 5))
    assert siblings(Topology("both", (switch(4), ring(4))), [0, 1, 8, 9]) == (
        (0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15),
    )  # fmt: skip


@given(
    st.lists(st.tuples(st.sampled_from(["ring", "switch"]), st.sampled_from([1, 2, 4, 6])), min_size=1, max_size=3),
    st.data(),
)
def test_siblings_are_disjoint_and_lie_alike(dimensions, data):
    topology = Topology("any", tuple(Dimension(kind, size, 1.0, 0.0) for kind, size in dimensions))
    divisors = [[m for m in (1, 2, 3, 4, 6) if size % m == 0] for _, size in dimensions]
    shape = [data.draw(st.sampled_from(sizes)) for sizes in divisors]
    coordinates = np.stack(np.unravel_index(np.arange(np.prod(shape)), shape, order="F"))
    group = np.ravel_multi_index(tuple(coordinates), topology.shape, order="F")
    found = siblings(topology, group)
    assert set(found[0]) == set(group.tolist())
    assert len({place(topology, members) for members in found}) == 1
    assert sorted(rank for members in found for rank in members) == list(range(topology.num_ranks))


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([], "a process group has no ranks"),
        ([1, 1], "names rank 1 twice"),
        ([0, 128], "rank 128 is not in topology 'torus', which has 128 ranks"),
        ([-1, 0], "rank -1 is not in topology"),
    ],
)
def test_groups_that_cannot_be_placed_are_refused(ranks, message):
    with pytest.raises(ConfigError, match=message):
        place(TORUS, ranks)


def test_values_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TORUS.dimensions[0].size = 3
