"""Models of layers: what pipelines, ZeRO, memory, search and MFU ask of a family, and how its step runs.

A family writes the forward pass of its embedding, of each layer and of its head on the autograd tape; backward, what is
kept for it, parameters and their gradients' reductions follow from the tape. All else has an answer here.

Source: Megatron-LM, arXiv:2104.04473 (pipelines) and arXiv:2205.05198 (recompute); ZeRO, arXiv:1910.02054; FSDP,
arXiv:2304.11277; ring attention, arXiv:2310.01889; Llama 3, arXiv:2407.21783 (all-gather context parallelism).
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import Field, field_validator, model_validator

from scaleout.config.validated import nearest, renamed
from scaleout.errors import ConfigError
from scaleout.program.operations import ITEM_BYTES
from scaleout.workloads.families.family import Count, Dtype, ModelFamily
from scaleout.workloads.families.style import PLAIN, Style
from scaleout.workloads.pipeline import PIPELINES, named

if TYPE_CHECKING:
    from scaleout.workloads.generate.autograd_tape import AutogradTape
    from scaleout.workloads.generate.units import Rank

ENDS = EMBEDDING, HEAD = "embedding", "head"
"""The parts of a model that are no layers."""

Content = tuple[tuple[str, int], ...]
"""Kinds of the parts of a stage in order, each with how many follow one another."""


class Degrees(Protocol):
    """What decides whether the sizes of a model divide; a plan of a search has these, and `Cut` of a workload."""

    @property
    def tensor_parallel(self) -> int: ...  # noqa: D102
    @property
    def context_parallel(self) -> int: ...  # noqa: D102
    @property
    def data_parallel(self) -> int: ...  # noqa: D102
    @property
    def expert_parallel(self) -> int: ...  # noqa: D102
    @property
    def microbatch(self) -> int: ...  # noqa: D102
    @property
    def sequence_parallel(self) -> bool: ...  # noqa: D102


class Cut(NamedTuple):
    """The degrees by which a workload cuts its model."""

    tensor_parallel: int
    context_parallel: int
    data_parallel: int
    expert_parallel: int
    microbatch: int
    sequence_parallel: bool


class LayeredModel(ModelFamily):
    """A family of models of layers between an embedding and a head; options of a step have values that leave them out.

    To be written: `write_embedding`, `write_layer`, `write_head`, `num_parameters` and `flops_per_token`. What is alike
    in all layers is asked once for each `layer_kind`.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {
        "model_chunks": "virtual_stages",
        "copies_at_end": "replicas_at_end",
        "temporaries": "transient_memory",
    }

    layers: Count
    hidden: Count = Field(description="width of what a layer hands to the next")
    sequence: Count = Field(description="tokens of a sequence; in decode, tokens already in the cache")
    sequence_parallel: bool = False
    batch_per_replica: Count = Field(description="sequences that a data-parallel replica handles in a step")
    mode: Literal["training", "prefill", "decode"] = "training"

    microbatch: Count | None = Field(default=None, description="sequences of a micro-batch; the whole batch if unset")
    pipeline_schedule: str = Field(default="1f1b", description="a name in `scaleout list pipelines`")
    virtual_stages: Count | None = Field(
        default=None, description="stages of the model that a rank holds; 2 if unset and the schedule interleaves"
    )
    microbatch_group: Count | None = Field(
        default=None,
        description="interleaved_1f1b: micro-batches that a virtual stage takes before the next one's turn; as many as "
        "stages if unset (depth-first), those of a step are breadth-first",
    )
    stage_layers: tuple[int, ...] = Field(
        default=(), description="layers of each stage, first to last; equal ones if unset"
    )
    overlap_sends: bool = Field(default=True, description="whether kernels run while activations are sent on")

    scatter_messages: bool = Field(
        default=False,
        description="each tensor-parallel rank sends its part of what the next stage needs, which gathers the parts",
    )

    messages: Literal["at_need", "as_made"] = Field(
        default="at_need",
        description="when ends of messages are posted; as_made: one at a time, as PyTorch's interleaved schedules",
    )

    recompute: Literal["none", "selective", "operations", "full"] = Field(
        default="none",
        description="what backward computes again: nothing, the attention core, whole layers, or (operations) what of "
        "them is neither attention, nor a reduce-scatter, nor one of every other product",
    )
    stop_recompute_early: bool = Field(
        default=False,
        description="recompute full: end with the last activation that backward reads, so that the last product of a "
        "layer is left out; as by torch.utils.checkpoint from 2.1 on, without reentrance",
    )
    zero: Literal[0, 1, 2, 3] = Field(
        default=0, description="data-parallel ranks shard: 1 optimizer states, 2 gradients too, 3 parameters too (FSDP)"
    )
    overlap_gradient_reduce: bool = Field(
        default=False,
        description="zero 0 or 1 in a pipeline: gradients of a virtual stage are reduced as its last micro-batch makes "
        "them, not at the end of the step",
    )
    overlap_parameter_gather: bool = Field(
        default=False,
        description="zero 1 or 2: stepped parameters are gathered in the forward of the next step, each layer's ahead "
        "of its first use, not at the end of the step; zero 3 where shards have replicas (shard_ranks): each replica "
        "steps a part of its shard, and the replicas gather the parts likewise",
    )
    shard_ranks: Count | None = Field(
        default=None, description="data-parallel ranks that shard among them, the rest replicate; all if unset"
    )
    replicas_at_end: bool = Field(
        default=False,
        description="shard_ranks: gradients of shards are summed over their replicas once, after backward",
    )
    reshard_after_forward: bool = Field(default=True, description="zero 3: gather parameters again for backward")
    gather_dtype: Literal["fp8_e4m3"] | None = Field(
        default=None, description="zero 3: in which the parameters of layers are gathered; the model's if unset"
    )
    prefetch: int = Field(default=1, ge=0, strict=True, description="zero 3: layers that are gathered ahead")
    prefetch_backward: int | None = Field(
        default=None, ge=0, strict=True, description="zero 3: layers gathered ahead in backward, if not as many"
    )
    context_exchange: Literal["ring", "all_gather", "all_gather_steps", "ulysses"] = Field(
        default="ring",
        description="keys and values go round a ring, or are gathered first; attended to at once, or one rank's after "
        "the other with the results merged, as by PyTorch's context_parallel; ulysses: all-to-alls exchange "
        "tokens for heads (DeepSpeed-Ulysses)",
    )
    layout_copies: bool = Field(
        default=False,
        description="copies of PyTorch's eager layers: heads' gradients side by side; gradients into buckets, those of "
        "a single element left out; shards into and out of the buffers of FSDP",
    )

    flat_gradients: bool = Field(
        default=False,
        description="zero 2 or 3: gradients of a layer are put into one tensor, cast to gradient_dtype and scaled "
        "before they are reduced, as by PyTorch's first FSDP",
    )
    optimizer: Literal["adamw", "none"] = "adamw"
    optimizer_kernels: Literal["fused", "unfused"] = Field(
        default="fused", description="one kernel for all of a parameter's update, or one for each operation"
    )
    master_weights: bool = Field(default=True, description="keep fp32 parameters where the model's are of 16 bits")
    gradient_dtype: Dtype | None = Field(default=None, description="of accumulated gradients; the model's if unset")
    fused_accumulation: bool = Field(
        default=False, description="gradients are added to those of earlier micro-batches by the GEMM that makes them"
    )
    placeholder_gradients: bool = Field(
        default=False,
        description="fused_accumulation gives autograd placeholders of gradients, in the model's data type: one of "
        "each weight's shape, kept, as TransformerEngine does; the head's goes at once",
    )
    transient_memory: bool = Field(
        default=False,
        description="count what backward makes and lets go, step by step, in the memory instead of exchanges' buffers",
    )
    copied_buckets: bool = Field(
        default=False,
        description="gradients are copied into buckets and back, as by DDP without gradient_as_bucket_view",
    )
    buffer_passes: tuple[Literal["clear", "check", "scale", "copy"], ...] = Field(
        default=(),
        description="passes over buffers in a step, as Megatron-LM's: gradients are cleared before it, checked for "
        "NaN and scaled by the replicas before they are reduced; stepped fp32 parameters are copied to the model's",
    )
    clip_gradients: bool = Field(default=False, description="scale by the norm over all ranks before the optimizer")

    @field_validator("context_exchange", mode="before")
    @classmethod
    def _with_new_name(cls, value: Any) -> Any:
        return renamed(value, {"all_to_all": "ulysses"}, what="context_exchange") if isinstance(value, str) else value

    @model_validator(mode="after")
    def _step_divides(self) -> "LayeredModel":
        if self.batch_per_replica % self.microbatch_size:
            raise ValueError(
                f"microbatch {self.microbatch_size} does not divide batch_per_replica {self.batch_per_replica}; "
                f"choose a divisor of {self.batch_per_replica}"
            )
        if self.shard_ranks is not None and self.zero == 0:
            raise ValueError(f"shard_ranks {self.shard_ranks} shards nothing with zero 0; set zero to 1, 2 or 3")
        replicas = self.data_parallel * self.context_parallel
        if self.shard_ranks == 1 and replicas > 1:
            raise ValueError("shard_ranks 1 shards nothing; set zero to 0, or shard_ranks to more")
        if replicas % self.sharding:
            raise ValueError(
                f"shard_ranks {self.sharding} does not divide the {replicas} ranks that share parameters "
                f"(data_parallel x context_parallel); choose a divisor of {replicas}"
            )
        if self.sharding != replicas and self.zero and self.expert_parallel > 1:
            raise ValueError("shard_ranks with expert_parallel is not defined: experts shard over all their replicas")
        if self.overlap_parameter_gather and (self.zero == 0 or (self.zero == 3 and self.copies_of_shards == 1)):
            why, or_else = ("by nobody", "")
            if self.zero:
                why = f"layer by layer anyway, and of {self.sharding} shards over {replicas} ranks none has copies"
                or_else = f"shard_ranks to a divisor of {replicas} between, or "
            raise ValueError(
                f"overlap_parameter_gather: with zero {self.zero} stepped parameters are gathered {why}; set {or_else}"
                f"zero to 1 or 2, or leave it out"
            )
        self._check_pipeline()
        self._check_stages()
        cut = Cut(
            self.tensor_parallel, self.context_parallel, self.data_parallel, self.expert_parallel, self.microbatch_size,
            self.sequence_parallel,
        )  # fmt: skip
        refusal = self.refusal(cut)
        if refusal is not None:
            raise ValueError(refusal)
        return self

    def _check_pipeline(self) -> None:
        name = self.pipeline_schedule
        if name not in PIPELINES:
            raise ValueError(f"unknown pipeline_schedule {name!r}; {nearest(name, PIPELINES)}")
        own = PIPELINES[name].num_chunks
        if own is not None and self.virtual_stages not in (None, own):
            raise ValueError(
                f"pipeline_schedule {name!r} cuts the model of a rank into {own} virtual stages, not "
                f"{self.virtual_stages}; leave virtual_stages out, or choose interleaved_1f1b"
            )
        try:
            pipeline = named(name, self.microbatch_group)
        except ConfigError as error:
            raise ValueError(f"microbatch_group: {error}") from None
        reason = pipeline.check(self.pipeline_parallel, self.num_microbatches, self.chunks)
        if reason is not None:
            raise ValueError(f"pipeline_schedule {name!r} cannot be: {reason}")

    def _check_stages(self) -> None:
        if self.stage_layers and (
            len(self.stage_layers) != self.num_stages
            or sum(self.stage_layers) != self.layers
            or min(self.stage_layers) < 0
        ):
            raise ValueError(
                f"stage_layers has {len(self.stage_layers)} stages and {sum(self.stage_layers)} layers; "
                f"give {self.num_stages} stages that add up to layers {self.layers}"
            )
        if self.num_stages > self.layers and not self.stage_layers:
            raise ValueError(
                f"{self.num_stages} stages are more than layers {self.layers}; use fewer stages or virtual_stages"
            )
        if self.layers % self.num_stages and not self.stage_layers:
            raise ValueError(
                f"layers {self.layers} do not divide over {self.num_stages} stages; "
                f"choose a divisor of {self.layers}, or give stage_layers"
            )

    @abstractmethod
    def write_embedding(self, tape: "AutogradTape", x: int, rank: "Rank[Any]") -> int:
        """Write what comes before the first layer, on one rank, forward; `x` is the input of the whole model.

        Returns
        -------
        int
            The node that makes the output, as for `write_layer` and `write_head`.
        """

    @abstractmethod
    def write_layer(self, tape: "AutogradTape", x: int, rank: "Rank[Any]", number: int) -> int:
        """Write a layer on one rank, forward, for a micro-batch; `x` is the node that makes its input."""

    @abstractmethod
    def write_head(self, tape: "AutogradTape", x: int, rank: "Rank[Any]") -> int:
        """Write what comes after the last layer on one rank, forward, with the loss in training."""

    @property
    @abstractmethod
    def flops_per_token(self) -> float:
        """FLOPs that the model needs for a token, for MFU: forward and, in training, backward; none computed again."""

    def layer_kind(self, layer: int) -> str:
        """Name what a layer is; layers of one kind are alike."""
        del layer
        return "layer"

    @property
    def has_experts(self) -> bool:
        """Whether some parameters are experts', which the expert axis spreads."""
        return False

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
        """What is worth computing again, the least first: values of `recompute`."""
        return ("none", "full")

    @property
    def tied_parameters(self) -> int:
        """Parameters of a rank that embedding and head share; 0 if they share none."""
        return 0

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of the largest buffer that a layer exchanges along the tensor, context or expert axis."""
        if not (self.sequence_parallel and self.tensor_parallel > 1):
            return 0
        return self.local_tokens * self.hidden * self.item_bytes

    def cache_bytes(self, kind: str) -> int:
        """Bytes that a layer of a kind keeps on a rank between tokens of one sequence, in inference."""
        del kind
        return 0

    def lighter(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield names of changes that make layers hold less, and the keys that each sets, the cheapest first."""
        if self.tensor_parallel > 1 and not self.sequence_parallel and "sequence_parallel" not in self.REFUSES:
            yield "sequence_parallel", {"sequence_parallel": True}

    @property
    def contents(self) -> list[Content]:
        """What each stage holds, first to last: embedding, runs of layers of one kind, head."""
        kinds = [self.layer_kind(number) for number in range(self.layers)]
        alike: dict[tuple[str, ...], Content] = {}
        contents: list[Content] = []
        end = 0
        for count in self.layers_of_stage:
            end, some = end + count, tuple(kinds[end : end + count])
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
        return self.microbatch_size * self.local_sequence

    def tokens_of(self, cut: Degrees) -> int:
        """Return the tokens of a micro-batch that a rank handles, if the model is cut by some degrees."""
        return cut.microbatch * (1 if self.mode == "decode" else self.sequence // cut.context_parallel)

    @property
    def scatters(self) -> bool:
        """Whether tensor-parallel ranks hold the same output of a stage and send a part each."""
        return self.scatter_messages and self.tensor_parallel > 1 and not self.sequence_parallel

    @property
    def message_bytes(self) -> int:
        """Bytes that a rank sends to the next stage for a micro-batch."""
        parts = self.tensor_parallel if self.sequence_parallel or self.scatters else 1
        return -(-self.local_tokens // parts) * self.hidden * self.item_bytes

    @property
    def microbatch_size(self) -> int:
        """Sequences of a micro-batch."""
        return self.microbatch or self.batch_per_replica

    @property
    def num_microbatches(self) -> int:
        """Micro-batches that a replica handles in a step."""
        return self.batch_per_replica // self.microbatch_size

    @property
    def chunks(self) -> int:
        """Parts of the model that a rank holds."""
        return PIPELINES[self.pipeline_schedule].num_chunks or self.virtual_stages or 2

    @property
    def num_stages(self) -> int:
        """Parts that the model is cut into, over all ranks of a pipeline."""
        return PIPELINES[self.pipeline_schedule].num_stages(self.pipeline_parallel, self.chunks)

    @property
    def layers_of_stage(self) -> tuple[int, ...]:
        """Layers of each stage, first to last."""
        return self.stage_layers or (self.layers // self.num_stages,) * self.num_stages

    @property
    def sharding(self) -> int:
        """Ranks over which states are sharded; 1 if they are not."""
        if self.zero == 0:
            return 1
        return self.shard_ranks or self.data_parallel * self.context_parallel

    @property
    def copies_of_shards(self) -> int:
        """Ranks that hold the same shard of a parameter."""
        return self.data_parallel * self.context_parallel // self.sharding if self.sharding > 1 else 1

    @property
    def bucket_bytes(self) -> float:
        """Gradients from which on a bucket is reduced; FSDP reduces those of a layer together."""
        return math.inf if self.zero == 3 and self.pipeline_parallel == 1 else self.gradient_bucket

    @property
    def gathered_ahead(self) -> int:
        """Layers whose parameters are gathered ahead in backward."""
        return self.prefetch if self.prefetch_backward is None else self.prefetch_backward

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one element of a gradient."""
        return ITEM_BYTES[self.gradient_dtype or self.dtype]
