"""Operations that a compiler fuses into one kernel each, by `torch.compile`: SwiGLU, rotary embedding, cross entropy.

The first call of each shape compiles, which takes seconds.
"""

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from scaleout.validation.measure.layers import rotate, swiglu
from scaleout.validation.measure.tensors import Call, Maker, Sizes, backward_of, random


def _compiled(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, backward: bool) -> Call:
    """Compile for these shapes; a backward is compiled with its forward."""
    torch._dynamo.reset()
    fused = torch.compile(function, dynamic=False)
    return backward_of(fused, *inputs) if backward else lambda: fused(*inputs)


def _swiglu(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        x, gate = (random(s["elements"], dtype=dtype, grad=backward) for _ in range(2))
        return _compiled(swiglu, x, gate, backward=backward)

    return make


def _rope(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        head = min(128, s["hidden"])
        x = random(s["tokens"], s["hidden"] // head, head, dtype=dtype, grad=backward)
        cos, sin = (random(s["tokens"], 1, head, dtype=dtype) for _ in range(2))
        return _compiled(rotate, x, cos, sin, backward=backward)

    return make


def _cross_entropy(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        logits = random(s["tokens"], s["vocab"], dtype=dtype, grad=backward)
        target = torch.randint(s["vocab"], (s["tokens"],), device="cuda")
        return _compiled(lambda x, y: functional.cross_entropy(x.float(), y), logits, target, backward=backward)

    return make


MAKERS: Mapping[str, Maker] = {
    "swiglu_fwd": _swiglu(backward=False),
    "swiglu_bwd_fused": _swiglu(backward=True),
    "rope_fwd": _rope(backward=False),
    "rope_bwd_fused": _rope(backward=True),
    "cross_entropy_fused_fwd": _cross_entropy(backward=False),
    "cross_entropy_fused_bwd": _cross_entropy(backward=True),
}
"""Operation to the maker of its call."""
