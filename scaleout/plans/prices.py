"""Work to seconds on one device and topology, each kernel, collective and part timed once for all plans.

Kernels and collectives of a rank follow each other on one stream, so a part takes the sum of what it does. A part
whose messages go beside its kernels (keys and values round a ring) runs on the clock of `engine`, with its neighbours
in step.

Where groups of one axis lie differently in the topology, the slowest counts for all of them: never too fast.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scaleout import engine
from scaleout.device import Device
from scaleout.generators.axes import Axes
from scaleout.graph import COLLECTIVES, NONE, ExecutionGraph, NodeKind
from scaleout.kernels import kernel_times
from scaleout.network.alpha_beta import CollectiveCost, collective_cost, send_cost
from scaleout.operations import Kernel
from scaleout.parallelism import Mesh
from scaleout.peers import distances
from scaleout.pipelines import PIPELINES
from scaleout.placement import Placement, place
from scaleout.plans.work import Collective, Work
from scaleout.program import Program
from scaleout.schedule import apply_schedule
from scaleout.topology import Topology
from scaleout.workload import Transformer


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
    stages : dict
        For `stages`: whatever decides a stage, to the stage.
    """

    topology: Topology
    device: Device
    stages: dict[Any, Any] = field(default_factory=dict)
    _kernels: dict[Kernel, float] = field(default_factory=dict)
    _placements: dict[tuple[Site, str], tuple[Placement, ...]] = field(default_factory=dict)
    _collectives: dict[tuple[Site, Collective], float] = field(default_factory=dict)
    _work: dict[tuple[Work, Site], Spent] = field(default_factory=dict)
    _compute: dict[Work, float] = field(default_factory=dict)
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
            if work.graph is not None:
                waited_s = self._on_the_clock(work.graph, work.families, workload, axes) - spent.total_s
                spent = Spent.total([(spent, 1), (Spent(0.0, {"context": max(waited_s, 0.0)}), 1)])
            self._work[key] = spent
        return self._work[key]

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
        groups = np.array(mesh.groups(axis).members)
        found = []
        for number in range(groups.shape[1]):
            sources, targets = groups[:, number], groups[:, (number + 1) % groups.shape[1]]
            rows = np.unique(distances(self.topology, sources, targets), axis=0, return_index=True)[1]
            costs = [
                send_cost(size_bytes, self.topology, source=int(sources[row]), destination=int(targets[row]))
                for row in rows
            ]
            found.append(max(costs, key=lambda cost: cost.time_s))
        return found

    def _on_the_clock(
        self, graph: ExecutionGraph, families: tuple[str, ...], workload: Transformer, axes: Axes
    ) -> float:
        """Run a graph whose neighbours all do the same at the same time: what is sent is what arrives."""
        everyone = np.zeros(workload.num_ranks, np.int64)
        program = Program("part", (graph,), everyone, tuple(axes.family(name) for name in families))
        graph = apply_schedule(program, "baseline").graphs[0]
        kind, sizes = graph.kind.tolist(), graph.bytes.tolist()
        duration_s, wire_s, stream = [0.0] * len(graph), {}, [0] * len(graph)
        users: list[list[int]] = [[] for _ in range(len(graph))]
        counts = np.diff(graph.dependency_offsets).tolist()
        for node in range(len(graph)):
            for dependency in graph.dependencies_of(node).tolist():
                users[dependency].append(node)
            if kind[node] == NodeKind.COMPUTE and graph.kernel[node] != NONE:
                duration_s[node] = self.kernel_s(graph.kernels[graph.kernel[node]])
            elif kind[node] == NodeKind.COLLECTIVE:
                asked = Collective(COLLECTIVES[graph.collective[node]], sizes[node], families[graph.group[node]])
                duration_s[node] = self.collective_s(asked, workload, axes)
            elif kind[node] == NodeKind.SEND:
                cost = max(self._slowest(workload.mesh, "context", sizes[node]), key=lambda cost: cost.time_s)
                duration_s[node], wire_s[node], stream[node] = cost.time_s, cost.serialization_s, 1
            elif kind[node] == NodeKind.RECV:
                stream[node] = NONE
                users[node - 1].append(node)
                counts[node] += 1
        alone = [NONE] * len(graph)
        occupancy_s = [wire_s.get(node, seconds) for node, seconds in enumerate(duration_s)]
        times = engine.run(
            engine.Tasks(duration_s, occupancy_s, stream, graph.priority.tolist(), users, counts, alone, (), ())
        )
        return float(times.end_s.max())


@functools.lru_cache(maxsize=8)
def prices_of(topology: Topology, device: Device) -> Prices:
    """Return the prices on a topology and a device, with all that this process has learnt of them."""
    return Prices(topology, device)


def sends_s(prices: Prices, workload: Transformer, size_bytes: int) -> list[list[float]]:
    """Return what a message takes between each chunk of each place and its successor, shape (p, v)."""
    p, v = workload.pipeline_parallel, workload.chunks
    hops_s = prices.hops_s(size_bytes, workload.mesh)
    return [
        [0.0 if to is None else hops_s[place if (to - place) % p == 1 else to] for to in row]
        for place, row in enumerate(_targets(workload.pipeline_schedule, p, v))
    ]


@functools.lru_cache(maxsize=512)
def _targets(name: str, p: int, v: int) -> tuple[tuple[int | None, ...], ...]:
    """Return the place that each chunk of each place sends to; None for the last stage, or its own place."""
    rows = []
    for place_ in range(p):
        found = [PIPELINES[name].after(place_, chunk, p, v) for chunk in range(v)]
        rows.append(tuple(None if to is None or to[0] == place_ else to[0] for to in found))
    return tuple(rows)
