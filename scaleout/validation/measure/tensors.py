"""What the makers of calls share: data types, random tensors, and calls of a function or its backward.

A maker takes the sizes and the data type of a kernel and returns a function without arguments that makes one call on
its own random data. Backward kernels are called as autograd calls them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

Sizes = Mapping[str, int]
Call = Callable[[], Any]
Maker = Callable[[Sizes, torch.dtype], Call]

DTYPES: Mapping[str, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp64": torch.float64,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "u8": torch.uint8,
}
"""Data types by the names that scaleout gives them."""


def random(*shape: int, dtype: torch.dtype, grad: bool = False) -> torch.Tensor:
    """Return normal random numbers on the GPU; `grad`: they require a gradient."""
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_(grad)


def backward_of(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Call:
    """Call the backward of a function: its gradients with respect to all inputs that require one."""
    output = function(*inputs)
    gradient = torch.randn_like(output)
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    return lambda: torch.autograd.grad(output, wanted, gradient, retain_graph=True)


def call_of(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, backward: bool) -> Call:
    """Call a function, or its backward."""
    return backward_of(function, *inputs) if backward else lambda: function(*inputs)
