"""DLRM: one training or forward pass of a recommendation model.

Embedding tables are model-parallel: a rank pools its own tables for the whole batch, and an all-to-all gives each
rank all pooled vectors of its share of the batch. Of a table whose rows are cut every rank pools those look-ups that
meet its rows, for the whole batch, and a reduce-scatter adds the partial sums up; backward an all-gather brings their
gradients. Where a table lies says `sharding`; ranks whose tables differ run graphs of their own. The MLPs are
data-parallel over the same ranks. The loss, a few numbers a sample, and the exchange of indices, which loaders overlap
with the step before, are left out.

Source: Naumov et al., arXiv:1906.00091; Mudigere et al., ISCA 2022 (backward and sparse update in one kernel);
TorchRec (row-wise shards); DCN-V2, arXiv:2008.13535 (cross layers of low rank).
"""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator, model_validator

from scaleout.config.units import MOST_WRITTEN, Count, LayerCount, Positive, Size
from scaleout.program.program import Program
from scaleout.workloads.config.family import DTYPE, Dtype, Moment, WholeModel
from scaleout.workloads.families.sharding import Bags, EmbeddingTable, Kind, Plan, Step, plan_of
from scaleout.workloads.generate import dlrm as blocks

_UPDATES = {
    "sgd": "embedding_sgd_sparse",
    "adagrad": "embedding_adagrad_sparse",
    "none": "embedding_bag_bwd_sparse",
}
"""Optimizer to the kernel that takes the gradients of pooled vectors: it updates rows, or makes their gradients."""

_EITHER = (
    (("tables",), ("tables_per_rank", "rows_per_table", "pooling"), "tables that differ", "tables that are alike"),
    (("bottom_mlp", "top_mlp"), ("mlp_width", "bottom_layers", "top_layers"), "widths", "one width"),
)
"""Keys of which one set is given whole and the other not at all, and what each set is for."""


class Dlrm(WholeModel):
    """Deep learning recommendation model: tables model-parallel, MLPs data-parallel over the same ranks."""

    REFUSES: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"),
        "means nothing for a dlrm; set data_parallel alone",
    )

    dtype: Dtype = Field(default="fp32", description=DTYPE)
    global_batch: Count = Field(description="samples in a step, over all ranks")
    tables_per_rank: Count | None = Field(
        default=None, description="embedding tables that a rank holds, whole, where all are alike"
    )
    rows_per_table: Count | None = Field(default=None, description="rows of an embedding table, where all are alike")
    embedding_dim: Count = Field(description="elements of a row")
    pooling: Count | None = Field(
        default=None, description="rows that a sample looks up in a table, summed, where all are alike"
    )
    tables: tuple[EmbeddingTable, ...] = Field(
        default=(), max_length=MOST_WRITTEN, description="the job's embedding tables, where they differ"
    )
    sharding: Kind = Field(
        default="auto",
        description="how `tables` are cut over ranks: table_wise (whole), row_wise, column_wise, or auto: the "
        "costliest by rows, as many as make the busiest rank's cost least; shards go to the rank that has least",
    )
    column_width: Count | None = Field(default=None, description="columns of a shard of tables that are column_wise")
    exchange_cost: Positive = Field(
        default=10.0,
        description="bytes of memory traffic that an exchanged byte counts as where tables are placed; memory "
        "bandwidth over a rank's link: 7 on DGX H100, 11 on DGX H200",
    )
    table_memory: Size | None = Field(
        default=None, description="memory of a rank for tables and their optimizer's states; without limit if unset"
    )
    dense_features: Count = Field(description="dense inputs of a sample")
    biases: bool = Field(default=False, description="layers of MLPs add a bias, whose gradient is a sum over samples")
    mlp_width: Count | None = Field(default=None, description="width of the MLPs' layers, where all are alike")
    bottom_layers: LayerCount | None = Field(default=None, description="layers of the MLP that reads dense inputs")
    top_layers: LayerCount | None = Field(default=None, description="layers of the MLP behind the interaction")
    bottom_mlp: tuple[Count, ...] = Field(
        default=(), max_length=MOST_WRITTEN,
        description="outputs of each layer of the MLP that reads dense inputs; the last is embedding_dim",
    )  # fmt: skip
    top_mlp: tuple[Count, ...] = Field(
        default=(), max_length=MOST_WRITTEN, description="outputs of each layer of the MLP behind the interaction"
    )
    interaction: Literal["dot", "cat", "sum", "dcn"] = Field(
        description="dot: all pairwise products; cat: vectors side by side; sum: vectors added up; dcn: side by side, "
        "through cross layers of low rank"
    )
    cross_layers: LayerCount = Field(default=3, description="cross layers of dcn")
    cross_rank: Count = Field(default=512, description="rank of the weights of a cross layer")
    mode: Literal["training", "forward"] = Field(default="training", description="training, or forward alone")
    optimizer: Literal["sgd", "adagrad", "none"] = Field(
        default="sgd", description="what steps the parameters; none leaves it out"
    )
    table_gradients: Literal["sparse", "dense"] = Field(
        default="sparse",
        description="sparse: one kernel updates rows; dense: gradients are as large as tables, and the optimizer "
        "steps all rows, as by torch.nn.EmbeddingBag without sparse=True, one for each entry of tables; chunks of an "
        "exchange are then of the batch",
    )

    @field_validator("tables_per_rank", "rows_per_table", "pooling", "tables", mode="before")
    @classmethod
    def _in_their_place(cls, given: Any, info: ValidationInfo) -> Any:
        """Say where tables that differ are written, and where those that are alike."""
        if isinstance(given, list | tuple) and info.field_name != "tables":
            raise ValueError("is one number for all tables; where they differ: tables: [{rows: 1000000, pooling: 20}]")
        if isinstance(given, int) and info.field_name == "tables":
            raise ValueError("lists tables that differ, as [{rows: 1000000, pooling: 20}]; their number is count: in "
                             "such an entry, or tables_per_rank where all are alike")  # fmt: skip
        return given

    @model_validator(mode="after")
    def _says_each_once(self) -> "Dlrm":
        for some, others, what, instead in _EITHER:
            given, besides = ([key for key in keys if getattr(self, key)] for keys in (some, others))
            if given and besides:
                raise ValueError(f"{given[0]} is for {what} and {besides[0]} for {instead}; leave one out")
            lacks = [key for key in (some if given else others) if not getattr(self, key)]
            if lacks:
                hint = f"{', '.join(others)} for {instead}, or {', '.join(some)} for {what}"
                raise ValueError(f"{lacks[0]} is missing; give {hint}")
        if self.bottom_mlp and self.bottom_mlp[-1] != self.embedding_dim:
            raise ValueError(
                f"bottom_mlp ends with {self.bottom_mlp[-1]}; end it with embedding_dim {self.embedding_dim}"
            )
        return self

    @model_validator(mode="after")
    def _divides(self) -> "Dlrm":
        if self.global_batch % self.data_parallel:
            raise ValueError(
                f"global_batch {self.global_batch} does not divide over data_parallel {self.data_parallel} ranks; "
                f"use a multiple of {self.data_parallel}"
            )
        self.plan  # noqa: B018 - refuses what cannot be placed
        return self

    @property
    def samples(self) -> int:
        """Samples of a step, over all ranks."""
        return self.global_batch

    @property
    def local_batch(self) -> int:
        """Samples of a rank in a step."""
        return self.global_batch // self.data_parallel

    @property
    def all_tables(self) -> tuple[EmbeddingTable, ...]:
        """The job's tables, with how many are alike."""
        if self.tables:
            return self.tables
        per_rank = self.tables_per_rank
        assert per_rank is not None
        table = EmbeddingTable.model_construct  # there may be more than a file may count
        count = per_rank * self.data_parallel
        return (table(rows=self.rows_per_table, pooling=self.pooling, count=count, sharding="table_wise"),)

    @property
    def plan(self) -> Plan:
        """Which rank holds which part of which table."""
        step = Step(
            ranks=self.data_parallel,
            batch=self.global_batch,
            dim=self.embedding_dim,
            dtype=self.dtype,
            update=self.update if self.mode == "training" else "",
            states=int(self.optimizer == "adagrad"),
            sharding=self.sharding,
            column_width=self.column_width,
            exchange_cost=self.exchange_cost,
            capacity_bytes=math.inf if self.table_memory is None else self.table_memory,
            apart=self.table_gradients == "dense",
        )
        return plan_of(self.all_tables, step)

    @property
    def update(self) -> str:
        """The kernel that takes the gradients of pooled vectors."""
        return "embedding_bag_bwd_dense" if self.table_gradients == "dense" else _UPDATES[self.optimizer]

    @property
    def facts(self) -> Mapping[str, Any]:
        """Where tables that differ lie, a row for ranks whose tables are alike."""
        plan, row_wise = self.plan, sum(bags.tables for bags in self.plan.row_wise)
        ranks_of: dict[tuple[Bags, ...], list[int]] = {}
        for rank, mine in enumerate(plan.exchanged):
            ranks_of.setdefault(mine, []).append(rank)
        rows = [
            {
                "ranks": ", ".join(map(str, ranks)),
                "tables": sum(bags.tables for bags in mine),
                "lookups_per_sample": sum(bags.tables * bags.pooling for bags in mine),
                "share_of_mean_cost": round(plan.costs[ranks[0]] * self.data_parallel / math.fsum(plan.costs), 3),
                "tables_bytes": plan.parameters_of(ranks[0])
                * (2 if self.optimizer == "adagrad" else 1)
                * self.item_bytes,
            }
            for mine, ranks in ranks_of.items()
        ]
        return {"row_wise_tables": row_wise, "tables_of_ranks": rows} if self.tables else {}

    @property
    def num_vectors(self) -> int:
        """Vectors that interact: one a table of the job, and the bottom MLP's output."""
        return sum(table.count for table in self.all_tables) + 1

    @property
    def num_parameters(self) -> int:
        """Parameters of the job: all tables, and the weights and biases of MLPs and cross layers (these have none)."""
        return self._dense_parameters + self.embedding_dim * sum(table.count * table.rows for table in self.all_tables)

    @property
    def _dense_parameters(self) -> int:
        width = self.num_vectors * self.embedding_dim
        cross = self.cross_layers * 2 * width * self.cross_rank if self.interaction == "dcn" else 0
        return cross + sum((inputs + self.biases) * outputs for mlp in self.layer_widths() for inputs, outputs in mlp)

    @property
    def interaction_width(self) -> int:
        """Features that the interaction gives to the top MLP."""
        side_by_side = self.num_vectors * self.embedding_dim
        return {
            "dot": self.num_vectors * (self.num_vectors - 1) // 2 + self.embedding_dim,
            "cat": side_by_side,
            "sum": self.embedding_dim,
            "dcn": side_by_side,
        }[self.interaction]

    def layer_widths(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return (inputs, outputs) of each layer of the bottom and the top MLP."""
        bottom, top = self.bottom_mlp, self.top_mlp
        if not bottom:
            assert self.mlp_width is not None
            assert self.bottom_layers is not None
            assert self.top_layers is not None
            bottom = (*[self.mlp_width] * (self.bottom_layers - 1), self.embedding_dim)
            top = (*[self.mlp_width] * (self.top_layers - 1), 1)
        return list(pairwise((self.dense_features, *bottom))), list(pairwise((self.interaction_width, *top)))

    def moments(self) -> Iterator[Moment]:
        """Tell what ranks that differ hold when backward begins and when it comes to the tables, or in a forward."""
        first_ranks = {mine: rank for rank, mine in reversed(list(enumerate(self.plan.exchanged)))}
        for mine, rank in first_ranks.items():
            yield from blocks.TablesRank(self, mine).moments(rank)

    def program(self) -> Program:
        """Write the graphs that ranks run, a role for all ranks whose tables are alike."""
        found = dict.fromkeys(self.plan.exchanged)
        number = {mine: index for index, mine in enumerate(found)}
        roles = np.array([number[mine] for mine in self.plan.exchanged], np.int64)
        graphs = tuple(blocks.TablesRank(self, mine).graph() for mine in found)
        return Program(self.name, graphs, roles, (self.mesh.groups("world"),))
