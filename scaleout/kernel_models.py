"""How each operation is interpolated: its guess, its coordinates, what it is interpolated together with, how smoothly.

The logarithm of measured time over guess is taken to vary smoothly over the coordinates. The hyper-parameters were
chosen once for each family, as round numbers, by the likelihood of the H200 measurements and the errors of leaving out
single shapes and whole values of a size; they are not fitted at run time.

Symbols: N calls; D coordinates, in octaves.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from scaleout import kernel_guesses
from scaleout.device import Device
from scaleout.interpolation import Smoothness
from scaleout.kernel_guesses import Calls
from scaleout.operations import ITEM_BYTES, OPERATIONS, Family, Kernel

Array = npt.NDArray[np.float64]
Guess = Callable[[Calls, Device], Array]


def calls_of(kernels: Sequence[Kernel]) -> Calls:
    """Gather kernels of one operation and dtype."""
    first = kernels[0]
    sizes = np.array([[value for _, value in kernel.shape] for kernel in kernels], dtype=np.float64)
    flops = np.array([kernel.flops for kernel in kernels], dtype=np.float64)
    moved = np.array([kernel.bytes for kernel in kernels], dtype=np.float64)
    names = [name for name, _ in first.shape]
    cold = np.zeros(len(kernels), dtype=bool)
    return Calls(first.op, first.dtype, dict(zip(names, sizes.T, strict=True)), flops, moved, cold)


_GUESSES: Mapping[str, Guess] = {
    "gemm": kernel_guesses.gemm,
    "gemm_fp8": kernel_guesses.gemm,
    "gemm_fp8_rowwise": kernel_guesses.gemm,
    "conv2d_fwd": kernel_guesses.convolution,
    "conv2d_bwd_data": kernel_guesses.convolution,
    "conv2d_bwd_weight": kernel_guesses.convolution,
    "attention_fwd": kernel_guesses.attention,
    "attention_bwd": kernel_guesses.attention,
    "attention_gqa_fwd": kernel_guesses.attention,
    "attention_gqa_bwd": kernel_guesses.attention,
    "interaction_gather_bwd": kernel_guesses.scatter,
    "embedding_bag_bwd_sparse": kernel_guesses.scatter,
    "adamw_fused": kernel_guesses.optimiser,
}

_SMOOTHNESS = {
    Family.GEMM: Smoothness(amplitude=0.5, length=6.0, trend=0.2, noise=0.03),
    Family.CONVOLUTION: Smoothness(amplitude=0.3, length=4.0, trend=0.1, noise=0.03, kinship=0.8, offset=0.5),
    Family.ATTENTION: Smoothness(amplitude=0.4, length=6.0, trend=0.05, noise=0.015, kinship=0.5),
    Family.ROWS: Smoothness(amplitude=0.2, length=4.0, trend=0.05, noise=0.02, kinship=0.3),
    Family.ELEMENTWISE: Smoothness(amplitude=0.2, length=4.0, noise=0.02, kinship=0.6, offset=0.6),
    Family.GATHER: Smoothness(amplitude=0.2, length=3.0, trend=0.05, noise=0.02, kinship=0.5),
}
_TILED = Smoothness(amplitude=0.6, length=4.0, trend=0.1, noise=0.07, kinship=0.9, offset=1.0)
"""Of matrix products: which kernel the library picks changes from shape to shape, and so does the power state."""


def smoothness_of(op: str) -> Smoothness:
    """Return the hyper-parameters of an operation."""
    return _TILED if _GUESSES.get(op) is kernel_guesses.gemm else _SMOOTHNESS[OPERATIONS[op].family]


def guess(calls: Calls, device: Device) -> Array:
    """Return the first guess of the time of calls in seconds, shape (N,)."""
    return _GUESSES.get(calls.op, kernel_guesses.stream)(calls, device)


def crowded(calls: Calls, device: Device, left: Device) -> Array:
    """Return the first guess of the time of calls beside others that leave part of a device, in seconds, shape (N,)."""
    if _GUESSES.get(calls.op) is kernel_guesses.gemm:
        return kernel_guesses.gemm(calls, device, left)
    return guess(calls, left)


def blocks(calls: Calls, device: Device) -> Array | None:
    """Return the thread blocks of calls that are matrix products, shape (N,); None for others."""
    return kernel_guesses.blocks(calls, device) if _GUESSES.get(calls.op) is kernel_guesses.gemm else None


_WEIGHTS = {"M": 0.6, "vocab": 3.0, "topk": 2.0, "features": 2.0}
"""Octaves that count less or more than others: rows of activations change the choice of a kernel least."""


def coordinates(calls: Calls) -> Array:
    """Return the point of each call, shape (N, D): the logarithm of its sizes, or of its bytes if element-wise."""
    if _elementwise(calls.op):
        return np.log2(calls.bytes)[:, None]
    sizes = dict(calls.sizes)
    if calls.op.startswith("attention"):
        sizes["heads"] = sizes["heads"] * sizes.pop("batch")
        sizes["head_dim"] = kernel_guesses.padded_head(sizes["head_dim"])
    return np.column_stack(
        [values if name == "causal" else _WEIGHTS.get(name, 1.0) * np.log2(values) for name, values in sizes.items()]
    )


def _elementwise(op: str) -> bool:
    return OPERATIONS[op].parameters == ("elements",) and OPERATIONS[op].family is Family.ELEMENTWISE


_TWO_BYTES = ("bf16", "fp16")


def group_of(op: str, dtype: str) -> tuple[tuple[str, str], ...]:
    """Return the series, of operation and dtype, that are interpolated together with one.

    Products of both two-byte types run in the same kernels but for the type, convolutions on the matrix units resemble
    each other but none in fp32, which runs beside them, and other operations resemble themselves in any type.
    Element-wise kernels stream, and those that wait for their own arithmetic do so alike.
    """
    if op == "gemm":
        return tuple((op, other) for other in _TWO_BYTES) if dtype in _TWO_BYTES else ((op, dtype),)
    if _elementwise(op):
        every = [(other, any_dtype) for other in OPERATIONS if _elementwise(other) for any_dtype in ITEM_BYTES]
        slow = kernel_guesses.waits_for_arithmetic(op, dtype)
        return tuple(key for key in every if kernel_guesses.waits_for_arithmetic(*key) == slow)
    if OPERATIONS[op].family is Family.CONVOLUTION:
        return tuple((op, other) for other in ITEM_BYTES if (other == "fp32") == (dtype == "fp32"))
    return tuple((op, any_dtype) for any_dtype in ITEM_BYTES)


NUM_VARIANTS = 3
UNALIGNED = 1
"""The variant of calls whose rows are no multiple of what a load takes."""


def variants(calls: Calls) -> npt.NDArray[np.int64]:
    """Return which kind of kernel each call falls to, shape (N,): 0 the usual, 1 unaligned, 2 of another shape.

    Loads are 16 bytes wide: a row of a matrix or a head that is no multiple of that takes a slower kernel, and so does
    a row of a table that is no multiple of a 128-byte line of the cache. A product in which a size is 1 takes another
    kernel, and so does the backward of attention with heads wider than 128.
    """
    sizes, item_bytes = calls.sizes, ITEM_BYTES[calls.dtype]
    aligned = 16 // item_bytes
    other = np.zeros(len(calls.bytes), dtype=bool)
    if "c_in" in sizes:
        unaligned = sizes["c_in"] % aligned != 0
    elif "pooling" in sizes:
        unaligned = sizes["dim"] * item_bytes % 128 != 0
    elif "head_dim" in sizes:
        unaligned = sizes["head_dim"] % aligned != 0
        other = (sizes["head_dim"] > 128) & calls.op.endswith("bwd")
    elif "K" in sizes:
        rows, cols, depth = (sizes[name] for name in "MNK")
        unaligned = (cols % aligned != 0) | (depth % aligned != 0)
        other = (np.minimum(cols, depth) == 1) | ((rows == 1) & (aligned == 4))
    else:
        unaligned = other
    return np.where(other, 2, unaligned.astype(np.int64))
