"""What the measuring processes share: one process per GPU, groups of NCCL, and timing with CUDA events.

PyTorch's process group of NCCL runs what is measured; one of gloo exchanges results, even if a GPU runs out of memory.
A CUDA graph excludes the launch cost of the host and of PyTorch.
"""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

Group = Any
_PATIENCE = timedelta(seconds=120)
"""Time-out of a process that waits for the others."""

Work = Callable[[], Any]
Times = Mapping[str, Sequence[float]]
"""Name of a time to its microseconds, one for each repeat."""


@dataclass
class Session:
    """One of as many processes as GPUs, each on the GPU of its rank; each measurement is taken `repeats` times.

    `folder` is for the rows, the rendezvous file and NCCL's logs.
    """

    rank: int
    gpus: int
    repeats: int
    folder: str
    _control: Group = None
    _groups: dict[Any, tuple[Group, list[int]]] = field(default_factory=dict)

    def join(self) -> None:
        """Join the other processes; `RuntimeError` if they do not arrive."""
        dist.init_process_group(
            "nccl",
            init_method=f"file://{self.folder}/.rendezvous",
            rank=self.rank,
            world_size=self.gpus,
            timeout=_PATIENCE,
            device_id=torch.device("cuda", self.rank),
        )
        self._control = dist.new_group(backend="gloo", timeout=_PATIENCE)
        dist.barrier()

    def leave(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()

    def exchange(self, found: Any) -> list[Any]:
        """Return the results of all processes by rank."""
        if self.gpus == 1:
            return [found]
        everyone: list[Any] = [None] * self.gpus
        dist.all_gather_object(everyone, found, group=self._control)
        return everyone

    def barrier(self) -> None:
        """Wait for all processes and devices; an all-reduce releases all at the same time."""
        if self.gpus > 1:
            dist.all_reduce(torch.zeros(1, device="cuda"))
        torch.cuda.synchronize()

    def slowest(self, group: Group) -> Callable[[float], float]:
        """Return a function that reduces a time to the longest of a group's processes."""

        def agree(us: float) -> float:
            longest = torch.tensor([us], device="cuda")
            dist.all_reduce(longest, dist.ReduceOp.MAX, group=group)
            return float(longest)

        return agree

    def group(
        self, size: int, *, algorithm: str | None = None, protocol: str | None = None, max_ctas: int | None = None
    ) -> tuple[Group, list[int]]:
        """Make as many groups of a size as fit; return that of this process and its ranks.

        NCCL reads `NCCL_ALGO` and `NCCL_PROTO` when a communicator is made, and uses at most `max_ctas` blocks.
        """
        key = (size, algorithm, protocol, max_ctas)
        if key not in self._groups:
            for name, value in (("NCCL_ALGO", algorithm), ("NCCL_PROTO", protocol)):
                os.environ.pop(name, None)
                if value:
                    os.environ[name] = value
            mine: tuple[Group, list[int]] = (None, [])
            for first in range(0, self.gpus - size + 1, size):
                ranks = list(range(first, first + size))
                group = dist.new_group(ranks, pg_options=_options(max_ctas), timeout=_PATIENCE)
                if self.rank in ranks:
                    mine = group, ranks
                    dist.all_reduce(torch.ones(1, device="cuda"), group=group)
                    torch.cuda.synchronize()
            self._groups[key] = mine
        return self._groups[key]


def _options(max_ctas: int | None) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    if max_ctas is not None:
        options.config.max_ctas = max_ctas
        options.config.min_ctas = min(max_ctas, 1)
    return options


def slowest_of(found: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the `times` of the slowest of some processes, repeat by repeat."""
    times: list[Times] = [each["times"] for each in found]
    return {name: [max(each) for each in zip(*(of[name] for of in times), strict=True)] for name in times[0]}


def summed_up(times: Sequence[float], key: str = "us", *, digits: int = 3) -> dict[str, float]:
    """Return median, least and largest of some times by their keys in a file of rows."""
    found = {key: statistics.median(times), f"{key}_min": min(times), f"{key}_max": max(times)}
    return {name: round(time, digits) for name, time in found.items()}


def elapsed_us(work: Work) -> float:
    """Time work on the current stream from its start to its end on the device, in microseconds."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def captured(calls: Sequence[Work], stream: torch.cuda.Stream) -> Work:
    """Capture calls one after another in a CUDA graph on a stream; return what replays it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):  # NCCL's threads go on
        for call in calls:
            call()
    replay: Work = graph.replay
    return replay


def times_us(
    work: Work, *, calls: int, repeats: int, least_us: float, most: int, agree: Callable[[float], float] = lambda us: us
) -> list[float]:
    """Time work that makes so many calls: microseconds of one call, one number for each repeat.

    A repeat takes at least `least_us`, so that the clock's resolution does not matter, and `most` replays at most;
    `agree` turns this process's time of one replay into that of its group, so that all replay equally often.
    """
    work()
    once_us = agree(elapsed_us(work))
    replays = max(1, min(most, int(least_us / max(once_us, 1.0))))

    def several() -> None:
        for _ in range(replays):
            work()

    several()
    return [elapsed_us(several) / (replays * calls) for _ in range(repeats)]
