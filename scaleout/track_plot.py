"""Tracked products to pictures: what a device's memory serves when."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from scaleout.operators.track.overlap import Overlapped
from scaleout.plot import PUBLISHED, STYLE, save

KINDS = ("product_reads", "product_writes", "scatter_reads", "scatter_writes", "gather_reads", "gather_writes")
COLOURS = dict(zip(KINDS, ("#4477aa", "#99bbdd", "#ee6677", "#f4aab4", "#228833", "#99cc99"), strict=True))
"""Kind of traffic to its colour: product blue, reduce-scatter red, all-gather green; writes are lighter."""

_STEPS = 240


def draw_traffic(axes: Axes, found: Overlapped) -> None:
    """Draw the memory's traffic of a product and its collective over time, by kind, stacked."""
    edges = np.linspace(0, found.end_s, _STEPS)
    bottom = np.zeros(len(edges) - 1)
    for kind in KINDS[:4]:
        filled = np.zeros(len(edges) - 1)
        for each in found.served:
            if each.kind == kind:
                overlap_s = np.minimum(edges[1:], each.end_s) - np.maximum(edges[:-1], each.start_s)
                filled += np.clip(overlap_s, 0, None) * each.size_bytes / (each.end_s - each.start_s)
        rate = filled / np.diff(edges) / 1e9
        label = kind.replace("_", " ")
        widths = np.diff(edges) * 1e6
        axes.bar(edges[:-1] * 1e6, rate, widths, bottom=bottom, align="edge", label=label, color=COLOURS[kind])
        bottom += rate
    for end_s in found.stage_ends_s:
        axes.axvline(end_s * 1e6, color=PUBLISHED, linewidth=0.4)
    axes.legend(frameon=False, fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.12))
    axes.set_xlabel("time (µs); lines: ends of stages")
    axes.set_ylabel("memory traffic (GB/s)")


def draw_tracked(found: dict[str, Overlapped], path: Path, *, title: str) -> None:
    """Draw the traffic of several configurations below each other, on one time axis."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(found), 1, figsize=(10, 0.8 + 2.6 * len(found)), layout="constrained", sharex=True, squeeze=False
        )
        for (name, each), panel in zip(found.items(), axes[:, 0], strict=True):
            draw_traffic(panel, each)
            panel.set_title(name, loc="left")
        figure.suptitle(title)
        save(figure, path)
