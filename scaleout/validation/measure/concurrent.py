"""A kernel and a collective that run concurrently: the time of each while the other runs throughout, and in isolation.

Both are CUDA graphs of calls back to back, in two streams. To time one, the other is started first and replayed until
the first ends; if it ends earlier, the measurement is repeated with more replays.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from scaleout.validation.measure.calling import Call
from scaleout.validation.measure.calls import DTYPES, MAKERS
from scaleout.validation.measure.communicator import CALLS
from scaleout.validation.measure.session import Session, Work, captured, elapsed_us, slowest_of, times_us

_SPAN_US = 2000
"""Approximate time of all calls of a graph."""
_TRIES = 5


def compute(name: str) -> Call:
    """Make the call of a kernel from its name: operation and sizes."""
    op, *sizes = name.rsplit("_", name.count("_") if name.startswith("gemm") else 1)
    if op == "gemm":
        shape = dict(zip("MNK", map(int, sizes), strict=True))
        return MAKERS["gemm"](shape, DTYPES["bf16"])
    if op == "elementwise_add":
        return MAKERS["add"]({"elements": int(sizes[0].removesuffix("M")) * 2**19}, DTYPES["bf16"])
    if op == "embedding_bag":
        tables, batch, pooling, dim = map(int, sizes[0].split("x"))
        shape = {"tables": tables, "batch": batch, "pooling": pooling, "dim": dim, "rows": 100_000}
        return MAKERS["embedding_bag_fwd"](shape, DTYPES["fp32"])
    raise ValueError(f"unknown kernel {name!r}; write gemm_M_N_K, elementwise_add_SIZEM or embedding_bag_TxBxPxD")


def measure(row: Mapping[str, Any], session: Session) -> Mapping[str, Any]:
    """Time a kernel and a collective, isolated and concurrent, as one of the processes."""
    ctas = row["nccl_max_ctas"]
    group, ranks = session.group(session.gpus, max_ctas=None if ctas == "default" else ctas)
    agree = session.slowest(group)
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(streams[0]):
        kernel = _Load(compute(row["compute"]), streams[0], agree)
    with torch.cuda.stream(streams[1]):
        collective = _Load(CALLS[row["collective"]](row["bytes"], group, ranks), streams[1], agree)
    times = {}
    for name, timed, other in (("compute", kernel, collective), ("collective", collective, kernel)):
        with torch.cuda.stream(timed.stream):
            times[f"{name}_alone"] = times_us(
                timed.replay, calls=timed.calls, repeats=session.repeats, least_us=_SPAN_US, most=20, agree=agree
            )
        times[f"{name}_together"] = [_concurrent_us(timed, other, session, agree) for _ in range(session.repeats)]
    return {"times": times}


class _Load:
    """Calls of one kind in a CUDA graph, and their isolated time."""

    def __init__(self, call: Call, stream: torch.cuda.Stream, agree: Callable[[float], float]) -> None:
        for _ in range(2):
            call()
        stream.synchronize()
        once_us = agree(elapsed_us(call))
        self.call, self.stream = call, stream  # the graph knows the call's data by their addresses only
        self.calls = max(1, min(100, math.ceil(_SPAN_US / max(once_us, 1.0))))
        self.replay: Work = captured([call] * self.calls, stream)
        self.replay()
        self.span_us = agree(elapsed_us(self.replay))


def _concurrent_us(timed: _Load, other: _Load, session: Session, agree: Callable[[float], float]) -> float:
    """Return the microseconds of one call while the other load runs from before to after."""
    replays = math.ceil(2 * timed.span_us / other.span_us) + 1
    for _ in range(_TRIES):
        session.barrier()
        begin, end, through = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        with torch.cuda.stream(other.stream):
            other.replay()
            for _ in range(replays):
                other.replay()
            through.record()
        with torch.cuda.stream(timed.stream):
            begin.record()
            timed.replay()
            end.record()
        torch.cuda.synchronize()
        took_us = begin.elapsed_time(end) * 1e3
        if agree(took_us - begin.elapsed_time(through) * 1e3) <= 0:
            break
        replays *= 3
    return float(took_us / timed.calls)


def join(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the slowest rank's time of each repeat, summed up, and the slowdown of each by the other."""
    times = slowest_of(found)
    us = {name: statistics.median(values) for name, values in times.items()}
    return {
        "kind": "contention",
        **{f"{name}_us": round(value, 2) for name, value in us.items()},
        "compute_slowdown": round(us["compute_together"] / us["compute_alone"], 3),
        "collective_slowdown": round(us["collective_together"] / us["collective_alone"], 3),
    }
