"""A run of ASTRA-sim to a program, a topology and a result of ours.

Computation keeps its time. A collective spans the same ranks (all, lines along its dimensions, or a communicator group)
and is called in the order in which ASTRA-sim issued it; broadcasts, which ASTRA-sim replays, become collectives. A
switch, which it crosses in two hops, becomes one hop of twice the latency. Endpoint delays and the memory time of
reductions have no counterpart. As in our results, a collective lasts from the arrival of its last member, and a receive
takes no time of its own.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
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
from scaleout.program.graph import (
    COLLECTIVES,
    NONE,
    ExecutionGraph,
    GraphBuilder,
    Ints,
    NodeKind,
    topological_order,
)
from scaleout.program.operations import TimeSource
from scaleout.program.program import Program
from scaleout.simulation.result import Result, Served, Timeline

KINDS = {"Ring": "ring", "Switch": "switch", "FullyConnected": "fully_connected"}
"""ASTRA-sim's kinds of dimension to ours."""

_SWITCH_HOPS = 2
_COMPUTE_STREAM, _COMMUNICATION_STREAM, _CPU_STREAM = range(3)


@dataclass(frozen=True, eq=False)
class Counterpart:
    """The same work as a program of ours."""

    program: Program
    topology: Topology
    orders: tuple[tuple[int, ...], ...]  # for each role, the task of ASTRA-sim's graph that each node is


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


@dataclass(frozen=True, eq=False)
class _Line:
    """Ranks of one history and one role; times by node [ns]."""

    ranks: tuple[int, ...]
    graph: ExecutionGraph
    tasks: list[Task]
    issued: Ints
    start: Ints
    end: Ints
    offset: int

    def before(self, node: int) -> int:
        """Return the node whose end let this one start, its dependencies first; `NONE` for none."""
        at = self.issued[node]
        candidates = np.flatnonzero(self.end == at)
        earlier = candidates[(self.issued[candidates] < at) | (candidates < node)]
        needed = earlier[np.isin(earlier, self.graph.dependencies_of(node))]
        found = needed if needed.size else earlier
        return self.offset + int(found[-1]) if found.size else NONE


def result_of(outcome: Outcome, ours: Counterpart) -> Result:
    """Turn an outcome into a result of the counterpart's program."""
    lines = _lines(outcome, ours)
    causes = _causes(lines, ours)
    job = outcome.job
    names = {kind.replace("-", "_"): "+".join(job.system.implementation(kind)) for kind in job.algorithms}
    timelines = []
    for line, cause in zip(lines, causes, strict=True):
        start_s, end_s = (np.asarray(times * 1e-9, np.float64) for times in (line.start, line.end))
        lasts_s, used = end_s - start_s, (names.get(line.graph.operation(node), "") for node in range(len(line.graph)))
        timelines.append(
            Timeline(line.graph, line.ranks, start_s, end_s, lasts_s, lasts_s, cause.astype(np.int32), Served.of(used))
        )
    network = "aware" if job.aware else "unaware"
    return Result(ours.program, ours.topology.name, network, tuple(timelines))


def _lines(outcome: Outcome, ours: Counterpart) -> list[_Line]:
    lines = []
    offset = 0
    for history in outcome.histories:
        by_role: dict[int, list[int]] = defaultdict(list)
        for rank in history.ranks:
            by_role[int(ours.program.role_of_rank[rank])].append(rank)
        for role, ranks in by_role.items():
            order = ours.orders[role]
            issued = np.array([history.start_ns[task] for task in order], np.int64)
            end = np.array([history.end_ns[task] for task in order], np.int64)
            tasks = [outcome.job.graphs[history.graph].tasks[task] for task in order]
            start = np.where([task.work == Work.RECV for task in tasks], end, issued)
            lines.append(_Line(tuple(ranks), ours.program.graphs[role], tasks, issued, start, end, offset))
            offset += len(order)
    return lines


def _causes(lines: Sequence[_Line], ours: Counterpart) -> list[Ints]:
    """Return what each node waited for last, and let collectives start when their last member has arrived."""
    last = _last_members(lines, ours)
    sends = _sends(lines)
    causes = []
    for line in lines:
        cause = np.array([line.before(node) for node in range(len(line.graph))], np.int64)
        received: dict[tuple[int, int, int], int] = defaultdict(int)
        for node in np.argsort(line.issued, kind="stable").tolist():
            task = line.tasks[node]
            if task.work == Work.RECV:
                key = (task.peer, task.tag, task.size_bytes)
                sent, arrived = sends[(*key, line.ranks[0])][received[key]]
                received[key] += 1
                cause[node] = sent if arrived == line.end[node] else cause[node]
        causes.append(cause)
    by_offset = {line.offset + node: (line, node) for line in lines for node in range(len(line.graph))}
    for line, cause in zip(lines, causes, strict=True):
        for node, latest in last.get(line.offset, {}).items():
            other, other_node = by_offset[latest]
            line.start[node] = min(other.issued[other_node], line.end[node])
            cause[node] = other.before(other_node)
    return causes


def _last_members(lines: Sequence[_Line], ours: Counterpart) -> dict[int, dict[int, int]]:
    """Return, by line and node of a collective, the node of its last member to arrive."""
    latest: dict[tuple[int, int, int], tuple[int, int]] = {}
    arrivals: list[tuple[int, int, list[tuple[int, int, int]]]] = []
    for line in lines:
        count: dict[int, int] = defaultdict(int)
        for node in np.argsort(line.issued, kind="stable").tolist():
            if line.tasks[node].work != Work.COLLECTIVE:
                continue
            family = int(line.graph.group[node])
            groups = {ours.program.groups[family].group_of_rank[rank] for rank in line.ranks}
            keys = [(family, group, count[family]) for group in sorted(groups)]
            count[family] += 1
            for key in keys:
                latest[key] = max(latest.get(key, (-1, NONE)), (int(line.issued[node]), line.offset + node))
            arrivals.append((line.offset, node, keys))
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for offset, node, keys in arrivals:
        found[offset][node] = max(latest[key] for key in keys)[1]
    return found


def _sends(lines: Sequence[_Line]) -> dict[tuple[int, int, int, int], list[tuple[int, int]]]:
    """Return nodes that sent, and when the message arrived: by source, tag, bytes and target, in order."""
    sends: dict[tuple[int, int, int, int], list[tuple[int, int]]] = defaultdict(list)
    for line in lines:
        for node in np.argsort(line.issued, kind="stable").tolist():
            task = line.tasks[node]
            if task.work == Work.SEND:
                key = (line.ranks[0], task.tag, task.size_bytes, task.peer)
                sends[key].append((line.offset + node, int(line.end[node])))
    return sends
