"""Graphs without some of their nodes: what waited for one that is left out waits for what that had waited for."""

from collections.abc import Callable

import numpy as np

from scaleout.program.graph import NEUTRAL, Bools, ExecutionGraph, compress


def without(graph: ExecutionGraph, leaves_out: Bools) -> ExecutionGraph:
    """Return a graph without the nodes of a mask, shape (N,)."""
    if not leaves_out.any():
        return graph
    position = np.cumsum(~leaves_out) - 1
    stands_for: list[tuple[int, ...]] = []  # node to those, as numbered anew, that stand for it
    rows: list[tuple[int, ...]] = []
    for node, gone in enumerate(leaves_out.tolist()):
        needs = tuple(sorted({each for needed in graph.dependencies_of(node).tolist() for each in stands_for[needed]}))
        stands_for.append(needs if gone else (int(position[node]),))
        if not gone:
            rows.append(needs)
    offsets, dependencies = compress(rows)
    kept = np.flatnonzero(~leaves_out)
    return graph.with_columns(
        names=tuple(graph.names[node] for node in kept.tolist()),
        dependency_offsets=offsets,
        dependencies=dependencies,
        **{name: getattr(graph, name)[kept] for name in NEUTRAL},
    )


def without_phase(phase: str) -> Callable[[ExecutionGraph], ExecutionGraph]:
    """Return what leaves a phase out of a graph."""

    def leave_out(graph: ExecutionGraph) -> ExecutionGraph:
        if phase not in graph.phases:
            return graph
        return without(graph, np.asarray(graph.phase == graph.phases.index(phase)))

    return leave_out
