"""Workload partition: a collective and the GEMMs next to it, cut into chunks that overlap.

Cut are gathered activations and the GEMM that takes them (along M), a GEMM and the collective that reduces its output
(along M), gathered parameters and the GEMMs that take them one after another (each along N), and a layer's gradients,
laid out as their GEMMs make them (each along M). Each chunk is a collective of its own. A part of a GEMM is cut at the
edge of a tile and timed at its own size. Not cut: operations between GEMMs, operations on expert weights, gradients
that kernels add up, copy or cast before they are reduced. See docs/models/centauri.md.
Source: Chen et al., Centauri, Sec. 3.1.3, Table 3 and Fig. 12.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from math import ceil, floor, fsum, prod
from typing import NamedTuple

import numpy as np

from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.cluster.device.spec import Device
from scaleout.cluster.machine import Machine
from scaleout.errors import ConfigError
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, Ints, NodeKind, NodeRole
from scaleout.program.operations import ITEM_BYTES, OPERATIONS, Family, Kernel, kernel
from scaleout.program.program import Program
from scaleout.program.reorder import gathers_parameters
from scaleout.schedule.centauri.partition.dimensions import DimensionType, sizes_of
from scaleout.schedule.pairs import keys_of
from scaleout.schedule.rewrite import Rewrite, divided

GEMMS = ("gemm", "gemm_fp8", "gemm_fp8_rowwise")
"""Operations that are cut."""

_TILE = 128
"""Rows or columns of a tile of a GEMM, at whose edges it is cut."""

_COVERED = 0.99
"""Part of a layer's parameters that are GEMMs' weights, at the least; the rest are scales of norms."""


def check_cut(dimension: str) -> None:
    """Refuse to cut GEMMs along a dimension along which their parts are not independent."""
    independent = sizes_of("gemm", DimensionType.OD)
    instead = f"cut along {' or '.join(independent)}"
    if dimension in sizes_of("gemm", DimensionType.CD):
        raise ConfigError(
            f"gemm cannot be cut along {dimension}, a contraction dimension (CD), along which parts would have to be "
            f"added up; {instead}"
        )
    if dimension not in independent:
        raise ConfigError(f"gemm has no dimension {dimension!r} that it can be cut along; {instead}")


class Piece(NamedTuple):
    """A GEMM of a chain, and from where to where in the collective's buffer its data lie, in parts of the whole."""

    node: int
    begin: float
    end: float
    dimension: str


class Chain(NamedTuple):
    """A collective and the GEMMs next to it.

    `first` are norms in front of a layer's first GEMM, which take nothing but the beginning of the buffer. A layer's
    `gradients` are made by its GEMMs, but for scales of norms, which are in the last chunk.
    """

    collective: int
    pieces: tuple[Piece, ...]
    produces: bool
    first: tuple[int, ...] = ()
    gradients: bool = False


Granularity = Callable[[ExecutionGraph, Chain], Sequence[float]]
"""What part of a collective each chunk is; they add up to one."""


def find_chains(graph: ExecutionGraph) -> Iterator[Chain]:
    """Find the collectives that can be cut, and the GEMMs next to them; a GEMM belongs to the first."""
    taken, gathers = set[int](), gathers_parameters(graph)
    outputs, weights = _bytes(graph, "M", "N"), _bytes(graph, "N", "K")
    taker, maker = _only_taker(graph).tolist(), _only_maker(graph, outputs).tolist()
    of_parameters, held = gathers.tolist(), weights.tolist()
    reduces = (graph.kind == NodeKind.COLLECTIVE) & np.isin(graph.collective, _REDUCTIONS)
    summed = (reduces & graph.has_role(NodeRole.GRADIENTS)).tolist()
    whole = (graph.kind == NodeKind.COLLECTIVE) & (graph.slices == 1)
    for node in np.flatnonzero(whole & (reduces | (graph.collective == _GATHER))).tolist():
        chain = None
        if of_parameters[node]:
            chain = _takers(graph, node, of_parameters, held)
        elif taker[node] != NONE or maker[node] != NONE:
            made = taker[node] == NONE
            chain = Chain(node, (Piece(maker[node] if made else taker[node], 0.0, 1.0, "M"),), produces=made)
        elif summed[node]:
            chain = _makers(graph, node, outputs)
        nodes = () if chain is None else [piece.node for piece in chain.pieces]
        if chain is not None and taken.isdisjoint(nodes):
            taken.update(nodes)
            yield chain


_GATHER = COLLECTIVES.index("all_gather")
_REDUCTIONS = [COLLECTIVES.index(kind) for kind in ("reduce_scatter", "all_reduce")]


def _bytes(graph: ExecutionGraph, *sizes: str) -> Ints:
    """Return the bytes of one of each GEMM's three matrices, (N,); 0 if a node is no GEMM of known sizes."""
    of_call = np.zeros(len(graph.kernels) + 1, np.int64)  # `NONE` is the last entry
    for number, call in enumerate(graph.kernels):
        if call.op in GEMMS:
            shape = dict(call.shape)
            of_call[number] = int(prod(shape[size] for size in sizes)) * ITEM_BYTES[call.dtype]
    return np.asarray(of_call[graph.kernel])


def _only_taker(graph: ExecutionGraph) -> Ints:
    """Return the first GEMM that takes all that an all-gather gathers, (N,); `NONE` for other nodes."""
    users, needs = np.repeat(np.arange(len(graph)), np.diff(graph.dependency_offsets)), graph.dependencies
    takes = (graph.collective[needs] == _GATHER) & (graph.bytes[needs] > 0)
    takes &= _bytes(graph, "M", "K")[users] == graph.bytes[needs]
    found = np.full(len(graph), NONE)
    found[needs[takes][::-1]] = users[takes][::-1]  # of several the first stays
    return found


def _only_maker(graph: ExecutionGraph, outputs: Ints) -> Ints:
    """Return the GEMM that alone makes all that a reduction sums, (N,); `NONE` for other nodes."""
    users, needs = np.repeat(np.arange(len(graph)), np.diff(graph.dependency_offsets)), graph.dependencies
    makes = np.isin(graph.collective[users], _REDUCTIONS) & (graph.kind[needs] != NodeKind.COLLECTIVE)
    users, needs = users[makes], needs[makes]
    alone = (np.bincount(users, minlength=len(graph))[users] == 1) & (graph.bytes[users] > 0)
    alone &= outputs[needs] == graph.bytes[users]
    found = np.full(len(graph), NONE)
    found[users[alone]] = needs[alone]
    return found


def _makers(graph: ExecutionGraph, node: int, outputs: Ints) -> Chain | None:
    """Lay out a layer's gradients as GEMMs make them, in any data type; scales of norms come last."""
    needs = graph.dependencies_of(node)
    makers = needs[graph.kind[needs] != NodeKind.COLLECTIVE].tolist()
    gemms = [maker for maker in makers if outputs[maker]]
    scales = set(makers).difference(gemms)
    taken = any(graph.users_of(maker) != (node,) for maker in gemms)  # by others than the reduction
    if taken or not gemms or not all(_is_norm(graph.operation(maker)) for maker in scales):
        return None
    shapes = [dict(graph.kernels[graph.kernel[maker]].shape) for maker in gemms]
    edges = [0, *accumulate(int(shape["M"] * shape["N"]) for shape in shapes)]
    total, used = int(graph.bytes[node]), edges[-1]
    if not any(_COVERED * total <= used * item_bytes <= total for item_bytes in set(ITEM_BYTES.values())):
        return None
    spans = zip(gemms, pairwise(edges), strict=True)
    pieces = tuple(Piece(maker, begin / used, end / used, "M") for maker, (begin, end) in spans)
    return Chain(node, pieces, produces=True, gradients=True)


def _is_norm(op: str) -> bool:
    return op in OPERATIONS and OPERATIONS[op].family is Family.ROWS


def _takers(graph: ExecutionGraph, node: int, gathers: Sequence[bool], held: Sequence[int]) -> Chain | None:
    """Follow what waits for gathered parameters, up to the next that are gathered, until their weights are used up."""
    total, used = int(graph.bytes[node]), 0
    reached, first = {node}, []
    gemms: list[tuple[int, int]] = []
    waiting = list(graph.users_of(node))  # a heap
    while waiting:
        user = heappop(waiting)
        if user in reached or graph.kind[user] != NodeKind.COMPUTE:
            continue
        needs = graph.dependencies_of(user).tolist()
        other = any(gathers[old] and old != node for old in needs)
        if other or used >= _COVERED * total:
            break
        reached.add(user)
        for later in graph.users_of(user):
            heappush(waiting, later)
        weights = 0 if graph.role[user] & NodeRole.WEIGHT_GRADIENT else held[user]
        if used + weights > total:
            break
        if weights:
            gemms.append((user, weights))
            used += weights
        elif node in needs and not gemms:
            first.append(user)
    if not gemms or used < _COVERED * total:
        return None
    edges = [0, *accumulate(weights for _, weights in gemms)]
    pieces = tuple(
        Piece(user, begin / used, end / used, "N")
        for (user, _), (begin, end) in zip(gemms, pairwise(edges), strict=True)
    )
    return Chain(node, pieces, produces=False, first=tuple(first))


Cut = tuple[Chain, tuple[float, ...]]


@dataclass
class Known:
    """What was found before of graphs, by identity: their chains, and what they became, cut so."""

    chains: dict[int, tuple[ExecutionGraph, list[Chain]]] = field(default_factory=dict)
    graphs: dict[int, tuple[dict[int, Cut], ExecutionGraph]] = field(default_factory=dict)


def partition_workload(
    program: Program, machine: Machine | None = None, *, granularity: Granularity, known: Known | None = None
) -> Program:
    """Cut collectives and the GEMMs next to them into chunks.

    `granularity` maps a graph and a chain to the chunks; a single one leaves both whole. Where members of a group would
    cut differently, nobody does. What is `known` from before, on the same machine, is not found again.
    """
    known = Known() if known is None else known
    chosen = [_chosen(graph, granularity, known) for graph in program.graphs]
    keys = keys_of(program.graphs)
    ways: dict[tuple[int, int], set[tuple[float, ...]]] = {
        names[node]: set() for names, cuts in zip(keys, chosen, strict=True) for node in cuts
    }
    for names, cuts in zip(keys, chosen, strict=True):
        for node, key in names.items():
            if key in ways:
                ways[key].add(cuts[node][1] if node in cuts else (1.0,))
    graphs = tuple(
        _rewrite(graph, {node: cut for node, cut in cuts.items() if len(ways[names[node]]) == 1}, machine, known)
        for graph, names, cuts in zip(program.graphs, keys, chosen, strict=True)
    )
    return replace(program, graphs=graphs)


def _chosen(graph: ExecutionGraph, granularity: Granularity, known: Known) -> dict[int, Cut]:
    if id(graph) not in known.chains:
        known.chains[id(graph)] = graph, list(find_chains(graph))  # kept, lest the id returns
    found = {}
    for chain in known.chains[id(graph)][1]:
        parts = tuple(granularity(graph, chain))
        if len(parts) < 2:
            continue
        one = chain.produces and not chain.gradients
        if one and len(own_edges(graph, chain.pieces[0], parts, ceil)) <= len(parts):
            continue  # fewer tiles than chunks
        found[chain.collective] = (chain, parts)
    return found


def _rewrite(graph: ExecutionGraph, cuts: dict[int, Cut], machine: Machine | None, known: Known) -> ExecutionGraph:
    if not cuts:
        return graph
    same, found = known.graphs.get(id(graph), ({}, graph))
    if same == cuts:
        return found
    makers = {piece.node: (piece, cut) for cut in cuts.values() if cut[0].produces for piece in cut[0].pieces}
    takers = {piece.node: (piece, cut) for cut in cuts.values() if not cut[0].produces for piece in cut[0].pieces}
    firsts = {node: chain.collective for chain, _ in cuts.values() for node in chain.first}
    new, upto = Rewrite(graph), 0
    for node in sorted({*cuts, *makers, *takers, *firsts}):
        new.keep(upto, node)
        upto = node + 1
        if node in cuts:
            _cut_collective(new, node, cuts[node])
        elif node in makers:
            piece, (_, parts) = makers[node]
            own = own_edges(graph, piece, parts, ceil)
            made = _cut_gemm(new, piece, own, [new.needs(node)] * (len(own) - 1), machine)
            new.sliced[node], new.done[node] = made, made[-1]
        elif node in takers:
            piece, (chain, parts) = takers[node]
            new.done[node] = _take(new, piece, chain, parts, machine)
        else:
            gather = firsts[node]
            others = [new.done[old] for old in new.needed(node) if old != gather]
            new.done[node] = new.add(node, [*others, new.sliced[gather][0]])
    new.keep(upto, len(graph))
    found = new.build()
    known.graphs[id(graph)] = cuts, found
    return found


@lru_cache(maxsize=4096)
def edges_of(parts: tuple[float, ...]) -> tuple[float, ...]:
    """Return where chunks begin and end, from 0 to exactly 1."""
    return (0.0, *list(accumulate(parts))[:-1], 1.0)


def _size(graph: ExecutionGraph, piece: Piece) -> int:
    """Return the size of the dimension along which a GEMM is cut."""
    return int(dict(graph.kernels[graph.kernel[piece.node]].shape)[piece.dimension])


@lru_cache(maxsize=4096)
def _tiled(size: int, edges: tuple[float, ...], to_whole: Callable[[float], int]) -> tuple[float, ...]:
    """Move the edges between parts of a GEMM to edges of tiles, down or up; parts without a tile go."""
    inner = {to_whole(edge * size / _TILE) * _TILE for edge in edges[1:-1]}
    return (0.0, *(at / size for at in sorted(inner) if 0 < at < size), 1.0)


def own_edges(
    graph: ExecutionGraph, piece: Piece, parts: tuple[float, ...], to_whole: Callable[[float], int]
) -> tuple[float, ...]:
    """Return where a GEMM is cut, in parts of its own, for the edges of chunks that lie in its data."""
    return _edges_within(piece.begin, piece.end, _size(graph, piece), edges_of(parts), to_whole)


def _edges_within(
    first: float, last: float, size: int, edges: tuple[float, ...], to_whole: Callable[[float], int]
) -> tuple[float, ...]:
    inner = ((edge - first) / (last - first) for edge in edges if first < edge < last)
    return _tiled(size, (0.0, *inner, 1.0), to_whole)


def _cut_collective(new: Rewrite, node: int, cut: Cut) -> None:
    chain, parts = cut
    graph, total = new.graph, int(new.graph.bytes[node])
    after = _made(new, chain, parts) if chain.produces else [new.needs(node)] * len(parts)
    names = [f"{graph.names[node]}_chunk_{number}" for number in range(len(parts))]
    chunks = new.add_all(node, after, name=names, bytes=divided(total, edges_of(parts)))
    new.sliced[node], new.done[node] = chunks, new.join(node, chunks)


def _made(new: Rewrite, chain: Chain, parts: tuple[float, ...]) -> list[list[int]]:
    """Return what chunks wait for: each for the parts of GEMMs in it, and the last for all other kernels."""
    graph, pieces = new.graph, {piece.node for piece in chain.pieces}
    others = [old for old in new.needed(chain.collective) if old not in pieces]
    before = [new.done[old] for old in others if graph.kind[old] == NodeKind.COLLECTIVE]
    after = [list(before) for _ in parts]
    after[-1] += [new.done[old] for old in others]
    for piece in chain.pieces:
        needed = _parts_made(piece.begin, piece.end, _size(graph, piece), edges_of(parts))
        for number, part in needed:
            after[number].append(new.sliced[piece.node][part])
    return after


@lru_cache(maxsize=4096)
def _parts_made(first: float, last: float, size: int, edges: tuple[float, ...]) -> tuple[tuple[int, int], ...]:
    """Return the chunks in which a GEMM's data are, and of each the last part of the GEMM that it needs."""
    own = _edges_within(first, last, size, edges, ceil)
    found = []
    for number, (left, right) in enumerate(pairwise(edges)):
        if left < last and first < right:
            upto = _edges_within(first, last, size, (0.0, right, 1.0), ceil)[1]  # the end, where the chunk goes on
            found.append((number, bisect_left(own, upto) - 1))
    return tuple(found)


def _take(new: Rewrite, piece: Piece, chain: Chain, parts: tuple[float, ...], machine: Machine | None) -> int:
    """Write a GEMM that takes chunks: a part for each that ends within its own data, after those that it needs."""
    own, held = _parts_within(piece.begin, piece.end, _size(new.graph, piece), edges_of(parts))
    others = [new.done[old] for old in new.needed(piece.node) if old != chain.collective]
    chunks = new.sliced[chain.collective]
    after = [[*others, *(chunks[number] for number in numbers)] for numbers in held]
    return _cut_gemm(new, piece, own, after, machine)[-1]


@lru_cache(maxsize=4096)
def _parts_within(
    first: float, last: float, size: int, edges: tuple[float, ...]
) -> tuple[tuple[float, ...], tuple[tuple[int, ...], ...]]:
    """Return the edges of a GEMM's parts, whose data lie so within the chunks, and the chunks that each needs."""
    own, width = _edges_within(first, last, size, edges, floor), last - first
    spans = [(first + begin * width, first + end * width) for begin, end in pairwise(own)]
    chunks = list(enumerate(pairwise(edges)))
    held = [tuple(number for number, (left, right) in chunks if left < high and right > low) for low, high in spans]
    return own, tuple(held)


def _cut_gemm(
    new: Rewrite, piece: Piece, edges: Sequence[float], after: Sequence[Sequence[int]], machine: Machine | None
) -> list[int]:
    if len(edges) == 2:
        return [new.add(piece.node, after[0])]
    ends_s = list(accumulate(part_times(new.graph, piece, edges, machine)))
    names = [f"part_{number}" for number in range(len(after))]
    return new.add_kernel(piece.node, edges, after, names, ends_s=ends_s)


def part_times(graph: ExecutionGraph, piece: Piece, edges: Sequence[float], machine: Machine | None) -> list[float]:
    """Return how long each part of a GEMM takes: its share, or where the machine is known what its size takes."""
    whole_s = float(graph.duration_s[piece.node])
    if machine is None or len(edges) == 2:
        return [whole_s * (end - begin) for begin, end in pairwise(edges)]
    call = graph.kernels[graph.kernel[piece.node]]
    return [whole_s * share for share in shares(machine.device, call, piece.dimension, tuple(edges))]


@lru_cache(maxsize=4096)
def shares(device: Device, call: Kernel, dimension: str, edges: tuple[float, ...]) -> tuple[float, ...]:
    """Return how long parts of a kernel take, over the whole, both at full clock; together no less than one.

    Rows of a part are as long as in the whole, so parts of a GEMM with aligned rows count as sizes that are.
    """
    shape = dict(call.shape)
    cuts, load = [round(shape[dimension] * edge) for edge in edges], 16 // ITEM_BYTES[call.dtype]
    width = load if dimension in "KN" and shape[dimension] % load == 0 else 1
    sizes = [max(1, -(-(end - begin) // width) * width) for begin, end in pairwise(cuts)]
    calls = [kernel(call.op, dtype=call.dtype, **{**shape, dimension: size}).counting(call.tokens) for size in sizes]
    seconds, _ = kernel_times(device, [call, *calls], full_clock=True)
    parts_s = [float(part_s) for part_s in seconds[1:]]
    return tuple(part_s / min(float(seconds[0]), fsum(parts_s)) for part_s in parts_s)
