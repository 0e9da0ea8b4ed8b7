"""What schedules weigh: the cost of a program's collectives, whole and by levels, and trials: its simulated steps."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import fsum

from scaleout.cluster.machine import Machine
from scaleout.errors import ConfigError
from scaleout.program.fastest import is_faster
from scaleout.program.graph import ExecutionGraph, NodeKind
from scaleout.program.program import Program, alike
from scaleout.schedule.centauri.partition.group import LEVELLED, Levels, bytes_on_level, levels_of, sorting_s
from scaleout.schedule.decision import Decision
from scaleout.schedule.steps import step
from scaleout.simulation.cost_model import CostModel
from scaleout.simulation.result import Result

CollectiveSeconds = Callable[[int, str, float], float]
"""Seconds of a collective: its family of groups, its kind and its bytes."""


def cost_model_for(schedule: str, machine: Machine | None) -> CostModel:
    """Return the costs that a schedule weighs; a ConfigError says that there is no machine."""
    if machine is None:
        raise ConfigError(f"{schedule} weighs what collectives cost; say which device and network the program is for")
    return CostModel(machine)


class ProgramCosts:
    """What collectives of a program cost, whole and, where groups may be divided, by levels.

    Levels are taken where their sum, or with `concurrent` the longest of them, is less than the whole group at once.
    """

    def __init__(
        self, program: Program, cost_model: CostModel, *, divides: bool = True, concurrent: bool = False
    ) -> None:
        self.program, self.cost_model, self.divides, self.concurrent = program, cost_model, divides, concurrent
        self._levels: dict[int, Levels | str] = {}
        self._levels_s: dict[tuple[int, str, int], tuple[float, ...]] = {}
        self._by_levels: dict[tuple[int, str, int], bool] = {}

    @property
    def machine(self) -> Machine:
        """What the program will run on."""
        return self.cost_model.machine

    def levels(self, family: int) -> Levels | str:
        """Return the levels that the groups of a family divide into, or why they do not.

        Members of a group decide alike: where they bring different bytes, as to tables that differ, none is divided.
        """
        if family not in self._levels:
            differ = "its members bring different bytes" if self._bytes_differ(family) else ""
            self._levels[family] = differ or levels_of(self.program.groups[family], self.machine.topology)
        return self._levels[family]

    def _bytes_differ(self, family: int) -> bool:
        """Whether members of one of a family's groups bring different bytes to a collective."""
        program = self.program
        of_role = [
            graph.bytes[(graph.kind == NodeKind.COLLECTIVE) & (graph.group == family)].tobytes()
            for graph in program.graphs
        ]
        if len(set(of_role)) < 2:
            return False
        groups = (program.role_of_rank[list(members)].tolist() for members in program.groups[family].members)
        return any(len({of_role[role] for role in roles}) > 1 for roles in groups)

    def whole_s(self, family: int, kind: str, size_bytes: float) -> float:
        """Seconds of a collective over its whole group at once."""
        return self.cost_model.collective_s(kind, size_bytes, self.program.groups[family])

    def levels_s(self, family: int, kind: str, size_bytes: float) -> tuple[float, ...]:
        """Seconds on each level, innermost first; nothing if the group does not divide.

        An all-to-all's include what sorts the buffer before the level.
        """
        key = family, kind, int(size_bytes)
        if key not in self._levels_s:
            self._levels_s[key] = self._on_levels(*key)
        return self._levels_s[key]

    def _on_levels(self, family: int, kind: str, whole_bytes: int) -> tuple[float, ...]:
        found = self.levels(family)
        if isinstance(found, str) or kind not in LEVELLED or not self.divides:
            return ()
        sizes_bytes = (bytes_on_level(kind, whole_bytes, found.sizes, number) for number in range(len(found.sizes)))
        sorted_s = sorting_s(self.machine.device, whole_bytes) if kind == "all_to_all" else 0.0
        return tuple(
            self.cost_model.collective_s(kind, level_bytes, level) + (sorted_s if number else 0.0)
            for number, (level_bytes, level) in enumerate(zip(sizes_bytes, found.families, strict=True))
        )

    def by_levels(self, family: int, kind: str, size_bytes: float) -> bool:
        """Whether a collective is carried out by levels."""
        key = family, kind, int(size_bytes)
        if key not in self._by_levels:
            levels_s = self.levels_s(family, kind, size_bytes)
            total = max if self.concurrent else fsum
            self._by_levels[key] = bool(levels_s) and is_faster(total(levels_s), self.whole_s(family, kind, size_bytes))
        return self._by_levels[key]

    def best_s(self, family: int, kind: str, size_bytes: float) -> float:
        """Seconds of a collective as it will be carried out."""
        if self.by_levels(family, kind, size_bytes):
            return fsum(self.levels_s(family, kind, size_bytes))
        return self.whole_s(family, kind, size_bytes)

    def substituted_s(self, family: int, size_bytes: float) -> float:
        """Seconds of an all-reduce as reduce-scatter and all-gather."""
        return fsum(self.best_s(family, kind, size_bytes) for kind in ("reduce_scatter", "all_gather"))

    def substitutes(self, family: int, kind: str, size_bytes: float) -> bool:
        """Whether an all-reduce is better as the two."""
        if kind != "all_reduce":
            return False
        return is_faster(self.substituted_s(family, size_bytes), self.whole_s(family, kind, size_bytes))

    def slowdowns(self, graph: ExecutionGraph, node: int) -> tuple[float, float]:
        """Return how many times as long a GEMM and a collective concurrent with it take as each isolated."""
        return self.cost_model.slowdowns(graph.kernels[graph.kernel[node]], float(graph.duration_s[node]))


@dataclass
class Trial:
    """A candidate: `ordered` is the program in the order that is tried, `scheduled` the same cut and on streams."""

    costs: ProgramCosts
    ordered: Program
    scheduled: Program
    decisions: tuple[Decision, ...] = ()

    @cached_property
    def result(self) -> Result:
        """A step, simulated."""
        return step(self.scheduled, self.costs.machine)

    def beside(self, old: "Trial") -> "Trial":
        """Return this trial, with the old one's step if nothing differs."""
        if old.known is not None and alike(self.scheduled, old.scheduled):
            self.result = old.known
        return self

    @property
    def known(self) -> Result | None:
        """The step, if it was simulated."""
        return vars(self).get("result")

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.result.makespan_s


def shorter(best: Trial, rival: Trial | None) -> Trial:
    """Return the rival if its step is shorter, else what was best so far."""
    return rival if rival is not None and is_faster(rival.step_s, best.step_s) else best
