"""Predictions beside what was measured, as one picture: all rows as points, and the errors of each family.

On the left a point a row; on the diagonal predicted and measured are the same. On the right a line a family: a dot a
row, the median as a mark, and the mean absolute error in words. The shaded band is 10% to either side.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from scaleout.report.plots.schedules import drawn
from scaleout.validation.measured.compare import Compared, Comparison

_BAND = 0.1
_WIDEST = 0.5
"""Errors beyond are drawn at the edge, as triangles."""
_SPREAD = 0.28
"""Half the height over which dots of a family are spread, by their order in the file."""


def draw_parity(comparison: Comparison, path: Path) -> None:
    """Draw predicted against measured times, both logarithmic, and the errors of each family beside them.

    Families of memory have no place on axes of time and are left out.
    """
    known = [
        row
        for row in comparison.rows
        if row.quantity == "time" and row.measured is not None and row.predicted is not None
    ]
    names = tuple(dict.fromkeys(row.family for row in known))
    height = max(3.4, 1.4 + 0.26 * len(names))
    accuracy = comparison.accuracy
    title = f"{accuracy.predicted} of {accuracy.num_rows} rows predicted; the band is {_BAND:.0%} to either side"
    with drawn(path, 1, 2, title=title, figsize=(9.6, height), width_ratios=(1.0, 1.1)) as (_, grid):
        _draw_points(grid[0, 0], known, names)
        _draw_errors(grid[0, 1], comparison, known, names)


def _colour(number: int) -> tuple[float, float, float, float]:
    red, green, blue, alpha = plt.get_cmap("tab10")(number % 10)
    return red, green, blue, alpha


def _draw_points(axes: Axes, known: Sequence[Compared], names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        points = np.array([(row.measured, row.predicted) for row in known if row.family == name], np.float64) * 1e3
        axes.scatter(points[:, 0], points[:, 1], s=10, color=_colour(number), alpha=0.7, linewidths=0)
    times = [time for row in known for time in (row.measured, row.predicted) if time]
    ends = np.array([0.7 * min(times), 1.4 * max(times)]) * 1e3 if times else np.array([0.1, 1.0])
    axes.plot(ends, ends, color="#222222", linewidth=0.8)
    axes.fill_between(ends, ends * (1 - _BAND), ends * (1 + _BAND), color="#222222", alpha=0.1, linewidth=0)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured [ms]", ylabel="predicted [ms]")


def _draw_errors(axes: Axes, comparison: Comparison, known: Sequence[Compared], names: Sequence[str]) -> None:
    axes.axvspan(-_BAND * 100, _BAND * 100, color="#222222", alpha=0.1, linewidth=0)
    axes.axvline(0.0, color="#222222", linewidth=0.8)
    for number, name in enumerate(names):
        errors = np.array([row.error for row in known if row.family == name], np.float64)
        at = number + _SPREAD * (np.linspace(-1.0, 1.0, len(errors)) if len(errors) > 1 else np.zeros(1))
        inside = np.abs(errors) <= _WIDEST
        axes.scatter(100 * errors[inside], at[inside], s=9, color=_colour(number), alpha=0.6, linewidths=0)
        for sign, marker in ((-1, "<"), (1, ">")):
            beyond = ~inside & (np.sign(errors) == sign)
            edge = np.full(beyond.sum(), 100 * sign * _WIDEST)
            axes.scatter(edge, at[beyond], s=16, color=_colour(number), marker=marker, clip_on=False, linewidths=0)
        axes.plot([100 * np.median(errors)] * 2, [number - 0.38, number + 0.38], color="#222222", linewidth=1.6)
    labels = [
        f"{name} ({comparison.families[name].predicted})  {comparison.families[name].mean_absolute_error:.1%}"
        for name in names
    ]
    axes.set(
        xlim=(-100 * _WIDEST, 100 * _WIDEST),
        ylim=(len(names) - 0.4, -0.6),
        xlabel="error [%], and its median",
        yticks=range(len(names)),
        yticklabels=labels,
        title="families: rows, mean absolute error",
    )
    axes.tick_params(axis="y", length=0)
