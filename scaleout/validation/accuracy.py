"""Errors of predictions to the few numbers that sum them up.

An error is ``predicted / measured - 1``. Symbols: N rows that could be predicted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Accuracy:
    """How good predictions are; NaN where none could be made.

    Attributes
    ----------
    num_rows, predicted : int
        Rows in all, and those that could be predicted.
    mean_absolute_error, median_absolute_error, p90_absolute_error : float
    worst : float
        The error furthest from zero, with its sign.
    bias : float
        Mean error: below zero, predictions are too fast.
    """

    num_rows: int
    predicted: int
    mean_absolute_error: float
    median_absolute_error: float
    p90_absolute_error: float
    worst: float
    bias: float

    @property
    def coverage(self) -> float:
        """Share of the rows that could be predicted."""
        return self.predicted / self.num_rows if self.num_rows else 0.0


def accuracy_of(errors: Sequence[float], *, num_rows: int) -> Accuracy:
    """Sum up the errors of the rows that could be predicted.

    >>> accuracy_of([0.1, -0.3, 0.05], num_rows=4).worst
    -0.3
    """
    if not errors:
        return Accuracy(num_rows, 0, *[float("nan")] * 5)
    signed = np.array(errors)
    absolute = np.abs(signed)
    return Accuracy(
        num_rows,
        len(errors),
        float(absolute.mean()),
        float(np.median(absolute)),
        float(np.quantile(absolute, 0.9)),
        float(signed[absolute.argmax()]),
        float(signed.mean()),
    )
