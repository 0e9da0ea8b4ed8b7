"""Clocks of an edited recording: at the power limit, a step that draws less than the recorded one runs faster.

Matrix kernels of a step at the power limit take s times as long as at full clock, with s of the step's energy and time
(docs/models/clocks-and-power.md), and s' after an edit: their recorded times change by ``s' / s``. Kernels bound by
memory keep theirs: the governor lowers the clock of the SMs, not that of the memory. A pipeline keeps its clock: its
ranks wait in kernels that poll, and what these draw is not known.
"""

from collections.abc import Callable, Sequence

import numpy as np

from scaleout.cluster.device.sections import Power
from scaleout.cluster.device.spec import Device
from scaleout.errors import SimulationError
from scaleout.program.graph import ExecutionGraph, NodeKind
from scaleout.program.program import Program
from scaleout.simulation.clocks import joules_of_ranks, settle
from scaleout.study.edits.slowdown import replay


def at_own_clock(
    program: Program, device: Device | None, recorded: Program, lossy: Callable[[Program], Program]
) -> tuple[Program, str]:
    """Return an edited program whose matrix kernels run at the clock that its power leaves them, and that in words.

    Both programs are without what kernels lose to collectives beside them, which `lossy` adds.
    """
    power = device.power if device is not None else None
    sends = any((graph.kind >= NodeKind.SEND).any() for graph in recorded.graphs)
    if power is None or sends:
        return program, ""
    try:
        before = _slowdowns(recorded, power, replay(lossy(recorded)).makespan_s)
        own, after = program, before

        def step_s(assumed_s: float) -> float:
            nonlocal own, after
            after = _slowdowns(program, power, assumed_s)
            own = _slowed(program, power, [new / old for new, old in zip(after, before, strict=True)])
            return replay(lossy(own)).makespan_s

        took_s = replay(lossy(program)).makespan_s
        in_so_long = _slowdowns(program, power, took_s)
        settle(step_s, took_s, max(in_so_long) / max(before), power.exponent)
    except SimulationError:  # which whoever runs the recording is told
        return program, ""
    if max(before) <= 1 and max(after) <= 1:
        return program, ""
    return own, (
        f"clocks: at the power limit GEMMs and attention take {max(before):.3f} times as long as at full clock in the "
        f"recorded steps, {max(after):.3f} times in the edited ones"
    )


def _slowdowns(program: Program, power: Power, makespan_s: float) -> list[float]:
    """Return how many times as long as at full clock the matrix kernels of each graph take."""
    found = [1.0] * len(program.graphs)  # 1 where no rank runs it any more
    roles, ranks = (each.tolist() for each in np.unique(program.role_of_rank, return_index=True))
    graphs = ((rank, program.graphs[role]) for role, rank in zip(roles, ranks, strict=True))
    for role, joules in zip(roles, joules_of_ranks(program, graphs, power), strict=True):
        if makespan_s:
            found[role] = power.slowdown(joules, makespan_s)
    return found


def _slowed(program: Program, power: Power, factors: Sequence[float]) -> Program:
    each = iter(factors)

    def slow(graph: ExecutionGraph) -> ExecutionGraph:
        matrix = np.array([power.joules_per_flop(call) is not None for call in graph.kernels] + [False])[graph.kernel]
        factor = np.where(matrix & (graph.kind == NodeKind.COMPUTE), next(each), 1.0)
        return graph.with_columns(duration_s=graph.duration_s * factor)

    return program.map_graphs(slow)
