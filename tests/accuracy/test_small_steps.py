"""Small steps that the host bounds, on two H100: none of h200's host costs was chosen on these rows."""

import json
import statistics
from pathlib import Path

from scaleout.config.library import folder
from scaleout.validation.measured.compare import compare_files

ROWS = Path(folder("device")) / "h100-pair" / "steps.jsonl"


def test_small_steps_are_met_in_the_median():
    """With the host of four H200 alone all rows were 19% off in the median, most of them too long."""
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
    assert statistics.median(map(abs, small)) < 0.14
    assert abs(statistics.median(small)) < 0.06
    assert statistics.fmean(map(abs, large)) < 0.05
