"""Another order of the nodes of a program's graphs, see `node_order`.

Where members of a group would then meet in different orders the program stays as it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from scaleout.graph import ExecutionGraph, Ints, NodeKind
from scaleout.node_order import Key, moved_to, order_of
from scaleout.program import Program


def reorder(program: Program, keys_of: Callable[[ExecutionGraph], Sequence[Key] | None]) -> Program:
    """Put the nodes of each graph in the order of their keys, as far as dependencies let them.

    Parameters
    ----------
    keys_of : callable
        Graph to the key of each of its nodes, or None if they stay. Of equal keys the lower index goes first.
    """
    orders: list[Ints | None] = []
    for graph in program.graphs:
        keys = keys_of(graph)
        order = None if keys is None else order_of(graph, keys)
        orders.append(None if order is None or (np.diff(order) == 1).all() else order)
    if all(order is None for order in orders) or not _meet(program, orders):
        return program
    pairs = zip(program.graphs, orders, strict=True)
    return replace(program, graphs=tuple(graph if order is None else moved_to(graph, order) for graph, order in pairs))


def _meet(program: Program, orders: Sequence[Ints | None]) -> bool:
    """Whether members of each group still call their collectives in one order."""
    sequences = [_sequences(graph, order) for graph, order in zip(program.graphs, orders, strict=True)]
    for number, family in enumerate(program.groups):
        for _, members in family.blocks:
            roles = program.role_of_rank[members]  # (G, m)
            pairs = np.stack([np.repeat(roles[:, :1], roles.shape[1], axis=1).ravel(), roles.ravel()])
            for one, other in np.unique(pairs, axis=1).T.tolist():
                if sequences[one].get(number) != sequences[other].get(number):
                    return False
    return True


def _sequences(graph: ExecutionGraph, order: Ints | None) -> dict[int, list[int]]:
    """Return which of its collectives each group calls first, second and so on, where that changes."""
    if order is None:
        return {}
    found = {}
    before, after = (np.flatnonzero(graph.kind == NodeKind.COLLECTIVE), order[graph.kind[order] == NodeKind.COLLECTIVE])
    for group in set(graph.group[before].tolist()):
        old, new = before[graph.group[before] == group], after[graph.group[after] == group]
        if (old != new).any():
            found[group] = np.searchsorted(old, new).tolist()
    return found
