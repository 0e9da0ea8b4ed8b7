"""How accurate scaleout is: every family of measured runs, its error, its worst row; as a table and a parity plot.

    python figures/fidelity.py [MEASUREMENTS] [--tables FILE] [--output DIR]

MEASUREMENTS is a folder of files that `scaleout validate` reads: steps.jsonl, hybrid.jsonl, pipeline.jsonl,
contention.jsonl, collectives.jsonl, collectives_graph.jsonl, fused.jsonl, kernels.jsonl and kernels_extra.jsonl of four
H200, with an environment.json beside them. Those that are not there are left out, with a message. With --tables, or a
file of published tables where ours lies, all tables in it that are known follow. Writes fidelity.md, fidelity.png and
fidelity.json.
"""

import argparse
import json
from pathlib import Path

from scaleout.config.writing import write_json, write_text
from scaleout.report.plots.accuracy import draw_parity
from scaleout.validation.measured.compare import Compared, Comparison, choices, compare_files
from scaleout.validation.published import SOURCES

FILES = (
    "steps.jsonl", "hybrid.jsonl", "pipeline.jsonl", "contention.jsonl", "collectives.jsonl", "collectives_graph.jsonl",
    "fused.jsonl", "kernels.jsonl", "kernels_extra.jsonl",
)  # fmt: skip

SHARED = Path(__file__).parents[2] / "shared"
BESIDE, PUBLISHED = SHARED / "measurements" / "h200-x4", SHARED / "validation" / "tables.json"
"""Where the measured rows and the published tables lie, beside the repository."""


WHY = {
    "transformer": "likely the host, whose calls vary by a third between runs",
    "data parallel": "not known; ranks that differ in pace are not modelled",
    "mixture of experts": "run from a gradient of ones, whose GEMMs draw less power: 3 to 8%; the rest is not known",
    "chunked overlap": "four all-reduces of 16 MiB take 8 to 12% less than the fit of the library says",
    "async TP": "a small GEMM whose slices the host issues; its calls vary by a third between runs",
    "DLRM": "not known",
    "hybrid": "not known",
    "pipeline": "not known",
    "pipeline stage": "not known",
    "contention, compute": "an isolated GEMM of 8192 cubed runs at the power limit, so a collective hardly slows it",
    "contention, collective": "beside look-ups, collectives waited for longer than any kernel lasts; likely the host",
    "collectives": "a hiccup of the run: this mean is 1,361 us, its least repeat 108",
    "fused operators": "a small grid in oblivious order: work-groups stay in step in the model",
    "fused operators, bulk-synchronous": "likely the Triton GEMM: one factor over cuBLAS for all shapes",
    "kernels, gemm": "16 rows: cuBLAS changes kernels abruptly at few rows or columns",
    "kernels, attention of decode": "likely as the longest of its series: nothing measured beyond it",
    "kernels, rows": "not known",
    "kernels, elementwise": "likely the cache, which holds part of it",
    "kernels, gather": "not known",
    "kernels, convolution": "likely another of cuDNN's kernels than its neighbors take",
    "NCCL": "not known",
    "Megatron-LM": "not known; the largest and the smallest models are too fast",
    "Megatron-LM memory": "rounding of the published figures",
    "vTrain, one node": "measured times do not grow with the work: two sequences take no longer than one",
    "vTrain, many nodes": "measured times do not scale with the work at micro-batches of 2 to 6; no mechanism found",
    "llm-foundry": "likely the host, which bounds small models on A100",
    "torchtitan": "context parallelism over two GPUs; how its ring was overlapped is not published",
    "torchtitan async TP": "not known; no fp8 GEMM of H100 was measured",
    "MaxText": "32 slices, between which the network gives less than its nominal rate",
    "SimuMax": "DeepSeek-V2; V3 of the same kinds of kernels is within 4%, no mechanism found",
    "SimuMax memory": "not known",
}
"""Family to why its worst row is off, as far as is known."""


def table_of(comparison: Comparison) -> str:
    """Return the families as a table in Markdown: rows, errors, bias, the row that is furthest off, and why."""
    lines = [
        "| family | rows | predicted | mean | median | 90% within | bias | worst row | why |",
        "|---|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for name, found in comparison.families.items():
        rows = [row for row in comparison.rows if row.family == name and row.error is not None]
        errors = (found.mean_absolute_error, found.median_absolute_error, found.p90_absolute_error)
        cells = [name, str(found.num_rows), str(found.predicted)]
        numbers = [*(f"{error:.1%}" for error in errors), f"{found.bias:+.1%}"]
        cells += [*numbers, _worst(rows), WHY.get(name, "")] if rows else [*["-"] * 5, _reason(comparison, name)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def table_of_choices(comparison: Comparison) -> str:
    """Return what choosing a number of chunks by prediction costs, as a section; empty without such rows."""
    found = choices(comparison.rows)
    lines = [
        "\n## Best number of chunks\n",
        "A GEMM M x N x K cut along its rows, each part's collective behind it. The number of the least predicted",
        "time is the choice; its cost is how much longer it took than the best, as measured.\n",
        "| GEMM and collective | chunks: measured, predicted | best | choice | cost |",
        "|---|---|---:|---:|---:|",
    ]
    for each in found:
        times = ", ".join(
            f"{chunks}: {measured_s * 1e6:.0f}, {each.predicted_s[chunks] * 1e6:.0f} us"
            for chunks, measured_s in each.measured_s.items()
        )
        lines.append(f"| {each.case} | {times} | {each.best} | {each.chosen} | {each.cost:.1%} |")
    return "\n".join(lines) + "\n" if found else ""


def _worst(rows: list[Compared]) -> str:
    worst = max(rows, key=lambda row: abs(row.error or 0.0))
    return f"{worst.name or worst.family} ({worst.id}) {worst.error:+.1%}"


def _reason(comparison: Comparison, family: str) -> str:
    """Why rows of a family are not predicted: the reason of the first."""
    return next(row.reason for row in comparison.rows if row.family == family)


def published(file: Path) -> list[Compared]:
    """Return the rows of all tables of a file that are known."""
    held = {str(table["id"]) for table in json.loads(file.read_text(encoding="utf-8"))["tables"]}
    known = [name for name in SOURCES if name in held]
    return [row for name in known for row in compare_files([file], table=name).rows]


def main() -> None:
    """Predict all rows that are there, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measurements", type=Path, nargs="?", default=BESIDE, help="folder of measured rows")
    parser.add_argument("--tables", type=Path, default=PUBLISHED, help="file of published tables")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="directory to write to")
    options = parser.parse_args()
    found = [options.measurements / name for name in FILES if (options.measurements / name).is_file()]
    for name in FILES:
        if options.measurements / name not in found:
            print(f"{options.measurements / name} is not there; left out")
    rows = list(compare_files(found).rows) if found else []
    rows += published(options.tables) if options.tables.is_file() else []
    if not rows:
        print("nothing to compare with; nothing written")
        return
    comparison = Comparison(tuple(rows))
    options.output.mkdir(parents=True, exist_ok=True)
    table = "# How accurate\n\nMade by `python figures/fidelity.py`; rows and their errors are in fidelity.json.\n\n"
    table += table_of(comparison) + table_of_choices(comparison)
    write_text(options.output / "fidelity.md", table)
    write_json(options.output / "fidelity.json", comparison.summary())
    draw_parity(comparison, options.output / "fidelity.png")
    print(table)


if __name__ == "__main__":
    main()
