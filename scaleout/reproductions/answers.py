"""Claims of the papers, published against simulated.

A claim that no figure answers is listed as not reproduced: it counts as missed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaleout.config import nearest
from scaleout.errors import ConfigError
from scaleout.reproductions import aluminum, centauri, fused, t3
from scaleout.reproductions.claims import Figure
from scaleout.reproductions.published import Published, published

PAPERS: Mapping[str, tuple[Figure, ...]] = {
    "fused": fused.FIGURES,
    "t3": t3.FIGURES,
    "centauri": centauri.FIGURES,
    "aluminum": aluminum.FIGURES,
}
"""Paper to its figures that are simulated."""

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
    for paper, figures in PAPERS.items():
        for figure in figures:
            if wanted & set(figure.ids):
                progress(f"{paper}: {', '.join(figure.ids)}")
                values |= figure.simulate()
                notes |= {name: note for name, note in figure.notes.items() if name in figure.ids}
    return tuple(
        Reproduced(claim, values.get(claim.id), notes.get(claim.id, "" if claim.id in values else _NOT_YET))
        for claim in claims
    )
