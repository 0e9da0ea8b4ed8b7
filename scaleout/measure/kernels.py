"""Time kernels on the GPU at hand, one JSON line each in and out; rows are written as soon as they are measured.

A call is made on several sets of random data in turn, more than the L2 cache holds, inside a CUDA graph, and the
graph is replayed: a time has neither the host's launch cost nor the cache's help. Where a call cannot be captured,
its time is the sum of the durations of its device kernels, from the profiler.
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO

import torch

from scaleout.measure.calls import DTYPES, MAKERS, Call
from scaleout.operations import Kernel, kernel

_CACHE_BYTES = 200e6
"""Data of all sets together: more than three times the L2 cache of an H100 or H200."""
_MOST_SETS = 24
UNCAPTURED = ("embedding_bwd",)
"""Operations whose call asks the device something on the way, which a graph cannot hold."""
_REPEATS = 7
_AIM_S = 0.01
"""How long one timed replay should take, so that the clock's resolution does not matter."""


def measure(rows: Iterable[dict[str, Any]], output: TextIO) -> None:
    """Measure kernels and write their rows, with an `error` in place of a time where a call fails."""
    for row in rows:
        call = kernel(row["op"], dtype=row["dtype"], **row["shape"])
        try:
            found = time_kernel(call)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            found = {"error": str(error).splitlines()[0]}
            torch.cuda.synchronize()
        output.write(json.dumps(row | found) + "\n")
        output.flush()
        torch.cuda.empty_cache()


def time_kernel(call: Kernel) -> dict[str, Any]:
    """Return the median, the smallest time in microseconds, and the method."""
    sets = max(1, min(_MOST_SETS, int(_CACHE_BYTES // max(call.bytes, 1)) + 1))
    stream = torch.cuda.Stream()
    # Autograd runs a backward kernel on the stream of its forward, so that one must be captured, too.
    with torch.cuda.stream(stream):
        calls = [MAKERS[call.op](call.sizes, DTYPES[call.dtype]) for _ in range(sets)]
        for _ in range(2):
            for make in calls:
                make()
        torch.cuda.synchronize()
        capture = call.op not in UNCAPTURED
        times_us = _replayed(calls, stream) if capture else _profiled(calls)
    return {
        "us": round(statistics.median(times_us), 3),
        "us_min": round(min(times_us), 3),
        "method": "graph_replay" if capture else "kernel_durations",
        "sets": sets,
    }


def _replayed(calls: list[Call], stream: torch.cuda.Stream) -> list[float]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    once_us = _elapsed_us(graph.replay)
    replays = max(1, min(200, int(_AIM_S * 1e6 / max(once_us, 1.0))))

    def several() -> None:
        for _ in range(replays):
            graph.replay()

    several()
    return [_elapsed_us(several) / (replays * len(calls)) for _ in range(_REPEATS)]


def _elapsed_us(work: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def _profiled(calls: list[Call]) -> list[float]:
    times_us = []
    for _ in range(_REPEATS):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for call in calls:
                call()
            torch.cuda.synchronize()
        kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        times_us.append(sum(event.device_time_total for event in kernels) / len(calls))
    return times_us


def main() -> None:
    """Read rows with op, dtype and shape from standard input; write them with times to standard output."""
    properties = torch.cuda.get_device_properties(0)
    facts = {"gpu": properties.name, "torch": torch.__version__, "cuda": torch.version.cuda}
    sys.stdout.write(json.dumps({"environment": facts}) + "\n")
    rows = (json.loads(line) for line in sys.stdin if line.strip())
    measure((row for row in rows if "op" in row), sys.stdout)


if __name__ == "__main__":
    main()
