"""DLRM: the step of one rank, forward and backward, and what it holds.

A rank pools its own tables for the whole batch and exchanges the pooled vectors; of tables whose rows are cut it pools
what meets its rows. Where tables lie says the workload's plan.

Source: Naumov et al., arXiv:1906.00091; DCN-V2, arXiv:2008.13535 (cross layers of low rank).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from scaleout.program.graph import NONE, ExecutionGraph, GraphBuilder, NodeRole
from scaleout.program.operations import ITEM_BYTES, OPERATIONS, Kernel, kernel
from scaleout.workloads.config.family import Moment
from scaleout.workloads.generate.autograd_tape import URGENT, AutogradTape, Bucket, Cursor, Gradients
from scaleout.workloads.generate.axes import GradientSync
from scaleout.workloads.generate.layers import pointwise, residual
from scaleout.workloads.generate.linear import Linear

if TYPE_CHECKING:
    from scaleout.workloads.families.dlrm import Dlrm
    from scaleout.workloads.families.sharding import Bags

_WORLD = 0
_INTERACTION = {
    "dot": ("interaction_bmm", "interaction_gather"),
    "cat": ("interaction_cat",),
    "sum": ("interaction_sum",),
    "dcn": ("interaction_cat",),
}
"""Kind of interaction to the kernels that make it, in forward order."""

_INDEX_BYTES, _LOOKUPS_OF_A_SUM, _WARP = 8, 10, 32
"""Of indices, and of dense gradients as PyTorch makes them: aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu."""


@dataclass(frozen=True)
class TablesRank:
    """What one rank does: it pools its own tables whole, and its rows of those that are cut by rows."""

    workload: "Dlrm"
    own: "tuple[Bags, ...]"

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
    def _lookups(self) -> "tuple[tuple[Bags, int], ...]":
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
    def _rows(self) -> "tuple[Bags, ...]":
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
        return (graph.compute(_of_bags(workload, "permute_for_all_to_all", sizes), after=nodes),)


def _bag(
    graph: GraphBuilder, workload: "Dlrm", op: str, bags: "Bags", batch: int, *, after: tuple[int, ...] = ()
) -> int:
    """Pool tables for so many samples; backward, update their rows in one kernel, or make their sparse gradient."""
    sizes = {"batch": batch, "tables": bags.tables, "dim": bags.dim, "pooling": bags.pooling}
    if "rows" in OPERATIONS[op].parameters:
        sizes["rows"] = -(-bags.rows // bags.tables)
    role = NodeRole.WEIGHT_GRADIENT if op == "embedding_bag_bwd_dense" else 0
    return graph.compute(_of_bags(workload, op, sizes), after=after, role=role)


def _of_bags(workload: "Dlrm", op: str, sizes: Mapping[str, int]) -> Kernel:
    """Return a kernel of bags or their vectors; with PyTorch's own bags schedules cut the batch, not the tables."""
    call = kernel(op, dtype=workload.dtype, **sizes)
    return call.counting("batch") if workload.table_gradients == "dense" else call


def _cross(tape: AutogradTape, x: int, workload: "Dlrm", bucket: Bucket) -> int:
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


def _interaction(graph: GraphBuilder, workload: "Dlrm", direction: str, *, after: tuple[int, ...]) -> int:
    operations = _INTERACTION[workload.interaction]
    shape = {"batch": workload.local_batch, "features": workload.num_vectors, "dim": workload.embedding_dim}
    for op in operations if direction == "fwd" else reversed(operations):
        sizes = {key: size for key, size in shape.items() if key != "dim" or op != "interaction_gather"}
        after = (graph.compute(kernel(f"{op}_{direction}", dtype=workload.dtype, **sizes), after=after),)
    return after[0]


def _mlp(
    tape: AutogradTape, x: int | None, widths: list[tuple[int, int]], *, workload: "Dlrm", bucket: Bucket, name: str
) -> int:
    batch = workload.local_batch
    for index, (inputs, outputs) in enumerate(widths):
        label = f"{name}_mlp_{index}"
        layer = Linear(name=label, tokens=batch, inputs=inputs, outputs=outputs, bucket=bucket, bias=workload.biases)
        x = layer.write(tape, x)
        x = pointwise(tape, x, ("relu_fwd", "relu_bwd"), name=f"{label}_relu", elements=batch * outputs)
    tape.save_for_backward(batch * widths[-1][1])  # a ReLU keeps its output, those before as the next layer's input
    assert x is not None, "an MLP has at least one layer"
    return x
