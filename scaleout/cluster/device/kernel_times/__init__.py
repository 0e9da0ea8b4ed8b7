"""Isolated kernel times on a device, and where each comes from: the entry to all models of kernel times.

The models of `MODELS` are asked in order, and each kernel takes the time of the first that knows one; the key
`kernel_models` of a device file names those that it uses. A new model is a module here with `SOURCE` and `times`
(`model.KernelTimeModel`) and an entry in `MODELS`. Measured times may be shorter than the roofline: it counts every
byte to the device memory, and data may lie in the L2 cache. See docs/models/kernel-times.md.

Symbols: K kernels.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.cluster.device.kernel_times import analytical, grouped, interpolated, measured, transferred
from scaleout.cluster.device.kernel_times.model import Array, Calls, KernelTimeModel, Key, calls_of, first_answers
from scaleout.cluster.device.spec import Device
from scaleout.config.validated import nearest
from scaleout.errors import ConfigError, GraphError
from scaleout.program.calls import KernelColumns, by_rows, columns_of
from scaleout.program.operations import CUSTOM, Kernel, TimeSource

MODELS: Mapping[str, KernelTimeModel] = {
    "measured": measured,
    "interpolated": interpolated,
    "grouped": grouped,
    "transferred": transferred,
    "analytical": analytical,
}
"""Name of a model, as in the key `kernel_models` of a device file, to the model; in the order of asking."""


class KernelTime(NamedTuple):
    """Isolated time of one kernel on a device, and where it comes from."""

    seconds: float
    source: str


def kernel_time(device: Device, kernel: Kernel) -> KernelTime:
    """Return the time of one kernel; see `kernel_times`."""
    seconds, sources = kernel_times(device, (kernel,))
    return KernelTime(float(seconds[0]), source_names()[int(sources[0])])


def source_names() -> dict[int, str]:
    """Return the number of each source of kernel times, as in the column `time_source`, to its name in results.

    First `TimeSource`, then what models call their times besides.
    """
    names = [source.name.lower() for source in TimeSource] + [model.SOURCE for model in MODELS.values()]
    return dict(enumerate(dict.fromkeys(names), start=TimeSource.UNKNOWN))


def kernel_times(
    device: Device, kernels: Sequence[Kernel], *, full_clock: bool = False
) -> tuple[Array, npt.NDArray[np.int8]]:
    """Return the isolated times of kernels on a device.

    Parameters
    ----------
    full_clock : bool
        Times of a device that has rested, where its power limit would lower the clock. A source is still that of
        the time without rest.

    Returns
    -------
    seconds : ndarray of float64, shape (K,)
    sources : ndarray of int8, shape (K,)
        Their numbers in `source_names`.

    Raises
    ------
    GraphError
        If a kernel has neither FLOPs nor bytes.
    ConfigError
        If the device has no peak rate for a dtype that needs one, none of its models knows a kernel, or a file of
        measurements is not valid.
    """
    columns, known = columns_of(kernels), _known(device, full_clock)
    calls = columns.of_operations()
    new = [kernel for kernel in dict.fromkeys(calls) if kernel not in known]
    if new:
        known.update(zip(new, zip(*_times(device, new, full_clock=full_clock), strict=True), strict=True))
    seconds, sources = np.empty(len(columns)), np.empty(len(columns), np.int8)
    of_operations = ~columns.is_custom
    seconds[of_operations] = [known[call][0] for call in calls]
    sources[of_operations] = [known[call][1] for call in calls]
    for at in _alike(columns):
        seconds[at], sources[at] = _times_of_custom(device, columns[at], full_clock=full_clock)
    return seconds, sources


def _alike(columns: KernelColumns) -> Iterator[npt.NDArray[np.int64]]:
    """Yield which custom kernels are of one dtype, with or without FLOPs."""
    keys = 2 * columns.kind + (columns.flops > 0)
    for key in np.unique(keys[columns.is_custom]).tolist():
        yield np.flatnonzero(keys == key)


@functools.lru_cache(maxsize=64)
def _known(_device: Device, _full_clock: bool) -> dict[Kernel, tuple[float, int]]:
    """Return the times and sources of all kernels that this process has timed on a device, to be added to."""
    return {}


def _times(device: Device, kernels: Sequence[Kernel], *, full_clock: bool) -> tuple[list[float], list[int]]:
    """Return what `kernel_times` does, of kernels of which no two are the same."""
    kernels = [by_rows(kernel) for kernel in kernels]
    series: dict[Key, list[int]] = {}
    for index, kernel in enumerate(kernels):
        series.setdefault((kernel.op, kernel.dtype), []).append(index)
    seconds, sources = np.zeros(len(kernels)), np.zeros(len(kernels), dtype=np.int8)
    for indices in series.values():
        seconds[indices], sources[indices] = _answers(device, calls_of([kernels[index] for index in indices]))
    times_s = seconds.tolist()
    if full_clock:
        times_s = [_full_clock_s(device, *each) for each in zip(kernels, times_s, strict=True)]
    return times_s, sources.tolist()


def _times_of_custom(device: Device, kernels: KernelColumns, *, full_clock: bool) -> tuple[Array, npt.NDArray[np.int8]]:
    """Return what `kernel_times` does, of custom kernels of one dtype."""
    flops, size_bytes = kernels.flops.astype(np.float64), kernels.bytes.astype(np.float64)
    cold = np.zeros(len(kernels), bool)
    seconds, sources = _answers(device, Calls(CUSTOM, kernels[0].dtype, {}, flops, size_bytes, cold))
    if full_clock:
        seconds = np.array([_full_clock_s(device, *each) for each in zip(kernels, seconds.tolist(), strict=True)])
    return seconds, sources


def _answers(device: Device, calls: Calls) -> tuple[Array, npt.NDArray[np.int8]]:
    """Return the times of calls and their sources by the models of a device."""
    if ((calls.flops <= 0) & (calls.bytes <= 0)).any():
        raise GraphError(
            f"kernel {calls.op!r} ({calls.dtype}): a kernel with no time and no FLOPs or bytes; "
            f"give its duration, or its FLOPs and bytes"
        )
    numbers = {name: number for number, name in source_names().items()}
    seconds, names = first_answers(models_of(device), device, calls)
    if np.isnan(seconds).any():
        raise ConfigError(
            f"device {device.name!r}: none of its kernel_models ({', '.join(device.kernel_models)}) knows the time "
            f"of {calls.op!r} in {calls.dtype}; add analytical, which knows every operation"
        )
    return seconds, np.array([numbers.get(name, TimeSource.UNKNOWN) for name in names], np.int8)


def time_without_itself(device: Device, kernel: Kernel) -> KernelTime | None:
    """Return the time of a kernel as if it had not been measured on the device; None if too few others were."""
    found = kernel_time(device, kernel)
    if found.source != measured.SOURCE:
        return found
    seconds = interpolated.left_out_s(device, by_rows(kernel))
    return None if seconds is None else KernelTime(seconds, interpolated.SOURCE)


def models_of(device: Device) -> tuple[KernelTimeModel, ...]:
    """Return the models that a device uses, in order: those that its file names (refused if unknown), or all."""
    for name in device.kernel_models:
        if name not in MODELS:
            raise ConfigError(
                f"device {device.name!r}: kernel_models: unknown model of kernel times {name!r}; "
                f"{nearest(name, MODELS)}"
            )
    return tuple(MODELS[name] for name in device.kernel_models or MODELS)


@functools.lru_cache(maxsize=16384)
def _full_clock_s(device: Device, kernel: Kernel, isolated_s: float) -> float:
    """Return the seconds at full clock of a kernel that takes `isolated_s` at the power limit.

    A kernel that would draw more than the limit takes the time that is interpolated between calls measured at full
    clock (the device rested before them), but no more than `isolated_s`, and no less than the limit can have lengthened
    it; the lower bound where nothing was measured so.

    Source: `traces/h200/power.jsonl`, ten GEMMs measured both ways: times at full clock come out 3% above in the mean,
    13% at the worst, where the table's are 14% and 26% above.
    """
    power, kernel = device.power, grouped.single(device, kernel)
    slowdown = power.slowdown(power.joules(kernel, isolated_s), isolated_s) if power and isolated_s > 0 else 1.0
    if slowdown <= 1.0:
        return isolated_s
    shortest_s = isolated_s / slowdown
    source = _source_at_full_clock(device, kernel)
    if source is None:
        return shortest_s
    (found_s,) = interpolated.interpolated_s(device, calls_of([kernel]), source=source) / device.calibrated(kernel.op)
    return min(isolated_s, max(shortest_s, float(found_s)))


def _source_at_full_clock(device: Device, kernel: Kernel) -> int | None:
    """Return the first source of a kernel's series whose calls were measured at full clock; None without any."""
    table, key = measured.table_of(device), (kernel.op, kernel.dtype)
    if key not in table.rows:
        return None
    series = table.series(key)
    found = series.sources[series.full_clock]
    return int(found.min()) if len(found) else None
