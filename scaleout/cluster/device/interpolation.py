"""How each operation is interpolated: its guess, its coordinates, what it is interpolated together with, how smoothly.

The logarithm of measured time over guess is taken to vary smoothly over the coordinates. The hyper-parameters were
chosen once for each family, as round numbers, by the likelihood of the H200 measurements and the errors of leaving out
single shapes and whole values of a size; they are not fitted at run time.

Symbols: N calls; D coordinates, in octaves.

Gaussian-process regression with fixed hyper-parameters: scattered values to a smooth estimate between them.

The value at a point is a constant, a linear trend and a smooth departure from it, all Gaussian; an estimate is the
mean of that process given the values of the nearest points. A second, very short-ranged term takes the place of
noise: the estimate passes through every datum, and a tenth of an octave away it has returned to the smooth part.
Points belong to series that resemble each other to a stated degree, and within a series to sources that resemble each
other more. The module knows neither kernels nor devices.

Symbols: x (N, D) coordinates; y (N,) values; s (N, 2) series and source; r distance over a length; K nearest points.
Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, eq. 2.23 and 4.17; nearest neighbours
after Vecchia, J. R. Statist. Soc. B 50(2), 1988.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.cluster.device import analytical
from scaleout.cluster.device.analytical import Calls
from scaleout.cluster.device.spec import Device
from scaleout.program.operations import ITEM_BYTES, OPERATIONS, Family, Kernel

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Smoothness:
    """Hyper-parameters of the process, in the units of the values and of the coordinates.

    Attributes
    ----------
    amplitude : float
        Standard deviation of the smooth departure.
    length : float
        Distance over which the departure is alike.
    trend : float
        Standard deviation of the slope along each coordinate.
    noise : float
        Standard deviation of what no neighbour knows.
    kinship : float
        Correlation of the departures of two series, 0 to 1.
    offset : float
        Standard deviation of the constant by which one series differs from another.
    """

    amplitude: float
    length: float
    trend: float = 0.0
    noise: float = 0.03
    correlation: float = 1.0
    offset: float = 0.0


class Points(NamedTuple):
    """Points at which values are known or asked for.

    Attributes
    ----------
    coordinates : ndarray, shape (N, D)
    labels : ndarray of int64, shape (N, 2)
        Series and source of each point.
    """

    coordinates: Array
    labels: Labels


_LEVEL = 1.0
"""Standard deviation of the constant: any level is about equally likely."""
_NOISE_LENGTH = 0.05
"""Length of the term that stands for noise, in units of the coordinates."""
_SOURCE_CORRELATION = 0.97
"""Correlation of the departures of two sources of one series."""
_SOURCE_OFFSET = 0.05
"""Standard deviation of the constant by which two sources of one series differ."""
_NEIGHBOURS = 64
_FOREIGN = 0.5
"""Distance, in lengths, that a point of another series or source counts as further off."""
_BATCH = 256
"""Points that are estimated at a time: bounds the memory."""


def estimate(
    known: Points, values: Array, asked: Points, *, smoothness: Smoothness, hidden: npt.NDArray[np.bool_] | None = None
) -> Array:
    """Return the mean of the process at points, given the values at the nearest known ones.

    Parameters
    ----------
    known : Points, N of them
    values : ndarray, shape (N,)
    asked : Points, Q of them
    smoothness : Smoothness
    hidden : ndarray of bool, shape (Q, N), optional
        Known points that an estimate must not use.

    Returns
    -------
    ndarray of float64, shape (Q,)
    """
    found = np.empty(len(asked.coordinates))
    for first in range(0, len(found), _BATCH):
        part = slice(first, first + _BATCH)
        few = Points(asked.coordinates[part], asked.labels[part])
        found[part] = _estimate(known, values, few, smoothness, None if hidden is None else hidden[part])
    return found


def _estimate(
    known: Points, values: Array, asked: Points, smoothness: Smoothness, hidden: npt.NDArray[np.bool_] | None
) -> Array:
    distance = _distance(asked.coordinates[:, None, :], known.coordinates[None, :, :])
    foreign = (asked.labels[:, None, :] != known.labels[None, :, :]).sum(axis=2)
    distance += _FOREIGN * smoothness.length * foreign
    if hidden is not None:
        distance[hidden] = np.inf
    count = min(_NEIGHBOURS, len(values) if hidden is None else int((~hidden).sum(axis=1).min()))
    near = np.argpartition(distance, count - 1, axis=1)[:, :count]
    # Neighbours in the table's order, so that the result does not depend on how the selection leaves them.
    near.sort(axis=1)
    # Coordinates count from the point asked for: the trend through the origin is then a slope around that point.
    points, labels = known.coordinates[near] - asked.coordinates[:, None, :], known.labels[near]
    covariance = _covariance(points, labels, points, labels, smoothness) + 1e-8 * np.eye(count)
    origin, own = np.zeros_like(asked.coordinates)[:, None, :], asked.labels[:, None, :]
    weights = np.linalg.solve(covariance, values[near][:, :, None])
    return np.asarray((_covariance(origin, own, points, labels, smoothness) @ weights)[:, 0, 0])


def _distance(a: Array, b: Array) -> Array:
    squared = np.zeros(np.broadcast_shapes(a.shape, b.shape)[:-1])
    for axis in range(a.shape[-1]):
        squared += (a[..., axis] - b[..., axis]) ** 2
    return np.sqrt(squared)


def _covariance(a: Array, labels_a: Labels, b: Array, labels_b: Labels, smoothness: Smoothness) -> Array:
    """Covariance of the process between points (Q, A, D) and (Q, B, D), shape (Q, A, B).

    The departure is a Matérn 5/2.
    """
    distance = _distance(a[:, :, None, :], b[:, None, :, :])
    r = np.sqrt(5.0) / smoothness.length * distance
    departure = smoothness.amplitude**2 * (1.0 + r + r * r / 3.0) * np.exp(-r)
    series, source = np.moveaxis(labels_a[:, :, None, :] == labels_b[:, None, :, :], -1, 0)
    same = series & source
    alike = np.where(same, 1.0, np.where(series, _SOURCE_CORRELATION, smoothness.correlation))
    covariance = alike * departure + _LEVEL**2 + smoothness.trend**2 * (a @ b.transpose(0, 2, 1))
    covariance += series * smoothness.offset**2
    covariance += same * (_SOURCE_OFFSET**2 + smoothness.noise**2 * np.exp(-distance / _NOISE_LENGTH))
    return np.asarray(covariance)


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
    "gemm": analytical.gemm,
    "gemm_fp8": analytical.gemm,
    "gemm_fp8_rowwise": analytical.gemm,
    "conv2d_fwd": analytical.convolution,
    "conv2d_bwd_data": analytical.convolution,
    "conv2d_bwd_weight": analytical.convolution,
    "attention_fwd": analytical.attention,
    "attention_bwd": analytical.attention,
    "attention_gqa_fwd": analytical.attention,
    "attention_gqa_bwd": analytical.attention,
    "interaction_gather_bwd": analytical.scatter,
    "embedding_bag_bwd_sparse": analytical.scatter,
    "adamw_fused": analytical.optimiser,
}

_SMOOTHNESS = {
    Family.GEMM: Smoothness(amplitude=0.5, length=6.0, trend=0.2, noise=0.03),
    Family.CONVOLUTION: Smoothness(amplitude=0.3, length=4.0, trend=0.1, noise=0.03, correlation=0.8, offset=0.5),
    Family.ATTENTION: Smoothness(amplitude=0.4, length=6.0, trend=0.05, noise=0.015, correlation=0.5),
    Family.ROWS: Smoothness(amplitude=0.2, length=4.0, trend=0.05, noise=0.02, correlation=0.3),
    Family.ELEMENTWISE: Smoothness(amplitude=0.2, length=4.0, noise=0.02, correlation=0.6, offset=0.6),
    Family.GATHER: Smoothness(amplitude=0.2, length=3.0, trend=0.05, noise=0.02, correlation=0.5),
}
_TILED = Smoothness(amplitude=0.6, length=4.0, trend=0.1, noise=0.07, correlation=0.9, offset=1.0)
"""Of matrix products: which kernel the library picks changes from shape to shape, and so does the power state."""


def smoothness_of(op: str) -> Smoothness:
    """Return the hyper-parameters of an operation."""
    return _TILED if _GUESSES.get(op) is analytical.gemm else _SMOOTHNESS[OPERATIONS[op].family]


def guess(calls: Calls, device: Device) -> Array:
    """Return the first guess of the time of calls in seconds, shape (N,)."""
    return _GUESSES.get(calls.op, analytical.stream)(calls, device)


def crowded(calls: Calls, device: Device, left: Device) -> Array:
    """Return the first guess of the time of calls beside others that leave part of a device, in seconds, shape (N,)."""
    if _GUESSES.get(calls.op) is analytical.gemm:
        return analytical.gemm(calls, device, left)
    return guess(calls, left)


def blocks(calls: Calls, device: Device) -> Array | None:
    """Return the thread blocks of calls that are matrix products, shape (N,); None for others."""
    return analytical.blocks(calls, device) if _GUESSES.get(calls.op) is analytical.gemm else None


_WEIGHTS = {"M": 0.6, "vocab": 3.0, "topk": 2.0, "features": 2.0}
"""Octaves that count less or more than others: rows of activations change the choice of a kernel least."""


def coordinates(calls: Calls) -> Array:
    """Return the point of each call, shape (N, D): the logarithm of its sizes, or of its bytes if element-wise."""
    if _elementwise(calls.op):
        return np.log2(calls.bytes)[:, None]
    sizes = dict(calls.sizes)
    if calls.op.startswith("attention"):
        sizes["heads"] = sizes["heads"] * sizes.pop("batch")
        sizes["head_dim"] = analytical.padded_head(sizes["head_dim"])
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
        slow = analytical.waits_for_arithmetic(op, dtype)
        return tuple(key for key in every if analytical.waits_for_arithmetic(*key) == slow)
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
