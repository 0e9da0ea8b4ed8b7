"""Transformer decoders, dense or mixture-of-experts: the layers of one stage, forward and backward, for one rank.

Tensor parallelism cuts heads and feed-forward columns over ranks: each half of a layer ends with an all-reduce,
or, with sequence parallelism, begins with an all-gather and ends with a reduce-scatter. In decode every sequence makes
one token against a cache of `sequence` tokens. Layers, embedding and head are units of sharding each, see `units`.

Source: Megatron-LM, arXiv:1909.08053; Korthikanti et al., arXiv:2205.05198 (sequence parallelism, recompute).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from scaleout.program.graph import NONE, NodeRole
from scaleout.program.operations import ITEM_BYTES, kernel
from scaleout.workloads.generate.attention import Heads, attend, kept_tokens
from scaleout.workloads.generate.autograd_tape import URGENT, AutogradTape
from scaleout.workloads.generate.layers import (
    COPY_IN,
    GATHER_IN,
    GATHER_IN_AGAIN,
    GATHER_IN_ALONE,
    SCATTER_OUT,
    SUM_OUT,
    Buffer,
    Exchange,
    Layer,
    activated,
    again,
    dropout,
    exchange,
    forked,
    norm,
    phased,
    residual,
)  # fmt: skip
from scaleout.workloads.generate.linear import Linear
from scaleout.workloads.generate.units import Rank

if TYPE_CHECKING:
    from scaleout.workloads.families.transformer import Transformer


def layer(tape: AutogradTape, x: int, rank: "Rank[Transformer]", number: int) -> int:
    """Attention, then the feed-forward network, each added to what it reads; or both of the layer's input."""
    workload, label = rank.workload, f"layer_{number}"
    context = rank.axes.number("context") if workload.context_parallel > 1 else NONE
    window = workload.window_of(workload.layer_kind(number))
    heads = Heads(rank, context, window if window < workload.sequence else 0)
    blocks: Mapping[str, Layer] = {
        "attention": partial(attend, heads=heads, label=f"{label}_attention"),
        "feed_forward": partial(workload.write_feed_forward, rank=rank, number=number, label=f"{label}_feed_forward"),
    }
    if workload.halves != "one_after_the_other":
        both = partial(_in_parallel, rank=rank, blocks=blocks, label=label)
        whole = partial(residual, branch=partial(dropped, layer=both, rank=rank), elements=rank.elements)
        return phased(tape, x, whole, phase="layer")
    for phase, block in blocks.items():
        reads_shards = phase == "feed_forward" and workload.feed_forward_reads_shards(number)
        whole = partial(
            tensor_parallel, rank=rank, block=block, label=f"{label}_{phase}", reads_shards=reads_shards
        )  # fmt: skip
        half = partial(residual, branch=partial(dropped, layer=whole, rank=rank), elements=rank.elements)
        x = phased(tape, x, half, phase=phase)
    return x


def _in_parallel(
    tape: AutogradTape, x: int, rank: "Rank[Transformer]", blocks: Mapping[str, Layer], *, label: str
) -> int:
    """Run both halves of a layer on its input, and add their partial sums, which are then one exchange."""
    workload, out = rank.workload, SCATTER_OUT if rank.workload.sequence_parallel else SUM_OUT
    buffer = replace(rank.activations, shard=rank.elements if workload.sequence_parallel else 0)
    elements = workload.local_tokens * workload.hidden
    if workload.halves == "parallel_of_one_norm":
        x = _enter(tape, x, rank, buffer, label=label)
        halves = blocks
    else:
        halves = {
            phase: partial(_normalised, rank=rank, buffer=buffer, block=block, label=f"{label}_{phase}")
            for phase, block in blocks.items()
        }
    first, second = halves.values()
    x = forked(tape, x, (first, second), elements=elements)
    if workload.halves == "parallel_of_one_norm":
        _norm_again(tape, rank)
    if workload.tensor_parallel > 1:
        x = exchange(tape, x, out, buffer, name=label)
    return x


def _normalised(
    tape: AutogradTape, x: int, rank: "Rank[Transformer]", buffer: Buffer, block: Layer, *, label: str
) -> int:
    """Run a block on its input through a norm of its own."""
    x = block(tape, _enter(tape, x, rank, buffer, label=label))
    _norm_again(tape, rank)
    return x


def _enter(tape: AutogradTape, x: int, rank: "Rank[Transformer]", buffer: Buffer, *, label: str) -> int:
    """Normalise, and bring the whole activations to each tensor-parallel rank."""
    workload = rank.workload
    x = _norm(tape, x, rank)
    if workload.tensor_parallel == 1:
        return x
    return exchange(tape, x, _gather_in(workload) if workload.sequence_parallel else COPY_IN, buffer, name=label)


def dropped(tape: AutogradTape, x: int, layer: Layer, rank: "Rank[Transformer]") -> int:
    """Apply a layer, and dropout to its output where the model has it."""
    x = layer(tape, x)
    return dropout(tape, x, elements=rank.elements) if rank.workload.dropout and tape.gradients else x


def tensor_parallel(
    tape: AutogradTape, x: int, rank: "Rank[Transformer]", block: Layer, *, label: str, reads_shards: bool = False
) -> int:
    """Run a block whose weights are cut over the tensor axis on its normalised input: the whole, or a rank's shard."""
    workload = rank.workload
    if workload.tensor_parallel == 1 or reads_shards:
        x = block(tape, _norm(tape, x, rank))
        _norm_again(tape, rank)
    else:
        buffer = replace(rank.activations, shard=rank.elements if workload.sequence_parallel else 0)
        x = block(tape, _enter(tape, x, rank, buffer, label=label))
        _norm_again(tape, rank)
        out = SCATTER_OUT if workload.sequence_parallel else SUM_OUT
        x = exchange(tape, x, out, buffer, name=label)
    return _norm(tape, x, rank) if workload.post_norms else x


def _gather_in(workload: "Transformer") -> Exchange:
    if workload.gathers_beside:
        return GATHER_IN_ALONE
    return GATHER_IN if workload.keep_gathered else GATHER_IN_AGAIN


def _norm(tape: AutogradTape, x: int, rank: "Rank[Transformer]") -> int:
    """Normalise the hidden state; with sequence parallelism each tensor-parallel rank does so for its own tokens."""
    workload = rank.workload
    partial_sums = workload.sequence_parallel and workload.tensor_parallel > 1
    return norm(tape, x, workload.norm, (rank.tokens, workload.hidden), bucket=rank.dense, partial=partial_sums)


def _norm_again(tape: AutogradTape, rank: "Rank[Transformer]") -> None:
    """Make the output of a norm again in backward, before the block that reads it, if it was not kept."""
    if "norm" in rank.workload.recompute_modules:
        op = f"{rank.workload.norm}_fwd"
        again(tape, op, made=rank.elements, tokens=rank.tokens, hidden=rank.workload.hidden)


def feed_forward(tape: AutogradTape, x: int, rank: "Rank[Transformer]", label: str) -> int:
    """Two GEMMs with an activation between, their columns cut over the tensor axis."""
    workload = rank.workload
    width = workload.ffn // workload.tensor_parallel
    of = partial(Linear, tokens=workload.local_tokens, bucket=rank.dense, bias=workload.biases)
    kept = 0 if workload.halves == "parallel_of_one_norm" else kept_tokens(rank)  # attention keeps what both read
    first = of(
        name=f"{label}_1", inputs=workload.hidden, outputs=(width,) * workload.gates, kept_tokens=kept,
        gathered="input" if workload.sequence_parallel else "",
        beside=rank.activations if workload.gathers_beside else None,
    )  # fmt: skip
    second = of(
        name=f"{label}_2", inputs=width, outputs=workload.hidden, saved=workload.gates > 1,
        gathered="gradient" if workload.sequence_parallel else "",
        kept_tokens=0 if "activation" in workload.recompute_modules else None,
    )  # fmt: skip
    elements = workload.local_tokens * width
    return activated(tape, first.write(tape, x), workload.activation, elements=elements, layer=second.write)


def embedding(tape: AutogradTape, x: int, rank: "Rank[Transformer]") -> int:
    """Look tokens up; a rank that lacks a token's row gives zeros, and the tensor axis adds up.

    The gradient of a `tied` table is the sum of its own and of the head's, and final only then.
    """
    workload = rank.workload
    rows = workload.vocabulary // workload.tensor_parallel
    tape.enter("embedding")

    def backward(dy: int) -> int:
        tape.graph.enter("embedding_backward", NodeRole.BACKWARD)
        dw = tape.kernel("embedding_bwd", dy, tokens=workload.local_tokens, hidden=workload.hidden, vocab=rows)
        if rank.tied:
            dw = tape.kernel("add", dw, rank.tied.pop(), name="tied_gradients", elements=rows * workload.hidden)
        tape.accumulate_gradient(lambda node: node, dw, rows * workload.hidden, rank.dense)
        return dw

    if workload.vocabulary == 0:
        return x if workload.layers_only else tape.kernel("clone", x, name="input", elements=rank.elements)
    tape.push(backward, scratch_bytes=rows * workload.hidden * tape.item_bytes)
    tape.hold(rows * workload.hidden, rank.dense)
    x = tape.kernel("embedding_fwd", x, tokens=workload.local_tokens, hidden=workload.hidden)
    if workload.tensor_parallel > 1:
        out = SCATTER_OUT if workload.sequence_parallel else SUM_OUT
        x = exchange(tape, x, out, rank.activations, name="embedding")
    if workload.positions:
        x = _add_positions(tape, x, rank)
    return dropout(tape, x, elements=rank.elements) if workload.dropout and tape.gradients else x


def _add_positions(tape: AutogradTape, x: int, rank: "Rank[Transformer]") -> int:
    """Add a learnt vector to each token; its gradient is a sum over sequences, each rank's of its own tokens.

    The table is dense and whole on every tensor-parallel rank.
    """
    workload, elements = rank.workload, rank.elements
    num_parameters = workload.positions * workload.hidden

    def backward(dy: int) -> int:
        dw = tape.kernel("sum_all", dy, name="positions_gradient", elements=elements)
        tape.accumulate_gradient(lambda node: node, dw, num_parameters, rank.dense)
        return dy

    tape.hold(num_parameters, rank.dense, partial=workload.sequence_parallel and workload.tensor_parallel > 1)
    tape.push(backward, scratch_bytes=num_parameters * tape.item_bytes)
    return tape.kernel("add", x, name="positions", elements=elements)


def head(tape: AutogradTape, x: int, rank: "Rank[Transformer]") -> int:
    """Modules that predict further tokens, the last norm, the output projection, and the loss or the logits."""
    for number in range(rank.workload.predicted_ahead if tape.gradients else 0):
        x = _predict_ahead(tape, x, rank, number)
    return _to_vocabulary(tape, x, rank, shared=rank.tied)


def _predict_ahead(tape: AutogradTape, x: int, rank: "Rank[Transformer]", number: int) -> int:
    """Predict a token further ahead: a layer of what the hidden state and the next embedding become, and the head.

    Its loss has a gradient of its own, which is added to that of the hidden state. Embedding and head are shared.

    Source: DeepSeek-V3, arXiv:2412.19437, 2.2.
    """
    workload, own = rank.workload, tape.branch()
    tokens, hidden = rank.tokens, workload.hidden
    cut = workload.sequence_parallel and workload.tensor_parallel > 1
    rows = workload.vocabulary // workload.tensor_parallel

    def gradients(dy: int) -> int:
        dx = own.backward(NONE)
        return tape.kernel("add", dx, *{dy} - {NONE}, name="predicted_gradient", elements=rank.elements)

    tape.push(gradients, makes=rank.elements)
    own.push(lambda dy: tape.kernel("embedding_bwd", dy, tokens=tokens, hidden=hidden, vocab=rows) if rows else dy)
    y = own.kernel("embedding_fwd", x, tokens=tokens, hidden=hidden)
    for _ in ("hidden state", "embedding"):
        y = _norm(own, y, rank)
    project = Linear(
        name=f"predict_{number}", tokens=tokens, inputs=2 * hidden, outputs=hidden, bucket=rank.dense, partial=cut
    )
    y = workload.write_layer(own, project.write(own, y), rank, workload.layers + number)
    own.enter("head")
    _to_vocabulary(own, y, rank, shared=[])
    tape.save_for_backward(own.kept_bytes, 1)
    return x


def _to_vocabulary(tape: AutogradTape, x: int, rank: "Rank[Transformer]", *, shared: list[int] | None) -> int:
    """The last norm, the output projection over a rank's part of the vocabulary, and the loss or the logits."""
    workload = rank.workload
    if workload.layers_only:
        return x
    x = _norm(tape, x, rank)
    if workload.vocabulary == 0:
        return x
    if workload.tensor_parallel > 1:
        into = _gather_in(workload) if workload.sequence_parallel else COPY_IN
        x = exchange(tape, x, into, rank.activations, name="head")
    # Prefill needs the logits of each sequence's last token only.
    tokens = workload.microbatch_size if workload.mode == "prefill" else workload.local_tokens
    part = workload.vocabulary // workload.tensor_parallel
    projection = Linear(
        name="head", tokens=tokens, inputs=workload.hidden, outputs=part, bucket=rank.dense, shared=shared,
        kept_tokens=kept_tokens(rank), plain=True, bias=workload.head_bias,
        beside=rank.activations if workload.gathers_beside else None,
        placeholder_bytes=part * workload.hidden * tape.item_bytes if workload.placeholder_gradients else 0.0,
    )  # fmt: skip
    x = projection.write(tape, x)
    _norm_again(tape, rank)
    if workload.mode == "training":
        return _loss(tape, x, rank, tokens=tokens, vocabulary=part)
    if workload.tensor_parallel > 1:
        size_bytes = tokens * workload.vocabulary * workload.item_bytes
        x = tape.graph.collective(
            "all_gather", size_bytes, group=rank.activations.group, after=(x,), name="logits_all_gather",
            role=NodeRole.EXCHANGE,
        )  # fmt: skip
    return x


def _loss(tape: AutogradTape, x: int, rank: "Rank[Transformer]", *, tokens: int, vocabulary: int) -> int:
    """Cross entropy over a cut vocabulary: ranks exchange maximum, sum and the target's logit of each token."""
    degree, logits, elements, loss = rank.workload.tensor_parallel, x, tokens * vocabulary, rank.workload.loss
    if rank.workload.compiled and loss in ("unfused", "fp32"):
        loss = "fused"  # the compiler puts casts and reductions into one kernel that reads the logits, each way
    if loss == "in_place":  # the logits are their gradient until the GEMM before has used it
        tape.save_for_backward(elements)
    makes = 0 if loss == "in_place" else elements
    if loss == "vocabulary_parallel":
        tape.push(lambda dy: _in_fp32(tape, dy, ("mul_scalar", "cast_to_fp32"), elements=elements), makes=makes)
        x = _in_fp32(tape, x, _VOCABULARY_PARALLEL, elements=elements)
    else:
        op = "cross_entropy" if loss in ("unfused", "fp32") else "cross_entropy_fused"
        of = partial(kernel, dtype="fp32" if loss == "fp32" else tape.dtype, tokens=tokens, vocab=vocabulary)
        casts = ("cast_to_fp32",) if loss == "fp32" else ()
        tape.push(
            lambda dy: _in_fp32(tape, tape.add(of(f"{op}_bwd"), dy, name=f"{op}_bwd"), casts, elements=elements),
            makes=makes, scratch_bytes=_scratch_bytes(rank.workload, loss, elements),
        )  # fmt: skip
        x = tape.add(of(f"{op}_fwd"), _in_fp32(tape, x, casts, elements=elements), name=f"{op}_fwd")
    if loss != "in_place":
        narrow = (rank.workload.transient_memory and loss == "unfused") or (rank.workload.compiled and loss == "fused")
        tape.save_for_backward(elements, None if narrow else ITEM_BYTES["fp32"])
    for _ in range(rank.workload.logged_losses):
        tape.kernel("cast_to_fp32", logits, name="logged_logits", elements=elements)
        tape.graph.compute(kernel("softmax_fwd", dtype="fp32", tokens=tokens, keys=vocabulary), after=(logits,))
    for number in ("maximum", "sum", "target") if degree > 1 else ():
        x = tape.graph.collective(
            "all_reduce", tokens * ITEM_BYTES["fp32"], group=rank.activations.group, after=(x,),
            name=f"loss_{number}_all_reduce", priority=URGENT, role=NodeRole.EXCHANGE,
        )  # fmt: skip
    return x


def _scratch_bytes(workload: "Transformer", loss: str, elements: int) -> float:
    """Return what PyTorch's backward of a loss makes beside the logits' gradient: those of both its operations."""
    if loss == "fp32":
        return (2 * ITEM_BYTES["fp32"] - workload.item_bytes) * elements
    return workload.item_bytes * elements if loss == "unfused" else 0.0


_VOCABULARY_PARALLEL = ("cast_to_fp32", "sum_all", "mul_scalar", "mul_scalar", "sum_all", "mul_scalar")
"""What Megatron-LM's cross entropy runs over all logits: to fp32, maximum, difference, exponential, sum, quotient."""


def _in_fp32(tape: AutogradTape, x: int, ops: Sequence[str], *, elements: int) -> int:
    """Write kernels that work on fp32, and casts between that and the model's type."""
    for op in ops:
        call = kernel(op, dtype=tape.dtype if op == "cast_to_fp32" else "fp32", elements=elements)
        x = tape.add(call, x, name=f"cross_entropy_{op}")
    return x
