"""Work on a GPU to microseconds: CUDA events around replays of a graph, repeated.

A graph has neither the host's launch cost nor that of PyTorch. Nothing here knows what is timed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

Work = Callable[[], Any]


def elapsed_us(work: Work) -> float:
    """Time work on the current stream from its begin on the device to its end, in microseconds."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def captured(calls: Sequence[Work], stream: torch.cuda.Stream) -> Work:
    """Capture calls one after another in a CUDA graph on a stream; return what replays it.

    Threads of the communication library may go on with what they do meanwhile.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for call in calls:
            call()
    replay: Work = graph.replay
    return replay


def times_us(
    work: Work, *, calls: int, repeats: int, least_us: float, most: int, agree: Callable[[float], float] = lambda us: us
) -> list[float]:
    """Time work that makes so many calls: microseconds of one call, one number for each repeat.

    Parameters
    ----------
    least_us : float
        How long one repeat should take, so that the clock's resolution does not matter.
    most : int
        Replays in a repeat, at most.
    agree : callable
        From this process's time of one replay to that of all which take part, so that all replay equally often.
    """
    work()
    once_us = agree(elapsed_us(work))
    replays = max(1, min(most, int(least_us / max(once_us, 1.0))))

    def several() -> None:
        for _ in range(replays):
            work()

    several()
    return [elapsed_us(several) / (replays * calls) for _ in range(repeats)]
