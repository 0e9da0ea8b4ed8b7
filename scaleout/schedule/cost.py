"""What a program's collectives cost, whole and by levels, and what its step takes: what schedules ask the models.

Costs of a collective are the network model's, of its group as the topology places it; a step is simulated.
"""

from collections.abc import Callable

from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.placement import place
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta.cost import collective_cost
from scaleout.program.graph import ExecutionGraph
from scaleout.program.operations import Kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule.centauri.partition.group import Levels, bytes_on_level, levels_of
from scaleout.schedule.order import in_program_order
from scaleout.simulation.contention import contention_of
from scaleout.simulation.result import Result
from scaleout.simulation.run import simulate

Price = Callable[[int, str, float], float]
"""Seconds of a collective: its family of groups, its kind and its bytes."""

_LEVELLED = ("all_gather", "reduce_scatter")


def machine_for(schedule: str, machine: Machine | None) -> Machine:
    """Return the machine that a schedule weighs costs of.

    Raises
    ------
    ConfigError
        If there is none.
    """
    if machine is None:
        raise ConfigError(f"{schedule} weighs what collectives cost; say which device and network the program is for")
    return machine


class Prices:
    """What collectives of a program cost, whole and, where groups may be divided, by levels; each asked once.

    Levels are taken where one after another they take less than the whole group at once or, where many collectives are
    to run `beside` each other on them, where the longest does.
    """

    def __init__(self, program: Program, machine: Machine, *, divides: bool = True, beside: bool = False) -> None:
        self.program, self.machine, self.divides, self.levels_beside = program, machine, divides, beside
        self._levels: dict[int, Levels | str] = {}
        self._costs_s: dict[tuple[int, str, float], float] = {}
        self.contention = contention_of(machine.device, machine.topology)
        self._beside: dict[tuple[Kernel, float], tuple[float, float]] = {}

    def levels(self, family: int) -> Levels | str:
        """Return the levels that the groups of a family divide into, or why they do not."""
        if family not in self._levels:
            self._levels[family] = levels_of(self.program.groups[family], self.machine.topology)
        return self._levels[family]

    def whole_s(self, family: int, kind: str, size_bytes: float) -> float:
        """Seconds of a collective over its whole group at once; of a barrier as it is simulated."""
        if kind == "barrier":
            kind, size_bytes = "all_reduce", 1.0
        return self._cost_s(self.program.groups[family], kind, size_bytes)

    def _cost_s(self, family: GroupFamily, kind: str, size_bytes: float) -> float:
        key = (id(family), kind, size_bytes)  # families live as long as the program and its levels
        if key not in self._costs_s:
            placement = place(self.machine.topology, family.members[0])
            algorithm = self.machine.algorithms.get(kind, "auto")
            self._costs_s[key] = collective_cost(kind, size_bytes, placement, algorithm).time_s
        return self._costs_s[key]

    def levels_s(self, family: int, kind: str, size_bytes: float) -> tuple[float, ...]:
        """Seconds on each level, innermost first; nothing if the group does not divide."""
        found = self.levels(family)
        if isinstance(found, str) or kind not in _LEVELLED or not self.divides:
            return ()
        numbered = enumerate(found.families)
        return tuple(self._cost_s(each, kind, bytes_on_level(int(size_bytes), found.sizes, n)) for n, each in numbered)

    def by_levels(self, family: int, kind: str, size_bytes: float) -> bool:
        """Whether a collective is carried out by levels."""
        levels_s = self.levels_s(family, kind, size_bytes)
        together = max if self.levels_beside else sum
        return bool(levels_s) and together(levels_s) < self.whole_s(family, kind, size_bytes)

    def best_s(self, family: int, kind: str, size_bytes: float) -> float:
        """Seconds of a collective as it will be carried out."""
        if self.by_levels(family, kind, size_bytes):
            return sum(self.levels_s(family, kind, size_bytes))
        return self.whole_s(family, kind, size_bytes)

    def substituted_s(self, family: int, size_bytes: float) -> float:
        """Seconds of an all-reduce as reduce-scatter and all-gather."""
        return sum(self.best_s(family, kind, size_bytes) for kind in _LEVELLED[::-1])

    def substitutes(self, family: int, kind: str, size_bytes: float) -> bool:
        """Whether an all-reduce is better as the two."""
        return kind == "all_reduce" and self.substituted_s(family, size_bytes) < self.whole_s(family, kind, size_bytes)

    def beside(self, graph: ExecutionGraph, node: int) -> tuple[float, float]:
        """How many times as long a product and a collective take beside each other, where the library says."""
        if self.contention is None:
            return 1.0, 1.0
        call, alone_s = graph.kernels[graph.kernel[node]], float(graph.duration_s[node])
        if (call, alone_s) not in self._beside:
            channels = self.contention.resource_use.num_sms
            slower = self.contention.slows(call, alone_s, channels=channels)
            taken_bytes_per_s = self.contention.taken(channels, slower=slower)
            kernels = self.contention.slowed(call, num_sms=channels, taken_bytes_per_s=taken_bytes_per_s)
            self._beside[call, alone_s] = (kernels, slower)
        return self._beside[call, alone_s]

    def step(self, program: Program) -> Result:
        """Simulate a step of the program as it is scheduled."""
        machine = self.machine
        return simulate(
            in_program_order(program), machine.topology, algorithms=machine.algorithms, contention=self.contention
        )
