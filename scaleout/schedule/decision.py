"""What a schedule that weighs costs decided, in words, and its trials: programs and their simulated steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from scaleout.program.program import Program
from scaleout.simulation.result import Result

if TYPE_CHECKING:
    from scaleout.schedule.cost import ProgramCosts


@dataclass(frozen=True)
class Decision:
    """What was decided for things that are alike: `what` says how many of what, `reason` why not otherwise.

    `before_s` and `after_s` are estimates without the choice and with it.
    """

    what: str
    choice: str
    before_s: float
    after_s: float
    reason: str = ""


def in_words(decisions: Sequence[Decision]) -> tuple[str, ...]:
    """Say each decision in a sentence."""
    return tuple(_sentence(each) for each in decisions)


def collectives(count: int, kind: str, size_bytes: int, family: str) -> str:
    """Name collectives that are alike.

    >>> collectives(2, "all_gather", 1_070_000_000, "data")
    '2 x all_gather of 1070 MB over data'
    """
    return f"{count} x {kind} of {size_bytes / 1e6:.4g} MB over {family}"


def _sentence(each: Decision) -> str:
    instead = f" instead of {each.before_s * 1e3:.4g}" if each.after_s < each.before_s else ""
    reason = f" ({each.reason})" if each.reason else ""
    return f"{each.what}: {each.choice}, {each.after_s * 1e3:.4g} ms{instead}{reason}"


@dataclass(frozen=True, eq=False)
class Planned:
    """A scheduled program and its decisions.

    `result` is a simulated step on the machine that it was planned for, under alpha-beta, if one was simulated.
    """

    program: Program
    decisions: tuple[Decision, ...] = ()
    result: Result | None = None


@dataclass
class Trial:
    """A candidate: `ordered` is the program in the order that is tried, `scheduled` the same cut and on streams."""

    costs: "ProgramCosts"
    ordered: Program
    scheduled: Program
    decisions: tuple[Decision, ...] = ()

    @cached_property
    def result(self) -> Result:
        """A step, simulated."""
        return self.costs.step(self.scheduled)

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
