"""Graphs end to end: segments that repeat, such as the forward pass of every micro-batch, to one graph.

The nodes of a segment without dependencies wait for nodes before the segment. Segments are copied as columns, not node
by node. Knows nothing of what nodes do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from scaleout.program.graph import FLOAT_COLUMNS, NEUTRAL, NONE, ExecutionGraph, Floats, Ints, NodeKind
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
        numbers: dict[ExecutionGraph, int] = {}
        of_segment = np.array([numbers.setdefault(s.graph, len(numbers)) for s in self._segments], np.int64)
        graphs = list(numbers)
        offsets = np.array([segment.offset for segment in self._segments], np.int64)
        rows, _ = _repeated([len(graph) for graph in graphs], of_segment)
        columns = {name: _joined([getattr(graph, name) for graph in graphs], name)[rows] for name in NEUTRAL}
        columns["kernel"] = _joined([_renumbered(g.kernels, kernels)[g.kernel] for g in graphs], "kernel")[rows]
        columns["phase"] = _joined([_renumbered(g.phases, phases)[g.phase] for g in graphs], "phase")[rows]
        for segment in self._segments:
            for name, values in segment.columns.items():
                columns[name][segment.offset : segment.offset + len(segment.graph)] = values
        inner, sizes = _repeated([len(graph.dependencies) for graph in graphs], of_segment)
        inner_users = _joined([np.repeat(np.arange(len(g)), np.diff(g.dependency_offsets)) for g in graphs], "user")
        inner_needs = _joined([graph.dependencies for graph in graphs], "need")
        further = np.repeat(offsets, sizes)
        outer = np.array(self._outer(), np.int64).reshape(-1, 2).T
        users = np.concatenate([outer[0], inner_users[inner] + further])
        needs = np.concatenate([outer[1], inner_needs[inner] + further])
        return ExecutionGraph(
            names=tuple(chain.from_iterable(segment.graph.names for segment in self._segments)),
            dependency_offsets=np.concatenate(([0], np.cumsum(np.bincount(users, minlength=self._size)))),
            dependencies=needs[np.argsort(users, kind="stable")],
            kernels=tuple(kernels),
            phases=tuple(phases) or ("",),
            **columns,
        )

    def _outer(self) -> list[tuple[int, int]]:
        """List which nodes wait for nodes of segments before their own, the further ones first."""
        graphs = {segment.graph for segment in self._segments if segment.after}
        entries = {graph: np.flatnonzero(np.diff(graph.dependency_offsets) == 0).tolist() for graph in graphs}
        waits = [(s.offset + user, need) for s in self._segments for user, need in s.waits]
        return waits + [
            (segment.offset + entry, need)
            for segment in self._segments
            for entry in (entries[segment.graph] if segment.after else ())
            for need in segment.after
        ]


def _joined(columns: Sequence[Any], name: str) -> Any:
    return np.concatenate(columns) if columns else np.zeros(0, np.float64 if name in FLOAT_COLUMNS else np.int64)


def _repeated(sizes: Sequence[int], of_segment: Ints) -> tuple[Ints, Ints]:
    """Return where the rows of each segment are among those of all graphs, and how many each segment has."""
    each = np.array(sizes, np.int64)
    counts = each[of_segment]
    firsts = (np.cumsum(each) - each)[of_segment] - (np.cumsum(counts) - counts)
    return np.repeat(firsts, counts) + np.arange(counts.sum()), counts


def interleave(first: ExecutionGraph, second: ExecutionGraph) -> tuple[ExecutionGraph, Ints, Ints]:
    """Merge two concurrent graphs: nodes of each stay in order, and both take turns.

    A turn ends behind what a graph communicates, so that the other's kernels run meanwhile (DeepSeek-V3,
    arXiv:2412.19437, Fig. 4). Graphs with different numbers of turns are spread over each other evenly.

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
    order = np.argsort(np.concatenate([_progress(first), _progress(second)]), kind="stable")
    position = np.argsort(order, kind="stable")
    return in_order(whole, order), position[: len(first)], position[len(first) :]


def _progress(graph: ExecutionGraph) -> Floats:
    """Return for each node how far its turn is among those of its graph, shape (N,)."""
    computes = graph.kind == NodeKind.COMPUTE
    begins = computes[1:] & ~computes[:-1] & (graph.collective[:-1] != NONE)
    turn = np.concatenate([np.zeros(min(len(graph), 1), np.int64), np.cumsum(begins)])
    if not begins.any():  # nothing to wait for: each node is a turn
        # but a send and the receive behind it: apart, the other graph's receive could take its message
        ends = (graph.kind[:-1] == NodeKind.SEND) & (graph.kind[1:] == NodeKind.RECV)
        turn = np.concatenate([np.zeros(min(len(graph), 1), np.int64), np.cumsum(~ends)])
    return np.asarray((turn + 0.5) / (turn.max(initial=0) + 1))


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


def _renumbered(values: Sequence[Any], numbers: dict[Any, int]) -> Ints:
    return np.array([*(numbers.setdefault(value, len(numbers)) for value in values), NONE], np.int64)
