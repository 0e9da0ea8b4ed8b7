"""A device above its power limit lowers its clock: a timed program and its step time to a slower program.

Kernels are ``unthrottled`` (table times), ``sustained`` (steps run over and over) or from a ``cold_start`` (few steps,
all kernels at full clock at first). The governor takes a mean over tens of milliseconds, so the energy of all kernels
over the step's time counts. A device without power data runs at full clock.
See docs/models/clocks-and-power.md.

Symbols: s slowdown; T the step's time [s]; E the energy of its kernels and collectives at full clock [J].
"""

from collections.abc import Callable, Iterable

import numpy as np

from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.cluster.device.sections import Power
from scaleout.cluster.device.spec import Device
from scaleout.network.collectives import BUS_FACTORS
from scaleout.program.calls import columns_of
from scaleout.program.graph import NONE, ExecutionGraph, Floats, NodeKind, NodeRole
from scaleout.program.program import Program
from scaleout.simulation.options import check_clocks
from scaleout.simulation.result import Result

_ROUNDS = {"unthrottled": 0, "sustained": 3, "cold_start": 6}
"""Runs with the step's time of the run before, which moves little by then; more where GEMMs follow the clock too."""
STEPS_FROM_COLD_START = 8.5
"""Steps until the middle of what a measurement from rest takes as its time: 5 of warm-up and 7, see `measure.steps`."""


def settled(program: Program, device: Device, run: Callable[[Program], Result], *, clocks: str) -> Result:
    """Run a timed program; where the clock follows power, again with what its kernels take at the limit."""
    check_clocks(clocks)
    cool = at_full_clock(program, device) if clocks == "cold_start" else program
    result = run(cool)
    for _ in range(_ROUNDS[clocks]):
        slower = (cold_start if clocks == "cold_start" else sustained)(cool, device, step_s=result.makespan_s)
        if slower is cool:
            break
        result = run(slower)
    return result


def at_full_clock(program: Program, device: Device) -> Program:
    """Return a timed program whose kernels have their times at full clock; see `kernel_times`."""
    return program if device.power is None else program.map_graphs(lambda graph: _cooled(graph, device))


def _cooled(graph: ExecutionGraph, device: Device) -> ExecutionGraph:
    kernels = (graph.kind == NodeKind.COMPUTE) & (graph.kernel != NONE)
    used = np.unique(graph.kernel[kernels])
    calls = columns_of(graph.kernels)[used]
    shares = np.ones(len(graph.kernels))
    shares[used] = kernel_times(device, calls, full_clock=True)[0] / kernel_times(device, calls)[0]
    duration_s = graph.duration_s.copy()
    duration_s[kernels] *= shares[graph.kernel[kernels]]
    return graph.with_columns(duration_s=duration_s)


def sustained(program: Program, device: Device, *, step_s: float) -> Program:
    """Return a program slowed to the power limit in steps of this length, itself where none of its roles reaches it.

    Kernels that exceed the limit by themselves were measured there, and keep their time.
    """
    return _at_limit(program, device, mean_over_s=step_s, at_limit_already=True)


def cold_start(program: Program, device: Device, *, step_s: float) -> Program:
    """Return a program at full clock, slowed down to the limit in the middle of steps of this length, from cold start.

    The governor's mean counts over ``max(T, memory / STEPS_FROM_COLD_START)``.
    """
    memory_s = device.power.memory_s if device.power else 0.0
    return _at_limit(program, device, mean_over_s=max(step_s, memory_s / STEPS_FROM_COLD_START), at_limit_already=False)


def _at_limit(program: Program, device: Device, *, mean_over_s: float, at_limit_already: bool) -> Program:
    power = device.power
    if power is None or mean_over_s <= 0:
        return program
    first_of_role = [int(np.flatnonzero(program.role_of_rank == role)[0]) for role in range(len(program.graphs))]
    joules = joules_of_ranks(program, zip(first_of_role, program.graphs, strict=True), power)
    slower = [power.slowdown(each, mean_over_s) for each in joules]
    if max(slower, default=1.0) <= 1.0:
        return program
    factors = iter(slower)
    return program.map_graphs(lambda graph: _slowed(graph, power, next(factors), stays=at_limit_already))


def _work_joules(graph: ExecutionGraph, power: Power) -> Floats:
    """Energy of each node's kernel by its FLOPs and bytes, (N,): of a slice its part, NaN of what is known by time."""
    calls = columns_of(graph.kernels)
    of_kind = np.array([power.joules_per_flop(call) for call in calls.kinds], np.float64)
    of_flops = np.append(of_kind[calls.kind], np.nan)[graph.kernel] * graph.flops  # `NONE` is the last entry
    of_work = of_flops + float(power.energy.byte) * graph.bytes
    return np.where((graph.kind == NodeKind.COMPUTE) & ~graph.has_role(NodeRole.HOST), of_work, 0.0)


def _joules(graph: ExecutionGraph, power: Power, of_work: Floats) -> Floats:
    """Energy of each node's kernel at full clock, shape (N,), given that by its FLOPs and bytes."""
    return np.where(np.isnan(of_work), power.other_w * graph.duration_s, of_work)


def joules_of_ranks(program: Program, graphs: Iterable[tuple[int, ExecutionGraph]], power: Power) -> list[float]:
    """Energy of the kernels and collectives of ranks at full clock, beyond idle, given the graph of each."""
    known: dict[object, tuple[Floats, float]] = {}  # what times do not change
    found = []
    for rank, graph in graphs:
        alike = graph.but_times, program.group_sizes(rank)
        if alike not in known:
            known[alike] = _work_joules(graph, power), _sent_joules(program, graph, rank, power)
        of_work, sent_j = known[alike]
        found.append(_in_order(_joules(graph, power, of_work)) + sent_j)
    return found


def _sent_joules(program: Program, graph: ExecutionGraph, rank: int, power: Power) -> float:
    """Energy of what the collectives of a rank send."""
    nodes = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)
    pairs = graph.collective[nodes] * len(program.groups) + graph.group[nodes]
    _, firsts, numbers = np.unique(pairs, return_index=True, return_inverse=True)
    per_byte = np.zeros(len(firsts))
    for number, node in enumerate(nodes[firsts].tolist()):
        kind, ranks = graph.operation(node), len(program.groups[graph.group[node]].of(rank))
        per_byte[number] = getattr(power.sent, kind, 0.0) * BUS_FACTORS[kind](ranks)
    return _in_order(per_byte[numbers] * graph.bytes[nodes])


def _in_order(joules: Floats) -> float:
    """Add up from the first to the last; the order of ``.sum()`` is that of a version of NumPy."""
    return float(np.cumsum(joules)[-1]) if joules.size else 0.0


def _slowed(graph: ExecutionGraph, power: Power, factor: float, *, stays: bool) -> ExecutionGraph:
    """Slow kernels down; where `stays`, not those that exceed the limit by themselves."""
    room_w = power.limit_w - power.idle_w
    slows = (graph.kind == NodeKind.COMPUTE) & (graph.kernel != NONE)
    if stays:
        slows &= _joules(graph, power, _work_joules(graph, power)) <= room_w * graph.duration_s
    return graph.with_columns(duration_s=np.where(slows, graph.duration_s * factor, graph.duration_s))
