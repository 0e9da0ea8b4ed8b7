"""Exchanges of a recording in chunks: kernels at their own sizes, by hand and as chunks of a generated job cost."""

import json
from dataclasses import replace
from math import fsum

import numpy as np
import pytest
from kineto_builder import Rank
from recorded_jobs import recording_of

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import load_topology
from scaleout.interop.pytorch.load import load_recording
from scaleout.program.graph import NONE, NodeKind
from scaleout.schedule.centauri.partition.exchange import times_of_chunks
from scaleout.study.edits import edited
from scaleout.study.edits.communication import between_exchanges, chunks
from scaleout.study.recording import described

H200 = load_device("h200")
TABLES, BATCH, POOLING, DIM, ROWS = 4, 64, 10, 16, 100
BAGS, LOOKUPS = TABLES * BATCH, TABLES * BATCH * POOLING


@pytest.fixture
def device(tmp_path):
    """Return a device of which a few kernels were measured, with 2 us between kernels."""
    bags = {"tables": TABLES, "dim": DIM, "pooling": POOLING, "rows": ROWS}
    rows = [
        ("embedding_bag_fwd", "fp32", bags | {"batch": BATCH}, 98),
        ("embedding_bag_fwd", "fp32", bags | {"batch": BATCH // 4}, 30),
        ("permute_for_all_to_all", "fp64", {"batch": BATCH // 4, "tables": TABLES, "dim": POOLING}, 5),
        ("embedding_bag_bwd_dense", "fp32", bags | {"batch": BATCH}, 1000),
        ("embedding_bag_bwd_dense", "fp32", bags | {"batch": BATCH // 4}, 310),
        ("add", "fp32", {"elements": TABLES * ROWS * DIM}, 7),
        ("add", "bf16", {"elements": 1}, 1),
        ("gemm", "bf16", {"M": 1024, "N": 512, "K": 256}, 40),
        ("gemm", "bf16", {"M": 256, "N": 512, "K": 256}, 13),
    ]
    lines = [{"provenance": {}}, *({"op": op, "dtype": d, "shape": s, "us": us} for op, d, s, us in rows)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return replace(H200, kernel_files=(file,), calibration={}, power=None, launch_gap_s=2e-6)


class Recorder:
    """Writes two equal ranks: kernels back to back on one stream, all launched long before they run."""

    def __init__(self):
        self.ranks, self.at, self.runs = [Rank(number, 2) for number in range(2)], 0.0, 1000.0

    def operator(self, name, dims=None, *, lasts=6, **args):
        """Begin an operator; what comes within its time is called by it."""
        for rank in self.ranks:
            rank.operator(name, self.at, lasts, dims=dims, **args)
        self.at += 1

    def kernel(self, name, lasts_us):
        for rank in self.ranks:
            rank.kernel(self.runs, lasts_us, launch=self.at + 1, name=name)
        self.at, self.runs = self.at + 10, self.runs + lasts_us

    def exchange(self, lasts_us, elements):
        self.operator("c10d::alltoall_base_")
        for rank in self.ranks:
            rank.collective(self.runs, lasts_us, launch=self.at + 1, kind="alltoall", elements=elements, stream=7,
                            name="ncclDevKernel_SendRecv")  # fmt: skip
        self.at, self.runs = self.at + 10, self.runs + lasts_us

    def recorded(self, folder, device):
        for rank in self.ranks:
            rank.write(folder)
        program, facts, _ = load_recording((folder,))
        return described(program, facts, device)


def tables(recorder, *, by_sample=True):
    """Record the lookups of tables, and the gradients of these, of which the first kernel clears them."""
    vectors = [2, BATCH // 2, TABLES, DIM] if by_sample else [2, BATCH // 2, DIM, TABLES]
    recorder.operator("aten::reshape", [[TABLES, BATCH, POOLING], []], lasts=0.5)
    recorder.operator("aten::_embedding_bag", [[TABLES * ROWS, DIM], [LOOKUPS], [BAGS]])
    recorder.kernel("pool", 100)
    recorder.operator("aten::copy_", [vectors, vectors, []])
    recorder.kernel("copy", 20)
    recorder.exchange(50, BAGS * DIM)
    recorder.operator("ExchangeBackward")
    recorder.exchange(50, BAGS * DIM)
    dims = [[BAGS, DIM], [LOOKUPS], [LOOKUPS], [BAGS], [BAGS], [], [], [], [], []]
    given = {"Concrete Inputs": ["", "", "", "", "", str(TABLES * ROWS), "False", "0", "", "-1"]}
    recorder.operator("EmbeddingBagBackward0", lasts=30)
    recorder.operator("aten::_embedding_bag_dense_backward", dims, lasts=28, **given)
    recorder.operator("aten::fill_", [[TABLES * ROWS, DIM]])
    recorder.kernel("clear", 350)
    recorder.kernel("scatter", 652)


def us_of(program, name):
    graph = program.graphs[0]
    return 1e6 * float(graph.duration_s[[each == name for each in graph.names]].sum())


def test_tables_in_chunks_by_hand(tmp_path, device):
    """A gap of 2 us is in each of the recorded times; what follows is at the ratio of the measured times.

    Lookups: 4 x 2 + 98 x (4 x 30 / 98) us, and 4 copies of indices of 2 + 5. Gradients: 4 x 2 + 1000 x (4 x 310 / 1000)
    and 3 additions of 7. What is known by its bytes takes 4 times the shortest, 1 us, and the rest of its 20 once.
    """
    recorder = Recorder()
    tables(recorder)
    recording = recorder.recorded(tmp_path, device)
    calls = {call.op: call.sizes for call in recording.program.graphs[0].kernels}
    sizes = {"batch": BATCH, "tables": TABLES, "dim": DIM, "pooling": POOLING, "rows": ROWS}
    assert calls["embedding_bag_fwd"] == calls["embedding_bag_bwd_dense"] == sizes
    found = edited(recording, {"chunks": "4"})
    assert us_of(found.program, "pool") == pytest.approx(4 * 2 + 4 * 30 + 4 * (2 + 5))
    assert us_of(found.program, "copy") == pytest.approx(4 * 1 + 19)
    gradients = [us_of(found.program, name) for name in ("clear", "scatter")]
    assert sum(gradients) == pytest.approx(4 * 2 + 4 * 310 + 3 * 7)
    assert gradients[0] / gradients[1] == pytest.approx(350 / 652, rel=0.01)
    assert us_of(edited(recording, {"chunks": "1"}).program, "pool") == pytest.approx(100)
    assert any("known by their bytes alone" in note for note in found.notes)


def test_tables_that_shapes_do_not_tell_are_one_as_before(tmp_path, device):
    """What was pooled is not ordered by sample, tables behind it: no copies, and the gradient is known by its bytes."""
    recorder = Recorder()
    tables(recorder, by_sample=False)
    recording = recorder.recorded(tmp_path, device)
    calls = {call.op: call.sizes for call in recording.program.graphs[0].kernels}
    assert (calls["embedding_bag_fwd"]["tables"], calls["embedding_bag_fwd"]["batch"]) == (1, BAGS)
    assert "recorded:aten::_embedding_bag_dense_backward" in calls
    assert "embedding_bag_bwd_dense" not in calls


def test_kernels_without_sizes_stay_as_recorded_and_that_is_told(tmp_path, device):
    recorder = Recorder()
    recorder.exchange(50, 1000)
    recorder.operator("aten::mm", [[1024, 256], [256, 512]], dtypes=["c10::BFloat16"] * 2)
    recorder.kernel("gemm", 42)
    recorder.operator("aten::unknown")
    recorder.kernel("unknown", 158)
    recorder.exchange(50, 1000)
    found = edited(recorder.recorded(tmp_path, device), {"chunks": "4"})
    assert us_of(found.program, "gemm") == pytest.approx(4 * 2 + 4 * 13)
    assert us_of(found.program, "unknown") == pytest.approx(158)
    assert "chunks: 79.0% of the time of kernels that are cut is of those of which no size is recorded: they stay as " \
        "recorded" in found.notes  # fmt: skip
    graph = found.program.graphs[0]
    exchanges = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist()
    assert len(exchanges) == 2 * 4
    assert graph.bytes[exchanges].tolist() == [1000] * 8
    assert exchanges[3] in graph.dependencies_of(graph.names.index("gemm"))


@pytest.mark.parametrize(("elements", "times"), [(1000, 2), (900, 1)])
def test_slices_are_copied_as_what_an_exchange_brings_is_regrouped(tmp_path, device, elements, times):
    """A copy of all that the exchange brings: each chunk is cut out by another; what copies less is no such order."""
    recorder = Recorder()
    recorder.exchange(50, 1000)
    recorder.operator("aten::copy_", [[elements], [elements], []])
    recorder.kernel("regroup", 20)
    recorder.operator("aten::copy_", [[1000], [1000], []])
    recorder.kernel("later", 20)
    recorder.exchange(50, 1000)
    recording = recorder.recorded(tmp_path, device)
    found = edited(recording, {"chunks": "4"}).program
    assert us_of(found, "regroup") == pytest.approx(times * (4 * 1 + 19))
    assert us_of(found, "later") == pytest.approx(4 * 1 + 19)
    assert us_of(edited(recording, {"chunks": "1"}).program, "regroup") == pytest.approx(20)


@pytest.mark.parametrize("parts", [2, 4])
def test_gemms_in_chunks_cost_as_those_of_a_generated_job(parts):
    recording = recording_of("mixtral-8x7b", **EXPERTS)
    whole = recording.program.graphs[0]
    inside = between_exchanges(whole, 1) & (whole.kind == NodeKind.COMPUTE) & (whole.kernel != NONE)
    launched = whole.with_columns(issue_s=np.where(inside, 1e-6, whole.issue_s))
    machine = Machine(recording.device, load_topology("h200-node-4"))
    found = chunks(recording, str(parts), []).graphs[0]
    kernels = found.duration_s[found.kind == NodeKind.COMPUTE]
    place = np.cumsum(whole.kind == NodeKind.COMPUTE) - 1
    gemms = [node for node in np.flatnonzero(inside).tolist() if "gemm" in whole.operation(node)]
    assert len(gemms) > 4
    for node in gemms:
        expected = fsum(times_of_chunks(launched, node, parts, machine))
        assert kernels[place[node]] == pytest.approx(expected, rel=1e-9)


EXPERTS = {"layers": 2, "expert_parallel": 2, "data_parallel": 2, "tensor_parallel": 1}
