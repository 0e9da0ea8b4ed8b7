"""Another order of a graph's nodes: what is independent may change places.

Of several ready nodes of a stream the first in the graph starts, and collectives of a stream start in the order of the
graph, so an order is a schedule. Nodes, work and dependencies stay; every dependency still precedes its user.
"""

from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from scaleout.graph import COLLECTIVES, ExecutionGraph, Ints, NodeKind
from scaleout.splice import in_order

Key = tuple[float, ...]
"""Where a node would like to stand; one that is not moved stands at its index, `(index,)`."""


def order_of(graph: ExecutionGraph, keys: Sequence[Key]) -> Ints:
    """Return the nodes in the order of their keys, as far as dependencies let them."""
    waiting = np.diff(graph.dependency_offsets).tolist()
    ready = [(keys[node], node) for node, count in enumerate(waiting) if count == 0]
    heapify(ready)
    order = []
    while ready:
        _, node = heappop(ready)
        order.append(node)
        for user in graph.users[node]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heappush(ready, (keys[user], user))
    return np.array(order, np.int64)


def moved_to(graph: ExecutionGraph, order: Ints) -> ExecutionGraph:
    """Return a graph in another order; the host issues calls in it, each for the time that it took."""
    calls_s = np.diff(graph.issue_s, prepend=0.0)[order]
    return in_order(graph, order).with_columns(issue_s=np.cumsum(calls_s))


def early(graph: ExecutionGraph, moved: Collection[int], *, tail: Callable[[int, int], bool]) -> list[Key]:
    """Return keys that put some nodes, and the kernels of their tails, right behind what they wait for.

    Parameters
    ----------
    tail : callable
        Whether a kernel goes along with a moved node that it waits for.
    """
    keys: list[Key] = [(float(node),) for node in range(len(graph))]
    computes = (graph.kind == NodeKind.COMPUTE).tolist()
    waiting = sorted(moved)  # a heap
    while waiting:
        node = heappop(waiting)
        last = max((keys[old][0] for old in graph.dependencies_of(node).tolist()), default=-1.0)
        if last < node - 1 and len(keys[node]) == 1:
            keys[node] = (last, float(node))
            for user in graph.users[node]:
                if computes[user] and tail(node, user):
                    heappush(waiting, user)
    return keys


def is_gather_of_parameters(graph: ExecutionGraph, node: int) -> bool:
    """Whether a node gathers parameters, as generators name it."""
    gathers = graph.collective[node] == COLLECTIVES.index("all_gather")
    return bool(gathers) and graph.names[node].startswith("parameters")
