"""Results to pictures: where the time goes in each schedule, and when.

Colours: compute blue, communication orange, idle grey.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator

if TYPE_CHECKING:
    from scaleout.simulation.result import Timeline
    from scaleout.study.comparison import Comparison

COMPUTE, COMMUNICATION, IDLE, PUBLISHED = "#4477aa", "#ee7733", "#cccccc", "#222222"
"""Colours of all figures (Paul Tol's bright scheme, readable without colour vision)."""

SERIES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#885522")
"""Colours of lines that are told apart by a number."""

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "figure.dpi": 150,
    "svg.hashsalt": "scaleout",
}


def draw_comparison(comparison: "Comparison", path: Path) -> None:
    """Draw stacked bars of each schedule's time and, beside them, the first class's timelines on one time axis."""
    with mpl.rc_context(STYLE):
        count = len(comparison.outcomes)
        figure, (bars, chains) = plt.subplots(
            1, 2, figsize=(10, 1.6 + 0.75 * count), width_ratios=(1, 1.6), layout="constrained"
        )
        scale, unit = time_scale(max(outcome.makespan_s for outcome in comparison.outcomes))
        _bars(bars, comparison, scale, unit)
        _chains(chains, comparison, scale, unit)
        figure.suptitle(
            f"{comparison.workload} on {comparison.topology}, {comparison.ranks} ranks of {comparison.device}"
        )
        save(figure, path)


def time_scale(longest_s: float) -> tuple[float, str]:
    """Return what to multiply seconds by, and the unit's name, so that the longest time reads well."""
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if longest_s * scale >= 1:
            return scale, unit
    return 1e9, "ns"


def save(figure: Figure, path: Path) -> None:
    """Write a figure, the same bytes for the same figure."""
    figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
    plt.close(figure)


def _bars(axes: Axes, comparison: "Comparison", scale: float, unit: str) -> None:
    names = [outcome.schedule for outcome in comparison.outcomes]
    left = [0.0] * len(names)
    for label, colour, field in (
        ("compute", COMPUTE, "compute_s"),
        ("exposed communication", COMMUNICATION, "exposed_communication_s"),
        ("idle", IDLE, "idle_s"),
    ):
        widths = [getattr(outcome.breakdown, field) * scale for outcome in comparison.outcomes]
        if label == "idle" and max(widths) < 1e-3 * max(left):
            continue  # an empty entry in the legend tells the reader nothing
        axes.barh(names, widths, left=left, color=colour, label=label, height=0.55)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for index, (outcome, end) in enumerate(zip(comparison.outcomes, left, strict=True)):
        note = f" {end:.4g} {unit}"
        if index:
            note += f"  ({outcome.speedup:.2f}x)"
        axes.text(end, index, note, va="center", fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, max(left) * 1.3)
    axes.set_xlabel(f"time of one step [{unit}]")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.0 + 0.5 / len(names)), ncols=3, frameon=False, fontsize=7)


def _chains(axes: Axes, comparison: "Comparison", scale: float, unit: str) -> None:
    """Draw two rows for each schedule: kernels above, communication below."""
    for index, outcome in enumerate(comparison.outcomes):
        line = outcome.result.timelines[0]
        for communicates, offset, colour in ((False, -0.2, COMPUTE), (True, 0.2, COMMUNICATION)):
            spans = merged_spans(line, communicates=communicates)
            bars = [(start * scale, (end - start) * scale) for start, end in spans]
            axes.broken_barh(bars, (index + offset - 0.17, 0.34), facecolors=colour)
    names = [outcome.schedule for outcome in comparison.outcomes]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, None)
    axes.set_xlabel(f"time [{unit}]")
    axes.legend(
        handles=[Patch(color=COMPUTE, label="kernels"), Patch(color=COMMUNICATION, label="communication")],
        loc="upper center",
        bbox_to_anchor=(0.5, 1.0 + 0.5 / len(names)),
        ncols=2,
        frameon=False,
        fontsize=7,
    )


def merged_spans(line: "Timeline", *, communicates: bool) -> list[tuple[float, float]]:
    """Return the intervals in which a timeline computes, or communicates, joined where they touch."""
    chosen = line.is_communication == communicates
    spans: list[tuple[float, float]] = []
    for start, end in sorted(zip(line.start_s[chosen].tolist(), line.end_s[chosen].tolist(), strict=True)):
        if end == start:
            continue
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        else:
            spans.append((start, end))
    return spans


def draw_reduction(
    labels: Sequence[str],
    reductions: Sequence[float],
    *,
    published: float,
    title: str,
    path: Path,
    published_max: float | None = None,
    xlabel: str = "global batch | tables a node",
) -> None:
    """Draw the execution time of each configuration relative to its baseline, the published mean beside the mean.

    Parameters
    ----------
    labels : sequence of str, length N
    reductions : sequence of float, length N
        Fractions of the baseline's time that are saved.
    published : float
        The paper's mean reduction.
    published_max : float, optional
        The paper's largest, as a line beside the smallest bar.
    """
    mean = sum(reductions) / len(reductions)
    values = [1 - reduction for reduction in (*reductions, mean, published)]
    colours = [COMPUTE] * len(reductions) + [COMMUNICATION, PUBLISHED]
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
        axes.bar([*labels, "mean", "published\nmean"], values, color=colours, width=0.68)
        for index, value in enumerate(values):
            axes.text(index, value - 0.05, f"{value:.2f}", ha="center", fontsize=7, color="white")
        axes.axhline(1, color=IDLE, linewidth=1, zorder=0)
        lines = {f"published mean, {1 - published:.2f}": (1 - published, "--")}
        if published_max is not None:
            lines[f"published best, {1 - published_max:.2f}"] = (1 - published_max, ":")
        for label, (height, style) in lines.items():
            axes.axhline(height, color=PUBLISHED, linestyle=style, linewidth=0.9, zorder=0, label=label)
        axes.legend(frameon=False, fontsize=7, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
        axes.set_ylabel("execution time over baseline")
        axes.set_xlabel(xlabel)
        axes.set_ylim(0, 1.05)
        axes.set_title(title, loc="left")
        axes.tick_params(axis="x", labelsize=7, rotation=30)
        save(figure, path)


def draw_bandwidths(table: pd.DataFrame, path: Path, *, title: str) -> None:
    """Draw bus bandwidth against size: measured points and predicted lines, a panel a collective, a colour a group.

    Parameters
    ----------
    table : DataFrame
        Columns `collective`, `ranks`, `forced` (a protocol, or empty), `bytes`, and `measured_bus_GB_per_s` and
        `predicted_bus_GB_per_s`.
    """
    kinds = list(dict.fromkeys(table["collective"]))
    pairs = sorted(set(zip(table["ranks"].tolist(), table["forced"].tolist(), strict=True)))
    lines = dict(zip(pairs, SERIES, strict=False))
    rows = -(-len(kinds) // 4)
    names = {10: "1 KiB", 20: "1 MiB", 30: "1 GiB"}
    with mpl.rc_context(STYLE):
        figure, grid = plt.subplots(
            rows, min(4, len(kinds)), figsize=(11, 0.6 + 2.5 * rows), sharex=True, sharey=True, layout="constrained"
        )
        panels = np.atleast_1d(grid).ravel()
        for axes, kind in zip(panels, kinds, strict=False):
            for (ranks, forced), colour in lines.items():
                chosen = (table["collective"] == kind) & (table["ranks"] == ranks) & (table["forced"] == forced)
                use = table[chosen].sort_values("bytes")
                axes.plot(use["bytes"], use["predicted_bus_GB_per_s"], color=colour, linewidth=1.2)
                axes.plot(use["bytes"], use["measured_bus_GB_per_s"], "o", color=colour, markersize=2.5)
            axes.set_title(kind)
            axes.set_xscale("log", base=2)
            powers = [power for power in (10, 20, 30) if 2 ** (power + 9) >= table["bytes"].min()]
            axes.set_xticks([2**power for power in powers], [names[power] for power in powers])
            axes.grid(color="#eeeeee")
        for axes in panels[len(kinds) :]:
            axes.axis("off")
        marks: list[Any] = [Line2D([], [], color=c, label=f"{r} ranks {f}".strip()) for (r, f), c in lines.items()]
        marks.append(Line2D([], [], color=IDLE, marker="o", markersize=3, label="points measured, lines predicted"))
        figure.legend(handles=marks, loc="outside lower center", ncols=4, frameon=False)
        figure.supylabel("bus bandwidth [GB/s]", fontsize=9)
        figure.suptitle(title, fontsize=11)
        save(figure, path)


def draw_scaling(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]], *, title: str, path: Path
) -> None:
    """Draw what simulating costs against the number of ranks: processor time, and peak memory beside it.

    Parameters
    ----------
    curves : mapping of str to three sequences
        Label to ranks, times in seconds, and peak memories in bytes.
    """
    colours = dict(zip(curves, (COMPUTE, COMMUNICATION, COMPUTE, COMMUNICATION), strict=False))
    with mpl.rc_context(STYLE):
        figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharex=True)
        for panel, which, scale, unit in (
            (panels[0], 1, 1.0, "processor time [s]"),
            (panels[1], 2, 1e-6, "memory [MB]"),
        ):
            for index, (label, points) in enumerate(curves.items()):
                panel.plot(
                    points[0],
                    [value * scale for value in points[which]],
                    marker="o",
                    markersize=3.5,
                    color=colours[label],
                    linestyle="-" if index < 2 else "--",
                    label=label.replace("_", "-"),
                )
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_xticks([128 * 4**k for k in range(6)], [f"{128 * 4**k:,}" for k in range(6)])
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter("{x:g}")
            panel.yaxis.set_minor_formatter("")
            panel.grid(which="major", color=IDLE, linewidth=0.5)
            panel.set_xlabel("ranks")
            panel.set_ylabel(unit)
        panels[0].set_ylim(bottom=0.1)
        panels[1].set_ylim(bottom=10)
        panels[0].legend(frameon=False, fontsize=8)
        figure.suptitle(title, fontsize=10)
        save(figure, path)
