"""What partitioning and scheduling gain on pods of our own: Llama 3 70B and Mixtral 8x7B on 32 H200 with few ports.

    python figures/centauri_pods.py [--output DIR]

Four nodes of eight H200 share 1, 2 or 4 ports of 400 Gb/s a node. The same 32 sequences are trained with replicas, as
FSDP (experts over the node), and as a pipeline with tensor parallelism; DDP, FSDP and Megatron's ways are held against
Centauri's plan. Writes centauri_pods.png, throughput over ports; centauri_pods_MODEL_PORTS.png, timelines of each;
and prints what is gained. Where FSDP or a pipeline hides its communication already the plan gains next to nothing.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import Topology, load_topology
from scaleout.report.colours import SERIES
from scaleout.report.plots.schedules import STYLE, draw_comparison, save
from scaleout.study.strategies import Followed, follow, side_by_side
from scaleout.workloads.families import Transformer, load_workload

NODES, PORTS = 4, (1, 2, 4)
SEQUENCES = 32
REPLICATED, SHARDED, PIPELINED = "DP 32", "FSDP 32", "TP 8, PP 2, DP 2"
WAYS = {
    REPLICATED: ("ddp", "centauri"),
    SHARDED: ("zero-3", "centauri"),
    PIPELINED: ("megatron", "megatron-core", "breadth-first", "centauri"),
}
AXES: dict[str, dict[str, int | bool | str]] = {
    REPLICATED: {"tensor_parallel": 1, "data_parallel": 32, "sequence_parallel": False, "recompute": "full"},
    SHARDED: {"tensor_parallel": 1, "data_parallel": 32, "sequence_parallel": False, "recompute": "full", "zero": 3},
    PIPELINED: {"tensor_parallel": 8, "data_parallel": 2, "sequence_parallel": True, "pipeline_parallel": 2},
}
MODELS = ("llama-3-70b", "mixtral-8x7b")
CENTAURI = "#222222"


@dataclass(frozen=True, eq=False)
class Trained:
    """A model's step on pods with so many ports a node."""

    model: str
    ports: int
    axes: str
    followed: Followed

    @property
    def tokens_per_s(self) -> float:
        """Of a GPU; 0 if it does not fit."""
        outcome = self.followed.outcome
        fits = self.followed.fits and outcome is not None and outcome.efficiency is not None
        return outcome.efficiency.tokens_per_s_per_rank if fits and outcome and outcome.efficiency else 0.0


def pod(ports: int) -> Topology:
    """Return the nodes with so many ports each, shared by their GPUs."""
    found = load_topology("dgx-h200-16")
    within, between = found.dimensions
    between = replace(between, size=NODES, bytes_per_s=between.bytes_per_s * ports / within.size)
    return replace(found, name=f"h200-pod-{NODES}-ports-{ports}", dimensions=(within, between))


def job(model: str, axes: str) -> Transformer:
    """Return a model's step on all GPUs."""
    replicas = int(AXES[axes]["data_parallel"])
    experts = {"expert_parallel": min(8, replicas)} if model.startswith("mixtral") else {}
    found = load_workload(model, {**AXES[axes], **experts, "batch_per_replica": SEQUENCES // replicas, "microbatch": 1})
    assert isinstance(found, Transformer)
    return found


def train() -> Iterator[Trained]:
    """Simulate all."""
    device = load_device("h200")
    for model in MODELS:
        for ports in PORTS:
            for axes, names in WAYS.items():
                for name in names:
                    yield Trained(
                        model, ports, axes, follow(name, job(model, axes), topology=pod(ports), device=device)
                    )


def draw(axes: Axes, found: list[Trained]) -> None:
    """Draw throughput over ports, a bar for each way, and over Centauri's what it gains over the fastest beside it.

    A strategy that does not fit has no bar.
    """
    ways = [(name, way) for name, ways in WAYS.items() for way in ways]
    width, colours = 0.85 / len(ways), iter(SERIES)
    for number, (degrees, name) in enumerate(ways):
        mine = [each for each in found if (each.axes, each.followed.name) == (degrees, name)]
        at = np.arange(len(PORTS)) + (number - (len(ways) - 1) / 2) * width
        ours = name == "centauri"
        label = "Centauri, at the degrees to its left" if ours and degrees == REPLICATED else f"{degrees}: {name}"
        axes.bar(
            at, [each.tokens_per_s for each in mine], width, color=CENTAURI if ours else next(colours),
            label="" if ours and degrees != REPLICATED else label,
        )  # fmt: skip
        for place, each in zip(at, mine, strict=True):
            if not each.tokens_per_s:
                axes.annotate("does not fit", (place, 0), rotation=90, ha="center", va="bottom", fontsize=6)
            elif ours:
                others = [o.tokens_per_s for o in found if (o.axes, o.ports) == (degrees, each.ports) and o is not each]
                gain = f"{each.tokens_per_s / max(others):.2f}" if any(others) else ""
                axes.annotate(gain, (place, each.tokens_per_s), ha="center", va="bottom", fontsize=6)
    axes.set_xticks(range(len(PORTS)), [f"{ports} port{'s' * (ports > 1)}" for ports in PORTS])
    axes.set_title(found[0].model, loc="left")
    axes.set_ylabel("tokens/s a GPU")


def tell(found: list[Trained]) -> None:
    """Print what Centauri's plan gains over each other way with the same degrees."""
    for centauri in (each for each in found if each.followed.name == "centauri"):
        others = [
            each for each in found
            if (each.model, each.ports, each.axes) == (centauri.model, centauri.ports, centauri.axes)
            and each is not centauri
        ]  # fmt: skip
        gains = ", ".join(
            f"{each.followed.name} {centauri.tokens_per_s / each.tokens_per_s:.3f}x"
            if each.tokens_per_s
            else f"{each.followed.name} does not fit"
            for each in others
        )
        print(
            f"{centauri.model}, {centauri.ports} ports, {centauri.axes}: {centauri.tokens_per_s:,.0f} tokens/s; {gains}"
        )


def main() -> None:
    """Simulate, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="directory to write to")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    found = list(train())
    tell(found)
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(len(MODELS), 1, figsize=(10, 6), layout="constrained")
        for panel, model in zip(panels, MODELS, strict=True):
            draw(panel, [each for each in found if each.model == model])
        panels[0].legend(frameon=False, fontsize=7, ncols=3, loc="upper left", bbox_to_anchor=(0.15, 1.27))
        save(figure, output / "centauri_pods.png")
    print(output / "centauri_pods.png")
    for model in MODELS:
        for ports in (PORTS[0], PORTS[-1]):
            fitting = [
                replace(each.followed, name=f"{each.axes}:\n{each.followed.name}")
                for each in found
                if (each.model, each.ports) == (model, ports) and each.followed.fits
            ]
            path = output / f"centauri_pods_{model}_{ports}.png"
            draw_comparison(side_by_side(fitting, device=load_device("h200")), path)
            print(path)


if __name__ == "__main__":
    main()
