"""Pipelined steps to pictures: who works on which micro-batch when, and the memory of each pipeline rank.

Colours go by micro-batch, as a bar says: a few have colours far apart, many a scale. Forward is light and backward
full; deferred weight gradients are dark and hatched.
The optimizer is grey, which no micro-batch is. Two actions that a rank runs at the same time share its row.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.typing import ColorType

from scaleout.analysis.pipeline import Actions, MemoryOverTime
from scaleout.report.colours import PUBLISHED, time_scale
from scaleout.report.look import look_now
from scaleout.report.plots.schedules import STYLE, drawn, is_narrow, legend_columns, panels
from scaleout.workloads.memory import KINDS
from scaleout.workloads.pipeline import Action

MICROBATCHES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#885522")
"""Colours of a few micro-batches (Paul Tol's bright scheme, one of his light one, and brown)."""
_MANY = ListedColormap(mpl.colormaps["plasma"](np.linspace(0.0, 0.9, 256)))
"""Scale of colours of more micro-batches; without its end, whose light tones are hardly told from white."""
_BAR_IN = 0.55
"""Width of the bar of micro-batches with what is written at it."""

MEMORY = dict(
    zip(KINDS, ("#332288", "#88ccee", "#44aa99", "#999933", "#aa4499", "#ddcc77", "#cc6677", "#882255"), strict=True)
)
"""Colours of what memory is held for (Paul Tol's muted scheme)."""

MOST_PANELS = 8
"""Pipeline ranks whose memory is drawn; of longer pipelines these many, evenly spaced, with both ends and the worst."""

_TONES = {
    Action.FORWARD: ("forward", 0.6, None),
    Action.BACKWARD: ("backward, whole or of inputs", 0.0, None),
    Action.INPUT_GRADIENT: ("backward, whole or of inputs", 0.0, None),
    Action.WEIGHT_GRADIENT: ("weight gradient, deferred", -0.4, "////"),
}
"""What an action is called, how far its colour goes to white or, below zero, to black, and its hatch."""

_WHOLE = "backward"
"""What whole ones are called where none is of inputs alone."""

_DIGIT_POINTS = (6.5, 10.0)
"""Sizes of digits: as large as their box has room for, none where it has not for the smallest."""
_SHARED_POINTS = 7.0
"""The most in half a row."""
_ROOM = 0.9
"""Width of a digit with what is around it, over its size."""
_HATCHED = 1.4
"""As much more room has a digit on a hatch."""
_CLEAR = 0.6
"""Of a hatch around its digit [pt]."""
_SEEN = 2e-3
"""Share of the highest memory from which on a kind is drawn."""

_CHAIN = 0.86
_REST = "#bbbbbb"


def draw_pipelines(
    panels: Sequence[tuple[str, Sequence[Actions], float]], path: Path, *, columns: int, title: str = ""
) -> None:
    """Draw several pipelines, by title, pipeline ranks and makespan, on one scale of time, `columns` side by side."""
    rows, chains = math.ceil(len(panels) / columns), max(len(done) for _, done, _ in panels)
    width = 7.0 + 4.0 * columns
    height = min(0.28, 9.0 / chains) * chains + 0.62
    size, style = (width, rows * height + 0.5), {**STYLE, "hatch.linewidth": 0.6}
    with drawn(path, rows, columns, style=style, figsize=size, sharex=True) as (figure, grid):
        longest_s = max(makespan_s for *_, makespan_s in panels)
        scale, unit = time_scale(longest_s)
        inches_per_s = (((look_now().width_in or width) - _BAR_IN) / columns - 0.7) / longest_s
        numbers = 1 + max(int(each.microbatch.max(initial=0)) for _, done, _ in panels for each in done)
        colours = ScalarMappable(BoundaryNorm(np.arange(numbers + 1) - 0.5, numbers), _colours(numbers))
        for axes, (name, done, makespan_s) in zip(grid.flat, panels, strict=False):
            for each in done:
                _chain(axes, each, colours, scale=scale, inches_per_s=inches_per_s)
            _dress(axes, done, name)
            axes.axvline(makespan_s * scale, color=PUBLISHED, linewidth=0.8, linestyle=":")
        for axes in grid.flat[len(panels) :]:
            axes.axis("off")
        for axes in grid[-1]:
            axes.set_xlabel(f"time [{unit}]")
        grid[0, 0].set_xlim(0, longest_s * scale * 1.005)
        slim = rows * height / _BAR_IN * 4  # the rest of its place is for words
        bar = figure.colorbar(colours, ax=list(grid.flat), label="micro-batch", pad=0.01, fraction=0.015, aspect=slim)
        bar.set_ticks(range(0, numbers, -(-numbers // max(2, min(len(MICROBATCHES), rows * chains)))))
        bar.minorticks_off()
        bar.ax.tick_params(length=0)
        bar.ax.invert_yaxis()
        bar.outline.set_visible(False)
        used = {Action(action) for _, done, _ in panels for each in done for action in each.action.tolist()}
        has_rest = any(each.rest_s for _, done, _ in panels for each in done)
        figure.legend(
            handles=_handles(used, has_rest=has_rest),
            loc="outside lower center",
            ncols=legend_columns(4),
            frameon=False,
            fontsize=8,
        )
        if title:
            figure.suptitle(title)


def _colours(numbers: int) -> ListedColormap:
    """Return the colours of so many micro-batches."""
    if numbers <= len(MICROBATCHES):
        return ListedColormap(MICROBATCHES[:numbers])
    return ListedColormap(_MANY(np.linspace(0.0, 1.0, numbers)))


def _dress(axes: Axes, done: Sequence[Actions], name: str) -> None:
    axes.set_title(name, loc="left")
    axes.set_ylim(len(done) - 0.5, -0.5)
    step = max(1, len(done) // 16)
    axes.set_yticks([each.pipeline_rank for each in done][::step])
    axes.set_ylabel("pipeline rank", fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _handles(used: set[Action], *, has_rest: bool) -> list[Artist]:
    tones = dict.fromkeys(tone for action, tone in _TONES.items() if action in used)
    whole = Action.INPUT_GRADIENT not in used
    shown = [
        Patch(
            facecolor=_toned(MICROBATCHES[0], tone),
            hatch=hatch,
            label=_WHOLE if whole and tone == 0 else label,
            edgecolor="white",
            linewidth=0,
        )
        for label, tone, hatch in tones
    ]
    rest = [Patch(color=_REST, label="optimizer")] * has_rest
    return [*shown, *rest, Line2D([], [], color=PUBLISHED, linewidth=0.8, linestyle=":", label="end of the step")]


def _toned(colour: ColorType, tone: float) -> tuple[float, float, float]:
    end = 1.0 if tone > 0 else 0.0
    red, green, blue = (part + abs(tone) * (end - part) for part in to_rgb(colour))
    return red, green, blue


def _chain(axes: Axes, done: Actions, of: ScalarMappable, *, scale: float, inches_per_s: float) -> None:
    """Draw the actions of one pipeline rank; two that overlap share the row, forward above."""
    shared = _overlapping(done)
    forward = done.action == Action.FORWARD
    top = np.where(shared & ~forward, 0.0, -_CHAIN / 2) + done.pipeline_rank
    bottom = np.where(shared & forward, 0.0, _CHAIN / 2) + done.pipeline_rank
    seconds = done.end_s - done.start_s
    begin, end = done.start_s * scale, done.end_s * scale
    boxes = np.stack([np.c_[begin, top], np.c_[end, top], np.c_[end, bottom], np.c_[begin, bottom]], axis=1)
    line = 0.5 if np.median(seconds) * inches_per_s > 0.03 else 0.0
    colours = [tuple(colour) for colour in of.to_rgba(done.microbatch)[:, :3].tolist()]
    for action, (_, tone, hatch) in _TONES.items():
        mine = np.flatnonzero(done.action == action).tolist()
        faces = [_toned(colours[index], tone) for index in mine]
        polygons = list(boxes[mine])
        axes.add_collection(
            PolyCollection(polygons, facecolors=faces, edgecolors="white", linewidths=line, hatch=hatch)
        )
    rest = [(start * scale, (end - start) * scale) for start, end in done.rest_s]
    axes.broken_barh(rest, (done.pipeline_rank - _CHAIN / 2, _CHAIN), facecolors=_REST)
    room = _ROOM * np.array([len(str(microbatch)) for microbatch in done.microbatch.tolist()])
    room *= np.where(done.action == Action.WEIGHT_GRADIENT, _HATCHED, 1.0)
    points = np.minimum(72 * inches_per_s * seconds / room, np.where(shared, _SHARED_POINTS, _DIGIT_POINTS[1]))
    for index in np.flatnonzero(points >= _DIGIT_POINTS[0]).tolist():
        _, tone, hatch = _TONES[Action(done.action[index])]
        face = _toned(colours[index], tone)
        ink = PUBLISHED if np.dot(face, (0.299, 0.587, 0.114)) > 0.55 else "white"  # luma, as ITU-R BT.601 weighs it
        axes.text(
            (begin[index] + end[index]) / 2, (top[index] + bottom[index]) / 2, str(done.microbatch[index]),
            ha="center", va="center_baseline", fontsize=points[index], color=ink,
            path_effects=[withStroke(linewidth=1.5, foreground=face)],
            bbox={"facecolor": face, "edgecolor": "none", "pad": _CLEAR} if hatch else None,
        )  # fmt: skip


def _overlapping(done: Actions) -> npt.NDArray[np.bool_]:
    """Tell which actions run while another of the same pipeline rank does, shape (A,)."""
    slack_s = 1e-9 * float(done.end_s.max(initial=0.0))
    late = done.start_s[1:] < np.maximum.accumulate(done.end_s)[:-1] - slack_s
    return np.asarray(np.r_[False, late] | np.r_[late, False])


_FAR = 3.0
"""Capacity over what is held from which on the capacity is not drawn but told."""
_WORDS = 1.25
"""Height of a panel over what is held, where the capacity is told above it."""


def draw_memory(
    held: Sequence[MemoryOverTime], path: Path, *, capacity_bytes: float, makespan_s: float, title: str
) -> None:
    """Draw the memory of each pipeline rank over time, stacked by kind, with the device's capacity."""
    highest = [float(each.total_bytes.max()) for each in held]
    shown = [held[index] for index in shown_ranks(highest)]
    rows, columns = panels(len(shown), 2)
    scale, unit = time_scale(makespan_s)
    most = max(highest)
    size = (5.0, 1.8 * rows + 1.4) if is_narrow() else (11, 1.35 * rows + 1.4)
    far = capacity_bytes > _FAR * most  # it would press what is held flat
    kinds = [kind for kind in KINDS if max(each.bytes_of[kind].max() for each in shown) > _SEEN * most]
    with drawn(path, rows, columns, figsize=size, sharex=True, sharey=True) as (figure, grid):
        for axes, each in zip(grid.flat, shown, strict=False):
            time = each.time_s * scale
            layers = [each.bytes_of[kind] / 2**30 for kind in kinds]
            axes.stackplot(time, layers, step="post", colors=[MEMORY[kind] for kind in kinds], linewidth=0)
            if far:
                words = f"↑ capacity of the device, {capacity_bytes / 2**30:.0f} GiB"
                axes.text(0.99, 0.97, words, transform=axes.transAxes, ha="right", va="top", fontsize=8)
            else:
                axes.axhline(capacity_bytes / 2**30, color=PUBLISHED, linewidth=1, linestyle="--")
            axes.set_title(
                f"pipeline rank {each.pipeline_rank}: at most {each.total_bytes.max() / 2**30:.1f} GiB", loc="left"
            )
        for axes in grid.flat[len(shown) :]:
            axes.axis("off")
        grid[0, 0].set_xlim(0, makespan_s * scale)
        top = most if far else max(most, capacity_bytes)
        grid[0, 0].set_ylim(0, top / 2**30 * (_WORDS if far else 1.08))
        for axes in grid[-1]:
            axes.set_xlabel(f"time [{unit}]")
        for axes in grid[:, 0]:
            axes.set_ylabel("memory [GiB]")
        handles = [Patch(color=MEMORY[kind], label=kind.replace("_", " ")) for kind in kinds]
        limit = Line2D([], [], color=PUBLISHED, linewidth=1, linestyle="--")
        limit.set_label(f"capacity of the device, {capacity_bytes / 2**30:.0f} GiB")
        figure.legend(
            handles=handles if far else [*handles, limit],
            loc="outside lower center",
            ncols=legend_columns(4),
            frameon=False,
            fontsize=8,
        )
        figure.suptitle(title)


def shown_ranks(highest_bytes: Sequence[float]) -> list[int]:
    """Choose the pipeline ranks to draw, given the peak of each: evenly, with both ends and the worst."""
    count = len(highest_bytes)
    if count <= MOST_PANELS:
        return list(range(count))
    worst = int(np.argmax(highest_bytes))
    ranks = [round(index) for index in np.linspace(0, count - 1, MOST_PANELS).tolist()]
    inner = range(1, MOST_PANELS - 1) if worst not in (0, count - 1) else range(0)
    nearest = min(inner, key=lambda number: abs(ranks[number] - worst), default=None)
    if nearest is not None:
        ranks[nearest] = worst
    return sorted(ranks)
