"""Isolated times of kernels, collectives and messages on a machine: the costs that schedules and searches weigh.

They are those of a simulation in which nothing else runs. Where the groups of a family, or neighbours along an axis,
lie differently in the topology, the slowest counts for all. Knows no program, no schedule and no clock.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.peers import distances
from scaleout.cluster.topology.placement import Placement
from scaleout.network.alpha_beta.cost import CollectiveCost, collective_cost, send_cost
from scaleout.program.mesh import Mesh
from scaleout.program.operations import Kernel
from scaleout.program.program import GroupFamily
from scaleout.simulation.contention import Contention, contention_of
from scaleout.simulation.fold import placements_of
from scaleout.simulation.folded_program import transfer_of


@dataclass(frozen=True, eq=False)
class CostModel:
    """What kernels, collectives and messages cost on a machine; each cost is computed once."""

    machine: Machine
    _kernel_s: dict[Kernel, float] = field(default_factory=dict, repr=False)
    _placements: dict[GroupFamily, Sequence[Placement]] = field(default_factory=dict, repr=False)
    _collective_s: dict[tuple[GroupFamily, str, float], float] = field(default_factory=dict, repr=False)
    _messages: dict[tuple[Mesh, str, int], list[CollectiveCost]] = field(default_factory=dict, repr=False)
    _slowdowns: dict[tuple[Kernel, float], tuple[float, float]] = field(default_factory=dict, repr=False)

    @cached_property
    def contention(self) -> Contention | None:
        """What kernels and collectives that run concurrently take from each other; None for nothing."""
        return contention_of(self.machine.device, self.machine.topology)

    def time_kernels(self, kernels: Iterable[Kernel]) -> None:
        """Time all kernels at once that have not been timed yet: ten cost little more than one."""
        new = list(dict.fromkeys(kernel for kernel in kernels if kernel not in self._kernel_s))
        if new:
            self._kernel_s.update(zip(new, kernel_times(self.machine.device, new)[0].tolist(), strict=True))

    def kernel_s(self, kernel: Kernel) -> float:
        """Return the seconds of a kernel."""
        seconds = self._kernel_s.get(kernel)
        if seconds is None:
            self.time_kernels((kernel,))
            seconds = self._kernel_s[kernel]
        return seconds

    def collective_s(self, kind: str, size_bytes: float, family: GroupFamily) -> float:
        """Return the seconds of a collective of a family of groups, of all groups the slowest."""
        key = (family, kind, size_bytes)
        if key not in self._collective_s:
            if family not in self._placements:
                self._placements[family] = placements_of(family, self.machine.topology)
            self._collective_s[key] = self.collective(kind, size_bytes, self._placements[family]).time_s
        return self._collective_s[key]

    def collective(self, kind: str, size_bytes: float, placements: Iterable[Placement]) -> CollectiveCost:
        """Return the cost of a collective on groups that are placed, of all the slowest; of a barrier as simulated."""
        kind, size_bytes = transfer_of(kind, size_bytes)
        algorithm = self.machine.algorithms.get(kind, "auto")
        return _slowest(collective_cost(kind, size_bytes, placement, algorithm) for placement in placements)

    def messages(self, size_bytes: int, mesh: Mesh, axis: str) -> list[CollectiveCost]:
        """Return the cost of the slowest message from each coordinate of an axis to the next, cyclically."""
        key = (mesh, axis, size_bytes)
        if key not in self._messages:
            topology, groups = self.machine.topology, np.array(mesh.groups(axis).members)
            sources, targets = groups.T.ravel(), np.roll(groups, -1, axis=1).T.ravel()
            apart = distances(topology, sources, targets)
            first, kinds = np.unique(apart, axis=0, return_index=True, return_inverse=True)[1:]
            pairs = zip(sources[first].tolist(), targets[first].tolist(), strict=True)
            costs = [send_cost(size_bytes, topology, source=source, destination=target) for source, target in pairs]
            of_coordinate = kinds.reshape(groups.shape[::-1])
            self._messages[key] = [_slowest(costs[kind] for kind in np.unique(some)) for some in of_coordinate]
        return self._messages[key]

    def slowdowns(self, kernel: Kernel, kernel_s: float) -> tuple[float, float]:
        """Return the slowdowns of a kernel (of this isolated time) and of a collective that run concurrently."""
        if self.contention is None:
            return 1.0, 1.0
        key = (kernel, kernel_s)
        if key not in self._slowdowns:
            channels = self.contention.resource_use.num_sms
            (collective,) = self.contention.slows(kernel, [kernel_s], channels=channels)
            (slowed,) = self.contention.slowed_by(kernel, [kernel_s], [(channels, True)])
            self._slowdowns[key] = (slowed, collective)
        return self._slowdowns[key]


def _slowest(costs: Iterable[CollectiveCost]) -> CollectiveCost:
    return max(costs, key=lambda cost: cost.time_s)
