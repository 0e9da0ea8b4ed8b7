"""Devices: data sheets to SI numbers, a source for every number, and refusals by message."""

import dataclasses
import pickle

import pytest
import yaml

from scaleout.cluster.device.kernel_times import kernel_time
from scaleout.cluster.device.spec import load_device
from scaleout.config import library
from scaleout.errors import ConfigError
from scaleout.program.operations import kernel

NAMES = library.names("device")
SPEC = {
    "name": "Toy",
    "vendor": "Nobody",
    "peak_flops": {"fp32": {"value": "1 TFLOP/s", "source": "made up"}},
    "memory_bandwidth": {"value": "1 TB/s", "source": "made up"},
    "memory": {"value": "8 GB", "source": "made up"},
    "l2": {"value": "1 MiB", "source": "made up"},
    "sms": {"value": 10, "source": "made up"},
    "link_bandwidth": {"value": "10 GB/s", "source": "made up"},
}


def written(path, changes):
    file = path / "toy.yaml"
    file.write_text(yaml.safe_dump({**SPEC, **changes}), encoding="utf-8")
    return file


def numbers(value, where=""):
    """Every number of a file with the mapping that holds it, and its dotted key."""
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from numbers(inner, f"{where}.{key}")
        elif isinstance(inner, int | float) or (isinstance(inner, str) and inner[:1].isdigit()):
            yield f"{where}.{key}", value


@pytest.mark.parametrize("name", NAMES)
def test_every_number_has_its_source_beside_it(name):
    values = yaml.safe_load(library.find("device", name).read_text(encoding="utf-8"))
    found = list(numbers(values))
    assert len(found) >= 6 or "like" in values  # the numbers that every file must have, or another's
    for where, holder in found:
        assert set(holder) - {"between"} == {"value", "source"}, where
        assert len(holder["source"]) > 10, where


@pytest.mark.parametrize("name", NAMES)
def test_shipped_devices_load_with_their_sources(name):
    device = load_device(name)
    assert device.name == name
    assert device.sources["memory_bandwidth"]
    assert any(key.startswith("peak_flops.") for key in device.sources)
    assert pickle.loads(pickle.dumps(device)) == device
    assert hash(device) == hash(load_device(name))


@pytest.mark.parametrize(
    ("name", "dtype", "flops_per_s", "bytes_per_s", "num_sms"),
    [
        ("h200", "bf16", 989.5e12, 4.8e12, 132),
        ("h100", "fp8_e4m3", 1979e12, 3.35e12, 132),
        ("a100-80g", "tf32", 156e12, 2.039e12, 108),
        ("v100", "fp16", 125e12, 0.9e12, 80),
        ("mi210", "bf16", 181e12, 1.6e12, 104),
    ],
)
def test_data_sheet_numbers(name, dtype, flops_per_s, bytes_per_s, num_sms):
    device = load_device(name)
    assert device.peak(dtype) == pytest.approx(flops_per_s)
    assert device.memory_bytes_per_s == pytest.approx(bytes_per_s)
    assert device.num_sms == num_sms


def test_h100_computes_like_h200():
    assert load_device("h100").peak_flops_per_s == load_device("h200").peak_flops_per_s


def test_device_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_device("h200").num_sms = 1


def test_dtype_without_a_peak_is_refused():
    with pytest.raises(ConfigError, match="'v100' states no peak rate for bf16; use one of fp64, fp32, fp16"):
        load_device("v100").peak("bf16")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_bandwidth": {"value": "1 TB/s"}}, "'memory_bandwidth.source' is missing"),
        ({"memory_bandwidth": {"value": "1 TB/s", "source": " "}}, "memory_bandwidth.source"),
        ({"memory_bandwidth": {"value": "1 TB", "source": "x"}}, "unknown unit"),
        ({"memory_bandwidth": {"value": 0, "source": "x"}}, "memory_bandwidth.value: must be greater than 0"),
        ({"efficiency_from": "h900"}, "efficiency_from: unknown device 'h900'; did you mean 'h800'?"),
        ({"memory_bandwidth": {"value": 2039, "source": "x"}}, "2039 has no unit, and is to be a bandwidth"),
        ({"peak_flops": {"fp31": {"value": "1 FLOP/s", "source": "x"}}}, "unknown dtype 'fp31'; did you mean 'fp32'"),
        (
            {"peak_flops": {"fp32": {"value": 0, "source": "x"}}},
            "peak_flops.fp32.value: must be greater than 0",
        ),
        ({"peak_flops": {}}, "peak_flops"),
        ({"sms": {"value": 0, "source": "x"}}, "sms.value"),
        ({"memroy": 1}, "unknown key 'memroy'; did you mean 'memory'"),
        ({"kernels": ["absent.jsonl"]}, "'absent.jsonl' does not exist beside it"),
        (
            {"calibration": {"gemms": {"value": 1, "source": "x"}}},
            "unknown class of kernels 'gemms'; did you mean 'gemm'",
        ),
        (
            {"calibration": {"memory": {"value": 0, "source": "x"}}},
            "calibration.memory.value: must be greater than or equal to 0.000000001",
        ),
        ({"calibration": {"memory": {"value": 0.9}}}, "'calibration.memory.source' is missing"),
    ],
)
def test_bad_files_are_refused_by_message(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        load_device(written(tmp_path, changes))


def test_unknown_device_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'h200'"):
        load_device("h20")


def test_a_calibration_is_of_a_class_or_of_one_operation(tmp_path):
    calibration = {name: {"value": value, "source": "made up"} for name, value in (("gemm", 1.1), ("memory", 0.9))}
    calibration["gelu_fwd"] = {"value": 0.7, "source": "made up"}
    toy = load_device(written(tmp_path, {"efficiency_from": "h200", "calibration": calibration}))
    ratios = [toy.calibrated(op) for op in ("gemm", "conv2d_fwd", "layer_norm_fwd", "gelu_fwd", "attention_bwd")]
    assert ratios == [1.1, 1.1, 0.9, 0.7, 1.0]
    assert toy.sources["calibration.gelu_fwd"] == "made up"


def test_a_measured_device_is_not_calibrated(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"provenance": {}}\n', encoding="utf-8")
    calibration = {"gemm": {"value": 1.1, "source": "made up"}}
    with pytest.raises(ConfigError, match="calibration: kernels were measured on the device"):
        load_device(written(tmp_path, {"kernels": ["rows.jsonl"], "calibration": calibration}))


def test_a_device_that_is_like_another_has_its_numbers_but_those_it_gives(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("like: h100\nname: Mine\nlaunch_gap: {value: 2 us, source: made up for this test}\n")
    mine, h100 = load_device(str(file)), load_device("h100")
    given = {"name", "title", "launch_gap_s", "efficiency_from", "sources", "kernel_files"}
    for each in dataclasses.fields(mine):
        if each.name not in given:
            assert getattr(mine, each.name) == getattr(h100, each.name), each.name
    assert (mine.title, mine.launch_gap_s) == ("Mine", 2e-6)
    assert [path.resolve() for path in mine.kernel_files] == [path.resolve() for path in h100.kernel_files]


def test_a_device_of_other_rates_than_the_one_it_is_like_has_its_efficiency_and_not_its_kernels(tmp_path):
    """A bandwidth ten times as high once changed nothing: kernels that were measured on the other counted."""
    add = kernel("add", dtype="bf16", elements=2**28)
    gemm = kernel("gemm", dtype="bf16", M=8192, N=8192, K=8192)
    base = load_device("h100")

    def made(text):
        file = tmp_path / "mine.yaml"
        file.write_text(f"like: h100\n{text}\n")
        return load_device(file)

    same = made("memory_bandwidth: {value: 3.35 TB/s, source: its own}")
    faster = made("memory_bandwidth: {value: 33.5 TB/s, source: made up}")
    doubled = made("peak_flops: {bf16: {value: 1979 TFLOP/s, source: made up}}")
    for call in (add, gemm):
        assert kernel_time(same, call).seconds == pytest.approx(kernel_time(base, call).seconds, rel=1e-6)
        assert kernel_time(same, call).source == "roofline"
    assert kernel_time(faster, add).seconds < 0.2 * kernel_time(base, add).seconds
    assert kernel_time(doubled, gemm).seconds < 0.6 * kernel_time(base, gemm).seconds
    assert doubled.peak_flops_per_s.keys() == base.peak_flops_per_s.keys()


def test_a_host_of_ones_own_is_so_many_times_that_of_the_device_that_it_is_like(tmp_path):
    """h200's costs stand in its file, h100's are h200's: neither hides the ratio; backward has one of its own."""
    file = tmp_path / "mine.yaml"
    ratio = "host_ratio: {value: 1.5, source: my machine}\n"
    for like in ("h200", "h100"):
        theirs = load_device(like).host_launch_s
        for more, backward in (("", 1.5), ("host_ratio_backward: {value: 1.2, source: my machine}\n", 1.2)):
            file.write_text(f"like: {like}\n{ratio}{more}", encoding="utf-8")
            own = load_device(file).host_launch_s
            assert own.keys() == theirs.keys()
            for call in ("gemm_forward", "rms_norm_no_grad_alone", "gemm_loop", "start_forward"):
                assert own[call] == pytest.approx(1.5 * theirs[call])
            for call in ("gemm_backward", "start_backward_alone"):
                assert own[call] == pytest.approx(backward * theirs[call])
    again = tmp_path / "again.yaml"
    again.write_text(f"like: {file}\n{ratio}", encoding="utf-8")
    assert load_device(again).host_launch_s["gemm_forward"] == pytest.approx(2.25 * theirs["gemm_forward"])
    file.write_text("like: h200\nhost_ratio_backward: {value: 1.2, source: my machine}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="host_ratio_backward is beside host_ratio; give that, too"):
        load_device(file)


def test_numbers_of_a_spread_are_given_one_by_one(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("like: h100\nspread: {host_slower: {value: 0.5, source: my machine}}\n", encoding="utf-8")
    mine, h100 = load_device(file).spread, load_device("h100").spread
    assert (mine.host_slower, mine.step_slower) == (0.5, h100.step_slower)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("like: h101", "like: unknown device 'h101'"),
        ("like: 3", "like is 3; give the name or file of a device"),
        ("like: {here}", "like leads back to this file"),
    ],
)
def test_a_device_is_like_one_that_there_is(text, message, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(text.format(here=file))
    with pytest.raises(ConfigError, match=message):
        load_device(str(file))
