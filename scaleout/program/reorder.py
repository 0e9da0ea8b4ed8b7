"""Another order of the nodes of a program's graphs, with the same work and dependencies.

Of several ready nodes of a stream the first in the graph starts, and collectives of a stream start in the order of the
graph, so an order is a schedule. Where members of a group would call their collectives in different orders, the program
stays as it is.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush

import numpy as np

from scaleout.program.concat import in_order
from scaleout.program.graph import COLLECTIVES, Bools, ExecutionGraph, Ints, NodeKind, NodeRole, lowest_first
from scaleout.program.program import Program

Key = tuple[float, ...]
"""Sorting key of a node that is moved; that of others is their index, `(index,)`."""


def order_of(graph: ExecutionGraph, keys: Mapping[int, Key]) -> Ints:
    """Return the nodes in the order of their keys, as far as dependencies let them."""
    waiting = np.diff(graph.dependency_offsets).tolist()
    return np.array(lowest_first(waiting, graph.users_of, lambda node: keys.get(node) or (node,)), np.int64)


def moved_to(graph: ExecutionGraph, order: Ints) -> ExecutionGraph:
    """Return a graph in another order, in which the host issues its calls too, each as long as before."""
    calls_s = np.diff(graph.issue_s, prepend=0.0)[order]
    return in_order(graph, order).with_columns(issue_s=np.cumsum(calls_s))


def early(graph: ExecutionGraph, moved: Collection[int], *, tail: Callable[[int, int], bool]) -> dict[int, Key]:
    """Return keys that put some nodes, and the kernels of their tails, right after their dependencies.

    `tail` is whether a kernel moves with a moved node that it waits for.
    """
    keys: dict[int, Key] = {}
    computes = (graph.kind == NodeKind.COMPUTE).tolist()
    waiting = sorted(moved)  # a heap
    while waiting:
        node = heappop(waiting)
        needs = graph.dependencies_of(node).tolist()
        last = max((keys[old][0] if old in keys else float(old) for old in needs), default=-1.0)
        if last < node - 1 and node not in keys:
            keys[node] = (last, float(node))
            for user in graph.users_of(node):
                if computes[user] and tail(node, user):
                    heappush(waiting, user)
    return keys


def gathers_parameters(graph: ExecutionGraph) -> Bools:
    """Return whether each node is an all-gather of parameters, (N,)."""
    gathers = (graph.kind == NodeKind.COLLECTIVE) & (graph.collective == COLLECTIVES.index("all_gather"))
    return np.asarray(gathers & graph.has_role(NodeRole.PARAMETERS))


def reorder(program: Program, keys_of: Callable[[ExecutionGraph], Mapping[int, Key]]) -> Program:
    """Put the nodes of each graph in the order of their keys, as far as dependencies let them.

    `keys_of` maps a graph to the keys of the nodes that are moved. Of equal keys the lower index is first.
    """
    orders: list[Ints | None] = []
    for graph in program.graphs:
        keys = keys_of(graph)
        order = order_of(graph, keys) if keys else None
        orders.append(None if order is None or (np.diff(order) == 1).all() else order)
    if all(order is None for order in orders) or not _same_order(program, orders):
        return program
    pairs = zip(program.graphs, orders, strict=True)
    return replace(program, graphs=tuple(graph if order is None else moved_to(graph, order) for graph, order in pairs))


def _same_order(program: Program, orders: Sequence[Ints | None]) -> bool:
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
    """Return the order in which each group calls its collectives, where that changes."""
    if order is None:
        return {}
    found = {}
    before, after = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE), order[graph.kind[order] == NodeKind.COLLECTIVE]
    for group in set(graph.group[before].tolist()):
        old, new = before[graph.group[before] == group], after[graph.group[after] == group]
        if (old != new).any():
            found[group] = np.searchsorted(old, new).tolist()
    return found
