"""What a schedule that weighs comes to: a program, what was decided, and the step that was simulated on the way."""

from dataclasses import dataclass

from scaleout.program import Program
from scaleout.result import Result
from scaleout.schedule.decision import Decision


@dataclass(frozen=True, eq=False)
class Planned:
    """A scheduled program.

    Attributes
    ----------
    program : Program
    decisions : tuple of Decision
        What was decided.
    result : Result, optional
        A step of it on the machine that it was planned for, under alpha-beta, if one was simulated.
    """

    program: Program
    decisions: tuple[Decision, ...] = ()
    result: Result | None = None
