"""Switches that reduce and multicast: by hand, against the links, against what NCCL was published to reach.

The contracts of all algorithms (never faster than the lower bound, closed forms as brute force, both networks alike)
are where those of the others are; their random topologies have such switches as well.
"""

import dataclasses
import json
import sys

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_collectives import meshes

from scaleout.cli import main
from scaleout.cluster.topology.placement import place, siblings
from scaleout.cluster.topology.topology import Dimension, Topology, degrade_links, load_topology
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta import cost as alpha_beta
from scaleout.network.alpha_beta.lower_bound import lower_bound_s
from scaleout.network.collectives import bus_bandwidth, candidates
from scaleout.network.flow import collective as link
from scaleout.network.flow.demand import demand_of, messages_of
from scaleout.network.routes.links import links_of
from scaleout.network.routes.symmetry import Symmetry, symmetry

ALPHA, BANDWIDTH = 1e-6, 50e9
N = 64e6
LINK = N / BANDWIDTH
SWITCH = Dimension("switch", 8, BANDWIDTH, ALPHA, in_network_reduction=True)
TREE = Dimension("fat_tree", 8, BANDWIDTH, ALPHA, (4, 2), (4.0,), in_network_reduction=True)
"""Two leaves of four ranks; what leaves a leaf has the bandwidth of one port."""


def on(*dimensions):
    return Topology("any", dimensions)


def cost(topology, kind, algorithm="in_network", ranks=None):
    """What both networks charge, which here is the same."""
    ranks = list(range(topology.num_ranks)) if ranks is None else ranks
    placement = place(topology, ranks)
    charged = alpha_beta.collective_cost(kind, N, placement, algorithm)
    assert charged.serialization_s >= lower_bound_s(kind, N, placement) * (1 - 1e-9)
    found = link.collective_cost(kind, N, links_of(topology), ranks, charged.algorithm)
    assert found.time_s == pytest.approx(charged.time_s, rel=1e-9)
    return charged


# ---- By hand


@pytest.mark.parametrize(
    ("kind", "buffers"),
    [("all_reduce", 1), ("reduce_scatter", 7 / 8), ("all_gather", 7 / 8), ("broadcast", 1), ("reduce", 1)],
)
def test_a_switch_that_reduces_worked_by_hand(kind, buffers):
    """A rank sends its buffer once and receives the sum once: 4/7 of a ring's all-reduce of 8, at its bound."""
    topology = on(SWITCH)
    assert cost(topology, kind).time_s == pytest.approx(ALPHA + buffers * LINK, rel=1e-12)
    assert lower_bound_s(kind, N, place(topology, range(8))) == pytest.approx(buffers * LINK, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "buffers"),
    [("all_reduce", 1), ("reduce_scatter", 7 / 8), ("all_gather", 7 / 8), ("broadcast", 1), ("reduce", 1)],
)
def test_a_tree_that_reduces_hides_its_oversubscription(kind, buffers):
    """What leaves a leaf of four ranks is one sum, so the fourth part of their bandwidth is enough for it."""
    assert cost(on(TREE), kind).time_s == pytest.approx(3 * ALPHA + buffers * LINK, rel=1e-12)
    plain = on(dataclasses.replace(TREE, in_network_reduction=False))
    assert cost(plain, "all_reduce", "direct").serialization_s == pytest.approx(2 * 4 * 4 / 8 * LINK, rel=1e-12)


def test_groups_that_share_a_bundle_each_send_their_own_sum():
    """Ranks 0, 2, 4, 6 and 1, 3, 5, 7: two groups with two ranks on each leaf."""
    assert cost(on(TREE), "all_reduce", ranks=[0, 2, 4, 6]).serialization_s == pytest.approx(2 * LINK, rel=1e-12)
    routed = degrade_links(on(TREE), {"3-switch-1-0": 0.9})
    assert cost(routed, "all_reduce", ranks=[1, 3, 5, 7]).serialization_s == pytest.approx(2 * LINK, rel=1e-12)
    irregular = cost(on(TREE), "all_reduce", ranks=[0, 1, 2, 4])  # alone, and a sum for each leaf
    assert irregular.serialization_s == pytest.approx(LINK, rel=1e-12)


def test_a_slow_port_of_a_reducing_switch():
    topology = degrade_links(on(SWITCH), {"3-switch": 0.5})
    assert cost(topology, "all_reduce").time_s == pytest.approx(ALPHA + 2 * LINK, rel=1e-12)


def test_hierarchical_reduces_in_the_switches_that_can():
    """A port into NVSwitch carries 7/8 n up and 1/8 n down, then back: n each way. A rail carries 2 1/2 n/8."""
    inner = Dimension("switch", 8, BANDWIDTH, ALPHA, in_network_reduction=True)
    outer = Dimension("switch", 2, BANDWIDTH, ALPHA)
    found = cost(on(inner, outer), "all_reduce", "hierarchical")
    assert found.serialization_s == pytest.approx(LINK, rel=1e-9)
    assert found.latency_s >= 4 * ALPHA
    plain = on(dataclasses.replace(inner, in_network_reduction=False), outer)
    assert cost(plain, "all_reduce", "hierarchical").serialization_s == pytest.approx(14 / 8 * LINK, rel=1e-9)
    assert alpha_beta.collective_cost("all_reduce", N, place(on(inner, outer), range(16))).algorithm == "hierarchical"


def test_the_bound_of_a_switch_that_only_forwards_is_that_of_ranks_that_add_up():
    plain = place(on(dataclasses.replace(SWITCH, in_network_reduction=False)), range(8))
    assert lower_bound_s("all_reduce", N, plain) == pytest.approx(14 / 8 * LINK, rel=1e-12)


# ---- Laws


@given(mesh=meshes(), kind=st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"]))
@settings(max_examples=60, deadline=None)
def test_only_switches_that_can_reduce(mesh, kind):
    topology, groups = mesh
    placement = place(topology, groups[0])
    assume(placement.num_ranks > 1)
    offered = "in_network" in [algorithm.name for algorithm in candidates(kind, placement)]
    assert offered == (len(placement.extents) == 1 and placement.extents[0].dimension.in_network_reduction)
    if offered:
        plain = [dataclasses.replace(dimension, in_network_reduction=False) for dimension in topology.dimensions]
        without = alpha_beta.collective_cost(kind, N, place(on(*plain), groups[0]))
        assert alpha_beta.collective_cost(kind, N, placement).time_s <= without.time_s


@given(mesh=meshes(), kind=st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"]), data=st.data())
@settings(max_examples=60, deadline=None)
def test_steady_flows_of_combined_messages_are_the_same_folded(mesh, kind, data):
    """One group that stands for others loads the links that stand for others as all groups load them."""
    topology, groups = mesh
    placement = place(topology, groups[0])
    names = [a.name for a in candidates(kind, placement) if a.name in ("in_network", "hierarchical")]
    assume(placement.num_ranks > 1 and names)
    algorithm, links = data.draw(st.sampled_from(names)), links_of(topology)
    family = np.full(topology.num_ranks, -1)
    together = siblings(topology, groups[0])
    for number, members in enumerate(together):
        family[list(members)] = number
    found = symmetry(topology, [family], messages=messages_of(topology, together, kind, algorithm))
    loads = []
    for each in (Symmetry(), found):
        (flows,) = demand_of(links, each, together, kind, algorithm).rounds
        loads.append(np.bincount(*flows.pairs[1:], minlength=len(links)))
    used = np.flatnonzero(loads[0])
    ports, ranks = np.divmod(used, topology.num_ranks)
    assert (loads[1][ports * topology.num_ranks + found.representatives(ranks)] == loads[0][used]).all()


# ---- NCCL's NVLS, published


@pytest.mark.parametrize(
    ("ranks", "bus_gb_per_s", "source"),
    [
        (5, 2 * 4 / 5 * 258, "NVIDIA/nccl issue 1455, H100"),
        (6, 2 * 5 / 6 * 265, "NVIDIA/nccl issue 1455, H100"),
        (7, 2 * 6 / 7 * 270, "NVIDIA/nccl issue 1455, H100"),
        (8, 2 * 7 / 8 * 273, "NVIDIA/nccl issue 1455, H100"),
        (8, 476, "NVIDIA/nccl-tests issue 290, H100"),
        (8, 482.26, "stas00/ml-engineering, network/benchmarks, H200"),
    ],
)
def test_nvls_reaches_its_published_bandwidth(ranks, bus_gb_per_s, source):
    """One rate, from the 480 GB/s that NVIDIA gives for 8 GPUs, holds for fewer: within 2%."""
    size = 16 * 2.0**30
    found = alpha_beta.collective_cost("all_reduce", size, place(load_topology("dgx-h200-nvls-1"), range(ranks)))
    assert (found.algorithm, found.protocol) == ("in_network", "NVLS"), source
    reached = bus_bandwidth("all_reduce", size, time_s=found.time_s, num_ranks=ranks)
    assert reached == pytest.approx(bus_gb_per_s * 1e9, rel=0.02), source


def test_rings_of_the_same_node_keep_their_protocols():
    with_nvls, without = load_topology("dgx-h200-nvls-1"), load_topology("dgx-h200-1")
    for size in (1024.0, 2.0**20, 2.0**30):
        ring = alpha_beta.collective_cost("all_reduce", size, place(with_nvls, range(8)), "ring")
        assert ring == alpha_beta.collective_cost("all_reduce", size, place(without, range(8)), "ring")
    small = alpha_beta.collective_cost("all_reduce", 1024.0, place(with_nvls, range(8)))
    assert (small.algorithm, small.protocol) == ("ring", "LL")


# ---- What is wrong

FILE = """
source: made up
dimensions:
  - {{kind: {kind}, size: 4, bandwidth: 1 GB/s, bandwidth_source: x, latency: 1 us, latency_source: x, {more}}}
"""


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        ("ring", "in_network_reduction: true, in_network_reduction_source: x", "a ring has no switches that reduce"),
        ("graph", "links: [{between: [0, 1]}, {between: [1, 2]}, {between: [2, 3]}], in_network_reduction: true, "
         "in_network_reduction_source: x", "a graph has no switches that reduce"),
    ],
)  # fmt: skip
def test_what_cannot_reduce_is_refused(tmp_path, kind, more, message):
    (tmp_path / "mine.yaml").write_text(FILE.format(kind=kind, more=more))
    with pytest.raises(ConfigError, match=message):
        load_topology(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(("name", "ranks"), [("dgx-h200-1", 8), ("torus-8x16", 8), ("dgx-h200-16", 128)])
def test_the_algorithm_is_refused_where_no_switch_reduces(name, ranks):
    with pytest.raises(ConfigError, match="needs a group along one dimension whose switches reduce"):
        alpha_beta.collective_cost("all_reduce", N, place(load_topology(name), range(ranks)), "in_network")


def test_a_leaf_spine_is_read_and_shown(tmp_path, monkeypatch, capsys):
    more = "radices: [2, 2], oversubscription: [2], in_network_reduction: true, in_network_reduction_source: a sheet"
    (tmp_path / "mine.yaml").write_text(FILE.format(kind="leaf_spine", more=more))
    monkeypatch.setattr(sys, "argv", ["scaleout", "show", str(tmp_path / "mine.yaml"), "--json"])
    main()
    facts = json.loads(capsys.readouterr().out)
    assert facts["dimensions"][0]["in_network_reduction"] is True
    assert "in_network_reduction: a sheet" in facts["source"]
