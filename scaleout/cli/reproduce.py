"""`scaleout reproduce`: what the papers publish, simulated."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaleout.cli.options import json_option, output_option, print_files

if TYPE_CHECKING:
    from scaleout.validation.papers import Reproduced


@click.command()
@click.argument("names", nargs=-1, metavar="[PAPER|ID]...")
@output_option("Write the rows (JSON) and a page (Markdown).")
@json_option
def reproduce(names: tuple[str, ...], output: Path | None, as_json: bool) -> None:
    """Simulate what papers publish, and say which of their numbers are met.

    A PAPER is fused, t3, centauri or aluminum; an ID is that of one claim, such as F15-mean; all without either.
    Percentages must come within 5 points, ratios within 15%, counts of GPUs and parameters within a factor of 2.
    """
    rows = _simulate(names)
    written = _write(rows, output)
    if as_json:
        click.echo(json.dumps({"rows": [row.plain() for row in rows]}, indent=2))
        return
    _print(rows)
    print_files(written)


def _simulate(names: tuple[str, ...]) -> "tuple[Reproduced, ...]":
    """Simulate with the figure at work on standard error, where that is a terminal."""
    from rich.console import Console

    from scaleout.validation.papers import reproduce as simulate

    shown = Console(stderr=True)
    if not shown.is_terminal:
        return simulate(names)
    with shown.status("simulating") as status:
        return simulate(names, progress=lambda figure: status.update(f"simulating {figure}"))


def _write(rows: "tuple[Reproduced, ...]", output: Path | None) -> list[tuple[Path, str]]:
    if output is None:
        return []
    from scaleout.validation.papers import page

    output.mkdir(parents=True, exist_ok=True)
    plain, text = output / "reproductions.json", output / "reproductions.md"
    plain.write_text(json.dumps({"rows": [row.plain() for row in rows]}, indent=2) + "\n", encoding="utf-8")
    text.write_text(page(rows), encoding="utf-8")
    return [(plain, "all rows"), (text, "published and simulated, and why claims are missed")]


def _print(rows: "tuple[Reproduced, ...]") -> None:
    from scaleout.cli.console import print_table
    from scaleout.validation.papers import cells

    columns = ("claim", "figure", "what", "published", "simulated", "tolerance", "")
    print_table("published and simulated", columns, [cells(row)[:-1] for row in rows], left=3)
    noted = [[row.claim.id, row.note] for row in rows if row.note and row.simulated is not None]
    if noted:
        print_table("notes", ("claim", "what to know"), noted, left=2)
    of = Counter(row.claim.paper for row in rows)
    met = Counter(row.claim.paper for row in rows if row.met)
    print_table(
        "claims met",
        ("paper", "claims", "simulated", "met"),
        [
            [
                paper,
                str(count),
                str(sum(row.claim.paper == paper and row.simulated is not None for row in rows)),
                str(met[paper]),
            ]
            for paper, count in of.items()
        ],
    )
