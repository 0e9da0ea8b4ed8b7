"""GEMMs of activations with weights: one forward, two backward, and the casts that their precision needs.

Weights that read the same input, such as those of queries, keys and values, are one GEMM or one each.

Symbols: x node that makes the input, y the output; dx and dy nodes that make their gradients.
Source: Korthikanti et al., arXiv:2205.05198 (what is kept); torchao.float8 (casts).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from scaleout.program.calls import of_weight
from scaleout.program.graph import NONE, NodeRole
from scaleout.program.operations import kernel
from scaleout.workloads.config.style import CASTS, FP8
from scaleout.workloads.generate.autograd_tape import URGENT, AutogradTape, Bucket
from scaleout.workloads.generate.layers import Buffer


@dataclass(frozen=True, kw_only=True)
class Linear:
    """``y = x W + b`` of one matrix, or of several that read the same input.

    Where results of operations are kept for backward, `saved` says that those of the first matrix, the third, and so on
    are, or else those of the others.
    """

    name: str
    tokens: int  # rows of the input
    inputs: int  # columns of the input
    outputs: int | Sequence[int]  # columns of the output, of each matrix
    bucket: Bucket  # where the gradients of the weights wait
    groups: int = 0  # groups of so many tokens each, with weights of their own and GEMMs that are one kernel; 0 if none
    accumulates: bool = True  # of groups, whether GEMMs add weights' gradients to what is there; else cuBLAS's batched
    partial: bool = False  # each tensor-parallel rank multiplies its own tokens only: gradients are partial sums
    bias: bool = False  # the GEMMs add one, whose gradient is a sum over tokens
    plain: bool = False  # GEMMs are in the tape's data type, whatever its style
    kept_tokens: int | None = None  # tokens of the input that are kept for backward, if not all
    saved: bool = True
    gathered: Literal["", "input", "gradient"] = ""  # over the tensor axis; may have been cast before
    arrives_in_fp8: str = ""  # of groups, the operand that other ranks have cast: its input, or the output's gradient
    # what is gathered again beside the GEMM of its gradient, which is reduce-scattered beside that of the weights
    beside: Buffer | None = None
    shared: list[int] | None = None  # takes the weight's gradient if another layer uses the weight too and adds its own
    placeholder_bytes: float | None = None  # gradients' placeholders that come and go; if None those of all shapes stay

    def write(self, tape: AutogradTape, x: int | None) -> int:
        """Write it, and return the node that makes the output; an `x` of None is data, which needs no gradient."""
        several = (self.outputs,) if isinstance(self.outputs, int) else tuple(self.outputs)
        total = sum(several)
        if self.groups:
            assert x is not None
            return self._write_groups(tape, x, several if tape.style.separate else (total,))
        recomputed = tuple(width for number, width in enumerate(several) if number % 2 == self.saved)
        widths = several if tape.style.separate else (total,)
        tape.push(
            lambda dy: self._backward(tape, dy, widths, needs_input=x is not None),
            makes=self.tokens * self.inputs, scratch_bytes=self.placeholder_bytes or 0.0,
        )  # fmt: skip
        if self.placeholder_bytes is None:
            tape.weights.add((total, self.inputs))
        if self.shared is None:
            in_fp8 = self._in_fp8(tape) * self.inputs * total
            tape.hold(
                (self.inputs + self.bias) * total, self.bucket, biases=self.bias * total, partial=self.partial,
                in_fp8=in_fp8,
            )  # fmt: skip
        kept = self.tokens if self.kept_tokens is None else self.kept_tokens
        tape.save_for_backward(kept * self.inputs, None if self.plain else tape.style.kept_item_bytes)
        tape.operations_bytes += self.tokens * (total - sum(recomputed)) * tape.item_bytes
        computed = recomputed if tape.saved else several
        if not computed:
            return NONE if x is None else x
        return self._forward(tape, x, computed if tape.style.separate else (sum(computed),))

    def _write_groups(self, tape: AutogradTape, x: int, widths: Sequence[int]) -> int:
        """``y_g = x_g W_g``: three kernels for each width, and the casts of their operands."""
        groups, tokens, inputs = self.groups, self.tokens, self.inputs
        total, one_kernel = sum(widths), "grouped_gemm" if self.accumulates else "batched_gemm"

        def gemm(op: str, node: int, suffix: str, role: int, **sizes: int) -> int:
            if self.plain or tape.style.linear_dtype == "same":
                made = kernel(op, dtype=tape.dtype, groups=groups, **sizes)
            else:
                op = "grouped_gemm_fp8" + op.removeprefix(one_kernel)
                made = kernel(op, dtype=FP8, groups=groups, **sizes)
            made = of_weight(made) if role == NodeRole.WEIGHT_GRADIENT else made
            return tape.add(made, *{node} - {NONE}, name=f"{self.name}{suffix}", role=role)

        def weight_gradient(node: int, width: int) -> int:
            sizes = {"M": width, "N": inputs, "K": tokens}
            op = f"{one_kernel}_accumulate" if self.accumulates else one_kernel
            made = gemm(op, node, "_weight_gradient", NodeRole.WEIGHT_GRADIENT, **sizes)
            return self._bias_gradient(tape, made, groups * tokens * width)

        def gradients(dy: int, width: int) -> int:
            dy = self._cast_operand(tape, dy, groups * tokens * width, "gradient")
            sizes = {"M": tokens, "N": inputs, "K": width}
            dx = gemm(one_kernel, dy, "_input_gradient", NodeRole.ACTIVATION_GRADIENT, **sizes)
            num_parameters = groups * (inputs + self.bias) * width
            tape.accumulate_gradient(partial(weight_gradient, width=width), dy, num_parameters, self.bucket)
            return dx

        def backward(dy: int) -> int:
            total = gradients(dy, widths[0])
            for width in widths[1:]:
                total = self._add(tape, total, gradients(dy, width))
            return total

        tape.push(backward, makes=groups * tokens * inputs)
        tape.weights.add((total, inputs))
        num_parameters = groups * (inputs + self.bias) * total
        tape.hold(num_parameters, self.bucket, in_fp8=self._in_fp8(tape) * groups * inputs * total)
        kept = tokens if self.kept_tokens is None else self.kept_tokens
        tape.save_for_backward(groups * kept * inputs, tape.style.kept_item_bytes)
        x = self._cast_operand(tape, x, groups * tokens * inputs, "input")
        made = NONE
        for width in widths:
            weight = self._cast(tape, NONE, groups * inputs * width, "weight") if tape.style.casts_weights else NONE
            tape.cursor.waits += (weight,) if weight != NONE else ()
            made = gemm(one_kernel, x, "", NodeRole.WEIGHTS, M=tokens, N=width, K=inputs)
        return made

    def _cast_operand(self, tape: AutogradTape, node: int, elements: int, what: str) -> int:
        """Cast an operand for both of its GEMMs; for the weights' alone if it has arrived as the other reads it."""
        if tape.style.linear_dtype == "same" or self.arrives_in_fp8 != what:
            return self._cast(tape, node, elements, what)
        role = NodeRole.WEIGHTS
        return tape.kernel("cast_to_fp8", node, name=f"{self.name}_{what}_cast_to_fp8", role=role, elements=elements)

    def _forward(self, tape: AutogradTape, x: int | None, widths: Sequence[int]) -> int:
        """Write a GEMM for each width; the last one stands for all, which run in order."""
        if x is not None and self._cast_before(tape) != "input":
            x = self._cast(tape, x, self.tokens * self.inputs, "input")
        node = NONE
        for width in widths:
            weight = self._cast(tape, NONE, self.inputs * width, "weight") if tape.style.casts_weights else NONE
            after = {NONE if x is None else x, weight} - {NONE}
            sizes = {"M": self.tokens, "N": width, "K": self.inputs}
            node = self._gemm(tape, *sorted(after), suffix="", role=NodeRole.WEIGHTS, **sizes)
        return node

    def _backward(self, tape: AutogradTape, dy: int, widths: Sequence[int], *, needs_input: bool) -> int:
        """Write the gradients of the input and of the weights, and return the node that makes the input's."""
        if self.beside is not None:
            return self._backward_beside(tape, dy, sum(widths), self.beside)
        total = NONE
        for width in widths:
            own = dy if self._cast_before(tape) == "gradient" else self._cast(tape, dy, self.tokens * width, "gradient")
            dx = own
            if needs_input:
                sizes, role = {"M": self.tokens, "N": self.inputs, "K": width}, NodeRole.ACTIVATION_GRADIENT
                dx = self._gemm(tape, own, suffix="_input_gradient", role=role, **sizes)
            self._accumulate(tape, own, width)
            total = dx if total == NONE else self._add(tape, total, dx)
        return total

    def _backward_beside(self, tape: AutogradTape, dy: int, width: int, buffer: Buffer) -> int:
        """Write both gradients, each beside a collective that was launched ahead of it; return the scattered one."""
        columns = {"group": buffer.group, "priority": URGENT, "role": NodeRole.EXCHANGE}
        again = tape.graph.collective(
            "all_gather", buffer.size_bytes, after=(dy,), name=f"{self.name}_all_gather_gradient", **columns
        )
        sizes, role = {"M": self.tokens, "N": self.inputs, "K": width}, NodeRole.ACTIVATION_GRADIENT
        dx = self._gemm(tape, dy, suffix="_input_gradient", role=role, **sizes)
        scattered = tape.graph.collective(
            "reduce_scatter", buffer.size_bytes, after=(dx,), name=f"{self.name}_reduce_scatter_gradient", **columns
        )
        tape.cursor.waits = (again,) if tape.cursor.weights is None else ()
        self._accumulate(tape, dy, width)
        return scattered

    def _accumulate(self, tape: AutogradTape, dy: int, width: int) -> None:
        def weight_gradient(node: int) -> int:
            sizes, role = {"M": width, "N": self.inputs, "K": self.tokens}, NodeRole.WEIGHT_GRADIENT
            made = self._gemm(tape, *{node} - {NONE}, suffix="_weight_gradient", role=role, **sizes)
            return self._bias_gradient(tape, made, self.tokens * width)

        if self.shared is None:
            biases = self.bias * width
            tape.accumulate_gradient(weight_gradient, dy, self.inputs * width + biases, self.bucket, biases)
        else:
            self.shared.append(weight_gradient(dy))

    def _bias_gradient(self, tape: AutogradTape, node: int, elements: int) -> int:
        """Sum the gradient of the output over its tokens behind a node, if a bias is added."""
        if not self.bias:
            return node
        return tape.kernel("sum_all", node, name=f"{self.name}_bias_gradient", elements=elements)

    def _in_fp8(self, tape: AutogradTape) -> bool:
        """Whether the weights are held in fp8; biases are not."""
        return tape.style.holds_fp8 and not self.plain

    def _cast_before(self, tape: AutogradTape) -> str:
        return self.gathered if tape.style.gathers_fp8 else ""

    def _gemm(self, tape: AutogradTape, *after: int, suffix: str, role: int, **sizes: int) -> int:
        op, dtype = ("gemm", tape.dtype) if self.plain else tape.style.gemm(tape.dtype)
        made = kernel(op, dtype=dtype, **sizes)
        made = of_weight(made) if role == NodeRole.WEIGHT_GRADIENT else made
        return tape.add(made, *after, name=f"{self.name}{suffix}", role=role)

    def _add(self, tape: AutogradTape, one: int, other: int) -> int:
        op = "add_fused_fwd" if tape.style.compiled else "add"
        elements = max(self.groups, 1) * self.tokens * self.inputs
        return tape.kernel(op, one, other, name=f"{self.name}_input_gradients", elements=elements)

    def _cast(self, tape: AutogradTape, node: int, elements: int, what: str) -> int:
        for op in () if self.plain else CASTS[tape.style.linear_dtype]:
            node = tape.kernel(op, node, name=f"{self.name}_{what}_{op}", role=NodeRole.WEIGHTS, elements=elements)
        return node
