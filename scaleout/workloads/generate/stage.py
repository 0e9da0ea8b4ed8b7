"""Stages: the parts of a model that a rank runs as a whole, and the graphs of each of their actions.

A stage is written once, and those that hold layers of the same kinds are copies of it. Its forward graph, and its
backward graph in one part or in two, are then put end to end by `step`, once for each micro-batch.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from scaleout.program.graph import NONE, ExecutionGraph, GraphBuilder, NodeKind, NodeRole
from scaleout.workloads.config.layered import EMBEDDING, HEAD, LayeredModel
from scaleout.workloads.generate.autograd_tape import AutogradTape, Cursor, Gradients, Reduction
from scaleout.workloads.generate.axes import Axes, Call
from scaleout.workloads.generate.units import RECEIVES, SENDS, Rank, forward
from scaleout.workloads.pipeline import Action


@dataclass(frozen=True)
class Part:
    """One action of a stage on one micro-batch."""

    graph: ExecutionGraph  # its nodes without dependencies wait for the input
    output: int  # the node that makes what other stages wait for, or `NONE` if nothing does
    final: tuple[int, ...] = ()  # nodes after which gradients are final, if this action reduces them
    reductions: tuple[Reduction, ...] = ()  # those deferred to the step's end

    @cached_property
    def exits(self) -> tuple[int, ...]:
        """The output, and the last kernel: what must be done when the action is."""
        kernels = (self.graph.kind == NodeKind.COMPUTE).nonzero()[0]
        last = int(kernels[-1]) if len(kernels) else NONE
        return tuple(sorted({self.output, last} - {NONE}))


_LABEL = re.compile(r"^layer_(\d+)(?=_)")
"""With what the names of a layer's nodes begin."""


@dataclass(frozen=True)
class Turn:
    """When a micro-batch comes: whether gradients are there already, and whether none will follow."""

    accumulates: bool
    reduces: bool


def flat_gradients(workload: LayeredModel) -> tuple[tuple[str, str], ...]:
    """Return the kernels that make one flat tensor of a layer's gradients: put together, cast, and scaled."""
    if not workload.flat_gradients or workload.zero < 2:
        return ()
    dtype = workload.gradient_dtype or workload.dtype
    cast = (("cast_to_fp32", workload.dtype),) if dtype == "fp32" and workload.item_bytes < 4 else ()
    return (("clone", workload.dtype), *cast, ("mul_scalar", dtype))


@dataclass
class Stage:
    """A stage of a model on one rank."""

    workload: LayeredModel
    axes: Axes
    number: int  # among all stages, first to last
    like: "Stage | None" = None  # one with layers of the same kinds, whose graphs differ in the numbers of layers alone
    load: int = 0  # of the model's loads, the one that its ranks have
    rank: Rank[LayeredModel] = field(init=False)
    tape: AutogradTape = field(init=False)  # of its forward pass: what is kept for each micro-batch
    forward: Part = field(init=False)
    _backward: dict[tuple[bool, Turn], tuple[Part, Part | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        workload = self.workload
        if self.like is not None:
            self.rank, self.tape, self.forward = self.like.rank, self.like.tape, self._copy(self.like.forward)
            return
        self.rank = Rank(
            workload, self.axes, tied=[] if workload.tied_parameters and self.first and self.last else None,
            load=self.load,
        )  # fmt: skip
        gradients = None
        if workload.mode == "training":
            dtype = workload.gradient_dtype or workload.dtype
            gradients = Gradients(
                workload.bucket_bytes,
                workload.gradient_bytes,
                copied=dtype if workload.copied_buckets else "",
                copies=dtype if workload.layout_copies else "",
                flat=flat_gradients(workload),
                lists=dtype if workload.shard_lists and workload.zero == 3 else "",
                replicas_at_end=workload.replicas_at_end,
            )
        self.tape = AutogradTape(Cursor(GraphBuilder()), workload.dtype, gradients, style=workload.style)
        parts = (EMBEDDING if self.first else RECEIVES, HEAD if self.last else SENDS)
        recomputed = workload.recomputed_of(len(self.layers))
        output = forward(self.tape, self.rank, self.layers, parts, recomputed=recomputed)
        self.forward = Part(self.tape.graph.build(), output)

    @property
    def layers(self) -> range:
        """Numbers of its layers."""
        counts = self.workload.layers_of_stage
        begin = sum(counts[: self.number])
        return range(begin, begin + counts[self.number])

    @property
    def first(self) -> bool:
        """Whether it holds the embedding."""
        return self.number == 0

    @property
    def last(self) -> bool:
        """Whether it holds the head."""
        return self.number == self.workload.num_stages - 1

    @property
    def parameters(self) -> Mapping[str, int]:
        """Name of a bucket to the parameters that it holds."""
        return self.tape.parameters

    @property
    def partial_parameters(self) -> int:
        """Parameters of which each tensor-parallel rank makes a part of the gradient."""
        return sum(self.tape.partial.values())

    def gathers(self) -> Iterator[tuple[int, Call]]:
        """Yield the nodes of forward that wait for parameters that others have stepped, and what gathers these."""
        for unit in self.rank.units:
            for bucket in self.rank.buckets:
                size_bytes = unit.parameters.get(bucket.name, 0) * self.workload.item_bytes
                for call in bucket.sharing.gathers(size_bytes, zero=self.workload.zero):
                    yield unit.entry, call

    def part(self, action: Action, turn: Turn) -> Part:
        """Return the graph of an action."""
        if action == Action.FORWARD:
            return self.forward
        of_inputs, of_weights = self._both(action != Action.BACKWARD, turn)
        if action != Action.WEIGHT_GRADIENT:
            return of_inputs
        assert of_weights is not None
        return of_weights

    def _both(self, split: bool, turn: Turn) -> tuple[Part, Part | None]:
        """Return the graphs of backward: both gradients in one, or first those of inputs, then of weights."""
        if (split, turn) not in self._backward:
            if self.like is None:
                self._backward[split, turn] = self._play(split, turn)
            else:
                of_inputs, of_weights = self.like._both(split, turn)
                self._backward[split, turn] = self._copy(of_inputs), of_weights and self._copy(of_weights)
        return self._backward[split, turn]

    def _copy(self, part: Part) -> Part:
        """Return a part of the stage that this one is like, with the numbers of this one's layers."""
        assert self.like is not None
        graph, further = part.graph, self.layers.start - self.like.layers.start
        names = {name: _LABEL.sub(lambda label: f"layer_{int(label[1]) + further}", name) for name in {*graph.names}}
        layer = np.where(graph.layer >= 0, graph.layer + further, graph.layer)
        return replace(part, graph=graph.with_columns(names=tuple(map(names.__getitem__, graph.names)), layer=layer))

    def _play(self, split: bool, turn: Turn) -> tuple[Part, Part | None]:
        """Play the tape into graphs of its own; see `_both`."""
        gradients, cursor = self.tape.gradients, self.tape.cursor
        assert gradients is not None
        gradients.reduces, gradients.final = turn.reduces, []
        workload = self.workload
        later = workload.pipeline_parallel > 1 and workload.zero < 2 and not workload.overlap_gradient_reduce
        gradients.deferred = [] if later else None
        accumulates = turn.accumulates and not workload.fused_accumulation
        gradients.accumulates = (workload.gradient_dtype or workload.dtype) if accumulates else ""
        deferred: list[Callable[[], None]] | None = [] if split else None
        cursor.begin(GraphBuilder(), deferred)
        output = self.tape.backward(NONE)
        if deferred is None:
            return self._reduced(gradients, output), None
        of_inputs = Part(cursor.graph.build(), output)
        cursor.begin(GraphBuilder("weight_gradients", NodeRole.DEFERRED))
        for make in deferred:
            make()
        return of_inputs, self._reduced(gradients, NONE)

    def _reduced(self, gradients: Gradients, output: int) -> Part:
        """Reduce what is left, and freeze the graph."""
        graph = self.tape.graph
        graph.enter("gradients", NodeRole.REDUCTION)
        graph.layer = NONE
        for bucket in self.rank.buckets:
            gradients.flush(graph, bucket)
        final = tuple(sorted(set(gradients.final) - {NONE}))
        return Part(graph.build(), output, final, tuple(gradients.deferred or ()))
