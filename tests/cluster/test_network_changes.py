"""Changes of a network in words: what they make of a topology, that they break no law, and what they refuse."""

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.cluster.topology.what_if import NetworkChanges, change_network, dimensions_named
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta.cost import collective_cost, collective_costs
from scaleout.network.alpha_beta.lower_bound import lower_bound_s


def changed(topology, **changes):
    found = load_topology(topology) if isinstance(topology, str) else topology
    return change_network(found, NetworkChanges.of(**changes))


def without_words(topology):
    dimensions = tuple(replace(each, link_type="") for each in topology.dimensions)
    return replace(topology, altered=(), name="", source="", dimensions=dimensions)


@pytest.mark.parametrize("nodes", [2, 4, 32, 128, 256])
def test_nodes_are_those_of_the_shipped_file(nodes):
    assert without_words(changed("dgx-h200-16", nodes=nodes)) == without_words(load_topology(f"dgx-h200-{nodes}"))


def test_nodes_of_an_option_are_those_of_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("like: dgx-h200-16-fat-tree\nnodes: 32\n")
    assert without_words(changed("dgx-h200-16-fat-tree", nodes=32)) == without_words(load_topology(path))


def test_a_tapered_switch_is_the_tree_that_is_written_by_hand(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        """
like: dgx-h200-16
dimensions:
  - {kind: switch, size: 8, link: nvlink, bandwidth: 376 GB/s, bandwidth_source: x, latency: 0.6 us, latency_source: x}
  - kind: leaf_spine
    size: 16
    radices: [4, 4]
    oversubscription: [2]
    link: infiniband
    bandwidth: 400 Gb/s
    bandwidth_source: x
    latency: [2.7 us, 0 s, 0 s] # of the port with its card, of a leaf, of a spine
    latency_source: x
"""
    )
    by_hand = load_topology(path)
    assert without_words(changed("dgx-h200-16", taper={"infiniband": "2:1@4"})) == without_words(by_hand)
    full = changed("dgx-h200-16", taper={1: "1:1@4"})
    assert without_words(changed(full, taper={"fat_tree": "2:1"})) == without_words(by_hand)
    (tree,) = by_hand.dimensions[1:]
    assert tree.latency_of(1) == tree.latency_of(3) == 2.7e-6


@given(st.sampled_from([1, 1.5, 2, 4]), st.sampled_from([1, 2, 3]), st.integers(10, 30))
@settings(max_examples=30, deadline=None)
def test_a_taper_takes_the_place_of_the_one_that_the_tree_has(before, after, power):
    """It says what the network is, not how many times as narrow: of a tree of 4:1, 2:1 is the wider one."""
    full = changed("dgx-h200-16", taper={1: "1:1@4"})
    once = changed(full, taper={1: f"{after}:1"})
    twice = changed(changed(full, taper={1: f"{before}:1"}), taper={1: f"{after}:1"})
    assert without_words(once) == without_words(twice)
    own = load_topology("dgx-h200-16-fat-tree")  # 2:1
    assert without_words(changed(own, taper={1: "2:1"})) == without_words(own)
    there, here = (times("all_to_all", 1 << power, each) for each in (own, changed(own, taper={1: f"{after}:1"})))
    assert all((here[name] <= there[name] * (1 + 1e-12)) or after > 2 for name in there)
    assert all((here[name] >= there[name] * (1 - 1e-12)) or after < 2 for name in there)


KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
SHIPPED = ["dgx-h200-16", "dgx-h200-16-fat-tree", "dgx-h200-16-torus", "torus-8x16", "a100-vtrain-64", "dgx-b200-1"]


def costs(kind, size, topology):
    return collective_costs(kind, size, place(topology, range(topology.num_ranks)))


def times(kind, size, topology):
    return {name: cost.time_s for name, cost in costs(kind, size, topology).items()}


@given(st.sampled_from(SHIPPED), st.sampled_from(KINDS), st.integers(0, 2**31), st.floats(1, 8), st.data())
def test_more_bandwidth_never_makes_a_collective_slower(name, kind, size, factor, data):
    """On bare links by no algorithm. A library takes the protocol that its own model prefers, which may be worse."""
    topology = load_topology(name)
    number = data.draw(st.integers(0, len(topology.dimensions) - 1))
    for library in dict.fromkeys((None, topology.library)):
        slow = replace(topology, library=library)
        fast = changed(slow, bandwidth={str(number): f"{factor:.6f}x"})
        before, after = costs(kind, size, slow), costs(kind, size, fast)
        for algorithm, cost in before.items():
            same = after[algorithm].protocol == cost.protocol
            assert after[algorithm].time_s <= cost.time_s * (1 + 1e-12 if same else 1.05), algorithm


def test_a_library_may_choose_worse_on_faster_links():
    """The counter-example to the law: NCCL's model expects Simple to win on a faster NVLink, and LL128 would have."""
    topology = load_topology("dgx-h200-16-torus")
    faster = changed(topology, bandwidth={"nvlink": "5.537x"})
    before, after = (costs("reduce_scatter", 586963593, each)["hierarchical"] for each in (topology, faster))
    assert (before.protocol, after.protocol) == ("LL128", "Simple")
    assert after.time_s == pytest.approx(1.029 * before.time_s, rel=1e-3)


@given(
    st.sampled_from(["dgx-h200-16", "switch-128", "a100-vtrain-64"]),
    st.sampled_from(KINDS),
    st.integers(0, 31),
    st.sampled_from([2, 4, 8]),
    st.floats(1, 8),
)
def test_a_taper_never_makes_a_collective_faster(name, kind, power, leaf, ratio):
    full = load_topology(name)
    outer = str(len(full.dimensions) - 1)
    tree = changed(full, taper={outer: f"1:1@{leaf}"})
    tapered = changed(full, taper={outer: f"{ratio:.6f}:1@{leaf}"})
    found = [times(kind, 1 << power, topology) for topology in (full, tree, tapered)]
    for algorithm in found[0]:
        assert found[0][algorithm] <= found[1][algorithm] * (1 + 1e-12)
        assert found[1][algorithm] <= found[2][algorithm] * (1 + 1e-12)


def test_latency_and_bandwidth_reach_levels_and_listed_links():
    dragonfly = changed("dragonfly-1056", latency={"dragonfly": "2x"}, bandwidth={"0": "100 Gb/s"}).dimensions[0]
    assert dragonfly.level_latency_s == pytest.approx((700e-9, 26e-9, 1e-6))
    assert dragonfly.bytes_per_s == 12.5e9
    old, new = load_topology("graph-8").dimensions[0], changed("graph-8", bandwidth={"graph": "0.5x"}).dimensions[0]
    assert [link.bytes_per_s for link in new.fabric.links] == [link.bytes_per_s / 2 for link in old.fabric.links]
    assert new.bytes_per_s == old.bytes_per_s / 2


def test_a_name_means_every_dimension_that_has_it():
    torus = load_topology("dgx-h200-16-torus")
    assert dimensions_named(torus, "infiniband") == dimensions_named(torus, "ring") == [1, 2]
    assert dimensions_named(torus, "all") == [0, 1, 2]
    assert dimensions_named(torus, "0") == dimensions_named(torus, "nvlink") == [0]


def shares(topology):
    """Rank to what is left of its port in the outer dimension."""
    found = {}
    for change in topology.changes:
        assert change.dimension == 1
        found[change.line + 8 * change.ends[0]] = change.factor
    return found


def test_the_card_beside_takes_over():
    assert shares(changed("dgx-h200-2", nic_down=[5])) == {5: 1 / 2, 4: 1 / 2}
    assert shares(changed("dgx-h200-2", nic_down=[8, 9])) == dict.fromkeys((8, 9, 10, 11), 1 / 2)
    six_down = shares(changed("dgx-h200-2", nic_down=list(range(6))))
    assert six_down == dict.fromkeys(range(8), 1 / 4)


def test_a_card_that_is_down_makes_its_node_slower_and_no_other_links():
    whole, down = load_topology("dgx-h200-2"), changed("dgx-h200-2", nic_down=[5])
    rails = [[rank, rank + 8] for rank in range(8)]
    for rail in rails:
        before, after = (
            min(cost.time_s for cost in collective_costs("all_reduce", 2**30, place(topology, rail)).values())
            for topology in (whole, down)
        )
        assert after == pytest.approx(2 * before, rel=0.03) if rail[0] in (4, 5) else after == before


@given(
    st.sets(st.integers(0, 31), min_size=1, max_size=6),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast"]),
    st.integers(10, 30),
)
@settings(max_examples=40, deadline=None)
def test_channels_of_whole_nodes_are_as_few_everywhere_as_on_the_node_with_the_fewest(down, kind, power):
    """The order and the node of the ranks do not matter: NCCL takes the least number of channels of all ranks."""
    whole, everyone = load_topology("dgx-h200-4"), range(32)
    most = max(Counter(rank // 8 for rank in down).values())
    fewer = changed(whole, bandwidth={"infiniband": f"{1 - most / 8}x"})
    found = changed(whole, nic_down=sorted(down))
    without, as_many = (collective_cost(kind, 1 << power, place(each, everyone)) for each in (found, fewer))
    assert without.time_s == pytest.approx(as_many.time_s, rel=1e-12)
    assert without.algorithm == as_many.algorithm
    assert lower_bound_s(kind, 1 << power, place(found, everyone)) <= without.time_s * (1 + 1e-12)
    intact = [node for node in range(4) if not any(rank // 8 == node for rank in down)][:2]
    if len(intact) == 2:
        others = [rank for node in intact for rank in range(8 * node, 8 * node + 8)]
        assert collective_cost(kind, 1 << power, place(found, others)) == collective_cost(
            kind, 1 << power, place(whole, others)
        )


def test_messages_of_whole_nodes_go_through_the_cards_of_their_ranks():
    whole, down = load_topology("dgx-h200-2"), changed("dgx-h200-2", nic_down=[5])
    before, after = (collective_cost("all_to_all", 2**30, place(each, range(16))).time_s for each in (whole, down))
    assert after == pytest.approx(2 * before, rel=0.02)


def test_rate_of_a_rank_is_kept_where_it_was_given(tmp_path):
    """Of four fully connected ranks each link has a third of a rank's rate, of eight a seventh."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "source: x\ndimensions:\n  - {kind: ring, size: 2, bandwidth: 1 GB/s, bandwidth_source: x, latency: 1 us, "
        "latency_source: x}\n  - {kind: fully_connected, size: 4, bandwidth_per_rank: 210 GB/s, "
        "bandwidth_source: x, latency: 1 us, latency_source: x}\n"
    )
    assert load_topology(path).dimensions[1].bytes_per_s == 70e9
    assert changed(str(path), nodes=8).dimensions[1].bytes_per_s == 30e9
    assert changed(str(path), bandwidth={"1": "2x"}, nodes=8).dimensions[1].bytes_per_s == 60e9


def test_changes_are_told_and_can_be_given_again():
    changes = NetworkChanges.of(
        nodes=4, bandwidth={"infiniband": "2x"}, nic_down=3, degrade={"0:1-switch": 0.5}, broken=["0:0-switch"]
    )
    assert changes.words == (
        "nodes=4", "bandwidth infiniband=2x", "nic_down 3", "degrade 0:1-switch=0.5", "broken 0:0-switch",
    )  # fmt: skip
    assert " ".join(changes.options) == (
        "--nodes 4 --bandwidth infiniband=2x --nic-down 3 --degrade 0:1-switch=0.5 --break 0:0-switch"
    )
    assert changed("dgx-h200-2", nodes=4).altered == ("nodes=4",)
    topology = load_topology("dgx-h200-2")
    assert change_network(topology, NetworkChanges()) is topology


@pytest.mark.parametrize(
    ("topology", "changes", "message"),
    [
        ("dgx-h200-2", {"bandwith": {}}, "unknown change of the network 'bandwith'; did you mean 'bandwidth'?"),
        ("dgx-h200-2", {"bandwidth": {"infinband": "2x"}}, "has no dimension 'infinband'; did you mean 'infiniband'?"),
        ("dgx-h200-2", {"bandwidth": {"2": "2x"}}, "has no dimension '2'; give 0 to 1"),
        ("dgx-h200-2", {"bandwidth": {"1": "400"}}, "bandwidth 1=400: give a unit, such as '200 Gb/s', or a factor"),
        ("dgx-h200-2", {"bandwidth": {"1": 2}}, "bandwidth 1=2: give a unit, such as '200 Gb/s', or a factor, such as"),
        ("dgx-h200-2", {"bandwidth": {"1": "0x"}}, "a factor of 0; give one from"),
        ("dgx-h200-2", {"bandwidth": {"1": "1 parsec"}}, "bandwidth 1=1 parsec: '1 parsec': unknown unit 'parsec'"),
        ("dgx-h200-2", {"bandwidth": {"1": "0 Gb/s"}}, "a link carries 0.0 B/s"),
        ("dgx-h200-2", {"bandwidth": {"1": "2x", "all": "2x"}}, "bandwidth: 1 and all are both dimension 1; give one"),
        ("dgx-h200-2", {"bandwidth": "2x"}, "bandwidth: must map what is changed"),
        ("dgx-h200-2", {"bandwidth": {"1": None}}, "bandwidth: None is neither a text nor a number"),
        ("dgx-h200-2", {"latency": {"1": "-1 us"}}, "must be finite and not negative"),
        ("dgx-h200-2", {"taper": {"1": "2:1"}}, "a switch never blocks; say how many of its 2 ranks are below a leaf"),
        ("dgx-h200-2", {"taper": {"1": "2"}}, "'2' is no taper; write ports down and up of a switch, such as 2:1"),
        ("dgx-h200-2", {"taper": {"1": "1:2@4"}}, "'1:2' is no taper"),
        ("dgx-h200-16", {"taper": {"1": "2:1@5"}}, "leaves of 5 do not divide the 16 ranks"),
        ("dgx-h200-16", {"taper": {"1": "2:1@0"}}, "leaves of 0 do not divide the 16 ranks"),
        ("dgx-h200-16", {"taper": {"1": "2:1@x"}}, "'x' is no number of ranks of a leaf"),
        ("dgx-h200-16-fat-tree", {"taper": {"1": "2:1@4"}}, "the tree has leaves of 4; leave out @4"),
        ("dgx-h200-16-fat-tree", {"taper": {"1": "2:1,2:1"}}, "give a number of 1 or more for each level but the last"),
        ("torus-8x16", {"taper": {"1": "2:1"}}, "taper 1=2:1: a ring has no switches in levels"),
        ("graph-8", {"nodes": 4}, "nodes=4: topology 'graph-8' has 8 ranks and no nodes that there could be more of"),
        ("gb200-nvl72-1", {"nodes": 144}, "of several nodes, such as 'switch(72,nvlink5) x switch(2,ndr)'"),
        ("dgx-h200-16-fat-tree", {"nodes": 10}, "10 nodes are no multiple of the 4 below a switch of the top level"),
        ("dgx-h200-2", {"nodes": 0}, "nodes: 0 is no whole number above zero; give one"),
        ("dgx-h200-2", {"nodes": 1e3}, "nodes: 1000.0 is no whole number above zero"),
        ("dgx-h200-2", {"nodes": 10**6}, "give it at most"),
        ("dgx-h200-2", {"nic_down": [16]}, "rank 16 is not in topology 'dgx-h200-2'"),
        ("dgx-h200-2", {"nic_down": range(8)}, "no card is left in the node of ranks 0 to 7"),
        ("torus-8x16", {"nic_down": [3]}, "dimension 1, a ring, links ranks to their neighbours"),
        ("h200-node-4", {"nic_down": [3]}, "is one network without network cards between nodes"),
        (
            "dgx-h200-2",
            {"nic_down": [3], "broken": ["1:2-switch"]},
            "--break 1:2-switch and --nic-down, whose cards share it, are the",
        ),
        ("torus-8x16", {"degrade": {"0-1": 0.5}, "broken": ["1-0"]}, "--break 1-0 and --degrade 0-1=0.5 are the same"),
        ("torus-8x16", {"slow": {"x": 2}}, "--slow x=2: write a rank and a factor"),
    ],
)
def test_what_is_wrong_with_a_change_is_said(topology, changes, message):
    changes = {name: list(value) if isinstance(value, range) else value for name, value in changes.items()}
    with pytest.raises(ConfigError, match=re.escape(message)):
        changed(topology, **changes)


def test_nodes_of_a_network_with_slow_links_are_refused():
    slow = changed("dgx-h200-2", degrade={"0:1-switch": 0.5})
    with pytest.raises(ConfigError, match="nodes=4: topology 'dgx-h200-2' has slow or broken links or slow ranks"):
        changed(slow, nodes=4)


def test_a_latency_of_zero_has_no_proportion():
    tree = Dimension("fat_tree", 4, 1e9, 0.0, (2, 2), (1.0,), level_latency_s=(0.0, 1e-6))
    with pytest.raises(ConfigError, match="latency 0=1us: the latency is zero, so that levels and links"):
        changed(Topology("tree", (tree,)), latency={"0": "1us"})
