"""Studies to pictures: back ends, gradient buckets, buffers, steps and speed-ups over ranks, and plans of a search."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from scaleout.config.units import format_bytes, format_seconds
from scaleout.report.plots.schedules import (
    COMMUNICATION,
    COMPUTE,
    IDLE,
    PUBLISHED,
    SERIES,
    STYLE,
    drawn,
    time_scale,
)
from scaleout.study.backends import BackendComparison
from scaleout.study.buckets import Bucketed, best
from scaleout.study.search.best import SLACK
from scaleout.study.search.request import SearchRequest
from scaleout.study.search.search import Answer

_MARKERS = "^osDvPX"
_PANELS = 3
"""Panels in a row of curves."""


def draw_map(
    comparison: BackendComparison, path: Path, *, title: str, published: Mapping[int, int] | None = None
) -> None:
    """Draw a mark for the fastest back end at each size and number of ranks.

    Parameters
    ----------
    published : mapping of int to int, optional
        Number of ranks to the largest size at which the first winner of small sizes is published to win.
    """
    with drawn(path, figsize=(7.6, 3.2)) as (_, grid):
        axes, best = grid[0, 0], comparison.best
        for number, name in enumerate(comparison.backends):
            rows, columns = np.nonzero(best == number)
            if len(rows):
                axes.scatter(
                    columns, rows, s=22, marker=_MARKERS[number % len(_MARKERS)], color=_colour(number), label=name
                )
        for ranks, size in (published or {}).items():
            at = comparison.sizes_bytes.index(size) + 0.5
            row = comparison.num_ranks.index(ranks)
            axes.plot([at, at], [row - 0.42, row + 0.42], color=PUBLISHED, linewidth=1.6)
        if published:
            axes.plot([], [], color=PUBLISHED, linewidth=1.6, label="published: up to here")
        axes.set_yticks(range(len(comparison.num_ranks)), [str(ranks) for ranks in comparison.num_ranks])
        ticks = range(0, len(comparison.sizes_bytes), 4)
        axes.set_xticks(ticks, [format_bytes(comparison.sizes_bytes[tick]) for tick in ticks])
        axes.set(xlabel="size of the all-reduce", ylabel="ranks", title=title)
        axes.margins(y=0.08)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def draw_curves(
    comparison: BackendComparison, path: Path, *, title: str, notes: Mapping[int, str] | None = None
) -> None:
    """Draw the time of each back end over sizes, a panel for each number of ranks; `notes` go into some of them."""
    count = len(comparison.num_ranks)
    rows = -(-count // _PANELS)
    size = (9.6, 0.6 + 2.2 * rows)
    with drawn(path, rows, min(count, _PANELS), title=title, figsize=size, sharex=True, sharey=True) as (figure, grid):
        for axes in grid.flat[count:]:
            axes.set_visible(False)
        for axes, ranks in zip(grid.flat, comparison.num_ranks, strict=False):
            _panel(axes, comparison, ranks)
            if notes and ranks in notes:
                axes.text(0.97, 0.05, notes[ranks], transform=axes.transAxes, ha="right", va="bottom", fontsize=7.5)
        for axes in grid[:, 0]:
            axes.set_ylabel("time [us]")
        for column in range(grid.shape[1]):
            lowest = [axes for axes in grid[:, column] if axes.get_visible()][-1]
            lowest.set_xlabel("size of the all-reduce [B]")
            lowest.tick_params(labelbottom=True)
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)


def _panel(axes: Axes, comparison: BackendComparison, ranks: int) -> None:
    for number, name in enumerate(comparison.backends):
        times = comparison.curve(name, ranks)
        known = np.isfinite(times)
        axes.plot(
            np.array(comparison.sizes_bytes)[known], times[known] * 1e6, color=_colour(number), label=name,
            linewidth=1.3, marker=_MARKERS[number % len(_MARKERS)], markersize=2.5,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", title=f"{ranks} ranks")
    axes.set_xscale("log", base=2)
    axes.grid(alpha=0.25, linewidth=0.5)


def _colour(number: int) -> str:
    return SERIES[(1, 2, 0, 3, 4, 5, 6)[number % len(SERIES)]]


def draw_buckets(rows: Sequence[Bucketed], path: Path, *, title: str) -> None:
    """Draw the step and its exposed communication over the size of a bucket, a line a way to reduce."""
    with drawn(path, 1, 2, title=title, figsize=(9.6, 3.4), sharex=True) as (_, grid):
        steps, exposed = grid[0]
        for number, way in enumerate(dict.fromkeys(row.way for row in rows)):
            of = [row for row in rows if row.way == way]
            sizes = [row.bucket_bytes for row in of]
            look = {"color": SERIES[number % len(SERIES)], "marker": "osD^vPX"[number % 7], "markersize": 3.5}
            steps.plot(sizes, [row.step_s * 1e3 for row in of], label=way, **look)
            exposed.plot(sizes, [row.exposed_s * 1e3 for row in of], **look)
        found = best(rows)
        steps.scatter(
            [found.bucket_bytes], [found.step_s * 1e3], s=90, facecolors="none", edgecolors=PUBLISHED, zorder=3
        )
        said = f"best: {found.way}, {format_bytes(found.bucket_bytes)}, {format_seconds(found.step_s)}"
        steps.plot([], [], "o", markerfacecolor="none", markeredgecolor=PUBLISHED, markersize=8, label=said)
        for axes, what in ((steps, "step [ms]"), (exposed, "exposed communication [ms]")):
            _axes(axes, [row.bucket_bytes for row in rows], what)
        steps.legend(frameon=False, fontsize=8)


def _axes(axes: Axes, sizes: Sequence[int], what: str) -> None:
    axes.set_xscale("log", base=2)
    ticks = sorted(set(sizes))[:: max(1, len(set(sizes)) // 6)]
    axes.set_xticks(ticks, [format_bytes(tick) for tick in ticks])
    axes.set(xlabel="gradient bucket, at least", ylabel=what)
    axes.grid(alpha=0.25, linewidth=0.5)


def draw_buffers(buffers: Mapping[str, Sequence[int]], path: Path, *, title: str) -> None:
    """Draw how many parameter buffers of each size a model has, in bins of powers of two, a panel a model."""
    with drawn(path, 1, len(buffers), title=title, figsize=(9.6, 3.0)) as (_, grid):
        for axes, (name, sizes) in zip(grid.flat, buffers.items(), strict=True):
            counts = Counter(size.bit_length() - 1 for size in sizes)
            first, last = min(counts), max(counts)
            bins = range(first, last + 1)
            bars = axes.bar([*bins], [counts[bin_] for bin_ in bins], width=0.85, color=COMPUTE)
            axes.bar_label(bars, [str(counts[bin_]) if counts[bin_] else "" for bin_ in bins], fontsize=7)
            ticks = [*range(first, last + 1, 2)]
            axes.set_xticks(ticks, [format_bytes(1 << tick) for tick in ticks], rotation=45, ha="right")
            axes.set(xlabel="size of a buffer, from", title=f"{name}: {len(sizes)} buffers, {format_bytes(sum(sizes))}")
            axes.yaxis.get_major_locator().set_params(integer=True)
        grid[0, 0].set_ylabel("buffers")


def draw_steps(
    panels: Mapping[str, Mapping[int, tuple[float, float]]],
    path: Path,
    *,
    title: str,
    notes: Mapping[str, Mapping[int, str]] | None = None,
) -> None:
    """Draw bars of computing and, on it, exposed communication.

    Parameters
    ----------
    panels : mapping
        Name of a panel, which ends in its unit, to ranks to the height of both parts of the bar.
    notes : mapping, optional
        Name of a panel to ranks to what is written above the bar, such as what is published.
    """
    with drawn(path, 1, len(panels), title=title, figsize=(9.6, 3.2)) as (_, grid):
        for axes, (name, bars) in zip(grid.flat, panels.items(), strict=True):
            places = np.arange(len(bars))
            compute, exposed = np.array([*bars.values()]).T
            axes.bar(places, compute, color=COMPUTE, width=0.75, label="computation")
            axes.bar(places, exposed, bottom=compute, color=COMMUNICATION, width=0.75, label="exposed communication")
            axes.set_xticks(places, [str(ranks) for ranks in bars])
            axes.set(xlabel="GPUs", ylabel=name)
            axes.margins(y=0.16)
            for place, ranks, height in zip(places, bars, compute + exposed, strict=True):
                if text := (notes or {}).get(name, {}).get(ranks):
                    axes.annotate(
                        text, (place, height), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=6.5,
                        color=PUBLISHED,
                    )  # fmt: skip
        grid[0, 0].legend(frameon=False, fontsize=8)


def draw_speedups(
    panels: Mapping[str, Mapping[int, tuple[float, float]]],
    path: Path,
    *,
    title: str,
    names: tuple[str, str],
    published: Mapping[str, Mapping[int, float]],
) -> None:
    """Draw two times in seconds over ranks, and how many times as fast the second is, with published values."""
    style = {**STYLE, "axes.spines.right": True}
    with drawn(path, 1, len(panels), title=title, style=style, figsize=(9.6, 3.2)) as (_, grid):
        for axes, (name, points) in zip(grid.flat, panels.items(), strict=True):
            ranks = [*points]
            times = np.array([*points.values()]).T
            for number, label in enumerate(names):
                axes.plot(
                    ranks, times[number] * 1e3, color=SERIES[(1, 2)[number]], marker="o", markersize=3, label=label
                )
            axes.set_xscale("log", base=2)
            axes.set(yscale="log", xlabel="GPUs", ylabel="communication of a mini-batch [ms]", title=name)
            axes.set_xticks(ranks, [str(count) for count in ranks])
            _round_ticks(axes)
            axes.minorticks_off()
            _ratio(axes.twinx(), ranks, times[0] / times[1], published.get(name, {}))
        first = grid[0, 0]
        first.scatter([], [], marker="D", s=26, facecolors="none", edgecolors=PUBLISHED, label="published speed-up")
        first.legend(frameon=False, loc="upper left", fontsize=8)


def _round_ticks(axes: Axes) -> None:
    """Label a logarithmic axis at 1, 2 and 5 times powers of ten within its limits."""
    low, high = axes.get_ylim()
    ticks = [step * 10.0**power for power in range(-3, 7) for step in (1, 2, 5)]
    axes.set_yticks([tick for tick in ticks if low <= tick <= high])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")


def _ratio(axes: Axes, ranks: Sequence[int], ratio: npt.NDArray[np.float64], published: Mapping[int, float]) -> None:
    axes.plot(ranks, ratio, color=SERIES[0], linestyle="--", linewidth=1.2)
    axes.set_ylabel("speed-up (dashed)", color=SERIES[0])
    axes.set_ylim(0, 1.25 * max([*ratio, *published.values()]))
    axes.spines["top"].set_visible(False)
    for count, value in published.items():
        axes.scatter([count], [value], marker="D", s=26, facecolors="none", edgecolors=PUBLISHED, zorder=3)


def draw_grouped(
    panels: Mapping[str, Mapping[str, Mapping[int, float]]],
    path: Path,
    *,
    title: str,
    published: Mapping[str, Mapping[tuple[str, int], float]],
    logarithmic: Sequence[str] = (),
) -> None:
    """Draw a group of bars for each number of ranks, one bar a policy, and published heights as marks on some.

    Parameters
    ----------
    panels : mapping
        Name of a panel, which ends in its unit, to policy to ranks to height.
    published : mapping
        Name of a panel to policy and ranks to a height.
    logarithmic : sequence of str
        Panels whose heights are.
    """
    with drawn(path, 1, len(panels), title=title, figsize=(9.6, 3.2)) as (_, grid):
        for axes, (name, policies) in zip(grid.flat, panels.items(), strict=True):
            width = 0.8 / len(policies)
            for number, (policy, bars) in enumerate(policies.items()):
                places = np.arange(len(bars)) + (number - (len(policies) - 1) / 2) * width
                axes.bar(
                    places, [*bars.values()], width=0.92 * width, color=SERIES[(6, 1, 2)[number % 3]], label=policy
                )
                marks = [
                    (place, published.get(name, {}).get((policy, ranks)))
                    for place, ranks in zip(places, bars, strict=True)
                ]
                for place, height in marks:
                    if height is not None:
                        axes.scatter(
                            [place], [height], marker="D", s=26, facecolors="white", edgecolors=PUBLISHED, zorder=3
                        )
            ranks_shown = [*next(iter(policies.values()))]
            axes.set_xticks(range(len(ranks_shown)), [str(ranks) for ranks in ranks_shown])
            axes.set(xlabel="GPUs", ylabel=name, yscale="log" if name in logarithmic else "linear")
            if name in logarithmic:
                _round_ticks(axes)
        grid[0, 0].scatter(
            [], [], marker="D", s=26, facecolors="white", edgecolors=PUBLISHED, label="published speed-up"
        )
        grid[0, 0].legend(frameon=False, fontsize=8)


def draw_plans(request: SearchRequest, answer: Answer, path: Path) -> None:
    """Draw step time against memory of all evaluated plans; those that no other beats in both are joined and named."""
    scale, unit = time_scale(answer.fastest[0].estimate.step_s)
    last_s = SLACK * answer.fastest[0].estimate.step_s
    near = [found.estimate for found in answer.evaluated if found.estimate.step_s <= last_s]
    with drawn(path, figsize=(9, 4.6)) as (_, grid):
        axes = grid[0, 0]
        axes.scatter(
            [each.peak_bytes / 1e9 for each in near], [each.step_s * scale for each in near],
            s=12, color=IDLE, label="evaluated",
        )  # fmt: skip
        memory = [found.estimate.peak_bytes / 1e9 for found in answer.front]
        times = [found.estimate.step_s * scale for found in answer.front]
        axes.step(memory, times, where="pre", color=COMPUTE, linewidth=1)
        axes.scatter(memory, times, s=24, color=COMPUTE, zorder=3, label="least memory for its time")
        for number, (x, y) in enumerate(zip(memory, times, strict=True), start=1):
            axes.annotate(str(number), (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
        limit = request.memory_bytes / 1e9
        axes.axvline(limit, color=COMMUNICATION, linestyle="--", linewidth=1, label=f"limit {limit:.4g} GB")
        axes.set_xlim(0, None)
        axes.set_xlabel("memory of the fullest rank [GB]")
        axes.set_ylabel(f"time of a step [{unit}]")
        axes.set_title(f"{request.base.name} on {request.topology.name}, global batch {request.batch}")
        axes.legend(loc="lower left", frameon=False, fontsize=7)
        several = len({found.schedule for found in answer.evaluated}) > 1
        legend = "\n".join(
            f"{number}  {found.plan}" + (f", {found.schedule}" if several else "")
            for number, found in enumerate(answer.front, start=1)
        )
        axes.text(1.02, 1.0, legend, transform=axes.transAxes, va="top", fontsize=6.5)
