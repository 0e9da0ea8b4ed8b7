"""Collectives to their times on the GPUs of one host: one process a GPU, NCCL through PyTorch, CUDA-graph replays.

A number of calls of one collective are captured in a CUDA graph, one after another, and the graph is replayed. The
time of a call has thus neither the host's launch cost nor that of PyTorch, but it has what NCCL itself needs: the
launch of its kernel on the device and the meeting of the ranks. It is that of the slowest rank. Groups of fewer ranks
than there are GPUs run side by side, as many as fit.

An algorithm and a protocol may be forced: NCCL reads `NCCL_ALGO` and `NCCL_PROTO` when a communicator is made. What it
chose is read from its log.
"""

import json
import os
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_REPEATS = 5
_MOST_CALLS = 20
_BYTES_OF_CALLS = 2**30
"""Calls in a graph: at most so many, and of at most so many bytes together, but two."""
_AIM_S = 0.003
"""How long one timed replay should take at the least."""

Group = Any
Maker = Callable[[int, Group, list[int]], Callable[[], Any]]


def _buffer(size_bytes: int) -> torch.Tensor:
    return torch.randint(-8, 8, (max(1, size_bytes // 2),), device="cuda").to(torch.bfloat16)


def _all_reduce(size_bytes: int, group: Group, ranks: list[int]) -> Callable[[], Any]:
    buffer = _buffer(size_bytes)
    return lambda: dist.all_reduce(buffer, group=group)


def _all_gather(size_bytes: int, group: Group, ranks: list[int]) -> Callable[[], Any]:
    shard = _buffer(size_bytes // len(ranks))
    whole = shard.new_empty(shard.numel() * len(ranks))
    return lambda: dist.all_gather_into_tensor(whole, shard, group=group)


def _reduce_scatter(size_bytes: int, group: Group, ranks: list[int]) -> Callable[[], Any]:
    whole = _buffer(size_bytes // len(ranks) * len(ranks))
    shard = whole.new_empty(whole.numel() // len(ranks))
    return lambda: dist.reduce_scatter_tensor(shard, whole, group=group)


def _all_to_all(size_bytes: int, group: Group, ranks: list[int]) -> Callable[[], Any]:
    sent = _buffer(size_bytes // len(ranks))[:, None].expand(-1, len(ranks)).reshape(-1)
    received = torch.empty_like(sent)
    return lambda: dist.all_to_all_single(received, sent, group=group)


def _broadcast(size_bytes: int, group: Group, ranks: list[int]) -> Callable[[], Any]:
    buffer = _buffer(size_bytes)
    return lambda: dist.broadcast(buffer, ranks[0], group=group)


def _reduce(size_bytes: int, group: Group, ranks: list[int]) -> Callable[[], Any]:
    buffer = _buffer(size_bytes)
    return lambda: dist.reduce(buffer, ranks[0], group=group)


def _send(size_bytes: int, group: Group, ranks: list[int]) -> Callable[[], Any]:
    buffer = _buffer(size_bytes)
    if dist.get_rank() == ranks[0]:
        return lambda: dist.send(buffer, ranks[1], group=group)
    return lambda: dist.recv(buffer, ranks[0], group=group)


CALLS: dict[str, Maker] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "send": _send,
}
"""Kind of collective to the function that makes its call."""

_CHOICE = re.compile(r"Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")


def environment() -> Mapping[str, Any]:
    """Return what the times depend on: the GPUs and the versions of the software."""
    return {
        "gpu": torch.cuda.get_device_name(0),
        "gpus": torch.cuda.device_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()),
    }


def time_rows(rank: int, rows: Sequence[Mapping[str, Any]], folder: str) -> None:
    """Time rows as one of the processes; the first of them appends each to ``rows.jsonl`` once it is measured.

    Parameters
    ----------
    rank : int
        This process, and its GPU.
    rows : sequence of mapping
        `collective`, `ranks`, `bytes`, and `algorithm` and `protocol` where they are forced. Neighbours that agree
        in all but the collective and the bytes share a communicator.
    folder : str
        Where the processes meet, NCCL writes what it chose, and the rows are written.
    """
    log = Path(folder) / f"nccl.{rank}.log"
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="TUNING", NCCL_DEBUG_FILE=str(log))
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=torch.cuda.device_count(),
        timeout=timedelta(seconds=120),
    )
    dist.barrier()
    for forced, together in groupby(rows, lambda row: (row["ranks"], row.get("algorithm"), row.get("protocol"))):
        group, ranks = _group(rank, *forced)
        for row in together:
            found = _time(row, group, ranks, log) if ranks else None
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, found)
            if rank == 0:
                with (Path(folder) / "rows.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps({**row, **_slowest([each for each in everyone if each])}) + "\n")
    dist.destroy_process_group()


def _slowest(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Join what the ranks found: of each repeat the time of the slowest, and what the first says was chosen."""
    times_us = [max(times) for times in zip(*(each["times_us"] for each in found), strict=True)]
    return {"us": round(statistics.median(times_us), 3), "us_min": round(min(times_us), 3), **found[0]["chosen"]}


def _group(rank: int, size: int, algorithm: str | None, protocol: str | None) -> tuple[Group, list[int]]:
    """Make all groups of a size side by side; return the one that a rank is in, if any."""
    for name, value in (("NCCL_ALGO", algorithm), ("NCCL_PROTO", protocol)):
        os.environ.pop(name, None)
        if value:
            os.environ[name] = value
    mine: tuple[Group, list[int]] = (None, [])
    for first in range(0, dist.get_world_size() - size + 1, size):
        ranks = list(range(first, first + size))
        group = dist.new_group(ranks)
        if rank in ranks:
            mine = group, ranks
            dist.all_reduce(torch.ones(1, device="cuda"), group=group)
            torch.cuda.synchronize()
    return mine


def _time(row: Mapping[str, Any], group: Group, ranks: list[int], log: Path) -> Mapping[str, Any]:
    """Microseconds of one call on this rank, one number for each repeat."""
    call = CALLS[row["collective"]](row["bytes"], group, ranks)
    calls = max(2, min(_MOST_CALLS, _BYTES_OF_CALLS // row["bytes"]))
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        read = log.stat().st_size if log.exists() else 0
        call()
        stream.synchronize()
        chosen = _chosen(log, read)
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(calls):
                call()
        graph.replay()
        once_us = torch.tensor([_elapsed_us(graph.replay)], device="cuda")
        dist.all_reduce(once_us, dist.ReduceOp.MAX, group=group)
        replays = max(1, min(20, int(_AIM_S * 1e6 / float(once_us))))

        def several() -> None:
            for _ in range(replays):
                graph.replay()

        return {"times_us": [_elapsed_us(several) / (replays * calls) for _ in range(_REPEATS)], "chosen": chosen}


def _elapsed_us(work: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def _chosen(log: Path, read: int) -> Mapping[str, Any]:
    """Read what NCCL chose since; it does not say so for messages from rank to rank."""
    if not log.exists():
        return {}
    with log.open("rb") as file:
        file.seek(read)
        found = _CHOICE.findall(file.read().decode(errors="replace"))
    if not found:
        return {}
    algorithm, protocol, low, high = found[-1]
    return {"chosen": [algorithm.lower(), protocol, int(high) - int(low) + 1]}
