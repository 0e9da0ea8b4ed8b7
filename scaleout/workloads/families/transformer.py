"""Decoders: the sizes of the model, what tensor parallelism cuts, and the tokens that a rank handles."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from scaleout.config.units import Count, CountOrZero
from scaleout.config.validated import Config
from scaleout.workloads.config.layered import EMBEDDING, HEAD, Degrees, LayeredModel
from scaleout.workloads.config.style import Style, kept_fp8_bytes
from scaleout.workloads.generate import transformer as blocks
from scaleout.workloads.generate.autograd_tape import AutogradTape
from scaleout.workloads.generate.units import Rank

WINDOWED = "_windowed"
"""What the kind of a layer that attends to a window ends in."""

_PLAIN_HEADS = ("window", "attention_sinks", "query_key_norm", "attention_biases")
"""Keys that latent attention does not take."""


class Latent(Config):
    """Multi-head latent attention: queries, keys and values through projections of low rank.

    Source: DeepSeek-V2, arXiv:2405.04434, 2.1.
    """

    query_rank: Count | None = Field(default=None, description="queries are projected at once if unset")
    key_value_rank: Count = Field(description="width from which keys and values are made")
    plain_dim: Count = Field(description="width of a head's query and key without positions")
    rotary_dim: Count = Field(description="width of a head's query and key with positions; keys share it")
    value_dim: Count = Field(description="width of a head's value")
    put_together: bool = Field(
        default=False,
        description="heads are copied together from their parts, as Megatron-LM does without fused rotary",
    )

    @property
    def key_dim(self) -> int:
        """Width of a head's query and key."""
        return self.plain_dim + self.rotary_dim

    @property
    def low_rank(self) -> int:
        """Width of what the heads' queries, keys and values are made from, and that is normalised."""
        return (self.query_rank or 0) + self.key_value_rank


class Transformer(LayeredModel):
    """Dense decoder or encoder; tensor parallelism as Megatron-LM, arXiv:1909.08053, sequences as arXiv:2205.05198."""

    RENAMED: ClassVar[Mapping[str, str]] = {**LayeredModel.RENAMED, "products": "linear_dtype"}

    heads: Count = Field(description="heads of attention")
    kv_heads: Count | None = Field(default=None, description="heads of keys and values; as many as heads if unset")
    head_size: Count | None = Field(default=None, description="width of a head; hidden / heads if unset")
    latent: Latent | None = Field(
        default=None,
        description="multi-head latent attention instead of plain heads; in decode in its absorbed form, on the latent "
        "cache that all heads share",
    )
    causal: bool = Field(
        default=True, description="a token attends to those before it only; false: to all, as in an encoder"
    )
    window: Count | None = Field(
        default=None, description="keys that a token attends to at most, itself among them; all before it if unset"
    )
    full_attention_every: Count | None = Field(
        default=None, description="window: each so many-th layer attends to all keys; none does if unset"
    )
    attention_sinks: bool = Field(default=False, description="each head's softmax has one more score, which is learnt")
    query_key_norm: bool = Field(default=False, description="queries and keys of each head are normalised")
    ffn: Count = Field(description="width of the feed-forward network")
    activation: Literal["gelu", "swiglu", "geglu"] = Field(
        default="gelu", description="swiglu and geglu: SiLU or GELU of one matrix's outputs times another's"
    )
    norm: Literal["layer_norm", "rms_norm", "rms_norm_unfused"] = Field(
        default="layer_norm", description="rms_norm_unfused: in single operations, in fp32"
    )
    post_norms: bool = Field(default=False, description="what each half of a layer makes is normalised, too")
    halves: Literal["one_after_the_other", "parallel", "parallel_of_one_norm"] = Field(
        default="one_after_the_other",
        description="parallel: attention and feed-forward network both read a layer's input, each through a norm of "
        "its own or through one for both, and their sum is added to it",
    )
    biases: bool = Field(default=False, description="linear layers add a bias, whose gradient is a sum over tokens")
    attention_biases: Literal["none", "qkv", "all"] | None = Field(
        default=None, description="which projections of attention add a bias; all where `biases` is set, if unset"
    )
    head_bias: bool = Field(default=False, description="the output projection adds a bias")
    positions: CountOrZero = Field(default=0, description="positions with a learnt vector, which tokens add")
    rotary: bool | Literal["fused"] = Field(
        default=False, description="queries and keys are rotated by their positions; fused: by one kernel if eager, too"
    )
    rotary_fp32: bool = Field(
        default=False, description="rotary: in fp32, between casts, a kernel for each product and sum, unless compiled"
    )
    repeat_heads: bool = Field(
        default=False,
        description="keys and values are copied for all query heads before attention, which then has no groups; not in "
        "decode",
    )
    attention: Literal["flash", "flash2", "triton", "unfused"] = Field(
        default="flash",
        description="flash: one kernel, no scores kept, the fastest of the device (cuDNN or FlashAttention 3 on "
        "Hopper); flash2, triton: the same by FlashAttention 2, or 1 in Triton; unfused: scores, softmax, values one "
        "by one, the softmax as Megatron's fused one where heads times sequences are a multiple of 4, else in fp32",
    )
    unaligned_heads: Literal["matrix_units", "vector_units"] = Field(
        default="matrix_units",
        description="attention unfused: units for products of heads whose width is no multiple of 16 bytes; "
        "vector_units: as fast as in fp32, as cuBLAS had them before CUDA 11.7",
    )
    linear_dtype: Literal["same", "fp8_delayed", "fp8_tensorwise", "fp8_rowwise", "fp8_blockwise"] = Field(
        default="same",
        description="GEMMs with weights, the head's left out: in the data type, or in fp8, with scales of earlier "
        "steps, of tensors, of rows or of 128 elements of a row; in inference their weights are held in fp8, too",
    )
    kept_dtype: Literal["fp8_e4m3"] | None = Field(
        default=None,
        description="fp8 GEMMs: in which inputs of GEMMs with weights and of activations are kept for backward; the "
        "model's if unset",
    )
    recompute_modules: tuple[Literal["norm", "activation"], ...] = Field(
        default=(),
        description="modules of layers whose outputs are not kept but made again in backward, beside what recompute "
        "says: the norm before a block, the activation of feed-forwards and experts",
    )
    separate_projections: bool = Field(
        default=False,
        description="queries, keys and values, and both halves of SwiGLU, are GEMMs of their own, whose inputs' "
        "gradients are added up",
    )
    packed_projections: bool = Field(
        default=False,
        description="eager views of one projection's output: heads are copied batch first, keys and values side by "
        "side to be rotated, gradients of the parts back into one, those of SwiGLU's halves too; SiLU is kept",
    )
    compiled: bool = Field(default=False, description="element-wise kernels that follow each other are one")
    dropout: bool = Field(default=False, description="after attention's scores and each half of a layer, in training")
    vocabulary: CountOrZero = Field(default=0, description="tokens known; 0 leaves out embedding, head and loss")
    layers_only: bool = Field(
        default=False,
        description="nothing around the layers, as benchmarks run them: no copy of the input, no last norm",
    )
    predicted_ahead: CountOrZero = Field(
        default=0,
        le=16,
        description="modules behind the last layer that predict a token further ahead each, in training: a projection, "
        "a layer, and the head once more (multi-token prediction); MFU leaves them out",
    )
    tied_embedding: bool = Field(default=False, description="embedding and output projection share their parameters")
    loss: Literal["unfused", "fp32", "fused", "in_place", "vocabulary_parallel"] = Field(
        default="unfused",
        description="cross entropy as the framework's several kernels, as these of logits cast to fp32, as one that "
        "reads once, as one that leaves the gradient in the logits' place, or as Megatron-LM's: logits to fp32, then "
        "maximum, difference, exponential, sum and quotient one by one",
    )
    logged_losses: CountOrZero = Field(
        default=0, le=1000, description="times that the loss is computed once more, in fp32, for a log"
    )
    overlap_exchanges: bool = Field(
        default=False,
        description="sequence_parallel: backward gathers a GEMM's input again (keep_gathered false) beside the GEMM of "
        "its gradient, and reduce-scatters that beside the GEMM of the weights' gradient; of plain layers whose "
        "projections are one GEMM",
    )
    keep_gathered: bool = Field(
        default=True, description="sequence_parallel: keep gathered inputs for backward; false: gather them again"
    )

    @model_validator(mode="after")
    def _divides(self) -> "Transformer":
        if self.hidden % self.heads and self.head_size is None and self.latent is None:
            raise ValueError(
                f"hidden {self.hidden} does not divide by heads {self.heads}; a head's width is their quotient, "
                "unless head_size gives another"
            )
        if self.heads % self.key_value_heads:
            raise ValueError(
                f"heads {self.heads} does not divide by kv_heads {self.key_value_heads}; groups share a head"
            )
        if self.layers_only and self.vocabulary:
            raise ValueError(f"layers_only has no head for a vocabulary of {self.vocabulary}; leave one of them out")
        return self

    def _keeps(self) -> None:
        """Check what is kept for backward."""
        if self.kept_dtype and self.linear_dtype == "same":
            raise ValueError(f"kept_dtype {self.kept_dtype} is what fp8 GEMMs read; give linear_dtype, or leave it out")
        if self.recompute_modules and self.recompute in ("operations", "full"):
            raise ValueError(
                f"recompute {self.recompute} keeps no outputs of modules; leave recompute_modules out, or choose "
                "recompute none"
            )
        if "norm" in self.recompute_modules and self.tensor_parallel > 1 and self.keep_gathered:
            raise ValueError(
                "recompute_modules norm keeps no input of a block, and keep_gathered keeps it gathered; set "
                "keep_gathered to false"
            )

    @model_validator(mode="after")
    def _sees_all(self) -> "Transformer":
        """Refuse what is written for tokens that attend to those before them, where they attend to all."""
        if not self.causal and self.mode == "decode":
            raise ValueError("mode decode makes one token from those before it; with causal false, choose prefill")
        for key in () if self.causal else ("window", "latent", "predicted_ahead"):
            if getattr(self, key):
                raise ValueError(f"{key} is of decoders, where causal is true; leave one of them out")
        return self

    @model_validator(mode="after")
    def _attends(self) -> "Transformer":
        if self.full_attention_every is not None and self.window is None:
            raise ValueError("full_attention_every is of layers between those with a window; give window, too")
        if self.window is not None and self.attention in ("flash2", "triton"):
            raise ValueError(
                f"attention {self.attention} is written for all keys before a token; with window, choose flash"
            )
        if self.unaligned_heads != "matrix_units" and self.attention != "unfused":
            raise ValueError(
                f"unaligned_heads {self.unaligned_heads} is of products that attention {self.attention} has not; set "
                "attention to unfused, or leave it out"
            )
        if self.recompute == "up_projections" and self.latent is None:
            raise ValueError("recompute up_projections is of latent attention; give latent, or recompute full")
        self._keeps()
        if self.positions and self.sequence > self.positions:
            raise ValueError(
                f"sequence {self.sequence} has more tokens than there are positions ({self.positions}); give fewer"
            )
        plain = [key for key in _PLAIN_HEADS if getattr(self, key) not in (None, False)]
        if self.latent is not None and plain:
            raise ValueError(f"{plain[0]} is of plain heads, and latent attention has none; leave one of them out")
        if self.repeat_heads and self.context_parallel > 1:
            raise ValueError(
                f"repeat_heads copies heads of whole sequences, which context_parallel {self.context_parallel} cuts; "
                "leave one of them out"
            )
        if self.post_norms and self.halves != "one_after_the_other":
            raise ValueError(
                f"post_norms normalises each half of a layer, which halves {self.halves} adds up; leave one of them out"
            )
        return self

    @property
    def logits(self) -> int:
        """Numbers that the head of a rank makes of a micro-batch for the loss."""
        return self.local_tokens * (self.vocabulary // self.tensor_parallel)

    @property
    def gathers_beside(self) -> bool:
        """Whether GEMMs write the exchanges of their own backward."""
        one_gemm = self.latent is None and self.halves == "one_after_the_other" and not self.separate_projections
        gathers = self.overlap_exchanges and self.sequence_parallel and self.tensor_parallel > 1
        return gathers and one_gemm and not self.keep_gathered

    def refusal(self, cut: Degrees) -> str | None:
        """Say why the model cannot be cut by some degrees, or None if it can."""
        if self.windowed and cut.context_parallel > 1:
            return super().refusal(cut) or (
                f"context_parallel {cut.context_parallel} balances attention to all keys before a token, and window "
                f"{self.window} leaves out most; set context_parallel to 1"
            )
        if not self.causal and cut.context_parallel > 1:
            return super().refusal(cut) or (
                f"context_parallel {cut.context_parallel} balances causal attention, and causal is false; set "
                "context_parallel to 1"
            )
        axes = cut.tensor_parallel * cut.context_parallel
        if self.context_exchange == "ulysses" and cut.context_parallel > 1 and self.key_value_heads % axes:
            return super().refusal(cut) or (
                f"context_exchange ulysses exchanges tokens for heads, and kv_heads {self.key_value_heads} do not "
                f"divide over tensor_parallel x context_parallel {axes} ranks; choose a divisor, or ring or all_gather"
            )
        return super().refusal(cut)

    def write_embedding(self, tape: AutogradTape, x: int, rank: Rank[Any]) -> int:
        """Look tokens up."""
        return blocks.embedding(tape, x, rank)

    def write_layer(self, tape: AutogradTape, x: int, rank: Rank[Any], number: int) -> int:
        """Write attention, then the feed-forward network."""
        return blocks.layer(tape, x, rank, number)

    def write_feed_forward(self, tape: AutogradTape, x: int, rank: Rank[Any], number: int, label: str) -> int:
        """Write the feed-forward network of a layer, on its normalised input."""
        return blocks.feed_forward(tape, x, rank, label)

    def feed_forward_reads_shards(self, number: int) -> bool:
        """Whether the feed-forward block of a layer reads and makes a rank's own tokens under sequence parallelism."""
        return False

    def write_head(self, tape: AutogradTape, x: int, rank: Rank[Any]) -> int:
        """Write the last norm, the output projection, and the loss or the logits."""
        return blocks.head(tape, x, rank)

    @property
    def style(self) -> Style:
        """How layers become kernels."""
        # Megatron-Core's TransformerEngine, which adds up gradients itself, casts weights in a step's first micro-batch
        # only (arguments is_first_microbatch of its modules), which is left out.
        once = self.linear_dtype in ("fp8_delayed", "fp8_blockwise") and self.fused_accumulation
        # Servers load weights as GEMMs read them; shards of ZeRO-3 are gathered as a trainer has them.
        served = self.linear_dtype != "same" and self.mode != "training" and self.zero < 3
        return Style(
            self.linear_dtype,
            self.compiled,
            self.separate_projections,
            packed=self.packed_projections and not self.compiled,
            casts_weights=self.gather_dtype is None and not once and not served,
            holds_fp8=served,
            kept_item_bytes=kept_fp8_bytes(self.linear_dtype) if self.kept_dtype else None,
            recomputed=self.recompute_modules,
        )

    @property
    def sizes(self) -> Mapping[str, int]:
        """Keys that the tensor axis cuts, and their sizes."""
        return {
            "heads": self.heads,
            "kv_heads": self.key_value_heads,
            "ffn": self.ffn,
            "vocabulary": self.vocabulary,
        }

    @property
    def recomputes(self) -> tuple[str, ...]:
        """What is worth recomputing; a flash kernel has no scores to leave out."""
        unfused = self.attention == "unfused" and self.context_parallel == 1
        return ("none", "selective", "full") if unfused else ("none", "full")

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Keys that are given and change nothing; parts of a sequence over ranks are attended to by flash kernels."""
        unfused = self.attention == "unfused" and self.context_parallel > 1
        return (*super().without_effect, *("attention",) * unfused)

    @property
    def tied_parameters(self) -> int:
        """Parameters of a rank's part of the table that embedding and head share; 0 if they share none."""
        return self.vocabulary // self.tensor_parallel * self.hidden if self.tied_embedding else 0

    @property
    def key_value_elements(self) -> int:
        """Elements of the keys and values of a rank's tokens and heads."""
        return 2 * self.local_tokens * (self.key_value_heads // self.tensor_parallel) * self.head_dim

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of the largest buffer that a layer exchanges along the tensor, context or expert axis."""
        if self.context_parallel == 1:
            return super().exchanged_bytes
        # Round a ring one set of keys and values comes in and one is used; backward, their gradients go with them.
        round_ring = 4 if self.mode == "training" else 2
        sets = round_ring if self.context_exchange == "ring" else self.context_parallel
        return max(super().exchanged_bytes, sets * self.key_value_elements * self.item_bytes)

    def cache_bytes(self, kind: str) -> int:
        """Bytes of a sequence's keys and values in a layer; latent attention caches what they are made from."""
        tokens = min(self.sequence + 1 if self.mode == "decode" else self.local_sequence, self.window_of(kind))
        width = 2 * self.key_value_heads * self.head_dim // self.tensor_parallel
        if self.latent is not None:
            width = self.latent.key_value_rank + self.latent.rotary_dim
        return tokens * width * self.item_bytes

    def lighter(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield names of changes that make layers hold less, and the keys that each sets, the cheapest first."""
        yield from super().lighter()
        if self.sequence_parallel and self.keep_gathered:
            yield "keep_gathered", {"keep_gathered": False}
        if self.attention == "unfused" and not self.dropout:
            yield "attention", {"attention": "flash"}

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.head_size or self.hidden // self.heads

    @property
    def score_dim(self) -> int:
        """Width of a head as attention's FLOPs see it: the mean of its key's and its value's."""
        if self.latent is None:
            return self.head_dim
        return (self.latent.plain_dim + self.latent.rotary_dim + self.latent.value_dim) // 2

    @property
    def gates(self) -> int:
        """Matrices that read the feed-forward network's input: SwiGLU and GeGLU have a gate beside the value."""
        return 1 if self.activation == "gelu" else 2

    @property
    def windowed(self) -> bool:
        """Whether some layers attend to fewer keys than there are."""
        return self.window is not None and self.window < self.sequence and self.full_attention_every != 1

    def window_of(self, kind: str) -> int:
        """Keys that a token attends to at most in a layer of a kind."""
        everything = self.sequence + 1
        return min(self.window or everything, everything) if kind.endswith(WINDOWED) else everything

    @property
    def biased(self) -> str:
        """Which projections of attention add a bias: none, qkv or all."""
        return self.attention_biases or ("all" if self.biases else "none")

    @property
    def num_norms(self) -> int:
        """Normalisations of the hidden state in a layer."""
        return (1 if self.halves == "parallel_of_one_norm" else 2) + 2 * self.post_norms

    @property
    def norm_width(self) -> int:
        """Parameters of one normalisation of the hidden state."""
        return self.hidden * (2 if self.norm == "layer_norm" else 1)

    @property
    def attention_parameters(self) -> int:
        """Parameters of a layer's attention, biases and sinks left out."""
        if self.latent is None:
            scales = 2 * self.norm_width // self.hidden * self.head_dim if self.query_key_norm else 0
            return self.hidden * self.head_dim * 2 * (self.heads + self.key_value_heads) + scales
        latent = self.latent
        return (
            self.hidden * (latent.low_rank + latent.rotary_dim)
            + (latent.query_rank or self.hidden) * self.heads * latent.key_dim
            + latent.key_value_rank * self.heads * (latent.plain_dim + latent.value_dim)
            + self.heads * latent.value_dim * self.hidden
            + latent.low_rank
        )

    @property
    def attention_addends(self) -> int:
        """Parameters of a layer's attention that multiply nothing: biases and sinks."""
        projected = 0 if self.latent else self.head_dim * (self.heads + 2 * self.key_value_heads)
        return (
            (projected if self.biased != "none" else 0)
            + (self.hidden if self.biased == "all" else 0)
            + (self.heads if self.attention_sinks else 0)
        )

    def layer_kind(self, layer: int) -> str:
        """Name what a layer is; layers of one kind are alike."""
        every = self.full_attention_every
        full = not self.windowed or (every is not None and (layer + 1) % every == 0)
        return self.feed_forward_kind(layer) + ("" if full else WINDOWED)

    def feed_forward_kind(self, layer: int) -> str:
        """Name what a layer's feed-forward network is."""
        return "dense"

    def parameters_of(self, part: str) -> int:
        """Parameters of a part."""
        if part == EMBEDDING:
            return (self.vocabulary + self.positions) * self.hidden
        if part == HEAD:
            shared = self.vocabulary * self.hidden if self.tied_embedding else 0
            modules = self.predicted_ahead * self.predicting_parameters
            return self.active_parameters_of(part) - shared + self.vocabulary * self.head_bias + modules
        matrices = self.attention_parameters + self.feed_forward_parameters(part)
        return matrices + self.num_norms * self.norm_width + self.addends_of(part)

    @property
    def predicting_parameters(self) -> int:
        """Parameters of a module that predicts a token further ahead: a projection, three norms and a layer."""
        layer = self.parameters_of(self.layer_kind(self.layers - 1))
        return 2 * self.hidden**2 + 3 * self.norm_width + layer

    def feed_forward_parameters(self, kind: str) -> int:
        """Parameters of the feed-forward network of a layer of a kind, biases left out."""
        return (self.gates + 1) * self.hidden * self.ffn

    def feed_forward_addends(self, kind: str) -> int:
        """Biases of the feed-forward network of a layer of a kind."""
        return self.gates * self.ffn + self.hidden if self.biases else 0

    def addends_of(self, part: str) -> int:
        """Parameters of a layer of a kind that multiply nothing: biases and sinks."""
        return self.attention_addends + self.feed_forward_addends(part)

    def active_parameters_of(self, part: str) -> int:
        """Parameters of a part that multiply a token: the head's are, whether the embedding shares them or not."""
        if part == HEAD:
            return 0 if self.layers_only else self.norm_width + self.vocabulary * self.hidden
        return super().active_parameters_of(part) - (0 if part == EMBEDDING else self.addends_of(part))

    def mixing_flops(self, kind: str) -> int:
        """For each key and channel two GEMMs of attention, in full, as if no mask saved half of them."""
        return 4 * self.heads * self.score_dim * min(self.sequence, self.window_of(kind))
