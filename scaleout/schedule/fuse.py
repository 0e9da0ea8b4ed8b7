"""Fused computation-collectives: a kernel and the collective next to it become one persistent kernel.

The kernel is cut into slices, and each slice is sent as it finishes, the slices for other ranks first and the one
that stays last; or, where the kernel consumes an all-to-all, it starts with the slice that is already there and
takes the others as they arrive. Slices of one transfer follow each other on the wire without paying its latency
again. The persistent kernel holds its stream until its last slice has arrived, as its work-groups poll for it.

What a slice costs besides (the call that sends it, book-keeping, lower occupancy) is not charged here.

Source: Punniyamurthy et al., Optimizing Distributed ML Communication with Fused Computation-Collective Operations.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from scaleout.graph import COLLECTIVES, NONE, ExecutionGraph, NodeKind, compress
from scaleout.operations import TimeSource
from scaleout.program import Program
from scaleout.schedule.overlap import communication_stream

PRODUCERS = {
    "all_to_all": ("embedding_bag_fwd", "gemm"),
    "all_reduce": ("gemm", "gemv"),
    "reduce_scatter": ("gemm",),
}
"""Collective to the operations that can be fused into it as they make its data."""

CONSUMERS = {"all_to_all": ("embedding_bag_bwd_sparse", "embedding_sgd_sparse")}
"""Collective to the operations that can be fused with it as they consume its data."""

KEEPS_A_SHARE = ("all_to_all", "reduce_scatter")
"""Collectives of which a rank keeps the share 1/p: that slice is computed and not sent."""


def fuse(program: Program, *, slices: int = 32) -> Program:
    """Replace each pair of a kernel and a collective that can be fused by slices of both.

    Parameters
    ----------
    program : Program
        Timed, and put on streams by another schedule.
    slices : int
        Slices that a collective is cut into. The paper's are finer, 32 embeddings each; with this many, what
        cannot overlap is one slice, 3% of the shorter of the two.
    """
    group_sizes = [max(len(members) for members in family.members) for family in program.groups]
    pairs = [_pairs(graph, group_sizes, slices) for graph in program.graphs]
    agreed = _agreed(program.graphs, pairs)
    return replace(program, graphs=tuple(map(_rewrite, program.graphs, agreed)))


@dataclass(frozen=True)
class _Pair:
    """A collective, the kernels that make its data or the one that takes it, and how they are cut.

    `kept` is the share of the kernels' work that is not sent.
    """

    collective: int
    kernels: tuple[int, ...]
    produces: bool
    slices: int
    kept: float


def _pairs(graph: ExecutionGraph, group_sizes: Sequence[int], slices: int) -> list[_Pair]:
    """Find what can be fused; a kernel belongs to one pair at most, the first in program order."""
    users: list[list[int]] = [[] for _ in range(len(graph))]
    for node in range(len(graph)):
        for dependency in graph.dependencies_of(node).tolist():
            users[dependency].append(node)
    taken: set[int] = set()
    pairs = []
    for node in np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist():
        kind = COLLECTIVES[graph.collective[node]]
        makers = _makers(graph, graph.dependencies_of(node).tolist())
        size = group_sizes[graph.group[node]]
        for kernels, produces, operations in (
            (makers, True, PRODUCERS.get(kind, ())),
            (users[node] if len(users[node]) == 1 else [], False, CONSUMERS.get(kind, ())),
        ):
            fits = kernels and all(graph.operation(kernel) in operations for kernel in kernels)
            if not fits or taken.intersection(kernels):
                continue
            # Each maker's slices are sent on their own, so there are at least as many slices as makers.
            count = max(min(slices, int(graph.bytes[node])) // len(kernels), 1) * len(kernels)
            kept = 1 / size if kind in KEEPS_A_SHARE else 0.0
            pairs.append(_Pair(node, tuple(kernels), produces, count, kept))
            taken.update(kernels)
            break
    return pairs


def _agreed(graphs: Sequence[ExecutionGraph], pairs: Sequence[list[_Pair]]) -> list[list[_Pair]]:
    """Leave out pairs whose collective another role does not cut into as many slices: all members must send alike."""
    names: list[dict[int, tuple[int, int]]] = []  # of a graph's collectives: the group, and which of the group's it is
    for graph in graphs:
        count: Counter[int] = Counter()
        names.append({})
        for node in np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist():
            group = int(graph.group[node])
            names[-1][node] = (group, count[group])
            count[group] += 1
    slices = [{name[pair.collective]: pair.slices for pair in mine} for name, mine in zip(names, pairs, strict=True)]
    ways: dict[tuple[int, int], set[int]] = {}
    for name, cut in zip(names, slices, strict=True):
        for key in name.values():
            ways.setdefault(key, set()).add(cut.get(key, 1))
    return [
        [pair for pair in mine if len(ways[name[pair.collective]]) == 1]
        for name, mine in zip(names, pairs, strict=True)
    ]


def _makers(graph: ExecutionGraph, dependencies: list[int]) -> list[int]:
    """Kernels that make a collective's data, seen through a join; none if that is not all they wait for."""
    if len(dependencies) != 1 or graph.kind[dependencies[0]] != NodeKind.COMPUTE:
        return []
    if graph.kernel[dependencies[0]] == NONE and graph.duration_s[dependencies[0]] == 0:
        return [int(node) for node in graph.dependencies_of(dependencies[0])]
    return dependencies


@dataclass
class _Rewrite:
    """The new graph as it is written: where each node comes from, what it waits for, and what differs."""

    graph: ExecutionGraph
    origin: list[int] = field(default_factory=list)
    dependencies: list[tuple[int, ...]] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    done: dict[int, int] = field(default_factory=dict)  # old node to the new one after which it is done
    sliced: dict[int, list[int]] = field(default_factory=dict)  # old node to its slices that are sent
    holds: dict[int, int] = field(default_factory=dict)  # stream to the new node that holds it up

    def add(self, node: int, after: Iterable[int], **changes: Any) -> int:
        """Write a node that comes from an old one, with some columns changed."""
        held = self.holds.get(changes.get("stream", int(self.graph.stream[node])))
        self.dependencies.append(tuple(sorted({*after, *(() if held is None else (held,))})))
        self.origin.append(node)
        self.changes.append(changes)
        return len(self.origin) - 1

    def needs(self, node: int) -> list[int]:
        """Return what an old node waits for, as new nodes."""
        return [self.done[old] for old in self.graph.dependencies_of(node).tolist()]

    def add_kernel(
        self, node: int, edges: Sequence[float], after: Sequence[Sequence[int]], names: Sequence[str]
    ) -> list[int]:
        """Write a kernel in parts, one after the other: part i is the work between edges i and i + 1."""
        graph = self.graph
        parts: list[int] = []
        for index, (begin, end) in enumerate(pairwise(edges)):
            work = {name: _between(int(getattr(graph, name)[node]), begin, end) for name in ("flops", "bytes")}
            duration_s = float(graph.duration_s[node]) * end - float(graph.duration_s[node]) * begin
            name = f"{graph.names[node]}_{names[index]}"
            parts.append(self.add(node, [*after[index], *parts[-1:]], name=name, duration_s=duration_s, **work))
        return parts

    def add_collective(self, pair: _Pair, after: Sequence[Sequence[int]]) -> list[int]:
        """Write the slices of a collective, each after its own part of the data."""
        graph, node = self.graph, pair.collective
        stream = communication_stream(int(graph.group[node]))
        total = int(graph.bytes[node])
        return [
            self.add(
                node,
                after[index],
                name=f"{graph.names[node]}_slice_{index}",
                bytes=_between(total, index / pair.slices, (index + 1) / pair.slices),
                pieces=pair.slices,
                stream=stream,
            )
            for index in range(pair.slices)
        ]

    def build(self) -> ExecutionGraph:
        """Freeze the new graph."""
        graph = self.graph
        names = tuple(
            change.get("name", graph.names[old]) for old, change in zip(self.origin, self.changes, strict=True)
        )
        columns = {}
        for name in ("kernel", "duration_s", "time_source", "flops", "bytes", "pieces", "stream", "priority"):
            columns[name] = getattr(graph, name)[self.origin].copy()
        for node, change in enumerate(self.changes):
            for name, value in change.items():
                if name != "name":
                    columns[name][node] = value
        for name in ("kind", "collective", "group", "peer", "tag", "phase", "issue_s", "microbatch", "stage"):
            columns[name] = getattr(graph, name)[self.origin]
        offsets, flat = compress(self.dependencies)
        return graph.with_columns(names=names, dependency_offsets=offsets, dependencies=flat, **columns)


def _between(total: int, begin: float, end: float) -> int:
    """Whole units between two fractions of a count; adjoining fractions add up to the count exactly."""
    return _upto(total, end) - _upto(total, begin)


def _upto(total: int, fraction: float) -> int:
    """Whole units up to a fraction of a count; the last one is exact where a float no longer holds the count."""
    return total if fraction == 1 else int(total * fraction)


def _rewrite(graph: ExecutionGraph, pairs: Sequence[_Pair]) -> ExecutionGraph:
    makers = {kernel: pair for pair in pairs if pair.produces for kernel in pair.kernels}
    takers = {pair.kernels[0]: pair for pair in pairs if not pair.produces}
    sent = {pair.collective: pair for pair in pairs}
    new = _Rewrite(graph)
    for node in range(len(graph)):
        if node in makers:
            _produce(new, node, makers[node])
        elif node in takers:
            _consume(new, node, takers[node])
        elif node not in sent:
            new.done[node] = new.add(node, new.needs(node))
        elif not sent[node].produces:
            slices = new.add_collective(sent[node], [new.needs(node)] * sent[node].slices)
            new.sliced[node] = slices
            new.done[node] = slices[-1]
    return new.build()


def _produce(new: _Rewrite, node: int, pair: _Pair) -> None:
    """Write a kernel's slices, those that are sent first; after the last kernel, the collective and the polling."""
    share = pair.slices // len(pair.kernels)
    edges = [(1 - pair.kept) * index / share for index in range(share + 1)]
    names = [f"slice_{index}" for index in range(share)]
    if pair.kept:
        edges, names = [*edges, 1.0], [*names, "kept"]
    parts = new.add_kernel(node, edges, [new.needs(node)] * len(names), names)
    new.sliced[node] = parts[:share]
    new.done[node] = parts[-1]
    if node != pair.kernels[-1]:
        return
    data = [[part] for kernel in pair.kernels for part in new.sliced[kernel]]
    slices = new.add_collective(pair, data)
    polled = new.add(
        node, [*slices, parts[-1]], name=f"{new.graph.names[node]}_poll",
        kernel=NONE, duration_s=0.0, flops=0, bytes=0, time_source=int(TimeSource.GIVEN),
    )  # fmt: skip
    new.done[pair.collective] = new.holds[int(new.graph.stream[node])] = polled


def _consume(new: _Rewrite, node: int, pair: _Pair) -> None:
    """Write a kernel's slices: the one that is already there, then each other as it arrives."""
    edges = [pair.kept + (1 - pair.kept) * index / pair.slices for index in range(pair.slices)] + [1.0]
    names = [f"slice_{index}" for index in range(pair.slices)]
    others = [new.done[old] for old in new.graph.dependencies_of(node).tolist() if old != pair.collective]
    after = [[*others, arrived] for arrived in new.sliced[pair.collective]]
    if pair.kept:
        edges, names = [0.0, *edges], ["kept", *names]
        after = [[*others, *new.needs(pair.collective)], *after]
    parts = new.add_kernel(node, edges, after, names)
    new.done[node] = new.holds[int(new.graph.stream[node])] = parts[-1]
