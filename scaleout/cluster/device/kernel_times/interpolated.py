"""The time of a call between measured ones: the analytical estimate times a smooth correction.

The logarithm of measured time over estimate varies smoothly with the logarithms of the sizes; a Gaussian process
carries it from the measured calls of similar series to the call in question. Answers only near measurements
(`RANGE_OCTAVES`, `REACH_OCTAVES`). See docs/models/kernel-times.md.

Symbols: N calls; G measured calls that are interpolated together; D coordinates, in octaves; Q points asked for.
Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, eq. 2.23 and 4.17; nearest neighbours
after Vecchia, J. R. Statist. Soc. B 50(2), 1988.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.cluster.device.kernel_times.analytical import shortest_s
from scaleout.cluster.device.kernel_times.estimate import (
    NUM_CLASSES,
    decode_head,
    estimate,
    is_tiled_gemm,
    kernel_classes,
    on_matrix_units,
    padded_head,
    waits_for_arithmetic,
)
from scaleout.cluster.device.kernel_times.measured import table_of
from scaleout.cluster.device.kernel_times.model import Array, Bools, Calls, Key, Shape
from scaleout.cluster.device.spec import Device
from scaleout.program.operations import ITEM_BYTES, OPERATIONS, Family, Kernel

SOURCE = "interpolated"

Labels = npt.NDArray[np.int64]

RANGE_OCTAVES = 2.0
"""A size is inside the measured neighbourhood up to this far outside the range of its axis."""
REACH_OCTAVES = 3.0
"""The nearest measured shape of an interpolated kernel differs in no size by more than this."""


def times(device: Device, calls: Calls) -> Array:
    """Return the seconds of calls near to measured ones over the device's calibration, shape (N,); NaN for others."""
    seconds = np.full(len(calls.bytes), np.nan)
    table = table_of(device)
    if calls.key not in table.rows and on_matrix_units(calls):
        calls = calls._replace(dtype=next(other for other in _TWO_BYTES if other != calls.dtype))
    if calls.key in table.rows:
        series = table.series(calls.key)
        near = np.any([_near(table.series(key).calls, calls) for key in _alike(calls) if key in table.rows], axis=0)
        if near.any():
            chosen = series.alike(calls.select(near))
            seconds[near] = interpolated_s(device, chosen) / device.calibrated(calls.op)
    return seconds


def interpolated_s(device: Device, calls: Calls, *, source: int = 0) -> Array:
    """Return the seconds of calls of a measured series as one of its sources would measure them, shape (N,)."""
    group = _group(device, _series_with(*calls.key))
    labels = _labels(group.keys.index(calls.key), calls, np.full(len(calls.bytes), source, dtype=np.int64))
    asked = Points(_coordinates(calls), labels)
    logs = posterior_mean(group.points, group.values, asked, smoothness=_smoothness_of(calls.op))
    return np.maximum(_estimated(estimate(calls, device), logs), shortest_s(device, calls.op))


def _estimated(seconds: Array, logs: Array) -> Array:
    """Return times scaled by estimated logarithms, in single precision: further bits are those of a LAPACK."""
    return (seconds * np.exp(logs)).astype(np.float32).astype(np.float64)


def _alike(calls: Calls) -> tuple[Key, ...]:
    """Return the series of the same kernels: GEMMs on matrix units in either two-byte type, others alone."""
    return _series_with(*calls.key) if on_matrix_units(calls) else (calls.key,)


def _near(measured: Calls, calls: Calls) -> Bools:
    """Whether each call lies within the measured neighbourhood of its series, shape (N,).

    A call of a class of kernel that was not measured is far. GEMMs of groups that are measured have many rows in few
    groups or few in many: a few of few is far, by its FLOPs.
    """
    asked, known = calls.log2_sizes(), measured.log2_sizes()
    in_range = (asked >= known.min(axis=0) - RANGE_OCTAVES) & (asked <= known.max(axis=0) + RANGE_OCTAVES)
    reach = np.abs(asked[:, None, :] - known[None, :, :]).max(axis=2).min(axis=1)
    near = in_range.all(axis=1) & (reach <= REACH_OCTAVES) & np.isin(kernel_classes(calls), kernel_classes(measured))
    if "groups" in calls.sizes:
        work, worked = np.log2(calls.flops), np.log2(measured.flops)
        near &= (work >= worked.min() - RANGE_OCTAVES) & (work <= worked.max() + RANGE_OCTAVES)
    return np.asarray(near)


class InterpolationError(NamedTuple):
    """How well the measured kernels of one series predict each other: absolute relative errors, as fractions."""

    op: str
    dtype: str
    num_shapes: int
    median: float
    p90: float


def leave_one_out(device: Device) -> list[InterpolationError]:
    """Compare each measured shape with its interpolation between all others, for every series of three or more."""
    table = table_of(device)
    found = []
    for key in sorted(table.rows):
        exact = table.series(key).exact
        if len(exact) < 3:
            continue
        estimates = _left_out(device, key)
        errors = [abs(estimates[shape] / seconds - 1) for shape, seconds in exact.items()]
        median, p90 = float(np.median(errors)), float(np.quantile(errors, 0.9))
        found.append(InterpolationError(*key, len(exact), median, p90))
    return found


def left_out_s(device: Device, kernel: Kernel) -> float | None:
    """Return the seconds of a measured kernel as if its shape had not been measured; None if too few others were."""
    key = kernel.op, kernel.dtype
    if len(table_of(device).series(key).exact) < 3:
        return None
    return _left_out(device, key)[tuple(kernel.sizes.values())]


@functools.lru_cache(maxsize=256)
def _left_out(device: Device, key: Key) -> Mapping[Shape, float]:
    """Return the estimate of each shape of a series, as its first source has it, without all its measurements."""
    group, series = _group(device, _series_with(*key)), table_of(device).series(key)
    (members,) = np.nonzero(group.key == group.keys.index(key))
    rank = {shape: number for number, shape in enumerate(series.exact)}
    shapes = np.array([rank[shape] for shape in series.calls.shapes()])
    hidden = np.zeros((len(members), len(group.values)), dtype=bool)
    hidden[:, members] = shapes[:, None] == shapes[None, :]
    _, first = np.unique(shapes, return_index=True)
    asked = Points(group.points.coordinates[members[first]], group.points.labels[members[first]])
    smoothness = _smoothness_of(key[0])
    logs = posterior_mean(group.points, group.values, asked, smoothness=smoothness, hidden=hidden[first])
    seconds = _estimated(np.array(list(series.exact.values())), logs - group.values[members[first]])
    return dict(zip(series.exact, seconds.tolist(), strict=True))


class Points(NamedTuple):
    """Points at which values are known or asked for."""

    coordinates: Array  # (N, D)
    labels: Labels  # (N, 2): series and source of each point


class _Group(NamedTuple):
    """Measured calls that are interpolated together, G of them."""

    keys: tuple[Key, ...]
    points: Points
    key: Labels  # (G,) which of the keys each is of
    values: Array  # (G,) log of time over estimate


@functools.lru_cache(maxsize=64)
def _group(device: Device, wanted: tuple[Key, ...]) -> _Group:
    table = table_of(device)
    keys = tuple(key for key in wanted if key in table.rows)
    series = [table.series(key) for key in keys]
    points = Points(
        np.vstack([_coordinates(one.calls) for one in series]),
        np.vstack([_labels(index, one.calls, one.sources) for index, one in enumerate(series)]),
    )
    key = np.repeat(np.arange(len(keys)), [len(one.seconds) for one in series])
    values = np.concatenate([np.log(one.seconds / estimate(one.calls, device)) for one in series])
    return _Group(keys, points, key, values)


def _labels(index: int, calls: Calls, sources: Labels) -> Labels:
    """Return what a Gaussian process tells points apart by, shape (N, 2): series with kernel class, and source.

    Matrix units do both two-byte types alike, so their GEMMs are one series, which each type's sources measured.
    """
    if on_matrix_units(calls):
        index, sources = 0, sources + _SOURCES * index
    return np.column_stack([NUM_CLASSES * index + kernel_classes(calls), sources])


_SOURCES = 1000
"""More than the sources of any series."""


_TWO_BYTES = ("bf16", "fp16")


def _series_with(op: str, dtype: str) -> tuple[Key, ...]:
    """Return the series that are interpolated together with one, itself among them.

    Similar are GEMMs of both two-byte types, convolutions on the same units (fp32: vector units), element-wise kernels
    that stream, those that wait for their own arithmetic, and any other operation to itself in any dtype.
    """
    if op in ("gemm", "batched_gemm", "grouped_gemm"):
        return tuple((op, other) for other in _TWO_BYTES) if dtype in _TWO_BYTES else ((op, dtype),)
    if _elementwise(op):
        every = [(other, any_dtype) for other in OPERATIONS if _elementwise(other) for any_dtype in ITEM_BYTES]
        slow = waits_for_arithmetic(op, dtype)
        return tuple(key for key in every if waits_for_arithmetic(*key) == slow)
    if OPERATIONS[op].family is Family.CONVOLUTION:
        return tuple((op, other) for other in ITEM_BYTES if (other == "fp32") == (dtype == "fp32"))
    return tuple((op, any_dtype) for any_dtype in ITEM_BYTES)


def _elementwise(op: str) -> bool:
    return OPERATIONS[op].parameters == ("elements",) and OPERATIONS[op].family is Family.ELEMENTWISE


@dataclass(frozen=True)
class Smoothness:
    """Hyper-parameters of the process, in the units of the values and of the coordinates."""

    amplitude: float  # standard deviation of the smooth departure
    length: float  # distance over which the departure changes
    trend: float = 0.0  # standard deviation of the slope along each coordinate
    noise: float = 0.03  # of what no neighbour knows
    correlation: float = 1.0  # correlation of the departures of two series, 0 to 1
    offset: float = 0.0  # standard deviation of the constant by which one series differs from another


_SMOOTHNESS = {
    Family.GEMM: Smoothness(amplitude=0.5, length=6.0, trend=0.2, noise=0.03),
    Family.CONVOLUTION: Smoothness(amplitude=0.3, length=4.0, trend=0.1, noise=0.03, correlation=0.8, offset=0.5),
    Family.ATTENTION: Smoothness(amplitude=0.4, length=6.0, trend=0.05, noise=0.015, correlation=0.5),
    Family.DECODE: Smoothness(amplitude=0.4, length=6.0, trend=0.05, noise=0.05, correlation=0.5),
    Family.ROWS: Smoothness(amplitude=0.2, length=4.0, trend=0.05, noise=0.02, correlation=0.3),
    Family.ELEMENTWISE: Smoothness(amplitude=0.2, length=4.0, noise=0.02, correlation=0.6, offset=0.6),
    Family.GATHER: Smoothness(amplitude=0.2, length=3.0, trend=0.05, noise=0.02, correlation=0.5),
}
"""Of each family, chosen once by likelihood and by errors of leaving shapes out on the H200."""
_TILED = Smoothness(amplitude=0.6, length=4.0, trend=0.1, noise=0.07, correlation=0.9, offset=1.0)
"""Of GEMMs in tiles: the kernel that the library picks changes from shape to shape, and so does the power state."""

_FLASH2 = replace(_SMOOTHNESS[Family.ATTENTION], noise=0.05)
"""Of FlashAttention 2, which picks among blocks and splits of keys."""
_GROUPED = replace(_SMOOTHNESS[Family.GEMM], noise=0.07)
"""Of CUTLASS's GEMMs of groups, whose tiles lie otherwise among the waves from shape to shape."""
_OWN = {
    "attention_fa2_fwd": _FLASH2,
    "attention_fa2_bwd": _FLASH2,
    "grouped_gemm": _GROUPED,
    "gemv": replace(_GROUPED, correlation=0.9, offset=0.5),  # aligned or not, they are different kernels
}


def _smoothness_of(op: str) -> Smoothness:
    return _TILED if is_tiled_gemm(op) else _OWN.get(op, _SMOOTHNESS[OPERATIONS[op].family])


_WEIGHTS = {"M": 0.6, "vocab": 3.0, "topk": 2.0, "features": 2.0}
"""Weight of an octave of a size, 1 for others: rows of activations (M) change the choice of a kernel least."""


def _coordinates(calls: Calls) -> Array:
    """Return the point of each call, shape (N, D): the logarithm of its sizes, or of its bytes if element-wise."""
    if _elementwise(calls.op):
        return np.log2(calls.bytes)[:, None]
    sizes = dict(calls.sizes)
    if calls.op == "attention_decode":
        sizes["heads"] = sizes["heads"] / sizes["kv_heads"]
        sizes["kv_heads"] = sizes["kv_heads"] * sizes.pop("batch")
        sizes["head_dim"] = decode_head(sizes["head_dim"])
    elif calls.op.startswith("attention"):
        sizes["heads"] = sizes["heads"] * sizes.pop("batch")
        sizes["head_dim"] = padded_head(sizes["head_dim"])
    return np.column_stack(
        [values if name == "causal" else _WEIGHTS.get(name, 1.0) * np.log2(values) for name, values in sizes.items()]
    )


_LEVEL = 1.0
"""Standard deviation of the constant: any level is about equally likely."""
_NOISE_LENGTH = 0.05
"""Length of the term that stands for noise, in units of the coordinates."""
_COINCIDENT = 1e-6
"""Variance between calls at one point, such as attention with the same batch times heads; less would cost bits."""
_SOURCE_CORRELATION = 0.97
"""Correlation of the departures of two sources of one series."""
_SOURCE_OFFSET = 0.05
"""Standard deviation of the constant by which two sources of one series differ."""
_NEIGHBOURS = 64
_OTHER_LABEL = 0.5
"""Distance, in lengths, that is added to a point of another series, and to one of another source."""
_BATCH = 256
"""Points that are estimated at a time: bounds the memory."""


def posterior_mean(
    known: Points, values: Array, asked: Points, *, smoothness: Smoothness, hidden: Bools | None = None
) -> Array:
    """Return the mean of the Gaussian process at points, shape (Q,), given the values (N,) at the nearest known ones.

    The value at a point is a constant, a linear trend, a smooth departure and noise of very short range, so the mean
    passes through every known value. Departures of series, and of sources within a series, are correlated.
    `hidden`, shape (Q, N), marks known points that an estimate must not use.
    """
    found = np.empty(len(asked.coordinates))
    for first in range(0, len(found), _BATCH):
        part = slice(first, first + _BATCH)
        batch = Points(asked.coordinates[part], asked.labels[part])
        found[part] = _batch_mean(known, values, batch, smoothness, None if hidden is None else hidden[part])
    return found


def _batch_mean(known: Points, values: Array, asked: Points, smoothness: Smoothness, hidden: Bools | None) -> Array:
    distance = _distance(asked.coordinates[:, None, :], known.coordinates[None, :, :])
    others = (asked.labels[:, None, :] != known.labels[None, :, :]).sum(axis=2)
    distance += _OTHER_LABEL * smoothness.length * others
    if hidden is not None:
        distance[hidden] = np.inf
    count = min(_NEIGHBOURS, len(values) if hidden is None else int((~hidden).sum(axis=1).min()))
    # Of equally distant ones the first in the table, and those that are taken in its order.
    near = np.sort(np.argsort(distance.round(9), axis=1, kind="stable")[:, :count], axis=1)
    # Coordinates count from the point asked for: the trend through the origin is then a slope around that point.
    points, labels = known.coordinates[near] - asked.coordinates[:, None, :], known.labels[near]
    covariance = _covariance(points, labels, points, labels, smoothness) + _COINCIDENT * np.eye(count)
    origin, own = np.zeros_like(asked.coordinates)[:, None, :], asked.labels[:, None, :]
    weights = np.linalg.solve(covariance, values[near][:, :, None])
    return np.asarray((_covariance(origin, own, points, labels, smoothness) @ weights)[:, 0, 0])


def _distance(a: Array, b: Array) -> Array:
    squared = np.zeros(np.broadcast_shapes(a.shape, b.shape)[:-1])
    for axis in range(a.shape[-1]):
        squared += (a[..., axis] - b[..., axis]) ** 2
    return np.sqrt(squared)


def _covariance(a: Array, labels_a: Labels, b: Array, labels_b: Labels, smoothness: Smoothness) -> Array:
    """Covariance between points (Q, A, D) and (Q, B, D), shape (Q, A, B); the departure is a Matérn 5/2."""
    distance = _distance(a[:, :, None, :], b[:, None, :, :])
    r = np.sqrt(5.0) / smoothness.length * distance
    departure = smoothness.amplitude**2 * (1.0 + r + r * r / 3.0) * np.exp(-r)
    series, source = np.moveaxis(labels_a[:, :, None, :] == labels_b[:, None, :, :], -1, 0)
    same = series & source
    correlation = np.where(same, 1.0, np.where(series, _SOURCE_CORRELATION, smoothness.correlation))
    covariance = correlation * departure + _LEVEL**2 + smoothness.trend**2 * (a @ b.transpose(0, 2, 1))
    covariance += series * smoothness.offset**2
    covariance += same * (_SOURCE_OFFSET**2 + smoothness.noise**2 * np.exp(-distance / _NOISE_LENGTH))
    return np.asarray(covariance)
