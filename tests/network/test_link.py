"""The link model: routes against brute force, fair shares from the textbook, and collectives worked by hand.

Where the members of all groups are alike the link model must say what alpha-beta says; where it differs by
construction, a bound holds.
"""

import itertools
import json
import math
import subprocess
import sys
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_collectives import meshes

from scaleout.cli import main
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.dimension import graph_dimension
from scaleout.cluster.topology.fabric import Fabric, FabricLink
from scaleout.cluster.topology.placement import arrange, place, siblings
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta import cost as alpha_beta
from scaleout.network.alpha_beta.lower_bound import lower_bound_s
from scaleout.network.collectives import ALGORITHMS, ROOTED, schedule, transfers
from scaleout.network.flow import event_driven
from scaleout.network.flow.batched import BatchedFlows
from scaleout.network.flow.collective import collective_cost
from scaleout.network.flow.demand import demand_of, demand_of_message, messages_of
from scaleout.network.flow.flows import Demand, Flows
from scaleout.network.flow.isolated import IsolatedTransfers
from scaleout.network.flow.max_min import level_of_all, max_min
from scaleout.network.flow.shared import BY_BATCH, BY_MESSAGE, SharedTraffic, Transfer
from scaleout.network.flow.traffic import Traffic
from scaleout.network.routes import crossing
from scaleout.network.routes.links import links_of
from scaleout.network.routes.symmetry import Symmetry, symmetry
from scaleout.program.graph import GraphBuilder
from scaleout.program.program import GroupFamily, Program
from scaleout.simulation import engine
from scaleout.simulation.columns import NOTHING_SHARED, Tasks
from scaleout.simulation.contention import contention_of
from scaleout.simulation.run import simulate
from scaleout.testing.algorithms import links_of as oracle_links

ALPHA, BANDWIDTH = 700e-9, 25e9
N = 128e6  # bytes; 5.12 ms on a link
LINK = N / BANDWIDTH
RING4 = Topology("ring-4", (Dimension("ring", 4, BANDWIDTH, ALPHA),))
SWITCH4 = Topology("switch-4", (Dimension("switch", 4, BANDWIDTH, ALPHA),))

each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=lambda a: a.name)


def cost_of(name, kind, algorithm, group=None, size_bytes=N, *, injection_bytes_per_s=None, num_chunks=None):
    topology = load_topology(name) if isinstance(name, str) else name
    ranks = range(topology.num_ranks) if group is None else group
    links = links_of(topology, injection_bytes_per_s=injection_bytes_per_s)
    return collective_cost(kind, size_bytes, links, ranks, algorithm, num_chunks=num_chunks)


# ---- Links and routes


def test_links_have_names():
    topology = Topology(
        "all",
        (
            Dimension("ring", 4, 1.0, 0.0),
            Dimension("ring", 2, 1.0, 0.0),
            Dimension("switch", 2, 1.0, 0.0),
            Dimension("fully_connected", 3, 1.0, 0.0),
        ),
    )
    links = links_of(topology, injection_bytes_per_s=1.0)
    names = [links.name(port * 48 + 5) for port in range(len(links.ports))]
    assert names == [
        "5-6",
        "5-4",
        "5-1",
        "2:5-switch",
        "2:switch-5",
        "5-21",
        "5-37",
        "injection of rank 5",
    ]
    assert len(links) == 48 * 8


@given(meshes(), st.data())
@settings(max_examples=60)
def test_ways_that_are_kept_are_those_worked_out_one_by_one(mesh, data):
    topology, _ = mesh
    rank = st.integers(0, topology.num_ranks - 1)
    pairs = np.array(data.draw(st.lists(st.tuples(rank, rank), min_size=1, max_size=40))).T
    kept = links_of(topology).routes(*pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crossing, "MOST_KEPT", 0)
        crossing.route_table.cache_clear()
        worked_out = links_of(topology).routes(*pairs)
    crossing.route_table.cache_clear()
    assert kept.latency_s.tolist() == worked_out.latency_s.tolist()
    one, other = (sorted(zip(*map(np.ndarray.tolist, found[:3]), strict=True)) for found in (kept, worked_out))
    assert one == other


def test_half_way_round_a_ring_half_goes_each_way():
    routes = links_of(RING4).routes(np.array([0, 1, 3]), np.array([2, 0, 3]))
    found = sorted(zip(*(column.tolist() for column in routes[:3]), strict=True))
    # 0 -> 1 -> 2 and 0 -> 3 -> 2; 1 -> 0; nothing
    assert found == [(0, 0, 0.5), (0, 1, 0.5), (0, 4, 0.5), (0, 7, 0.5), (1, 5, 1.0)]
    assert routes.latency_s.tolist() == [2 * ALPHA, ALPHA, 0.0]


@given(meshes(), st.data())
@settings(max_examples=80)
def test_routes_equal_brute_force(mesh, data):
    """Each message's links, one by one, against the hop-by-hop oracle of the collectives."""
    topology, _ = mesh
    rank = st.integers(0, topology.num_ranks - 1)
    pairs = data.draw(st.lists(st.tuples(rank, rank), min_size=1, max_size=20))
    links = links_of(topology)
    routes = links.routes(*np.array(pairs).T)
    for index, (source, destination) in enumerate(pairs):
        part = routes.messages == index
        found = sorted(zip(map(links.name, routes.links[part].tolist()), routes.shares[part].tolist(), strict=True))
        expected, latency = [], 0.0
        at, to = (list(point) for point in topology.coordinates([source, destination]).tolist())
        for d, dimension in enumerate(topology.dimensions):
            if at[d] != to[d]:
                taken, hops = oracle_links(dimension, at[d], to[d])
                latency += hops * dimension.latency_s
                whole = dimension.kind == "fat_tree"  # there the share is of the bundle's bandwidth
                expected += [(oracle_name(topology, at, d, link), 1.0 if whole else share) for link, share in taken]
                at[d] = to[d]
        assert found == sorted(expected)
        assert routes.latency_s[index] == pytest.approx(latency, rel=1e-12)


def oracle_name(topology, at, d, link):
    dimension = topology.dimensions[d]

    def rank(place):
        return int(np.ravel_multi_index((*at[:d], place % dimension.size, *at[d + 1 :]), topology.shape, order="F"))

    several = sum(size > 1 for size in topology.shape) > 1
    if dimension.kind == "switch":
        names = [str(rank(link[1])), "switch"][:: 1 if link[0] == "out" else -1]
    elif dimension.kind == "fat_tree":
        way, below, number = link
        spans = np.cumprod([1, *dimension.radices]).tolist()
        level = spans.index(below)
        names = [str(rank(number)) if level == 0 else f"switch-{level}-{number}"]
        names = [*names, f"switch-{level + 1}-{number * below // spans[level + 1]}"][:: 1 if way == "up" else -1]
        if level and several:
            return f"{d}:{'-'.join(names)}@{rank(0)}"
    elif dimension.kind == "fully_connected":
        return f"{rank(link[0])}-{rank(link[1])}"
    else:
        return f"{rank(link[1])}-{rank(link[1] + link[0])}"
    return f"{d}:{'-'.join(names)}" if several else "-".join(names)


# ---- Fair shares


def test_max_min_from_the_textbook():
    """Bertsekas and Gallager, Fig. 6.10: five sessions on a line of links of capacity 1.

    Sessions 2, 3 and 5 share a link and get 1/3 each, session 1 the 2/3 that are left on the one it shares with 3,
    and session 4 all of a link of its own.
    """
    crossing = {0: [0], 1: [1], 2: [0, 1], 3: [3], 4: [1, 2]}
    flows = np.array([flow for flow, links in crossing.items() for _ in links])
    links = np.array([link for links in crossing.values() for link in links])
    rates = max_min(flows, links, np.ones(len(links)), num_flows=5, bytes_per_s=np.ones(4))
    assert rates.tolist() == pytest.approx([2 / 3, 1 / 3, 1 / 3, 1, 1 / 3])


@st.composite
def sharings(draw):
    num_flows, num_links = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    link = st.integers(0, num_links - 1)
    crossing = [sorted(draw(st.sets(link, min_size=1))) for _ in range(num_flows)]
    weight = st.sampled_from([0.25, 0.5, 1.0, 3.0])
    rows = [(flow, link, draw(weight)) for flow, links in enumerate(crossing) for link in links]
    speeds = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 10 / 3]), min_size=num_links, max_size=num_links))
    return rows, num_flows, np.array(speeds)


@given(sharings(), st.randoms(use_true_random=False))
def test_rates_are_max_min_fair_in_any_order(sharing, random):
    rows, num_flows, speeds = sharing

    def rates_of(rows):
        flows, links, weights = (np.array(column) for column in zip(*rows, strict=True))
        return max_min(flows, links, weights, num_flows=num_flows, bytes_per_s=speeds)

    rates = rates_of(rows)
    carried = np.zeros(len(speeds))
    for flow, link, weight in rows:
        carried[link] += weight * rates[flow]
    assert (carried <= speeds * (1 + 1e-9)).all()
    for flow in range(num_flows):  # a full link on which nobody is faster: that is what max-min fair means
        mine = [link for other, link, _ in rows if other == flow]
        assert any(
            carried[link] >= speeds[link] * (1 - 1e-9)
            and all(rates[other] <= rates[flow] * (1 + 1e-9) for other, at, _ in rows if at == link)
            for link in mine
        )
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert rates_of(shuffled).tobytes() == rates.tobytes()


@given(meshes(), st.data())
@settings(max_examples=80)
def test_one_rate_for_all_is_found_without_spelling_out_what_they_cross(mesh, data):
    """Messages between few pairs of ranks, many of each, so that those on the same way are counted."""
    topology, _ = mesh
    assume(topology.num_ranks > 1)
    rank = st.integers(0, topology.num_ranks - 1)
    pair = st.tuples(rank, rank).filter(lambda ends: ends[0] != ends[1])
    pairs = data.draw(st.lists(pair, min_size=1, max_size=8))
    if data.draw(st.booleans()):  # one distance, from everyone
        first, second = topology.coordinates(pairs[0])
        every = topology.coordinates(np.arange(topology.num_ranks))
        ends = np.ravel_multi_index(tuple(((every + second - first) % topology.shape).T), topology.shape, order="F")
        pairs = list(enumerate(ends.tolist()))
    links = links_of(topology)
    crossing, _ = links.crossed(*np.tile(np.array(pairs).T, data.draw(st.sampled_from([1, 100]))))
    flows, crossed, shares = crossing.pairs
    load = sum(ways.load(len(links)) for ways in crossing.ways)
    assert load.tolist() == np.bincount(crossed, shares, minlength=len(links)).tolist()
    count, speeds = int(flows.max()) + 1, links.bytes_per_s(np.arange(len(links)))
    rates = max_min(flows, crossed, shares, num_flows=count, bytes_per_s=speeds)
    level = level_of_all(crossing.ways, speeds, num_flows=count)
    assert set(rates.tolist()) == {level} if level is not None else len(set(rates.tolist())) > 1


# ---- Messages that meet


def run(topology, messages):
    """Start messages (source, destination, bytes, start); return when each has arrived."""
    traffic = Traffic(links_of(topology))
    for number, (source, destination, size_bytes, start_s) in enumerate(messages):
        demand = demand_of_message(traffic.links, source, destination)
        traffic.start(number, Transfer(demand, size_bytes, before_s=start_s), 0.0)
    arrived = {}
    while len(arrived) < len(messages):
        now_s, _, done = traffic.advance()
        arrived |= dict.fromkeys(done, now_s)
    return [arrived[number] for number in range(len(messages))]


def test_a_message_alone_takes_latency_and_bytes():
    assert run(RING4, [(0, 1, N, 1.0)]) == pytest.approx([1.0 + ALPHA + LINK], rel=1e-12)
    assert run(SWITCH4, [(3, 1, N, 0.0)]) == pytest.approx([ALPHA + LINK], rel=1e-12)
    assert run(RING4, [(0, 2, N, 0.0)]) == pytest.approx([2 * ALPHA + LINK / 2], rel=1e-12)  # half each way


def test_two_messages_that_share_a_link_halve():
    """Out of one port to two others; into one port from two others; and two that do not meet."""
    assert run(SWITCH4, [(0, 1, N, 0.0), (0, 2, N, 0.0)]) == pytest.approx([ALPHA + 2 * LINK] * 2, rel=1e-12)
    assert run(SWITCH4, [(0, 2, N, 0.0), (1, 2, N, 0.0)]) == pytest.approx([ALPHA + 2 * LINK] * 2, rel=1e-12)
    assert run(SWITCH4, [(0, 1, N, 0.0), (1, 0, N, 0.0)]) == pytest.approx([ALPHA + LINK] * 2, rel=1e-12)


def test_a_message_that_ends_frees_its_share():
    """The short one needs 2 x n / 4 at half rate; by then the long one has sent n / 4, and 3 n / 4 are left."""
    short, long = run(SWITCH4, [(0, 1, N / 4, 0.0), (0, 2, N, 0.0)])
    assert short == pytest.approx(ALPHA + LINK / 2, rel=1e-12)
    assert long == pytest.approx(ALPHA + LINK / 2 + 3 / 4 * LINK, rel=1e-12)


def test_a_message_that_starts_takes_its_share():
    """Alone for half its bytes; then two share, until the first ends after n; the second has n / 2 left."""
    first, second = run(SWITCH4, [(0, 1, N, 0.0), (0, 2, N, LINK / 2)])
    assert first == pytest.approx(ALPHA + 3 / 2 * LINK, rel=1e-12)
    assert second == pytest.approx(ALPHA + 2 * LINK, rel=1e-12)


@pytest.mark.parametrize("worth_s", [BY_BATCH, BY_MESSAGE])
def test_a_message_at_half_speed_leaves_the_others_their_share(worth_s):
    """Two messages of 1 GB share 1 GB/s; the first goes at half its 0.5 GB/s from 1 s on, and at full speed from 2 s.

    At 2 s it has 0.25 GB left, the other none. It has the link alone then: it ends at 2.25 s, and arrives 0.1 s later.
    """
    links = links_of(Topology("t", (Dimension("switch", 2, 1e9, 0.1),)))
    traffic = Traffic(links, worth_s)
    for number in range(2):
        traffic.start(number, Transfer(demand_of_message(links, 0, 1), 1e9), 0.0)
    assert traffic.advance(1.0) == (1.0, [], [])
    traffic.set_speeds({0: 0.5}, 1.0)
    now_s, _, done = traffic.advance(2.0)
    assert (now_s, done) == (pytest.approx(2.0), [])
    traffic.set_speeds({0: 1.0}, 2.0)
    seen = {}
    while len(seen) < 2:
        now_s, _, done = traffic.advance()
        seen |= dict.fromkeys(done, now_s)
    assert seen == pytest.approx({0: 2.35, 1: 2.1})


@pytest.mark.parametrize("worth_s", [BY_BATCH, BY_MESSAGE])
def test_latency_lasts_as_many_times_longer(worth_s):
    """1 s before, 1 s of bytes, 0.1 s of latency: at half speed from 0.5 s to 1 s, and from 2 s to the end."""
    links = links_of(Topology("t", (Dimension("switch", 2, 1e9, 0.1),)))
    traffic = Traffic(links, worth_s)
    traffic.start(0, Transfer(demand_of_message(links, 0, 1), 1e9, before_s=1.0), 0.0)
    for at_s, speed in ((0.5, 0.5), (1.0, 1.0), (2.0, 0.5)):
        assert traffic.advance(at_s) == (at_s, [], [])
        traffic.set_speeds({0: speed}, at_s)
    while not (found := traffic.advance())[2]:
        pass  # its bytes have left
    assert found[0] == pytest.approx(2.0 + 2 * (2.1 - 1.75))


def test_messages_whose_rates_change_more_than_once():
    """Out of one port at 0, 1/2 and 1: the first has 1/4 left at 1, at a third; the second 1/2 at 7/4, at a half."""
    messages = [(0, rank, N, start * LINK) for rank, start in ((1, 0.0), (2, 0.5), (3, 1.0))]
    expected = [ALPHA + end * LINK for end in (1.75, 2.75, 3.0)]
    assert run(SWITCH4, messages) == pytest.approx(expected, rel=1e-12)


def test_three_messages_on_two_links():
    """1 -> 2 -> 3 against 1 -> 2 and 2 -> 3 on a long ring, with a link that two more share: max-min, in time.

    On 2 -> 3 three messages get 1/3; the one on 1 -> 2 gets the 2/3 that are left, and n takes it 1.5 n.
    """
    ring = Topology("ring-9", (Dimension("ring", 9, BANDWIDTH, 0.0),))
    long, alone, *shared = run(ring, [(1, 3, N, 0.0), (1, 2, N, 0.0), (2, 3, N, 0.0), (2, 4, N, 0.0)])
    assert alone == pytest.approx(1.5 * LINK, rel=1e-12)
    assert [long, *shared] == pytest.approx([3 * LINK] * 3, rel=1e-12)


# ---- Collectives worked by hand


def test_all_to_all_on_a_torus_is_at_its_bisection():
    """Half of the 8x16 torus sends n / 2 each to the other half, over 2 x 8 links each way: 64 n / 2 / 16 = 2 n."""
    cost = cost_of("torus-8x16", "all_to_all", "direct")
    assert cost.time_s == pytest.approx(12 * ALPHA + 2 * LINK, rel=1e-12)
    assert cost.num_transfers == 128 * 127
    first, second, *rest = cost.busiest_links
    assert (first.link, second.link) == ("0-8", "0-120")
    assert first.alike == 128
    assert first.size_bytes == pytest.approx(2 * N, rel=1e-12)
    assert first.utilisation == pytest.approx(2 * LINK / cost.time_s, rel=1e-12)
    assert [use.size_bytes for use in rest] == pytest.approx([N, N], rel=1e-12)  # rings of 8: half as far


def test_all_reduce_on_a_ring_in_one_direction_and_in_both():
    one = cost_of("ring-128", "all_reduce", "ring")
    assert one.time_s == pytest.approx(2 * 127 * (ALPHA + LINK / 128), rel=1e-12)
    assert [use.link for use in one.busiest_links] == ["0-1"]
    both = cost_of("ring-128", "all_reduce", "bidirectional_ring")
    assert both.time_s == pytest.approx(2 * 127 * (ALPHA + LINK / 256), rel=1e-12)
    assert [use.link for use in both.busiest_links] == ["0-1", "0-127"]
    assert both.busiest_links[0].size_bytes == pytest.approx(127 / 128 * N, rel=1e-12)


def test_all_reduce_on_a_torus_uses_both_directions_of_all_dimensions():
    """32x32: 4 (m - 1) hops, and 2 n (p - 1) / p out of a rank over 4 links, all of them busy all the time."""
    cost = cost_of("torus-32x32", "all_reduce", "multiported_bucket")
    each = 2 * 1023 / 1024 * N / 4
    assert cost.time_s == pytest.approx(4 * 31 * ALPHA + each / BANDWIDTH, rel=1e-9)
    ends = ["0-1", "0-31", "0-32", "0-992"]
    assert sorted(use.link for use in cost.busiest_links) == ends
    assert [use.size_bytes for use in cost.busiest_links] == pytest.approx([each] * 4, rel=1e-9)


def test_lanes_that_meet_on_a_link_share_it():
    """2x3, no latency: a rank has 1 link along the pair, 2 round the ring; the all-reduce needs 1.25 n at each.

    First rings take n/2 (1 round of half of it) and n/3 (2/3 of it over two links): parts 2/5 and 3/5 of the buffer,
    t = n/5. Then pairs carry 1/2 of 3/5 / 3 = n/10 and rings 2/3 of 2/5 / 2 over two links, n/15: 0.3 n on pairs.
    The gather starts with the short ones; the ring's part is free at n/15 and goes on to the pairs, n/10 of which
    lie before it: both share them, until what began first ends.
    """
    torus = Topology("torus", (Dimension("ring", 2, BANDWIDTH, 0.0), Dimension("ring", 3, BANDWIDTH, 0.0)))
    scattered = cost_of(torus, "reduce_scatter", "multiported_bucket")
    assert scattered.time_s == pytest.approx(0.3 * LINK, rel=1e-9)
    charged = alpha_beta.collective_cost("all_reduce", N, place(torus, range(6)), "multiported_bucket").time_s
    assert charged == pytest.approx(0.6 * LINK, rel=1e-9)
    both = cost_of(torus, "all_reduce", "multiported_bucket").time_s
    assert charged < both < 1.2 * charged


def test_an_oversubscribed_tree_halves_what_crosses_it():
    """Four leaves of 4: 12 of 15 shards leave a leaf, over a bundle of 2 ports' worth for 4: 24 shards a port."""
    tree = Topology("tree", (Dimension("fat_tree", 16, BANDWIDTH, ALPHA, (4, 4), (2.0,)),))
    cost = cost_of(tree, "all_to_all", "direct")
    assert cost.time_s == pytest.approx(3 * ALPHA + 24 / 16 * LINK, rel=1e-12)
    first, *_ = cost.busiest_links
    assert (first.link, first.alike) == ("switch-1-0-switch-2-0", 4)
    assert first.size_bytes == pytest.approx(4 * 12 / 16 * N, rel=1e-12)


def test_a_line_of_links_carries_an_all_to_all_over_its_middle():
    """Of 4 ranks 2 send to the 2 others over the link in the middle: 4 shards of n / 4."""
    line = Topology("line", (Dimension("mesh", 4, BANDWIDTH, ALPHA),))
    cost = cost_of(line, "all_to_all", "direct")
    assert cost.time_s == pytest.approx(3 * ALPHA + LINK, rel=1e-12)
    assert {use.link for use in cost.busiest_links[:2]} == {"1-2", "2-1"}


def test_groups_that_interleave_share_the_links_of_a_ring():
    cost = cost_of("ring-128", "all_gather", "ring", range(0, 128, 4))
    assert cost.time_s == pytest.approx(31 * (4 * ALPHA + 4 * LINK / 32), rel=1e-12)


def test_a_root_sends_one_level_of_a_binomial_tree_after_another():
    """Each level starts when the one before has left: 2 n out of the root's port; the last hop's latency follows.

    Rank 2 has the buffer at alpha + n, sends it on by 2 alpha + 2 n; the root's second message arrives before.
    """
    assert cost_of(SWITCH4, "broadcast", "binomial_tree").time_s == pytest.approx(2 * ALPHA + 2 * LINK, rel=1e-12)
    # Reduce: the root takes both messages one after another.
    assert cost_of(SWITCH4, "reduce", "binomial_tree").time_s == pytest.approx(2 * ALPHA + 2 * LINK, rel=1e-12)


def test_a_rank_may_inject_less_than_its_links_carry():
    """Four ranks, all connected: 3 links of 25 GB/s out of a rank, of which it can fill one and a half."""
    mesh = Topology("mesh", (Dimension("fully_connected", 4, BANDWIDTH, ALPHA),))
    assert cost_of(mesh, "all_gather", "direct").time_s == pytest.approx(ALPHA + LINK / 4, rel=1e-12)
    limited = cost_of(mesh, "all_gather", "direct", injection_bytes_per_s=1.5 * BANDWIDTH)
    assert limited.time_s == pytest.approx(ALPHA + LINK / 2, rel=1e-12)
    assert limited.busiest_links[0].link == "injection of rank 0"
    with pytest.raises(ConfigError, match="give a limit above zero"):
        cost_of(mesh, "all_gather", "direct", injection_bytes_per_s=0.0)


def test_no_bytes_and_a_group_of_one_cost_nothing():
    assert cost_of("torus-8x16", "all_reduce", "ring", size_bytes=0).time_s == 0
    assert cost_of("torus-8x16", "all_reduce", "ring", [7]).busiest_links == ()


def test_the_largest_torus_is_turned_into_one_rank():
    """64x64x32: 131072^2 messages; a ring of 64 carries 64^2 / 8 for each of the 2048 others, n / 131072 each: 8 n."""
    cost = cost_of("torus-64x64x32", "all_to_all", "direct")
    assert cost.num_transfers == 131072 * 131071
    assert cost.time_s == pytest.approx((32 + 32 + 16) * ALPHA + 8 * LINK, rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "algorithm", "error"),
    [
        ("all_reduce", "multiported_bucket", 0.02),
        ("all_reduce", "hierarchical", 1e-9),
        ("all_reduce", "hierarchical_direct", 1e-9),
        ("all_to_all", "dimension_wise", 1e-9),
    ],
)
def test_the_largest_torus_goes_dimension_by_dimension(kind, algorithm, error):
    """One line stands for all of its dimension; the chains of the bucket drift apart, as lines are not as long."""
    topology = load_topology("torus-64x64x32")
    closed = alpha_beta.collective_cost(kind, N, place(topology, range(topology.num_ranks)), algorithm)
    assert cost_of(topology, kind, algorithm).time_s == pytest.approx(closed.time_s, rel=error)


def test_the_busiest_link_is_that_of_one_group_whatever_its_siblings():
    """Two groups of two in a ring of 4: turns by one swap them, and only those by two keep a group."""
    topology = Topology("ring-4", (Dimension("ring", 4, BANDWIDTH, ALPHA),))
    turns = symmetry(topology, [np.array([0, 1, 0, 1])])
    assert turns.order == 4
    assert turns.keeping(np.array([0, 2])).order == 1
    assert turns.keeping(np.arange(4)).order == 4


def test_too_many_messages_are_refused():
    with pytest.raises(
        ConfigError, match="'pairwise' takes 131071 rounds that are not alike in a group of 131072 ranks"
    ):
        cost_of("torus-64x64x32", "all_to_all", "pairwise")
    with pytest.raises(ConfigError, match="'ring' sends more than 2e\\+07 different messages in a group"):
        cost_of("torus-64x64x32", "all_reduce", "ring")
    with pytest.raises(ConfigError, match="'ring' takes 131071 rounds that are not alike in a group"):
        cost_of("fat-tree-131072", "all_reduce", "ring")


HUGE = {
    ("all_reduce", "ring", "--network", "alpha_beta", "--break", "0-1"): "'ring' sends more than 2e+07",
    ("all_reduce", "ring", "--network", "link", "--break", "0-1"): "'ring' sends more than 2e+07",
    ("all_to_all", "pairwise", "--network", "alpha_beta", "--degrade", "0-1=0.5"): "'pairwise' sends more than 2e+07",
    ("all_to_all", "direct", "--network", "link", "--break", "0-1"): "'direct' sends more than 2e+07",
    ("all_to_all", "dimension_wise", "--network", "link", "--break", "0-1"): "'dimension_wise' sends more than 2e+07",
}


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory")
@pytest.mark.parametrize("asked", HUGE, ids=" ".join)
def test_a_slow_link_among_many_ranks_is_refused_before_messages_are_listed(asked):
    """Nothing is alike then: the ring would list half a billion messages, all ranks to all 17 billion."""
    kind, algorithm, *options = asked
    script = (
        "import resource, sys; from scaleout.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (500 << 20, 500 << 20))\n"
        "sys.argv = ['scaleout', *sys.argv[1:]]; main()"
    )
    command = ["collective", kind, "--algorithm", algorithm, "--bytes", "1MiB", "--topology", "torus-64x64x32"]
    done = subprocess.run([sys.executable, "-c", script, *command, *options], capture_output=True, check=False)
    assert done.returncode == 2
    assert HUGE[asked] in done.stderr.decode()


@pytest.mark.parametrize("network", ["alpha_beta", "link"])
def test_what_cannot_be_routed_is_left_out(monkeypatch, scaleout, network):
    """Of several algorithms; alone it is refused."""
    monkeypatch.setattr("scaleout.network.collectives.rounds.MOST_MESSAGES", 10_000)
    command = ("collective", "all_reduce", "--bytes", "1MiB", "--topology", "torus-8x16", "--break", "5-6")
    code, out, err = scaleout(*command, "--network", network, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert "direct" in found["algorithms_left_out"]
    assert "ring" in {row["algorithm"] for row in found["results"]}


@pytest.mark.parametrize(
    ("topology", "algorithm"),
    [
        (load_topology("fat-tree-131072"), "hierarchical"),
        (Topology("ring", (Dimension("ring", 131072, BANDWIDTH, ALPHA),)), "ring"),
        (Topology("ring", (Dimension("ring", 131072, BANDWIDTH, ALPHA),)), "bidirectional_ring"),
        (Topology("switch", (Dimension("switch", 131072, BANDWIDTH, ALPHA),)), "ring"),
    ],
)
def test_what_is_alike_is_not_spelled_out(topology, algorithm):
    """262,142 rounds of a ring go as two; of an all-to-all over 16,384 nodes one rank's messages stand for all."""
    closed = alpha_beta.collective_cost("all_reduce", N, place(topology, range(topology.num_ranks)), algorithm)
    assert cost_of(topology, "all_reduce", algorithm).time_s == pytest.approx(closed.time_s, rel=1e-7)


def test_steps_that_are_done_again_and_again_may_go_as_one(monkeypatch):
    topology = load_topology("ring-128")
    one_by_one = cost_of(topology, "all_reduce", "ring")
    monkeypatch.setattr("scaleout.network.flow.demand.MOST_ROUNDS", 100)
    together = cost_of(replace(topology, name="again"), "all_reduce", "ring")
    assert together.time_s == pytest.approx(one_by_one.time_s, rel=1e-12)
    assert together.num_transfers == one_by_one.num_transfers


# ---- Laws


@st.composite
def collectives(draw, *, regular=None):
    """A topology, a group (of a mesh axis, or any ranks), and its algorithms by kind."""
    topology, groups = draw(meshes())
    if draw(st.booleans()) if regular is None else regular:
        group = groups[0]
    else:
        group = draw(st.lists(st.integers(0, topology.num_ranks - 1), min_size=1, max_size=8, unique=True))
    return topology, group, draw(st.sampled_from([1.0, 40.0, 1e6]))


def kinds_of(algorithm, placement):
    if placement.num_ranks > 1:
        yield from (kind for kind in algorithm.schedules if algorithm.supports(kind, placement) is None)


NEIGHBOURLY = ("ring", "bidirectional_ring", "pairwise", "scatter_all_gather")


@pytest.mark.parametrize("kind", ROOTED)
@given(mesh=meshes(24), data=st.data())
@settings(max_examples=25)
def test_routed_messages_of_a_rooted_collective_are_those_of_its_first_rank(kind, mesh, data):
    """Whatever the order of the other members, and whether or not the roots of all groups are congruent."""
    topology, groups = mesh
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(groups[0]) - 1))
        groups = [(*group[at:], *group[:at]) for group in groups]
    else:
        groups = [tuple(data.draw(st.permutations(group))) for group in groups]
    if len(groups[0]) == 1:
        return
    way = -1 if kind in ("reduce", "gather") else 1
    ends = [pair[::way] for pair in messages_of(topology, groups, kind, "direct")]
    found = {pair for sources, targets in ends for pair in zip(sources.tolist(), targets.tolist(), strict=True)}
    assert found == {(group[0], rank) for group in groups for rank in group[1:]}


def test_scatters_from_several_roots_at_once_share_no_port():
    """By hand, on a switch: four scatters from one port take four times as long, from four ports as long as one."""

    def scatters(roots):
        graph, groups = GraphBuilder(), []
        for number, root in enumerate(roots):
            graph.collective("scatter", int(N), group=number, stream=1 + number)
            groups.append(GroupFamily(f"root_{number}", ((root, *(rank for rank in range(4) if rank != root)),)))
        program = Program("scatters", (graph.build(),), np.zeros(4, np.int64), tuple(groups))
        return simulate(program, SWITCH4, network="link").makespan_s

    assert scatters([1]) == pytest.approx(ALPHA + 0.75 * LINK)
    assert scatters([2] * 4) == pytest.approx(ALPHA + 4 * 0.75 * LINK)
    assert scatters(range(4)) == pytest.approx(ALPHA + 0.75 * LINK)


@each_algorithm
@given(case=collectives(regular=True))
@settings(max_examples=25)
def test_link_equals_alpha_beta_where_members_are_alike(algorithm, case):
    """Rings all round, switches and full meshes. Pipelined schedules are steady flows, so they agree as well."""
    topology, group, size_bytes = case
    placement = place(topology, group)
    if any(extent.is_line for extent in placement.extents):
        return  # the ends of a line are not like its middle
    if algorithm.name in NEIGHBOURLY and any(extent.dimension.kind == "fat_tree" for extent in placement.extents):
        return  # some neighbours are on the same leaf, some are not
    for kind in kinds_of(algorithm, placement):
        if kind in algorithm.unconditional and placement.num_ranks & (placement.num_ranks - 1):
            continue  # members that stand for two are not like the others
        found = cost_of(topology, kind, algorithm.name, group, size_bytes).time_s
        expected = alpha_beta.collective_cost(kind, size_bytes, placement, algorithm.name).time_s
        rounds = schedule(kind, placement, algorithm=algorithm.name)
        if kind in ROOTED and not rounds.pipelined:
            assert found <= expected * 1.1  # whoever has its message goes on
        elif len(rounds.chains) > 1 and len(set(placement.extents)) > 1:
            assert expected * 0.95 <= found <= expected * 1.6  # chains of unequal rounds meet on links
        else:
            assert found == pytest.approx(expected, rel=1e-9), kind


@each_algorithm
@given(case=collectives())
@settings(max_examples=25)
def test_link_is_near_alpha_beta_anywhere_and_never_beats_the_wire(algorithm, case):
    """A member that goes on early mostly gains, but its messages may meet those of the round before: up to twice."""
    topology, group, size_bytes = case
    placement = place(topology, group)
    for kind in kinds_of(algorithm, placement):
        cost = cost_of(topology, kind, algorithm.name, group, size_bytes)
        charged = alpha_beta.collective_cost(kind, size_bytes, placement, algorithm.name).time_s
        assert lower_bound_s(kind, size_bytes, placement) * (1 - 1e-9) <= cost.time_s <= charged * 2
        assert cost == cost_of(topology, kind, algorithm.name, group, size_bytes)
        assert all(0 < use.utilisation <= 1 + 1e-9 for use in cost.busiest_links)


@each_algorithm
@given(case=collectives())
@settings(max_examples=20)
def test_alike_messages_as_one_flow_give_the_same_bits_and_bytes(algorithm, case):
    """With and without symmetry: same times to the last bit, and every link carries what brute force says."""
    topology, group, size_bytes = case
    placement = place(topology, group)
    groups = siblings(topology, group)
    links = links_of(topology)
    family = np.full(topology.num_ranks, -1)
    for number, members in enumerate(groups):
        family[list(members)] = number
    for kind in kinds_of(algorithm, placement):
        rounds = schedule(kind, placement, algorithm=algorithm.name)
        if rounds.pipelined:
            continue
        found = symmetry(topology, [family], messages=messages_of(topology, groups, kind, algorithm.name))
        times, carried = [], []
        for each in (Symmetry(), found):
            loop = BatchedFlows(links)
            begin(loop, demand_of(links, each, groups, kind, algorithm.name), size_bytes)
            times.append([now_s for now_s, _, _ in iter(lambda loop=loop: loop.advance(np.inf), (np.inf, [], []))])
            carried.append(loop.link_bytes)
        assert times[0] == times[1]
        ranks = np.arange(topology.num_ranks)
        for port, *columns in zip(links.ports, *(each.reshape(-1, len(ranks)) for each in carried), strict=True):
            weight, span = links.spread(port)
            owners = ranks[ranks // weight % span == 0]  # a bundle is a port of the first rank below it
            assert columns[0][owners] == pytest.approx(columns[1][found.representatives(owners)], rel=1e-9)
        assert carried[0] == pytest.approx(brute_force_bytes(links, groups, rounds, size_bytes), rel=1e-9)


def begin(loop, demand, size_bytes):
    for chain in demand.chains:
        loop.start(0, chain, size_bytes, start_s=1e-6, after_s=0.0, latencies=True)


@given(case=collectives())
def test_what_keeps_single_places_keeps_all_distances(case):
    """Pairwise sends over all distances; its symmetry is the one that all of its messages have, spelled out."""
    topology, group, _ = case
    placement = place(topology, group)
    if ALGORITHMS["pairwise"].supports("all_to_all", placement) is not None or placement.num_ranks == 1:
        return
    groups = siblings(topology, group)
    family = np.full(topology.num_ranks, -1)
    for number, members in enumerate(groups):
        family[list(members)] = number
    orders = [np.array(arrange(topology, members)[1]) for members in groups]
    spelled = []
    for round_ in schedule("all_to_all", placement, algorithm="pairwise").rounds:
        sources, destinations, _ = transfers(round_, placement)
        columns = [np.concatenate([ranks[column] for ranks in orders]) for column in (sources, destinations)]
        spelled.append(tuple(columns))
    few = messages_of(topology, groups, "all_to_all", "pairwise")
    assert len(few) <= max(1, len(placement.shape)) or not placement.regular
    assert symmetry(topology, [family], messages=few) == symmetry(topology, [family], messages=spelled)


@each_algorithm
@given(case=collectives(regular=True))
@settings(max_examples=15)
def test_groups_that_lie_alike_are_spelled_out_from_the_first(algorithm, case):
    topology, group, _ = case
    groups = siblings(topology, group)
    for kind in kinds_of(algorithm, place(topology, group)):
        found = messages_of(topology, groups, kind, algorithm.name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("scaleout.network.flow.demand.congruent_members", lambda *_: None)
            one_by_one = messages_of(topology, groups, kind, algorithm.name)
        assert [[column.tolist() for column in pairs] for pairs in found] == [
            [column.tolist() for column in pairs] for pairs in one_by_one
        ]


@given(case=collectives(), data=st.data())
@settings(max_examples=60)
def test_message_by_message_gives_the_bits_of_batch_by_batch(case, data):
    """Several collectives that begin at odd times, some of them slices, and messages between them."""
    pytest.importorskip("numba")
    topology, group, size_bytes = case
    assume(len(group) > 1)
    links = links_of(topology)
    able = [(a.name, kind) for a in ALGORITHMS.values() for kind in kinds_of(a, place(topology, group))]
    requests = []
    for number in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            algorithm, kind = data.draw(st.sampled_from(able))
            demand = demand_of(links, Symmetry(), siblings(topology, group), kind, algorithm)
        else:
            pair = data.draw(st.lists(st.integers(0, topology.num_ranks - 1), min_size=2, max_size=2, unique=True))
            demand = demand_of_message(links, *pair)
        before_s, latencies = data.draw(st.sampled_from([0.0, 1e-7, 3.3e-5, 1e-3])), data.draw(st.booleans())
        requests.append(Transfer(demand, size_bytes * (1 + number), before_s, 1e-6, latencies))
    batches, messages, handed_over = (
        Traffic(links, worth_s) for worth_s in (BY_BATCH, BY_MESSAGE, data.draw(st.sampled_from([0.0, 1e-4, 1e-3])))
    )
    for traffic in (batches, messages, handed_over):
        for number, request in enumerate(requests[:-1]):
            traffic.start(number, request, 0.0)
    seen = [visible(traffic, len(requests) - 1, requests[-1]) for traffic in (batches, messages, handed_over)]
    assert seen[0] == seen[1] == seen[2]
    assert batches.link_bytes == pytest.approx(messages.link_bytes, rel=1e-12)


TORUS = Topology("t", (Dimension("ring", 3, 1e9, 1e-6), Dimension("ring", 4, 2e9, 1e-6)))


@given(topology=st.sampled_from([RING4, SWITCH4, TORUS]), data=st.data())
@settings(max_examples=200)
def test_a_transfer_that_was_alone_goes_on_among_others_from_where_it_is(topology, data):
    """Transfers start at odd times, and their speeds change: as if all had shared links from the start."""
    links = links_of(topology)
    demands, transfers = {}, []
    for _ in range(data.draw(st.integers(1, 5))):
        ranks = data.draw(st.permutations(range(topology.num_ranks)))
        what = data.draw(st.sampled_from(["message", "group", "two chains"]))
        if what == "message":
            demand = demands.setdefault(tuple(ranks[:2]), demand_of_message(links, *ranks[:2]))
        elif what == "group" or topology is not TORUS:
            group = tuple(sorted(ranks[:4]))
            demand = demands.setdefault(group, demand_of(links, Symmetry(), [group], "all_to_all", "pairwise"))
        else:
            new = demand_of(links, Symmetry(), [tuple(range(12))], "all_gather", "multiported_bucket")
            demand = demands.setdefault(what, new)
        after_s, latencies = data.draw(st.sampled_from([(0.0, True), (1e-4, False)]))
        size_bytes, before_s = data.draw(st.sampled_from([1e5, 1e6])), data.draw(st.sampled_from([0.0, 1e-5]))
        transfers.append(Transfer(demand, size_bytes, before_s, after_s, latencies))
    starts_s = sorted(data.draw(st.sampled_from([0.0, 1e-5, 5e-5, 2e-4])) for _ in transfers)
    speeds = data.draw(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.5, 0.7, 1.0])), max_size=4))
    worth_s = data.draw(st.sampled_from([None, BY_MESSAGE, 0.0, 1e-4, 1e-3]))  # message by message from some moment on
    shared, traffic = SharedTraffic(links, BY_BATCH), Traffic(links, worth_s)
    start = {shared: lambda name, at_s: shared.start(name, transfers[name], at_s)}
    start[traffic] = lambda name, at_s: traffic.start(name, transfers[name], at_s)
    ends = {each: ends_of_changing(each, start[each], starts_s, speeds) for each in (shared, traffic)}
    assert ends[traffic] == pytest.approx(ends[shared], rel=1e-9)
    assert traffic.link_bytes == pytest.approx(shared.link_bytes, rel=1e-9)


@pytest.mark.parametrize("part", [0.2, 0.5, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("worth_s", [BY_MESSAGE, 0.0, 1e-4, 1e-3, 1e-2])
def test_chains_that_started_together_do_so_when_they_go_on_message_by_message(worth_s, part):
    """A transfer of two chains is alone until another comes, when part of it is done; then messages go one by one."""
    links = links_of(TORUS)
    both = demand_of(links, Symmetry(), [tuple(range(12))], "all_gather", "multiported_bucket")
    assert len(both.chains) == 2
    alone = Traffic(links, BY_BATCH)
    alone.start(0, Transfer(both, N), 0.0)
    at_s = part * alone.advance(math.inf)[0]
    ends = []
    for each in (BY_BATCH, worth_s):
        traffic = Traffic(links, each)
        traffic.start(0, Transfer(both, N), 0.0)
        assert traffic.advance(at_s) == (at_s, [], [])
        traffic.start(1, Transfer(demand_of_message(links, 0, 1), N), at_s)
        done: dict[int, float] = {}
        while len(done) < 2:
            now_s, _, ended = traffic.advance(math.inf)
            assert now_s < math.inf, "a transfer is lost"
            done |= dict.fromkeys(ended, now_s)
        ends.append(done)
    assert ends[0] == ends[1]


def test_a_transfer_that_is_alike_but_for_its_links_carries_the_same_over_them():
    links = links_of(load_topology("ring-128"))
    two, none, isolated = np.arange(2), np.zeros(2), IsolatedTransfers(links)
    for crossed in ([1, 5], [5, 1]):  # a message over the first link, and one of which half takes the second
        routes = crossing.Crossing.of(two, np.array(crossed), np.array([1.0, 0.5]), 2)
        flows = Flows(two, two[::-1], none, routes, 0, 2, np.ones(2, np.int64))
        found = isolated.of(Transfer(Demand(2, (flows,), (1.0,)), N))
        sent = dict(zip(found.links.tolist(), found.link_bytes.tolist(), strict=True))
        assert sent == {crossed[0]: N, crossed[1]: N / 2}


def test_long_collectives_give_python_a_chance_to_stop_them():
    links = links_of(load_topology("torus-32x32"))
    flows, ranks = event_driven.EventDrivenFlows(links), np.random.default_rng(7).permutation(1024)
    for name in range(8):
        group = tuple(sorted(ranks[64 * name : 64 * name + 64].tolist()))
        demand = demand_of(links, Symmetry(), [group], "all_to_all", "direct")
        flows.start(name, demand, N, start_s=name * 1e-6, after_s=0.0, latencies=True)
    with mock.patch.object(event_driven, "run", wraps=event_driven.run) as run:
        flows.advance(math.inf)
    assert run.call_count > 2, "between calls Python handles interrupts"


def ends_of_changing(traffic, start, starts_s, speeds):
    """When each of what starts at some times has sent all, and is done, with a change of speed after each start."""
    seen, speeds = {}, list(speeds)

    def advance(until_s):
        while (found := traffic.advance(until_s))[1:] != ([], []):
            seen.update({(kind, name): found[0] for kind in (1, 2) for name in found[kind]})

    for name, at_s in enumerate(starts_s):
        advance(at_s)
        start(name, at_s)
        which, speed = speeds.pop() if speeds else (name, 1.0)
        if which <= name and (2, which) not in seen:
            traffic.set_speeds({which: speed}, at_s)
    advance(math.inf)
    return seen


@pytest.mark.parametrize("shape", [(7, 7), (32,)])
def test_irregular_collectives_that_hold_each_other_up_give_the_bits_of_batch_by_batch(shape):
    """Each a little after the last, so that each event changes rates of many others."""
    pytest.importorskip("numba")
    links = links_of(Topology("t", tuple(Dimension("ring", size, 25e9, 5e-7) for size in shape)))
    drawn = np.random.default_rng(7).permutation(links.topology.num_ranks)
    groups = [tuple(sorted(part.tolist())) for part in np.array_split(drawn, 5)]
    demands = [demand_of(links, Symmetry(), [group], "all_to_all", "pairwise") for group in groups]
    begun = [(demand, 1e6 * (1 + number), number * 1e-6) for number, demand in enumerate(demands)]
    assert ends_of(links, begun, BY_BATCH) == ends_of(links, begun, BY_MESSAGE)


@pytest.mark.parametrize("seed", range(3))
def test_messages_that_start_while_others_end_give_the_bits_of_batch_by_batch(seed):
    """Over links that are wide and narrow, sizes such that much happens at the same time."""
    pytest.importorskip("numba")
    links = links_of(Topology("t", (Dimension("ring", 6, 1e9, 0.0), Dimension("mesh", 6, 3e9, 0.0))))
    draw = np.random.default_rng(seed)
    pairs = [draw.choice(36, size=2, replace=False).tolist() for _ in range(300)]
    begun = [
        (demand_of_message(links, *pair), float(draw.integers(1, 9)) * 1e6, float(draw.integers(20)) * 1e-3)
        for pair in pairs
    ]
    assert ends_of(links, begun, BY_BATCH) == ends_of(links, begun, BY_MESSAGE)


def ends_of(links, begun, worth_s):
    """When each of some demands of a size that begin at some time is done."""
    traffic = Traffic(links, worth_s)
    for number, (demand, size_bytes, before_s) in enumerate(begun):
        traffic.start(number, Transfer(demand, size_bytes, before_s), 0.0)
    ends_s = {}
    while len(ends_s) < len(begun):
        now_s, _, done = traffic.advance()
        ends_s |= dict.fromkeys(done, now_s)
    return ends_s


def visible(traffic, number, last):
    """Advance in small rounds, at changing speeds; begin one more and again the same, and run; all that can be seen."""
    seen, done = [], set()
    for until_s, speed in ((1e-7, 0.7), (2e-6, 1 / 3), (5e-5, 1.0)):
        while (found := traffic.advance(until_s))[1:] != ([], []):
            seen.append((found[0], sorted(found[1]), sorted(found[2])))
            done.update(found[2])
        traffic.set_speeds({each: speed for each in range(0, number, 2) if each not in done}, until_s)
    for again in (number, number + 1):
        traffic.start(again, replace(last, before_s=0.0, after_s=0.0), 5e-5)
    while (found := traffic.advance())[1:] != ([], []):
        seen.append((found[0], sorted(found[1]), sorted(found[2])))
    return seen


def brute_force_bytes(links, groups, rounds, size_bytes):
    carried = np.zeros(len(links))
    for group, round_ in itertools.product(groups, rounds.rounds):
        placement, order = arrange(links.topology, group)
        sources, destinations, fractions = transfers(round_, placement)
        routes = links.routes(np.array(order)[sources], np.array(order)[destinations])
        np.add.at(carried, routes.links, routes.shares * fractions[routes.messages] * round_.repeat * size_bytes)
    return carried


# ---- The engine and what times instances


class Alarm:
    """Links whose instances release their streams after 2 s and are done after 3 s."""

    set_speed = None

    def __init__(self, instances):
        self.instances, self.events = instances, []

    def start(self, instance, now_s):
        if instance in self.instances:
            self.events += [(now_s + 2, "released", instance), (now_s + 3, "done", instance)]

    def advance(self, until_s):
        now_s = min([until_s, *(event[0] for event in self.events)])
        due = [event for event in self.events if event[0] == now_s]
        self.events = [event for event in self.events if event[0] > now_s]
        return now_s, *([instance for _, what, instance in due if what == wanted] for wanted in ("released", "done"))


def test_the_engine_asks_links_how_long_an_instance_takes():
    """Tasks 0 and 1 meet at 1 s; 2 waits for the stream of 0, and 3, on a stream of its own, for 0 to be done."""
    nan = np.nan
    tasks = Tasks.of(
        [nan, nan, 5.0, 1.0, 1.0],
        [[3], [], [], [], []],
        stream=[0, 1, 0, 2, 1],
        priority=[0, 0, 0, 0, 1],
        instance=[0, 0, -1, -1, -1],
        instance_size=[2],
    )
    times = engine.run(tasks, links=Alarm([0]))
    assert times.start_s.tolist() == [1, 1, 3, 4, 0]
    assert times.released_s.tolist() == [3, 3, 8, 5, 1]
    assert times.end_s.tolist() == [4, 4, 8, 5, 1]
    assert times.cause.tolist() == [4, 4, 0, 0, -1]


def test_links_and_devices_are_one_queue_of_events():
    """Instances 0 and 2 on links and kernel 1 on a device, the first two from 0 s; 2.5 s of task 2 in between."""
    nan, topology = np.nan, load_topology("dgx-h200-2")
    tasks = Tasks.of([nan, nan, 2.5, nan], stream=[0, 1, 2, 2], instance=[0, 1, -1, 2], instance_size=[1, 1, 1])
    kernel = {"kernel_instance": np.array([1]), "kernel_device": np.array([0]), "kernel_kind": np.array([0])}
    sharing = replace(NOTHING_SHARED, kernels=[(None, 3.0)], kernel_issue_s=np.zeros(1), **kernel)
    times = engine.run(tasks, sharing, contention_of(load_device("h200"), topology), Alarm([0, 2]))
    assert times.start_s.tolist() == [0, 0, 0, 2.5]
    assert times.released_s.tolist() == [2, 3, 2.5, 4.5]
    assert times.end_s.tolist() == [3, 3, 2.5, 5.5]


# ---- The command line


def test_the_command_prices_by_links_and_names_the_busiest(monkeypatch, capsys):
    arguments = ["all_to_all", "--bytes", "128MB", "--topology", "torus-8x16", "--network", "link"]
    monkeypatch.setattr(sys, "argv", ["scaleout", "collective", *arguments, "--json"])
    main()
    rows = json.loads(capsys.readouterr().out)["results"]
    direct = next(row for row in rows if row["algorithm"] == "direct")
    assert direct["time_s"] == pytest.approx(12 * ALPHA + 2 * LINK)
    assert direct["network"] == "link"
    assert direct["busiest_links"][0]["link"] == "0-8"
    monkeypatch.setattr(sys, "argv", ["scaleout", "collective", *arguments])
    main()
    out = capsys.readouterr().out
    assert "busiest links of direct" in out
    assert "0-8" in out


def test_a_buffer_is_cut_into_as_many_chunks_as_are_asked_for(monkeypatch, capsys):
    """Hierarchical on a ring of 4 by a switch of 4: each of c chunks goes through all rounds, one round apart.

    Rings, both ways, take 2 * 3/8 n in 6 rounds; the switch between them 2 * 3/16 n in 2: c chunks hide what is not on
    the rings, but 1 / c of it, and each chunk but the first adds the latency of the rounds on the rings.
    """
    topology = Topology("t", (Dimension("ring", 4, BANDWIDTH, ALPHA), Dimension("switch", 4, BANDWIDTH, ALPHA)))
    for chunks in (1, 4):
        expected = 8 * ALPHA + (chunks - 1) * 6 * ALPHA + (3 / 4 + 3 / 8 / chunks) * LINK
        charged = alpha_beta.collective_cost(
            "all_reduce", N, place(topology, range(16)), "hierarchical", num_chunks=chunks
        )
        linked = cost_of(topology, "all_reduce", "hierarchical", num_chunks=chunks)
        assert (charged.num_chunks, linked.num_chunks) == (chunks, chunks)
        assert charged.time_s == pytest.approx(expected, rel=1e-12)
        assert linked.time_s == pytest.approx(expected, rel=1e-9)
    arguments = ["scaleout", "collective", "all_reduce", "--bytes", "64MB", "--topology", "torus-8x16", "--chunks", "7"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--json"])
    main()
    rows = json.loads(capsys.readouterr().out)["results"]
    assert {row["algorithm"]: row["num_chunks"] for row in rows}.items() >= {("ring", 1), ("hierarchical", 7)}
    monkeypatch.setattr(sys, "argv", [*arguments, "--algorithm", "ring"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "--chunks 7: nothing here cuts the buffer into chunks" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="0 chunks; give one or more"):
        cost_of(topology, "all_reduce", "hierarchical", num_chunks=0)


def test_an_injection_limit_needs_the_link_model(monkeypatch, capsys):
    arguments = ["all_gather", "--bytes", "1MB", "--topology", "mi210-node", "--injection", "80 GB/s"]
    monkeypatch.setattr(sys, "argv", ["scaleout", "collective", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "--injection is a limit of the link model; add --network link" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["scaleout", "collective", *arguments, "--network", "link", "--json"])
    main()
    first = json.loads(capsys.readouterr().out)["results"][0]
    assert first["time_s"] == pytest.approx(25e-6 + ALPHA + 3 / 4 * 1e6 / 80e9)  # 25 us for any call


def test_no_bytes_have_no_bandwidth(monkeypatch, capsys):
    for network in ("alpha_beta", "link"):
        arguments = ["all_gather", "--bytes", "0", "--topology", "mi210-node", "--network", network, "--json"]
        monkeypatch.setattr(sys, "argv", ["scaleout", "collective", *arguments])
        main()
        assert json.loads(capsys.readouterr().out)["results"][0]["bus_bandwidth_bytes_per_s"] == 0


def test_a_run_names_the_busiest_links_of_each_schedule(monkeypatch, capsys):
    arguments = ["run", "dlrm-128", "--schedule", "baseline", "--network", "link"]
    monkeypatch.setattr(sys, "argv", ["scaleout", *arguments, "--json"])
    main()
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["busiest_links"][0]["link"] == "0-8"
    assert 0 < row["busiest_links"][0]["utilisation"] < 1
    monkeypatch.setattr(sys, "argv", ["scaleout", *arguments])
    main()
    assert "busiest links of baseline" in capsys.readouterr().out


def test_a_run_may_limit_what_a_rank_injects(monkeypatch, capsys):
    """Embeddings go all to all over a torus whose ranks have four links of 25 GB/s: 10 GB/s a rank are far less."""
    arguments = ["scaleout", "run", "dlrm-128", "--schedule", "baseline", "--injection", "10 GB/s"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--network", "link", "--json"])
    main()
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["busiest_links"][0]["link"] == "injection of rank 0"
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "a limit to what a rank sends over all its links is one of the link model" in capsys.readouterr().err


@pytest.mark.parametrize(("more", "latency_s"), [([], 4e6), ([(0, 2), (2, 1)], 2e-6)])
def test_a_way_that_takes_days_is_a_way(more, latency_s):
    """Latencies are held as whole numbers, which must not overflow; what is shorter is still taken."""
    links = (FabricLink(0, 1, 1e9, 4e6), *(FabricLink(*ends, 1e9, 1e-6) for ends in more))
    topology = Topology("far", (graph_dimension(Fabric(3 if more else 2, (), links)),), 0.0)
    assert links_of(topology).routes(np.array([0]), np.array([1])).latency_s.tolist() == [latency_s]
