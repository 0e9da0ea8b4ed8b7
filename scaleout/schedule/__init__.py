"""Schedules: passes from program to program that decide what may run at the same time.

A schedule is the name of a pass, or of several joined by `+` that are applied from left to right, such as
`overlap+fused`. Passes conserve FLOPs and payload bytes and leave their input as it is.
"""

from collections.abc import Callable

from scaleout.config import nearest
from scaleout.errors import ConfigError
from scaleout.program import Program
from scaleout.schedule.baseline import baseline
from scaleout.schedule.fuse import fuse
from scaleout.schedule.overlap import overlap

SCHEDULES: dict[str, Callable[[Program], Program]] = {"baseline": baseline, "overlap": overlap, "fused": fuse}
"""Schedule passes by name."""


def apply_schedule(program: Program, name: str) -> Program:
    """Apply a schedule to a timed program.

    Raises
    ------
    ConfigError
        If a pass is unknown.
    """
    program = baseline(program)
    for part in name.split("+"):
        if part not in SCHEDULES:
            raise ConfigError(f"unknown schedule {part!r}; {nearest(part, SCHEDULES)} (join several with '+')")
        program = SCHEDULES[part](program)
    return program
