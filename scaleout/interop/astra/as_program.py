"""A run of ASTRA-sim to a program and a topology of ours.

Computation keeps its time. A collective spans the same ranks (all, lines along its dimensions, or a communicator group)
and is called in the order in which ASTRA-sim issued it; broadcasts, which ASTRA-sim replays, become collectives. A
switch, which it crosses in two hops, becomes one hop of twice the latency. Endpoint delays and the memory time of
reductions have no counterpart. Knows neither how long communication takes nor which algorithm carries it out.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from scaleout.cluster.topology.topology import Dimension, Topology
from scaleout.interop.astra.job import Job
from scaleout.interop.astra.network import Lines
from scaleout.interop.astra.plan import dimensions_of
from scaleout.interop.astra.run import History, Outcome
from scaleout.interop.astra.trace import EVERYONE, Graph, Task, Work
from scaleout.interop.chakra.trace_set import Group, gathered_families
from scaleout.program.graph import COLLECTIVES, ExecutionGraph, GraphBuilder, NodeKind, topological_order
from scaleout.program.operations import TimeSource
from scaleout.program.program import Program

KINDS = {"Ring": "ring", "Switch": "switch", "FullyConnected": "fully_connected"}
"""ASTRA-sim's kinds of dimension to ours."""

_SWITCH_HOPS = 2
_COMPUTE_STREAM, _COMMUNICATION_STREAM, _CPU_STREAM = range(3)


@dataclass(frozen=True, eq=False)
class Counterpart:
    """The same work as a program of ours.

    Attributes
    ----------
    orders : tuple of tuple of int
        For each role, the task of ASTRA-sim's graph that each node is.
    """

    program: Program
    topology: Topology
    orders: tuple[tuple[int, ...], ...]


def counterpart(outcome: Outcome, *, name: str) -> Counterpart:
    """Turn a run into a program and a topology."""
    job = outcome.job
    collectives = [[task for task in graph.tasks if task.kind] for graph in job.graphs]
    issued_by = {rank: _issued(job, history) for history in outcome.histories for rank in history.ranks}
    find = _group_finder(job)
    uses: dict[_Use, tuple[Group, ...]] = {}
    use_of_rank = []
    for rank, number in enumerate(job.graph_of):
        groups = tuple(find(task, rank) for task in collectives[number])
        use = (number, issued_by[rank], tuple(map(id, groups)))
        uses[use] = groups
        use_of_rank.append(use)
    families, family_of = gathered_families(
        [((number, issued), groups) for (number, issued, _), groups in uses.items()]
    )
    role_of_use = {
        (number, issued, key): (number, issued, tuple((family_of[group], len(group.members)) for group in groups))
        for (number, issued, key), groups in uses.items()
    }
    roles = {role: index for index, role in enumerate(dict.fromkeys(role_of_use.values()))}
    built = [_graph(job.graphs[number], issued, used) for number, issued, used in roles]
    program = Program(
        name,
        tuple(graph for graph, _ in built),
        np.array([roles[role_of_use[use]] for use in use_of_rank], np.int64),
        families,
    )
    return Counterpart(program, _topology(job), tuple(order for _, order in built))


_Use = tuple[int, tuple[int, ...], tuple[int, ...]]
"""What a rank does: its graph, its collectives in order of issue, and the group of each."""


def _issued(job: Job, history: History) -> tuple[int, ...]:
    tasks = job.graphs[history.graph].tasks
    return tuple(sorted((i for i, task in enumerate(tasks) if task.kind), key=lambda i: (history.start_ns[i], i)))


def _topology(job: Job) -> Topology:
    dimensions = tuple(
        Dimension(
            KINDS[dimension.kind],
            dimension.size,
            dimension.bytes_per_ns * 1e9,
            dimension.latency_ns * 1e-9 * (_SWITCH_HOPS if dimension.kind == "Switch" else 1),
        )
        for dimension in job.network.dimensions
    )
    name = "x".join(f"{dimension.kind}{dimension.size}" for dimension in job.network.dimensions)
    return Topology(name, dimensions, source="ASTRA-sim's network.yml")


def _group_finder(job: Job) -> Callable[[Task, int], Group]:
    """Return a function from collective and rank to group; equal groups are one object."""
    num_ranks = job.network.num_ranks
    everyone = Group(EVERYONE, tuple(range(num_ranks)))
    lines = cache(partial(Lines, job.network))

    @cache
    def line(dimensions: tuple[int, ...], first: int) -> Group:
        return Group(f"dimensions {', '.join(map(str, dimensions))} of rank {first}", lines(dimensions).of(first))

    @cache
    def named(key: str) -> Group:
        return Group(key, job.groups[key])

    def find(task: Task, rank: int) -> Group:
        if task.group != EVERYONE:
            return named(task.group) if len(job.groups[task.group]) < num_ranks else everyone
        if task.work != Work.COLLECTIVE:
            return everyone
        dimensions = dimensions_of(job, task.kind, task.involved)
        along = lines(dimensions)
        return line(dimensions, along.first_of[rank]) if len(along) > 1 else everyone

    return find


def _graph(
    graph: Graph, issued: tuple[int, ...], used: tuple[tuple[int, int], ...]
) -> tuple[ExecutionGraph, tuple[int, ...]]:
    """Build our graph; `used` has the family and the size of the group of each collective."""
    dependencies: list[list[int]] = [[] for _ in graph.tasks]
    for task, users in enumerate(graph.users):
        for user in users:
            dependencies[user].append(task)
    for earlier, later in itertools.pairwise(issued):
        dependencies[later].append(earlier)
    order = topological_order([sorted(set(row)) for row in dependencies], [task.name for task in graph.tasks])
    position = {task: node for node, task in enumerate(order)}
    group_of = dict(zip((index for index, task in enumerate(graph.tasks) if task.kind), used, strict=True))
    builder = GraphBuilder()
    for index in order:
        before = [position[task] for task in dependencies[index]]
        builder.add(before, name=graph.tasks[index].name, **_columns(graph.tasks[index], group_of.get(index)))
    return builder.build(), tuple(order)


def _columns(task: Task, group: tuple[int, int] | None) -> dict[str, Any]:
    if group is not None:
        family, num_members = group
        return {
            "kind": NodeKind.COLLECTIVE,
            "collective": COLLECTIVES.index(task.kind.replace("-", "_")),
            "bytes": task.size_bytes * (num_members if task.kind == "all-gather" else 1),  # from a shard to the whole
            "group": family,
            "stream": _COMMUNICATION_STREAM,
        }
    if task.work in (Work.SEND, Work.RECV):
        kind = NodeKind.SEND if task.work == Work.SEND else NodeKind.RECV
        return {"kind": kind, "peer": task.peer, "tag": task.tag, "bytes": task.size_bytes}
    return {
        "duration_s": task.duration_ns * 1e-9,
        "time_source": TimeSource.GIVEN,
        "stream": _CPU_STREAM if task.work == Work.CPU else _COMPUTE_STREAM,
    }
