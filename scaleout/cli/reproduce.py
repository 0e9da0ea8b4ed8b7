"""`scaleout reproduce`: what the papers publish, simulated."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaleout.cli.options import Output, output_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scaleout.validation.papers import Reproduced


@click.command()
@click.argument("names", nargs=-1, metavar="[PAPER|ID]...")
@click.option("--vary", is_flag=True, help="Simulate with 30% less and more of the constant that each number hangs on.")
@output_options("Write the rows (JSON) and a page (Markdown) here.", "reproductions.md")
def reproduce(names: tuple[str, ...], vary: bool, output: Output) -> None:
    """Simulate the experiments of four papers, and compare.

    A PAPER is fused, t3, centauri or aluminum; an ID names one published number, such as F15-mean. Without either, all
    are simulated. Each has its tolerance, and says how it is answered: predicted, calibrated (a constant was fitted to
    it or to one that shares the constant) or chosen (a size or reading was taken knowing it).
    """
    from scaleout.report.documents import document

    asked = tuple(dict.fromkeys(names))
    rows = _simulate(asked, vary)
    plain, answer = {"rows": [row.plain() for row in rows]}, _answer(rows)
    summary = document("reproduce", plain, inputs={"names": asked, "vary": vary}, answer=answer)

    def write(folder: Path) -> dict[str, str]:
        from scaleout.config.writing import write_text
        from scaleout.validation.papers import page

        write_text(folder / "reproductions.md", page(rows))
        return {"reproductions.md": "published and simulated, and why numbers are missed"}

    output.give(summary, partial(_print, rows, answer), write)


def _simulate(names: tuple[str, ...], vary: bool) -> "tuple[Reproduced, ...]":
    """Simulate with the figure at work on standard error, where that is a terminal."""
    from rich.console import Console

    from scaleout.validation.papers import reproduce as simulate

    shown = Console(stderr=True)
    if not shown.is_terminal:
        return simulate(names, vary=vary)
    with shown.status("simulating") as status:
        return simulate(names, vary=vary, progress=lambda figure: status.update(f"simulating {figure}"))


def _answer(rows: "tuple[Reproduced, ...]") -> dict[str, str]:
    """Say how many numbers of each paper are met, and which are not."""
    from scaleout.validation.papers import BASES, counts

    missed = [row.claim.id for row in rows if not row.met]
    facts = {}
    for paper, *of_basis, together in counts(rows):
        told = (f"{basis} {met}" for basis, met in zip(BASES, of_basis, strict=True) if met != "-")
        facts[paper] = f"{together} met: {', '.join(told)}"
    return {**facts, **({"missed": ", ".join(missed)} if missed else {})}


def _print(rows: "tuple[Reproduced, ...]", answer: "Mapping[str, str]") -> None:
    from scaleout.cli.console import print_answer, print_table
    from scaleout.validation.papers import HEADER, cells

    print_answer("published numbers, simulated", answer)
    columns = len(HEADER) - (1 if any(row.varied for row in rows) else 2)  # the notes stand below
    print_table("published and simulated", HEADER[:columns], [cells(row)[:columns] for row in rows], left=3)
    noted = [[row.claim.id, row.note] for row in rows if row.note and row.simulated is not None]
    if noted:
        print_table("notes", ("claim", "what to know"), noted, left=2)
