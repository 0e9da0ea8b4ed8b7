"""Results to pictures: where the time goes in each schedule, and when.

Colours: compute blue, communication orange, idle grey.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes as Axes  # noqa: PLC0414 - also for annotations elsewhere
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text

from scaleout.config.units import counted, format_seconds
from scaleout.config.writing import write_bytes
from scaleout.errors import ConfigError, shown
from scaleout.report.colours import COMMUNICATION, COMPUTE, IDLE, time_scale
from scaleout.report.look import COLUMN_POINTS, NARROW_IN, PAGE_POINTS, look_now

if TYPE_CHECKING:
    import pandas as pd

    from scaleout.simulation.result import Timeline
    from scaleout.study.comparison import Comparison

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "figure.dpi": 150,
    "svg.hashsalt": "scaleout",
}

_MOST_OPERATIONS = 20
"""Bars of operations."""

_JOURNAL: dict[Any, Any] = {"font.size": PAGE_POINTS, "axes.titlesize": PAGE_POINTS, "figure.dpi": 300}


_HAIR = 1 / 400
"""Of the longest timeline: a bar is drawn at least as wide, so that it is seen."""
_SEEN = 0.01
"""Share of a bar from which a part of it is seen."""
_LEAST_HEIGHT = 0.6
"""Of a picture that is made narrower, of the height that it had."""
_UNDATED = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def draw_comparison(comparison: "Comparison", path: Path) -> None:
    """Draw stacked bars of each schedule's time and, beside them, the first class's timelines on one time axis."""
    size = (10, 1.6 + 0.75 * len(comparison.outcomes))
    with drawn(path, 1, 2, figsize=size, width_ratios=(1, 1.6)) as (figure, grid):
        scale, unit = time_scale(max(outcome.makespan_s for outcome in comparison.outcomes))
        _bars(grid[0, 0], comparison, scale, unit)
        _chains(grid[0, 1], comparison, scale, unit)
        grid[0, 1].set_xlim(grid[0, 0].get_xlim())
        rank = comparison.outcomes[0].result.timelines[0].ranks[0]
        grid[0, 0].set_xlabel(f"(a) time, mean over ranks [{unit}]")
        grid[0, 1].set_xlabel(f"(b) timeline of rank {rank} [{unit}]")
        figure.suptitle(
            f"{comparison.workload} on {comparison.topology}, {counted(comparison.ranks, 'rank')} "
            f"of {comparison.device}"
        )


def legend_columns(wanted: int) -> int:
    """Return the columns of a legend: two at most where the picture is as narrow as a column of text."""
    return min(wanted, 2) if (look_now().width_in or NARROW_IN) < NARROW_IN else wanted


def journal() -> dict[Any, Any]:
    """Return what the style is at the width of a journal; nothing otherwise."""
    return {} if look_now().width_in is None else _JOURNAL


@contextmanager
def drawn(
    path: Path, rows: int = 1, columns: int = 1, *, title: str = "", style: dict[Any, Any] = STYLE, **options: Any
) -> Iterator[tuple[Figure, Any]]:
    """Yield a figure and its axes, shape (rows, columns), to draw on, and write it; `options` are of `plt.subplots`.

    A row of panels is a column of them where the picture is as narrow as a column of text.
    """
    width_in = look_now().width_in
    stacked = width_in is not None and width_in < NARROW_IN and rows == 1 and columns > 1
    if stacked:
        options.pop("width_ratios", None)
        wide, high = options.get("figsize", (10.0, 4.0))
        options["figsize"] = (wide / columns, high * columns)
    with mpl.rc_context({**style, **journal()}):
        shape = (columns, rows) if stacked else (rows, columns)
        figure, grid = plt.subplots(*shape, layout="constrained", squeeze=False, **options)
        yield figure, grid.T if stacked else grid
        if title:
            figure.suptitle(title, fontsize=10)
        save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format and width that `look` says, the same bytes for the same figure."""
    how = look_now()
    path = path.with_suffix(f".{how.format or 'png'}") if path.suffix == ".png" else path
    if how.width_in is not None:
        wide, high = figure.get_size_inches()
        figure.set_size_inches(how.width_in, high * max(how.width_in / wide, _LEAST_HEIGHT))
        figure.suptitle("")
        narrow = how.width_in < NARROW_IN
        for text in figure.findobj(Text):
            text.set_fontsize(min(text.get_fontsize(), COLUMN_POINTS if narrow else PAGE_POINTS))
    of_axes = [each for axes in figure.axes for each in axes.get_children() if each not in axes.texts]
    for title in (each for each in (*figure.texts, *of_axes) if isinstance(each, Text)):
        title.set_text(title.get_text().encode(errors="replace").decode())  # names of files need be no proper text
        title.set_parse_math(False)
    drawn = BytesIO()  # as Pillow takes a write to a file that a full disk cuts short for a whole one
    metadata = _UNDATED.get(path.suffix)
    figure.savefig(drawn, format=path.suffix[1:] or None, metadata=metadata)
    plt.close(figure)
    write_bytes(path, drawn.getvalue())


@contextmanager
def on_axes(axes: Axes | None, **options: Any) -> Iterator[Axes]:
    """Yield axes to draw on in the style of all pictures: those given, or new ones; `options` are of `plt.subplots`."""
    if not isinstance(axes, Axes | None):
        raise ConfigError(f"plot() draws on axes of matplotlib, not on {shown(axes)}; give those of `plt.subplots`")
    with mpl.rc_context(STYLE):
        yield axes if axes is not None else plt.subplots(layout="constrained", **options)[1]


def plot_bars(comparison: "Comparison", axes: Axes | None = None) -> Axes:
    """Draw stacked bars of each schedule's time, and return the axes."""
    with on_axes(axes, figsize=(7, 1.6 + 0.5 * len(comparison.outcomes))) as drawn_on:
        scale, unit = time_scale(max(outcome.makespan_s for outcome in comparison.outcomes))
        _bars(drawn_on, comparison, scale, unit)
    return drawn_on


def plot_operations(nodes: "pd.DataFrame", axes: Axes | None = None) -> Axes:
    """Draw the whole time of each operation of a table of graph nodes, the longest on top, and return the axes."""
    times = nodes.groupby("operation")["duration_s"].sum().sort_values().tail(_MOST_OPERATIONS)
    kinds = nodes.groupby("operation")["kind"].first()
    colours = [COMPUTE if kinds[name] == "compute" else COMMUNICATION for name in times.index]
    scale, unit = time_scale(float(times.max()) if len(times) else 0.0)
    with on_axes(axes, figsize=(7, 1 + 0.25 * len(times))) as drawn_on:
        drawn_on.barh(times.index, times * scale, color=colours)
        drawn_on.set_xlabel(f"time of all calls [{unit}]")
    return drawn_on


def _bars(axes: Axes, comparison: "Comparison", scale: float, unit: str) -> None:
    names = [outcome.schedule for outcome in comparison.outcomes]
    left = [0.0] * len(names)
    for label, colour, field in (
        ("compute", COMPUTE, "compute_s"),
        ("exposed communication", COMMUNICATION, "exposed_communication_s"),
        ("idle", IDLE, "idle_s"),
    ):
        widths = [getattr(outcome.breakdown, field) * scale for outcome in comparison.outcomes]
        if label == "idle" and max(widths) < _SEEN * max(left):
            continue  # an entry of the legend that is nowhere to be seen tells the reader nothing
        axes.barh(names, widths, left=left, color=colour, label=label, height=0.55)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for index, (outcome, end) in enumerate(zip(comparison.outcomes, left, strict=True)):
        note = f" {format_seconds(outcome.makespan_s)}"
        if index:
            note += f"  ({outcome.speedup:.2f}x)"
        axes.text(end, index, note, va="center", fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, max(left) * 1.3)
    axes.set_xlabel(f"time [{unit}]")
    axes.legend(
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=legend_columns(3),
        frameon=False,
        fontsize=7,
    )


def _chains(axes: Axes, comparison: "Comparison", scale: float, unit: str) -> None:
    """Draw two rows for each schedule: compute above, communication below."""
    least = _HAIR * scale * max(outcome.makespan_s for outcome in comparison.outcomes)
    for index, outcome in enumerate(comparison.outcomes):
        line = outcome.result.timelines[0]
        for communicates, offset, colour in ((False, -0.2, COMPUTE), (True, 0.2, COMMUNICATION)):
            spans = merged_spans(line, communicates=communicates)
            bars = [(start * scale, max((end - start) * scale, least)) for start, end in spans]
            axes.broken_barh(bars, (index + offset - 0.17, 0.34), facecolors=colour)
    names = [outcome.schedule for outcome in comparison.outcomes]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"time [{unit}]")
    axes.legend(
        handles=[Patch(color=COMPUTE, label="compute"), Patch(color=COMMUNICATION, label="communication")],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
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
