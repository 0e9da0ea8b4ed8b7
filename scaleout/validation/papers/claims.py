"""What the papers claim: published numbers, their tolerances, and how each is answered here.

Maps `published.csv` (figure, setting, number and tolerance of each claim) and `readings.yaml` (ours: how a claim is
met, the constant that it hangs on, what was assumed) to `Published`. Knows nothing of simulations.
"""

import csv
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaleout.config.yaml_files import read_yaml

_FOLDER = Path(__file__).parent

BASES = ("predicted", "calibrated", "chosen")
"""How a claim is answered: by nothing that was fitted to this paper's numbers; with a constant that was fitted to this
number or to one that it shares the constant with; by a reading, a size or a definition that was taken knowing it, where
another could have been taken and would have decided otherwise."""


def _within_factor_2(simulated: float, published: float) -> bool:
    return published / 2 <= simulated <= published * 2


TOLERANCES: Mapping[str, Callable[[float, float], bool]] = {
    "5 points": lambda simulated, published: abs(simulated - published) <= 5.0,
    "a third of the number": lambda simulated, published: abs(simulated - published) <= published / 3,
    "15%": lambda simulated, published: abs(simulated / published - 1) <= 0.15,
    "factor 2": _within_factor_2,
    "above": operator.gt,
    "above, and at most twice": lambda simulated, published: published < simulated <= 2 * published,
    "below": operator.lt,
    "holds": operator.eq,
}
"""Tolerance to whether a simulated number, first, meets a published one."""

_WRITTEN: Mapping[str, Callable[[float], str]] = {
    "percent": "{:.1f}%".format,
    "ratio": "{:.2f}x".format,
    "GPUs": "{:,.0f} GPUs".format,
    "parameters": "{:,.0f} parameters".format,
    "true": lambda value: "yes" if value else "no",
}


@dataclass(frozen=True)
class Reading:
    """Ours of a claim: `basis`, one of `BASES`; `constant`, the files and the key that matter most; a note."""

    basis: str
    constant: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        assert self.basis in BASES, self.basis


@dataclass(frozen=True)
class Published:
    """One claim of a paper; `value` is in `unit`, a key of `_WRITTEN`, and 1 for a trend that holds."""

    id: str
    paper: str
    figure: str
    setting: str
    metric: str
    value: float
    unit: str
    tolerance: str
    reading: Reading = Reading("predicted")

    @property
    def start(self) -> str:
        """Start of the id, which stands for a figure: `T16` of T16-t3-max."""
        return self.id.partition("-")[0]

    def met_by(self, simulated: float) -> bool:
        """Tell whether a simulated number, in the same unit, is within the tolerance; none is met by a zero.

        >>> Published("x", "t3", "Fig. 1", "", "geomean speedup", 1.5, "ratio", "15%").met_by(1.7)
        True
        >>> Published("x", "t3", "Fig. 1", "", "share of time", 5, "percent", "below").met_by(0)
        False
        """
        return simulated != 0 and TOLERANCES[self.tolerance](simulated, self.value)

    def written(self, value: float) -> str:
        """Return a number in the claim's unit as text."""
        return _WRITTEN[self.unit](value)


def published() -> tuple[Published, ...]:
    """Return all claims, in the order of the file."""
    readings = read_yaml(_FOLDER / "readings.yaml")
    with (_FOLDER / "published.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return tuple(
        Published(value=float(row.pop("published")), reading=_reading(row["id"], readings), **row) for row in rows
    )


def _reading(claim: str, readings: Mapping[str, Any]) -> Reading:
    """Return the reading of a claim: its figure's (the start of its id), with what its own entry adds or replaces."""
    return Reading(**{**readings[claim.partition("-")[0]], **readings.get(claim, {})})
