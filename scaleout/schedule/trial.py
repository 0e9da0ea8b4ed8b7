"""Trials: a program as it may be scheduled, and how long a simulated step of it takes; the shortest is kept."""

from dataclasses import dataclass
from functools import cached_property

from scaleout.program import Program
from scaleout.result import Result
from scaleout.schedule.decision import Decision
from scaleout.schedule.prices import Prices


@dataclass
class Trial:
    """What is tried.

    Attributes
    ----------
    ordered : Program
        Before it is cut, in the order that is tried.
    scheduled : Program
    decisions : tuple of Decision
        What was decided on the way.
    """

    prices: Prices
    ordered: Program
    scheduled: Program
    decisions: tuple[Decision, ...] = ()

    @cached_property
    def result(self) -> Result:
        """A step, simulated."""
        return self.prices.step(self.scheduled)

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
    return best if rival is None or rival.step_s >= best.step_s else rival
