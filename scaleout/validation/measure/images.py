"""What stands between the convolutions of a network to PyTorch calls: batch normalisation and pooling, channels last.

Their calls are described by the number of elements alone; these have 64 channels, of images of at least 7 by 7.
"""

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from scaleout.validation.measure.tensors import Call, Maker, Sizes, backward_of, random

_CHANNELS = 64


def _images(s: Sizes, dtype: torch.dtype, *, grad: bool) -> torch.Tensor:
    """Square images of about so many elements: of 56 by 56, or of 7 by 7 where those are too large."""
    side = 56 if s["elements"] >= 64 * 56**2 * _CHANNELS else 7
    batch = max(1, s["elements"] // (side**2 * _CHANNELS))
    return random(batch, _CHANNELS, side, side, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_(grad)


def _batch_norm(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        x = _images(s, dtype, grad=backward)
        weight, bias = (random(_CHANNELS, dtype=torch.float32, grad=backward) for _ in range(2))
        mean, variance = torch.zeros(_CHANNELS, device="cuda"), torch.ones(_CHANNELS, device="cuda")

        def normalise(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return functional.batch_norm(x, mean, variance, weight, bias, training=True)

        return _call(normalise, x, weight, bias, backward=backward)

    return make


def _pool(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        x = _images(s, dtype, grad=backward)
        return _call(lambda x: functional.max_pool2d(x, 3, stride=2, padding=1), x, backward=backward)

    return make


def _call(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, backward: bool) -> Call:
    return backward_of(function, *inputs) if backward else lambda: function(*inputs)


MAKERS: Mapping[str, Maker] = {
    "batch_norm_fwd": _batch_norm(backward=False),
    "batch_norm_bwd": _batch_norm(backward=True),
    "pool_fwd": _pool(backward=False),
    "pool_bwd": _pool(backward=True),
}
"""Operation to the maker of its call."""
