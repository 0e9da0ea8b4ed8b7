"""Program order: collectives of a stream start in the order in which the program issues them.

So it is on hardware, where a stream is first in, first out. Ranks that become ready in different orders would
otherwise wait for each other for ever, one in the first collective and one in the second.
"""

import numpy as np

from scaleout.program.graph import ExecutionGraph, NodeKind
from scaleout.program.program import Program


def in_program_order(program: Program) -> Program:
    """Let every collective wait for the one before it on its stream; slices of one transfer still overlap."""
    return program.map_graphs(_chain)


def _chain(graph: ExecutionGraph) -> ExecutionGraph:
    nodes = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)
    nodes = nodes[np.argsort(graph.stream[nodes], kind="stable")]
    before, after = nodes[:-1], nodes[1:]
    waits = graph.stream[before] == graph.stream[after]
    waits &= (graph.pieces[before] == 1) | (graph.pieces[after] == 1)
    users = np.repeat(np.arange(len(graph)), np.diff(graph.dependency_offsets))
    size = max(len(graph), 1)
    pairs = np.concatenate([users * size + graph.dependencies, after[waits] * size + before[waits]])
    users, dependencies = np.divmod(np.unique(pairs), size)
    offsets = np.searchsorted(users, np.arange(len(graph) + 1))
    return graph.with_columns(dependency_offsets=offsets.astype(np.int64), dependencies=dependencies)
