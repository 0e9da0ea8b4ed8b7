"""Kernels among kernels on an H100: what docs/models/clocks-and-power.md says of them, from the rows. No model of ours.

One clock c, as a share of the greatest, holds for all: a call takes ``t c**-e``, and draws ``P c**m`` beyond idle, such
that a cycle draws what there is room for. Of what reaches the limit by itself the clock there follows from its times.
"""

import json
from bisect import bisect
from pathlib import Path
from statistics import fmean, median

import pytest

ROWS = Path(__file__).parents[2] / "traces" / "h100" / "mixes.jsonl"
TIME = {"gemm": 0.5, "cudnn": 1.0, "fa2": 1.3, "add": 0.0}
POWER = {"gemm": 1.2, "cudnn": 2.2, "fa2": 1.6}
ROOM_W, IDLE_W = 590.0, 110.0  # of traces/h100/device.yaml


def kind(name):
    return name.replace("_", " ").split()[0]


@pytest.fixture(scope="module")
def mixes():
    """Rows of single kernels, by name; of mixes; and the time of each kernel at full clock."""
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()[1:]]
    names = {name for row in rows for name in row["full_clock_us"]}
    full = {name: median(row["full_clock_us"][name] for row in rows if name in row["full_clock_us"]) for name in names}
    alone = {row["mix"][0][0]: row for row in rows if len(row["mix"]) == 1}
    return alone, [row for row in rows if len(row["mix"]) > 1], full


def cycle_us(mix, alone, full):
    """Return how long a cycle of a mix takes at the clock that the limit leaves it."""

    def power_w(name, clock):
        if kind(name) == "add":
            return alone[name]["watts"] - IDLE_W
        limit = (full[name] / alone[name]["us"][0]) ** (1 / TIME[kind(name)])
        return ROOM_W * (clock / limit) ** POWER[kind(name)]

    def times(clock):
        return [(name, count * full[name] * clock ** -TIME[kind(name)]) for name, count in mix]

    def over_w(clock):
        each = times(clock)
        return sum(us * power_w(name, clock) for name, us in each) / sum(us for _, us in each) - ROOM_W

    steps = 100_000  # of the clock; the last at which there is room, however slow
    clock = bisect(range(steps + 1), 0.0, lo=steps // 4, key=lambda step: over_w(step / steps)) - 1
    return sum(us for _, us in times(clock / steps))


def test_one_clock_holds_for_all_kernels_of_a_mix(mixes):
    alone, mixed, full = mixes
    short, long = [], []
    for row in mixed:
        took_us = sum(count * us for (_, count), us in zip(row["mix"], row["us"], strict=True))
        error = cycle_us(row["mix"], alone, full) / took_us - 1
        (short if took_us < 120e3 else long).append(abs(error))
    assert (len(short), len(long)) == (9, 5)
    assert fmean(short) < 0.005
    assert max(long) < 0.026


def test_what_a_clock_costs_differs(mixes):
    """Additions nothing; among GEMMs attention takes more of it than alone at the limit, and GEMMs less."""
    alone, mixed, full = mixes
    among = {name: [] for name in TIME}
    for row in mixed:
        took_us = sum(count * us for (_, count), us in zip(row["mix"], row["us"], strict=True))
        if took_us < 120e3 and any(kind(name) == "gemm" for name, _ in row["mix"]):
            for (name, _), us in zip(row["mix"], row["us"], strict=True):
                among[kind(name)].append(us / full[name])
    by_itself = {name: [] for name in TIME}
    for name, row in alone.items():
        by_itself[kind(name)].append(row["us"][0] / full[name])
    told = {"gemm": (1.01, 1.12, 1.14, 1.17), "cudnn": (1.17, 1.22, 1.11, 1.17), "fa2": (1.17, 1.31, 1.02, 1.02)}
    told["add"] = (0.99, 1.00, 1.00, 1.00)
    found = {name: (min(each), max(each), min(by_itself[name]), max(by_itself[name])) for name, each in among.items()}
    assert {name: tuple(round(each, 2) for each in row) for name, row in found.items()} == told
