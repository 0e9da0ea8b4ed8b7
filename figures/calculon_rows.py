"""Record what Calculon predicts of published steps: scaleout/validation/published/calculon.jsonl, for the arena.

    python figures/calculon_rows.py CHECKOUT [--tables TABLES]

CHECKOUT is a clone of github.com/calculon-ai/calculon, which is run and not copied: its shipped system of A100 80 GB,
for Megatron-LM's steps by the executions that it ships, and for vTrain's on many nodes, with full recompute, no
interleaving and no overlap. Rows that it refuses are recorded with its reason.
"""

import argparse
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from scaleout.config.documents import to_json
from scaleout.config.writing import write_text

TABLES = Path(__file__).parents[2] / "shared" / "validation" / "tables.json"
RECORDED = Path(__file__).parents[1] / "scaleout" / "validation" / "published" / "calculon.jsonl"
SYSTEM = "systems/a100_80g.json"


def megatron(checkout: Path, rows: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield each step of Megatron-LM's table: id, application and execution, both as Calculon ships them."""
    for number, row in enumerate(rows, start=1):
        app = json.loads((checkout / "models" / f"{row['model']}.json").read_text())
        for mode in ("full", "seqsel"):
            file = checkout / "validation" / "seqsel" / "tab5" / f"{row['model']}_{mode}.json"
            yield f"megatron_seqsel_tab5:{number}:{mode}", app, json.loads(file.read_text())


def vtrain(checkout: Path, rows: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield each step of vTrain's table of many nodes; an execution is Calculon's of 175B, changed."""
    base = json.loads((checkout / "validation" / "seqsel" / "tab5" / "gpt3-175B_full.json").read_text())
    for number, row in enumerate(rows, start=1):
        hidden, heads = row["hidden size"], row["attention heads"]
        app = {
            "hidden": hidden, "feedforward": 4 * hidden, "seq_size": row["sequence length"], "attn_heads": heads,
            "attn_size": hidden // heads, "num_blocks": row["# layers"],
        }  # fmt: skip
        tensor = row["tensor parallelism"]
        changes = {
            "num_procs": row["# GPUs"], "tensor_par": tensor, "pipeline_par": row["pipeline parallelism"],
            "data_par": row["data parallelism"], "batch_size": row["global batch"],
            "microbatch_size": row["micro batch"], "pipeline_interleaving": 1,
            "tensor_par_net": 0 if tensor <= 8 else 1,
        }  # fmt: skip
        yield f"vtrain_multi:{number}", app, {**base, **changes}


def predictions(checkout: Path, tables: Path) -> Iterator[dict[str, Any]]:
    """Yield what Calculon says of each row."""
    sys.path.insert(0, str(checkout))
    Llm, System = import_module("calculon.llm").Llm, import_module("calculon.system").System  # noqa: N806 - classes

    log = logging.getLogger("calculon")
    system = System(json.loads((checkout / SYSTEM).read_text()))
    held = {table["id"]: table["rows"] for table in json.loads(tables.read_text())["tables"]}
    for rows in (megatron(checkout, held["megatron_seqsel_tab5"]), vtrain(checkout, held["vtrain_multi"])):
        for name, app, execution in rows:
            model = Llm(Llm.Application(app), log)
            try:
                model.compile(system, Llm.Execution.from_json(execution))
                model.run(system)
                yield {"id": name, "us": model.get_total_time() * 1e6}
            except (Llm.Error, AssertionError) as error:
                yield {"id": name, "reason": str(error) or "refused by an assertion"}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="clone of calculon-ai/calculon")
    parser.add_argument("--tables", type=Path, default=TABLES, help="file of published tables")
    parser.add_argument("--commit", help="of the checkout, if it has no .git")
    options = parser.parse_args()
    commit = (
        options.commit
        or subprocess.run(
            ["git", "-C", str(options.checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    about = {
        "tool": "Calculon",
        "source": f"github.com/calculon-ai/calculon at {commit}, {SYSTEM}",
        "command": "python figures/calculon_rows.py CHECKOUT",
    }
    lines = [{"provenance": about}, *predictions(options.checkout, options.tables)]
    write_text(RECORDED, "".join(f"{to_json(line, indent=None)}\n" for line in lines))


if __name__ == "__main__":
    main()
