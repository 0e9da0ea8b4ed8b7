"""Work to seconds on one device and topology, each kernel, collective and part timed once for all plans.

Kernels and collectives of a rank follow each other on one stream, so a part takes the sum of what it does. A part
whose messages go beside its kernels (keys and values round a ring), or whose collectives do under another schedule,
runs on the clock of `engine`, with its neighbours in step.

Where groups of one axis lie differently in the topology, the slowest counts for all of them: never too fast.

Work that does several things at once to its seconds.

Those are messages beside kernels, such as keys and values round a ring, or collectives beside kernels, where a schedule
overlaps them. All neighbours do the same at the same time, so what a rank sends is what it receives.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scaleout.cluster.device.host import call_s
from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.placement import Placement, place
from scaleout.cluster.topology.topology import Topology
from scaleout.network.alpha_beta.cost import CollectiveCost, collective_cost
from scaleout.program.graph import COLLECTIVES, NONE, NodeKind
from scaleout.program.mesh import Mesh
from scaleout.program.operations import Kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import apply_schedule
from scaleout.simulation import engine
from scaleout.study.search.work import Collective, Work
from scaleout.workloads.config import Transformer
from scaleout.workloads.generate.axes import Axes
from scaleout.workloads.pipeline.messages import Pairs, neighbours, slowest


def clock_s(
    work: Work,
    kernel_s: Mapping[Kernel, float],
    collective_s: Mapping[Collective, float],
    hops: Mapping[int, tuple[float, float]],
    *,
    schedule: str = "baseline",
) -> float:
    """Return the seconds of a rank's graph under a schedule, one rank standing for all.

    Parameters
    ----------
    work : Work
        With its graph.
    kernel_s, collective_s : mapping
        Seconds of each.
    hops : mapping
        Bytes of a message to its seconds, and to those in which it holds the wire.
    """
    assert work.graph is not None
    groups = tuple(GroupFamily(name, ()) for name in work.families)
    graph = apply_schedule(Program("part", (work.graph,), np.zeros(1, np.int64), groups), schedule).graphs[0]
    kind, sizes = graph.kind.tolist(), graph.bytes.tolist()
    duration_s, wire_s, stream = [0.0] * len(graph), dict[int, float](), graph.stream.tolist()
    sends = max(stream, default=0) + 1
    users: list[list[int]] = [[] for _ in range(len(graph))]
    counts = np.diff(graph.dependency_offsets).tolist()
    for node in range(len(graph)):
        for dependency in graph.dependencies_of(node).tolist():
            users[dependency].append(node)
        if kind[node] == NodeKind.COMPUTE and graph.kernel[node] != NONE:
            duration_s[node] = kernel_s[graph.kernels[graph.kernel[node]]]
        elif kind[node] == NodeKind.COLLECTIVE:
            asked = Collective(COLLECTIVES[graph.collective[node]], sizes[node], work.families[graph.group[node]])
            duration_s[node] = collective_s[asked]
        elif kind[node] == NodeKind.SEND:
            (duration_s[node], wire_s[node]), stream[node] = hops[sizes[node]], sends
        elif kind[node] == NodeKind.RECV:  # of the send before it
            stream[node] = NONE
            users[node - 1].append(node)
            counts[node] += 1
    occupancy_s = [wire_s.get(node, seconds) for node, seconds in enumerate(duration_s)]
    alone = [NONE] * len(graph)
    priority = graph.priority.tolist()
    times = engine.run(engine.Tasks(duration_s, occupancy_s, stream, priority, users, counts, alone, (), ()))
    return float(times.end_s.max())


@dataclass(frozen=True)
class Spent:
    """Seconds of kernels, and of communication that no kernel hides by the family of its groups."""

    compute_s: float = 0.0
    exposed_s: dict[str, float] = field(default_factory=dict)

    @functools.cached_property
    def total_s(self) -> float:
        """All together."""
        return self.compute_s + sum(self.exposed_s.values())

    @classmethod
    def total(cls, parts: Iterable[tuple["Spent", float]]) -> "Spent":
        """Add up, each so many times."""
        compute_s, exposed_s = 0.0, dict[str, float]()
        for spent, times in parts:
            compute_s += times * spent.compute_s
            for family, seconds in spent.exposed_s.items():
                exposed_s[family] = exposed_s.get(family, 0.0) + times * seconds
        return cls(compute_s, exposed_s)


Hop = tuple[float, float]
"""Seconds of a message, and those in which it holds the wire."""

Site = tuple[Mesh, int]
"""What decides where the groups of a job lie: its mesh, and over how many ranks states are sharded."""


def site_of(workload: Transformer) -> Site:
    """Return the site of a workload."""
    return workload.mesh, workload.sharding


@dataclass
class Prices:
    """Seconds of whatever was asked for so far, on a device and a topology.

    Attributes
    ----------
    topology : Topology
    device : Device
    schedule : str
        A pass of `scaleout.schedule`, for what happens within a part; `baseline`, where everything follows each other.
    stages : dict
        For `stages`: whatever decides a stage, to the stage.
    """

    topology: Topology
    device: Device
    schedule: str = "baseline"
    stages: dict[Any, Any] = field(default_factory=dict)
    _kernels: dict[Kernel, float] = field(default_factory=dict)
    _placements: dict[tuple[Site, str], tuple[Placement, ...]] = field(default_factory=dict)
    _collectives: dict[tuple[Site, Collective], float] = field(default_factory=dict)
    _work: dict[tuple[Work, Site], Spent] = field(default_factory=dict)
    _compute: dict[Work, float] = field(default_factory=dict)
    _host: dict[Work, float] = field(default_factory=dict)
    _pairs: dict[tuple[Mesh, str], list[Pairs]] = field(default_factory=dict)
    _rings: dict[tuple[Work, tuple[Hop, ...], tuple[float, ...]], float] = field(default_factory=dict)
    _longest: dict[tuple[Mesh, str, int], Hop] = field(default_factory=dict)
    _hops: dict[tuple[Mesh, int], list[float]] = field(default_factory=dict)

    def learn(self, kernels: Iterable[Kernel]) -> None:
        """Time all kernels together that have not been timed yet: ten cost little more than one."""
        new = [kernel for kernel in dict.fromkeys(kernels) if kernel not in self._kernels]
        if new:
            self._kernels.update(zip(new, kernel_times(self.device, new)[0].tolist(), strict=True))

    def kernel_s(self, kernel: Kernel) -> float:
        """Return the time of a kernel."""
        if kernel not in self._kernels:
            self.learn((kernel,))
        return self._kernels[kernel]

    def collective_s(self, collective: Collective, workload: Transformer, axes: Axes) -> float:
        """Return the time of a collective of a family that `axes` knows."""
        site = site_of(workload)
        key = (site, collective)
        if key not in self._collectives:
            where = (site, collective.family)
            if where not in self._placements:
                self._placements[where] = self._placed(axes, collective.family)
            costs = [
                collective_cost(collective.kind, collective.size_bytes, placement).time_s
                for placement in self._placements[where]
            ]
            self._collectives[key] = max(costs)
        return self._collectives[key]

    def work(self, work: Work, workload: Transformer, axes: Axes) -> Spent:
        """Return what the work of a part takes."""
        key = (work, site_of(workload))
        if key not in self._work:
            if work not in self._compute:
                self.learn(work.kernels)
                self._compute[work] = sum(count * self.kernel_s(kernel) for kernel, count in work.kernels.items())
            exposed_s: dict[str, float] = {}
            for collective, count in work.collectives.items():
                seconds = count * self.collective_s(collective, workload, axes)
                exposed_s[collective.family] = exposed_s.get(collective.family, 0.0) + seconds
            spent = Spent(self._compute[work], exposed_s)
            if work.graph is not None and (work.has_messages or self.schedule != "baseline"):
                spent = self._together(spent, self._on_the_clock(work, workload, axes))
            self._work[key] = spent
        return self._work[key]

    def _together(self, spent: Spent, clock_s: float) -> Spent:
        """Return what is spent on the clock: waiting for messages on top, or less of collectives where they overlap."""
        hidden = spent.total_s - clock_s
        if self.schedule == "baseline" or hidden <= 0 or not spent.exposed_s:
            return Spent.total([(spent, 1), (Spent(0.0, {"context": max(-hidden, 0.0)}), 1)])
        left = max(0.0, clock_s - spent.compute_s) / (spent.total_s - spent.compute_s)
        return Spent(spent.compute_s, {family: left * each for family, each in spent.exposed_s.items()})

    def host_s(self, work: Work) -> float:
        """Return what the host spends to issue the work of a part; nothing on a device that does not say."""
        if work not in self._host:
            known = self.device.host_launch_s
            self._host[work] = (
                sum(count * call_s(call, self.device) for call, count in work.calls.items()) if known else 0.0
            )
        return self._host[work]

    def start_s(self, *, backward: bool) -> float:
        """Return what the host needs to start a pass of a micro-batch."""
        return self.device.host_launch_s.get("start_backward" if backward else "start_forward", 0.0)

    def hops_s(self, size_bytes: int, mesh: Mesh) -> list[float]:
        """Return what a message takes from each place of a pipeline to the next, round to the first, length p."""
        key = (mesh, size_bytes)
        if key not in self._hops:
            self._hops[key] = [cost.time_s for cost in self._slowest(mesh, "pipeline", size_bytes)]
        return self._hops[key]

    def _placed(self, axes: Axes, family: str) -> tuple[Placement, ...]:
        """Return the placements of a family's groups; groups that are moved copies of each other share one."""
        members = np.array(axes.family(family).members)
        coordinates = self.topology.coordinates(members.ravel()).reshape(*members.shape, -1)
        origin = coordinates[:, :1] if self.topology.even else 0
        moved = (coordinates - origin).reshape(len(members), -1)
        first = np.unique(moved, axis=0, return_index=True)[1]
        return tuple(place(self.topology, members[group]) for group in sorted(first.tolist()))

    def _slowest(self, mesh: Mesh, axis: str, size_bytes: int) -> list[CollectiveCost]:
        """Return the slowest message from each place of an axis to the next, of all groups, one a place."""
        if (mesh, axis) not in self._pairs:
            self._pairs[mesh, axis] = neighbours(self.topology, mesh, axis)
        return slowest(size_bytes, self.topology, between=self._pairs[mesh, axis])

    def _on_the_clock(self, work: Work, workload: Transformer, axes: Axes) -> float:
        """Time work whose neighbours all do the same at the same time; sites that cost the same share the answer."""
        assert work.graph is not None
        graph = work.graph
        sizes = dict.fromkeys(graph.bytes[graph.kind == NodeKind.SEND].tolist())
        hops = {size: self._longest_hop(workload.mesh, "context", size) for size in sizes}
        costs = {each: self.collective_s(each, workload, axes) for each in work.collectives}
        key = (work, tuple(hops.values()), tuple(costs.values()))
        if key not in self._rings:
            kernels_s = {kernel: self.kernel_s(kernel) for kernel in work.kernels}
            self._rings[key] = clock_s(work, kernels_s, costs, hops, schedule=self.schedule)
        return self._rings[key]

    def _longest_hop(self, mesh: Mesh, axis: str, size_bytes: int) -> Hop:
        """Return the seconds of the slowest message between neighbours along an axis, and of its bytes alone."""
        if (mesh, axis, size_bytes) not in self._longest:
            found = max(self._slowest(mesh, axis, size_bytes), key=lambda cost: cost.time_s)
            self._longest[mesh, axis, size_bytes] = (found.time_s, found.serialization_s)
        return self._longest[mesh, axis, size_bytes]


@functools.lru_cache(maxsize=8)
def prices_of(topology: Topology, device: Device, schedule: str = "baseline") -> Prices:
    """Return the prices on a topology and a device, with all that this process has learnt of them."""
    return Prices(topology, device, schedule)
