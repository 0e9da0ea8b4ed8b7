"""GEMMs of activations with weights: one forward, two backward, and the casts that their precision needs.

Weights that read the same input, such as those of queries, keys and values, are one GEMM or one each.

Symbols: x node that makes the input, y the output; dx and dy nodes that make their gradients.
Source: Korthikanti et al., arXiv:2205.05198 (what is kept); torchao.float8 (casts).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scaleout.program.graph import NONE, NodeRole
from scaleout.program.operations import kernel
from scaleout.workloads.families.style import CASTS
from scaleout.workloads.generate.autograd_tape import AutogradTape, Bucket


@dataclass(frozen=True)
class Weights:
    """Weights that read one input.

    Attributes
    ----------
    outputs : tuple of int
        Of each matrix. Where results of operations are kept for backward, those of every second matrix are not.
    bucket : Bucket
        Where their gradients wait.
    bias : bool
        Whether the GEMMs add one, whose gradient is a sum over tokens.
    plain : bool
        Whether GEMMs are in the tape's data type, whatever its style.
    """

    inputs: int
    outputs: tuple[int, ...]
    bucket: Bucket
    bias: bool = False
    plain: bool = False


def linear(
    tape: AutogradTape,
    x: int | None,
    *,
    tokens: int,
    inputs: int,
    outputs: int | Sequence[int],
    bucket: Bucket,
    name: str,
    shared: list[int] | None = None,
    kept_tokens: int | None = None,
    bias: bool = False,
    plain: bool = False,
    saved: bool = True,
    gathered: Literal["", "input", "gradient"] = "",
    placeholder_bytes: float | None = None,
) -> int:
    """``y = x W + b`` of one matrix, or of several with the same input.

    An `x` of None is data, which needs no gradient. If another layer uses the weight too, its gradient is put into
    `shared`, for that layer to add to its own. Of the input, `kept_tokens` are kept for backward, or all. Where results
    of operations are kept, those of a matrix that is not `saved` are not, nor those of every second of several. What is
    `gathered` over the tensor axis may have been cast before. A placeholder of a weight's gradient is one of its shape
    for all steps, unless `placeholder_bytes` of its own come and go.
    """
    several = (outputs,) if isinstance(outputs, int) else tuple(outputs)
    again = tuple(width for number, width in enumerate(several) if number % 2 == saved)
    one = (sum(several),)
    weights = Weights(inputs, several if tape.style.separate else one, bucket, bias, plain)
    layer = _Linear(tape, weights, tokens, name, gathered if tape.style.gathers_fp8 else "")
    tape.push(
        lambda dy: layer.backward(dy, needs_input=x is not None, shared=shared),
        makes=tokens * inputs, scratch_bytes=placeholder_bytes or 0.0,
    )  # fmt: skip
    if placeholder_bytes is None:
        tape.weights.add((sum(several), inputs))
    if shared is None:
        tape.hold((inputs + bias) * sum(several), bucket)
    tape.save_for_backward((tokens if kept_tokens is None else kept_tokens) * inputs)
    tape.operations_bytes += tokens * (sum(several) - sum(again)) * tape.item_bytes
    computed = again if tape.saved else several
    if not computed:
        return NONE if x is None else x
    return layer.forward(x, computed if tape.style.separate else (sum(computed),))


def grouped_linear(
    tape: AutogradTape, x: int, *, groups: int, tokens: int, inputs: int, outputs: int, bucket: Bucket, name: str
) -> int:
    """``y_g = x_g W_g`` for groups of so many tokens each: GEMMs of all groups in one kernel, three in all."""

    def weight_gradient(node: int) -> int:
        of = {"groups": groups, "M": outputs, "N": inputs, "K": tokens}
        role = NodeRole.WEIGHT_GRADIENT
        return tape.kernel("grouped_gemm_accumulate", node, name=f"{name}_weight_gradient", role=role, **of)

    def backward(dy: int) -> int:
        dx = tape.kernel(
            "grouped_gemm", dy, name=f"{name}_input_gradient", role=NodeRole.ACTIVATION_GRADIENT, groups=groups,
            M=tokens, N=inputs, K=outputs,
        )  # fmt: skip
        tape.accumulate_gradient(weight_gradient, dy, groups * inputs * outputs, bucket)
        return dx

    tape.push(backward, makes=groups * tokens * inputs)
    tape.weights.add((outputs, inputs))
    tape.hold(groups * inputs * outputs, bucket)
    tape.save_for_backward(groups * tokens * inputs)
    of = {"groups": groups, "M": tokens, "N": outputs, "K": inputs}
    return tape.kernel("grouped_gemm", x, name=name, role=NodeRole.WEIGHTS, **of)


@dataclass(frozen=True)
class _Linear:
    """The kernels of some weights on a tape."""

    tape: AutogradTape
    weights: Weights
    tokens: int
    name: str
    cast_before: str

    def forward(self, x: int | None, widths: Sequence[int]) -> int:
        """Write a GEMM for each width; the last one stands for all, which run in order."""
        if x is not None and self.cast_before != "input":
            x = self._cast(x, self.tokens * self.weights.inputs, "input")
        node = NONE
        for width in widths:
            weight = self._cast(NONE, self.weights.inputs * width, "weight") if self.tape.style.casts_weights else NONE
            after = {NONE if x is None else x, weight} - {NONE}
            sizes = {"M": self.tokens, "N": width, "K": self.weights.inputs}
            node = self._gemm(*sorted(after), name=self.name, role=NodeRole.WEIGHTS, **sizes)
        return node

    def backward(self, dy: int, *, needs_input: bool, shared: list[int] | None) -> int:
        """Write the gradients of the input and of the weights, and return the node that makes the input's."""
        weights, total = self.weights, NONE
        for width in weights.outputs:
            own = dy if self.cast_before == "gradient" else self._cast(dy, self.tokens * width, "gradient")
            dx = own
            if needs_input:
                name, sizes = f"{self.name}_input_gradient", {"M": self.tokens, "N": weights.inputs, "K": width}
                dx = self._gemm(own, name=name, role=NodeRole.ACTIVATION_GRADIENT, **sizes)
            self._accumulate(own, width, shared)
            total = dx if total == NONE else self._add(total, dx)
        return total

    def _accumulate(self, dy: int, width: int, shared: list[int] | None) -> None:
        def weight_gradient(node: int) -> int:
            name, sizes = f"{self.name}_weight_gradient", {"M": width, "N": self.weights.inputs, "K": self.tokens}
            made = self._gemm(*(() if node == NONE else (node,)), name=name, role=NodeRole.WEIGHT_GRADIENT, **sizes)
            if not self.weights.bias:
                return made
            return self.tape.kernel("sum_all", made, name=f"{self.name}_bias_gradient", elements=self.tokens * width)

        if shared is None:
            num_parameters = (self.weights.inputs + self.weights.bias) * width
            self.tape.accumulate_gradient(weight_gradient, dy, num_parameters, self.weights.bucket)
        else:
            shared.append(weight_gradient(dy))

    def _gemm(self, *after: int, name: str, role: int, **sizes: int) -> int:
        op, dtype = ("gemm", self.tape.dtype) if self.weights.plain else self.tape.style.gemm(self.tape.dtype)
        return self.tape.add(kernel(op, dtype=dtype, **sizes), *after, name=name, role=role)

    def _add(self, one: int, other: int) -> int:
        op = "add_fused_fwd" if self.tape.style.compiled else "add"
        elements = self.tokens * self.weights.inputs
        return self.tape.kernel(op, one, other, name=f"{self.name}_input_gradients", elements=elements)

    def _cast(self, node: int, elements: int, what: str) -> int:
        for op in () if self.weights.plain else CASTS[self.tape.style.linear_dtype]:
            name = f"{self.name}_{what}_{op}"
            node = self.tape.kernel(op, node, name=name, role=NodeRole.WEIGHTS, elements=elements)
        return node
