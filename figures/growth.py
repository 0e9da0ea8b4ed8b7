"""How the cost of a simulation grows with ranks, nodes, ranks that differ, and messages: time, memory, exponents.

    python figures/growth.py [--output DIR]

Writes growth.png and growth.csv from what `tests/benchmarks/growth.py` measures, which says how. Dotted lines are the
powers that it fits to the larger half of each curve's points.
"""

import argparse
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from scaleout.report.colours import COMMUNICATION, COMPUTE, IDLE, SERIES
from scaleout.report.plots.schedules import drawn

BENCHMARK = Path(__file__).parents[1] / "tests" / "benchmarks" / "growth.py"
COLOURS = {"alone": COMPUTE, "contention": COMMUNICATION, "links": SERIES[2]}
LABELS = {"alone": "alpha-beta", "contention": "alpha-beta, contention", "links": "links of a torus"}
SETTINGS = {
    "ranks": ", all different",
    "nodes a rank": ", 64 different ranks",
    "ranks that differ": ", of 1,024",
    "messages in flight": ", random",
}
"""What does not grow."""

COSTS = (("processor_s", 1.0, "processor time [s]"), ("added_bytes", 1e-6, "memory [MB]"))


def draw_curve(panel: Axes, curve: pd.DataFrame, cost: str, scale: float, model: str) -> None:
    """Draw a curve, and the power that fits its larger half."""
    curve = curve.sort_values("value")
    panel.plot(
        curve["value"], curve[cost] * scale, marker="o", markersize=3.5, linewidth=1.2, color=COLOURS[model],
        label=LABELS[model],
    )  # fmt: skip
    last = curve.tail(math.ceil(len(curve) / 2))
    power, offset = np.polyfit(np.log(last["value"]), np.log(last[cost] * scale), 1)
    ends = np.array([curve["value"].min(), curve["value"].max()], float)
    panel.plot(ends, np.exp(offset) * ends**power, color=COLOURS[model], linestyle=":", linewidth=1, zorder=1)
    panel.annotate(
        f"$n^{{{power:.2f}}}$", (ends[1], float(np.exp(offset) * ends[1] ** power)), xytext=(4, 0),
        textcoords="offset points", va="bottom" if model == "contention" else "top", fontsize=8, color=COLOURS[model],
    )  # fmt: skip


def draw(points: pd.DataFrame, path: Path) -> None:
    """Draw a column of panels for each quantity that grows, time above memory."""
    sweeps = list(dict.fromkeys(points["against"]))
    title = "Simulating a step of Llama 3 8B, each rank that differs slowed by a factor of its own; and messages alone"
    with drawn(path, 2, len(sweeps), title=title, figsize=(12, 5), sharex="col", sharey="row") as (_, grid):
        for panels, (cost, scale, unit) in zip(grid, COSTS, strict=True):
            for panel, sweep in zip(panels, sweeps, strict=True):
                for model, curve in points[points["against"] == sweep].groupby("model", sort=False):
                    draw_curve(panel, curve, cost, scale, str(model))
                panel.set_xscale("log", base=2)
                panel.set_yscale("log")
                panel.yaxis.set_major_locator(LogLocator())
                panel.yaxis.set_major_formatter("{x:g}")
                values = sorted(set(points["value"][points["against"] == sweep]))
                panel.set_xticks(values, [f"{value:,}" for value in values])
                panel.xaxis.set_minor_locator(NullLocator())
                panel.grid(which="major", color=IDLE, linewidth=0.5)
                panel.margins(x=0.12, y=0.12)
            panels[0].set_ylabel(unit)
        for panel, sweep in zip(grid[1], sweeps, strict=True):
            panel.set_xlabel(f"{sweep}{SETTINGS.get(sweep, '')}")
        for panel in (grid[0][0], grid[0][-1]):
            panel.legend(frameon=False, fontsize=8)


def main() -> None:
    """Measure, print the table, and write it and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="directory to write to")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    table = output / "growth.csv"
    subprocess.run([sys.executable, str(BENCHMARK), "--csv", str(table)], check=True)
    draw(pd.read_csv(table), output / "growth.png")


if __name__ == "__main__":
    main()
