"""Transformer decoders, dense or mixture-of-experts: one training step, prefill or decode step of a replica.

Tensor parallelism cuts heads and feed-forward columns over ranks: each half of a layer ends with an all-reduce,
or, with sequence parallelism, begins with an all-gather and ends with a reduce-scatter. Data parallelism reduces
gradients in buckets. In decode every sequence makes one token against a cache of `sequence` tokens.

Source: Megatron-LM, arXiv:1909.08053; Korthikanti et al., arXiv:2205.05198 (sequence parallelism).
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from scaleout.generators.moe import Experts, mixture
from scaleout.generators.tape import (
    COPY_IN,
    GATHER_IN,
    SCATTER_OUT,
    SUM_OUT,
    URGENT,
    Bucket,
    Gradients,
    Tape,
    activation,
    exchange,
    linear,
    norm,
    phased,
    pointwise,
    residual,
)
from scaleout.graph import GraphBuilder
from scaleout.operations import ITEM_BYTES, kernel
from scaleout.program import Program
from scaleout.workload import Moe, Transformer

GROUP_AXES = ("tensor", "data", "expert", "expert_data")
"""Axes whose groups the program has, in the order of the graphs' `group` column."""
_TENSOR, _DATA, _EXPERT, _EXPERT_DATA = range(4)


@dataclass(frozen=True)
class _Rank:
    """What one rank holds: the workload, its tokens outside tensor-parallel blocks, and where gradients go."""

    workload: Transformer
    tokens: int
    dense: Bucket
    experts: Bucket

    @property
    def elements(self) -> int:
        """Activations outside tensor-parallel blocks."""
        return self.tokens * self.workload.hidden


def generate(workload: Transformer) -> Program:
    """Write the graph that every rank runs, in one role."""
    graph = GraphBuilder()
    mesh = workload.mesh
    gradients = None
    if workload.mode == "training":
        gradients = Gradients(graph, workload.gradient_bucket, workload.item_bytes)
    tape = Tape(graph, workload.dtype, gradients)
    rank = _Rank(
        workload,
        tokens=workload.tokens // (workload.tensor_parallel if workload.sequence_parallel else 1),
        dense=Bucket(_DATA, mesh.data),
        experts=Bucket(_EXPERT_DATA, mesh.degree("expert_data")),
    )
    tied: list[int] | None = [] if workload.tied_embedding else None
    x = _embedding(tape, rank, tied)
    for index in range(workload.layers):
        x = _layer(tape, x, rank, label=f"layer_{index}")
    x = phased(tape, x, partial(_head, tape, rank=rank, tied=tied), phase="head")
    if gradients is not None:
        tape.backward(x)
        _finish(graph, rank, gradients)
    families = tuple(mesh.groups(axis) for axis in GROUP_AXES)
    return Program(workload.name, (graph.build(),), np.zeros(workload.num_ranks, np.int64), families)


def _layer(tape: Tape, x: int, rank: _Rank, *, label: str) -> int:
    for phase, branch in (("attention", _attention), ("feed_forward", _feed_forward)):
        block = partial(branch, tape, rank=rank, label=f"{label}_{phase}")
        x = phased(tape, x, partial(residual, tape, branch=block, elements=rank.elements), phase=phase)
    return x


def _tensor_parallel(tape: Tape, x: int, rank: _Rank, block: partial[int], *, label: str) -> int:
    """Run a block whose weights are cut over the tensor axis, on the whole of its normalised input."""
    workload = rank.workload
    x = norm(tape, x, workload.norm, tokens=rank.tokens, hidden=workload.hidden, bucket=rank.dense)
    if workload.tensor_parallel == 1:
        return block(x)
    size_bytes = workload.tokens * workload.hidden * workload.item_bytes
    into, out = (GATHER_IN, SCATTER_OUT) if workload.sequence_parallel else (COPY_IN, SUM_OUT)
    x = exchange(tape, x, into, size_bytes, group=_TENSOR, name=label)
    return exchange(tape, block(x), out, size_bytes, group=_TENSOR, name=label)


def _attention(tape: Tape, x: int, rank: _Rank, label: str) -> int:
    return _tensor_parallel(tape, x, rank, partial(_attend, tape, rank=rank, label=label), label=label)


def _attend(tape: Tape, x: int, rank: _Rank, label: str) -> int:
    """Query, key and value projections, attention, and the output projection, for a rank's heads."""
    workload = rank.workload
    heads = workload.heads // workload.tensor_parallel
    kv_heads = workload.key_value_heads // workload.tensor_parallel
    width, kv_width = heads * workload.head_dim, kv_heads * workload.head_dim
    of = partial(linear, tape, tokens=workload.tokens, bucket=rank.dense)
    x = of(x, inputs=workload.hidden, outputs=width + 2 * kv_width, name=f"{label}_qkv")
    if workload.rotary:
        x = pointwise(tape, x, "rope_fwd_unfused", "rope_bwd", tokens=workload.tokens, hidden=width + kv_width)
    x = _scores(tape, x, workload, heads=heads, kv_heads=kv_heads)
    return of(x, inputs=width, outputs=workload.hidden, name=f"{label}_output")


def _scores(tape: Tape, x: int, workload: Transformer, *, heads: int, kv_heads: int) -> int:
    batch, head_dim, sequence = workload.batch_per_replica, workload.head_dim, workload.sequence
    if workload.mode == "decode":
        return tape.kernel(
            "attention_decode", x, batch=batch, heads=heads, kv_heads=kv_heads, kv_seq=sequence, head_dim=head_dim
        )
    if kv_heads == heads:
        return pointwise(
            tape,
            x,
            "attention_fwd",
            "attention_bwd",
            batch=batch,
            heads=heads,
            seq=sequence,
            head_dim=head_dim,
            causal=1,
        )
    return pointwise(
        tape, x, "attention_gqa_fwd", "attention_gqa_bwd",
        batch=batch, heads=heads, kv_heads=kv_heads, seq=sequence, head_dim=head_dim, causal=1,
    )  # fmt: skip


def _feed_forward(tape: Tape, x: int, rank: _Rank, label: str) -> int:
    workload = rank.workload
    if isinstance(workload, Moe):
        experts = Experts(group=_EXPERT, router=rank.dense, weights=rank.experts)
        block = partial(mixture, tape, workload=workload, experts=experts, label=label)
    else:
        block = partial(_dense_feed_forward, tape, rank=rank, label=label)
    return _tensor_parallel(tape, x, rank, block, label=label)


def _dense_feed_forward(tape: Tape, x: int, rank: _Rank, label: str) -> int:
    workload = rank.workload
    width = workload.ffn // workload.tensor_parallel
    of = partial(linear, tape, tokens=workload.tokens, bucket=rank.dense)
    x = of(x, inputs=workload.hidden, outputs=workload.gates * width, name=f"{label}_1")
    x = activation(tape, x, workload.activation, elements=workload.tokens * width)
    return of(x, inputs=width, outputs=workload.hidden, name=f"{label}_2")


def _embedding(tape: Tape, rank: _Rank, tied: list[int] | None) -> int:
    """Look tokens up; a rank that lacks a token's row gives zeros, and the tensor axis adds up.

    The gradient of a `tied` table is the sum of its own and of the head's, and final only then.
    """
    workload = rank.workload
    rows = workload.vocabulary // workload.tensor_parallel
    tape.graph.phase = "embedding_forward"

    def backward(dy: int) -> int:
        tape.graph.phase = "embedding_backward"
        dw = tape.kernel("embedding_bwd", dy, tokens=workload.tokens, hidden=workload.hidden, vocab=rows)
        if tied:
            dw = tape.kernel("add", dw, tied.pop(), name="tied_gradients", elements=rows * workload.hidden)
        tape.learn(dw, rows * workload.hidden, rank.dense)
        return dw

    if workload.vocabulary == 0:
        return tape.kernel("clone", name="input", elements=rank.elements)
    tape.push(backward)
    x = tape.kernel("embedding_fwd", tokens=workload.tokens, hidden=workload.hidden)
    if workload.tensor_parallel == 1:
        return x
    size_bytes = workload.tokens * workload.hidden * workload.item_bytes
    out = SCATTER_OUT if workload.sequence_parallel else SUM_OUT
    return exchange(tape, x, out, size_bytes, group=_TENSOR, name="embedding")


def _head(tape: Tape, x: int, rank: _Rank, tied: list[int] | None) -> int:
    """The last norm, the output projection over a rank's part of the vocabulary, and the loss or the logits."""
    workload = rank.workload
    x = norm(tape, x, workload.norm, tokens=rank.tokens, hidden=workload.hidden, bucket=rank.dense)
    if workload.vocabulary == 0:
        return x
    size_bytes = workload.tokens * workload.hidden * workload.item_bytes
    if workload.tensor_parallel > 1:
        into = GATHER_IN if workload.sequence_parallel else COPY_IN
        x = exchange(tape, x, into, size_bytes, group=_TENSOR, name="head")
    # Prefill needs the logits of each sequence's last token only.
    tokens = workload.batch_per_replica if workload.mode == "prefill" else workload.tokens
    part = workload.vocabulary // workload.tensor_parallel
    x = linear(
        tape, x, tokens=tokens, inputs=workload.hidden, outputs=part, bucket=rank.dense, name="head", shared=tied
    )
    if workload.mode == "training":
        return _loss(tape, x, rank, tokens=tokens, vocabulary=part)
    if workload.tensor_parallel > 1:
        size_bytes = tokens * workload.vocabulary * workload.item_bytes
        x = tape.graph.collective("all_gather", size_bytes, group=_TENSOR, after=(x,), name="logits_all_gather")
    return x


def _loss(tape: Tape, x: int, rank: _Rank, *, tokens: int, vocabulary: int) -> int:
    """Cross entropy over a cut vocabulary: ranks exchange maximum, sum and the target's logit of each token."""
    degree = rank.workload.tensor_parallel
    tape.push(lambda dy: tape.kernel("cross_entropy_bwd", dy, tokens=tokens, vocab=vocabulary))
    x = tape.kernel("cross_entropy_fwd", x, tokens=tokens, vocab=vocabulary)
    for number in ("maximum", "sum", "target") if degree > 1 else ():
        x = tape.graph.collective(
            "all_reduce",
            tokens * ITEM_BYTES["fp32"],
            group=_TENSOR,
            after=(x,),
            name=f"loss_{number}_all_reduce",
            priority=URGENT,
        )
    return x


def _finish(graph: GraphBuilder, rank: _Rank, gradients: Gradients) -> None:
    """Reduce the gradients that are left, then step the optimizer once they are final."""
    workload = rank.workload
    graph.phase = "gradients"
    for bucket in (rank.dense, rank.experts):
        gradients.flush(bucket)
    if workload.sequence_parallel and workload.tensor_parallel > 1:
        # Each rank normalised its own tokens only, so the norms' gradients are partial sums.
        size_bytes = workload.norm_parameters * workload.item_bytes
        gradients.final.append(
            graph.collective(
                "all_reduce", size_bytes, group=_TENSOR, after=gradients.final, name="norm_gradients_all_reduce"
            )
        )
    if workload.optimizer == "adamw":
        graph.phase = "optimizer"
        step = kernel("adamw_fused", dtype="fp32", parameters=gradients.num_parameters)
        graph.compute(step, after=gradients.final)
