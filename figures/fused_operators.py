"""Figs. 8 to 14 of the fused computation-collectives paper: operators on MI210, fused over bulk-synchronous.

    python figures/fused_operators.py [8 9 ...] [--output DIR]

Writes fused_fig08.png to fused_fig14.png (there is no 15: see fused_fig15.py) and fused_operators.csv with the bars.
The sweeps are those of `scaleout reproduce fused`, which says what is assumed: the paper's text gives the sizes of
Figs. 11 and 13 alone.

Source: Punniyamurthy, Hamidouche and Beckmann, Optimizing Distributed ML Communication with Fused
Computation-Collective Operations, SC 2024, Table I and Figs. 8 to 14.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from scaleout.report.plots.operators import draw_occupancy, draw_skews, draw_timelines
from scaleout.report.plots.schedules import draw_reduction
from scaleout.validation.papers import fused, published

CLAIMS = {claim.id: claim.value for claim in published()}


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
        lambda: fused.embedding(fused.SCALE_UP, fused.SCALE_UP_BATCHES),
        "Embedding + all-to-all, four MI210",
        "global batch | tables a GPU",
    ),
    9: (fused.gemv, "GEMV + all-reduce, four MI210", "rows M of the matrix"),
    10: (fused.experts, "GEMM + all-to-all, four MI210", "tokens | width of the model"),
    12: (
        lambda: fused.embedding(fused.SCALE_OUT, fused.SCALE_OUT_BATCHES),
        "Embedding + all-to-all, two nodes",
        "global batch | tables a node",
    ),
}


def profile(output: Path) -> None:
    """Draw Fig. 11."""
    title = "Work-groups of the fused embedding + all-to-all, two nodes, batch 2048, 256 tables a node, slices of 16"
    draw_timelines(fused.profile(), output / "fused_fig11.png", title=title)


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
        table.to_csv(options.output / "fused_operators.csv", index=False)
        print(table.to_string(index=False, float_format="%.4g"))


if __name__ == "__main__":
    main()
