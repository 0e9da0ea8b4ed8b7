"""torchtitan's TOML as workloads: flavors as published, degrees, what is told and what is refused."""

import pytest

from scaleout.errors import ConfigError
from scaleout.interop.models import import_model
from scaleout.interop.models.flavors import FLAVORS

TOML = """
[job]
description = "Llama 3 8B training"
[model]
name = "llama3"
flavor = "8B"
hf_assets_path = "./assets"
[optimizer]
name = "AdamW"
lr = 3e-4
[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0
steps = 1000
dataset = "c4"
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""


@pytest.fixture
def imported(tmp_path):
    def read(*replacements, ranks=64, **changes):
        text = TOML
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "job.toml").write_text(text)
        return import_model(tmp_path / "job.toml", ranks=ranks, changes={"topology": "ring-1024"} | changes)

    return read


@pytest.mark.parametrize(
    ("flavor", "parameters"),
    [
        (("llama3", "8B"), 8_030_261_248),
        (("llama3", "70B"), 70_553_706_496),
        (("llama3", "405B"), 405_853_388_800),
        (("qwen3", "0.6B"), 596_049_920),
        (("qwen3", "8B"), 8_190_735_360),
        (("qwen3", "32B"), 32_762_123_264),
        (("qwen3", "30B-A3B"), 30_532_122_624),
        (("qwen3", "235B-A22B"), 235_093_634_560),
        (("deepseek_v3", "671B"), 671_026_419_200),
        (("gpt_oss", "20b"), 20_914_757_184),
        (("gpt_oss", "120b"), 116_829_156_672),
    ],
)
def test_flavors_are_the_models_of_huggingface(imported, flavor, parameters):
    """Counts of the models on the Hub, safetensors.total or index files; DeepSeek-V3 without multi-token prediction."""
    name, size = flavor
    found = imported(('"llama3"', f'"{name}"'), ('"8B"', f'"{size}"'), ("8192", "4096"))
    assert found.workload.num_parameters == parameters


def test_deepseek_of_16b_is_v2_lite_with_biases_that_balance_experts(imported):
    """15,706,484,224 on the Hub; torchtitan's experts have a bias each, in 26 layers."""
    found = imported(('"llama3"', '"deepseek_v3"'), ('"8B"', '"16B"'), ("8192", "4096"))
    assert found.workload.num_parameters == 15_706_484_224 + 26 * 64


@pytest.mark.parametrize(("name", "flavor"), FLAVORS)
def test_every_flavor_is_a_workload(imported, name, flavor):
    assert imported(('"llama3"', f'"{name}"'), ('"8B"', f'"{flavor}"'), ("8192", "4096")).workload.num_ranks == 64


def test_leftover_ranks_shard_and_gradients_are_added_up(imported):
    workload = imported(("seq_len = 8192", "seq_len = 8192\nglobal_batch_size = 128")).workload
    assert (workload.data_parallel, workload.zero, workload.reshard_after_forward) == (64, 3, True)
    assert (workload.batch_per_replica, workload.microbatch_size, workload.recompute) == (2, 1, "operations")
    assert (workload.framework, workload.clip_gradients, workload.optimizer_kernels) == ("fsdp2", True, "fused")


def test_replicas_of_shards_are_hsdp(imported):
    workload = imported(("replicate_degree = 1", "replicate_degree = 4")).workload
    assert (workload.data_parallel, workload.shard_ranks, workload.replicas_of_shards) == (64, 16, 4)


def test_all_axes(imported):
    degrees = "tensor_parallel_degree = 4\ncontext_parallel_degree = 2\npipeline_parallel_degree = 2\n"
    more = 'pipeline_parallel_schedule = "Interleaved1F1B"\n[activation_checkpoint]'
    found = imported(("[activation_checkpoint]", degrees + more), ("local_batch_size = 1", "local_batch_size = 4"))
    workload = found.workload
    assert (workload.tensor_parallel, workload.context_parallel, workload.pipeline_parallel) == (4, 2, 2)
    assert (workload.data_parallel, workload.sequence_parallel, workload.zero) == (4, True, 1)
    assert (workload.pipeline_schedule, workload.chunks, workload.num_microbatches) == ("interleaved_1f1b", 2, 4)
    assert workload.context_exchange == "all_gather_steps"
    # 32 layers, and one each that embedding and head count as, over 4 stages; the first two have one more
    assert workload.layers_of_stage == (8, 9, 8, 7)
    assert any("FSDP in a pipeline" in note for note in found.notes)


def test_compiled_layers_in_fp8(imported):
    fp8 = '[model]\nconverters = ["quantize.linear.float8"]'
    options = "[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true\n[compile]\nenable = true\n[job]"
    workload = imported(("[model]", fp8), ("[job]", options)).workload
    assert (workload.linear_dtype, workload.gather_dtype, workload.compiled) == ("fp8_tensorwise", "fp8_e4m3", True)
    assert (workload.loss, workload.norm) == ("fused", "rms_norm")


def test_what_is_ignored_is_told(imported):
    notes = imported(("[job]", "[frobnicate]\na = 1\n[job]"), ("steps = 1000", "steps = 1000\nspeed = 3")).notes
    assert "unknown: section frobnicate: what it changes, the workload lacks" in notes
    assert "[training] unknown: speed 3: what it changes in a layer, the workload lacks" in notes
    assert "[training] not read, as they do not change what a step costs: steps, dataset" in notes
    assert "sections not read, as they do not change what a step costs: job" in notes
    told = imported(("[activation_checkpoint]", "enable_async_tensor_parallel = true\n[activation_checkpoint]")).notes
    assert any("left out: enable_async_tensor_parallel True: it is a schedule" in note for note in told)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[job]", "[job", "not valid TOML .*; mend it"),
        ('"llama3"', '"llama9"', "name 'llama9': not one of the models that are known; did you mean 'llama3'"),
        ('"8B"', '"9B"', "flavor '9B': no flavor of llama3 that is known; known: 8B, 70B, 405B"),
        ('"op"', '"2"', "mode 'selective' with selective_ac_option '2' is not modelled; choose none"),
        ("local_batch_size = 1", "local_batch_size = 0", "local_batch_size is 0; give a whole number"),
        ("steps = 1000", "global_batch_size = 100", "global_batch_size 100: no multiple of 64 replicas' batches of 1"),
        ("steps = 1000", "enable_cpu_offload = true", "states on the host are not modelled; set it to false"),
        ("lr = 3e-4", 'implementation = "magic"', "implementation 'magic': known are fused, foreach, for-loop"),
        ("shard_degree = -1", "shard_degree = -1\ntensor_parallel_degree = 3", "64 ranks do not divide by 3"),
        ("shard_degree = -1", 'shard_degree = 8\npipeline_parallel_schedule = "LoopedBFS"', "'LoopedBFS': known are"),
        ("[job]", "[[model]]\n[job]", "not valid TOML"),
        ('"AdamW"', '"Muon"', "name 'Muon': known are AdamW, Adam"),
        ("[model]", '[model]\nconverters = ["mx"]', "converters .*: of them quantize.linear.float8 is known"),
        ("[job]", "parallelism = 3\n[job]", "not valid TOML"),
    ],
)  # fmt: skip
def test_what_no_workload_can_have_is_refused(imported, old, new, message):
    with pytest.raises(ConfigError, match=message):
        imported((old, new))


def test_ranks_that_nothing_fixes_are_asked_for(imported):
    with pytest.raises(ConfigError, match="data_parallel_shard_degree -1 takes the ranks that are left"):
        imported(ranks=None)
    assert imported(('"op"', '"2"'), recompute="full").workload.recompute == "full"


def test_experts_are_cut_over_the_tensor_axis_or_lie_by_themselves(imported):
    model = ('"llama3"', '"qwen3"'), ('"8B"', '"30B-A3B"'), ("8192", "4096")
    cut = "shard_degree = 8\nexpert_parallel_degree = 4\ntensor_parallel_degree = 2\n"
    folded = imported(*model, ("shard_degree = -1", cut), ranks=16).workload
    assert (folded.expert_tensor_parallel, folded.expert_parallel, folded.expert_shards) == (1, 4, 1)
    workload = imported(*model, ("shard_degree = -1", cut + "expert_tensor_parallel_degree = 2"), ranks=16).workload
    assert (workload.expert_parallel, workload.tensor_parallel, workload.data_parallel) == (4, 2, 8)
    assert (workload.expert_tensor_parallel, workload.expert_shards) == (None, 2)
