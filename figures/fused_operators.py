"""Figs. 8 to 14 of the fused computation-collectives paper: operators on MI210, fused over bulk-synchronous.

    python figures/fused_operators.py [8 9 ...] [--output DIR]

Writes fused_fig08.png to fused_fig14.png (there is no 15: see fused_fig15.py) and fused_operators.csv with the bars.
The sweeps are those of `scaleout reproduce fused`, which says what is assumed: the paper's text gives the sizes of
Figs. 11 and 13 alone.

Source: Punniyamurthy, Hamidouche and Beckmann, Optimizing Distributed ML Communication with Fused
Computation-Collective Operations, SC 2024, Table I and Figs. 8 to 14.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from scaleout.config.writing import write_text
from scaleout.report.colours import COMMUNICATION, COMPUTE, IDLE, PUBLISHED
from scaleout.report.plots.operators import draw_timelines
from scaleout.report.plots.schedules import drawn
from scaleout.schedule.fusion import evaluate_operator
from scaleout.validation.papers import fused, published

CLAIMS = {claim.id: claim.value for claim in published()}


def draw_occupancy(times_s: Mapping[float, float], path: Path, *, published: Mapping[str, str], title: str) -> None:
    """Draw the time of a fused operator against occupancy, over that of the lowest, with what a paper says of it.

    Parameters
    ----------
    times_s : mapping
        Occupancy to time.
    published : mapping
        What is simulated, in words, to what is published.
    """
    base_s = next(iter(times_s.values()))
    with drawn(path, figsize=(5.6, 3.6)) as (_, grid):
        axes = grid[0, 0]
        labels = [f"{occupancy:.1%}" for occupancy in times_s]
        values = [seconds / base_s for seconds in times_s.values()]
        axes.bar(labels, values, color=COMPUTE, width=0.6)
        for index, value in enumerate(values):
            axes.text(index, value - 0.06, f"{value:.2f}", ha="center", fontsize=8, color="white")
        text = "\n".join(f"{ours}; published {theirs}" for ours, theirs in published.items())
        axes.text(0.98, 0.98, text, transform=axes.transAxes, ha="right", va="top", fontsize=8)
        axes.set_xlabel("occupancy")
        axes.set_ylabel(f"time over that at {labels[0]}")
        axes.set_title(title)


def draw_skews(
    labels: Sequence[str],
    done_s: Mapping[str, Sequence[tuple[float, float]]],
    path: Path,
    *,
    notes: Mapping[str, str],
    title: str,
) -> None:
    """Draw when both nodes are done, over node 0 in oblivious order, for both orders.

    Parameters
    ----------
    labels : sequence of str, length N
    done_s : mapping
        Order to the times of both nodes, length N.
    notes : mapping
        Order to what is to be said of its skew.
    """
    with drawn(path, 1, 2, title=title, figsize=(9, 3.4), sharey=True) as (_, grid):
        panels = grid[0]
        base = np.array([nodes[0] for nodes in done_s["oblivious"]])
        for panel, order in zip(panels, ("oblivious", "aware"), strict=True):
            values = np.array(done_s[order]) / base[:, None]
            where = np.arange(len(labels))
            for node, colour in enumerate((COMPUTE, COMMUNICATION)):
                panel.bar(where + 0.38 * node - 0.19, values[:, node], 0.36, color=colour, label=f"node {node}")
            panel.set_xticks(where, labels, fontsize=7, rotation=30)
            panel.set_title(f"{order} order: {notes[order]}")
            panel.set_xlabel("global batch | tables a node")
        panels[0].set_ylim(0.8, 1.15)
        panels[0].set_ylabel("time over node 0, oblivious (from 0.8)")
        panels[0].legend(frameon=False, fontsize=8, ncols=2)


def draw_reduction(
    labels: Sequence[str],
    reductions: Sequence[float],
    *,
    published: float,
    title: str,
    path: Path,
    published_max: float | None = None,
    xlabel: str = "global batch | tables a node",
) -> None:
    """Draw the execution time of each configuration relative to its baseline, the published mean beside the mean.

    `reductions` are fractions of the baseline's time that are saved, of each label; `published` is the paper's mean,
    `published_max` its largest, as a line beside the smallest bar.
    """
    mean = sum(reductions) / len(reductions)
    values = [1 - reduction for reduction in (*reductions, mean, published)]
    colours = [COMPUTE] * len(reductions) + [COMMUNICATION, PUBLISHED]
    with drawn(path, figsize=(7.5, 3.4)) as (_, grid):
        axes = grid[0, 0]
        axes.bar([*labels, "mean", "published\nmean"], values, color=colours, width=0.68)
        for index, value in enumerate(values):
            axes.text(index, value - 0.05, f"{value:.2f}", ha="center", fontsize=7, color="white")
        axes.axhline(1, color=IDLE, linewidth=1, zorder=0)
        lines = {f"published mean, {1 - published:.2f}": (1 - published, "--")}
        if published_max is not None:
            lines[f"published best, {1 - published_max:.2f}"] = (1 - published_max, ":")
        for label, (height, style) in lines.items():
            axes.axhline(height, color=PUBLISHED, linestyle=style, linewidth=0.9, zorder=0, label=label)
        axes.legend(frameon=False, fontsize=7, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
        axes.set_ylabel("execution time over baseline")
        axes.set_xlabel(xlabel)
        axes.set_ylim(0, 1.05)
        axes.set_title(title, loc="left")
        axes.tick_params(axis="x", labelsize=7, rotation=30)


def bars(number: int, sweep: Callable[[], Sequence[fused.Bar]], title: str, xlabel: str, output: Path) -> pd.DataFrame:
    """Draw a figure of bars, and return them as a table."""
    found = sweep()
    draw_reduction(
        [bar.label for bar in found],
        [bar.reduction for bar in found],
        published=CLAIMS[f"F{number}-mean"] / 100,
        published_max=CLAIMS[f"F{number}-max"] / 100,
        title=title,
        path=output / f"fused_fig{number:02}.png",
        xlabel=xlabel,
    )
    return pd.DataFrame(
        {
            "figure": number,
            "label": bar.label,
            "baseline_s": bar.baseline_s,
            "fused_s": bar.fused_s,
            "reduction": bar.reduction,
        }
        for bar in found
    )


BARS = {
    8: (
        lambda: fused.embedding(fused.SCALE_UP),
        "Embedding + all-to-all, four MI210",
        "global batch | tables a GPU",
    ),
    9: (fused.gemv, "GEMV + all-reduce, four MI210", "rows M of the matrix"),
    10: (fused.experts, "GEMM + all-to-all, four MI210", "tokens | width of the model"),
    12: (
        lambda: fused.embedding(fused.SCALE_OUT),
        "Embedding + all-to-all, two nodes",
        "global batch | tables a node",
    ),
}


def profile(output: Path) -> None:
    """Draw Fig. 11: the work-groups' timeline in slices of 16; speeds differ by 5%, so that ends differ as there."""
    settings = {"batch": 2048, "tables": 256, "slice_size": 16, "spread": 0.05, **fused.PER_TABLE}
    found = evaluate_operator("embedding_all_to_all", settings, fused.machine(fused.SCALE_OUT))
    title = "Work-groups of the fused embedding + all-to-all, two nodes, batch 2048, 256 tables a node, slices of 16"
    draw_timelines(found, output / "fused_fig11.png", title=title)


def occupancy(output: Path) -> None:
    """Draw Fig. 13."""
    times = fused.occupancies()
    draw_occupancy(
        times,
        output / "fused_fig13.png",
        published={
            f"25% to 75%: {1 - times[0.75] / times[0.25]:.0%} less": f"{CLAIMS['F13-low']:.0f}%",
            f"75% to 87.5%: {times[0.875] / times[0.75] - 1:.0%} more": f"{CLAIMS['F13-high']:.0f}%",
        },
        title="Embedding + all-to-all, two nodes, batch 1024, 256 tables",
    )


def skew(output: Path) -> None:
    """Draw Fig. 14."""
    found = fused.skews()
    mean = {order: sum(each.of(order) for each in found) / len(found) for order in ("oblivious", "aware")}
    draw_skews(
        [each.label for each in found],
        {order: [each.done_s[order] for each in found] for order in mean},
        output / "fused_fig14.png",
        notes={order: f"skew {value:.1%}, published {CLAIMS[f'F14-{order}']:.0f}%" for order, value in mean.items()},
        title="Embedding + all-to-all, two nodes: when each is done",
    )


OTHERS = {11: profile, 13: occupancy, 14: skew}


def main() -> None:
    """Simulate, draw, and print the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = sorted({*BARS, *OTHERS})
    parser.add_argument("figures", type=int, nargs="*", metavar="FIGURE", help="numbers; all without any")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="directory to write to")
    options = parser.parse_args()
    wanted = options.figures or known
    if unknown := sorted({*wanted} - {*known}):
        parser.error(f"no figure {unknown[0]}; there are {', '.join(map(str, known))}")
    options.output.mkdir(parents=True, exist_ok=True)
    for number in wanted:
        if number in OTHERS:
            OTHERS[number](options.output)
    tables = [bars(number, *BARS[number], options.output) for number in wanted if number in BARS]
    if tables:
        table = pd.concat(tables)
        write_text(options.output / "fused_operators.csv", table.to_csv(index=False))
        print(table.to_string(index=False, float_format="%.4g"))


if __name__ == "__main__":
    main()
