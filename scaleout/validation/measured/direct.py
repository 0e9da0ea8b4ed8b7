"""Rows of steps that are no workload's: a mixture-of-experts layer alone, and products cut for overlap.

A layer's tokens are repeated once for each of their experts, sent to them, and summed when they come back; experts are
balanced, one a rank. Tokens may be cut into chunks, one after the other. Products are cut along their rows, and each
part's collective is started behind it, beside the next part.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from scaleout.cluster.device.cold_start import full_clock_times
from scaleout.cluster.device.kernel_times import kernel_time
from scaleout.cluster.machine import Machine
from scaleout.program.graph import GraphBuilder
from scaleout.program.operations import ITEM_BYTES, kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.validation.measured.case import Case, NoModelError, simulated
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
    graph = GraphBuilder("experts_forward")
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
        graph.phase = "experts_backward"
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
    part_s, whole_s = full_clock_times(machine.device, (product, whole))
    lasts_s = kernel_time(machine.device, product).seconds * max(1.0, float(whole_s) / chunks / float(part_s))
    payload_bytes = sizes["M"] * sizes["N"] * ITEM_BYTES[dtype] * (ranks if kind == "all_gather" else 1)
    graph = GraphBuilder("chunks_loop")
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
    graph = GraphBuilder("product_loop")
    gathered = graph.collective("all_gather", sizes["M"] * sizes["K"] * ITEM_BYTES[dtype], group=0)
    graph.compute(kernel("gemm", dtype=dtype, **sizes), after=(gathered,))
    return simulated(row, one_role(row.id, graph, ranks), machine)
