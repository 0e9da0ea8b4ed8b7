"""Graphs written anew from old ones: nodes that stay, kernels and collectives that are cut into slices.

Slices of a kernel follow each other; those of a collective go onto its group's stream, each after its own part of the
data. FLOPs and bytes of the slices add up to those of the node exactly.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from scaleout.graph import NONE, ExecutionGraph, Ints, NodeKind
from scaleout.operations import TimeSource
from scaleout.schedule.overlap import communication_stream

_CHANGED = (
    "kind", "collective", "group", "kernel", "duration_s", "time_source", "flops", "bytes", "pieces", "stream",
    "priority", "peer", "tag", "issue_s",
)  # fmt: skip
"""Columns that a new node may have otherwise than the one it comes from."""


@dataclass
class Rewrite:
    """The new graph as it is written: where each node comes from, what it waits for, and what differs."""

    graph: ExecutionGraph
    origin: list[int] = field(default_factory=list)
    dependencies: list[tuple[int, ...]] = field(default_factory=list)
    changes: dict[int, dict[str, Any]] = field(default_factory=dict)  # new node to its columns that differ
    kept: list[int] = field(default_factory=list)  # new nodes that wait for what they did
    done: dict[int, int] = field(default_factory=dict)  # old node to the new one after which it is done
    sliced: dict[int, list[int]] = field(default_factory=dict)  # old node to its slices that are sent
    holds: dict[int, int] = field(default_factory=dict)  # stream to the new node that holds it up

    def __post_init__(self) -> None:
        graph = self.graph
        self._offsets, self._flat = graph.dependency_offsets.tolist(), graph.dependencies.tolist()

    def add(self, node: int, after: Iterable[int], **changes: Any) -> int:
        """Write a node that comes from an old one, with some columns changed."""
        needs = set(after)
        if self.holds:
            held = self.holds.get(changes.get("stream", int(self.graph.stream[node])))
            needs |= set() if held is None else {held}
        new = len(self.origin)
        self.dependencies.append(tuple(sorted(needs)))
        self.origin.append(node)
        if changes:
            self.changes[new] = changes
        return new

    def keep(self, node: int) -> None:
        """Write a node as it is; what it waits for is looked up when the graph is built."""
        new = self.done[node] = len(self.origin)
        self.kept.append(new)
        self.dependencies.append(())
        self.origin.append(node)

    def needs(self, node: int) -> list[int]:
        """Return what an old node waits for, as new nodes."""
        return [self.done[old] for old in self._flat[self._offsets[node] : self._offsets[node + 1]]]

    def add_kernel(
        self,
        node: int,
        edges: Sequence[float],
        after: Sequence[Sequence[int]],
        names: Sequence[str],
        *,
        ends_s: Sequence[float] = (),
        slower: float = 1.0,
        calls: Collection[int] = (),
        call_s: float = 0.0,
    ) -> list[int]:
        """Write a kernel in parts, one after the other: part i is the work between edges i and i + 1.

        Parameters
        ----------
        ends_s : sequence of float
            When each part ends, from the kernel's begin; by default each takes its share of the kernel's time.
        slower : float
            How many times as long the kernel takes as alone.
        calls, call_s
            Parts that make a call, and how long it takes.
        """
        graph = self.graph
        times_s = [0.0, *ends_s] if ends_s else [float(graph.duration_s[node]) * edge for edge in edges]
        flops, size_bytes, whole = int(graph.flops[node]), int(graph.bytes[node]), graph.names[node]
        parts: list[int] = []
        for index, (begin, end) in enumerate(pairwise(edges)):
            part = self.add(
                node,
                [*after[index], *parts[-1:]],
                name=f"{whole}_{names[index]}",
                duration_s=slower * (times_s[index + 1] - times_s[index]) + (call_s if index in calls else 0.0),
                flops=between(flops, begin, end),
                bytes=between(size_bytes, begin, end),
            )
            parts.append(part)
        return parts

    def add_collective(self, node: int, after: Sequence[Sequence[int]], **changes: Any) -> list[int]:
        """Write the slices of a collective, equal ones, each after its own part of the data."""
        graph, slices = self.graph, len(after)
        stream = communication_stream(int(graph.group[node]))
        total = int(graph.bytes[node])
        return [
            self.add(
                node,
                after[index],
                name=f"{graph.names[node]}_slice_{index}",
                bytes=between(total, index / slices, (index + 1) / slices),
                pieces=slices,
                stream=stream,
                **changes,
            )
            for index in range(slices)
        ]

    def join(self, node: int, after: Iterable[int]) -> int:
        """Write a node of no duration after others."""
        return self.add(
            node, after, name=f"{self.graph.names[node]}_done", kind=int(NodeKind.COMPUTE), collective=NONE, group=NONE,
            kernel=NONE, duration_s=0.0, flops=0, bytes=0, time_source=int(TimeSource.GIVEN),
        )  # fmt: skip

    def build(self) -> ExecutionGraph:
        """Freeze the new graph."""
        graph, origin = self.graph, np.array(self.origin, np.int64)
        names = [graph.names[old] for old in self.origin]
        changed: dict[str, tuple[list[int], list[Any]]] = {name: ([], []) for name in _CHANGED}
        for node, change in self.changes.items():
            for column, value in change.items():
                if column == "name":
                    names[node] = value
                else:
                    nodes, values = changed[column]
                    nodes.append(node)
                    values.append(value)
        columns = {name: getattr(graph, name)[origin] for name in (*_CHANGED, "phase", "microbatch", "stage")}
        for name, (nodes, values) in changed.items():
            columns[name][nodes] = values
        offsets, flat = self._compressed(origin)
        return graph.with_columns(names=tuple(names), dependency_offsets=offsets, dependencies=flat, **columns)

    def _compressed(self, origin: Ints) -> tuple[Ints, Ints]:
        """Return what the new nodes wait for, in compressed sparse rows."""
        old_offsets = self.graph.dependency_offsets
        counts = np.fromiter(map(len, self.dependencies), np.int64, len(origin))
        kept = np.zeros(len(origin), bool)
        kept[self.kept] = True
        counts[kept] = np.diff(old_offsets)[origin[kept]]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        done = np.full(len(self.graph), NONE, np.int64)
        done[list(self.done)] = list(self.done.values())
        of_kept = np.repeat(kept, counts)
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        flat = np.empty(offsets[-1], np.int64)
        flat[of_kept] = done[self.graph.dependencies[(np.repeat(old_offsets[origin], counts) + within)[of_kept]]]
        flat[~of_kept] = [need for row in self.dependencies for need in row]
        return offsets, flat


def between(total: int, begin: float, end: float) -> int:
    """Whole units between two fractions of a count; adjoining fractions add up to the count exactly."""
    return _upto(total, end) - _upto(total, begin)


def _upto(total: int, fraction: float) -> int:
    """Whole units up to a fraction of a count; the last one is exact where a float no longer holds the count."""
    return total if fraction == 1 else int(total * fraction)
