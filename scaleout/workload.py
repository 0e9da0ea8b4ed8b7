"""Workload files: a model, its parallelism and the options of a run, validated.

A workload is one of three kinds, told apart by the key `kind`. All sizes must divide exactly: what does not
divide is refused with a message that says which key, and no value is ever rounded.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from scaleout.config import Config, nearest, read_yaml, validate
from scaleout.errors import ConfigError
from scaleout.library import find, is_path
from scaleout.operations import ITEM_BYTES
from scaleout.parallelism import Mesh
from scaleout.units import Bytes

Dtype = Literal["fp32", "bf16", "fp16"]
Count = Annotated[int, Field(gt=0, strict=True)]


class Parallel(Config):
    """Keys that every workload has: what it is, what it runs on by default, and its degrees of parallelism."""

    name: str = ""
    description: str
    source: str
    topology: str
    device: str
    schedules: tuple[str, ...] = ()
    dtype: Dtype = "bf16"
    data_parallel: Count = 1
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    context_parallel: Count = 1
    expert_parallel: Count = 1
    gradient_bucket: Bytes = Field(
        default=25 * 2.0**20,
        description="gradients are all-reduced in buckets of at least this size, as PyTorch DDP's 25 MiB",
    )

    @field_validator("pipeline_parallel", "context_parallel")
    @classmethod
    def _only_one(cls, degree: int) -> int:
        if degree != 1:
            raise ValueError(f"degree {degree} is not supported yet; use 1")
        return degree

    @property
    def mesh(self) -> Mesh:
        """The mesh of axes over the job's ranks."""
        return Mesh(
            tensor=self.tensor_parallel,
            context=self.context_parallel,
            data=self.data_parallel,
            expert=self.expert_parallel,
            pipeline=self.pipeline_parallel,
        )

    @property
    def num_ranks(self) -> int:
        """Number of ranks that the job needs."""
        return self.mesh.num_ranks

    @property
    def item_bytes(self) -> int:
        """Bytes of one element of the model's data type."""
        return ITEM_BYTES[self.dtype]


class Dlrm(Parallel):
    """Deep learning recommendation model: tables model-parallel, MLPs data-parallel over the same ranks.

    Source: Naumov et al., arXiv:1906.00091; distributed as Mudigere et al., ISCA 2022.
    """

    kind: Literal["dlrm"]
    dtype: Dtype = "fp32"
    global_batch: Count = Field(description="samples in a step, over all ranks")
    tables_per_rank: Count = Field(description="embedding tables that a rank holds, whole")
    rows_per_table: Count
    embedding_dim: Count
    pooling: Count = Field(description="rows that a sample looks up in a table, summed")
    dense_features: Count
    mlp_width: Count
    bottom_layers: Count
    top_layers: Count
    interaction: Literal["dot", "cat", "sum"] = Field(
        description="dot: all pairwise products; cat: vectors side by side; sum: vectors added up"
    )
    mode: Literal["training", "forward"] = "training"
    optimizer: Literal["sgd", "none"] = "sgd"

    @model_validator(mode="after")
    def _divides(self) -> "Dlrm":
        for key in ("tensor_parallel", "expert_parallel"):
            if getattr(self, key) != 1:
                raise ValueError(f"{key} {getattr(self, key)} means nothing for a dlrm; set data_parallel alone")
        if self.global_batch % self.data_parallel:
            raise ValueError(
                f"global_batch {self.global_batch} does not divide over data_parallel {self.data_parallel} ranks; "
                f"use a multiple of {self.data_parallel}"
            )
        return self

    @property
    def num_vectors(self) -> int:
        """Vectors that interact: one a table of the job, and the bottom MLP's output."""
        return self.tables_per_rank * self.data_parallel + 1

    @property
    def num_parameters(self) -> int:
        """Parameters of the job: all tables, and the weights of both MLPs (biases left out)."""
        tables = self.tables_per_rank * self.data_parallel * self.rows_per_table * self.embedding_dim
        return tables + sum(inputs * outputs for mlp in self.layer_widths() for inputs, outputs in mlp)

    @property
    def interaction_width(self) -> int:
        """Features that the interaction gives to the top MLP."""
        return {
            "dot": self.num_vectors * (self.num_vectors - 1) // 2 + self.embedding_dim,
            "cat": self.num_vectors * self.embedding_dim,
            "sum": self.embedding_dim,
        }[self.interaction]

    def layer_widths(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return (inputs, outputs) of each layer of the bottom and the top MLP."""
        bottom = [self.dense_features] + [self.mlp_width] * (self.bottom_layers - 1) + [self.embedding_dim]
        top = [self.interaction_width] + [self.mlp_width] * (self.top_layers - 1) + [1]
        return list(pairwise(bottom)), list(pairwise(top))


class Transformer(Parallel):
    """Dense decoder; tensor parallelism as Megatron-LM, arXiv:1909.08053, sequence parallelism as arXiv:2205.05198."""

    kind: Literal["transformer"]
    hidden: Count
    layers: Count
    heads: Count
    kv_heads: Count | None = Field(default=None, description="heads of keys and values; as many as heads if unset")
    ffn: Count = Field(description="width of the feed-forward network")
    activation: Literal["gelu", "swiglu"] = "gelu"
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    rotary: bool = False
    vocabulary: int = Field(
        default=0, ge=0, strict=True, description="tokens known; 0 leaves out embedding, head and loss"
    )
    tied_embedding: bool = False
    sequence: Count = Field(description="tokens of a sequence; in decode, tokens already in the cache")
    batch_per_replica: Count = Field(description="sequences that a data-parallel replica handles in a step")
    mode: Literal["training", "prefill", "decode"] = "training"
    sequence_parallel: bool = False
    optimizer: Literal["adamw", "none"] = "adamw"

    @model_validator(mode="after")
    def _divides(self) -> "Transformer":
        if self.hidden % self.heads:
            raise ValueError(
                f"hidden {self.hidden} does not divide by heads {self.heads}; a head's width is their quotient"
            )
        if self.heads % self.key_value_heads:
            raise ValueError(
                f"heads {self.heads} does not divide by kv_heads {self.key_value_heads}; groups share a head"
            )
        for key, size in (
            ("heads", self.heads),
            ("kv_heads", self.key_value_heads),
            ("ffn", self.ffn),
            ("vocabulary", self.vocabulary),
        ):
            if size % self.tensor_parallel:
                raise ValueError(
                    f"{key} {size} does not divide over tensor_parallel {self.tensor_parallel} ranks; "
                    f"choose a divisor of {size}"
                )
        if self.sequence_parallel and self.tokens % self.tensor_parallel:
            raise ValueError(
                f"sequence_parallel: {self.tokens} tokens do not divide over tensor_parallel "
                f"{self.tensor_parallel}; choose sizes that do, or set sequence_parallel to false"
            )
        if type(self) is Transformer and self.expert_parallel != 1:
            raise ValueError(f"expert_parallel {self.expert_parallel} needs experts; a dense transformer has none")
        return self

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    @property
    def gates(self) -> int:
        """Matrices that read the feed-forward network's input: SwiGLU has a gate beside the value."""
        return 2 if self.activation == "swiglu" else 1

    @property
    def norm_parameters(self) -> int:
        """Parameters of all normalisations: two a layer and the last one."""
        return (2 * self.layers + 1) * self.hidden * (2 if self.norm == "layer_norm" else 1)

    @property
    def feed_forward_parameters(self) -> int:
        """Parameters of a layer's feed-forward network."""
        return (self.gates + 1) * self.hidden * self.ffn

    @property
    def num_parameters(self) -> int:
        """Parameters of the model, biases and learnt positions left out."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.key_value_heads)
        vocabularies = 1 if self.tied_embedding else 2
        return (
            self.layers * (attention + self.feed_forward_parameters)
            + self.norm_parameters
            + vocabularies * self.vocabulary * self.hidden
        )

    @property
    def tokens(self) -> int:
        """Tokens that a replica handles in a step."""
        return self.batch_per_replica * (1 if self.mode == "decode" else self.sequence)


class Moe(Transformer):
    """Decoder whose feed-forward network is a mixture of experts with balanced top-k routing.

    Source: GShard, arXiv:2006.16668; Mixtral, arXiv:2401.04088.
    """

    kind: Literal["moe"]  # type: ignore[assignment]
    experts: Count
    top_k: Count

    @model_validator(mode="after")
    def _experts_spread(self) -> "Moe":
        if self.data_parallel % self.expert_parallel:
            raise ValueError(
                f"expert_parallel {self.expert_parallel} does not divide data_parallel {self.data_parallel}; "
                f"experts are spread over data-parallel ranks, so choose a divisor of {self.data_parallel}"
            )
        if self.experts % self.expert_parallel:
            raise ValueError(
                f"experts {self.experts} do not spread over expert_parallel {self.expert_parallel} ranks; "
                f"choose a divisor of {self.experts}"
            )
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is more than the {self.experts} experts there are")
        routed = self.tokens * self.top_k * self.expert_parallel
        if routed % self.experts:
            raise ValueError(
                f"{self.tokens} tokens x top_k {self.top_k} x expert_parallel {self.expert_parallel} do not spread "
                f"evenly over {self.experts} experts; choose batch_per_replica and sequence so that they do"
            )
        return self

    @property
    def feed_forward_parameters(self) -> int:
        """Parameters of a layer's experts and of its router."""
        return self.experts * super().feed_forward_parameters + self.hidden * self.experts

    @property
    def local_experts(self) -> int:
        """Experts that a rank holds."""
        return self.experts // self.expert_parallel

    @property
    def tokens_per_expert(self) -> int:
        """Rows that each expert of a rank handles, routing being balanced."""
        return self.tokens * self.top_k * self.expert_parallel // self.experts


Workload = Dlrm | Moe | Transformer
KINDS: dict[str, type[Dlrm] | type[Transformer] | type[Moe]] = {
    "dlrm": Dlrm,
    "transformer": Transformer,
    "moe": Moe,
}
"""Kinds of workload and what validates them."""


def load_workload(name_or_file: str, changes: Mapping[str, Any] | None = None) -> Workload:
    """Read a workload by name or file, with some of its keys changed.

    Parameters
    ----------
    name_or_file : str
        A name that `scaleout list workloads` prints, or a path.
    changes : mapping, optional
        Keys of the file and the values to put in their place.

    Raises
    ------
    ConfigError
        If there is no such workload, a key is unknown, or sizes do not divide.
    """
    path = find("workload", name_or_file)
    values = {"name": path.stem} | read_yaml(path)
    values |= {key: _beside(path, values[key]) for key in ("topology", "device") if key in values}
    values |= dict(changes or {})
    kind = values.get("kind")
    if kind is None:
        raise ConfigError(f"{path}: key 'kind' is missing; add one of {', '.join(KINDS)}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"{path}: kind {kind!r} is no kind of workload; {nearest(str(kind), KINDS)}")
    return validate(KINDS[kind], values, where=f"workload {name_or_file}")


def _beside(path: Path, name: Any) -> Any:
    """Read a relative path in a workload file as relative to that file; a name stays a name."""
    is_relative = isinstance(name, str) and is_path(name) and not Path(name).is_absolute()
    return str(path.parent / name) if is_relative else name
