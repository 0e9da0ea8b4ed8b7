"""Bytes over the busiest link of each dimension: by hand, and the same from the closed form and from links."""

import pytest

import scaleout
from scaleout.analysis.traffic import bytes_by_dimension, dimension_traffic, slowest_dimension_bytes
from scaleout.cluster.topology.topology import load_topology
from scaleout.cluster.topology.what_if import NetworkChanges, change_network
from scaleout.program.graph import NodeKind
from scaleout.simulation.options import SimulationOptions
from scaleout.study.job import Job, run
from scaleout.workloads.families import load_workload

JOBS = {
    "dlrm-128": {},
    "llama-3-8b": {"tensor_parallel": 8, "data_parallel": 16, "layers": 4},
    "mixtral-8x7b": {"data_parallel": 128, "layers": 2},
}
"""Without messages, which the closed form counts alone: on a ring those of other ranks share their links."""


@pytest.fixture(scope="module")
def h200():
    from scaleout.cluster.device.spec import load_device

    return load_device("h200")


@pytest.mark.parametrize("topology", ["torus-8x16", "ring-128", "switch-128", "torus-4x4x8"])
@pytest.mark.parametrize("workload", JOBS)
def test_the_closed_form_and_links_agree(workload, topology, h200):
    work, network = load_workload(workload, JOBS[workload]), load_topology(topology)
    found = []
    for model in ("alpha_beta", "link"):
        result = run(Job(work, h200, network, "overlap", SimulationOptions(network=model))).result
        found.append(bytes_by_dimension(result, network))
        if model == "alpha_beta":
            drawn = dimension_traffic(result, network, {})
            times = {port.dimension: busy.max() * result.makespan_s for port, _, _, busy in drawn.ports()}
            rates = [dimension.bytes_per_s for dimension in network.dimensions]
            assert {at: times[at] * rates[at] for at in found[0]} == pytest.approx(found[0])
    assert found[1] == pytest.approx(found[0], rel=1e-4)  # the busiest of each kind may be another link


def test_an_all_reduce_on_a_ring_by_hand(h200):
    """A ring of p ranks carries 2 (p - 1) / p of the bytes over every link; DDP of 128 ranks does nothing else."""
    work = load_workload("llama-3-8b", {"data_parallel": 128, "layers": 2, "zero": 0})
    network = load_topology("ring-128")
    options = SimulationOptions(algorithms={"all_reduce": "ring"})
    result = run(Job(work, h200, network, "baseline", options)).result
    (line,) = result.timelines
    reduced = float(line.graph.bytes[line.graph.kind == NodeKind.COLLECTIVE].sum())
    assert bytes_by_dimension(result, network, options.algorithms) == pytest.approx({0: 2 * 127 / 128 * reduced})


def test_the_slowest_dimension_is_that_of_least_bandwidth():
    network = load_topology("dgx-h200-16")
    assert slowest_dimension_bytes(network, {0: 5.0, 1: 3.0}) == 3.0
    assert slowest_dimension_bytes(network, {0: 5.0}) == 0.0
    assert slowest_dimension_bytes(load_topology("torus-8x16"), {0: 5.0, 1: 3.0}) == 5.0


@pytest.mark.parametrize("cards_down", [(), (5,)])
def test_links_are_as_busy_as_what_bounds_the_collectives_says(cards_down):
    """Flags of protocols keep links busy too, and rates that are below the links'."""
    answer = scaleout.run(
        "llama-3-8b", topology="dgx-h200-2", device="h200", host="none", schedules=["baseline"],
        network_changes={"nic_down": cards_down} if cards_down else None,
        changes={"data_parallel": 16, "layers": 2, "zero": 3, "tensor_parallel": 1},
    )  # fmt: skip
    (outcome,) = answer.outcomes
    (row,) = answer.to_dict()["results"]
    drawn = dimension_traffic(outcome.result, outcome.topology, {})
    for number, name in enumerate(("nvlink4", "ndr")):
        told_s = sum(each["busy_s"] * each["busy_shares"].get(name, 0.0) for each in row["bounds"])
        assert drawn.utilisation[number] * outcome.makespan_s == pytest.approx(told_s, rel=0.01)


def test_links_that_bound_are_as_busy_by_the_closed_form_as_by_flows(h200):
    """NVLink bounds here; of InfiniBand flows do not know that it has a lower part of its rate."""
    work = load_workload("llama-3-8b", {"data_parallel": 16, "layers": 2, "zero": 3, "tensor_parallel": 1})
    network, busy_s = load_topology("dgx-h200-2"), []
    for model in ("alpha_beta", "link"):
        result = run(Job(work, h200, network, "baseline", SimulationOptions(network=model))).result
        drawn = result.link_traffic or dimension_traffic(result, network, {})
        busy_s.append(max(busy.max() for *_, busy in drawn.ports()) * result.makespan_s)
    assert busy_s[0] == pytest.approx(busy_s[1], rel=0.01)


def test_ranks_that_share_a_card_keep_it_busy_for_both(h200):
    """Each of eight pairs of ranks passes activations over its card; where two share one, it is busy twice as long."""
    work = load_workload("llama-3-8b", {"tensor_parallel": 8, "pipeline_parallel": 2, "data_parallel": 1, "layers": 2})
    whole = load_topology("dgx-h200-2")
    busy_s = []
    for network in (whole, change_network(whole, NetworkChanges(nic_down=(5,)))):
        result = run(Job(work, h200, network, "baseline", SimulationOptions())).result
        busy_s.append(dimension_traffic(result, network, {}).utilisation[1] * result.makespan_s)
    assert busy_s[1] == pytest.approx(2 * busy_s[0])


def test_a_card_that_is_left_carries_part_of_the_missing_ones(h200):
    """Seven of eight cards carry what eight did: each is busy 8/7 of the time, while NVLink is as busy as before."""
    work = load_workload("llama-3-8b", {"data_parallel": 16, "layers": 2, "zero": 3, "tensor_parallel": 1})
    whole = load_topology("dgx-h200-2")
    busy_s = []
    for network in (whole, change_network(whole, NetworkChanges(nic_down=(5,)))):
        result = run(Job(work, h200, network, "baseline", SimulationOptions())).result
        drawn = dimension_traffic(result, network, {})
        busy_s.append({at: share * result.makespan_s for at, share in drawn.utilisation.items()})
    assert busy_s[1] == pytest.approx({0: busy_s[0][0], 1: 8 / 7 * busy_s[0][1]})
