"""Costs of the work of plans on a machine: kernels, collectives and messages of parts, each computed once.

A part of a model is its embedding, a layer of each kind, or its head; stages are sums of parts. A part takes the sum of
its kernels and collectives, which share one stream. Parts with concurrent messages (context parallelism round a ring),
or under another schedule than `baseline`, are simulated by `engine`; all neighbours do the same, so a rank receives
what it sends. Process groups are placed once for all congruent plans.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from typing import Any

import numpy as np

from scaleout.analysis.bounds import memory_limits
from scaleout.cluster.device.host import Call, call_s, calls_of, host_costs_s
from scaleout.cluster.device.spec import Device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.placement import Placement
from scaleout.cluster.topology.topology import Topology
from scaleout.network.alpha_beta.cost import CollectiveCost
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, NodeKind
from scaleout.program.mesh import Mesh
from scaleout.program.operations import Kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import apply_schedule
from scaleout.simulation.columns import Tasks
from scaleout.simulation.cost_model import CostModel
from scaleout.simulation.engine import run
from scaleout.simulation.fold import placements_of
from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.generate.axes import Axes
from scaleout.workloads.generate.profile import MadeGradient, StageProfile, profiles_of


@dataclass(frozen=True)
class Collective:
    """One collective, or the message of a ring: kind, bytes, and the name of the family of its groups."""

    kind: str
    size_bytes: int
    family: str


@dataclass(frozen=True, eq=False)
class Work:
    """What a rank does in one action of a part.

    Attributes
    ----------
    kernels : mapping
        Kernel to how often it runs.
    collectives : mapping
        Collective to how often it runs.
    graph : ExecutionGraph or None
        Who waits for whom.
    families : tuple of str
        Names that the graph's groups stand for.
    """

    kernels: dict[Kernel, int]
    collectives: dict[Collective, int]
    graph: ExecutionGraph | None = None
    families: tuple[str, ...] = ()

    @classmethod
    def of(cls, graph: ExecutionGraph, families: tuple[str, ...]) -> "Work":
        """Count what a graph holds."""
        used = graph.kernel[graph.kernel != NONE]
        counts = np.bincount(used, minlength=len(graph.kernels)).tolist()
        kernels = {kernel: count for kernel, count in zip(graph.kernels, counts, strict=True) if count}
        nodes = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)
        columns = zip(*(getattr(graph, name)[nodes].tolist() for name in ("collective", "bytes", "group")), strict=True)
        collectives = Counter(Collective(COLLECTIVES[kind], size, families[group]) for kind, size, group in columns)
        return cls(kernels, dict(collectives), graph, families)

    @functools.cached_property
    def calls(self) -> dict[Call, int]:
        """Call of the host to how often it makes it."""
        if self.graph is None:
            return {}
        calls, numbers = calls_of(self.graph)
        return dict(zip(calls, np.bincount(numbers[numbers != NONE], minlength=len(calls)).tolist(), strict=True))

    @functools.cached_property
    def has_messages(self) -> bool:
        """Whether it sends messages."""
        return self.graph is not None and bool((self.graph.kind > NodeKind.COLLECTIVE).any())

    @property
    def flops(self) -> int:
        """FLOPs of all kernels."""
        return sum(count * kernel.flops for kernel, count in self.kernels.items())


NOTHING = Work({}, {})
"""No work at all."""


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a model on one rank, for one micro-batch.

    Attributes
    ----------
    works : tuple of Work
        What each `Action` does; nothing for a split backward where none was requested.
    gradients : tuple of MadeGradient
        In the order in which they are made, neither added up nor reduced.
    parameters : mapping
        Name of a bucket to the parameters that the part holds.
    partial_parameters : int
        Those of them of which each tensor-parallel rank makes a part of the gradient.
    """

    works: tuple[Work, ...]
    gradients: tuple[MadeGradient, ...] = ()
    parameters: dict[str, int] = field(default_factory=dict)
    partial_parameters: int = 0


def parts_of(workload: LayeredModel, kinds: Iterable[str], *, split: bool) -> dict[str, Part]:
    """Return the parts of a workload of some kinds, with backward in two parts as well if wanted (`split`)."""
    profile_of = profiles_of(workload, backward=workload.mode == "training")
    return {kind: _part(profile_of(kind), split) for kind in kinds}


@functools.lru_cache(maxsize=65536)
def _part(profile: StageProfile, split: bool) -> Part:
    """Count the work of a profile."""

    def count(graph: ExecutionGraph) -> Work:
        return Work.of(graph, profile.families)

    parameters, nothing = profile.tape.parameters, (NOTHING, NOTHING)
    if profile.tape.gradients is None:
        return Part((count(profile.forward), NOTHING, *nothing), parameters=parameters)
    if split:
        part = _part(profile, False)
        return replace(part, works=(*part.works[:2], *map(count, profile.split_backward)))
    whole, made = profile.backward
    works = (count(profile.forward), count(whole), *nothing)
    return Part(works, made, parameters, sum(profile.tape.partial.values()))


def _simulated_s(
    work: Work,
    kernel_s: Mapping[Kernel, float],
    collective_s: Mapping[Collective, float],
    messages: Mapping[int, CollectiveCost],
    schedule: str,
) -> float:
    """Return the seconds of a rank's graph under a schedule, one rank for all; `messages` by their bytes."""
    assert work.graph is not None
    groups = tuple(GroupFamily(name, ()) for name in work.families)
    graph = apply_schedule(Program("part", (work.graph,), np.zeros(1, np.int64), groups), schedule).graphs[0]
    kind, sizes = graph.kind.tolist(), graph.bytes.tolist()
    duration_s, serialization_s, stream = [0.0] * len(graph), dict[int, float](), graph.stream.tolist()
    sends = max(stream, default=0) + 1
    users: list[list[int]] = [[] for _ in range(len(graph))]
    for node in range(len(graph)):
        for dependency in graph.dependencies_of(node).tolist():
            users[dependency].append(node)
        if kind[node] == NodeKind.COMPUTE and graph.kernel[node] != NONE:
            duration_s[node] = kernel_s[graph.kernels[graph.kernel[node]]]
        elif kind[node] == NodeKind.COLLECTIVE:
            family = work.families[graph.group[node]]
            duration_s[node] = collective_s[Collective(COLLECTIVES[graph.collective[node]], sizes[node], family)]
        elif kind[node] == NodeKind.SEND:
            cost, stream[node] = messages[sizes[node]], sends
            duration_s[node], serialization_s[node] = cost.time_s, cost.serialization_s
        elif kind[node] == NodeKind.RECV:  # of the send before it
            stream[node] = NONE
            users[node - 1].append(node)
    occupancy_s = [serialization_s.get(node, seconds) for node, seconds in enumerate(duration_s)]
    times = run(Tasks.of(duration_s, users, stream=stream, occupancy_s=occupancy_s, priority=graph.priority))
    return float(times.end_s.max())


@dataclass(frozen=True)
class TimeBreakdown:
    """Seconds of kernels, of those that memory limits, and of exposed communication by the family of its groups."""

    compute_s: float = 0.0
    exposed_s: dict[str, float] = field(default_factory=dict)
    limited_s: float = 0.0

    @functools.cached_property
    def total_s(self) -> float:
        """All together."""
        return self.compute_s + fsum(self.exposed_s.values())

    @classmethod
    def total(cls, parts: Iterable[tuple["TimeBreakdown", float]]) -> "TimeBreakdown":
        """Add up, each so many times."""
        compute_s, limited_s, exposed_s = 0.0, 0.0, dict[str, float]()
        for part, count in parts:
            compute_s += count * part.compute_s
            limited_s += count * part.limited_s
            for family, seconds in part.exposed_s.items():
                exposed_s[family] = exposed_s.get(family, 0.0) + count * seconds
        return cls(compute_s, exposed_s, limited_s)


Site = tuple[Mesh, int]
"""See `Axes.site`."""


@dataclass
class PlanCosts:
    """Seconds computed so far, of all plans on one machine.

    Attributes
    ----------
    schedule : str
        A pass of `scaleout.schedule`, for what happens within a part; `baseline`, where everything follows each other.
    stages : dict
        For `stages`: whatever decides a stage, to the stage.
    """

    model: CostModel
    schedule: str = "baseline"
    stages: dict[Any, Any] = field(default_factory=dict)
    _placements: dict[tuple[Site, str], Sequence[Placement]] = field(default_factory=dict)
    _collectives: dict[tuple[Site, Collective], float] = field(default_factory=dict)
    _work: dict[tuple[Work, Site], TimeBreakdown] = field(default_factory=dict)
    _compute: dict[Work, TimeBreakdown] = field(default_factory=dict)
    _host: dict[Work, float] = field(default_factory=dict)
    _concurrent: dict[tuple[Work, tuple[float, ...]], float] = field(default_factory=dict)

    @property
    def topology(self) -> Topology:
        """The network."""
        return self.model.machine.topology

    @property
    def device(self) -> Device:
        """The device."""
        return self.model.machine.device

    @functools.cached_property
    def _launch_s(self) -> Mapping[str, float]:
        return host_costs_s(self.device, alone=self.topology.num_ranks == 1)

    def collective_s(self, collective: Collective, workload: LayeredModel, axes: Axes) -> float:
        """Return the time of a collective of a family that `axes` knows."""
        site = axes.site
        key = (site, collective)
        seconds = self._collectives.get(key)
        if seconds is None:
            where = (site, collective.family)
            if where not in self._placements:
                self._placements[where] = placements_of(axes.family(collective.family), self.topology)
            cost = self.model.collective(collective.kind, collective.size_bytes, self._placements[where])
            seconds = self._collectives[key] = cost.time_s
        return seconds

    def kernels(self, calls: Mapping[Kernel, int]) -> TimeBreakdown:
        """Return what calls of kernels take, each so many times."""
        times = {kernel: count * self.model.kernel_s(kernel) for kernel, count in calls.items()}
        limited_s = fsum(seconds for kernel, seconds in times.items() if self._limited(kernel))
        return TimeBreakdown(fsum(times.values()), limited_s=limited_s)

    def _limited(self, kernel: Kernel) -> bool:
        peak_flops_per_s = self.device.peak_flops_per_s.get(kernel.dtype, 0.0)
        return bool(memory_limits(kernel.flops, kernel.bytes / self.device.memory_bytes_per_s, peak_flops_per_s))

    def work(self, work: Work, workload: LayeredModel, axes: Axes) -> TimeBreakdown:
        """Return what the work of a part takes."""
        key = (work, axes.site)
        time = self._work.get(key)
        if time is None:
            if work not in self._compute:
                self.model.time_kernels(work.kernels)
                self._compute[work] = self.kernels(work.kernels)
            exposed_s: dict[str, float] = {}
            for collective, count in work.collectives.items():
                seconds = count * self.collective_s(collective, workload, axes)
                exposed_s[collective.family] = exposed_s.get(collective.family, 0.0) + seconds
            time = replace(self._compute[work], exposed_s=exposed_s)
            if work.has_messages or (work.collectives and self.schedule != "baseline"):
                time = self._overlapped(time, self._concurrent_s(work, workload, axes))
            self._work[key] = time
        return time

    def _overlapped(self, time: TimeBreakdown, simulated_s: float) -> TimeBreakdown:
        """Return what was simulated: waiting for messages on top, or less of collectives where they overlap."""
        overlapped_s = time.total_s - simulated_s
        if self.schedule == "baseline" or overlapped_s <= 0 or not time.exposed_s:
            return TimeBreakdown.total([(time, 1), (TimeBreakdown(0.0, {"context": max(-overlapped_s, 0.0)}), 1)])
        left = max(0.0, simulated_s - time.compute_s) / (time.total_s - time.compute_s)
        return replace(time, exposed_s={family: left * each for family, each in time.exposed_s.items()})

    def host_s(self, work: Work) -> float:
        """Return what the host spends to issue the work of a part; nothing on a device that does not say."""
        if not self.device.host_launch_s:
            return 0.0
        if work not in self._host:
            self._host[work] = fsum(count * call_s(call, self._launch_s) for call, count in work.calls.items())
        return self._host[work]

    def start_s(self, *, backward: bool) -> float:
        """Return what the host needs to start a pass of a micro-batch."""
        return self._launch_s.get("start_backward" if backward else "start_forward", 0.0)

    def messages_s(self, size_bytes: int, mesh: Mesh) -> list[float]:
        """Return what a message takes from each rank of a pipeline to the next, round to the first, length p."""
        return [cost.time_s for cost in self.model.messages(size_bytes, mesh, "pipeline")]

    def _concurrent_s(self, work: Work, workload: LayeredModel, axes: Axes) -> float:
        """Time work whose neighbours all do the same at the same time; sites that cost the same share the answer."""
        assert work.graph is not None
        sizes = dict.fromkeys(work.graph.bytes[work.graph.kind == NodeKind.SEND].tolist())
        messages = {
            size: max(self.model.messages(size, workload.mesh, "context"), key=lambda cost: cost.time_s)
            for size in sizes
        }
        costs = {each: self.collective_s(each, workload, axes) for each in work.collectives}
        of_messages = (seconds for cost in messages.values() for seconds in (cost.time_s, cost.serialization_s))
        key = (work, (*of_messages, *costs.values()))
        if key not in self._concurrent:
            kernels_s = {kernel: self.model.kernel_s(kernel) for kernel in work.kernels}
            self._concurrent[key] = _simulated_s(work, kernels_s, costs, messages, self.schedule)
        return self._concurrent[key]


@functools.lru_cache(maxsize=8)
def plan_costs_of(topology: Topology, device: Device, schedule: str = "baseline") -> PlanCosts:
    """Return the costs on a topology and a device, with all that this process has computed of them."""
    return PlanCosts(CostModel(Machine(device, topology)), schedule)
