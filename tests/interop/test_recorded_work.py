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
