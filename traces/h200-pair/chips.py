"""GEMMs over and over on each GPU of a machine, all at once and one alone: what each GPU takes; rows of JSON.

    python chips.py OUT [SECONDS]

A row is of one kernel on one GPU: the fastest call after 1.5 s of rest (full clock), the median over SECONDS (3) after
as long of it, what the GPU drew by its counter of energy, and the mean SM clock. Then, for GPUs together, additions
with and without an all-reduce of 512 bytes behind every eight.
"""

# ruff: noqa

import json
import os
import statistics
import sys
import threading
import time

import pynvml as nv
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

OUT, SECONDS = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 3.0


def work(rank, world):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK=str(rank), WORLD_SIZE=str(world))
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    nv.nvmlInit()
    gpu = nv.nvmlDeviceGetHandleByIndex(rank)
    D = dict(device="cuda", dtype=torch.bfloat16)
    torch.manual_seed(0)
    sets = [tuple(torch.randn(8192, 8192, **D) for _ in range(3)) for _ in range(3)]
    x, y, z = (torch.randn(200_000_000, **D) for _ in range(3))
    one = torch.ones(256, **D)

    def gemm(i):
        a, b, c = sets[i % 3]
        torch.mm(a, b, out=c)

    def add(i):
        torch.add(x, y, out=z)

    def with_message(i):
        add(i)
        if i % 8 == 7:
            dist.all_reduce(one, op=dist.ReduceOp.AVG)

    def measure(call, seconds, per):
        torch.cuda.synchronize()
        time.sleep(1.5)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(6)]
        events[0].record()
        for number, event in enumerate(events[1:]):
            call(number)
            event.record()
        torch.cuda.synchronize()
        full = min(a.elapsed_time(b) for a, b in zip(events[1:], events[2:])) * 1e3
        times = max(8, int(seconds * 1e6 / per / 8) * 8)

        def many(events=None):
            for number in range(times):
                call(number)
                if number % 8 == 7:
                    if events is not None:
                        event = torch.cuda.Event(enable_timing=True)
                        event.record()
                        events.append(event)
                    if number % 32 == 31:
                        torch.cuda.synchronize()
            torch.cuda.synchronize()

        many()
        stop, mhz, events = threading.Event(), [], []

        def clocks():
            while not stop.is_set():
                mhz.append(nv.nvmlDeviceGetClockInfo(gpu, nv.NVML_CLOCK_SM))
                time.sleep(0.004)

        thread = threading.Thread(target=clocks)
        thread.start()
        before, began = nv.nvmlDeviceGetTotalEnergyConsumption(gpu), time.perf_counter()
        many(events)
        took = time.perf_counter() - began
        joules = (nv.nvmlDeviceGetTotalEnergyConsumption(gpu) - before) / 1e3
        stop.set()
        thread.join()
        us = statistics.median(a.elapsed_time(b) for a, b in zip(events, events[1:])) * 1e3 / 8
        return {
            "full_clock_us": round(full, 1),
            "us": round(us, 1),
            "watts": round(joules / took, 1),
            "mhz": round(statistics.mean(mhz)),
            "celsius": nv.nvmlDeviceGetTemperature(gpu, 0),
        }

    out = open(OUT, "w") if rank == 0 else None

    def row(facts, found):
        every = [None] * world
        dist.all_gather_object(every, found)
        for number, each in enumerate(every):
            if rank == 0 and each is not None:
                line = json.dumps({"gpu": number} | facts | each)
                print(line, file=out, flush=True)
                print(line, flush=True)

    dist.barrier()
    for repeat in range(2):
        row({"kernel": "gemm 8192 8192 8192", "gpus": world}, measure(gemm, SECONDS, 1600))
    for only in range(world):
        dist.barrier()
        found = measure(gemm, SECONDS, 1600) if rank == only else None
        row({"kernel": "gemm 8192 8192 8192", "gpus": 1}, found)
    for repeat in range(2):
        row({"kernel": "add 200000000", "gpus": world}, measure(add, SECONDS, 400))
        row({"kernel": "add 200000000", "gpus": world, "all_reduce": 512}, measure(with_message, SECONDS, 400))
    dist.destroy_process_group()


if __name__ == "__main__":
    world = torch.cuda.device_count()
    mp.spawn(work, args=(world,), nprocs=world)
