"""Published numbers of the papers, simulated: one module a paper, each figure once.

`published` reads the claims; `reproduce` simulates the figures that answer them and says which are met. A claim that no
figure answers is listed as not reproduced: it counts as missed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from scaleout.config.validated import nearest
from scaleout.errors import ConfigError
from scaleout.validation.papers.claims import Figure, Published, published

__all__ = ["PAPERS", "Published", "Reproduced", "cells", "figures_of", "page", "published", "reproduce"]

PAPERS = ("fused", "t3", "centauri", "aluminum")
"""Papers, each a module of this package with its `FIGURES`; imported when one of its claims is asked for."""

_NOT_YET = "not reproduced yet"


@dataclass(frozen=True)
class Reproduced:
    """One claim and what came out."""

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


def figures_of(paper: str) -> tuple[Figure, ...]:
    """Return the figures of a paper that are simulated."""
    found: tuple[Figure, ...] = import_module(f"scaleout.validation.papers.{paper}").FIGURES
    return found


def chosen(names: Sequence[str]) -> list[Published]:
    """Return the claims that papers, figures' claims or nothing at all name, in the order of the file.

    Raises
    ------
    ConfigError
        If a name is neither a paper nor a claim; the message gives the nearest.
    """
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
        Papers or claims; all if there are none.
    progress : callable
        Told each figure before it is simulated.

    Raises
    ------
    ConfigError
        If a name is not known.
    """
    claims = chosen(names)
    wanted = {claim.id for claim in claims}
    values: dict[str, float] = {}
    notes: dict[str, str] = {}
    for paper in sorted({claim.paper for claim in claims}, key=PAPERS.index):
        for figure in figures_of(paper):
            if wanted & set(figure.ids):
                progress(f"{paper}: {', '.join(figure.ids)}")
                values |= figure.simulate()
                notes |= {name: note for name, note in figure.notes.items() if name in figure.ids}
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
        of = [row for row in rows if row.claim.paper == paper]
        if not of:
            continue
        lines += [f"## {paper}: {sum(row.met for row in of)} of {len(of)} met", ""]
        lines += [f"| {' | '.join(_HEADER)} |", f"|{'---|' * len(_HEADER)}"]
        lines += [f"| {' | '.join(cell.replace('|', '/') for cell in cells(row))} |" for row in of]
        lines.append("")
    return "\n".join(lines)
