"""Rows of whole steps of transformers and DLRMs, as PyTorch runs them eagerly, to workloads.

The layers are those of Megatron-LM without embedding and head, forward or forward and backward; gradients are reduced
one parameter at a time, by DDP in buckets, or by FSDP, one unit a layer. Rows of hybrid jobs and of pipelines are of
the same layers, four times as wide inside as outside.

Rows of steps that are no workload's: a mixture-of-experts layer alone, and products cut for overlap.

A layer's tokens are repeated once for each of their experts, sent to them, and summed when they come back; experts are
balanced, one a rank. Tokens may be cut into chunks, one after the other. Products are cut along their rows, and each
part's collective is started behind it, beside the next part.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from scaleout.cluster.device.kernel_times import kernel_time, kernel_times
from scaleout.cluster.machine import Machine
from scaleout.program.graph import GraphBuilder, NodeRole
from scaleout.program.operations import ITEM_BYTES, kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.validation.measured.case import Case, NoModelError, simulated, workload_of
from scaleout.validation.measured.rows import Row
from scaleout.workloads.generate.autograd_tape import AutogradTape, Bucket, Cursor, Gradients
from scaleout.workloads.generate.axes import Sharing
from scaleout.workloads.generate.layers import SHUFFLE, activation, exchange, pointwise
from scaleout.workloads.generate.linear import linear

_DTYPES = ("bf16", "fp16", "fp32")


def one_role(name: str, graph: GraphBuilder, ranks: int) -> Program:
    """Return the program of which every rank runs one graph, in one group of all."""
    world = GroupFamily("world", (tuple(range(ranks)),))
    return Program(name, (graph.build(),), np.zeros(ranks, np.int64), (world,))


def mixture_of_experts(row: Row, machine: Machine) -> Case:
    """A layer's forward pass, or forward and backward."""
    ranks, chunks, tokens = row.count("gpus"), row.count("chunks"), row.count("tokens")
    hidden, ffn, top_k = row.count("hidden"), row.count("ffn"), row.count("topk")
    dtype = row.word("dtype", _DTYPES)
    if tokens % chunks:
        raise NoModelError(f"{tokens} tokens do not divide over {chunks} chunks")
    gradients = Gradients(float("inf"), ITEM_BYTES[dtype]) if row.name.endswith("backward") else None
    graph = GraphBuilder("experts_forward", NodeRole.FORWARD)
    tapes = [AutogradTape(Cursor(graph), dtype, gradients) for _ in range(chunks)]
    size_bytes = tokens // chunks * top_k * hidden * ITEM_BYTES[dtype]
    bucket = Bucket("experts", Sharing(0, 1))
    before: tuple[int, ...] = ()
    for tape in tapes:
        rows = tokens // chunks * top_k
        of_tokens = partial(pointwise, tape, tokens=tokens // chunks, hidden=hidden, topk=top_k)
        x = graph.join(before, name="chunk") if before else graph.add((), name="tokens", duration_s=0.0)
        x = of_tokens(x, "moe_repeat_topk", "moe_sum_topk")
        x = exchange(tape, x, SHUFFLE, size_bytes, group=0, name="dispatch")
        x = linear(tape, x, tokens=rows, inputs=hidden, outputs=ffn, bucket=bucket, name="expert_1")
        x = activation(tape, x, "gelu", elements=rows * ffn)
        x = linear(tape, x, tokens=rows, inputs=ffn, outputs=hidden, bucket=bucket, name="expert_2")
        x = exchange(tape, x, SHUFFLE, size_bytes, group=0, name="combine")
        before = (of_tokens(x, "moe_sum_topk", "moe_repeat_topk"),)
    if chunks > 1:
        before = (graph.compute(kernel("clone", dtype=dtype, elements=tokens * hidden), after=before, name="join"),)
    if gradients is not None:
        graph.enter("experts_backward", NodeRole.BACKWARD)
        node = before[0]
        for number, tape in enumerate(reversed(tapes)):
            gradients.accumulates = dtype if number else ""
            node = tape.backward(node)
    return simulated(row, one_role(row.id, graph, ranks), machine)


def chunked(row: Row, machine: Machine) -> Case:
    """A product in parts along its rows, each part's collective behind it on a stream of its own.

    What a part's product made is a rank's whole buffer, but for an all-gather, of which it is the rank's shard. Parts
    together take no less than the whole: each was measured, or not, among other shapes than the others.
    """
    ranks, chunks, dtype = row.count("gpus"), row.count("chunks"), row.word("dtype", _DTYPES)
    kind = row.word("collective", ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"))
    sizes = {"M": row.count("M") // chunks, "N": row.count("N"), "K": row.count("K")}
    product, whole = (kernel("gemm", dtype=dtype, **{**sizes, "M": rows}) for rows in (sizes["M"], row.count("M")))
    (part_s, whole_s), _ = kernel_times(machine.device, (product, whole), full_clock=True)
    lasts_s = kernel_time(machine.device, product).seconds * max(1.0, float(whole_s) / chunks / float(part_s))
    payload_bytes = sizes["M"] * sizes["N"] * ITEM_BYTES[dtype] * (ranks if kind == "all_gather" else 1)
    graph = GraphBuilder("chunks_loop", NodeRole.LOOP)
    for _ in range(chunks):
        part = graph.compute(product, duration_s=lasts_s)
        graph.collective(kind, payload_bytes, group=0, after=(part,))
    program = one_role(row.id, graph, ranks)
    of = f"{row.count('M')} x {sizes['N']} x {sizes['K']}, {kind} over {ranks}"
    return replace(simulated(row, program, machine, schedule="overlap"), variant=(of, chunks))


def gather_then_product(row: Row, machine: Machine) -> Case:
    """An all-gather of a product's rows, then the product."""
    ranks, dtype = row.count("gpus"), row.word("dtype", _DTYPES)
    sizes = {key: row.count(key) for key in "MNK"}
    graph = GraphBuilder("product_loop", NodeRole.LOOP)
    gathered = graph.collective("all_gather", sizes["M"] * sizes["K"] * ITEM_BYTES[dtype], group=0)
    graph.compute(kernel("gemm", dtype=dtype, **sizes), after=(gathered,))
    return simulated(row, one_role(row.id, graph, ranks), machine)


_MEBIBYTE = 2**20
_ALONE = 1
"""Size of a bucket that every gradient fills by itself."""


def layers(row: Row, **options: Any) -> dict[str, Any]:
    """Return the keys of a workload of plain layers."""
    hidden = row.count("hidden")
    return {
        "kind": "transformer",
        "dtype": row.word("dtype", ("bf16", "fp16", "fp32")) if "dtype" in row.values else "bf16",
        "hidden": hidden,
        "heads": row.count("heads") if "heads" in row.values else max(hidden // 128, 1),
        "layers": row.count("layers"),
        "ffn": 4 * hidden,
        "sequence": row.count("seq"),
        "optimizer": "none",
        "master_weights": False,
        "layout_copies": True,
        **options,
    }


def tensor_parallel(row: Row, machine: Machine) -> Case:
    """Forward, or forward and backward, of tensor-parallel layers; `tp_sp` cuts the sequence as well."""
    mode = row.word("mode", ("tp", "tp_sp"))
    values = layers(
        row,
        tensor_parallel=row.count("gpus"),
        batch_per_replica=row.count("batch"),
        sequence_parallel=mode == "tp_sp",
        mode="training" if row.name.endswith("backward") else "prefill",
    )
    return simulated(row, workload_of(values, row, machine), machine)


_DATA_PARALLEL: Mapping[str, Mapping[str, Any]] = {
    "dp_compute_only": {"data_parallel": 1},
    "dp_serial_allreduce_per_parameter": {"gradient_bucket": _ALONE},
    "dp_ddp_overlap": {"schedule": "overlap", "copied_buckets": True},
    "fsdp2_fully_shard": {"schedule": "overlap", "framework": "fsdp2"},
}
"""Kind of data-parallel step to the keys of its workload, and its schedule."""


def data_parallel(row: Row, machine: Machine) -> Case:
    """Forward and backward of whole layers, with their gradients reduced in one way or another."""
    if row.name not in _DATA_PARALLEL:
        raise NoModelError(f"no model of a step {row.name!r}")
    options = {"data_parallel": row.count("gpus"), **_DATA_PARALLEL[row.name]}
    schedule = options.pop("schedule", "baseline")
    if "bucket_mb" in row.values:
        options["gradient_bucket"] = row.number("bucket_mb") * _MEBIBYTE
    values = layers(row, batch_per_replica=row.count("batch"), **options)
    return simulated(row, workload_of(values, row, machine), machine, schedule=schedule)


_HYBRID: Mapping[str, Mapping[str, Any]] = {
    "tp_only": {"data_parallel": 1},
    "serial_grad_allreduce_adamw": {"optimizer": "adamw", "gradient_bucket": _ALONE},
    "ddp_overlap_adamw": {"optimizer": "adamw", "schedule": "overlap", "copied_buckets": True},
}


def hybrid(row: Row, machine: Machine) -> Case:
    """Two ranks of tensor parallelism by two of data parallelism; or one of its parts alone."""
    variant = row.word("variant", (*_HYBRID, "adamw_only"))
    if variant == "adamw_only":
        graph = GraphBuilder("optimizer_loop", NodeRole.LOOP)
        graph.compute(kernel("adamw_fused", dtype=row.word("dtype", ("bf16", "fp32")), parameters=_parameters(row)))
        return simulated(row, one_role(row.id, graph, 1), machine)
    options = {"tensor_parallel": 2, "data_parallel": 2, **_HYBRID[variant]}
    schedule = options.pop("schedule", "baseline")
    values = layers(row, batch_per_replica=row.count("batch"), **options)
    return simulated(row, workload_of(values, row, machine), machine, schedule=schedule)


def _parameters(row: Row) -> int:
    return row.count("parameters_per_gpu")


def pipeline(row: Row, machine: Machine) -> Case:
    """A pipeline of equal stages; PyTorch's interleaved schedule posts messages one at a time, as they are made."""
    microbatch = row.count("microbatch")
    schedule = row.word("schedule", ("gpipe", "1f1b", "interleaved_1f1b"))
    chunks = row.count("virtual")
    values = layers(
        row,
        pipeline_parallel=row.count("stages"),
        pipeline_schedule=schedule,
        batch_per_replica=microbatch * row.count("microbatches"),
        microbatch=microbatch,
        messages="as_made" if chunks > 1 else "at_need",
        **({"virtual_stages": chunks} if chunks > 1 else {}),
    )
    return simulated(row, workload_of(values, row, machine), machine, schedule="overlap", clocks="sustained")


def pipeline_stage(row: Row, machine: Machine) -> Case:
    """One stage alone, over and over: what a micro-batch takes whose gradients are added to those of another."""
    microbatch = row.count("microbatch")
    one, two = (
        simulated(
            row, workload_of(layers(row, batch_per_replica=count * microbatch, microbatch=microbatch), row, machine),
            machine, measured="forward_backward_us", clocks="sustained",
        )
        for count in (1, 2)
    )  # fmt: skip
    return Case(one.measured, lambda: two.predict() - one.predict())


def dlrm(row: Row, machine: Machine) -> Case:
    """A DLRM's forward pass, or its step with one all-reduce a parameter and sparse gradients of its tables."""
    values = {
        "kind": "dlrm",
        "dtype": row.word("dtype", ("fp32",)),
        "data_parallel": row.count("gpus"),
        "global_batch": row.count("batch"),
        "tables_per_rank": row.count("tables_per_gpu"),
        "rows_per_table": 200_000,
        "embedding_dim": row.count("dim"),
        "pooling": row.count("pooling"),
        "dense_features": 256,
        "mlp_width": row.count("mlp"),
        "bottom_layers": 3,
        "top_layers": row.count("top_layers"),
        "interaction": "dot",
        "optimizer": "none",
        "gradient_bucket": _ALONE,
        "mode": "training" if "backward" in row.name else "forward",
    }
    return simulated(row, workload_of(values, row, machine), machine)


def embedding_exchange(row: Row, machine: Machine) -> Case:
    """Pooling of a rank's tables for the whole batch, the all-to-all, and the order of samples."""
    ranks, batch, tables, dim = (row.count(key) for key in ("gpus", "batch", "tables_per_gpu", "dim"))
    graph = GraphBuilder("embedding_loop", NodeRole.LOOP)
    pool = kernel(
        "embedding_bag_fwd", dtype="fp32", batch=batch, tables=tables, dim=dim, pooling=row.count("pooling"),
        rows=200_000,
    )  # fmt: skip
    sent = graph.collective("all_to_all", batch * tables * dim * 4, group=0, after=(graph.compute(pool),))
    order = kernel("permute_for_all_to_all", dtype="fp32", batch=batch // ranks, tables=tables * ranks, dim=dim)
    graph.compute(order, after=(sent,))
    return simulated(row, one_role(row.id, graph, ranks), machine)
