"""What GPUs draw in collectives, alone, among GEMMs and beside them; rows of JSON, times of rank 0.

    python collective_power.py OUT [SECONDS]

One process a GPU, all GPUs of the machine. A row repeats calls for SECONDS (1.5) after as long. `watts` is of each rank
by NVML's counter of energy, `mhz` the mean of SM clocks read every 4 ms. In a cycle `us` is the median of each stretch's
calls between CUDA events; `beside` runs on a stream of its own while the cycle's GEMMs run. `mib` is of the full tensor.
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

OUT, SECONDS = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1.5
MIB = 1 << 20


def work(rank, world):
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK=str(rank), WORLD_SIZE=str(world), NCCL_NVLS_ENABLE="0"
    )
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    nv.nvmlInit()
    gpu = nv.nvmlDeviceGetHandleByIndex(rank)
    D = dict(device="cuda", dtype=torch.bfloat16)
    torch.manual_seed(rank)

    def collective(kind, mib, data):
        new = (lambda n: torch.randn(n, **D)) if data == "random" else (lambda n: torch.zeros(n, **D))
        n = mib * MIB // 2
        whole, other, part = new(n), new(n), new(n // world)
        return {
            "all_reduce": lambda: dist.all_reduce(whole, op=dist.ReduceOp.AVG),
            "all_gather": lambda: dist.all_gather_into_tensor(other, part),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
            "all_to_all": lambda: dist.all_to_all_single(other, whole),
        }[kind]

    def gemm(m, n, k):
        a, b, c = torch.randn(m, k, **D), torch.randn(k, n, **D), torch.empty(m, n, **D)
        return lambda: torch.mm(a, b, out=c)

    side = torch.cuda.Stream()

    def measure(cycle, beside=None):
        def one(record=None):
            if beside is not None:
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(beside[1]):
                        beside[0]()
            for call, count in cycle:
                for _ in range(count):
                    call()
                if record is not None:
                    event = torch.cuda.Event(enable_timing=True)
                    event.record()
                    record.append(event)
            if beside is not None:
                torch.cuda.current_stream().wait_stream(side)

        def many(times, record=None):
            for number in range(times):
                one(record)
                if number % 8 == 7:
                    torch.cuda.synchronize()
            torch.cuda.synchronize()

        many(8)
        dist.barrier()
        began = time.perf_counter()
        many(16)
        each = torch.tensor([(time.perf_counter() - began) / 16], device="cuda")
        dist.all_reduce(each, op=dist.ReduceOp.MAX)
        times = max(8, int(SECONDS / each.item()))
        many(times)
        dist.barrier()
        torch.cuda.synchronize()
        stop, mhz = threading.Event(), []

        def clocks():
            while not stop.is_set():
                mhz.append(nv.nvmlDeviceGetClockInfo(gpu, nv.NVML_CLOCK_SM))
                time.sleep(0.004)

        thread = threading.Thread(target=clocks)
        thread.start()
        events = [torch.cuda.Event(enable_timing=True)]
        before, began = nv.nvmlDeviceGetTotalEnergyConsumption(gpu), time.perf_counter()
        events[0].record()
        many(times, events)
        seconds = time.perf_counter() - began
        joules = (nv.nvmlDeviceGetTotalEnergyConsumption(gpu) - before) / 1e3
        stop.set()
        thread.join()
        stretches = [a.elapsed_time(b) * 1e3 for a, b in zip(events, events[1:])]
        us = [round(statistics.median(stretches[at :: len(cycle)]) / count, 1) for at, (_, count) in enumerate(cycle)]
        own = [round(joules / seconds, 1), round(statistics.mean(mhz)), nv.nvmlDeviceGetTemperature(gpu, 0)]
        every = [None] * world
        dist.all_gather_object(every, own)
        return {
            "us": us,
            "cycle_us": round(seconds / times * 1e6, 1),
            "watts": [each[0] for each in every],
            "mhz": [each[1] for each in every],
            "celsius": [each[2] for each in every],
        }

    out = open(OUT, "w") if rank == 0 else None

    def row(facts, cycle, beside=None):
        found = facts | {"ranks": world} | measure(cycle, beside)
        if rank == 0:
            print(json.dumps(found), file=out, flush=True)
            print(json.dumps(found)[:230], flush=True)
        torch.cuda.empty_cache()

    kinds = "all_reduce", "all_gather", "reduce_scatter", "all_to_all"
    for kind in kinds:
        for mib, data in ((16, "random"), (64, "random"), (256, "random"), (256, "zeros"), (64, "zeros")):
            row({"row": "alone", "collective": kind, "mib": mib, "data": data}, [(collective(kind, mib, data), 4)])
    big = gemm(8192, 8192, 8192)
    row({"row": "cycle", "gemms": 4}, [(big, 4)])
    for kind, mib, count, data in (
        ("all_reduce", 256, 2, "random"),
        ("all_reduce", 256, 2, "zeros"),
        ("all_gather", 256, 4, "random"),
        ("all_gather", 256, 4, "zeros"),
        ("reduce_scatter", 256, 4, "random"),
        ("all_to_all", 256, 4, "random"),
        ("all_reduce", 16, 16, "random"),
    ):
        row(
            {"row": "cycle", "gemms": 4, "collective": kind, "mib": mib, "calls": count, "data": data},
            [(big, 4), (collective(kind, mib, data), count)],
        )
    for kind, mib, count, data in (
        ("all_gather", 256, 4, "random"),
        ("all_gather", 256, 4, "zeros"),
        ("reduce_scatter", 256, 4, "random"),
        ("all_reduce", 256, 2, "random"),
    ):
        row(
            {"row": "beside", "gemms": 8, "collective": kind, "mib": mib, "calls": count, "data": data},
            [(big, 8)],
            (collective(kind, mib, data), count),
        )
    one = torch.ones(256, **D)
    tiny = lambda: dist.all_reduce(one, op=dist.ReduceOp.AVG)
    for gemms in (1, 4, 16, 64):
        row({"row": "cycle", "gemms": gemms}, [(big, gemms)])
        row(
            {"row": "cycle", "gemms": gemms, "collective": "all_reduce", "mib": 0.0005, "calls": 1},
            [(big, gemms), (tiny, 1)],
        )
    row({"row": "cycle", "gemms": 4, "collective": "all_reduce", "mib": 0.0005, "calls": 60}, [(big, 4), (tiny, 60)])
    row({"row": "alone", "collective": "all_reduce", "mib": 0.0005}, [(tiny, 40)])
    for mib in (1, 4):
        for kind in ("all_reduce", "all_gather", "all_to_all"):
            row(
                {"row": "alone", "collective": kind, "mib": mib, "data": "random"},
                [(collective(kind, mib, "random"), 40)],
            )
    for kind, mib, count in (
        ("all_reduce", 256, 2),
        ("all_gather", 256, 4),
        ("reduce_scatter", 256, 4),
        ("all_to_all", 256, 4),
        ("all_reduce", 16, 16),
        ("all_gather", 16, 32),
    ):
        row(
            {"row": "after a tiny one", "gemms": 4, "collective": kind, "mib": mib, "calls": count, "data": "random"},
            [(big, 4), (tiny, 1), (collective(kind, mib, "random"), count)],
        )
    a, b, c = (torch.randn(200_000_000, **D) for _ in range(3))
    add = lambda: torch.add(a, b, out=c)
    row({"row": "cycle", "gemms": 4, "additions": 8}, [(big, 4), (add, 8)])
    row(
        {"row": "cycle", "gemms": 4, "additions": 8, "collective": "all_reduce", "mib": 0.0005, "calls": 1},
        [(big, 4), (add, 8), (tiny, 1)],
    )
    row({"row": "alone", "additions": 8}, [(add, 8)])
    row({"row": "alone", "additions": 8, "collective": "all_reduce", "mib": 0.0005, "calls": 1}, [(add, 8), (tiny, 1)])
    dist.destroy_process_group()


if __name__ == "__main__":
    world = torch.cuda.device_count()
    mp.spawn(work, args=(world,), nprocs=world)
