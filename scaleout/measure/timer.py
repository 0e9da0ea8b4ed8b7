"""A kernel to its time on the GPU at hand, by one of two methods.

`replayed`: a call is made on several sets of random data in turn, more than the L2 cache holds, inside a CUDA graph,
and the graph is replayed. The time has neither the host's launch cost nor the cache's help, but it has the gaps
between the device kernels of one call.

`profiled`: a call is made on the same data a few times in a row, and the durations of its device kernels are added
up. Small data lie in the L2 cache, and the chip has not yet slowed down for its power limit.
"""

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from scaleout.measure.calls import MAKERS
from scaleout.measure.tensors import DTYPES, Call
from scaleout.operations import Kernel

_CACHE_BYTES = 200e6
"""Data of all sets together: more than three times the L2 cache of an H100 or H200."""
_MOST_SETS = 24
_REPEATS = 7
_AIM_S = 0.01
"""How long one timed replay should take, so that the clock's resolution does not matter."""
_PROFILED_CALLS = 10


def environment() -> Mapping[str, Any]:
    """Return what the times depend on: the GPU and the versions of the software."""
    return {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "cuda": torch.version.cuda}


def time_kernel(call: Kernel, method: str) -> Mapping[str, Any]:
    """Time one call; `error` stands in place of a time where it fails.

    Returns
    -------
    mapping
        `us`, the median time of a call in microseconds; `us_min`; and `launches`, its device kernels, if profiled.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = call.dtype == "tf32"
    try:
        return _METHODS[method](call)
    except (RuntimeError, torch.OutOfMemoryError) as error:
        torch.cuda.synchronize()
        return {"error": str(error).splitlines()[0]}
    finally:
        torch.cuda.empty_cache()


def _make(call: Kernel, sets: int) -> list[Call]:
    made = [MAKERS[call.op](call.sizes, DTYPES[call.dtype]) for _ in range(sets)]
    for _ in range(2):
        for make in made:
            make()
    torch.cuda.synchronize()
    return made


def _replayed(call: Kernel) -> Mapping[str, Any]:
    sets = max(1, min(_MOST_SETS, int(_CACHE_BYTES // max(call.bytes, 1)) + 1))
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    # Autograd runs a backward kernel on the stream of its forward, so that one must be on the captured stream, too.
    with torch.cuda.stream(stream):
        calls = _make(call, sets)
        with torch.cuda.graph(graph, stream=stream):
            for make in calls:
                make()
        once_us = _elapsed_us(graph.replay)
        replays = max(1, min(200, int(_AIM_S * 1e6 / max(once_us, 1.0))))

        def several() -> None:
            for _ in range(replays):
                graph.replay()

        several()
        times_us = [_elapsed_us(several) / (replays * sets) for _ in range(_REPEATS)]
    return {"us": round(statistics.median(times_us), 3), "us_min": round(min(times_us), 3)}


def _elapsed_us(work: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def _profiled(call: Kernel) -> Mapping[str, Any]:
    (make,) = _make(call, 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(_PROFILED_CALLS):
            make()
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    kernels.sort(key=lambda event: event.time_range.start)
    launches = len(kernels) // _PROFILED_CALLS
    if launches == 0 or len(kernels) % _PROFILED_CALLS:
        return {"error": f"{len(kernels)} device kernels in {_PROFILED_CALLS} calls"}
    times_us = [
        sum(event.device_time_total for event in kernels[first : first + launches])
        for first in range(0, len(kernels), launches)
    ]
    return {
        "us": round(statistics.median(times_us), 3),
        "us_min": round(min(times_us), 3),
        "launches": launches,
    }


_METHODS: Mapping[str, Callable[[Kernel], Mapping[str, Any]]] = {
    "graph_replay": _replayed,
    "kernel_durations": _profiled,
}
