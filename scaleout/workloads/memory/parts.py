"""Parts of a model to what they hold: activations that layers keep for backward, and parameters.

A part is written by its generator once, and layers that are alike count as often as they are there. Without a backward,
what a part would keep for one is counted.
"""

import functools
from dataclasses import dataclass, field, replace

from scaleout.program.graph import GraphBuilder
from scaleout.workloads.families.layered import EMBEDDING, HEAD, LayeredModel
from scaleout.workloads.generate.autograd_tape import AutogradTape, Cursor, Gradients
from scaleout.workloads.generate.axes import Axes
from scaleout.workloads.generate.forward import forward
from scaleout.workloads.generate.units import Rank

_CHANGE_NO_LAYER = frozenset(
    """
    name description source topology device schedules data_parallel pipeline_parallel rank_order gradient_bucket
    batch_per_replica microbatch pipeline_schedule virtual_stages microbatch_group stage_layers overlap_sends zero
    shard_ranks overlap_gradient_reduce overlap_parameter_gather reshard_after_forward prefetch optimizer
    master_weights gradient_dtype fused_accumulation clip_gradients
    """.split()  # noqa: SIM905 - a list of strings hides them
)
"""Keys of a workload on which what a layer holds does not depend, but for the size of a micro-batch."""


@dataclass(frozen=True)
class Held:
    """What a part of a model holds on a rank.

    Attributes
    ----------
    kept_bytes : float
        Activations of one micro-batch, from its forward to the end of its backward.
    again_bytes, all_again_bytes : float
        What backward computes again: the most of a part at a time, and of all parts together.
    parameters : tuple of int
        Of the dense bucket, and of the experts'.
    temporary_bytes : float
        The most that backward makes beyond what is kept when it begins.
    weights : frozenset of (int, int)
        Outputs and inputs of the weights of which placeholders of gradients are held.
    """

    kept_bytes: float = 0.0
    again_bytes: float = 0.0
    all_again_bytes: float = 0.0
    parameters: tuple[int, int] = (0, 0)
    temporary_bytes: float = 0.0
    weights: frozenset[tuple[int, int]] = frozenset()

    def __add__(self, other: "Held") -> "Held":
        return Held(
            self.kept_bytes + other.kept_bytes,
            max(self.again_bytes, other.again_bytes),
            self.all_again_bytes + other.all_again_bytes,
            (self.parameters[0] + other.parameters[0], self.parameters[1] + other.parameters[1]),
            max(other.temporary_bytes, self.temporary_bytes - other.kept_bytes),  # backward begins with the other
            self.weights | other.weights,
        )

    def times(self, count: int) -> "Held":
        """Return what as many parts hold."""
        dense, experts = self.parameters
        if count == 0:
            return Held()
        parameters = (count * dense, count * experts)
        return replace(
            self,
            kept_bytes=count * self.kept_bytes,
            all_again_bytes=count * self.all_again_bytes,
            parameters=parameters,
        )


@dataclass(frozen=True)
class _Piece:
    """A part of a model that is written by itself: those of equal keys hold the same."""

    key: tuple[object, ...]
    layers: tuple[int, ...]
    first: bool
    last: bool
    tied: bool
    workload: LayeredModel = field(compare=False)


@functools.lru_cache(maxsize=4096)
def _held(piece: _Piece) -> Held:
    """Write a part of a model and count what it holds; without backward, what it would keep for one."""
    workload = piece.workload
    rank = Rank(workload, Axes(workload), tied=[] if piece.tied else None)
    tape = AutogradTape(
        Cursor(GraphBuilder()), workload.dtype, Gradients(workload.gradient_bucket, workload.gradient_bytes)
    )
    first = piece.layers[0] if piece.layers else 0
    forward(tape, rank, range(first, first + len(piece.layers)), first=piece.first, last=piece.last)
    parameters = (tape.parameters.get("dense", 0), tape.parameters.get("experts", 0))
    entering_bytes = 0 if piece.last else rank.elements * workload.item_bytes
    return Held(
        tape.kept_bytes,
        tape.again_bytes,
        tape.all_again_bytes,
        parameters,
        tape.temporary_bytes(entering_bytes) if workload.transient_memory else 0.0,
        frozenset(tape.weights) if workload.placeholder_gradients else frozenset(),
    )


Units = tuple[tuple[Held, int], ...]
"""Parts of a stage in order, each with how many of it follow one another."""


def units_of_stages(workload: LayeredModel) -> list[Units]:
    """Return the embedding, the layers of each kind, and the head, as far as each stage has them."""
    keys = tuple(getattr(workload, key) for key in _layer_keys(type(workload)))
    key = (type(workload), workload.microbatch_size, *keys)
    contents = workload.contents
    tied = workload.tied_parameters > 0 and len(contents) == 1
    numbers = {workload.layer_kind(number): number for number in reversed(range(workload.layers))}
    held = {
        EMBEDDING: _held(_Piece(key, (), first=True, last=False, tied=tied, workload=workload)),
        HEAD: _held(_Piece(key, (), first=False, last=True, tied=tied, workload=workload)),
    }
    for kind, number in numbers.items():
        held[kind] = _held(_Piece(key, (number,), first=False, last=False, tied=False, workload=workload))
    return [tuple((held[kind], count) for kind, count in content) for content in contents]


@functools.lru_cache(maxsize=8)
def _layer_keys(kind: type[LayeredModel]) -> tuple[str, ...]:
    return tuple(key for key in kind.model_fields if key not in _CHANGE_NO_LAYER)
