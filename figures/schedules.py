"""Three jobs on 128 H200 under five schedules, on four networks between the nodes.

    python figures/schedules.py [--output DIR]

DLRM, Mixtral 8x7B and Llama 3 70B train on 16 nodes of eight H200, whose GPUs have 400 Gb/s each between nodes: two
links of a ring, four of a torus, one of a switch, or one of a fat tree that narrows 2 : 1. Writes schedules.png, a bar
for each step, in compute, exposed communication and idle time, and schedules.md, a table of the steps.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from scaleout import run
from scaleout.config.writing import write_text
from scaleout.report.colours import SERIES
from scaleout.report.plots.schedules import STYLE, save
from scaleout.study.comparison import Comparison

ZERO_1 = {"zero": 1, "overlap_gradient_reduce": True, "overlap_parameter_gather": True}
"""What Centauri's model tier chooses, for all schedules alike: sharded optimizer, gathers left to the next forward."""

JOBS = {
    "dlrm-128": {},
    "mixtral-8x7b": {"data_parallel": 128, **ZERO_1},
    "llama-3-70b": {"data_parallel": 16, **ZERO_1},
}
"""Workloads, and the keys that spread them over 128 ranks and let them fit."""

TITLES = {
    "dlrm-128": "DLRM: tables spread over all GPUs, a global batch of 2,048",
    "mixtral-8x7b": "Mixtral 8x7B: experts spread over eight GPUs, 128 replicas of all else, ZeRO-1",
    "llama-3-70b": "Llama 3 70B: tensor-parallel over eight GPUs, 16 replicas, ZeRO-1",
}

NETWORKS = {
    "torus of 4 x 4 nodes": "dgx-h200-16-torus",
    "ring of 16 nodes": "dgx-h200-16-ring",
    "switch": "dgx-h200-16",
    "fat tree, 2:1": "dgx-h200-16-fat-tree",
}
SCHEDULES = ("baseline", "overlap", "centauri", "fused", "centauri+fused")


def draw(axes: Axes, found: list[Comparison]) -> None:
    """Draw the steps of a job, a group of bars for each network; what is not compute is pale."""
    width = 0.85 / len(SCHEDULES)
    for number, colour in zip(range(len(SCHEDULES)), SERIES, strict=False):
        at = np.arange(len(found)) + (number - (len(SCHEDULES) - 1) / 2) * width
        outcomes = [comparison.outcomes[number] for comparison in found]
        computes = [1e3 * outcome.breakdown.compute_s for outcome in outcomes]
        steps = [1e3 * outcome.makespan_s for outcome in outcomes]
        axes.bar(at, steps, width * 0.9, color=colour, alpha=0.4)
        axes.bar(at, computes, width * 0.9, color=colour, label=outcomes[0].schedule)
        for place, step, first in zip(at, steps, found, strict=True):
            gain = 1e3 * first.outcomes[0].makespan_s / step
            axes.annotate(f"{gain:.2f}", (place, step), ha="center", va="bottom", fontsize=6)
    axes.margins(y=0.1)
    axes.set_xticks(range(len(NETWORKS)), list(NETWORKS))
    axes.set_title(TITLES[found[0].workload], loc="left")
    axes.set_ylabel("step [ms]")


def table(found: list[Comparison]) -> str:
    """Return the steps in milliseconds as a table in Markdown."""
    lines = [f"| job | network | {' | '.join(SCHEDULES)} |", "|---|---|" + "---:|" * len(SCHEDULES)]
    for comparison in found:
        steps = (f"{outcome.makespan_s * 1e3:.4g}" for outcome in comparison.outcomes)
        lines.append(f"| {comparison.workload} | {comparison.topology} | {' | '.join(steps)} |")
    title = "# Steps of three jobs on 128 H200 under five schedules, in ms"
    about = (
        "By `python figures/schedules.py`, which says what each job is. `centauri` partitions communication, and\n"
        "overlaps too; `baseline` and `fused` overlap nothing else. Mixtral and Llama shard their optimizer\n"
        "(ZeRO-1) under all schedules, as Centauri would, so that the schedules differ and not the plans."
    )
    return "\n".join([title, "", about, "", *lines, ""])


def main() -> None:
    """Simulate, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="directory to write to")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    found = {
        job: [
            run(job, topology=topology, changes=changes, schedules=list(SCHEDULES)).comparison
            for topology in NETWORKS.values()
        ]
        for job, changes in JOBS.items()
    }
    write_text(output / "schedules.md", table([each for mine in found.values() for each in mine]))
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(len(JOBS), 1, figsize=(9, 8), layout="constrained")
        for panel, mine in zip(panels, found.values(), strict=True):
            draw(panel, mine)
        parts = [Patch(color="#555555", label="compute"), Patch(color="#555555", alpha=0.4, label="exposed or idle")]
        handles = [*panels[0].get_legend_handles_labels()[0], *parts]
        place = {"loc": "lower left", "bbox_to_anchor": (-0.07, 1.1)}
        panels[0].legend(handles=handles, frameon=False, fontsize=8, ncols=len(handles), **place)
        figure.supxlabel(
            "network between 16 nodes of eight H200, 400 Gb/s a GPU; NVLink within a node\n"
            "numbers: speed-up over baseline, which overlaps nothing; fused overlaps nothing but what it fuses; "
            "compute is as slowed by what runs beside it",
            fontsize=8,
        )  # fmt: skip
        save(figure, output / "schedules.png")
    print(output / "schedules.md")
    print(output / "schedules.png")


if __name__ == "__main__":
    main()
