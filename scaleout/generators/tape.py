"""Layers that write their forward kernels at once and their backward kernels when the tape is played back.

A generator calls a layer with the node that makes its input and gets the node that makes its output; the layer
pushes onto the tape what backward must do. `Tape.backward` then plays the tape from the end, as autograd does.
Gradients that are ready go into buckets, each all-reduced as soon as it is full, as PyTorch's DDP does.

Symbols: x node that makes an input, y an output; dx and dy nodes that make their gradients.
Source: Li et al., PyTorch Distributed, VLDB 2020 (buckets); Megatron-LM, arXiv:1909.08053 (f and g operators).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from scaleout.graph import GraphBuilder
from scaleout.operations import ITEM_BYTES, kernel

Layer = Callable[[int], int]
BULK, URGENT = 0, 1
"""Priority of gradient reductions, and of collectives that the next kernel waits for."""


@dataclass
class Bucket:
    """Gradients of one process group that wait to be reduced together."""

    group: int
    degree: int
    nodes: list[int] = field(default_factory=list)
    size_bytes: int = 0


@dataclass
class Gradients:
    """What backward learns: parameters counted, and the nodes after which their gradients are final."""

    graph: GraphBuilder
    bucket_bytes: float
    item_bytes: int
    num_parameters: int = 0
    final: list[int] = field(default_factory=list)

    def learn(self, gradient: int, num_parameters: int, bucket: Bucket) -> None:
        """Take a gradient into its bucket, and reduce the bucket if that fills it."""
        self.num_parameters += num_parameters
        bucket.nodes.append(gradient)
        bucket.size_bytes += num_parameters * self.item_bytes
        if bucket.size_bytes >= self.bucket_bytes:
            self.flush(bucket)

    def flush(self, bucket: Bucket) -> None:
        """Reduce what a bucket holds over its group, if anybody shares it."""
        if bucket.nodes and bucket.degree > 1:
            bucket.nodes = [
                self.graph.collective(
                    "all_reduce",
                    bucket.size_bytes,
                    group=bucket.group,
                    after=bucket.nodes,
                    name="gradients_all_reduce",
                    priority=BULK,
                )
            ]
        self.final += bucket.nodes
        bucket.nodes, bucket.size_bytes = [], 0


@dataclass
class Tape:
    """A graph being written and what its backward pass must do; without `gradients` it runs forward only."""

    graph: GraphBuilder
    dtype: str
    gradients: Gradients | None
    actions: list[Layer] = field(default_factory=list)

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]

    def kernel(self, op: str, *after: int, name: str = "", **shape: int) -> int:
        """Add one kernel of the tape's data type, and return its index."""
        return self.graph.compute(kernel(op, dtype=self.dtype, **shape), after=after, name=name)

    def push(self, action: Layer) -> None:
        """Remember what backward does here."""
        if self.gradients is not None:
            self.actions.append(action)

    def learn(self, gradient: int, num_parameters: int, bucket: Bucket) -> None:
        """Hand a weight's gradient to the gradients."""
        assert self.gradients is not None, "only backward learns"
        self.gradients.learn(gradient, num_parameters, bucket)

    def backward(self, dy: int) -> int:
        """Play the tape from the end; return the node that makes the gradient of the first input."""
        while self.actions:
            dy = self.actions.pop()(dy)
        return dy


def linear(
    tape: Tape,
    x: int | None,
    *,
    tokens: int,
    inputs: int,
    outputs: int,
    bucket: Bucket,
    name: str,
    shared: list[int] | None = None,
) -> int:
    """``y = x W``: one GEMM forward, two backward.

    An `x` of None is data, which needs no gradient. If another layer uses the weight too, its gradient is put into
    `shared`, for that layer to add to its own.
    """

    def backward(dy: int) -> int:
        dx = dy
        if x is not None:
            dx = tape.kernel("gemm", dy, name=f"{name}_input_gradient", M=tokens, N=inputs, K=outputs)
        dw = tape.kernel("gemm", dy, name=f"{name}_weight_gradient", M=outputs, N=inputs, K=tokens)
        if shared is None:
            tape.learn(dw, inputs * outputs, bucket)
        else:
            shared.append(dw)
        return dx

    tape.push(backward)
    after = () if x is None else (x,)
    return tape.kernel("gemm", *after, name=name, M=tokens, N=outputs, K=inputs)


def pointwise(tape: Tape, x: int, forward: str, backward: str, *, name: str = "", **shape: int) -> int:
    """A kernel without parameters, and the kernel that is its backward, of the same shape."""
    tape.push(lambda dy: tape.kernel(backward, dy, name=f"{name or forward}_gradient", **shape))
    return tape.kernel(forward, x, name=name or forward, **shape)


def norm(tape: Tape, x: int, kind: str, *, tokens: int, hidden: int, bucket: Bucket) -> int:
    """Layer normalisation (a scale and a shift to learn) or RMS normalisation (a scale)."""

    def backward(dy: int) -> int:
        dx = tape.kernel(f"{kind}_bwd", dy, tokens=tokens, hidden=hidden)
        tape.learn(dx, hidden * (2 if kind == "layer_norm" else 1), bucket)
        return dx

    tape.push(backward)
    return tape.kernel(f"{kind}_fwd", x, tokens=tokens, hidden=hidden)


def residual(tape: Tape, x: int, branch: Layer, *, elements: int) -> int:
    """``y = x + branch(x)``; backward, the two gradients meet where the branch began."""
    skipped: list[int] = []

    def join(dx: int) -> int:
        return tape.kernel("add", dx, skipped.pop(), name="residual_gradient", elements=elements)

    def fork(dy: int) -> int:
        skipped.append(dy)
        return dy

    tape.push(join)
    y = branch(x)
    tape.push(fork)
    return tape.kernel("add", y, x, name="residual", elements=elements)


def activation(tape: Tape, x: int, kind: str, *, elements: int) -> int:
    """GELU, or SwiGLU: SiLU of one half of the input times the other; `elements` counts the output."""
    forward, backward = _ACTIVATIONS[kind]
    return pointwise(tape, x, forward, backward, elements=elements)


_ACTIVATIONS = {"gelu": ("gelu_fwd", "gelu_bwd"), "swiglu": ("swiglu_fwd_unfused", "swiglu_bwd")}


def phased(tape: Tape, x: int, layer: Layer, *, phase: str) -> int:
    """Apply a layer as a phase of its own, forward and backward."""

    def enter(dy: int) -> int:
        tape.graph.phase = f"{phase}_backward"
        return dy

    tape.graph.phase = f"{phase}_forward"
    y = layer(x)
    tape.push(enter)
    return y


@dataclass(frozen=True)
class Exchange:
    """A collective forward, and the collective that is its backward; either may be nothing."""

    forward: str | None
    backward: str | None


COPY_IN = Exchange(None, "all_reduce")  # Megatron's f: every rank has the input, its gradient is a sum
SUM_OUT = Exchange("all_reduce", None)  # Megatron's g
GATHER_IN = Exchange("all_gather", "reduce_scatter")
SCATTER_OUT = Exchange("reduce_scatter", "all_gather")
SHUFFLE = Exchange("all_to_all", "all_to_all")


def exchange(tape: Tape, x: int, kinds: Exchange, size_bytes: int, *, group: int, name: str) -> int:
    """Communicate a buffer over a group, forward and backward."""

    def communicate(kind: str | None, node: int, suffix: str) -> int:
        if kind is None:
            return node
        return tape.graph.collective(
            kind, size_bytes, group=group, after=(node,), name=f"{name}_{kind}{suffix}", priority=URGENT
        )

    tape.push(lambda dy: communicate(kinds.backward, dy, "_gradient"))
    return communicate(kinds.forward, x, "")
