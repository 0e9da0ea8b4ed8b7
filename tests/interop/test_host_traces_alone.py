"""Host execution traces without device traces: which kernels and collectives, in what order, and what is refused."""

import cProfile
import json
import pstats
from pathlib import Path

import numpy as np
import pytest
from host_builder import Host
from kineto_builder import Rank

from scaleout.cluster.device.spec import load_device
from scaleout.errors import ConfigError, TraceError
from scaleout.interop.pytorch.communication import is_communication
from scaleout.interop.pytorch.files import recorded_files
from scaleout.interop.pytorch.kineto import WorkKind, read_kineto
from scaleout.interop.pytorch.load import load_recording
from scaleout.program.graph import NodeKind

SHARED = Path(__file__).parents[3] / "shared"
MACHINE = Path(__file__).parents[2] / "traces" / "h200-pair" / "machine.yaml"
SCHEMA = {"op_schema": "aten::op(Tensor self) -> Tensor"}


def product(host, **more):
    return host.operator("aten::mm", dims=[[512, 256], [256, 1024]], dtypes=["c10::BFloat16"] * 2, **SCHEMA, **more)


def imported(folder, **options):
    program, facts, report = load_recording((folder,), **options)
    return program.graphs[0], facts, report


def test_operators_become_kernels_of_ours(tmp_path):
    host = Host()
    wrapper = host.operator("aten::linear", dims=[[512, 256]], **SCHEMA)
    product(host, parent=wrapper)
    host.operator("aten::view", dims=[[512, 1024]], **SCHEMA)
    adding = host.operator("aten::add_", dims=[[512, 1024]], outputs=[(0, [512, 1024])], **SCHEMA)
    host.operator("aten::empty", dims=[[4]], parent=adding, **SCHEMA)
    host.operator("autograd::engine::evaluate_function: MmBackward0", dims=[[512, 1024]])  # a mark: it has no schema
    shapes = [[8, 64, 56, 56], [128, 64, 3, 3]]
    host.operator("aten::cudnn_convolution", dims=shapes, outputs=[(5, [8, 128, 28, 28])], **SCHEMA)
    images, weights = ((6, shapes[0]), (7, shapes[1]))
    host.operator("aten::convolution_backward", dims=[[8, 128, 28, 28], *shapes], outputs=[images, weights], **SCHEMA)
    schema = "aten::_scaled_dot_product_flash_attention(Tensor q, Tensor k, Tensor v, bool is_causal=False) -> (Tensor)"
    values = [[1, 2, 0, 3, 4, "cuda:0"]] * 3 + [True]
    host.operator("aten::_scaled_dot_product_flash_attention", dims=[[2, 8, 128, 64]] * 3 + [[]], values=values,
                  types=["Tensor(c10::Half)"] * 3 + ["Bool"], op_schema=schema)  # fmt: skip
    host.write(tmp_path)
    graph, facts, report = imported(tmp_path)
    calls = [graph.kernels[index] for index in graph.kernel]
    assert [call.op for call in calls] == ["gemm", "clone", "conv2d_fwd", "conv2d_bwd_data", "conv2d_bwd_weight",
                                          "attention_fwd"]  # fmt: skip
    assert (calls[0].dtype, calls[0].flops) == ("bf16", 2 * 512 * 256 * 1024)
    assert calls[1].bytes == 2 * 4 * 512 * 1024
    assert calls[2].flops == 2 * 8 * 28 * 28 * 128 * 64 * 9
    assert calls[5].sizes["causal"] == 1
    assert (report.kernels, report.kernels_kept, report.steps, facts["device"]) == (6, 6, [], "h200")
    assert np.isfinite(graph.duration_s).all()
    assert any("no time was recorded" in note for note in report.notes)
    slower, facts, _ = imported(tmp_path, device=load_device("h100"))
    assert facts["device"] == "h100"
    assert slower.duration_s[1] > 1.2 * graph.duration_s[1]  # what the memory takes


def test_collectives_run_beside_kernels_until_they_are_waited_for(tmp_path):
    host = Host(0, world_size=4)
    product(host)
    host.collective(group=(0, 2, 2), sequence=1, outputs=[(50, [1000])])
    product(host)
    host.collective(group=(0, 1, 4), sequence=2, outputs=[(60, [1000])])
    product(host)
    host.wait(1)
    product(host)
    product(host, storages=[60, 61])
    host.write(tmp_path)
    program, _, report = load_recording((tmp_path,))
    graph = program.graphs[0]
    assert (report.ranks, report.collectives, report.collectives_sized) == (4, 2, 2)
    assert sorted(program.groups[0].members + program.groups[1].members) == [(0, 1, 2, 3), (0, 2), (1, 3)]
    assert [graph.dependencies_of(node).tolist() for node in range(7)] == [[], [0], [0], [2], [2], [1, 4], [3, 5]]
    assert [graph.bytes[node] for node in (1, 3)] == [4000, 4000]


def test_unknown_operators_are_refused_or_left_out_with_a_word(tmp_path):
    host = Host()
    product(host)
    for name in ("aten::fft", "fbgemm::lookup", "fbgemm::lookup"):
        host.operator(name, dims=[[8, 8]], **SCHEMA)
    host.operator("fbgemm::on_host", dims=[[]], values=[[1, 2, 0, 8, 4, "cpu"]], types=["Tensor(float)"], **SCHEMA)
    host.write(tmp_path)
    with pytest.raises(TraceError, match=r"3 operators launch what .* fbgemm::lookup \(2\), aten::fft \(1\)"):
        load_recording((tmp_path,))
    _, _, report = load_recording((tmp_path,), allow_partial=True)
    assert report.kernels == 1
    assert any("left out: 3 operators of unknown kernels" in note for note in report.notes)


@pytest.mark.parametrize("size", ["x", -1, 1e308, None, [1], True, 1.5, 2**62])
@pytest.mark.parametrize("name", ["aten::mm", "aten::add"])
def test_an_operator_of_a_tensor_without_sizes_is_not_taken_for_a_smaller_one(tmp_path, name, size):
    host = Host()
    product(host)
    host.operator(name, dims=[[size, 32], [32, 16]], outputs=[(9, [64, 16])], **SCHEMA)
    host.write(tmp_path)
    with pytest.raises(TraceError, match=f"1 operators launch what .* {name} "):
        load_recording((tmp_path,))


def test_what_has_nothing_to_run_or_no_sense_is_refused(tmp_path):
    Host().write(tmp_path)
    with pytest.raises(TraceError, match="launch nothing on a GPU"):
        load_recording((tmp_path,))
    with pytest.raises(TraceError, match="marks no steps"):
        load_recording((tmp_path,), step=3)
    rank = Rank()
    rank.kernel(10, 20, launch=2)
    rank.write(tmp_path / "device")
    with pytest.raises(ConfigError, match="--device"):
        load_recording((tmp_path / "device",), device=load_device("h100"))


def test_twice_the_nodes_are_read_with_twice_the_calls(tmp_path):
    calls = []
    for count in (500, 1000):
        host = Host(0, world_size=2)
        for place in range(count):
            wrapper = host.operator("aten::linear", dims=[[512, 256]], **SCHEMA)
            host.operator("aten::t", dims=[[256, 64]], parent=wrapper, **SCHEMA)
            host.operator("aten::mm", dims=[[512, 256], [256, 64 + place % 50]], parent=wrapper, **SCHEMA)
            host.operator("aten::add_", dims=[[512, 64]], outputs=[(0, [512, 64])], **SCHEMA)
        path = host.write(tmp_path / str(count))
        with cProfile.Profile() as profile:
            _, _, report = load_recording((path,))
        assert report.kernels == 2 * count
        calls.append(pstats.Stats(profile).total_calls)
    assert calls[1] < 2.1 * calls[0] < 2.1 * 500 * 4 * 500, calls


def test_the_command_writes_traces_that_run_on_a_network(tmp_path, scaleout):
    host = Host(0, world_size=2)
    product(host)
    host.collective(group=(0, 1, 2))
    host.write(tmp_path / "in")
    code, out, err = scaleout("import", "pytorch", tmp_path / "in", "--output", tmp_path / "out", "--device", "h100")
    assert (code, "--topology" in out) == (0, True), err
    code, out, _ = scaleout("import", "pytorch", tmp_path / "in", "--output", tmp_path / "out", "--json")
    assert json.loads(out)["device"] == "h200"
    assert scaleout("run", "--trace", tmp_path / "out", "--topology", MACHINE, "--json")[0] == 0


@pytest.mark.skipif(not SHARED.exists(), reason="the recordings are not beside this checkout")
@pytest.mark.parametrize("job", ["moe_ep4_h4096_f14336_t4096", "transformer_tp4_h4096_l4_s2048_b2"])
def test_modelled_kernels_are_near_those_recorded_beside_them(job):
    folder = SHARED / "measurements" / "h200-x4" / "traces"
    graph = load_recording((folder / f"{job}.et",))[0].graphs[0]
    modelled_s = graph.duration_s[graph.kind == NodeKind.COMPUTE].sum()
    found = next(iter(recorded_files((folder / f"{job}.kineto.0.json.gz",))))
    works = read_kineto(found.content, found.path).works
    recorded_us = sum(
        work.end_us - work.start_us for work in works if work.kind is WorkKind.KERNEL and not is_communication(work)
    )
    assert modelled_s * 1e6 == pytest.approx(recorded_us, rel=0.12)
