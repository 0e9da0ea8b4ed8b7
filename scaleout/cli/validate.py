"""`scaleout validate`: predictions held against measured runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaleout.cli.options import json_option, output_option, print_files

if TYPE_CHECKING:
    from scaleout.validation.measured.compare import Accuracy, Comparison


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--table", metavar="ID", help="Read one table of a file that holds several.")
@click.option("--device", metavar="D", help="Device that the rows were measured on, instead of the one that they name.")
@click.option("--topology", metavar="T", help="Topology that they were measured on, instead of the one that they name.")
@output_option("Write the rows (JSON) and a parity plot here.")
@json_option
def validate(
    files: tuple[Path, ...],
    table: str | None,
    device: str | None,
    topology: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Predict the measured runs of FILES, one JSON object a line, and say how far off the predictions are.

    A row describes its run: {"workload": "llama-3-8b", "changes": {"data_parallel": 8}, "topology": "dgx-h200-1",
    "device": "h200", "schedule": "overlap", "measured_us": 812345}; or it is one of the kinds that scaleout measured
    itself. Rows that cannot be predicted are listed with the reason, and count against the coverage.
    """
    from scaleout.validation.measured.compare import compare_files

    comparison = compare_files(files, table=table, device=device, topology=topology)
    written = _write(comparison, output)
    if as_json:
        click.echo(json.dumps(comparison.summary(), indent=2))
        return
    _print(comparison)
    _print_choices(comparison)
    print_files(written)


def _write(comparison: "Comparison", output: Path | None) -> list[tuple[Path, str]]:
    if output is None:
        return []
    from scaleout.report.plots.accuracy import draw_parity

    output.mkdir(parents=True, exist_ok=True)
    summary, picture = output / "validation.json", output / "parity.png"
    summary.write_text(json.dumps(comparison.summary(), indent=2) + "\n", encoding="utf-8")
    draw_parity(comparison, picture)
    return [(summary, "all rows, and how good each family is"), (picture, "predicted against measured")]


def _print(comparison: "Comparison") -> None:
    from scaleout.cli.console import print_table
    from scaleout.config.units import format_bytes, format_seconds

    formats = {"time": format_seconds, "memory": format_bytes}
    print_table(
        "measured and predicted",
        ("row", "run", "measured", "predicted", "error"),
        [
            [
                row.id,
                row.name or row.family,
                "-" if row.measured is None else formats[row.quantity](row.measured),
                f"not predicted: {row.reason}" if row.predicted is None else formats[row.quantity](row.predicted),
                "-" if row.error is None else f"{row.error:+.1%}",
            ]
            for row in comparison.rows
        ],
        left=2,
    )
    families = comparison.families
    rows = [[name, *_cells(accuracy)] for name, accuracy in families.items()]
    if len(families) > 1:
        rows.append(["all", *_cells(comparison.accuracy)])
    print_table(
        "how good the predictions are",
        ("family", "rows", "predicted", "mean", "median", "90% within", "worst", "bias"),
        rows,
    )


def _print_choices(comparison: "Comparison") -> None:
    from scaleout.cli.console import print_table
    from scaleout.validation.measured.compare import choices

    found = choices(comparison.rows)
    if found:
        print_table(
            "best number of chunks",
            ("GEMM and collective", "measured", "predicted", "measured cost of the choice"),
            [[each.case, str(each.best), str(each.chosen), f"{each.cost:.1%}"] for each in found],
        )


def _cells(accuracy: "Accuracy") -> list[str]:
    errors = (
        f"{accuracy.mean_absolute_error:.1%}",
        f"{accuracy.median_absolute_error:.1%}",
        f"{accuracy.p90_absolute_error:.1%}",
        f"{accuracy.worst:+.1%}",
        f"{accuracy.bias:+.1%}",
    )
    return [str(accuracy.num_rows), str(accuracy.predicted), *(errors if accuracy.predicted else ["-"] * 5)]
