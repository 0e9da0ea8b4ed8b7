"""The alpha-beta model: numbers worked by hand, the laws that every algorithm obeys, and the lower bound."""

import cProfile
import pstats

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dimension_of, kinds_of
from test_collectives import tree_levels

from scaleout.cluster.topology.kinds import KINDS as DIMENSIONS
from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta.cost import MAX_CHUNKS, collective_cost, send_cost
from scaleout.network.alpha_beta.lower_bound import lower_bound_s
from scaleout.network.collectives import ALGORITHMS, KINDS
from scaleout.network.flow.collective import collective_cost as link_cost
from scaleout.network.routes.links import links_of

ALPHA, BANDWIDTH = 700e-9, 25e9  # Table II of the fused-computation-collectives paper: 700 ns, 200 Gb/s
TREE = ("radices", "oversubscription")
RCCL = 25e-6  # what any call costs on the machines of MI210
N = 128e6  # bytes; a shard of 128 ranks is 1 MB, 40 us on a link
LINK = N / BANDWIDTH  # 5.12 ms: the whole buffer on one link

each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=lambda a: a.name)
sizes = st.floats(1, 1e11)


def whole(name):
    topology = load_topology(name)
    return place(topology, range(topology.num_ranks))


HAND = [
    # 2 * 127 rounds, each one hop and one shard.
    ("ring-128", "all_reduce", "ring", 2 * 127 * (ALPHA + LINK / 128)),
    # As many rounds, but half a shard each way.
    ("ring-128", "all_reduce", "bidirectional_ring", 2 * 127 * (ALPHA + LINK / 256)),
    # Rank i passes on 127, 126, ..., 1 shards: 127 * 128 / 2 of them in 127 rounds.
    ("ring-128", "all_to_all", "ring", 127 * ALPHA + 127 * 64 * LINK / 128),
    # Each way 63.5, 62.5, ..., 0.5 shards in 64 rounds: 64 * 32 = 128 * 128 / 8 of them, as many as direct.
    ("ring-128", "all_to_all", "bidirectional_ring", 64 * ALPHA + 128 * 16 * LINK / 128),
    # Farthest 64 hops; 128^2 / 8 messages of a shard on each link.
    ("ring-128", "all_to_all", "direct", 64 * ALPHA + 128 * 16 * LINK / 128),
    # A port sends 127 shards, one after another.
    ("switch-128", "all_to_all", "direct", ALPHA + 127 / 128 * LINK),
    ("switch-128", "all_to_all", "pairwise", 127 * ALPHA + 127 / 128 * LINK),
    ("switch-128", "all_gather", "ring", 127 * (ALPHA + LINK / 128)),
    # A port is shared by both directions of the ring: nothing gained.
    ("switch-128", "all_gather", "bidirectional_ring", 127 * (ALPHA + LINK / 128)),
    # log2(128) = 7 rounds of the whole buffer.
    ("switch-128", "all_reduce", "recursive_doubling", 7 * (ALPHA + LINK)),
    # Shards 1 + 2 + 4 + ... + 64 = 127.
    ("switch-128", "all_gather", "recursive_doubling", 7 * ALPHA + 127 / 128 * LINK),
    # Halves 1/2 + 1/4 + ... + 1/128 = 127/128, twice.
    ("switch-128", "all_reduce", "rabenseifner", 14 * ALPHA + 2 * 127 / 128 * LINK),
    ("switch-128", "all_reduce", "halving_doubling", 14 * ALPHA + 2 * 127 / 128 * LINK),
    # On the ring, bit k: 2^k hops, 2^k n / 128 from each of 2^k ranks on a link; half way round both ways; and back.
    ("ring-128", "all_reduce", "halving_doubling", 2 * (127 * ALPHA + ((4**6 - 1) / 3 + 64**2 / 2) / 128 * LINK)),
    # On the ring, bit k: 2^k hops, n / 2^(k+1) from each of 2^k ranks on a link, so n / 2; half way round both ways.
    ("ring-128", "reduce_scatter", "rabenseifner", 127 * ALPHA + (6 / 2 + 1 / 4) * LINK),
    ("switch-128", "broadcast", "binomial_tree", 7 * (ALPHA + LINK)),
    ("switch-128", "broadcast", "direct", ALPHA + 127 * LINK),
    # Scatter 127 shards out of one port, then 127 rounds of the ring.
    ("switch-128", "gather", "direct", ALPHA + 127 / 128 * LINK),
    ("switch-128", "scatter", "direct", ALPHA + 127 / 128 * LINK),
    ("switch-128", "broadcast", "scatter_all_gather", 128 * ALPHA + 2 * 127 / 128 * LINK),
    # Per link of the 16-rings: 16^2 / 8 pairs, 8 messages of n / 128 each, so 2 n; farthest 4 + 8 hops.
    ("torus-8x16", "all_to_all", "direct", 12 * ALPHA + 2 * LINK),
    # 31 hops along each dimension and back; all a rank must send, over 4 links.
    ("torus-32x32", "all_reduce", "multiported_bucket", 4 * 31 * ALPHA + 2 * 1023 / 1024 * LINK / 4),
    # Halves of a part each way: 7 hops and 15. Parts of 15 and 14 in 29, as 7 / 8 to 15 / 16.
    ("torus-8x16", "reduce_scatter", "multiported_bucket", 22 * ALPHA + (14 + 15 / 8) / 29 * 15 / 16 * LINK / 2),
    # A ring over both dimensions: 7 of 8 messages stay in the row, yet all cross one of its links; the wrap is 2 hops.
    ("torus-8x16", "all_gather", "ring", 127 * (2 * ALPHA + LINK / 128)),
    # Simple: 5 + 13.1 us to start, three rounds of 0.6 + 2.6 us, 3 of 4 shards over the link, the own one at 680 GB/s.
    ("h200-node-4", "all_gather", "ring", 18.1e-6 + 3 * 3.2e-6 + 0.75 * N / 376e9 + 0.25 * N / 680e9),
    ("h200-node-4", "all_to_all", "direct", 15.5e-6 + 0.6e-6 + 0.75 * N / (0.94 * 376e9) + 0.25 * N / 800e9),
    # Each pair has its own link: a quarter of the buffer on it, twice.
    ("mi210-node", "all_reduce", "direct", RCCL + 2 * (ALPHA + N / 4 / 40e9)),
    ("mi210-pair", "all_to_all", "pairwise", RCCL + ALPHA + N / 2 / 20e9),
]


@pytest.mark.parametrize(("name", "kind", "algorithm", "expected"), HAND)
def test_numbers_worked_by_hand(name, kind, algorithm, expected):
    cost = collective_cost(kind, N, whole(name), algorithm)
    assert cost.time_s == pytest.approx(expected, rel=1e-12)
    assert cost.algorithm == algorithm


def test_hierarchical_on_a_torus_worked_by_hand():
    """8x16: rows first, with bidirectional rings: 7 rounds of n / 16 each way, then 15 of n / 8 / 32."""
    small = 1e3
    rows, columns = 7 * small / 16 / BANDWIDTH, 15 * small / 8 / 32 / BANDWIDTH
    cost = collective_cost("all_reduce", small, whole("torus-8x16"), "hierarchical")
    assert cost.num_chunks == 1
    assert cost.time_s == pytest.approx(2 * (7 + 15) * ALPHA + 2 * (rows + columns), rel=1e-12)
    # In chunks the columns hide behind the rows, which every chunk passes twice: 2 * 7 / 16 n = 0.875 n.
    large = collective_cost("all_reduce", 1e12, whole("torus-8x16"), "hierarchical")
    assert large.num_chunks > 100
    assert large.serialization_s == pytest.approx(0.875 * 1e12 / BANDWIDTH, rel=1e-12)
    assert large.latency_s < 0.01 * large.serialization_s


def test_double_binary_tree_on_a_switch_worked_by_hand():
    """4 ranks, each once an inner node and once a leaf.

    Tree 1: 0 - 2, 2 - 1 and 2 - 3; tree 2 mirrors it: 3 - 1, 1 - 2 and 1 - 0. Reduce: two messages of n / 2 into
    ports 2 and 1, then one into 0 and 3; broadcast the same backwards. In all n + n / 2 + n / 2 + n = 3 n on the
    busiest ports of the four rounds. Port 2 takes n and sends n / 2 up, then takes n / 2 and sends n down, and as a
    leaf of the other tree sends and takes n / 2: 2 n each way, in 3 rounds of its own each way.
    """
    group = place(Topology("switch", (Dimension("switch", 4, BANDWIDTH, ALPHA),)), range(4))
    tiny = collective_cost("all_reduce", 1.0, group, "double_binary_tree")
    assert tiny.num_chunks == 1
    assert tiny.time_s == pytest.approx(4 * ALPHA + 3 / BANDWIDTH, rel=1e-12)
    large = collective_cost("all_reduce", N, group, "double_binary_tree")
    assert large.serialization_s == pytest.approx(2 * LINK, rel=1e-12)
    # 3 alpha more for each chunk, and the fill of (3 - 2) n / c: c = sqrt(LINK / 3 alpha) = 49.4.
    assert large.num_chunks == 49
    assert large.latency_s == pytest.approx(4 * ALPHA + 48 * 3 * ALPHA + LINK / 49, rel=1e-12)


def test_trees_over_nodes_leave_a_node_by_all_of_its_ports():
    """4 nodes of 4, within them ten times as fast: 3 rounds of a ring, the 4 rounds above on a quarter, 3 of a ring.

    A ring's round is a quarter of n, so 6 n / 4 within a node; between nodes 3 n / 4 in all, on a port 2 n / 4.
    """
    nodes = (Dimension("switch", 4, 10 * BANDWIDTH, ALPHA), Dimension("switch", 4, BANDWIDTH, ALPHA))
    group = place(Topology("nodes", nodes), range(16))
    tiny = collective_cost("all_reduce", 1.0, group, "hierarchical_tree")
    assert tiny.time_s == pytest.approx(10 * ALPHA + (1.5 / 10 + 0.75) / BANDWIDTH, rel=1e-12)
    large = collective_cost("all_reduce", 1e12, group, "hierarchical_tree")
    assert large.serialization_s == pytest.approx(0.5 * 1e12 / BANDWIDTH, rel=1e-12)
    flat = collective_cost("all_reduce", 1e12, group, "double_binary_tree")
    assert flat.serialization_s > 1.9 * large.serialization_s


def test_groups_that_interleave_share_the_links_of_a_ring():
    ring = load_topology("ring-128")
    # 32 ranks, 4 apart: 4 hops a round, and 4 groups on each link.
    cost = collective_cost("all_gather", N, place(ring, range(0, 128, 4)), "ring")
    assert cost.time_s == pytest.approx(31 * (4 * ALPHA + 4 * LINK / 32), rel=1e-12)
    # 4 neighbours form a line: 0, 2, 3, 1 is the ring, at most 2 hops, and both ways of a link are in use.
    cost = collective_cost("all_gather", N, place(ring, range(4)), "ring")
    assert cost.time_s == pytest.approx(3 * (2 * ALPHA + LINK / 4), rel=1e-12)


def test_rings_leave_a_node_through_all_its_ports():
    """Per round a GPU sends n / 128 on NVLink, and every eighth message, on another port each, to the next node."""
    cost = collective_cost("reduce_scatter", N, whole("dgx-h200-16"), "ring")
    assert cost.protocol == "LL128"
    round_ = max(N / 128 / (0.86 * 376e9), N / 128 / 8 / (0.9375 * 50e9))
    assert cost.serialization_s == pytest.approx(127 * round_ + N / 128 / 570e9, rel=1e-12)
    # Every eighth round of a shard is to the next node: 7 of 8 add 0.8 us to the links' latency, and one 1.3 us.
    steps_s = 127 * (0.6e-6 + 2.7e-6 + (7 * 0.8e-6 + 1.3e-6) / 8)
    assert cost.latency_s == pytest.approx(5e-6 + 11.1e-6 + steps_s, rel=1e-12)


def test_who_lacks_ranks_of_a_node_reaches_its_port_through_the_host():
    # 2 nodes of 8 on one port of 25 GB/s; through the host 2 GB/s a rank instead of 25 / 8.
    topology = load_topology("a100-cluster-a-2")
    ports, host = 25e9 / 8, 2e9
    whole = collective_cost("all_gather", N, place(topology, range(16)), "ring")
    assert whole.serialization_s == pytest.approx(15 / 16 * N / 8 / ports)
    rail = collective_cost("all_gather", N, place(topology, (3, 11)), "ring")
    assert rail.serialization_s == pytest.approx(N / 2 / host)
    half = collective_cost("all_gather", N, place(topology, (0, 4, 8, 12)), "ring")  # two of a node
    assert half.serialization_s == pytest.approx(3 / 4 * N / 2 / host)
    within = collective_cost("all_gather", N, place(topology, range(8)), "ring")
    assert within.serialization_s == pytest.approx(7 / 8 * N / 300e9)
    levels = collective_cost("all_reduce", N, place(topology, range(16)), "hierarchical")  # a rail a rank; pipelined
    assert levels.serialization_s == pytest.approx(N / 8 / host)
    message = send_cost(N, topology, source=3, destination=11)
    assert message.serialization_s == pytest.approx(N / host)
    linked = link_cost("all_gather", N, links_of(topology), (3, 11), "ring")
    assert linked.time_s == pytest.approx(rail.time_s)


def test_messages_cross_the_dimensions_one_after_another():
    torus = load_topology("torus-8x16")
    cost = send_cost(N, torus, source=0, destination=9)  # one hop along each
    assert cost.time_s == pytest.approx(2 * ALPHA + LINK, rel=1e-12)
    assert send_cost(N, torus, source=9, destination=0) == cost
    assert send_cost(N, torus, source=5, destination=5).time_s == 0
    # 32 hops on a ring, and nobody else on its links. The way round is as short.
    ring = load_topology("ring-128")
    stage = send_cost(N, ring, source=0, destination=32)
    assert stage.time_s == pytest.approx(32 * ALPHA + LINK, rel=1e-12)
    assert send_cost(N, ring, source=96, destination=0) == stage
    dgx = load_topology("dgx-h200-16")
    cost = send_cost(N, dgx, source=0, destination=9)  # over NVLink to the GPU on the right port, then out
    # Simple starts in 5 + 10.5 us, and its dearest hop, the network, adds 11.3 us to those of the links.
    assert cost.time_s == pytest.approx(15.5e-6 + 0.6e-6 + 2.7e-6 + 11.3e-6 + N / (0.94 * 50e9), rel=1e-12)


@st.composite
def placements(draw):
    """Any topology of up to 3 dimensions, and a group in it: an axis of a mesh, or any ranks at all."""
    dimensions, sets = [], []
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
        speed, latency = draw(st.floats(1e8, 1e12)), draw(st.floats(0, 1e-4))
        kind = draw(kinds_of(size, even=True))
        levels = dict(zip(TREE, draw(tree_levels(size)), strict=True)) if kind == "fat_tree" else {}
        reduces = "in_network_reduction" in DIMENSIONS[kind].takes and draw(st.booleans())
        fields = levels | {"bytes_per_s": speed, "latency_s": latency, "in_network_reduction": reduces}
        dimensions.append(dimension_of(kind, size, **fields))
        m = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
        s = draw(st.sampled_from([d for d in range(1, size // m + 1) if size // m % d == 0]))
        sets.append([i * s for i in range(m)])
    topology = Topology("any", tuple(dimensions), startup_s=draw(st.sampled_from([0.0, 1e-5])))
    if draw(st.booleans()):
        ranks, weight = [0], 1
        for along, size in zip(sets, topology.shape, strict=True):
            ranks = [rank + weight * place for place in along for rank in ranks]
            weight *= size
    else:
        every = st.integers(0, topology.num_ranks - 1)
        ranks = draw(st.lists(every, min_size=1, max_size=12, unique=True))
    return place(topology, ranks)


@each_algorithm
@given(group=placements(), size=sizes)
@settings(max_examples=60, deadline=None)
def test_no_algorithm_is_faster_than_the_wire(algorithm, group, size):
    for kind in algorithm.schedules:
        if algorithm.supports(kind, group) is None:
            cost = collective_cost(kind, size, group, algorithm.name)
            assert cost.serialization_s >= lower_bound_s(kind, size, group) * (1 - 1e-9)
            assert cost.latency_s >= 0


@each_algorithm
@given(group=placements(), size=sizes, more=st.floats(1, 10))
@settings(max_examples=40, deadline=None)
def test_more_bytes_take_no_less_time(algorithm, group, size, more):
    for kind in algorithm.schedules:
        if algorithm.supports(kind, group) is None:
            less = collective_cost(kind, size, group, algorithm.name).time_s
            assert collective_cost(kind, size * more, group, algorithm.name).time_s >= less * (1 - 1e-12)


BOTH_HALVES = [a for a in ALGORITHMS.values() if {"all_reduce", "reduce_scatter", "all_gather"} <= set(a.schedules)]


@pytest.mark.parametrize("algorithm", BOTH_HALVES, ids=lambda a: a.name)
@given(group=placements(), size=sizes)
@settings(max_examples=40, deadline=None)
def test_all_reduce_is_reduce_scatter_and_all_gather(algorithm, group, size):
    if group.num_ranks > 1 and all(
        algorithm.supports(kind, group) is None for kind in ("all_reduce", "reduce_scatter")
    ):
        whole_s, *halves = (
            collective_cost(kind, size, group, algorithm.name).time_s - group.startup_s
            for kind in ("all_reduce", "reduce_scatter", "all_gather")
        )
        if any(extent.dimension.in_network_reduction for extent in group.extents):
            assert whole_s <= sum(halves) * (1 + 1e-9)  # a port that one half fills has room for the other
        else:
            assert whole_s == pytest.approx(sum(halves), rel=1e-9)


@given(group=placements(), size=sizes, kind=st.sampled_from(KINDS[:-1]))
@settings(max_examples=100, deadline=None)
def test_auto_takes_the_fastest(group, size, kind):
    if group.num_ranks == 1:
        return
    best = collective_cost(kind, size, group)
    times = [
        collective_cost(kind, size, group, algorithm.name).time_s
        for algorithm in ALGORITHMS.values()
        if algorithm.supports(kind, group) is None
    ]
    assert best.time_s == min(times)
    assert collective_cost(kind, size, group, best.algorithm) == best
    assert 1 <= best.num_chunks <= MAX_CHUNKS


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_no_bytes_and_a_group_of_one_cost_nothing(kind):
    torus = load_topology("torus-8x16")
    assert collective_cost(kind, 0, whole("torus-8x16")).time_s == 0
    assert collective_cost(kind, N, place(torus, [3])).time_s == 0
    assert lower_bound_s(kind, N, place(torus, [3])) == 0


@pytest.mark.parametrize("name", ["torus-8x16", "ring-128", "ring-1024", "torus-4x4x8"])
def test_the_direct_all_to_all_is_at_its_bisection_bound(name):
    """Every message takes a shortest way, and the links are loaded evenly: no algorithm can do better."""
    group = whole(name)
    cost = collective_cost("all_to_all", N, group, "direct")
    assert cost.serialization_s == pytest.approx(lower_bound_s("all_to_all", N, group), rel=1e-12)


@pytest.mark.parametrize("name", ["torus-8x16", "torus-4x4x8", "torus-32x32"])
def test_the_dimension_wise_all_to_all_comes_near_its_bisection_bound(name):
    """Dimensions work at the same time on different chunks; the longest is at its bisection, but for the first one."""
    group = whole(name)
    large = collective_cost("all_to_all", 1e12, group, "dimension_wise")
    assert large.serialization_s == pytest.approx(lower_bound_s("all_to_all", 1e12, group), rel=1e-12)
    assert large.latency_s < 0.01 * large.serialization_s


@pytest.mark.parametrize(("name", "most"), [("torus-32x32", 1.0), ("torus-8x16", 1.035), ("torus-4x4x8", 1.084)])
def test_the_all_reduce_of_a_torus_is_near_its_bound(name, most):
    group = whole(name)
    cost = collective_cost("all_reduce", N, group)
    assert cost.algorithm == "multiported_bucket"
    assert 1 - 1e-12 <= cost.serialization_s / lower_bound_s("all_reduce", N, group) <= most + 1e-9


def test_the_answer_of_a_congestion_unaware_model_is_below_the_wire():
    """ASTRA-sim takes 1.46 us for an all-to-all of 1 MiB on a switch of 1024 ranks; the port needs 41.9 us."""
    group = whole("switch-1024")
    assert lower_bound_s("all_to_all", 2**20, group) == pytest.approx(1023 / 1024 * 2**20 / BANDWIDTH)
    assert collective_cost("all_to_all", 2**20, group).time_s > 28 * 1.46e-6


@pytest.mark.parametrize(
    ("kind", "algorithm", "message"),
    [
        ("all_reduce", "tree", "unknown collective algorithm 'tree'"),
        ("allreduce", "auto", "unknown collective 'allreduce'; did you mean 'all_reduce'"),
        ("allreduce", "ring", "unknown collective 'allreduce'; did you mean 'all_reduce'"),
        ("all_to_all", "rabenseifner", "cannot do all_to_all on this group"),
        ("send", "auto", "no algorithm does send on a group of 128 ranks: point_to_point needs a group of two"),
    ],
)
def test_what_cannot_be_done_is_refused(kind, algorithm, message):
    with pytest.raises(ConfigError, match=message):
        collective_cost(kind, N, whole("torus-8x16"), algorithm)


@pytest.mark.parametrize("size", [-1, float("nan"), float("inf")])
def test_sizes_that_are_none_are_refused(size):
    with pytest.raises(ConfigError, match="give zero, or from"):
        collective_cost("all_reduce", size, whole("torus-8x16"))
    with pytest.raises(ConfigError, match="give zero, or from"):
        lower_bound_s("all_reduce", size, whole("torus-8x16"))


@pytest.mark.parametrize("name", ["torus-8x16", "dgx-h200-16", "ring-1024"])
def test_auto_is_quick_once_warm(name):
    """A new size of a known group is a handful of sums; calls are counted, as seconds depend on the machine."""
    group = whole(name)
    for kind in KINDS[:-1]:
        collective_cost(kind, 1.0, group)
        with cProfile.Profile() as profile:
            for size in range(1000, 1100):
                collective_cost(kind, size, group)
        assert pstats.Stats(profile).total_calls / 100 < 2000, (kind, pstats.Stats(profile).total_calls / 100)
