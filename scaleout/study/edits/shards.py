"""What a rank holds of a layer under tensor parallelism, told from what its group communicates.

The group gathers or sums matrices of activations that are whole on every rank. Of a GEMM's three matrices one is such
a whole; the size that this one lacks is what ranks share out: columns of a first GEMM's weights, rows of a second's.
What follows a GEMM works on a shard if the size shared out is one of its result, on a whole if it was summed over; a
gather and an all-reduce give wholes, a reduce-scatter a shard of the sequence.

Source: Shoeybi et al., Megatron-LM, arXiv:1909.08053; Korthikanti et al., arXiv:2205.05198 (sequence parallelism).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from scaleout.errors import ConfigError
from scaleout.program.calls import as_much_of, entire
from scaleout.program.graph import COLLECTIVES, NONE, Bools, ExecutionGraph, NodeKind, NodeRole
from scaleout.program.operations import ITEM_BYTES, RECORDED, Kernel, kernel
from scaleout.program.program import Program
from scaleout.program.recorded import RECORDED_SIZES
from scaleout.study.edits.groups import REDUCES, Axis

_GATHER = COLLECTIVES.index("all_gather")
_SCATTER = COLLECTIVES.index("reduce_scatter")
_KEPT, _BYTES, _HEADS = "", "bytes", "heads"
"""What changes of a kernel beside ``M``, ``N`` and ``K`` of a GEMM."""


@dataclass
class Shards:
    """Of each node of a graph the size that is shared out among tensor-parallel ranks."""

    of_node: list[str]  # (N,) `_KEPT`, `_BYTES`, `_HEADS`, or the size of a GEMM
    weights: set[int] = field(default_factory=set)  # elements that a rank may hold of a weight
    unknown: Counter[Kernel] = field(default_factory=Counter)  # GEMMs of which nothing tells it


def wholes_of(program: Program, axis: Axis) -> frozenset[int]:
    """Return how many elements have the matrices that the axis's groups gather or sum, and that a GEMM has."""
    found = set()
    matrices = {
        call.sizes.get("groups", 1) * elements
        for graph in program.graphs
        for call in graph.kernels
        if _is_product(call)
        for elements in _matrices(call).values()
    }
    for graph in program.graphs:
        mask = (graph.kind == NodeKind.COLLECTIVE) & (graph.group == axis.family)
        mask &= np.isin(graph.collective, (*REDUCES, _GATHER)) & (graph.bytes > 0)
        for node in np.flatnonzero(mask).tolist():
            found.add(_elements(graph, node))
    return frozenset(found & matrices)


def shards_of(graph: ExecutionGraph, axis: Axis, wholes: frozenset[int]) -> Shards:
    """Find what of each kernel and message is shared out, in the order of launches."""
    found = Shards([_KEPT] * len(graph))
    ours = (graph.kind == NodeKind.COLLECTIVE) & (graph.group == axis.family)
    sums_next = _sums_next(graph, ours)
    whole = True
    skipped = graph.has_role(NodeRole.HOST)
    for node in np.flatnonzero(~skipped).tolist():
        if graph.role[node] & NodeRole.OPTIMIZER:
            whole = True
            continue
        if ours[node]:
            if graph.collective[node] == _GATHER or _elements(graph, node) in wholes:  # and no sum of losses
                whole = graph.collective[node] != _SCATTER
            continue
        if graph.kernel[node] == NONE:
            continue
        call = graph.kernels[graph.kernel[node]]
        if call.op.startswith("attention"):
            found.of_node[node], whole = _HEADS, False
        elif _is_product(call):
            size = _shared(call, wholes, axis.old, sums_next=bool(sums_next[node]), whole=whole)
            if size is None:
                found.unknown[call] += 1
                continue
            found.of_node[node] = size
            found.weights |= _weights(call, size)
            if size == "K":
                whole = True
            elif size == "N" and call.tokens != "K":  # neither gradient of a weight
                whole = False
        elif call.op.startswith(RECORDED) and not whole:
            found.of_node[node] = _BYTES
    return found


def _sums_next(graph: ExecutionGraph, ours: Bools) -> Bools:
    """(N,) whether a sum over the group follows before the next other GEMM; an operator may launch several kernels."""
    found = np.zeros(len(graph), bool)
    products = [_is_product(call) for call in graph.kernels] + [False]
    sums, following = False, NONE  # of the nodes behind
    for node in np.flatnonzero(~graph.has_role(NodeRole.HOST))[::-1].tolist():
        index = int(graph.kernel[node])
        if ours[node]:
            sums = int(graph.collective[node]) in REDUCES
        elif products[index]:
            found[node] = found[following] if following != NONE and graph.kernel[following] == index else sums
            sums = False
        following = node
    return found


def _elements(graph: ExecutionGraph, node: int) -> int:
    """Return the elements that a collective gathers or sums."""
    index = int(graph.kernel[node])
    return int(graph.bytes[node]) // (ITEM_BYTES[graph.kernels[index].dtype] if index != NONE else 2)


def _is_product(call: Kernel) -> bool:
    return {"M", "N", "K"} <= call.sizes.keys()


def _matrices(call: Kernel) -> dict[str, int]:
    """Return the elements of the matrix that lacks each size."""
    sizes = call.sizes
    return {"N": sizes["M"] * sizes["K"], "M": sizes["K"] * sizes["N"], "K": sizes["M"] * sizes["N"]}


def _shared(call: Kernel, wholes: frozenset[int], degree: int, *, sums_next: bool, whole: bool) -> str | None:
    """Return the size of a GEMM that ranks share out; where several could be, what is summed over before a sum."""
    groups = call.sizes.get("groups", 1)
    fitting = [size for size, elements in _matrices(call).items() if groups * elements in wholes]
    if len(fitting) > 1:
        order = ("K", "N", "M") if sums_next else ("N", "M", "K")
        return next(size for size in order if size in fitting)
    if fitting:
        return fitting[0]
    if not whole:  # a shard of the sequence, by whole weights
        sharing = [size for size, elements in _matrices(call).items() if groups * elements * degree in wholes]
        return {"N": "M", "M": "K"}.get(sharing[0]) if sharing else None
    return None


def _weights(call: Kernel, shared: str) -> set[int]:
    """Return the elements of both matrices that are shared out, of which one is a weight."""
    groups = call.sizes.get("groups", 1)
    return {groups * elements for size, elements in _matrices(call).items() if size != shared}


def resharded(call: Kernel, shared: str, ratio: Fraction, where: str) -> Kernel:
    """Return a kernel on another share of what ranks share out."""
    if shared == _BYTES:
        return resized_bytes(call, ratio)
    names = [name for name in ("heads", "kv_heads") if name in call.sizes] if shared == _HEADS else [shared]
    shape = dict(call.shape)
    for name in names:
        size = shape[name] * ratio
        if shared == _HEADS and size.denominator != 1:
            raise ConfigError(
                f"{where}: attention has {shape[name]} {name} on a rank, which so many ranks cannot share out"
            )
        shape[name] = -(-size.numerator // size.denominator)  # padded
    return as_much_of(kernel(call.op, dtype=call.dtype, **shape).counting(call.tokens), call)


def resized_bytes(call: Kernel, ratio: Fraction) -> Kernel:
    """Return a kernel that is known by the bytes of its tensors, all of them changed; of tables their columns."""
    changed = ("width",) if "width" in call.sizes else RECORDED_SIZES
    shape = tuple((name, round(size * ratio) if name in changed else size) for name, size in call.shape)
    return as_much_of(entire(replace(call, shape=shape)), call)


def parameters_ratio(
    parameters: Sequence[tuple[int, int]], shards: set[int], degree: int, ratio: Fraction
) -> tuple[Fraction, str]:
    """Return how many times as many parameters a rank holds, and that in words.

    Shards are known by their elements on a rank, or, as DTensors are recorded, by those on all.
    """
    shared = whole = 0
    for size, count in parameters:
        if size in shards:
            shared += size * count
        elif size % degree == 0 and size // degree in shards:
            shared += size // degree * count
        else:
            whole += size * count
    if not shared:
        return ratio, "the recording does not tell which parameters are shared out: all are taken to be"
    total = (shared * ratio + whole) / (shared + whole)
    return total, f"a rank holds {float(total):.3f} times as many parameters"
