"""What the papers publish: one row a claim, with its unit, and how close a simulation must come to it.

Tolerances: 5 points for percentages, 15% for ratios, a factor of 2 for counts of GPUs and parameters; a trend holds or
does not; a share that a paper calls *above* some value must be above it.

Source: `published.csv` beside this file, which names figure and setting of each number.

How a figure of a paper is simulated, and what its claims come to.
"""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """Claims that one simulation answers.

    Attributes
    ----------
    ids : tuple of str
        The claims, as `published.csv` names them.
    simulate : callable
        Returns each claim's value, in the claim's own unit: 21 for 21 percent; 1 for a trend that holds, else 0.
    notes : mapping
        Claim to what a reader must know: an assumption, or why it is missed.
    """

    ids: tuple[str, ...]
    simulate: Callable[[], Mapping[str, float]]
    notes: Mapping[str, str] = field(default_factory=dict)


_FILE = Path(__file__).with_name("published.csv")
_POINTS = 5.0
_RATIO = 0.15
_FACTOR = 2.0
_WITHIN = {"percent": "5 points", "ratio": "15%", "GPUs": "factor 2", "parameters": "factor 2", "true": "must hold"}
"""Unit to the tolerance in words."""


@dataclass(frozen=True)
class Published:
    """One claim of a paper.

    Attributes
    ----------
    id : str
    paper : str
        ``"fused"``, ``"t3"``, ``"centauri"`` or ``"aluminum"``.
    figure, setting, metric : str
    value : float
        In `unit`; 1 for a trend.
    unit : str
        ``"percent"``, ``"ratio"``, ``"GPUs"``, ``"parameters"`` or ``"true"``.
    """

    id: str
    paper: str
    figure: str
    setting: str
    metric: str
    value: float
    unit: str

    @property
    def is_floor(self) -> bool:
        """Whether the paper says that its number is exceeded, rather than what it is."""
        return self.metric.endswith("is above")

    @property
    def tolerance(self) -> str:
        """How close is close enough, in words."""
        return "above" if self.is_floor else _WITHIN[self.unit]

    def met_by(self, simulated: float) -> bool:
        """Tell whether a simulated number, in the same unit, is within the tolerance.

        >>> Published("x", "t3", "Fig. 1", "", "geomean speedup", 1.5, "ratio").met_by(1.7)
        True
        """
        if self.is_floor:
            return simulated > self.value
        if self.unit == "percent":
            return abs(simulated - self.value) <= _POINTS
        if self.unit == "ratio":
            return abs(simulated / self.value - 1) <= _RATIO
        if self.unit == "true":
            return simulated == self.value
        return self.value / _FACTOR <= simulated <= self.value * _FACTOR


def published() -> tuple[Published, ...]:
    """Return all claims, in the order of the file."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        return tuple(
            Published(
                row["id"],
                row["paper"],
                row["figure"],
                row["setting"],
                row["metric"],
                float(row["published"]),
                row["unit"],
            )
            for row in csv.DictReader(file)
        )
