"""Kernels among kernels at the power limit: what docs/models/clocks-and-power.md says of them. No model of ours.

One slowdown s of GEMMs holds for a mix: a call of another kind takes ``s**a`` times as long as at full clock, and
``E s**(1 - n) = room T``, as in the model. Three energies of a FLOP of each GPU are fitted, the powers a are of both.
"""

import json
from bisect import bisect
from pathlib import Path
from statistics import fmean, median

import pytest

from scaleout.cluster.device.spec import load_device

TRACES = Path(__file__).parents[2] / "traces"
LASTS = {  # a: the power of a GEMM's slowdown by which a kernel slows down
    "gemm": 1.0, "fa2": 1.8, "cudnn": 1.8, "add": 0.0, "adam": 0.2, "cross_entropy_fwd": 0.1, "cross_entropy_bwd": 0.1,
    "swiglu_fwd": 0.5, "swiglu_bwd": 0.27, "layer_norm_fwd": 1.15, "layer_norm_bwd": 0.35, "gelu_fwd": 1.15,
    "gelu_bwd": 1.0, "rope_fwd": 1.05, "rope_bwd": 1.05,
}  # fmt: skip
PICOJOULES = {  # of a FLOP
    "h200": {"gemm": 1.145, "cudnn": 1.265, "fa2": 1.88},
    "h100": {"gemm": 1.157, "cudnn": 1.32, "fa2": 1.99},
}
TOO_SHORT = {"add 8000000", "gemm 2048 2048 2048"}  # a call of theirs by itself takes as long as its launch


def kind(name):
    first = name.split()[0]
    return first if first in LASTS else first.rsplit("_", 1)[0]


def work(name):
    """FLOPs, and the fewest bytes, of a GEMM or attention."""
    first, *sizes = name.split()
    if first == "gemm":
        m, n, k = map(int, sizes)
        return 2 * m * n * k, 2 * (m * n + n * k + m * k)
    batch, heads, seq, size = map(int, sizes)
    products, tensors = (5, 8) if first.endswith("bwd") else (2, 4)
    return batch * heads * seq**2 * size * products, 2 * batch * heads * seq * size * tensors


class Mixes:
    """The rows of a device: cycles of kernels, the time of each at full clock, and its energy there."""

    def __init__(self, device):
        rows = [json.loads(line) for line in (TRACES / device / "mixes.jsonl").read_text().splitlines()[1:]]
        self.rows = [row for row in rows if not TOO_SHORT & {name for name, _ in row["mix"]}]
        self.power = load_device(device).power
        names = {name for row in self.rows for name, _ in row["mix"]}
        self.full = {
            name: median(row["full_clock_us"][name] for row in self.rows if name in row["full_clock_us"])
            for name in names
        }
        watts = {row["mix"][0][0]: row["watts"] for row in self.rows if len(row["mix"]) == 1}
        self.microjoules = {}
        for name in names:
            if kind(name) in PICOJOULES[device]:
                flops, size_bytes = work(name)
                joules = 1e-12 * PICOJOULES[device][kind(name)] * flops + self.power.energy.byte * size_bytes
                self.microjoules[name] = 1e6 * joules
            else:
                self.microjoules[name] = (watts[name] - self.power.idle_w) * self.full[name]

    def predicted_us(self, mix):
        """Return what a call of each kernel takes at the slowdown that the limit asks for."""
        power, energy = self.power, sum(count * self.microjoules[name] for name, count in mix)

        def each(slowdown):
            return [self.full[name] * slowdown ** LASTS[kind(name)] for name, _ in mix]

        def room(step):
            cycle_us = sum(count * us for (_, count), us in zip(mix, each(1 + step / 1e4), strict=True))
            return (power.limit_w - power.idle_w) * cycle_us * (1 + step / 1e4) ** (power.exponent - 1)

        return each(1 + bisect(range(10_000), energy, key=room) / 1e4)

    def errors(self):
        """Return of each row what its cycle took in milliseconds, and by how much that is missed."""
        found = []
        for row in self.rows:
            took_us = sum(count * us for (_, count), us in zip(row["mix"], row["us"], strict=True))
            cycle_us = sum(count * us for (_, count), us in zip(row["mix"], self.predicted_us(row["mix"]), strict=True))
            found.append((took_us / 1e3, len(row["mix"]), cycle_us / took_us - 1))
        return found


@pytest.fixture(scope="module", params=["h200", "h100"])
def mixes(request):
    return Mixes(request.param)


def test_one_slowdown_holds_for_all_kernels_of_a_mix(mixes):
    errors = mixes.errors()
    short = [abs(error) for ms, kinds, error in errors if ms < 130 and kinds > 1]
    assert len(short) >= 15
    assert fmean(short) < 0.009
    assert max(short) < 0.03
    assert fmean(abs(error) for ms, kinds, error in errors if kinds == 1) < 0.013
    assert max(abs(error) for ms, _, error in errors if ms >= 130) < 0.021


def test_what_a_clock_costs_differs(mixes):
    """Among GEMMs, at some three quarters of the clock: attention most, what memory bounds next to nothing."""
    row = next(row for row in mixes.rows if len(row["mix"]) > 20)
    slower = {}
    for (name, _), us in zip(row["mix"], row["us"], strict=True):
        slower.setdefault(kind(name), []).append(us / mixes.full[name])
    gemm = fmean(slower["gemm"])
    assert 1.10 < gemm < 1.17
    assert all(fmean(slower[name]) < 1 + 0.5 * (gemm - 1) for name in ("adam", "cross_entropy_fwd", "swiglu_bwd"))
    assert all(gemm - 0.05 < fmean(slower[name]) < gemm + 0.05 for name in ("layer_norm_fwd", "rope_fwd", "rope_bwd"))
    attention = [
        us / mixes.full[name]
        for row in mixes.rows
        if len(row["mix"]) > 1 and row["mix"][0][0] == "gemm 8192 8192 8192" and row["mix"][0][1] == 4
        for (name, _), us in zip(row["mix"], row["us"], strict=True)
        if kind(name) in ("cudnn", "fa2")
    ]
    assert len(attention) == 4
    assert all(1.15 < each < 1.29 for each in attention)


PAIR = [json.loads(line) for line in (TRACES / "h100-pair" / "collective-power.jsonl").read_text().splitlines()[1:]]


def found(**facts):
    return next(row for row in PAIR if all(row.get(key) == value for key, value in facts.items()))


def test_links_that_are_awake_draw():
    """One all-reduce of 512 bytes every 3 ms keeps them so."""
    asleep, awake = (found(row="alone", additions=8, collective=kind) for kind in (None, "all_reduce"))
    drawn = fmean(awake["watts"]) - fmean(asleep["watts"])
    assert drawn == pytest.approx(27.3, abs=0.1)
    lines = (TRACES / "h200-pair" / "chips.jsonl").read_text().splitlines()[1:]
    rows = [row for row in map(json.loads, lines) if row["kernel"].startswith("add")]
    asleep, awake = ([row["watts"] for row in rows if ("all_reduce" in row) == kept] for kept in (False, True))
    assert len(asleep) == len(awake) == 8
    assert fmean(awake) - fmean(asleep) == pytest.approx(23.6, abs=0.1)


def test_gpus_that_are_built_alike_differ():
    """A GEMM of 8192 cubed at the limit, in microseconds, on three H100 and three H200."""
    name = "gemm 8192 8192 8192"
    alone = {
        device: next(row["us"][0] for row in Mixes(device).rows if row["mix"] == [[name, 8]]) for device in PICOJOULES
    }
    pairs = [found(machine=machine, row="cycle", gemms=4, collective=None, additions=None) for machine in (1, 2)]
    assert [alone["h100"], *(row["us"][0] for row in pairs)] == [1579.1, 1562.7, 1632.5]
    rows = [json.loads(line) for line in (TRACES / "h200-pair" / "chips.jsonl").read_text().splitlines()[1:]]
    each = [median(row["us"] for row in rows if row["kernel"] == name and row["gpu"] == gpu) for gpu in (0, 1)]
    assert [alone["h200"], *each] == pytest.approx([1637.3, 1650.3, 1643.2], abs=0.1)


@pytest.mark.parametrize(("kind", "random", "zeros"), [
    ("all_reduce", 0.71, 0.53), ("all_gather", 0.86, 0.66), ("reduce_scatter", 0.91, 0.69), ("all_to_all", 0.92, 0.70),
])  # fmt: skip
def test_what_a_sent_byte_costs_depends_on_the_data(kind, random, zeros):
    """In nJ, beyond idle, with 256 MiB over two GPUs."""
    for data, told in (("random", random), ("zeros", zeros)):
        row = found(machine=1, row="alone", collective=kind, mib=256, data=data)
        sent = 256 * 2**20 * {"all_reduce": 1.0}.get(kind, 0.5)
        assert 1e3 * (fmean(row["watts"]) - 110) * row["us"][0] / sent == pytest.approx(told, abs=0.006)


def test_collectives_follow_the_clock():
    """Behind GEMMs at the limit and a small all-reduce, which waits for the other GPU; at 1.5 to 1.65 GHz."""
    told = {"all_reduce": 1.06, "all_gather": 1.07, "reduce_scatter": 1.03, "all_to_all": 1.12}
    for kind, slower in told.items():
        alone = found(machine=1, row="alone", collective=kind, mib=256, data="random")
        behind = found(row="after a tiny one", collective=kind, mib=256)
        assert behind["us"][2] / alone["us"][0] == pytest.approx(slower, abs=0.006)


def test_what_operands_hold_counts():
    """Of a GEMM, and of layers of three sizes, by what enters: times over and over beside those of normal numbers."""
    lines = (TRACES / "h200" / "operands.jsonl").read_text().splitlines()[1:]
    rows = [json.loads(line) for line in lines]
    gemms = {row["operands"]: row["us"] for row in rows if "kernel" in row}
    for operands, told in (("ones", 0.85), ("zeros", 0.85), ("equal rows", 0.88)):
        assert gemms[operands] / gemms["normal"] == pytest.approx(told, abs=0.006)
    layers = {
        tuple(row[key] for key in ("hidden", "batch", "inputs", "weights", "gradients")): row["us"]
        for row in rows if "layers" in row
    }  # fmt: skip
    for changed, least, most in (
        (("normal", "uniform", "ones"), 0.974, 0.983), (("normal", "uniform", "zeros"), 0.848, 0.860),
        (("equal rows", "uniform", "normal"), 0.932, 0.972),
    ):  # fmt: skip
        ratios = [
            layers[(*size, *changed)] / layers[(*size, "normal", "uniform", "normal")]
            for size in ((4096, 1), (4096, 4), (8192, 1))
        ]
        assert [min(ratios), max(ratios)] == pytest.approx([least, most], abs=6e-4)


PARTS = {  # of a kernel's name in a profile: what it is
    "nvjet": "gemm", "sdpa": "attention", "layer_norm_kernel": "norm forward", "layer_norm_grad": "norm backward",
    "GammaBeta": "norm backward", "GeluBackward": "activation backward", "GeluCUDA": "activation forward",
    "functor_add": "addition",
}  # fmt: skip
FOLLOWS = {  # as LASTS; copies by heads, and all that is left: as a GEMM
    "gemm": 1.0, "attention": 1.8, "norm forward": 1.15, "norm backward": 0.35, "activation forward": 1.15,
    "activation backward": 1.0, "addition": 0.0, "copy": 1.0,
}  # fmt: skip
FACTS = [json.loads(line) for line in (TRACES / "h200" / "layer-energies.jsonl").read_text().splitlines()[1:]]


class Layers:
    """Layers of a hidden size: their kernels, each by itself on what it has among them, and all together."""

    power = load_device("h200").power
    room_w = power.limit_w - power.idle_w

    def __init__(self, hidden):
        self.rows = [row for row in FACTS if row.get("hidden") == hidden and row["kind"] == "gpt"]
        own = [row for row in self.of(weights="uniform", operands="layer") if "kernel" in row]
        self.paused = {row["kernel"]: row for row in own if row["at"] == "full clock, with pauses"}
        self.limited = {row["kernel"]: row for row in own if row["at"] == "over and over"}
        (self.stack,) = self.of(weights="uniform", stack="over and over")
        calls, sums = self.stack["layers"], {}
        for name, (_, full_us, _) in self.of(weights="uniform", stack="profile")[0]["profile"].items():
            part = next((part for key, part in PARTS.items() if key in name), "copy")
            sums[part] = sums.get(part, 0.0) + full_us
        self.parts = [(row["full_clock_us"] * calls, FOLLOWS[kind_of(name)]) for name, row in self.paused.items()]
        self.parts += [(us, FOLLOWS[part]) for part, us in sums.items() if part not in ("gemm", "attention")]
        others_j = sum(
            1e-6 * us * (row["watts"] - self.power.idle_w) * row["us"] / row["full_clock_us"]
            for part, us in sums.items()
            if (row := self.limited.get(part)) and part not in ("gemm", "attention")
        )
        self.joules = others_j + calls * sum(self.of_slowdown(name) for name in self.paused)
        self.drawn_j = others_j + calls * sum(self.drawn(row) for row in self.paused.values())

    def of(self, **facts):
        return [row for row in self.rows if all(row.get(key) == value for key, value in facts.items())]

    def drawn(self, row):
        """Joules of a call, beyond idle, of what is drawn with pauses."""
        return 1e-6 * (row["watts"] - self.power.idle_w) * row["period_us"] / row["calls"]

    def of_slowdown(self, name):
        """Joules of a call at full clock, as much as slow it down so by itself."""
        full_us, follows = self.paused[name]["full_clock_us"], FOLLOWS[kind_of(name)]
        slowdown = (self.limited[name]["us"] / full_us) ** (1 / follows)
        return 1e-6 * self.room_w * full_us * slowdown ** (self.power.exponent - 1 + follows)

    def slower(self, joules, exponent, pause_us=0.0):
        """How many times as long all takes at the limit, by the model's equation."""

        def took_us(step):
            return sum(us * (1 + step / 1e4) ** follows for us, follows in self.parts)

        def room(step):
            return 1e-6 * self.room_w * (took_us(step) + pause_us) * (1 + step / 1e4) ** (exponent - 1)

        return took_us(bisect(range(10_000), joules, key=room)) / took_us(0)


def kind_of(name):
    return "attention" if name.startswith("attention") else "gemm"


@pytest.fixture(scope="module", params=[2048, 4096, 8192])
def layers(request):
    return Layers(request.param)


def test_kernels_by_themselves_say_how_much_layers_slow_down(layers):
    """By the model's equation, with its exponent and room, and nothing fitted."""
    measured = layers.stack["us"] / layers.stack["full_clock_us"]
    assert 1.13 < measured < 1.165
    assert layers.slower(layers.joules, layers.power.exponent) == pytest.approx(measured, rel=0.005)
    assert layers.slower(layers.drawn_j, 2.4) == pytest.approx(measured, rel=0.003)  # what they draw with pauses
    assert layers.slower(1.1 * layers.drawn_j, layers.power.exponent) > 1.025 * measured  # as cycles' energies are


def test_layers_draw_what_their_kernels_do(layers):
    (paused,) = layers.of(stack="pauses", share=0.6)
    assert layers.drawn_j == pytest.approx(layers.drawn(paused), rel=0.02)
    gemms = [row for name, row in layers.paused.items() if kind_of(name) == "gemm"]
    flops = bytes_moved = 0
    for m, k, n in (row["sizes"] for row in gemms):
        flops += 2 * m * n * k
        bytes_moved += 2 * (m * n + n * k + m * k)
    of_flops_j = sum(layers.drawn(row) for row in gemms) - layers.power.energy.byte * bytes_moved
    assert of_flops_j / flops == pytest.approx(layers.power.energy.gemm, rel=0.015)


def test_a_layers_own_operands_draw_as_normal_numbers_do():
    layers = Layers(4096)
    normal = [row for row in layers.of(operands="normal") if "kernel" in row]
    assert len(normal) == 6
    own = [layers.paused[row["kernel"]] for row in normal]
    for key in ("full_clock_us", "us"):
        assert all(a[key] == pytest.approx(b[key], rel=0.035) for a, b in zip(own, normal, strict=True))
    assert sum(map(layers.drawn, own)) == pytest.approx(sum(map(layers.drawn, normal)), rel=0.01)
    wide = layers.of(weights="std 0.02", stack="over and over")[0]
    slower = [row["us"] / row["full_clock_us"] for row in (wide, layers.stack)]
    assert slower[0] == pytest.approx(slower[1], abs=0.002)


def test_short_pauses_count_and_long_ones_do_not(layers):
    for share, most in ((0.05, 0.01), (0.15, 0.01)):
        (row,) = layers.of(stack="pauses", share=share)
        slower = row["us"] / layers.stack["full_clock_us"]
        found = layers.slower(layers.joules, layers.power.exponent, row["period_us"] - row["us"])
        assert found == pytest.approx(slower, rel=most)
    (row,) = layers.of(stack="pauses", share=0.3)
    assert row["us"] / layers.stack["full_clock_us"] == pytest.approx(1.019, abs=0.003)
    (row,) = layers.of(stack="steps, then a pause", steps=8)
    assert layers.slower(layers.joules, layers.power.exponent, row["period_us"] / 8 - row["us"]) < 1.003
    assert fmean(row["each_us"]) / layers.stack["full_clock_us"] > 1.07
    assert max(row["each_us"][:2]) < 1.04 * layers.stack["full_clock_us"] < 0.96 * min(row["each_us"][4:])


def test_full_clock_lasts_some_fifty_milliseconds(layers):
    """So what takes longer, behind a rest, is not at full clock to its end."""
    (row,) = [row for row in layers.of(stack="from rest") if "cold_start_us" in row]
    times = row["cold_start_us"]
    began = [sum(times[:step]) / 1e3 for step in range(len(times))]
    early = [us for ms, us in zip(began, times, strict=True) if ms + us / 1e3 < 50]
    late = [us for ms, us in zip(began, times, strict=True) if 80 < ms < 150]
    assert max(early) < 1.06 * min(times)
    assert fmean(late) > 1.07 * min(times)


def test_clocks_swing_by_the_second():
    """The mean of layers over and over is above their median, and above what the first 0.8 s say."""
    (row,) = [row for row in Layers(4096).of(stack="from rest") if "from_rest" in row]
    each_100ms = row["from_rest"]["us"]
    steady = each_100ms[20:60]
    assert fmean(steady) / fmean(each_100ms[3:8]) == pytest.approx(1.030, abs=0.002)
    assert fmean(steady) / median(steady) == pytest.approx(1.007, abs=0.002)
    assert max(steady) / min(steady) > 1.06


def test_gemms_of_ones_are_slowed_down_far_below_the_limit():
    """What the governor holds is not the power that is read alone: NVML names the power cap (4) at 438 W."""
    row = next(row for row in FACTS if row.get("operands") == "ones" and row["at"] == "over and over")
    assert row["reasons"] == {"0x4": 1.0}
    assert row["watts"] < 440
    assert row["us"] / row["full_clock_us"] == pytest.approx(1.149, abs=0.001)
