"""T3's figures: tracked and triggered overlap of GEMMs and reduce-scatter, simulated, beside what is published.

    python figures/t3.py [--output DIR]

Writes t3_fig04.png, 06, 14 to 20: communication's share; compute units divided; the ring against measured runs; where
sub-layers spend their time; their speed-ups; traffic over time; bytes by kind; whole iterations; twice the compute
units; and t3_ring.png, what is published under both readings of the ring. The paper's text gives means and extremes,
drawn as lines; `scaleout reproduce t3` prints them all.

Source: Pati et al., T3: Transparent Tracking & Triggering for Fine-grained Overlap of Compute & Collectives, ASPLOS
2024; the machine is `traces/t3-gpu/device.yaml` on `topologies/t3-ring-*.yaml`.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import load_topology
from scaleout.network.alpha_beta.cost import collective_cost
from scaleout.report.colours import PUBLISHED, SERIES
from scaleout.report.plots.operators import COLOURS, KINDS, draw_traffic
from scaleout.report.plots.schedules import STYLE, save
from scaleout.schedule.t3.gemm import stage
from scaleout.schedule.t3.memory import COMPUTE_FIRST
from scaleout.schedule.t3.overlap import overlap
from scaleout.schedule.t3.sublayer import CONFIGURATIONS
from scaleout.validation import papers
from scaleout.validation.papers import t3

MEASURED = Path(__file__).parents[1] / "traces" / "h200" / "collectives.jsonl"


def published(axes: Axes, values: dict[str, float]) -> None:
    """Draw published numbers as lines, labelled beside the axes."""
    axes.annotate("published", (1.005, 1.0), xycoords="axes fraction", ha="left", va="bottom", fontsize=7)
    for label, value in values.items():
        axes.axhline(value, color=PUBLISHED, linestyle=":", linewidth=1)
        axes.annotate(
            f"{label}: {value:g}",
            (1.005, value),
            xycoords=("axes fraction", "data"),
            ha="left",
            va="center",
            fontsize=6,
        )


def names_of(rows: list[t3.Swept]) -> list[str]:
    """Return a label for each sub-layer."""
    return ["\n".join([row.name, row.model.replace("Mega-", "Mega-\n"), f"TP {row.degree}"]) for row in rows]


def bars(axes: Axes, labels: list[str], series: dict[str, list[float]]) -> None:
    """Draw groups of bars."""
    width = 0.8 / len(series)
    places = np.arange(len(labels))
    for number, (name, values) in enumerate(series.items()):
        axes.bar(places + (number - (len(series) - 1) / 2) * width, values, width, label=name, color=SERIES[number])
    axes.set_xticks(places, labels, fontsize=6)
    axes.legend(frameon=False, fontsize=7, ncols=len(series), loc="upper center", bbox_to_anchor=(0.5, 1.12))


def figure_4(axes: Axes) -> None:
    """Draw communication's share of iterations."""
    models = (*t3.MODELS, *t3.LARGE_MODELS, *t3.FUTURE_MODELS)
    found = {mode: t3.iterations(models, mode) for mode in ("training", "prefill")}
    labels = [f"{row.model}\nTP {row.degree}" for row in found["training"]]
    shares = {
        name: [100 * row.communication_s / row.total_s for row in found[mode]]
        for name, mode in (("training", "training"), ("prompt phase", "prefill"))
    }
    bars(axes, labels, shares)
    published(axes, {"largest, training": 34, "largest, prompt": 43, "largest of large models": 46})
    axes.set_ylabel("time in reduce-scatter\nand all-gather [%]")


def figure_6(axes: Axes) -> None:
    """Draw what dividing the compute units costs."""
    found = {units: t3.splits(units) for units in (0, 8, 16)}
    labels = [f"{row.name}\n{row.model}" for row in found[0]] + ["geometric\nmean"]
    series = {}
    for units, name in ((0, "ideal"), (8, "72-8"), (16, "64-16")):
        speedups = [row.speedup for row in found[units]]
        series[name] = [*speedups, geometric_mean(speedups)]
    bars(axes, labels, series)
    published(axes, {"ideal": 1.67, "64-16": 1.49, "72-8": 1.18})
    axes.set_ylabel("potential speed-up over\nGEMM, then all-reduce")


def figure_14(axes: Axes) -> None:
    """Draw reduce-scatters of 6 to 192 MB, simulated and measured, on four H200 with NCCL."""
    rows = [json.loads(line) for line in MEASURED.read_text(encoding="utf-8").splitlines()]
    (row,) = (
        row for row in rows
        if (row.get("collective"), row.get("ranks"), row.get("protocol")) == ("reduce_scatter", 4, None)
    )  # fmt: skip
    sizes, measured_s = np.array(row["bytes"], float), np.array(row["us"]) * 1e-6
    large = (sizes >= 6e6) & (sizes <= 192e6)
    sizes, measured_s = sizes[large], measured_s[large]
    placement = place(load_topology("h200-node-4"), range(4))
    simulated_s = np.array([collective_cost("reduce_scatter", size, placement).time_s for size in sizes])
    axes.loglog(simulated_s * 1e6, measured_s * 1e6, "o", color=SERIES[0], markersize=4)
    ends = np.array([min(simulated_s.min(), measured_s.min()), max(simulated_s.max(), measured_s.max())]) * 1e6
    axes.loglog(ends, ends, ":", color=PUBLISHED)
    error = float(np.exp(np.abs(np.log(simulated_s / measured_s)).mean()) - 1)
    axes.set_title(f"geometric mean error {error:.0%} (published, four MI210: 6%)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.set_xlabel("simulated (µs)")
    axes.set_ylabel("measured on four H200 (µs)")


def figure_15(axes: Axes) -> None:
    """Draw where sub-layers spend their time, one after the other."""
    rows = t3.sweep(t3.MODELS, configurations=("sequential",))
    bottom = np.zeros(len(rows))
    totals = np.array([row.outcomes["sequential"].total_s for row in rows])
    for number, (name, part) in enumerate(
        (("GEMM", "gemm_s"), ("reduce-scatter", "reduce_scatter_s"), ("all-gather", "all_gather_s"))
    ):
        shares = 100 * np.array([getattr(row.outcomes["sequential"], part) for row in rows]) / totals
        axes.bar(range(len(rows)), shares, 0.7, bottom=bottom, label=name, color=SERIES[number])
        bottom += shares
    axes.set_xticks(range(len(rows)), names_of(rows), fontsize=6)
    axes.legend(frameon=False, fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.12))
    axes.set_ylabel("share of the sub-layer's time [%]")


def figure_16(axes: Axes) -> None:
    """Draw speed-ups of sub-layers."""
    rows = t3.sweep(t3.MODELS)
    series = {}
    shown = (("ideal", "ideal overlap"), ("ideal-nmc", "ideal + near memory"), ("t3", "T3"), ("t3-mca", "T3-MCA"))
    for configuration, name in shown:
        speedups = [row.speedup(configuration) for row in rows]
        series[name] = [*speedups, geometric_mean(speedups)]
    bars(axes, [*names_of(rows), "geometric\nmean"], series)
    published(axes, {"ideal, mean": 1.35, "T3-MCA, mean": 1.30, "T3, mean": 1.20, "ideal, largest": 1.50})
    axes.set_ylim(0.9)
    axes.set_ylabel("speed-up over sequential")


def figure_17(axes: Axes) -> None:
    """Draw traffic over time of T-NLG's FC-2 at TP 8 with 4,096 tokens: the GEMM alone, and T3 round-robin."""
    model = t3.Model("T-NLG", "t-nlg", 4256, 4096, (8,))
    layer = t3.sublayer(model, 8, "FC-2", load_device(t3.DEVICE))
    found = CONFIGURATIONS["t3"](layer).overlapped
    assert found is not None
    staged = stage(layer.gemm, layer.device, isolated_s=layer.isolated_s)
    alone = overlap(staged, [], ring=layer.ring, device=layer.device, policy=COMPUTE_FIRST, adds=False)
    figure, place = axes.get_figure(), axes.get_subplotspec()
    assert figure is not None
    assert place is not None
    axes.remove()
    grid = place.subgridspec(2, 1)
    panels = [figure.add_subplot(grid[row]) for row in range(2)]
    for panel, drawn, name in zip(panels, (alone, found), ("GEMM alone", "T3, round-robin"), strict=True):
        draw_traffic(panel, drawn)
        panel.set_title(name, loc="left")
        panel.set_xlim(0, found.end_s * 1e6)


def figure_18(axes: Axes) -> None:
    """Draw bytes by kind, sequential and T3-MCA."""
    rows = t3.sweep(t3.MODELS, configurations=("sequential", "t3-mca"))
    for shift, configuration, hatch in ((-0.2, "sequential", ""), (0.2, "t3-mca", "////")):
        bottom = np.zeros(len(rows))
        for kind in KINDS:
            sizes = np.array([asdict(row.outcomes[configuration].traffic)[kind] / 1e6 for row in rows])
            axes.bar(np.arange(len(rows)) + shift, sizes, 0.38, bottom=bottom, color=COLOURS[kind], hatch=hatch,
                     edgecolor="white", linewidth=0, label=kind.replace("_", " ") if not hatch else None)  # fmt: skip
            bottom += sizes
    axes.set_xticks(range(len(rows)), names_of(rows), fontsize=6)
    axes.legend(frameon=False, fontsize=7, ncols=6, loc="upper center", bbox_to_anchor=(0.5, 1.12))
    axes.set_ylabel("bytes of memory (MB);\nleft sequential, right (hatched) T3-MCA")


def figure_19(axes: Axes) -> None:
    """Draw speed-ups of whole iterations."""
    series: dict[str, list[float]] = {"T3": [], "T3-MCA": []}
    labels = []
    for name, mode in (("training", "training"), ("prompt", "prefill")):
        for row in t3.iterations(t3.MODELS, mode):
            labels.append(f"{row.model}\nTP {row.degree}\n{name}")
            series["T3"].append(row.speedup("t3"))
            series["T3-MCA"].append(row.speedup("t3-mca"))
    bars(axes, labels, series)
    published(axes, {"T3-MCA, largest, training": 1.12, "T3-MCA, largest, prompt": 1.15})
    axes.set_ylim(1)
    axes.set_ylabel("speed-up of the iteration")


def figure_20(axes: Axes) -> None:
    """Draw speed-ups of T3-MCA with twice the compute units."""
    rows = t3.future()
    now, then = ([row.speedup("t3-mca") for row in side] for side in zip(*rows, strict=True))
    labels = names_of([row for row, _ in rows])
    labels = [f"{label}\n*" if t3.dominates(row) else label for label, (row, _) in zip(labels, rows, strict=True)]
    bars(axes, labels, {"today": now, "twice the compute units": then})
    axes.set_xlabel("*: compute dominates today")
    axes.set_ylim(1)
    axes.set_ylabel("speed-up of T3-MCA over sequential")


def figure_ring(axes: Axes) -> None:
    """Draw how far each published number is missed under each reading of the ring and of the memory's latency."""
    claims = [claim for claim in papers.published() if claim.paper == "t3"]
    shown = [claim for claim in claims if claim.unit != "true"]
    for number, reading in enumerate(("75 GB/s each way, latency under load", "150 GB/s each way, unloaded latency")):
        found = t3.read_as(reading)
        met = sum(claim.met_by(found[claim.id]) for claim in claims)
        ratios = np.array([found[claim.id] / claim.value for claim in shown])
        hits = np.array([claim.met_by(found[claim.id]) for claim in shown])
        for which, fill in ((hits, SERIES[number]), (~hits, "none")):
            label = f"{reading}: {met} of {len(claims)} met (filled)" if which is hits else None
            axes.plot(np.flatnonzero(which), ratios[which], "os"[number], color=SERIES[number], markerfacecolor=fill,
                      markersize=4, label=label)  # fmt: skip
    axes.axhline(1, color=PUBLISHED, linestyle=":", linewidth=1)
    axes.set_xticks(range(len(shown)), [claim.id for claim in shown], rotation=90, fontsize=5)
    axes.legend(frameon=False, fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 1.12))
    axes.set_ylabel("simulated over published")


FIGURES: dict[str, Callable[[Axes], None]] = {
    "fig04": figure_4,
    "fig06": figure_6,
    "fig14": figure_14,
    "fig15": figure_15,
    "fig16": figure_16,
    "fig17": figure_17,
    "fig18": figure_18,
    "fig19": figure_19,
    "fig20": figure_20,
    "ring": figure_ring,
}


SIZES = {"fig14": (5, 3.6), "fig17": (10, 5.4), "ring": (10, 4.8)}
"""Of figures that are not as wide and high as the others, in inches."""


def main() -> None:
    """Draw all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="directory to write to")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        for name, draw in FIGURES.items():
            figure, axes = plt.subplots(figsize=SIZES.get(name, (10, 3.6)), layout="constrained")
            draw(axes)
            save(figure, output / f"t3_{name}.png")
            print(output / f"t3_{name}.png")


if __name__ == "__main__":
    main()
