"""Write docs/arena.md: scaleout, other tools and a straw man on the same published steps.

    python figures/arena.py [--tables TABLES] [--output FOLDER]

TABLES is a file of published tables. `scaleout validate TABLES --table ID --arena` prints one table's.
"""

import argparse
from pathlib import Path

from scaleout.config.writing import write_text
from scaleout.validation.measured.arena import Contender, arena
from scaleout.validation.measured.compare import Compared, compare_files

SHARED = Path(__file__).parents[2] / "shared" / "validation" / "tables.json"
DOCS = Path(__file__).parents[1] / "docs"
TABLES = {
    "megatron_seqsel_tab5": "Megatron-LM's steps, 22B to 1T on up to 512 A100",
    "vtrain_multi": "vTrain's steps of Megatron-DeepSpeed, 3.6B to 175B on 64 to 512 A100",
    "llm_foundry_mpt": "llm-foundry's FSDP steps, 125M to 70B on 8 to 512 A100 and H100",
    "torchtitan_llama3_h100_202412_torchtitan": "torchtitan's steps of Llama 3.1, 8B to 405B on 8 to 512 H100",
    "maxtext_tpu_v4": "MaxText's steps on TPU v4",
    "maxtext_tpu_v5e": "MaxText's steps on TPU v5e",
    "simumax_b200": "SimuMax's runs of Megatron-LM on 8 B200",
}
"""Published table to what its rows are."""
HEAD = """# Arena

Made by `python figures/arena.py`; `scaleout validate FILE --arena` scores the same tools on rows of yours. A tool is
scored on the rows of which it has a prediction, and the last column is scaleout's mean on those alone. The roofline is
the straw man of the field: the FLOPs that the model needs over the device's peak, at one utilisation a device, the
median of the very rows that it is scored on, which flatters it.

Predictions of others are recorded with their source and not run: SimuMax's are in its published rows; Calculon's were
made by `python figures/calculon_rows.py` with the system of A100 that it ships, which was made for the first table.
vTrain publishes its mean errors, 8.4% on a node (1,440 rows) and 14.7% on several (109 rows), and none by row. What
constants of scaleout were chosen on which of these tables is on the [accuracy page](accuracy.md).
"""


def section(title: str, found: list[Contender]) -> str:
    """Return the scores on some rows as a section."""
    lines = [
        f"\n## {title}\n",
        "| tool | rows | mean | median | 90% within | worst | bias | scaleout's mean on these rows |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in found:
        score = each.accuracy
        size = (score.mean_absolute_error, score.median_absolute_error, score.p90_absolute_error)
        cells = [f"{error:.1%}" for error in size] + [f"{error:+.1%}" for error in (score.worst, score.bias)]
        lines.append(f"| {each.tool} | {score.predicted} | {' | '.join(cells)} | {each.ours:.1%} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=Path, default=SHARED, help="file of published tables")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder for arena.md")
    options = parser.parse_args()
    if not options.tables.is_file():
        print(f"{options.tables} is not here: nothing is scored; give --tables")
        return
    rows: list[Compared] = []
    sections = []
    for name, title in TABLES.items():
        found = compare_files([options.tables], table=name).rows
        rows += found
        sections.append(section(title, arena(found)))
    sources = "\n".join(f"- {each.tool}: {each.source}" for each in arena(rows))
    options.output.mkdir(parents=True, exist_ok=True)
    write_text(
        options.output / "arena.md",
        f"{HEAD}{section('All of them', arena(rows))}{''.join(sections)}\n## Sources\n\n{sources}\n",
    )


if __name__ == "__main__":
    main()
