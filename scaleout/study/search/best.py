"""The request of a search, and the best plans found so far."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.topology import Topology
from scaleout.simulation.options import SimulationOptions
from scaleout.study.search.evaluate import Estimate
from scaleout.study.search.space import Plan, workload_of
from scaleout.workloads.config import LayeredModel

BASELINE = "baseline"
"""The schedule under which every search evaluates plans."""

SLACK = 1.25
"""Plans slower than the fastest by more than this factor are not looked at for their memory."""

SIMULATIONS = 8
"""Plans that are simulated under each schedule if nothing else is asked for."""

ROUNDING = 1 - 1e-9
"""What a bound that is rounded otherwise than the time below which it lies is taken by."""


@dataclass(frozen=True)
class SearchRequest:
    """What is searched.

    Attributes
    ----------
    base : LayeredModel
        The model, and all keys that no plan chooses.
    batch : int
        Sequences in a step, over all replicas.
    memory_bytes : float
        What a rank may hold.
    top : int
        How many plans are wanted.
    fixed : mapping
        Keys of `Plan` that are not to be chosen.
    schedules : tuple of str
        Schedules besides `baseline`, each plan under each of which is a choice.
    simulations : int
        How many plans are simulated under each of them at the most.
    options : SimulationOptions
        How they are simulated; the host's calls count in the estimates of blocks, too.
    """

    base: LayeredModel
    topology: Topology
    device: Device
    num_ranks: int
    batch: int
    memory_bytes: float
    top: int = 10
    fixed: Mapping[str, Any] = field(default_factory=dict)
    schedules: tuple[str, ...] = ()
    simulations: int = SIMULATIONS
    options: SimulationOptions = field(default_factory=SimulationOptions)

    def workload(self, plan: Plan) -> LayeredModel:
        """Return the workload of a plan."""
        return workload_of(plan, self.base, self.batch)


Choice = tuple[Plan, str]
"""A plan and a schedule."""


@dataclass(frozen=True)
class EvaluatedPlan:
    """A plan and its estimate under a schedule."""

    plan: Plan
    estimate: Estimate
    schedule: str = BASELINE

    @property
    def key(self) -> tuple[Any, ...]:
        """Order: fastest first, of equals the one that holds least, then the schedule, then the plan itself."""
        simple = self.schedule != BASELINE, self.schedule
        return self.estimate.step_s, self.estimate.peak_bytes, simple, tuple(map(str, self.plan))

    @property
    def choice(self) -> Choice:
        """What was chosen."""
        return self.plan, self.schedule


@dataclass
class Counts:
    """Plans by what became of them.

    Attributes
    ----------
    enumerated : int
        All plans.
    indivisible : int
        Whose sizes do not divide.
    bounded : int
        That cannot be among those wanted, by their bounds.
    too_large : int
        That do not fit the memory.
    """

    enumerated: int = 0
    indivisible: int = 0
    bounded: int = 0
    too_large: int = 0
    evaluated: int = 0

    def add(self, other: "Counts") -> None:
        """Add others."""
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)


@dataclass
class Best:
    """The plans that are kept so far."""

    top: int
    fastest: list[EvaluatedPlan] = field(default_factory=list)
    front: list[EvaluatedPlan] = field(default_factory=list)

    @property
    def last_s(self) -> float:
        """Seconds of the last of the fastest, above which no plan is among them."""
        return self.fastest[-1].estimate.step_s if len(self.fastest) == self.top else float("inf")

    def limit(self) -> float:
        """Seconds above which no plan is wanted."""
        if len(self.fastest) < self.top:
            return float("inf")
        return max(self.last_s, SLACK * self.fastest[0].estimate.step_s)

    def wants(self, bound_s: float, peak_bytes: float) -> bool:
        """Whether a plan that takes no less may be kept."""
        if bound_s * ROUNDING <= self.last_s:
            return True
        if bound_s * ROUNDING > self.limit():
            return False
        return not any(
            found.estimate.step_s < bound_s * ROUNDING and found.estimate.peak_bytes <= peak_bytes
            for found in self.front
        )

    def add(self, found: Iterable[EvaluatedPlan]) -> None:
        """Keep those that are among the best."""
        new = list(found)
        self.fastest = sorted([*self.fastest, *new], key=lambda each: each.key)[: self.top]
        front: list[EvaluatedPlan] = []
        for each in sorted([*self.front, *new], key=lambda each: each.key):
            if not front or each.estimate.peak_bytes < front[-1].estimate.peak_bytes:
                front.append(each)
        self.front = front

    @property
    def near(self) -> list[EvaluatedPlan]:
        """The front, as far as it is complete."""
        last_s = SLACK * self.fastest[0].estimate.step_s if self.fastest else 0.0
        return [found for found in self.front if found.estimate.step_s <= last_s]
