"""Recommendation models: embedding tables model-parallel, perceptrons data-parallel over the same ranks."""

from itertools import pairwise
from typing import Literal

from pydantic import Field, model_validator

from scaleout.workloads.config.parallel import Count, Dtype, Parallel


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
