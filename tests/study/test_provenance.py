"""Every answer says which model gave it, and what that model leaves out."""

import json

import pytest

import scaleout as package
from scaleout.config import library
from scaleout.study.comparison import compare


def model(**how):
    return compare("dlrm-128", schedules=["baseline"], **how).summary()["model"]


def test_a_result_names_its_models_and_inputs():
    found = model(topology="dgx-h200-16", host="eager")
    assert found["version"] == package.__version__
    assert (found["network"], found["library"], found["contention"]) == ("alpha_beta", "NCCL 2.28.9", "NCCL 2.28.9")
    assert (found["host"], found["clocks"]) == ("eager", "unthrottled")
    assert found["inputs"] == {
        "workload": "dlrm-128", "topology": "dgx-h200-16", "device": "h200", "options": {"host": "eager"},
    }  # fmt: skip
    assert found["notes"] == []


@pytest.mark.parametrize(
    ("how", "note"),
    [
        (
            {},
            "topology torus-8x16 names no communication library (the paper simulates links alone): its collectives are "
            "alpha-beta, without the costs of",
        ),
        ({}, "do not slow each other down: no communication library says what they take"),
        ({"device": "mi210", "clocks": "sustained"}, "--clocks sustained: the file of device mi210 has no power"),
    ],
)
def test_what_is_left_out_is_announced(how, note):
    assert any(note in each for each in model(**how)["notes"])


def test_messages_over_links_have_the_costs_of_protocols(tmp_path):
    """And the answer says so: a start-up of NCCL's LL and what a round takes are in 1 KiB over 16 nodes."""
    asked = {"topology": "dgx-h200-16", "algorithm": "ring", "network": "link"}
    bare_file = tmp_path / "bare.yaml"
    bare_file.write_text(
        (library.folder("topology") / "dgx-h200-16.yaml").read_text().replace("nccl/h200.yaml", "none")
    )
    answer = package.collective("all_reduce", "1KiB", **asked)
    bare = package.collective("all_reduce", "1KiB", **{**asked, "topology": str(bare_file)})
    assert answer.by_size[0][0]["time_s"] > bare.by_size[0][0]["time_s"] + 5e-6
    assert answer.model.title.startswith("flows over links, protocols of NCCL 2.28.9,")
    assert bare.model.title.startswith("flows over links, no protocol costs,")
    assert (answer.model.library, answer.model.notes) == ("NCCL 2.28.9", ())


def test_no_contention_is_said_where_it_was_asked_for():
    found = model(topology="dgx-h200-16", contention=False)
    assert found["contention"] is None
    assert found["notes"] == []
    assert found["inputs"]["options"] == {"contention": False}


def test_titles_of_verbs_say_it(scaleout):
    code, out, _ = scaleout("run", "dlrm-128", "--schedule", "baseline", "--degrade", "0-1=0.5")
    assert code == 0
    words = " ".join(out.replace("│", " ").split())
    assert "model alpha-beta network, no protocol costs, no contention, eager host, sustained clocks" in words
    assert f"scaleout {package.__version__}, degrade 0-1=0.5" in words
    assert "note: topology torus-8x16 names no communication library" in words
    asked = "collective", "all_reduce", "--bytes", "1MiB", "--topology", "dgx-h200-2", "--nodes", "4"
    code, out, _ = scaleout(*asked)
    words = " ".join(out.replace("│", " ").split())
    assert "ranks 32" in words
    assert "model alpha-beta network, protocols of NCCL 2.28.9" in words
    code, out, _ = scaleout(*asked, "--json")
    assert json.loads(out)["model"]["inputs"] == {"topology": "dgx-h200-2", "changes": ["nodes=4"]}


def test_gradients_that_lie_in_no_buckets_are_told(scaleout):
    """ResNet-50 all-reduces its 161 gradients one by one, as its source does, and DDP would not."""
    job = ("run", "resnet-50", "--schedule", "overlap", "--gpus", "8", "--set", "global_batch=64")
    told = "workload resnet-50 all-reduces each gradient by itself (gradient_bucket 1 B)"
    plain, bucketed = (scaleout(*job, *each)[1] for each in ((), ("--set", "gradient_bucket=25MiB")))
    assert told in plain
    assert "of the step; gradients lie in no buckets (--set gradient_bucket=25MiB)" in plain
    assert "bucket" not in bucketed
    assert "bucket" not in scaleout(*job[:4], "--gpus", "1")[1]  # nothing is reduced


def test_a_bucket_of_25_bytes_is_one_only_with_its_unit(scaleout):
    """Who writes 25 means megabytes, as elsewhere."""
    job = ("run", "llama-3-8b", "--schedule", "baseline", "--set", "zero=0", "--gpus", "8", "--set", "layers=2")
    meant, bytes_ = (scaleout(*job, "--set", f"gradient_bucket={size}")[1] for size in ("25MiB", "25B"))
    assert "all-reduces each gradient by itself (gradient_bucket 25 B)" in bytes_
    assert "by itself" not in meant
    code, _, said = scaleout(*job, "--set", "gradient_bucket=25")
    assert code == 2
    assert "gradient_bucket: 25 has no unit, and is to be a size; write it like '25MiB' or '25GB'" in said


def test_what_a_trace_has_not_and_its_workload_has_is_told(scaleout, tmp_path):
    """Their times are equal where both have it not."""
    job = ("llama-3-8b", "--set", "pipeline_parallel=1", "--set", "data_parallel=4", "--set", "layers=2")
    scaleout("trace", *job, "--output", str(tmp_path / "trace"))
    run = ("run", "--schedule", "baseline", "--topology", "h200-node-4", "--json")
    without = ("--host", "none", "--clocks", "unthrottled")
    given = [("--trace", str(tmp_path / "trace")), job, (*job, *without)]
    traced, *of = [json.loads(scaleout(*run, *each)[1]) for each in given]
    words = "a workload's run has both, but with --host none --clocks unthrottled"
    assert [words in str(each["model"]["notes"]) for each in (traced, *of)] == [True, False, False]
    assert [each["results"][0]["makespan_s"] == traced["results"][0]["makespan_s"] for each in of] == [False, True]


def test_attention_that_parts_of_sequences_do_not_take_is_told(scaleout):
    """Parts of a sequence over ranks are attended to by flash kernels, whatever the key says."""
    job = (
        "run",
        "llama-3-8b",
        "--schedule",
        "baseline",
        "--gpus",
        "8",
        "--set",
        "layers=2",
        "--set",
        "pipeline_parallel=1",
    )
    parts = ("--set", "context_parallel=2")
    plain, unfused, whole = (
        json.loads(scaleout(*job, *each, "--json")[1])
        for each in (parts, (*parts, "--set", "attention=unfused"), ("--set", "attention=unfused"))
    )
    assert unfused["results"][0]["makespan_s"] == plain["results"][0]["makespan_s"]
    told = [str(each["model"]["notes"]) for each in (plain, unfused, whole)]
    assert ["attention unfused changes nothing" in each for each in told] == [False, True, False]
