"""Published numbers of the papers, simulated: one module per paper, each figure simulated once.

`published` reads the claims of `published.csv`, which names figure and setting of each number; `reproduce` simulates
the figures that answer them. A claim that no figure answers counts as missed.

Tolerances: 5 points for percentages, 15% for ratios, a factor of 2 for counts of GPUs and parameters. A trend must
hold, and a share that a paper calls *above* some value must be above it.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from scaleout.config.validated import nearest
from scaleout.errors import ConfigError

PAPERS = ("fused", "t3", "centauri", "aluminum")
"""Modules of this package, imported when one of their claims is simulated.

Each has `FIGURES`, from the start of an id (`T16` of T16-t3-max) to the function that returns the value of all claims
whose ids start so, in the claim's own unit: 21 for 21 percent; 1 for a trend that holds, else 0. Its `NOTES` say of a
claim what was assumed, or why it is missed.
"""

_FILE = Path(__file__).with_name("published.csv")
_POINTS = 5.0
_RATIO = 0.15
_FACTOR = 2.0
_WITHIN = {"percent": "5 points", "ratio": "15%", "GPUs": "factor 2", "parameters": "factor 2", "true": "must hold"}
"""Unit to the tolerance in words."""


@dataclass(frozen=True)
class Published:
    """One claim of a paper; `value` is in `unit`, a key of `_WITHIN`, and 1 for a trend."""

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
        """The tolerance in words."""
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
        return tuple(Published(value=float(row.pop("published")), **row) for row in csv.DictReader(file))


_NOT_YET = "not reproduced yet"


@dataclass(frozen=True)
class Reproduced:
    """One claim and its simulated value."""

    claim: Published
    simulated: float | None
    note: str

    @property
    def met(self) -> bool:
        """Whether the simulated number is within the claim's tolerance."""
        return self.simulated is not None and self.claim.met_by(self.simulated)

    def plain(self) -> dict[str, Any]:
        """Return the row as `scaleout reproduce --json` prints it."""
        return {
            "id": self.claim.id,
            "paper": self.claim.paper,
            "figure": self.claim.figure,
            "metric": self.claim.metric,
            "unit": self.claim.unit,
            "published": self.claim.value,
            "simulated": self.simulated,
            "tolerance": self.claim.tolerance,
            "met": self.met,
            "note": self.note,
        }


def chosen(names: Sequence[str]) -> list[Published]:
    """Return the claims of the named papers and claims, or all, in the order of the file; or raise `ConfigError`."""
    claims = published()
    known = {*PAPERS, *(claim.id for claim in claims)}
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown paper or claim {name!r}; {nearest(name, sorted(known))}")
    return [claim for claim in claims if not names or claim.id in names or claim.paper in names]


def reproduce(
    names: Sequence[str] = (), *, progress: Callable[[str], None] = lambda figure: None
) -> tuple[Reproduced, ...]:
    """Simulate the figures behind claims, each once.

    Parameters
    ----------
    names : sequence of str
        Papers or claims; all if empty.
    progress : callable
        Called with each figure before it is simulated.

    Raises
    ------
    ConfigError
        If a name is unknown.
    """
    claims = chosen(names)
    values: dict[str, float] = {}
    notes: dict[str, str] = {}
    for paper in sorted({claim.paper for claim in claims}, key=PAPERS.index):
        module = import_module(f"{__name__}.{paper}")
        notes |= module.NOTES
        wanted = {claim.id.split("-")[0] for claim in claims if claim.paper == paper}
        for simulate in dict.fromkeys(figure for start, figure in module.FIGURES.items() if start in wanted):
            progress(f"{paper}: {', '.join(start for start, figure in module.FIGURES.items() if figure is simulate)}")
            values |= simulate()
    return tuple(
        Reproduced(claim, values.get(claim.id), notes.get(claim.id, "" if claim.id in values else _NOT_YET))
        for claim in claims
    )


_HEADER = ("claim", "figure", "what", "published", "simulated", "tolerance", "", "note")


def written(value: float, unit: str) -> str:
    """Return a number with its unit.

    >>> written(21.0, "percent"), written(1.4, "ratio"), written(1.0, "true")
    ('21.0%', '1.40x', 'yes')
    """
    if unit == "percent":
        return f"{value:.1f}%"
    if unit == "ratio":
        return f"{value:.2f}x"
    if unit == "true":
        return "yes" if value else "no"
    return f"{value:,.0f} {unit}"


def cells(row: Reproduced) -> list[str]:
    """Return a claim as the cells of a table; see `_HEADER`."""
    claim = row.claim
    return [
        claim.id,
        claim.figure,
        claim.metric,
        written(claim.value, claim.unit),
        "-" if row.simulated is None else written(row.simulated, claim.unit),
        claim.tolerance,
        "met" if row.met else "missed",
        row.note,
    ]


def page(rows: Sequence[Reproduced]) -> str:
    """Return a page: how many claims of each paper are met, then all of them, with a reason for each miss."""
    lines = ["# Published numbers, simulated", "", "Made by `scaleout reproduce --output figures`.", ""]
    for paper in PAPERS:
        of_paper = [row for row in rows if row.claim.paper == paper]
        if not of_paper:
            continue
        lines += [f"## {paper}: {sum(row.met for row in of_paper)} of {len(of_paper)} met", ""]
        lines += [f"| {' | '.join(_HEADER)} |", f"|{'---|' * len(_HEADER)}"]
        lines += [f"| {' | '.join(cell.replace('|', '/') for cell in cells(row))} |" for row in of_paper]
        lines.append("")
    return "\n".join(lines)
