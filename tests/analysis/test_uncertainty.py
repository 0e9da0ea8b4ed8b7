"""Error bars: shares of the critical path, how they add up, and laws over random steps."""

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scaleout
from scaleout.analysis.uncertainty import (
    CONFIDENCE,
    EDIT,
    MEASURED_EDITS,
    STEP,
    Call,
    Cause,
    Interval,
    Shares,
    critical_chain,
    interval_of,
    replay_interval,
    shares_of,
    spread_of,
)
from scaleout.cluster.device.sections import Spread
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.program.operations import custom, kernel

DEVICES = ("h200", "h100", "a100-80g", "b200", "tpu-v4", "h100-p5")
SOURCES = ("roofline", "interpolated", "measured")
"""Of a kernel's time, from the least to the best known."""
KERNELS = (
    kernel("gemm", dtype="bf16", M=4096, N=4096, K=4096),
    kernel("gemm", dtype="bf16", M=8192, N=4096, K=4096),
    kernel("attention_fwd", dtype="bf16", batch=1, heads=8, seq=2048, head_dim=128, causal=1),
    kernel("rms_norm_fwd", dtype="bf16", tokens=4096, hidden=4096),
)
CALLS = (
    Call("all_reduce", 2**20, 8, "nvlink", True),
    Call("all_gather", 2**20, 16, "infiniband", False),
    Call("all_gather", 2**20, 16, "unheard of", False),
)
TOPOLOGY = load_topology("dgx-h200-16")
parts = st.floats(0, 1, allow_subnormal=False)


@st.composite
def shares(draw):
    """What a step may consist of."""
    weights = draw(st.lists(parts, min_size=9, max_size=9).filter(any))
    weights = [weight / math.fsum(weights) for weight in weights]
    sources = draw(st.lists(st.sampled_from(SOURCES), min_size=4, max_size=4))
    kernels = {(each, source): weight for each, source, weight in zip(KERNELS, sources, weights, strict=False)}
    calls = dict(zip(CALLS, weights[4:], strict=False))
    return Shares(kernels, calls, host=weights[7], given=weights[8])


@given(shares(), st.sampled_from(DEVICES), st.floats(1e-6, 1e6))
def test_an_interval_contains_the_point_and_is_finite(found, name, seconds):
    low_s, high_s = interval_of(found, load_device(name), TOPOLOGY).of(seconds)
    assert 0 < low_s <= seconds <= high_s < math.inf


@given(shares(), st.sampled_from(DEVICES), st.sampled_from(range(4)))
def test_a_kernel_that_is_known_better_never_widens(found, name, number):
    """Transferred, then between measured ones, then measured: whatever the rest of the step is."""
    device = load_device(name)
    keys = list(found.kernels)
    widths = []
    for source in SOURCES:
        changed = {(key[0], source) if at == number else key: found.kernels[key] for at, key in enumerate(keys)}
        bars = interval_of(replace(found, kernels=changed), device, TOPOLOGY)
        widths.append((bars.faster, bars.slower))
    for wider, narrower in itertools.pairwise(widths):
        assert narrower[0] <= wider[0] * (1 + 1e-12)
        assert narrower[1] <= wider[1] * (1 + 1e-12)


@given(shares(), st.sampled_from(DEVICES))
def test_either_side_adds_up_in_quadrature(found, name):
    bars = interval_of(found, load_device(name), TOPOLOGY)
    assert bars.slower**2 == pytest.approx(math.fsum(each.slower**2 for each in bars.causes))
    assert [each.variance for each in bars.causes] == sorted((each.variance for each in bars.causes), reverse=True)


def test_custom_kernels_are_not_called_kernels_of_memory():
    """2 TFLOP that a trace gives, at the roofline: no operation that could be measured."""
    found = Shares({(custom(dtype="bf16", flops=2 * 10**12, bytes=10**6), "roofline"): 0.8}, {}, host=0.2)
    causes = {each.cause: each for each in interval_of(found, load_device("h100"), TOPOLOGY).causes}
    cause = causes["custom kernels of given FLOPs and bytes, at the roofline of h100"]
    assert (cause.share, cause.rows) == (0.8, ())
    assert not any("memory kernels" in each for each in causes)


def test_numbers_by_hand():
    """Half of a step is one GEMM from H200 on A100, a quarter waits for the host, a quarter crosses InfiniBand."""
    device, topology = load_device("a100-80g"), load_topology("h100-pod-64")
    found = Shares({(KERNELS[0], "roofline"): 0.5}, {CALLS[1]: 0.25}, host=0.25)
    spread, links = spread_of(device), dict(topology.library.spread)["infiniband"]
    gemm = math.hypot(0.5 * spread.transferred["gemm"], 0.5 * spread.transferred_each["gemm"])
    software = 0.75 * math.hypot(spread.step_slower, spread.framework)
    slower = (gemm, 0.5 * spread.machine, 0.25 * spread.host_slower, 0.25 * links.slower, software)
    bars = interval_of(found, device, topology)
    assert bars.slower == pytest.approx(math.hypot(*slower), rel=1e-12)
    assert bars.of(2.0)[1] == pytest.approx(2.0 * math.exp(math.hypot(*slower)), rel=1e-12)


def test_a_device_takes_what_it_does_not_state_from_its_reference():
    a100, h200 = spread_of(load_device("a100-80g")), spread_of(load_device("h200"))
    assert a100.transferred["gemm"] < h200.transferred["gemm"]
    assert (a100.machine, a100.transferred["memory"]) == (h200.machine, h200.transferred["memory"])
    assert not spread_of(replace(load_device("h200"), spread=None)).model_fields_set


def test_the_old_name_of_a_hosts_spread_is_read_for_one_release():
    with pytest.warns(FutureWarning, match="key 'host' is now 'host_slower'"):
        found = Spread.model_validate({"host": {"value": 0.5, "source": "a test"}})
    assert (found.host_slower, found.host_faster) == (0.5, None)


@pytest.mark.parametrize("name", ["h200", "h100", "b200", "a100-80g"])
def test_a_kernel_that_is_transferred_is_known_no_better_than_one_that_is_interpolated(name):
    """On which the law above rests."""
    spread = spread_of(load_device(name))
    for kind, each in spread.transferred_each.items():
        assert spread.interpolated[kind] <= math.hypot(each, spread.transferred[kind])


def test_shares_of_a_step_add_up_and_are_deterministic():
    changes = {"layers": 4, "tensor_parallel": 4, "data_parallel": 2}
    found = scaleout.run("llama-3-8b", schedules=["overlap"], changes=changes, host="eager")["overlap"]
    shares = shares_of(found.result, found.topology, critical_chain(found.result))
    total = math.fsum([*shares.kernels.values(), *shares.calls.values(), shares.host, shares.given])
    assert total == pytest.approx(1.0)
    again = scaleout.run("llama-3-8b", schedules=["overlap"], changes=changes, host="eager")["overlap"]
    assert again.interval.summary(1.0) == found.interval.summary(1.0)


def test_a_step_that_the_host_bounds_says_so_and_what_to_measure():
    changes = {"layers": 8, "tensor_parallel": 8, "data_parallel": 1, "sequence": 128}
    found = scaleout.run("llama-3-8b", schedules=["overlap"], changes=changes, host="eager")["overlap"]
    assert found.interval.causes[0].cause == "calls of the host of h200"
    assert found.interval.measurement.rows[0] == {"experiment": "host", "step": "pace"}


@pytest.mark.parametrize(
    ("found", "causes"),
    [
        (Shares({}, {}, given=1.0), set()),
        (Shares({}, {}, host=1.0), {"calls of the host of h200"}),
        (Shares({}, {}, host=0.5, given=0.25), {"calls of the host of h200", STEP}),
    ],
)
def test_software_is_what_the_device_runs_and_no_part_explains(found, causes):
    """A trace's times are given, and work that is not modelled hides where the host holds up a step."""
    bars = interval_of(found, load_device("h200"), TOPOLOGY)
    assert {each.cause for each in bars.causes} == causes
    assert math.fsum(each.share for each in bars.causes) == pytest.approx(1.0 - found.given)


def test_a_replay_errs_as_replays_do_and_its_steps_spread():
    """Steps of 9 and 10 ms lie 0.0745 of their logarithms about their mean, one standard deviation."""
    low_s, high_s = replay_interval(0.0).of(1.0)
    assert (low_s, high_s) == pytest.approx((math.exp(-0.002), math.exp(0.002)))
    low_s, high_s = replay_interval(math.log(10 / 9) / math.sqrt(2)).of(9.5e-3)
    assert (low_s, high_s) == pytest.approx((8.40e-3, 10.74e-3), rel=2e-3)


def test_edits_err_as_those_measured_did_and_others_have_no_error_bars_of_their_own():
    """90% of next errors lie within the k-th smallest of n, k = ceil(0.9 (n + 1)); each job's within the others'."""
    table = (Path(__file__).parents[2] / "figures" / "recordings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| `(.*?)` \| [\d.]+ \| [\d.]+ \| ([-+][\d.]+)% \|$", table, re.MULTILINE)
    errors = {(job, edit): abs(float(percent)) / 100 for job, edit, percent in rows}
    assert {key for _, edit in errors for key in re.findall(r"(\w+)=", edit)} == MEASURED_EDITS

    def within(found):
        return sorted(found)[math.ceil(CONFIDENCE * (len(found) + 1)) - 1]

    assert EDIT.slower == EDIT.faster == pytest.approx(within(list(errors.values())))
    held_out = [
        error <= 1e-9 + within([errors[key] for key in errors if key[0] != job]) for (job, _), error in errors.items()
    ]
    assert sum(held_out) / len(held_out) >= CONFIDENCE
    edited = replay_interval(0.0, ["batch", "layers"])
    assert edited.slower == pytest.approx(math.hypot(0.002, EDIT.slower))
    assert replay_interval(0.0, ["batch", "tensor"]) is None


SIXTEEN = {"layers": 4, "tensor_parallel": 4, "data_parallel": 4}
SHARDED = {"layers": 4, "zero": 3, "tensor_parallel": 1, "data_parallel": 16}
FAULTY = {
    "unknown network": ("dlrm-128", None, "fused", {}),
    "two nodes": ("llama-3-8b", "dgx-h200-2", "overlap", SIXTEEN),
    "sharded": ("llama-3-8b", "dgx-h200-2", "overlap", SHARDED),
    "EFA": ("llama-3-8b", "p5-64-typical", "overlap", SHARDED),
}
SLOWER = [{"slow": {5: factor}} for factor in (1.05, 1.3, 2.0, 4.0)]
FARTHER = [{"bandwidth": {"1": factor}} for factor in ("0.95x", "0.7x", "0.4x")]


@pytest.mark.parametrize("name", FAULTY)
@pytest.mark.parametrize("faults", [SLOWER, FARTHER, "degrade"], ids=["slow", "bandwidth", "degrade"])
def test_a_slower_machine_has_no_lower_end(name, faults):
    """One rank slower, all links or one of them slower, and more so: both ends rise, or stay."""
    workload, topology, schedule, changes = FAULTY[name]
    if faults == "degrade":
        link = "0-1" if topology is None else "1:0-switch"
        faults = [{"degrade": {link: factor}} for factor in (0.9, 0.5, 0.25)]
    before = (0.0, 0.0)
    for fault in ({}, *faults):
        network = {**({} if topology is None else {"nodes": 2}), **fault}
        answer = scaleout.run(
            workload, topology=topology, schedules=[schedule], changes=changes, network_changes=network
        )
        found = answer[schedule]
        ends = found.interval.of(found.makespan_s)
        assert ends[0] <= found.makespan_s <= ends[1]
        assert ends[0] >= before[0] * (1 - 1e-9), fault
        assert ends[1] >= before[1] * (1 - 1e-9), fault
        before = ends


def test_a_straggler_leaves_what_an_unknown_network_may_take():
    """35.3 ms (34 to 72): the collectives' 32.5 ms may take twice as long beside a slow rank's kernels, too."""
    found = scaleout.run("dlrm-128", schedules=["fused"], network_changes={"slow": {5: 1.3}})["fused"]
    bars = found.interval
    assert bars.of(found.makespan_s)[1] == pytest.approx(0.0720, rel=5e-3)
    assert bars.slower == pytest.approx(math.hypot(*(each.slower for each in bars.causes)))
    network = bars.causes[0]
    assert network.cause == "collectives over ring, of which no library knows"
    assert network.share == pytest.approx(0.479, rel=5e-3)  # of the path as it is predicted
    assert network.slower > network.share * 0.75


def test_a_measurement_says_by_how_much_it_would_narrow_the_bars():
    """By hand: of 3 and 4 per cent each way, together 5, the larger that can be measured leaves 3."""
    bars = Interval((Cause("kernels", 0.5, 0.04, 0.04, rows=({},)), Cause("machines", 1.0, 0.03, 0.03)))
    assert bars.measurement.cause == "kernels"
    assert bars.narrowed == pytest.approx(0.4)
