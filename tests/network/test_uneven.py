"""Networks where it matters where a group lies: graphs, dragonflies, slow and broken links.

Routes are checked against networkx, loads against routes one by one, and numbers against paper and pencil.
"""

import math
from dataclasses import replace

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import changed, dragonflies, fabrics, topologies

from scaleout.cluster.topology.dimension import edges_of, graph_dimension, num_nodes
from scaleout.cluster.topology.fabric import fabric_of
from scaleout.cluster.topology.faults import LinkChange
from scaleout.cluster.topology.kinds.dragonfly import global_links_of_a_pair
from scaleout.cluster.topology.placement import arrange, place, siblings
from scaleout.cluster.topology.topology import Dimension, Topology, break_links, degrade_links
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta import cost as alpha_beta
from scaleout.network.alpha_beta.load import load_of
from scaleout.network.alpha_beta.lower_bound import lower_bound_s
from scaleout.network.collectives import ALGORITHMS, KINDS, schedule, transfers
from scaleout.network.collectives.rounds import TooManyMessagesError
from scaleout.network.flow import collective as link
from scaleout.network.flow.batched import _Collective
from scaleout.network.routes.links import links_of
from scaleout.network.routes.routing import Router, router
from scaleout.network.routes.symmetry import symmetry
from scaleout.testing.algorithms import likeness

ALPHA, BANDWIDTH = 1e-6, 25e9
N = 64e6
LINK = N / BANDWIDTH


def one(kind, size, *rest, **more):
    return Topology(kind, (Dimension(kind, size, BANDWIDTH, ALPHA, *rest, **more),))


def graph(num_ranks, switches, pairs, speed=BANDWIDTH):
    links = [(a, b, speed, ALPHA) for a, b in pairs]
    return Topology("graph", (graph_dimension(fabric_of(num_ranks, switches, links)),))


def cost(topology, kind, algorithm, ranks=None):
    """Time under alpha-beta and under link, which must not be below the lower bound."""
    ranks = range(topology.num_ranks) if ranks is None else ranks
    placement = place(topology, ranks)
    charged = alpha_beta.collective_cost(kind, N, placement, algorithm).time_s
    found = link.collective_cost(kind, N, links_of(topology), ranks, algorithm).time_s
    assert min(charged, found) >= lower_bound_s(kind, N, placement) * (1 - 1e-9)
    return charged, found


# ---- Routes


@pytest.mark.parametrize(
    "dimension",
    [
        *(Dimension("ring", size, 1e9, 7e-7) for size in (2, 3, 7, 8)),
        Dimension("mesh", 6, 1e9, 1e-6),
        Dimension("switch", 5, 1e9, 1e-6),
        Dimension("fully_connected", 5, 1e9, 1e-6),
        Dimension("fat_tree", 24, 1e9, 1e-6, (4, 2, 3), (2.0, 3.0)),
        Dimension("fat_tree", 24, 1e9, 1e-6, (4, 2, 3), (2.0, 3.0), level_latency_s=(1e-6, 2e-6, 5e-6)),
    ],
    ids=lambda dimension: f"{dimension.kind}-{dimension.size}",
)
@pytest.mark.parametrize("few_hops", [0, 32])
def test_shortest_ways_over_the_edges_are_the_closed_forms(dimension, few_hops, monkeypatch):
    """Whether all distances are compared each time, or those that have shrunk."""
    monkeypatch.setattr("scaleout.network.routes.routing._FEW_HOPS", few_hops)
    router.cache_clear()
    n = dimension.size
    ends = tuple(axis.ravel()[np.arange(n * n) % (n + 1) != 0] for axis in np.indices((n, n)))
    closed, hops = dimension.structure.routes(dimension, ends)
    found, latency_s = router(dimension).ways(ends)
    assert sorted(zip(*map(np.ndarray.tolist, closed), strict=True)) == sorted(
        zip(*map(np.ndarray.tolist, found), strict=True)
    )
    assert latency_s == pytest.approx(dimension.latency_of(np.broadcast_to(hops, n * n - n)), rel=1e-12)


@pytest.mark.parametrize("size", [3, 4, 7])
def test_a_ring_without_a_link_is_a_line(size):
    """As the shortest ways over its edges are, whichever link is broken, and whatever is slow besides."""
    ring = Dimension("ring", size, 1e9, 7e-7)
    ends = tuple(axis.ravel()[np.arange(size * size) % (size + 1) != 0] for axis in np.indices((size, size)))
    for a in range(size):
        link, slow = (a, (a + 1) % size), LinkChange(0, 0, ((a + 1) % size, (a + 2) % size), 0.5)
        topology = Topology("t", (ring,), changes=(LinkChange(0, 0, link, 0.0), slow))
        found = links_of(topology).routes(*ends)
        ways, latency_s = router(ring, (link,)).ways(ends)
        links = ways.port * size + ways.coordinate
        assert sorted(zip(*map(np.ndarray.tolist, found[:3]), strict=True)) == sorted(
            zip(*map(np.ndarray.tolist, (ways.message, links, ways.share)), strict=True)
        )
        assert found.latency_s == pytest.approx(latency_s, rel=1e-12)


def test_messages_that_cross_too_many_links_of_a_line_are_refused_before_they_are_listed():
    topology = Topology("t", (Dimension("ring", 9000, 1e9, 7e-7),), changes=(LinkChange(0, 0, (0, 1), 0.0),))
    ends = np.zeros(8999, np.int64), np.arange(1, 9000)
    with pytest.raises(TooManyMessagesError, match="along a line of 9,000 ranks cross its links 40,495,500 times"):
        links_of(topology).routes(*ends)


@given(fabrics(6))
def test_ways_over_a_graph_are_all_shortest_ways_and_split_evenly(fabric):
    """Against networkx: every node passes on in equal parts to the next hops on any shortest way."""
    dimension = graph_dimension(fabric)
    plain = networkx.Graph()
    for a, b, _, latency_s in fabric.links:
        plain.add_edge(a, b, weight=round(latency_s * 1e12) * 1000 + 1)
    edges = edges_of(dimension)
    for source in range(6):
        for target in set(range(6)) - {source}:
            local, latency_s = router(dimension).ways((np.array([source]), np.array([target])))
            found = {(p, at): share for _, p, at, share in zip(*map(np.ndarray.tolist, local), strict=True)}
            left = networkx.single_source_dijkstra_path_length(plain, target)
            share = {source: 1.0}
            for node in sorted(left, key=lambda node: -left[node]):
                hops = [n for n in plain[node] if left[n] + plain[node][n]["weight"] == left[node]]
                for hop in hops if node in share and node != target else ():
                    share[hop] = share.get(hop, 0.0) + share[node] / len(hops)
                    (edge,) = np.flatnonzero((edges.tails == node) & (edges.heads == hop))
                    passed = found.pop((edges.ports[edge], edges.coordinates[edge]))
                    assert passed == pytest.approx(share[node] / len(hops), abs=1e-9)
            assert not found
            assert latency_s[0] == pytest.approx(left[source] // 1000 * 1e-12, rel=1e-9)


@given(dragonflies(24))
def test_a_dragonfly_has_as_many_links_between_any_two_groups_and_takes_one(dimension):
    _, routers, groups = dimension.radices
    edges = edges_of(dimension)
    tails, heads = ((nodes - 24) // routers for nodes in (edges.tails, edges.heads))
    between = (edges.tails >= 24) & (edges.heads >= 24) & (tails != heads)
    pairs, counts = np.unique(np.stack((tails, heads))[:, between], axis=1, return_counts=True)
    assert pairs.shape[1] == groups * (groups - 1)
    assert set(counts.tolist()) <= {global_links_of_a_pair(dimension)}
    assert len({(port, place) for port, place in zip(edges.ports, edges.coordinates, strict=True)}) == len(edges.ports)
    assert networkx.is_connected(networkx.Graph(zip(edges.tails.tolist(), edges.heads.tolist(), strict=True)))
    local, _ = router(dimension).ways((np.array([0]), np.array([23])))
    far = set(zip(edges.ports[between].tolist(), edges.coordinates[between].tolist(), strict=True))
    shares = {(port, place): share for _, port, place, share in zip(*map(np.ndarray.tolist, local), strict=True)}
    assert sum(share for key, share in shares.items() if key in far) == pytest.approx(float(groups > 1))


def test_a_dragonfly_of_a_thousand_ranks_is_loaded_as_paper_and_pencil_say():
    """4 ranks a router, 8 routers, 33 groups, one link between groups: 32 x 32 messages on each.

    A router's local link carries what its ranks send to the other's 4 (16), what they send through the gateway's 4
    global links (4 ranks x 4 groups x 32), and what comes in for them the same way: 1040 in all. Ports carry 1055.
    """
    large = Topology("d", (Dimension("dragonfly", 1056, BANDWIDTH, ALPHA, (4, 8, 33), global_links=4),))
    whole = place(large, range(1056))
    (round_,) = schedule("all_to_all", whole, algorithm="direct").rounds
    load = load_of(round_, whole).seconds_per_byte[0].reshape(-1, 1056) * BANDWIDTH * 1056
    assert load[:2].max() == pytest.approx(1055)
    assert load[2:9].max() == pytest.approx(1040)
    assert load[9:].max() == pytest.approx(1024)
    charged, found = cost(large, "all_to_all", "direct")
    assert charged == pytest.approx(4 * ALPHA + 1055 / 1056 * LINK, rel=1e-9)  # 4 routers on the longest way
    assert found == pytest.approx(charged, rel=1e-9)


# ---- Numbers worked by hand


def test_an_oversubscribed_leaf_spine_as_tree_and_as_graph():
    """Two leaves of 4 ranks, 2 spines, links all alike: 2 : 1. A rank sends half its 8 shards to the other leaf.

    Up from a leaf go 4 x 4 shards over 2 links: 8 shards of n / 8 on each, n; a port sends 7/8 n.
    """
    tree = one("fat_tree", 8, (4, 2), (2.0,))
    pairs = [(rank, f"leaf{rank // 4}") for rank in range(8)]
    spines = graph(8, ["leaf0", "leaf1", "s0", "s1"], pairs + [(f"leaf{i}", f"s{j}") for i in (0, 1) for j in (0, 1)])
    for topology, hops in ((tree, 3), (spines, 4)):  # three switches, or four links
        for time_s in cost(topology, "all_to_all", "direct"):
            assert time_s == pytest.approx(hops * ALPHA + LINK, rel=1e-9)
        bound_s = lower_bound_s("all_to_all", N, place(topology, range(8)))
        assert bound_s == pytest.approx(LINK if hops == 4 else 7 / 8 * LINK)


def test_a_ring_step_takes_the_long_way_round_a_broken_link():
    """8 ranks in order, the link 7-0 broken: the message from 7 to 0 takes the 7 other links, backwards.

    Those links carry one message each way, so that bytes take as long as before, and each round has 7 hops.
    """
    ring = break_links(one("ring", 8), ["7-0"])
    charged, found = cost(ring, "all_reduce", "ring")
    assert charged == pytest.approx(14 * (7 * ALPHA + LINK / 8), rel=1e-9)
    # Where nobody waits for the slowest of a round, the long way's latency is met once in 8 hops round the ring.
    assert 14 * (14 / 8 * ALPHA + LINK / 8) <= found <= charged
    # Both ways at once: the two that go the long way double what a link carries; half a shard each.
    assert cost(ring, "all_reduce", "bidirectional_ring")[0] == pytest.approx(14 * (7 * ALPHA + LINK / 8), rel=1e-9)


def test_a_slow_link_holds_up_a_ring_and_nothing_else():
    ring = degrade_links(one("ring", 8), {"3-4": "5 GB/s"})
    charged, found = cost(ring, "all_reduce", "ring")
    assert charged == pytest.approx(14 * (ALPHA + 5 * LINK / 8), rel=1e-9)
    assert 14 * 5 * LINK / 8 <= found <= charged  # only who is behind the slow link waits for it
    assert place(ring, [0, 1, 2]).topology is not None  # on the line, yet not over the link
    assert cost(ring, "all_gather", "ring", [0, 1])[0] == pytest.approx(ALPHA + LINK / 2, rel=1e-9)


def test_an_all_to_all_on_a_long_ring_with_a_slow_link():
    """Routes pass a slow link as any other, so one rank's messages stand for all; else there are 4 x 10^9 crossings."""
    whole, slow = one("ring", 2048), degrade_links(one("ring", 2048), {"3-4": 0.5})
    found, plain = (
        alpha_beta.collective_cost("all_to_all", N, place(ring, range(2048)), "direct") for ring in (slow, whole)
    )
    assert plain.serialization_s == pytest.approx(2048 / 8 * LINK, rel=1e-9)
    assert (found.latency_s, found.serialization_s) == (plain.latency_s, 2 * plain.serialization_s)


def test_members_of_a_ring_that_drift_apart_are_not_looked_at_again_in_every_round(monkeypatch):
    """What is looked at grows with the messages: 240 ranks and 478 rounds, of which a third go on at a time."""
    counts = []
    monkeypatch.setattr(
        _Collective, "misses", lambda *given, whole=_Collective.misses: counts.append(1) or whole(*given)
    )
    cost(break_links(one("ring", 240), ["3-4"]), "all_reduce", "ring")
    assert 478 < len(counts) < 10 * 478


def test_an_all_to_all_on_a_torus_with_a_slow_and_with_a_broken_link():
    """4x4, 16 shards. On a ring of 4 each link carries 4^2 / 8 = 2 pairs, for 4 others each: 8 shards, n / 2.

    At half the bandwidth the slow link takes n. Broken, the row is a line: 2 x 2 pairs over its middle, 16 shards: n.
    """
    torus = Topology("torus", (Dimension("ring", 4, BANDWIDTH, ALPHA),) * 2)
    assert cost(torus, "all_to_all", "direct")[0] == pytest.approx(4 * ALPHA + LINK / 2)
    slow = degrade_links(torus, {"5-6": 0.5})
    for time_s in cost(slow, "all_to_all", "direct"):
        assert time_s == pytest.approx(4 * ALPHA + LINK, rel=1e-6)
    broken = break_links(torus, ["5-6"])
    for time_s in cost(broken, "all_to_all", "direct"):
        assert time_s == pytest.approx(5 * ALPHA + LINK, rel=1e-6)  # three hops in the row, two in a column
    # The row of the broken link is known apart from the others, which cost what they did.
    row, other = place(broken, range(4, 8)), place(broken, range(4))
    assert other == place(torus, range(4))
    assert alpha_beta.collective_cost("all_to_all", N, row, "direct").time_s == pytest.approx(3 * ALPHA + LINK)


def test_a_broken_link_of_a_full_mesh_is_detoured_over_all_others():
    """Between 0 and 1 three ways over two links: a third each; the links out of 0 and 1 carry 4/3 shards."""
    full = break_links(one("fully_connected", 5), ["0-1"])
    assert cost(full, "all_to_all", "direct")[0] == pytest.approx(2 * ALPHA + 4 / 3 * LINK / 5, rel=1e-9)


def test_a_switch_with_a_slow_port():
    slow = degrade_links(one("switch", 4), {"2-switch": 0.25})
    for time_s in cost(slow, "all_to_all", "direct"):
        assert time_s == pytest.approx(ALPHA + 4 * 3 / 4 * LINK, rel=1e-9)


def test_latencies_of_levels():
    """Leaves 1 us, spines 5 us: within a leaf 1 us, across 1 + 5 + 1."""
    tree = one("fat_tree", 8, (4, 2), (1.0,), level_latency_s=(1e-6, 5e-6))
    assert alpha_beta.send_cost(N, tree, source=0, destination=3).time_s == pytest.approx(1e-6 + LINK)
    assert alpha_beta.send_cost(N, tree, source=0, destination=5).time_s == pytest.approx(7e-6 + LINK)
    assert cost(tree, "all_to_all", "direct")[0] == pytest.approx(7e-6 + 7 / 8 * LINK)


# ---- Laws

each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=lambda a: a.name)


@st.composite
def cases(draw):
    """Any topology and a group in it: ranks at equal distances, all of them, or any."""
    topology = draw(topologies())
    total = topology.num_ranks
    m = draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0]))
    stride = draw(st.sampled_from([d for d in range(1, total // m + 1) if total // m % d == 0]))
    first = m * stride * draw(st.integers(0, total // (m * stride) - 1)) + draw(st.integers(0, stride - 1))
    every = st.lists(st.integers(0, total - 1), min_size=1, max_size=8, unique=True)
    return topology, draw(st.one_of(st.just(list(range(first, first + m * stride, stride))), every))


@each_algorithm
@given(case=cases())
@settings(max_examples=40)
def test_no_answer_is_below_the_wire_and_the_models_are_near(algorithm, case):
    topology, ranks = case
    placement = place(topology, ranks)
    for kind in KINDS:
        if placement.num_ranks > 1 and algorithm.supports(kind, placement) is None:
            bound_s = lower_bound_s(kind, N, placement) * (1 - 1e-9)
            charged = alpha_beta.collective_cost(kind, N, placement, algorithm.name)
            found = link.collective_cost(kind, N, links_of(topology), ranks, algorithm.name)
            assert 0 < bound_s < math.inf
            assert charged.serialization_s >= bound_s
            assert bound_s <= found.time_s
            assert all(0 < use.utilisation <= 1 + 1e-9 for use in found.busiest_links)


@each_algorithm
@given(case=cases())
@settings(max_examples=25)
def test_loads_equal_brute_force(algorithm, case):
    """Every message of the group and its siblings over its links, one by one, whatever is cached or alike."""
    topology, ranks = case
    placement = place(topology, ranks)
    if placement.topology is None or placement.num_ranks == 1:
        return
    links = links_of(topology)
    groups = siblings(topology, ranks)
    for kind in KINDS:
        if algorithm.supports(kind, placement) is not None:
            continue
        for round_ in schedule(kind, placement, algorithm=algorithm.name).rounds:
            busy, latency_s, passed = np.zeros(len(links)), 0.0, set()
            mine = np.zeros(len(links), bool)
            for group in groups:
                where, order = arrange(topology, group)
                for source, destination, weight in zip(*transfers(round_, where), strict=True):
                    routes = links.routes(np.array([order[source]]), np.array([order[destination]]))
                    like = likeness(round_.pattern, group, source, destination)
                    fresh = np.array([like is None or (link, like) not in passed for link in routes.links.tolist()])
                    passed |= {(link, like) for link in routes.links.tolist()}
                    np.add.at(busy, routes.links, routes.shares * weight * fresh)
                    if set(group) == set(ranks):
                        mine[routes.links] = True
                        latency_s = max(latency_s, routes.latency_s[0])
            load = load_of(round_, placement)
            used = np.flatnonzero(mine)
            assert load.latency_s == pytest.approx(latency_s, rel=1e-9)
            assert load.busiest_s_per_byte == pytest.approx((busy[used] / links.bytes_per_s(used)).max(), rel=1e-6)


@given(case=cases())
@settings(max_examples=60)
def test_messages_that_enter_no_line_with_a_broken_link_take_their_routes_as_if_all_were_whole(case):
    topology, _ = case
    ranks = np.arange(topology.num_ranks)
    everyone = np.repeat(ranks, len(ranks)), np.tile(ranks, len(ranks))
    whole, found = links_of(replace(topology, changes=())), links_of(topology)
    broken = {(change.dimension, change.line) for change in topology.changes if not change.factor}
    before, after = whole.routes(*everyone), found.routes(*everyone)
    assert (found.speeds.ravel()[after.links] > 0).all()
    for message in range(len(everyone[0])):
        links, shares = (column[before.messages == message] for column in (before.links, before.shares))
        ports, at = np.divmod(links, len(ranks))
        entered = set()
        for port, rank in zip(ports.tolist(), at.tolist(), strict=True):
            dimension = whole.ports[port].dimension
            weight = math.prod(topology.shape[:dimension])
            entered.add((dimension, rank - rank // weight % topology.shape[dimension] * weight))
        if not entered & broken:
            now = (column[after.messages == message].tolist() for column in (after.links, after.shares))
            assert sorted(zip(*now, strict=True)) == sorted(zip(links.tolist(), shares.tolist(), strict=True))
            assert after.latency_s[message] == before.latency_s[message]


@given(cases())
@settings(max_examples=60)
def test_turns_of_uneven_topologies_take_links_to_their_like(case):
    """A digit that may turn takes each message to one that loads turned links by as much."""
    topology, _ = case
    links = links_of(topology)
    found = symmetry(topology, [np.zeros(topology.num_ranks, np.int64)])
    ranks = np.arange(topology.num_ranks)
    everyone = np.repeat(ranks, len(ranks)), np.tile(ranks, len(ranks))
    routes = links.routes(*everyone)
    load = np.bincount(routes.links, routes.shares, minlength=len(links)).reshape(-1, topology.num_ranks)
    for port, carried in zip(links.ports, load, strict=True):
        if port.span == 1:
            assert carried[found.representatives(ranks)] == pytest.approx(carried)


@given(st.data())
@settings(max_examples=40)
def test_groups_that_lie_alike_share_a_placement(data):
    """Switches times a graph: groups across the graph that differ in their line only cost the same."""
    fabric = data.draw(fabrics(4))
    topology = Topology("pods", (Dimension("switch", 3, BANDWIDTH, ALPHA), graph_dimension(fabric)))
    assert len({place(topology, range(rail, 12, 3)) for rail in range(3)}) == 1
    assert len({place(topology, range(3 * node, 3 * node + 3)) for node in range(4)}) == 1
    assert place(topology, [0, 3]).topology is not None


def test_groups_that_turns_of_a_dragonfly_map_onto_each_other_share_a_placement():
    """4 ranks a router, 4 routers of 2 global links a group, 8 groups: of groups of 8 ranks all are alike, of their
    rails those of routers 0 and 2, and of 1 and 3, as these have other global links."""
    topology = one("dragonfly", 128, (4, 4, 8), global_links=2)
    assert len({place(topology, range(first, first + 8)) for first in range(0, 128, 8)}) == 1
    rails = [place(topology, range(first, 128, 8)) for first in range(8)]
    assert len(set(rails[:4])) == len(set(rails[4:])) == 1
    assert rails[0] != rails[4]


@given(st.sampled_from([12, 16, 18, 24, 32]).flatmap(dragonflies), st.data())
@settings(max_examples=150)
def test_turned_groups_of_a_dragonfly_load_links_as_where_they_are(dimension, data):
    topology = Topology("dragonfly", (dimension,))
    n = dimension.size
    m = data.draw(st.sampled_from([d for d in range(2, n + 1) if n % d == 0]))
    stride = data.draw(st.sampled_from([d for d in range(1, n // m + 1) if n // m % d == 0]))
    first = m * stride * data.draw(st.integers(0, n // (m * stride) - 1)) + data.draw(st.integers(0, stride - 1))
    every = st.lists(st.integers(0, n - 1), min_size=2, max_size=6, unique=True)
    regular = list(range(first, first + m * stride, stride))
    turned, order = arrange(topology, data.draw(st.one_of(st.just(regular), every)))
    in_place = replace(turned, ranks=order)
    for kind, algorithm in (("all_to_all", "direct"), ("all_gather", "ring")):
        for round_ in schedule(kind, turned, algorithm=algorithm).rounds:
            found, wanted = load_of(round_, turned), load_of(round_, in_place)
            assert found.latency_s == wanted.latency_s
            assert found.busiest_s_per_byte == pytest.approx(wanted.busiest_s_per_byte, rel=1e-12)


# ---- What has no way


@pytest.mark.parametrize(
    ("topology", "broken", "ends", "words"),
    [
        (one("mesh", 6), ["2-3"], (1, 4), "no way is left from rank 1 to rank 4 along dimension 0 (mesh)"),
        (one("ring", 6), ["2-3", "5-0"], (0, 4), "broken there are links 0-5, 2-3"),
        (one("switch", 4), ["2-switch"], (2, 0), "broken there is link 2-switch; keep the link, degrade it instead"),
        (one("ring", 2), ["0-1"], (0, 1), "broken there is link 0-1"),
        (Topology("t", (Dimension("ring", 2, 1e9, 0.0),) * 2), ["2-3"], (2, 3), "from rank 2 to rank 3"),
    ],
)
def test_a_route_through_a_broken_link_is_refused_by_name(topology, broken, ends, words):
    with pytest.raises(ConfigError) as caught:
        alpha_beta.send_cost(N, break_links(topology, broken), source=ends[0], destination=ends[1])
    assert words in str(caught.value)


def test_a_line_that_falls_apart_is_refused_before_routes_are_looked_for(monkeypatch):
    """Routes to all 4,096 ranks would take seconds to find."""
    monkeypatch.setattr(Router, "_shortest", lambda *_: pytest.fail("looks for routes"))
    tree = break_links(one("fat_tree", 4096, (32, 128), (1.0,)), ["7-switch-1-0"])
    with pytest.raises(ConfigError, match="no way is left from rank 0 to rank 7 along dimension 0"):
        cost(tree, "all_gather", "direct", [0, 1, 7, 9])


@given(st.integers(1, 20).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.tuples(*(st.integers(0, n - 1),) * 2)))))
def test_the_parts_of_a_line_are_those_of_networkx(case):
    num_nodes, pairs = case
    plain = networkx.Graph(pairs)
    plain.add_nodes_from(range(num_nodes))
    tails, heads = np.array(pairs, np.int64).reshape(-1, 2).T
    edges = edges_of(Dimension("ring", 2, 1e9, 0.0))._replace(tails=tails, heads=heads)
    found = Router(Dimension("ring", 2, 1e9, 0.0), edges, np.zeros(num_nodes + 1, np.int64)).part
    assert {node: min(part) for part in networkx.connected_components(plain) for node in part} == dict(enumerate(found))


def test_ranks_that_do_not_need_the_broken_link_go_on():
    assert cost(break_links(one("mesh", 6), ["2-3"]), "all_gather", "direct", [0, 1, 2])[0] > 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("0-2", "no link joins these two; rank 0 has the links 0-1, 0-3, 0-4, 0-12"),
        ("0_1", "does not name two nodes of the topology; write it like 0-1, with ranks by number (0 to 15)"),
        ("0-16", "does not name two nodes"),
        ("2:0-1", "there is no dimension 2; give 0 to 1"),
        ("0-5", "no link joins these two"),
    ],
)
def test_links_that_are_not_there_are_refused(name, words):
    torus = Topology("torus", (Dimension("ring", 4, 1e9, 0.0),) * 2)
    for change in (lambda: break_links(torus, [name]), lambda: degrade_links(torus, {name: 0.5})):
        with pytest.raises(ConfigError) as caught:
            change()
        assert words in str(caught.value)


def test_links_of_several_dimensions_and_lines_are_told_apart():
    pods = Topology("pods", (Dimension("switch", 2, 1e9, 0.0), Dimension("switch", 3, 1e9, 0.0)))
    with pytest.raises(ConfigError, match="is in several dimensions; write 0:5-switch for the first"):
        break_links(pods, ["5-switch"])
    (change,) = break_links(pods, ["1:5-switch"]).changes
    assert (change.dimension, change.line, change.ends) == (1, 1, (2, 3))
    rails = Topology("rails", (Dimension("switch", 2, 1e9, 0.0), Dimension("fat_tree", 4, 1e9, 0.0, (2, 2), (1.0,))))
    with pytest.raises(
        ConfigError, match="is on several lines; name a rank on its line, such as switch-1-0-switch-2-0@0"
    ):
        break_links(rails, ["switch-1-0-switch-2-0"])
    assert break_links(rails, ["switch-1-0-switch-2-0@3"]).changes[0].line == 1


@pytest.mark.parametrize("to", [0, -1, 1.5, "0 GB/s", "2 GB/s", "fast", float("nan")])
def test_links_do_not_get_faster_or_vanish(to):
    with pytest.raises(ConfigError, match="link '0-1'"):
        degrade_links(Topology("ring", (Dimension("ring", 4, 1e9, 0.0),)), {"0-1": to})


@given(topologies(even=True), st.data())
@settings(max_examples=30)
def test_a_later_change_takes_the_place_of_an_earlier_one(topology, data):
    number = data.draw(st.integers(0, len(topology.dimensions) - 1))
    edges = edges_of(topology.dimensions[number])
    assert num_nodes(topology.dimensions[number]) >= topology.shape[number]
    if len(edges.tails):
        worse = data.draw(changed(topology))
        again = data.draw(changed(worse))
        assert len(again.changes) <= len(worse.changes) + 2
        assert len({(change.dimension, change.line, change.ends) for change in again.changes}) == len(again.changes)
