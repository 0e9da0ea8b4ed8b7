"""Pipeline schedules side by side: one small model on the four GPUs of a node, eight micro-batches.

    python figures/pipelines.py [--output DIR]

Writes pipelines.png and pipelines.csv. Every stage is two layers of a GPT of hidden size 4096, sequence 4096, with
neither embedding nor head, so that stages are alike, as the papers draw them; kernel times are those of an H200,
messages those of its NVLink. Bubble: share of the step in which a rank waits for others of its pipeline, the mean.

Source of each schedule: `scaleout list pipelines`.
"""

import argparse
from pathlib import Path

import pandas as pd

from scaleout import compare
from scaleout.analysis.pipeline import Actions, actions
from scaleout.config.writing import write_text
from scaleout.report.plots.pipelines import draw_pipelines
from scaleout.workloads.families import Transformer
from scaleout.workloads.memory import peak

PIPELINES = ("gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v", "dualpipe")
MODEL = {
    "kind": "transformer", "name": "gpt", "description": "eight layers without embedding and head",
    "source": "sizes as GPT-3 6.7B, arXiv:2005.14165, Table 2.1", "topology": "h200-node-4", "device": "h200",
    "layers": 8, "hidden": 4096, "heads": 32, "ffn": 16384, "sequence": 4096,
    "pipeline_parallel": 4, "batch_per_replica": 8, "microbatch": 1, "optimizer": "none",
}  # fmt: skip


def simulate() -> tuple[pd.DataFrame, list[tuple[str, list[Actions], float]]]:
    """Return one row and one panel a schedule."""
    rows, panels = [], []
    for name in PIPELINES:
        job = Transformer.model_validate(MODEL | {"pipeline_schedule": name})
        (outcome,) = compare(job, schedules=("baseline",)).outcomes
        assert outcome.efficiency is not None
        bubble, highest = outcome.efficiency.bubble, peak(job)
        rows.append(
            {
                "pipeline": name,
                "step_s": outcome.makespan_s,
                "bubble": bubble,
                "activations_bytes": highest.bytes_of["activations"],
                "peak_bytes": highest.total_bytes,
            }
        )
        title = f"{name}: bubble {bubble:.1%}, peak {highest.total_bytes / 2**30:.1f} GiB"
        panels.append((title, actions(outcome.result, job), outcome.makespan_s))
    return pd.DataFrame(rows), panels


def main() -> None:
    """Simulate, print the table, and write it and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="directory to write to")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    table, panels = simulate()
    write_text(output / "pipelines.csv", table.to_csv(index=False))
    draw_pipelines(panels, output / "pipelines.png", columns=1, title="One step of eight micro-batches on four H200")
    print(table.to_string(index=False, float_format="%.4g"))


if __name__ == "__main__":
    main()
