"""Published numbers of the papers, simulated: one module per paper, each figure simulated once.

`published` reads the claims of `published.csv`, which names figure and setting of each number, and of `notes.yaml`,
which says what was assumed, or why a claim is missed; `reproduce` simulates the figures that answer them. A claim that
no figure answers counts as missed.

Tolerances: 5 points for percentages, 15% for ratios, a factor of 2 for counts of GPUs and parameters. A trend must
hold, and a share that a paper calls *above* some value must be above it.
"""

import csv
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from scaleout.config.reading import nearest
from scaleout.config.yaml_files import read_yaml
from scaleout.errors import ConfigError

PAPERS = ("fused", "t3", "centauri", "aluminum")
"""Modules of this package, imported when one of their claims is simulated.

Each has `FIGURES`, from the start of an id (`T16` of T16-t3-max) to the function that returns the value of all claims
whose ids start so, in the claim's own unit: 21 for 21 percent; 1 for a trend that holds, else 0.
"""

_FOLDER = Path(__file__).parent


class _Unit(NamedTuple):
    """The tolerance in words, whether a simulated and a published number agree so far, and how a number is written."""

    tolerance: str
    agree: Callable[[float, float], bool]
    written: Callable[[float], str]


def _within_factor_2(simulated: float, published: float) -> bool:
    return published / 2 <= simulated <= published * 2


_UNITS: Mapping[str, _Unit] = {
    "percent": _Unit("5 points", lambda simulated, published: abs(simulated - published) <= 5.0, "{:.1f}%".format),
    "ratio": _Unit("15%", lambda simulated, published: abs(simulated / published - 1) <= 0.15, "{:.2f}x".format),
    "GPUs": _Unit("factor 2", _within_factor_2, "{:,.0f} GPUs".format),
    "parameters": _Unit("factor 2", _within_factor_2, "{:,.0f} parameters".format),
    "true": _Unit("must hold", operator.eq, lambda value: "yes" if value else "no"),
}


@dataclass(frozen=True)
class Published:
    """One claim of a paper; `value` is in `unit`, a key of `_UNITS`, and 1 for a trend; `note` is ours."""

    id: str
    paper: str
    figure: str
    setting: str
    metric: str
    value: float
    unit: str
    note: str = ""

    @property
    def is_floor(self) -> bool:
        """Whether the paper says that its number is exceeded, rather than what it is."""
        return self.metric.endswith("is above")

    @property
    def tolerance(self) -> str:
        """The tolerance in words."""
        return "above" if self.is_floor else _UNITS[self.unit].tolerance

    def met_by(self, simulated: float) -> bool:
        """Tell whether a simulated number, in the same unit, is within the tolerance.

        >>> Published("x", "t3", "Fig. 1", "", "geomean speedup", 1.5, "ratio").met_by(1.7)
        True
        """
        return simulated > self.value if self.is_floor else _UNITS[self.unit].agree(simulated, self.value)


def published() -> tuple[Published, ...]:
    """Return all claims, in the order of the file."""
    notes = read_yaml(_FOLDER / "notes.yaml")
    with (_FOLDER / "published.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return tuple(Published(value=float(row.pop("published")), note=notes.get(row["id"], ""), **row) for row in rows)


@dataclass(frozen=True)
class Reproduced:
    """One claim and its simulated value."""

    claim: Published
    simulated: float | None

    @property
    def met(self) -> bool:
        """Whether the simulated number is within the claim's tolerance."""
        return self.simulated is not None and self.claim.met_by(self.simulated)

    @property
    def note(self) -> str:
        """What was assumed, or why the claim is missed."""
        return self.claim.note or ("not reproduced yet" if self.simulated is None else "")

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
    """Simulate the figures behind claims, as `chosen` takes them, each once; call `progress` with each before."""
    claims = chosen(names)
    values: dict[str, float] = {}
    for paper in sorted({claim.paper for claim in claims}, key=PAPERS.index):
        module = import_module(f"{__name__}.{paper}")
        wanted = {claim.id.split("-")[0] for claim in claims if claim.paper == paper}
        for simulate in dict.fromkeys(figure for start, figure in module.FIGURES.items() if start in wanted):
            progress(f"{paper}: {', '.join(start for start, figure in module.FIGURES.items() if figure is simulate)}")
            values |= simulate()
    return tuple(Reproduced(claim, values.get(claim.id)) for claim in claims)


HEADER = ("claim", "figure", "what", "published", "simulated", "tolerance", "", "note")


def cells(row: Reproduced) -> list[str]:
    """Return a claim as the cells of a table; see `HEADER`."""
    claim, written = row.claim, _UNITS[row.claim.unit].written
    return [
        claim.id,
        claim.figure,
        claim.metric,
        written(claim.value),
        "-" if row.simulated is None else written(row.simulated),
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
        lines += [f"| {' | '.join(HEADER)} |", f"|{'---|' * len(HEADER)}"]
        lines += [f"| {' | '.join(cell.replace('|', '/') for cell in cells(row))} |" for row in of_paper]
        lines.append("")
    return "\n".join(lines)
