"""Edits of small recordings by hand: clocks at the power limit, a recomputed forward, and DDP's buckets."""

from collections import Counter

import pytest
from kineto_builder import Rank

from scaleout.cluster.device.spec import load_device
from scaleout.interop.pytorch.load import load_recording
from scaleout.study.edits import edited
from scaleout.study.edits.sizes import ratios_of
from scaleout.study.recording import described

SIDE, MM_US = 8192, 1600


def recorded(folder, device):
    program, facts, _ = load_recording((folder,))
    return described(program, facts, device)


def one_step(folder, other_us):
    """Write a step: a GEMM at the power limit, and an optimizer that is bound by memory."""
    rank = Rank()
    rank.operator("aten::mm", 1, 2, dims=[[SIDE, SIDE], [SIDE, SIDE]], dtypes=["c10::BFloat16"] * 2)
    rank.kernel(20, MM_US, launch=2, name="gemm")
    rank.operator("Optimizer.step#AdamW.step", 4, 10)
    rank.kernel(20 + MM_US, other_us, launch=6, name="adam")
    rank.write(folder)


@pytest.mark.parametrize("other_us", [10, 700, 3000])
def test_a_step_that_draws_less_runs_its_gemm_at_a_higher_clock(tmp_path, other_us):
    """By the equation of docs/models/clocks-and-power.md, solved by bisection."""
    one_step(tmp_path, other_us)
    device = load_device("h200")
    power = device.power
    recording = recorded(tmp_path, device)
    old = recording.program.graphs[0]
    found = edited(recording, {"batch": "0.5x"})
    new = found.program.graphs[0]
    where = old.names.index("gemm")

    def slowdown(rows, seconds):
        joules = power.energy.gemm * 2 * rows * SIDE**2 + power.energy.byte * 2 * (2 * rows + SIDE) * SIDE
        joules += power.other_w * other_us * 1e-6
        return max(1.0, (joules / ((power.limit_w - power.idle_w) * seconds)) ** (1 / (power.exponent - 1)))

    gemm_s = old.duration_s[where]
    before = slowdown(SIDE, gemm_s + other_us * 1e-6)
    isolated_s = gemm_s / before * ratios_of(device, old.kernels, new.kernels)[old.kernel[where]]
    low, high = 1.0, before * 1.5
    for _ in range(60):
        middle = (low + high) / 2
        longer = slowdown(SIDE / 2, isolated_s * middle + other_us * 1e-6) > middle
        low, high = (middle, high) if longer else (low, middle)
    assert new.duration_s[where] == pytest.approx(isolated_s * low, rel=0.005)
    assert new.duration_s[old.names.index("adam")] == pytest.approx(other_us * 1e-6)
    assert any("clocks" in note for note in found.notes) == (before > 1)
    if other_us == 700:
        assert 1 < low < before


def test_a_step_without_a_power_limit_keeps_its_clock(tmp_path):
    one_step(tmp_path, 400)
    for device in (load_device("mi300x"), "no device"):
        found = edited(recorded(tmp_path, device), {"batch": "0.5x"})
        assert not any("clocks" in note for note in found.notes)


@pytest.mark.parametrize(
    ("ending", "again"),
    [(["aten::mm", "aten::add"], ["aten::mm", "aten::silu"]), (["aten::mm", "aten::silu"], None)],
    ids=["a product and an addition", "what saves its input"],
)
def test_a_recomputed_forward_stops_where_backward_has_what_it_needs(tmp_path, ending, again):
    """The last product's factors are saved before it runs, and an addition saves nothing."""
    rank, at = Rank(), 0
    forward, backward = ["aten::mm", "aten::silu", *ending], ["aten::cat", "aten::mm", "aten::mm"]
    passes = [*[("", each) for each in forward * 4], *[("MmBackward0", each) for each in backward * 4]]
    for place, (within, name) in enumerate(passes):
        at = 4 * place
        if within:
            rank.operator(f"autograd::engine::evaluate_function: {within}", at, 3.5)
        rank.operator(name, at + 0.5, 2.5, dims=[[64, 64], [64, 64]])
        rank.kernel(200 + 20 * place, 20, launch=at + 1, name=name)
    rank.operator("Optimizer.step#AdamW.step", at + 5, 10)
    rank.kernel(200 + 20 * len(passes), 20, launch=at + 6, name="adam")
    rank.write(tmp_path)
    recording = recorded(tmp_path, "no device")
    found = edited(recording, {"recompute": "full"})
    more = Counter(found.program.graphs[0].names) - Counter(recording.program.graphs[0].names)
    assert more == Counter((again or forward) * 4)


def test_buckets_are_filled_once_a_step_and_not_by_a_single_rank(tmp_path):
    """DDP divides each gradient into its bucket: whatever the batch, and behind the last micro-batch only."""
    for number in range(2):
        rank = Rank(number, 2)
        rank.operator("aten::mm", 1, 2, dims=[[256, 64], [64, 64]])
        rank.kernel(40, 20, launch=2, name="forward")
        rank.operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 5, 20)
        rank.operator("torch::distributed::reducer::mul_out", 6, 8, dims=[[64, 64]])
        rank.operator("aten::mul", 7, 6, dims=[[64, 64], [], [64, 64]])
        rank.kernel(60, 100, launch=8, name="divide")
        rank.operator("c10d::allreduce_", 15, 3, dims=[[[4096]]])
        rank.collective(160, 30, launch=16, elements=4096)
        rank.operator("Optimizer.step#AdamW.step", 30, 10)
        rank.kernel(190, 20, launch=32, name="adam")
        rank.write(tmp_path)
    recording = recorded(tmp_path, "no device")

    def of(name, edits):
        graph = edited(recording, edits).program.graphs[0]
        return [float(graph.duration_s[node]) * 1e6 for node, each in enumerate(graph.names) if each == name]

    assert of("divide", {"batch": "4x"}) == pytest.approx([100])
    assert of("divide", {"accumulate": "3x"}) == pytest.approx([100])
    assert len(of("forward", {"accumulate": "3x"})) == 3
    assert max(of("divide", {"data": "2->1"})) <= 20  # as any kernel takes
