"""Plans that a search evaluated, as a picture: step time against memory."""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

from scaleout.report.plots.schedules import COMMUNICATION, COMPUTE, IDLE, STYLE, save, time_scale
from scaleout.study.search.best import SLACK
from scaleout.study.search.request import SearchRequest
from scaleout.study.search.search import Answer


def draw_plans(request: SearchRequest, answer: Answer, path: Path) -> None:
    """Draw step time against memory of all evaluated plans; those that no other beats in both are joined and named."""
    scale, unit = time_scale(answer.fastest[0].estimate.step_s)
    last_s = SLACK * answer.fastest[0].estimate.step_s
    near = [found.estimate for found in answer.evaluated if found.estimate.step_s <= last_s]
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(9, 4.6), layout="constrained")
        axes.scatter(
            [each.peak_bytes / 1e9 for each in near], [each.step_s * scale for each in near],
            s=12, color=IDLE, label="evaluated",
        )  # fmt: skip
        memory = [found.estimate.peak_bytes / 1e9 for found in answer.front]
        times = [found.estimate.step_s * scale for found in answer.front]
        axes.step(memory, times, where="pre", color=COMPUTE, linewidth=1)
        axes.scatter(memory, times, s=24, color=COMPUTE, zorder=3, label="least memory for its time")
        for number, (x, y) in enumerate(zip(memory, times, strict=True), start=1):
            axes.annotate(str(number), (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
        limit = request.memory_bytes / 1e9
        axes.axvline(limit, color=COMMUNICATION, linestyle="--", linewidth=1, label=f"limit {limit:.4g} GB")
        axes.set_xlim(0, None)
        axes.set_xlabel("memory of the fullest rank [GB]")
        axes.set_ylabel(f"time of a step [{unit}]")
        axes.set_title(f"{request.base.name} on {request.topology.name}, global batch {request.batch}")
        axes.legend(loc="lower left", frameon=False, fontsize=7)
        several = len({found.schedule for found in answer.evaluated}) > 1
        legend = "\n".join(
            f"{number}  {found.plan}" + (f", {found.schedule}" if several else "")
            for number, found in enumerate(answer.front, start=1)
        )
        axes.text(1.02, 1.0, legend, transform=axes.transAxes, va="top", fontsize=6.5)
        save(figure, path)
