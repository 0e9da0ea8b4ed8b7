"""`gpus` in Python: what `--gpus` makes of a job, and what it refuses."""

import networkx as nx
import pytest

import scaleout
from scaleout.errors import ConfigError


def test_a_job_of_so_many_gpus_is_that_of_its_replicas_and_nodes():
    few = {"layers": 2, "tensor_parallel": 4}
    answer = scaleout.run("llama-3-8b", gpus=32, device="h200", schedules=["baseline"], changes=few)
    assert answer.comparison.ranks == 32
    asked = answer.inputs
    assert (asked["set.data_parallel"], asked["topology"]) == (8, "dgx-h200-4")
    topology = {"topology": "dgx-h200-2", "device": "h200", "schedules": ["baseline"]}
    same = scaleout.run("llama-3-8b", changes={**few, "data_parallel": 8}, network_changes={"nodes": 4}, **topology)
    assert answer.outcomes[0].makespan_s == same.outcomes[0].makespan_s


def test_a_search_on_so_many_gpus_chooses_the_replicas():
    answer = scaleout.search("llama-3-8b", gpus=4, device="h200", changes={"layers": 2}, top=1, workers=1)
    assert answer.inputs["topology"] == "switch(4,nvlink4)"
    assert answer.to_frame()["plan.data_parallel"].iloc[0] <= 4


def test_a_collective_of_a_devices_own_network():
    answer = scaleout.collective("all_reduce", "1MiB", device="h200", gpus=16)
    assert answer.num_ranks == 16
    beside = scaleout.collective("all_reduce", "1MiB", topology="dgx-h200-2", gpus=16)
    assert beside.taken == answer.taken


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: scaleout.run("llama-3-8b", gpus=0), "gpus must be a whole number, 1 or more, not 0"),
        (lambda: scaleout.run("llama-3-8b", gpus="8"), "gpus"),
        (lambda: scaleout.run("llama-3-8b", gpus=12), "has 8 ranks and no nodes"),
        (lambda: scaleout.run("llama-3-8b", gpus=8, changes={"data_parallel": 2}), "both say how many ranks there are"),
        (lambda: scaleout.run("llama-3-8b", gpus=8, topology=nx.complete_graph(8)), "for a topology given by name"),
        (lambda: scaleout.run(scaleout.load_workload("llama-3-8b"), gpus=8), "for a workload given by name"),
        (lambda: scaleout.collective("all_reduce", "1MiB"), "give --topology, or --device and --gpus"),
        (lambda: scaleout.collective("all_reduce", "1MiB", device="h200"), "does not say how many ranks"),
        (lambda: scaleout.collective("all_reduce", "1MiB", device="h200", gpus=12), "has so many ranks"),
    ],
)
def test_what_is_wrong_with_gpus_is_said(call, said):
    with pytest.raises(ConfigError, match=said):
        call()
