"""`gpus` in Python: what `--gpus` makes of a job, and what it refuses."""

import json
import re
import shlex

import networkx as nx
import pytest

import scaleout as api
from scaleout.api.views import open_output
from scaleout.errors import ConfigError
from scaleout.study.sweep.table import write_table


def test_a_job_of_so_many_gpus_is_that_of_its_replicas_and_nodes():
    few = {"layers": 2, "tensor_parallel": 4}
    answer = api.run("llama-3-8b", gpus=32, device="h200", schedules=["baseline"], changes=few)
    assert answer.comparison.ranks == 32
    asked = answer.inputs
    assert (asked["set.data_parallel"], asked["topology"]) == (8, "dgx-h200-4")
    topology = {"topology": "dgx-h200-2", "device": "h200", "schedules": ["baseline"]}
    same = api.run("llama-3-8b", changes={**few, "data_parallel": 8}, network_changes={"nodes": 4}, **topology)
    assert answer.outcomes[0].makespan_s == same.outcomes[0].makespan_s


def test_a_file_without_a_network_is_on_that_of_its_device(tmp_path):
    (tmp_path / "own.yaml").write_text(
        "kind: transformer\nlayers: 2\nhidden: 512\nheads: 4\nffn: 1024\nsequence: 512\nvocabulary: 1000\n"
        "batch_per_replica: 1\n"
    )
    answer = api.run(str(tmp_path / "own.yaml"), gpus=16, device="h100", schedules=["baseline"])
    assert (answer.to_dict()["topology"], answer.to_dict()["ranks"]) == ("dgx-h100-2", 16)
    with pytest.raises(ConfigError, match="no network that mi210 is sold with has so many ranks; give 2 or 4, or"):
        api.run(str(tmp_path / "own.yaml"), gpus=8, device="mi210")


def test_a_search_on_so_many_gpus_chooses_the_replicas():
    answer = api.search("llama-3-8b", gpus=4, device="h200", changes={"layers": 2}, top=1, workers=1)
    assert answer.inputs["topology"] == "switch(4,nvlink4)"
    assert answer.to_frame()["plan.data_parallel"].iloc[0] <= 4


def test_a_collective_of_a_devices_own_network():
    answer = api.collective("all_reduce", "1MiB", device="h200", gpus=16)
    assert answer.num_ranks == 16
    beside = api.collective("all_reduce", "1MiB", topology="dgx-h200-2", gpus=16)
    assert beside.taken == answer.taken


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: api.run("llama-3-8b", gpus=0), "gpus must be a whole number, 1 or more, not 0"),
        (lambda: api.run("llama-3-8b", gpus="8"), "gpus"),
        (lambda: api.run("llama-3-8b", gpus=12), "has 8 ranks and no nodes"),
        (lambda: api.run("llama-3-8b", gpus=8, changes={"data_parallel": 2}), "both say how many ranks there are"),
        (lambda: api.run("llama-3-8b", gpus=8, topology=nx.complete_graph(8)), "for a topology given by name"),
        (lambda: api.run(api.load_workload("llama-3-8b"), gpus=8), "for a workload given by name"),
        (lambda: api.collective("all_reduce", "1MiB"), "give --topology, or --device and --gpus"),
        (lambda: api.collective("all_reduce", "1MiB", device="h200"), "does not say how many ranks"),
        (lambda: api.collective("all_reduce", "1MiB", device="h200", gpus=12), "ranks; give a multiple of 8, or"),
        (lambda: api.collective("all_reduce", "1MiB", device="t3-gpu", gpus=12), "t3-gpu is sold with ships"),
    ],
)
def test_what_is_wrong_with_gpus_is_said(call, said):
    with pytest.raises(ConfigError, match=said):
        call()


FEW = {"layers": 2, "tensor_parallel": 4}


def test_each_case_of_a_sweep_over_gpus_is_that_of_its_command(scaleout, tmp_path):
    answer = api.sweep(workload="llama-3-8b", device="h200", gpus=[4, 16], set=FEW, where="ranks > 2", workers=1)
    cases = answer.to_frame()
    assert (list(cases["ranks"]), list(cases["topology"])) == ([4, 16], ["switch(4,nvlink4)", "dgx-h200-2"])
    for row in cases.to_dict("records"):
        code, out, _ = scaleout(*shlex.split(row["run"])[1:], "--json")
        (found,) = json.loads(out)["results"]
        assert (code, found["makespan_s"]) == (0, row["makespan_s"])
    write_table(cases, tmp_path / "cases.parquet")
    again = [open_output(tmp_path).again(job, {}).outcomes[0].makespan_s for job in range(2)]
    assert sorted(again) == sorted(cases["makespan_s"])


def test_a_case_of_gpus_that_no_replicas_make_is_a_row_that_says_so():
    few = api.sweep(workload="llama-3-8b", device="h200", gpus=[4, 6], set=FEW, workers=1).to_frame()
    assert list(few["status"]) == ["ok", "failed"]
    assert "a replica of this job takes 4 ranks" in few["message"][1]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"gpus": [8, "16"]}, "gpus must be a whole number, 1 or more, not '16'"),
        ({"gpus": 0}, "gpus must be a whole number, 1 or more, not 0"),
        ({"gpus": True}, "gpus must be a whole number, 1 or more, not True"),
        ({"gpus": 8, "nodes": [1, 2]}, "gpus and nodes both say how many ranks there are"),
        ({"gpus": 8, "set": {"data_parallel": 8}}, "gpus and set.data_parallel both say how many ranks there are"),
    ],
)
def test_what_is_wrong_with_gpus_of_a_sweep_is_said_before_any_case_runs(keys, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        api.sweep(workload="llama-3-8b", **keys)
