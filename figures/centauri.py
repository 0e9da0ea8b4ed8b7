"""Centauri's figures: every communication partitioned and scheduled, simulated, beside what is published.

    python figures/centauri.py [--output DIR]

Writes centauri_fig08.png to 14: throughput of FSDP, of data parallelism, of FSDP with replicas, of pipelines; timelines
of the chosen plans for one layer; throughput over GPUs of two clusters. The paper's text gives the largest gains, which
titles quote; `scaleout reproduce centauri` prints them all.

Source: Chen et al., Centauri, ASPLOS 2024; the machines are `topologies/a100-cluster-*.yaml`.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from scaleout.program.graph import NodeKind
from scaleout.report.colours import COMPUTE, IDLE, SERIES
from scaleout.report.plots.schedules import STYLE, save
from scaleout.simulation.result import Timeline
from scaleout.validation.papers import centauri
from scaleout.validation.papers.centauri import Step, Steps

NAMES = {
    "zero-3": "FSDP / ZeRO-3", "ddp": "DDP", "out-of-order": "out of order", "zero-1": "ZeRO-1", "zero-2": "ZeRO-2",
    "coconet": "CoCoNet-like", "megatron": "Megatron-LM", "megatron-core": "Megatron-core",
    "breadth-first": "breadth-first", "centauri": "Centauri",
}  # fmt: skip
COLOURS = dict(zip(NAMES, (*SERIES[:6], SERIES[0], SERIES[3], SERIES[2], "#222222"), strict=True))
CHAINS = {"": "collectives", "inter": "between nodes", "intra": "within nodes"}
GEMMS = {"attention_qkv": "A", "attention_output": "B", "feed_forward_1": "C", "feed_forward_2": "D"}
"""Products with large weights, by the letters of the paper's Fig. 12."""
SCALES = (2, 4, 8, 16, 32)
"""Nodes of Figs. 13 and 14."""


def throughput(axes: Axes, steps: Steps, *, base: str, published: str, xlabel: str) -> None:
    """Draw the FLOPs a second of each strategy, and Centauri's gain over the base; what does not fit is hatched."""
    names = list(next(iter(steps.values())))
    width, places = 0.8 / len(names), np.arange(len(steps))
    for number, name in enumerate(names):
        found = [each[name] for each in steps.values()]
        at = places + (number - (len(names) - 1) / 2) * width
        bars = axes.bar(at, [s.flops_per_s / 1e12 for s in found], width, color=COLOURS[name], label=NAMES[name])
        for bar, step in zip(bars, found, strict=True):
            if not step.fits:
                bar.set(hatch="////", edgecolor="white", linewidth=0, alpha=0.5)
    ours = (names.index("centauri") - (len(names) - 1) / 2) * width
    for place, each in zip(places, steps.values(), strict=True):
        axes.annotate(
            f"{centauri.gain(each[base], each['centauri']):.2f}",
            (place + ours, each["centauri"].flops_per_s / 1e12), ha="center", va="bottom", fontsize=6,
        )  # fmt: skip
    axes.set_xticks(places, list(steps), fontsize=6)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("TFLOP/s a GPU, attention and MLP")
    gain = centauri.best_gain(steps, base)
    axes.set_title(f"largest gain over {NAMES[base]} {gain:.2f} ({published})", loc="right", fontsize=8)
    handles, labels = axes.get_legend_handles_labels()
    if not all(step.fits for each in steps.values() for step in each.values()):
        handles.append(Patch(facecolor="#999999", hatch="////", edgecolor="white", label="does not fit"))
        labels.append("does not fit")
    axes.legend(
        handles, labels, frameon=False, fontsize=7, ncols=len(labels),
        loc="lower left", bbox_to_anchor=(0, 1.07), borderaxespad=0.0,
    )  # fmt: skip


def figure_8(axes: Axes) -> None:
    """Draw FSDP over 16 GPUs."""
    throughput(axes, centauri.figure_8(), base="zero-3", published="published 1.45", xlabel="model and sequences a GPU")


def figure_9(axes: Axes) -> None:
    """Draw data parallelism over 16 GPUs."""
    steps = centauri.figure_9()
    throughput(axes, steps, base="ddp", published="the text gives no number", xlabel="model and sequences a GPU")


def figure_10(axes: Axes) -> None:
    """Draw FSDP with replicas over 48 GPUs."""
    steps = centauri.figure_10()
    throughput(
        axes, steps, base="zero-3", published="with Fig. 11: published 1.49", xlabel="FSDP x DP and sequences a GPU"
    )


def figure_11(axes: Axes) -> None:
    """Draw pipelines over 48 GPUs."""
    steps = centauri.figure_11()
    throughput(axes, steps, base="megatron", published="with Fig. 10: published 1.49", xlabel="degrees and micro-batch")


def figure_12(axes: Axes) -> None:
    """Draw timelines of a Big layer at batches 1, 4 and 8: kernels, and collectives by the level that carries them."""
    figure, place = axes.get_figure(), axes.get_subplotspec()
    assert figure is not None
    assert place is not None
    axes.remove()
    found = centauri.figure_12()
    panels = place.subgridspec(len(found), 1)
    for row, (batch, steps) in enumerate(found.items()):
        panel = figure.add_subplot(panels[row])
        chains(panel, steps)
        speedup, bound = centauri.bound_of(steps["centauri"])
        panel.set_title(
            f"batch {batch}: {centauri.gain(steps['zero-3'], steps['centauri']):.2f} times as fast as FSDP, "
            f"{speedup:.2f} times as fast as Centauri's own parts one after another; the bound of that is {bound:.2f}",
            loc="left", fontsize=8,
        )  # fmt: skip
    panel.set_xlabel("time [ms]")
    handles = [Patch(color=COMPUTE, label="forward"), Patch(color=SERIES[4], label="backward")]
    handles += [Patch(color=SERIES[1], label="gathers"), Patch(color=SERIES[3], label="reductions")]
    handles += [Patch(color=IDLE, label="optimizer")]
    handles += [Patch(alpha=0, label="A, B: GEMMs of attention; C, D: of the feed-forward network")]
    figure.legend(handles=handles, frameon=False, fontsize=7, ncols=6, loc="outside upper right")


def chains(axes: Axes, steps: dict[str, Step]) -> None:
    """Draw a lane of kernels and one for each level of collectives, for each strategy."""
    labels: list[str] = []
    for name, step in steps.items():
        line = step.result.timelines[0]
        rows = {"kernels": line.graph.kind == NodeKind.COMPUTE}
        rows |= {label: mine for end, label in CHAINS.items() if (mine := _on_level(step, line, end)).any()}
        for label, chosen in rows.items():
            for node in np.flatnonzero(chosen & (line.duration_s > 0)).tolist():
                start_ms, length_ms = 1e3 * line.start_s[node], 1e3 * line.duration_s[node]
                axes.broken_barh([(start_ms, length_ms)], (len(labels) - 0.4, 0.8), color=_colour(line, node))
            if label == "kernels":
                _letters(axes, line, len(labels))
            labels.append(f"{NAMES[name]}, {label}" if label == "kernels" else label)
    axes.set_yticks(range(len(labels)), labels, fontsize=6)
    axes.tick_params(axis="x", labelsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0)


def _letters(axes: Axes, line: Timeline, chain: int) -> None:
    """Name GEMMs in the middle of the longest stretch of their parts, where a letter has room."""
    for gemm, letter in GEMMS.items():
        for end in ("", "_weight_gradient", "_input_gradient"):
            name = f"layer_0_{gemm}{end}"
            parts = [each in (name, f"{name}_part_{each.rpartition('_')[2]}") for each in line.graph.names]
            starts_ms, ends_ms = 1e3 * line.start_s[parts], 1e3 * line.end_s[parts]
            pauses = np.flatnonzero(starts_ms[1:] > ends_ms[:-1] + 1e-3)
            stretches = zip(starts_ms[np.r_[0, pauses + 1]], ends_ms[np.r_[pauses, -1]], strict=True)
            start_ms, end_ms = max(stretches, key=lambda each: each[1] - each[0])
            if end_ms - start_ms > 0.012 * 1e3 * line.end_s.max():
                axes.annotate(
                    letter, ((start_ms + end_ms) / 2, chain), ha="center", va="center", fontsize=6,
                    color="#222222" if end else "white", fontweight="bold",  # backward is pale
                )  # fmt: skip


def _on_level(step: Step, line: Timeline, end: str) -> npt.NDArray[np.bool_]:
    names = [group.name for group in step.result.program.groups]
    ends = [names[number].rpartition("_")[2] if number >= 0 else "-" for number in line.graph.group.tolist()]
    known = [each if each in ("inter", "intra", "-") else "" for each in ends]
    return np.asarray([each == end for each in known] & (line.graph.kind == NodeKind.COLLECTIVE), np.bool_)


def _colour(line: Timeline, node: int) -> str:
    name, phase = line.graph.names[node], line.graph.phases[line.graph.phase[node]]
    if line.graph.kind[node] == NodeKind.COLLECTIVE:
        return SERIES[1] if "all_gather" in name else SERIES[3]
    if phase.startswith(("attention", "feed_forward")):
        return SERIES[4] if phase.endswith("backward") else COMPUTE
    return IDLE


def scaling(axes: Axes, step: Callable[[str, tuple[str, int]], Step], *, published: str) -> None:
    """Draw throughput over GPUs, a line for each cluster and strategy; `step` is of a strategy on a cluster's nodes."""
    steps = {
        f"{on}\n{8 * nodes}": {name: step(name, (on, nodes)) for name in ("zero-3", "centauri")}
        for on in centauri.CLUSTERS
        for nodes in SCALES
    }
    for on, style in zip(centauri.CLUSTERS, ("-", "--"), strict=True):
        mine = {label: each for label, each in steps.items() if label.startswith(on)}
        gpus = [int(label.split("\n")[1]) for label in mine]
        for name in ("zero-3", "centauri"):
            values = [each[name].flops_per_s / 1e12 for each in mine.values()]
            axes.plot(gpus, values, style, marker="o", markersize=3, color=COLOURS[name], label=f"{on}: {NAMES[name]}")
    last = list(steps.values())[-1]
    axes.set_xscale("log", base=2)
    axes.set_xticks(gpus, [str(number) for number in gpus])
    axes.set_ylim(0)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("TFLOP/s a GPU,\nattention and MLP")
    axes.set_title(
        f"Cluster B at {gpus[-1]} GPUs: {centauri.gain(last['zero-3'], last['centauri']) - 1:.1%} ({published})",
        loc="left", fontsize=8,
    )  # fmt: skip
    axes.legend(frameon=False, fontsize=7)


def figure_13(axes: Axes) -> None:
    """Draw FSDP over GPUs."""
    size, batch = centauri.SCALED
    scaling(axes, lambda name, on: centauri.fsdp(size, batch, name, on=on), published="published nearly 5%")


def figure_14(axes: Axes) -> None:
    """Draw FSDP over 16 GPUs and replicas of these, over GPUs."""
    _, batch = centauri.SCALED
    scaling(axes, lambda name, on: centauri.sharded(16, batch, name, on=on), published="the text gives no number")


FIGURES: dict[str, Callable[[Axes], None]] = {
    "fig08": figure_8,
    "fig09": figure_9,
    "fig10": figure_10,
    "fig11": figure_11,
    "fig12": figure_12,
    "fig13": figure_13,
    "fig14": figure_14,
}
SIZES = {"fig12": (10, 6.4), "fig13": (5.4, 3.6), "fig14": (5.4, 3.6)}
"""Of figures that are not as wide and high as the others, in inches."""


def main() -> None:
    """Draw all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="directory to write to")
    parser.add_argument("figures", nargs="*", choices=[*FIGURES, []], help="which; by default all")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        for name in arguments.figures or FIGURES:
            figure, axes = plt.subplots(figsize=SIZES.get(name, (10, 3.6)), layout="constrained")
            FIGURES[name](axes)
            save(figure, arguments.output / f"centauri_{name}.png")
            print(arguments.output / f"centauri_{name}.png")


if __name__ == "__main__":
    main()
