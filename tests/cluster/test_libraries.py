"""Who owns the cost of a call: a topology states what its links do, its library what a call costs."""

import functools
import math
from dataclasses import replace

import pytest

from scaleout.cluster.topology.backends import with_policy
from scaleout.cluster.topology.communication_library import Library, Protocol, Terms, load_library
from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.config import library
from scaleout.config.yaml_files import read_yaml
from scaleout.errors import ConfigError
from scaleout.network import collectives
from scaleout.network.alpha_beta.cost import collective_cost
from scaleout.simulation.options import SimulationOptions
from scaleout.study.provenance import provenance

SHIPPED = library.names("topology")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_topology_with_a_library_leaves_the_cost_of_a_call_to_it(name):
    found = load_topology(name)
    values = read_yaml(library.find("topology", name))
    if found.library is not None:
        assert "startup" not in values
        assert found.startup_s == found.library.startup_s


def mine(folder, *lines):
    path = folder / "mine.yaml"
    path.write_text("\n".join((*lines, "dimensions:", "  - {kind: switch, size: 8, link_type: nvlink4}", "")))
    return load_topology(path)


def test_a_users_file_may_say_what_a_call_costs_on_that_machine(tmp_path):
    """Its own start-up stands instead of the library's, it is not added to it."""
    assert mine(tmp_path).startup_s == pytest.approx(5e-6)
    assert mine(tmp_path, "library: nccl/h200.yaml").startup_s == pytest.approx(5e-6)
    assert mine(tmp_path, "startup: 8 us").startup_s == pytest.approx(8e-6)
    assert mine(tmp_path, "library: none", "startup: 8 us").startup_s == pytest.approx(8e-6)
    assert mine(tmp_path, "library: none").startup_s == 0

    def time_s(*lines):
        topology = mine(tmp_path, *lines)
        return collective_cost("all_reduce", 1e6, place(topology, range(8))).time_s

    assert time_s("startup: 8 us") - time_s() == pytest.approx(3e-6)


def test_calls_of_a_back_end_start_as_its_own_file_says():
    """Worked by hand: a back end that starts 7 us later than the topology's own library."""
    sierra = load_topology("sierra-64")
    later = {name: replace(each, startup_s=each.startup_s + 7e-6) for name, each in sierra.backends}
    changed = replace(sierra, backends=tuple(later.items()))

    def time_s(topology):
        cost = collective_cost("all_reduce", 1e6, place(with_policy(topology, "rabenseifner"), range(64)))
        return cost.time_s

    assert time_s(changed) - time_s(sierra) == pytest.approx(7e-6)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_topology_names_a_library_or_says_why_none(name):
    found = load_topology(name)
    if found.library is None:
        assert stated(name)["library"] == "none"
        assert found.library_reason
    else:
        assert found.library.source


def stated(name):
    """Keys of a topology's file and of those that it is like."""
    values = read_yaml(library.find("topology", name))
    return {**(stated(values["like"]) if "like" in values else {}), **values}


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_computed_without_a_library_says_so_and_why(name):
    found = load_topology(name)
    notes = " ".join(provenance(found, None, SimulationOptions()).notes)
    assert ("no communication library" in notes) == (found.library is None)
    assert found.library is not None or f"({found.library_reason}): its collectives are alpha-beta" in notes


def test_a_file_that_is_like_one_without_a_library_keeps_its_reason_until_it_names_one(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("like: torus-8x16\n")
    assert load_topology(path).library_reason == load_topology("torus-8x16").library_reason != ""
    path.write_text("like: a100-roce-16\nlibrary: none\n")
    assert load_topology(path).library_reason == ""


def test_a_library_that_is_like_another_adds_its_protocols_and_replaces_the_rest(tmp_path):
    shipped = library.folder("topology") / "nccl" / "h200.yaml"
    (tmp_path / "h200.yaml").write_bytes(shipped.read_bytes())
    protocol = "{name: mine, collectives: [all_reduce], startup: 1 us, links: {nvlink: {efficiency: 0.5}}, source: x}"
    (tmp_path / "more.yaml").write_text(f"like: h200.yaml\nname: more\nprotocols:\n  - {protocol}\n")
    first, more = load_library(shipped), load_library(tmp_path / "more.yaml")
    assert more.name == "more"
    assert [each.name for each in more.protocols] == ["mine", *(each.name for each in first.protocols)]
    assert replace(more, name=first.name, protocols=first.protocols, source=first.source) == first


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("like: none.yaml\n", "like: library file .*none.yaml' does not exist"),
        ("like: mine.yaml\n", "like leads back to this file"),
        ("like: h200.yaml\nprotocols: 3\n", "protocols"),
    ],
)
def test_a_library_that_is_like_no_library_is_refused(tmp_path, text, message):
    (tmp_path / "h200.yaml").write_bytes((library.folder("topology") / "nccl" / "h200.yaml").read_bytes())
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_library(tmp_path / "mine.yaml")


def test_rccl_starts_a_small_all_reduce_as_measured_on_a_node_of_eight():
    """25 us were measured on MI250X (ROCm/rccl, pull request 929); RCCL's own model says 12 us and 14 steps of 0.8."""
    cost = collective_cost("all_reduce", 64, place(load_topology("mi300x-node-8"), range(8)))
    assert (cost.protocol, cost.time_s) == ("LL", pytest.approx(23.2e-6, rel=0.01))


def test_rccl_fills_the_seven_links_of_a_large_all_reduce():
    cost = collective_cost("all_reduce", 2**30, place(load_topology("mi300x-node-8"), range(8)))
    assert 2 * 7 / 8 * 2**30 / cost.time_s == pytest.approx(7 * 48e9, rel=0.02)


def test_gathers_on_a_tpu_take_what_was_profiled():
    """A third of a ring of 16, three hops from either end: 680 us for 32 MiB and 8 us for 128 KiB (scaling-book)."""
    topology = load_topology("tpu-v5e-256")
    link, called = topology.dimensions[0], topology.library
    (hop, _) = called.protocols[0].actual.hops
    for shard_bytes, profiled_s in ((8 * 2**20, 680e-6), (32 * 2**10, 8e-6)):
        takes_s = called.startup_s + 3 * (link.latency_s + shard_bytes / (link.bytes_per_s * hop.efficiency))
        assert takes_s == pytest.approx(profiled_s, rel=0.02)


def test_nccl_gathers_between_thousands_of_nodes_by_pat():
    """Worked by hand: 16,383 hops of 2.8 us, and 8 and 5 us to start; hops of a ring by Simple take five times that."""
    topology = load_topology("fat-tree-131072")
    cost = collective_cost("all_gather", 2**30, place(topology, range(0, topology.num_ranks, 8)))
    assert cost.protocol == "PAT"
    assert cost.time_s == pytest.approx(16383 * 2.8e-6 + 13e-6 + 2**30 / 50e9 / 0.705, rel=0.01)
    assert collective_cost("all_gather", 2**30, place(topology, range(8))).protocol != "PAT"


def test_small_all_reduces_over_nodes_go_by_nccls_tree():
    """By hand: 5 and 5.3 us to start, 14 rounds of a ring in a node of 0.7 us, and 2 log2 q hops of 5 us."""
    for nodes in (2, 4, 16, 64):
        cost = collective_cost("all_reduce", 4, place(load_topology(f"dgx-h200-{nodes}"), range(8 * nodes)))
        assert (cost.algorithm, cost.protocol) == ("hierarchical_tree", "LL")
        assert cost.time_s == pytest.approx(10.3e-6 + 14 * 0.7e-6 + 2 * math.log2(nodes) * 5e-6, rel=0.01)


def test_nccls_tree_between_nodes_takes_what_was_published():
    """63 us on 32 nodes of A100 (NVIDIA/nccl issue 652), and 46.5 us by NVLSTree on 2 of H20 (issue 1244)."""
    small = functools.partial(collective_cost, "all_reduce", 4)
    assert small(place(load_topology("dgx-h100-32"), range(256))).time_s == pytest.approx(63e-6, rel=0.15)
    cost = small(place(load_topology("dgx-h100-2"), range(16)), "nvls_tree")
    assert (cost.protocol, cost.time_s) == ("Simple", pytest.approx(46.5e-6, rel=0.15))


def test_large_all_reduces_leave_the_tree_for_nvlstree():
    """On 64 nodes of H200 NCCL's log has Tree by LL128 at 16 MiB (NVIDIA/nccl issue 1752)."""
    group = place(load_topology("dgx-h200-64"), range(512))
    chosen = [collective_cost("all_reduce", size, group) for size in (2**24, 2**27)]
    assert [(cost.algorithm, cost.protocol) for cost in chosen] == [
        ("hierarchical_tree", "LL128"),
        ("nvls_tree", "Simple"),
    ]


def test_a_tree_of_ranks_is_weighed_over_nodes_alone():
    """Within a node NCCL's tree is a chain, which its ring beats."""
    topology = load_topology("dgx-h200-16")
    within, over = place(topology, range(8)), place(topology, range(0, 128, 8))
    assert "double_binary_tree" not in {each.name for each in collectives.candidates("all_reduce", within)}
    assert collective_cost("all_reduce", 1024, over).algorithm == "double_binary_tree"
    assert topology.library.algorithms_for("all_reduce", within.links) == (
        "ring", "hierarchical_tree", "nvls_tree", "in_network",
    )  # fmt: skip


def test_chunks_in_flight_hide_their_latency():
    """Two nodes of one rank: halves of n to and fro, so two rounds of one hop; c chunks take 2 a + (c - 1) 2 a / d."""
    link, latency_s = 1e9, 1e-3
    library = Library("toy", (Protocol("P", ("all_reduce",), Terms(in_flight=4)),))
    topology = Topology("pair", (Dimension("switch", 2, link, latency_s),), library=library)
    for chunks in (1, 5, 40):
        cost = collective_cost("all_reduce", 1e6, place(topology, range(2)), "double_binary_tree", num_chunks=chunks)
        assert cost.latency_s == pytest.approx(2 * latency_s + (chunks - 1) * 2 * latency_s / 4, rel=1e-9)
