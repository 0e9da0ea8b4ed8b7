"""The time of a GEMM on a device on which none was measured, from its time on the reference device.

The analytical estimate has the waves of tiles over the SMs, so the ratio of the estimates of two devices carries a time
from one to the other: ``t = t_reference * estimate / estimate_reference / calibration``, and never below the roofline.
Both device files must state a clock, which says that their SMs are of the same kind.
"""

import numpy as np

from scaleout.cluster.device.kernel_times import interpolated, measured
from scaleout.cluster.device.kernel_times.analytical import measures_like, reference_of
from scaleout.cluster.device.kernel_times.estimate import estimate, on_matrix_units, roofline
from scaleout.cluster.device.kernel_times.model import Array, Calls, first_answers
from scaleout.cluster.device.spec import Device

SOURCE = "roofline"
"""Nothing was measured on the device itself."""


def times(device: Device, calls: Calls) -> Array:
    """Return the seconds of GEMMs that were measured on the reference device, or near to those that were."""
    seconds = np.full(len(calls.bytes), np.nan)
    if not on_matrix_units(calls) or not device.clock_hz or measures_like(device, calls.op):
        return seconds
    reference = reference_of(device)
    if not reference.clock_hz:
        return seconds
    reference_s, _ = first_answers((measured, interpolated), reference, calls)
    known = ~np.isnan(reference_s)
    if known.any():
        chosen = calls.select(known)
        transferred_s = reference_s[known] * estimate(chosen, device) / estimate(chosen, reference)
        seconds[known] = np.maximum(transferred_s / device.calibrated(calls.op), roofline(chosen, device))
    return seconds
