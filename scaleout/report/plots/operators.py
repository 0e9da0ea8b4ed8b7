"""Fused operators and tracked GEMMs to pictures: work-groups over time, slices on their way, memory traffic.

A row of a timeline is a persistent work-group: tasks for other ranks blue, its own rank's light blue, polling grey;
dots are the one-sided puts that it issues. Below, the share of remote slices that has left and that has arrived.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from scaleout.report.colours import COMMUNICATION, COMPUTE, IDLE, PUBLISHED, SERIES, time_scale
from scaleout.report.plots.schedules import drawn, is_narrow, legend_columns
from scaleout.schedule.fusion import Evaluation
from scaleout.schedule.fusion.fused import RankTimeline, Recipe
from scaleout.schedule.t3.overlap import Overlapped

_LOCAL = "#a9c8e8"
_SHOWN = 32
"""Work-groups that are drawn, the first ones, as in the paper's Fig. 11."""
_FAR_APART = 8.0
"""Ratio of times beyond which their axis is logarithmic."""
_EDGES = 60
"""Most tasks of a work-group between which edges are drawn."""


def draw_timelines(evaluation: Evaluation, path: Path, *, title: str) -> None:
    """Draw the first work-groups of the ranks that differ, and what is on its way, in both orders."""
    shown = [(order, rank) for order, run in evaluation.runs.items() for rank in _ends(run.ranks)]
    scale, unit = time_scale(evaluation.runs["oblivious"].time_s)
    size = (1.5 + 3.6 * len(shown), 5.4)
    with drawn(path, 2, len(shown), title=title, figsize=size, height_ratios=(3, 1), sharex=True) as (figure, grid):
        for column, (order, rank) in enumerate(shown):
            recipe = evaluation.plan.recipes[order]
            _work_groups(grid[0, column], recipe, rank, scale)
            _slices(grid[1, column], recipe, rank, scale)
            many = len(evaluation.runs[order].ranks) == 1
            of = "every rank" if many else f"rank {rank.rank}"
            grid[0, column].set_title(f"{order} order,{chr(10) if is_narrow() else ' '}{of}")
            grid[1, column].set_xlabel(f"time [{unit}]" if is_narrow() else f"time in the kernel [{unit}]")
        grid[0, 0].set_xlim(0, 1.03 * scale * max(_ends_at(evaluation.plan.recipes[o], rank) for o, rank in shown))
        grid[0, 0].set_ylabel("persistent work-group")
        grid[1, 0].set_ylabel("share of slices")
        figure.legend(
            handles=_legend(evaluation.plan.recipes["aware"]),
            loc="outside lower center",
            ncols=legend_columns(7),
            frameon=False,
        )


def _ends_at(recipe: Recipe, rank: RankTimeline) -> float:
    """Return when a rank is done, counted from the first task."""
    return max(rank.done_s - recipe.launch_s, float(rank.arrival_s.max()))


def _ends(ranks: Sequence[RankTimeline]) -> Sequence[RankTimeline]:
    return ranks if len(ranks) == 1 else (ranks[0], ranks[-1])


def _legend(recipe: Recipe) -> list[Patch | Line2D]:
    calls = [Line2D([], [], color=COMMUNICATION, marker="o", markersize=3, linestyle="", label="PUT issued")]
    return [
        Patch(color=COMPUTE, label="tasks for other ranks"),
        Patch(color=_LOCAL, label="tasks for the own rank"),
        Patch(color=IDLE, label="polling"),
        *(calls if recipe.call_s else []),
        Line2D([], [], color=COMPUTE, label="left"),
        Line2D([], [], color=COMMUNICATION, label="arrived"),
        Line2D([], [], color=PUBLISHED, linestyle="--", linewidth=0.8, label="rank done"),
    ]


def _work_groups(axes: Axes, recipe: Recipe, rank: RankTimeline, scale: float) -> None:
    """Draw the tasks of the first work-groups, joined where they are for the same side and too many to tell apart."""
    work, run = recipe.work, rank.execution
    own = np.repeat(np.array(rank.shards) == rank.rank, work.tasks // len(rank.shards))
    end_s = rank.done_s - recipe.launch_s
    for slot in range(min(_SHOWN, work.slots)):
        tasks = slice(slot, None, work.slots)
        starts, ends, mine = run.start_s[tasks], run.end_s[tasks], own[tasks]
        few = len(starts) <= _EDGES
        for is_own, colour in ((False, COMPUTE), (True, _LOCAL)):
            spans = _spans(starts[mine == is_own], ends[mine == is_own], joined=not few)
            bars = [(start * scale, (end - start) * scale) for start, end in spans]
            axes.broken_barh(
                bars, (slot - 0.4, 0.8), facecolors=colour, edgecolor="white", linewidth=0.4 if few else 0.0
            )
        axes.broken_barh([(ends[-1] * scale, (end_s - ends[-1]) * scale)], (slot - 0.4, 0.8), facecolors=IDLE)
    if recipe.call_s:
        sent = np.flatnonzero(
            (run.issuer < _SHOWN) & ~np.repeat(np.array(rank.shards) == rank.rank, work.slices // len(rank.shards))
        )
        axes.plot(run.issued_s[sent] * scale, run.issuer[sent], "o", color=COMMUNICATION, markersize=1.8, linewidth=0)
    axes.axvline(end_s * scale, color=PUBLISHED, linestyle="--", linewidth=0.8)
    axes.set_ylim(min(_SHOWN, work.slots) - 0.5, -0.5)


def _spans(starts: np.ndarray, ends: np.ndarray, *, joined: bool) -> list[tuple[float, float]]:
    """Return intervals; those less than a tenth of one apart as one, if they are to be joined."""
    if not joined or not len(starts):
        return list(zip(starts.tolist(), ends.tolist(), strict=True))
    gap = 0.1 * float((ends - starts).mean()) + 1e-12
    cuts = np.flatnonzero(starts[1:] - ends[:-1] > max(gap, 5e-6))
    first, last = np.append(0, cuts + 1), np.append(cuts, len(starts) - 1)
    return list(zip(starts[first].tolist(), ends[last].tolist(), strict=True))


def _slices(axes: Axes, recipe: Recipe, rank: RankTimeline, scale: float) -> None:
    """Draw which part of a rank's remote slices has left, and which has arrived."""
    remote = ~np.repeat(np.array(rank.shards) == rank.rank, recipe.work.slices // len(rank.shards))
    parts = np.linspace(0, 1, remote.sum())
    left = np.zeros(remote.sum()) if recipe.consumes else np.sort(rank.execution.issued_s[remote])
    for times, colour in ((left, COMPUTE), (np.sort(rank.arrival_s[remote]), COMMUNICATION)):
        axes.plot(times * scale, parts, color=colour, linewidth=1.2)
    axes.axvline((rank.done_s - recipe.launch_s) * scale, color=PUBLISHED, linestyle="--", linewidth=0.8)
    axes.set_ylim(0, 1.05)


TIMES: Mapping[str, str] = {
    "baseline_s": "bulk-synchronous",
    "kernel_split_s": "split into kernels",
    "fused_oblivious_s": "fused, oblivious",
    "fused_aware_s": "fused, aware",
    "ideal_s": "ideal",
}
"""Times of an evaluation to what they are called."""


def draw_sweep(key: str, rows: Sequence[Mapping[str, float]], path: Path, *, title: str) -> None:
    """Draw all times of an operator against a key; `rows` have its values and the times, as `Evaluation.plain` does."""
    scale, unit = time_scale(max(row["baseline_s"] for row in rows))
    values = [row[key] for row in rows]
    with drawn(path, figsize=(6.4, 3.8)) as (_, grid):
        axes = grid[0, 0]
        for (name, label), colour in zip(TIMES.items(), (PUBLISHED, SERIES[2], SERIES[1], COMPUTE, IDLE), strict=True):
            style = "--" if name == "ideal_s" else "-"
            points = [row[name] * scale for row in rows]
            axes.plot(values, points, style, marker="o", markersize=3.5, color=colour, label=label)
        if min(values) > 0 and max(values) >= 8 * min(values):
            axes.set_xscale("log", base=2)
            axes.set_xticks(values, [f"{value:g}" for value in values])
        times = [row[name] * scale for row in rows for name in TIMES]
        if max(times) > _FAR_APART * min(times):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
        else:
            axes.set_ylim(0, None)
        axes.set_xlabel(key)
        axes.set_ylabel(f"time [{unit}]")
        axes.grid(axis="y", color="#eeeeee")
        axes.legend(frameon=False, fontsize=8)
        axes.set_title(title)


KINDS = ("gemm_reads", "gemm_writes", "scatter_reads", "scatter_writes", "gather_reads", "gather_writes")
COLOURS = dict(zip(KINDS, ("#4477aa", "#99bbdd", "#ee6677", "#f4aab4", "#228833", "#99cc99"), strict=True))
"""Kind of traffic to its colour: GEMM blue, reduce-scatter red, all-gather green; writes are lighter."""

_STEPS = 240


def draw_traffic(axes: Axes, found: Overlapped) -> None:
    """Draw the memory's traffic of a GEMM and its collective over time, by kind, stacked."""
    edges = np.linspace(0, found.end_s, _STEPS)
    bottom = np.zeros(len(edges) - 1)
    for kind in [kind for kind in KINDS if any(each.kind == kind for each in found.served)]:
        filled = np.zeros(len(edges) - 1)
        for each in found.served:
            if each.kind == kind:
                overlap_s = np.minimum(edges[1:], each.end_s) - np.maximum(edges[:-1], each.start_s)
                filled += np.clip(overlap_s, 0, None) * each.size_bytes / (each.end_s - each.start_s)
        rate = filled / np.diff(edges) / 1e9
        label = kind.replace("_", " ")
        widths = np.diff(edges) * 1e6
        axes.bar(edges[:-1] * 1e6, rate, widths, bottom=bottom, align="edge", label=label, color=COLOURS[kind])
        bottom += rate
    for end_s in found.stage_ends_s:
        axes.axvline(end_s * 1e6, color=PUBLISHED, linewidth=0.4)
    axes.legend(frameon=False, fontsize=7, ncols=legend_columns(4), loc="lower right", bbox_to_anchor=(1.0, 1.0))
    axes.set_xlabel("time [us]; lines: ends of stages")
    axes.set_ylabel("memory traffic [GB/s]")


def draw_tracked(found: dict[str, Overlapped], path: Path, *, title: str) -> None:
    """Draw the traffic of several configurations below each other, on one time axis."""
    with drawn(path, len(found), figsize=(10, 0.8 + 2.6 * len(found)), sharex=True) as (figure, grid):
        for (name, each), panel in zip(found.items(), grid[:, 0], strict=True):
            draw_traffic(panel, each)
            panel.set_title(name, loc="left")
        figure.suptitle(title)
