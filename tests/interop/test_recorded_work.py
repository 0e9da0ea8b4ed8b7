"""Work of recorded kernels: each operator's is counted once, and edits keep the share of each kernel."""

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_builder import GPU, Rank

import scaleout
from scaleout.cluster.device.spec import load_device
from scaleout.interop.chakra.load import load_program
from scaleout.interop.chakra.save import save_program
from scaleout.interop.pytorch.load import load_recording
from scaleout.program.calls import entire
from scaleout.program.graph import NONE, NodeKind
from scaleout.program.program import alike
from scaleout.study.edits import edited
from scaleout.study.edits.sizes import ratios_of
from scaleout.study.recording import described

RECORDINGS = Path(scaleout.__file__).parents[1] / "traces" / "h200-pair" / "recordings"


@st.composite
def operators(draw):
    """Names, sizes and the kernels' durations of operators, some of which are alike but for their times."""
    kinds = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["aten::mm", "aten::mul", "aten::_foreach_add_"]),
                st.tuples(*[st.integers(1, 3000)] * 3),
                st.integers(1, 5),
                st.booleans(),
            ),
            min_size=1,
            max_size=4,
        )
    )
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=8))
    return [(*kind, draw(st.lists(st.integers(1, 50), min_size=kind[2], max_size=kind[2]))) for kind in chosen]


def write(chosen, folder):
    """Write a recording; return its FLOPs and bytes, counted over operators."""
    rank, flops, size_bytes, begin = Rank(), 0, 0, 1000
    for place, (name, (rows, columns, depth), _, clears, durations) in enumerate(chosen):
        at = 30 * place
        dims = [[rows, depth], [depth, columns]] if name == "aten::mm" else [[rows, depth]]
        rank.operator(name, at, 20, dims=dims)
        if clears:
            correlation = rank.call("cudaMemsetAsync", at + 1)
            rank.event("gpu_memset", "Memset (Device)", begin, 2, pid=GPU, tid=7, device=0, stream=7,
                       correlation=correlation, bytes=4)  # fmt: skip
            begin += 2
        for number, lasts in enumerate(durations):
            rank.kernel(begin, lasts, launch=at + 3 + 2 * number, name=f"part {number}")
            begin += lasts
        if name == "aten::mm":
            flops += 2 * rows * columns * depth
            size_bytes += 4 * (rows * depth + depth * columns + rows * columns)
            size_bytes += 4 * clears  # which is a memset of its own
        else:
            size_bytes += 4 * rows * depth
    rank.write(folder)
    return flops, size_bytes


@given(operators())
def test_work_of_a_recording_is_that_of_its_operators(tmp_path_factory, chosen):
    folder = tmp_path_factory.mktemp("recording")
    flops, size_bytes = write(chosen, folder)
    program, facts, _ = load_recording((folder,))
    graph = program.graphs[0]
    assert (int(graph.flops.sum()), int(graph.bytes.sum())) == (flops, size_bytes)
    shares = defaultdict(set)
    for node in np.flatnonzero(graph.kernel != NONE).tolist():
        call = graph.kernels[graph.kernel[node]]
        assert (call.flops, call.bytes) == (graph.flops[node], graph.bytes[node])
        shares[entire(call), graph.names[node]].add(call)
    assert all(len(calls) <= len({each[2:4] for each in chosen}) for calls in shares.values())
    written = tmp_path_factory.mktemp("chakra")
    save_program(program, written, name="job", facts=facts)
    assert alike(load_program(written).program, program)


@given(operators(), st.sampled_from(["2x", "0.5x", "3x"]))
def test_kernels_of_an_operator_take_as_many_times_as_long_and_keep_their_share(tmp_path_factory, chosen, factor):
    folder = tmp_path_factory.mktemp("recording")
    write(chosen, folder)
    program, facts, _ = load_recording((folder,))
    before = program.graphs[0]
    after = edited(described(program, facts, "no device"), {"batch": factor}).program.graphs[0]
    ratios = ratios_of(None, before.kernels, after.kernels)[before.kernel]
    for node in np.flatnonzero((before.kernel != NONE) & (before.flops > 0)).tolist():
        new, old = (each.kernels[each.kernel[node]] for each in (after, before))
        assert after.duration_s[node] == pytest.approx(before.duration_s[node] * ratios[node])
        assert new.flops / entire(new).flops == pytest.approx(old.flops / entire(old).flops, abs=1 / entire(new).flops)


def counted_flops(path):
    """FLOPs of the products and attention of a recording of plain tensors, naively, over its steps' operators."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    steps = [(each["ts"], each["ts"] + each["dur"]) for each in events if str(each.get("name")).startswith("ProfilerS")]
    begin, end = min(step[0] for step in steps), max(step[1] for step in steps)
    total = 0
    for each in events:
        dims = each.get("args", {}).get("Input Dims")
        if each.get("cat") != "cpu_op" or not dims or not begin <= each["ts"] <= end:
            continue
        if each["name"] == "aten::mm":
            total += 2 * dims[0][0] * dims[0][1] * dims[1][1]
        elif each["name"].startswith("aten::_scaled_dot_product_cudnn_attention"):  # causal: half of all pairs
            backward = each["name"].endswith("backward")
            batch, heads, queries, width = dims[1 if backward else 0]
            total += (5 if backward else 2) * batch * heads * queries * queries * width
    return total


def test_a_real_recording_has_the_flops_of_its_operators_and_no_kernel_exceeds_the_peak():
    program, _, _ = load_recording((RECORDINGS / "ddp-base",))
    device = load_device("h200")
    peak = device.peak("bf16")
    for rank, graph in enumerate(program.graphs):
        path = RECORDINGS / f"ddp-base.rank{rank}.kineto.json.gz"
        assert graph.flops.sum() == pytest.approx(counted_flops(path), rel=1e-9)
        kernels = (graph.kind == NodeKind.COMPUTE) & (graph.flops > 0)
        assert (graph.flops[kernels] / graph.duration_s[kernels]).max() < 1.02 * peak
        assert {graph.names[node] for node in np.flatnonzero(kernels)}.isdisjoint({"Memset (Device)"})
        moves = (graph.kind == NodeKind.COMPUTE) & (graph.bytes > 0) & (graph.duration_s > 0)
        rates = graph.bytes[moves] / graph.duration_s[moves]
        above = {graph.operation(node) for node in np.flatnonzero(moves)[rates > 1.05 * device.memory_bytes_per_s]}
        assert above <= {"aten::gather"}  # whose index is one of a row that is read for all its columns
        types = Counter(graph.kernels[index].dtype for index in graph.kernel[kernels].tolist())
        assert set(types) == {"bf16"}


def summed(rank, at, dims, *around):
    """Sum a tensor over all ranks, called by some operators, the outermost first."""
    for depth, name in enumerate(around):
        rank.operator(name, at + depth * 0.1, 8 - depth * 0.2, dims=dims if name.endswith("AccumulateGrad") else None)
    rank.operator("c10d::allreduce_", at + 2, 3, dims=dims)
    rank.collective(at + 100, 4, launch=at + 3, elements=64)


def carries_tokens(folder):
    """Return of each sum whether it carries activations."""
    graph = load_recording((folder,))[0].graphs[0]
    sums = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)
    return [graph.kernels[graph.kernel[each]].sizes["token_bytes"] > 0 for each in sums.tolist()]


@pytest.mark.parametrize("shape", [[64, 64], [4096], [2, 32, 64]])
def test_sums_before_backward_are_of_activations_whatever_their_shape(tmp_path, shape):
    """64 tokens of a model that is 64 wide: activations have the shape of a weight; flat ones 64 elements a token."""
    for number in range(2):
        rank = Rank(number, 2)
        rank.operator("aten::mm", 0, 6, dims=[[64, 64], [64, 64]])
        rank.kernel(90, 5, launch=2)
        summed(rank, 20, [shape], "AllReduce")
        summed(rank, 40, [shape], "autograd::engine::evaluate_function", "AllReduceBackward")
        hook = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
        summed(rank, 60, [[64, 64]], hook, "torch::autograd::AccumulateGrad")
        summed(rank, 80, [[64, 64]])  # of gradients, behind backward
        summed(rank, 90, [shape], "RegisterPostBackwardFunctionBackward", "FSDP::post_backward_reduce")
        summed(rank, 99, [[8192]], "HookBackward")  # a bucket, of which backward alone has one
        rank.write(tmp_path)
    assert carries_tokens(tmp_path) == [True, True, False, False, len(shape) > 2, False]


@pytest.mark.parametrize(("elements", "grows"), [(64 * 64, True), (64 * 65, False)])
def test_a_sum_without_shapes_is_of_activations_if_a_product_writes_as_much(tmp_path, elements, grows):
    for number in range(2):
        rank = Rank(number, 2)
        rank.operator("aten::mm", 0, 6, dims=[[64, 32], [32, 64]])
        rank.kernel(90, 5, launch=2)
        rank.operator("c10d::allreduce_", 9, 5)
        rank.collective(100, 9, launch=10, elements=elements)
        rank.write(tmp_path)
    assert carries_tokens(tmp_path) == [grows]
    program, facts, _ = load_recording((tmp_path,))
    notes = edited(described(program, facts, load_device("h200")), {"batch": "2x"}).notes
    assert any("called tensor-parallel as they run before backward" in each for each in notes) == (not grows)


def test_an_input_that_wants_its_gradient_is_no_parameter(tmp_path):
    """Four layers of one weight of 32 x 64, an input of 2 x 8 x 64."""
    for number in range(2):
        rank = Rank(number, 2)
        rank.operator("aten::layer_norm", 0, 6, dims=[[2, 8, 64], [], [64], [64]])
        rank.kernel(90, 5, launch=2)
        rank.operator("aten::copy_", 10, 6, dims=[[2, 8, 64], [2, 8, 64]])
        rank.kernel(96, 3, launch=12)
        summed(rank, 20, [[2, 8, 64]], "AllReduce")
        for each in range(4):
            rank.operator("torch::autograd::AccumulateGrad", 40 + 5 * each, 3, dims=[[32, 64]])
        rank.operator("torch::autograd::AccumulateGrad", 80, 3, dims=[[2, 8, 64]])
        rank.write(tmp_path)
    program, facts, _ = load_recording((tmp_path,))
    assert facts["parameters"] == "2048x4"
    assert carries_tokens(tmp_path) == [True]
    copied = next(call for call in program.graphs[0].kernels if call.op.endswith("copy_"))
    assert copied.sizes["token_bytes"] == copied.bytes


def test_half_a_batch_halves_a_sum_and_says_which_kernels_stay(tmp_path):
    """An addition of 30 us beside a product of 220: half the tokens take 1.1 us, as any kernel, and half the rest."""
    rank = Rank()
    for place, (name, lasts, dims) in enumerate(
        (("aten::mm", 220, [[4096, 4096]] * 2), ("aten::add", 30, [[4096, 4096]] * 2), ("aten::odd", 50, None))
    ):
        rank.operator(name, 20 * place, 10, dims=dims)
        rank.kernel(300 * place + 50, lasts, launch=20 * place + 5, name=name)
    rank.write(tmp_path)
    program, facts, _ = load_recording((tmp_path,))
    half = edited(described(program, facts, load_device("h200")), {"batch": "0.5x"})
    graph = half.program.graphs[0]
    lasts_us = dict(zip(graph.names, graph.duration_s * 1e6, strict=True))
    assert lasts_us["aten::mm"] == pytest.approx(110, rel=0.1)
    assert lasts_us["aten::add"] == pytest.approx(1.1 + (30 - 1.1) / 2, abs=0.1)
    assert lasts_us["aten::odd"] == pytest.approx(50)
    (told,) = [note for note in half.notes if "recorded sizes" in note]
    assert told.startswith("1 kernel with no recorded sizes, as without record_shapes, 16.7% of the time")
