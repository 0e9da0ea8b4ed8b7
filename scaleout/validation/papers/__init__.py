"""Published numbers of the papers, simulated: one module per paper, each figure simulated once.

`published` returns the claims (see `claims`); `reproduce` simulates the figures that answer them, and, if asked, once
more with 30% less and 30% more of the constant that each hangs on. A claim that no figure answers counts as missed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from scaleout.config.reading import nearest
from scaleout.config.yaml_files import scaled
from scaleout.errors import ConfigError, ScaleoutError
from scaleout.validation.papers.claims import BASES, Published, Reading, published

__all__ = [
    "BASES",
    "HEADER",
    "PAPERS",
    "Published",
    "Reading",
    "Reproduced",
    "cells",
    "chosen",
    "counts",
    "page",
    "published",
    "reproduce",
    "with_constant",
]

PAPERS = ("fused", "t3", "centauri", "aluminum")
"""Modules of this package, imported when one of their claims is simulated.

Each has `FIGURES`, from the start of an id (`T16` of T16-t3-max) to the function that returns the value of all claims
whose ids start so, in the claim's own unit: 21 for 21 percent; 1 for a trend that holds, else 0.
"""

VARIED = (0.7, 1.3)
"""Factors of the constant that a claim hangs on."""


@dataclass(frozen=True)
class Reproduced:
    """One claim and its simulated value, and its values with less and more of its constant, if it was varied."""

    claim: Published
    simulated: float | None
    varied: tuple[float | None, ...] = ()

    @property
    def met(self) -> bool:
        """Whether the simulated number is within the claim's tolerance."""
        return self.simulated is not None and self.claim.met_by(self.simulated)

    @property
    def note(self) -> str:
        """What was assumed, or why the claim is missed."""
        return self.claim.reading.note or ("not reproduced yet" if self.simulated is None else "")

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
            "basis": self.claim.reading.basis,
            "constant": self.claim.reading.constant,
            **({"at_minus_30": self.varied[0], "at_plus_30": self.varied[1]} if self.varied else {}),
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
    names: Sequence[str] = (), *, vary: bool = False, progress: Callable[[str], None] = lambda figure: None
) -> tuple[Reproduced, ...]:
    """Simulate the figures behind claims, as `chosen` takes them, each once; call `progress` with each before.

    With `vary` each figure is simulated twice more for each constant that its claims hang on, times `VARIED`.
    """
    claims = chosen(names)
    values: dict[str, float] = {}
    varied: dict[str, tuple[float | None, ...]] = {}
    for paper in sorted({claim.paper for claim in claims}, key=PAPERS.index):
        module = import_module(f"{__name__}.{paper}")
        answered: dict[Callable[[], Mapping[str, float]], list[Published]] = {}
        for claim in claims:
            if claim.paper == paper and claim.start in module.FIGURES:
                answered.setdefault(module.FIGURES[claim.start], []).append(claim)
        for simulate, of_figure in answered.items():
            progress(f"{paper}: {', '.join(dict.fromkeys(claim.start for claim in of_figure))}")
            values |= simulate()
            if vary:
                varied |= _vary(module, simulate, of_figure)
    return tuple(Reproduced(claim, values.get(claim.id), varied.get(claim.id, ())) for claim in claims)


def _vary(
    module: ModuleType, simulate: Callable[[], Mapping[str, float]], claims: Iterable[Published]
) -> dict[str, tuple[float | None, ...]]:
    """Simulate a figure with each constant of its claims scaled; None where a claim then has no value."""
    of_constant: dict[str, list[str]] = {}
    for claim in claims:
        if claim.reading.constant:
            of_constant.setdefault(claim.reading.constant, []).append(claim.id)
    found: dict[str, tuple[float | None, ...]] = {}
    for constant, ids in of_constant.items():
        values: list[Mapping[str, float]] = []
        for factor in VARIED:
            try:
                values.append(with_constant(module, simulate, constant, factor))
            except ScaleoutError:  # a share above 1
                values.append({})
        found |= {each: tuple(of.get(each) for of in values) for each in ids}
    return found


def with_constant(
    module: ModuleType, simulate: Callable[[], Mapping[str, float]], constant: str, factor: float
) -> Mapping[str, float]:
    """Simulate a figure with a constant, "files key", times a factor, without what the module remembers."""
    _forget(module)
    files, key = constant.split()
    try:
        with scaled(files, key, factor):
            return simulate()
    finally:
        _forget(module)


def _forget(module: ModuleType) -> None:
    for each in vars(module).values():
        if hasattr(each, "cache_clear"):
            each.cache_clear()


# ---- Tables

HEADER = ("claim", "figure", "what", "published", "simulated", "tolerance", "", "how", "-30% / +30%", "note")


def cells(row: Reproduced) -> list[str]:
    """Return a claim as the cells of a table; see `HEADER`."""
    claim = row.claim
    return [
        claim.id,
        claim.figure,
        claim.metric,
        claim.written(claim.value),
        "-" if row.simulated is None else claim.written(row.simulated),
        claim.tolerance,
        "met" if row.met else "missed",
        claim.reading.basis,
        " / ".join("-" if value is None else claim.written(value) for value in row.varied),
        row.note,
    ]


def counts(rows: Sequence[Reproduced]) -> list[list[str]]:
    """Return claims met and claims, by paper and in all: predicted first, then calibrated, chosen, and together."""
    papers = [paper for paper in PAPERS if any(row.claim.paper == paper for row in rows)]
    groups = {paper: [row for row in rows if row.claim.paper == paper] for paper in papers}
    if len(papers) > 1:
        groups["all"] = list(rows)
    return [[name, *(_met([row for row in of if row.claim.reading.basis == basis]) for basis in BASES), _met(of)]
            for name, of in groups.items()]  # fmt: skip


def _met(rows: Sequence[Reproduced]) -> str:
    return f"{sum(row.met for row in rows)} of {len(rows)}" if rows else "-"


_INTRODUCTION = """\
# Published numbers, simulated

Made by `scaleout reproduce --vary --output figures`. How a number is answered comes from the sources of the constants:

- *predicted*: no constant was fitted to this number or to one that shares the constant, and every size and reading
  follows from what knows nothing of it: a data sheet, a measurement of ours, the paper's own words, a source of that
  time. Where that was found after the number was known, the note says so. Or what was assumed decides nothing: the
  number is met, or missed, with all that could have been taken, which the note names;
- *calibrated*: a constant was fitted to this number, or to another of the same paper and serves this one too;
- *chosen*: a size, a reading of the text or a definition was taken knowing the number, or another of its figure, and
  another could have been taken, with which the number would be missed.

T3's ring of "150 GB/s bi-directional" is 75 GB/s each way: the V100 that it simulates has six NVLinks of 25 GB/s each
way, of which a ring has three to each neighbour. It was first read so because more numbers are met: 150 each way would
meet 13 fewer. Where the times of a whole iteration come from, the text leaves open, and whether turns of round-robin at
the memory open rows; numbers of T3 that not all readings meet, or miss, are chosen (docs/models/t3.md).

A number published as x% is met within five points, or within a third of it where it is small; a zero meets none.
*-30% / +30%* is the number simulated with 30% less and 30% more of the constant that moves it most, named in the last
table, among those that are ours: neither the paper nor the maker of the machine simply states them. A dash is a value
that cannot be, such as a share above 1.
"""


def page(rows: Sequence[Reproduced]) -> str:
    """Return a page: how many claims are met, predictions first; then all of them, with a reason for each miss."""
    lines = [_INTRODUCTION, *_table(("paper", *BASES, "met"), counts(rows)), ""]
    for basis in BASES:
        of_basis = [row for row in rows if row.claim.reading.basis == basis]
        if of_basis:
            lines += [f"## {basis}: {_met(of_basis)} met", "", *_table(HEADER, map(cells, of_basis)), ""]
    constants: dict[str, list[str]] = {}
    for row in rows:
        if row.claim.reading.constant:
            constants.setdefault(row.claim.reading.constant, []).append(row.claim.id)
    named = [[f"`{key}` of `{files}`", ", ".join(ids)] for (files, key), ids in
             ((constant.split(), ids) for constant, ids in constants.items())]  # fmt: skip
    return "\n".join([*lines, "## The constants that were varied", "", *_table(("constant", "claims"), named), ""])


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return lines + [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
