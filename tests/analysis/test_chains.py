"""Chains of nodes: none is longer than its step, and the longest of slower work is what a slower run takes."""

import numpy as np
import pytest

import scaleout
from scaleout.analysis.chains import Chains, Work
from scaleout.simulation.options import SimulationOptions

NO_CONTENTION = SimulationOptions(contention=False)
TENSOR = {"layers": 4, "tensor_parallel": 4, "data_parallel": 4}
PIPELINE = {"layers": 4, "pipeline_parallel": 2, "microbatch": 1, "batch_per_replica": 4, "data_parallel": 8}
JOBS = {
    "tensor": ("llama-3-8b", "overlap", TENSOR, {}),
    "sharded": ("llama-3-8b", "overlap", {"layers": 4, "zero": 3, "data_parallel": 16}, {}),
    "pipeline": ("llama-3-8b", "baseline", PIPELINE, {}),
    "straggler": ("llama-3-8b", "overlap", TENSOR, {"slow": {5: 1.3}}),
}


def simulated(name, **network_changes):
    workload, schedule, changes, own = JOBS[name]
    return scaleout.run(
        workload,
        schedules=[schedule],
        topology="dgx-h200-2",
        changes={"tensor_parallel": 1, **changes},
        network_changes={**own, **network_changes},
        options=NO_CONTENTION,
    )[schedule].result


@pytest.mark.parametrize("name", JOBS)
def test_the_longest_chain_of_a_step_is_as_long_as_the_step(name):
    result = simulated(name)
    chain = Chains(result).longest({})
    assert chain.length_s == pytest.approx(result.makespan_s, rel=1e-9)
    assert (chain.lasts_s > 0).all()


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("work", Work)
@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_no_chain_is_longer_than_the_step_and_its_nodes_follow_each_other(name, work, factor):
    result = simulated(name)
    chain = Chains(result).longest({work: factor})
    assert chain.length_s <= result.makespan_s * (1 + 1e-9)
    start_s = np.concatenate([line.start_s for line in result.timelines])[chain.nodes]
    assert (np.diff(start_s) <= 0).all()


@pytest.mark.parametrize("name", ["tensor", "sharded", "pipeline"])
@pytest.mark.parametrize("factor", [1.3, 3.0])
def test_the_longest_chain_of_slower_kernels_is_what_slower_kernels_take(name, factor):
    """All ranks at a third of their speed: of the same order of nodes, the chain is the step."""
    chains = Chains(simulated(name))
    chain = chains.longest({Work.KERNELS: factor})
    scaled = np.where(chains.work[chain.nodes] == Work.KERNELS, factor, 1.0)
    slower_s = simulated(name, slow=dict.fromkeys(range(16), factor)).makespan_s
    assert chain.host_s + chain.lasts_s @ scaled == pytest.approx(slower_s, rel=1e-6)


def test_the_chain_of_a_slower_network_leaves_the_path_that_the_step_takes():
    """Fused, a step of DLRM is its kernels and its collectives side by side: rank 5 holds it, the network nearly does.

    The collectives take 32.5 of 36.1 ms on the second path, 17.6 of 36.7 on the first.
    """
    run = scaleout.run("dlrm-128", schedules=["fused"], network_changes={"slow": {5: 1.3}})["fused"]
    chains = Chains(run.result)
    for factors, expected_s, communicates_s in (({}, 0.0367, 0.0176), ({Work.COMMUNICATION: 2.1}, 0.0361, 0.0325)):
        chain = chains.longest(factors)
        assert chain.length_s == pytest.approx(expected_s, rel=5e-3)
        of_network = chains.work[chain.nodes] == Work.COMMUNICATION
        assert chain.lasts_s[of_network].sum() == pytest.approx(communicates_s, rel=5e-3)
