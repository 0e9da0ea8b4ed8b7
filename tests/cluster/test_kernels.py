"""Kernel times and their errors: measured rows, interpolation, transfer between devices, calibration, bad tables."""

import dataclasses
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from scaleout.cluster.device.kernel_times import kernel_time, kernel_times
from scaleout.cluster.device.kernel_times.estimate import estimate, is_in_blocks, kernel_classes, roofline
from scaleout.cluster.device.kernel_times.interpolated import Points, Smoothness, leave_one_out, posterior_mean
from scaleout.cluster.device.kernel_times.measured import read_table, table_of
from scaleout.cluster.device.kernel_times.model import calls_of
from scaleout.cluster.device.spec import CLASSES, load_device
from scaleout.config import library
from scaleout.errors import ConfigError, GraphError
from scaleout.program.operations import ITEM_BYTES, OPERATIONS, Family, TimeSource, custom, kernel

H200, MEASURED_H100 = load_device("h200"), load_device("h100")
H100 = dataclasses.replace(MEASURED_H100, kernel_files=(), calibration={})
"""As its data sheet has it."""
A100, T3_GPU = load_device("a100-80g"), load_device("t3-gpu")
TABLE = read_table(H200.kernel_files)
MEASURED = [
    (kernel(op, dtype=dtype, **dict(zip(OPERATIONS[op].parameters, sizes, strict=True))), seconds)
    for op, dtype in TABLE.rows
    for sizes, seconds in TABLE.series((op, dtype)).exact.items()
]
halves = st.sampled_from([2**n for n in range(7, 13)])


def test_measured_kernels_take_their_measured_times():
    seconds, sources = kernel_times(H200, [call for call, _ in MEASURED])
    np.testing.assert_array_equal(seconds, [time for _, time in MEASURED])
    assert set(sources) == {TimeSource.MEASURED}


def test_repeated_measurements_of_one_shape_are_one():
    """Two graph replays of 4 Mi elements: 7.88 and 7.196 us; the profile of 6.197 us is of the lesser method."""
    seconds = kernel_time(H200, kernel("gelu_fwd", dtype="bf16", elements=4194304)).seconds
    assert seconds == pytest.approx(1e-6 * (7.88 + 7.196) / 2)


def neighbour(call):
    """The same call with its last size a little larger, so that it is not in the table."""
    name, value = call.shape[-2 if call.shape[-1][0] == "causal" else -1]
    return kernel(call.op, dtype=call.dtype, **{**dict(call.shape), name: value + max(16, value // 64)})


def test_interpolation_passes_near_every_measurement():
    """A size a few percent larger is not much slower or faster; 16 more is far only where the size is small."""
    known = [
        (call, time)
        for call, time in MEASURED
        if call.op in ("add", "layer_norm_fwd", "gemm_fp8") and time > 2e-5
        if kernel_classes(calls_of([call])) == kernel_classes(calls_of([neighbour(call)]))  # one kernel runs both
    ]
    seconds, sources = kernel_times(H200, [neighbour(call) for call, _ in known])
    assert set(sources) == {TimeSource.INTERPOLATED}
    np.testing.assert_allclose(seconds, [time for _, time in known], rtol=0.25)


@pytest.mark.parametrize(
    ("op", "sizes", "number"),
    [
        ("gemm", {"M": 7, "N": 4096, "K": 4096}, 0),
        ("gemm", {"M": 8, "N": 4098, "K": 4096}, 1),
        ("gemm", {"M": 8, "N": 4096, "K": 4097}, 3),
        ("gemm", {"M": 8, "N": 50257, "K": 768}, 3),
        ("layer_norm_fwd", {"tokens": 3, "hidden": 1600}, 0),
        ("layer_norm_fwd", {"tokens": 8, "hidden": 1601}, 1),
        ("cross_entropy_bwd", {"tokens": 8, "vocab": 50257}, 1),
        ("softmax_fwd", {"tokens": 16, "keys": 2048}, 2),
        ("softmax_fwd", {"tokens": 16, "keys": 2056}, 3),
        ("softmax_fwd", {"tokens": 16, "keys": 9224}, 0),
        ("softmax_fwd", {"tokens": 16, "keys": 9225}, 1),
        ("softmax_fwd", {"tokens": 16, "keys": 24576}, 1),
        ("cross_entropy_fwd", {"tokens": 16, "vocab": 8000}, 3),
        ("gemv", {"M": 999, "N": 1000}, 0),
        ("gemv", {"M": 999, "N": 1001}, 1),
        ("conv2d_fwd", {"batch": 1, "c_in": 64, "c_out": 63, "kernel": 1, "stride": 1, "hw": 7}, 3),
        ("conv2d_fwd", {"batch": 1, "c_in": 64, "c_out": 63, "kernel": 3, "stride": 1, "hw": 7}, 1),
        ("conv2d_fwd", {"batch": 1, "c_in": 60, "c_out": 64, "kernel": 1, "stride": 2, "hw": 7}, 1),
        ("softmax_bwd", {"tokens": 16, "keys": 2048}, 0),
        ("softmax_bwd", {"tokens": 16, "keys": 2049}, 1),
        ("cross_entropy_bwd", {"tokens": 8, "vocab": 1001}, 2),
        ("embedding_fwd", {"tokens": 16, "hidden": 4096}, 2),
        ("embedding_fwd", {"tokens": 17, "hidden": 4096}, 0),
    ],
)
def test_classes_of_kernels_by_hand(op, sizes, number):
    assert kernel_classes(calls_of([kernel(op, dtype="bf16", **sizes)])) == [number]


def test_groups_of_any_rows_launch_two_kernels_and_fill_whole_waves():
    """By hand: 7 us, and 2 us a wave; of 66 tiles of 128 by 256 each, 4 groups are two waves, 5 are three."""

    def seconds(op, groups, rows=2816, outputs=768):
        calls = calls_of([kernel(op, dtype="bf16", groups=groups, M=rows, N=outputs, K=8192)])
        return float(estimate(calls, H200)[0])

    two, three = (seconds("grouped_gemm", groups) for groups in (4, 5))
    assert (three - 7e-6) / (two - 7e-6) == pytest.approx(1.5)
    assert seconds("batched_gemm", 5) / seconds("batched_gemm", 4) < 1.35
    assert 9e-6 < seconds("grouped_gemm", 1, rows=1, outputs=128) - 128 * 0.16e-6 < 10e-6  # a wave of one small tile
    grouped_s, batched_s = (
        kernel_time(H200, kernel(op, dtype="bf16", groups=8, M=16, N=2000, K=1000)).seconds
        for op in ("grouped_gemm", "batched_gemm")
    )
    assert grouped_s > 1.5 * batched_s


def test_what_jumps_from_class_to_class():
    """Times of GPT-2's vocabulary and of rows looked up, at sizes that were not measured."""

    def seconds(op, **sizes):
        return kernel_time(H200, kernel(op, dtype="bf16", **sizes)).seconds

    odd, even, whole = (seconds("gemm", M=2048, N=50000 + more, K=768) for more in (257, 258, 264))
    assert 1.4 < odd / even < 3.5
    assert 2 < even / whole < 4.5
    assert seconds("embedding_fwd", tokens=15, hidden=4096) > 2 * seconds("embedding_fwd", tokens=20, hidden=4096)


def test_softmax_of_short_rows_waits_for_one_warp():
    """At sizes that were not measured: 2,048 elements take longer than 2,176, of which a block takes care."""
    short, long = (
        kernel_time(H200, kernel("softmax_fwd", dtype="bf16", tokens=40, keys=keys)).seconds for keys in (2040, 2176)
    )
    assert short > 1.7 * long


def test_attention_to_a_cache_comes_in_waves_of_blocks():
    """A third wave of few blocks takes as long as one block; wide heads leave room for one on an SM, and spill."""

    def seconds(batch, head_dim):
        call = kernel(
            "attention_decode", dtype="bf16", batch=batch, heads=4, kv_heads=4, kv_seq=30000, head_dim=head_dim
        )
        return kernel_time(H200, call).seconds

    assert seconds(70, 80) / seconds(64, 80) > 1.25  # 280 and 256 blocks, 264 at once
    assert seconds(38, 256) / seconds(32, 256) > 1.4  # 152 and 128 blocks, 132 at once
    assert seconds(2, 128) < 0.1 * seconds(66, 128)  # eight blocks are split over all SMs


@pytest.mark.parametrize("op", ["attention_fa2_fwd", "attention_fa2_bwd"])
def test_flash_attention_2_of_hopper_is_measured(op):
    """Llama's heads: H200 took H100's rows for nothing, and came out as fast as cuDNN."""
    sizes = {"batch": 3, "heads": 32, "kv_heads": 8, "seq": 4096, "head_dim": 128, "causal": 1}
    found = kernel_time(H200, kernel(op, dtype="bf16", **sizes))
    usual = kernel_time(H200, kernel(op.replace("fa2", "gqa"), dtype="bf16", **sizes))
    assert found.source == "interpolated"
    assert 1.5 < found.seconds / usual.seconds < 2.6


def test_half_precision_is_near_where_either_type_was_measured():
    """Its 136 own GEMMs are none of odd rows; those of bf16 run on the same units."""
    found = {dtype: kernel_time(H200, kernel("gemm", dtype=dtype, M=100, N=1001, K=2000)) for dtype in ("bf16", "fp16")}
    assert {each.source for each in found.values()} == {"interpolated"}
    assert found["fp16"].seconds == pytest.approx(found["bf16"].seconds, rel=0.15)


def points(coordinates, labels=None):
    """Points of one series and source, unless said otherwise."""
    return Points(coordinates, np.zeros((len(coordinates), 2), dtype=np.int64) if labels is None else labels)


def test_estimate_passes_through_its_points_and_predicts_between_them():
    at = np.linspace(0.0, 8.0, 9)[:, None]
    values = 0.1 * at[:, 0] + 0.05 * np.sin(at[:, 0])
    smoothness = Smoothness(amplitude=0.3, length=4.0, trend=0.1, noise=0.01)
    np.testing.assert_allclose(posterior_mean(points(at), values, points(at), smoothness=smoothness), values, atol=1e-4)
    between = at[:-1] + 0.5
    found = posterior_mean(points(at), values, points(between), smoothness=smoothness)
    np.testing.assert_allclose(found, 0.1 * between[:, 0] + 0.05 * np.sin(between[:, 0]), atol=0.01)


@given(st.integers(0, 2**32 - 1), st.integers(0, 11))
@settings(max_examples=30, deadline=None)
def test_a_hidden_point_is_as_good_as_absent(seed, left_out):
    generator = np.random.default_rng(seed)
    at, values = generator.uniform(0, 6, (12, 2)), generator.normal(0, 0.2, 12)
    labels = generator.integers(0, 2, (12, 2))
    smoothness = Smoothness(amplitude=0.3, length=3.0, noise=0.05, correlation=0.7, offset=0.1)
    asked, rest = [left_out], np.arange(12) != left_out
    everything, others, one = points(at, labels), points(at[rest], labels[rest]), points(at[asked], labels[asked])
    hidden = posterior_mean(everything, values, one, smoothness=smoothness, hidden=~rest[None, :])
    np.testing.assert_allclose(hidden, posterior_mean(others, values[rest], one, smoothness=smoothness), atol=1e-6)


def test_another_source_tells_the_shape_and_little_of_the_level():
    """A second method that reads 5% less everywhere must not drag down the first one where only the second went."""
    at = np.linspace(0.0, 8.0, 9)[:, None]
    values = 0.3 * np.sin(at[:, 0])
    first, second = np.zeros((9, 2), dtype=np.int64), np.tile([0, 1], (9, 1))
    known = Points(np.vstack([at[:4], at]), np.vstack([first[:4], second]))
    found = posterior_mean(
        known, np.concatenate([values[:4], values - 0.05]), points(at[4:6]), smoothness=Smoothness(0.3, 4.0, noise=0.01)
    )
    np.testing.assert_allclose(found, values[4:6], atol=0.025)


@settings(max_examples=60, deadline=None)
@given(halves, halves, halves, st.sampled_from(["bf16", "fp16", "fp32"]))
def test_a_gemm_of_twice_every_size_takes_longer(rows, cols, depth, dtype):
    small, large = (kernel("gemm", dtype=dtype, M=f * rows, N=f * cols, K=f * depth) for f in (1, 2))
    assert kernel_time(H200, large).seconds > kernel_time(H200, small).seconds


@pytest.mark.parametrize("op", ["add", "gelu_fwd", "layer_norm_fwd", "rms_norm_bwd", "attention_fwd", "attention_bwd"])
def test_more_work_takes_longer(op):
    shapes = {
        "elements": lambda n: {"elements": 1000 * n},
        "tokens": lambda n: {"tokens": n, "hidden": 5120},
        "batch": lambda n: {"batch": 1, "heads": 24, "seq": n, "head_dim": 128, "causal": True},
    }[OPERATIONS[op].parameters[0]]
    seconds, _ = kernel_times(H200, [kernel(op, dtype="bf16", **shapes(n)) for n in (1500, 3000, 6000, 12000)])
    assert all(a < b for a, b in pairwise(seconds))


def test_roofline_is_beaten_only_from_the_cache():
    """Measured times may beat it by what the L2 cache explains: their bytes fit it and come at most twice as fast.

    Convolutions in fp32 whose windows overlap may multiply less often than is counted, as cuDNN's Winograd and FFT
    kernels do: 16 instead of 36 for a tile of 2 x 2 by 3 x 3 (Lavin and Gray, arXiv:1509.09308), a quarter at the most.
    """
    for call, seconds in MEASURED:
        bound = max(call.bytes / H200.memory_bytes_per_s, call.flops / H200.peak(call.dtype) if call.flops else 0.0)
        if call.sizes.get("kernel", 1) < call.sizes.get("stride", 1):
            continue  # such a convolution skips pixels, which the published count of bytes includes
        if call.dtype == "fp32" and call.sizes.get("kernel", 1) > 1 and call.sizes["stride"] == 1:
            bound = max(call.bytes / H200.memory_bytes_per_s, call.flops / H200.peak(call.dtype) / 4)
        if seconds < bound:
            assert call.bytes < 1.2 * H200.l2_bytes, call
            assert seconds > bound / 2, call


@given(st.sampled_from(sorted(set(OPERATIONS) - {"gemm_fp8"})), st.data())
@settings(max_examples=60, deadline=None)
def test_a_data_sheet_beats_its_roofline_only_from_the_cache(op, data):
    shape = {name: data.draw(st.integers(2, 4096)) for name in OPERATIONS[op].parameters}
    call = kernel(op, dtype="fp16", **shape)
    found = kernel_time(H100, call)
    bound = max(call.bytes / H100.memory_bytes_per_s, call.flops / H100.peak("fp16"))
    assert found.source == "roofline"
    assert found.seconds >= max(bound / (1 + (call.bytes < 1.2 * H100.l2_bytes)), TABLE.shortest_s) * (1 - 1e-12)


def test_data_sheet_device_takes_the_efficiency_of_the_nearest_measured_kernel():
    call = kernel("gemm", dtype="bf16", M=8192, N=8192, K=8192)
    measured = kernel_time(H200, call).seconds
    plain, a100 = (dataclasses.replace(device, calibration={}) for device in (H100, load_device("a100-40g")))
    assert kernel_time(plain, call).seconds == pytest.approx(measured)  # the same peak
    launch_s = kernel_time(H200, kernel("gemm", dtype="bf16", M=1, N=1, K=1)).seconds
    expected = launch_s + (measured - launch_s) * 989.5 / 312
    without_clock = dataclasses.replace(a100, clock_hz=0.0)
    assert kernel_time(without_clock, call).seconds == pytest.approx(expected, rel=1e-3)
    assert kernel_time(a100, call).seconds == pytest.approx(expected, rel=0.05)


@given(rows=st.integers(1, 2**14), cols=st.integers(64, 2**14), depth=st.integers(64, 2**14), ratio=st.floats(0.5, 2.0))
@settings(max_examples=50, deadline=None)
def test_a_gemm_on_matrix_units_is_transferred_with_its_tiles_and_waves(rows, cols, depth, ratio):
    """The ratio of time to estimate is the reference device's for every shape; no time is below the roofline."""
    a100 = dataclasses.replace(load_device("a100-40g"), calibration={"gemm": ratio})
    call = kernel("gemm", dtype="fp16", M=rows, N=cols, K=depth)
    reference, found = kernel_time(H200, call), kernel_time(a100, call)
    assume(reference.source != "roofline")
    calls = calls_of([call])
    transferred_s = reference.seconds * float(estimate(calls, a100)[0] / estimate(calls, H200)[0]) / ratio
    assert found.seconds == pytest.approx(max(transferred_s, float(roofline(calls, a100)[0])), rel=1e-6)
    assert found.source == "roofline"  # nothing was measured on this device


@given(cols=st.integers(64, 4096), depth=st.integers(64, 4096), dtype=st.sampled_from(["bf16", "fp16"]))
@settings(max_examples=25, deadline=None)
def test_slow_loads_of_unaligned_rows_are_not_transferred(cols, depth, dtype):
    """H200's cuBLAS takes five times as long for K = 532 as for 512: its copies of matrices need rows of 16 bytes."""
    padded = kernel("gemm", dtype=dtype, M=8192, N=-(-cols // 64) * 64, K=-(-depth // 64) * 64)
    found = kernel_time(T3_GPU, kernel("gemm", dtype=dtype, M=8192, N=cols, K=depth))
    assert found.seconds <= 2 * kernel_time(T3_GPU, padded).seconds


def test_products_off_the_matrix_units_of_a100_are_as_slow_as_published():
    """torch.bmm of 384 x 1024 x 1024 x 140 with CUDA 11.6: 12.21 TFLOP/s (pytorch/pytorch, issue 83272)."""
    call = kernel("gemm", dtype="fp32", M=384 * 1024, N=140, K=1024)
    assert call.flops / kernel_time(A100, call).seconds == pytest.approx(12.21e12, rel=0.1)


def test_a_gemm_is_transferred_from_measurements_in_its_own_dtype():
    """fp16 GEMMs were measured one by one on H200, bf16 over and over at the power limit."""
    call = kernel("gemm", dtype="fp16", M=16384, N=3072, K=384)
    assert T3_GPU.calibrated("gemm") * 0.7 < call.flops / T3_GPU.peak("fp16") / kernel_time(T3_GPU, call).seconds


def test_what_memory_does_not_explain_takes_as_long_beside_a_slower_memory_with_as_many_sms():
    """Casts reach 43% of an H200's bandwidth; H100 has the same SMs and 70% of that bandwidth."""
    slow, fast = kernel("cast_to_fp32", dtype="bf16", elements=2**28), kernel("add", dtype="bf16", elements=2**28)
    assert kernel_time(H100, slow).seconds == pytest.approx(kernel_time(H200, slow).seconds, rel=0.05)
    assert kernel_time(H100, fast).seconds == pytest.approx(kernel_time(H200, fast).seconds * 4.8 / 3.35, rel=0.1)


FASTER = {name: dataclasses.replace(load_device(name), calibration={}) for name in ("b200", "gb200", "mi300x")}
BORROWED = sorted({op for op, _ in TABLE.rows} - {"gemm_fp8"})


@pytest.mark.parametrize("name", FASTER)
@given(op=st.sampled_from(BORROWED), data=st.data())
@settings(max_examples=80, deadline=None)
def test_a_device_with_no_less_of_either_rate_is_no_slower_unless_its_own_table_says_so(name, op, data):
    """RMS norm of two rows took twice H200's time on MI300X: it had the efficiency of the nearest measured shape."""
    device, dtype = FASTER[name], data.draw(st.sampled_from(("bf16", "fp32")))
    assume(not name.endswith("b200") or OPERATIONS[op].family not in (Family.GEMM, Family.ATTENTION))
    assume(dtype == "bf16" or OPERATIONS[op].family is not Family.ATTENTION)
    most = {"kernel": 7, "stride": 2, "hw": 224, "causal": 1, "topk": 8, "pooling": 64, "features": 64, "tables": 64}
    sizes = {size: data.draw(st.integers(1, most.get(size, 2**12))) for size in OPERATIONS[op].parameters}
    call = kernel(op, dtype=dtype, **sizes)
    assume(call.flops + call.bytes > 0)
    assert kernel_time(device, call).seconds <= kernel_time(H200, call).seconds * (1 + 1e-9)


@pytest.mark.parametrize("name", FASTER)
@given(groups=st.integers(1, 256), rows=st.integers(1, 32), cols=halves, depth=st.integers(1024, 8192))
@example(groups=16, rows=32, cols=2880, depth=2880)
@settings(max_examples=80, deadline=None)
def test_gemms_of_decode_are_no_slower_either_unless_single_ones_like_them_were_measured(
    name, groups, rows, cols, depth
):
    """B200's groups of a few rows had the share of the peak of training's: 10.2 ms of a token, 6.9 ms on H200."""
    assume(groups * rows * cols * depth < 4e10)  # the least of B200's own groups is 1.9e11
    single = kernel("gemm", dtype="bf16", M=groups * rows, N=cols, K=depth)
    grouped = kernel("grouped_gemm", dtype="bf16", groups=groups, M=rows, N=cols, K=depth)
    near_s, source = kernel_time(FASTER[name], single)
    own_s = near_s if name.endswith("b200") and source != "roofline" else 0.0
    for call in (single, grouped):
        assert kernel_time(FASTER[name], call).seconds <= max(own_s, kernel_time(H200, call).seconds) * (1 + 1e-9)


@pytest.mark.parametrize("device", ["h200", "a100-80g", "tpu-v4"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(("tokens", "vocab"), [(64, 1001), (8192, 1001), (8192, 21334), (4096, 50257)])
def test_a_call_that_does_next_to_nothing_says_no_efficiency(tokens, vocab, dtype, device):
    """Of unaligned rows of the fused loss only 2 x 2 elements were measured, 2 us: 8,192 x 21,334 took 145 s by it."""
    machine = load_device(device)
    for op in ("cross_entropy_fused_fwd", "cross_entropy_fused_bwd"):
        call = kernel(op, dtype=dtype, tokens=tokens, vocab=vocab)
        assert kernel_time(machine, call).seconds < 60e-6 + 12 * call.bytes / machine.memory_bytes_per_s


@pytest.mark.parametrize("name", ["b200", "a100-80g", "mi300x"])
@pytest.mark.parametrize("op", ["rms_norm_fwd", "rms_norm_bwd", "layer_norm_fwd", "softmax_fwd"])
def test_a_transferred_kernel_of_more_rows_takes_longer_where_it_does_on_the_reference(name, op):
    columns = "keys" if op.startswith("softmax") else "hidden"
    calls = [kernel(op, dtype="bf16", **{"tokens": 2**power, columns: 4096}) for power in range(6, 15)]
    there_s, here_s = (kernel_times(device, calls)[0] for device in (H200, load_device(name)))
    assert np.all((np.diff(here_s) > 0) | (np.diff(there_s) < 0.05 * there_s[1:]))
    assert np.all(np.diff(here_s[4:]) > 0)


def test_reference_devices_that_lead_in_a_circle_are_refused(tmp_path):
    row = {"op": "clone", "dtype": "bf16", "shape": {"elements": 1024}, "us": 1.0}
    (tmp_path / "one.jsonl").write_text("\n".join(map(json.dumps, ({"provenance": {"by": "hand"}}, row))))
    for name, other in (("mine", "yours"), ("yours", "mine")):
        changes = f"kernels: [one.jsonl]\nefficiency_from: {tmp_path / other}.yaml\n"
        (tmp_path / f"{name}.yaml").write_text(f"like: h200\n{changes}")
    device = load_device(tmp_path / "mine.yaml")
    with pytest.raises(ConfigError, match="efficiency_from leads in a circle: mine, yours, mine"):
        kernel_time(device, kernel("rms_norm_fwd", dtype="bf16", tokens=64, hidden=64))


def test_what_waits_for_launches_and_round_trips_takes_as_long_on_every_device():
    """One row of RMS norm: 18 KB take neither bandwidth nor arithmetic."""
    call = kernel("rms_norm_fwd", dtype="bf16", tokens=1, hidden=4096)
    there_s = kernel_time(H200, call).seconds
    twice = dataclasses.replace(H100, name="twice", memory_bytes_per_s=2 * H200.memory_bytes_per_s)
    assert kernel_time(twice, call).seconds == pytest.approx(there_s, rel=0.01)
    b200 = kernel_time(load_device("b200"), call).seconds
    assert 0.8 * there_s < b200 <= there_s


def test_times_carried_to_a_device_whose_kernels_are_hidden_are_near_to_those_measured_there():
    """H200's times on H100, and H100's on H200, as if nothing had been measured there; attention and norms."""
    for there, here in ((H200, MEASURED_H100), (MEASURED_H100, H200)):
        bare = dataclasses.replace(here, name="bare", kernel_files=(), efficiency_from=there.name, calibration={})
        errors = []
        for key in (("rms_norm_fwd", "bf16"), ("layer_norm_bwd", "bf16"), ("attention_fwd", "bf16"), ("add", "bf16")):
            exact = table_of(here).series(key).exact
            parameters, shapes = OPERATIONS[key[0]].parameters, list(exact)[::3]
            calls = [kernel(key[0], dtype=key[1], **dict(zip(parameters, shape, strict=True))) for shape in shapes]
            errors += np.log(kernel_times(bare, calls)[0] / [exact[shape] for shape in shapes]).tolist()
        assert np.mean(np.abs(errors)) < 0.14  # the efficiency of the nearest shape: 0.16 and 0.24


def test_far_shapes_take_the_roofline():
    found = kernel_time(H200, kernel("gemm", dtype="bf16", M=8192, N=2000000, K=8192))
    assert found.source == "roofline"
    assert 0.5 * 989.5e12 < 2 * 8192 * 2000000 * 8192 / found.seconds < 989.5e12


@pytest.mark.parametrize("name", library.names("device"))
def test_every_operation_has_a_time_on_every_device(name):
    device = load_device(name)
    dtype = "fp16" if "fp16" in device.peak_flops_per_s else "bf16"
    calls = [
        kernel(op, dtype=dtype, **dict.fromkeys(OPERATIONS[op].parameters, 96)) for op in OPERATIONS if op != "gemm_fp8"
    ]
    seconds, _ = kernel_times(device, calls)
    assert np.all(np.isfinite(seconds))
    assert np.all(seconds >= TABLE.shortest_s)


@pytest.mark.parametrize("name", ["h200", "h100", "a100-80g", "b200", "mi300x", "tpu-v4"])
def test_no_call_of_some_work_takes_a_thousand_times_what_it_must(name):
    """One call of four elements once said how fast all unaligned rows are: random sizes find such a one.

    The slowest kernels that were measured, of many small parts, reach some hundredth of the memory's bandwidth.
    """
    device, random = load_device(name), np.random.default_rng(7)
    dtypes = sorted(device.peak_flops_per_s.keys() & {"bf16", "fp16", "fp32", "tf32"})
    for op in sorted(OPERATIONS.keys() - {"gemm_fp8"}):
        parameters = OPERATIONS[op].parameters
        drawn = 2 ** random.uniform(2, 14 if len(parameters) < 4 else 9, size=(120, len(parameters)))
        whole = np.where(random.random(drawn.shape) < 0.5, np.ceil(drawn / 64) * 64, drawn).astype(int)
        shapes = [
            {key: min(int(size), _MOST.get(key, 2**14)) for key, size in zip(parameters, row, strict=True)}
            for row in whole
        ]
        calls = [kernel(op, dtype=dtypes[at % len(dtypes)], **shape) for at, shape in enumerate(shapes)]
        seconds, _ = kernel_times(device, calls)
        bounds = roofline(calls_of(calls), device)
        assert np.all(seconds <= 1e-3 + 1000 * bounds), (op, calls[int(np.argmax(seconds - 1000 * bounds))])


_MOST = {"causal": 1, "kernel": 7, "stride": 2}
"""Most of what has few values."""


def test_a_time_does_not_depend_on_its_batch():
    calls = [neighbour(call) for call, _ in MEASURED[::40]]
    calls += [custom(dtype="bf16", flops=0, bytes=10**7), custom(dtype="bf16", flops=10**12, bytes=10**7)]
    for device in (H200, H100):
        batched, _ = kernel_times(device, calls)
        np.testing.assert_allclose(batched, [kernel_time(device, call).seconds for call in calls], rtol=1e-9)


def test_custom_kernels_are_compared_with_copies_and_gemms():
    copy = kernel_time(H200, custom(dtype="bf16", flops=0, bytes=4 * 10**9))
    gemm = kernel_time(H200, custom(dtype="bf16", flops=10**13, bytes=10**9))
    assert copy.seconds == pytest.approx(4e9 / 4.8e12, rel=0.3)
    assert gemm.seconds == pytest.approx(1e13 / 989.5e12, rel=0.6)


def test_kernel_without_work_is_refused():
    with pytest.raises(GraphError, match="no time and no FLOPs"):
        kernel_time(H200, custom(dtype="fp32", flops=0, bytes=0))


@given(
    op=st.sampled_from(sorted(set(OPERATIONS) - {"gemm_fp8"})),
    size=st.integers(96, 1024),
    ratio=st.floats(0.2, 5.0),
    of_class=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_calibration_scales_what_is_above_the_shortest_time_down_to_the_roofline(op, size, ratio, of_class):
    call = kernel(op, dtype="bf16", **dict.fromkeys(OPERATIONS[op].parameters, size))
    assume(call.flops + call.bytes > 0)
    key = CLASSES[OPERATIONS[op].family] if of_class else op
    plain = dataclasses.replace(H100, name="plain", calibration={})
    roofline_s = float(roofline(calls_of([call]), H100)[0])
    at_roofline, before, after = (
        kernel_time(dataclasses.replace(plain, calibration={key: value}), call).seconds for value in (1e9, 1.0, ratio)
    )
    assert before == kernel_time(plain, call).seconds
    if at_roofline == before:  # from the cache, faster than the roofline; nothing makes it faster still
        assert after >= before
        return
    by_tiles = is_in_blocks(op) or "groups" in OPERATIONS[op].parameters  # GEMMs of groups take what one GEMM takes
    floor_s = 0.0 if by_tiles else at_roofline - roofline_s
    assert after - floor_s == pytest.approx(max((before - floor_s) / ratio, at_roofline - floor_s), rel=1e-6, abs=1e-12)


def test_calibration_of_one_class_leaves_the_others():
    plain, calibrated = (dataclasses.replace(H100, calibration=found) for found in ({}, {"memory": 0.5}))
    gemm, add = kernel("gemm", dtype="bf16", M=512, N=512, K=512), kernel("add", dtype="bf16", elements=10**8)
    assert kernel_time(calibrated, gemm) == kernel_time(plain, gemm)
    assert kernel_time(calibrated, add).seconds == pytest.approx(2 * kernel_time(H100, add).seconds, rel=0.02)
    unknown = custom(dtype="bf16", flops=0, bytes=6 * 10**8)
    assert kernel_time(calibrated, unknown).seconds > 1.9 * kernel_time(H100, unknown).seconds


def test_a_reference_device_without_measurements_is_refused():
    without = dataclasses.replace(H100, name="toy", efficiency_from="mi210")
    with pytest.raises(ConfigError, match="'mi210' has no measured kernels; name a device that has"):
        kernel_time(without, kernel("add", dtype="bf16", elements=1000))


# Median absolute error of leaving one shape out, in percent, with margin over what is reached.
REACHED = {
    ("gemm", "bf16"): 4.5,
    ("gemm", "fp16"): 4.5,
    ("gemm", "fp32"): 6.5,
    ("gemm_fp8", "fp8_e4m3"): 4.5,
    ("attention_fwd", "bf16"): 3.5,
    ("attention_bwd", "bf16"): 2.5,
    ("attention_decode", "bf16"): 6.5,
    ("conv2d_fwd", "bf16"): 7.0,
    ("conv2d_bwd_data", "bf16"): 7.0,
    ("conv2d_bwd_weight", "bf16"): 8.0,
    ("layer_norm_bwd", "bf16"): 7.0,
    ("moe_top_k", "bf16"): 4.0,
    ("add", "bf16"): 2.0,
    ("embedding_bag_fwd", "fp32"): 3.0,
    ("embedding_bag_bwd_sparse", "fp32"): 1.0,
}
LARGEST = 12.0
"""Of any operation with enough shapes but copies."""
COPIES = ("copy_d2d", "cache_write")
"""Measured at sizes four to sixteen times apart; without one of them 14%."""


def test_leave_one_out_errors_are_small():
    rows = {(row.op, row.dtype): row for row in leave_one_out(H200)}
    assert set(REACHED) <= set(rows)
    counts = [len(TABLE.series(key).exact) for key in TABLE.rows]
    assert sum(row.num_shapes for row in rows.values()) == sum(count for count in counts if count >= 3)
    for key, percent in REACHED.items():
        assert 100 * rows[key].median < percent, rows[key]
        assert rows[key].median <= rows[key].p90
    many = [row for row in rows.values() if row.num_shapes >= 12 and row.op not in COPIES]
    assert max(100 * row.median for row in many) < LARGEST


def write(path, *lines):
    """A table of measurements with these rows."""
    rows = [{"provenance": {"device": "toy"}}, *lines]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


def add(elements, us, **more):
    """A row, or a column of rows, of `add`."""
    return {"op": "add", "dtype": "bf16", "shape": {"elements": elements}, "us": us, **more}


def test_repeats_take_the_median_and_the_first_file_counts(tmp_path):
    first = write(tmp_path / "a.jsonl", add(8, 1.0), add(8, 2.0))
    second = write(tmp_path / "b.jsonl", add(8, 9.0), add(16, 9.5))
    table = read_table((first, second))
    assert table.series(("add", "bf16")).exact == {(8,): pytest.approx(1.5e-6), (16,): pytest.approx(9.5e-6)}


def test_rows_that_no_limit_slowed_down_are_as_slow_as_it_makes_them(tmp_path):
    """275 TFLOP/s draw 473 W and 13 for bytes, where there is room for 340: 1.13 times as long, by 2.85."""
    shape, bare_us = {"M": 8192, "N": 8192, "K": 8192}, 2 * 8192**3 / 275e6
    row = {"op": "gemm", "dtype": "bf16", "shape": shape, "us": bare_us, "method": "unlimited"}
    call, file = kernel("gemm", dtype="bf16", **shape), write(tmp_path / "a.jsonl", row)
    device = dataclasses.replace(A100, kernel_files=(file,), calibration={})
    over = (1.72e-12 * 275e12 + 0.13e-9 * 6 * 8192**2 / (1e-6 * bare_us)) / 340
    assert kernel_time(device, call).seconds == pytest.approx(1e-6 * bare_us * over ** (1 / 2.85))
    (cool_s,), _ = kernel_times(device, [call], full_clock=True)
    assert cool_s == pytest.approx(1e-6 * bare_us)
    unknown = dataclasses.replace(device, power=None)
    assert kernel_time(unknown, call).seconds == pytest.approx(1e-6 * bare_us)


def test_large_gemms_on_a100_at_its_limit_are_as_measured_there():
    """SGLang's random data against vLLM's empty weights, slowed down by what A100 draws: 18 GEMMs of 5 ms and more."""
    rows = [json.loads(line) for line in A100.kernel_files[0].read_text().splitlines()[1:]]
    bare, limited = {}, {}
    for row in rows:
        shapes = zip(*(row["shape"][name] for name in "MNK"), strict=True)
        (bare if "method" in row else limited).update(zip(shapes, row["us"], strict=True))
    both = {shape: us for shape, us in limited.items() if us >= 5e3 and shape in bare}
    assert len(both) == 18
    calls = [kernel("gemm", dtype="bf16", **dict(zip("MNK", shape, strict=True))) for shape in both]
    found_s = [A100.power.at_limit_s(call, 1e-6 * bare[shape]) for call, shape in zip(calls, both, strict=True)]
    errors = np.array(found_s) * 1e6 / list(both.values()) - 1
    assert abs(np.median(errors)) < 0.01
    assert np.abs(errors).max() < 0.05


def test_a_column_of_rows_is_the_rows(tmp_path):
    rows = write(tmp_path / "rows.jsonl", *(add(n, us, launches=1) for n, us in ((8, 1.0), (16, 2.0), (32, 3.0))))
    column = write(tmp_path / "column.jsonl", add([8, 16, 32], [1.0, 2.0, 3.0], launches=1))
    one, other = (read_table((file,)).series(("add", "bf16")) for file in (rows, column))
    assert one.exact == other.exact
    assert one.calls.shapes() == other.calls.shapes()
    assert one.calls.launches == other.calls.launches == 1


def test_of_two_methods_the_one_with_more_rows_counts(tmp_path):
    few = [add(8, 1.0, method="kernel_durations")]
    many = [add(n, 2.0, method="graph_replay") for n in (8, 16)]
    series = read_table((write(tmp_path / "a.jsonl", *few, *many),)).series(("add", "bf16"))
    assert series.exact[8,] == pytest.approx(2e-6)
    assert list(series.calls.warm) == [False, False, True]


@pytest.mark.parametrize("op", sorted({call.op for call, _ in MEASURED}))
def test_a_tiny_call_takes_what_the_smallest_measured_one_took(op):
    """Small kernels wait for launches and latencies: halving their sizes further saves nothing."""
    known = [(call, seconds) for call, seconds in MEASURED if call.op == op]
    call, _ = min(known, key=lambda pair: (pair[0].bytes, pair[0].flops))
    tiny = kernel_time(H200, kernel(op, dtype=call.dtype, **{name: min(2, size) for name, size in call.shape}))
    assert min(seconds for _, seconds in known) * (1 - 1e-9) <= tiny.seconds < 60e-6


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "line 1 must be"),
        (['{"op": "add"}'], "line 1 must be"),
        (
            ['{"provenance": {}}', '{"op": "ad", "dtype": "bf16", "shape": {}, "us": 1}'],
            "line 2: unknown operation 'ad'",
        ),
        (['{"provenance": {}}', '{"op": "add", "dtype": "bf16", "shape": {}, "us": 1}'], "whole numbers for elements"),
        (['{"provenance": {}}', '{"op": "add"}'], "needs the keys op, dtype, shape and us"),
        (['{"provenance": {}}', "{"], "line 2: not valid JSON"),
        (['{"provenance": {}}', '{"op": "add", "dtype": "bf16", "shape": {"elements": 1}, "us": 0}'], "above zero"),
        (['{"provenance": {}}', '{"op": "add", "dtype": "b16", "shape": {"elements": 1}, "us": 1}'], "unknown dtype"),
        (
            ['{"provenance": {}}', '{"op": "add", "dtype": "bf16", "shape": {"elements": [1, 2]}, "us": [1]}'],
            "as many as there are times",
        ),
    ],
)
def test_bad_tables_are_refused_by_message(tmp_path, lines, message):
    file = tmp_path / "kernels.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_table((file,))


def test_provenance_of_the_measurements():
    assert len(H200.kernel_files) == 10
    for file in H200.kernel_files:
        first = json.loads(file.read_text().partition("\n")[0])
        assert {"device", "date", "software", "clocks", "unit", "methods"} <= set(first["provenance"])
    assert all(dtype in ITEM_BYTES for _, dtype in TABLE.rows)


def test_gemms_of_a_data_sheet_are_those_that_were_measured_later():
    """H100 from H200, before any of its kernels was known: 943 GEMMs in bf16, measured on one GPU on another day."""
    key = ("gemm", "bf16")
    exact = table_of(MEASURED_H100).series(key).exact
    calls = [kernel("gemm", dtype="bf16", **dict(zip("MNK", shape, strict=True))) for shape in exact]
    errors = kernel_times(H100, calls)[0] / np.array(list(exact.values())) - 1
    assert len(errors) > 900
    assert np.mean(np.abs(errors)) < 0.09
    assert abs(np.mean(errors)) < 0.02


@pytest.mark.parametrize(("direction", "least", "most"), [("fwd", 1.4, 2.3), ("bwd", 1.3, 2.5)])
def test_flash_attention_2_takes_longer_on_hopper_than_cudnn(direction, least, most):
    """Heads of 108 take it in any case, as cuDNN has no such kernel: padded to 112, they are the same within 5%."""
    of = {"batch": 2, "heads": 16, "seq": 2048, "causal": 1}
    for head_dim in (64, 80, 96, 128):
        usual = kernel_time(MEASURED_H100, kernel(f"attention_{direction}", dtype="bf16", head_dim=head_dim, **of))
        fa2 = kernel_time(MEASURED_H100, kernel(f"attention_fa2_{direction}", dtype="bf16", head_dim=head_dim, **of))
        assert least < fa2.seconds / usual.seconds < most
    odd = [f"attention_{name}{direction}" for name in ("", "fa2_")]
    usual, fa2 = (kernel_time(MEASURED_H100, kernel(op, dtype="bf16", head_dim=108, **of)) for op in odd)
    assert usual.source == fa2.source == "measured"
    assert fa2.seconds == pytest.approx(usual.seconds, rel=0.05)


@pytest.mark.parametrize("name", ["h200", "h100", "a100-80g", "mi300x", "b200"])
@pytest.mark.parametrize("tokens", [2048, 131072])
def test_rotation_in_fp32_takes_once_to_twice_what_that_in_bf16_does(name, tokens):
    """Also where it was not measured, as bytes of both are counted alike: those that must move."""
    device, sizes = load_device(name), {"dtype": "bf16", "tokens": tokens, "hidden": 8192}
    for direction, other in (("fwd", "rope_fwd_unfused"), ("bwd", "rope_bwd")):
        fp32_s = kernel_time(device, kernel(f"rope_fp32_{direction}", **sizes)).seconds
        assert 0.85 <= fp32_s / kernel_time(device, kernel(other, **sizes)).seconds <= 2.0
