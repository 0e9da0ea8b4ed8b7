"""A recorded program as schedules need it that join kernels with collectives, or cut both into slices.

These look for a kernel that a collective directly waits for, or that directly waits for one. In a recording the host's
launches stand between them, order on streams that other waits imply, and kernels that prepare or move data: memsets,
copies from one layout to another. Between a collective and the kernel whose result has its size, or whose first factor,
they run as part of that kernel and are cut with it: no copy is left out, and no time but the host's.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from scaleout.program.cut import without
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, NodeKind, NodeRole, compress
from scaleout.program.operations import ITEM_BYTES, Kernel
from scaleout.program.program import Program
from scaleout.program.recorded import HOST, LAUNCH, RECORDER

_MOVES = ("cat", "copy_", "clone", "contiguous", "_to_copy", "fill_", "zero_", "split_with_sizes_copy", "chunk_cat")
"""Operators that move or clear data."""
_TAKES = tuple(COLLECTIVES.index(kind) for kind in ("all_gather", "all_to_all"))
_MAKES = tuple(COLLECTIVES.index(kind) for kind in ("reduce_scatter", "all_reduce", "all_to_all"))


def beside_collectives(program: Program) -> Program:
    """Return a recorded program without its host, in which kernels stand next to the collectives of their data."""
    return program.map_graphs(lambda graph: _merged(_reduced(_of_gpu(graph))))


def _of_gpu(graph: ExecutionGraph) -> ExecutionGraph:
    """Leave out the host, and mark the kernels that compute gradients of weights, which no slice of tokens ends."""
    is_host = np.array([name in (HOST, LAUNCH, RECORDER) for name in graph.names], bool)
    graph = without(graph, is_host & graph.has_role(NodeRole.HOST))
    sums = np.array([call.tokens == "K" for call in graph.kernels] + [False])[graph.kernel]
    return graph.with_columns(role=np.where(sums, graph.role | int(NodeRole.WEIGHT_GRADIENT), graph.role))


def _reduced(graph: ExecutionGraph) -> ExecutionGraph:
    """Leave out dependencies that others imply: on a node that another of them follows, as works of a stream do."""
    streams = {stream: number for number, stream in enumerate(np.unique(graph.stream).tolist())}
    stream = [streams[each] for each in graph.stream.tolist()]
    is_message = (graph.kind >= NodeKind.SEND).tolist()  # those of one kernel follow no order
    reached = np.full((len(graph), len(streams)), NONE)  # the last node of each stream that a node follows, or is
    rows: list[Sequence[int]] = []
    for node in range(len(graph)):
        needs = graph.dependencies_of(node).tolist()
        if needs:
            reached[node] = reached[needs].max(axis=0)
        reached[node, stream[node]] = node
        implied = {
            need
            for need in needs
            if not is_message[need] and any(reached[other, stream[need]] >= need for other in needs if other != need)
        }
        rows.append([need for need in needs if need not in implied])
    offsets, dependencies = compress(rows)
    return graph.with_columns(dependency_offsets=offsets, dependencies=dependencies)


def _merged(graph: ExecutionGraph) -> ExecutionGraph:
    """Let kernels that prepare or move data run as part of the one whose data it is, next to a collective."""
    duration_s, gone = graph.duration_s.copy(), np.zeros(len(graph), bool)
    for chain, kernel in _chains(graph):
        if not gone[[*chain, kernel]].any():
            duration_s[kernel] += float(graph.duration_s[chain].sum())
            gone[chain] = True
    return without(graph.with_columns(duration_s=duration_s), gone)


def _chains(graph: ExecutionGraph) -> Iterator[tuple[list[int], int]]:
    """Yield kernels that move data between a collective and a kernel, with that kernel."""
    for node in np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist():
        if graph.collective[node] in _MAKES:
            chain = _upwards(graph, node)
            if chain and _moved(graph, chain[-1], result=True) == graph.bytes[node]:
                yield chain[:-1], chain[-1]
        if graph.collective[node] in _TAKES:
            chain = _downwards(graph, node)
            if chain and _moved(graph, chain[-1], result=False) == graph.bytes[node]:
                yield chain[:-1], chain[-1]


def _upwards(graph: ExecutionGraph, node: int) -> list[int]:
    """Return what each waits for alone before a node, up to the first kernel that does not only move data."""
    chain: list[int] = []
    while len(needs := graph.dependencies_of(node).tolist()) == 1:
        (node,) = needs
        chain.append(node)
        if not _moves(graph, node):
            return chain
    return []


def _downwards(graph: ExecutionGraph, node: int) -> list[int]:
    """Return what follows a node and waits for nothing else, up to the first kernel that does not only move data."""
    chain: list[int] = []
    while users := graph.users_of(node):
        node, before = min(users), node
        if graph.dependencies_of(node).tolist() != [before]:
            return []
        chain.append(node)
        if not _moves(graph, node):
            return chain
    return []


def _moves(graph: ExecutionGraph, node: int) -> bool:
    if graph.kind[node] != NodeKind.COMPUTE:
        return False
    if graph.names[node].startswith(("Memset", "Memcpy")):
        return True
    return graph.kernel[node] != NONE and graph.operation(node).rpartition("::")[2] in _MOVES


def _moved(graph: ExecutionGraph, node: int, *, result: bool) -> int:
    """Return the bytes of what a kernel makes, or those of a GEMM's first factors; 0 where they are not known."""
    if (
        graph.kind[node] != NodeKind.COMPUTE
        or graph.kernel[node] == NONE
        or graph.role[node] & NodeRole.WEIGHT_GRADIENT
    ):
        return 0
    call: Kernel = graph.kernels[graph.kernel[node]]
    sizes = call.sizes
    if {"M", "N", "K"} <= set(sizes):
        elements = sizes.get("groups", 1) * sizes["M"] * sizes["N" if result else "K"]
    elif call.op == "embedding_bag_fwd" and result:
        elements = sizes["batch"] * sizes["tables"] * sizes["dim"]
    else:
        return 0
    return int(elements * ITEM_BYTES[call.dtype])
