"""Collectives to their times on the GPUs of one host: one process per GPU, NCCL through PyTorch, CUDA-graph replays.

A CUDA graph of several calls is replayed, so that a time excludes the launch cost of the host, but includes the kernel
launch on the device and the synchronisation of the ranks. It is that of the slowest rank. Groups of fewer ranks than
GPUs run concurrently, as many as fit. NCCL's choice of algorithm and protocol is read from its log.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from scaleout.validation.measure.session import Group, Session, captured, slowest_of, summed_up, times_us

MOST_CALLS = 20
_BYTES_OF_CALLS = 2**30
"""Limits of a graph, which has two calls at least: number of calls, and bytes of all of them."""
_AIM_US = 3000
"""Least time of one timed replay."""

Maker = Callable[[int, Group, list[int]], Callable[[], Any]]


def _buffer(size_bytes: int) -> torch.Tensor:
    return torch.randint(-8, 8, (max(1, size_bytes // 2),), device="cuda", dtype=torch.int8).to(torch.bfloat16)


def _all_reduce(size_bytes: int, group: Group, ranks: list[int]) -> Callable[[], Any]:
    buffer = _buffer(size_bytes)
    return lambda: dist.all_reduce(buffer, group=group)


def _rooted(call: Callable[..., Any]) -> Maker:
    def make(size_bytes: int, group: Group, ranks: list[int]) -> Callable[[], Any]:
        buffer = _buffer(size_bytes)
        return lambda: call(buffer, ranks[0], group=group)

    return make


def _gather(size_bytes: int, group: Group, ranks: list[int]) -> Callable[[], Any]:
    shard = _buffer(size_bytes // len(ranks))
    received = [torch.empty_like(shard) for _ in ranks] if dist.get_rank() == ranks[0] else None
    return lambda: dist.gather(shard, received, ranks[0], group=group)


def _scatter(size_bytes: int, group: Group, ranks: list[int]) -> Callable[[], Any]:
    shard = _buffer(size_bytes // len(ranks))
    sent = [shard.clone() for _ in ranks] if dist.get_rank() == ranks[0] else None
    return lambda: dist.scatter(torch.empty_like(shard), sent, ranks[0], group=group)


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
    "broadcast": _rooted(dist.broadcast),
    "reduce": _rooted(dist.reduce),
    "gather": _gather,
    "scatter": _scatter,
    "send": _send,
}
"""Kind of collective to the function that makes its call."""

_CHOICE = re.compile(r"Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")


def measure(row: Mapping[str, Any], session: Session) -> Mapping[str, Any] | None:
    """Time one collective as one of the processes; None if this process is in no group of the row."""
    group, ranks = session.group(row["ranks"], algorithm=row.get("algorithm"), protocol=row.get("protocol"))
    if not ranks:
        return None
    log = Path(session.folder) / f".nccl.{session.rank}.log"
    call = CALLS[row["collective"]](row["bytes"], group, ranks)
    calls = max(2, min(MOST_CALLS, _BYTES_OF_CALLS // row["bytes"]))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        read = log.stat().st_size if log.exists() else 0
        call()
        stream.synchronize()
        chosen = _chosen(log, read)
        replay = captured([call] * calls, stream)
        agree = session.slowest(group)
        found = times_us(replay, calls=calls, repeats=session.repeats, least_us=_AIM_US, most=20, agree=agree)
    return {"times": {"us": found}, "chosen": chosen, "note": f"CUDA graph of {calls}"}


def join(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the slowest process's time of each repeat, summed up, and NCCL's choice in the first process."""
    return {**summed_up(slowest_of(found)["us"]), "note": found[0]["note"], **found[0]["chosen"]}


def _chosen(log: Path, read: int) -> Mapping[str, Any]:
    """Read NCCL's choice from the new part of its log; it logs none for point-to-point messages."""
    if not log.exists():
        return {}
    with log.open("rb") as file:
        file.seek(read)
        found = _CHOICE.findall(file.read().decode(errors="replace"))
    if not found:
        return {}
    algorithm, protocol, low, high = found[-1]
    return {"chosen": [algorithm.lower(), protocol, int(high) - int(low) + 1]}
