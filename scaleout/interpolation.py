"""Gaussian-process regression with fixed hyper-parameters: scattered values to a smooth estimate between them.

The value at a point is a constant, a linear trend and a smooth departure from it, all Gaussian; an estimate is the
mean of that process given the data. A second, very short-ranged term takes the place of noise: the estimate passes
through every datum exactly, and a tenth of an octave away it has returned to the smooth part. Points belong to series
that resemble each other to a stated degree. The module knows neither kernels nor devices.

Symbols: x (N, D) coordinates; y (N,) values; s (N,) series; r distance over a length.
Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, eq. 2.23, 4.17 and 5.12.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
    kinship: float = 1.0
    offset: float = 0.0


_LEVEL = 1.0
"""Standard deviation of the constant: any level is about equally likely."""
_NOISE_LENGTH = 0.05
"""Length of the term that stands for noise, in units of the coordinates."""


@dataclass(frozen=True, eq=False)
class Surface:
    """A process conditioned on data; `fit` makes it and `estimate` reads it."""

    points: Array
    series: Labels
    centre: Array
    weights: Array
    smoothness: Smoothness


def fit(points: Array, values: Array, *, series: Labels, smoothness: Smoothness) -> Surface:
    """Condition the process on values at points.

    Parameters
    ----------
    points : ndarray, shape (N, D)
    values : ndarray, shape (N,)
    series : ndarray of int, shape (N,)
        The series of each point.
    smoothness : Smoothness
    """
    centre = points.mean(axis=0)
    covariance = _covariance(points - centre, series, points - centre, series, smoothness)
    weights = np.asarray(np.linalg.solve(_jittered(covariance), values), dtype=np.float64)
    return Surface(points, series, centre, weights, smoothness)


def estimate(surface: Surface, points: Array, *, series: Labels) -> Array:
    """Return the mean of the process at points, shape (Q,)."""
    known, asked = surface.points - surface.centre, points - surface.centre
    covariance = _covariance(asked, series, known, surface.series, surface.smoothness)
    return np.asarray(covariance @ surface.weights)


def leave_one_out_errors(points: Array, values: Array, *, series: Labels, smoothness: Smoothness) -> Array:
    """Return value minus estimate from all other points, for each point, shape (N,).

    ``e_i = (K^-1 y)_i / (K^-1)_ii`` (Rasmussen and Williams, eq. 5.12): no refit is needed.
    """
    centred = points - points.mean(axis=0)
    inverse = np.linalg.inv(_jittered(_covariance(centred, series, centred, series, smoothness)))
    return np.asarray((inverse @ values) / np.diag(inverse))


def _jittered(covariance: Array) -> Array:
    return covariance + 1e-8 * np.eye(len(covariance))


def _covariance(a: Array, series_a: Labels, b: Array, series_b: Labels, smoothness: Smoothness) -> Array:
    """Covariance of the process between points, shape (A, B); the departure is a Matérn 5/2."""
    squared = np.maximum(0.0, np.sum(a * a, axis=1)[:, None] + np.sum(b * b, axis=1)[None, :] - 2.0 * (a @ b.T))
    distance = np.sqrt(squared)
    r = np.sqrt(5.0) / smoothness.length * distance
    same = series_a[:, None] == series_b[None, :]
    departure = smoothness.amplitude**2 * (1.0 + r + r * r / 3.0) * np.exp(-r)
    covariance = np.where(same, 1.0, smoothness.kinship) * departure
    covariance += _LEVEL**2 + smoothness.trend**2 * (a @ b.T)
    covariance += same * (smoothness.offset**2 + smoothness.noise**2 * np.exp(-distance / _NOISE_LENGTH))
    return np.asarray(covariance)
