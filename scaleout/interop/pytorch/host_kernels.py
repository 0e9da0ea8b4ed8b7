"""What operators of a host execution trace launch on the GPU: kernels of our operations, by name and sizes of tensors.

An operator whose name stands here launches its kernels itself, and what it calls adds none; any other is what it calls.
Arithmetic by element, copies and reductions over memory are clones that move as many bytes. A name that calls nothing
and stands nowhere is unknown: nothing is guessed for it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any

from scaleout.errors import ScaleoutError
from scaleout.interop.pytorch.communication import item_bytes
from scaleout.interop.pytorch.kernels import DTYPES, gemm
from scaleout.interop.pytorch.kineto import shape_of
from scaleout.program.operations import Kernel, kernel

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """A tensor that goes into or comes out of an operator."""

    shape: Shape
    dtype: str  # as PyTorch writes it
    storage: int
    device: str  # such as ``cuda:0``; empty if not told

    @property
    def num_bytes(self) -> int:
        """How much memory it takes."""
        return prod(self.shape) * (item_bytes(self.dtype) or 4)


@dataclass(frozen=True)
class Called:
    """An operator with its tensors."""

    name: str  # without its namespace
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    concrete: Mapping[str, Any]  # value of each argument that is no tensor, by its name in the operator's schema

    @property
    def dtype(self) -> str:
        """The type in which it computes, as ours are called."""
        first = (*self.inputs, *self.outputs)[0]
        return DTYPES.get(first.dtype.lower().replace(" ", ""), "fp32")


class NoShapeError(ValueError):
    """The sizes of a tensor on a GPU are none."""


def tensors_in(value: Any, shape: Any, kind: str) -> list[Tensor]:
    """Return the tensors of an argument: ``[id, storage, offset, elements, item bytes, device]``, or lists of them."""
    found: list[Tensor] = []
    dtypes = re.findall(r"Tensor\(([^()]*)\)", kind)
    if dtypes:
        _collect(value, shape, iter(dtypes), found)
    return found


def _collect(value: Any, shape: Any, dtypes: Any, found: list[Tensor]) -> None:
    if not isinstance(value, list) or not isinstance(shape, list):
        return
    if len(value) == 6 and isinstance(value[5], str):  # a tensor, not a list
        sizes = shape_of(shape)
        dtype = next(dtypes, "")
        if sizes is None and value[5].startswith("cuda"):
            raise NoShapeError
        if sizes is not None and type(value[1]) is int:
            found.append(Tensor(sizes, dtype, value[1], value[5]))
        return
    for part, sizes in zip(value, shape, strict=False):
        _collect(part, sizes, dtypes, found)


def kernels_of(called: Called) -> list[Kernel] | None:
    """Return the kernels that an operator launches itself; None if its name stands nowhere here.

    The list is empty where all tensors are: nothing is launched for those.
    """
    build = OPERATORS.get(called.name) or next(
        (each for pattern, each in _PATTERNS if pattern.match(called.name)), None
    )
    if build is None:
        return None
    if not any(prod(tensor.shape) for tensor in (*called.inputs, *called.outputs)):
        return []
    try:
        return build(called)
    except (ScaleoutError, IndexError, ZeroDivisionError):  # tensors are not as the operator's name promises
        return None


def _moves(called: Called, num_bytes: int) -> list[Kernel]:
    dtype = called.dtype
    item = {"fp32": 4, "fp64": 8}.get(dtype, 1 if dtype.startswith("fp8") else 2)
    return [kernel("clone", dtype=dtype, elements=max(1, num_bytes // (2 * item)))]


def _arithmetic(called: Called) -> list[Kernel]:
    """Read all inputs and write all outputs."""
    return _moves(called, sum(tensor.num_bytes for tensor in (*called.inputs, *called.outputs)))


def _overwrite(called: Called) -> list[Kernel]:
    """Read all inputs but the first, which is written."""
    return _moves(called, sum(tensor.num_bytes for tensor in called.inputs))


def _touch(called: Called) -> list[Kernel]:
    """Read as much of a table as is taken from it, and write that."""
    taken = max(called.outputs, key=lambda tensor: tensor.num_bytes)
    return _moves(called, 2 * taken.num_bytes)


def _by_element(op: str, place: int = 0) -> Callable[[Called], list[Kernel]]:
    """Count the elements of one of the inputs."""

    def build(called: Called) -> list[Kernel]:
        return [kernel(op, dtype=called.dtype, elements=prod(called.inputs[place].shape))]

    return build


def _by_row(op: str, columns: str) -> Callable[[Called], list[Kernel]]:
    def build(called: Called) -> list[Kernel]:
        shape = called.inputs[0].shape
        return [kernel(op, dtype=called.dtype, **{"tokens": prod(shape[:-1]), columns: shape[-1]})]

    return build


def _product(called: Called) -> list[Kernel]:
    matrices = [tensor.shape for tensor in called.inputs if len(tensor.shape) > 1]
    found = gemm(called.dtype, matrices, set())
    return [] if found is None else [kernel(found.op, dtype=found.dtype, **found.sizes)]


def _convolution(op: str, called: Called, small: Shape) -> Kernel:
    """Describe a convolution, with the shape of its result; others than square ones by a square of equal work."""
    images, weights = (called.inputs[-2:] if op != "conv2d_fwd" else called.inputs[:2])[:2]
    batch, _, high, wide = images.shape
    c_out, c_in, *window = weights.shape
    return kernel(
        op, dtype=called.dtype, batch=batch, c_in=c_in, c_out=c_out, kernel=isqrt(prod(window)), hw=isqrt(high * wide),
        stride=max(1, round(high / small[2])),
    )  # fmt: skip


def _convolve(called: Called) -> list[Kernel]:
    return [_convolution("conv2d_fwd", called, called.outputs[0].shape)]


def _convolve_back(called: Called) -> list[Kernel]:
    """Return the gradients of images, where they are wanted, and of weights."""
    gradient, images, weights = called.inputs[:3]
    back = Called(called.name, (images, weights), called.outputs, called.concrete)
    wanted = [tensor.shape for tensor in called.outputs]
    ops = [op for op, each in (("conv2d_bwd_data", images), ("conv2d_bwd_weight", weights)) if each.shape in wanted]
    return [_convolution(op, back, gradient.shape) for op in ops]


def _attention(called: Called) -> list[Kernel]:
    """Queries are (batch, heads, sequence, size of a head); keys may have fewer heads."""
    backward = "backward" in called.name
    queries, keys = [tensor.shape for tensor in called.inputs][1 if backward else 0 :][:2]
    batch, heads, seq, head_dim = queries
    sizes = {"batch": batch, "heads": heads, "seq": seq, "head_dim": head_dim,
             "causal": int(called.concrete.get("is_causal") is True)}  # fmt: skip
    grouped = {} if keys[1] == heads else {"kv_heads": keys[1]}
    return [kernel(f"attention{'_gqa' if grouped else ''}_{'bwd' if backward else 'fwd'}", dtype=called.dtype, **sizes,
                   **grouped)]  # fmt: skip


def _optimize(called: Called) -> list[Kernel]:
    """Update parameters, which are the first of four equal lists."""
    count = sum(prod(tensor.shape) for tensor in called.inputs) // 4
    return [kernel("adamw_fused", dtype=called.dtype, parameters=count)]


_ARITHMETIC = (
    "add", "sub", "mul", "div", "neg", "abs", "sqrt", "rsqrt", "exp", "log", "log1p", "sin", "cos", "tanh",
    "sigmoid", "pow", "reciprocal", "square", "sign", "clamp", "clamp_max", "minimum", "maximum", "where", "eq",
    "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or",
    "remainder", "floor", "addcmul", "addcdiv", "lerp", "masked_fill", "sigmoid_backward", "tanh_backward",
    "softplus", "erf", "isnan", "isinf", "round", "floor_divide", "sum", "mean", "prod", "amax", "amin", "max",
    "min", "norm", "linalg_vector_norm", "var", "std", "var_mean", "argmax", "argmin", "any", "all", "cumsum",
    "cumprod", "cat", "stack", "flip", "roll", "tril", "triu", "nll_loss_forward", "nll_loss_backward",
    "mse_loss", "mse_loss_backward", "binary_cross_entropy_with_logits", "hardtanh", "hardtanh_backward",
    "leaky_relu", "leaky_relu_backward", "avg_pool2d", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward",
    "native_dropout", "native_dropout_backward", "_fused_dropout", "constant_pad_nd", "rsub",
    "_amp_foreach_non_finite_check_and_unscale", "_foreach_norm",
)  # fmt: skip
_WRITTEN = ("copy", "fill", "zero", "uniform", "normal", "bernoulli", "random")
OPERATORS: Mapping[str, Callable[[Called], list[Kernel]]] = {
    **{name: _arithmetic for each in _ARITHMETIC for name in (each, f"{each}_")},
    **{f"{each}_": _overwrite for each in _WRITTEN},
    "arange": _arithmetic,
    **dict.fromkeys(("embedding", "index_select", "gather", "index", "embedding_dense_backward"), _touch),
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "addmm_"), _product),
    **dict.fromkeys(("cudnn_convolution", "miopen_convolution", "mkldnn_convolution", "cudnn_convolution_relu"),
                    _convolve),
    "convolution_backward": _convolve_back,
    **dict.fromkeys(("cudnn_batch_norm", "native_batch_norm", "miopen_batch_norm"), _by_element("batch_norm_fwd")),
    **dict.fromkeys(("cudnn_batch_norm_backward", "native_batch_norm_backward", "miopen_batch_norm_backward"),
                    _by_element("batch_norm_bwd")),
    "native_layer_norm": _by_row("layer_norm_fwd", "hidden"),
    "native_layer_norm_backward": _by_row("layer_norm_bwd", "hidden"),
    "_softmax": _by_row("softmax_fwd", "keys"), "_softmax_backward_data": _by_row("softmax_bwd", "keys"),
    "_log_softmax": _by_row("softmax_fwd", "keys"), "_log_softmax_backward_data": _by_row("softmax_bwd", "keys"),
    "gelu": _by_element("gelu_fwd"), "gelu_backward": _by_element("gelu_bwd"),
    "silu": _by_element("silu_fwd"), "silu_": _by_element("silu_fwd"), "silu_backward": _by_element("silu_bwd"),
    "clamp_min": _by_element("relu_fwd"), "clamp_min_": _by_element("relu_fwd"),
    "threshold_backward": _by_element("relu_bwd"),
    "max_pool2d_with_indices": _by_element("pool_fwd"),
    "max_pool2d_with_indices_backward": _by_element("pool_bwd", 1),
    "_fused_adamw_": _optimize, "_fused_adam_": _optimize,
}  # fmt: skip
"""Name of an operator, without its namespace, to its kernels."""
_PATTERNS: Sequence[tuple[re.Pattern[str], Callable[[Called], list[Kernel]]]] = (
    (re.compile(r"_foreach_(zero|fill|copy)_"), _overwrite),
    (re.compile(r"_foreach_"), _arithmetic),
    (re.compile(r"_scaled_dot_product_(flash|efficient|cudnn|fused)"), _attention),
    (re.compile(r"_(flash|efficient|cudnn)_attention_(forward|backward)"), _attention),
    (re.compile(r"triton_(poi|red|per)_"), _overwrite),  # tensors that go in and come out are all inputs
)
IDLE = frozenset((
    "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "view", "as_strided",
    "_reshape_alias", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "slice", "narrow",
    "select", "unsqueeze", "squeeze", "detach", "detach_", "alias", "result_type", "is_same_size", "lift_fresh",
    "resize_", "set_", "record_stream", "resolve_conj", "resolve_neg", "is_pinned", "to", "view_as", "split",
    "split_with_sizes", "chunk", "unbind", "unfold", "diagonal", "numpy_T", "contiguous", "conj", "real",
    "swapaxes", "movedim", "item", "_local_scalar_dense", "is_nonzero", "_has_compatible_shallow_copy_type",
    "requires_grad_", "output_nr", "_version", "data", "set_data", "retain_grad", "swapdims", "mT", "mH",
    "unflatten", "flatten", "ravel", "squeeze_", "unsqueeze_", "t_", "transpose_", "as_strided_", "expand_as",
    "view_as_real", "view_as_complex", "is_floating_point", "is_complex", "can_cast", "size", "stride", "dim",
    "numel", "_nested_tensor_size", "sym_size", "pin_memory", "_pin_memory", "lift", "lift_fresh_copy",
    "alias_copy", "_to_cpu", "cpu", "type_as", "flatten_dense_tensors", "unflatten_dense_tensors",
    "_debug_has_internal_overlap",
))  # fmt: skip
"""Names of operators that launch nothing."""
