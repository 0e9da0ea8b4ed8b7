"""ASTRA-sim's answer as a result of ours: the same program, and when each of its nodes ran there.

So its runs have the breakdowns, critical paths, tables and timelines that ours have. A collective lasts from when its
last member came to when a rank had it, and waiting for the others is idle time, as it is in our results; a receive
takes no time of its own. Knows neither files nor networks.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaleout.interop.astra import Outcome
from scaleout.interop.astra.as_program import Counterpart
from scaleout.interop.astra.trace import Task, Work
from scaleout.program.graph import NONE, ExecutionGraph, Ints
from scaleout.simulation.result import Result, Timeline


@dataclass(eq=False)
class _Line:
    """Ranks of one history and one role; times by node, in ns."""

    ranks: tuple[int, ...]
    graph: ExecutionGraph
    tasks: list[Task]
    begun: Ints
    start: Ints
    end: Ints
    offset: int

    def before(self, node: int) -> int:
        """Return the node whose end let this one begin, its dependencies first; `NONE` for none."""
        at = self.begun[node]
        candidates = np.flatnonzero(self.end == at)
        earlier = candidates[(self.begun[candidates] < at) | (candidates < node)]
        needed = earlier[np.isin(earlier, self.graph.dependencies_of(node))]
        found = needed if needed.size else earlier
        return self.offset + int(found[-1]) if found.size else NONE


def result_of(outcome: Outcome, parts: Counterpart) -> Result:
    """Tell an outcome as a result of the counterpart's program."""
    lines = _lines(outcome, parts)
    causes = _causes(lines, parts)
    job = outcome.job
    names = {kind.replace("-", "_"): "+".join(job.system.implementation(kind)) for kind in job.algorithms}
    timelines = []
    for line, cause in zip(lines, causes, strict=True):
        start_s, end_s = (np.asarray(times * 1e-9, np.float64) for times in (line.start, line.end))
        used = tuple(names.get(line.graph.operation(node), "") for node in range(len(line.graph)))
        timelines.append(
            Timeline(line.graph, line.ranks, start_s, end_s, end_s - start_s, end_s - start_s, cause, used)
        )
    network = "aware" if job.aware else "unaware"
    return Result(parts.program, parts.topology.name, network, tuple(timelines))


def _lines(outcome: Outcome, parts: Counterpart) -> list[_Line]:
    lines = []
    offset = 0
    for history in outcome.histories:
        by_role: dict[int, list[int]] = defaultdict(list)
        for rank in history.ranks:
            by_role[int(parts.program.role_of_rank[rank])].append(rank)
        for role, ranks in by_role.items():
            order = parts.orders[role]
            begun = np.array([history.start_ns[task] for task in order], np.int64)
            end = np.array([history.end_ns[task] for task in order], np.int64)
            tasks = [outcome.job.graphs[history.graph].tasks[task] for task in order]
            start = np.where([task.work == Work.RECV for task in tasks], end, begun)
            lines.append(_Line(tuple(ranks), parts.program.graphs[role], tasks, begun, start, end, offset))
            offset += len(order)
    return lines


def _causes(lines: Sequence[_Line], parts: Counterpart) -> list[Ints]:
    """Say what each node waited for last, and let collectives start when their last member has come."""
    last = _last_members(lines, parts)
    sends = _sends(lines)
    causes = []
    for line in lines:
        cause = np.array([line.before(node) for node in range(len(line.graph))], np.int64)
        received: dict[tuple[int, int, int], int] = defaultdict(int)
        for node in np.argsort(line.begun, kind="stable").tolist():
            task = line.tasks[node]
            if task.work == Work.RECV:
                key = (task.peer, task.tag, task.size_bytes)
                sent, came = sends[(*key, line.ranks[0])][received[key]]
                received[key] += 1
                cause[node] = sent if came == line.end[node] else cause[node]
        causes.append(cause)
    by_offset = {line.offset + node: (line, node) for line in lines for node in range(len(line.graph))}
    starts = []
    for line, cause in zip(lines, causes, strict=True):
        start = line.start.copy()
        for node, latest in last.get(line.offset, {}).items():
            other, other_node = by_offset[latest]
            start[node] = min(other.begun[other_node], line.end[node])
            cause[node] = other.before(other_node)
        starts.append(start)
    for line, start in zip(lines, starts, strict=True):
        line.start = start
    return causes


def _last_members(lines: Sequence[_Line], parts: Counterpart) -> dict[int, dict[int, int]]:
    """Return, by line and node of a collective, the node with which its last member came."""
    latest: dict[tuple[int, int, int], tuple[int, int]] = {}
    meets: list[tuple[int, int, list[tuple[int, int, int]]]] = []
    for line in lines:
        count: dict[int, int] = defaultdict(int)
        for node in np.argsort(line.begun, kind="stable").tolist():
            if line.tasks[node].work != Work.COLLECTIVE:
                continue
            family = int(line.graph.group[node])
            groups = {parts.program.groups[family].group_of_rank[rank] for rank in line.ranks}
            keys = [(family, group, count[family]) for group in sorted(groups)]
            count[family] += 1
            for key in keys:
                latest[key] = max(latest.get(key, (-1, NONE)), (int(line.begun[node]), line.offset + node))
            meets.append((line.offset, node, keys))
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for offset, node, keys in meets:
        found[offset][node] = max(latest[key] for key in keys)[1]
    return found


def _sends(lines: Sequence[_Line]) -> dict[tuple[int, int, int, int], list[tuple[int, int]]]:
    """Return the nodes that sent, and when the message was there: by source, tag, bytes and target, in order."""
    sends: dict[tuple[int, int, int, int], list[tuple[int, int]]] = defaultdict(list)
    for line in lines:
        for node in np.argsort(line.begun, kind="stable").tolist():
            task = line.tasks[node]
            if task.work == Work.SEND:
                key = (line.ranks[0], task.tag, task.size_bytes, task.peer)
                sends[key].append((line.offset + node, int(line.end[node])))
    return sends
