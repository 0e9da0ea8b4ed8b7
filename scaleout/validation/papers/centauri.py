"""Centauri: the paper's figures, simulated.

Each figure is a sweep of strategies on the same job. Collectives are NCCL's rings; a group over several nodes has one
flat ring, as in NCCL 2.14. The text does not give the figures' batch sizes; they are those of Fig. 12 and between.

Source: Chen et al., Centauri, ASPLOS 2024.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from math import fsum

import numpy as np

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.communication_library import load_library
from scaleout.cluster.topology.topology import Topology, load_topology
from scaleout.config.library import folder
from scaleout.program.graph import NodeKind
from scaleout.schedule.decision import Decision
from scaleout.simulation.options import SimulationOptions
from scaleout.simulation.result import Result
from scaleout.simulation.run import simulate
from scaleout.study.strategies import follow
from scaleout.workloads.config.layered import LayeredModel, layered
from scaleout.workloads.families import load_workload

SIZES = ("small", "medium", "big", "large")
BATCHES = (1, 2, 4, 8)
RINGS = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), "ring")
ON_RINGS = SimulationOptions(algorithms=RINGS)
CLUSTERS = {"A": "a100-cluster-a-2", "B": "a100-cluster-b-32"}
CONTENTION = {"none": "", "few channels": "a100-few-channels", "many channels": "a100-many-channels"}
"""What collectives take from the kernels beside them, to its library: no A100 was measured, so a bracket."""
SHARDED = {"16 x 3": 16, "8 x 6": 8, "4 x 12": 4}
"""Fig. 10: FSDP ranks x replicas to the former."""
DEGREES = {"TP4 PP3 DP4": (4, 3, 4), "TP2 PP3 DP8": (2, 3, 8), "TP4 PP2 DP6": (4, 2, 6)}
"""Fig. 11: degrees of tensor, pipeline and data parallelism. The text names the first; the others are assumed, among
those whose data parallelism crosses nodes, as in the text."""
MICROBATCHES = 6
FSDP = {"zero": 3, "prefetch_backward": 0}
"""Equation (1), T1: a layer's parameters are gathered when its backward begins; PyTorch's FSDP prefetches them."""
OF_PAPER = {"centauri": "centauri:model"}
"""The paper's partition space: its operation tier covers forward only, equation (1) does not partition gradients."""
SCALED = ("big", 4)
"""Size and batch of Figs. 13 and 14, assumed."""


On = tuple[str, int] | tuple[str, int, str]
"""A cluster, its nodes, and what its collectives take from kernels, as in `cluster`."""


@dataclass(frozen=True, eq=False)
class Step:
    """One step under a strategy on all GPUs of a cluster; `exposed_s` is by axis, the mean over ranks."""

    job: LayeredModel
    result: Result
    topology: Topology
    fits: bool
    exposed_s: Mapping[str, float]
    decisions: tuple[Decision, ...]

    @property
    def step_s(self) -> float:
        """Seconds."""
        return self.result.makespan_s

    @property
    def flops_per_s(self) -> float:
        """The paper's measure: FLOPs per second and GPU of attention and MLP."""
        head = 6 * self.job.sizes["vocabulary"] * self.job.hidden
        tokens = self.job.tokens * self.job.data_parallel
        return (self.job.flops_per_token - head) * tokens / self.job.num_ranks / self.step_s

    @property
    def computation_s(self) -> float:
        """Seconds of a rank's kernels."""
        return _seconds(self.result, NodeKind.COMPUTE)

    @property
    def communication_s(self) -> float:
        """Seconds of a rank's collectives, one after another."""
        return _seconds(self.result, NodeKind.COLLECTIVE)

    @cached_property
    def isolated_s(self) -> float:
        """Seconds until the last collective ends if kernels took no time."""
        program = self.result.program.map_graphs(
            lambda graph: graph.with_columns(duration_s=np.where(graph.kind == NodeKind.COMPUTE, 0.0, graph.duration_s))
        )
        return simulate(program, self.topology, algorithms=RINGS).makespan_s


def _seconds(result: Result, kind: NodeKind) -> float:
    found = result.timelines[0]
    return float(np.sum(found.duration_s[found.graph.kind == kind]))


@lru_cache(maxsize=16)
def cluster(name: str, nodes: int, contention: str = "none") -> Topology:
    """Return Cluster A or B with so many nodes, and a library of `CONTENTION`."""
    found = load_topology(CLUSTERS[name])
    within, between = found.dimensions
    file = CONTENTION[contention]
    return replace(
        found,
        name=f"cluster-{name.lower()}-{nodes}",
        dimensions=(within, replace(between, size=nodes)),
        library=load_library(folder("topology") / "nccl" / f"{file}.yaml") if file else None,
    )


@lru_cache(maxsize=512)
def step(strategy: str, size: str, *, on: On = ("A", 2), **changes: int | bool) -> Step:
    """Return a step of a size of Table 4 over all GPUs of a cluster, with some keys of the workload changed.

    `strategy` is one of `STRATEGIES`, or centauri up to a tier, such as ``centauri:group``.
    """
    topology = cluster(*on)
    job = layered(load_workload(f"llama-{size}", {"topology": topology.name, **changes}), wants="this one is of layers")
    device, schedule = load_device(job.device), OF_PAPER.get(strategy, strategy if ":" in strategy else None)
    name = strategy.partition(":")[0]
    found = follow(name, job, topology=topology, device=device, schedule=schedule, options=ON_RINGS)
    assert found.outcome is not None, found.reason
    assert found.outcome.workload is not None
    assert found.outcome.efficiency is not None
    exposed_s = found.outcome.efficiency.exposed_s
    return Step(found.outcome.workload, found.outcome.result, topology, found.fits, exposed_s, found.outcome.decisions)


def gain(base: Step, other: Step) -> float:
    """Return the throughput of one strategy over another's."""
    return base.step_s / other.step_s


# ---- Figures: to each label the steps by strategy


Steps = dict[str, dict[str, Step]]


def fsdp(size: str, batch: int, strategy: str, *, on: On = ("A", 2), ahead: int = 0) -> Step:
    """Return a step under FSDP over all GPUs of a cluster, whose backward gathers so many layers ahead."""
    degrees = {**FSDP, "prefetch_backward": ahead, "data_parallel": 8 * on[1]}
    return step(strategy, size, on=on, **degrees, batch_per_replica=batch)


def figure_8() -> Steps:
    """Return FSDP over 16 GPUs."""
    return {
        f"{size}\n{batch}": {name: fsdp(size, batch, name) for name in ("zero-3", "centauri")}
        for size in SIZES
        for batch in BATCHES
    }


DATA_PARALLEL = {name: name for name in ("ddp", "out-of-order", "zero-1", "zero-2", "coconet")}
DATA_PARALLEL["centauri"] = "centauri:model-group"
"""Sec. 5.1: "In DP training, both primitive and workload partitioning are adopted"; FSDP has group and workload."""


def figure_9() -> Steps:
    """Return data parallelism over 16 GPUs."""
    return {
        f"{size}\n{batch}": {
            name: step(strategy, size, batch_per_replica=batch, data_parallel=16)
            for name, strategy in DATA_PARALLEL.items()
        }
        for size in SIZES
        for batch in BATCHES
    }


def sharded(ranks: int, batch: int, strategy: str, *, on: On = ("A", 6)) -> Step:
    """Return a step of Big under FSDP within groups of so many ranks, and replicas of them."""
    degrees = {**FSDP, "data_parallel": 8 * on[1], "shard_ranks": ranks}
    return step(strategy, "big", on=on, layers=10, batch_per_replica=batch, **degrees)


def figure_10() -> Steps:
    """Return FSDP with replicas over 48 GPUs."""
    return {
        f"{label}\n{batch}": {name: sharded(ranks, batch, name) for name in ("zero-3", "centauri")}
        for label, ranks in SHARDED.items()
        for batch in BATCHES
    }


def pipelined(degrees: tuple[int, int, int], microbatch: int, strategy: str) -> Step:
    """Return a step of Big, 30 layers, on 48 GPUs with 6 micro-batches."""
    tensor, pipeline, data = degrees
    axes = {"tensor_parallel": tensor, "pipeline_parallel": pipeline, "data_parallel": data}
    batch = {"batch_per_replica": MICROBATCHES * microbatch, "microbatch": microbatch}
    return step(strategy, "big", on=("A", 6), layers=30, sequence_parallel=tensor > 1, **axes, **batch)


def figure_11(names: Sequence[str] = ("megatron", "megatron-core", "breadth-first", "centauri")) -> Steps:
    """Return tensor, pipeline and data parallelism over 48 GPUs."""
    return {
        f"{label}\n{microbatch}": {name: pipelined(degrees, microbatch, name) for name in names}
        for label, degrees in DEGREES.items()
        for microbatch in (1, 2, 4)
    }


def figure_12() -> dict[int, dict[str, Step]]:
    """Return a layer of Big, without embedding and head, under FSDP by batch."""
    layer = {**FSDP, "data_parallel": 16, "layers": 1, "vocabulary": 0}
    return {
        batch: {name: step(name, "big", batch_per_replica=batch, **layer) for name in ("zero-3", "centauri")}
        for batch in (1, 4, 8)
    }


# ---- Claims


def best_gain(steps: Steps, base: str) -> float:
    """Return Centauri's largest gain over a strategy."""
    return max(gain(each[base], each["centauri"]) for each in steps.values())


def grows_while_comparable(steps: Steps, base: str) -> bool:
    """Return whether the gain over a strategy grows with the batch, up to that whose kernels outlast its collectives.

    Of every size; one with a single such batch shows no growth.
    """
    grows = []
    for size in SIZES:
        of_size = [steps[f"{size}\n{batch}"] for batch in BATCHES]
        gains = [
            gain(each[base], each["centauri"])
            for each in of_size
            if each[base].computation_s <= each[base].communication_s
        ]
        grows.append(len(gains) > 1 and all(after > before for before, after in pairwise(gains)))
    return all(grows)


def _gain_claims() -> Mapping[str, float]:
    found = figure_8()
    return {"C8-max": best_gain(found, "zero-3"), "C8-trend": float(grows_while_comparable(found, "zero-3"))}


def _data_parallel_claims() -> Mapping[str, float]:
    """Fig. 9 as Sec. 5.1 states it: Centauri is the fastest, and gains more over each other one at larger batches."""
    found = figure_9()
    fastest = all(min(each, key=lambda name: each[name].step_s) == "centauri" for each in found.values())
    grows = all(grows_while_comparable(found, base) for base in DATA_PARALLEL if base != "centauri")
    return {"C9-trend": float(fastest and grows)}


def bound_of(step: Step) -> tuple[float, float]:
    """Return a step's speedup over its own parts one after another, and that speedup's bound from their shares."""
    one_by_one_s = step.isolated_s + step.computation_s
    share = step.isolated_s / one_by_one_s
    return one_by_one_s / step.step_s, min(1 / share, 1 / (1 - share))


def _bound_claims() -> Mapping[str, float]:
    """Fig. 12: of Centauri's own parts; and the gain over FSDP against the bound from FSDP's parts, which can fail."""
    found = figure_12().values()
    own = [bound_of(steps["centauri"]) for steps in found]
    gains = [(gain(steps["zero-3"], steps["centauri"]), bound_of(steps["zero-3"])[1]) for steps in found]
    return {
        "C12-bound": float(all(speedup <= bound for speedup, bound in own)),
        "C12-bound2": float(all(gained <= bound for gained, bound in gains)),
    }


def _scaled_claims() -> Mapping[str, float]:
    size, batch = SCALED
    base, chosen = (fsdp(size, batch, name, on=("B", 32)) for name in ("zero-3", "centauri"))
    return {"C13-B256": 100 * (gain(base, chosen) - 1)}


def _hybrid_claims() -> Mapping[str, float]:
    pipelines = figure_11(("megatron", "centauri"))
    bases = [steps["megatron"] for steps in pipelines.values()]
    shares = [fsum(base.exposed_s.get(axis, 0.0) for axis in ("tensor", "pipeline")) / base.step_s for base in bases]
    return {
        "C11-max": max(best_gain(figure_10(), "zero-3"), best_gain(pipelines, "megatron")),
        "C-tp-share": 100 * max(shares),
    }


FIGURES: Mapping[str, Callable[[], Mapping[str, float]]] = {
    "C8": _gain_claims,
    "C9": _data_parallel_claims,
    **dict.fromkeys(("C11", "C"), _hybrid_claims),
    "C12": _bound_claims,
    "C13": _scaled_claims,
}
