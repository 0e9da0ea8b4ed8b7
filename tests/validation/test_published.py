"""Published tables as rows: what becomes of one, and how far predictions of a few are off."""

import json

import pytest

from scaleout.cluster.device.spec import load_device
from scaleout.errors import ConfigError
from scaleout.validation.measured.compare import compare_files
from scaleout.validation.measured.rows import waiting_s
from scaleout.validation.published import maxtext
from scaleout.validation.published.ultrascale import layers_of_stages

MPT = {
    "Model": "3b", "SeqLen (T)": 512, "# GPUs": 8, "GPU": "a100_80gb", "MicroBatchSize": 40, "GradAccum": 6,
    "Throughput (T/s/GPU)": 12127, "Precision": "amp_bf16", "MP Mode": "DEFAULT", "Sharding Strategy": "FULL_SHARD",
    "Activation Checkpointing": "False", "Activation CPUOffload": "False",
}  # fmt: skip
LLAMA = "1D Parallelism (FSDP). Llama 3.1 8B model. 128 GPUs. Local batch size 2. Selective activation checkpointing."
LONG = (
    "FSDP + CP + torch.compile + Float8. Llama 3.1 8B model. 8 GPUs. Local batch size 1. Full activation checkpointing."
)
BOTH = "Llama3 8b on 64 H100s with FSDP=8, TP=8, torch.compile, per op SAC, local batch size 12"
VTRAIN = {
    "# GPUs": 64, "global batch": 512, "micro batch": 8, "hidden size": 3072, "attention heads": 32, "# layers": 30,
    "sequence length": 2048, "tensor parallelism": 1, "data parallelism": 64, "pipeline parallelism": 1,
    "iteration time (ms)": 3566.5,
}  # fmt: skip
SMALL = {
    **VTRAIN, "# GPUs": 8, "global batch": 32, "micro batch": 2, "hidden size": 1024, "attention heads": 16,
    "# layers": 16, "sequence length": 1024, "data parallelism": 8, "iteration time (ms)": 132.29,
}  # fmt: skip
ROWS = {
    "vtrain_multi": [
        VTRAIN,
        {**VTRAIN, "micro batch": 32, "tensor parallelism": 16, "data parallelism": 4, "iteration time (ms)": 10580.6},
        {**VTRAIN, "# GPUs": 512, "global batch": 1536, "micro batch": 3, "hidden size": 8192, "attention heads": 64,
         "# layers": 48, "tensor parallelism": 8, "data parallelism": 16, "pipeline parallelism": 4,
         "iteration time (ms)": 14833.8},
    ],
    "vtrain_single": [
        SMALL,
        {**SMALL, "global batch": 64, "micro batch": 1, "iteration time (ms)": 448.28},
        {**SMALL, "# GPUs": 4, "global batch": 16, "micro batch": 4, "hidden size": 2048, "# layers": 24,
         "data parallelism": 2, "pipeline parallelism": 2, "sequence length": 1024, "iteration time (ms)": 410.490577},
    ],
    "llm_foundry_mpt": [
        MPT,
        {**MPT, "GPU": "h100_80gb", "Throughput (T/s/GPU)": 27965},
        {**MPT, "GPU": "h100_80gb", "Throughput (T/s/GPU)": 36527, "Precision": "amp_fp8"},
        {**MPT, "Model": "70b", "SeqLen (T)": 2048, "# GPUs": 128, "GPU": "a100_40gb", "MicroBatchSize": 4,
         "GradAccum": 1, "Throughput (T/s/GPU)": 376, "Precision": "bf16", "MP Mode": "PURE",
         "Activation Checkpointing": "True"},
    ],
    "torchtitan_llama3_h100_202412_torchtitan": [
        {"Techniques": "FSDP + torch.compile", "TPS/GPU": 6514, "_table": LLAMA},
        {"Techniques": "FSDP + torch.compile + Float8", "TPS/GPU": 8380, "_table": LLAMA},
        {"Parallelism": "FSDP 4 CP 2", "Sequence Length": 65536, "TPS/GPU": 2540, "_table": LONG},
    ],
    "torchtitan_asyncTP_llama3_h100_2025-06_torchtitan": [
        {"Quantization": "None (bfloat16)", "Vanilla TP tokens/sec": 4378, "Async TP tokens/sec": 4809.4,
         "_table": BOTH},
    ],
    "maxtext_tpu_v4": [{"Hardware": "2x v4-128", "TFLOP/sec/chip": 152, "_model": "22B model"}],
    "maxtext_tpu_v5e": [{"Hardware": "4x v5e-256", "32B TFLOP/sec/chip": 126, "128B TFLOP/sec/chip": 108}],
}  # fmt: skip
"""Rows of github.com/mosaicml/llm-foundry, scripts/train/benchmarking; pytorch/torchtitan, benchmarks;
AI-Hypercomputer/maxtext, configs/v4 and v5e; and VIA-Research/vTrain, data."""


def compared(folder, table, rows):
    file = folder / "tables.json"
    file.write_text(json.dumps({"tables": [{"id": table, "rows": rows}]}))
    return compare_files([file], table=table)


@pytest.mark.parametrize("table", ROWS)
def test_published_steps_are_met(table, tmp_path):
    found = compared(tmp_path, table, ROWS[table])
    assert found.accuracy.coverage == 1
    assert found.accuracy.mean_absolute_error < 0.1
    assert abs(found.accuracy.worst) < 0.17


def test_throughput_becomes_the_time_of_a_step(tmp_path):
    """6 x 40 sequences of 512 tokens on each GPU, at 12,127 tokens a second."""
    (row,) = compared(tmp_path, "llm_foundry_mpt", [MPT]).rows
    assert row.measured == pytest.approx(6 * 40 * 512 / 12127)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Model": "4b"}, "unknown Model '4b'"),
        ({"GPU": "tpu"}, "unknown GPU 'tpu'"),
        ({"MicroBatchSize": 1.5}, "MicroBatchSize is 1.5; give a whole number"),
        ({"Throughput (T/s/GPU)": 0}, "is 0; give a number above zero"),
        ({"Precision": "fp4"}, "unknown Precision 'fp4'"),
    ],
)
def test_a_row_that_cannot_be_is_refused(change, message, tmp_path):
    with pytest.raises(ConfigError, match=f"row 1.*{message}"):
        compared(tmp_path, "llm_foundry_mpt", [{**MPT, **change}])


def test_offloaded_activations_have_no_model(tmp_path):
    (row,) = compared(tmp_path, "llm_foundry_mpt", [{**MPT, "Activation CPUOffload": "True"}]).rows
    assert "offloaded" in row.reason


def test_parameters_of_maxtext_models_are_those_they_are_named_by():
    """FLOPs of a token are 6 a parameter, and those of causal attention: 6 x 64 layers x 64 heads x 256 x 2048."""
    models = maxtext.MODELS
    assert models["128B"].flops_per_token == pytest.approx(6 * 128.8e9 + 6 * 64 * 64 * 256 * 2048, rel=0.01)
    for name, model in models.items():
        attention = 6 * model.layers * model.heads * 256 * 2048
        assert (model.flops_per_token - attention) / 6e9 == pytest.approx(float(name[:-1]), rel=0.03)


def test_slices_that_nobody_knows_have_no_model(tmp_path):
    values = {"Hardware": "2x v9-8", "TFLOP/sec/chip": 1, "_model": "22B model"}
    (row,) = compared(tmp_path, "maxtext_tpu_v4", [values]).rows
    assert "no slices are known" in row.reason


def test_a_published_step_waits_for_its_slowest_gpu():
    """Of eight that differ by 1.5% the slowest takes 1.42 deviations more; without a number none waits."""
    assert waiting_s(2.0, 8, load_device("a100-80g")) == pytest.approx(2 * 0.015 * 1.4236, rel=0.03)
    assert waiting_s(2.0, 1, load_device("a100-80g")) == waiting_s(2.0, 8, load_device("tpu-v4")) == 0.0


def test_vtrain_rows_by_hand(tmp_path):
    """All else equal, twice the micro-batches of small kernels, which wait for the host, take about twice as long."""
    rows = [{**SMALL, "micro batch": 1, "global batch": 8 * count} for count in (8, 16)]
    few, many = (row.predicted for row in compared(tmp_path, "vtrain_single", rows).rows)
    assert many / few == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"# GPUs": 16}, "row 1: tensor, data and pipeline parallelism make 8 ranks, not # GPUs"),
        ({"global batch": 33}, "row 1: global batch does not divide over data parallelism"),
        ({"hidden size": None}, "row 1: key 'hidden size' is missing"),
        ({"micro batch": 3}, "row 1: .*microbatch 3 does not divide batch_per_replica 4"),
    ],
)
def test_bad_vtrain_rows(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        compared(tmp_path, "vtrain_single", [{**SMALL, **changes}])


@pytest.mark.parametrize("table", ["flux_comet_kernels", "deepep", "triton_distributed_e2e", "torchrec_dlrm_criteo1tb"])
def test_tables_without_a_model_are_reported_with_the_reason(table, tmp_path):
    found = compared(tmp_path, table, [{"a": 1}])
    assert found.accuracy.coverage == 0
    assert found.rows[0].reason.startswith(("no ", "the row"))


ULTRASCALE = {
    "id": "1B-n1-dp2-tp4-pp1-mbs16-ga8-z0", "model": "1B", "nodes": 1, "dp": 2, "tp": 4, "pp": 1, "mbs": 16, "accum": 8,
    "zero": 0, "seq": 4096, "status": "ok", "class": "A", "step_s": 3.901,
    "memory_gib": 66.71, "layers": 16, "hidden": 2048, "heads": 32,
    "kv_heads": 32, "intermediate": 8192, "vocab": 131072, "tied": True,
}  # fmt: skip
"""A run of nanotron, huggingface.co/spaces/nanotron/ultrascale-playbook."""


def test_rows_of_ultra_scale_are_read_as_they_are(tmp_path):
    """A row a line, classes are families; of a run that crashed it counts whether memory had to, if it is near."""
    file = tmp_path / "dev.jsonl"
    crashed = {**ULTRASCALE, "status": "crashed", "step_s": None, "memory_gib": None, "class": "X"}
    rows = [ULTRASCALE, {**crashed, "mbs": 1}, {**crashed, "mbs": 32}, {**ULTRASCALE, "pp": 2, "class": "B"}]
    file.write_text("\n".join(map(json.dumps, rows)))
    found = compare_files([file], table="ultrascale")
    kinds = ["Ultra-Scale A", "Ultra-Scale A memory", "Ultra-Scale fits", "Ultra-Scale B", "Ultra-Scale B memory"]
    assert list(found.families) == kinds
    ran, memory, fits, crashes, piped, *_ = found.rows
    assert memory.measured == 66.71 * 2**30
    assert abs(memory.error) < 0.15
    assert (fits.measured, fits.predicted, fits.error) == (1.0, 1.0, 0.0)
    assert (crashes.measured, crashes.predicted, crashes.error) == (0.0, 0.0, 0.0)
    assert ran.measured == 3.901
    assert abs(ran.error) < 0.15
    # Twice the GPUs: half the time, and more by the bubble, as stages of 11 and 5 layers and the head are uneven.
    assert 0.5 * ran.predicted < piped.predicted < ran.predicted


def test_a_run_that_took_as_long_as_checks_would_holds_what_a_host_holds_that_is_never_ahead(tmp_path):
    """The table's run of 3.3 s held 25.3 GiB, half of what a host ahead of its GPU holds. Times do not follow."""
    run = {**ULTRASCALE, "nodes": 4, "tp": 16, "mbs": 32, "accum": 4, "class": "E", "memory_gib": 25.26}
    file = tmp_path / "dev.jsonl"
    file.write_text("\n".join(json.dumps({**run, "step_s": seconds}) for seconds in (3.316398, 2.3)))
    found = compare_files([file], table="ultrascale")
    checked, ahead = (row for row in found.rows if row.id.endswith("memory"))
    assert abs(checked.error) < 0.03
    assert ahead.error > 1
    slow, fast = (row.predicted for row in found.rows if row.id.endswith("step"))
    assert slow == fast


@pytest.mark.parametrize(
    ("sizes", "stages", "layers"),
    [
        ((16, 2048, 8192), 2, [11, 5]),
        ((16, 2048, 8192), 8, [3, 3, 2, 3, 2, 3, 0, 0]),
        ((32, 4096, 14336), 4, [9, 9, 8, 6]),
        ((80, 8192, 28672), 16, [6, *[5] * 13, 6, 3]),
    ],
)
def test_stages_as_nanotron_cuts_them(sizes, stages, layers):
    """By hand, from the rule: a stage is left behind the layer that exceeds its share; the last ones may be empty."""
    count, hidden, ffn = sizes
    found = layers_of_stages(count, (4 * hidden + 3 * ffn) * hidden, 131072 * hidden, stages)
    assert found == layers
