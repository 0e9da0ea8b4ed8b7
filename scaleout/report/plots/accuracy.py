"""Errors of predictions as one picture: of all rows against what was measured, and of each family.

On the left a point a row, its error against the measured time, so that it shows whether short ones are known less well.
On the right a line a family: a dot a row, the median as a mark, and the mean absolute error in words. The shaded band
is 10% to either side. Colours say what was measured.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import ScaledTranslation

from scaleout.report.colours import SERIES
from scaleout.report.plots.schedules import drawn
from scaleout.validation.measured.compare import Compared, Comparison

_BAND = 0.1
_WIDEST = 0.5
"""Errors beyond are drawn at the edge, as triangles."""
_DECADE, _BELOW_IN = 10.0, 0.36
"""Ends of an axis that are nearer to each other have ticks as one without logarithms; where the legend begins [in]."""
_SPREAD = 0.28
"""Half the height over which dots of a family are spread, by their order in the file."""
_KINDS = {
    "a kernel alone": ("kernels",),
    "collectives, and kernels beside them": ("collectives", "contention", "fused operators", "chunked", "NCCL"),
    "layers and whole steps": ("",),
}
"""What was measured, and how names of its families begin; the first that fits."""
_COLOURS = dict(zip(_KINDS, SERIES, strict=False))


def draw_parity(comparison: Comparison, path: Path) -> None:
    """Draw the errors of times against the times, which are logarithmic, and beside them by family.

    Families of memory have no place on axes of time and are left out; the title says how many rows that are.
    """
    known = [
        row
        for row in comparison.rows
        if row.quantity == "time" and row.measured is not None and row.predicted is not None
    ]
    names = tuple(dict.fromkeys(row.family for row in known))
    height = max(3.4, 1.8 + 0.26 * len(names))
    with drawn(path, 1, 2, title=_title(comparison, known), figsize=(9.6, height), sharex=True) as (_, grid):
        _draw_points(grid[0, 0], known)
        _draw_errors(grid[0, 1], comparison, known, names)


def _title(comparison: Comparison, known: Sequence[Compared]) -> str:
    """Say what is drawn, what is not, and what the marks mean."""
    total, predicted = comparison.accuracy.num_rows, comparison.accuracy.predicted
    others = {"of memory": predicted - len(known), "not predicted, with a reason": total - predicted}
    left = ", ".join(f"{count:,} {words}" for words, count in others.items() if count)
    beyond = sum(abs(row.error or 0.0) > _WIDEST for row in known)
    edge = f"; triangles: {beyond:,} beyond {_WIDEST:.0%}" if beyond else ""
    return (
        f"{len(known):,} of {total:,} rows{f' (not drawn: {left})' if left else ''}\n"
        f"band: {_BAND:.0%} to either side{edge}; above zero the prediction is too long"
    )


def _kind(family: str) -> str:
    return next(kind for kind, begins in _KINDS.items() if family.startswith(begins))


def _scatter(axes: Axes, errors: "np.ndarray[tuple[int], np.dtype[np.float64]]", at: object, kind: str) -> None:
    """Draw a dot for each error, (N,), and a triangle at the edge for those beyond."""
    colour, place = _COLOURS[kind], np.asarray(at)
    inside = np.abs(errors) <= _WIDEST
    axes.scatter(100 * errors[inside], place[inside], s=9, color=colour, alpha=0.6, linewidths=0)
    for sign, marker in ((-1, "<"), (1, ">")):
        beyond = ~inside & (np.sign(errors) == sign)
        edge = np.full(beyond.sum(), 100 * sign * _WIDEST)
        axes.scatter(edge, place[beyond], s=16, color=colour, marker=marker, clip_on=False, linewidths=0)


def _draw_band(axes: Axes) -> None:
    axes.axvspan(-_BAND * 100, _BAND * 100, color="#222222", alpha=0.1, linewidth=0)
    axes.axvline(0.0, color="#222222", linewidth=0.8)
    axes.set(xlim=(-100 * _WIDEST, 100 * _WIDEST), xlabel="error [%]")
    axes.tick_params(labelbottom=True)  # of both, where one stands above the other as well


def _draw_points(axes: Axes, known: Sequence[Compared]) -> None:
    _draw_band(axes)
    for kind in _KINDS:
        mine = [row for row in known if _kind(row.family) == kind]
        if mine:
            times_ms = 1e3 * np.array([row.measured for row in mine], np.float64)
            _scatter(axes, np.array([row.error for row in mine], np.float64), times_ms, kind)
            axes.scatter([], [], s=16, color=_COLOURS[kind], label=f"{kind} ({len(mine):,})")
    axes.set(yscale="log", ylabel="measured time [ms]")
    axes.set_title("(a) all rows", loc="left", fontsize=9)
    least, most = axes.get_ylim()
    if known and most < _DECADE * least:  # of which an axis of logarithms has a tick or none that is a power of ten
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.minorticks_off()
    if known:
        below = axes.transAxes + ScaledTranslation(0, -_BELOW_IN, axes.figure.dpi_scale_trans)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), bbox_transform=below, frameon=False, fontsize=8)


def _draw_errors(axes: Axes, comparison: Comparison, known: Sequence[Compared], names: Sequence[str]) -> None:
    _draw_band(axes)
    for number, name in enumerate(names):
        errors = np.array([row.error for row in known if row.family == name], np.float64)
        spread = _SPREAD * (np.linspace(-1.0, 1.0, len(errors)) if len(errors) > 1 else np.zeros(1))
        _scatter(axes, errors, number + spread, _kind(name))
        axes.plot([100 * np.median(errors)] * 2, [number - 0.38, number + 0.38], color="#222222", linewidth=1.6)
    labels = [
        f"{name} ({comparison.families[name].predicted})  {comparison.families[name].mean_absolute_error:.1%}"
        for name in names
    ]
    axes.set(ylim=(len(names) - 0.4, -0.6), yticks=range(len(names)), yticklabels=labels)
    axes.set_title("(b) families (rows), mean absolute error; mark: median", loc="right", fontsize=9)
    axes.tick_params(axis="y", length=0)
