"""Simulated steps by which schedules decide, and the baseline where it is shorter than what they made.

What is concurrent may be longer than the same one after another: kernels slow down beside collectives, and collectives
that nobody waits for yet take links from others whose stage everybody waits for. See docs/models/event-engine.md.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.placement import place
from scaleout.errors import ConfigError
from scaleout.program.fastest import is_faster
from scaleout.program.graph import COLLECTIVES, NodeKind
from scaleout.program.program import Program, alike
from scaleout.schedule.decision import Decision, Planned
from scaleout.schedule.overlap import baseline, in_program_order, overlap
from scaleout.simulation.contention import contention_of
from scaleout.simulation.cost_model import CostModel
from scaleout.simulation.result import Result
from scaleout.simulation.run import simulate


def step(program: Program, machine: Machine) -> Result:
    """Simulate a step of a program as it is scheduled, on a machine."""
    return simulated(in_program_order(program), machine)


def simulated(program: Program, machine: Machine) -> Result:
    """Simulate a step of a program whose collectives are in order; of the last programs, again what each came to.

    Tiers try what others have tried before them: nothing cut, or the baseline.
    """
    return _simulated(_Step(program, machine))


@dataclass(frozen=True, eq=False)
class _Step:
    """A program on a machine; equal to another one where all is equal, node by node, and the job's name too."""

    program: Program
    machine: Machine

    def __hash__(self) -> int:
        return hash(tuple(map(len, self.program.graphs)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Step) or self.program.name != other.program.name:
            return False
        return self.machine == other.machine and alike(self.program, other.program)


@lru_cache(maxsize=2)
def _simulated(asked: _Step) -> Result:
    machine = asked.machine
    return simulate(
        asked.program, machine.topology, network=machine.network, algorithms=machine.algorithms,
        injection_bytes_per_s=machine.injection_bytes_per_s, contention=contention_of(machine.device, machine.topology),
    )  # fmt: skip


def overlap_where_shorter(program: Program, machine: Machine | None = None) -> Program | Planned:
    """Move every collective to the stream of its group, or leave the baseline where that is shorter.

    Without a machine there is nothing to simulate, and collectives are moved.
    """
    moved = overlap(program)
    return moved if machine is None else or_baseline(Planned(moved), program, machine)


def overlap_with(option: str) -> Callable[[Program, Machine | None], Program]:
    """Return the pass `overlap` with an option; a ConfigError says that there is none but ``always``."""
    if option != "always":
        raise ConfigError(f"overlap takes the option 'always' alone, not {option!r}; give overlap or overlap:always")
    return overlap


def or_baseline(planned: Planned, program: Program, machine: Machine) -> Planned:
    """Return what was planned for a program with its step, or the baseline if that is shorter."""
    planned = planned if planned.result is not None else replace(planned, result=step(planned.program, machine))
    assert planned.result is not None
    step_s = planned.result.makespan_s
    if machine.network == "alpha_beta" and step_s <= _serial_s(program, machine):
        return planned
    serial = baseline(program)
    result = step(serial, machine)
    if not is_faster(result.makespan_s, step_s):
        return planned
    words = Decision("all collectives", "as under baseline", result.makespan_s, {"as scheduled": step_s})
    return replace(planned, program=serial, decisions=(words,), result=result)


def _serial_s(program: Program, machine: Machine) -> float:
    """Return how long some rank has kernels and collectives one after another, isolated: no baseline is shorter."""
    costs, longest_s, factors = CostModel(machine), 0.0, np.ones(program.num_ranks)
    for slow, factor in machine.topology.slow_ranks:
        factors[slow] = factor
    for role, graph in enumerate(program.graphs):
        rank = int(np.argmax(np.where(program.role_of_rank == role, factors, 0.0)))  # the slowest
        nodes = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)
        columns = (column[nodes].tolist() for column in (graph.group, graph.collective, graph.bytes))
        seconds = float(graph.duration_s[graph.kind == NodeKind.COMPUTE].sum()) * float(factors[rank])
        for (group, kind, size_bytes), count in Counter(zip(*columns, strict=True)).items():
            placement = place(machine.topology, program.groups[group].of(rank))
            seconds += count * costs.collective(COLLECTIVES[kind], float(size_bytes), (placement,)).time_s
        longest_s = max(longest_s, seconds)
    return longest_s
