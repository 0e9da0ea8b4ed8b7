"""Pictures of networks: the names in them are those that the options of changes take."""

import json

import pytest

from scaleout.cluster.topology.faults import find_link
from scaleout.cluster.topology.topology import load_topology
from scaleout.cluster.topology.what_if import NetworkChanges, change_network, dimensions_named, names_of
from scaleout.config import library
from scaleout.report.drawing import draw, link_names

SMALL = [name for name in library.names("topology") if load_topology(name).num_ranks <= 2048]


@pytest.mark.parametrize("name", SMALL)
def test_links_and_dimensions_go_by_the_names_in_the_picture(name):
    topology = load_topology(name)
    for number, names in enumerate(names_of(topology)):
        assert all(number in dimensions_named(topology, each) for each in names)
        for link in link_names(topology, number):
            assert find_link(topology.dimensions, link)[0] == number
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
