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
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from scaleout.config.units import MOST_WRITTEN, Count, LayerCount, Positive, Size
from scaleout.program.graph import NONE, ExecutionGraph, GraphBuilder, NodeRole
from scaleout.program.operations import ITEM_BYTES, OPERATIONS, kernel
from scaleout.program.program import Program
from scaleout.workloads.config.family import Dtype, Moment, WholeModel
from scaleout.workloads.families.sharding import Bags, EmbeddingTable, Kind, Plan, Step, plan_of
from scaleout.workloads.generate.autograd_tape import URGENT, AutogradTape, Bucket, Cursor, Gradients
from scaleout.workloads.generate.axes import GradientSync
from scaleout.workloads.generate.layers import pointwise, residual
from scaleout.workloads.generate.linear import Linear

_WORLD = 0
_INTERACTION = {
    "dot": ("interaction_bmm", "interaction_gather"),
    "cat": ("interaction_cat",),
    "sum": ("interaction_sum",),
    "dcn": ("interaction_cat",),
}
"""Kind of interaction to the kernels that make it, in forward order."""

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


_INDEX_BYTES, _LOOKUPS_OF_A_SUM, _WARP = 8, 10, 32
"""Of indices, and of dense gradients as PyTorch makes them: aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu."""


class Dlrm(WholeModel):
    """Deep learning recommendation model: tables model-parallel, MLPs data-parallel over the same ranks."""

    REFUSES: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"),
        "means nothing for a dlrm; set data_parallel alone",
    )

    dtype: Dtype = Field(default="fp32", description="data type of parameters and activations")
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
        description="sparse: one kernel updates rows; dense: gradients are as large as tables, and the optimizer steps "
        "all rows, as by torch.nn.EmbeddingBag without sparse=True",
    )

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
        """Parameters of the job: all tables, and the weights of MLPs and cross layers (biases left out)."""
        return self._dense_parameters + self.embedding_dim * sum(table.count * table.rows for table in self.all_tables)

    @property
    def _dense_parameters(self) -> int:
        width = self.num_vectors * self.embedding_dim
        cross = self.cross_layers * 2 * width * self.cross_rank if self.interaction == "dcn" else 0
        return cross + sum(inputs * outputs for mlp in self.layer_widths() for inputs, outputs in mlp)

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
            yield from _Rank(self, mine).moments(rank)

    def program(self) -> Program:
        """Write the graphs that ranks run, a role for all ranks whose tables are alike."""
        found = dict.fromkeys(self.plan.exchanged)
        number = {mine: index for index, mine in enumerate(found)}
        roles = np.array([number[mine] for mine in self.plan.exchanged], np.int64)
        graphs = tuple(_Rank(self, mine).graph() for mine in found)
        return Program(self.name, graphs, roles, (self.mesh.groups("world"),))


@dataclass(frozen=True)
class _Rank:
    """What one rank does: it pools its own tables whole, and its rows of those that are cut by rows."""

    workload: Dlrm
    own: tuple[Bags, ...]

    def graph(self) -> ExecutionGraph:
        """Write a step."""
        return self._written[0]

    @cached_property
    def _written(self) -> tuple[ExecutionGraph, AutogradTape, AutogradTape]:
        """A step, with the tapes of the bottom MLP and of all that follows it."""
        workload, graph = self.workload, GraphBuilder()
        gradients = Gradients(workload.gradient_bucket, workload.item_bytes) if workload.mode == "training" else None
        bottom, top = (AutogradTape(Cursor(graph), workload.dtype, gradients) for _ in range(2))
        bucket = Bucket("dense", GradientSync(_WORLD, workload.data_parallel))

        graph.enter("embedding_forward", NodeRole.FORWARD)
        vectors, sums = self._pool(graph)
        graph.enter("bottom_mlp_forward", NodeRole.FORWARD)
        bottom_widths, top_widths = workload.layer_widths()
        dense = _mlp(bottom, None, bottom_widths, workload=workload, bucket=bucket, name="bottom")
        graph.enter("interaction_forward", NodeRole.FORWARD)
        features = _interaction(graph, workload, "fwd", after=(*self._permuted(graph, vectors), *sums, dense))
        if workload.interaction == "dcn":
            features = _cross(top, features, workload, bucket)
        graph.enter("top_mlp_forward", NodeRole.FORWARD)
        score = _mlp(top, features, top_widths, workload=workload, bucket=bucket, name="top")

        if gradients is not None:
            graph.enter("top_mlp_backward", NodeRole.BACKWARD)
            gradient = top.backward(score)
            graph.enter("interaction_backward", NodeRole.BACKWARD)
            gradient = _interaction(graph, workload, "bwd", after=(gradient,))
            graph.enter("embedding_backward", NodeRole.BACKWARD)
            self._update(graph, gradient)
            graph.enter("bottom_mlp_backward", NodeRole.BACKWARD)
            bottom.backward(gradient)
            gradients.flush(graph, bucket)
            if workload.optimizer != "none":
                graph.enter("optimizer", NodeRole.OPTIMIZER)
                count = sum(tape.parameters["dense"] for tape in (bottom, top))
                if workload.table_gradients == "dense":
                    count += sum(bags.parameters for bags in (*self.own, *self._rows))
                graph.compute(kernel(workload.optimizer, dtype="fp32", parameters=count), after=gradients.final)
        return graph.build(), bottom, top

    def moments(self, rank: int) -> Iterator[Moment]:
        """Tell what the rank of this number holds; gradients of MLPs have buffers that stay."""
        workload, item_bytes, (_, bottom, top) = self.workload, self.workload.item_bytes, self._written
        dense = sum(tape.parameters["dense"] for tape in (bottom, top))
        of_tables = sum(bags.parameters for bags, _ in self._lookups)
        stays = {"parameters": float(item_bytes * (dense + of_tables))}
        # PyTorch's own bags keep the bag of each index, too.
        of_lookup = _INDEX_BYTES * (2 if workload.table_gradients == "dense" else 1)
        indices = float(of_lookup * sum(count for _, count in self._lookups))
        if workload.mode == "forward":
            widest = max(sum(widths) for mlp in workload.layer_widths() for widths in mlp)
            passing = {"activations": indices + item_bytes * workload.local_batch * widest}
            yield Moment(rank, "all of the pass", stays | self._exchanged | passing)
            return
        if workload.optimizer == "adagrad":
            stays["optimizer_states"] = stays["parameters"]
        paired = workload.num_vectors * workload.embedding_dim if workload.interaction == "dot" else 0
        kept = bottom.kept_bytes + indices
        all_kept = kept + top.kept_bytes + item_bytes * workload.local_batch * paired
        gradients = float(item_bytes * dense)
        yield Moment(rank, "the beginning of backward", stays | {"gradients": gradients, "activations": all_kept})
        if workload.table_gradients == "dense":
            gradients += item_bytes * of_tables
        elif workload.optimizer == "none":
            gradients += sum(count * (bags.dim * item_bytes + _INDEX_BYTES) for bags, count in self._lookups)
        passing = {"gradients": gradients, "activations": kept, "transient_memory": self._sums_bytes}
        yield Moment(rank, "backward of the tables", stays | self._exchanged | passing)

    @property
    def _lookups(self) -> tuple[tuple[Bags, int], ...]:
        """Each of the rank's tables, and the rows that it looks up there: whole, or its share of those cut by rows."""
        batches = (
            *((bags, self.workload.global_batch) for bags in self.own),
            *((bags, self.workload.local_batch) for bags in self._rows),
        )
        return tuple((bags, batch * bags.tables * bags.pooling) for bags, batch in batches)

    @property
    def _exchanged(self) -> dict[str, float]:
        """Bytes of vectors that are sent and that arrive, forward, and of their gradients backward."""
        workload = self.workload
        own, rows = (sum(bags.width for bags in some) for some in (self.own, self._rows))
        elements = workload.global_batch * (own + rows) + workload.local_batch * (self._exchanged_width + rows)
        return {"communication_buffers": float(workload.item_bytes * elements)}

    @property
    def _sums_bytes(self) -> float:
        """Bytes that PyTorch makes a dense gradient with: sums in fp32 of look-ups sorted by row, and their indices.

        A sum is of ten look-ups of a row at most, and there is room for as many sums as there can be.
        """
        if self.workload.table_gradients != "dense":
            return 0.0
        found = []
        for bags, lookups in self._lookups:
            rows = min(lookups, bags.rows)
            row_bytes = ITEM_BYTES["fp32"] * _WARP * -(-bags.dim // _WARP)
            sums = (lookups // _LOOKUPS_OF_A_SUM + rows) * (row_bytes + _INDEX_BYTES)
            found.append(sums + (3 * lookups + 2 * rows) * _INDEX_BYTES)
        return float(max(found, default=0))

    @property
    def _rows(self) -> tuple[Bags, ...]:
        return self.workload.plan.row_wise

    def _pool(self, graph: GraphBuilder) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Pool, and exchange: return the node after which vectors of whole tables are here, and that for sums."""
        workload = self.workload
        pooled = [_bag(graph, workload, "embedding_bag_fwd", bags, workload.global_batch) for bags in self.own]
        vectors = self._shuffle(graph, graph.join(pooled) if pooled else NONE, name="embedding_all_to_all")
        if not self._rows:
            return vectors, ()
        # Every bag is made on every rank, of look-ups that meet its rows: together as many as a share of the bags has.
        partial = [_bag(graph, workload, "embedding_bag_fwd", bags, workload.local_batch) for bags in self._rows]
        others = (workload.global_batch - workload.local_batch) * sum(bags.width for bags in self._rows)
        if others:
            partial.append(graph.compute(kernel("fill", dtype=workload.dtype, elements=others), name="empty_bags"))
        return vectors, (self._exchange(graph, "reduce_scatter", graph.join(partial), name="sums_reduce_scatter"),)

    def _update(self, graph: GraphBuilder, gradient: int) -> None:
        """Bring gradients of pooled vectors to where tables are, and update these, or make their gradients."""
        workload = self.workload
        op = workload.update
        arrived = self._shuffle(graph, *self._permuted(graph, (gradient,)), name="gradients_all_to_all")
        for bags in self.own:
            _bag(graph, workload, op, bags, workload.global_batch, after=arrived)
        if self._rows:
            gathered = self._exchange(graph, "all_gather", gradient, name="gradients_all_gather")
            for bags in self._rows:
                _bag(graph, workload, op, bags, workload.local_batch, after=(gathered,))

    @property
    def _exchanged_width(self) -> int:
        """Elements of a sample's vectors that are exchanged, over all ranks."""
        workload = self.workload
        return (workload.num_vectors - 1) * workload.embedding_dim - sum(bags.width for bags in self._rows)

    def _shuffle(self, graph: GraphBuilder, node: int = NONE, *, name: str) -> tuple[int, ...]:
        """Exchange pooled vectors: a rank's tables for the whole batch against all whole tables for its samples.

        The payload is the larger of what a rank has before and after; with equal tables both are the same.
        """
        workload, width = self.workload, self._exchanged_width
        if not width:
            return ()
        elements = max(workload.global_batch * sum(bags.width for bags in self.own), workload.local_batch * width)
        return (
            graph.collective(
                "all_to_all", elements * workload.item_bytes, group=_WORLD, after=(node,), name=name, priority=URGENT,
                role=NodeRole.EXCHANGE,
            ),
        )  # fmt: skip

    def _exchange(self, graph: GraphBuilder, kind: str, node: int, *, name: str) -> int:
        """Add up partial sums of the whole batch, each rank those of its samples; or gather their gradients."""
        workload = self.workload
        size_bytes = workload.global_batch * sum(bags.width for bags in self._rows) * workload.item_bytes
        return graph.collective(
            kind, size_bytes, group=_WORLD, after=(node,), name=name, priority=URGENT, role=NodeRole.EXCHANGE
        )

    def _permuted(self, graph: GraphBuilder, nodes: tuple[int, ...]) -> tuple[int, ...]:
        """Bring received vectors, sorted by sender, into the order of samples; or back."""
        workload = self.workload
        tables = self._exchanged_width // workload.embedding_dim
        if not tables:
            return ()
        sizes = {"batch": workload.local_batch, "tables": tables, "dim": workload.embedding_dim}
        return (graph.compute(kernel("permute_for_all_to_all", dtype=workload.dtype, **sizes), after=nodes),)


def _bag(graph: GraphBuilder, workload: Dlrm, op: str, bags: Bags, batch: int, *, after: tuple[int, ...] = ()) -> int:
    """Pool tables for so many samples; backward, update their rows in one kernel, or make their sparse gradient."""
    sizes = {"batch": batch, "tables": bags.tables, "dim": bags.dim, "pooling": bags.pooling}
    if "rows" in OPERATIONS[op].parameters:
        sizes["rows"] = -(-bags.rows // bags.tables)
    role = NodeRole.WEIGHT_GRADIENT if op == "embedding_bag_bwd_dense" else 0
    return graph.compute(kernel(op, dtype=workload.dtype, **sizes), after=after, role=role)


def _cross(tape: AutogradTape, x: int, workload: Dlrm, bucket: Bucket) -> int:
    """``x_(l+1) = x_0 * (W V x_l) + x_l`` a cross layer, V and W of low rank; the bias is left out."""
    width, rank, batch = workload.interaction_width, workload.cross_rank, workload.local_batch
    for index in range(workload.cross_layers):
        into, out = (
            Linear(name=f"cross_{index}_{part}", tokens=batch, inputs=inputs, outputs=outputs, bucket=bucket)
            for part, inputs, outputs in (("V", width, rank), ("W", rank, width))
        )
        product = partial(
            pointwise, kernels=("product_fwd", "product_bwd"), name=f"cross_{index}_product", elements=batch * width
        )

        def branch(tape: AutogradTape, x: int, parts: tuple[Any, ...] = (into.write, out.write, product)) -> int:
            for part in parts:
                x = part(tape, x)
            tape.save_for_backward(batch * width)  # the product keeps what it multiplies its other factor with
            return x

        x = residual(tape, x, branch, elements=batch * width)
    return x


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
    tape.save_for_backward(batch * widths[-1][1])  # a ReLU keeps its output, those before as the next layer's input
    assert x is not None, "an MLP has at least one layer"
    return x
