"""Models of layers: what pipelines, ZeRO, memory, search and MFU ask of a family.

A family writes the forward pass of its embedding, of each layer and of its head on the autograd tape; backward, what is
kept for it, parameters and their gradients' reductions follow from the tape. All else has an answer here.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from pydantic import model_validator

from scaleout.errors import ConfigError
from scaleout.program.graph import Ints
from scaleout.workloads.config.family import ModelFamily
from scaleout.workloads.config.style import PLAIN, Style
from scaleout.workloads.config.training import Training

if TYPE_CHECKING:
    from scaleout.workloads.generate.autograd_tape import AutogradTape
    from scaleout.workloads.generate.units import Rank

ENDS = EMBEDDING, HEAD = "embedding", "head"
"""The parts of a model that are no layers."""

KEPT = ", kept"
"""What stands behind the kind of a layer that backward does not recompute, where it recomputes others of a stage."""

Content = tuple[tuple[str, int], ...]
"""Kinds of the parts of a stage in order, each with how many follow one another."""


class Degrees(Protocol):
    """What decides whether the sizes of a model divide: a workload has these, and a plan of a search."""

    @property
    def tensor_parallel(self) -> int: ...  # noqa: D102
    @property
    def context_parallel(self) -> int: ...  # noqa: D102
    @property
    def data_parallel(self) -> int: ...  # noqa: D102
    @property
    def expert_parallel(self) -> int: ...  # noqa: D102
    @property
    def microbatch_size(self) -> int: ...  # noqa: D102
    @property
    def sequence_parallel(self) -> bool: ...  # noqa: D102


_OF_GATHERS = ("reshard_after_forward", "gather_dtype", "prefetch", "prefetch_backward")
"""Keys that say how parameters which ZeRO-3 shards are gathered."""


class LayeredModel(Training):
    """A family of models of layers between an embedding and a head; options of a step have values that leave them out.

    To be written: `write_embedding`, `write_layer`, `write_head` and `parameters_of`. A part is the embedding, a layer
    of a kind, which `layer_kind` names, or the head.
    """

    has_experts: ClassVar[bool] = False
    """Whether some parameters are experts', which the expert axis spreads."""

    @model_validator(mode="after")
    def _cuts(self) -> "LayeredModel":
        refusal = self.refusal(self)
        if refusal is not None:
            raise ValueError(refusal)
        return self

    @abstractmethod
    def write_embedding(self, tape: "AutogradTape", x: int, rank: "Rank[Any]") -> int:
        """Write what comes before the first layer, on one rank, forward; return the node that makes the output."""

    @abstractmethod
    def write_layer(self, tape: "AutogradTape", x: int, rank: "Rank[Any]", number: int) -> int:
        """Write a layer on one rank, forward, for a micro-batch; `x` is the node that makes its input."""

    @abstractmethod
    def write_head(self, tape: "AutogradTape", x: int, rank: "Rank[Any]") -> int:
        """Write what comes after the last layer on one rank, forward, with the loss in training."""

    @abstractmethod
    def parameters_of(self, part: str) -> int:
        """Parameters of a part of the model; those that embedding and head share are the embedding's."""

    def active_parameters_of(self, part: str) -> int:
        """Parameters of a part that multiply a token: by default all but those of the embedding, a look-up."""
        return 0 if part == EMBEDDING else self.parameters_of(part)

    def mixing_flops(self, kind: str) -> int:
        """FLOPs of a layer forward for each token that no parameter takes part in, such as those of attention."""
        return 0

    @property
    def parts(self) -> Mapping[str, int]:
        """Parts of the model, each with how many there are."""
        return Counter((EMBEDDING, *map(self.layer_kind, range(self.layers)), HEAD))

    @property
    def num_parameters(self) -> int:
        """Parameters of the model."""
        return sum(count * self.parameters_of(part) for part, count in self.parts.items())

    @property
    def active_parameters(self) -> int:
        """Parameters that multiply a token."""
        return sum(count * self.active_parameters_of(part) for part, count in self.parts.items())

    @property
    def flops_per_token(self) -> float:
        """FLOPs that the model needs for a token: forward and, in training, backward; nothing recomputed.

        Six (forward alone: two) for each active parameter, and as many times half those that mix tokens (PaLM,
        arXiv:2204.02311, appendix B).
        """
        passes = 3 if self.mode == "training" else 1
        mixing = sum(count * self.mixing_flops(kind) for kind, count in self.parts.items() if kind not in ENDS)
        return float(passes * (2 * self.active_parameters + mixing))

    def layer_kind(self, layer: int) -> str:
        """Name what a layer is; layers of one kind are alike."""
        return "layer"

    def recomputed_of(self, layers: int) -> int:
        """Return how many of a stage's layers, its first, backward recomputes as wholes."""
        if self.recompute == "full" and self.recompute_layers is not None:
            return min(layers, self.recompute_layers)
        return layers if self.recompute in ("operations", "full") else 0

    @property
    def sizes(self) -> Mapping[str, int]:
        """Keys that the tensor axis cuts, and their sizes."""
        return {}

    def refusal(self, cut: Degrees) -> str | None:
        """Say why the model cannot be cut by some degrees, or None if it can; validation and searches ask."""
        for key in ("tensor_parallel", "context_parallel", "expert_parallel", "sequence_parallel"):
            if key in self.REFUSES and getattr(cut, key) != type(self).model_fields[key].default:
                return f"{key} {getattr(cut, key)} {self.REFUSES[key]}"
        for key, size in self.sizes.items():
            if size % cut.tensor_parallel:
                return (
                    f"{key} {size} does not divide over tensor_parallel {cut.tensor_parallel} ranks; "
                    f"choose a divisor of {size}"
                )
        return self._refused_tokens(cut) or self.refused_experts(cut)

    def _refused_tokens(self, cut: Degrees) -> str | None:
        # Causal attention is balanced by giving each rank one early and one late part of the sequence.
        parts = 2 * cut.context_parallel
        if cut.context_parallel > 1 and self.mode == "decode":
            return f"context_parallel {cut.context_parallel} cuts sequences; decode has one token of each"
        if cut.context_parallel > 1 and self.sequence % parts:
            return (
                f"sequence {self.sequence} does not divide over context_parallel {cut.context_parallel} ranks with "
                f"two parts each; use a multiple of {parts}"
            )
        tokens = self.tokens_of(cut)
        if cut.sequence_parallel and tokens % cut.tensor_parallel:
            return (
                f"sequence_parallel: {tokens} tokens do not divide over tensor_parallel "
                f"{cut.tensor_parallel}; choose sizes that do, or set sequence_parallel to false"
            )
        return None

    def refused_experts(self, cut: Degrees) -> str | None:
        """Say why experts cannot be spread over so many ranks, or None if they can."""
        if cut.expert_parallel == 1:
            return None
        return f"expert_parallel {cut.expert_parallel} needs experts; a model of kind {self.kind} has none"

    @property
    def style(self) -> Style:
        """How layers become kernels."""
        return PLAIN

    @property
    def recomputes(self) -> tuple[str, ...]:
        """What is worth recomputing, the least first: values of `recompute`."""
        return ("none", "full")

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Keys that are given and change nothing."""
        keeps = self.recompute == "selective" and "selective" not in self.recomputes
        whole = self.mode == "training" and self.zero < 3  # parameters are never gathered
        gathers = (key for key in _OF_GATHERS if whole and key in self.model_fields_set)
        return (*("recompute",) * keeps, *gathers)

    @property
    def tied_parameters(self) -> int:
        """Parameters of a rank that embedding and head share; 0 if they share none."""
        return 0

    @property
    def logits(self) -> int:
        """Numbers that the head of a rank makes of a micro-batch for the loss."""
        return 0

    @property
    def loads(self) -> Sequence[object]:
        """What distinguishes ranks that do the same in a pipeline, the busiest first: one, as all are alike."""
        return ("all",)

    @property
    def load_of_rank(self) -> Ints:
        """Which of `loads` each rank has, shape (R,)."""
        return np.zeros(self.num_ranks, np.int64)

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of the largest buffer that a layer exchanges along the tensor, context or expert axis."""
        if not (self.sequence_parallel and self.tensor_parallel > 1):
            return 0
        return self.local_tokens * self.hidden * self.item_bytes

    def cache_bytes(self, kind: str) -> int:
        """Bytes that a layer of a kind keeps on a rank between tokens of one sequence, in inference."""
        return 0

    def lighter(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield names of changes that make layers hold less, and the keys that each sets, the cheapest first."""
        served = self.mode == "decode" or "sequence_parallel" in self.REFUSES
        if self.tensor_parallel > 1 and not self.sequence_parallel and not served:
            yield "sequence_parallel", {"sequence_parallel": True}

    @property
    def contents(self) -> list[Content]:
        """What each stage holds, first to last: embedding, runs of layers of one kind, head."""
        kinds = [self.layer_kind(number) for number in range(self.layers)]
        marked = self.recompute == "full" and self.recompute_layers is not None and self.mode == "training"
        alike: dict[tuple[str, ...], Content] = {}
        contents: list[Content] = []
        end = 0
        for count in self.layers_of_stage:
            again = self.recomputed_of(count) if marked else count
            end, some = end + count, (*kinds[end : end + again], *(k + KEPT for k in kinds[end + again : end + count]))
            if some not in alike:
                alike[some] = tuple((kind, len(list(group))) for kind, group in groupby(some))
            contents.append(alike[some])
        contents[0] = ((EMBEDDING, 1), *contents[0])
        contents[-1] = (*contents[-1], (HEAD, 1))
        return contents

    @property
    def tokens(self) -> int:
        """Tokens that a replica handles in a step."""
        return self.batch_per_replica * (1 if self.mode == "decode" else self.sequence)

    @property
    def local_sequence(self) -> int:
        """Tokens of each sequence that a rank handles."""
        return 1 if self.mode == "decode" else self.sequence // self.context_parallel

    @property
    def local_tokens(self) -> int:
        """Tokens of a micro-batch that a rank handles."""
        return self.tokens_of(self)

    def tokens_of(self, cut: Degrees) -> int:
        """Return the tokens of a micro-batch that a rank handles, if the model is cut by some degrees."""
        return cut.microbatch_size * (1 if self.mode == "decode" else self.sequence // cut.context_parallel)

    @property
    def scatters(self) -> bool:
        """Whether tensor-parallel ranks hold the same output of a stage and send a part each."""
        return self.scatter_messages and self.tensor_parallel > 1 and not self.sequence_parallel

    @property
    def message_bytes(self) -> int:
        """Bytes that a rank sends to the next stage for a micro-batch."""
        parts = self.tensor_parallel if self.sequence_parallel or self.scatters else 1
        return -(-self.local_tokens // parts) * self.hidden * self.item_bytes


def layered(workload: ModelFamily, *, wants: str) -> LayeredModel:
    """Return a workload whose model is of layers; a ConfigError says that it is not, and `wants` what needs one."""
    if not isinstance(workload, LayeredModel):
        raise ConfigError(f"workload {workload.name!r} is of kind {workload.kind}; {wants}")
    return workload
