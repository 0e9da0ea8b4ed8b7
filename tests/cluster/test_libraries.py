"""Who owns the cost of a call: a topology states what its links do, its library what a call costs."""

from dataclasses import replace

import pytest

from scaleout.cluster.topology.backends import with_policy
from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import load_topology
from scaleout.config import library
from scaleout.config.yaml_files import read_yaml
from scaleout.network.alpha_beta.cost import collective_cost

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
