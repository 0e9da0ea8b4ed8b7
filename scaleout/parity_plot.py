"""Predictions beside what was measured, as one picture: a point a row, a colour a family.

On the diagonal predicted and measured are the same; the shaded band is 10% to either side of it.
"""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from scaleout.plot import STYLE, save
from scaleout.validation import Comparison

_BAND = 0.1
_MARKERS = "osD^vP"


def draw_parity(comparison: Comparison, path: Path) -> None:
    """Draw predicted against measured times, both logarithmic, with the mean absolute error of each family.

    Families of memory have no place on axes of time and are left out.
    """
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
        times_only = [row for row in comparison.rows if row.quantity == "time"]
        known = [row for row in times_only if row.measured is not None and row.predicted is not None]
        colours = plt.get_cmap("tab10")
        names = dict.fromkeys(row.family for row in known)
        for number, name in enumerate(names):
            points = np.array([(row.measured, row.predicted) for row in known if row.family == name], np.float64)
            accuracy = comparison.families[name]
            axes.scatter(
                points[:, 0] * 1e3,
                points[:, 1] * 1e3,
                s=18,
                color=colours(number % 10),
                marker=_MARKERS[number % len(_MARKERS)],
                alpha=0.8,
                linewidths=0,
                label=f"{name}: {accuracy.mean_absolute_error:.1%} of {accuracy.predicted}",
            )
        times = [time for row in known for time in (row.measured, row.predicted) if time]
        ends = np.array([0.7 * min(times), 1.4 * max(times)]) * 1e3 if times else np.array([0.1, 1.0])
        axes.plot(ends, ends, color="#222222", linewidth=0.8)
        axes.fill_between(ends, ends * (1 - _BAND), ends * (1 + _BAND), color="#222222", alpha=0.1, linewidth=0)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured [ms]", ylabel="predicted [ms]")
        if known:
            axes.legend(frameon=False, title="mean absolute error", loc="center left", bbox_to_anchor=(1.0, 0.5))
        accuracy = comparison.accuracy
        axes.set_title(
            f"{accuracy.predicted} of {accuracy.num_rows} rows predicted; the band is {_BAND:.0%} wide each way"
        )
        save(figure, path)
