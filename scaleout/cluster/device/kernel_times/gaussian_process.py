"""Gaussian-process regression with fixed hyper-parameters: scattered values to a smooth estimate between them.

The value at a point is a constant, a linear trend, a smooth departure and noise of very short range; the estimate is
the posterior mean given the nearest points, so it passes through every known value. Points belong to series, whose
departures are correlated, and within a series to sources. Knows neither kernels nor devices.

Symbols: N known points; Q points asked for; D coordinates; r distance over the length.
Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, eq. 2.23 and 4.17; nearest neighbours
after Vecchia, J. R. Statist. Soc. B 50(2), 1988.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Smoothness:
    """Hyper-parameters of the process, in the units of the values and of the coordinates.

    Attributes
    ----------
    amplitude, trend, noise, offset : float
        Standard deviations: of the smooth departure, of the slope along each coordinate, of what no neighbour knows,
        and of the constant by which one series differs from another.
    length : float
        Distance over which the departure changes.
    correlation : float
        Correlation of the departures of two series, 0 to 1.
    """

    amplitude: float
    length: float
    trend: float = 0.0
    noise: float = 0.03
    correlation: float = 1.0
    offset: float = 0.0


class Points(NamedTuple):
    """Points at which values are known or asked for."""

    coordinates: Array  # (N, D)
    labels: Labels  # (N, 2): series and source of each point


_LEVEL = 1.0
"""Standard deviation of the constant: any level is about equally likely."""
_NOISE_LENGTH = 0.05
"""Length of the term that stands for noise, in units of the coordinates."""
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
    """Return the mean of the process at points, shape (Q,), given the values (N,) at the nearest known ones.

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
