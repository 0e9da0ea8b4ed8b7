"""Measured rows to predictions: what is read, what is said of rows that cannot be, and errors worked by hand."""

import json
import re
import shutil

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from scaleout.cli.verbs import scaleout
from scaleout.cluster.device.kernel_times import kernel_time
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import first_ranks
from scaleout.cluster.topology.topology import load_topology
from scaleout.config import library
from scaleout.errors import ConfigError
from scaleout.program.operations import kernel
from scaleout.study.comparison import compare
from scaleout.validation.measured.compare import accuracy_of, compare_files
from scaleout.validation.measured.restated import RESTATED
from scaleout.workloads.families.moe import Moe

STEP = {
    "name": "transformer_forward", "gpus": 4, "hidden": 512, "heads": 4, "layers": 2, "seq": 256, "batch": 1,
    "mode": "tp", "dtype": "bf16", "step_us": 900.0,
}  # fmt: skip
ROWS = [
    STEP,
    {**STEP, "name": "transformer_forward_backward", "mode": "tp_sp"},
    {**STEP, "gpus": 2},
    *({**STEP, "mode": "dp", "name": name} for name in ("dp_compute_only", "dp_serial_allreduce_per_parameter")),
    {**STEP, "mode": "dp", "name": "dp_ddp_overlap", "bucket_mb": 25},
    {**STEP, "mode": "fsdp", "name": "fsdp2_fully_shard"},
    {"kind": "hybrid_tp2_dp2", **{key: STEP[key] for key in STEP if key not in ("name", "mode")}, "variant": "tp_only"},
    {"kind": "hybrid_tp2_dp2", "dtype": "bf16", "parameters_per_gpu": 10**6, "variant": "adamw_only", "step_us": 9.0},
    {"kind": "pipeline", "schedule": "interleaved_1f1b", "stages": 4, "virtual": 2, "hidden": 512, "heads": 4,
     "layers": 16, "seq": 256, "microbatch": 1, "microbatches": 8, "dtype": "bf16", "step_us": 9000.0},
    {"kind": "pipeline_stage", "layers": 2, "hidden": 512, "seq": 256, "microbatch": 1, "forward_backward_us": 90.0},
    *({"name": name, "gpus": 4, "hidden": 512, "ffn": 1024, "tokens": 256, "topk": 2, "chunks": 2, "dtype": "bf16",
       "step_us": 700.0} for name in ("moe_forward", "moe_forward_backward")),
    *({"name": name, "gpus": 4, "batch": 512, "tables_per_gpu": 2, "dim": 64, "pooling": 4, "top_layers": 3,
       "mlp": 64, "dtype": "fp32", "step_us": 500.0}
      for name in ("embedding_all_to_all", "dlrm_forward", "dlrm_forward_backward_allreduce")),
    {"name": "gemm_then_collective_chunked", "gpus": 4, "M": 1024, "N": 512, "K": 256, "collective": "all_reduce",
     "chunks": 4, "dtype": "bf16", "step_us": 100.0},
    *({"name": f"async_tp_fused_{name}", "gpus": 4, "M": 1024, "N": 512, "K": 256, "dtype": "bf16", "step_us": 300.0}
      for name in ("all_gather_matmul", "matmul_reduce_scatter")),
    {"name": "all_gather_then_matmul", "gpus": 4, "M": 1024, "N": 512, "K": 256, "dtype": "bf16", "step_us": 50.0},
    {"op": "gemm", "dtype": "bf16", "M": 8192, "N": 8192, "K": 8192, "us": 1600.0},
    {"op": "add", "dtype": "bf16", "elements": 12_345_678, "us": 20.0},
    {"collective": "all_reduce", "ranks": 2, "bytes": 2**24, "us": 77.6},
    {"collective": "send_recv", "ranks": 2, "bytes": 2**24, "us": 59.0, "note": "CUDA graph of 20"},
    {"workload": "llama-3-8b", "changes": {"layers": 2, "sequence": 256, "data_parallel": 4}, "measured": "12 ms"},
]  # fmt: skip
"""One row of every kind that can be predicted."""

CONTENTION = {
    "kind": "contention", "compute": "gemm_8192_4096_1024", "collective": "all_gather", "bytes": 2**24,
    "nccl_max_ctas": "4", "compute_alone_us": 100.0, "collective_alone_us": 200.0, "compute_together_us": 112.0,
    "collective_together_us": 350.0,
}  # fmt: skip
"""Two runs in a row."""

UNKNOWN = [
    {**STEP, "name": "async_tp_fused_by_pigeon"},
    {**CONTENTION, "compute": "gemm_by_pigeon"},
    {"op": "gem", "dtype": "bf16", "M": 1, "N": 2, "K": 3, "us": 4.0},
    {"op": "host_launch", "call": "add", "host_us": 8.74},
    {**STEP, "name": "dp_by_pigeon"},
    {"name": "resnet", "step_us": 3.0},
    {**STEP, "name": "moe_forward", "ffn": 512, "tokens": 255, "topk": 2, "chunks": 2},
]


def write(folder, rows, *, gpu="NVIDIA H200"):
    file = folder / "runs.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    if gpu:
        (folder / "environment.json").write_text(json.dumps({"gpu": gpu}))
    return file


def test_every_kind_of_row_is_predicted(tmp_path):
    comparison = compare_files([write(tmp_path, ROWS)])
    assert [row.reason for row in comparison.rows] == [""] * len(ROWS)
    assert all(row.predicted > 0 for row in comparison.rows)
    assert comparison.accuracy.coverage == 1


@pytest.mark.parametrize("row", UNKNOWN, ids=lambda row: row.get("name") or row.get("kind") or row["op"])
def test_a_row_that_cannot_be_predicted_is_kept_with_its_reason(tmp_path, row):
    comparison = compare_files([write(tmp_path, [STEP, row])])
    assert [bool(found.reason) for found in comparison.rows] == [False] + [True] * (len(comparison.rows) - 1)
    assert [found.predicted is None for found in comparison.rows][1:] == [True] * (len(comparison.rows) - 1)
    assert comparison.accuracy.coverage == 1 / len(comparison.rows)


def test_fused_products_over_symmetric_memory_by_hand(tmp_path):
    """Two parts of a long GEMM: the other rank's copy hides behind the first; a small GEMM waits for the host."""
    device, topology = load_device("h200"), load_topology("h200-node-4")
    row = {"gpus": 2, "M": 8192, "N": 12288, "K": 12288, "dtype": "bf16", "step_us": 4000.0}
    names = [f"async_tp_fused_{name}" for name in ("all_gather_matmul", "matmul_reduce_scatter")]
    gathered, scattered, small = compare_files(
        [write(tmp_path, [*({**row, "name": name} for name in names), {**row, "name": names[0], "N": 128, "K": 128}])]
    ).rows
    gemm = kernel("gemm", dtype="bf16", M=4096, N=12288, K=12288)
    shard = kernel("copy_d2d", dtype="bf16", elements=4096 * 12288)
    added = kernel("moe_sum_topk", dtype="bf16", tokens=4096, hidden=12288, topk=2)
    gemm_s, shard_s, added_s = (kernel_time(device, call).seconds for call in (gemm, shard, added))
    assert gathered.predicted == pytest.approx(3 * topology.startup_s + 2 * (gemm_s + shard_s))
    assert scattered.predicted == pytest.approx(2 * topology.startup_s + 2 * gemm_s + added_s)
    calls_s = device.host_launch_s
    host_s = calls_s["fused_all_gather_matmul_loop"] + 2 * (calls_s["gemm_loop"] + calls_s["peer_copy_loop"])
    assert small.predicted == pytest.approx(host_s)


def test_a_measured_kernel_is_predicted_without_itself(tmp_path):
    device = load_device("h200")
    sizes = {"M": 8192, "N": 8192, "K": 8192}
    known = kernel_time(device, kernel("gemm", dtype="bf16", **sizes))
    assert known.source == "measured"
    row = {"op": "gemm", "dtype": "bf16", **sizes, "us": known.seconds * 1e6}
    (found,) = compare_files([write(tmp_path, [row])]).rows
    assert found.family == "kernels, gemm"
    assert 0 < abs(found.error) < 0.1


def test_a_row_of_two_runs_is_two(tmp_path):
    comparison = compare_files([write(tmp_path, [CONTENTION])])
    assert [row.id for row in comparison.rows] == ["runs:1:compute", "runs:1:collective"]
    assert all(abs(row.error) < 0.1 for row in comparison.rows)


def test_a_described_run_is_what_compare_says(tmp_path):
    changes = {"layers": 2, "sequence": 256, "data_parallel": 4}
    row = {"workload": "llama-3-8b", "changes": changes, "device": "h200", "topology": "h200-node-4",
           "schedule": "overlap", "host": "eager", "measured_us": 1000.0}  # fmt: skip
    (compared,) = compare_files([write(tmp_path, [row], gpu="")]).rows
    expected_s = compare(
        "llama-3-8b", changes=changes, device="h200", topology="h200-node-4", schedules=["overlap"], host="eager"
    ).outcomes[0].makespan_s  # fmt: skip
    assert compared.predicted == expected_s
    assert compared.error == expected_s / 1e-3 - 1


def test_layout_copies_and_the_host_make_a_step_longer():
    sizes = {"layers": 2, "data_parallel": 4, "sequence": 2048, "optimizer": "none"}
    plain, copies = (
        compare("llama-3-8b", changes={**sizes, "layout_copies": which}, device="h200", topology="h200-node-4",
                schedules=["baseline"]).outcomes[0].result
        for which in (False, True)
    )  # fmt: skip
    assert copies.makespan_s > plain.makespan_s
    counted = [
        sum(graph.operation(node) == "heads_cat" for node in range(len(graph))) for graph in copies.program.graphs
    ]
    assert counted == [2]
    assert copies.program.graphs[0].payload_bytes == plain.program.graphs[0].payload_bytes
    assert copies.program.graphs[0].total_flops == plain.program.graphs[0].total_flops


@given(st.lists(st.floats(-0.9, 9.0), min_size=1, max_size=30), st.integers(0, 5))
def test_laws_of_accuracy(errors, more):
    found = accuracy_of(errors, num_rows=len(errors) + more)
    assert abs(found.bias) <= found.mean_absolute_error + 1e-12
    assert found.median_absolute_error <= found.p90_absolute_error <= abs(found.worst)
    assert found.worst in errors
    assert found.coverage == len(errors) / (len(errors) + more)


def test_accuracy_by_hand():
    found = accuracy_of([0.1, -0.2, 0.0, 0.3], num_rows=5)
    assert (found.mean_absolute_error, found.median_absolute_error, found.worst) == pytest.approx((0.15, 0.15, 0.3))
    assert (found.bias, found.coverage) == pytest.approx((0.05, 0.8))


@pytest.mark.parametrize(
    ("topology", "ranks", "shape"),
    [("h200-node-4", 2, (2,)), ("h200-node-4", 1, (1,)), ("torus-8x16", 32, (8, 4)), ("torus-8x16", 4, (4,)),
     ("dgx-h200-16", 8, (8,))],
)  # fmt: skip
def test_the_first_ranks_of_a_topology(topology, ranks, shape):
    whole = load_topology(topology)
    part = first_ranks(whole, ranks)
    assert part.shape == shape
    assert part.num_ranks == ranks
    assert all(one.bytes_per_s == two.bytes_per_s for one, two in zip(part.dimensions, whole.dimensions, strict=False))


def without(row, key):
    return {name: value for name, value in row.items() if name != key}


BAD = [
    ([STEP, "{"], {}, "runs.jsonl, line 2: not valid JSON"),
    (["[1]"], {}, "runs.jsonl, line 1: holds [1], not an object"),
    ([], {}, "holds no rows"),
    ([without(STEP, "hidden")] * 2, {}, "runs.jsonl, line 1: key 'hidden' is missing"),
    ([without(STEP, "step_us")], {}, "line 1: key 'step_us' is missing"),
    ([{**STEP, "layers": 2.5}], {}, "line 1: layers is 2.5; give a whole number"),
    ([{**STEP, "step_us": "fast"}], {}, "line 1: step_us is 'fast'; give a number above zero"),
    ([{**STEP, "mode": "tp_ps"}], {}, "line 1: unknown mode 'tp_ps'; did you mean 'tp_sp'?"),
    ([{**STEP, "hidden": 510}], {}, "line 1: hidden 510 does not divide by heads 4"),
    ([{**STEP, "gpus": 8, "heads": 8}], {}, "line 1: topology 'h200-node-4' has 4 ranks, of which 8 are no part"),
    ([STEP], {"gpu": "NVIDIA H20"}, "line 1: unknown machine 'NVIDIA H20' in environment.json"),
    ([STEP], {"gpu": ""}, "line 1: no machine is named"),
    ([{"workload": "llama-3-8b", "measured": "3 parsec"}], {}, "line 1: measured: "),
    ([{"workload": "llama-3-8b", "measured": "3 ms", "hots": "eager"}], {}, "line 1: unknown key 'hots'; did you mean"),
    ([{"workload": "lama-3-8b", "measured": "3 ms"}], {}, "line 1: unknown workload 'lama-3-8b'"),
    ([{"workload": {"kind": "cnn"}, "measured_us": 3}], {}, "line 1: kind 'cnn' is no kind of workload"),
    ([{"workload": {"kind": ["dlrm"]}, "measured_us": 3}], {}, r"line 1: kind ['dlrm'] is no kind of workload"),
    ([{"workload": "llama-3-8b", "measured_us": 3, "device": "h2000"}], {}, "line 1: unknown device 'h2000'"),
    (
        [{"workload": "llama-3-8b", "measured_us": 3, "schedule": "late", "changes": {"data_parallel": 1}}],
        {},
        "line 1: unknown schedule 'late'",
    ),
    (
        [{**STEP, "name": "async_tp_fused_all_gather_matmul", "M": 1023, "N": 512, "K": 256}],
        {},
        "line 1: 1023 rows do not divide over 4 ranks",
    ),
    ([{"op": "add", "dtype": "bf17", "elements": 8, "us": 1}], {}, "line 1: unknown dtype 'bf17'; did you mean 'bf16'"),
    ([{"op": "gemm", "dtype": "bf16", "M": 8, "N": 8, "us": 1}], {}, "line 1: gemm needs the size 'K'"),
    ([{**CONTENTION, "nccl_max_ctas": "few"}], {}, "line 1: nccl_max_ctas is 'few'; give a whole number above zero"),
    ([without(CONTENTION, "collective_alone_us")], {}, "line 1: key 'collective_alone_us' is missing"),
    ([{"collective": "all_reduce", "ranks": 8, "bytes": 8, "us": 1}], {}, "line 1: 8 ranks are more than the 4"),
]


@pytest.mark.parametrize(("rows", "options", "message"), BAD, ids=[message[-40:] for *_, message in BAD])
def test_bad_input_says_which_row_and_what(tmp_path, rows, options, message):
    with pytest.raises(ConfigError) as caught:
        compare_files([write(tmp_path, rows, **options)])
    assert message in str(caught.value)


def test_a_wrong_row_among_others_is_listed_with_what_is_wrong(tmp_path):
    """One row of an unknown workload once refused all of them."""
    wrong = [{"workload": "lama-3-8b", "measured": "3 ms"}, without(STEP, "hidden")]
    comparison = compare_files([write(tmp_path, [STEP, *wrong])])
    first, unknown, lacking = comparison.rows
    assert first.predicted > 0
    assert "line 2: unknown workload 'lama-3-8b'; did you mean 'llama-3-8b'" in unknown.reason
    assert "line 3: key 'hidden' is missing" in lacking.reason
    assert (comparison.accuracy.predicted, comparison.accuracy.num_rows) == (1, 3)
    assert (unknown.family, lacking.family) == ("described run", first.family)


def test_tables_of_a_file(tmp_path):
    file = tmp_path / "tables.json"
    file.write_text(json.dumps({"tables": [{"id": "h200_steps", "rows": [STEP]}]}))
    named = {"device": "h200", "topology": "h200-node-4"}
    (row,) = compare_files([file], table="h200_steps", **named).rows
    assert row.id == "h200_steps:1"
    with pytest.raises(ConfigError, match="has no table 'h200_setps'; did you mean 'h200_steps'"):
        compare_files([file], table="h200_setps", **named)


def test_published_tables(tmp_path):
    """A row of two steps becomes two; a model that is not shipped, or is cut otherwise, is said."""
    model = {"model": "megatron-22B", "gpus": 8, "tp": 8, "pp": 1, "full_s": 1.42, "seqsel_s": 1.1}
    tables = [
        {"id": "megatron_seqsel_tab5", "rows": [model, {**model, "model": "megatron-3B"}, {**model, "tp": 4}]},
        {"id": "nccl_allreduce_a100_node", "rows": [{"gpus": 4, "bytes": 2**26, "time_us": 480.0}]},
        {"id": "nccl_of_another_node", "rows": [{"gpus": 4, "bytes": 2**26, "time_us": 480.0}]},
    ]
    file = tmp_path / "tables.json"
    file.write_text(json.dumps({"tables": tables}))
    rows = compare_files([file], table="megatron_seqsel_tab5").rows
    assert [row.id for row in rows[:2]] == ["megatron_seqsel_tab5:1:full", "megatron_seqsel_tab5:1:seqsel"]
    assert all(abs(row.error) < 0.1 for row in rows[:2])
    assert rows[0].predicted > rows[1].predicted
    assert [row.reason for row in rows[2::2]] == [
        "no workload of model 'megatron-3B'", "the shipped workload has tp 8, not 4"
    ]  # fmt: skip
    (reduced,) = compare_files([file], table="nccl_allreduce_a100_node").rows
    assert reduced.family == "NCCL"
    (unknown,) = compare_files([file], table="nccl_of_another_node").rows
    assert unknown.reason == "rows of this kind are not known"


def test_rows_of_memory_are_in_bytes(tmp_path):
    """18 bytes of 12 h^2 L / 8 parameters, and 34 s b h L / 8 of activations: arXiv:2205.05198, Fig. 1 and eq. 6."""
    values = {"model": "megatron-22B", "seqsel_param_opt": 45.5625, "seqsel_act": 9.5625, "none_act": "much"}
    file = tmp_path / "tables.json"
    file.write_text(json.dumps({"tables": [{"id": "megatron_seqsel_fig1_mem", "rows": [values]}]}))
    reasons = [row.reason for row in compare_files([file], table="megatron_seqsel_fig1_mem").rows if row.reason]
    assert reasons == [f"{file}, table megatron_seqsel_fig1_mem, row 1: none_act is 'much'; give a number above zero"]
    file.write_text(json.dumps({"tables": [{"id": "megatron_seqsel_fig1_mem", "rows": [without(values, "none_act")]}]}))
    comparison = compare_files([file], table="megatron_seqsel_fig1_mem")
    assert all(abs(row.error) < 2e-3 for row in comparison.rows)
    assert [row["measured_bytes"] for row in comparison.summary()["rows"]] == [45.5625 * 2**30, 9.5625 * 2**30]
    options = ["validate", str(file), "--table", "megatron_seqsel_fig1_mem", "--output", str(tmp_path)]
    shown = CliRunner().invoke(scaleout, options, catch_exceptions=False)
    assert "45.6 GiB" in shown.output


def test_the_command_line(tmp_path):
    file = write(tmp_path, [*ROWS[:2], UNKNOWN[0]])
    out = tmp_path / "out"
    shown = CliRunner().invoke(scaleout, ["validate", str(file), "--output", str(out)], catch_exceptions=False)
    assert re.search(r"\nnot predicted\n(.*\n)+?\S+ +no model of an operator", shown.output)
    assert "transformer" in shown.output
    assert (out / "parity.png").stat().st_size > 1000
    printed = CliRunner().invoke(scaleout, ["validate", str(file), "--json"], catch_exceptions=False)
    summary = json.loads(printed.output)
    assert summary == json.loads((out / "summary.json").read_text())
    assert {"rows", "mean_absolute_error", "median_absolute_error", "worst", "bias"} <= summary.keys()
    assert summary["rows"][0].keys() == {"id", "measured_us", "predicted_us", "low_us", "high_us", "error"}
    assert summary["rows"][2]["predicted_us"] is None
    assert summary["coverage"] == pytest.approx(2 / 3)


def test_what_a_source_says_otherwise_is_restated_and_noted(tmp_path):
    """By its source alone: of a row of another one, or of another table, only clocks are; of one without, nothing."""
    keys = {
        "kind": "transformer", "hidden": 1024, "layers": 1, "heads": 8, "ffn": 4096, "sequence": 512, "dtype": "fp16",
        "batch_per_replica": 1, "data_parallel": 8, "zero": 3, "gradient_dtype": "fp32", "fused_accumulation": True,
    }  # fmt: skip
    row = {"workload": keys, "device": "a100-80g", "topology": "dgx-a100-1", "measured_us": 1e4}
    sources = ["arXiv:2104.04473, Table 2, ZeRO-3 without", "arXiv:2104.04473, Table 9", "another"]
    path = write(tmp_path, [*({**row, "source": source} for source in sources), row], gpu="")
    restated, *others, own = compare_files([path]).rows
    assert "framework deepspeed-2021" in restated.note
    assert restated.summary()["note"] == restated.note
    assert [other.note[:18] for other in others] == ["clocks sustained: "] * 2
    assert own.note == ""
    assert others[0].predicted == others[1].predicted < restated.predicted
    as_said = {"framework": "deepspeed-2021", "gradient_dtype": None, "fused_accumulation": False}
    given = {**row, "changes": as_said, "host": "eager", "source": "another"}
    assert compare_files([write(tmp_path, [given], gpu="")]).rows[0].predicted == restated.predicted


def test_a_row_for_which_another_device_stood_runs_on_its_own_unless_one_is_given(tmp_path):
    keys = {
        "kind": "transformer", "hidden": 4096, "layers": 1, "heads": 32, "ffn": 16384, "sequence": 2048,
        "batch_per_replica": 1, "data_parallel": 8,
    }  # fmt: skip
    row = {"workload": keys, "topology": "dgx-b200-1", "measured_us": 1e4}
    source = "NVIDIA/dgxc-benchmarking at 60d6fd3 (release 25.05), GB200 tables"
    rows = [
        {**row, "device": "b200", "source": source}, {**row, "device": "b200", "source": "another"},
        {**row, "device": "gb200", "source": "another"},
    ]  # fmt: skip
    path = write(tmp_path, rows, gpu="")
    restated, stand_in, own = compare_files([path]).rows
    assert restated.predicted == own.predicted < stand_in.predicted
    assert "device gb200: " in restated.note
    given, other, _ = compare_files([path], device="h200").rows
    assert given.predicted == other.predicted
    assert "device" not in given.note


def test_a_library_of_before_it_knew_contention_is_the_shipped_one_and_any_other_stays(tmp_path):
    shipped = library.folder("topology") / "nccl" / "b200.yaml"
    text = re.sub(r"contention:.*?(?=^algorithms:)", "", shipped.read_text(), flags=re.S | re.M)
    port = "link: nvlink, bandwidth: 900 GB/s, bandwidth_source: t, latency: 0.6 us, latency_source: t"
    topology = (
        f"source: t\nstartup: 0 us\nstartup_source: t\ndimensions:\n- {{kind: switch, size: 8, {port}}}\nlibrary: "
    )
    for name, content in (("old", text), ("mine", text.replace("name: NCCL on B200", "name: mine"))):
        (tmp_path / f"{name}-library.yaml").write_text(content)
        (tmp_path / f"{name}.yaml").write_text(topology + f"{name}-library.yaml\n")
    (tmp_path / "new.yaml").write_text(topology + "nccl/b200.yaml\n")
    keys = {
        "kind": "transformer", "hidden": 4096, "layers": 2, "heads": 32, "ffn": 16384, "sequence": 2048,
        "batch_per_replica": 1, "data_parallel": 8,
    }  # fmt: skip
    row = {"workload": keys, "device": "b200", "measured_us": 1e4, "schedule": "overlap", "source": "another"}
    path = write(tmp_path, [{**row, "topology": f"{name}.yaml"} for name in ("old", "mine", "new")], gpu="")
    old, mine, new = compare_files([path]).rows
    assert mine.predicted < old.predicted == new.predicted
    assert "library nccl/b200.yaml: " in old.note
    assert "library" not in mine.note + new.note


@pytest.mark.parametrize("each", RESTATED, ids=lambda each: each.source)
def test_what_is_restated_are_keys_that_exist_with_a_reason(each):
    assert each.changes.keys() <= Moe.model_fields.keys()
    assert each.keys.keys() <= {"host", "schedule", "clocks"}
    assert len(each.why) > 40


def test_a_described_run_has_its_files_beside_it_and_a_group(tmp_path):
    """A workload as an object of keys, a topology by its path from the row's file, and notes that are not read."""
    shutil.copy(library.find("topology", "h200-node-4"), tmp_path / "node.yaml")
    keys = {
        "kind": "transformer", "hidden": 1024, "layers": 1, "heads": 8, "ffn": 4096, "sequence": 512,
        "batch_per_replica": 4, "data_parallel": 4,
    }  # fmt: skip
    row = {"workload": keys, "device": "h200", "measured_us": 1e4}
    notes = {"group": "mine", "assumptions": "none", "published_metric": "s", "published_value": 1}
    near, far = {**row, "topology": "node.yaml", **notes}, {**row, "topology": "h200-node-4"}
    others = {**near, "group": "others", "source": "a table"}
    comparison = compare_files([write(tmp_path, [near, far, others], gpu="")])
    assert list(comparison.families) == ["mine", "described run", "others"]
    mine, described, slowest = (each.predicted for each in comparison.rows)
    assert mine == described
    # Others' GPUs wait for the slowest of four, by at most all of the step: that of four deviates by 1.03 on average.
    assert 1.0 < slowest / mine < 1 + 1.05 * load_device("h200").reliability.jitter
