"""Studies to pictures: back ends, gradient buckets, buffers, steps and speed-ups over ranks, and plans of a search."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle, groupby
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.textpath import TextPath

from scaleout.config.units import counted, format_bytes, format_seconds
from scaleout.report.colours import COMMUNICATION, IDLE, PUBLISHED, SERIES, time_scale
from scaleout.report.plots.schedules import drawn, is_narrow, legend_columns, on_axes, panels
from scaleout.study.backends import BackendComparison
from scaleout.study.buckets import Bucketed, best
from scaleout.study.search.best import SLACK
from scaleout.study.search.request import SearchRequest
from scaleout.study.search.search import Answer

if TYPE_CHECKING:
    import pandas as pd

_MARKERS = "^osDvPX"
_LINE_IN = 0.15
"""Height of a line below a picture, of the height that it has before it is made narrower."""
_NARROW_CHARACTERS, _WIDE_CHARACTERS = 60, 110
"""Of a line of text in a narrow picture, and in others."""
_PANELS = 3
"""Most panels in a row of curves."""
_WIDE_IN, _NARROW_IN = 9.6, 4.8
"""Of curves side by side, and of those below each other."""
_MOST_TICKS, _FEW_TICKS = 6, 4
"""Sizes that are named on an axis, where there is room and where three panels are side by side."""


def draw_map(
    comparison: BackendComparison, path: Path, *, title: str, published: Mapping[int, int] | None = None
) -> None:
    """Draw a mark for the fastest back end at each size and number of ranks.

    `published` maps numbers of ranks to the largest size at which the first winner of small sizes is published to win.
    """
    with drawn(path, figsize=(7.6, 3.2)) as (_, grid):
        axes, best = grid[0, 0], comparison.best
        for number, name in enumerate(comparison.backends):
            rows, columns = np.nonzero(best == number)
            if len(rows):
                axes.scatter(
                    columns,
                    rows,
                    s=22,
                    marker=_MARKERS[number % len(_MARKERS)],
                    color=_colour(number),
                    label=name.replace("_", " "),
                )
        for ranks, size in (published or {}).items():
            at = comparison.sizes_bytes.index(size) + 0.5
            row = comparison.num_ranks.index(ranks)
            axes.plot([at, at], [row - 0.42, row + 0.42], color=PUBLISHED, linewidth=1.6)
        if published:
            axes.plot([], [], color=PUBLISHED, linewidth=1.6, label="published: up to here")
        axes.set_yticks(range(len(comparison.num_ranks)), [str(ranks) for ranks in comparison.num_ranks])
        ticks = _ticks(comparison.sizes_bytes)
        axes.set_xticks(ticks, [format_bytes(comparison.sizes_bytes[tick]) for tick in ticks])
        axes.set(xlabel="size of the all-reduce", ylabel="ranks", title=title)
        axes.margins(y=0.08)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def draw_curves(
    comparison: BackendComparison, path: Path, *, title: str, notes: Mapping[int, str] | None = None
) -> None:
    """Draw the time of each back end over sizes, a panel for each number of ranks; `notes` go into some of them."""
    count = len(comparison.num_ranks)
    rows, columns = panels(count, _PANELS)
    wide = _WIDE_IN if columns > 1 else _NARROW_IN
    size = (wide, 0.6 + 2.2 * rows)
    with drawn(path, rows, columns, title=title, figsize=size, sharex=True, sharey=True) as (figure, grid):
        for axes in grid.flat[count:]:
            axes.set_visible(False)
        for axes, ranks in zip(grid.flat, comparison.num_ranks, strict=False):
            _panel(axes, comparison, ranks, num_ticks=_MOST_TICKS if columns < _PANELS else _FEW_TICKS)
            axes.tick_params(labelbottom=count < rows * columns or axes in grid[-1])
            if notes and ranks in notes:
                axes.text(0.97, 0.05, notes[ranks], transform=axes.transAxes, ha="right", va="bottom", fontsize=7.5)
        for axes in grid[:, 0]:
            axes.set_ylabel("time [µs]")
        for column in grid.T:
            [axes for axes in column if axes.get_visible()][-1].set_xlabel("size of the all-reduce")
        figure.legend(
            *grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=legend_columns(4), frameon=False
        )


def _ticks(sizes: Sequence[int], most: int = _MOST_TICKS) -> range:
    """Return which sizes have a tick: the first and, where it divides them so, the last."""
    last = len(sizes) - 1
    least = max(1, -(-last // (most - 1)))
    return range(0, len(sizes), next((step for step in range(least, last) if last % step == 0), least))


def _panel(axes: Axes, comparison: BackendComparison, ranks: int, *, num_ticks: int) -> None:
    for number, name in enumerate(comparison.backends):
        times = comparison.curve(name, ranks)
        known = np.isfinite(times)
        axes.plot(
            np.array(comparison.sizes_bytes)[known], times[known] * 1e6, color=_colour(number),
            label=name.replace("_", " "),
            linewidth=1.3, marker=_MARKERS[number % len(_MARKERS)], markersize=2.5,
        )  # fmt: skip
    axes.set(yscale="log", title=f"{counted(ranks, 'rank')}")
    axes.set_xscale("log", base=2)
    sizes = [comparison.sizes_bytes[tick] for tick in _ticks(comparison.sizes_bytes, num_ticks)]
    axes.set_xticks(sizes, [format_bytes(size) for size in sizes])
    axes.minorticks_off()
    axes.grid(alpha=0.25, linewidth=0.5)


def _colour(number: int) -> str:
    return SERIES[(1, 2, 0, 3, 4, 5, 6)[number % len(SERIES)]]


def plot_bandwidths(rows: "pd.DataFrame", axes: Axes | None = None) -> Axes:
    """Draw the bus bandwidth of each algorithm over the sizes of a collective, and return the axes.

    Where `auto` was asked, what it takes at each size has a ring.
    """
    with on_axes(axes, figsize=(7, 4)) as drawn_on:
        rows = rows[rows["bytes"] > 0].sort_values("bytes")  # none has a place on this axis
        for number, (name, of) in enumerate(rows.groupby("algorithm", sort=False)):
            marker, colour = "osD^vPX"[number % 7], SERIES[number % len(SERIES)]
            rates = of["bus_bandwidth_bytes_per_s"] / 1e9
            drawn_on.plot(of["bytes"], rates, label=str(name), marker=marker, markersize=3.5, color=colour)
        taken = rows[rows["auto"].eq(True)] if "auto" in rows else rows[:0]
        if len(taken):
            rates = taken["bus_bandwidth_bytes_per_s"] / 1e9
            drawn_on.plot(
                taken["bytes"], rates, "o", label="what auto takes",
                markersize=8, markerfacecolor="none", markeredgecolor=PUBLISHED,
            )  # fmt: skip
        _axes(drawn_on, sorted(set(rows["bytes"])), "bus bandwidth [GB/s]")
        drawn_on.set(xlabel="full buffer of a rank")
        drawn_on.legend(frameon=False, fontsize=7)
    return drawn_on


def draw_bandwidths(rows: "pd.DataFrame", path: Path, *, title: str) -> None:
    """Draw the bus bandwidth of each algorithm over the sizes of a collective."""
    with drawn(path, title=title, figsize=(7, 4)) as (_, grid):
        plot_bandwidths(rows, grid[0, 0])


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
        steps.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)


def _axes(axes: Axes, sizes: Sequence[int], what: str) -> None:
    axes.set_xscale("log", base=2)
    ticks = sorted(set(sizes))[:: max(1, len(set(sizes)) // 6)]
    axes.set_xticks(ticks, [format_bytes(tick) for tick in ticks])
    axes.set(xlabel="gradient bucket, at least", ylabel=what)
    axes.grid(alpha=0.25, linewidth=0.5)


def draw_plans(request: SearchRequest, answer: Answer, path: Path) -> None:
    """Draw step time against memory of all evaluated plans; those that none under their schedule beats are named."""
    with drawn(path, figsize=(7, 4.0 + _LINE_IN * len(_key(answer)))) as (_, grid):
        plot_plans(request, answer, grid[0, 0])


def _key(answer: Answer) -> list[str]:
    """Return lines that say which plans the labels of a picture are of."""
    several = len({found.schedule for found in answer.evaluated}) > 1
    names = [
        f"{answer.labels[found.choice]}  {found.plan}" + (f", {found.schedule}" if several else "")
        for found in answer.front
    ]
    wide = _NARROW_CHARACTERS if is_narrow() else _WIDE_CHARACTERS
    return [line for name in names for line in wrap(name, wide, subsequent_indent="     ")]


def _placed(points: Sequence[tuple[float, float]], labels: Sequence[str]) -> Iterator[tuple[int, str, tuple[int, int]]]:
    """Yield of points in a picture of width and height 1: where a label is, its words, and on which side it stands.

    Points whose marks lie on each other have one label. It stands left of its point and below, where the line of the
    best is not, there farther away with a line to it, or in another corner, wherever no label and no other point is; a
    side is a sign to the right, and lines upwards.
    """
    marks: list[list[int]] = []
    for number, (x, y) in enumerate(points):
        lies = (at for at in marks if abs(points[at[0]][0] - x) < _MARK_X and abs(points[at[0]][1] - y) < _MARK_Y)
        if (at := next(lies, None)) is not None:
            at.append(number)
        else:
            marks.append([number])
    taken: list[tuple[float, ...]] = [(x, x, y, y) for x, y in (points[first] for first, *_ in marks)]
    for own, (first, *others) in enumerate(marks):
        words, (x, y) = ", ".join(labels[number] for number in (first, *others)), points[first]
        boxes = {
            (right, up): (*sorted(x + right * (abs(up) * _GAP + far) for far in (0.0, _width(words))),
                          *sorted(y + np.sign(up) * _GAP + lines * _LETTER_Y for lines in (up, up - np.sign(up))))
            for right, up in ((-1, -1), (-1, -2), (-1, -3), (1, 1), (1, -1), (-1, 1))
        }  # fmt: skip
        others_taken = taken[:own] + taken[own + 1 :]
        side = next((each for each, box in boxes.items() if not any(_meet(box, one) for one in others_taken)), (1, -1))
        taken.append(boxes[side])
        yield first, words, side


_MARK_X, _MARK_Y, _GAP, _LETTER_Y = 0.012, 0.02, 0.008, 0.03
"""Of a picture's width or height: a mark, the gap from it to its label, and a letter."""
_LABEL, _LINE, _APART, _ACROSS = 7.0, 9.0, 3.0, 420.0
"""Points: the size of a label's letters, its line, what it keeps from others, and the width of a picture."""


def _width(words: str) -> float:
    """Return how wide a label is, of a picture's width, with what it keeps from others."""
    return float(TextPath((0, 0), words, size=_LABEL).get_extents().width + _APART) / _ACROSS


def _meet(a: Sequence[float], b: Sequence[float]) -> bool:
    return a[0] <= b[1] and b[0] <= a[1] and a[2] <= b[3] and b[2] <= a[3]


def _label(axes: Axes, points: Sequence[tuple[float, float]], labels: Sequence[str]) -> None:
    """Write the label of each point beside it, at axes whose limits are known."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    small = 0.5 if is_narrow() else 1.0  # where a letter is a larger part of the picture
    places = [(small * (x - left) / (right - left), small * (y - low) / (high - low)) for x, y in points]
    for first, words, (east, north) in _placed(places, labels):
        offset = (4.0 * east * abs(north), 3.0 * np.sign(north) + (north - np.sign(north)) * _LINE)
        beside = partial(
            axes.annotate, xy=points[first], xytext=offset, textcoords="offset points", fontsize=_LABEL,
            ha="left" if east > 0 else "right", va="bottom" if north > 0 else "top",
        )  # fmt: skip
        if north < -1:  # a line, which is to lie below all letters
            beside("", zorder=2.5, arrowprops={"arrowstyle": "-", "linewidth": 0.4, "shrinkA": 0})
        beside(words, zorder=5, bbox={"boxstyle": "square,pad=0.05", "fc": "white", "ec": "none", "alpha": 0.75})


_BELOW = 32
"""Points below the axes from which on plans are named, with the ticks and the label above them."""
_LEGEND_LINE = 12
"""Points that a line of a legend takes."""


def plot_plans(request: SearchRequest, answer: Answer, axes: Axes | None = None) -> Axes:
    """Draw step time against memory of all evaluated plans; those that none under their schedule beats are joined.

    All that are joined are simulated, of the others few.
    """
    scale, unit = time_scale(answer.fastest[0].estimate.step_s)
    fronts = [list(front) for _, front in groupby(answer.front, key=lambda found: found.schedule)]
    last_s = SLACK * max((front[0].estimate.step_s for front in fronts), default=0.0)
    near = [found.estimate for found in answer.evaluated if found.estimate.step_s <= last_s]
    key = _key(answer)
    with on_axes(axes, figsize=(7, 4.0 + _LINE_IN * len(key))) as drawn_on:
        drawn_on.scatter(
            [each.peak_bytes / 2**30 for each in near], [each.step_s * scale for each in near],
            s=12, color=IDLE, label="others, most of them estimates",
        )  # fmt: skip
        named = list[tuple[float, float]]()
        for front, colour in zip(fronts, cycle(SERIES)):
            estimates = [found.estimate for found in front]
            memory = [each.peak_bytes / 2**30 for each in estimates]
            times = [each.step_s * scale for each in estimates]
            under = f", under {front[0].schedule}" if request.schedules else ""
            drawn_on.step(memory, times, where="pre", color=colour, linewidth=1)
            drawn_on.scatter(memory, times, s=24, color=colour, zorder=3, label=f"least memory for its time{under}")
            named += zip(memory, times, strict=True)
        limit = request.memory_bytes / 2**30
        drawn_on.axvline(limit, color=COMMUNICATION, linestyle="--", linewidth=1, label=f"limit {limit:.3g} GiB")
        drawn_on.margins(y=0.12)
        drawn_on.set_xlim(0, None)
        _label(drawn_on, named, [answer.labels[found.choice] for found in answer.front])
        drawn_on.set_xlabel("memory of the fullest rank [GiB]")
        drawn_on.set_ylabel(f"time of a step [{unit}]")
        drawn_on.annotate(
            "\n".join(key), (0, 0), (0, -_BELOW), xycoords="axes fraction", textcoords="offset points", va="top",
            fontsize=6.5,
        )  # fmt: skip
        columns = legend_columns(3)
        drawn_on.legend(  # above the axes, as plans may lie anywhere within
            loc="lower left", bbox_to_anchor=(0.0, 1.0), frameon=False, fontsize=7, ncols=columns,
        )  # fmt: skip
        lines = -(-len(drawn_on.get_legend_handles_labels()[0]) // columns)
        title = f"{request.base.name} on {request.topology.name}, global batch {request.batch}"
        drawn_on.set_title(title, pad=8 + _LEGEND_LINE * lines)
    return drawn_on
