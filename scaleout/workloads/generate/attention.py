"""Attention of one rank: projections, scores and values of its heads, over its part of the sequence.

Under context parallelism each rank has one early and one late part of every sequence, so that causal attention is
balanced. Keys and values go round a ring while attention computes, or are gathered first; or all-to-alls exchange
tokens for heads (Ulysses).

Source: Liu et al., ring attention, arXiv:2310.01889; Llama 3, arXiv:2407.21783, 3.3.2 (all-gather); Jacobs et al.,
DeepSpeed-Ulysses, arXiv:2309.14509; DeepSeek-V2, arXiv:2405.04434 (latent); Korthikanti et al., arXiv:2205.05198.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from scaleout.program.graph import NONE, NodeKind, NodeRole
from scaleout.program.operations import ITEM_BYTES, kernel
from scaleout.workloads.generate.autograd_tape import URGENT, AutogradTape
from scaleout.workloads.generate.layers import (
    GATHER_IN,
    SHUFFLE,
    Buffer,
    Exchange,
    checkpoint,
    dropout,
    exchange,
    gemm,
    norm,
    pointwise,
)  # fmt: skip
from scaleout.workloads.generate.linear import Linear

if TYPE_CHECKING:
    from scaleout.workloads.families.transformer import Transformer
    from scaleout.workloads.generate.units import Rank


def kept_tokens(rank: "Rank[Any]") -> int:
    """Tokens of a tensor-parallel block's input that are kept for backward; none where its norm is recomputed."""
    workload: Transformer = rank.workload
    if "norm" in workload.recompute_modules:
        return 0
    return workload.local_tokens if workload.keep_gathered else rank.tokens


@dataclass(frozen=True)
class Heads:
    """The heads of a rank, and the family of groups along the context axis."""

    rank: "Rank[Transformer]"
    context: int = NONE
    window: int = 0  # keys that a token attends to at most; 0 if all
    repeated: bool = False  # whether keys and values have been copied for all query heads

    @property
    def workload(self) -> "Transformer":
        """The model, and how it is cut."""
        return self.rank.workload

    @property
    def heads(self) -> int:
        """Query heads of the rank."""
        return self.workload.heads // self.workload.tensor_parallel

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values of the rank."""
        return self.heads if self.repeated else self.workload.key_value_heads // self.workload.tensor_parallel

    @property
    def all_elements(self) -> int:
        """Elements of queries, keys and values of the rank's tokens and heads."""
        latent, tokens = self.workload.latent, self.workload.local_tokens
        if latent is not None:
            return tokens * self.heads * (2 * latent.key_dim + latent.value_dim)
        return tokens * self.heads * self.workload.head_dim + self.workload.key_value_elements


def attend(tape: AutogradTape, x: int, heads: Heads, label: str) -> int:
    """Query, key and value projections, attention, and the output projection, for a rank's heads."""
    workload, latent = heads.workload, heads.workload.latent
    x = (_project if latent is None else _project_latent)(tape, x, heads, label)
    width = heads.heads * (workload.head_dim if latent is None else latent.value_dim)
    x = _scores(tape, x, heads)
    tokens = workload.local_tokens
    if latent is not None and workload.mode == "decode":
        x = _of_heads(heads, f"{label}_latent_to_value", latent.key_value_rank, latent.value_dim).write(tape, x)
    output = Linear(
        name=f"{label}_output", tokens=tokens, inputs=width, outputs=workload.hidden, bucket=heads.rank.dense,
        bias=workload.biased == "all", saved=False, gathered="gradient" if workload.sequence_parallel else "",
    )  # fmt: skip
    return output.write(tape, x)


def _project(tape: AutogradTape, x: int, heads: Heads, label: str) -> int:
    workload = heads.workload
    width, kv_width = heads.heads * workload.head_dim, heads.kv_heads * workload.head_dim
    projections = Linear(
        name=f"{label}_qkv", tokens=workload.local_tokens, inputs=workload.hidden, outputs=(width, kv_width, kv_width),
        bucket=heads.rank.dense, kept_tokens=kept_tokens(heads.rank), bias=workload.biased != "none",
        gathered="input" if workload.sequence_parallel else "",
        beside=heads.rank.activations if workload.gathers_beside else None,
    )  # fmt: skip
    x = projections.write(tape, x)
    tape.save_for_backward(workload.local_tokens * (width + 2 * kv_width))
    if workload.layout_copies and not workload.compiled and workload.mode == "training":
        tape.push(partial(_put_together, tape, heads))
    for number in (heads.heads, heads.kv_heads) if workload.query_key_norm else ():
        shape = (workload.local_tokens * number, workload.head_dim)
        x = norm(tape, x, workload.norm, shape, bucket=heads.rank.dense, partial=workload.tensor_parallel > 1)
    if tape.style.packed:
        x = _pack(tape, x, heads.all_elements, workload.key_value_elements)
    if workload.rotary:
        together = workload.rotary == "fused" or tape.style.compiled or not workload.rotary_fp32
        for hidden in (width + kv_width,) if together else (width, kv_width):
            makes = heads.all_elements * hidden // (width + kv_width)
            x = _rotate(tape, x, workload, tokens=workload.local_tokens, hidden=hidden, makes=makes)
    return x


def _pack(tape: AutogradTape, x: int, elements: int, key_value_elements: int) -> int:
    """Copy all heads batch first, then keys and values side by side, by head; backward, put gradients back together."""
    copied = partial(pointwise, tape, kernels=("clone", "clone"))
    x = copied(x, name="heads_batch_first", elements=elements)
    tape.push(lambda dy: tape.kernel("clone", dy, name="heads_batch_first_gradient_unbind", elements=elements))
    for name in ("keys_with_values", "keys_with_values_by_head"):
        x = tape.kernel("clone", x, name=name, elements=key_value_elements)
    tape.push(lambda dy: tape.kernel("clone", dy, name="keys_with_values_gradient", elements=key_value_elements))
    return x


def _rotate(tape: AutogradTape, x: int, workload: "Transformer", *, tokens: int, hidden: int, makes: int = 0) -> int:
    """Rotate queries and keys by their positions; backward rotates back."""
    unfused = ("rope_fp32_fwd", "rope_fp32_bwd") if workload.rotary_fp32 else ("rope_fwd_unfused", "rope_bwd")
    kernels = ("rope_fwd", "rope_fwd") if workload.rotary == "fused" or tape.style.compiled else unfused
    return pointwise(tape, x, kernels, makes=makes, tokens=tokens, hidden=hidden)


def _put_together(tape: AutogradTape, heads: Heads, dy: int) -> int:
    """Copy the gradients of queries, keys and values side by side, and then into the layout of the GEMM."""
    workload = heads.workload
    for op in ("heads_cat", "heads_to_rows"):
        dy = tape.kernel(
            op, dy, batch=workload.microbatch_size, heads=heads.heads + 2 * heads.kv_heads,
            seq=workload.local_sequence, head_dim=workload.head_dim,
        )  # fmt: skip
    return dy


def _project_latent(tape: AutogradTape, x: int, heads: Heads, label: str) -> int:
    """Project down to the ranks of queries and of keys and values, together; normalise; project up to the heads."""
    workload, latent, tokens = heads.workload, heads.workload.latent, heads.workload.local_tokens
    assert latent is not None
    of = partial(Linear, tokens=tokens, bucket=heads.rank.dense)
    kept = kept_tokens(heads.rank)
    if latent.query_rank is None:  # of the input that the projection down keeps
        query = of(name=f"{label}_query", inputs=workload.hidden, kept_tokens=0, outputs=heads.heads * latent.key_dim)
        x = query.write(tape, x)
    down = of(
        name=f"{label}_down", inputs=workload.hidden, outputs=latent.low_rank + latent.rotary_dim, kept_tokens=kept
    )
    x = down.write(tape, x)
    project = partial(_project_up, heads=heads, label=label)
    if workload.recompute == "up_projections":
        return checkpoint(tape, x, project, kept_elements=tokens * (latent.low_rank + latent.rotary_dim))
    return project(tape, x)


def _project_up(tape: AutogradTape, x: int, heads: Heads, label: str) -> int:
    """Normalise what heads are made from, project it up to them, and rotate."""
    workload, latent, tokens = heads.workload, heads.workload.latent, heads.workload.local_tokens
    assert latent is not None
    of = partial(Linear, tokens=tokens, bucket=heads.rank.dense)
    x = norm(tape, x, workload.norm, (tokens, latent.low_rank), bucket=heads.rank.dense)
    if latent.query_rank is not None:
        inputs, outputs = latent.query_rank, heads.heads * latent.key_dim
        x = of(name=f"{label}_query_up", inputs=inputs, outputs=outputs).write(tape, x)
    if workload.mode == "decode":  # absorbed: queries come to the cache, not keys and values to the heads
        x = _of_heads(heads, f"{label}_query_to_latent", latent.plain_dim, latent.key_value_rank).write(tape, x)
        tape.save_for_backward(tokens * heads.heads * (latent.key_value_rank + latent.rotary_dim))
        return _rotate(tape, x, workload, tokens=tokens, hidden=(heads.heads + 1) * latent.rotary_dim)
    outputs = heads.heads * (latent.plain_dim + latent.value_dim)
    x = of(name=f"{label}_key_value_up", inputs=latent.key_value_rank, outputs=outputs).write(tape, x)
    tape.save_for_backward(heads.all_elements)
    x = _rotate(tape, x, workload, tokens=tokens, hidden=(heads.heads + 1) * latent.rotary_dim)
    if latent.put_together:
        elements = heads.all_elements
        x = pointwise(tape, x, ("clone", "clone"), name="heads_together", makes=elements, elements=elements)
    return x


def _of_heads(heads: Heads, name: str, inputs: int, outputs: int) -> Linear:
    """A matrix of each head, in the data type: servers multiply by dequantised ones."""
    tokens, bucket = heads.workload.local_tokens, heads.rank.dense
    return Linear(
        name=name,
        groups=heads.heads,
        tokens=tokens,
        inputs=inputs,
        outputs=outputs,
        bucket=bucket,
        plain=True,
        accumulates=False,
    )


def _scores(tape: AutogradTape, x: int, heads: Heads) -> int:
    workload = heads.workload
    if workload.attention_sinks:
        _hold_sinks(tape, heads)
    if workload.mode == "decode":
        of = partial(tape.kernel, batch=workload.microbatch_size, heads=heads.heads)
        if workload.latent is not None:
            rank, rotary = workload.latent.key_value_rank, workload.latent.rotary_dim
            x = _write_to_cache(tape, x, heads, rank + rotary)
            return of("attention_decode_latent", x, kv_seq=workload.sequence, rank=rank, rotary=rotary)
        widths = [heads.kv_heads * workload.head_dim] * 2
        x = _write_to_cache(tape, x, heads, *(widths if workload.separate_projections else [sum(widths)]))
        kv_seq = heads.window or workload.sequence
        return of("attention_decode", x, kv_heads=heads.kv_heads, kv_seq=kv_seq, head_dim=workload.head_dim)
    if workload.context_parallel > 1:
        ways = {"ring": _ring, "all_gather": _gathered, "all_gather_steps": _in_steps, "ulysses": _ulysses}
        return ways[workload.context_exchange](tape, x, heads)
    if workload.repeat_heads and heads.kv_heads < heads.heads:
        x, heads = _repeat(tape, x, heads)
    if workload.attention != "unfused":
        return _flash(tape, x, heads)
    core = partial(_unfused, heads=heads)
    return checkpoint(tape, x, core, kept_elements=0) if workload.recompute == "selective" else core(tape, x)


def _write_to_cache(tape: AutogradTape, x: int, heads: Heads, *widths: int) -> int:
    """Write what is kept of each sequence's new token into the cache, by a kernel for each of some widths."""
    for width in widths:
        x = tape.kernel("cache_write", x, tokens=heads.workload.local_tokens, hidden=width)
    return x


def _repeat(tape: AutogradTape, x: int, heads: Heads) -> tuple[int, Heads]:
    """Copy keys and values for all query heads; backward, gradients of the copies are added up. The copies are kept."""
    workload, times = heads.workload, heads.heads // heads.kv_heads
    sizes = {"heads": heads.kv_heads, "head_dim": workload.head_dim, "times": times}
    made = workload.local_tokens * heads.kv_heads * workload.head_dim
    for name in ("keys_repeat", "values_repeat"):
        kernels = ("heads_repeat", "heads_sum")
        x = pointwise(tape, x, kernels, name=name, makes=made, tokens=workload.local_tokens, **sizes)
    tape.save_for_backward(2 * (times - 1) * made)
    return x, replace(heads, repeated=True)


def _hold_sinks(tape: AutogradTape, heads: Heads) -> None:
    """Hold a score of each head, which the kernels of attention read; its gradient is a sum over tokens."""
    elements, bucket = heads.workload.local_tokens * heads.heads, heads.rank.dense

    def gradient(dy: int) -> int:
        def made(node: int) -> int:
            return tape.kernel("sum_all", *{node} - {NONE}, name="sinks_gradient", elements=elements)

        tape.accumulate_gradient(made, dy, heads.heads, bucket)
        return dy

    tape.hold(heads.heads, bucket)
    tape.push(gradient)


def _flash(tape: AutogradTape, x: int, heads: Heads, *, times: int = 1, ulysses: int = 1) -> int:
    """One kernel; queries meet the keys of `times` as many sequences. The sums of a row's scores are kept."""
    workload = heads.workload
    of = partial(
        pointwise, tape, x, batch=times * workload.microbatch_size, heads=heads.heads // ulysses,
        seq=ulysses * workload.local_sequence, head_dim=workload.score_dim, makes=heads.all_elements,
    )  # fmt: skip
    if heads.window:
        x = of(("attention_window_fwd", "attention_window_bwd"), kv_heads=heads.kv_heads, window=heads.window)
        tape.save_for_backward(workload.local_tokens * heads.heads, 4)
        return x
    of = partial(of, causal=int(workload.causal))
    if workload.attention == "triton":
        x = of(("attention_triton_fwd", "attention_triton_bwd"))
    elif workload.attention == "flash2":
        x = of(("attention_fa2_fwd", "attention_fa2_bwd"), kv_heads=heads.kv_heads // ulysses)
    elif heads.kv_heads == heads.heads:
        x = of(("attention_fwd", "attention_bwd"))
    else:
        x = of(("attention_gqa_fwd", "attention_gqa_bwd"), kv_heads=heads.kv_heads // ulysses)
    tape.save_for_backward(workload.local_tokens * heads.heads, 4)
    return x


def _unfused(tape: AutogradTape, x: int, heads: Heads) -> int:
    """Scores, softmax and values one after the other; the scores' mask saves no GEMM.

    Megatron's fused softmax reads a row of a causal mask up to its own token, four elements at a time, and writes it
    whole; backward, too, in one kernel, where PyTorch multiplies first (scaled_upper_triang_masked_softmax.h).
    """
    workload = heads.workload
    rows = workload.microbatch_size * heads.heads * workload.sequence
    aligned = workload.unaligned_heads == "matrix_units" or workload.score_dim * workload.item_bytes % 16 == 0
    product = partial(gemm, dtype=None if aligned else "fp32")
    x = product(tape, x, (rows, workload.sequence, workload.score_dim), name="attention_scores")
    if workload.microbatch_size * heads.heads % _FUSED_HEADS == 0:
        tape.save_for_backward(rows * workload.sequence)
        masked = "softmax_causal" if workload.causal else "softmax"
        kernels = (f"{masked}_fwd", f"{masked}_bwd")
        x = pointwise(tape, x, kernels, name="softmax", tokens=rows, keys=workload.sequence)
    else:
        x = _softmax_in_fp32(tape, x, rows, workload.sequence)
    if workload.dropout:
        x = dropout(tape, x, elements=rows * workload.sequence)
        tape.save_for_backward(rows * workload.sequence)
    return product(tape, x, (rows, workload.score_dim, workload.sequence), name="attention_values")


_FUSED_HEADS = 4
"""Heads times sequences of which Megatron's fused softmax takes a multiple (megatron/model/fused_softmax.py)."""


def _softmax_in_fp32(tape: AutogradTape, x: int, rows: int, keys: int) -> int:
    """Scores to fp32, scale, mask, softmax and the cast back, one by one; probabilities are kept in fp32."""
    elements = rows * keys
    cast = kernel("cast_to_fp32", dtype=tape.dtype, elements=elements)  # back it moves as many bytes
    scale = kernel("mul_scalar", dtype="fp32", elements=elements)
    softmax, gradient = (kernel(op, dtype="fp32", tokens=rows, keys=keys) for op in ("softmax_fwd", "softmax_bwd"))
    tape.save_for_backward(elements, 4)
    steps = {"to_fp32": (cast, cast), "scale": (scale, scale), "mask": (scale, scale), "softmax": (softmax, gradient)}
    for name, (forward, backward) in {**steps, "from_fp32": (cast, cast)}.items():
        tape.push(partial(tape.add, backward, name=f"{name}_gradient"), makes=4 / tape.item_bytes * elements)
        x = tape.add(forward, x, name=name)
    return x


def _ulysses(tape: AutogradTape, x: int, heads: Heads) -> int:
    """Exchange tokens for heads, attend, and exchange back; both times rows are put in order before and after."""
    workload = heads.workload

    def exchanged(node: int, elements: int, name: str) -> int:
        in_order = partial(
            pointwise, tape, kernels=("clone", "clone"), makes=elements, role=NodeRole.EXCHANGE,
            elements=elements,
        )  # fmt: skip
        node = in_order(node, name=f"{name}_by_rank")
        node = exchange(tape, node, SHUFFLE, Buffer(elements * tape.item_bytes, heads.context), name=name)
        return in_order(node, name=f"{name}_by_token")

    x = exchanged(x, heads.all_elements, "heads_out")
    x = _flash(tape, x, heads, ulysses=workload.context_parallel)
    output = workload.local_tokens * heads.heads * workload.head_dim
    tape.save_for_backward(output)  # before it is exchanged back, as the next GEMM keeps it after
    return exchanged(x, output, "heads_back")


def _gathered(tape: AutogradTape, x: int, heads: Heads) -> int:
    """All-gather keys and values of the whole sequences, then attend to them."""
    degree = heads.workload.context_parallel
    buffer = Buffer(degree * heads.workload.key_value_elements * tape.item_bytes, heads.context)
    x = exchange(tape, x, GATHER_IN, buffer, name="keys_and_values")
    tape.save_for_backward((degree - 1) * heads.workload.key_value_elements)
    return _flash(tape, x, heads, times=degree)


def _in_steps(tape: AutogradTape, x: int, heads: Heads) -> int:
    """All-gather keys and values of all heads, attend to each rank's after the other, and merge; all in fp32."""
    workload, degree = heads.workload, heads.workload.context_parallel
    elements = workload.local_tokens * heads.heads * workload.head_dim
    for kinds, item_bytes in (
        (Exchange(None, ("reduce_scatter",)), ITEM_BYTES["fp32"]),
        (Exchange("all_gather"), tape.item_bytes),
    ):
        buffer = Buffer(degree * 2 * elements * item_bytes, heads.context)
        x = exchange(tape, x, kinds, buffer, name="keys_and_values")
    tape.save_for_backward((degree - 1) * 2 * elements)
    x = _flash(tape, x, heads)
    for _ in range(degree - 1):
        x = _flash(tape, x, heads)
        x = pointwise(tape, x, ("merge_partials_fwd", "merge_partials_bwd"), elements=elements)
    return x


def _ring(tape: AutogradTape, x: int, heads: Heads) -> int:
    """Send keys and values on to the next rank while attending to those at hand; backward, their gradients as well."""
    degree = heads.workload.context_parallel
    size_bytes = heads.workload.key_value_elements * tape.item_bytes
    steps = [tape.branch() for _ in range(degree)]

    def send_around(node: int, size: int, attend_to: Sequence[Callable[[int], int]]) -> int:
        arrived = node
        for number, step in enumerate(attend_to):
            ready = (arrived, node)
            following = _pass_on(tape, ready, size, heads.context, tag=number) if number < degree - 1 else NONE
            tape.cursor.waits = (arrived,) if arrived != node else ()
            node = step(node)
            arrived = following
        return node

    tape.push(lambda dy: send_around(dy, 2 * size_bytes, [step.backward for step in reversed(steps)]))
    x = send_around(x, size_bytes, [partial(_flash, step, heads=heads) for step in steps])
    tape.save_for_backward(heads.workload.local_tokens * heads.heads, 4)
    return x


def _pass_on(tape: AutogradTape, ready: tuple[int, int], size_bytes: int, context: int, *, tag: int) -> int:
    """Send a buffer to the next rank of the context axis, and return the node that has the previous one's."""
    columns = {"bytes": size_bytes, "group": context, "tag": tag, "priority": URGENT, "role": NodeRole.EXCHANGE}
    tape.graph.add(ready, name="keys_and_values_send", kind=NodeKind.SEND, peer=1, **columns)
    return tape.graph.add(ready, name="keys_and_values_recv", kind=NodeKind.RECV, peer=-1, **columns)
