"""Strategies of training that frameworks follow, side by side: keys of a step and a schedule, by name.

The degrees of parallelism, the model and the batch are the workload's; a strategy says who shards what, when gradients
are reduced and parameters gathered, and in which order micro-batches run. What a strategy does not say stays as it is.
`centauri` chooses these keys itself.

Source: see each; compared as in Chen et al., Centauri, ASPLOS 2024, Sec. 5.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scaleout.analysis.efficiency import fit
from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.topology import Topology
from scaleout.config.validated import nearest, validate
from scaleout.errors import ConfigError
from scaleout.simulation.options import SimulationOptions
from scaleout.simulation.result import Timeline
from scaleout.study.comparison import Comparison, compare_outcomes
from scaleout.study.job import Job, Outcome, run
from scaleout.workloads.config.frameworks import FRAMEWORKS
from scaleout.workloads.config.layered import LayeredModel

Keys = Mapping[str, Any]


@dataclass(frozen=True)
class Strategy:
    """A way to train; `keys` maps a workload to the keys of the step that the strategy sets."""

    description: str
    source: str
    keys: Callable[[LayeredModel], Keys]
    schedule: str = "overlap"


def _zero(stage: int) -> Callable[[LayeredModel], Keys]:
    def keys(job: LayeredModel) -> Keys:
        early = stage < 2 and job.pipeline_parallel > 1
        return {"zero": stage, "overlap_gradient_reduce": early, "overlap_parameter_gather": False}

    return keys


def _interleaved(job: LayeredModel) -> Keys:
    """Interleave the fewest virtual stages into which a rank's layers divide, where micro-batches do; else nothing."""
    p = job.pipeline_parallel
    if p == 1 or job.pipeline_schedule != "1f1b" or job.stage_layers or job.num_microbatches % p or job.layers % p:
        return {}
    stages = next((v for v in range(2, job.layers // p + 1) if job.layers % (p * v) == 0), 1)
    return {"pipeline_schedule": "interleaved_1f1b", "virtual_stages": stages} if stages > 1 else {}


_WHEN_AND_WHERE = ("overlap_gradient_reduce", "overlap_parameter_gather", "sequence_parallel")
"""Keys of a preset that say what is cut, and when gradients and parameters move; kernels stay the job's."""


def _megatron(job: LayeredModel) -> Keys:
    usual = FRAMEWORKS["megatron"].values({"tensor_parallel": job.tensor_parallel})
    shared = {key: usual.get(key, False) for key in _WHEN_AND_WHERE}
    return {"zero": 0, **shared, **_interleaved(job)}


def _megatron_core(job: LayeredModel) -> Keys:
    in_time = {"zero": 1, "overlap_gradient_reduce": job.pipeline_parallel > 1, "overlap_parameter_gather": True}
    return {**_megatron(job), **in_time}


def _breadth_first(job: LayeredModel) -> Keys:
    found = {**_interleaved(job), **_zero(0)(job)}
    if found.get("pipeline_schedule", job.pipeline_schedule) == "interleaved_1f1b":
        found["microbatch_group"] = job.num_microbatches
    return found


STRATEGIES: dict[str, Strategy] = {
    "ddp": Strategy("gradients reduced over replicas during backward", "Li et al., VLDB 2020", _zero(0)),
    "zero-1": Strategy("optimizer states sharded; parameters gathered at the end", "arXiv:1910.02054", _zero(1)),
    "zero-2": Strategy("gradients sharded too", "arXiv:1910.02054", _zero(2)),
    "zero-3": Strategy("parameters sharded too (FSDP), a layer gathered ahead", "arXiv:2304.11277", _zero(3)),
    "out-of-order": Strategy(
        "weight gradients deferred behind input gradients", "Oh et al., EuroSys 2022", _zero(0),
        "out-of-order",
    ),
    "megatron": Strategy(
        "interleaved 1F1B, sequence parallel, gradients of a pipeline reduced at the end",
        "arXiv:2104.04473, arXiv:2205.05198",
        _megatron,
    ),
    "megatron-core": Strategy(
        "the same, optimizer states sharded, gradients and parameters moved in time",
        "Megatron-core's overlap-grad-reduce, overlap-param-gather",
        _megatron_core,
    ),
    "breadth-first": Strategy(
        "all micro-batches of a virtual stage before the next stage's", "Lamy-Poirier, arXiv:2211.05953", _breadth_first
    ),
    "coconet": Strategy(
        "collectives substituted, and partitioned evenly with their GEMMs", "Jangda et al., ASPLOS 2022",
        _zero(0), "coconet",
    ),
    "centauri": Strategy(
        "every communication partitioned, scheduled in three tiers", "Chen et al., ASPLOS 2024", _interleaved,
        "centauri",
    ),
}  # fmt: skip
"""Name to strategy."""


@dataclass(frozen=True, eq=False)
class Followed:
    """A step of a job under a strategy; without an outcome where its keys cannot be, for the `reason`.

    `keys` are those that it changes of the job's, before its schedule chooses others.
    """

    name: str
    outcome: Outcome | None = None
    reason: str = ""
    keys: Keys = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether it runs and fits the memory of a device."""
        return self.outcome is not None and self.outcome.fit is not None and self.outcome.fit.fits


def follow(
    name: str,
    workload: LayeredModel,
    *,
    topology: Topology,
    device: Device,
    schedule: str | None = None,
    options: SimulationOptions | None = None,
) -> Followed:
    """Simulate a step of a job under a strategy; where its keys cannot be, say why instead.

    `schedule` replaces the strategy's, such as `centauri:model`. `ConfigError` if there is no such strategy, or the job
    does not train.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"unknown strategy {name!r}; {nearest(name, STRATEGIES)}")
    if workload.mode != "training":
        raise ConfigError(f"strategies are of training, and {workload.name} runs in mode {workload.mode!r}")
    strategy = STRATEGIES[name]
    keys = {key: value for key, value in strategy.keys(workload).items() if getattr(workload, key) != value}
    try:
        job = validate(type(workload), {**workload.given, **strategy.keys(workload)}, where=f"strategy {name}")
        outcome = run(Job(job, device, topology, schedule or strategy.schedule, options or SimulationOptions()))
    except ConfigError as error:
        return Followed(name, reason=str(error))
    return Followed(name, replace(outcome, fit=fit(outcome.workload or job, device)), keys=keys)


def same_as(found: Sequence[Followed]) -> dict[str, str]:
    """Return strategies that are one before them, in all times of all ranks and in memory, by the name of that."""
    same: dict[str, str] = {}
    for number, each in enumerate(found):
        alike = (other.name for other in found[:number] if other.name not in same and _same(each, other))
        if (first := next(alike, None)) is not None:
            same[each.name] = first
    return same


def _same(one: Followed, other: Followed) -> bool:
    """Whether two strategies make the same step: nodes of the same operations at the same times on every rank."""
    if one.outcome is None or other.outcome is None or one.outcome.makespan_s != other.outcome.makespan_s:
        return False
    if one.outcome.fit is None or other.outcome.fit is None or one.outcome.fit.peak != other.outcome.fit.peak:
        return False
    lines = one.outcome.result.timelines, other.outcome.result.timelines
    return len(lines[0]) == len(lines[1]) and all(map(_same_times, *lines))


def _same_times(one: Timeline, other: Timeline) -> bool:
    if one.ranks != other.ranks or len(one.graph) != len(other.graph):
        return False
    columns = [(one.start_s, other.start_s), (one.end_s, other.end_s), (one.graph.bytes, other.graph.bytes)]
    columns.append((one.graph.kind, other.graph.kind))
    return all(np.array_equal(mine, its) for mine, its in columns)


def side_by_side(found: Sequence[Followed], *, device: Device) -> Comparison:
    """Return the steps under those strategies that can be as one comparison; `ConfigError` with reasons if none can."""
    outcomes = [replace(each.outcome, schedule=each.name) for each in found if each.outcome is not None]
    if not outcomes:
        raise ConfigError("; ".join(f"{each.name}: {each.reason}" for each in found) or "no strategy was named")
    return compare_outcomes(outcomes, device=device.name)
