"""Calls of an operation to a physical first guess of their time, and to coordinates in which times vary smoothly.

The guess carries what is sharp in a time: the launch, waves of tiles over the SMs, the roofline. What it leaves is
smooth in the logarithm of the sizes, and `kernels` interpolates that between measurements. So a guess has to be right
in shape, not in level: its few constants are round numbers. The module knows no measurement.

Symbols: N calls; M, N, K sizes of a matrix product; a tile is the block of the result that one SM works on.
Source: tile sizes and the 64-deep step along K are those of the Hopper kernels that cuBLAS names in a profile.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.device import Device
from scaleout.interpolation import Smoothness
from scaleout.operations import ITEM_BYTES, OPERATIONS, Family, Kernel

Array = npt.NDArray[np.float64]


class Calls(NamedTuple):
    """Several calls of one operation in one dtype: sizes by name, FLOPs and bytes, each of shape (N,)."""

    op: str
    dtype: str
    sizes: Mapping[str, Array]
    flops: Array
    bytes: Array


class KernelModel(NamedTuple):
    """How to interpolate an operation.

    Attributes
    ----------
    guess : callable
        Calls and their device to seconds, shape (N,).
    coordinates : callable
        Calls to coordinates, shape (N, D), in octaves.
    smoothness : Smoothness
        Of the logarithm of time over guess.
    """

    guess: Callable[[Calls, Device], Array]
    coordinates: Callable[[Calls], Array]
    smoothness: Smoothness


def calls_of(kernels: Sequence[Kernel]) -> Calls:
    """Gather kernels of one operation and dtype."""
    first = kernels[0]
    sizes = np.array([[value for _, value in kernel.shape] for kernel in kernels], dtype=np.float64)
    flops = np.array([kernel.flops for kernel in kernels], dtype=np.float64)
    moved = np.array([kernel.bytes for kernel in kernels], dtype=np.float64)
    names = [name for name, _ in first.shape]
    return Calls(first.op, first.dtype, dict(zip(names, sizes.T, strict=True)), flops, moved)


def roofline(calls: Calls, device: Device) -> Array:
    """Return the time at peak rates, ``max(FLOPs / peak, bytes / bandwidth)``, shape (N,)."""
    bound = calls.bytes / device.memory_bytes_per_s
    return np.maximum(bound, calls.flops / device.peak(calls.dtype)) if np.any(calls.flops > 0) else bound


LAUNCH_S = 2.0e-6
"""A kernel that does next to nothing: launch, a round trip to memory, drain."""
_REACHED = 0.85
"""Share of the peak bandwidth that a stream reaches."""


def _stream(calls: Calls, device: Device) -> Array:
    """Launch, then the roofline at the rates that a long stream reaches."""
    return np.asarray(LAUNCH_S + roofline(calls, device) / _REACHED)


_TILES = (
    (256, 128, 0.86),
    (128, 256, 0.86),
    (192, 128, 0.80),
    (128, 192, 0.80),
    (128, 128, 0.72),
    (64, 256, 0.72),
    (256, 64, 0.72),
    (128, 64, 0.60),
    (64, 128, 0.60),
    (64, 64, 0.45),
)
"""Rows and columns of a tile, and the share of an SM's peak that it sustains: a larger tile loads less a FLOP."""
_SPLITS = (1, 2, 4, 8)
_STEP = 64
_STEP_S = 70e-9
"""Shortest time of one step along K: what the pipeline of loads cannot hide."""
_FILL_S = 0.9e-6
"""Time to fill the pipeline of a tile and to write its result."""
_SPLIT_S = 0.8e-6
"""Extra latency of a sum over splits of K."""


def _tiled(rows: Array, cols: Array, depth: Array, calls: Calls, device: Device) -> Array:
    """Time of the best tiling of a (rows, depth) by (depth, cols) product.

    ``waves * (fill + steps * step)`` with ``waves = ceil(tiles * splits / SMs)``, but no less than the bytes take.
    """
    sm_flops_per_s = device.peak(calls.dtype) / device.num_sms
    best = np.full(len(rows), np.inf)
    for tile_rows, tile_cols, share in _TILES:
        tiles = np.ceil(rows / tile_rows) * np.ceil(cols / tile_cols)
        step_s = max(_STEP_S, 2 * tile_rows * tile_cols * _STEP / (share * sm_flops_per_s))
        for splits in _SPLITS:
            waves = np.ceil(tiles * splits / device.num_sms)
            seconds = waves * (_FILL_S + np.ceil(depth / splits / _STEP) * step_s)
            if splits > 1:
                partial_bytes = (splits + 1) * rows * cols * 4
                seconds += _SPLIT_S + partial_bytes / (2 * device.memory_bytes_per_s)
            best = np.minimum(best, seconds)
    return np.asarray(LAUNCH_S + np.maximum(best, calls.bytes / (_REACHED * device.memory_bytes_per_s)))


def _gemm(calls: Calls, device: Device) -> Array:
    return _tiled(calls.sizes["M"], calls.sizes["N"], calls.sizes["K"], calls, device)


def _octaves(calls: Calls) -> Array:
    """Logarithm of every size; `causal` counts as one octave."""
    return np.column_stack([v if name == "causal" else np.log2(v) for name, v in calls.sizes.items()])


_DEFAULT = {
    Family.GEMM: Smoothness(amplitude=0.6, length=8.0, noise=0.06, kinship=0.95, offset=0.1),
    Family.CONVOLUTION: Smoothness(amplitude=0.6, length=4.0, noise=0.03, trend=0.1),
    Family.ATTENTION: Smoothness(amplitude=0.4, length=4.0, noise=0.03, trend=0.1),
    Family.ROWS: Smoothness(amplitude=0.4, length=4.0, noise=0.03, trend=0.1),
    Family.ELEMENTWISE: Smoothness(amplitude=0.4, length=4.0, noise=0.03, trend=0.1),
    Family.GATHER: Smoothness(amplitude=0.4, length=4.0, noise=0.03, trend=0.1),
}

_MODELS = {op: KernelModel(_stream, _octaves, _DEFAULT[operation.family]) for op, operation in OPERATIONS.items()} | {
    op: KernelModel(_gemm, _octaves, _DEFAULT[Family.GEMM]) for op in ("gemm", "gemm_fp8")
}


def model_of(op: str) -> KernelModel:
    """Return how to interpolate an operation."""
    return _MODELS[op]


_MATRIX_UNITS = frozenset({"bf16", "fp16"})


def group_of(op: str, dtype: str) -> tuple[tuple[str, str], ...]:
    """Return the series, of operation and dtype, that are interpolated together with one.

    Matrix products in bf16 and fp16 run at the same rate in the same kernels but for their type.
    """
    if op == "gemm" and dtype in _MATRIX_UNITS:
        return tuple((op, other) for other in sorted(_MATRIX_UNITS))
    return ((op, dtype),)


def variants(calls: Calls) -> npt.NDArray[np.bool_]:
    """Return whether each call falls to a slower kernel for want of alignment, shape (N,).

    The matrix units load 16 bytes at a time: a row of a matrix, N or K long, must be a multiple of that.
    """
    if OPERATIONS[calls.op].family is not Family.GEMM or "K" not in calls.sizes:
        return np.zeros(len(calls.bytes), dtype=bool)
    aligned = 16 // ITEM_BYTES[calls.dtype]
    return np.asarray((calls.sizes["N"] % aligned != 0) | (calls.sizes["K"] % aligned != 0))
