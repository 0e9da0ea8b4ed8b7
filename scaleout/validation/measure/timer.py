"""A kernel to its time on a GPU, by one of two methods; see docs/models/measuring.md.

`graph_replay` replays a CUDA graph of calls on more sets of random data than the L2 cache holds: the time excludes
launch costs and cache hits, but includes the gaps between the device kernels of a call. `kernel_durations` adds up the
durations of the device kernels of a few calls on the same data: small data are in the cache, and the clock is not yet
throttled.
"""

from collections.abc import Callable, Mapping
from math import fsum
from typing import Any

import torch

from scaleout.program.operations import Kernel, kernel
from scaleout.validation.measure.calling import Call
from scaleout.validation.measure.calls import DTYPES, MAKERS
from scaleout.validation.measure.session import Session, captured, summed_up, times_us

_CACHE_BYTES = 200e6
"""Data of all sets: more than three times the L2 cache of an H100 or H200."""
_MOST_SETS = 24
_AIM_US = 10_000
"""Least time of one timed replay."""
_PROFILED_CALLS = 10


def measure(row: Mapping[str, Any], session: Session) -> Mapping[str, Any]:
    """Time the kernel of a row: median, least and largest time of a call in us, and device kernels, if profiled."""
    call = kernel(row["op"], dtype=row["dtype"], **row["shape"])
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = call.dtype == "tf32"
    return _METHODS[row["method"]](call, session.repeats)


def _make(call: Kernel, sets: int) -> list[Call]:
    made = [MAKERS[call.op](call.sizes, DTYPES[call.dtype]) for _ in range(sets)]
    for _ in range(2):
        for make in made:
            make()
    torch.cuda.synchronize()
    return made


def _replayed(call: Kernel, repeats: int) -> Mapping[str, Any]:
    sets = max(1, min(_MOST_SETS, int(_CACHE_BYTES // max(call.bytes, 1)) + 1))
    stream = torch.cuda.Stream()
    # Autograd runs a backward kernel on the stream of its forward, so that one must be on the captured stream, too.
    with torch.cuda.stream(stream):
        calls = _make(call, sets)
        replay = captured(calls, stream)
        return summed_up(times_us(replay, calls=sets, repeats=repeats, least_us=_AIM_US, most=200))


def _profiled(call: Kernel, repeats: int) -> Mapping[str, Any]:
    calls = max(_PROFILED_CALLS, repeats)
    (make,) = _make(call, 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            make()
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    kernels.sort(key=lambda event: event.time_range.start)
    launches = len(kernels) // calls
    if launches == 0 or len(kernels) % calls:
        return {"error": f"{len(kernels)} device kernels in {calls} calls"}
    times = [
        fsum(event.device_time_total for event in kernels[first : first + launches])
        for first in range(0, len(kernels), launches)
    ]
    return {**summed_up(times), "launches": launches}


_METHODS: Mapping[str, Callable[[Kernel, int], Mapping[str, Any]]] = {
    "graph_replay": _replayed,
    "kernel_durations": _profiled,
}
