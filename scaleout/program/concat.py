"""Graphs end to end: parts that repeat, such as the forward pass of every micro-batch, to one graph.

A part is a graph that is put in as a whole: its nodes without dependencies wait for nodes that came before. Parts are
laid out as columns, so a thousand copies cost a thousand copies of memory and no more. Knows nothing of what they do.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scaleout.program.graph import FLOAT_COLUMNS, NEUTRAL, NONE, ExecutionGraph, Ints
from scaleout.program.operations import Kernel


@dataclass(frozen=True, eq=False)
class _Part:
    graph: ExecutionGraph
    offset: int
    after: tuple[int, ...]
    waits: tuple[tuple[int, int], ...]
    columns: dict[str, Any]


@dataclass
class Splice:
    """Collects parts in order and freezes them into one graph."""

    _parts: list[_Part] = field(default_factory=list)
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
        """Add a copy of a graph.

        Parameters
        ----------
        after : iterable of int
            Nodes of the whole that those of the part wait for which wait for none of the part.
        waits : iterable of (int, int)
            Nodes of the part, and nodes of the whole that each of them waits for besides.
        **columns
            Values to put in place of the part's columns of integers: one for all nodes, or one for each.

        Returns
        -------
        int
            Where the part's nodes begin.
        """
        offset = self._size
        self._parts.append(_Part(graph, offset, tuple(sorted(set(after))), tuple(sorted(set(waits))), columns))
        self._size += len(graph)
        return offset

    def build(self) -> ExecutionGraph:
        """Freeze what was added."""
        kernels: dict[Kernel, int] = {}
        phases: dict[str, int] = {}
        found = {id(part.graph): part.graph for part in self._parts}
        to_kernel = {key: _renumbered(graph.kernels, kernels) for key, graph in found.items()}
        to_phase = {key: _renumbered(graph.phases, phases) for key, graph in found.items()}
        columns = {name: self._column(name) for name in NEUTRAL if name not in ("kernel", "phase")}
        # `NONE` is the last entry of a renumbering.
        kernel = [to_kernel[id(part.graph)][part.graph.kernel] for part in self._parts]
        phase = [to_phase[id(part.graph)][part.graph.phase] for part in self._parts]
        rows = [_dependencies(part) for part in self._parts]
        counts = np.concatenate([counts for counts, _ in rows]) if rows else np.zeros(0, np.int64)
        return ExecutionGraph(
            names=tuple(name for part in self._parts for name in part.graph.names),
            kernel=np.concatenate(kernel) if kernel else np.zeros(0, np.int64),
            phase=np.concatenate(phase) if phase else np.zeros(0, np.int64),
            dependency_offsets=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            dependencies=np.concatenate([flat for _, flat in rows]) if rows else np.zeros(0, np.int64),
            kernels=tuple(kernels),
            phases=tuple(phases) or ("",),
            **columns,
        )

    def _column(self, name: str) -> Any:
        parts = []
        for part in self._parts:
            given = part.columns.get(name)
            own = getattr(part.graph, name)
            parts.append(own if given is None else np.broadcast_to(np.asarray(given, np.int64), len(own)))
        return np.concatenate(parts) if parts else np.zeros(0, np.float64 if name in FLOAT_COLUMNS else np.int64)


def interleave(first: ExecutionGraph, second: ExecutionGraph) -> tuple[ExecutionGraph, Ints, Ints]:
    """Merge two graphs that run at the same time: nodes of each stay in order, those of both alternate.

    Returns
    -------
    graph : ExecutionGraph
    places_of_first, places_of_second : (N,)
        Where the nodes of each are in it.
    """
    both = Splice()
    for graph in (first, second):
        both.add(graph)
    whole = both.build()
    progress = np.concatenate([(np.arange(len(graph)) + 0.5) / max(len(graph), 1) for graph in (first, second)])
    order = np.argsort(progress, kind="stable")
    place = np.argsort(order, kind="stable")
    return in_order(whole, order), place[: len(first)], place[len(first) :]


def in_order(graph: ExecutionGraph, order: Ints) -> ExecutionGraph:
    """Return a graph with its nodes in another order, (N,), in which every dependency precedes its user as well."""
    place = np.argsort(order, kind="stable")
    counts = np.diff(graph.dependency_offsets)
    users = np.repeat(np.arange(len(graph)), counts)
    sorting = np.lexsort((place[graph.dependencies], place[users]))
    columns = {name: getattr(graph, name)[order] for name in NEUTRAL}
    return graph.with_columns(
        names=tuple(graph.names[node] for node in order.tolist()),
        dependency_offsets=np.concatenate(([0], np.cumsum(counts[order]))).astype(np.int64),
        dependencies=place[graph.dependencies][sorting],
        **columns,
    )


def _renumbered(values: tuple[Any, ...], numbers: dict[Any, int]) -> Ints:
    return np.array([*(numbers.setdefault(value, len(numbers)) for value in values), NONE], np.int64)


def _dependencies(part: _Part) -> tuple[Ints, Ints]:
    """How many dependencies each node of a part has, and which."""
    graph = part.graph
    counts = np.diff(graph.dependency_offsets)
    flat = graph.dependencies + part.offset
    entries = np.flatnonzero(counts == 0)
    if part.after and len(entries):
        at = np.repeat(graph.dependency_offsets[entries], len(part.after))
        flat = np.insert(flat, at, np.tile(np.array(part.after, np.int64), len(entries)))
        counts = np.where(counts == 0, len(part.after), counts)
    if part.waits:
        users, needs = np.array(part.waits, np.int64).T
        flat = np.insert(flat, np.cumsum(counts)[users] - counts[users], needs)  # earlier than all of the part
        np.add.at(counts, users, 1)
    return counts, flat
