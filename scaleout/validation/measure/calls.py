"""Operations to PyTorch calls: how each operation of `scaleout.program.operations` is carried out on a GPU.

GEMMs run as PyTorch runs them by default, fp32 without tensor cores; both operands are stored row by row. (fp32 GEMMs
whose second operand is stored by columns, as in `torch.nn.Linear`, are up to 28% slower if they are small.)
Convolutions are stored channels last, and cuDNN chooses the algorithm.
"""

from collections.abc import Mapping

import torch
from torch.nn import functional

from scaleout.validation.measure import layers, recommendation
from scaleout.validation.measure.tensors import Call, Maker, Sizes, call_of, random


def _gemm(s: Sizes, dtype: torch.dtype) -> Call:
    a, b = random(s["M"], s["K"], dtype=dtype), random(s["K"], s["N"], dtype=dtype)
    return lambda: a @ b


def _gemm_fp8(s: Sizes, dtype: torch.dtype) -> Call:
    a, b = (random(s[rows], s["K"], dtype=torch.bfloat16).to(dtype) for rows in "MN")
    scale = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


def _gemv(s: Sizes, dtype: torch.dtype) -> Call:
    matrix, vector = random(s["M"], s["N"], dtype=dtype), random(s["N"], dtype=dtype)
    out = torch.empty(s["M"], device="cuda", dtype=dtype)
    return lambda: torch.mv(matrix, vector, out=out)


def _channels_last(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return random(*shape, dtype=dtype).to(memory_format=torch.channels_last)


def _convolution(*wanted: bool) -> Maker:
    """Make the forward, or the gradients of the inputs and weights that are `wanted`."""

    def make(s: Sizes, dtype: torch.dtype) -> Call:
        window, stride = s["kernel"], s["stride"]
        x = _channels_last(s["batch"], s["c_in"], s["hw"], s["hw"], dtype=dtype)
        weight = _channels_last(s["c_out"], s["c_in"], window, window, dtype=dtype)
        padding = window // 2
        if not wanted:
            return lambda: functional.conv2d(x, weight, stride=stride, padding=padding)
        gradient = torch.randn_like(functional.conv2d(x, weight, stride=stride, padding=padding))
        pair = [2 * [size] for size in (stride, padding, 1)]
        return lambda: torch.ops.aten.convolution_backward(
            gradient, x, weight, None, *pair, False, [0, 0], 1, [*wanted, False]
        )

    return make


def _attention(*, backward: bool, grouped: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        def tensor(heads: int) -> torch.Tensor:
            return random(s["batch"], heads, s["seq"], s["head_dim"], dtype=dtype, grad=backward)

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=bool(s["causal"]), enable_gqa=grouped)

        kv_heads = s["kv_heads"] if grouped else s["heads"]
        inputs = (tensor(s["heads"]), tensor(kv_heads), tensor(kv_heads))
        return call_of(attend, *inputs, backward=backward)

    return make


def _attention_decode(s: Sizes, dtype: torch.dtype) -> Call:
    q = random(s["batch"], s["heads"], 1, s["head_dim"], dtype=dtype)
    k, v = (random(s["batch"], s["kv_heads"], s["kv_seq"], s["head_dim"], dtype=dtype) for _ in range(2))
    grouped = s["kv_heads"] != s["heads"]
    return lambda: functional.scaled_dot_product_attention(q, k, v, enable_gqa=grouped)


MAKERS: Mapping[str, Maker] = {
    "gemm": _gemm,
    "gemm_fp8": _gemm_fp8,
    "gemv": _gemv,
    "conv2d_fwd": _convolution(),
    "conv2d_bwd_data": _convolution(True, False),
    "conv2d_bwd_weight": _convolution(False, True),
    "attention_fwd": _attention(backward=False, grouped=False),
    "attention_bwd": _attention(backward=True, grouped=False),
    "attention_gqa_fwd": _attention(backward=False, grouped=True),
    "attention_gqa_bwd": _attention(backward=True, grouped=True),
    "attention_decode": _attention_decode,
    **layers.MAKERS,
    **recommendation.MAKERS,
}
"""Operation to the maker of its call."""
