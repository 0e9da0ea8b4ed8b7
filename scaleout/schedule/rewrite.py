"""Graphs written anew from old ones: nodes that stay, kernels and collectives that are cut into slices.

Slices of a kernel follow each other; those of a collective go onto its group's stream, each after its own part of the
data. FLOPs and bytes of the slices add up to those of the node exactly.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from scaleout.graph import NONE, ExecutionGraph, NodeKind, compress
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
    changes: list[dict[str, Any]] = field(default_factory=list)
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
        self.dependencies.append(tuple(sorted(needs)))
        self.origin.append(node)
        self.changes.append(changes)
        return len(self.origin) - 1

    def keep(self, node: int) -> None:
        """Write a node as it is."""
        self.done[node] = self.add(node, self.needs(node))

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
        parts: list[int] = []
        for index, (begin, end) in enumerate(pairwise(edges)):
            work = {name: between(int(getattr(graph, name)[node]), begin, end) for name in ("flops", "bytes")}
            duration_s = slower * (times_s[index + 1] - times_s[index]) + (call_s if index in calls else 0.0)
            name = f"{graph.names[node]}_{names[index]}"
            parts.append(self.add(node, [*after[index], *parts[-1:]], name=name, duration_s=duration_s, **work))
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
        graph = self.graph
        names = tuple(
            change.get("name", graph.names[old]) for old, change in zip(self.origin, self.changes, strict=True)
        )
        columns = {}
        for name in _CHANGED:
            columns[name] = getattr(graph, name)[self.origin].copy()
        for node, change in enumerate(self.changes):
            for name, value in change.items():
                if name != "name":
                    columns[name][node] = value
        for name in ("phase", "microbatch", "stage"):
            columns[name] = getattr(graph, name)[self.origin]
        offsets, flat = compress(self.dependencies)
        return graph.with_columns(names=names, dependency_offsets=offsets, dependencies=flat, **columns)


def between(total: int, begin: float, end: float) -> int:
    """Whole units between two fractions of a count; adjoining fractions add up to the count exactly."""
    return _upto(total, end) - _upto(total, begin)


def _upto(total: int, fraction: float) -> int:
    """Whole units up to a fraction of a count; the last one is exact where a float no longer holds the count."""
    return total if fraction == 1 else int(total * fraction)
