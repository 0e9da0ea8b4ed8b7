"""What tables and pages call the nodes of a graph: their operations, or the names that whoever wrote a trace gave them.

A node is called by its own name where nothing else is known of what it does: a kernel of which a trace tells only time,
FLOPs or bytes, and no role. Numbers at the end of a word count layers, ranks or steps; they are folded, so that there
is a row for what is done, not one for each node. Only readers are told labels: no schedule and no model reads them.
"""

import re
from functools import lru_cache

import numpy as np

from scaleout.program.calls import columns_of
from scaleout.program.graph import NONE, Bools, ExecutionGraph, Ints, NodeKind, NodeRole
from scaleout.program.operations import CUSTOM

_COUNTER = re.compile(r"\d+(?![A-Za-z0-9])")


def folded(name: str) -> str:
    """Return a name with the numbers that end its words as ``*``; as it is where nothing else were left of it.

    >>> folded("layer12.mlp_fwd_rank3"), folded("conv2d_bn"), folded("42")
    ('layer*.mlp_fwd_rank*', 'conv2d_bn', '42')
    """
    stem = _COUNTER.sub("*", name)
    return stem if any(letter.isalpha() for letter in stem) else name


def label(graph: ExecutionGraph, node: int) -> str:
    """Return what a node is called."""
    operation = graph.operation(node)
    is_own = operation in (CUSTOM, "compute") and not graph.role[node]  # as `_has_own_name`, of one node in no time
    return (is_own and folded(graph.names[node])) or operation


def own_name(graph: ExecutionGraph, node: int) -> str:
    """Return the name that whoever wrote a trace gave a node, folded; none where a role says what it is for."""
    return "" if graph.role[node] else folded(graph.names[node])


def own_name_numbers(graph: ExecutionGraph) -> Ints:
    """Return numbers, (N,), that are equal only for nodes of the same `own_name`."""
    return np.where(graph.role == 0, _folded_numbers(graph.names) + 1, 0)


def labels(graph: ExecutionGraph) -> list[str]:
    """Return what each of N nodes is called."""
    numbers = label_numbers(graph)
    _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    names = [label(graph, node) for node in first.tolist()]
    return [names[number] for number in which.reshape(-1).tolist()]


def label_numbers(graph: ExecutionGraph) -> Ints:
    """Return numbers, (N,), that are equal only for nodes of the same label."""
    is_host = (graph.kernel == NONE) & graph.has_role(NodeRole.HOST)
    kernels = np.where(is_host, len(graph.kernels) + 1, graph.kind_of_kernel - NONE)
    first = len(NodeKind) + len(graph.kernels) + 2
    calls = graph.collective * len(NodeKind) + graph.kind + first
    numbers = np.where(graph.kind == NodeKind.COMPUTE, kernels, calls)
    own = _has_own_name(graph)
    if own.any():
        numbers = np.where(own, _folded_numbers(graph.names) + int(numbers.max()) + 1, numbers)
    return np.asarray(numbers, np.int64)


def _has_own_name(graph: ExecutionGraph) -> Bools:
    """(N,) whether nothing but its name tells what a node does."""
    is_custom = np.append(columns_of(graph.kernels).is_custom, True)  # `NONE` has no kernel
    return np.asarray((graph.kind == NodeKind.COMPUTE) & (graph.role == 0) & is_custom[graph.kernel])


@lru_cache(maxsize=64)  # graphs of ranks that are alike share their names
def _folded_numbers(names: tuple[str, ...]) -> Ints:
    """Number what names are when folded, (N,)."""
    known: dict[str, int] = {}
    of_name = {name: known.setdefault(folded(name), len(known)) for name in dict.fromkeys(names)}
    return np.array([of_name[name] for name in names], np.int64)
