"""All-to-alls and the kernels next to them, cut into chunks that overlap: of tables, or of tokens.

A segment is one or more all-to-alls with the kernels that make and take their rows one by one: pooled embeddings of
DLRM, which are cut by table; permutation, experts and activations of a mixture of experts, which are cut by token, with
the gathers over the tensor axis between. Between two collectives a chunk runs through all kernels before the next one
does, so that it is sent while others are computed. Whatever else needs a segment's rows, such as gradients of weights,
waits for all chunks. A part of a kernel is timed at its own size. See docs/models/centauri.md.
Source: Chen et al., Centauri, Sec. 3.1.3 and Table 3 (dimensions that are free); Tutel, arXiv:2206.03382 (chunks).
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np

from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.cluster.device.spec import Device
from scaleout.cluster.machine import Machine
from scaleout.config.documents import whole
from scaleout.errors import ConfigError
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, NodeKind, NodeRole
from scaleout.program.operations import Kernel, kernel
from scaleout.program.program import Program
from scaleout.schedule.centauri.partition.dimensions import DimensionType, sizes_of
from scaleout.schedule.centauri.partition.workload import GEMMS, shares
from scaleout.schedule.pairs import keys_of
from scaleout.schedule.rewrite import JOIN, Rewrite, divided

_COMPUTE, _COLLECTIVE = int(NodeKind.COMPUTE), int(NodeKind.COLLECTIVE)
_ALL_TO_ALL = COLLECTIVES.index("all_to_all")
_OVER_TENSOR_AXIS = tuple(COLLECTIVES.index(kind) for kind in ("all_gather", "reduce_scatter"))

_ACCUMULATING = "grouped_gemm_accumulate"
"""A GEMM that adds to what is there, so that its parts along K need no other addition."""

_ALONG = {
    op: sizes_of(op, DimensionType.CD if op == _ACCUMULATING else DimensionType.OD)[0]
    for op in (
        "embedding_bag_fwd", "embedding_bag_bwd_sparse", "embedding_sgd_sparse", "permute_for_all_to_all",
        "moe_permute_rows", "moe_repeat_topk", "moe_sum_topk", "grouped_gemm", _ACCUMULATING, *GEMMS,
        "gelu_fwd", "gelu_bwd", "silu_fwd", "silu_bwd", "swiglu_fwd", "swiglu_fwd_unfused", "swiglu_bwd",
        "swiglu_bwd_fused", "cast_to_fp8", "cast_to_fp8_twice",
    )
}  # fmt: skip
"""Operations that treat tables or rows one by one, and the size that counts them: their first dimension."""


@dataclass(frozen=True)
class Segment:
    """Nodes that are cut together, each with how many collectives its rows have passed in the segment before.

    Segments whose nodes are alike have equal signatures.
    """

    passed: Mapping[int, int]
    collectives: tuple[int, ...]
    signature: tuple[Hashable, ...]

    @property
    def span(self) -> tuple[int, int]:
        """The first node, and the one behind the last."""
        return min(self.passed), max(self.passed) + 1


def find_segments(graph: ExecutionGraph) -> list[Segment]:
    """Find the all-to-alls that can be cut with the kernels next to them; a node belongs to one segment."""
    exchanges = (graph.kind == _COLLECTIVE) & (graph.collective == _ALL_TO_ALL) & (graph.slices == 1)
    if not exchanges.any():
        return []
    rows, found, taken = _Rows(graph), list[Segment](), set[int]()
    for node in np.flatnonzero(exchanges).tolist():
        if node in taken:
            continue
        nodes = rows.downwards({*rows.upwards(node), node})
        taken |= nodes
        passed = rows.passed(nodes)
        if rows.closed(nodes) and any(rows.free[each] for each in nodes):
            collectives = tuple(each for each in passed if not rows.computes[each])
            found.append(Segment(passed, collectives, _signature(graph, nodes)))
    return found


def _signature(graph: ExecutionGraph, nodes: Iterable[int]) -> tuple[Hashable, ...]:
    """Return what makes nodes and their span alike to others: costs, and which of them need which."""
    members = np.array(sorted(nodes))
    begin, end = members[0], members[-1] + 1
    offsets = graph.dependency_offsets[begin : end + 1]
    needs = graph.dependencies[offsets[0] : offsets[-1]] - begin
    columns = (graph.kind, graph.kernel, graph.group, graph.collective, graph.bytes, graph.duration_s)
    return (
        hash(graph.kernels),
        (members - begin).tobytes(),
        (offsets - offsets[0]).tobytes(),
        np.maximum(needs, -1).tobytes(),
        *(column[begin:end].tobytes() for column in columns),
    )


class _Rows:
    """Which nodes of a graph treat rows one by one, and what needs what."""

    def __init__(self, graph: ExecutionGraph) -> None:
        self.users = graph.users
        offsets, flat = graph.dependency_offsets.tolist(), graph.dependencies.tolist()
        self.needs: list[list[int]] = [flat[begin:end] for begin, end in pairwise(offsets)]
        is_kernel = (graph.kind == _COMPUTE) & (graph.kernel != NONE)
        known = np.array([call.op in _ALONG for call in graph.kernels] + [False])  # `NONE` is the last entry
        sizes = np.array([call.bytes for call in graph.kernels] + [NONE], np.int64)
        whole = graph.bytes == sizes[graph.kernel]
        is_gemm = np.array([call.op in GEMMS for call in graph.kernels] + [False])
        free = is_kernel & known[graph.kernel] & whole
        joins = (graph.kind == _COMPUTE) & (graph.kernel == NONE) & (graph.duration_s == 0)
        over_tensor_axis = np.isin(graph.collective, _OVER_TENSOR_AXIS) & graph.has_role(NodeRole.EXCHANGE)
        passes = (graph.collective == _ALL_TO_ALL) | over_tensor_axis
        passes &= (graph.kind == _COLLECTIVE) & (graph.slices == 1)
        self.computes: list[bool] = (graph.kind == _COMPUTE).tolist()
        self.free: list[bool] = free.tolist()
        self.gemm: list[bool] = is_gemm[graph.kernel].tolist()
        self.follows: list[bool] = (joins | passes).tolist()  # once all that it needs is in the segment

    def upwards(self, exchange: int) -> set[int]:
        """Return the kernels that make the rows that an all-to-all sends, up to a GEMM."""
        found: set[int] = set()
        waiting = list(self.needs[exchange])
        while waiting:
            node = waiting.pop()
            if node not in found and self.free[node]:
                found.add(node)
                waiting += [] if self.gemm[node] else self.needs[node]
        return found

    def downwards(self, nodes: set[int]) -> set[int]:
        """Add what takes the rows of nodes, through further all-to-alls."""
        nodes = set(nodes)
        waiting = sorted({user for node in nodes for user in self.users[node]})  # a heap
        while waiting:
            node = heappop(waiting)
            if node not in nodes and (self.free[node] or (self.follows[node] and nodes.issuperset(self.needs[node]))):
                nodes.add(node)
                for user in self.users[node]:
                    heappush(waiting, user)
        return nodes

    def passed(self, nodes: set[int]) -> dict[int, int]:
        """Count the collectives that the rows of each node have passed."""
        found: dict[int, int] = {}
        for node in sorted(nodes):
            needs = [old for old in self.needs[node] if old in nodes]
            found[node] = max((found[old] + (not self.computes[old]) for old in needs), default=0)
        return found

    def closed(self, nodes: set[int]) -> bool:
        """Whether no node needs another one by way of a node that is not among them."""
        outside: set[int] = set()  # others that need the nodes
        for node in range(min(nodes), max(nodes) + 1):
            if node in nodes:
                if not outside.isdisjoint(self.needs[node]):
                    return False
            elif any(old in nodes or old in outside for old in self.needs[node]):
                outside.add(node)
        return True


Cuts = Mapping[int, tuple[Segment, int]]
"""From each node that is cut to its segment and the number of chunks."""


def largest_count(graph: ExecutionGraph, segment: Segment) -> int:
    """Return how many chunks a segment can be cut into: every kernel has at least one table or row in each."""
    sizes = [_along(graph, node)[1] for node in segment.passed if graph.kernel[node] != NONE]
    return min(sizes)


def _along(graph: ExecutionGraph, node: int) -> tuple[str, int]:
    """Return the dimension that a kernel is cut along, and its size."""
    call = graph.kernels[graph.kernel[node]]
    summed = graph.role[node] & NodeRole.WEIGHT_GRADIENT
    dimension = sizes_of(call.op, DimensionType.CD)[0] if summed else _ALONG[call.op]
    return dimension, int(dict(call.shape)[dimension])


def chunk_times(graph: ExecutionGraph, node: int, count: int, machine: Machine | None) -> list[float]:
    """Return how long each of equal chunks of a kernel takes: its share, or what its size takes on a known machine."""
    whole_s = float(graph.duration_s[node])
    if graph.kernel[node] == NONE or count == 1 or machine is None:
        return [whole_s / count] * count
    dimension, _ = _along(graph, node)
    call = graph.kernels[graph.kernel[node]]
    times_s = [whole_s * share for share in shares(machine.device, call, dimension, _edges(count))]
    added_s = _addition_s(machine.device, call) if dimension in sizes_of(call.op, DimensionType.CD) else 0.0
    return [times_s[0], *(chunk_s + added_s for chunk_s in times_s[1:])]


@lru_cache(maxsize=1024)
def _addition_s(device: Device, call: Kernel) -> float:
    """Return how long it takes to add a weight's gradient to what is there, where its GEMM does not."""
    if call.op == _ACCUMULATING:
        return 0.0
    sizes = dict(call.shape)
    return float(kernel_times(device, [kernel("add", dtype=call.dtype, elements=sizes["M"] * sizes["N"])])[0][0])


def _edges(count: int) -> tuple[float, ...]:
    return tuple(number / count for number in range(count + 1))


def written(graph: ExecutionGraph, cuts: Cuts, span: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the nodes of a span as they are written: a node that is cut with each of its chunks, others with `NONE`.

    Kernels between two collectives are written chunk by chunk where the last of them stood, or before a collective that
    sends what they make. Nodes that wait for one that is not yet written come right after it, and later collectives of
    a group never pass those that wait.
    """
    last: dict[tuple[int, int], int] = {}  # kernel of each segment, of those that have passed as many collectives
    for node, (segment, _) in cuts.items():
        if graph.kind[node] == _COMPUTE:
            last[segment.span[0], segment.passed[node]] = max(
                node, last.get((segment.span[0], segment.passed[node]), 0)
            )
    ends = set(last.values())
    runs: dict[int, list[int]] = {}  # kernels of each segment that are not yet written
    waiting, unwritten, groups = list[int](), set[int](), set[int]()

    def flushed(*segments: int) -> Iterator[tuple[int, int]]:
        nonlocal waiting, groups
        for segment in segments:
            run = runs.pop(segment)
            yield from ((node, chunk) for chunk in range(cuts[run[0]][1]) for node in run)
            unwritten.difference_update(run)
        later, waiting, groups = waiting, [], set()
        for node in later:
            if unwritten.isdisjoint(graph.dependencies_of(node).tolist()):
                unwritten.discard(node)
                yield node, NONE
            else:
                waiting.append(node)
                groups.add(int(graph.group[node]))

    for node in range(*span):
        needs = graph.dependencies_of(node).tolist() if unwritten else []
        waits = [old for old in needs if old in unwritten]
        if node not in cuts:
            if waits or _waits(graph, node, groups):
                waiting.append(node)
                unwritten.add(node)
                groups.add(int(graph.group[node]))
            else:
                yield node, NONE
            continue
        first, computes = cuts[node][0].span[0], graph.kind[node] == _COMPUTE
        if any(not computes or old not in runs.get(first, ()) for old in waits):
            yield from flushed(*runs)
        if computes:
            runs.setdefault(first, []).append(node)
            unwritten.add(node)
            if node in ends:
                yield from flushed(first)
        else:
            yield from ((node, chunk) for chunk in range(cuts[node][1]))


def _waits(graph: ExecutionGraph, node: int, groups: set[int]) -> bool:
    return bool(graph.kind[node] == _COLLECTIVE and int(graph.group[node]) in groups)


def chunked_with(option: str) -> Callable[[Program, Machine | None], Program]:
    """Return `chunked` with that many chunks; a ConfigError says that it is no number of 2 or more."""
    if (whole(option) or 0) < 2:
        raise ConfigError(f"chunked:{option}: give the number of chunks, 2 or more, such as chunked:4")
    return partial(chunked, count=int(option))


def chunked(program: Program, machine: Machine | None = None, *, count: int = 2) -> Program:
    """Cut every all-to-all and the kernels next to it, whether that pays or not; into fewer chunks where rows run out.

    Without a machine each chunk of a kernel takes its share of the time.
    """
    found = [
        [(segment, min(count, largest_count(graph, segment))) for segment in find_segments(graph)]
        for graph in program.graphs
    ]
    return partition_exchanges(program, machine, found)


def partition_exchanges(
    program: Program, machine: Machine | None, chosen: Sequence[Sequence[tuple[Segment, int]]]
) -> Program:
    """Cut all-to-alls and the kernels next to them into equal chunks.

    `chosen` has for each graph its segments and their numbers of chunks; 1 leaves one whole. Where members of a group
    would cut differently, nobody does.
    """
    found = [list(each) for each in chosen]
    keys = keys_of(program.graphs)
    agreed = False
    while not agreed:
        cuts: list[dict[int, tuple[Segment, int]]] = [
            {node: cut for cut in own if cut[1] > 1 for node in cut[0].passed} for own in found
        ]
        counts: dict[tuple[int, int], set[int]] = {}
        for names, own in zip(keys, cuts, strict=True):
            for node, key in names.items():
                counts.setdefault(key, set()).add(own[node][1] if node in own else 1)
        agreed = True
        for names, own, segments in zip(keys, cuts, found, strict=True):
            differs = {id(own[node][0]) for node, key in names.items() if node in own and len(counts[key]) > 1}
            segments[:] = [(each, 1 if id(each) in differs else count) for each, count in segments]
            agreed &= not differs
    alike: dict[tuple[Hashable, ...], _Written] = {}
    graphs = tuple(_rewrite(graph, own, machine, alike) for graph, own in zip(program.graphs, cuts, strict=True))
    return replace(program, graphs=graphs)


@dataclass(frozen=True)
class _Written:
    """A span as it is written, for all that are alike: a column entry for each new node, and where old ones are done.

    Nodes are counted from the span's first. What a new node needs is a new node, counted in the same way, or by
    ``~number`` which of the old nodes that its old node needs, if that lies before the span.
    """

    nodes: list[int]
    chunks: list[int]  # `NONE` of whole nodes and of joins
    needs: list[list[int]]
    done: dict[int, int]
    joins: list[int]
    columns: dict[str, tuple[list[int], list[Any]]]


def _rewrite(
    graph: ExecutionGraph, cuts: Cuts, machine: Machine | None, alike: dict[tuple[Hashable, ...], _Written]
) -> ExecutionGraph:
    if not cuts:
        return graph
    new, upto = Rewrite(graph), 0
    for begin, end in _spans(cuts):
        new.keep(upto, begin)
        upto = end
        own = {node: cuts[node] for node in range(begin, end) if node in cuts}
        key = (_signature(graph, own), tuple(count for _, count in own.values()))
        if key not in alike:
            alike[key] = _span_written(graph, own, (begin, end), machine)
        _write(new, begin, alike[key])
    new.keep(upto, len(graph))
    return new.build()


def _spans(cuts: Cuts) -> list[tuple[int, int]]:
    """Return the spans of segments, those that overlap as one."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted({segment.span for segment, _ in cuts.values()}):
        if found and begin < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _span_written(graph: ExecutionGraph, cuts: Cuts, span: tuple[int, int], machine: Machine | None) -> _Written:
    """Write a span: a chunk comes after the same chunk of what it needs within its segment, and after all else."""
    begin = span[0]
    made = _Written([], [], [], {}, [], {name: ([], []) for name in ("bytes", "flops", "duration_s", *JOIN)})
    sliced: dict[int, list[int]] = {}
    times_s = {node: chunk_times(graph, node, count, machine) for node, (_, count) in cuts.items()}

    def add(node: int, chunk: int, needs: list[int]) -> int:
        made.nodes.append(node - begin)
        made.chunks.append(chunk)
        made.needs.append(needs)
        return len(made.nodes) - 1

    def change(at: int, columns: Mapping[str, Any]) -> None:
        for name, value in columns.items():
            made.columns[name][0].append(at)
            made.columns[name][1].append(value)

    for node, chunk in written(graph, cuts, span):
        within = cuts[node][0].passed if chunk != NONE else {}
        needs = [
            ~which if old < begin else sliced[old][chunk] if old in within else made.done[old - begin]
            for which, old in enumerate(graph.dependencies_of(node).tolist())
        ]
        chunks = sliced.setdefault(node, [])
        if graph.kind[node] == _COMPUTE:
            needs += chunks[-1:]
        chunks.append(add(node, chunk, needs))
        if chunk == NONE:
            made.done[node - begin] = chunks[-1]
            continue
        changed = {
            "bytes": divided(int(graph.bytes[node]), _edges(cuts[node][1]))[chunk],
            "flops": divided(int(graph.flops[node]), _edges(cuts[node][1]))[chunk],
        } | ({"duration_s": times_s[node][chunk]} if graph.kind[node] == _COMPUTE else {})
        change(chunks[-1], changed)
        if chunk == cuts[node][1] - 1:
            made.done[node - begin] = chunks[-1]
            if graph.kind[node] == _COLLECTIVE and not within.keys() >= set(graph.users[node]):
                made.joins.append(add(node, NONE, list(chunks)))
                made.done[node - begin] = made.joins[-1]
                change(made.joins[-1], JOIN)
    return made


def _write(new: Rewrite, begin: int, made: _Written) -> None:
    """Write a span whose first node is given as one that is alike was written."""
    names, base = new.graph.names, len(new.origin)
    labels = {at: f"chunk_{chunk}" for at, chunk in enumerate(made.chunks) if chunk != NONE}
    labels |= dict.fromkeys(made.joins, "done")
    named = [f"{names[begin + made.nodes[at]]}_{label}" for at, label in labels.items()]
    nodes = [begin + node for node in made.nodes]
    needed = [new.needed(node) for node in nodes]
    after = [
        [base + need if need >= 0 else new.done[old[~need]] for need in needs]
        for needs, old in zip(made.needs, needed, strict=True)
    ]
    new.add_each(nodes, after, {**made.columns, "name": (list(labels), named)})
    new.done.update((begin + old, base + at) for old, at in made.done.items())


def finish_s(
    graph: ExecutionGraph,
    segment: Segment,
    count: int,
    machine: Machine,
    *,
    collective_s: Callable[[int, float], float],
) -> float:
    """Return when all nodes of a segment's span are done, kernels on one stream and its collectives on their groups'.

    `collective_s` maps a collective and the part of it that a chunk is to seconds. Collectives outside take none.
    """
    cuts = dict.fromkeys(segment.passed, (segment, count))
    times_s = {node: chunk_times(graph, node, count, machine) for node in segment.passed}
    begin, end = segment.span
    order = written(graph, cuts, (begin, end)) if count > 1 else ((node, NONE) for node in range(begin, end))
    ends_s: dict[tuple[int, int], float] = {}
    done_s: dict[int, float] = {}
    free_s: dict[int, float] = {}  # by the group of collectives; kernels have none
    for node, chunk in order:
        ready_s = 0.0
        for old in graph.dependencies_of(node).tolist():
            ready_s = max(ready_s, ends_s.get((old, chunk), 0.0) or done_s.get(old, 0.0))
        group = int(graph.group[node])
        if graph.kind[node] == _COMPUTE:
            lasts_s = times_s[node][max(chunk, 0)] if node in times_s else float(graph.duration_s[node])
        else:
            lasts_s = collective_s(node, 1 / count) if node in cuts else 0.0
        ends_s[node, chunk] = done_s[node] = max(ready_s, free_s.get(group, 0.0)) + lasts_s
        if graph.kind[node] == _COMPUTE or node in cuts:
            free_s[group] = done_s[node]
    return max(done_s.values())
