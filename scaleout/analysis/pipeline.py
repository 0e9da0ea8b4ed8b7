"""Results to the actions of their pipelines, and to the memory that ranks hold over time.

An action is recognised by the stage, micro-batch and role of its kernels. Everything is read from the first class of
ranks of each pipeline rank.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaleout.program.graph import HEAD, NONE, ExecutionGraph, Floats, Ints, NodeKind, NodeRole
from scaleout.simulation.result import Result, Timeline
from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.memory import KINDS, Ledger
from scaleout.workloads.memory.parts import Contained
from scaleout.workloads.pipeline import Action


@dataclass(frozen=True, eq=False)
class Actions:
    """What one pipeline rank did, as columns (A,) over its actions, in the order of their starts.

    An action lasts from the start of its first kernel to the end of its last. `rest_s` is from when to when the rank
    computes besides: the optimizer, and what goes before it. `line` is the class of ranks that all is read from.
    """

    pipeline_rank: int
    line: Timeline
    action: Ints
    chunk: Ints
    microbatch: Ints
    start_s: Floats
    end_s: Floats
    rest_s: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, eq=False)
class MemoryOverTime:
    """What the class `ranks` of one pipeline rank holds at E moments, by `scaleout.workloads.memory.KINDS`: (E,) each.

    It is constant from each moment to the next.
    """

    pipeline_rank: int
    ranks: tuple[int, ...]
    time_s: Floats
    bytes_of: Mapping[str, Floats]

    @property
    def total_bytes(self) -> Floats:
        """All kinds together, shape (E,)."""
        return np.asarray(np.sum(list(self.bytes_of.values()), axis=0))


def actions(result: Result, workload: LayeredModel) -> list[Actions]:
    """Return what each pipeline rank did, first to last."""
    of_rank = result.program.pipeline_rank
    found: dict[int, Actions] = {}
    for line in result.timelines:
        pipeline_rank = int(of_rank[line.ranks[0]])
        if pipeline_rank not in found:
            found[pipeline_rank] = _actions(line, pipeline_rank, workload)
    return [found[pipeline_rank] for pipeline_rank in sorted(found)]


def _actions(line: Timeline, pipeline_rank: int, workload: LayeredModel) -> Actions:
    graph = line.graph
    kinds = _kinds(graph)
    runs = (graph.kind == NodeKind.COMPUTE) & (line.duration_s > 0)
    chosen = np.flatnonzero(runs & (graph.stage != NONE))
    rest = np.flatnonzero(runs & (graph.stage == NONE))
    rest_s = tuple(zip(line.start_s[rest].tolist(), line.end_s[rest].tolist(), strict=True))
    chunk_of_stage = np.zeros(workload.num_stages, np.int64)
    chunk_of_stage[workload.stages_of_ranks[pipeline_rank]] = np.arange(workload.chunks)
    shape = (len(Action), workload.chunks, workload.num_microbatches)
    columns = (kinds[chosen], chunk_of_stage[graph.stage[chosen]], graph.microbatch[chosen])
    keys, which = np.unique(np.ravel_multi_index(columns, shape), return_inverse=True)
    start_s, end_s = np.full(len(keys), np.inf), np.zeros(len(keys))
    np.minimum.at(start_s, which, line.start_s[chosen])
    np.maximum.at(end_s, which, line.end_s[chosen])
    order = np.argsort(start_s, kind="stable")
    action, chunk, microbatch = (column[order] for column in np.unravel_index(keys, shape))
    split = np.isin(chunk * shape[2] + microbatch, (chunk * shape[2] + microbatch)[action == Action.WEIGHT_GRADIENT])
    action = np.where(split & (action == Action.BACKWARD), Action.INPUT_GRADIENT, action)
    return Actions(pipeline_rank, line, action, chunk, microbatch, start_s[order], end_s[order], rest_s)


def _kinds(graph: ExecutionGraph) -> Ints:
    """Return of which `Action` each node is, (N,)."""
    passes = [graph.has_role(NodeRole.FORWARD), graph.has_role(NodeRole.DEFERRED)]
    return np.select(passes, [Action.FORWARD, Action.WEIGHT_GRADIENT], default=Action.BACKWARD)


def over_time(result: Result, workload: LayeredModel) -> list[MemoryOverTime]:
    """Return what the ranks of each pipeline rank hold at each moment of a simulated step.

    A part of a stage (the embedding, a layer, the head) holds a micro-batch's activations from the start of its forward
    to the end of its backward, so that they are never more than `scaleout.workloads.memory.peak`, which counts those of
    a stage at once, from the order alone.
    """
    ledger = Ledger.of(workload)
    if workload.mode != "training":
        (line, *_), found = result.timelines, ledger.peak_of(0)
        ends = np.array([0.0, result.makespan_s])
        constant = {kind: np.full(2, found.bytes_of[kind]) for kind in KINDS}
        return [MemoryOverTime(0, line.ranks, ends, constant)]
    return [_over_time(done, ledger, result.makespan_s) for done in actions(result, workload)]


def _over_time(done: Actions, ledger: Ledger, makespan_s: float) -> MemoryOverTime:
    stages = ledger.contained[done.pipeline_rank]
    changes = [(0.0, 0.0, 0.0, 0.0), (makespan_s, 0.0, 0.0, 0.0)]  # time, kept, recomputed, transient
    forward = done.action == Action.FORWARD
    for chunk, microbatch in set(zip(done.chunk.tolist(), done.microbatch.tolist(), strict=True)):
        mine = (done.chunk == chunk) & (done.microbatch == microbatch)
        held = stages[chunk].total
        split = (done.action[mine] == Action.WEIGHT_GRADIENT).any()
        freed = held.freed_bytes  # each part's is drawn by itself
        recomputed = held.all_recompute_bytes if split else held.recompute_bytes - max(freed - held.transient_bytes, 0)
        made = max(held.transient_bytes - freed, 0.0)
        turn = float(done.start_s[mine & ~forward].min(initial=makespan_s))
        end = float(done.end_s[mine].max())
        changes += [(turn, 0.0, recomputed, made), (end, 0.0, -recomputed, -made)]
    for size, begin, end in _kept(done, stages, ledger.workload):
        changes += [(begin, size, 0.0, 0.0), (end, -size, 0.0, 0.0)]
    time_s, *sizes = np.array(changes).T
    order = np.lexsort((sum(sizes), time_s))  # memory freed at a time serves what is allocated then
    kinds = ("activations", "recomputed_activations", "transient_memory")
    bytes_of = {kind: np.cumsum(size[order]).clip(0.0) for kind, size in zip(kinds, sizes, strict=True)}
    persistent = {kind: np.full(len(order), size) for kind, size in ledger.persistent[done.pipeline_rank].items()}
    return MemoryOverTime(done.pipeline_rank, done.line.ranks, time_s[order], persistent | bytes_of)


def _kept(done: Actions, stages: Sequence[Contained], workload: LayeredModel) -> Iterator[tuple[float, float, float]]:
    """Yield what each part of each stage keeps of each micro-batch: bytes, from when, until when."""
    graph, line = done.line.graph, done.line
    runs = (graph.kind == NodeKind.COMPUTE) & (line.duration_s > 0)
    place = np.where(graph.layer == HEAD, workload.layers, graph.layer)  # in order; the embedding is of no layer
    for chunk, stage in enumerate(workload.stages_of_ranks[done.pipeline_rank].tolist()):
        mine = np.flatnonzero(runs & (graph.stage == stage))
        parts, part = np.unique(place[mine], return_inverse=True)
        sizes = stages[chunk].kept_bytes
        if len(parts) != len(sizes):  # kernels of several parts are one
            sizes, part = sizes.sum(keepdims=True), np.zeros_like(part)
        key = graph.microbatch[mine] * len(sizes) + part
        many = workload.num_microbatches * len(sizes)
        begin_s, end_s = np.full(many, np.inf), np.zeros(many)
        np.minimum.at(begin_s, key, line.start_s[mine])
        np.maximum.at(end_s, key, line.end_s[mine])
        kept = np.flatnonzero(np.isfinite(begin_s))
        yield from zip(sizes[kept % len(sizes)].tolist(), begin_s[kept].tolist(), end_s[kept].tolist(), strict=True)
