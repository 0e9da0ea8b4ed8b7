"""A device that would draw more than its limit lowers its clock: a timed program and its time to a slower program.

The governor looks at tens of milliseconds, so it is the mean over a step that counts, run over and over: the energy of
all kernels over the step's time. Where that is above the limit, what runs alone at full clock takes longer in the step.
A kernel that alone draws more than the limit was measured over and over at the limit, as matrix products of a device's
table were: its time has it already, and stays.

Left out: the energy of collectives, which leaves steps with much of them too fast; the clock of kernels that wait for
memory, which slow down less than others; and that products run faster than alone where a step has room for them.

A program whose device says nothing of power, and all kernels alone, run at full clock (`alone`).

Symbols: s slowdown; T the step's time [s]; E the energy of its kernels at full clock [J].
"""

from collections.abc import Callable

import numpy as np

from scaleout.config import nearest
from scaleout.device import Device
from scaleout.errors import ConfigError
from scaleout.graph import NONE, ExecutionGraph, Floats, NodeKind
from scaleout.power import Power
from scaleout.program import Program
from scaleout.result import Result

CLOCKS = ("alone", "sustained")
"""How kernels are clocked: each as it runs alone, or as a step's power lets them when it is run over and over."""
_ROUNDS = 3
"""Runs with the step's time of the run before, which moves little by then."""


def settled(program: Program, device: Device, run: Callable[[Program], Result], *, clocks: str) -> Result:
    """Run a timed program; where clocks are sustained, again with what its kernels take at the limit.

    Raises
    ------
    ConfigError
        If the clocks are unknown.
    """
    if clocks not in CLOCKS:
        raise ConfigError(f"unknown clocks {clocks!r}; {nearest(clocks, CLOCKS)}")
    result = run(program)
    for _ in range(_ROUNDS if clocks == "sustained" else 0):
        slower = sustained(program, device, step_s=result.makespan_s)
        if slower is program:
            break
        result = run(slower)
    return result


def sustained(program: Program, device: Device, *, step_s: float) -> Program:
    """Return a timed program whose kernels take as long as the power limit lets them in a step that takes so long.

    Those of each role that alone draw no more than the limit are slowed down by `Power.slowdown` of all its kernels.
    The program itself is returned where there is no limit, or none of its roles reaches it.
    """
    power = device.power
    if power is None or step_s <= 0:
        return program
    slower = [power.slowdown(_joules(graph, power).sum(), step_s) for graph in program.graphs]
    if max(slower, default=1.0) <= 1.0:
        return program
    factors = iter(slower)
    return program.map_graphs(lambda graph: _slowed(graph, power, next(factors)))


def _joules(graph: ExecutionGraph, power: Power) -> Floats:
    """Return the energy of each node's kernel at full clock, shape (N,)."""
    joules = np.zeros(len(graph))
    nodes = np.flatnonzero((graph.kind == NodeKind.COMPUTE) & (graph.kernel != NONE))
    for node, index, seconds in zip(nodes, graph.kernel[nodes], graph.duration_s[nodes], strict=True):
        joules[node] = power.joules(graph.kernels[index], seconds)
    return joules


def _slowed(graph: ExecutionGraph, power: Power, factor: float) -> ExecutionGraph:
    room_w = power.limit_w - power.idle_w
    kernels = (graph.kind == NodeKind.COMPUTE) & (graph.kernel != NONE)
    at_full_clock = kernels & (_joules(graph, power) <= room_w * graph.duration_s)
    return graph.with_columns(duration_s=np.where(at_full_clock, graph.duration_s * factor, graph.duration_s))
