"""Sizes that no model had seen: two H200, predictions written down before the runs, and what is predicted now."""

import json
from dataclasses import replace
from functools import cache
from statistics import fmean, median

import pytest

from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import load_topology
from scaleout.program.operations import kernel
from scaleout.validation.measured.compare import Compared, choices, compare_files
from scaleout.validation.measured.rows import read_rows
from scaleout.validation.measured.steps import chunked

DEVICE = load_device("h200")
FOLDER = DEVICE.kernel_files[0].parents[1] / "h200-pair-unseen"
PAIR = FOLDER.parent / "h200-pair"
SAME = ("name", "hidden", "layers", "seq", "batch", "mode", "bucket_mb", "M", "N", "K", "collective", "chunks")
"""What tells rows of steps apart."""


def identity(row):
    return tuple(row.get(key) for key in SAME)


@cache
def rows(path):
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {identity(row): row for row in lines if "step_us" in row or "predicted_us" in row}


def errors(found, measured):
    """Errors of rows of `predicted.jsonl` that were measured, and those rows."""
    pairs = [(found[key]["predicted_us"] / row["step_us"] - 1, row) for key, row in measured.items()]
    return [error for error, _ in pairs], [row for _, row in pairs]


def is_long(row):
    """Whether a step's kernels, and not its host, say how long it takes: GEMMs above 0.8 ms, and wide layers."""
    return row["M"] * row["N"] * row["K"] > 2**38 if "M" in row else row["hidden"] >= 3072 or row["batch"] == 8


def test_no_row_had_been_measured_before():
    known = rows(PAIR / "steps.jsonl").keys()
    assert known.isdisjoint(rows(FOLDER / "steps.jsonl"))
    assert known >= rows(FOLDER / "controls.jsonl").keys()


def test_what_was_predicted_before_it_was_measured():
    """The numbers of docs/accuracy.md: where the host decides they were missed, for it was slower by half there."""
    every, measured = errors(rows(FOLDER / "predicted.jsonl"), rows(FOLDER / "steps.jsonl"))
    assert len(every) == 160 + 31

    def error(kind, long):
        return fmean(abs(e) for e, row in zip(every, measured, strict=True)
                     if kind in row and is_long(row) == long)  # fmt: skip

    assert error("M", long=True) == pytest.approx(0.066, abs=0.001)
    assert error("M", long=False) == pytest.approx(0.250, abs=0.001)
    assert error("hidden", long=True) == pytest.approx(0.044, abs=0.001)
    assert error("hidden", long=False) == pytest.approx(0.157, abs=0.001)


def test_long_rows_are_the_same_on_other_machines_and_short_ones_are_not():
    before = rows(PAIR / "steps.jsonl")
    longer = {True: [], False: []}
    for key, row in rows(FOLDER / "controls.jsonl").items():
        if "M" in row:
            longer[is_long(row)].append(row["step_us"] / before[key]["step_us"] - 1)
    assert max(map(abs, longer[True])) < 0.04
    assert median(longer[False]) > 0.3


def test_long_rows_are_met(tmp_path):
    long = [row for row in rows(FOLDER / "steps.jsonl").values() if is_long(row)]
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in long), encoding="utf-8")
    found = compare_files([tmp_path / "steps.jsonl"], device="h200", topology=str(PAIR / "machine.yaml")).families
    assert (found["chunked overlap"].num_rows, found["data parallel"].num_rows) == (40, 19)
    assert found["chunked overlap"].mean_absolute_error < 0.07
    assert found["data parallel"].mean_absolute_error < 0.04


def test_parts_of_gemms_in_chunks_are_met():
    for name, limit in (("kernels", 0.08), ("collectives", 0.06)):
        found = compare_files([FOLDER / f"{name}.jsonl"]).accuracy
        assert found.coverage == 1
        assert found.mean_absolute_error < limit


@cache
def ahead():
    """Rows of GEMMs in chunks whose calls were all issued before the first ran, by a host that costs nothing."""
    host = dict.fromkeys(DEVICE.host_launch_s, 1e-9)
    machine = Machine(replace(DEVICE, host_launch_s=host), load_topology(str(PAIR / "machine.yaml")))
    cases = [(row, chunked(row, machine)) for row in read_rows(FOLDER / "ahead.jsonl")]
    return [
        Compared(row.id, row.name, "ahead", case.measured, case.predict(), variant=case.variant) for row, case in cases
    ]


def test_gemms_in_chunks_without_a_host_are_met():
    """Of 184 rows; 11.0% before collectives got SMs that wait for late blocks, and before ranks raced once only."""
    off = [row.error for row in ahead()]
    assert len(off) == 184
    assert fmean(map(abs, off)) < 0.07
    assert abs(fmean(off)) < 0.03
    by_chunks = {number: [row.error for row in ahead() if row.variant[1] == number] for number in (1, 2, 4)}
    assert all(fmean(map(abs, some)) < 0.06 for some in by_chunks.values())


def test_the_number_of_chunks_is_found_without_a_host():
    """30 of 38 to 3%; the others are large GEMMs, cut one time too few, to 9%."""
    costs = [choice.cost for choice in choices(ahead())]
    assert len(costs) == 38
    assert sum(cost <= 0.03 for cost in costs) >= 30
    assert max(costs) < 0.09


def test_gemms_of_another_a100():
    """Products of layers, published by others and in no table of ours; each of their calls waits for the device."""
    a100 = load_device("a100-80g")
    path = a100.kernel_files[0].with_name("cookbook-gemms.jsonl")
    row = json.loads(path.read_text(encoding="utf-8").splitlines()[1])
    sizes = zip(*(row["shape"][name] for name in "MNK"), strict=True)
    calls = [kernel("gemm", dtype=row["dtype"], **dict(zip("MNK", each, strict=True))) for each in sizes]
    found_s, _ = kernel_times(a100, calls)
    off = found_s * 1e6 / row["us"] - 1
    assert len(off) == 60
    assert median(off) == pytest.approx(-0.015, abs=0.005)
    assert fmean(abs(off)) < 0.03
