"""The forward pass of a stage, in units, layers among them, whose parameters are gathered and reduced together.

Where parameters are sharded (ZeRO-3, FSDP), a unit's are gathered before it, forward and backward, while the units
before it compute, and its gradients are reduced behind it.

Source: FSDP, arXiv:2304.11277; the order of its calls: PyTorch 2.11's, profiled (`traces/h200-pair/profiles.jsonl`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from scaleout.program.graph import HEAD, NONE, GraphBuilder, NodeRole
from scaleout.program.operations import ITEM_BYTES
from scaleout.workloads.config.layered import EMBEDDING, LayeredModel
from scaleout.workloads.config.layered import HEAD as HEAD_PART
from scaleout.workloads.generate.autograd_tape import URGENT, AutogradTape, Bucket, Cursor
from scaleout.workloads.generate.axes import Axes
from scaleout.workloads.generate.layers import WHOLE_IN, WHOLE_OUT, Buffer, Layer, checkpoint, exchange, phased


@dataclass(frozen=True)
class Unit:
    """A layer, the embedding or the head in a stage's forward: its first node, and its parameters by bucket.

    Where a layer gathers its parameters itself, that comes first.
    """

    entry: int
    parameters: Mapping[str, int]


Job = TypeVar("Job", bound=LayeredModel)


@dataclass
class Rank(Generic[Job]):
    """What one rank of one stage holds, and the buckets where its gradients wait."""

    workload: Job
    axes: Axes
    tied: list[int] | None = None  # takes a head's gradient of the table that it shares with the rank's embedding
    load: int = 0  # which of the model's loads its experts have; the busiest if not given
    units: list[Unit] = field(default_factory=list)  # whose parameters are gathered together, in the order of forward
    whole: list[tuple[str, int]] = field(default_factory=list)  # small tensors that stay whole under `shard_lists`
    dense: Bucket = field(init=False)
    experts: Bucket = field(init=False)

    def __post_init__(self) -> None:
        self.dense = Bucket("dense", self.axes.dense())
        self.experts = Bucket("experts", self.axes.experts())

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch outside tensor-parallel blocks."""
        workload = self.workload
        return workload.local_tokens // (workload.tensor_parallel if workload.sequence_parallel else 1)

    @property
    def elements(self) -> int:
        """Activations outside tensor-parallel blocks."""
        return self.tokens * self.workload.hidden

    @property
    def activations(self) -> Buffer:
        """The whole activations that tensor-parallel blocks read and make, communicated over the tensor axis."""
        workload = self.workload
        size_bytes = workload.local_tokens * workload.hidden * workload.item_bytes
        return Buffer(size_bytes, self.axes.number("tensor"), workload.tensor_parallel)

    @property
    def buckets(self) -> tuple[Bucket, Bucket]:
        """Where gradients wait."""
        return self.dense, self.experts


_WHOLE_ELEMENTS, _KEPT_ELEMENTS = 10**5, 10**9
"""Elements from which on DeepSpeed shards a parameter (stage3_param_persistence_threshold), and up to which it keeps
what is read again (stage3_max_reuse_distance): runtime/zero/constants.py."""


@dataclass
class Units:
    """Layers whose parameters are gathered together where they are sharded: each is gathered ahead of its turn.

    Gathers are written as PyTorch's FSDP issues them: in forward as a layer begins, in backward those of the layers
    ahead as one begins, which is behind the reductions of those that have ended.
    """

    rank: Rank[Any]
    held: list[tuple[AutogradTape, int, int]] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    gathers: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    graph: GraphBuilder | None = None

    def apply(self, tape: AutogradTape, x: int, layer: Layer, *, phase: str = "", item_bytes: int | None = None) -> int:
        """Apply a layer, with its parameters gathered before it, and again before its backward."""
        workload = self.rank.workload
        if workload.zero < 3:
            return self._apply_whole(tape, x, layer)
        unit = len(self.held)
        held = AutogradTape(Cursor(GraphBuilder()), tape.dtype, None)
        layer(held, NONE)
        if workload.shard_lists:
            self.rank.whole += [(name, count) for name, count in held.tensors if count < _WHOLE_ELEMENTS]
        self.held.append((held, item_bytes or tape.item_bytes, tape.graph.layer))
        if phase:
            tape.enter(phase)

        def leave(dy: int) -> int:
            if workload.reshard_after_forward:
                self._gather_again(tape, dy, unit)
            return dy

        def enter(dx: int) -> int:
            assert tape.gradients is not None
            for bucket in self.rank.buckets:
                tape.gradients.flush(tape.graph, bucket)
            return dx

        self.begun.append(x)
        after = self.begun[-1 - workload.prefetch] if workload.prefetch < len(self.begun) else NONE
        self.rank.units.append(Unit(len(tape.graph), held.parameters))
        self._use(tape, self._gather(tape, unit, after))
        tape.push(enter)
        y = layer(tape, x)
        tape.push(leave)
        return y

    def _apply_whole(self, tape: AutogradTape, x: int, layer: Layer) -> int:
        """Apply a layer whose parameters stand whole all through a step, and note where it begins."""
        entry, before = len(tape.graph), dict(tape.parameters)
        y = layer(tape, x)
        held = {name: count - before.get(name, 0) for name, count in tape.parameters.items()}
        self.rank.units.append(Unit(entry, {name: count for name, count in held.items() if count}))
        return y

    def _gather_again(self, tape: AutogradTape, dy: int, unit: int) -> None:
        """Begin the backward of a unit: gather it unless it was gathered ahead, and the units ahead of it."""
        if self.graph is not tape.graph:  # backward is played into a graph anew
            self.graph, self.gathers = tape.graph, {}
        for other in range(unit, max(unit - self.rank.workload.gathered_ahead, 0) - 1, -1):
            if other not in self.gathers:
                self.gathers[other] = self._gather(tape, other, dy)
        self._use(tape, self.gathers[unit])

    def _gather(self, tape: AutogradTape, unit: int, after: int) -> list[tuple[int, int]]:
        """Gather the parameters of a unit behind a node; return each gather and its elements."""
        held, item_bytes, layer = self.held[unit]
        gathers, current, tape.graph.layer = [], tape.graph.layer, layer
        for bucket in self.rank.buckets:
            size_bytes = held.parameters.get(bucket.name, 0) * item_bytes
            if not size_bytes or bucket.sharing.degree <= 1:
                continue
            if self.rank.workload.shard_lists:
                counts = [count for name, count in held.tensors if name == bucket.name]
                after = self._gather_lists(tape, bucket, [count * item_bytes for count in counts], after)
                gathers.append((after, 0))
            else:
                gathers.append((self._gather_bucket(tape, bucket, size_bytes, after), size_bytes // tape.item_bytes))
        tape.graph.layer = current
        return gathers

    def _gather_lists(self, tape: AutogradTape, bucket: Bucket, sizes_bytes: list[int], after: int) -> int:
        """Gather tensors one after the other, each through a list with a tensor a rank; return the last node.

        Small tensors stay whole. A layer that is computed again is gathered for that. Backward, which comes at once,
        gathers its tensors once more, but for those that are kept, as few elements are read in between.
        """
        elements = [size_bytes // tape.item_bytes for size_bytes in sizes_bytes]
        gathers = list(zip(elements, sizes_bytes, strict=True))
        if tape.graph is self.graph and self.rank.workload.recompute == "full":
            behind = np.cumsum(elements[::-1])[::-1] - elements  # read once forward and once backward
            gathers += [gather for gather, count in zip(gathers, behind, strict=True) if 2 * count >= _KEPT_ELEMENTS]
        for count, size_bytes in gathers:
            if count >= _WHOLE_ELEMENTS:
                after = tape.aside("fill", after, name="parameters_zeros", elements=count)
                gathered = self._gather_bucket(tape, bucket, size_bytes, after)
                sizes = {"elements": count, "tensors": bucket.sharing.degree}
                after = tape.aside("list_out", gathered, name="parameters_out_of_list", **sizes)
        return after

    def _gather_bucket(self, tape: AutogradTape, bucket: Bucket, size_bytes: int, after: int) -> int:
        """Gather the parameters of a bucket; where eager FSDP copies, from a buffer that it fills."""
        if self.rank.workload.layout_copies:
            elements = -(-size_bytes // tape.item_bytes // bucket.sharing.degree)
            after = tape.aside("clone", after, name="parameters_copy_in", elements=elements)
        return tape.graph.collective(
            "all_gather", size_bytes, group=bucket.sharing.group, after=(after,),
            name="parameters_all_gather", priority=URGENT, role=NodeRole.PARAMETERS,
        )  # fmt: skip

    def _use(self, tape: AutogradTape, gathers: list[tuple[int, int]]) -> None:
        """Let the next kernel wait for gathers; where eager FSDP copies, for what it copies out of their buffers.

        What was gathered through lists was copied there, and has none.
        """
        for gather, elements in gathers:
            ready = gather
            if self.rank.workload.layout_copies and elements:
                ready = tape.aside("clone", gather, name="parameters_copy_out", elements=elements)
            tape.cursor.waits += (ready,)


RECEIVES, SENDS = "receives", "sends"
"""Parts of a stage that gather what is sent in parts: its input, and the gradient of its output."""


def forward(tape: AutogradTape, rank: Rank[Any], layers: range, parts: Collection[str], *, recomputed: int) -> int:
    """Write the forward pass of some layers and of those `parts` that are none; return the node of the output.

    Layers, embedding and head are units each; a layer that backward recomputes is a checkpoint: the first `recomputed`.
    """
    model: LayeredModel = rank.workload
    x = NONE
    units = Units(rank)
    item_bytes = ITEM_BYTES[model.gather_dtype or tape.dtype]
    if RECEIVES in parts and model.scatters:
        tape.enter("pipeline")
        x = exchange(tape, x, WHOLE_IN, rank.activations, name="activations")
    if EMBEDDING in parts:
        x = units.apply(tape, x, partial(model.write_embedding, rank=rank), phase="embedding")
    for number in layers:
        tape.graph.layer = number
        layer = partial(model.write_layer, rank=rank, number=number)
        if number - layers.start < recomputed:
            layer = partial(
                checkpoint, layer=layer, kept_elements=rank.elements, stop_early=model.stop_recompute_early,
                saved=model.recompute == "operations",
            )  # fmt: skip
        x = units.apply(tape, x, layer, item_bytes=item_bytes)
    tape.graph.layer = NONE
    if SENDS in parts and model.scatters:
        x = phased(tape, x, partial(_whole_gradient, rank=rank), phase="pipeline")
    if HEAD_PART not in parts:
        return x
    tape.graph.layer = HEAD
    return units.apply(tape, x, partial(phased, layer=partial(model.write_head, rank=rank), phase="head"))


def _whole_gradient(tape: AutogradTape, x: int, rank: Rank[Any]) -> int:
    return exchange(tape, x, WHOLE_OUT, rank.activations, name="activations")
