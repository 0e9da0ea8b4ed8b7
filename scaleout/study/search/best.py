"""Evaluated plans: the best so far, and what became of the others."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from scaleout.program.fastest import ranked
from scaleout.study.search.evaluate import BASELINE, Estimate
from scaleout.study.search.space import Plan

SLACK = 1.25
"""Plans slower than the fastest by more than this factor are not looked at for their memory."""

ROUNDING = 1 - 1e-9
"""Factor on a lower bound, so that rounding never lifts it above the time that it bounds."""

Choice = tuple[Plan, str]
"""A plan and a schedule."""


@dataclass(frozen=True)
class EvaluatedPlan:
    """A plan and its estimate under a schedule."""

    plan: Plan
    estimate: Estimate
    schedule: str = BASELINE

    @property
    def order(self) -> tuple[Any, ...]:
        """Order of those that take equally long: least memory first, then the schedule, then the plan itself."""
        simple = self.schedule != BASELINE, self.schedule
        return self.estimate.peak_bytes, simple, tuple(map(str, self.plan))

    @property
    def choice(self) -> Choice:
        """What was chosen."""
        return self.plan, self.schedule


def fastest_first(found: Iterable[EvaluatedPlan]) -> list[EvaluatedPlan]:
    """Return plans, the fastest first."""
    return ranked(found, key=lambda each: each.estimate.step_s, order=lambda each: each.order)


@dataclass
class Counts:
    """Plans by what became of them, which follows from the answer: a search may have evaluated some that are bounded.

    Attributes
    ----------
    enumerated : int
        All plans.
    indivisible : int
        Whose sizes do not divide.
    bounded : int
        That cannot be among those wanted, by their lower bounds.
    too_large : int
        Of the others, that do not fit the memory.
    evaluated : int
        The rest.
    """

    enumerated: int = 0
    indivisible: int = 0
    bounded: int = 0
    too_large: int = 0
    evaluated: int = 0


@dataclass
class Best:
    """The plans that are kept so far.

    Attributes
    ----------
    top : int
        How many of the fastest.
    fastest : list of EvaluatedPlan
        In order, under whatever schedule.
    front : list of EvaluatedPlan
        Those that no plan under the same schedule beats in both time and memory, fastest first: a plan that was
        evaluated under one schedule alone would take less under another.
    closed : bool
        Whether nothing is added any more.
    """

    top: int
    fastest: list[EvaluatedPlan] = field(default_factory=list)
    front: list[EvaluatedPlan] = field(default_factory=list)
    closed: bool = False

    @property
    def last_s(self) -> float:
        """Seconds of the last of the fastest, above which no plan is among them."""
        return self.fastest[-1].estimate.step_s if len(self.fastest) == self.top else float("inf")

    def may_have(self, bound_s: float) -> bool:
        """Whether a plan that takes no less may be among the fastest."""
        return bound_s * ROUNDING <= self.last_s

    def limit(self) -> float:
        """Seconds above which no plan is wanted."""
        if len(self.fastest) < self.top:
            return float("inf")
        return max(self.last_s, SLACK * self.fastest[0].estimate.step_s)

    def wants(self, bound_s: float, peak_bytes: float) -> bool:
        """Whether a plan that takes no less may be kept."""
        if self.may_have(bound_s):
            return True
        if bound_s * ROUNDING > self.limit():
            return False
        return not any(
            found.estimate.step_s < bound_s * ROUNDING and found.estimate.peak_bytes <= peak_bytes
            for found in self.front
        )

    def add(self, found: Iterable[EvaluatedPlan]) -> None:
        """Keep those that are among the best, unless the list is closed."""
        if self.closed:
            return
        new = list(found)
        self.fastest = fastest_first([*self.fastest, *new])[: self.top]
        front, least_bytes = list[EvaluatedPlan](), dict[str, float]()
        for each in fastest_first([*self.front, *new]):
            if each.estimate.peak_bytes < least_bytes.get(each.schedule, float("inf")):
                least_bytes[each.schedule] = each.estimate.peak_bytes
                front.append(each)
        self.front = front

    @property
    def near(self) -> list[EvaluatedPlan]:
        """The front of each schedule as far as it is complete, that of the fastest schedule first."""
        of_schedule: dict[str, list[EvaluatedPlan]] = {}
        for each in self.front:
            of_schedule.setdefault(each.schedule, []).append(each)
        return [
            each
            for front in of_schedule.values()
            for each in front
            if each.estimate.step_s <= SLACK * front[0].estimate.step_s
        ]
