"""The time of a call on a device on which none like it was measured, from its time on the reference device.

What limits a call is carried over, each part by itself. The shortest time of its operation (launches, round trips) is
the same on both devices. Moving its bytes follows the bandwidth of memory and cache, its FLOPs the peak rate, and what
memory does not explain the SMs, their number and clock; memory and SMs make up the time as a smooth maximum. Operations
that are estimated by blocks over the SMs (GEMMs, convolutions, attention) are scaled by the estimates,
``t = t_reference * estimate / estimate_reference``, so that waves are over the device's SMs. Both need the clocks,
which say that the SMs are of one kind. Without them all follows the roofline, and a call on a slower device has the
efficiency of the nearest measured one. A device with no less bandwidth and FLOP/s is no slower. The calibration then
divides what is above the shortest time.

Symbols: N calls. Source of the parts: 3,974 kernels of H100 and H200, each as if its device had measured none; see
docs/models/kernel-times.md.
"""

import dataclasses
import functools

import numpy as np

from scaleout.cluster.device.kernel_times import analytical, interpolated, measured
from scaleout.cluster.device.kernel_times.analytical import measures_like, reference_of, shortest_of
from scaleout.cluster.device.kernel_times.estimate import (
    aligned,
    estimate,
    is_in_blocks,
    roofline,
    stream_bound,
    work_bound,
)
from scaleout.cluster.device.kernel_times.model import Array, Calls, first_answers
from scaleout.cluster.device.spec import Device
from scaleout.program.operations import CUSTOM

SOURCE = "roofline"
"""Nothing was measured on the device itself."""


def times(device: Device, calls: Calls) -> Array:
    """Return the seconds of calls whose family the device has not measured, or whose series its reference has."""
    reference = reference_of(device)
    if reference is device:
        return np.full(len(calls.bytes), np.nan)
    same_units = bool(device.clock_hz and reference.clock_hz)
    there = calls if same_units else aligned(calls)
    reference_s, _ = first_answers((measured, interpolated), reference, there)
    if not measures_like(device, calls.op):
        for model in (times, analytical.times):
            unknown = np.isnan(reference_s)
            reference_s[unknown] = model(reference, there.select(unknown)) if unknown.any() else 0.0
    known = ~np.isnan(reference_s)
    if known.any():
        reference_s[known] = _transferred(calls.select(known), reference_s[known], reference, device)
    return reference_s


def _transferred(calls: Calls, reference_s: Array, reference: Device, device: Device) -> Array:
    """Return the seconds on the device, each part scaled and calibrated."""
    floor_s = np.minimum(shortest_of(reference, calls), reference_s)
    same_units = bool(device.clock_hz and reference.clock_hz)
    is_no_less = _is_no_less(device, reference, calls)
    if same_units and is_in_blocks(calls.op):
        floor_s = np.zeros(len(reference_s))
        scaled_s = reference_s * estimate(calls, device) / estimate(calls, reference)
    elif not (same_units or is_no_less):
        scaled_s = analytical.times(_uncalibrated(device), aligned(calls))
    else:
        scaled_s = floor_s + _by_parts(calls, reference_s - floor_s, reference, device)
    if is_no_less:
        scaled_s = np.minimum(scaled_s, reference_s)
    ratio: float | Array = device.calibrated(calls.op)
    if calls.op == CUSTOM:
        computes = work_bound(calls, reference) >= stream_bound(calls, reference)
        ratio = np.where(computes, device.calibrated("gemm"), device.calibrated("clone"))
    above_s = scaled_s - floor_s
    return np.asarray(floor_s + np.maximum(above_s / ratio, np.minimum(above_s, roofline(calls, device))))


def _by_parts(calls: Calls, above_s: Array, reference: Device, device: Device) -> Array:
    """Scale what is above the shortest time: by memory or FLOPs, and by the SMs what those do not explain."""
    table = measured.table_of(reference)
    alike = table.series(calls.key).alike(calls) if calls.key in table.rows else calls
    there_s, here_s = stream_bound(alike, reference), stream_bound(alike, device)
    if not (device.clock_hz and reference.clock_hz):
        return above_s * here_s / there_s
    computes = work_bound(calls, reference) >= there_s
    moved_s = np.where(computes, above_s, np.minimum(above_s, there_s))
    sm_rates = [each.num_sms * each.clock_hz for each in (reference, device)]
    waited_s = _root(above_s**4 - moved_s**4) * sm_rates[0] / sm_rates[1]
    return _root((moved_s * here_s / there_s) ** 4 + waited_s**4)


def _root(fourth_power: Array) -> Array:
    """Return the fourth root, of a smooth maximum as in the estimate of GEMMs."""
    return np.asarray(np.sqrt(np.sqrt(fourth_power)))


def _is_no_less(device: Device, reference: Device, calls: Calls) -> bool:
    """Whether a device has no less of either rate that calls need."""
    computes = bool(np.any(calls.flops > 0))
    return device.memory_bytes_per_s >= reference.memory_bytes_per_s and (
        not computes or device.peak(calls.dtype) >= reference.peak(calls.dtype)
    )


@functools.lru_cache(maxsize=64)
def _uncalibrated(device: Device) -> Device:
    return dataclasses.replace(device, calibration={})
