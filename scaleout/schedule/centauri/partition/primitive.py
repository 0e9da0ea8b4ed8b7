"""Primitive substitution: an all-reduce becomes a reduce-scatter and an all-gather, where the caller chooses so.

The other substitutes of Table 2 are left out: those through one root double the latency and let all messages meet at
the root, and collectives of a graph have no roots to spread. Source: Chen et al., Centauri, Sec. 3.1.1, Table 2.
"""

from collections.abc import Callable

import numpy as np

from scaleout.program.graph import COLLECTIVES, ExecutionGraph
from scaleout.program.program import Program
from scaleout.schedule.rewrite import Rewrite

Chooser = Callable[[int, str, int], bool]
"""Whether a collective is rewritten: its family of groups, its kind and its bytes, on which all members agree."""

WHOLE = 1
"""Slices of a transfer that is not cut."""


_PARTS = ("reduce_scatter", "all_gather")


def substitute(program: Program, *, chosen: Chooser = lambda family, kind, size_bytes: True) -> Program:
    """Write every all-reduce that is chosen as a reduce-scatter and an all-gather of the same bytes."""
    return program.map_graphs(lambda graph: _substitute(graph, chosen))


def _substitute(graph: ExecutionGraph, chosen: Chooser) -> ExecutionGraph:
    all_reduces = (graph.collective == COLLECTIVES.index("all_reduce")) & (graph.slices == WHOLE)
    found = {
        node
        for node in np.flatnonzero(all_reduces).tolist()
        if chosen(int(graph.group[node]), "all_reduce", int(graph.bytes[node]))
    }
    if not found:
        return graph
    new = Rewrite(graph)
    for node in range(len(graph)):
        if node not in found:
            new.keep(node)
            continue
        after = new.needs(node)
        for part in _PARTS:
            name = f"{graph.names[node]}_{part}"
            after = [new.add(node, after, name=name, collective=COLLECTIVES.index(part))]
        new.done[node] = after[0]
    return new.build()
