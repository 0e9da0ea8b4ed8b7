"""Coverage of error bars on steps that nothing was fitted to."""

import hashlib
import json
from pathlib import Path

import pytest

from scaleout.validation.measured.compare import Compared, compare_files, error_bars_of

ULTRASCALE = Path(__file__).parents[3] / "shared" / "validation" / "ultrascale" / "dev.jsonl"


def fitted(name):
    """Whether a run is of the tenth on which the host of h100-p5 was chosen."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 10 == 0


@pytest.mark.skipif(not ULTRASCALE.is_file(), reason="the rows lie beside the repository")
def test_error_bars_hold_on_ultrascale(tmp_path):
    """Class A but for suspect runs and those that were used: 90% within, median width 0.21, when this was written."""
    rows = [json.loads(line) for line in ULTRASCALE.read_text().splitlines()]
    wanted = [row for row in rows if row.get("class") == "A" and row["status"] == "ok" and not fitted(row["id"])]
    wanted = [{**row, "memory_gib": None} for row in wanted if "suspect" not in row["flags"]]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in wanted))
    found = error_bars_of(compare_files([file], table="ultrascale").rows)
    assert found.num_rows > 100
    assert 0.85 <= found.within <= 0.95
    assert found.median_width <= 0.25


def test_coverage_by_hand():
    class Bars:
        """One tenth to either side."""

        def of(self, seconds):
            return 0.9 * seconds, 1.1 * seconds

    rows = [Compared(str(at), "", "", at, 1.0, interval=Bars()) for at in (0.5, 0.95, 1.0, 1.05, 2.0)]
    found = error_bars_of([*rows, Compared("none", "", "", 1.0, 1.0)])
    assert (found.num_rows, found.below, found.above) == (5, 0.2, 0.2)
    assert found.within == pytest.approx(0.6)
    assert found.median_width == pytest.approx(0.2)
    assert error_bars_of([]) is None
