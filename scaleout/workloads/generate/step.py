"""A step of a model of layers: the actions of all micro-batches in the order of a schedule, then the optimizer.

Every pipeline rank runs its slots one after another. Messages name their peer by how many ranks further along the
pipeline it is, so ranks of one stage run one graph. After the last micro-batch gradients are reduced, then the
optimizer steps. Gathers that one step leaves to the next stand at the beginning.

Source: Megatron-LM, arXiv:2104.04473; ZeRO, arXiv:1910.02054.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from scaleout.program.concat import Splice, interleave
from scaleout.program.graph import NONE, ExecutionGraph, GraphBuilder, Ints, NodeKind, NodeRole
from scaleout.program.operations import ITEM_BYTES, kernel
from scaleout.program.program import Program, with_distinct_roles
from scaleout.workloads import pipeline as pipelines
from scaleout.workloads.config.layered import Content, LayeredModel
from scaleout.workloads.generate.autograd_tape import BULK, URGENT, Reduction
from scaleout.workloads.generate.axes import Axes
from scaleout.workloads.generate.stage import Part, Stage, Turn
from scaleout.workloads.pipeline import PIPELINES, Action, Slot, Step
from scaleout.workloads.pipeline.messages import POSTINGS, Items, Message

_WEIGHTS = (Action.BACKWARD, Action.WEIGHT_GRADIENT)
"""Actions that make gradients of weights."""

_PASSES = {"clear": "fill", "check": "sum_all", "scale": "mul_scalar"}
"""Pass over a rank's gradients to its kernel; all are counted at the end of the step."""


def generate(workload: LayeredModel) -> Program:
    """Write the graphs of all ranks, in one role for each pipeline rank and each load that ranks differ in."""
    axes, loads = Axes(workload), range(len(workload.loads))
    stages = [rank for load in loads for rank in stages_of(workload, axes, load)]
    orders = pipelines.orders(workload.pipeline_schedule, **workload.pipeline_sizes)
    if workload.mode != "training":
        orders = tuple(forward_only(order) for order in orders)
    items = POSTINGS[workload.messages](PIPELINES[workload.pipeline_schedule], orders, num_chunks=workload.chunks)
    graphs = tuple(
        _Rank(workload, axes, stages[load * len(items) + rank], rank).write(own)
        for load in loads
        for rank, own in enumerate(items)
    )
    roles = workload.load_of_rank * len(items) + workload.mesh.coordinates("pipeline")
    program = Program(workload.name, graphs, roles, axes.families)
    return with_distinct_roles(program) if len(loads) > 1 else program


def forward_only(order: tuple[Slot, ...]) -> tuple[Slot, ...]:
    """Leave out what only training does."""
    slots = (tuple(step for step in slot if step.action == Action.FORWARD) for slot in order)
    return tuple(slot for slot in slots if slot)


def stages_of(workload: LayeredModel, axes: Axes, load: int = 0) -> list[list[Stage]]:
    """Return the stages that each pipeline rank holds, by chunk; those that hold alike layers are like the first.

    They are of ranks that have one of the model's loads.
    """
    contents, first_of, stages = workload.contents, dict[Content, Stage](), dict[int, Stage]()
    for number in workload.stages_of_ranks.ravel().tolist():
        if number not in stages:
            stages[number] = Stage(workload, axes, number, first_of.get(contents[number]), load)
            first_of.setdefault(contents[number], stages[number])
    return [[stages[number] for number in rank] for rank in workload.stages_of_ranks.tolist()]


_Of = tuple[bool, int, int]
"""Whether forward, chunk and micro-batch."""


@functools.lru_cache(maxsize=64)
def _message(forward: bool, kind: NodeKind, family: int, size_bytes: int) -> ExecutionGraph:
    """Return the graph of one end of a message."""
    role = NodeRole.FORWARD if forward else NodeRole.BACKWARD
    graph = GraphBuilder(f"pipeline_{'forward' if forward else 'backward'}", role)
    name = f"{'activations' if forward else 'gradients'}_{kind.name.lower()}"
    graph.add((), name=name, kind=kind, group=family, bytes=size_bytes)
    return graph.build()


@functools.lru_cache(maxsize=1024)
def _reduction(reduction: Reduction) -> ExecutionGraph:
    """Return the graph of gradients that are reduced at the end of the step."""
    graph = GraphBuilder("gradients", NodeRole.REDUCTION)
    reduction.write(graph)
    return graph.build()


@dataclass
class _Rank:
    """The graph of one pipeline rank as it is written."""

    workload: LayeredModel
    axes: Axes
    stages: list[Stage]
    rank: int
    splice: Splice = field(default_factory=Splice)
    final: list[int] = field(default_factory=list)
    reductions: list[tuple[Reduction, dict[str, Any]]] = field(default_factory=list)
    made: dict[_Of, tuple[int, ...]] = field(default_factory=dict)
    received: dict[_Of, int] = field(default_factory=dict)
    last_message: int = NONE
    pairs: dict[tuple[int, int], tuple[ExecutionGraph, tuple[Ints, ...]]] = field(default_factory=dict)
    gathered: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def write(self, items: Items) -> ExecutionGraph:
        """Write all slots and messages, and the end of the step."""
        order = [item for item in items if not isinstance(item, Message)]
        turns = self._turns(order)
        if self.workload.overlap_parameter_gather and self.workload.mode == "training":
            self._gather(dict.fromkeys(step.chunk for slot in order for step in slot))
        before: tuple[int, ...] = ()
        for item in items:
            if isinstance(item, Message):
                waits = before if self.workload.messages == "in_turn" else ()
                self._write_message(item, waits)
                if self.workload.messages == "in_turn":
                    before = (self.last_message,)
                elif item.sends and not self.workload.overlap_sends:
                    before = (*before, self.last_message)
                continue
            before = self._act(item, [turns.get((s.chunk, s.microbatch), Turn(False, False)) for s in item], before)
        if self.workload.mode == "training":
            self._finish(before)
        return self.splice.build()

    def _turns(self, order: Sequence[Slot]) -> dict[tuple[int, int], Turn]:
        """Say of each micro-batch of each chunk whether its gradients are added to others, and whether it is last."""
        turns: dict[tuple[int, int], Turn] = {}
        for chunk in range(self.workload.chunks):
            mine = [s.microbatch for slot in order for s in slot if s.action in _WEIGHTS and s.chunk == chunk]
            for turn, microbatch in enumerate(mine):
                last = turn == len(mine) - 1 or self.workload.zero >= 2
                turns[chunk, microbatch] = Turn(accumulates=turn > 0, reduces=last)
        return turns

    def _gather(self, chunks: Iterable[int]) -> None:
        """Gather the parameters that the step before has stepped, in the order in which chunks first use them."""
        priority = BULK if self.workload.zero == 3 else URGENT
        for chunk in chunks:
            stage, graph, entries = self.stages[chunk], GraphBuilder("parameters"), list[int]()
            for entry, (kind, size_bytes, group) in stage.gathers():
                graph.collective(
                    kind, size_bytes, group=group, name=f"parameters_{kind}", priority=priority,
                    role=NodeRole.PARAMETERS,
                )  # fmt: skip
                entries.append(entry)
            offset = self.splice.add(graph.build(), stage=stage.number)
            self.gathered[chunk] = [(entry, offset + number) for number, entry in enumerate(entries)]

    def _act(self, slot: Slot, turns: Sequence[Turn], before: tuple[int, ...]) -> tuple[int, ...]:
        """Write the actions of a slot behind what came before and what they received; return their last nodes."""
        parts = [self.stages[step.chunk].part(step.action, turn) for step, turn in zip(slot, turns, strict=True)]
        keys = [(step.action == Action.FORWARD, step.chunk, step.microbatch) for step in slot]
        received = [
            self.received[key]
            for key, step in zip(keys, slot, strict=True)
            if key in self.received and step.action != Action.WEIGHT_GRADIENT
        ]
        after = (*before, *received)
        graph, nodes = self._interleaved(parts)
        columns = {"microbatch": np.empty(len(graph), np.int64), "stage": np.empty(len(graph), np.int64)}
        for step, at in zip(slot, nodes, strict=True):
            columns["microbatch"][at] = step.microbatch
            columns["stage"][at] = self.stages[step.chunk].number
        waits = [
            (int(at[entry]), gather)
            for step, at in zip(slot, nodes, strict=True)
            if step.action == Action.FORWARD
            for entry, gather in self.gathered.pop(step.chunk, ())
        ]
        offset = self.splice.add(graph, after=after, waits=waits, **columns)
        done: list[int] = []
        for step, key, part, at in zip(slot, keys, parts, nodes, strict=True):
            exits = tuple((offset + at[list(part.exits)]).tolist()) or after
            self.made[key] = exits
            done += exits
            self._reduce_later(part, offset + at, step)
        return tuple(done)

    def _interleaved(self, parts: Sequence[Part]) -> tuple[ExecutionGraph, tuple[Ints, ...]]:
        """Return the graph of the parts of a slot, and where the nodes of each are in it."""
        if len(parts) == 1:
            return parts[0].graph, (np.arange(len(parts[0].graph)),)
        key = (id(parts[0]), id(parts[1]))
        if key not in self.pairs:
            graph, *nodes = interleave(parts[0].graph, parts[1].graph)
            self.pairs[key] = graph, tuple(nodes)
        return self.pairs[key]

    def _reduce_later(self, part: Part, at: Ints, step: Step) -> None:
        """Remember a part's final gradients, and its reductions that were deferred; its nodes are `at`."""
        self.final += at[list(part.final)].tolist()
        where = {"microbatch": step.microbatch, "stage": self.stages[step.chunk].number}
        for reduction in part.reductions:
            makers = sorted(set(reduction.after) - {NONE}) or list(part.exits)
            self.reductions.append((replace(reduction, after=()), {"after": tuple(at[makers].tolist()), **where}))

    def _write_message(self, end: Message, before: tuple[int, ...]) -> None:
        """Write one end of a message: a send behind what makes it; where messages keep an order, behind the last.

        Both ends are behind what came before.
        """
        kind = NodeKind.SEND if end.sends else NodeKind.RECV
        key = (end.forward, end.chunk, end.microbatch)
        after = (*before, *(self.made[key] if end.sends else ()))
        if self.workload.messages == "as_made" and self.last_message != NONE:
            after = (*after, self.last_message)
        graph = _message(end.forward, kind, self.axes.number("pipeline"), self.workload.message_bytes)
        self.last_message = self.splice.add(
            graph,
            after=after,
            peer=(end.peer - self.rank) % self.workload.pipeline_parallel,
            tag=(end.maker * 2 + (not end.forward)) * self.workload.num_microbatches + end.microbatch,
            microbatch=end.microbatch,
            stage=self.stages[end.chunk].number,
        )
        if not end.sends:
            self.received[key] = self.last_message

    def _finish(self, before: Sequence[int]) -> None:
        """Reduce what was deferred and what several stages share; step the optimizer once all gradients are final."""
        for reduction, where in self.reductions:
            graph = _reduction(reduction)
            self.final.append(self.splice.add(graph, **where) + len(graph) - 1)
        finish = Finish(self.workload, self.axes, self.stages, GraphBuilder("gradients", NodeRole.REDUCTION))
        finish.write()
        finish.gather_whole([tensor for stage in self.stages for tensor in stage.rank.whole])
        end = finish.graph.build()
        if len(end):
            self.splice.add(end, after={*self.final, *before})


class Holds(Protocol):
    """What a stage holds, as far as the end of a step depends on it; see `Stage`."""

    @property
    def first(self) -> bool: ...  # noqa: D102
    @property
    def last(self) -> bool: ...  # noqa: D102
    @property
    def parameters(self) -> Mapping[str, int]: ...  # noqa: D102
    @property
    def partial_parameters(self) -> int: ...  # noqa: D102


@dataclass
class Finish:
    """The end of a step on one rank, after all its gradients have been reduced over its replicas."""

    workload: LayeredModel
    axes: Axes
    stages: Sequence[Holds]
    graph: GraphBuilder

    def write(self) -> ExecutionGraph:
        """Write it; every node waits for those before it."""
        for name in self.workload.buffer_passes:
            if name in _PASSES:
                self._chain_kernel(_PASSES[name], elements=max(self._held(), 1))
        self._synchronise()
        workload, mesh = self.workload, self.workload.mesh
        if workload.clip_gradients:
            self._chain_kernel("sum_all", elements=self._owned())
            if mesh.num_ranks > 1:
                self._collective(
                    "all_reduce", ITEM_BYTES["fp32"], self.axes.number("world"), "gradient_norm_all_reduce"
                )
            self._chain_kernel("mul_scalar", elements=self._owned())
        if workload.optimizer != "none":
            self.graph.enter("optimizer", NodeRole.OPTIMIZER)
            dtype = "fp32" if workload.master_weights else workload.dtype
            kernels = {"adamw": f"adamw_{workload.optimizer_kernels}"}.get(workload.optimizer, workload.optimizer)
            self._chain_kernel(kernels, parameters=self._owned(), dtype=dtype)
        if "copy" in workload.buffer_passes:
            self._chain_kernel("cast_to_fp32", elements=self._owned(), dtype=workload.dtype)  # and back: as many bytes
        if workload.zero in (1, 2) and not workload.overlap_parameter_gather:
            self._gather()
        return self.graph.build()

    def gather_whole(self, tensors: Sequence[tuple[str, int]]) -> None:
        """Gather tensors that stay whole, by name of bucket, in one list, and spread each rank's part of each."""
        for name, sharing in self.axes.sharing.items():
            counts = [count for bucket, count in tensors if bucket == name]
            if counts and sharing.degree > 1:
                size_bytes = sum(counts) * self.workload.item_bytes
                self._collective("all_gather", size_bytes, sharing.group, "whole_all_gather", NodeRole.PARAMETERS)
                spread = {"elements": sum(counts), "tensors": len(counts) * sharing.degree}
                self._chain_kernel("list_spread", dtype=self.workload.dtype, **spread)

    def _synchronise(self) -> None:
        """Sum gradients of parameters that other ranks hold as well: of the tensor or pipeline axis, or replicas."""
        workload = self.workload
        for name, sharing in self.axes.sharing.items() if workload.replicas_at_end else ():
            held = self._held(name) * workload.gradient_bytes
            for kind, size_bytes, group in sharing.sums_replicas(held):
                self._collective(kind, size_bytes, group, f"copies_of_shards_{kind}")
        partial = sum(stage.partial_parameters for stage in self.stages)
        if partial or (workload.sequence_parallel and workload.tensor_parallel > 1):
            # Each rank normalised its own tokens or heads only, so the norms' gradients are partial sums.
            size_bytes = partial * workload.gradient_bytes
            self._collective("all_reduce", size_bytes, self.axes.number("tensor"), "norm_gradients_all_reduce")
        p = workload.pipeline_parallel
        if PIPELINES[workload.pipeline_schedule].layout.copies > 1 and p > 1:
            pairs = [(rank, p - 1 - rank) for rank in range(p // 2)]
            size_bytes = self._held() * workload.gradient_bytes
            self._collective("all_reduce", size_bytes, self.axes.at("pipeline_copies", pairs), "copies_all_reduce")
        holds_end = any(stage.first or stage.last for stage in self.stages)
        elements = workload.tied_parameters
        if elements and workload.num_stages > 1 and holds_end:
            if len(workload.end_ranks) == 1:
                self._chain_kernel("add", elements=elements)
            else:
                group = self.axes.at("pipeline_ends", [workload.end_ranks])
                self._collective("all_reduce", elements * workload.gradient_bytes, group, "tied_gradients_all_reduce")

    def _held(self, *buckets: str) -> int:
        """Count the parameters that the rank's layers hold, in some buckets or in all."""
        return sum(stage.parameters.get(name, 0) for stage in self.stages for name in buckets or self.axes.sharing)

    def _owned(self) -> int:
        """Count the parameters that the rank steps: all it holds, or its shards of them."""
        sharing = self.axes.sharing.items()
        owned = (-(-stage.parameters.get(name, 0) // by.owners) for stage in self.stages for name, by in sharing)
        return max(sum(owned), 1)

    def _gather(self) -> None:
        """Gather the parameters that each rank of a group has stepped a shard of."""
        parameters: dict[int, int] = {}
        for name, sharing in self.axes.sharing.items():
            if sharing.shards > 1:
                parameters[sharing.group] = parameters.get(sharing.group, 0) + self._held(name)
        for group, count in parameters.items():
            if count:
                size_bytes = count * self.workload.item_bytes
                self._collective("all_gather", size_bytes, group, "parameters_all_gather", NodeRole.PARAMETERS)

    def _chain_kernel(self, op: str, *, dtype: str = "", **shape: int) -> None:
        dtype = dtype or self.workload.gradient_dtype or self.workload.dtype
        self.graph.compute(kernel(op, dtype=dtype, **shape), after=self._last())

    def _collective(self, kind: str, size_bytes: int, group: int, name: str, role: int = 0) -> None:
        self.graph.collective(kind, size_bytes, group=group, after=self._last(), name=name, role=role)

    def _last(self) -> tuple[int, ...]:
        return (len(self.graph) - 1,) if len(self.graph) else ()
