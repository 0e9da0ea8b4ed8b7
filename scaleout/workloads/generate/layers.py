"""Layers: forward kernels now, backward kernels when the tape is played, and the bytes kept in between.

A generator calls a layer with the node that makes its input and gets the node that makes its output.

Symbols: x node that makes an input, y an output; dx and dy nodes that make their gradients.
Source: Megatron-LM, arXiv:1909.08053 (f and g operators); Korthikanti et al., arXiv:2205.05198 (what is kept);
Chen et al., arXiv:1604.06174 (checkpoints).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from scaleout.program.graph import NodeRole
from scaleout.program.operations import kernel
from scaleout.workloads.config.style import CASTS
from scaleout.workloads.generate.autograd_tape import URGENT, AutogradTape, Bucket

Layer = Callable[[AutogradTape, int], int]
"""From the node that makes an input to the node that makes the output."""


def gemm(
    tape: AutogradTape, x: int, sizes: tuple[int, int, int], *, name: str, groups: int = 0, dtype: str | None = None
) -> int:
    """Multiply two activations, (m, k) by (k, n), of each group if there are some: one GEMM forward, two backward.

    They take as long as GEMMs of a `dtype`, of the tape's if none is given.
    """
    m, n, k = sizes
    op, of = ("batched_gemm", {"groups": groups}) if groups else ("gemm", {})
    made = partial(kernel, op, dtype=dtype or tape.dtype, **of)

    def backward(dy: int) -> int:
        dx = tape.add(made(M=m, N=k, K=n), dy, name=f"{name}_left_gradient")
        return tape.add(made(M=k, N=n, K=m), dx, name=f"{name}_right_gradient")

    tape.push(backward, makes=max(groups, 1) * (m * k + n * k))
    return tape.add(made(M=m, N=n, K=k), x, name=name)


def pointwise(
    tape: AutogradTape,
    x: int,
    kernels: tuple[str, str],
    *,
    name: str = "",
    makes: float = 0.0,
    role: int = 0,
    **shape: int,
) -> int:
    """A kernel without parameters, and its backward of the same shape, which `makes` a gradient of so many elements.

    Attention is one of the operations whose results are kept where those of operations are.
    """
    forward, backward = kernels
    tape.push(lambda dy: tape.kernel(backward, dy, name=f"{name or forward}_gradient", role=role, **shape), makes=makes)
    if tape.saved and forward.startswith("attention"):
        return x
    return tape.kernel(forward, x, name=name or forward, role=role, **shape)


def norm(
    tape: AutogradTape, x: int, kind: str, shape: tuple[int, int], *, bucket: Bucket, partial: bool = False
) -> int:
    """Layer normalisation (a scale and a shift to learn) or RMS normalisation (a scale); `shape` is tokens by width.

    Of `partial` ones each tensor-parallel rank sees its own tokens only, so that their gradients are partial sums.
    """

    def backward(dy: int) -> int:
        dx = tape.kernel(f"{kind}_bwd", dy, tokens=tokens, hidden=hidden)
        tape.accumulate_gradient(lambda node: node, dx, num_parameters, bucket, biases)
        return dx

    tokens, hidden = shape
    biases = hidden if kind == "layer_norm" else 0
    num_parameters = hidden + biases
    tape.hold(num_parameters, bucket, biases=biases, partial=partial)
    tape.push(backward, makes=tokens * hidden)
    tape.save_for_backward(tokens * hidden)
    return tape.kernel(f"{kind}_fwd", x, tokens=tokens, hidden=hidden)


def residual(tape: AutogradTape, x: int, branch: Layer, *, elements: int) -> int:
    """``y = x + branch(x)``; backward, the two gradients are added where the branch began."""
    skipped: list[int] = []

    add, add_gradient = ("add_fused_fwd", "add_fused_bwd") if tape.style.compiled else ("add", "add")

    def join(dx: int) -> int:
        return tape.kernel(add_gradient, dx, skipped.pop(), name="residual_gradient", elements=elements)

    def fork(dy: int) -> int:
        skipped.append(dy)
        return dy

    tape.push(join, makes=elements, aside=-elements)
    y = branch(tape, x)
    tape.push(fork, aside=elements)
    return tape.kernel(add, y, x, name="residual", elements=elements)


def forked(tape: AutogradTape, x: int, branches: tuple[Layer, Layer], *, elements: int) -> int:
    """``y = f(x) + g(x)``; backward, both gradients of the input are added where the branches began."""
    skipped: list[int] = []
    add, add_gradient = ("add_fused_fwd", "add_fused_bwd") if tape.style.compiled else ("add", "add")
    made: list[int] = []

    def join(dx: int) -> int:
        return tape.kernel(add_gradient, dx, made.pop(), name="branch_gradient", elements=elements)

    def turn(dx: int) -> int:
        made.append(dx)
        return skipped.pop()

    def fork(dy: int) -> int:
        skipped.append(dy)
        return dy

    first, second = branches
    tape.push(join, makes=elements, aside=-elements)
    one = first(tape, x)
    tape.push(turn)
    other = second(tape, x)
    tape.push(fork, aside=elements)
    return tape.kernel(add, one, other, name="branches", elements=elements)


def dropout(tape: AutogradTape, x: int, *, elements: int) -> int:
    """Drop elements at random; a mask of one byte an element is kept."""
    y = pointwise(tape, x, ("dropout_fwd", "dropout_bwd"), name="dropout", makes=elements, elements=elements)
    tape.save_for_backward(elements, 1)
    return y


def activation(tape: AutogradTape, x: int, kind: str, *, elements: int) -> int:
    """GELU, or SwiGLU or GeGLU: SiLU or GELU of one half of the input times the other; `elements` counts the output."""
    _, backward, inputs = _ACTIVATIONS[kind]
    forward = _forward_of(kind, tape)
    packed = tape.style.packed and inputs > 1
    if packed:
        tape.push(
            lambda dy: tape.kernel("clone", dy, name=f"{kind}_gradients_side_by_side", elements=inputs * elements)
        )
    y = pointwise(tape, x, (forward, backward), makes=inputs * elements, elements=elements)
    halves_apart = inputs > 1 and (tape.style.packed or (tape.style.separate and not tape.style.compiled))
    tape.save_for_backward((inputs + halves_apart) * elements, tape.style.kept_item_bytes)  # what is multiplied, too
    return y


def activated(tape: AutogradTape, x: int, kind: str, *, elements: int, layer: Layer) -> int:
    """Apply an activation, and a GEMM to what it makes, which is made again in backward where it is not kept."""
    y = layer(tape, activation(tape, x, kind, elements=elements))
    if "activation" in tape.style.recomputed:
        again(tape, _forward_of(kind, tape), made=elements, elements=elements)
    return y


def _forward_of(kind: str, tape: AutogradTape) -> str:
    op = _ACTIVATIONS[kind][0]
    return op.removesuffix("_unfused") if tape.style.compiled else op


def again(tape: AutogradTape, op: str, *, made: int, **shape: int) -> None:
    """Make a module's output of so many elements again where backward comes by, ahead of what reads it."""
    if tape.gradients is None:
        return
    size_bytes = made * tape.item_bytes
    tape.recompute_bytes = max(tape.recompute_bytes, size_bytes)
    tape.all_recompute_bytes += size_bytes
    tape.push(lambda dy: tape.kernel(op, dy, name=f"{op}_again", role=NodeRole.RECOMPUTE, **shape))


_ACTIVATIONS = {"gelu": ("gelu_fwd", "gelu_bwd", 1)} | dict.fromkeys(
    ("swiglu", "geglu"), ("swiglu_fwd_unfused", "swiglu_bwd", 2)
)
"""Kind to forward and backward kernels, and inputs for each output."""


def phased(tape: AutogradTape, x: int, layer: Layer, *, phase: str) -> int:
    """Apply a layer as a phase of its own, forward and backward."""

    def enter(dy: int) -> int:
        tape.graph.enter(f"{phase}_backward", NodeRole.BACKWARD)
        return dy

    tape.enter(phase)
    y = layer(tape, x)
    tape.push(enter)
    return y


def checkpoint(
    tape: AutogradTape, x: int, layer: Layer, *, kept_elements: int, stop_early: bool = False, saved: bool = False
) -> int:
    """Apply a layer of which only the input is kept: backward recomputes it first.

    With `stop_early` that ends with the last node that makes something to be kept; with `saved` the results of some
    operations are kept as well, and those operations left out.
    """
    if tape.gradients is None:
        return layer(tape, x)
    forward = tape.branch()
    y = layer(forward, x)
    tape.recompute_bytes = max(tape.recompute_bytes, forward.kept_bytes + forward.recompute_bytes)
    tape.all_recompute_bytes += forward.kept_bytes + forward.all_recompute_bytes

    def backward(dy: int) -> int:
        second, phase, role, begin = tape.recompute(saved=saved), tape.graph.phase, tape.graph.role, len(tape.graph)
        second.enter(phase.removesuffix("_backward"))
        y = layer(second, dy)
        if stop_early and second.needed > begin:
            tape.graph.shorten(second.needed)
            y = second.needed - 1
        tape.graph.enter(phase, role)
        return second.backward(y)

    tape.push(backward, makes=kept_elements, scratch_bytes=forward.transient_bytes(kept_elements * tape.item_bytes))
    tape.save_for_backward(kept_elements)
    if saved:
        tape.save_for_backward(forward.operations_bytes, 1)
    return y


@dataclass(frozen=True)
class Exchange:
    """A collective forward, and the collectives that are its backward, in order; either may be nothing."""

    forward: str | None
    backward: Sequence[str] = ()


COPY_IN = Exchange(None, ("all_reduce",))  # Megatron's f: every rank has the input, its gradient is a sum
SUM_OUT = Exchange("all_reduce")  # Megatron's g
GATHER_IN = Exchange("all_gather", ("reduce_scatter",))
GATHER_IN_AGAIN = Exchange("all_gather", ("all_gather", "reduce_scatter"))  # the input is kept in parts
GATHER_IN_ALONE = Exchange("all_gather")  # whose backward the GEMM writes that takes it
SCATTER_OUT = Exchange("reduce_scatter", ("all_gather",))
WHOLE_IN = Exchange("all_gather")  # the gradient is sent in parts
WHOLE_OUT = Exchange(None, ("all_gather",))
SHUFFLE = Exchange("all_to_all", ("all_to_all",))


@dataclass(frozen=True)
class Buffer:
    """What ranks communicate, over a group that is given by the index of its family."""

    size_bytes: int
    group: int
    degree: int = 1  # ranks of the group, each of which has such a part of a scattered gradient
    shard: int = 0  # elements of a rank's part that are cast before they are gathered where the style says so


def exchange(tape: AutogradTape, x: int, kinds: Exchange, buffer: Buffer, *, name: str) -> int:
    """Communicate a buffer over its group, forward and backward."""
    size_bytes = buffer.size_bytes

    def communicate(kind: str, node: int, suffix: str, *, kept: bool = False) -> int:
        moved = size_bytes
        if kind == "all_gather" and buffer.shard and tape.style.gathers_fp8:
            moved //= tape.item_bytes
            for op in () if kept else CASTS[tape.style.linear_dtype]:  # what was kept was cast then
                node = tape.kernel(op, node, name=f"{name}_{op}{suffix}", role=NodeRole.EXCHANGE, elements=buffer.shard)
        return tape.graph.collective(
            kind, moved, group=buffer.group, after=(node,), name=f"{name}_{kind}{suffix}", priority=URGENT,
            role=NodeRole.EXCHANGE,
        )  # fmt: skip

    def backward(dy: int) -> int:
        for kind in kinds.backward:
            dy = communicate(kind, dy, "_gradient", kept=kinds.forward == kind)
        return dy

    made_bytes = {"reduce_scatter": size_bytes / buffer.degree, "all_reduce": 0.0}.get(
        (kinds.backward or ("",))[-1], size_bytes
    )
    recompute_bytes = size_bytes if len(kinds.backward) > 1 else 0.0
    tape.push(backward, makes=made_bytes / tape.item_bytes, scratch_bytes=recompute_bytes)
    if kinds.forward is None or (tape.saved and kinds.forward == "reduce_scatter"):
        return x
    return communicate(kinds.forward, x, "")
