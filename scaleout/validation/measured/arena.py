"""Rows to how well each tool predicts them: scaleout beside others and a straw man, on the same rows.

A tool is scored on the rows of which it has a prediction, and scaleout once more on those alone. Predictions of others
are recorded, with their source: SimuMax's stand in its own published rows, Calculon's were made by
`python figures/calculon_rows.py`. vTrain publishes its mean error, but no predictions by row. The roofline is the straw
man: the FLOPs that the model needs over the peak of its device, times one utilisation a device, the median of all rows
of that device that are scored, which no tool that predicts could know.

Source: Isaev et al., Calculon, SC 2023; MooreThreads/SimuMax (4dcaae5), docs/b200; Bang et al., vTrain, MICRO 2024.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from scaleout.validation.measured.compare import Accuracy, Compared, accuracy_of

ROOFLINE = "roofline, one utilisation a device"
OURS = "scaleout"
PUBLISHED = {"SimuMax 1.2": "github.com/MooreThreads/SimuMax (4dcaae5), docs/b200/b200_release_v1.2_summary.json"}
"""Tools whose predictions stand in published rows, to where those are from."""
_RECORDED = ("calculon.jsonl",)


@dataclass(frozen=True)
class Contender:
    """A tool: its errors on the rows of which it has a prediction, and scaleout's mean error on the same rows."""

    tool: str
    source: str
    accuracy: Accuracy
    ours: float

    def summary(self) -> dict[str, Any]:
        """Return the numbers as plain values."""
        return {"tool": self.tool, "source": self.source, **asdict(self.accuracy), "scaleout_mean_error": self.ours}


@cache
def recorded() -> Mapping[str, tuple[str, Mapping[str, float]]]:
    """Return each tool whose predictions are recorded: its source, and the seconds of each row that it predicts."""
    found = {}
    for name in _RECORDED:
        text = (Path(__file__).parents[1] / "published" / name).read_text(encoding="utf-8")
        first, *rows = map(json.loads, text.splitlines())
        about = first["provenance"]
        found[about["tool"]] = (about["source"], {row["id"]: row["us"] * 1e-6 for row in rows if "us" in row})
    return found


def arena(rows: Sequence[Compared]) -> list[Contender]:
    """Score every tool that predicts one of some rows' times, scaleout first."""
    times = [row for row in rows if row.quantity == "time" and row.measured is not None and row.error is not None]
    tools: dict[str, tuple[str, dict[str, float]]] = {
        OURS: ("this release", {row.id: row.predicted for row in times if row.predicted is not None}),
        ROOFLINE: ("FLOPs of the model over the device's peak", _roofline(times)),
    }
    for name, (source, seconds) in recorded().items():
        tools[name] = (source, dict(seconds))
    for name, source in PUBLISHED.items():
        tools[name] = (source, {row.id: row.others[name] for row in times if name in row.others})
    found = []
    for name, (source, predicted) in tools.items():
        scored = [row for row in times if row.id in predicted]
        errors = [predicted[row.id] / row.measured - 1 for row in scored if row.measured]
        if errors:
            ours = accuracy_of([row.error for row in scored if row.error is not None], num_rows=len(scored))
            accuracy = accuracy_of(errors, num_rows=len(times))
            found.append(Contender(name, source, accuracy, ours.mean_absolute_error))
    return found


def _roofline(rows: Sequence[Compared]) -> dict[str, float]:
    """Return the seconds of the straw man: each row's FLOPs at the median utilisation of its device."""
    used: dict[str, list[float]] = {}
    for row in rows:
        if row.mfu is not None:
            used.setdefault(row.device, []).append(row.mfu)
    return {
        row.id: row.measured * row.mfu / median(used[row.device])
        for row in rows
        if row.mfu is not None and row.measured is not None
    }
