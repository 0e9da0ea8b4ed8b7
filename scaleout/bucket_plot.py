"""Steps over the size of gradient buckets, to a picture: the step, what is not hidden, and the best of all."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from scaleout.buckets import Bucketed, best
from scaleout.plot import PUBLISHED, SERIES, STYLE, save
from scaleout.units import format_bytes, format_seconds


def draw_buckets(rows: Sequence[Bucketed], path: Path, *, title: str) -> None:
    """Draw the step and its exposed communication over the size of a bucket, a line a way to reduce."""
    with mpl.rc_context(STYLE):
        figure, (steps, exposed) = plt.subplots(1, 2, figsize=(9.6, 3.4), layout="constrained", sharex=True)
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
        for axes, what in ((steps, "step [ms]"), (exposed, "communication, not hidden [ms]")):
            _axes(axes, [row.bucket_bytes for row in rows], what)
        steps.legend(frameon=False, fontsize=8)
        figure.suptitle(title, fontsize=10)
        save(figure, path)


def _axes(axes: Axes, sizes: Sequence[int], what: str) -> None:
    axes.set_xscale("log", base=2)
    ticks = sorted(set(sizes))[:: max(1, len(set(sizes)) // 6)]
    axes.set_xticks(ticks, [format_bytes(tick) for tick in ticks])
    axes.set(xlabel="gradient bucket, at least", ylabel=what)
    axes.grid(alpha=0.25, linewidth=0.5)
