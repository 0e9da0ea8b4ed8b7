"""One contract for all models of kernel times: what they know is a time above zero, the rest is the next model's."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout import simulate
from scaleout.analysis.breakdown import breakdown
from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.kernel_times import MODELS, kernel_time, kernel_times, source_names
from scaleout.cluster.device.kernel_times.analytical import nearest_of
from scaleout.cluster.device.kernel_times.measured import table_of
from scaleout.cluster.device.kernel_times.model import calls_of, first_answers
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import Dimension, Topology
from scaleout.errors import ConfigError
from scaleout.interop.chakra.vocabulary import parse_time_source
from scaleout.program.graph import GraphBuilder
from scaleout.program.operations import CUSTOM, OPERATIONS, TimeSource, custom, kernel
from scaleout.program.program import Program

DEVICES = {name: load_device(name) for name in ("h200", "a100-80g", "v100", "mi210")}
H200, A100, V100 = DEVICES["h200"], DEVICES["a100-80g"], DEVICES["v100"]
SHIPPED = ("measured", "interpolated", "grouped", "transferred", "analytical")
"""The models whose answers are known here; a model that is added to the table is held to the contract alone."""
GEMM = kernel("gemm", dtype="fp16", M=8192, N=4096, K=1000)
FAR = kernel("gemm", dtype="fp16", M=8192, N=2000000, K=8192)


def kernels_of(op):
    """Kernels of an operation that were measured on an H200 in fp16 or not at all: small, large and odd ones."""
    if op == CUSTOM:
        return [custom(dtype="fp16", flops=10**9, bytes=10**6), custom(dtype="fp16", flops=0, bytes=10**9)]
    parameters, key = OPERATIONS[op].parameters, (op, "fp16")
    series = H200_TABLE.series(key).calls.shapes()[:8] if key in H200_TABLE.rows else []
    shapes = [*series, *([size] * len(parameters) for size in (96, 1000, 4096))]
    return [kernel(op, dtype="fp16", **dict(zip(parameters, shape, strict=True))) for shape in shapes]


H200_TABLE = table_of(H200)
EVERY = [*OPERATIONS, CUSTOM]


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_answers_with_times_above_zero_or_passes_on(name, device):
    answered = 0
    for op in EVERY:
        calls = calls_of(kernels_of(op))
        seconds = MODELS[name].times(device, calls)
        known = ~np.isnan(seconds)
        assert seconds.shape == calls.bytes.shape, op
        assert np.all(np.isfinite(seconds[known]) & (seconds[known] > 0)), op
        again = MODELS[name].times(device, calls.select(known)) if known.any() else seconds[known]
        np.testing.assert_allclose(again, seconds[known], rtol=1e-9, err_msg=op)  # whatever else is asked for
        answered += int(known.sum())
    if not device.kernel_files and name in SHIPPED:
        assert MODELS[name].SOURCE == "roofline" or not answered  # nothing was measured there


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_the_last_model_knows_every_operation(device):
    *_, last = MODELS.values()
    for op in EVERY:
        assert not np.isnan(last.times(device, calls_of(kernels_of(op)))).any(), op


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_a_kernel_takes_the_time_and_source_of_the_first_model_that_knows_it(device):
    every = [call for op in EVERY for call in kernels_of(op)]
    seconds, sources = kernel_times(device, every)
    for call, found_s, source in zip(every[::5], seconds[::5], sources[::5], strict=True):
        answers = [(model.times(device, calls_of([call]))[0], model.SOURCE) for model in MODELS.values()]
        first_s, first_source = next(pair for pair in answers if not np.isnan(pair[0]))
        assert found_s == pytest.approx(first_s, rel=1e-9)
        assert source_names()[source] == first_source
    if not device.kernel_files:
        _, sources = kernel_times(shipped_models_of(device), every)
        assert set(sources) == {TimeSource.ROOFLINE}  # nothing was measured there


def shipped_models_of(device):
    return dataclasses.replace(device, kernel_models=SHIPPED)


def test_each_model_knows_what_it_is_for():
    row, *_ = kernels_of("gemm")
    near, copy = GEMM, kernel("add", dtype="fp16", elements=12345)
    device = shipped_models_of(H200)
    assert [kernel_time(device, call).source for call in (row, near, FAR)] == [
        "measured", "interpolated", "roofline"
    ]  # fmt: skip
    transferred = MODELS["transferred"].times
    assert not np.isnan(transferred(V100, calls_of([row, near]))).any()
    for call in (near, FAR, copy):
        assert np.isnan(transferred(H200, calls_of([call]))).all()
        assert not np.isnan(transferred(DEVICES["mi210"], calls_of([call]))).any()
    far = kernel("gemm", dtype="bf16", M=8192, N=2000000, K=8192)
    assert np.isnan(transferred(load_device("b200"), calls_of([far]))).all()  # it measured GEMMs, H200 none like it


def test_a_new_model_is_asked_in_its_turn():
    """A model that knows GEMMs of 1000 columns goes before the others, and leaves them all else."""

    def times(device, calls):
        return np.where(calls.sizes["K"] == 1000, 1.0, np.nan)

    models = (SimpleNamespace(SOURCE="new", times=times), MODELS["analytical"])
    seconds, sources = first_answers(models, H200, calls_of([FAR, GEMM]))
    assert sources == ["roofline", "new"]
    assert seconds[0] == kernel_time(shipped_models_of(H200), FAR).seconds
    assert seconds[1] == 1.0


def test_a_new_model_names_its_times_in_results(monkeypatch):
    monkeypatch.setitem(MODELS, "new", SimpleNamespace(SOURCE="new", times=lambda _, calls: np.ones(len(calls.bytes))))
    device = dataclasses.replace(H200, kernel_models=("new",))
    assert kernel_time(device, GEMM) == (1.0, "new")
    builder = GraphBuilder()
    builder.compute(GEMM)
    program = time_kernels(Program("p", (builder.build(),), np.zeros(1, int), ()), device)
    result = simulate(program, Topology("one", (Dimension("ring", 1, 1e9, 0.0),)))
    assert breakdown(result).kernel_time_sources["new"] == 1.0
    assert parse_time_source("new") == program.graphs[0].time_source[0]


def test_a_device_names_the_models_that_it_uses():
    shipped, only = shipped_models_of(H200), dataclasses.replace(H200, kernel_models=("analytical",))
    assert kernel_time(shipped, GEMM).source == "interpolated"
    assert kernel_time(only, GEMM).source == "roofline"
    some = dataclasses.replace(H200, kernel_models=("measured", "interpolated"))
    assert kernel_time(some, GEMM) == kernel_time(shipped, GEMM)
    with pytest.raises(ConfigError, match=r"kernel_models \(measured, interpolated\) knows the time of 'gemm' in fp16"):
        kernel_time(some, FAR)
    wrong = dataclasses.replace(H200, kernel_models=("measure",))
    with pytest.raises(ConfigError, match="kernel_models: unknown model of kernel times 'measure'; did you mean 'mea"):
        kernel_time(wrong, GEMM)


def grouped_gemm(groups, rows, outputs, inputs):
    return kernel("grouped_gemm", dtype="bf16", groups=groups, M=rows, N=outputs, K=inputs)


def accumulated_gemm(groups, rows, outputs, inputs):
    return kernel("grouped_gemm_accumulate", dtype="bf16", groups=groups, M=rows, N=outputs, K=inputs)


def gemm(rows, outputs, inputs):
    return kernel("gemm", dtype="bf16", M=rows, N=outputs, K=inputs)


@given(st.sampled_from((64, 256, 1024, 4096)), st.sampled_from((1024, 4096, 14336)), st.sampled_from((1024, 8192)))
@settings(max_examples=20, deadline=None)
def test_a_grouped_gemm_takes_as_long_however_its_rows_are_cut(rows, outputs, inputs):
    """Where only single GEMMs were measured: that of all rows, or longer, as each group has a matrix of its own."""
    for full_clock in (False, True):
        (whole_s,), _ = kernel_times(H200, [gemm(16 * rows, outputs, inputs)], full_clock=full_clock)
        cut = [accumulated_gemm(count, 16 * rows // count, outputs, inputs) for count in (1, 2, 4, 8, 16)]
        seconds, sources = kernel_times(H200, cut, full_clock=full_clock)
        assert np.all(np.diff(seconds) >= 0)
        assert seconds[0] == pytest.approx(whole_s)
        assert set(sources) == {TimeSource.ROOFLINE}
        read_s = np.array([each.bytes / H200.memory_bytes_per_s for each in cut])
        assert np.all((seconds == seconds[0]) | (seconds <= read_s / 0.8))


def test_grouped_gemms_as_others_measured_them():
    """Those of an H100 by its single ones, and cuBLAS's batched ones of a recorded mixture of experts on H200."""
    h100 = load_device("h100")
    measured = table_of(h100).series(("grouped_gemm", "bf16"))
    shapes = measured.calls.shapes()
    single_s, _ = kernel_times(h100, [gemm(groups * rows, *rest) for groups, rows, *rest in shapes])
    read_s = np.array([grouped_gemm(*shape).bytes for shape in shapes]) / h100.memory_bytes_per_s
    ratio = np.maximum(single_s, read_s / 0.88) / measured.seconds
    assert len(ratio) == 55
    assert abs(np.log(ratio)).mean() < 0.13
    assert 0.7 < ratio.min() < ratio.max() < 1.1
    batched = kernel("batched_gemm", dtype="bf16", groups=4, M=4096, N=8192, K=4096)
    batched_s, _ = kernel_times(H200, [batched], full_clock=True)
    assert batched_s[0] == pytest.approx(1.470e-3, rel=0.05)


def test_matrix_units_do_both_two_byte_types_alike():
    """36 GEMMs on H100 in one process: fp16 takes 2% longer; predicted from bf16 and twelve others of fp16."""
    h100 = load_device("h100")
    folder = h100.kernel_files[0].parent
    bf16 = {}
    for line in (folder / "two-byte-power.jsonl").read_text().splitlines()[1:]:
        row = json.loads(line)
        if row["kind"] == "gemm":
            bf16[row["M"], row["N"], row["K"]] = row["limit_us"] * 1e-6
    own = dataclasses.replace(h100, kernel_files=(folder / "fp16.jsonl",))
    fp16 = table_of(own).series(("gemm", "fp16")).exact
    ratio = np.array([seconds / bf16[shape] for shape, seconds in fp16.items()])
    assert len(ratio) == 36
    assert ratio.mean() == pytest.approx(1.022, abs=0.002)
    assert 0.97 < ratio.min() < ratio.max() < 1.08
    without = dataclasses.replace(
        h100, kernel_files=tuple(one for one in h100.kernel_files if one.name != "fp16.jsonl")
    )
    calls = [kernel("gemm", dtype="fp16", **dict(zip("MNK", shape, strict=True))) for shape in fp16]
    errors = kernel_times(without, calls)[0] / np.array(list(fp16.values())) - 1
    assert np.mean(np.abs(errors)) < 0.08  # 12% if fp16 were a series of its own


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 200), st.sampled_from([0.1, 1.0, 40.0]))
def test_what_is_looked_up_by_cells_is_the_nearest_of_all(seed, num_points, num_places, wide):
    """Also among equally distant ones, of which points of a raster and places half-way between two have many."""
    random = np.random.default_rng(seed)
    points = random.uniform(0, wide, (num_points, 2)).round(int(random.integers(0, 12)))
    places = random.uniform(-wide, 2 * wide, (num_places, 2))
    pairs = points[random.integers(0, num_points, (2, num_places))]
    places = np.where(random.random((num_places, 1)) < 0.5, pairs.mean(axis=0), places)
    naive = [int(np.round(((points - place) ** 2).sum(axis=1), 9).argmin()) for place in places]
    assert nearest_of(places, points).tolist() == naive


def test_decode_on_a_device_that_measured_training_alone_is_bound_by_its_memory():
    """B200's own rows are of training's attention, bound by FLOPs: decode came out at 17% of 8 TB/s, behind H200."""
    calls = [
        kernel("attention_decode", dtype="bf16", batch=64, heads=8, kv_heads=1, kv_seq=length, head_dim=128)
        for length in (4096, 8192, 32768)
    ]
    moved = np.array([call.bytes for call in calls])
    there, here = (moved / kernel_times(load_device(name), calls)[0] for name in ("h200", "b200"))
    assert np.all(here > 1.2 * there)  # 8 TB/s beside 4.8
    assert np.all(here < 8e12)
