"""Graphs end to end: segments that repeat, such as the forward pass of every micro-batch, to one graph.

The nodes of a segment without dependencies wait for nodes before the segment. Segments are copied as columns, not node
by node. Knows nothing of what nodes do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scaleout.program.graph import FLOAT_COLUMNS, NEUTRAL, NONE, ExecutionGraph, Ints
from scaleout.program.operations import Kernel


@dataclass(frozen=True, eq=False)
class _Segment:
    graph: ExecutionGraph
    offset: int
    after: tuple[int, ...]
    waits: tuple[tuple[int, int], ...]
    columns: dict[str, Any]


@dataclass
class Splice:
    """Collects segments in order and freezes them into one graph."""

    _segments: list[_Segment] = field(default_factory=list)
    _size: int = 0

    def __len__(self) -> int:
        return self._size

    def add(
        self,
        graph: ExecutionGraph,
        *,
        after: Iterable[int] = (),
        waits: Iterable[tuple[int, int]] = (),
        **columns: Any,
    ) -> int:
        """Add a copy of a graph and return the index of its first node.

        Parameters
        ----------
        after : iterable of int
            Nodes of the whole that the segment's nodes without dependencies wait for.
        waits : iterable of (int, int)
            Nodes of the segment, and further nodes of the whole that each waits for.
        **columns
            Values to put in position of the segment's columns of integers: one for all nodes, or one for each.
        """
        offset = self._size
        self._segments.append(_Segment(graph, offset, tuple(sorted(set(after))), tuple(sorted(set(waits))), columns))
        self._size += len(graph)
        return offset

    def build(self) -> ExecutionGraph:
        """Freeze what was added."""
        kernels: dict[Kernel, int] = {}
        phases: dict[str, int] = {}
        found = {id(segment.graph): segment.graph for segment in self._segments}
        renumbered = {
            "kernel": {key: _renumbered(graph.kernels, kernels) for key, graph in found.items()},
            "phase": {key: _renumbered(graph.phases, phases) for key, graph in found.items()},
        }
        columns = {name: self._column(name, renumbered.get(name)) for name in NEUTRAL}
        rows = [_dependencies(segment) for segment in self._segments]
        counts = np.concatenate([counts for counts, _ in rows]) if rows else np.zeros(0, np.int64)
        return ExecutionGraph(
            names=tuple(name for segment in self._segments for name in segment.graph.names),
            dependency_offsets=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            dependencies=np.concatenate([flat for _, flat in rows]) if rows else np.zeros(0, np.int64),
            kernels=tuple(kernels),
            phases=tuple(phases) or ("",),
            **columns,
        )

    def _column(self, name: str, renumbered: Mapping[int, Ints] | None) -> Any:
        """Join a column of all segments; `renumbered` is what each graph's indices become, `NONE` the last of them."""
        values = []
        for segment in self._segments:
            given = segment.columns.get(name)
            own = getattr(segment.graph, name)
            own = own if renumbered is None else renumbered[id(segment.graph)][own]
            values.append(own if given is None else np.broadcast_to(np.asarray(given, np.int64), len(own)))
        return np.concatenate(values) if values else np.zeros(0, np.float64 if name in FLOAT_COLUMNS else np.int64)


def interleave(first: ExecutionGraph, second: ExecutionGraph) -> tuple[ExecutionGraph, Ints, Ints]:
    """Merge two concurrent graphs: nodes of each stay in order, those of both alternate.

    Returns
    -------
    graph : ExecutionGraph
    positions_of_first, positions_of_second : (N,)
        The indices of the nodes of each.
    """
    both = Splice()
    for graph in (first, second):
        both.add(graph)
    whole = both.build()
    progress = np.concatenate([(np.arange(len(graph)) + 0.5) / max(len(graph), 1) for graph in (first, second)])
    order = np.argsort(progress, kind="stable")
    position = np.argsort(order, kind="stable")
    return in_order(whole, order), position[: len(first)], position[len(first) :]


def in_order(graph: ExecutionGraph, order: Ints) -> ExecutionGraph:
    """Return a graph with its nodes in another order, (N,), in which every dependency precedes its user as well."""
    position = np.argsort(order, kind="stable")
    counts = np.diff(graph.dependency_offsets)
    users = np.repeat(np.arange(len(graph)), counts)
    sorting = np.lexsort((position[graph.dependencies], position[users]))
    columns = {name: getattr(graph, name)[order] for name in NEUTRAL}
    return graph.with_columns(
        names=tuple(graph.names[node] for node in order.tolist()),
        dependency_offsets=np.concatenate(([0], np.cumsum(counts[order]))).astype(np.int64),
        dependencies=position[graph.dependencies][sorting],
        **columns,
    )


def _renumbered(values: tuple[Any, ...], numbers: dict[Any, int]) -> Ints:
    return np.array([*(numbers.setdefault(value, len(numbers)) for value in values), NONE], np.int64)


def _dependencies(segment: _Segment) -> tuple[Ints, Ints]:
    """Count the dependencies of each node of a segment, and list them."""
    graph = segment.graph
    counts = np.diff(graph.dependency_offsets)
    flat = graph.dependencies + segment.offset
    entries = np.flatnonzero(counts == 0)
    if segment.after and len(entries):
        at = np.repeat(graph.dependency_offsets[entries], len(segment.after))
        flat = np.insert(flat, at, np.tile(np.array(segment.after, np.int64), len(entries)))
        counts = np.where(counts == 0, len(segment.after), counts)
    if segment.waits:
        users, needs = np.array(segment.waits, np.int64).T
        flat = np.insert(flat, np.cumsum(counts)[users] - counts[users], needs)  # earlier than all of the segment
        np.add.at(counts, users, 1)
    return counts, flat
