"""The roofline of a kernel over the efficiency that the most similar measured kernel reached.

``t = shortest + max(FLOPs / peak, bytes / bandwidth) / efficiency``, where the shortest time is that of a call that
does next to nothing, and the efficiency, at most 1, that of the time beyond it: of the device itself, or of its
reference device where none of the operation's family was measured on the device. Knows a time of every operation, so
it is the last model. See docs/models/kernel-times.md.

Symbols: N calls. Source: Williams, Waterman and Patterson, Communications of the ACM 52(4), 2009, for the roofline.
"""

import functools
import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from scaleout.cluster.device.kernel_times.estimate import kernel_classes, roofline
from scaleout.cluster.device.kernel_times.measured import KernelTable, table_of
from scaleout.cluster.device.kernel_times.model import Array, Calls, Key
from scaleout.cluster.device.spec import Device, load_device
from scaleout.errors import ConfigError
from scaleout.program.operations import CUSTOM, ITEM_BYTES, OPERATIONS, Family

SOURCE = "roofline"

_SMALL_S = 1e-6
"""A call whose roofline is below this does next to nothing: it takes what launches and latencies take."""


def times(device: Device, calls: Calls) -> Array:
    """Return the seconds of calls: the shortest of the operation, and the roofline over an efficiency, shape (N,)."""
    reference = _measuring(device, calls.op)
    keys = _most_similar(table_of(reference), calls)
    coordinates = Calls.log2_sizes if keys[0][0] == calls.op else _work
    series = [table_of(reference).series(key) for key in keys]
    bound_s = np.concatenate([roofline(one.calls, reference) for one in series])
    floor_s = shortest_of(reference, calls)
    above_s = np.concatenate([one.seconds for one in series]) - floor_s
    efficiency = np.minimum(1.0, bound_s / np.maximum(above_s, bound_s))
    ratios = [device.calibrated(op if calls.op == CUSTOM else calls.op) for op, _ in keys]
    reached = np.minimum(1.0, efficiency * np.repeat(ratios, [len(one.seconds) for one in series]))
    points = np.vstack([coordinates(one.calls) for one in series])
    if calls.op == CUSTOM:
        nearest = nearest_of(coordinates(calls), points)
    else:
        classes = np.concatenate([kernel_classes(one.calls) for one in series])
        other = _OTHER_CLASS * (kernel_classes(calls)[:, None] != classes[None, :])
        more = (roofline(calls, reference)[:, None] > _MORE * bound_s[None, :]) & (bound_s < _SMALL_S)
        nearest = _first_least(_distances(coordinates(calls), points) + other + _NO_EFFICIENCY * more)
    return np.asarray(floor_s + roofline(calls, device) / reached[nearest])


def shortest_of(device: Device, calls: Calls) -> float:
    """Return the shortest time of the operation of calls, or of those most similar, where its family was measured."""
    measuring = _measuring(device, calls.op)
    return min(shortest_s(measuring, op) for op, _ in _most_similar(table_of(measuring), calls))


def _measuring(device: Device, op: str) -> Device:
    """Return the device, its reference or the reference's, whichever measured an operation's family first."""
    return device if measures_like(device, op) else _measuring(reference_of(device), op)


def _distances(of: Array, points: Array) -> Array:
    """Return the squared distance of each of N places, (N, D), to each of P points, (P, D); shape (N, P)."""
    return np.asarray(((of[:, None, :] - points[None, :, :]) ** 2).sum(axis=2))


def _first_least(distance: Array) -> npt.NDArray[np.int64]:
    """Return the nearest point of each place, (N,); of equally distant ones the first."""
    return np.asarray(distance.round(_DIGITS).argmin(axis=1))


_DIGITS = 9
"""Squared distances that agree in so many digits are equal."""
_CELL = 0.5
"""Side of the cells in which places are looked up together: half of an octave."""
_AT_ONCE = 2**20
"""Distances that are held at a time."""


def nearest_of(places: Array, points: Array) -> npt.NDArray[np.int64]:
    """Return what `_first_least` of all distances does, (N,), by cells of the plane that places lie in.

    With d the distance of a cell's centre to the nearest point, and h the cell's diagonal, points beyond ``d + h`` of
    the centre are nearest to nothing in the cell.
    """
    found = np.empty(len(places), np.int64)
    cells, cell_of = np.unique(np.floor(places / _CELL), axis=0, return_inverse=True)
    order = np.argsort(cell_of.reshape(-1), kind="stable")
    begins = np.searchsorted(cell_of.reshape(-1)[order], np.arange(len(cells) + 1))
    reach = _CELL * math.sqrt(places.shape[1]) + 2 * math.sqrt(10.0**-_DIGITS)
    for cell, begin, end in zip(cells, begins[:-1].tolist(), begins[1:].tolist(), strict=True):
        away = np.sqrt(_distances((cell[None, :] + 0.5) * _CELL, points)[0])
        near = np.flatnonzero(away <= away.min() + reach)
        for first in range(begin, end, step := max(1, _AT_ONCE // len(near))):
            some = order[first : min(first + step, end)]
            found[some] = near[_first_least(_distances(places[some], points[near]))]
    return found


_OTHER_CLASS = 1e6
"""Squared distance to a call that another class of kernel runs: it counts only where none of the own was measured."""
_NO_EFFICIENCY, _MORE = 2e6, 8.0
"""That of a call that does so many times more to one that does next to nothing, whose time says no efficiency."""


@functools.lru_cache(maxsize=256)
def shortest_s(device: Device, op: str) -> float:
    """Return the time of an operation's shortest measured call that does next to nothing, in any dtype.

    Without one it is, for each device kernel of a call, the shortest time of any operation, or the reference device's
    where that is less.
    """
    table = table_of(device)
    series = [table.series(key) for key in table.rows if key[0] == op]
    small = [one.seconds[roofline(one.calls, device) < _SMALL_S] for one in series]
    shortest = np.concatenate([*small, np.zeros(0)])
    if len(shortest):
        return float(shortest.min())
    launches_s = table.shortest_s * min((one.calls.launches for one in series), default=1.0)
    reference = reference_of(device)
    return launches_s if reference is device else min(launches_s, shortest_s(reference, op))


def measures_like(device: Device, op: str) -> bool:
    """Whether a device is its own reference for an operation: it names no other, or measured the operation's family."""
    if device.efficiency_from == device.name:
        return True
    families = {OPERATIONS[known].family for known, _ in table_of(device).rows}
    return op != CUSTOM and OPERATIONS[op].family in families


def reference_of(device: Device) -> Device:
    """Return the device itself, or the one it borrows from: without calibration, its kernels as they were measured."""
    return device if device.efficiency_from == device.name else _load_reference(device.efficiency_from, device.name)


@functools.cache
def _load_reference(name: str, asked_by: str) -> Device:
    reference = load_device(name)
    if not reference.kernel_files:
        raise ConfigError(
            f"device {asked_by!r}: efficiency_from: {name!r} has no measured kernels; name a device that has"
        )
    chain, further = [asked_by], reference
    while further.name not in chain and further.efficiency_from != further.name:
        chain.append(further.name)
        further = load_device(further.efficiency_from)
    if further.name in chain:
        raise ConfigError(
            f"device {asked_by!r}: efficiency_from leads in a circle: {', '.join([*chain, further.name])}; end it with "
            f"a device that names none"
        )
    return replace(reference, calibration={})


def _work(calls: Calls) -> Array:
    """Return the logarithm of FLOPs and bytes, by which kernels of different operations are compared, shape (N, 2)."""
    return np.log2(np.column_stack([calls.flops, calls.bytes]) + 1.0)


def _most_similar(table: KernelTable, calls: Calls) -> list[Key]:
    """Return the measured series that are most similar: same operation (and width of dtype), one like it, or family.

    GEMMs keep to their own dtype, as measurements of different dtypes differ in method. A custom kernel is compared
    with GEMMs and copies, of which the one nearest in FLOPs and bytes counts.
    """
    if calls.op == CUSTOM:
        return sorted(key for key in table.rows if key[0] in ("clone", "gemm")) or sorted(table.rows)
    operation = OPERATIONS[calls.op]
    for name in (calls.op, operation.like):
        keys = sorted(key for key in table.rows if key[0] == name)
        if keys:
            own = [key for key in keys if key[1] == calls.dtype]
            if own and operation.family is Family.GEMM:
                return own
            as_wide = [key for key in keys if ITEM_BYTES[key[1]] == ITEM_BYTES[calls.dtype]]
            return sorted(as_wide, key=lambda key: key[1] != calls.dtype) or keys[:1]
    return sorted(key for key in table.rows if OPERATIONS[key[0]].family is operation.family) or sorted(table.rows)
