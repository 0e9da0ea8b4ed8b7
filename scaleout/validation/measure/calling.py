"""Calls of functions, or of their backward as autograd calls it, on random tensors of the sizes of a kernel."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

Sizes = Mapping[str, int]
Call = Callable[[], Any]
Maker = Callable[[Sizes, torch.dtype], Call]


def random(*shape: int, dtype: torch.dtype, grad: bool = False) -> torch.Tensor:
    """Return normal random numbers on the GPU; `grad`: they require a gradient."""
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_(grad)


def call(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, backward: bool, fused: bool = False) -> Call:
    """Call a function, or its backward: its gradients with respect to all inputs that require one.

    `fused`: compiled for these shapes; a backward is compiled with its forward.
    """
    if fused:
        torch._dynamo.reset()
        function = torch.compile(function, dynamic=False)
    if not backward:
        return lambda: function(*inputs)
    output = function(*inputs)
    gradient = torch.randn_like(output)
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    return lambda: torch.autograd.grad(output, wanted, gradient, retain_graph=True)


def of(function: Callable[..., torch.Tensor], *shapes: str, backward: bool = False, fused: bool = False) -> Maker:
    """Make a call of a function, or its backward, on random tensors; a string names the sizes of each tensor."""

    def make(s: Sizes, dtype: torch.dtype) -> Call:
        tensors = [random(*(s[size] for size in shape.split()), dtype=dtype, grad=backward) for shape in shapes]
        return call(function, *tensors, backward=backward, fused=fused)

    return make
