"""Plans as frameworks' configurations: what is written is read back, and what a framework cannot run is refused."""

import json
import re
import tomllib

import pytest

from scaleout.errors import ConfigError
from scaleout.interop.models import import_model
from scaleout.interop.models.flavors import FLAVORS
from scaleout.interop.models.plans import FORMATS, write_plan
from scaleout.workloads.families import load_workload
from scaleout.workloads.pipeline import PIPELINES

KEYS = (
    "tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel", "expert_parallel", "microbatch_size",
    "batch_per_replica", "pipeline_schedule", "recompute", "sequence_parallel", "zero", "dtype", "sequence",
    "num_parameters", "layers_of_stage", "linear_dtype", "sharding",
)  # fmt: skip
"""What must be the same when a plan has been written and read."""

PLANS = (
    {"data_parallel": 8, "zero": 3},
    {"data_parallel": 8},
    {"data_parallel": 8, "zero": 3, "shard_ranks": 2, "recompute": "full"},
    {"data_parallel": 4, "tensor_parallel": 2, "sequence_parallel": True, "zero": 3, "microbatch": 2},
    {"data_parallel": 2, "pipeline_parallel": 4, "zero": 1},
    {"pipeline_parallel": 8, "pipeline_schedule": "interleaved_1f1b", "virtual_stages": 4},
    {"data_parallel": 1, "pipeline_parallel": 2, "tensor_parallel": 4, "sequence_parallel": True},
    {"data_parallel": 4, "context_parallel": 2, "zero": 3},
    {"data_parallel": 8, "zero": 3, "linear_dtype": "fp8_tensorwise", "compiled": True, "clip_gradients": True},
    {"data_parallel": 2, "pipeline_parallel": 4, "pipeline_schedule": "zb_v"},
)  # fmt: skip
each_plan = pytest.mark.parametrize("plan", PLANS, ids=str)


def workload_of(name="llama-3-8b", **keys):
    return load_workload(name, {"zero": 0, "batch_per_replica": 8, "microbatch": 1, "topology": "ring-1024", **keys})


def read_back(name, text, tmp_path, **changes):
    file = tmp_path / FORMATS[name].file
    file.write_text(text)
    return import_model(file, ranks=changes.pop("ranks"), changes={"topology": "ring-1024", **changes}).workload


@each_plan
def test_a_plan_that_is_written_for_torchtitan_is_read_back(plan, tmp_path):
    workload = workload_of(**plan)
    found = read_back("torchtitan", write_plan("torchtitan", workload).text, tmp_path, ranks=workload.num_ranks)
    assert {key: getattr(found, key) for key in KEYS} == {key: getattr(workload, key) for key in KEYS}


@pytest.mark.parametrize("plan", PLANS[:-1], ids=str)
def test_a_plan_that_is_written_for_megatron_is_read_back(plan, tmp_path):
    workload = workload_of(**plan)
    found = read_back("megatron", write_plan("megatron", workload).text, tmp_path, ranks=workload.num_ranks)
    assert {key: getattr(found, key) for key in KEYS} == {key: getattr(workload, key) for key in KEYS}


@pytest.mark.parametrize(("number", "read"), [(3, ("full", 3)), (None, ("full", None)), (0, ("none", None))])
def test_megatron_recomputes_some_layers_of_a_stage(number, read, tmp_path):
    workload = workload_of(pipeline_parallel=4, recompute="full", recompute_layers=number)
    found = read_back("megatron", write_plan("megatron", workload).text, tmp_path, ranks=4)
    assert (found.recompute, found.recompute_layers) == read


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "megatron-22b", "mamba-2-hybrid-8b", "gpt-3"])
def test_models_are_written_for_megatron_and_read_back(name, tmp_path):
    axes = {"pipeline_parallel": 1, "expert_parallel": 1, "stage_layers": [], "pipeline_schedule": "1f1b"}
    sharded = {"data_parallel": 8, "tensor_parallel": 1, "zero": 1, "topology": "ring-1024"}
    workload = load_workload(name, axes | sharded)
    found = read_back("megatron", write_plan("megatron", workload).text, tmp_path, ranks=8)
    same = ("kind", "hidden", "layers", "ffn", "heads", "latent", "norm", "activation", "vocabulary", "tied_embedding")
    same += ("recompute", "num_parameters")
    assert {key: getattr(found, key) for key in same} == {key: getattr(workload, key) for key in same}


def test_a_flavor_of_torchtitan_is_found_by_its_sizes(tmp_path):
    values = tomllib.loads(write_plan("torchtitan", workload_of(zero=3)).text)
    assert values["model"] == {"name": "llama3", "flavor": "8B"}
    other = write_plan("torchtitan", workload_of(zero=3, layers=16))
    assert tomllib.loads(other.text)["model"]["name"] == "YOUR_MODEL"
    (tmp_path / "plan.toml").write_text(other.text)
    with pytest.raises(
        ConfigError, match=r"\[model\]: name 'YOUR_MODEL': stands for a model that torchtitan lacks.* config.json"
    ):
        import_model(tmp_path / "plan.toml", ranks=8)
    assert "no flavor of torchtitan v0.2.2 has these sizes: register one of 16 layers" in other.notes[0]


@pytest.mark.parametrize(("name", "flavor"), FLAVORS)
def test_every_flavor_is_found_by_its_sizes(name, flavor, tmp_path):
    (tmp_path / "a.toml").write_text(f'model = {{name = "{name}", flavor = "{flavor}"}}\ntraining = {{seq_len = 4096}}')
    workload = import_model(tmp_path / "a.toml", ranks=8, changes={"recompute": "none"}).workload
    values = tomllib.loads(write_plan("torchtitan", workload).text)
    assert values["model"] == {"name": name, "flavor": flavor}


def test_deepspeed_has_its_keys():
    workload = workload_of(data_parallel=4, tensor_parallel=2, zero=2, recompute="full", clip_gradients=True)
    written = write_plan("deepspeed", workload, schedule="overlap")
    values = json.loads(written.text)
    assert values["train_batch_size"] == 32
    micro, steps = values["train_micro_batch_size_per_gpu"], values["gradient_accumulation_steps"]
    assert micro * steps * workload.data_parallel == values["train_batch_size"]
    assert values["zero_optimization"]["stage"] == 2
    assert values["zero_optimization"]["overlap_comm"] is True
    assert (values["bf16"], values["tensor_parallel"]) == ({"enabled": True}, {"autotp_size": 2})
    assert values["gradient_clipping"] == 1.0
    assert any("checkpoint layers (recompute full)" in note for note in written.notes)


def test_what_deepspeed_wants_in_code_is_told():
    workload = load_workload("mixtral-8x7b", {"zero": 1})
    assert any("deepspeed.moe.layer.MoE(..., ep_size=8)" in note for note in write_plan("deepspeed", workload).notes)
    pipelined = workload_of(data_parallel=2, pipeline_parallel=4, zero=1)
    assert any("num_stages=4" in note for note in write_plan("deepspeed", pipelined).notes)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("schedule", PIPELINES)
def test_every_pipeline_schedule_is_written_or_refused(name, schedule):
    keys = {"virtual_stages": 2} if schedule == "interleaved_1f1b" else {}
    workload = workload_of(data_parallel=2, pipeline_parallel=4, pipeline_schedule=schedule, zero=1, **keys)
    able = {"torchtitan": 5, "megatron": 2, "deepspeed": 1}[name]
    named = ("1f1b", "interleaved_1f1b", "gpipe", "zb_v", "dualpipe_v")[:able]
    if schedule in named:
        assert write_plan(name, workload).text
    else:
        with pytest.raises(ConfigError, match=f"has no pipeline schedule {schedule}; hold"):
            write_plan(name, workload)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("torchtitan", {"zero": 2}, "shards parameters, not states alone (zero 2); hold zero 0 or 3"),
        ("torchtitan", {"tensor_parallel": 2}, "cuts sequences with tensors; hold sequence_parallel true"),
        ("torchtitan", {"recompute": "selective", "attention": "unfused"}, "recomputes operations or whole layers"),
        ("torchtitan", {"recompute": "full", "recompute_layers": 2}, "recomputes all layers or every n-th"),
        ("torchtitan", {"context_parallel": 2}, "shards over the context axis; hold zero 3"),
        ("megatron", {"recompute": "operations"}, "recomputes attention's core or whole layers"),
        ("megatron", {"post_norms": True}, "has no arguments for parallel halves, norms behind them"),
        ("megatron", {"attention_biases": "all"}, "has biases in all linear layers, or of queries, keys and values"),
        ("megatron", {"linear_dtype": "fp8_rowwise"}, "has no fp8 of rows"),
        ("megatron", {"zero": 3, "pipeline_parallel": 2}, "shards states alone in a pipeline; hold zero 0 or 1"),
        ("deepspeed", {"sequence_parallel": True, "tensor_parallel": 2}, "cuts tensors without sequences (AutoTP)"),
        ("deepspeed", {"context_parallel": 2}, "exchanges tokens for heads, not by ring; set context_exchange"),
        ("deepspeed", {"zero": 3, "tensor_parallel": 2}, "cuts tensors (AutoTP) with zero 0 to 2"),
        ("deepspeed", {"linear_dtype": "fp8_rowwise"}, "has no key for GEMMs in fp8"),
    ],
)
def test_what_a_framework_cannot_run_is_refused(name, keys, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        write_plan(name, workload_of(**keys))


def test_models_that_no_framework_of_these_trains_are_refused():
    with pytest.raises(ConfigError, match="a model of kind diffusion_transformer is none that megatron trains"):
        write_plan("megatron", load_workload("dit-xl-2"))
