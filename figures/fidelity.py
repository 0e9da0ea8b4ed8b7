"""How accurate scaleout is: every family of measured runs, its error, its worst row; as a table and a parity plot.

    python figures/fidelity.py [MEASUREMENTS] [--output DIR]

MEASUREMENTS is a folder of files that `scaleout validate` reads: steps.jsonl, hybrid.jsonl, pipeline.jsonl,
contention.jsonl, collectives.jsonl, collectives_graph.jsonl, fused.jsonl, kernels.jsonl and kernels_extra.jsonl of four
H200, with an environment.json beside them. Those that are not there are left out, with a message. Writes fidelity.md,
fidelity.png and fidelity.json.
"""

import argparse
import json
from pathlib import Path

from scaleout.parity_plot import draw_parity
from scaleout.validation import Compared, Comparison, compare_files

FILES = (
    "steps.jsonl", "hybrid.jsonl", "pipeline.jsonl", "contention.jsonl", "collectives.jsonl", "collectives_graph.jsonl",
    "fused.jsonl", "kernels.jsonl", "kernels_extra.jsonl",
)  # fmt: skip

BESIDE = Path(__file__).parents[2] / "shared" / "measurements" / "h200-x4"
"""Where the measured rows lie, beside the repository."""


def table_of(comparison: Comparison) -> str:
    """Return the families as a table in Markdown: rows, errors, bias, and the row that is furthest off."""
    lines = [
        "| family | rows | predicted | mean | median | 90% within | bias | worst row |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, found in comparison.families.items():
        rows = [row for row in comparison.rows if row.family == name and row.error is not None]
        errors = (found.mean_absolute_error, found.median_absolute_error, found.p90_absolute_error)
        cells = [name, str(found.num_rows), str(found.predicted)]
        cells += [*(f"{error:.1%}" for error in errors), f"{found.bias:+.1%}", _worst(rows)] if rows else ["-"] * 5
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _worst(rows: list[Compared]) -> str:
    worst = max(rows, key=lambda row: abs(row.error or 0.0))
    return f"{worst.name or worst.family} ({worst.id}) {worst.error:+.1%}"


def main() -> None:
    """Predict all rows that are there, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measurements", type=Path, nargs="?", default=BESIDE, help="folder of measured rows")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="directory to write to")
    options = parser.parse_args()
    found = [options.measurements / name for name in FILES if (options.measurements / name).is_file()]
    for name in FILES:
        if options.measurements / name not in found:
            print(f"{options.measurements / name} is not there; left out")
    if not found:
        print("nothing to compare with; nothing written")
        return
    comparison = compare_files(found)
    options.output.mkdir(parents=True, exist_ok=True)
    table = table_of(comparison)
    (options.output / "fidelity.md").write_text(table, encoding="utf-8")
    (options.output / "fidelity.json").write_text(json.dumps(comparison.summary(), indent=2) + "\n", encoding="utf-8")
    draw_parity(comparison, options.output / "fidelity.png")
    print(table)


if __name__ == "__main__":
    main()
