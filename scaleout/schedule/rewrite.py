"""Graphs written anew from old ones: nodes that stay, kernels and collectives that are cut into slices.

Slices of a kernel follow each other; those of a collective go onto its group's stream, each after its own part of the
data. FLOPs and bytes of the slices add up to those of the node exactly.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from scaleout.program.graph import NONE, ExecutionGraph, Ints, NodeKind, compress_edges
from scaleout.program.operations import TimeSource
from scaleout.schedule.overlap import communication_stream

_CHANGED = (
    "kind", "collective", "group", "kernel", "duration_s", "time_source", "flops", "bytes", "slices", "stream",
    "priority", "peer", "tag", "issue_s",
)  # fmt: skip
"""Columns that a new node may have otherwise than the one it comes from."""

_INHERITED = ("phase", "microbatch", "stage", "role", "layer")
"""Columns that it has from that one."""


JOIN: Mapping[str, Any] = {
    "kind": int(NodeKind.COMPUTE), "collective": NONE, "group": NONE, "kernel": NONE, "duration_s": 0.0, "flops": 0,
    "bytes": 0, "time_source": int(TimeSource.GIVEN),
}  # fmt: skip
"""Columns of a node of no duration that comes after others."""


@dataclass(frozen=True)
class Block:
    """New nodes in place of a run of old ones, to be written wherever the old ones are alike.

    Old nodes are counted from the run's first, new ones from the block's first.
    """

    nodes: Ints  # (B,) the old node that each comes from
    within: Ints  # (2, W) new nodes, and the new nodes of the block that they wait for
    before: Ints  # (2, V) new nodes, and what they wait for before the run: a place among the run's dependencies
    done: Mapping[int, int]  # old node to the new one after which it is done
    labels: Mapping[int, str]  # what is added to the names of some
    columns: Mapping[str, tuple[Ints, Sequence[Any]]]  # column to the nodes where it differs, and how


@dataclass
class Rewrite:
    """The new graph as it is written: where each node comes from, what it waits for, and what differs."""

    graph: ExecutionGraph
    origin: list[int] = field(default_factory=list)
    # new nodes that are added one by one, and the new ones that they wait for
    edges: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    changed: dict[str, tuple[list[int], list[Any]]] = field(  # column to the new nodes where it differs, and how
        default_factory=lambda: {name: ([], []) for name in ("name", *_CHANGED)}
    )
    kept: list[int] = field(default_factory=list)  # new nodes that wait for what they did
    done: dict[int, int] = field(default_factory=dict)  # old node to the new one after which it is done
    sliced: dict[int, list[int]] = field(default_factory=dict)  # old node to its slices that are sent
    # stream to the new node that holds it up; messages that are kept have streams of their own
    holds: dict[int, int] = field(default_factory=dict)

    # nodes kept, from one new node to another, and what held their streams then
    _held: list[tuple[int, int, dict[int, int]]] = field(default_factory=list)
    # the first old node that each block replaces, and its first new one
    _blocks: list[tuple[int, int, Block]] = field(default_factory=list)

    def __post_init__(self) -> None:
        graph = self.graph
        self._offsets: list[int] = graph.dependency_offsets.tolist()
        self._flat: list[int] = graph.dependencies.tolist()

    def add(self, node: int, after: Iterable[int], **changes: Any) -> int:
        """Write a node that comes from an old one, with some columns changed."""
        return self.add_all(node, [after], **{name: [value] for name, value in changes.items()})[0]

    def add_all(self, node: int, after: Sequence[Iterable[int]], **changes: Sequence[Any]) -> list[int]:
        """Write nodes that come from one old one, with some columns changed: a value for each."""
        new = list(range(len(self.origin), len(self.origin) + len(after)))
        self.origin += [node] * len(new)
        stream = changes["stream"][0] if "stream" in changes else int(self.graph.stream[node])
        held = [self.holds[stream]] if stream in self.holds else []
        users, needed = self.edges
        for added, needs in zip(new, after, strict=True):
            before = len(needed)
            needed += needs
            needed += held
            users += [added] * (len(needed) - before)
        for name, values in changes.items():
            nodes, known = self.changed[name]
            nodes += new
            known += values
        return new

    def add_block(self, begin: int, block: Block) -> None:
        """Write a block in place of old nodes of which the first is given."""
        assert not self.holds, "nodes that hold up a stream are for those that are added one by one"
        first = len(self.origin)
        self._blocks.append((begin, first, block))
        self.origin += (begin + block.nodes).tolist()
        self.done.update((begin + old, first + new) for old, new in block.done.items())

    def keep(self, begin: int, end: int) -> None:
        """Write the nodes from one to another as they are; what they wait for is looked up when the graph is built."""
        new = range(len(self.origin), len(self.origin) + end - begin)
        if self.holds:
            self._held.append((new.start, new.stop, dict(self.holds)))
        self.done.update(zip(range(begin, end), new, strict=True))
        self.kept += new
        self.origin += range(begin, end)

    def needed(self, node: int) -> list[int]:
        """Return what an old node waits for."""
        return self._flat[self._offsets[node] : self._offsets[node + 1]]

    def needs(self, node: int) -> list[int]:
        """Return what an old node waits for, as new nodes."""
        return [self.done[old] for old in self.needed(node)]

    def add_kernel(
        self,
        node: int,
        edges: Sequence[float],
        after: Sequence[Sequence[int]],
        names: Sequence[str],
        *,
        ends_s: Sequence[float] = (),
        lasts_s: Callable[[int, float], float] = lambda index, isolated_s: isolated_s,
    ) -> list[int]:
        """Write a kernel in parts, one after the other: part i is the work between edges i and i + 1.

        `ends_s` is when each part ends, from the kernel's start; by default each takes its share of the kernel's time.
        `lasts_s` maps the number of a part and these seconds to those that it lasts.
        """
        graph = self.graph
        times_s = [0.0, *ends_s] if ends_s else [float(graph.duration_s[node]) * edge for edge in edges]
        flops, size_bytes, whole = int(graph.flops[node]), int(graph.bytes[node]), graph.names[node]
        first = len(self.origin)
        return self.add_all(
            node,
            [after[0], *([*needs, first + index] for index, needs in enumerate(after[1:]))],
            name=[f"{whole}_{name}" for name in names],
            duration_s=[lasts_s(index, end_s - begin_s) for index, (begin_s, end_s) in enumerate(pairwise(times_s))],
            flops=divided(flops, edges),
            bytes=divided(size_bytes, edges),
        )

    def add_slices(self, node: int, slices: int, kept: float, **times: Any) -> None:
        """Write a kernel as equal slices that are sent and, last, the share of its work that is kept, if any is."""
        edges = [(1 - kept) * index / slices for index in range(slices + 1)]
        names = [f"slice_{index}" for index in range(slices)]
        if kept:
            edges, names = [*edges, 1.0], [*names, "kept"]
        parts = self.add_kernel(node, edges, [self.needs(node)] * len(names), names, **times)
        self.sliced[node], self.done[node] = parts[:slices], parts[-1]

    def add_collective(self, node: int, after: Sequence[Sequence[int]], **changes: Any) -> list[int]:
        """Write the slices of a collective, equal ones, each after its own part of the data."""
        graph, slices = self.graph, len(after)
        changes |= {"slices": slices, "stream": communication_stream(int(graph.group[node]))}
        return self.add_all(
            node,
            after,
            name=[f"{graph.names[node]}_slice_{index}" for index in range(slices)],
            bytes=divided(int(graph.bytes[node]), [index / slices for index in range(slices + 1)]),
            **{name: [value] * slices for name, value in changes.items()},
        )

    def join(self, node: int, after: Iterable[int]) -> int:
        """Write a node of no duration after others."""
        return self.add(node, after, name=f"{self.graph.names[node]}_done", **JOIN)

    def build(self) -> ExecutionGraph:
        """Freeze the new graph."""
        graph, origin = self.graph, np.array(self.origin, np.int64)
        names = [graph.names[old] for old in self.origin]
        for node, name in zip(*self.changed["name"], strict=True):
            names[node] = name
        columns = {name: getattr(graph, name)[origin] for name in (*_CHANGED, *_INHERITED)}
        for column in _CHANGED:
            nodes, values = self.changed[column]
            columns[column][nodes] = values
        firsts: dict[int, list[int]] = {}  # of each block, by identity
        for _, first, block in self._blocks:
            firsts.setdefault(id(block), []).append(first)
            for node, label in block.labels.items():
                names[first + node] += label
        for block in {id(block): block for _, _, block in self._blocks}.values():
            for column, (at, differing) in block.columns.items():
                columns[column][np.array(firsts[id(block)])[:, None] + at] = differing
        offsets, flat = self._compressed(origin)
        return graph.with_columns(names=tuple(names), dependency_offsets=offsets, dependencies=flat, **columns)

    def _compressed(self, origin: Ints) -> tuple[Ints, Ints]:
        """Return what the new nodes wait for, each once and in order, in compressed sparse rows."""
        graph, size, offsets = self.graph, len(origin), self.graph.dependency_offsets
        holding, kept = self._holding(origin), np.array(self.kept, np.int64)
        held, counts = np.flatnonzero(holding != NONE), np.diff(offsets)[origin[kept]]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        edges = [np.array(self.edges, np.int64), np.stack([held, holding[held]])]
        before = [np.stack([np.repeat(kept, counts), np.repeat(offsets[origin[kept]], counts) + within])]
        for begin, first, block in self._blocks:
            edges.append(first + block.within)
            before.append(block.before + np.array([[first], [offsets[begin]]]))
        done = np.full(len(graph), NONE, np.int64)
        done[list(self.done)] = list(self.done.values())
        users, places = np.concatenate(before, axis=1)
        users, needs = np.concatenate([*edges, np.stack([users, done[graph.dependencies[places]]])], axis=1)
        return compress_edges(users, needs, size)

    def _holding(self, origin: Ints) -> Ints:
        """Return the new node that holds the stream of each node that was kept, (N,); `NONE` for none."""
        found = np.full(len(origin), NONE, np.int64)
        for begin, end, holds in self._held:
            stream, kind = (column[origin[begin:end]] for column in (self.graph.stream, self.graph.kind))
            for held, node in holds.items():
                found[begin:end][(stream == held) & (kind <= NodeKind.COLLECTIVE)] = node
        return found


def divided(total: int, edges: Sequence[float]) -> list[int]:
    """Return the whole units between fractions of a count; from 0 to 1 they add up to the count exactly.

    >>> divided(10, [0.0, 0.25, 1.0])
    [2, 8]
    """
    # The last one is exact where a float no longer holds the count.
    ends = [total if edge == 1 else int(total * edge) for edge in edges]
    return [end - begin for begin, end in pairwise(ends)]
