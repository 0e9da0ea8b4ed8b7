"""Measured collectives to the terms of what they cost: ``t = S + k h + f n / B + n / (p C)``.

Least absolute relative error, by reweighted least squares; a term that would be below zero is left out.

Symbols: S start-up; h step, of which a ring makes k; n bytes of the whole buffer; f n what crosses a rank's links; B
their bandwidth; p ranks; C the rate at which a rank's own shard passes.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.collectives import BUS_FACTORS

_ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""Times that a ring goes round, less one step each; steps of other collectives count with their start-up."""
_REWEIGHTINGS = 30


class Terms(NamedTuple):
    """The terms, in seconds and bytes a second, and the median relative error; without its term a rate is infinite."""

    startup_s: float
    step_s: float
    bytes_per_s: float
    local_bytes_per_s: float
    median_error: float


def fit(rows: Iterable[Mapping[str, Any]]) -> Terms:
    """Fit rows with `collective`, `ranks`, `bytes` and `us`, at least four of them."""
    table = [(_terms(row), float(row["us"]) * 1e-6) for row in rows]
    terms, measured = np.array([each for each, _ in table]), np.array([seconds for _, seconds in table])
    used = np.asarray(terms.max(axis=0) > 0)
    found, errors = _reweighted(terms, measured, used)
    while (found < 0).any():
        used[int(found.argmin())] = False
        found, errors = _reweighted(terms, measured, used)
    rate, local = (1 / each if each > 0 else np.inf for each in found[2:])
    return Terms(float(found[0]), float(found[1]), float(rate), float(local), float(np.median(errors)))


def _terms(row: Mapping[str, Any]) -> tuple[float, float, float, float]:
    kind, ranks, size_bytes = row["collective"], row["ranks"], row["bytes"]
    steps = _ROUNDS.get(kind, 0) * (ranks - 1)
    return 1.0, float(steps), BUS_FACTORS[kind](ranks) * size_bytes, size_bytes / ranks


def _reweighted(
    terms: npt.NDArray[np.float64], measured: npt.NDArray[np.float64], used: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    scale = np.maximum(terms.max(axis=0), 1.0)  # sizes in bytes and ones lie far apart
    weights = 1 / measured
    errors = np.zeros(len(measured))
    found = np.zeros(4)
    for _ in range(_REWEIGHTINGS):
        part = np.linalg.lstsq((terms / scale)[:, used] * weights[:, None], measured * weights, rcond=None)[0]
        found = np.zeros(4)
        found[used] = part / scale[used]
        errors = np.abs(terms @ found / measured - 1)
        weights = 1 / measured / np.sqrt(np.maximum(errors, 0.02))
    return found, errors
