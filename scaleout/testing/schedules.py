"""What every schedule keeps: work and payload, its input, determinism, and makespans within their bounds."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import load_topology
from scaleout.program.graph import NONE, ExecutionGraph, NodeKind
from scaleout.program.program import Program
from scaleout.schedule import SCHEDULES, apply_schedule, passes_of, substituting
from scaleout.simulation.run import simulate
from scaleout.study.job import Job, prepare, timed
from scaleout.workloads.families import load_workload

_ROUNDING = 1e-9

_JOBS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("llama-small", {"layers": 2, "data_parallel": 8}, "dgx-h200-1"),
    ("llama-small", {"layers": 2, "data_parallel": 2, "tensor_parallel": 4}, "dgx-h200-1"),
    ("llama-small", {"layers": 4, "data_parallel": 2, "pipeline_parallel": 4, "batch_per_replica": 4}, "dgx-h200-1"),
    ("llama-small", {"layers": 2, "data_parallel": 8, "zero": 3}, "dgx-h200-1"),
    ("dlrm-128", {"global_batch": 256}, "torus-8x16"),
)
"""Workload, its keys, and the network on which a schedule is tried."""


def check_schedule(schedule: str) -> None:
    """Hold a schedule to the contract of all: on five small jobs, each under every law.

    It conserves FLOPs, memory traffic, kernel time and the payload of every kind of collective on every rank, leaves
    its input as it is, returns the same graphs again, and its makespan is no shorter than the longest chain of
    dependencies or the kernels of any rank. Passes that weigh costs may change kernel times, and those that substitute
    collectives their payload.

    Raises
    ------
    AssertionError
        Which law does not hold, and for what job.
    ConfigError
        If there is no such schedule.

    Examples
    --------
    >>> import scaleout.testing
    >>> scaleout.testing.check_schedule("overlap")
    """
    for what, program, machine in _tried(schedule):
        try:
            conserves(schedule, program, machine if _weighs(schedule) else None)
            keeps_bounds(schedule, program, machine)
        except AssertionError as broken:
            raise AssertionError(f"schedule {schedule}, {what}: {broken}") from None


def _tried(schedule: str) -> Iterator[tuple[str, Program, Machine]]:
    passes_of(schedule)
    for name, keys, topology in _JOBS:
        workload = load_workload(name, {**keys, "device": "h200", "topology": topology})
        job = Job(workload, load_device("h200"), load_topology(topology))
        assert job.machine is not None
        words = ", ".join(f"{key} {value}" for key, value in keys.items())
        yield f"{name} with {words}", timed(prepare(job)[0].work, job.machine.device), job.machine


def conserves(schedule: str, program: Program, machine: Machine | None = None) -> None:
    """Hold a schedule of a program to the conservation laws; `AssertionError` says which is broken."""
    before = columns_of(program)
    scheduled = apply_schedule(program, schedule, machine=machine)
    _same(columns_of(program) == before, "changes its input; return a new program (graph.with_columns, map_graphs)")
    again = apply_schedule(program, schedule, machine=machine)
    _same(columns_of(again) == columns_of(scheduled), "returns other graphs the second time")
    _same(scheduled.total_flops == program.total_flops, "does not conserve FLOPs")
    _same(scheduled.num_ranks == program.num_ranks, "changes the number of ranks")
    whole = not substituting(schedule)
    _same(not whole or scheduled.payload_bytes == program.payload_bytes, "does not conserve the payload")
    weighs = _weighs(schedule)
    for rank in range(program.num_ranks):  # roles may split
        old, new = (each.graphs[each.role_of_rank[rank]] for each in (program, scheduled))
        if whole:
            _same(
                payload_of_kinds(new) == payload_of_kinds(old), f"rank {rank}: payload moves to other kinds or groups"
            )
        memory = [int(graph.bytes[graph.kind == NodeKind.COMPUTE].sum()) for graph in (old, new)]
        _same(memory[0] == memory[1], f"rank {rank}: kernels move {memory[1]} bytes, and {memory[0]} before")
        seconds = [kernel_s(graph) for graph in (old, new)]
        close = np.isclose(seconds[1], seconds[0], rtol=1e-12, atol=1e-20)
        _same(weighs or bool(close), f"rank {rank}: kernels take {seconds[1]:g} s, and {seconds[0]:g} s before")


def _weighs(schedule: str) -> bool:
    """Whether a schedule needs a machine, of which kernels in parts take more."""
    passes = [SCHEDULES[part.partition(":")[0]] for part in schedule.split("+")]
    return any(each.decides or each.needs for each in passes)


def keeps_bounds(schedule: str, program: Program, machine: Machine) -> None:
    """Hold the makespan of a schedule of a program to its bounds; `AssertionError` says which is broken."""
    scheduled = apply_schedule(program, schedule, machine=machine)
    results = [simulate(scheduled, machine.topology) for _ in range(2)]
    makespan_s = results[0].makespan_s * (1 + _ROUNDING)
    _same(results[0].makespan_s == results[1].makespan_s, "is simulated to another makespan the second time")
    for line in results[0].timelines:
        rank = line.ranks[0]
        _same(makespan_s >= chain_s(line.graph, line.duration_s), f"rank {rank}: shorter than its longest chain")
        _same(makespan_s >= kernel_s(line.graph), f"rank {rank}: shorter than its kernels")


def _same(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def columns_of(program: Program) -> list[tuple[str, Any]]:
    """Return every column of every graph, as bytes."""
    return [
        (field.name, value.tobytes() if isinstance(value, np.ndarray) else value)
        for graph in program.graphs
        for field in dataclasses.fields(graph)
        for value in [getattr(graph, field.name)]
    ]


def payload_of_kinds(graph: ExecutionGraph) -> dict[tuple[int, int, int], int]:
    """Return bytes of each kind; puts count as the collective that they carry out, by their sends."""
    totals: dict[tuple[int, int, int], int] = {}
    for node in np.flatnonzero(graph.kind != NodeKind.COMPUTE).tolist():
        kind, collective = int(graph.kind[node]), int(graph.collective[node])
        if collective != NONE and kind == NodeKind.RECV:
            continue
        key = (int(NodeKind.COLLECTIVE) if collective != NONE else kind, collective, int(graph.group[node]))
        totals[key] = totals.get(key, 0) + int(graph.bytes[node])
    return totals


def kernel_s(graph: ExecutionGraph) -> float:
    """Return the time of all kernels of a graph."""
    return float(graph.duration_s[graph.kind == NodeKind.COMPUTE].sum())


def chain_s(graph: ExecutionGraph, duration_s: Any) -> float:
    """Return the length of a graph's longest chain of dependencies; every dependency precedes its user."""
    ends = np.zeros(len(graph))
    for node in range(len(graph)):
        before = graph.dependencies_of(node)
        ends[node] = duration_s[node] + (ends[before].max() if len(before) else 0.0)
    return float(ends.max(initial=0.0))
