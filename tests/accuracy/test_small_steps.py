"""Small steps that the host bounds, on one and two H100: none of h200's host costs was chosen on these rows."""

import json
import statistics
from pathlib import Path

from scaleout.config.library import folder
from scaleout.validation.measured.compare import compare_files

ROWS = Path(folder("device")) / "h100-pair" / "steps.jsonl"


def test_small_steps_are_met_in_the_median():
    """With the host of four H200 alone all rows were 19% off in the median, most of them too long.

    A norm behind the layers, which these steps have not, had made them 1.5 points better.
    """
    values = [json.loads(line) for line in ROWS.read_text().splitlines()]
    found = compare_files([ROWS], device="h100", topology=str(ROWS.parents[1] / "h200-pair" / "machine.yaml"))
    errors: dict[bool, list[float]] = {True: [], False: []}
    for row in found.rows:
        value = values[int(row.id.split(":")[1]) - 1]
        assert row.error is not None
        if "layers" in value:
            errors[value["seq"] * value["batch"] * value["hidden"] <= 2048**2].append(row.error)
    small, large = errors[True], errors[False]
    assert (len(small), len(large)) == (60, 12)
    assert statistics.median(map(abs, small)) < 0.15
    assert abs(statistics.median(small)) < 0.09
    assert statistics.fmean(map(abs, large)) < 0.05


def test_steps_of_one_rank_lie_between_an_undisturbed_and_a_disturbed_host():
    """With the costs of several ranks a backward on the undisturbed one was 35% too long."""
    rows = ROWS.parents[1] / "h100" / "small-steps.jsonl"
    values = [json.loads(line) for line in rows.read_text().splitlines()]
    found = compare_files([rows], device="h100", topology="h200-node-4")
    errors: dict[str, list[float]] = {"c": [], "d": [], "long": []}
    for row in found.rows:
        value = values[int(row.id.split(":")[1]) - 1]
        assert row.error is not None
        if value["name"] == "dp_compute_only":
            errors[value["machine"] if value["host_us"] > 0.9 * value["step_us"] else "long"].append(row.error)
    undisturbed, disturbed, long = errors.values()
    assert (len(undisturbed), len(disturbed), len(long)) == (24, 54, 90)
    assert 0.08 < statistics.median(undisturbed) < 0.20
    assert -0.25 < statistics.median(disturbed) < -0.10
    assert statistics.fmean(map(abs, long)) < 0.04


def test_serial_all_reduces_and_ddp_are_as_far_off_as_steps_without_communication():
    """On one machine and size; charged as exchanges of autograd they were 39 and 14 points longer on two GPUs."""
    rows = ROWS.parents[1] / "h200-four" / "steps.jsonl"
    values = [json.loads(line) for line in rows.read_text().splitlines()]
    found = compare_files([rows], device="h200", topology="h200-node-4")
    errors: dict[tuple[int, str], list[float]] = {}
    for row in found.rows:
        value = values[int(row.id.split(":")[1]) - 1]
        if row.error is not None:
            errors.setdefault((value["gpus"], value["name"]), []).append(row.error)
    mean = {key: statistics.fmean(of) for key, of in errors.items()}
    for gpus in (2, 4):
        for name in ("dp_serial_allreduce_per_parameter", "dp_ddp_overlap"):
            assert abs(mean[gpus, name] - mean[gpus, "dp_compute_only"]) < 0.06


def test_gemms_fused_with_collectives_are_met_where_the_device_bounds_them():
    """No cost or mechanism was changed by these rows; calls that the host bounds are as good as its luck."""
    rows = ROWS.parent / "async-tp.jsonl"
    values = [json.loads(line) for line in rows.read_text().splitlines()]
    found = compare_files([rows], device="h100", topology="h200-node-4")
    errors = []
    for row in found.rows:
        value = values[int(row.id.split(":")[1]) - 1]
        assert row.error is not None
        if value["M"] * value["N"] * value["K"] > 10**11:
            errors.append(abs(row.error))
    assert statistics.fmean(errors) < 0.065
    assert statistics.fmean(abs(row.error) for row in found.rows if row.error is not None) < 0.10
