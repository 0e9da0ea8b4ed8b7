"""Results to pictures: where the time goes in each schedule, and when.

Colours: compute blue, communication orange, lighter where it is overlapped, idle grey.
"""

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes as Axes  # noqa: PLC0414 - also for annotations elsewhere
from matplotlib.axis import Axis, Tick
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from scaleout.analysis.breakdown import Running, covered
from scaleout.config.units import counted, format_seconds
from scaleout.config.writing import write_bytes
from scaleout.errors import ConfigError, printable, shown
from scaleout.program.graph import Floats
from scaleout.report.colours import COMMUNICATION, COMPUTE, IDLE, OVERLAPPED, time_scale
from scaleout.report.look import COLUMN_POINTS, NARROW_IN, PAGE_POINTS, look_now

if TYPE_CHECKING:
    import pandas as pd

    from scaleout.simulation.result import Result, Timeline
    from scaleout.study.comparison import Comparison
    from scaleout.study.job import Outcome

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
_LONGEST_NAME = 44
"""Letters of a kernel's name, about half of a picture wide."""

_JOURNAL: dict[Any, Any] = {"font.size": PAGE_POINTS, "axes.titlesize": PAGE_POINTS, "figure.dpi": 300}


_BINS = 400
"""Shortest times into which the longest timeline is divided, each about as wide as a dot of print."""
_AXIS = 1.02
"""Of an axis of times, over the longest."""
_ROW_HEIGHT = 0.36
"""Of a row of a timeline that is busy all the time; two schedules are 1 apart."""
_SEEN = 0.01
"""Share of a bar from which a part of it is seen."""
_LEAST_HEIGHT = 0.6
"""Of a picture that is made narrower, of the height that it had."""
_UNDATED = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def draw_comparison(comparison: "Comparison", path: Path) -> None:
    """Draw stacked bars of each schedule's time and, beside them, on the same axis when the least idle rank works."""
    size = (10, 1.6 + 0.75 * len(comparison.outcomes))
    with drawn(path, 1, 2, figsize=size, width_ratios=(1, 1.6)) as (figure, grid):
        scale, unit = time_scale(max(outcome.makespan_s for outcome in comparison.outcomes))
        _bars(grid[0, 0], comparison, scale, unit)
        _chains(grid[0, 1], comparison, scale)
        grid[0, 0].set_xlabel(f"(a) time, mean over ranks [{unit}]")
        rank = least_idle(comparison.outcomes[0].result)
        several = any(len(outcome.result.timelines) > 1 for outcome in comparison.outcomes)
        who = f"rank {rank}, the least idle," if several else "each rank"
        grid[0, 1].set_xlabel(f"(b) {who} over time [{unit}]\nheight: share of each moment")
        figure.suptitle(
            f"{comparison.workload} on {comparison.topology}, {counted(comparison.ranks, 'rank')} "
            f"of {comparison.device}"
        )


def is_narrow() -> bool:
    """Tell whether the picture is as narrow as a column of text."""
    return (look_now().width_in or NARROW_IN) < NARROW_IN


def legend_columns(wanted: int) -> int:
    """Return the columns of a legend: two at most where the picture is as narrow as a column of text."""
    return min(wanted, 2) if is_narrow() else wanted


def panels(count: int, most: int) -> tuple[int, int]:
    """Return the rows and columns of a number of panels: one below the other where the picture is narrow.

    Elsewhere as many are side by side as `most` allows, or one fewer where that leaves fewer places empty.
    """
    columns = 1 if is_narrow() else min(count, most)
    if columns > 2 and -count % columns > -count % (columns - 1):
        columns -= 1
    return -(-count // columns), columns


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
    stacked = is_narrow() and rows == 1 and columns > 1
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


_MARGIN_IN, _FILLED = 0.1, 0.93
"""Of a picture: inches above and below what is drawn, and the share of its height that this fills at the least."""


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format and width that `look` says, the same bytes for the same figure."""
    how = look_now()
    path = path.with_suffix(f".{how.format or 'png'}") if path.suffix == ".png" else path
    if how.width_in is not None:
        _leave_titles_out(figure)
        wide, high = figure.get_size_inches()
        figure.set_size_inches(how.width_in, high * max(how.width_in / wide, _LEAST_HEIGHT))
        for text in figure.findobj(Text):
            text.set_fontsize(min(text.get_fontsize(), COLUMN_POINTS if is_narrow() else PAGE_POINTS))
        figure.draw_without_rendering()
        needed = figure.get_tightbbox().height + _MARGIN_IN
        if needed < _FILLED * figure.get_figheight():  # where both ways have one scale, what is narrow is low
            figure.set_figheight(needed)
    as_given(figure)
    drawn = BytesIO()  # as Pillow takes a write to a file that a full disk cuts short for a whole one
    metadata = _UNDATED.get(path.suffix)
    figure.savefig(drawn, format=path.suffix[1:] or None, metadata=metadata)
    plt.close(figure)
    write_bytes(path, drawn.getvalue())


def as_given(drawn: Artist) -> None:
    """Have each text drawn letter by letter: names that users give are no formulas, nor always proper texts."""
    for axis in drawn.findobj(Axis):
        if isinstance(labels := axis.get_major_formatter(), FuncFormatter):  # which `set_yticks` and the like make
            axis.set_major_formatter(FuncFormatter(partial(_plain, labels.func)))
    of_ticks = {label for tick in drawn.findobj(Tick) for label in (tick.label1, tick.label2)}
    for text in drawn.findobj(Text):
        if text not in of_ticks:  # which are powers of ten, or as their formatter says
            text.set_text(printable(text.get_text()))
            text.set_parse_math(False)


def _plain(label: Callable[[float, int], str], value: float, at: int) -> str:
    return _DOLLAR.sub(r"\\$", printable(label(value, at)))


_DOLLAR = re.compile(r"(?<!\\)\$")
"""That begins a formula."""


def _leave_titles_out(figure: Figure) -> None:
    """Take away what a caption says: the title of the whole, and of a panel that is the only one with a title."""
    figure.suptitle("")
    titled = [axes for axes in figure.axes if any(axes.get_title(loc) for loc in ("left", "center", "right"))]
    for axes in titled if len(titled) == 1 else ():
        for loc in ("left", "center", "right"):
            axes.set_title("", loc=loc)


@contextmanager
def on_axes(axes: Axes | None, **options: Any) -> Iterator[Axes]:
    """Yield axes to draw on in the style of all pictures: those given, or new ones; `options` are of `plt.subplots`."""
    if not isinstance(axes, Axes | None):
        raise ConfigError(f"plot() draws on axes of matplotlib, not on {shown(axes)}; give those of `plt.subplots`")
    with mpl.rc_context(STYLE):
        drawn_on = axes if axes is not None else plt.subplots(layout="constrained", **options)[1]
        yield drawn_on
        as_given(drawn_on if axes is not None else drawn_on.figure)


def plot_bars(comparison: "Comparison", axes: Axes | None = None) -> Axes:
    """Draw stacked bars of each schedule's time, and return the axes."""
    with on_axes(axes, figsize=(7, 1.6 + 0.5 * len(comparison.outcomes))) as drawn_on:
        scale, unit = time_scale(max(outcome.makespan_s for outcome in comparison.outcomes))
        _bars(drawn_on, comparison, scale, unit)
    return drawn_on


def plot_operations(nodes: "pd.DataFrame", axes: Axes | None = None) -> Axes:
    """Draw the whole time of each operation of a table of graph nodes, the longest on top, and return the axes.

    Operations of which no time is known, as of collectives before they are simulated, are named below.
    """
    every = nodes.groupby("operation")["duration_s"].sum(min_count=1)
    times, unknown = every.dropna().sort_values().tail(_MOST_OPERATIONS), sorted(every.index[every.isna()])
    kinds = nodes.groupby("operation")["kind"].first()
    colours = [COMPUTE if kinds[name] == "compute" else COMMUNICATION for name in times.index]
    scale, unit = time_scale(float(times.max()) if len(times) else 0.0)
    with on_axes(axes, figsize=(7, 1 + 0.25 * len(times))) as drawn_on:
        drawn_on.barh(range(len(times)), times * scale, color=colours)
        drawn_on.set_yticks(range(len(times)), short_kernels(list(times.index)))
        words = f"time of all calls [{unit}]"
        if unknown:
            names = ", ".join(short_kernels(unknown))
            words += "\n" + textwrap.fill(f"not drawn, as only a simulation times them: {names}", 80)
        drawn_on.set_xlabel(words)
        if len(set(colours)) > 1:
            told = ((COMPUTE, "compute"), (COMMUNICATION, "communication"))
            drawn_on.legend(
                handles=[Patch(color=each, label=name) for each, name in told], loc="lower right", frameon=False
            )
    return drawn_on


def short_kernels(names: Sequence[str]) -> list[str]:
    """Return names of kernels that a picture has room for; those that are alike then are counted.

    Return types, namespaces and parameters of C++ are left out, and the end of what is still too long.

    >>> adam = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::Adam<float>, 4>(float*, int)"
    >>> short_kernels(["gemm", adam]), short_kernels(["void f<a, b>(int)", "void f<a, b>(long)"])
    (['gemm', 'multi_tensor_apply_kernel<Adam<float>, 4>'], ['f<a, b>', 'f<a, b> (2)'])
    """
    short, seen = [], Counter[str]()
    for name in names:
        plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
        plain = re.sub(r"\b(?:\w+::)+(?=\w)", "", plain)
        plain = re.sub(r">\s*\([^()]*\)$", ">", plain)
        plain = plain if len(plain) <= _LONGEST_NAME else f"{plain[: _LONGEST_NAME - 3].rstrip(' ,<:')}..."
        seen[plain] += 1
        short.append(plain if seen[plain] == 1 else f"{plain} ({seen[plain]})")
    return short


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
    labels = [f"{_called(outcome)}\n{format_seconds(outcome.makespan_s)}" for outcome in comparison.outcomes]
    more = (f" ({outcome.speedup:.2f}x)" if number else "" for number, outcome in enumerate(comparison.outcomes))
    axes.set_yticks(range(len(names)), ["".join(each) for each in zip(labels, more, strict=True)])
    axes.invert_yaxis()
    axes.set_xlim(0, max(left) * _AXIS)
    axes.set_xlabel(f"time [{unit}]")
    axes.legend(
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=legend_columns(3),
        frameon=False,
        fontsize=7,
    )


def _called(outcome: "Outcome") -> str:
    """Return the name of a schedule; of one that runs as a simpler one, with that below: its bar is no gain or loss."""
    return f"{outcome.schedule}\nruns as {outcome.runs_as}" if outcome.runs_as else outcome.schedule


def least_idle(result: "Result") -> int:
    """Return the rank that is idle for the least time, for which others wait; of those alike the first."""
    idle_s = [result.makespan_s - covered(line.start_s, line.end_s) for line in result.timelines]
    return result.timelines[int(np.argmin(np.round(idle_s, 12)))].ranks[0]


def _chains(axes: Axes, comparison: "Comparison", scale: float) -> None:
    """Draw two rows for each schedule: compute above, communication below, as high as the share of a short time."""
    longest_s = max(outcome.makespan_s for outcome in comparison.outcomes)
    rank = least_idle(comparison.outcomes[0].result)
    kinds = {"compute": COMPUTE, "exposed communication": COMMUNICATION}
    for index, outcome in enumerate(comparison.outcomes):
        line = next(line for line in outcome.result.timelines if rank in line.ranks)
        edges_s = moments(line, longest_s / _BINS, outcome.makespan_s)
        compute, exposed, overlapped = shares_of_time(line, edges_s)
        for offset, colour, low, high in (
            (-0.02, COMPUTE, np.zeros(len(compute)), compute),
            (0.38, COMMUNICATION, np.zeros(len(compute)), exposed),
            (0.38, OVERLAPPED, exposed, exposed + overlapped),
        ):
            kinds |= {"overlapped": OVERLAPPED} if overlapped.max() > _SEEN else {}
            bottom = index + offset
            axes.plot([0, outcome.makespan_s * scale], [bottom, bottom], color=IDLE, linewidth=0.5, zorder=0)
            top, base = bottom - _ROW_HEIGHT * high, bottom - _ROW_HEIGHT * low
            axes.stairs(top, edges_s * scale, baseline=base, fill=True, color=colour, linewidth=0)
    names = [_called(outcome) for outcome in comparison.outcomes]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, longest_s * scale * _AXIS)
    axes.legend(
        handles=[Patch(color=colour, label=name) for name, colour in kinds.items()],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=legend_columns(3),
        frameon=False,
        fontsize=7,
    )


def moments(line: "Timeline", least_s: float, until_s: float) -> Floats:
    """Divide a time at the points at which a class of ranks begins or ends to compute or to communicate, (N + 1,).

    None is shorter than `least_s`, but the last. What is shorter begins one of that length, wherever it lies: in equal
    parts of the time a short transfer would be cut at another point each time, and equal ones would look different.
    """
    chosen = (line.is_kernel, line.is_communication)
    changes_s = np.unique(np.concatenate([Running.of(line, each).changes_s() for each in chosen]))
    edges_s = [0.0]
    while edges_s[-1] < until_s:
        after = int(np.searchsorted(changes_s, edges_s[-1], side="right"))
        change_s = float(changes_s[after]) if after < len(changes_s) else until_s
        edges_s.append(min(until_s, max(change_s, edges_s[-1] + least_s)))
    return np.array(edges_s)


def shares_of_time(line: "Timeline", edges_s: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the shares of short times, whose (N + 1,) edges are given, of compute and communication, (N,) each.

    Communication is divided into what is exposed, and what is overlapped with compute.
    """
    spans = edges_s[:-1], edges_s[1:]
    lengths = np.maximum(spans[1] - spans[0], np.finfo(float).tiny)
    compute, communication, busy = (
        Running.of(line, chosen).between(*spans) / lengths
        for chosen in (line.is_kernel, line.is_communication, line.is_kernel | line.is_communication)
    )
    exposed = np.maximum(busy - compute, 0.0)
    return compute, exposed, np.maximum(communication - exposed, 0.0)
