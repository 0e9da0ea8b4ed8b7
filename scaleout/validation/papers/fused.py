"""Fused computation-collectives: the paper's figures, simulated.

Each figure is a sweep, which the scripts in ``figures/`` draw. Figs. 8 to 14 are operators on the machines of Table I,
one MI210 file for all; Fig. 15 is a whole training pass on that of Table II. All embeddings have one grid of sizes and
the costs that `scaleout run` charges a fused kernel. The operators' baseline is a kernel a table, as the public DLRM
runs them (Secs. IV.A and IV.C); a pass pools in one kernel for all tables, as a run does. The paper's text gives the
sizes of Figs. 11 and 13, and names batches from 256 to 2048 (Secs. IV.A, IV.C) and 256 tables.

Source: Punniyamurthy, Hamidouche and Beckmann, Optimizing Distributed ML Communication with Fused
Computation-Collective Operations, SC 2024.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import fsum
from typing import Any

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.schedule.fusion import FusedMachine, plan_operator
from scaleout.schedule.fusion.fused import run
from scaleout.simulation.options import SimulationOptions
from scaleout.study.job import Job, timed
from scaleout.study.job import run as run_job
from scaleout.workloads.families import load_workload

DEVICE, SCALE_UP, SCALE_OUT = "mi210", "mi210-node", "mi210-pair"
"""The machines of Table I."""

BATCHES, TABLES = (256, 512, 1024, 2048), (64, 128, 256)
"""The grid of Figs. 12, 14 and 15: global batches, and tables of a rank."""
BATCHES_OF = {SCALE_UP: BATCHES[1:], SCALE_OUT: BATCHES}
"""Fig. 8 has no batch of 256: a GPU pools its tables for the global batch, whatever joins it to others, so what Sec.
IV.C lays Fig. 12's 58% to, kernels of 256 bags that fill no GPU, would be in Fig. 8, whose largest is 32%."""
GEMV_ROWS = (8192, 16384, 32768, 65536)
GEMV_DEPTH = 4096
EXPERT_TOKENS = (8192, 16384)
EXPERT_WIDTHS = (1024, 2048, 4096)
PER_TABLE = {"baseline_kernels": "per_table"}
"""PyTorch runs a kernel for each table."""
OCCUPANCIES = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875)


@dataclass(frozen=True)
class Bar:
    """One configuration of a figure: its label there, the baseline's time and the fused operator's."""

    label: str
    baseline_s: float
    fused_s: float

    @property
    def reduction(self) -> float:
        """Share of the time that fusing saves."""
        return 1 - self.fused_s / self.baseline_s


def machine(topology: str) -> FusedMachine:
    """Return a machine of Table I."""
    return FusedMachine(load_device(DEVICE), load_topology(topology))


def _bar(label: str, operator: str, settings: Mapping[str, Any], on: FusedMachine) -> Bar:
    plan = plan_operator(operator, settings, on)
    return Bar(label, fsum(plan.baseline_s.values()), run(plan.recipes["aware"], "aware").time_s)


def embedding(topology: str) -> list[Bar]:
    """Return Fig. 8 or 12: embedding and all-to-all, on `SCALE_UP` or `SCALE_OUT`."""
    on = machine(topology)
    return [
        _bar(f"{batch}|{tables}", "embedding_all_to_all", {"batch": batch, "tables": tables, **PER_TABLE}, on)
        for batch in BATCHES_OF[topology]
        for tables in TABLES
    ]


def gemv() -> list[Bar]:
    """Return Fig. 9: GEMV and all-reduce over the length of the result."""
    on = machine(SCALE_UP)
    return [
        _bar(f"{rows // 1024}k", "gemv_all_reduce", {"M": rows, "K": GEMV_DEPTH, "dtype": "fp16"}, on)
        for rows in GEMV_ROWS
    ]


def experts() -> list[Bar]:
    """Return Fig. 10: the second GEMM of experts and the combine; an expert is four times as wide inside."""
    on, routed = machine(SCALE_UP), {"topk": 2, "dtype": "fp16"}
    return [
        _bar(f"{tokens // 1024}k|{width}", "gemm_all_to_all", {"M": tokens, "N": width, "K": 4 * width, **routed}, on)
        for tokens in EXPERT_TOKENS
        for width in EXPERT_WIDTHS
    ]


def occupancies() -> dict[float, float]:
    """Return Fig. 13: occupancy to the fused operator's time."""
    on = machine(SCALE_OUT)
    found = {}
    for occupancy in OCCUPANCIES:
        settings = {"batch": 1024, "tables": 256, "occupancy": occupancy}
        recipe = plan_operator("embedding_all_to_all", settings, on).recipes["aware"]
        found[occupancy] = run(recipe, "aware").time_s
    return found


@dataclass(frozen=True)
class Skew:
    """One configuration of Fig. 14: the time at which each node ends, by order."""

    label: str
    done_s: Mapping[str, tuple[float, float]]

    def of(self, order: str) -> float:
        """How much longer the slower node takes: 0.1 is 10%."""
        return max(self.done_s[order]) / min(self.done_s[order]) - 1


def skews() -> list[Skew]:
    """Return Fig. 14: both nodes in both orders; in communication-aware order they take the same time."""
    on = machine(SCALE_OUT)
    found = []
    for batch in BATCHES:
        for tables in TABLES:
            plan = plan_operator("embedding_all_to_all", {"batch": batch, "tables": tables}, on)
            done: dict[str, tuple[float, float]] = {}
            for order, recipe in plan.recipes.items():
                ranks = run(recipe, order).ranks
                done[order] = (ranks[0].done_s, ranks[-1].done_s)
            found.append(Skew(f"{batch}|{tables}", done))
    return found


# ---- Fig. 15

ALGORITHMS = {"all_reduce": "hierarchical"}
"""The paper used ASTRA-sim, whose all-reduce runs dimension by dimension."""


def training_passes(*, charged: bool = True) -> list[Bar]:
    """Return Fig. 15: passes of `dlrm-128` over batch sizes and table counts.

    The paper's traces have one profiled pooling, beside which the fused one has the all-to-all (artifact A3), so both
    passes pool in the same kernel: that of a run, one for all tables. A fused kernel pays what it pays in a run, or,
    not `charged`, nothing, as in those traces.
    """
    passes = []
    device = load_device(DEVICE)
    options = SimulationOptions(algorithms=ALGORITHMS)
    for batch in BATCHES:
        for tables in TABLES:
            workload = load_workload("dlrm-128", {"global_batch": batch, "tables_per_rank": tables})
            program, topology = timed(workload, device), load_topology(workload.topology)
            costs = device if charged else device.name  # what a schedule weighs
            of = partial(Job, program, topology=topology, options=options, traced=True)
            baseline, fused = run_job(of(device)), run_job(of(costs, schedule="fused"))
            passes.append(Bar(f"{batch}|{tables}", baseline.makespan_s, fused.makespan_s))
    return passes


# ---- Claims


def _mean_and_max(claim: str, bars: Sequence[Bar]) -> dict[str, float]:
    reductions = [100 * bar.reduction for bar in bars]
    return {f"{claim}-mean": fsum(reductions) / len(reductions), f"{claim}-max": max(reductions)}


def _gemv_claims() -> Mapping[str, float]:
    bars = gemv()
    shrinks = bars[-1].reduction == min(bar.reduction for bar in bars)
    return {**_mean_and_max("F9", bars), "F9-trend": float(shrinks)}


def _occupancy_claims() -> Mapping[str, float]:
    times = occupancies()
    return {"F13-low": 100 * (1 - times[0.75] / times[0.25]), "F13-high": 100 * (times[0.875] / times[0.75] - 1)}


def _skew_claims() -> Mapping[str, float]:
    found = skews()
    return {
        f"F14-{order}": 100 * fsum(each.of(order) for each in found) / len(found) for order in ("oblivious", "aware")
    }


def _training_pass_claims() -> Mapping[str, float]:
    found = {}
    for claim, charged in (("F15-mean", False), ("F15-charged", True)):
        reductions = [bar.reduction for bar in training_passes(charged=charged)]
        found[claim] = 100 * fsum(reductions) / len(reductions)
    return found


FIGURES: Mapping[str, Callable[[], Mapping[str, float]]] = {
    "F8": lambda: _mean_and_max("F8", embedding(SCALE_UP)),
    "F9": _gemv_claims,
    "F10": lambda: _mean_and_max("F10", experts()),
    "F12": lambda: _mean_and_max("F12", embedding(SCALE_OUT)),
    "F13": _occupancy_claims,
    "F14": _skew_claims,
    "F15": _training_pass_claims,
}
