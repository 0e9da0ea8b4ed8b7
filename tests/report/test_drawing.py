"""Pictures of networks: the names in them are those that the options of changes take."""

import json
import re
from xml.dom import minidom

import pytest
from matplotlib import pyplot

from scaleout.cluster.topology.faults import LinkChange, find_link, name_link
from scaleout.cluster.topology.topology import load_topology
from scaleout.cluster.topology.what_if import NetworkChanges, change_network, dimensions_named, names_of
from scaleout.config import library
from scaleout.report.drawing import draw, faults_of, link_names
from scaleout.report.plots.schedules import on_axes
from scaleout.study.sweep.study import load_study

SMALL = [name for name in library.names("topology") if load_topology(name).num_ranks <= 2048]


@pytest.mark.parametrize("name", SMALL)
def test_links_and_dimensions_go_by_the_names_in_the_picture(name):
    topology = load_topology(name)
    for number, names in enumerate(names_of(topology)):
        assert all(number in dimensions_named(topology, each) for each in names)
        for link in link_names(topology, number):
            found = find_link(topology.dimensions, link)
            assert found[0] == number
            assert name_link(topology.dimensions, LinkChange(*found, 1.0)) == link
    assert all(line == line.rstrip() for line in draw(topology))


def test_a_node_and_a_tapered_tree():
    topology = change_network(load_topology("dgx-h200-16"), NetworkChanges.of(taper={"ndr": "2:1@4"}))
    assert draw(topology) == [
        "dimension 1 or ndr or infiniband or fat_tree: 16 x 8 ranks, a port into the leaves of a tree of switches",
        "  50 GB/s each way, 2.7 us",
        "  [one switch joins 4 switches]",
        "    [4 switches, each of 4 ranks, 2:1 down to up]",
        "  links: 1:0-switch-1-0, 1:8-switch-1-0, 1:16-switch-1-0, 1:24-switch-1-0, 1:32-switch-1-1, 1:40-switch-1-1, "
        "... (160 in all)",
        "dimension 0 or nvlink4 or nvlink or switch: 8 ranks, a port into a switch that never blocks",
        "  376 GB/s each way, 600 ns",
        "  [one switch joins 8 ranks]",
        "  links: 0:0-switch, 0:1-switch, 0:2-switch, 0:3-switch, 0:4-switch, 0:5-switch, ... (128 in all)",
    ]


def test_links_with_a_fault_are_named_with_what_is_left():
    topology = change_network(
        load_topology("dgx-h200-16"), NetworkChanges(nic_down=(5,), degrade=(("0:9-switch", "0.5"),))
    )
    told = [line.strip() for line in draw(topology) if line.startswith(("  slower", "  broken", "network"))]
    assert told == [
        "slower: 1:4-switch, 1:5-switch at 25 GB/s each way (50.0% of as built)",
        "slower: 0:9-switch at 188 GB/s each way (50.0% of as built)",
        "network card down: of rank 5; another rank of the node shares its own",
    ]
    broken = change_network(load_topology("ring-128"), NetworkChanges(broken=tuple(f"{n}-{n + 1}" for n in range(1))))
    assert [words for _, words in faults_of(broken)] == ["broken: 0-1"]
    many = change_network(
        load_topology("ring-128"), NetworkChanges.of(degrade={f"{n}-{n + 1}": "0.5" for n in range(9)})
    )
    ((_, words),) = faults_of(many)
    assert words.startswith("slower: 0-1, 1-2, 2-3, 3-4, 4-5, 5-6, ... (9 in all) at ")


def test_show_draws_a_changed_topology(scaleout):
    code, out, _ = scaleout("show", "torus-8x16", "--nodes", "4", "--break", "0:0-1")
    assert code == 0
    assert "0 -- 1 -- 2 -- 3 -- (0)" in out
    code, out, _ = scaleout("show", "torus(8,4,bandwidth=200Gb/s,latency=700ns)", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["ranks"] == 32
    assert found["library"] == "none: collectives have no costs of protocols"
    code, _, error = scaleout("show", "h200", "--nodes", "4")
    assert code == 2
    assert "nodes=4 changes a topology, and 'h200' is a device; leave it out" in error


def test_messages_name_links_so_that_options_take_them(scaleout):
    assert "rank 0 has the links 0:0-switch, 1:0-switch" in scaleout("show", "dgx-h200-2", "--break", "0-1")[2]
    error = scaleout("show", "dgx-h200-2", "--degrade", "infiniband=0.5")[2]
    assert "switches by name (switch); what changes a whole dimension is --bandwidth" in error
    assert "broken: 1:8-switch" in scaleout("show", "dgx-h200-2", "--break", "1:8-switch")[1]
    tree = ("run", "dlrm-128", "--topology", "switch(8,nvlink4) x switch(16,ndr)", "--break", "1:8-switch")
    assert "broken there is link 1:8-switch" in scaleout(*tree)[2]


def test_a_changed_link_is_told_once(scaleout):
    out = scaleout("show", "dgx-h200-2", "--nic-down", "5", "--degrade", "0:3-switch=0.5")[1]
    assert [out.count(name) for name in ("1:4-switch", "1:5-switch", "slower: 0:3-switch")] == [1, 1, 1]
    assert re.search(r"changes +nic_down 5, degrade 0:3-switch=0.5", out)


def test_facts_have_their_units(scaleout):
    shown = [re.sub(r" {2,}", "  ", line) for line in scaleout("show", "dgx-h200-2")[1].splitlines()]
    assert {"queue  20 us", "memory  1 TB/s"} <= {line.strip() for line in shown}
    assert re.search(r"price +\$36 k", scaleout("show", "ndr")[1])


@pytest.mark.parametrize("name", library.names("study"))
def test_show_describes_a_study(name, scaleout, tmp_path, monkeypatch):
    (tmp_path / name).mkdir()  # a folder of the same name is not what is meant
    monkeypatch.chdir(tmp_path)
    code, out, error = scaleout("show", name, "--json")
    assert (code, error) == (0, "")
    found, study = json.loads(out), load_study(name)
    assert (found["title"], found["cases"], set(found["varies"])) == (study.title, study.size, set(study.axes))
    assert scaleout("show", str(library.find("study", name)))[1] == scaleout("show", name)[1] != ""


NAME = "s\x1b[31m$\\frac{$"
"""What XML cannot hold, and what no formula is."""


def test_names_of_files_and_switches_are_drawn_letter_by_letter(scaleout, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    link = "{'bandwidth': '10 GB/s', 'latency': '1 us'}"
    (tmp_path / "net.edgelist").write_text("".join(f"{rank} {NAME} {link}\n" for rank in range(4)))
    (tmp_path / f"{NAME}.yaml").write_text("{like: dlrm-128, data_parallel: 4, global_batch: 64}")
    options = ("--topology", "net.edgelist", "--network", "link", "--format", "svg", "--output")
    for command in (("run", f"{NAME}.yaml"), ("collective", "all_reduce", "--bytes", "1MiB")):
        assert scaleout(*command, *options, command[0])[0] == 0
        pictures = [*(tmp_path / command[0]).glob("*.svg")]
        assert pictures
        assert all("frac{$" in minidom.parse(str(picture)).toxml() for picture in pictures)


def test_labels_on_axes_are_drawn_letter_by_letter_and_powers_as_such():
    with on_axes(None) as axes:
        axes.barh([0], [1], label=NAME)
        axes.set_yticks([0], [NAME])
        axes.set_xscale("log")
        axes.legend()
    axes.figure.canvas.draw()
    assert axes.get_yticklabels()[0].get_text() == axes.get_legend().get_texts()[0].get_text().replace("$", r"\$")
    assert axes.get_xticklabels()[0].get_parse_math()
    pyplot.close(axes.figure)
