"""A kernel and a device to a time, and to where that time comes from.

A kernel that was measured takes its measured time. One between measured shapes is interpolated: the logarithm of time
over a physical guess (`kernel_models`) is a smooth surface over the logarithm of the sizes (`interpolation`). One
further off, or on a device without measurements, takes its roofline ``max(FLOPs / peak, bytes / bandwidth)`` divided
by the efficiency that the nearest measured kernel reaches, and never less than the shortest measured kernel.

An efficiency is at most 1. Measured times may beat the roofline all the same: it charges every byte to the device
memory, and a kernel whose data fit the L2 cache finds them there. A time is that of the kernel alone on the device.

Symbols: N kernels. Source: Williams, Waterman and Patterson, Communications of the ACM 52(4), 2009, for the roofline.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.device import Device, load_device
from scaleout.errors import ConfigError, GraphError
from scaleout.interpolation import Surface, estimate, fit, leave_one_out_errors
from scaleout.kernel_guesses import Calls, roofline
from scaleout.kernel_models import NUM_VARIANTS, calls_of, coordinates, group_of, guess, smoothness_of, variants
from scaleout.kernel_table import KernelTable, Key, read_table
from scaleout.operations import CUSTOM, ITEM_BYTES, OPERATIONS, Kernel, TimeSource

Array = npt.NDArray[np.float64]


class KernelTime(NamedTuple):
    """Time of one kernel alone on a device, and where it comes from."""

    seconds: float
    source: TimeSource


class InterpolationError(NamedTuple):
    """How well the measured kernels of one series predict each other: absolute relative errors, as fractions."""

    op: str
    dtype: str
    num_shapes: int
    median: float
    p90: float


RANGE_OCTAVES = 2.0
"""A size is inside the measured neighbourhood up to this far outside the range of its axis."""
REACH_OCTAVES = 3.0
"""The nearest measured shape of an interpolated kernel differs in no size by more than this."""


def kernel_time(device: Device, kernel: Kernel) -> KernelTime:
    """Return the time of one kernel; see `kernel_times`."""
    seconds, sources = kernel_times(device, (kernel,))
    return KernelTime(float(seconds[0]), TimeSource(int(sources[0])))


def kernel_times(device: Device, kernels: Sequence[Kernel]) -> tuple[Array, npt.NDArray[np.int8]]:
    """Return the times of kernels, each alone on a device.

    Parameters
    ----------
    device : Device
    kernels : sequence of Kernel, length N

    Returns
    -------
    seconds : ndarray of float64, shape (N,)
    sources : ndarray of int8, shape (N,)
        Values of `TimeSource`.

    Raises
    ------
    GraphError
        If a kernel has neither FLOPs nor bytes.
    ConfigError
        If the device has no peak rate for a dtype that needs one, or a file of measurements is not valid.
    """
    seconds = np.zeros(len(kernels))
    sources = np.full(len(kernels), TimeSource.MEASURED, dtype=np.int8)
    open_: dict[Key, list[int]] = {}
    own = read_table(device.kernel_files)
    for index, kernel in enumerate(kernels):
        known = own.exact(kernel)
        if known is not None:
            seconds[index] = known
        else:
            _require_work(kernel)
            open_.setdefault((kernel.op, kernel.dtype), []).append(index)
    for (op, dtype), indices in open_.items():
        calls = calls_of([kernels[index] for index in indices])
        found, inside = np.zeros(len(indices)), np.zeros(len(indices), dtype=bool)
        if (op, dtype) in own.times:
            measured, _ = _measured(device, op, dtype)
            calls = calls._replace(launches=measured.launches, warm=measured.warm)
            inside = _inside(measured, calls)
        if inside.any():
            found[inside] = _interpolated(device, _select(calls, inside))
        if not inside.all():
            found[~inside] = _scaled_roofline(device, _select(calls, ~inside))
        seconds[indices] = found
        sources[indices] = np.where(inside, TimeSource.INTERPOLATED, TimeSource.ROOFLINE)
    return seconds, sources


def leave_one_out(device: Device) -> list[InterpolationError]:
    """Compare each measured kernel with its interpolation between all others, for every series.

    Repeated measurements of a shape leave together. A series of fewer than three shapes has nothing to leave.
    """
    table = read_table(device.kernel_files)
    found = []
    for op, dtype in sorted(table.times):
        if len(table.times[op, dtype]) < 3:
            continue
        group = _group(device, group_of(op, dtype))
        errors = leave_one_out_errors(group.points, group.values, series=group.series, smoothness=smoothness_of(op))
        own = group.members == group.keys.index((op, dtype))
        relative = np.abs(np.expm1(-errors[own]))
        found.append(
            InterpolationError(op, dtype, int(own.sum()), float(np.median(relative)), float(np.quantile(relative, 0.9)))
        )
    return found


class _Group(NamedTuple):
    """Measured calls that are interpolated together: G points in D coordinates."""

    keys: tuple[Key, ...]
    points: Array  # (G, D)
    values: Array  # (G,) log of time over guess
    members: npt.NDArray[np.int64]  # (G,) index into keys
    series: npt.NDArray[np.int64]  # (G,) key and variant


def _require_work(kernel: Kernel) -> None:
    if kernel.flops <= 0 and kernel.bytes <= 0:
        raise GraphError(
            f"kernel {kernel.op!r} ({kernel.dtype}): a kernel with no time and no FLOPs or bytes; "
            f"give its duration, or its FLOPs and bytes"
        )


def _select(calls: Calls, chosen: npt.NDArray[np.bool_]) -> Calls:
    sizes = {name: values[chosen] for name, values in calls.sizes.items()}
    return calls._replace(sizes=sizes, flops=calls.flops[chosen], bytes=calls.bytes[chosen])


@functools.lru_cache(maxsize=256)
def _measured(device: Device, op: str, dtype: str) -> tuple[Calls, Array]:
    """Return the measured calls of a series and their seconds."""
    operation, table = OPERATIONS[op], read_table(device.kernel_files)
    series = table.times[op, dtype]
    seconds = np.array(list(series.values()))
    shapes = [dict(zip(operation.parameters, values, strict=True)) for values in series]
    flops = np.array([operation.flops(shape) for shape in shapes], dtype=np.float64)
    moved = np.array([operation.bytes(shape, ITEM_BYTES[dtype]) for shape in shapes], dtype=np.float64)
    sizes = dict(zip(operation.parameters, np.array(list(series), dtype=np.float64).T, strict=True))
    return Calls(op, dtype, sizes, flops, moved, table.launches[op, dtype], table.warm[op, dtype]), seconds


@functools.lru_cache(maxsize=64)
def _group(device: Device, wanted: tuple[Key, ...]) -> _Group:
    keys = tuple(key for key in wanted if key in read_table(device.kernel_files).times)
    points, values, members, series = [], [], [], []
    for index, key in enumerate(keys):
        calls, seconds = _measured(device, *key)
        points.append(coordinates(calls))
        values.append(np.log(seconds / guess(calls, device)))
        members.append(np.full(len(seconds), index))
        series.append(NUM_VARIANTS * index + variants(calls))
    return _Group(keys, np.vstack(points), *map(np.concatenate, (values, members, series)))


@functools.lru_cache(maxsize=64)
def _surface(device: Device, wanted: tuple[Key, ...]) -> Surface:
    group = _group(device, wanted)
    smoothness = smoothness_of(wanted[0][0])
    return fit(group.points, group.values, series=group.series, smoothness=smoothness)


def _interpolated(device: Device, calls: Calls) -> Array:
    wanted = group_of(calls.op, calls.dtype)
    index = _group(device, wanted).keys.index((calls.op, calls.dtype))
    series = NUM_VARIANTS * index + variants(calls)
    logs = estimate(_surface(device, wanted), coordinates(calls), series=series)
    return np.asarray(guess(calls, device) * np.exp(logs))


def _inside(measured: Calls, calls: Calls) -> npt.NDArray[np.bool_]:
    """Whether each call lies within the measured neighbourhood of its series, shape (N,)."""
    asked, known = _log2(calls), _log2(measured)
    in_range = (asked >= known.min(axis=0) - RANGE_OCTAVES) & (asked <= known.max(axis=0) + RANGE_OCTAVES)
    reach = np.abs(asked[:, None, :] - known[None, :, :]).max(axis=2).min(axis=1)
    return np.asarray(in_range.all(axis=1) & (reach <= REACH_OCTAVES))


def _log2(calls: Calls) -> Array:
    return np.log2(np.maximum(np.column_stack(list(calls.sizes.values())), 0.5))


def _scaled_roofline(device: Device, calls: Calls) -> Array:
    """Roofline over the efficiency of the nearest measured kernel, but no less than the shortest measured one."""
    lender = device if device.kernel_files else _lender(device.efficiency_from, device.name)
    table = read_table(lender.kernel_files)
    keys = _resembling(table, calls)
    measure = _log2 if keys[0][0] == calls.op else _work
    series = [_measured(lender, *key) for key in keys]
    known = np.vstack([measure(measured) for measured, _ in series])
    efficiency = np.concatenate([roofline(measured, lender) / seconds for measured, seconds in series])
    closest = ((measure(calls)[:, None, :] - known[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)
    return np.asarray(np.maximum(roofline(calls, device) / np.minimum(efficiency[closest], 1.0), table.shortest_s))


def _work(calls: Calls) -> Array:
    """Logarithm of FLOPs and bytes, by which kernels of different operations are compared, shape (N, 2)."""
    return np.log2(np.column_stack([calls.flops, calls.bytes]) + 1.0)


def _resembling(table: KernelTable, calls: Calls) -> list[Key]:
    """Return the measured series that resemble calls most.

    The same operation, in the same dtype if it was measured; else the operation that it names; else its family. A
    custom kernel is like a matrix product or like a copy, whichever is nearer in FLOPs and bytes.
    """
    if calls.op == CUSTOM:
        return sorted(key for key in table.times if key[0] in ("clone", "gemm")) or sorted(table.times)
    operation = OPERATIONS[calls.op]
    for name in (calls.op, operation.like):
        keys = sorted(key for key in table.times if key[0] == name)
        if keys:
            return [key for key in keys if key[1] == calls.dtype] or keys[:1]
    return sorted(key for key in table.times if OPERATIONS[key[0]].family is operation.family) or sorted(table.times)


@functools.cache
def _lender(name: str, borrower: str) -> Device:
    lender = load_device(name)
    if not lender.kernel_files:
        raise ConfigError(
            f"device {borrower!r}: efficiency_from: {name!r} has no measured kernels; name a device that has"
        )
    return lender
