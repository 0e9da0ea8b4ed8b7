"""What every family of models answers, and the keys that all share: devices, topology, degrees of parallelism.

A family is one class: its keys are the keys of its workload files, and its methods are what the rest of scaleout asks.
A model of layers, which pipelines cut, is a `layered.LayeredModel`; one whose step is written whole a `WholeModel`.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from scaleout.config.documents import MAX_RANKS
from scaleout.config.units import Bytes, RankCount
from scaleout.config.validated import Config
from scaleout.errors import shown
from scaleout.program.mesh import RANK_ORDER, Mesh
from scaleout.program.operations import ITEM_BYTES
from scaleout.program.program import Program

Dtype = Literal["fp32", "tf32", "bf16", "fp16"]
DTYPE = (
    "data type of parameters and activations; tf32 is fp32 whose GEMMs and convolutions run in TF32, as in PyTorch "
    "with torch.set_float32_matmul_precision('high')"
)
_LONG_NAMES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float": "fp32", "float32": "fp32"}
"""PyTorch's names of data types to ours."""


class ModelFamily(Config):
    """A family of models, distributed over ranks: one class, whose objects are workloads.

    `REFUSES` maps a key that the family does not support, and that keeps its default, to the reason and a remedy.
    """

    DESCRIBED: ClassVar[str] = "workload"
    REFUSES: ClassVar[Mapping[str, str]] = {}

    kind: str = Field(
        description="the family: transformer, moe, state_space, diffusion_transformer, dlrm or convolutional"
    )
    name: str = Field(default="", description="the file's name if unset")
    description: str = Field(default="", description="what it is, in a line; every shipped workload says it")
    source: str = Field(default="", description="where its numbers are from; every shipped workload says it")
    left_out: str = Field(
        default="",
        description="parts of the model that the workload does not have, such as a vision tower; each answer says so",
    )
    topology: str = Field(
        default="",
        description="a name or file; {ranks} in it stands for the number of ranks; --topology names it if unset",
    )
    device: str = Field(
        default="", description="name or file of the device that it runs on; --device names it if unset"
    )
    schedules: tuple[str, ...] = Field(
        default=(), description="schedules that `run` compares; baseline, overlap and fused if unset"
    )
    dtype: Dtype = Field(default="bf16", description=DTYPE)
    data_parallel: RankCount = Field(default=1, description="ranks that hold the same parameters and share a batch")
    tensor_parallel: RankCount = Field(default=1, description="ranks that share each layer's matrices")
    pipeline_parallel: RankCount = Field(default=1, description="ranks that share the layers, in stages")
    context_parallel: RankCount = Field(default=1, description="ranks that share each sequence")
    expert_parallel: RankCount = Field(
        default=1, description="ranks, of the data-parallel ones, that share the experts"
    )
    rank_order: tuple[str, ...] = Field(
        default=RANK_ORDER, description="axes from innermost (neighbouring ranks) to outermost; experts lie within data"
    )
    gradient_bucket: Bytes = Field(
        default=25 * 2.0**20,
        description="gradients are reduced in buckets of at least this size, as PyTorch DDP's 25 MiB; those of zero 3 "
        "layer by layer",
    )

    _of_training: dict[str, Any] = PrivateAttr(default_factory=dict)

    @field_validator("dtype", mode="before")
    @classmethod
    def _of_all_but_gemms(cls, dtype: Any) -> Any:
        if isinstance(dtype, str) and dtype.startswith(("fp8", "fp4", "int")) and "linear_dtype" in cls.model_fields:
            known = "fp32, tf32, bf16 or fp16"
            raise ValueError(f"must be {known}, not {shown(dtype)}; fp8 is of GEMMs alone: linear_dtype")
        if isinstance(dtype, str) and dtype in _LONG_NAMES:
            raise ValueError(f"must be {_LONG_NAMES[dtype]!r}, not {shown(dtype)}")
        return dtype

    @model_validator(mode="after")
    def _fits_machines(self) -> "ModelFamily":
        if self.num_ranks > MAX_RANKS:
            raise ValueError(f"the degrees of parallelism come to {self.num_ranks:,} ranks; give {MAX_RANKS:,} at most")
        return self

    @model_validator(mode="after")
    def _supports(self) -> "ModelFamily":
        for key, reason in self.REFUSES.items():
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} {getattr(self, key)} {reason}")
        return self

    @model_validator(mode="after")
    def _orders_all_axes(self) -> "ModelFamily":
        if sorted(self.rank_order) != sorted(RANK_ORDER):
            raise ValueError(
                f"rank_order {', '.join(self.rank_order) or '[]'} does not name each axis once; "
                f"order {', '.join(RANK_ORDER)}"
            )
        return self

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Keys that are given and change nothing."""
        return ()

    def served_without(self, of_training: Mapping[str, Any]) -> Self:
        """Return a copy that knows which keys of training its mode of serving has left out."""
        copy = self.model_copy()
        copy._of_training = dict(of_training)
        return copy

    @property
    def left_by_mode(self) -> Mapping[str, Any]:
        """Keys of the training workload below that a mode of serving has left out, and what they were."""
        return self._of_training

    @property
    def mesh(self) -> Mesh:
        """The mesh of axes over the job's ranks."""
        return Mesh(
            tensor=self.tensor_parallel,
            context=self.context_parallel,
            data=self.data_parallel,
            expert=self.expert_parallel,
            pipeline=self.pipeline_parallel,
            order=self.rank_order,
            expert_tensor=self.folded_experts,
        )

    @property
    def folded_experts(self) -> int | None:
        """Ranks that share an expert's matrices, if experts have a layout of their own."""
        return None

    @property
    def num_ranks(self) -> int:
        """Number of ranks that the job needs."""
        return self.tensor_parallel * self.context_parallel * self.data_parallel * self.pipeline_parallel

    @property
    def issued_whole(self) -> bool:
        """Whether the host issues a step as one, as a compiled program or CUDA graph, not call by call."""
        return False

    @property
    def item_bytes(self) -> int:
        """Bytes of one element of the model's data type."""
        return ITEM_BYTES[self.dtype]

    @property
    @abstractmethod
    def num_parameters(self) -> int:
        """Parameters of the model."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What else the family tells of a workload, for `scaleout show`: names as in JSON, with the unit at the end."""
        return {}

    @property
    def buffers(self) -> tuple[int, ...]:
        """Parameters of every buffer whose gradient is made at once, in forward order, where the family tells them."""
        return ()


@dataclass(frozen=True)
class Moment:
    """What a rank holds at a moment of a step; bytes by `scaleout.workloads.memory.KINDS`, of those that there are."""

    rank: int
    name: str  # in words
    bytes_of: Mapping[str, float]


class WholeModel(ModelFamily):
    """A family whose step is written as a whole: it has no layers that pipelines cut or ZeRO shards."""

    @abstractmethod
    def moments(self) -> Iterator[Moment]:
        """Tell what ranks that differ hold at the moments at which their memory can be highest."""

    @property
    @abstractmethod
    def samples(self) -> int:
        """Samples of a step, over all ranks."""

    @abstractmethod
    def program(self) -> Program:
        """Write the execution graphs of one step, not yet timed."""
