"""A device above its power limit lowers its clock: a timed program and its step time to a slower program.

Kernels are ``unthrottled`` (table times), ``sustained`` (steps run over and over) or from a ``cold_start`` (few steps,
all kernels at full clock at first). The governor takes a mean over tens of milliseconds, so the energy of all kernels
over the step's time counts. A device without power data runs at full clock.
See docs/models/clocks-and-power.md.

Symbols: s slowdown; T the step's time [s]; E the energy of its kernels and collectives at full clock [J].
"""

import math
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

SETTLED = 2e-5
"""Share of a step's time by which it may differ from one that takes as long as its clocks assume."""
_MOST_RUNS = 12
"""Runs until then, at most: two to four are enough unless a schedule that decides anew makes the step's time jump."""
STEPS_FROM_COLD_START = 8.5
"""Steps until the middle of what a measurement from rest takes as its time: 5 of warm-up and 7, see `measure.steps`."""


def settled(program: Program, device: Device, run: Callable[[Program], Result], *, clocks: str) -> Result:
    """Run a timed program; where the clock follows power, again until a step takes as long as its clocks assume."""
    check_clocks(clocks)
    cool = at_full_clock(program, device) if clocks == "cold_start" else program
    result, power = run(cool), device.power
    if clocks == "unthrottled" or power is None or not result.makespan_s:
        return result
    slower, least_s = (cold_start, _filled_s(power)) if clocks == "cold_start" else (sustained, 0.0)
    full_s = max(result.makespan_s, least_s)
    factor = max(_slowdowns(cool, power, full_s))

    def step_s(assumed_s: float) -> float:
        nonlocal result
        result = run(slower(cool, device, step_s=assumed_s))
        return max(result.makespan_s, least_s)

    if factor > 1.0:
        settle(step_s, full_s, factor, power.exponent)
    return result


def settle(step_s: Callable[[float], float], took_s: float, factor: float, exponent: float) -> None:
    """Run a step at the clocks of an assumed time until it takes as long: the longer, the more power, the faster.

    It took `took_s` with kernels that in steps so long take `factor` times as long. Between two lengths m that were
    tried its time is taken to go as ``m**-e``, 0 <= e <= 1 / (exponent - 1): as none of it, or all, slows down.
    """
    tried_s = took_s * factor ** (exponent - 1)
    assumed_s = took_s * factor ** ((exponent - 1) / (2 * exponent - 1))  # if half of it slows down
    for _ in range(_MOST_RUNS if took_s else 0):
        found_s = step_s(assumed_s)
        falls = math.log(took_s / found_s) / (math.log(assumed_s / tried_s) or math.inf)
        share = min(max(0.0, falls), 1 / (exponent - 1))
        tried_s, took_s = assumed_s, found_s
        assumed_s = (found_s * assumed_s**share) ** (1 / (1 + share))
        if abs(found_s - assumed_s) <= SETTLED * assumed_s:
            break


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
    return program if device.power is None else _at_limit(program, device.power, step_s, stays=True)


def cold_start(program: Program, device: Device, *, step_s: float) -> Program:
    """Return a program at full clock, slowed down to the limit in the middle of steps of this length, from cold start.

    The governor's mean counts over ``max(T, memory / STEPS_FROM_COLD_START)``.
    """
    if device.power is None:
        return program
    return _at_limit(program, device.power, max(step_s, _filled_s(device.power)), stays=False)


def _filled_s(power: Power) -> float:
    """Return how long steps from a cold start are that fill the governor's memory."""
    return power.memory_s / STEPS_FROM_COLD_START


def _slowdowns(program: Program, power: Power, mean_over_s: float) -> list[float]:
    """Return how many times as long as at full clock the kernels of each role take in steps of this length."""
    first_of_role = [int(np.flatnonzero(program.role_of_rank == role)[0]) for role in range(len(program.graphs))]
    joules = joules_of_ranks(program, zip(first_of_role, program.graphs, strict=True), power)
    return [power.slowdown(each, mean_over_s) for each in joules]


def _at_limit(program: Program, power: Power, mean_over_s: float, *, stays: bool) -> Program:
    """Slow kernels down to the limit; where it `stays`, not those that exceed it by themselves."""
    factors = _slowdowns(program, power, mean_over_s)
    if max(factors, default=1.0) <= 1.0:
        return program
    each = iter(factors)
    return program.map_graphs(lambda graph: _slowed(graph, power, next(each), stays=stays))


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
