"""The time of a kernel at full clock, where a device that runs it over and over would lower its clock.

GEMMs were measured in two ways: over and over, as they run at the power limit, or one call at a time, between which the
device rests, at full clock. A table may hold both, each of other sizes; GEMMs of some sizes then seem up to a fifth
cheaper than others only because the device was cool. Here a GEMM that would draw more than the limit takes the time
that is interpolated between those measured at full clock. That time is bounded: by the time in the table from above,
and from below by the least that the power limit can have lengthened. Where nothing was measured at full clock it takes
that lower bound.

Source: `traces/h200/power.jsonl`, ten GEMMs measured both ways: times at full clock come out 3% above in the mean, 13%
at the worst, where the table's are 14% and 26% above.
"""

import functools

from scaleout.cluster.device.kernel_times.interpolated import interpolated_s
from scaleout.cluster.device.kernel_times.measured import table_of
from scaleout.cluster.device.kernel_times.model import calls_of
from scaleout.cluster.device.spec import Device
from scaleout.program.operations import Kernel


@functools.lru_cache(maxsize=16384)
def full_clock_s(device: Device, kernel: Kernel, alone_s: float) -> float:
    """Return the seconds at full clock of a kernel that takes `alone_s` alone on a device, as `kernel_times` has it."""
    power = device.power
    slowdown = power.slowdown(power.joules(kernel, alone_s), alone_s) if power and alone_s > 0 else 1.0
    if slowdown <= 1.0:
        return alone_s
    least_s, source = alone_s / slowdown, _source_at_full_clock(device, kernel)
    if source is None:
        return least_s
    found_s = float(interpolated_s(device, calls_of([kernel]), source=source)[0]) / device.calibrated(kernel.op)
    return min(alone_s, max(least_s, found_s))


def _source_at_full_clock(device: Device, kernel: Kernel) -> int | None:
    """Return the first source of a kernel's series whose calls were measured one at a time; None without any."""
    table, key = table_of(device), (kernel.op, kernel.dtype)
    if key not in table.rows:
        return None
    series = table.series(key)
    found = series.sources[series.calls.warm]
    return int(found.min()) if len(found) else None
