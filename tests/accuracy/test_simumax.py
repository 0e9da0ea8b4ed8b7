"""SimuMax's reference runs on eight B200: memory by hand and as measured, what their frameworks do, and their rows."""

import json
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from scaleout.cluster.device.kernel_times import kernel_time
from scaleout.cluster.device.spec import load_device
from scaleout.errors import ConfigError
from scaleout.program.graph import COLLECTIVES, GraphBuilder, NodeKind
from scaleout.program.operations import kernel
from scaleout.validation.measured.compare import compare_files
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate
from scaleout.workloads.generate.autograd_tape import AutogradTape, Cursor, Gradients
from scaleout.workloads.generate.layers import pointwise, residual
from scaleout.workloads.memory import peak

SHARED = Path(__file__).parents[3] / "shared" / "validation" / "tables.json"
GIB = 2**30
S, H, V, T, LAYERS = 4096, 8192, 128256, 2, 12
"""Tokens, hidden, vocabulary, tensor-parallel ranks and layers of simumax-llama3-70b."""


def calls(workload):
    """Operations and collectives of a rank's step, each with its sizes, and how often."""
    graph = generate(workload).graphs[-1]
    found = Counter()
    for node in range(len(graph)):
        if graph.kind[node] == NodeKind.COMPUTE and graph.kernel[node] >= 0:
            found[graph.kernels[graph.kernel[node]].op, *graph.kernels[graph.kernel[node]].sizes.values()] += 1
        elif graph.kind[node] == NodeKind.COLLECTIVE:
            found[COLLECTIVES[graph.collective[node]], int(graph.bytes[node])] += 1
    return found


def test_memory_of_llama_70b_by_hand_and_as_measured():
    """Peak where the head's backward begins: all is kept, its placeholder and the whole gradient of its input come.

    A layer keeps 16.75 times its hidden state: both norms' inputs and outputs 4, q, k, v 1.25, their output 1, the two
    halves of SwiGLU 7 and its output 3.5; and the sums of 64 heads' scores. Measured: 60.68 GiB.
    """
    found = peak(load_workload("simumax-llama3-70b"))
    state = 2 * S * H
    kept = LAYERS * (16.75 * state + 4 * 64 * S) + 2 * state + 2 * S * V
    assert found.bytes_of["activations"] == pytest.approx(kept / T, rel=1e-12)
    assert found.bytes_of["transient_memory"] == pytest.approx(state + 2 * V * H / T, rel=1e-12)
    weights = H * (10240 + 8192 + 57344 + 28672) / T
    parameters = LAYERS * weights + 2 * V * H / T + (2 * LAYERS + 1) * H
    assert found.bytes_of["parameters"] == 2 * parameters
    assert found.bytes_of["gradients"] == 4 * parameters + 2 * weights  # and a placeholder of each shape
    assert found.bytes_of["optimizer_states"] == 12 * parameters / 4
    assert found.total_bytes / GIB == pytest.approx(60.68, rel=0.005)


def test_the_first_stage_of_a_pipeline_is_fullest_inside_a_layer():
    """1F1B, two stages: two micro-batches wait on the first, whose last layer's backward begins. Measured: 66.55 GiB.

    Beside the residual's gradient SwiGLU then has that of its output (3.5) and makes that of its input (7), and what
    the GEMM before kept (3.5) is freed.
    """
    changes = {"tensor_parallel": 1, "pipeline_parallel": 2, "sequence_parallel": False}
    found = peak(load_workload("simumax-llama3-70b", changes))
    assert (found.rank, found.in_flight) == (0, (2,))
    assert found.bytes_of["transient_memory"] == pytest.approx((1 + 3.5 + 7 - 3.5) * 2 * S * H, rel=1e-12)
    assert found.total_bytes / GIB == pytest.approx(66.55, rel=0.005)


def test_deferred_gradients_count_as_transient_memory():
    """Two residual blocks of 4 elements around a layer that makes 10: 10 and the two ends of a block at the most."""
    tape = AutogradTape(Cursor(GraphBuilder()), "bf16", Gradients(float("inf"), 2))
    x = tape.kernel("clone", elements=4)
    for _ in range(2):
        x = residual(tape, x, partial(pointwise, kernels=("clone", "clone"), makes=10, elements=4), elements=4)
    assert tape.transient_bytes(entering_bytes=8) == 2 * (10 + 4 + 4)


def test_all_to_all_exchanges_heads_for_tokens():
    """Each of 4 ranks has 8,192 tokens of 32 + 2 x 4 heads before, and 32,768 of 8 + 2 x 1 after."""
    changes = {"context_parallel": 4, "data_parallel": 1, "sequence": 32768, "batch_per_replica": 1, "layers": 1}
    found = calls(load_workload("simumax-llama3-70b", changes))
    assert found["attention_gqa_fwd", 1, 8, 1, 32768, 128, 1] == 1
    assert found["all_to_all", 2 * 8192 * 40 * 128] == found["all_to_all", 2 * 8192 * 32 * 128] == 2
    with pytest.raises(ConfigError, match=r"kv_heads 8 do not divide over tensor_parallel x context_parallel 16 ranks"):
        load_workload("simumax-llama3-70b", {"context_parallel": 8, "data_parallel": 1})


def test_experts_are_padded_to_their_capacity_and_grouped():
    """4,096 tokens x 6 / 160 experts = 153.6: each rank sends every expert 154 rows, and one of 20 gets 8 x 154."""
    job = load_workload("simumax-deepseekv2")
    assert (job.routed_rows, job.tokens_per_expert) == (160 * 154, 1232)
    found = calls(job)
    assert found["grouped_gemm", 20, 1232, 2 * 1536, 5120] == 3 * 4  # layers, micro-batches
    assert found["grouped_gemm_accumulate", 20, 5120, 1536, 1232] == 3 * 4
    assert found["all_to_all", 2 * 160 * 154 * 5120] == 4 * 3 * 4
    with pytest.raises(ConfigError, match=r"spread evenly over 160 experts; .* or give a capacity_factor"):
        load_workload("simumax-deepseekv2", {"capacity_factor": None})


def test_grouped_experts_do_what_single_ones_do():
    job = {"capacity_factor": None, "experts": 64, "shared_experts": 1}
    single, grouped = (
        load_workload("simumax-deepseekv2", job | {"grouped_experts": is_grouped}) for is_grouped in (False, True)
    )
    assert generate(single).total_flops == generate(grouped).total_flops
    assert peak(single).bytes_of["parameters"] == peak(grouped).bytes_of["parameters"]
    assert peak(single).bytes_of["activations"] == peak(grouped).bytes_of["activations"]


def test_a_device_with_few_measured_kernels_takes_the_rest_from_its_reference():
    b200, h200 = load_device("b200"), load_device("h200")
    # 2 x 4,096 x 5,120 x 16,384 FLOPs at 0.6291 of 2,250 TFLOP/s, 0.92 of which are left in a step
    seconds, source = kernel_time(b200, kernel("gemm", dtype="bf16", M=4096, N=5120, K=16384))
    assert source == "measured"
    assert seconds == pytest.approx(2 * 4096 * 5120 * 16384 / (0.6291 * 2250e12) / 0.92, rel=1e-3)
    call = kernel("clone", dtype="bf16", elements=2**28)
    seconds, source = kernel_time(b200, call)
    reference_s = kernel_time(h200, call).seconds
    assert source == "roofline"
    assert reference_s * 4.8 / 8 < seconds < reference_s  # its memory is faster by 8 / 4.8, its SMs are not
    assert b200.host_launch_s["gemm_forward"] == pytest.approx(2.9 * h200.host_launch_s["gemm_forward"])


def published(folder, **changes):
    """A file with one row of the table."""
    row = {"case": "a", "model": "llama3-70b", "parallel": "tp2pp1", "layer_num": 12, "mbc": 4, "vp_size": 1}
    row |= {"real_ms": 725.5, "real_alloc_gib": 60.68} | changes
    path = folder / "tables.json"
    rows = [{key: value for key, value in row.items() if value is not None}]
    path.write_text(json.dumps({"tables": [{"id": "simumax_b200", "rows": rows}]}))
    return path


def test_rows_that_have_no_workload_say_why(tmp_path):
    found = compare_files([published(tmp_path, model="qwen-3")], table="simumax_b200").rows
    assert [row.reason for row in found] == 2 * ["no workload of model 'qwen-3'"]
    found = compare_files([published(tmp_path, parallel="tp2pp1", layer_num=13, vp_size=2)], table="simumax_b200").rows
    assert all("layers 13" in row.reason for row in found)
    with pytest.raises(ConfigError, match="row 1: key 'mbc' is missing"):
        compare_files([published(tmp_path, mbc=None)], table="simumax_b200")


def test_chunks_of_a_pipeline_are_interleaved(tmp_path):
    row = {"model": "llama3-8b", "parallel": "tp1pp4", "layer_num": 8, "mbc": 8, "vp_size": 2, "real_alloc_gib": None}
    (found,) = compare_files([published(tmp_path, **row)], table="simumax_b200").rows
    assert found.predicted is not None


@pytest.mark.skipif(not SHARED.is_file(), reason=f"{SHARED} is not there")
def test_shared_rows_are_met():
    found = compare_files([SHARED], table="simumax_b200").families
    assert (found["SimuMax"].coverage, found["SimuMax memory"].coverage) == (1.0, 1.0)
    assert found["SimuMax"].mean_absolute_error < 0.03
    assert found["SimuMax memory"].mean_absolute_error < 0.006
