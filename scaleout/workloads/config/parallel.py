"""Keys that every workload has: what it is, what it runs on by default, and its degrees of parallelism."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scaleout.config.units import Bytes
from scaleout.config.validated import Config
from scaleout.program.mesh import RANK_ORDER, Mesh
from scaleout.program.operations import ITEM_BYTES

Dtype = Literal["fp32", "bf16", "fp16"]
Count = Annotated[int, Field(gt=0, strict=True)]


class Parallel(Config):
    """Keys that every workload has: what it is, what it runs on by default, and its degrees of parallelism."""

    name: str = ""
    description: str
    source: str
    topology: str = Field(description="a name or file; {ranks} in it stands for the number of ranks")
    device: str
    schedules: tuple[str, ...] = ()
    dtype: Dtype = "bf16"
    data_parallel: Count = 1
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    context_parallel: Count = 1
    expert_parallel: Count = 1
    rank_order: tuple[str, ...] = Field(
        default=RANK_ORDER, description="axes from innermost (neighbouring ranks) to outermost; experts lie within data"
    )
    gradient_bucket: Bytes = Field(
        default=25 * 2.0**20,
        description="gradients are reduced in buckets of at least this size, as PyTorch DDP's 25 MiB; those of zero 3 "
        "layer by layer",
    )

    @model_validator(mode="after")
    def _orders_all_axes(self) -> "Parallel":
        if sorted(self.rank_order) != sorted(RANK_ORDER):
            raise ValueError(
                f"rank_order {', '.join(self.rank_order)} does not name each axis once; order {', '.join(RANK_ORDER)}"
            )
        return self

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
        )

    @property
    def num_ranks(self) -> int:
        """Number of ranks that the job needs."""
        return self.tensor_parallel * self.context_parallel * self.data_parallel * self.pipeline_parallel

    @property
    def item_bytes(self) -> int:
        """Bytes of one element of the model's data type."""
        return ITEM_BYTES[self.dtype]
