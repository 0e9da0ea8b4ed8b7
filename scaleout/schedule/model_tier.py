"""Centauri's model tier: how a step leaves its gradients' and parameters' communication to forward and backward.

Gradients of a model chunk are reduce-scattered while the micro-batches behind it run backward. The all-gather passes
through the optimizer, which is element-wise, into the forward of the next step, beside the micro-batches of the chunk
before it. How many micro-batches of a chunk are launched together says how much hides; memory says how many there may
be. Equation (2) of the paper:

    T = max(C_AG - L1 C_fw, 0) + max(C_RS - L2 C_bw, 0),   with activations of L1 and of L2 micro-batches in memory

C_AG and C_RS are what one chunk's parameters and gradients take on the wires, by levels where that is less; C_fw and
C_bw what a micro-batch of it takes forward and backward, simulated alone. T is that of the stage where most stays
exposed.
An interleaved pipeline launches groups of one size L: L1 is the first group, L2 the last, which may be smaller. So
L1 + L2 <= m holds wherever there are two groups; one group of all m (breadth-first) is the first and the last. Other
schedules launch one micro-batch of a chunk, and have nothing to choose. Memory is the peak of the whole step in its
order, no product of L. Of groups with the same T the smallest is taken, which holds least.

Keys that it does not choose stay as they are, and a `microbatch_group` that is given too.

Symbols: p stages of a pipeline; m micro-batches; L1, L2 those launched together, forward and backward.
Source: Chen et al., Centauri, ASPLOS 2024, Sec. 3.2.3 and 5.1.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scaleout.errors import ConfigError
from scaleout.generators.axes import Axes
from scaleout.generators.stage import Stage, Turn
from scaleout.graph import COLLECTIVES, ExecutionGraph, NodeKind
from scaleout.machine import Machine
from scaleout.memory import Peak, peak
from scaleout.memory.advice import advise
from scaleout.pipelines import Action, named
from scaleout.program import Program
from scaleout.schedule.overlap import overlap
from scaleout.schedule.prices import Prices
from scaleout.timing import time_kernels
from scaleout.units import format_bytes
from scaleout.workload import Moe, Transformer, Workload


@dataclass(frozen=True)
class Costs:
    """What a stage takes, in seconds: its gathers and reductions, and a micro-batch forward and backward."""

    gather_s: float
    reduce_s: float
    forward_s: float
    backward_s: float

    def exposed_s(self, launched: tuple[int, int]) -> float:
        """Return equation (2): what stays exposed beside so many micro-batches, forward and backward.

        >>> Costs(4.0, 3.0, 1.0, 2.0).exposed_s((3, 1))
        2.0
        """
        forward, backward = launched
        return max(self.gather_s - forward * self.forward_s, 0.0) + max(self.reduce_s - backward * self.backward_s, 0.0)


@dataclass(frozen=True)
class ModelTier:
    """What the model tier chose.

    Attributes
    ----------
    workload : Workload
        To run.
    changes : mapping
        Its keys that were changed.
    launched : (int, int)
        Micro-batches launched together, forward and backward; none where nothing was chosen.
    costs : Costs
        Of the stage where most stays exposed.
    words : str
        What was chosen, why, and what stays exposed.
    """

    workload: Workload
    words: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    launched: tuple[int, int] = (0, 0)
    costs: Costs = Costs(0.0, 0.0, 0.0, 0.0)


def model_tier(workload: Workload, machine: Machine, *, memory_bytes: float | None = None) -> ModelTier:
    """Choose what of a step's communication forward and backward take beside them, and how many micro-batches do.

    Parameters
    ----------
    machine : Machine
        With as many ranks as the workload.
    memory_bytes : float, optional
        What a device has; by default what its file says.

    Returns
    -------
    ModelTier
        With the workload as it was where there is nothing to choose, and the reason in words.

    Raises
    ------
    ConfigError
        If no plan fits in the memory; the message says what is short and what would fit.
    """
    if not isinstance(workload, Transformer) or workload.mode != "training":
        return ModelTier(workload, "model tier: nothing to choose, this is no training step of a transformer")
    capacity_bytes = machine.device.memory_bytes if memory_bytes is None else memory_bytes
    reason = _nothing_to_choose(workload)
    if reason:
        _check_fits(workload, machine, capacity_bytes)
        return ModelTier(workload, f"model tier: nothing to choose, {reason}")
    changes: dict[str, Any] = {
        "zero": max(workload.zero, 1), "overlap_gradient_reduce": True, "overlap_parameter_gather": True
    }  # fmt: skip
    overlapped = workload.model_copy(update=changes)
    stages = costs_of_stages(overlapped, machine)
    group = _group(overlapped, stages, capacity_bytes)
    if group is not None and group != workload.microbatch_group:
        changes["microbatch_group"] = group
    chosen = workload.model_copy(update=changes)
    held = _check_fits(chosen, machine, capacity_bytes)
    launched = _launched(chosen)
    costs = max(stages, key=lambda each: each.exposed_s(launched))
    words = _words(chosen, costs, launched, held_bytes=held.total_bytes, capacity_bytes=capacity_bytes)
    return ModelTier(chosen, words, changes, launched, costs)


def _nothing_to_choose(workload: Transformer) -> str:
    """Return why gradients and parameters are not to be moved; nothing if they are."""
    if workload.zero == 3:
        return "zero 3 gathers parameters and reduces gradients layer by layer already"
    axes = Axes(workload)
    sharing = (axes.dense(), *((axes.experts(),) if isinstance(workload, Moe) else ()))
    return "" if any(each.degree > 1 for each in sharing) else "no ranks share parameters"


def _launched(workload: Transformer) -> tuple[int, int]:
    """Return the micro-batches of a chunk that are launched together, forward and backward: L1 and L2."""
    pipeline = named(workload.pipeline_schedule, workload.microbatch_group)
    if pipeline.in_groups is None:
        return 1, 1
    group = workload.microbatch_group or workload.pipeline_parallel
    return group, workload.num_microbatches % group or group


def _group(workload: Transformer, stages: Sequence[Costs], capacity_bytes: float) -> int | None:
    """Return the group after which least stays exposed, of those that fit; the smallest if none does."""
    in_groups = named(workload.pipeline_schedule).in_groups
    if in_groups is None or workload.microbatch_group is not None:
        return workload.microbatch_group
    p, m = workload.pipeline_parallel, workload.num_microbatches
    plans = [
        workload.model_copy(update={"microbatch_group": size})
        for size in range(p, m + 1)
        if in_groups(size).check(p, m, workload.chunks) is None
    ]
    # Memory grows with the group.
    fit = bisect_right(plans, capacity_bytes, key=lambda plan: peak(plan).total_bytes)
    best = min(plans[: max(fit, 1)], key=lambda plan: max(each.exposed_s(_launched(plan)) for each in stages))
    return best.microbatch_group


def costs_of_stages(workload: Transformer, machine: Machine) -> list[Costs]:
    """Return the costs of the stages that differ, of a workload whose communication runs beside its kernels."""
    axes = Axes(workload)
    first_of: dict[tuple[object, ...], int] = {}
    begin = 0
    for number, count in enumerate(workload.layers_of_stage):
        kinds = tuple(workload.layer_kind(layer) for layer in range(begin, begin + count))
        first_of.setdefault((kinds, number == 0, number == workload.num_stages - 1), number)
        begin += count
    stages = [Stage(workload, axes, number) for number in first_of.values()]
    passes = [(stage.forward.graph, stage.part(Action.BACKWARD, Turn(True, False)).graph) for stage in stages]
    last = [stage.part(Action.BACKWARD, Turn(True, True)).graph for stage in stages]
    roles = np.zeros(workload.num_ranks, np.int64)
    prices = Prices(Program("stage", (), roles, axes.families), machine)

    def alone_s(graph: ExecutionGraph) -> float:
        program = Program("stage", (graph,), roles, axes.families)
        return prices.step(overlap(time_kernels(program, machine.device))).makespan_s

    return [
        Costs(
            sum(prices.best_s(sharing.group, "all_gather", size_bytes) for _, sharing, size_bytes in stage.gathers()),
            _reductions_s(reduced, prices),
            *map(alone_s, graphs),
        )
        for stage, graphs, reduced in zip(stages, passes, last, strict=True)
    ]


def _reductions_s(graph: ExecutionGraph, prices: Prices) -> float:
    """Return the seconds of a graph's reductions of gradients, one after the other."""
    total_s = 0.0
    for node in np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist():
        if graph.names[node].startswith("gradients_"):
            asked = int(graph.group[node]), COLLECTIVES[graph.collective[node]], float(graph.bytes[node])
            whole = not prices.substitutes(*asked)
            total_s += prices.best_s(*asked) if whole else prices.substituted_s(asked[0], asked[2])
    return total_s


def _check_fits(workload: Transformer, machine: Machine, capacity_bytes: float) -> Peak:
    """Return what the fullest rank holds.

    Raises
    ------
    ConfigError
        If that is more than a device has.
    """
    held = peak(workload)
    if held.total_bytes <= capacity_bytes:
        return held
    parts = sorted(held.bytes_of.items(), key=lambda item: -item[1])[:2]
    largest = " and ".join(f"{kind.replace('_', ' ')} {format_bytes(size)}" for kind, size in parts)
    fits = [advice for advice in advise(workload, capacity_bytes) if advice.fits]
    remedies = "; or ".join(
        f"{each.settings} ({format_bytes(each.peak.total_bytes)} on {each.ranks} ranks)" for each in fits[:3]
    )
    raise ConfigError(
        f"no plan of {workload.name or 'the workload'} fits in the {format_bytes(capacity_bytes)} of "
        f"{machine.device.name}: the least that centauri found holds {format_bytes(held.total_bytes)} on place "
        f"{held.place} of the pipeline, {format_bytes(held.total_bytes - capacity_bytes)} too much, most of it "
        f"{largest}; {f'what would fit: {remedies}' if fits else 'nothing that was tried fits: take larger devices'}"
    )


def _words(
    workload: Transformer, costs: Costs, launched: tuple[int, int], *, held_bytes: float, capacity_bytes: float
) -> str:
    """Say what was chosen, why, and what stays exposed."""
    exposed_s, whole_s = costs.exposed_s(launched), costs.gather_s + costs.reduce_s
    part = "a chunk" if workload.num_stages > 1 else "the model"
    groups = f"micro-batches of {part} in groups of {launched[0]}"
    if launched[0] != launched[1]:
        groups += f", the last of {launched[1]}"
    parts = [
        f"zero {workload.zero}, parameters gathered in the next forward, gradients reduced as backward makes them",
        *([groups] if named(workload.pipeline_schedule).in_groups else []),
    ]
    sums = " and ".join(
        f"{what} {1e3 * whole:.4g} ms beside {count} x {1e3 * beside:.4g} ms"
        for what, whole, count, beside in (
            ("gathers", costs.gather_s, launched[0], costs.forward_s),
            ("reductions", costs.reduce_s, launched[1], costs.backward_s),
        )
    )
    return (
        f"model tier: {'; '.join(parts)}: of {part} {1e3 * exposed_s:.4g} ms stay exposed instead of "
        f"{1e3 * whole_s:.4g} ({sums}); {format_bytes(held_bytes)} of {format_bytes(capacity_bytes)}"
    )
