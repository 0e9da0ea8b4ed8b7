"""One plan to its estimate: stages on the clock of the pipeline, then what follows the last micro-batch.

The estimate equals a simulation of every kernel under the `baseline` schedule, apart from concurrent messages, and is
never too fast. It knows nothing of overlap and contention. See docs/models/search.md and docs/decisions/053-blocks.md.

Symbols: p pipeline ranks; v virtual stages of a rank; m micro-batches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import fsum
from typing import Any

import numpy as np

from scaleout.analysis.bounds import bound_of_parts
from scaleout.analysis.efficiency import mfu_of
from scaleout.cluster.device.host import check_host
from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.topology import Topology, check_ranks
from scaleout.errors import ConfigError
from scaleout.program.graph import COLLECTIVES, NONE, GraphBuilder, NodeKind
from scaleout.study.search.cost import Collective, PlanCosts, TimeBreakdown, plan_costs_of
from scaleout.study.search.stages import Ledger, Stage, stages_of
from scaleout.workloads import memory
from scaleout.workloads.config.family import ModelFamily
from scaleout.workloads.config.layered import LayeredModel, layered
from scaleout.workloads.generate.step import Finish, forward_only
from scaleout.workloads.pipeline import PIPELINES, Action, orders
from scaleout.workloads.pipeline.blocks import Blocks, blocks, connect
from scaleout.workloads.pipeline.clock import Durations, run
from scaleout.workloads.pipeline.messages import sends_s

INSTANCES: Mapping[str, Callable[[LayeredModel, int], tuple[int, ...]]] = {
    "pipeline_copies": lambda workload, rank: (rank, workload.pipeline_parallel - 1 - rank),
    "pipeline_ends": lambda workload, _rank: workload.end_ranks,
    "world": lambda workload, _rank: tuple(range(workload.pipeline_parallel)),
}
"""Family of groups that reach over pipeline ranks, to the pipeline ranks of the group that a pipeline rank is in."""

BASELINE = "baseline"
"""The schedule under which every search evaluates plans."""

ENOUGH = 4
"""Rounds of p micro-batches after which a pipeline holds as much memory as ever."""

RankStages = Sequence[Sequence[Stage]]
"""The stages of each pipeline rank, by virtual stage."""


@dataclass(frozen=True)
class Estimate:
    """What a step of one plan takes; times are means over ranks and add up to the step.

    Attributes
    ----------
    compute_s : float
        Kernels.
    exposed_s : mapping
        Axis to its exposed communication, which under `baseline` is all of it.
    bubble_s : float
        Waiting for other pipeline ranks; of an estimate that is not simulated, for their messages as well.
    host_s : float
        Waiting for the host to issue what comes next, or for the end of the step.
    memory_limited_s : float
        Of `compute_s`, kernels that memory limits.
    tokens_per_s : float
        Of the whole job.
    mfu : float
        FLOPs that the model needs over what the ranks could do in the step.
    memory_bytes : mapping
        What the fullest rank holds at its peak, by kind.
    """

    step_s: float
    compute_s: float
    exposed_s: Mapping[str, float]
    bubble_s: float
    tokens_per_s: float
    mfu: float
    memory_bytes: Mapping[str, float]
    host_s: float = 0.0
    memory_limited_s: float = 0.0

    @classmethod
    def of(cls, workload: LayeredModel, device: Device, step_s: float, **times: Any) -> "Estimate":
        """Add tokens, MFU and memory to the times of a step; `times` are the other attributes."""
        tokens_per_s = workload.tokens * workload.data_parallel / step_s
        mfu, memory_bytes = mfu_of(workload, device, step_s), peak_bytes_of(workload)
        return cls(step_s, tokens_per_s=tokens_per_s, mfu=mfu, memory_bytes=memory_bytes, **times)

    @property
    def bubble(self) -> float:
        """Share of the step that a rank waits for the pipeline."""
        return self.bubble_s / self.step_s

    @property
    def peak_bytes(self) -> float:
        """What the fullest rank holds at its peak."""
        return fsum(self.memory_bytes.values())

    @property
    def bound_by(self) -> str:
        """What takes the largest part of the step, by the rule of `run`: a pipeline's messages count as bubble."""
        waits_s = fsum((self.bubble_s, self.host_s, self.exposed_s.get("pipeline", 0.0)))
        parts = {"compute": self.compute_s, "bubble" if waits_s > self.host_s else "host": waits_s}
        parts |= {f"{axis} communication": seconds for axis, seconds in self.exposed_s.items() if axis != "pipeline"}
        return bound_of_parts(parts, limited_share=self.memory_limited_s / (self.compute_s or 1.0))

    def summary(self) -> dict[str, Any]:
        """Return the numbers as plain values."""
        return {**asdict(self), "bubble": self.bubble, "peak_bytes": self.peak_bytes, "bound_by": self.bound_by}


def evaluate(
    workload: ModelFamily, topology: Topology, device: Device, *, host: str = "none", schedule: str = BASELINE
) -> Estimate:
    """Estimate a step of a model of layers, block by block.

    A `schedule` other than baseline holds within each embedding, layer and head, not across them.

    Under an `eager` host each action begins when the host has nothing else under way and takes as long as it needs to
    issue it, if that is longer: what a host is ahead by at the end of one is not counted in the next.

    Raises
    ------
    ConfigError
        If the workload is not of layers, has a key that blocks do not know, or the topology has other ranks.
    """
    workload = layered(workload, wants="plans are of models of layers")
    check_block_keys(workload)
    check_ranks(topology, workload.num_ranks)
    costs = plan_costs_of(topology, device, schedule)
    check_host(device, host)
    ranks = stages_of_ranks(workload, costs)
    found = _blocks(workload)
    counts = found.counts
    busy = [_of_blocks(rank, counts[:, number]) for number, rank in enumerate(ranks)]
    # With one pipeline rank nobody waits for anybody.
    eager = host in ("eager", "checking")  # blocks leave the checks out
    host_s = [_waits_for_host(rank, counts[:, number]) if eager else 0.0 for number, rank in enumerate(ranks)]
    ends = (
        [_once(ranks[0]).total_s + busy[0].total_s + host_s[0]]
        if len(ranks) == 1
        else _simulated_ends(workload, costs, ranks, found, eager=eager)
    )
    ends = [end + fsum(stage.deferred.total_s for stage in rank) for end, rank in zip(ends, ranks, strict=True)]
    ledger = Ledger.of(workload, costs)
    finish = _finish(ledger, ranks) if workload.mode == "training" else [[] for _ in ranks]
    step_s = _end_of_step(workload, finish, ends)
    totals = [
        TimeBreakdown.total(
            (each, 1)
            for each in (before, _once(rank), *(stage.deferred for stage in rank), *(step for step, _ in after))
        )
        for before, rank, after in zip(busy, ranks, finish, strict=True)
    ]
    return _estimate(ledger, step_s, totals, host_s)


ON_BLOCKS = {"messages": "at_need", "layout_copies": False, "copied_buckets": False, "all_reduced_gradients": False}
"""Keys that blocks know at one value only."""


def check_block_keys(workload: LayeredModel) -> None:
    """Refuse what blocks do not know.

    Raises
    ------
    ConfigError
        If a key of `ON_BLOCKS` has another value.
    """
    for key, value in unlike_blocks(workload).items():
        by = f" (of framework {workload.framework})" if key not in workload.model_fields_set else ""
        raise ConfigError(f"{key} {getattr(workload, key)}{by} cannot be timed block by block; set it to {value}")


def unlike_blocks(workload: LayeredModel) -> dict[str, Any]:
    """Return those keys of `ON_BLOCKS` that a workload has otherwise, and the value that blocks know."""
    return {key: value for key, value in ON_BLOCKS.items() if getattr(workload, key) != value}


def _blocks(workload: LayeredModel) -> Blocks:
    if workload.mode == "training":
        return blocks(workload.pipeline_schedule, **workload.pipeline_sizes)
    order = tuple(map(forward_only, orders(workload.pipeline_schedule, **workload.pipeline_sizes)))
    return connect(PIPELINES[workload.pipeline_schedule], order, num_chunks=workload.chunks)


def peak_bytes_of(workload: LayeredModel) -> Mapping[str, float]:
    """Return what the fullest rank holds, by kind, from few micro-batches where more do not add to it.

    All schedules but GPipe, which keeps every micro-batch, and groups of more than the stages are as full after
    `ENOUGH` rounds of the pipeline as ever.
    """
    few = ENOUGH * workload.pipeline_parallel
    every = workload.pipeline_schedule == "gpipe" or workload.microbatch_group is not None
    if not every and workload.num_microbatches > few:
        workload = workload.model_copy(update={"batch_per_replica": few * workload.microbatch_size})
    ledger = memory.Ledger.of(workload)
    return ledger.bytes_of(ledger.highest)


def stages_of_ranks(workload: LayeredModel, costs: PlanCosts) -> list[list[Stage]]:
    """Return the stages of each pipeline rank, by virtual stage; stages that are alike are one object."""
    stages = stages_of(workload, costs)
    return [[stages[number] for number in rank] for rank in workload.stages_of_ranks.tolist()]


def _of_blocks(rank: Sequence[Stage], counts: Any) -> TimeBreakdown:
    """Add up what a pipeline rank spends on all micro-batches; `counts` of actions by virtual stage, shape (4, v)."""
    parts = [
        (stage.actions[action], int(counts[action, chunk])) for chunk, stage in enumerate(rank) for action in Action
    ]
    return TimeBreakdown.total([*parts, *((stage.saved, -1) for stage in rank)])


def _once(rank: Sequence[Stage]) -> TimeBreakdown:
    """Add up what a pipeline rank communicates once a step, before its first micro-batch and by its last gradients."""
    return TimeBreakdown.total((each, 1) for stage in rank for each in (stage.gathered, *stage.reduced))


def _waits_for_host(rank: Sequence[Stage], counts: Any) -> float:
    """Return the seconds that a pipeline rank waits for its host, over all micro-batches."""
    return fsum(
        int(counts[action, chunk]) * (stage.issued_s[action] - stage.actions[action].total_s)
        for chunk, stage in enumerate(rank)
        for action in Action
    )


def _simulated_ends(
    workload: LayeredModel, costs: PlanCosts, ranks: RankStages, found: Blocks, *, eager: bool
) -> list[float]:
    """Return when each pipeline rank has done its last micro-batch."""
    after_s = np.zeros((len(Action), len(ranks), len(ranks[0])))
    after_s[Action.BACKWARD] = [[stage.after_s for stage in rank] for rank in ranks]
    action_s = np.array(
        [
            [[stage.issued_s[action] if eager else stage.actions[action].total_s for stage in rank] for rank in ranks]
            for action in Action
        ]
    )
    messages_s = costs.messages_s(workload.message_bytes, workload.mesh)
    durations = Durations(
        action_s - after_s,
        send_s=sends_s(messages_s, workload.pipeline_schedule, workload.pipeline_parallel, workload.chunks),
        after_s=after_s,
        begin_s=[fsum(stage.gathered.total_s for stage in rank) for rank in ranks],
        first_s=[[-stage.saved.total_s for stage in rank] for rank in ranks],
        last_s=[[stage.reduced[0].total_s for stage in rank] for rank in ranks],
        last_after_s=[[stage.reduced[1].total_s for stage in rank] for rank in ranks],
    )
    timeline = run(found, durations, blocking=not workload.overlap_sends)
    return [float(end_s[-1] + kept) for end_s, kept in zip(timeline.end_s, timeline.kept_s, strict=True)]


def _finish(ledger: Ledger, ranks: RankStages) -> list[list[tuple[TimeBreakdown, str]]]:
    """Return the end of the step on each pipeline rank: its costs in order, each with the group that it waits for."""
    keys = [tuple(map(id, rank)) for rank in ranks]
    ends = {key: _end_of(ledger, rank) for key, rank in dict(zip(keys, ranks, strict=True)).items()}
    return [ends[key] for key in keys]


def _end_of(ledger: Ledger, rank: Sequence[Stage]) -> list[tuple[TimeBreakdown, str]]:
    workload, costs = ledger.workload, ledger.costs
    graph = Finish(workload, ledger.axes, rank, GraphBuilder("")).write()
    costs.model.time_kernels(graph.kernels)
    chain = []
    for node in range(len(graph)):
        if graph.kind[node] == NodeKind.COLLECTIVE:
            family = ledger.axes.names[graph.group[node]]
            collective = Collective(COLLECTIVES[graph.collective[node]], int(graph.bytes[node]), family)
            time = TimeBreakdown(0.0, {family: costs.collective_s(collective, workload, ledger.axes)})
            chain.append((time, family if family in INSTANCES else ""))
        else:
            assert graph.kernel[node] != NONE
            chain.append((costs.kernels({graph.kernels[graph.kernel[node]]: 1}), ""))
    return chain


def _end_of_step(
    workload: LayeredModel, chains: Sequence[Sequence[tuple[TimeBreakdown, str]]], ends: Sequence[float]
) -> float:
    """Return when the last pipeline rank has finished; the members of a group wait for the last of them."""
    now, at = list(ends), [0] * len(ends)
    while any(index < len(chain) for index, chain in zip(at, chains, strict=True)):
        for rank, chain in enumerate(chains):
            while at[rank] < len(chain):
                time, family = chain[at[rank]]
                members = INSTANCES[family](workload, rank) if family else (rank,)
                if any(at[other] >= len(chains[other]) or chains[other][at[other]][1] != family for other in members):
                    break
                done = max(now[other] for other in members) + time.total_s
                for other in members:
                    now[other], at[other] = done, at[other] + 1
    return max(now)


def _estimate(ledger: Ledger, step_s: float, times: Sequence[TimeBreakdown], host_s: Sequence[float]) -> Estimate:
    waits_s = fsum(host_s) / len(host_s)
    mean = TimeBreakdown.total((each, 1 / len(times)) for each in times)
    exposed_s: dict[str, float] = {}
    for family, seconds in mean.exposed_s.items():
        axis = ledger.axes.axis_of(family)
        exposed_s[axis] = exposed_s.get(axis, 0.0) + seconds
    bubble_s = max(0.0, step_s - mean.total_s - waits_s) if len(times) > 1 else 0.0
    return Estimate.of(
        ledger.workload, ledger.costs.device, step_s, compute_s=mean.compute_s, exposed_s=exposed_s, bubble_s=bubble_s,
        host_s=waits_s, memory_limited_s=mean.limited_s,
    )  # fmt: skip
