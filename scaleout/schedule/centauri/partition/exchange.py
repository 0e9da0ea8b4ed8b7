"""All-to-alls and the kernels next to them, cut into chunks that overlap: of tables, of the batch, or of tokens.

Between two collectives of a segment a chunk runs through all kernels before the next one does, so that it is sent while
others are computed. Whatever else needs a segment's rows, such as gradients of weights, waits for all chunks. A part of
a kernel is timed at its own size. See docs/models/centauri.md.
Source: Chen et al., Centauri, Sec. 3.1.3 and Table 3 (dimensions that are free); Tutel, arXiv:2206.03382 (chunks).
"""

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from scaleout.cluster.machine import Machine
from scaleout.config.documents import whole
from scaleout.errors import ConfigError, shown
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, NodeKind, NodeRole
from scaleout.program.program import Program
from scaleout.schedule.centauri.partition.chunk_times import chunk_times, dimension_of, edges_of_chunks
from scaleout.schedule.centauri.partition.segments import Segment, find_segments, signature_of
from scaleout.schedule.pairs import keys_of
from scaleout.schedule.rewrite import JOIN, Block, Rewrite, divided

_COMPUTE, _COLLECTIVE = int(NodeKind.COMPUTE), int(NodeKind.COLLECTIVE)
_ALL_TO_ALL = COLLECTIVES.index("all_to_all")

Cut = tuple[Segment, int]
"""A segment and the number of its chunks."""

Cuts = Mapping[int, Cut]
"""From each node that is cut to its segment and the number of chunks."""


@dataclass
class Written:
    """What was written before: in place of spans, by what makes them alike, and of graphs, by identity, cut so."""

    blocks: dict[tuple[Hashable, ...], Block] = field(default_factory=dict)
    graphs: dict[int, tuple[ExecutionGraph, Sequence[Cut], ExecutionGraph]] = field(default_factory=dict)


def largest_count(graph: ExecutionGraph, segment: Segment) -> int:
    """Return how many chunks a segment can be cut into: every kernel has at least one table or row in each."""
    sizes = [_along(graph, node)[1] for node in segment.nodes if graph.kernel[node] != NONE]
    return min(sizes)


def _along(graph: ExecutionGraph, node: int) -> tuple[str, int]:
    """Return the dimension that a kernel is cut along, and its size."""
    call = graph.kernels[graph.kernel[node]]
    dimension = dimension_of(call, of_weight=bool(graph.role[node] & NodeRole.WEIGHT_GRADIENT))
    return dimension, call.sizes[dimension]


def times_of_chunks(graph: ExecutionGraph, node: int, count: int, machine: Machine | None) -> list[float]:
    """Return how long each of equal chunks of a kernel takes: its share, or what its size takes on a known machine.

    Kernels that a host launches one by one have a gap between them, which is in their time: so have all chunks. What an
    exchange of experts' rows brings is regrouped, and each chunk was cut out of all rows by as large a copy before it.
    """
    whole_s = float(graph.duration_s[node])
    if graph.kernel[node] == NONE or count == 1 or machine is None:
        return [whole_s / count] * count
    (dimension, _), device = _along(graph, node), machine.device
    gap_s = device.launch_gap_s if graph.issue_s[node] else 0.0
    times_s = chunk_times(device, graph.kernels[graph.kernel[node]], dimension, whole_s, count, gap_s=gap_s)
    copies = 2 if graph.operation(node) == _REGROUPS and _is_exchanged(graph, node) else 1
    return [copies * chunk_s for chunk_s in times_s]


_REGROUPS = "moe_regroup_rows"
"""What puts the rows that an exchange brings in the order of experts, in layers by hand."""


def _is_exchanged(graph: ExecutionGraph, node: int) -> bool:
    """Whether an all-to-all brings what a kernel takes."""
    return bool((graph.collective[graph.dependencies_of(node)] == _ALL_TO_ALL).any())


def written(graph: ExecutionGraph, cuts: Cuts, span: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the nodes of a span as they are written: a node that is cut with each of its chunks, others with `NONE`.

    Kernels between two collectives are written chunk by chunk where the last of them stood, or before a collective that
    sends what they make. Nodes that wait for one that is not yet written come right after it, and later collectives of
    a group never pass those that wait.
    """
    last: dict[tuple[int, int], int] = {}  # kernel of each segment, of those that have passed as many collectives
    for node, (segment, _) in cuts.items():
        if graph.kind[node] == _COMPUTE:
            stretch = segment.begin, segment.shape.passed[node - segment.begin]
            last[stretch] = max(node, last.get(stretch, 0))
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
        first, computes = cuts[node][0].begin, graph.kind[node] == _COMPUTE
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


MOST_CHUNKS = 1024
"""Chunks of an all-to-all that may be forced."""


def chunked_with(option: str) -> Callable[[Program, Machine | None], Program]:
    """Return `chunked` with that many chunks; a ConfigError says that it is no number from 2 to `MOST_CHUNKS`."""
    if not 2 <= (whole(option) or 0) <= MOST_CHUNKS:
        raise ConfigError(f"chunked:{shown(option)}: give the number of chunks, 2 to {MOST_CHUNKS}, such as chunked:4")
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
    program: Program, machine: Machine | None, chosen: Sequence[Sequence[Cut]], *, before: Written | None = None
) -> Program:
    """Cut all-to-alls and the kernels next to them into equal chunks.

    `chosen` has for each graph its segments and their numbers of chunks; 1 leaves one whole. Where members of a group
    would cut differently, nobody does. What was written `before`, on the same machine, is taken from there.
    """
    before = Written() if before is None else before
    graphs = zip(program.graphs, _agreed(program.graphs, chosen), strict=True)
    return replace(program, graphs=tuple(_rewrite(graph, own, machine, before) for graph, own in graphs))


def _agreed(graphs: Sequence[ExecutionGraph], chosen: Sequence[Sequence[Cut]]) -> list[list[Cut]]:
    """Leave out segments with a collective that members of its group would cut differently, until there are none."""
    names, keys = keys_of(graphs), dict[tuple[int, int], int]()
    key_of = np.array([keys.setdefault(key, len(keys)) for mine in names for key in mine.values()], np.int64)
    numbers = itertools.count()
    places = [{node: next(numbers) for node in mine} for mine in names]
    cuts = [(number, cut) for number, own in enumerate(chosen) for cut in own]
    at = np.array([places[number][node] for number, (each, _) in cuts for node in each.collectives], np.int64)
    cut_of = np.repeat(np.arange(len(cuts)), [len(each.shape.collectives) for _, (each, _) in cuts])
    counts = np.array([count for _, (_, count) in cuts], np.int64)
    while True:
        into = np.ones(len(key_of), np.int64)
        cut_up = counts[cut_of] > 1
        into[at[cut_up]] = counts[cut_of[cut_up]]
        least, most = np.full(len(keys), into.max(initial=1)), np.ones(len(keys), np.int64)
        np.minimum.at(least, key_of, into)
        np.maximum.at(most, key_of, into)
        differs = cut_up & (least < most)[key_of[at]]
        if not differs.any():
            break
        counts[cut_of[differs]] = 1
    agreed: list[list[Cut]] = [[] for _ in graphs]
    for (number, (segment, _)), count in zip(cuts, counts.tolist(), strict=True):
        if count > 1:
            agreed[number].append((segment, count))
    return agreed


def _rewrite(graph: ExecutionGraph, cuts: Sequence[Cut], machine: Machine | None, before: Written) -> ExecutionGraph:
    if not cuts:
        return graph
    _, same, found = before.graphs.get(id(graph), (graph, (), graph))
    if same == cuts:
        return found
    new, upto = Rewrite(graph), 0
    for begin, end, own in _spans(cuts):
        new.keep(upto, begin)
        upto = end
        key = _likeness(graph, own)
        if key not in before.blocks:
            of_nodes = {node: cut for cut in own for node in cut[0].nodes}
            before.blocks[key] = _block(graph, dict(sorted(of_nodes.items())), (begin, end), machine)
        new.add_block(begin, before.blocks[key])
    new.keep(upto, len(graph))
    found = new.build()
    before.graphs[id(graph)] = graph, cuts, found  # kept, lest the id returns
    return found


def _spans(cuts: Sequence[Cut]) -> list[tuple[int, int, list[Cut]]]:
    """Return the spans of segments, those that overlap as one, and what is cut in each."""
    found: list[tuple[int, int, list[Cut]]] = []
    for cut in sorted(cuts, key=lambda cut: (cut[0].begin, cut[0].end)):
        begin, end = cut[0].begin, cut[0].end
        if found and begin < found[-1][1]:
            first, last, own = found.pop()
            found.append((first, max(end, last), [*own, cut]))
        else:
            found.append((begin, end, [cut]))
    return found


def _likeness(graph: ExecutionGraph, cuts: Sequence[Cut]) -> tuple[Hashable, ...]:
    """Return what makes spans alike, so that they are written alike."""
    if len(cuts) == 1:
        return (cuts[0][0].shape.signature, cuts[0][1])
    counts = tuple((segment.begin - cuts[0][0].begin, segment.shape.signature, count) for segment, count in cuts)
    return (signature_of(graph, (node for segment, _ in cuts for node in segment.nodes)), counts)


def _block(graph: ExecutionGraph, cuts: Cuts, span: tuple[int, int], machine: Machine | None) -> Block:
    """Write a span: a chunk comes after the same chunk of what it needs within its segment, and after all else."""
    begin, offsets = span[0], graph.dependency_offsets
    nodes, labels = list[int](), dict[int, str]()
    within, before = list[tuple[int, int]](), list[tuple[int, int]]()
    columns: dict[str, tuple[list[int], list[Any]]] = {}
    done: dict[int, int] = {}
    sliced: dict[int, list[int]] = {}
    computes = (graph.kind[slice(*span)] == _COMPUTE).tolist()
    # what a node needs in the span, and whether chunk by chunk; its other needs, by their places; how chunks differ
    about: dict[int, tuple[list[tuple[int, bool]], list[int], Mapping[str, Sequence[Any]]]] = {}

    def add(node: int, label: str, needs: Iterable[int], changes: Mapping[str, Any]) -> int:
        new = len(nodes)
        nodes.append(node - begin)
        within.extend((new, need) for need in needs)
        labels.update({new: label} if label else {})
        for name, value in changes.items():
            at, values = columns.setdefault(name, ([], []))
            at.append(new)
            values.append(value)
        return new

    for node, chunk in written(graph, cuts, span):
        own, count = cuts.get(node, ((), 1))
        if node not in sliced:
            old, first = graph.dependencies_of(node).tolist(), offsets[node] - offsets[begin]
            inner = [(each, each in own) for each in old if each >= begin]
            outer = [first + place for place, each in enumerate(old) if each < begin]
            about[node], sliced[node] = (inner, outer, _changes(graph, node, count, machine)), []
        (inner, outer, changes), chunks = about[node], sliced[node]
        needs = [sliced[each][chunk] if follows else done[each - begin] for each, follows in inner]
        if computes[node - begin]:
            needs += chunks[-1:]
        label = "" if chunk == NONE else f"_chunk_{chunk}"
        chunks.append(add(node, label, needs, {name: values[chunk] for name, values in changes.items()}))
        before += [(chunks[-1], place) for place in outer]
        if chunk in (NONE, count - 1):
            done[node - begin] = chunks[-1]
            if chunk != NONE and not computes[node - begin] and not all(user in own for user in graph.users_of(node)):
                done[node - begin] = add(node, "_done", chunks, JOIN)
    return Block(
        np.array(nodes), np.array(within, np.int64).reshape(-1, 2).T, np.array(before, np.int64).reshape(-1, 2).T, done,
        labels, {name: (np.array(at), values) for name, (at, values) in columns.items()},
    )  # fmt: skip


def _changes(graph: ExecutionGraph, node: int, count: int, machine: Machine | None) -> Mapping[str, Sequence[Any]]:
    """Return how chunks of a node differ from it, column by column; nothing if it stays whole."""
    if count == 1:
        return {}
    columns = {"bytes": graph.bytes, "flops": graph.flops}
    changes: dict[str, Sequence[Any]] = {
        name: divided(int(column[node]), edges_of_chunks(count)) for name, column in columns.items()
    }
    if graph.kind[node] == _COMPUTE:
        changes["duration_s"] = times_of_chunks(graph, node, count, machine)
    return changes


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
    begin, end = segment.begin, segment.end
    cuts = dict.fromkeys(segment.nodes, (segment, count))
    columns = (column[begin:end].tolist() for column in (graph.kind == _COMPUTE, graph.group, graph.duration_s))
    about: dict[int, tuple[bool, int, list[float], list[int]]] = {}  # each node's chunks in s, and what it waits for
    for node, computes, group, whole_s in zip(range(begin, end), *columns, strict=True):
        if computes:
            lasts_s = times_of_chunks(graph, node, count, machine) if node in cuts else [whole_s]
        else:
            lasts_s = [collective_s(node, 1 / count)] * count if node in cuts else [0.0]
        about[node] = computes, group, lasts_s, graph.dependencies_of(node).tolist()
    order = written(graph, cuts, (begin, end)) if count > 1 else ((node, NONE) for node in range(begin, end))
    ends_s: dict[tuple[int, int], float] = {}
    done_s: dict[int, float] = {}
    free_s: dict[int, float] = {}  # by the group of collectives; kernels have none
    for node, chunk in order:
        computes, group, lasts_s, needs = about[node]
        ready_s = max((ends_s.get((old, chunk), 0.0) or done_s.get(old, 0.0) for old in needs), default=0.0)
        ends_s[node, chunk] = done_s[node] = max(ready_s, free_s.get(group, 0.0)) + lasts_s[max(chunk, 0)]
        if computes or node in cuts:
            free_s[group] = done_s[node]
    return max(done_s.values())
