"""Topologies in one line and link types: equal to the files that say the same, and refused by message."""

import re
import shutil
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.cluster.topology.link_type import load_link_type, sources_of
from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import load_topology
from scaleout.config import library
from scaleout.config.yaml_files import read_yaml
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta.cost import collective_cost, collective_costs

EQUAL = {
    "switch(8,nvlink4)": "dgx-h200-1",
    "switch(8,nvlink4) x switch(16,ndr)": "dgx-h200-16",
    " switch( 8 , nvlink4 )x switch(256,ndr)": "dgx-h200-256",
    "switch(8,nvlink4) x torus(4,4,ndr/4)": "dgx-h200-16-torus",
    "switch(8,nvlink4) x ring(16,ndr/2)": "dgx-h200-16-ring",
    "switch(8,nvlink4) x fat_tree(4,4,ndr,taper=2:1,latency=2.16us/540ns/540ns)": "dgx-h200-16-fat-tree",
    "torus(8,16,bandwidth=200Gb/s,latency=700ns)": "torus-8x16",
    "ring(128,bandwidth=200Gb/s,latency=700ns)": "ring-128",
    "switch(1024,bandwidth=200 Gb/s,latency=700 ns)": "switch-1024",
    "leaf_spine(16,4,bandwidth=400Gb/s,taper=2:1,latency=540ns/540ns)": "leaf-spine-64",
    "dragonfly(4,8,33,global_links=4,bandwidth=200Gb/s,latency=350ns/13ns/500ns)": "dragonfly-1056",
}


def bare(topology):
    """Without names, sources and reasons, and without the link types that old files do not name."""
    dimensions = tuple(replace(each, link_type="", link="") for each in topology.dimensions)
    return replace(topology, name="", source="", library_reason="", dimensions=dimensions)


@pytest.mark.parametrize(("expression", "file"), EQUAL.items())
def test_an_expression_is_the_file_that_says_the_same(expression, file):
    found = load_topology(expression)
    assert bare(found) == bare(load_topology(file))
    assert found.name == expression


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("torus(8,16)", "torus has no link type; give one, such as torus(8,16,ndr) (`scaleout list link-types`), or"),
        ("torus(8,16,ndrr)", "link_type: unknown link type 'ndrr'; did you mean 'ndr'?"),
        ("torrus(8,ndr)", "unknown kind of dimension 'torrus'; did you mean 'torus'?"),
        ("graph(8,ndr)", "unknown kind of dimension 'graph'; known: dragonfly, fat_tree"),
        ("torus(ndr)", "torus has no size; give the ranks along it, such as torus(8,ndr)"),
        ("ring()", "ring has no size"),
        ("switch(8 nvlink4)", "switch has no size; write a comma after the size: switch(8,nvlink4)"),
        ("switch(8 ndr,latency=1us)", "write a comma after the size: switch(8,ndr)"),
        ("torus(0,ndr)", "dimensions.0.size: must be greater than 0, not 0"),
        ("switch(8,9,ndr)", "a switch has one size, not 8, 9; write torus, fat_tree or mesh"),
        ("switch(8,ndr,hdr)", "switch: 'hdr' is one too many; give one link_type"),
        (
            "switch(8,ndr) x",
            "cannot be read from 'switch(8,ndr) x' on; write it like switch(8,nvlink4) x switch(16,ndr)",
        ),
        ("switch(8,ndr) switch(8,ndr)", "cannot be read from 'switch(8,ndr) switch(8,ndr)' on"),
        ("switch(8,ndr", "cannot be read from 'switch(8,ndr' on (1 brackets open, 0 close)"),
        ("fat_tree(4,4,ndr,taper=2)", "'2' is no taper; write ports down and up of a switch, such as 2:1"),
        ("fat_tree(4,4,ndr,tapir=2:1)", "unknown key 'tapir'; did you mean 'taper'?"),
        ("switch(4,ndr,taper=2:1)", "a switch has no levels"),
        ("torus(4,4,ndr/0)", "link type 'ndr/0': '0' is no number of links into which a port is split"),
        ("torus(4,4,bandwidth=400,latency=1us)", "dimensions.0.bandwidth: '400' has no unit"),
        ("ring(4,bandwidth=1Gb/s)", "dimensions.0: key 'latency' is missing; add it"),
        ("ring(4,bandwidth=1Gb/s)", "(or give a 'link_type')"),
        ("dragonfly(2,2,2,ndr,global_links=1)", "dimensions.0: key 'latency' is missing; add it"),
        ("dragonfly(2,2,2,ndr,global_links=1)", "(no link type has that of a dragonfly)"),
        ("switch(-4,ndr)", "switch: '-4' is no size; give a whole number of ranks, 1 or more"),
        ("switch(8.5,ndr)", "switch: '8.5' is no size; give a whole number of ranks, 1 or more"),
        (
            "switch(8,nvlink4) x switch(4,bandwidth=50GB/s,latency=2us)",
            "dimensions.1: library 'NCCL 2.28.9' cannot know what link this is, as it has a bandwidth and a latency "
            "only; name a link type (`scaleout list link-types`), or write `link: nvlink` or `link: infiniband`",
        ),
        ("switch(8,,ndr)", "switch: nothing stands between two commas, or beside one; leave the comma out"),
        ("switch(8,ndr,)", "switch: nothing stands between two commas, or beside one; leave the comma out"),
        ("ring(1048577,ndr)", "size: 1048577 is too many or too much; give at most 1,048,576"),
        ("torus(1048576,1048576,ndr)", "give it at most 1048576"),
        ("ring(" + "4," * 3000 + "ndr)", "has more than 4,096 bytes; write a file"),
    ],
)
def test_what_is_wrong_with_an_expression_is_said(expression, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_topology(expression)


@pytest.mark.parametrize("name", library.names("link type"))
def test_link_types_say_where_their_numbers_are_from(name):
    load_link_type(name)
    values = read_yaml(library.find("link type", name))
    numbers = {key for key, value in values.items() if isinstance(value, dict) and "value" in value}
    parts = {f"{key}.{part}" for key, value in values.items() if key in ("cable", "switch") for part in value}
    assert set(sources_of(name)) == numbers | parts


SOURCED = {"bandwidth", "latency", "startup", "through_host", "in_network_reduction", "links", "radices"}


@pytest.mark.parametrize("name", library.names("topology"))
def test_shipped_topologies_say_where_their_numbers_are_from(name):
    """Users' files need not."""
    values = read_yaml(library.find("topology", name))
    assert values.get("source") or "like" in values
    for entry in [values, *values.get("dimensions", [])]:
        for key in SOURCED & set(entry):
            source = {"radices": "levels"}.get(key, key) + "_source"
            assert entry.get(source), f"{name}: {key}"


def test_a_users_file_needs_no_sources(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("dimensions:\n  - {kind: ring, size: 4, bandwidth: 10 GB/s, latency: 1 us}\n")
    found = load_topology(path)
    assert (found.num_ranks, found.library, found.source) == (4, None, "")


def test_a_link_type_gives_a_file_its_library_unless_told_otherwise(tmp_path):
    path = tmp_path / "mine.yaml"
    text = (
        "dimensions:\n  - {kind: switch, size: 8, link_type: nvlink4}\n  - {kind: switch, size: 16, link_type: ndr}\n"
    )
    path.write_text(text)
    assert bare(load_topology(path)) == bare(load_topology("dgx-h200-16"))
    path.write_text(text + "library: none\n")
    assert load_topology(path).library is None
    assert load_topology(path).startup_s == 0


def test_a_file_of_a_link_type_lies_beside_the_file_that_names_it(tmp_path):
    (tmp_path / "mine.yaml").write_text("bandwidth: {value: 1 GB/s, source: x}\nlatency: {value: 1 us, source: x}\n")
    path = tmp_path / "net.yaml"
    path.write_text("dimensions:\n  - {kind: ring, size: 4, link_type: ./mine.yaml/2}\n")
    (ring,) = load_topology(path).dimensions
    assert (ring.bytes_per_s, ring.link_name) == (5e8, "mine")
    path.write_text("dimensions:\n  - {kind: ring, size: 4, link_type: ./yours.yaml}\n")
    with pytest.raises(ConfigError, match=r"link type file .* does not exist"):
        load_topology(path)


@pytest.mark.parametrize("name", ["dgx-h200-16", "h200-node-4", "a100-cluster-a-6", "sierra-8", "selene-64"])
def test_a_copy_of_a_shipped_file_works_anywhere(name, tmp_path, monkeypatch, scaleout):
    copy = tmp_path / f"{name}.yaml"
    shutil.copy(library.find("topology", name), copy)
    (tmp_path / "like.yaml").write_text(f"like: ./{name}.yaml\nnodes: 2\n")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "like.yaml").write_text("like: ../like.yaml\n")
    monkeypatch.chdir(tmp_path / "deeper")
    assert load_topology(copy) == load_topology(name)
    assert load_topology("like.yaml").shape[-1] == 2
    assert scaleout("show", "like.yaml", "--json")[0] == 0


@given(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]), st.integers(0, 2**31))
def test_a_tree_is_never_faster_for_want_of_a_library(kind, size):
    """The tree of a file of link types has the library of the switch that it is weighed against."""
    topologies = [f"switch(8,nvlink4) x {outer}" for outer in ("switch(16,ndr)", "fat_tree(4,4,ndr,taper=2:1)")]
    full, tapered = (
        {name: cost.time_s for name, cost in collective_costs(kind, size, place(found, range(128))).items()}
        for found in map(load_topology, topologies)
    )
    assert all(tapered[name] >= full[name] * (1 - 1e-12) for name in full)


def test_b200_of_several_racks_pay_for_their_protocols():
    """Two racks are slower than one at the same bytes a rank, and no link is used beyond what NCCL makes of it."""
    one, two = load_topology("switch(72,nvlink5)"), load_topology("switch(72,nvlink5) x switch(2,ndr)")
    assert two.library is not None
    assert two.library == one.library
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        within, over = (collective_cost(kind, 2**30, place(each, range(each.num_ranks))).time_s for each in (one, two))
        assert over > within
    pair = collective_cost("all_gather", 2**30, place(two, [0, 72])).time_s
    assert pair == pytest.approx(33e-6 + 11.3e-6 + 2.7e-6 + 2**29 / (0.94 * 50e9), rel=0.02)
