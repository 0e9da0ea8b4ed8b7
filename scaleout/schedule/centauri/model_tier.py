"""Centauri's model tier: how a step leaves its gradients' and parameters' communication to forward and backward.

It shards the optimizer, leaves gathers to the next forward, reduces gradients as they are made, and chooses how many
micro-batches of a virtual stage are launched together. Keys that the workload gives stay. Where collectives slow
kernels down, a longer step is refused. Symbols: p stages of a pipeline; v virtual stages of a rank; m micro-batches;
L1, L2 those launched together, forward and backward. See docs/models/centauri.md.
Source: Chen et al., Centauri, ASPLOS 2024, Sec. 3.2.3 and 5.1, Fig. 3 (hybrid sharding).
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import lru_cache
from math import fsum
from typing import Any, NamedTuple

import numpy as np

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.machine import Machine
from scaleout.config.units import counted, format_bytes, format_seconds
from scaleout.errors import ConfigError
from scaleout.program.fastest import fastest, is_faster
from scaleout.program.graph import COLLECTIVES, ExecutionGraph, NodeKind, NodeRole
from scaleout.program.program import Program
from scaleout.schedule.cost import ProgramCosts
from scaleout.schedule.decision import Decision, Planned
from scaleout.schedule.overlap import overlap
from scaleout.schedule.steps import or_baseline, step
from scaleout.simulation.cost_model import CostModel
from scaleout.workloads.config.family import ModelFamily
from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.generate import generate
from scaleout.workloads.generate.axes import Axes
from scaleout.workloads.generate.stage import Stage, Turn
from scaleout.workloads.memory import Peak, peak
from scaleout.workloads.memory.advice import advise
from scaleout.workloads.pipeline import Action, named
from scaleout.workloads.pipeline.blocks import blocks
from scaleout.workloads.pipeline.clock import Durations, run
from scaleout.workloads.pipeline.messages import sends_s

_TIER = "model tier"
"""What its decisions are about."""


@dataclass(frozen=True)
class Costs:
    """What a stage takes, in seconds: its gathers and reductions, and a micro-batch forward and backward."""

    gather_s: float
    reduce_s: float
    forward_s: float
    backward_s: float

    def exposed_s(self, launched: tuple[int, int]) -> float:
        """Return equation (2): what stays exposed of gathers and reductions with so many micro-batches.

        >>> Costs(4.0, 3.0, 1.0, 2.0).exposed_s((3, 1))
        2.0
        """
        forward, backward = launched
        return max(self.gather_s - forward * self.forward_s, 0.0) + max(self.reduce_s - backward * self.backward_s, 0.0)


def launched_together(workload: LayeredModel) -> tuple[int, int]:
    """Return the micro-batches of a virtual stage that are launched together, forward and backward: L1 and L2."""
    pipeline = named(workload.pipeline_schedule, workload.microbatch_group)
    if pipeline.in_groups is None:
        return 1, 1
    group = workload.microbatch_group or workload.pipeline_parallel
    return group, workload.num_microbatches % group or group


@dataclass(frozen=True)
class Launch:
    """A group that was chosen, the one of equation (2) alone, and the seconds of a step with each."""

    group: int
    step_s: float
    by_equation: int
    by_equation_s: float


def best_launch(
    workload: LayeredModel, stages: Sequence[Costs], machine: Machine, capacity_bytes: float
) -> Launch | None:
    """Return the group with which the step is shortest, of those that fit, and of equal ones the smallest.

    The smallest if none fits; None where there are no groups, or the workload says which.
    """
    in_groups = named(workload.pipeline_schedule).in_groups
    if in_groups is None or workload.microbatch_group is not None:
        return None
    p, m = workload.pipeline_parallel, workload.num_microbatches
    plans = {
        size: workload.model_copy(update={"microbatch_group": size})
        for size in range(p, m + 1)
        if in_groups(size).check(p, m, workload.chunks) is None
    }
    # Memory grows with the group.
    fit = bisect_right(list(plans), capacity_bytes, key=lambda size: peak(plans[size]).total_bytes)
    sizes = list(plans)[: max(fit, 1)]
    exposed_s = {size: max(each.exposed_s(launched_together(plans[size])) for each in stages) for size in sizes}
    by_equation = fastest(sizes, exposed_s.__getitem__)
    messages = CostModel(machine).messages(workload.message_bytes, workload.mesh, "pipeline")
    messages_s = [message.time_s for message in messages]
    steps_s = {size: step_s(plans[size], stages, messages_s) for size in sizes if m % size == 0 or size == by_equation}
    best = fastest(steps_s, steps_s.__getitem__)
    return Launch(best, steps_s[best], by_equation, steps_s[by_equation])


def step_s(workload: LayeredModel, stages: Sequence[Costs], messages_s: Sequence[float]) -> float:
    """Return the seconds of an interleaved pipeline with gathers and reductions, without what ends a step.

    `stages` has the costs of every stage, `messages_s`, of length p, what a message takes from each rank to the next.
    """
    name, p, v = workload.pipeline_schedule, workload.pipeline_parallel, workload.chunks
    at = workload.stages_of_ranks
    gather_s, reduce_s, forward_s, backward_s = np.array([astuple(each) for each in stages]).T[:, at]
    share = 1 / np.maximum(np.array(workload.layers_of_stage)[at], 1)  # of a layer in its stage
    action_s = np.zeros((len(Action), p, v))
    action_s[Action.FORWARD], action_s[Action.BACKWARD] = forward_s, backward_s
    found = blocks(name, **workload.pipeline_sizes)
    ready_s = np.cumsum(gather_s, axis=1) - (1 - share) * np.minimum(gather_s, forward_s)
    durations = Durations(action_s, send_s=sends_s(messages_s, name, p, v), ready_s=ready_s)
    timeline = run(found, durations, blocking=not workload.overlap_sends)
    # Reductions of a pipeline rank follow each other, layer by layer as their virtual stage's last backward makes them.
    end_s = np.concatenate(timeline.end_s)[found.last_gradients]
    first_s, last_s = end_s - (1 - share) * backward_s, end_s + share * reduce_s
    done_s = np.zeros(p)
    for chunk in reversed(range(v)):
        done_s = np.maximum(np.maximum(done_s, first_s[:, chunk]) + reduce_s[:, chunk], last_s[:, chunk])
    return max(float(done_s.max()), timeline.makespan_s)


@dataclass(frozen=True)
class ModelTier:
    """What the model tier chose.

    Attributes
    ----------
    changes : mapping
        Keys of the workload that were changed.
    launched : (int, int)
        Micro-batches launched together, forward and backward; none where nothing was chosen.
    costs : Costs
        Of the stage where most stays exposed.
    decisions : tuple of Decision
        What was chosen, why, and what stays exposed.
    program : Program or None
        The workload's, with the times of its kernels, if its step was simulated.
    instead : ModelTier or None
        The workload as it was, where a step of that is shorter before it is partitioned: the shorter of both then
        decides.
    """

    workload: ModelFamily
    decisions: tuple[Decision, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    launched: tuple[int, int] = (0, 0)
    costs: Costs = Costs(0.0, 0.0, 0.0, 0.0)
    program: Program | None = None
    instead: "ModelTier | None" = None


def model_tier(
    workload: ModelFamily,
    machine: Machine,
    ready: Callable[[Program], Program] = lambda program: program,
    *,
    memory_bytes: float | None = None,
) -> ModelTier:
    """Choose what communication overlaps with forward and backward, and the micro-batches launched together.

    The workload stays as it was where there is nothing to choose. Steps are simulated as the host issues them and with
    ranks where they lie, as `ready` makes them. `memory_bytes` is what a device has, by default as in its file; a
    ConfigError says that no plan fits in it, what is short and what would fit.
    """
    if not isinstance(workload, LayeredModel) or workload.mode != "training":
        return _unchanged(workload, "this is no training step of a transformer")
    capacity_bytes = machine.device.usable_bytes if memory_bytes is None else memory_bytes
    reason = _nothing_to_choose(workload)
    if reason:
        _check_fits(workload, machine, capacity_bytes)
        return _unchanged(workload, reason)
    changes: dict[str, Any] = {"overlap_parameter_gather": True}
    if workload.zero < 3:
        changes |= {"zero": max(workload.zero, 1), "overlap_gradient_reduce": True}
    overlapped = workload.model_copy(update=changes)
    stages = costs_of_stages(overlapped, machine)
    launch = best_launch(overlapped, stages, machine, capacity_bytes) if workload.zero < 3 else None
    if launch is not None:
        changes["microbatch_group"] = launch.group
    chosen = workload.model_copy(update=changes)
    held = _check_fits(chosen, machine, capacity_bytes)
    program, instead = None, None
    if peak(workload).total_bytes <= capacity_bytes:
        before, program = (time_kernels(generate(each), machine.device) for each in (workload, chosen))
        before_s = _overlapped_s(ready(before), machine)
        after_s = _overlapped_s(ready(program), machine, enough_s=before_s)
        if is_faster(before_s, after_s):
            kept = Decision(_TIER, "nothing changed", before_s, {"changed": after_s}, "a step before it is partitioned")
            instead = ModelTier(workload, (kept,), program=before)
    launched = launched_together(chosen)
    costs = max(stages, key=lambda each: each.exposed_s(launched))
    room = f"{format_bytes(held.total_bytes, like=capacity_bytes)} of {format_bytes(capacity_bytes)}"
    decisions = (_moved(chosen, costs, room), *_grouped(launch))
    return ModelTier(chosen, decisions, changes, launched, costs, program, instead)


def _unchanged(workload: ModelFamily, reason: str) -> ModelTier:
    """Return a workload of which nothing is to be chosen."""
    return ModelTier(workload, (Decision(_TIER, "nothing to choose", reason=reason),))


def _overlapped_s(program: Program, machine: Machine, *, enough_s: float = 0.0) -> float:
    """Return the seconds of a step under `overlap`, or, where these are more than enough, of a shorter baseline."""
    moved = overlap(program)
    result = step(moved, machine)
    if result.makespan_s <= enough_s:
        return result.makespan_s
    planned = or_baseline(Planned(moved, result=result), program, machine)
    assert planned.result is not None, "it is simulated"
    return planned.result.makespan_s


def _nothing_to_choose(workload: LayeredModel) -> str:
    """Return why gradients and parameters are not to be moved; nothing if they are."""
    if workload.zero == 3 and workload.replicas_of_shards == 1:
        return "zero 3 gathers parameters and reduces gradients layer by layer already"
    if workload.zero == 3 and workload.replicas_at_end:
        return "replicas_at_end keeps the all-reduce over copies of shards whole, behind backward"
    axes = Axes(workload)
    sharing = (axes.dense(), axes.experts())
    return "" if any(each.degree > 1 for each in sharing) else "no ranks share parameters"


class _Stages(NamedTuple):
    """What stages of a workload run, of those that are alike the first; `which` has the number of each stage in them.

    Gathers are kind, bytes and family; graphs those of forward, of backward, and of the last backward, which reduces.
    """

    axes: Axes
    which: tuple[int, ...]
    gathers: tuple[tuple[tuple[str, float, int], ...], ...]
    passes: tuple[tuple[ExecutionGraph, ExecutionGraph], ...]
    last: tuple[ExecutionGraph, ...]


@lru_cache(maxsize=4)  # jobs that differ in their network alone have the same
def _stages_of(workload: LayeredModel) -> _Stages:
    axes = Axes(workload)
    first_of: dict[tuple[object, ...], int] = {}
    which: list[int] = []
    begin = 0
    for number, count in enumerate(workload.layers_of_stage):
        kinds = tuple(workload.layer_kind(layer) for layer in range(begin, begin + count))
        which.append(first_of.setdefault((kinds, number == 0, number == workload.num_stages - 1), number))
        begin += count
    stages = [Stage(workload, axes, number) for number in first_of.values()]
    passes = [(stage.forward.graph, stage.part(Action.BACKWARD, Turn(True, False)).graph) for stage in stages]
    last = [stage.part(Action.BACKWARD, Turn(True, True)).graph for stage in stages]
    gathers = tuple(tuple(gather for _, gather in stage.gathers()) for stage in stages)
    numbers = {number: at for at, number in enumerate(first_of.values())}
    return _Stages(axes, tuple(numbers[number] for number in which), gathers, tuple(passes), tuple(last))


def costs_of_stages(workload: LayeredModel, machine: Machine) -> list[Costs]:
    """Return the costs of every stage, of a workload whose communication overlaps with its kernels."""
    stages = _stages_of(workload)
    axes, roles = stages.axes, np.zeros(workload.num_ranks, np.int64)
    program_costs = ProgramCosts(Program("stage", (), roles, axes.families), CostModel(machine))

    def isolated_s(graph: ExecutionGraph) -> float:
        program = Program("stage", (graph,), roles, axes.families)
        return step(overlap(time_kernels(program, machine.device)), machine).makespan_s

    costs = [
        Costs(
            fsum(program_costs.best_s(group, kind, size_bytes) for kind, size_bytes, group in gathers),
            _reductions_s(reduced, program_costs, family=axes.dense().replicas if workload.zero == 3 else None),
            *map(isolated_s, graphs),
        )
        for gathers, graphs, reduced in zip(stages.gathers, stages.passes, stages.last, strict=True)
    ]
    return [costs[number] for number in stages.which]


def _reductions_s(graph: ExecutionGraph, program_costs: ProgramCosts, *, family: int | None) -> float:
    """Return the seconds of a graph's reductions of gradients, one after the other; of one family if that is given."""
    total_s = 0.0
    reductions = (graph.kind == NodeKind.COLLECTIVE) & graph.has_role(NodeRole.GRADIENTS)
    for node in np.flatnonzero(reductions).tolist():
        if family in (None, graph.group[node]):
            asked = int(graph.group[node]), COLLECTIVES[graph.collective[node]], float(graph.bytes[node])
            whole = not program_costs.substitutes(*asked)
            total_s += program_costs.best_s(*asked) if whole else program_costs.substituted_s(asked[0], asked[2])
    return total_s


def _check_fits(workload: LayeredModel, machine: Machine, capacity_bytes: float) -> Peak:
    """Return what the fullest rank holds; a ConfigError says that it is more than a device has."""
    held = peak(workload)
    if held.total_bytes <= capacity_bytes:
        return held
    parts = sorted(held.bytes_of.items(), key=lambda item: -item[1])[:2]
    largest = " and ".join(f"{kind.replace('_', ' ')} {format_bytes(size)}" for kind, size in parts)
    fits = [advice for advice in advise(workload, capacity_bytes) if advice.fits]
    remedies = "; or ".join(
        f"{each.settings} ({format_bytes(each.peak.total_bytes)} on {counted(each.ranks, 'rank')})" for each in fits[:3]
    )
    raise ConfigError(
        f"no plan of {workload.name or 'the workload'} fits in the {format_bytes(capacity_bytes)} of "
        f"{machine.device.name}: the smallest that centauri found holds {format_bytes(held.total_bytes)} on rank "
        f"{held.rank} of the pipeline, {format_bytes(held.total_bytes - capacity_bytes)} too much, most of it "
        f"{largest}; {f'what would fit: {remedies}' if fits else 'nothing that was tried fits: take larger devices'}"
    )


def _grouped(launch: Launch | None) -> tuple[Decision, ...]:
    """Say which group of micro-batches is better than that of equation (2), if one is."""
    if launch is None or launch.group == launch.by_equation:
        return ()
    by_equation_s = {f"in groups of {launch.by_equation}, as equation (2) names": launch.by_equation_s}
    clock = "a step on the pipeline's clock"
    return (Decision("micro-batches", f"in groups of {launch.group}", launch.step_s, by_equation_s, clock),)


def _moved(workload: LayeredModel, costs: Costs, room: str) -> Decision:
    """Say what was chosen, why, and what stays exposed."""
    launched = launched_together(workload)
    exposed_s, whole_s = costs.exposed_s(launched), costs.gather_s + costs.reduce_s
    part = "a chunk" if workload.num_stages > 1 else "the model"
    groups = f"micro-batches of {part} in groups of {launched[0]}"
    if launched[0] != launched[1]:
        groups += f", the last of {launched[1]}"
    moved = "parameters gathered in the next forward, gradients reduced as backward makes them"
    if workload.zero == 3:
        moved = (
            f"the all-reduce over {workload.replicas_of_shards} copies of shards divided: gradients reduce-scattered "
            f"as backward makes them, parts of shards stepped, and gathered in the next forward"
        )
    parts = [f"zero {workload.zero}, {moved}"]
    if named(workload.pipeline_schedule).in_groups:
        parts.append(groups)
    sums = " and ".join(
        f"{what} {format_seconds(whole)} beside {count} x {format_seconds(beside)}"
        for what, whole, count, beside in (
            ("gathers", costs.gather_s, launched[0], costs.forward_s),
            ("reductions", costs.reduce_s, launched[1], costs.backward_s),
        )
    )
    if_alone = "if layers' own leave them the network; " if workload.zero == 3 else ""
    exposed = f"exposed of {part}"
    return Decision(_TIER, "; ".join(parts), exposed_s, {"at the end": whole_s}, exposed, f"{if_alone}{sums}; {room}")
