"""Small collectives of two GPUs: NCCL's, and those of torch symmetric memory by direct stores; rows of JSON on rank 0.

torchrun --nproc-per-node 2 small_collectives.py > small-collectives.jsonl
"""

# ruff: noqa: T201, B023, PLW0108

import json
import os
import statistics
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

CALLS, REPEATS = 20, 9
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
group = dist.group.WORLD


def timed(what, size, work, **more):
    """Time a call in replays of a graph of CALLS, the slower rank; print a row."""
    try:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                work()
            stream.synchronize()
            dist.barrier()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(CALLS):
                    work()
            found = []
            for repeat in range(REPEATS + 1):
                dist.barrier()
                torch.cuda.synchronize()
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record(stream)
                for _ in range(5):
                    graph.replay()
                end.record(stream)
                end.synchronize()
                if repeat:
                    found.append(begin.elapsed_time(end) * 1e3 / CALLS / 5)
        slower = torch.tensor(found, device="cuda")
        dist.all_reduce(slower, op=dist.ReduceOp.MAX)
        found = slower.tolist()
        row = {
            "us": round(statistics.median(found), 3),
            "us_min": round(min(found), 3),
            "us_max": round(max(found), 3),
            "repeats": REPEATS,
        }
    except Exception as error:  # the next row may do
        row = {"error": str(error)[:200]}
    if rank == 0:
        print(json.dumps({"what": what, "bytes": size, **more, **row}), flush=True)


if rank == 0:
    print(
        json.dumps(
            {
                "what": "machine",
                "gpu": torch.cuda.get_device_name(),
                "gpus": dist.get_world_size(),
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
                "nccl": ".".join(map(str, torch.cuda.nccl.version())),
                "python": sys.version.split()[0],
            }
        ),
        flush=True,
    )

SIZES = [64 << (2 * power) for power in range(9)]  # 64 B to 4 MiB
for size in SIZES:
    data = torch.randn(size // 2, device="cuda").to(torch.bfloat16)
    half, whole = torch.empty_like(data[: size // 4]), torch.empty(size, device="cuda", dtype=torch.bfloat16)
    timed("nccl_all_reduce", size, lambda: dist.all_reduce(data))
    timed("nccl_reduce_scatter", size, lambda: dist.reduce_scatter_tensor(half, data))
    timed("nccl_all_gather", size, lambda: dist.all_gather_into_tensor(whole[: size // 2], half))
    timed("nccl_all_to_all", size, lambda: dist.all_to_all_single(whole[: size // 2], data))

shared = symm_mem.empty(4 << 20, dtype=torch.bfloat16, device="cuda")
handle = symm_mem.rendezvous(shared, group.group_name)
shared.normal_()
timed("symmetric_barrier", 0, lambda: handle.barrier())
for size in SIZES:
    part = shared[: size // 2]
    timed(
        "symmetric_one_shot_all_reduce",
        size,
        lambda: torch.ops.symm_mem.one_shot_all_reduce(part, "sum", group.group_name),
    )
    timed(
        "symmetric_two_shot_all_reduce",
        size,
        lambda: torch.ops.symm_mem.two_shot_all_reduce_(part, "sum", group.group_name),
    )
peer = handle.get_buffer(1 - rank, (4 << 20,), torch.bfloat16)
local = torch.randn(4 << 20, device="cuda").to(torch.bfloat16)
for size in SIZES:

    def put(size=size):
        """Put, signal, and wait for the peer's, as a step of an exchange."""
        peer[: size // 2].copy_(local[: size // 2])
        handle.put_signal(1 - rank, channel=0)
        handle.wait_signal(1 - rank, channel=0)

    timed("symmetric_put_signal_wait", size, put)
dist.destroy_process_group()
