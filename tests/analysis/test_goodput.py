"""Goodput against a simulation of failures, its own optimum, and what Llama 3 says of 16,384 H100."""

import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.analysis.goodput import (
    Disturbance,
    best_interval_s,
    expected_interval_s,
    failures_per_s,
    goodput,
    sampled_steps,
)
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import ConfigError


def simulated_interval_s(interval_s, between_s, checkpoint_s, restart_s, *, tries):
    """Mean time of an interval, failure by failure: what Daly's formula is the expectation of."""
    random = np.random.default_rng(1)
    total = 0.0
    for _ in range(tries):
        while (until := random.exponential(between_s)) < interval_s + checkpoint_s:
            total += until
            while (until := random.exponential(between_s)) < restart_s:
                total += until
            total += restart_s
        total += interval_s + checkpoint_s
    return total / tries


@pytest.mark.parametrize(
    ("interval_s", "between_s", "checkpoint_s", "restart_s"), [(300, 1000, 20, 60), (50, 80, 5, 30)]
)
def test_the_expected_interval_is_that_of_a_simulation(interval_s, between_s, checkpoint_s, restart_s):
    found = expected_interval_s(interval_s, between_s, checkpoint_s=checkpoint_s, restart_s=restart_s)
    assert found == pytest.approx(
        simulated_interval_s(interval_s, between_s, checkpoint_s, restart_s, tries=40_000), rel=0.02
    )


@given(st.floats(10, 1e7), st.floats(1e-3, 1e3), st.floats(0, 1e3))
def test_no_interval_is_better_than_the_best(between_s, checkpoint_s, restart_s):
    if (checkpoint_s + restart_s) / between_s > 100:
        return
    best = best_interval_s(between_s, checkpoint_s)

    def cost(interval_s):
        return expected_interval_s(interval_s, between_s, checkpoint_s=checkpoint_s, restart_s=restart_s) / interval_s

    for other in (0.5 * best, 0.9 * best, 1.1 * best, 2 * best):
        assert cost(best) <= cost(other) * (1 + 1e-9)
    if checkpoint_s < between_s / 1e4:
        assert best == pytest.approx(math.sqrt(2 * checkpoint_s * between_s), rel=0.02)  # Young, CACM 1974


def test_llama_3_fails_as_often_as_its_paper_says():
    """419 times in 54 days; "higher than 90% effective training time", here with checkpoints of 10 s."""
    topology = load_topology("switch(8,nvlink4) x switch(2048,ndr)")
    rate = failures_per_s(topology, load_device("h100"))
    assert rate * 54 * 86400 == pytest.approx(419, rel=0.01)
    found = goodput(1.0, compute_s=0.7, ranks=16384, disturbance=Disturbance(rate, checkpoint_s=10.0))
    assert 0.90 < found.goodput < 0.92
    assert found.goodput + found.checkpoint_share + found.failure_share == pytest.approx(1)


def test_the_slowest_rank_by_drawing_every_rank():
    disturbance = Disturbance(0.0, 0.0, jitter=0.05, stragglers=0.25, straggler_slowdown=1.2, samples=4000)
    found = sampled_steps(2.0, compute_s=1.5, ranks=16, disturbance=disturbance)
    random = np.random.default_rng(5)
    sigma = math.sqrt(math.log1p(0.05**2))
    factors = random.lognormal(-(sigma**2) / 2, sigma, (40_000, 16)) * np.where(
        random.random((40_000, 16)) < 0.25, 1.2, 1.0
    )
    drawn = 2.0 + 1.5 * (factors.max(axis=1) - 1)
    for quantile in (0.05, 0.5, 0.95):
        assert np.quantile(found, quantile) == pytest.approx(np.quantile(drawn, quantile), rel=0.01)


@given(st.integers(1, 2**20), st.floats(0, 0.2), st.floats(0, 1), st.floats(1, 3), st.integers(0, 100))
def test_disturbance_only_slows(ranks, jitter, share, slowdown, seed):
    """Beyond one rank's own jitter, whose mean is none; and the same seed gives the same."""
    one = Disturbance(1e-5, 10.0, 60.0, None, jitter, share, slowdown, seed, samples=50)
    found = goodput(1.0, compute_s=0.5, ranks=ranks, disturbance=one)
    assert found == goodput(1.0, compute_s=0.5, ranks=ranks, disturbance=one)
    assert 0 < found.goodput < 1
    assert found.step_median_s <= found.step_p95_s
    if ranks > 100:
        assert found.step_mean_s >= 1.0 - 1e-12


def test_nothing_fails():
    found = goodput(1.0, compute_s=0.5, ranks=8, disturbance=Disturbance(0.0, 10.0))
    assert (found.goodput, found.speed, found.training_s(100)) == (1.0, 1.0, 100.0)
    assert found.summary()["interval_s"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"checkpoint_s": 0.0}, "checkpoints take no time"),
        ({"interval_s": 0.0}, "the interval of checkpoints is 0.0 s; give more than zero"),
        ({"stragglers": 2.0}, "give a share of the ranks from 0 to 1"),
        ({"straggler_slowdown": 0.5}, "from 1 to"),
        ({"straggler_slowdown": 1e306}, "from 1 to"),
        ({"jitter": math.nan}, "jitter is nan; give zero or more"),
        ({"failures_per_s": 100.0, "interval_s": 1e6}, "never finishes an interval of 1,000,000 s"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        goodput(
            1.0,
            compute_s=0.5,
            ranks=8,
            disturbance=Disturbance(**{"failures_per_s": 1e-4, "checkpoint_s": 1.0} | arguments),
        )


JOB = ("goodput", "llama-3-8b", "--set", "tensor_parallel=8", "--set", "data_parallel=16", "--topology", "dgx-h200-16")


def test_nothing_fails_and_nothing_is_trained(scaleout):
    assert "no checkpoints" in scaleout(*JOB, "--tokens", "15T", "--checkpoint", "10s", "--failures", "0/year")[1]
    error = scaleout(*JOB, "--tokens", "0", "--checkpoint", "10s")[2]
    assert error == "error: --tokens 0 trains on nothing; give more than zero\n"


def test_so_long_trains_the_tokens_that_take_so_long(scaleout):
    more = ("--checkpoint", "10s", "--json")
    lasts = json.loads(scaleout(*JOB, "--duration", "30day", *more)[1])
    trains = json.loads(scaleout(*JOB, "--tokens", f"{lasts['tokens']:.0f}", *more)[1])
    assert lasts["training_s"] == pytest.approx(30 * 86400)
    assert trains["training_s"] == pytest.approx(30 * 86400)


def test_the_training_without_the_changes_stands_beside_it(scaleout):
    job, more = (*JOB, "--tokens", "1e12", "--checkpoint", "10s"), ("--slow", "5=1.2", "--bandwidth", "nvlink=0.5x")
    assert "unchanged" not in scaleout(*job)[1]
    changed = scaleout(*job, *more)[1]
    before, after = (json.loads(scaleout(*job, *each, "--json")[1])["training_s"] for each in ((), more))
    days, percent = re.findall(r"unchanged +([\d.]+) days [^;]*; ([\d.]+)% longer", changed.replace("│\n│", ""))[0]
    assert float(days) == pytest.approx(before / 86400, rel=5e-3)
    assert float(percent) == pytest.approx(100 * (after / before - 1), abs=0.06)


def test_shares_of_the_time_add_up():
    found = goodput(1.0, compute_s=0.8, ranks=64, disturbance=Disturbance(1e-5, 10.0, jitter=0.03))
    assert found.waiting_share > 0.02
    assert found.speed + found.waiting_share + found.checkpoint_share + found.failure_share == pytest.approx(1)


def test_the_command(scaleout):
    code, out, _ = scaleout(*JOB, "--tokens", "15T", "--checkpoint", "10s", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["disturbance"]["jitter"] == 0.028
    assert found["training_s"] == pytest.approx(found["num_steps"] * found["step_mean_s"] / found["goodput"])
    assert found["step_median_s"] > found["makespan_s"]
    code, out, _ = scaleout(*JOB, "--tokens", "15T", "--checkpoint", "10s", "--jitter", "0")
    assert code == 0
    assert "days for 15T tokens" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tokens", "15", "--checkpoint", "10s"), "'15' has no unit, and is to be a number of tokens"),
        (("--checkpoint", "10s"), "give either --tokens, such as 15T, or --duration, such as 30day"),
        (("--tokens", "1T", "--duration", "1h", "--checkpoint", "10s"), "give either --tokens"),
        (("--duration", "1ms", "--checkpoint", "10s"), "--duration: that is less than one step of"),
        (("--tokens", "15T", "--checkpoint", "10"), "'10' has no unit, and is to be a time"),
        (
            ("--tokens", "15T", "--checkpoint", "1s", "--device", "b200"),
            "device 'b200' has no 'reliability' in its file",
        ),
        (
            ("--tokens", "15T", "--checkpoint", "1s", "--failures", "3"),
            "'3' has no unit, and is to be a rate of failures",
        ),
        (("--tokens", "15T", "--checkpoint", "1s", "--stragglers", "x=2"), "--stragglers: give one share and factor"),
    ],
)
def test_what_the_command_refuses(scaleout, options, message):
    code, _, error = scaleout(*JOB, *options)
    assert code == 2
    assert message in error


@pytest.mark.parametrize(("zero", "words"), [(0, "does not fit: 158 GiB of 140 GiB"), (3, "fits: ")])
def test_the_answer_says_whether_the_job_fits(scaleout, zero, words):
    """A job that does not fit had days of training, without a word."""
    sizes = ["--set", "tensor_parallel=1", "--set", "data_parallel=2", "--set", f"zero={zero}", "--set", "layers=32"]
    job = ["llama-3-8b", *sizes, "--topology", "ring(2,nvlink4)", "--tokens", "1T", "--checkpoint", "10s"]
    code, out, err = scaleout("goodput", *job)
    assert (code, err) == (0, "")
    assert words in out
    assert ("if it fitted" in out) == (zero == 0)
    found = json.loads(scaleout("goodput", *job, "--json")[1])["memory"]
    assert found["fits"] == (zero == 3)
    assert found["peak_memory_bytes"] == sum(found["memory_by_kind_bytes"].values())


def test_energy_of_a_training_has_what_waiting_draws(scaleout):
    """By hand: a mean step draws what a step does, and in what it lasts longer idle devices, nodes and network."""
    job = ("llama-3-8b", "--set", "layers=2", "--set", "tensor_parallel=8", "--set", "data_parallel=2", "--topology",
           "dgx-h200-2", "--schedule", "baseline", "--json")  # fmt: skip
    step = json.loads(scaleout("run", *job)[1])["results"][0]
    found = json.loads(scaleout("goodput", *job, "--tokens", "1B", "--checkpoint", "10s")[1])
    energy, step_s, idle_w = step["energy"], step["makespan_s"], 113
    waiting_w = 16 * idle_w + (energy["node_joules"] + energy["network_joules"]) / step_s
    mean_j = energy["joules"] + (found["step_mean_s"] - step_s) * waiting_w
    assert found["step_mean_s"] > step_s
    assert found["training_joules"] == pytest.approx(found["num_steps"] * mean_j / found["goodput"], rel=1e-12)
