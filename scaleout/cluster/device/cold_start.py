"""Kernels to their times at full clock, where a device that runs them over and over would lower it.

Matrix products were measured in two ways: over and over, as they run at the power limit, or one call at a time, between
which the device rests, at full clock. A table may hold both, each of other shapes, and then products of a size seem
cheaper than those of another by up to a fifth only because they were cool. Here a product that would draw more than the
limit takes what those that were measured at full clock say of its shape: no more than its time in the table, and no
less than the limit alone can have lengthened it by. Where none was measured at full clock it takes that least time.

Source: `traces/h200/power.jsonl`, ten products measured both ways: times at full clock come out 3% above in the mean,
13% at the worst, where the table's are 14% and 26% above.
"""

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scaleout.cluster.device.interpolation import calls_of
from scaleout.cluster.device.kernel_times import interpolated, kernel_times
from scaleout.cluster.device.measured import read_table
from scaleout.cluster.device.spec import Device
from scaleout.program.operations import Kernel

Array = npt.NDArray[np.float64]


def full_clock_times(device: Device, kernels: Sequence[Kernel]) -> Array:
    """Return the times of kernels at full clock, each alone on a device, shape (N,); see `kernels.kernel_times`."""
    seconds, _ = kernel_times(device, kernels)
    return np.array([_cool_s(device, kernel, float(s)) for kernel, s in zip(kernels, seconds, strict=True)])


@functools.lru_cache(maxsize=16384)
def _cool_s(device: Device, kernel: Kernel, alone_s: float) -> float:
    power = device.power
    slower = power.slowdown(power.joules(kernel, alone_s), alone_s) if power and alone_s > 0 else 1.0
    if slower <= 1.0:
        return alone_s
    least_s, source = alone_s / slower, _cool_source(device, kernel)
    if source is None:
        return least_s
    found_s = float(interpolated(device, calls_of([kernel]), source=source)[0]) / device.calibrated(kernel.op)
    return min(alone_s, max(least_s, found_s))


def _cool_source(device: Device, kernel: Kernel) -> int | None:
    """Return the first source of a kernel's series whose calls were measured one at a time; None without any."""
    table, key = read_table(device.kernel_files), (kernel.op, kernel.dtype)
    if key not in table.rows:
        return None
    series = table.series(key)
    cool = series.sources[series.warm]
    return int(cool.min()) if len(cool) else None
