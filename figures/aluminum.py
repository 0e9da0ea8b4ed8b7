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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from scaleout.report.plots.studies import draw_buffers, draw_curves, draw_grouped, draw_map, draw_speedups, draw_steps
from scaleout.study.backends import BackendComparison
from scaleout.validation.papers import published
from scaleout.validation.papers.aluminum import (
    HOST_TRANSFER,
    MINIMAL,
    MPI,
    NCCL,
    PARAMETER_BYTES,
    RANKS,
    STRONG_RANKS,
    WEAK_BATCH,
    Step,
    buffer_sizes,
    comparison,
    small_message_ratio,
    sweep,
)

IMAGES = 1_268_480
"""Of an epoch: 4955 mini-batches of 256, Sec. II.C."""
STRONG, WEAK = "mini-batch of 256 [ms]", "epoch, 32 samples a GPU [s]"
"""Panels of strong and of weak scaling."""
TOLD = {claim.id: claim.value for claim in published()}


def buffers(folder: Path) -> None:
    """Fig. 1."""
    models = {"AlexNet": "alexnet", "ResNet-50": "resnet-50-lbann"}
    sizes = {name: buffer_sizes(file) for name, file in models.items()}
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
    draw_map(found, folder / "aluminum_fig10.png", title="Fig. 10: the fastest all-reduce on Sierra", published=limits)
    notes = {
        ranks: f"small: {small_message_ratio(found, ranks):.1f}x\n(published: over {TOLD[f'A11-{ranks}']:.0f}x)"
        for ranks in (128, 2048)
    }
    draw_curves(found, folder / "aluminum_fig11.png", title="Fig. 11: all-reduce on Sierra", notes=notes)


def whole(steps: Sequence[Step], folder: Path) -> None:
    """Fig. 12."""
    names = {MPI: "CUDA-aware MPI", NCCL: "NCCL", MINIMAL: "NCCL + host-transfer"}
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
            (names[MINIMAL], ranks): bars[panel][names[MPI]][ranks] / TOLD[claim],
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
    full = sweep((MPI, NCCL, MINIMAL), whole=True)
    whole(full, output)
    steps = pd.DataFrame(
        {"step": kind, **asdict(step)} for kind, group in (("synthetic", synthetic), ("whole", full)) for step in group
    )
    steps.to_csv(output / "aluminum_steps.csv", index=False)
    pd.DataFrame(
        {"ranks": ranks, "bytes": size, NCCL: nccl, HOST_TRANSFER: transfer}
        for ranks in found.num_ranks
        for size, nccl, transfer in zip(
            found.sizes_bytes, found.curve(NCCL, ranks), found.curve(HOST_TRANSFER, ranks), strict=True
        )
    ).to_csv(output / "aluminum_collectives.csv", index=False)
    print(steps.to_string(index=False, float_format="%.4g"))
    print(f"up to {STRONG_RANKS[-1]} GPUs end to end, up to {RANKS['weak'][-1]} without input and all else")


if __name__ == "__main__":
    main()
