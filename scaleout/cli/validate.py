"""`scaleout validate`: predictions held against measured runs."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaleout.cli.options import NAME_OR_FILE, PATH, Output, output_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scaleout.validation.measured.arena import Contender
    from scaleout.validation.measured.compare import Accuracy, Comparison


@click.command()
@click.argument("files", nargs=-1, required=True, type=PATH)
@click.option(
    "--table", metavar="NAME", type=NAME_OR_FILE, help="Read one table of a file that holds several, by its name."
)
@click.option("--device", type=NAME_OR_FILE, help="Device of all rows, instead of the one that each names.")
@click.option(
    "--topology",
    type=NAME_OR_FILE,
    help="Topology of all rows, instead of the one that each names.",
)
@click.option("--arena", "in_arena", is_flag=True, help="Score other tools and a roofline on the same rows.")
@output_options("Write the rows (JSON) and a parity plot here.", "parity.png")
def validate(
    files: tuple[Path, ...], table: str | None, device: str | None, topology: str | None, in_arena: bool, output: Output
) -> None:
    """Predict measured runs, and print the errors.

    FILES hold one JSON object a line. A row describes its run: {"workload": "llama-3-8b", "changes":
    {"data_parallel": 8}, "topology": "dgx-h200-1", "device": "h200", "schedule": "overlap", "measured_us": 812345}; or
    it is a row that `scaleout measure` wrote. Rows that cannot be predicted are listed with the reason, and count as
    not predicted; where all rows are wrong, the first is said.
    """
    from scaleout.cli.progress import progress
    from scaleout.report.documents import document
    from scaleout.validation.measured.arena import arena
    from scaleout.validation.measured.compare import compare_files

    once = dict.fromkeys(files)
    with progress(kept="nothing is kept", quiet=output.as_json) as tell:
        comparison = compare_files(
            list(once), table=table, device=device, topology=topology,
            progress=lambda done, total: tell(done, total, "rows predicted"),
        )  # fmt: skip
    asked = {"files": list(map(str, once)), "table": table, "device": device, "topology": topology}
    inputs = {name: value for name, value in asked.items() if value is not None}
    contenders = arena(comparison.rows) if in_arena else []
    found = {"arena": [each.summary() for each in contenders]} if in_arena else {}
    answer, models = _answer(comparison), comparison.models
    summary = document("validate", comparison.summary() | found, inputs=inputs, models=models, answer=answer)

    def write(folder: Path) -> dict[str, str]:
        from scaleout.report.plots.accuracy import draw_parity

        draw_parity(comparison, folder / "parity.png")
        return {"parity.png": "predicted against measured"}

    output.give(summary, partial(_print, comparison, answer, contenders), write)


def _answer(comparison: "Comparison") -> dict[str, str]:
    """Say how many rows are predicted, and how well."""
    total = comparison.accuracy
    facts = {"predicted": f"{total.predicted:,} of {total.num_rows:,} rows"}
    if total.predicted:
        facts |= {
            "mean absolute error": f"{total.mean_absolute_error:.1%}",
            "worst": f"{total.worst:+.1%}",
            "bias": f"{total.bias:+.1%}",
        }
    return facts


def _print(comparison: "Comparison", answer: "Mapping[str, str]", contenders: "Sequence[Contender]") -> None:
    from scaleout.cli.console import console, print_answer, print_table
    from scaleout.config.units import format_bytes, format_seconds
    from scaleout.validation.measured.compare import choices

    print_answer("predictions against measured runs", answer)
    formats: dict[str, Callable[[float], str]] = {"time": format_seconds, "memory": format_bytes, "fit": _format_fit}
    print_table(
        "measured and predicted",
        ("row", "run", "measured", "predicted", "error"),
        [
            [
                row.id,
                row.name or row.family,
                "-" if row.measured is None else formats[row.quantity](row.measured),
                "-" if row.predicted is None else formats[row.quantity](row.predicted),
                "-" if row.error is None else f"{row.error:+.1%}",
            ]
            for row in comparison.rows
        ],
        left=2,
    )
    reasons = [[row.id, row.reason] for row in comparison.rows if row.predicted is None]
    if reasons:
        print_table("not predicted", ("row", "why"), reasons, left=2)
    families = comparison.families
    rows = [[name, *_cells(accuracy)] for name, accuracy in families.items()]
    if len(families) > 1:
        rows.append(["all", *_cells(comparison.accuracy)])
    print_table(
        "errors of the predictions",
        ("family", "rows", "predicted", "mean", "median", "90% within", "worst", "bias"),
        rows,
    )
    bars = comparison.bars
    if bars is not None:
        shares = (f"{share:.1%}" for share in (bars.within, bars.below, bars.above, bars.median_width))
        headings = ("rows", "within", "below", "above", "median width")
        print_table("measured times in error bars of 90%", headings, [[str(bars.num_rows), *shares]], left=0)
    if contenders:
        _print_arena(contenders)
    found = choices(comparison.rows)
    if found:
        columns = ("GEMM and collective", "measured", "predicted", "measured time over the best")
        cells = [[each.case, str(each.best), str(each.chosen), f"{each.cost:.1%}"] for each in found]
        print_table("best number of chunks", columns, cells)
    for each in comparison.models:
        console().print(f"model: {each}")


def _print_arena(contenders: "Sequence[Contender]") -> None:
    from scaleout.cli.console import print_table

    rows = [[each.tool, *_cells(each.accuracy)[1:], f"{each.ours:.1%}"] for each in contenders]
    columns = ("tool", "rows", "mean", "median", "90% within", "worst", "bias", "scaleout's mean on these rows")
    print_table("arena: every tool on the rows that it predicts", columns, rows)


def _format_fit(fits: float) -> str:
    return "fits" if fits else "crashes"


def _cells(accuracy: "Accuracy") -> list[str]:
    errors = (
        f"{accuracy.mean_absolute_error:.1%}",
        f"{accuracy.median_absolute_error:.1%}",
        f"{accuracy.p90_absolute_error:.1%}",
        f"{accuracy.worst:+.1%}",
        f"{accuracy.bias:+.1%}",
    )
    return [str(accuracy.num_rows), str(accuracy.predicted), *(errors if accuracy.predicted else ["-"] * 5)]
