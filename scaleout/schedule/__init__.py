"""Schedules: passes from program to program that decide what may run at the same time.

A schedule is the name of a pass, or of several joined by `+` that are applied from left to right, such as
`overlap+fused`. A pass either puts nodes on streams or rewrites the graph; a rewrite alone stands on `baseline`.
Passes conserve FLOPs and payload bytes and leave their input as it is.
"""

from collections.abc import Callable

from scaleout.config import nearest
from scaleout.errors import ConfigError
from scaleout.program import Program
from scaleout.schedule.baseline import baseline
from scaleout.schedule.fuse import fuse
from scaleout.schedule.machine import Machine
from scaleout.schedule.order import in_program_order
from scaleout.schedule.overlap import overlap
from scaleout.schedule.track import track

Pass = Callable[[Program, Machine | None], Program]

REWRITES: dict[str, Pass] = {"fused": fuse, "track-and-trigger": track}
"""Passes that change what the graphs hold."""

SCHEDULES: dict[str, Pass] = {"baseline": baseline, "overlap": overlap, **REWRITES}
"""All passes by name."""


def apply_schedule(program: Program, name: str, *, machine: Machine | None = None) -> Program:
    """Apply a schedule to a timed program.

    Parameters
    ----------
    machine : Machine, optional
        What it will run on; passes that model operators of their own need it.

    Raises
    ------
    ConfigError
        If a pass is unknown, or needs a machine and there is none.
    """
    passes = name.split("+")
    for part in passes:
        if part not in SCHEDULES:
            raise ConfigError(f"unknown schedule {part!r}; {nearest(part, SCHEDULES)} (join several with '+')")
    if passes[0] in REWRITES:
        program = baseline(program, machine)
    for part in passes:
        program = SCHEDULES[part](program, machine)
    return in_program_order(program)
