"""How a step of a model of layers runs: micro-batches, pipeline, recompute, sharding of states, gradients, optimizer.

Source: Megatron-LM, arXiv:2104.04473 (pipelines) and arXiv:2205.05198 (recompute); ZeRO, arXiv:1910.02054; FSDP,
arXiv:2304.11277; ring attention, arXiv:2310.01889; Llama 3, arXiv:2407.21783 (all-gather context parallelism).
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from scaleout.config.units import MOST_WRITTEN, Count, CountOrZero, LayerCount, counted
from scaleout.config.validated import nearest, renamed
from scaleout.errors import ConfigError
from scaleout.program.operations import ITEM_BYTES
from scaleout.workloads.config.frameworks import WithFramework
from scaleout.workloads.pipeline import PIPELINES, named, stages_of_ranks

MOST_PASSES = 500_000
"""Passes of a micro-batch through a layer, forward or backward, that a step may have: 16 GB of graphs and timelines."""
_PASS_BYTES = 33_000
"""Of a layer of Llama 3 8B, measured over 4,000 layers under two schedules."""
_LISTED = 32
"""Stages whose layers a message lists one by one."""


def too_many(layers: int, microbatches: int, context_parallel: int) -> str | None:
    """Return why a step is too large to be written, or None; in a context ring each pass has a part for every rank."""
    passes = 2 * layers * microbatches * context_parallel
    if passes <= MOST_PASSES:
        return None
    return (
        f"a step of {layers:,} layers, {microbatches:,} micro-batches and context_parallel {context_parallel:,} is "
        f"{passes:,} passes of layers to simulate, about {passes * _PASS_BYTES / 1e9:,.0f} GB, and at most "
        f"{MOST_PASSES:,} are; choose fewer layers or ranks of context, or a larger microbatch"
    )


def as_even(layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each stage, as even as can be, the first ones longer.

    >>> as_even(14, 4)
    (4, 4, 3, 3)
    """
    least, longer = divmod(layers, stages)
    return (least + 1,) * longer + (least,) * (stages - longer)


class Training(WithFramework):
    """Keys of a step, which all models of layers share; all but the sizes have the value that leaves them out."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        "model_chunks": "virtual_stages",
        "copies_at_end": "replicas_at_end",
        "temporaries": "transient_memory",
    }

    READ_BY_NO_LAYER: ClassVar[frozenset[str]] = frozenset(
        """
        name description source topology device schedules rank_order gradient_bucket pipeline_parallel batch_per_replica
        microbatch pipeline_schedule virtual_stages microbatch_group stage_layers overlap_sends messages optimizer
        master_weights moment_dtype gradient_dtype fused_accumulation all_reduced_gradients clip_gradients data_parallel
        zero shard_ranks overlap_gradient_reduce overlap_parameter_gather reshard_after_forward prefetch
        recompute_layers
        """.split()  # noqa: SIM905 - a list of thirty strings hides them
    )
    """Keys that what a layer runs and holds does not depend on, but for the size of a micro-batch and, where parameters
    are sharded (`zero` 3), how."""

    layers: LayerCount = Field(description="layers of the model")
    hidden: Count = Field(description="width of what a layer hands to the next")
    sequence: Count = Field(description="tokens of a sequence; in decode, tokens already in the cache")
    sequence_parallel: bool = Field(
        default=False,
        description="tensor-parallel ranks share the tokens of what tensor parallelism does not cut; mode: decode over "
        "a workload of another mode leaves it out unless it is given, too, as servers do two all-reduces a layer",
    )
    batch_per_replica: Count = Field(description="sequences that a data-parallel replica handles in a step")
    mode: Literal["training", "prefill", "decode"] = Field(
        default="training",
        description="a training step, prefill of a prompt, or one token of decode; prefill or decode over a workload "
        "that trains leaves its framework, zero and what shards besides, microbatch and the pipeline's schedule out, "
        "unless they are given, too, and stage_layers of another number of stages",
    )

    microbatch: Count | None = Field(default=None, description="sequences of a micro-batch; the whole batch if unset")
    pipeline_schedule: str = Field(default="1f1b", description="a name in `scaleout list pipelines`")
    virtual_stages: LayerCount | None = Field(
        default=None, description="stages of the model that a rank holds; 2 if unset and the schedule interleaves"
    )
    microbatch_group: Count | None = Field(
        default=None,
        description="interleaved_1f1b: micro-batches that a virtual stage takes before the next one's turn; as many as "
        "stages if unset (depth-first), those of a step are breadth-first",
    )
    stage_layers: tuple[CountOrZero, ...] = Field(
        default=(), description="layers of each stage, first to last, 0 among them; equal ones if unset (null)"
    )
    overlap_sends: bool = Field(default=True, description="whether kernels run while activations are sent on")
    scatter_messages: bool = Field(
        default=False,
        description="each tensor-parallel rank sends its part of what the next stage needs, which gathers the parts",
    )
    messages: Literal["at_need", "as_made", "in_turn"] = Field(
        default="at_need",
        description="when ends of messages are posted; as_made: one at a time, as PyTorch's interleaved schedules; "
        "in_turn: one at a time between passes, which wait for both ends, as DeepSpeed's",
    )
    recompute: Literal["none", "selective", "up_projections", "operations", "full"] = Field(
        default="none",
        description="what backward recomputes; none: nothing; selective: the core of attention, if unfused; "
        "up_projections: latent attention's norm and projections up to the heads; operations: what of layers is "
        "neither attention, nor a reduce-scatter, nor one of every other GEMM; full: whole layers",
    )
    recompute_layers: CountOrZero | None = Field(
        default=None,
        le=MOST_WRITTEN,
        description="recompute full: layers of each stage that are recomputed, its first, as by Megatron-LM's "
        "recompute-method block; all if unset",
    )
    stop_recompute_early: bool = Field(
        default=False,
        description="recompute full: end with the last activation that backward reads, so that the last GEMM of a "
        "layer is left out; as by torch.utils.checkpoint from 2.1 on, without reentrance",
    )
    zero: Literal[0, 1, 2, 3] = Field(
        default=0,
        description="data-parallel ranks shard: 1 optimizer states, 2 gradients too, 3 parameters too (ZeRO-3: how "
        "FSDP shards, and nothing else of it; PyTorch's FSDP as it runs is framework: fsdp2)",
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
    prefetch: CountOrZero = Field(default=1, description="zero 3: layers that are gathered ahead")
    prefetch_backward: CountOrZero | None = Field(
        default=None, description="zero 3: layers gathered ahead in backward, if not as many"
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
    shard_lists: bool = Field(
        default=False,
        description="zero 3: each parameter is gathered and each gradient reduced by itself, through a list with a "
        "tensor a rank; one gather waits for the other, and smaller parameters than 1e5 elements stay whole",
    )
    flat_gradients: bool = Field(
        default=False,
        description="zero 2 or 3: gradients of a layer are put into one tensor, cast to gradient_dtype and scaled "
        "before they are reduced, as by PyTorch's first FSDP",
    )
    all_reduced_gradients: bool = Field(
        default=False,
        description="zero 1: gradients are all-reduced, though a rank steps its part alone, as by DeepSpeed in bf16",
    )
    optimizer: Literal["adamw", "sgd", "none"] = Field(
        default="adamw", description="what steps the parameters, sgd without momentum; none leaves it out"
    )
    optimizer_kernels: Literal["fused", "unfused"] = Field(
        default="fused", description="one kernel for all of a parameter's update, or one for each operation"
    )
    master_weights: bool = Field(default=True, description="keep fp32 parameters where the model's are of 16 bits")
    moment_dtype: Literal["fp32", "bf16"] = Field(default="fp32", description="of the optimizer's moments")
    gradient_dtype: Literal["fp32", "bf16", "fp16"] | None = Field(
        default=None, description="of accumulated gradients; the model's if unset"
    )
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
    dropped_gradients: bool = Field(
        default=False,
        description="steps of one micro-batch without a pipeline: gradients are dropped before a step, as by zero_grad "
        "of PyTorch, so that forward holds none; the optimizer then holds all, and unfused a temporary of each as well",
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

    @field_validator("stage_layers", mode="before")
    @classmethod
    def _even_if_unset(cls, value: Any) -> Any:
        return () if value is None else value

    @field_validator("context_exchange", mode="before")
    @classmethod
    def _with_new_name(cls, value: Any) -> Any:
        return renamed(value, {"all_to_all": "ulysses"}, what="context_exchange") if isinstance(value, str) else value

    @model_validator(mode="after")
    def _step_divides(self) -> "Training":
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
        if self.overlap_parameter_gather and (self.zero == 0 or (self.zero == 3 and self.replicas_of_shards == 1)):
            why, or_else = ("by nobody", "")
            if self.zero:
                why = f"layer by layer anyway, and of {self.sharding} shards over {replicas} ranks none has replicas"
                or_else = f"shard_ranks to a divisor of {replicas} between, or "
            raise ValueError(
                f"overlap_parameter_gather: with zero {self.zero} stepped parameters are gathered {why}; set {or_else}"
                f"zero to 1 or 2, or leave it out"
            )
        refusal = too_many(self.layers, self.num_microbatches, self.context_parallel)
        if refusal is not None:
            raise ValueError(refusal)
        self._check_pipeline()
        self._check_stages()
        self._check_recompute()
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
        if self.messages == "in_turn" and name not in ("gpipe", "1f1b"):
            raise ValueError(
                f"messages in_turn is an order for gpipe and 1f1b, and with {name} ranks would wait for each other; "
                "choose at_need or as_made"
            )
        if self.messages == "in_turn" and self.overlap_sends:
            raise ValueError("messages in_turn lets passes wait for what is sent; set overlap_sends to false")

    def _check_recompute(self) -> None:
        if self.recompute_layers is not None and self.recompute == "full" and self.shard_lists:
            raise ValueError(
                "recompute_layers is not written for gathers of lists of tensors (shard_lists); leave one of them out"
            )

    def _check_stages(self) -> None:
        if self.stage_layers and (len(self.stage_layers) != self.num_stages or sum(self.stage_layers) != self.layers):
            raise ValueError(
                f"stage_layers has {counted(len(self.stage_layers), 'stage')} and {sum(self.stage_layers)} layers, and "
                f"the job {counted(self.num_stages, 'stage')} and {self.layers}; {self._other_stages()}"
            )
        if self.num_stages > self.layers and not self.stage_layers:
            raise ValueError(
                f"{self.num_stages} stages are more than layers {self.layers}; use fewer stages or virtual_stages"
            )
        if self.layers % self.num_stages and not self.stage_layers:
            raise ValueError(
                f"layers {self.layers} do not divide over {self.num_stages} stages; "
                f"choose a divisor of {self.layers}, or {self._other_stages()}"
            )

    def _other_virtual_stages(self) -> str:
        """Say which numbers of virtual stages divide the layers, if the schedule takes several and any do."""
        pipeline, most = self.pipeline_parallel, self.layers // self.pipeline_parallel
        if PIPELINES[self.pipeline_schedule].num_chunks is not None:
            return ""
        fitting = [v for v in range(2, most + 1) if self.layers % (pipeline * v) == 0]
        if fitting:
            return f"choose virtual_stages {' or '.join(map(str, fitting))} without stage_layers, or "
        return f"choose virtual_stages of at most {most}, or " if most and self.num_stages > self.layers else ""

    def _other_stages(self) -> str:
        """Say how to write `stage_layers`, for stages that are as even as can be; a long list in words."""
        least, longer = divmod(self.layers, self.num_stages)
        shorter = self.num_stages - longer
        if self.num_stages > _LISTED:
            some = f"{least + 1} for {longer} and {least} for {shorter} of them" if longer else f"all {least}"
            written = f"write stage_layers of {self.num_stages} numbers, such as {some}"
        else:
            written = f"write `--set 'stage_layers={list(as_even(self.layers, self.num_stages))}'`"
        return self._other_virtual_stages() + written + ("" if longer else ", or null for equal ones")

    @property
    def issued_whole(self) -> bool:
        """Whether a step is one: decode, as a CUDA graph, or what the framework compiles."""
        return self.mode == "decode" or super().issued_whole

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
        return PIPELINES[self.pipeline_schedule].layout.num_stages(self.pipeline_parallel, self.chunks)

    @property
    def pipeline_sizes(self) -> dict[str, Any]:
        """Sizes of the pipeline, as `pipeline.orders` and `pipeline.blocks.blocks` take them."""
        return {
            "stages": self.pipeline_parallel, "microbatches": self.num_microbatches, "chunks": self.chunks,
            "group": self.microbatch_group,
        }  # fmt: skip

    @property
    def stages_of_ranks(self) -> npt.NDArray[np.int64]:
        """Virtual stage of each chunk of each pipeline rank, shape (p, v)."""
        return stages_of_ranks(self.pipeline_schedule, self.pipeline_parallel, self.chunks)

    @property
    def end_ranks(self) -> tuple[int, ...]:
        """Pipeline ranks that hold the first or the last stage of the first path."""
        holder_of, p, v = PIPELINES[self.pipeline_schedule].layout.holder_of, self.pipeline_parallel, self.chunks
        return tuple(sorted({holder_of(0, number, p, v)[0] for number in (0, self.num_stages - 1)}))

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
    def replicas_of_shards(self) -> int:
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
