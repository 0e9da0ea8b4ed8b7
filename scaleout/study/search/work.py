"""Workload to the work of its parts: the kernels and collectives of the embedding, of each kind of layer, of the head.

A part is written by its generator once, as a stage of its own, and stages are sums of parts. Nothing here has a time.

Symbols: `NONE` stands for the input of a part.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from scaleout.cluster.device.host import Call, calls_of
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, GraphBuilder, NodeKind
from scaleout.program.operations import Kernel
from scaleout.workloads.families.layered import EMBEDDING, HEAD, LayeredModel
from scaleout.workloads.generate.autograd_tape import AutogradTape, Bucket, Cursor, Gradients
from scaleout.workloads.generate.axes import Axes
from scaleout.workloads.generate.forward import forward
from scaleout.workloads.generate.units import Rank

RECEIVES, SENDS = "receives", "sends"
NO_LAYERS = (EMBEDDING, HEAD, RECEIVES, SENDS)
"""The parts that are no layers, of which the last two gather what is sent in parts; layers are told apart by what
`layer_kind` says."""


@dataclass(frozen=True)
class Collective:
    """One collective, or the message of a ring: kind, bytes, and the name of the family of its groups."""

    kind: str
    size_bytes: int
    family: str


@dataclass(frozen=True, eq=False)
class Work:
    """What a rank does in one action of a part.

    Attributes
    ----------
    kernels : mapping
        Kernel to how often it runs.
    collectives : mapping
        Collective to how often it runs.
    graph : ExecutionGraph or None
        Where there is more than kernels, who waits for whom.
    families : tuple of str
        Names that the graph's groups stand for.
    calls : mapping
        Call of the host to how often it makes it.
    """

    kernels: dict[Kernel, int]
    collectives: dict[Collective, int]
    graph: ExecutionGraph | None = None
    families: tuple[str, ...] = ()
    calls: dict[Call, int] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: ExecutionGraph, families: tuple[str, ...]) -> "Work":
        """Count what a graph holds."""
        used = graph.kernel[graph.kernel != NONE]
        counts = np.bincount(used, minlength=len(graph.kernels)).tolist()
        kernels = {kernel: count for kernel, count in zip(graph.kernels, counts, strict=True) if count}
        nodes = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)
        columns = zip(*(getattr(graph, name)[nodes].tolist() for name in ("collective", "bytes", "group")), strict=True)
        collectives = Counter(Collective(COLLECTIVES[kind], size, families[group]) for kind, size, group in columns)
        alone = len(nodes) == 0 and not (graph.kind > NodeKind.COLLECTIVE).any()
        calls = {call: len(nodes) for call, nodes in calls_of(graph).items()}
        return cls(kernels, dict(collectives), None if alone else graph, families, calls)

    @property
    def has_messages(self) -> bool:
        """Whether it sends messages."""
        return self.graph is not None and bool((self.graph.kind > NodeKind.COLLECTIVE).any())

    @property
    def flops(self) -> int:
        """FLOPs of all kernels."""
        return sum(count * kernel.flops for kernel, count in self.kernels.items())


NOTHING = Work({}, {})
"""No work at all."""


@dataclass(frozen=True)
class Learnt:
    """Gradients of some parameters, at the moment when backward has made them.

    Attributes
    ----------
    bucket : str
        The bucket that they wait in.
    num_parameters : int
    ends : bool
        Whether no kernel of the part runs after that which made them.
    """

    bucket: str
    num_parameters: int
    ends: bool


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a model on one rank, for one micro-batch.

    Attributes
    ----------
    works : tuple of Work
        What each `Action` does; nothing for backward in two parts where that was not asked for.
    learnt : tuple of Learnt
        In the order in which they are made, neither added up nor reduced.
    parameters : mapping
        Name of a bucket to the parameters that the part holds.
    partial_parameters : int
        Those of them of which each tensor-parallel rank makes a part of the gradient.
    """

    works: tuple[Work, Work, Work, Work]
    learnt: tuple[Learnt, ...] = ()
    parameters: dict[str, int] = field(default_factory=dict)
    partial_parameters: int = 0


@dataclass
class _Learning(Gradients):
    """Gradients that are only written down."""

    learnt: list[tuple[str, int, int]] = field(default_factory=list)

    def accumulate_gradient(self, graph: GraphBuilder, gradient: int, num_parameters: int, bucket: Bucket) -> None:
        """Write down how many, and after how many nodes."""
        del gradient
        self.learnt.append((bucket.name, num_parameters, len(graph)))


_CHANGE_NO_WORK = frozenset(
    """
    name description source topology device schedules rank_order gradient_bucket pipeline_parallel batch_per_replica
    microbatch pipeline_schedule virtual_stages microbatch_group stage_layers overlap_sends messages optimizer
    master_weights gradient_dtype fused_accumulation clip_gradients data_parallel zero shard_ranks
    overlap_gradient_reduce overlap_parameter_gather reshard_after_forward prefetch
    """.split()  # noqa: SIM905 - a list of thirty strings hides them
)
"""Keys of a workload that do not change what a part does, but for those that `work_key` adds."""


@dataclass(frozen=True)
class _Piece:
    """What decides the work of a part; the workload is any that has these."""

    key: tuple[object, ...]
    kind: str
    tied: bool
    split: bool
    workload: LayeredModel = field(compare=False)


def parts_of(workload: LayeredModel, kinds: Iterable[str], *, split: bool) -> dict[str, Part]:
    """Return the parts of a workload of some kinds, with backward in two parts as well if wanted (`split`)."""
    key = work_key(workload)
    tied = workload.tied_parameters > 0 and workload.num_stages == 1
    return {kind: _part(_Piece(key, kind, tied, split, workload)) for kind in kinds}


def work_key(workload: LayeredModel) -> tuple[object, ...]:
    """Return all that the work of a part depends on, but for its kind."""
    values = workload.__dict__
    keys = [values[name] for name in _keys(type(workload))]
    if workload.zero == 3:
        keys += [workload.data_parallel, workload.shard_ranks, workload.reshard_after_forward]
    if workload.mode != "training":
        keys.append(workload.batch_per_replica)
    return (type(workload), workload.microbatch_size, workload.zero == 3, *keys)


@functools.lru_cache(maxsize=8)
def _keys(kind: type[LayeredModel]) -> tuple[str, ...]:
    return tuple(key for key in kind.model_fields if key not in _CHANGE_NO_WORK)


@functools.lru_cache(maxsize=65536)
def _part(piece: _Piece) -> Part:
    """Write a part as a stage of its own, and count."""
    workload, axes = piece.workload, Axes(piece.workload)
    tied: list[int] | None = [] if piece.tied else None
    rank = Rank(workload, axes, tied=tied)
    trains = workload.mode == "training"
    gradients = _Learning(workload.gradient_bucket, workload.gradient_bytes, reduces=False)
    tape = AutogradTape(Cursor(GraphBuilder()), workload.dtype, gradients if trains else None, style=workload.style)
    number = next((n for n in range(workload.layers) if workload.layer_kind(n) == piece.kind), 0)
    layers = range(number, number if piece.kind in NO_LAYERS else number + 1)
    first, last, receives, sends = (piece.kind == kind for kind in NO_LAYERS)
    forward(tape, rank, layers, first=first, last=last, receives=receives, sends=sends)
    of_forward = Work.of(tape.graph.build(), axes.names)
    if not trains:
        return Part((of_forward, NOTHING, NOTHING, NOTHING), parameters=tape.parameters)
    cursor = tape.cursor

    def play(weights: list[Callable[[], None]] | None) -> ExecutionGraph:
        if tied is not None and piece.kind == EMBEDDING:
            tied.append(NONE)  # the head's gradient of the shared table, which its own part makes
        cursor.graph, cursor.weights = GraphBuilder(), weights
        tape.backward(NONE)
        return cursor.graph.build()

    whole = play(None)
    kernels = np.flatnonzero(whole.kind == NodeKind.COMPUTE)
    end = int(kernels[-1]) if len(kernels) else NONE
    learnt = tuple(Learnt(bucket, count, ends=at > end) for bucket, count, at in gradients.learnt)
    of_inputs = of_weights = NOTHING
    if piece.split:
        put_off: list[Callable[[], None]] = []
        of_inputs = Work.of(play(put_off), axes.names)
        cursor.graph, cursor.weights, cursor.waits = GraphBuilder(), None, ()
        for make in put_off:
            make()
        of_weights = Work.of(cursor.graph.build(), axes.names)
    works = (of_forward, Work.of(whole, axes.names), of_inputs, of_weights)
    return Part(works, learnt, tape.parameters, sum(tape.partial.values()))
