"""`scaleout reproduce`: what the papers publish, simulated."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaleout.cli.options import Output, output_options

if TYPE_CHECKING:
    from scaleout.validation.papers import Reproduced


@click.command()
@click.argument("names", nargs=-1, metavar="[PAPER|ID]...")
@output_options("Write the rows (JSON) and a page (Markdown) here.")
def reproduce(names: tuple[str, ...], output: Output) -> None:
    """Simulate the experiments of four papers, and compare.

    A PAPER is fused, t3, centauri or aluminum; an ID names one published number, such as F15-mean. Without either, all
    are simulated. A number is met if percentages are within 5 points, ratios within 15%, and counts of GPUs and
    parameters within a factor of 2.
    """
    rows = _simulate(names)
    summary = {"rows": [row.plain() for row in rows]}

    def write(folder: Path) -> dict[str, str]:
        from scaleout.report.files import write_json
        from scaleout.validation.papers import page

        write_json(folder / "reproductions.json", summary)
        (folder / "reproductions.md").write_text(page(rows), encoding="utf-8")
        return {
            "reproductions.json": "all rows",
            "reproductions.md": "published and simulated, and why numbers are missed",
        }

    output.give(summary, partial(_print, rows), write)


def _simulate(names: tuple[str, ...]) -> "tuple[Reproduced, ...]":
    """Simulate with the figure at work on standard error, where that is a terminal."""
    from rich.console import Console

    from scaleout.validation.papers import reproduce as simulate

    shown = Console(stderr=True)
    if not shown.is_terminal:
        return simulate(names)
    with shown.status("simulating") as status:
        return simulate(names, progress=lambda figure: status.update(f"simulating {figure}"))


def _print(rows: "tuple[Reproduced, ...]") -> None:
    from scaleout.cli.console import print_table
    from scaleout.validation.papers import HEADER, cells

    print_table("published and simulated", HEADER[:-1], [cells(row)[:-1] for row in rows], left=3)
    noted = [[row.claim.id, row.note] for row in rows if row.note and row.simulated is not None]
    if noted:
        print_table("notes", ("claim", "what to know"), noted, left=2)
    claims, simulated, met = (
        Counter(row.claim.paper for row in counted)
        for counted in (rows, [row for row in rows if row.simulated is not None], [row for row in rows if row.met])
    )
    counts = [[paper, str(claims[paper]), str(simulated[paper]), str(met[paper])] for paper in claims]
    print_table("claims met", ("paper", "claims", "simulated", "met"), counts)
