"""Figs. 1, 2 and 7 to 12 of the Aluminum paper: ResNet-50 on up to 2048 V100 of Sierra.

    python figures/aluminum.py [--output DIR]

Writes aluminum_fig1.png to aluminum_fig12.png, aluminum_steps.csv and aluminum_collectives.csv, in a few seconds. What
the paper's text says of a figure stands beside it: above a bar, as a mark, or in a panel. Every constant is in
`topologies/sierra-64.yaml`, the files that it names, and `traces/v100/device.yaml`; `scaleout reproduce aluminum`
lists all published numbers beside these.

Source: Dryden et al., Aluminum: An Asynchronous, GPU-Aware Communication Library Optimized for Large-Scale Training of
Deep Neural Networks on HPC Systems, MLHPC 2018.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes

from scaleout.config.units import format_bytes
from scaleout.config.writing import write_text
from scaleout.report.colours import COMMUNICATION, COMPUTE, PUBLISHED, SERIES
from scaleout.report.plots.schedules import STYLE, drawn
from scaleout.report.plots.studies import draw_curves, draw_map
from scaleout.study.backends import BackendComparison
from scaleout.validation.papers import published
from scaleout.validation.papers.aluminum import (
    HOST_TRANSFER,
    MINIMAL,
    MPI,
    NCCL,
    PARAMETER_BYTES,
    RANKS,
    STATIC,
    STRONG_RANKS,
    WEAK_BATCH,
    Step,
    comparison,
    small_message_ratio,
    sweep,
)
from scaleout.workloads.families import load_workload

IMAGES = 1_268_480
"""Of an epoch: 4955 mini-batches of 256, Sec. II.C."""
STRONG, WEAK = "mini-batch of 256 [ms]", "epoch, 32 samples a GPU [s]"
"""Panels of strong and of weak scaling."""
TOLD = {claim.id: claim.value for claim in published()}


def buffers(folder: Path) -> None:
    """Fig. 1."""
    models = {"AlexNet": "alexnet", "ResNet-50": "resnet-50-lbann"}
    sizes = {name: [PARAMETER_BYTES * count for count in load_workload(file).buffers] for name, file in models.items()}
    draw_buffers(sizes, folder / "aluminum_fig1.png", title="Fig. 1: parameter buffers, 4 bytes a parameter")


def height(step: Step, seconds: float) -> float:
    """A strong-scaling bar in milliseconds of a mini-batch, a weak-scaling one in seconds of an epoch."""
    return 1e3 * seconds if step.scaling == "strong" else seconds * IMAGES / (WEAK_BATCH * step.num_ranks)


def panels(
    steps: Sequence[Step], policy: str, exposed_s: Callable[[Step], float]
) -> dict[str, dict[int, tuple[float, float]]]:
    """Bars of both scalings under a policy."""
    return {
        name: {
            step.num_ranks: (height(step, step.compute_s), height(step, exposed_s(step)))
            for step in steps
            if (step.scaling, step.policy) == (scaling, policy)
        }
        for name, scaling in ((STRONG, "strong"), (WEAK, "weak"))
    }


def said(ours: float, claim: str) -> str:
    """Our number, and in brackets what the paper says."""
    return f"{ours:.1f}x\n({TOLD[claim]:g}x)"


def scaling(steps: Sequence[Step], folder: Path) -> None:
    """Figs. 2, 7, 8 and 9."""
    at = {(step.scaling, step.num_ranks, step.policy): step for step in steps}
    ratio = {
        ranks: at["weak", ranks, NCCL].communication_s / at["weak", ranks, NCCL].compute_s for ranks in RANKS["weak"]
    }
    strong = at["strong", 32, NCCL]
    share = f"{strong.communication_s / strong.serial_s:.0%}\n(>50%)"
    weak = {ranks: said(ratio[ranks], f"A2-weak-{ranks}") for ranks in (1024, 2048)}
    draw_steps(
        panels(steps, NCCL, lambda step: step.serial_s - step.compute_s),
        folder / "aluminum_fig2.png",
        title="Fig. 2: convolutions and all-reduces of ResNet-50, NCCL, no overlap\n"
        "above bars: share of communication; communication over computation (published)",
        notes={STRONG: {32: share}, WEAK: weak},
    )
    draw_steps(
        panels(steps, NCCL, lambda step: step.exposed_s),
        folder / "aluminum_fig7.png",
        title="Fig. 7: the same with overlap\nabove the bar: times as fast as without (published)",
        notes={STRONG: {32: said(strong.serial_s / strong.overlapped_s, "A7-strong-32")}},
    )
    nccl, minimal = at["weak", 2048, NCCL], at["weak", 2048, MINIMAL]
    draw_steps(
        panels(steps, MINIMAL, lambda step: step.exposed_s),
        folder / "aluminum_fig8.png",
        title="Fig. 8: the faster of NCCL and host-transfer, with overlap\n"
        "above the bar: how many times less communication than NCCL's is left (published)",
        notes={WEAK: {2048: said(nccl.exposed_s / minimal.exposed_s, "A8-weak-2048")}},
    )
    names = {"strong": "strong scaling", "weak": "weak scaling"}
    draw_speedups(
        {
            name: {
                ranks: (at[kind, ranks, NCCL].communication_s, at[kind, ranks, MINIMAL].communication_s)
                for ranks in RANKS[kind]
            }
            for kind, name in names.items()
        },
        folder / "aluminum_fig9.png",
        title="Fig. 9: isolated communication",
        names=("NCCL", "minimal: the faster of NCCL and host-transfer"),
        published={names["weak"]: {2048: TOLD["A9-weak-2048"]}},
    )


def collectives(found: BackendComparison, folder: Path) -> None:
    """Figs. 10 and 11."""
    limits = {ranks: PARAMETER_BYTES * int(TOLD[f"A10-{ranks}"]) for ranks in (64, 2048)}
    draw_map(
        found,
        folder / "aluminum_fig10.png",
        title="Aluminum's Fig. 10: the fastest all-reduce on Sierra",
        published=limits,
    )
    notes = {
        ranks: f"small: {small_message_ratio(found, ranks):.1f}x\n(published: over {TOLD[f'A11-{ranks}']:.0f}x)"
        for ranks in (128, 2048)
    }
    draw_curves(found, folder / "aluminum_fig11.png", title="Fig. 11: all-reduce on Sierra", notes=notes)


def whole(steps: Sequence[Step], folder: Path) -> None:
    """Fig. 12."""
    names = {MPI: "CUDA-aware MPI", NCCL: "NCCL", STATIC: "NCCL + host-transfer"}
    bars: dict[str, dict[str, dict[int, float]]] = {
        panel: {
            name: {
                step.num_ranks: height(step, step.overlapped_s)
                for step in steps
                if (step.scaling, step.policy) == (kind, policy)
            }
            for policy, name in names.items()
        }
        for panel, kind in ((STRONG, "strong"), (WEAK, "weak"))
    }
    marks: dict[str, Mapping[tuple[str, int], float]] = {
        panel: {
            (names[STATIC], ranks): bars[panel][names[MPI]][ranks] / TOLD[claim],
            (names[NCCL], ranks): bars[panel][names[MPI]][ranks] / TOLD[f"{claim}-nccl"],
        }
        for panel, ranks, claim in ((STRONG, 64, "A12-strong-64"), (WEAK, 256, "A12-weak-256"))
    }
    draw_grouped(
        bars,
        folder / "aluminum_fig12.png",
        title="Fig. 12: ResNet-50 end to end, with its input (marks: MPI's bar over the published speed-up)",
        published=marks,
        logarithmic=(WEAK,),
    )


def main() -> None:
    """Simulate, draw, and write tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="directory to write to")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    buffers(output)
    synthetic = sweep((NCCL, MINIMAL))
    scaling(synthetic, output)
    found = comparison()
    collectives(found, output)
    full = sweep((MPI, NCCL, STATIC), whole=True)
    whole(full, output)
    steps = pd.DataFrame(
        {"step": kind, **asdict(step)} for kind, group in (("synthetic", synthetic), ("whole", full)) for step in group
    )
    write_text(output / "aluminum_steps.csv", steps.to_csv(index=False))
    reductions = pd.DataFrame(
        {"ranks": ranks, "bytes": size, NCCL: nccl, HOST_TRANSFER: transfer}
        for ranks in found.num_ranks
        for size, nccl, transfer in zip(
            found.sizes_bytes, found.curve(NCCL, ranks), found.curve(HOST_TRANSFER, ranks), strict=True
        )
    )
    write_text(output / "aluminum_collectives.csv", reductions.to_csv(index=False))
    print(steps.to_string(index=False, float_format="%.4g"))
    print(f"up to {STRONG_RANKS[-1]} GPUs end to end, up to {RANKS['weak'][-1]} without input and all else")


def draw_buffers(buffers: Mapping[str, Sequence[int]], path: Path, *, title: str) -> None:
    """Draw how many parameter buffers of each size a model has, in bins of powers of two, a panel a model."""
    with drawn(path, 1, len(buffers), title=title, figsize=(9.6, 3.0)) as (_, grid):
        for axes, (name, sizes) in zip(grid.flat, buffers.items(), strict=True):
            counts = Counter(size.bit_length() - 1 for size in sizes)
            first, last = min(counts), max(counts)
            bins = range(first, last + 1)
            bars = axes.bar([*bins], [counts[bin_] for bin_ in bins], width=0.85, color=COMPUTE)
            axes.bar_label(bars, [str(counts[bin_]) if counts[bin_] else "" for bin_ in bins], fontsize=7)
            ticks = [*range(first, last + 1, 2)]
            axes.set_xticks(ticks, [format_bytes(1 << tick) for tick in ticks], rotation=45, ha="right")
            axes.set(xlabel="size of a buffer, from", title=f"{name}: {len(sizes)} buffers, {format_bytes(sum(sizes))}")
            axes.yaxis.get_major_locator().set_params(integer=True)
        grid[0, 0].set_ylabel("buffers")


def draw_steps(
    panels: Mapping[str, Mapping[int, tuple[float, float]]],
    path: Path,
    *,
    title: str,
    notes: Mapping[str, Mapping[int, str]] | None = None,
) -> None:
    """Draw bars of computing and, on it, exposed communication.

    Parameters
    ----------
    panels : mapping
        Name of a panel, which ends in its unit, to ranks to the height of both parts of the bar.
    notes : mapping, optional
        Name of a panel to ranks to what is written above the bar, such as what is published.
    """
    with drawn(path, 1, len(panels), title=title, figsize=(9.6, 3.2)) as (_, grid):
        for axes, (name, bars) in zip(grid.flat, panels.items(), strict=True):
            places = np.arange(len(bars))
            compute, exposed = np.array([*bars.values()]).T
            axes.bar(places, compute, color=COMPUTE, width=0.75, label="computation")
            axes.bar(places, exposed, bottom=compute, color=COMMUNICATION, width=0.75, label="exposed communication")
            axes.set_xticks(places, [str(ranks) for ranks in bars])
            axes.set(xlabel="GPUs", ylabel=name)
            axes.margins(y=0.16)
            for place, ranks, height in zip(places, bars, compute + exposed, strict=True):
                if text := (notes or {}).get(name, {}).get(ranks):
                    axes.annotate(
                        text, (place, height), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=6.5,
                        color=PUBLISHED,
                    )  # fmt: skip
        grid[0, 0].legend(frameon=False, fontsize=8)


def draw_speedups(
    panels: Mapping[str, Mapping[int, tuple[float, float]]],
    path: Path,
    *,
    title: str,
    names: tuple[str, str],
    published: Mapping[str, Mapping[int, float]],
) -> None:
    """Draw two times in seconds over ranks, and how many times as fast the second is, with published values."""
    style = {**STYLE, "axes.spines.right": True}
    with drawn(path, 1, len(panels), title=title, style=style, figsize=(9.6, 3.2)) as (_, grid):
        for axes, (name, points) in zip(grid.flat, panels.items(), strict=True):
            ranks = [*points]
            times = np.array([*points.values()]).T
            for number, label in enumerate(names):
                axes.plot(
                    ranks, times[number] * 1e3, color=SERIES[(1, 2)[number]], marker="o", markersize=3, label=label
                )
            axes.set_xscale("log", base=2)
            axes.set(yscale="log", xlabel="GPUs", ylabel="communication of a mini-batch [ms]", title=name)
            axes.set_xticks(ranks, [str(count) for count in ranks])
            _round_ticks(axes)
            axes.minorticks_off()
            _ratio(axes.twinx(), ranks, times[0] / times[1], published.get(name, {}))
        first = grid[0, 0]
        first.scatter([], [], marker="D", s=26, facecolors="none", edgecolors=PUBLISHED, label="published speed-up")
        first.legend(frameon=False, loc="upper left", fontsize=8)


def _round_ticks(axes: Axes) -> None:
    """Label a logarithmic axis at 1, 2 and 5 times powers of ten within its limits."""
    low, high = axes.get_ylim()
    ticks = [step * 10.0**power for power in range(-3, 7) for step in (1, 2, 5)]
    axes.set_yticks([tick for tick in ticks if low <= tick <= high])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")


def _ratio(axes: Axes, ranks: Sequence[int], ratio: npt.NDArray[np.float64], published: Mapping[int, float]) -> None:
    axes.plot(ranks, ratio, color=SERIES[0], linestyle="--", linewidth=1.2)
    axes.set_ylabel("speed-up (dashed)", color=SERIES[0])
    axes.set_ylim(0, 1.25 * max([*ratio, *published.values()]))
    axes.spines["top"].set_visible(False)
    for count, value in published.items():
        axes.scatter([count], [value], marker="D", s=26, facecolors="none", edgecolors=PUBLISHED, zorder=3)


def draw_grouped(
    panels: Mapping[str, Mapping[str, Mapping[int, float]]],
    path: Path,
    *,
    title: str,
    published: Mapping[str, Mapping[tuple[str, int], float]],
    logarithmic: Sequence[str] = (),
) -> None:
    """Draw a group of bars for each number of ranks, one bar a policy, and published heights as marks on some.

    Parameters
    ----------
    panels : mapping
        Name of a panel, which ends in its unit, to policy to ranks to height.
    published : mapping
        Name of a panel to policy and ranks to a height.
    logarithmic : sequence of str
        Panels whose heights are.
    """
    with drawn(path, 1, len(panels), title=title, figsize=(9.6, 3.2)) as (_, grid):
        for axes, (name, policies) in zip(grid.flat, panels.items(), strict=True):
            width = 0.8 / len(policies)
            for number, (policy, bars) in enumerate(policies.items()):
                places = np.arange(len(bars)) + (number - (len(policies) - 1) / 2) * width
                axes.bar(
                    places, [*bars.values()], width=0.92 * width, color=SERIES[(6, 1, 2)[number % 3]], label=policy
                )
                marks = [
                    (place, published.get(name, {}).get((policy, ranks)))
                    for place, ranks in zip(places, bars, strict=True)
                ]
                for place, height in marks:
                    if height is not None:
                        axes.scatter(
                            [place], [height], marker="D", s=26, facecolors="white", edgecolors=PUBLISHED, zorder=3
                        )
            ranks_shown = [*next(iter(policies.values()))]
            axes.set_xticks(range(len(ranks_shown)), [str(ranks) for ranks in ranks_shown])
            axes.set(xlabel="GPUs", ylabel=name, yscale="log" if name in logarithmic else "linear")
            if name in logarithmic:
                _round_ticks(axes)
        grid[0, 0].scatter(
            [], [], marker="D", s=26, facecolors="white", edgecolors=PUBLISHED, label="published speed-up"
        )
        grid[0, 0].legend(frameon=False, fontsize=8)


if __name__ == "__main__":
    main()
