"""Back ends side by side to pictures: which is the fastest at which size on how many ranks, and what each takes."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from scaleout.backend_comparison import BackendComparison
from scaleout.plot import PUBLISHED, SERIES, STYLE, save
from scaleout.units import format_bytes

_MARKERS = "^osDvPX"
_PANELS = 3
"""Panels in a row of curves."""


def draw_map(
    comparison: BackendComparison, path: Path, *, title: str, published: Mapping[int, int] | None = None
) -> None:
    """Draw a mark for the fastest back end at each size and number of ranks.

    Parameters
    ----------
    comparison : BackendComparison
    path : Path
    title : str
    published : mapping of int to int, optional
        Number of ranks to the largest size at which the first winner of small sizes is published to win.
    """
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.6, 3.2), layout="constrained")
        best = comparison.best
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
        save(figure, path)


def draw_curves(
    comparison: BackendComparison, path: Path, *, title: str, notes: Mapping[int, str] | None = None
) -> None:
    """Draw the time of each back end over sizes, a panel for each number of ranks; `notes` go into some of them."""
    with mpl.rc_context(STYLE):
        count = len(comparison.num_ranks)
        rows = -(-count // _PANELS)
        figure, grid = plt.subplots(
            rows, min(count, _PANELS), figsize=(9.6, 0.6 + 2.2 * rows), layout="constrained",
            sharex=True, sharey=True, squeeze=False,
        )  # fmt: skip
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
        figure.suptitle(title, fontsize=10)
        save(figure, path)


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
