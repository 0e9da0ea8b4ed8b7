"""Segments: all-to-alls with the kernels that make and take their rows one by one.

They are pooled embeddings of DLRM, which are cut by table or by sample; permutation, experts and activations of a
mixture of experts, which are cut by token, with the gathers over the tensor axis between. Layers and micro-batches have
segments that are alike: the nodes are searched once, and the others found by comparing columns.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, Ints, NodeKind, NodeRole
from scaleout.schedule.centauri.partition.dimensions import DimensionType, sizes_of
from scaleout.schedule.centauri.partition.workload import GEMMS

_COMPUTE, _COLLECTIVE = int(NodeKind.COMPUTE), int(NodeKind.COLLECTIVE)
_ALL_TO_ALL = COLLECTIVES.index("all_to_all")
_OVER_TENSOR_AXIS = tuple(COLLECTIVES.index(kind) for kind in ("all_gather", "reduce_scatter"))

ACCUMULATING = "grouped_gemm_accumulate"
"""A GEMM that adds to what is there, so that its parts along K need no other addition."""

_SUMMED = (ACCUMULATING, "embedding_bag_bwd_dense")
"""Gradients of weights, whose parts are added up."""

ALONG = {
    op: sizes_of(op, DimensionType.CD if op in _SUMMED else DimensionType.OD)[0]
    for op in (
        "embedding_bag_fwd", "embedding_bag_bwd_sparse", "embedding_sgd_sparse", "permute_for_all_to_all",
        "moe_permute_rows", "moe_regroup_rows", "moe_repeat_topk", "moe_sum_topk", "batched_gemm", "grouped_gemm",
        *_SUMMED, *GEMMS,
        "gelu_fwd", "gelu_bwd", "silu_fwd", "silu_bwd", "swiglu_fwd", "swiglu_fwd_unfused", "swiglu_bwd",
        "swiglu_bwd_fused", "cast_to_fp8", "cast_to_fp8_twice",
    )
}  # fmt: skip
"""Operations that treat tables or rows one by one, and the size that counts them: their first dimension."""


@dataclass(frozen=True)
class Shape:
    """What segments that are alike have in common; nodes are counted from a segment's first.

    Attributes
    ----------
    passed : mapping
        Each node, with how many collectives its rows have passed in the segment before.
    collectives : tuple of int
        Those among the nodes.
    span : int
        Nodes from the first to the last, others between them included.
    signature : tuple
        What the nodes and all between them cost and wait for.
    """

    passed: Mapping[int, int]
    collectives: tuple[int, ...]
    span: int
    signature: tuple[Hashable, ...]


@dataclass(frozen=True)
class Segment:
    """Nodes that are cut together: the first of them, and their shape."""

    begin: int
    shape: Shape

    @property
    def end(self) -> int:
        """The node behind the last."""
        return self.begin + self.shape.span

    @property
    def nodes(self) -> list[int]:
        """The nodes, in order."""
        return [self.begin + node for node in self.shape.passed]

    def __contains__(self, node: int) -> bool:
        return node - self.begin in self.shape.passed

    @property
    def collectives(self) -> list[int]:
        """The collectives among the nodes."""
        return [self.begin + node for node in self.shape.collectives]


def find_segments(graph: ExecutionGraph) -> list[Segment]:
    """Find the all-to-alls that can be cut with the kernels next to them; each is in one segment.

    The nodes around an all-to-all are looked at one by one only if those around no earlier one are alike.
    """
    exchanges = np.flatnonzero((graph.kind == _COLLECTIVE) & (graph.collective == _ALL_TO_ALL) & (graph.slices == 1))
    if not exchanges.size:
        return []
    rows, found, taken = _Rows(graph), list[Segment](), np.zeros(len(graph), bool)
    known: dict[int, tuple[int, Ints, Shape | None]] = {}  # where the segment of each begins, its nodes, its shape
    for node in exchanges.tolist():
        if taken[node]:
            continue
        if node not in known:
            nodes = rows.downwards({*rows.upwards(node), node})
            shape, begin = rows.shape(nodes), min(nodes)
            within = np.array(sorted(nodes)) - begin
            for other in (node, *rows.alike(nodes, node, exchanges[exchanges > node])):
                known.setdefault(other, (other - node + begin, within, shape))
        begin, within, shape = known[node]
        taken[begin + within] = True
        if shape is not None:
            found.append(Segment(begin, shape))
    return found


def signature_of(graph: ExecutionGraph, nodes: Iterable[int]) -> tuple[Hashable, ...]:
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
        self.graph = graph
        is_kernel = (graph.kind == _COMPUTE) & (graph.kernel != NONE)
        known = np.array([call.op in ALONG for call in graph.kernels] + [False])  # `NONE` is the last entry
        sizes = np.array([call.bytes for call in graph.kernels] + [NONE], np.int64)
        whole = graph.bytes == sizes[graph.kernel]
        is_gemm = np.array([call.op in GEMMS for call in graph.kernels] + [False])
        self.free = is_kernel & known[graph.kernel] & whole
        joins = (graph.kind == _COMPUTE) & (graph.kernel == NONE) & (graph.duration_s == 0)
        over_tensor_axis = np.isin(graph.collective, _OVER_TENSOR_AXIS) & graph.has_role(NodeRole.EXCHANGE)
        passes = (graph.collective == _ALL_TO_ALL) | over_tensor_axis
        passes &= (graph.kind == _COLLECTIVE) & (graph.slices == 1)
        self.gemm: list[bool] = is_gemm[graph.kernel].tolist()
        self.follows = joins | passes  # once all that it needs is in the segment
        users, needs = np.repeat(np.arange(len(graph)), np.diff(graph.dependency_offsets)), graph.dependencies
        takes = (self.free | self.follows)[users]
        users, needs = users[takes], needs[takes]
        self.takers = users[np.argsort(needs, kind="stable")]  # what may belong to the segments of each node, flat
        self.taker_offsets = np.concatenate(([0], np.cumsum(np.bincount(needs, minlength=len(graph)))))
        flags = self.free + 2 * self.follows + 4 * graph.has_role(NodeRole.WEIGHT_GRADIENT)
        self.columns = (
            *(graph.kernel, graph.bytes, graph.group, graph.duration_s.view(np.int64), graph.kind, graph.collective),
            *(flags, np.diff(graph.dependency_offsets)),
        )

    def needs(self, node: int) -> list[int]:
        """Return what a node waits for."""
        found: list[int] = self.graph.dependencies_of(node).tolist()
        return found

    def takers_of(self, nodes: Sequence[int]) -> list[int]:
        """Return the kernels that treat the rows of nodes one by one, and what else may follow in their segment."""
        ends = self.taker_offsets
        found: list[int] = np.concatenate([self.takers[ends[node] : ends[node + 1]] for node in nodes]).tolist()
        return found

    def upwards(self, exchange: int) -> set[int]:
        """Return the kernels that make the rows that an all-to-all sends, up to a GEMM."""
        found: set[int] = set()
        waiting = self.needs(exchange)
        while waiting:
            node = waiting.pop()
            if node not in found and self.free[node]:
                found.add(node)
                waiting += [] if self.gemm[node] else self.needs(node)
        return found

    def downwards(self, nodes: set[int]) -> set[int]:
        """Add what takes the rows of nodes, through further all-to-alls."""
        nodes = set(nodes)
        waiting = sorted(set(self.takers_of(list(nodes))))  # a heap
        while waiting:
            node = heappop(waiting)
            if node not in nodes and (self.free[node] or nodes.issuperset(self.needs(node))):
                nodes.add(node)
                for user in self.takers_of([node]):
                    heappush(waiting, user)
        return nodes

    def shape(self, nodes: set[int]) -> Shape | None:
        """Return the shape of the segment of some nodes; None if they cannot be cut."""
        begin, end = min(nodes), max(nodes) + 1
        if not self.free[list(nodes)].any() or not self._closed(nodes):
            return None
        computes, passed = self.graph.kind == _COMPUTE, dict[int, int]()
        for node in sorted(nodes):
            needs = [old for old in self.needs(node) if old in nodes]
            passed[node] = max((passed[old] + int(not computes[old]) for old in needs), default=0)
        collectives = tuple(node - begin for node in passed if not computes[node])
        relative = {node - begin: count for node, count in passed.items()}
        return Shape(relative, collectives, end - begin, signature_of(self.graph, nodes))

    def _closed(self, nodes: set[int]) -> bool:
        """Whether no node needs another one by way of a node that is not among them."""
        outside: set[int] = set()  # others that need the nodes
        for node in range(min(nodes), max(nodes) + 1):
            if node in nodes:
                if not outside.isdisjoint(self.needs(node)):
                    return False
            elif any(old in nodes or old in outside for old in self.needs(node)):
                outside.add(node)
        return True

    def alike(self, nodes: set[int], exchange: int, others: Ints) -> list[int]:
        """Return of other all-to-alls those for which the search takes the same steps, to a segment of equal signature.

        All is equal from the first node of the one's segment to the last that may have belonged to it.
        """
        graph, begin, members = self.graph, min(nodes), np.array(sorted(nodes))
        size = max([*nodes, *self.takers_of(members.tolist())]) + 1 - begin
        starts = others[others + (begin - exchange) + size <= len(graph)] + (begin - exchange)
        for column in self.columns:
            starts = starts[column[starts + (exchange - begin)] == column[exchange]]
        offsets, ends = graph.dependency_offsets, self.taker_offsets
        counts = np.diff(ends)[members]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)

        def needs(starts: Ints) -> Ints:
            places = np.arange(offsets[begin + size] - offsets[begin])
            needs = graph.dependencies[offsets[starts][:, None] + places]
            return np.where(needs < starts[:, None], -1 - self.free[needs], needs - starts[:, None])

        def takers(starts: Ints) -> Ints:
            rows = ends[starts[:, None] + np.repeat(members - begin, counts)]
            return np.asarray(self.takers[rows + within] - starts[:, None])

        def of(column: Ints, at: Ints) -> Callable[[Ints], Ints]:
            return lambda starts: np.asarray(column[starts[:, None] + at])

        whole = [of(column, np.arange(size)) for column in self.columns]
        for view in (*whole, needs, of(np.diff(ends), members - begin), takers):
            starts = starts[(view(starts) == view(np.array([begin]))).all(axis=1)]
        return [start + exchange - begin for start in starts.tolist()]
