"""A device that would draw more than its limit lowers its clock: a timed program and its time to a slower program.

The governor takes the mean over tens of milliseconds, so it is the energy of all kernels over the step's time that
counts. Where that is above the limit, all that runs at full clock takes longer in the step. Programs are

*alone*: every kernel takes what it takes by itself, matrix products of most tables at the limit;
*sustained*: steps run over and over. A product that alone draws more than the limit was measured at the limit: its time
has it already, and stays; the others take longer by as much as the mean asks for;
*from_rest*: few steps run from rest, as a measurement does. All kernels are at full clock at first, GEMMs as
`kernel_times` has them with `full_clock`; the limit counts as far as the governor's memory is full of the steps before,
and all kernels take longer by what it then asks for. A step of few milliseconds is over before.

What collectives draw is the energy of the bytes that a rank sends, whatever time they take; it counts as kernels' does.

Left out: what messages of pipelines draw, and ranks that wait, which is next to nothing; the clock of kernels that wait
for memory, which slow down less than others; and, where steps are sustained, that products run faster than alone where
a step has room for them. That is so in the short steps of measured runs, but not in pipelines, whose ranks wait in
kernels that poll: with products that had the bubbles' room, four pipelines on H200 would come out 5% too fast.

A program whose device says nothing of power runs at full clock.

Symbols: s slowdown; T the step's time [s]; E the energy of its kernels and collectives at full clock [J].
"""

from collections.abc import Callable

import numpy as np

from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.cluster.device.sections import Power
from scaleout.cluster.device.spec import Device
from scaleout.network.collectives import BUS_FACTORS
from scaleout.program.graph import NONE, ExecutionGraph, Floats, NodeKind
from scaleout.program.program import Program
from scaleout.simulation.options import check_clocks
from scaleout.simulation.result import Result

_ROUNDS = {"alone": 0, "sustained": 3, "from_rest": 6}
"""Runs with the step's time of the run before, which moves little by then; more where products follow the clock too."""
STEPS_FROM_REST = 8.5
"""Steps until the middle of what a measurement from rest takes as its time: 5 of warm-up and 7, see `measure.steps`."""


def settled(program: Program, device: Device, run: Callable[[Program], Result], *, clocks: str) -> Result:
    """Run a timed program; where the clock follows power, again with what its kernels take at the limit.

    Raises
    ------
    ConfigError
        If the clocks are unknown.
    """
    check_clocks(clocks)
    cool = at_full_clock(program, device) if clocks == "from_rest" else program
    result = run(cool)
    for _ in range(_ROUNDS[clocks]):
        slower = (from_rest if clocks == "from_rest" else sustained)(cool, device, step_s=result.makespan_s)
        if slower is cool:
            break
        result = run(slower)
    return result


def at_full_clock(program: Program, device: Device) -> Program:
    """Return a timed program whose kernels take as much less time as they do at full clock; see `kernel_times`."""
    return program if device.power is None else program.map_graphs(lambda graph: _cooled(graph, device))


def _cooled(graph: ExecutionGraph, device: Device) -> ExecutionGraph:
    kernels = (graph.kind == NodeKind.COMPUTE) & (graph.kernel != NONE)
    used = np.unique(graph.kernel[kernels])
    calls = [graph.kernels[index] for index in used]
    shares = np.ones(len(graph.kernels))
    shares[used] = kernel_times(device, calls, full_clock=True)[0] / kernel_times(device, calls)[0]
    duration_s = graph.duration_s.copy()
    duration_s[kernels] *= shares[graph.kernel[kernels]]
    return graph.with_columns(duration_s=duration_s)


def sustained(program: Program, device: Device, *, step_s: float) -> Program:
    """Return a timed program whose kernels take as long as the power limit lets them in a step that takes so long.

    Those of each role that alone draw no more than the limit are slowed down by `Power.slowdown` of all its kernels.
    The program itself is returned where there is no limit, or none of its roles reaches it.
    """
    return _at_limit(program, device, mean_over_s=step_s, at_limit_already=True)


def from_rest(program: Program, device: Device, *, step_s: float) -> Program:
    """Return a program at full clock as the limit lets it run in the middle of steps that take so long, from rest.

    The governor's mean is over its memory, of which steps fill ``min(1, STEPS_FROM_REST T / memory)``: that of a step
    counts over ``max(T, memory / STEPS_FROM_REST)``. Otherwise as `sustained`; all kernels are slowed down.
    """
    memory_s = device.power.memory_s if device.power else 0.0
    return _at_limit(program, device, mean_over_s=max(step_s, memory_s / STEPS_FROM_REST), at_limit_already=False)


def _at_limit(program: Program, device: Device, *, mean_over_s: float, at_limit_already: bool) -> Program:
    power = device.power
    if power is None or mean_over_s <= 0:
        return program
    slower = [
        power.slowdown(_joules(graph, power).sum() + _sent_joules(program, role, power), mean_over_s)
        for role, graph in enumerate(program.graphs)
    ]
    if max(slower, default=1.0) <= 1.0:
        return program
    factors = iter(slower)
    return program.map_graphs(lambda graph: _slowed(graph, power, next(factors), stays=at_limit_already))


def _joules(graph: ExecutionGraph, power: Power) -> Floats:
    """Return the energy of each node's kernel at full clock, shape (N,)."""
    joules = np.zeros(len(graph))
    nodes = np.flatnonzero((graph.kind == NodeKind.COMPUTE) & (graph.kernel != NONE))
    for node, index, seconds in zip(nodes, graph.kernel[nodes], graph.duration_s[nodes], strict=True):
        joules[node] = power.joules(graph.kernels[index], seconds)
    return joules


def _sent_joules(program: Program, role: int, power: Power) -> float:
    """Return the energy of what the collectives of a rank of a role send."""
    graph, joules = program.graphs[role], 0.0
    rank = int(np.flatnonzero(program.role_of_rank == role)[0])
    for node in np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist():
        kind, ranks = graph.operation(node), len(program.groups[graph.group[node]].of(rank))
        per_byte = getattr(power.sent, kind, 0.0)
        joules += per_byte * BUS_FACTORS[kind](ranks) * float(graph.bytes[node])
    return joules


def _slowed(graph: ExecutionGraph, power: Power, factor: float, *, stays: bool) -> ExecutionGraph:
    """Slow kernels down, but where `stays` not those that alone draw more than the limit."""
    room_w = power.limit_w - power.idle_w
    slows = (graph.kind == NodeKind.COMPUTE) & (graph.kernel != NONE)
    if stays:
        slows &= _joules(graph, power) <= room_w * graph.duration_s
    return graph.with_columns(duration_s=np.where(slows, graph.duration_s * factor, graph.duration_s))
