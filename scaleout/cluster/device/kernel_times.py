"""A kernel and a device to a time, and to where that time comes from.

A kernel that was measured takes its measured time. One between measured shapes is interpolated: the logarithm of time
over a physical guess (`kernel_models`) is a smooth surface over the logarithm of the sizes (`interpolation`). One
further off, or on a device without measurements, takes the shortest time of its operation, and beside that its
roofline ``max(FLOPs / peak, bytes / bandwidth)`` divided by the efficiency that the nearest measured kernel reaches.
A device with few measured kernels may name another one that lends those families of which it has none. Where a device
states a `calibration`, all kernels of that class are as many times as efficient. Where a lender and a
borrower state their clock, what is sharp in a time is carried over as well: the waves of a matrix product, and
instructions that outlast the bytes.
No kernel is faster than the shortest measured one of its operation: small ones wait for their launch.

An efficiency is that of the time beyond the shortest, and at most 1. Measured times may beat the roofline all the
same: it charges every byte to the device memory, and a kernel whose data fit the L2 cache finds them there. A time is
that of the kernel alone on the device.

Symbols: N kernels. Source: Williams, Waterman and Patterson, Communications of the ACM 52(4), 2009, for the roofline.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.cluster.device.analytical import STREAM_SHARE, Calls, roofline
from scaleout.cluster.device.interpolation import (
    NUM_VARIANTS,
    UNALIGNED,
    Points,
    calls_of,
    coordinates,
    estimate,
    group_of,
    guess,
    smoothness_of,
    variants,
)
from scaleout.cluster.device.measured import KernelTable, Key, Shape, read_table
from scaleout.cluster.device.spec import Device, load_device
from scaleout.errors import ConfigError, GraphError
from scaleout.program.operations import CUSTOM, ITEM_BYTES, OPERATIONS, Family, Kernel, TimeSource

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
            seconds[index] = known / device.calibrated(kernel.op)
        else:
            _require_work(kernel)
            open_.setdefault((kernel.op, kernel.dtype), []).append(index)
    for (op, dtype), indices in open_.items():
        calls = calls_of([kernels[index] for index in indices])
        found, inside = np.zeros(len(indices)), np.zeros(len(indices), dtype=bool)
        if (op, dtype) in own.rows:
            measured, _ = _measured(device, (op, dtype))
            warm = np.full(len(indices), measured.warm[0])
            calls = calls._replace(launches=measured.launches, warm=warm)
            inside = _inside(measured, calls)
        if inside.any():
            found[inside] = interpolated(device, _select(calls, inside)) / device.calibrated(op)
        if not inside.all():
            found[~inside] = _borrowed(device, _select(calls, ~inside))
        seconds[indices] = found
        sources[indices] = np.where(inside, TimeSource.INTERPOLATED, TimeSource.ROOFLINE)
    return seconds, sources


def leave_one_out(device: Device) -> list[InterpolationError]:
    """Compare each measured kernel with its interpolation between all others, for every series.

    Repeated measurements of a shape leave together. A series of fewer than three shapes has nothing to leave.
    """
    table = read_table(device.kernel_files)
    found = []
    for key in sorted(table.rows):
        series = table.series(key)
        if len(series.exact) < 3:
            continue
        estimates = _left_out(device, key)
        errors = [abs(estimates[shape] / seconds - 1) for shape, seconds in series.exact.items()]
        median, p90 = float(np.median(errors)), float(np.quantile(errors, 0.9))
        found.append(InterpolationError(*key, len(series.exact), median, p90))
    return found


def time_without_itself(device: Device, kernel: Kernel) -> KernelTime | None:
    """Return the time of a kernel as if it had not been measured on the device; None if too few others were.

    Others of the same sizes in another dtype stay, where both are interpolated together.
    """
    table, key = read_table(device.kernel_files), (kernel.op, kernel.dtype)
    if table.exact(kernel) is None:
        return kernel_time(device, kernel)
    if len(table.series(key).exact) < 3:
        return None
    return KernelTime(_left_out(device, key)[tuple(kernel.sizes.values())], TimeSource.INTERPOLATED)


@functools.lru_cache(maxsize=256)
def _left_out(device: Device, key: Key) -> Mapping[Shape, float]:
    """Return the estimate of each shape of a series, as its first source has it, without all its measurements."""
    group, series = _group(device, group_of(*key)), read_table(device.kernel_files).series(key)
    own = group.keys.index(key)
    (members,) = np.nonzero(group.points.labels[:, 0] // NUM_VARIANTS == own)
    rank = {shape: number for number, shape in enumerate(series.exact)}
    shapes = np.array([rank[shape] for shape in series.shapes])
    hidden = np.zeros((len(members), len(group.values)), dtype=bool)
    hidden[:, members] = shapes[:, None] == shapes[None, :]
    _, first = np.unique(shapes, return_index=True)
    asked = Points(group.points.coordinates[members[first]], group.points.labels[members[first]])
    logs = estimate(group.points, group.values, asked, smoothness=smoothness_of(key[0]), hidden=hidden[first])
    seconds = np.array(list(series.exact.values())) * np.exp(logs - group.values[members[first]])
    return dict(zip(series.exact, seconds.tolist(), strict=True))


class _Group(NamedTuple):
    """Measured calls that are interpolated together, G of them."""

    keys: tuple[Key, ...]
    points: Points
    values: Array  # (G,) log of time over guess


def _require_work(kernel: Kernel) -> None:
    if kernel.flops <= 0 and kernel.bytes <= 0:
        raise GraphError(
            f"kernel {kernel.op!r} ({kernel.dtype}): a kernel with no time and no FLOPs or bytes; "
            f"give its duration, or its FLOPs and bytes"
        )


def _select(calls: Calls, chosen: npt.NDArray[np.bool_]) -> Calls:
    sizes = {name: values[chosen] for name, values in calls.sizes.items()}
    return calls._replace(sizes=sizes, flops=calls.flops[chosen], bytes=calls.bytes[chosen], warm=calls.warm[chosen])


@functools.lru_cache(maxsize=256)
def _measured(device: Device, key: Key) -> tuple[Calls, Array]:
    """Return the measured calls of a series and their seconds."""
    op, dtype = key
    operation, series = OPERATIONS[op], read_table(device.kernel_files).series(key)
    shapes = [dict(zip(operation.parameters, values, strict=True)) for values in series.shapes]
    flops = np.array([operation.flops(shape) for shape in shapes], dtype=np.float64)
    moved = np.array([operation.bytes(shape, ITEM_BYTES[dtype]) for shape in shapes], dtype=np.float64)
    sizes = dict(zip(operation.parameters, np.array(series.shapes, dtype=np.float64).T, strict=True))
    return Calls(op, dtype, sizes, flops, moved, series.warm, series.launches), series.seconds


@functools.lru_cache(maxsize=64)
def _group(device: Device, wanted: tuple[Key, ...]) -> _Group:
    table = read_table(device.kernel_files)
    keys = tuple(key for key in wanted if key in table.rows)
    coordinates_, values, labels = [], [], []
    for index, key in enumerate(keys):
        calls, seconds = _measured(device, key)
        coordinates_.append(coordinates(calls))
        values.append(np.log(seconds / guess(calls, device)))
        labels.append(_labels(index, calls, table.series(key).sources))
    return _Group(keys, Points(np.vstack(coordinates_), np.vstack(labels)), np.concatenate(values))


def _labels(index: int, calls: Calls, sources: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.column_stack([NUM_VARIANTS * index + variants(calls), sources])


def interpolated(device: Device, calls: Calls, *, source: int = 0) -> Array:
    """Return the times of calls between those that a device measured, as one of the series' sources would have them."""
    group = _group(device, group_of(calls.op, calls.dtype))
    index = group.keys.index((calls.op, calls.dtype))
    asked = Points(coordinates(calls), _labels(index, calls, np.full(len(calls.bytes), source, dtype=np.int64)))
    logs = estimate(group.points, group.values, asked, smoothness=smoothness_of(calls.op))
    return np.asarray(np.maximum(guess(calls, device) * np.exp(logs), _shortest_s(device, calls.op)))


_SMALL_S = 1e-6
"""A call whose roofline is below this does next to nothing: it takes what launches and latencies take."""


@functools.lru_cache(maxsize=256)
def _shortest_s(device: Device, op: str) -> float:
    """Return the least that a call of an operation takes.

    That is its shortest measured call that does next to nothing, in any dtype. Without one it is, for each device
    kernel of a call, the shortest time of any operation.
    """
    table = read_table(device.kernel_files)
    measured = [_measured(device, key) for key in table.rows if key[0] == op]
    small = [seconds[roofline(calls, device) < _SMALL_S] for calls, seconds in measured]
    shortest = np.concatenate([*small, np.zeros(0)])
    if len(shortest):
        return float(shortest.min())
    return table.shortest_s * min(calls.launches for calls, _ in measured)


def _inside(measured: Calls, calls: Calls) -> npt.NDArray[np.bool_]:
    """Whether each call lies within the measured neighbourhood of its series, shape (N,)."""
    asked, known = _log2(calls), _log2(measured)
    in_range = (asked >= known.min(axis=0) - RANGE_OCTAVES) & (asked <= known.max(axis=0) + RANGE_OCTAVES)
    reach = np.abs(asked[:, None, :] - known[None, :, :]).max(axis=2).min(axis=1)
    return np.asarray(in_range.all(axis=1) & (reach <= REACH_OCTAVES))


def _log2(calls: Calls) -> Array:
    return np.log2(np.maximum(np.column_stack(list(calls.sizes.values())), 0.5))


def _borrowed(device: Device, calls: Calls) -> Array:
    """Return the times of calls that nothing measured on the device is near to.

    A product on matrix units takes the lender's time of the same product, times the guess of its tiles and waves on
    this device over that on the lender. All others, and those of devices that do not state their clock, such as those
    whose multiprocessors are of another kind, take the scaled roofline.
    """
    inside = np.zeros(len(calls.bytes), dtype=bool)
    seconds = np.zeros(len(inside))
    if calls.op == "gemm" and ITEM_BYTES[calls.dtype] == 2 and device.clock_hz and not _has_like(device, calls.op):
        reference = _reference_device(device.efficiency_from, device.name)
        if reference.clock_hz and (calls.op, calls.dtype) in read_table(reference.kernel_files).rows:
            measured, _ = _measured(reference, (calls.op, calls.dtype))
            calls = calls._replace(launches=measured.launches, warm=np.full(len(inside), measured.warm[0]))
            inside = _inside(measured, calls)
            if inside.any():
                few = _select(calls, inside)
                transferred_s = _lent(reference, few) * guess(few, device) / guess(few, reference)
                seconds[inside] = np.maximum(transferred_s / device.calibrated(calls.op), roofline(few, device))
    if not inside.all():
        seconds[~inside] = _scaled_roofline(device, _select(calls, ~inside))
    return seconds


def _lent(reference: Device, calls: Calls) -> Array:
    """Return the times of calls on a device that measured them or their neighbours."""
    exact = read_table(reference.kernel_files).series((calls.op, calls.dtype)).exact
    shapes = np.column_stack(list(calls.sizes.values())).astype(np.int64).tolist()
    known = [exact.get(tuple(shape)) for shape in shapes]
    return np.where([one is None for one in known], interpolated(reference, calls), [one or 0.0 for one in known])


def _scaled_roofline(device: Device, calls: Calls) -> Array:
    """Return the shortest time of the operation, and the roofline over the nearest measured kernel's efficiency.

    A device whose efficiency is borrowed reaches what its calibration makes of it, but no more than its peaks.
    """
    reference = device if _has_like(device, calls.op) else _reference_device(device.efficiency_from, device.name)
    table = read_table(reference.kernel_files)
    keys = _resembling(table, calls)
    measure = _log2 if keys[0][0] == calls.op else _work
    series = [_measured(reference, key) for key in keys]
    if reference is not device:
        series = [_without_fallback(*one) for one in series]
    known = np.vstack([measure(measured) for measured, _ in series])
    bound = np.concatenate([roofline(measured, reference) for measured, _ in series])
    floor_s = min(_shortest_s(reference, op) for op, _ in keys)
    above_s = np.concatenate([seconds for _, seconds in series]) - floor_s
    efficiency = np.minimum(1.0, bound / np.maximum(above_s, bound))
    closest = ((measure(calls)[:, None, :] - known[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)
    lent = [device.calibrated(op if calls.op == CUSTOM else calls.op) for op, _ in keys]
    ratio = np.repeat(lent, [len(seconds) for _, seconds in series])
    if reference is not device and not np.any(calls.flops > 0):
        efficiency = _without_waiting_for_sms(efficiency, reference, device)
    reached = np.minimum(1.0, efficiency * ratio)[closest]
    return np.asarray(floor_s + roofline(calls, device) / reached)


def _without_fallback(calls: Calls, seconds: Array) -> tuple[Calls, Array]:
    """Leave out products on matrix units whose rows are not aligned: they lose to how the lender loads rows."""
    usual = variants(calls) != UNALIGNED
    if calls.op != "gemm" or ITEM_BYTES[calls.dtype] != 2 or not usual.any():
        return calls, seconds
    return _select(calls, usual), seconds[usual]


def _without_waiting_for_sms(efficiency: Array, reference: Device, device: Device) -> Array:
    """Return the share of the memory's bandwidth that kernels reach which leave some of the lender's unused.

    Those wait for the SMs: for instructions, or for loads of which an SM holds so many. They take as long on a device
    whose SMs are as many and as fast, however fast its memory is, as long as that carries it: ``min(e r, share)`` with
    r the bandwidth that the lender has for each clock of its SMs over that of the device.
    """
    if not (reference.clock_hz and device.clock_hz):
        return efficiency
    fed = (one.memory_bytes_per_s / one.num_sms / one.clock_hz for one in (reference, device))
    scaled = np.minimum(efficiency * next(fed) / next(fed), STREAM_SHARE)
    return np.where(efficiency < STREAM_SHARE, scaled, efficiency)


def _has_like(device: Device, op: str) -> bool:
    """Whether a device lends itself its efficiency: it borrows none, or kernels of the operation's family ran on it."""
    if device.efficiency_from == device.name:
        return True
    families = {OPERATIONS[known].family for known, _ in read_table(device.kernel_files).rows}
    return op != CUSTOM and OPERATIONS[op].family in families


def _work(calls: Calls) -> Array:
    """Logarithm of FLOPs and bytes, by which kernels of different operations are compared, shape (N, 2)."""
    return np.log2(np.column_stack([calls.flops, calls.bytes]) + 1.0)


def _resembling(table: KernelTable, calls: Calls) -> list[Key]:
    """Return the measured series that resemble calls most.

    The same operation, in dtypes of the same width if it was measured in one; else the operation that it names; else
    its family. Products keep to their own dtype, as their measurements differ by it: over and over at the power limit,
    or once at full clock. A custom kernel is like a product or like a copy, whichever is nearer in FLOPs and bytes.
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
            alike = [key for key in keys if ITEM_BYTES[key[1]] == ITEM_BYTES[calls.dtype]]
            return sorted(alike, key=lambda key: key[1] != calls.dtype) or keys[:1]
    return sorted(key for key in table.rows if OPERATIONS[key[0]].family is operation.family) or sorted(table.rows)


@functools.cache
def _reference_device(name: str, borrower: str) -> Device:
    reference = load_device(name)
    if not reference.kernel_files:
        raise ConfigError(
            f"device {borrower!r}: efficiency_from: {name!r} has no measured kernels; name a device that has"
        )
    return reference
