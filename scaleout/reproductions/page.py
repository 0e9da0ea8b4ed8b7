"""Reproduced claims as text: cells of a table, and a page in Markdown."""

from collections.abc import Sequence

from scaleout.reproductions.answers import PAPERS, Reproduced

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
