"""Workload to the profile of one part of its model: what a rank runs and holds for the embedding, a layer, or the head.

A part is written once on an autograd tape, as a stage of its own; memory and search read what they need from it, and
add parts up to stages. Profiles are kept for all workloads whose layers read the same fields.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from scaleout.program.graph import NONE, ExecutionGraph, GraphBuilder, NodeKind
from scaleout.workloads.config.layered import EMBEDDING, HEAD, KEPT, LayeredModel
from scaleout.workloads.generate.autograd_tape import AutogradTape, Bucket, Cursor, Gradients
from scaleout.workloads.generate.axes import Axes
from scaleout.workloads.generate.units import RECEIVES, SENDS, Rank, forward

NO_LAYERS = (EMBEDDING, HEAD, RECEIVES, SENDS)
"""The parts that are no layers. Layers are named by `layer_kind`, and `KEPT` where others of it are recomputed."""


_READ_BY_LAYERS_ALONE = ("recompute", "stop_recompute_early")
"""Keys that embedding, head and what is sent do not depend on."""


@dataclass(frozen=True)
class MadeGradient:
    """Gradient of some parameters, which waits in a bucket; `ends` if no kernel of the part runs after its own."""

    bucket: str
    num_parameters: int
    ends: bool


@dataclass
class _RecordedGradients(Gradients):
    """Gradients that are only written down."""

    made: list[tuple[str, int, int]] = field(default_factory=list)

    def accumulate_gradient(
        self, graph: GraphBuilder, gradient: int, num_parameters: int, bucket: Bucket, biases: int = 0
    ) -> None:
        """Write down how many, and after how many nodes."""
        self.made.append((bucket.name, num_parameters, len(graph)))


@dataclass(frozen=True)
class _Part:
    """What decides a profile; the workload is any that has this key."""

    key: tuple[object, ...]
    kind: str
    tied: bool
    backward: bool
    workload: LayeredModel = field(compare=False)


def profiles_of(workload: LayeredModel, *, backward: bool) -> Callable[[str], "StageProfile"]:
    """Return what profiles a part of a workload by its kind, with what backward does and keeps if wanted."""
    key, tied = part_key(workload)
    others = profile_key(workload, layers=False)

    def profile_of(kind: str) -> StageProfile:
        is_layer = kind not in NO_LAYERS
        return _profile(
            _Part(key if is_layer else others, kind, tied and kind in (EMBEDDING, HEAD), backward, workload)
        )

    return profile_of


def part_key(workload: LayeredModel) -> tuple[tuple[object, ...], bool]:
    """Return all that its profiles depend on, and whether embedding and head of a rank share parameters."""
    return profile_key(workload), workload.tied_parameters > 0 and workload.num_stages == 1


def profile_key(workload: LayeredModel, *, layers: bool = True) -> tuple[object, ...]:
    """Return all that a profile depends on, but for its kind; one of `NO_LAYERS` if it is of no `layers`."""
    values = workload.__dict__
    keys = [values[name] for name in _read_by_layers(type(workload)) if layers or name not in _READ_BY_LAYERS_ALONE]
    if workload.zero == 3:
        ranks, shards = workload.data_parallel * workload.context_parallel, workload.shard_ranks
        shared = ranks if shards else ranks > 1, workload.mesh.degree("expert_replica") > 1
        keys += [workload.reshard_after_forward, shards, *shared]
    if workload.mode != "training":
        keys.append(workload.batch_per_replica)
    return (type(workload), workload.microbatch_size, workload.zero == 3, *keys)


@functools.lru_cache(maxsize=8)
def _read_by_layers(kind: type[LayeredModel]) -> tuple[str, ...]:
    return tuple(name for name in kind.model_fields if name not in kind.READ_BY_NO_LAYER)


@functools.lru_cache(maxsize=65536)
def _profile(part: _Part) -> "StageProfile":
    """Write the forward pass of a part as a stage of its own."""
    workload, axes = part.workload, Axes(part.workload)
    rank = Rank(workload, axes, tied=[] if part.tied else None)
    gradients = _RecordedGradients(workload.gradient_bucket, workload.gradient_bytes, reduces=False)
    tape = AutogradTape(
        Cursor(GraphBuilder()), workload.dtype, gradients if part.backward else None, style=workload.style
    )
    kind = part.kind.removesuffix(KEPT)
    number = next((n for n in range(workload.layers) if workload.layer_kind(n) == kind), 0)
    layers = range(number, number if kind in NO_LAYERS else number + 1)
    forward(tape, rank, layers, (kind,), recomputed=workload.recomputed_of(1) if kind == part.kind else 0)
    return StageProfile(part.kind, tape, rank, gradients, tape.graph)


@dataclass(frozen=True, eq=False)
class StageProfile:
    """A part of a model on one rank, for one micro-batch; what it holds is counted by its `tape`."""

    kind: str
    tape: AutogradTape
    _rank: Rank[LayeredModel]
    _gradients: _RecordedGradients
    _written: GraphBuilder

    @property
    def families(self) -> tuple[str, ...]:
        """Names that the groups of its graphs stand for."""
        return self._rank.axes.names

    @functools.cached_property
    def forward(self) -> ExecutionGraph:
        """What forward runs."""
        return self._written.build()

    @functools.cached_property
    def backward(self) -> tuple[ExecutionGraph, tuple[MadeGradient, ...]]:
        """What backward runs, and the gradients in the order in which it makes them, neither added up nor reduced."""
        self._gradients.made.clear()
        graph = self._backward(None)
        kernels = np.flatnonzero(graph.kind == NodeKind.COMPUTE)
        end = int(kernels[-1]) if len(kernels) else NONE
        return graph, tuple(MadeGradient(bucket, count, ends=at > end) for bucket, count, at in self._gradients.made)

    @functools.cached_property
    def split_backward(self) -> tuple[ExecutionGraph, ExecutionGraph]:
        """What backward runs for the gradient of the input, and after that for those of weights."""
        deferred: list[Callable[[], None]] = []
        cursor, of_inputs = self.tape.cursor, self._backward(deferred)
        cursor.begin(GraphBuilder())
        for make in deferred:
            make()
        return of_inputs, cursor.graph.build()

    def _backward(self, deferred: list[Callable[[], None]] | None) -> ExecutionGraph:
        if self._rank.tied is not None and self.kind == EMBEDDING:
            self._rank.tied.append(NONE)  # the head's gradient of the shared table, which its own part makes
        cursor = self.tape.cursor
        cursor.begin(GraphBuilder(), deferred)
        self.tape.backward(NONE)
        return cursor.graph.build()

    @functools.cached_property
    def transient_bytes(self) -> float:
        """The most that backward makes beyond what is kept when it begins."""
        entering_bytes = 0 if self.kind == HEAD else self._rank.elements * self._rank.workload.item_bytes
        return self.tape.transient_bytes(entering_bytes)
