"""DLRM: one training or forward pass of a recommendation model.

Embedding tables are model-parallel: a rank pools its own tables for the whole batch, and an all-to-all gives each
rank all pooled vectors of its share of the batch. The MLPs are data-parallel over the same ranks. Backward runs
the same way round; the loss, a few numbers a sample, is left out.

Source: Naumov et al., arXiv:1906.00091; Mudigere et al., ISCA 2022 (backward and sparse update in one kernel).
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from scaleout.config.units import Count, LayerCount
from scaleout.program.graph import GraphBuilder, NodeRole
from scaleout.program.operations import kernel
from scaleout.program.program import Program
from scaleout.workloads.families.family import Dtype, WholeModel
from scaleout.workloads.generate.autograd_tape import URGENT, AutogradTape, Bucket, Cursor, Gradients
from scaleout.workloads.generate.axes import GradientSync
from scaleout.workloads.generate.layers import pointwise
from scaleout.workloads.generate.linear import Linear

_WORLD = 0
_INTERACTION = {
    "dot": ("interaction_bmm", "interaction_gather"),
    "cat": ("interaction_cat",),
    "sum": ("interaction_sum",),
}
"""Kind of interaction to the kernels that make it, in forward order."""


class Dlrm(WholeModel):
    """Deep learning recommendation model: tables model-parallel, MLPs data-parallel over the same ranks."""

    REFUSES: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"),
        "means nothing for a dlrm; set data_parallel alone",
    )

    dtype: Dtype = Field(default="fp32", description="data type of parameters and activations")
    global_batch: Count = Field(description="samples in a step, over all ranks")
    tables_per_rank: Count = Field(description="embedding tables that a rank holds, whole")
    rows_per_table: Count = Field(description="rows of an embedding table")
    embedding_dim: Count = Field(description="elements of a row")
    pooling: Count = Field(description="rows that a sample looks up in a table, summed")
    dense_features: Count = Field(description="dense inputs of a sample")
    mlp_width: Count = Field(description="width of the MLPs' layers")
    bottom_layers: LayerCount = Field(description="layers of the MLP that reads dense inputs")
    top_layers: LayerCount = Field(description="layers of the MLP behind the interaction")
    interaction: Literal["dot", "cat", "sum"] = Field(
        description="dot: all pairwise products; cat: vectors side by side; sum: vectors added up"
    )
    mode: Literal["training", "forward"] = Field(default="training", description="training, or forward alone")
    optimizer: Literal["sgd", "none"] = Field(
        default="sgd", description="what steps the parameters; none leaves it out"
    )

    @model_validator(mode="after")
    def _divides(self) -> "Dlrm":
        if self.global_batch % self.data_parallel:
            raise ValueError(
                f"global_batch {self.global_batch} does not divide over data_parallel {self.data_parallel} ranks; "
                f"use a multiple of {self.data_parallel}"
            )
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
    def num_vectors(self) -> int:
        """Vectors that interact: one a table of the job, and the bottom MLP's output."""
        return self.tables_per_rank * self.data_parallel + 1

    @property
    def num_parameters(self) -> int:
        """Parameters of the job: all tables, and the weights of both MLPs (biases left out)."""
        return (self.data_parallel - 1) * self._table_parameters + self.parameters_per_rank

    @property
    def parameters_per_rank(self) -> int:
        """Parameters of a rank: its tables, and the weights of both MLPs."""
        return self._table_parameters + sum(inputs * outputs for mlp in self.layer_widths() for inputs, outputs in mlp)

    @property
    def _table_parameters(self) -> int:
        return self.tables_per_rank * self.rows_per_table * self.embedding_dim

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

    def program(self) -> Program:
        """Write the graph that every rank runs, in one role."""
        graph = GraphBuilder()
        item_bytes = self.item_bytes
        gradients = Gradients(self.gradient_bucket, item_bytes) if self.mode == "training" else None
        bottom, top = (AutogradTape(Cursor(graph), self.dtype, gradients) for _ in range(2))
        bucket = Bucket("dense", GradientSync(_WORLD, self.data_parallel))

        graph.enter("embedding_forward", NodeRole.FORWARD)
        pool = kernel("embedding_bag_fwd", dtype=self.dtype, rows=self.rows_per_table, **_tables(self))
        pooled = graph.compute(pool)
        vectors = _shuffle(graph, self, pooled, name="embedding_all_to_all")
        graph.enter("bottom_mlp_forward", NodeRole.FORWARD)
        bottom_widths, top_widths = self.layer_widths()
        dense = _mlp(bottom, None, bottom_widths, workload=self, bucket=bucket, name="bottom")
        graph.enter("interaction_forward", NodeRole.FORWARD)
        vectors = _permute(graph, self, vectors)
        features = _interaction(graph, self, "fwd", after=(vectors, dense))
        graph.enter("top_mlp_forward", NodeRole.FORWARD)
        score = _mlp(top, features, top_widths, workload=self, bucket=bucket, name="top")

        if gradients is not None:
            graph.enter("top_mlp_backward", NodeRole.BACKWARD)
            gradient = top.backward(score)
            graph.enter("interaction_backward", NodeRole.BACKWARD)
            gradient = _interaction(graph, self, "bwd", after=(gradient,))
            graph.enter("embedding_backward", NodeRole.BACKWARD)
            vectors = _shuffle(graph, self, _permute(graph, self, gradient), name="gradients_all_to_all")
            _embedding_backward(graph, self, vectors)
            graph.enter("bottom_mlp_backward", NodeRole.BACKWARD)
            bottom.backward(gradient)
            gradients.flush(graph, bucket)
            if self.optimizer == "sgd":
                graph.enter("optimizer", NodeRole.OPTIMIZER)
                step = kernel("sgd", dtype="fp32", parameters=sum(tape.parameters["dense"] for tape in (bottom, top)))
                graph.compute(step, after=gradients.final)
        groups = (self.mesh.groups("world"),)
        return Program(self.name, (graph.build(),), np.zeros(self.num_ranks, np.int64), groups)


def _tables(workload: Dlrm) -> dict[str, int]:
    return {
        "batch": workload.global_batch,
        "tables": workload.tables_per_rank,
        "dim": workload.embedding_dim,
        "pooling": workload.pooling,
    }


def _embedding_backward(graph: GraphBuilder, workload: Dlrm, gradient: int) -> int:
    # With an optimizer the rows are updated in the same kernel; without one their sparse gradient is made.
    op = "embedding_sgd_sparse" if workload.optimizer == "sgd" else "embedding_bag_bwd_sparse"
    return graph.compute(kernel(op, dtype=workload.dtype, **_tables(workload)), after=(gradient,))


def _shuffle(graph: GraphBuilder, workload: Dlrm, node: int, *, name: str) -> int:
    """Exchange pooled vectors: a rank's tables for the whole batch against all tables for its samples."""
    size_bytes = workload.global_batch * workload.tables_per_rank * workload.embedding_dim * workload.item_bytes
    return graph.collective(
        "all_to_all", size_bytes, group=_WORLD, after=(node,), name=name, priority=URGENT, role=NodeRole.EXCHANGE
    )


def _permute(graph: GraphBuilder, workload: Dlrm, node: int) -> int:
    """Bring received vectors, sorted by sender, into the order of samples; or back."""
    sizes = {"batch": workload.local_batch, "tables": workload.num_vectors - 1, "dim": workload.embedding_dim}
    return graph.compute(kernel("permute_for_all_to_all", dtype=workload.dtype, **sizes), after=(node,))


def _interaction(graph: GraphBuilder, workload: Dlrm, direction: str, *, after: tuple[int, ...]) -> int:
    operations = _INTERACTION[workload.interaction]
    shape = {"batch": workload.local_batch, "features": workload.num_vectors, "dim": workload.embedding_dim}
    for op in operations if direction == "fwd" else reversed(operations):
        sizes = {key: size for key, size in shape.items() if key != "dim" or op != "interaction_gather"}
        after = (graph.compute(kernel(f"{op}_{direction}", dtype=workload.dtype, **sizes), after=after),)
    return after[0]


def _mlp(
    tape: AutogradTape, x: int | None, widths: list[tuple[int, int]], *, workload: Dlrm, bucket: Bucket, name: str
) -> int:
    batch = workload.local_batch
    for index, (inputs, outputs) in enumerate(widths):
        label = f"{name}_mlp_{index}"
        x = Linear(name=label, tokens=batch, inputs=inputs, outputs=outputs, bucket=bucket).write(tape, x)
        x = pointwise(tape, x, ("relu_fwd", "relu_bwd"), name=f"{label}_relu", elements=batch * outputs)
    assert x is not None, "an MLP has at least one layer"
    return x
