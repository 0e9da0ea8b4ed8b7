"""Whole steps of plain PyTorch on one or several GPUs, of jobs drawn at random; a row of JSON each.

    torchrun --standalone --nproc-per-node N drawn_steps.py JOBS OUT [SECONDS]

A job has the keys of a workload of scaleout; the program does the same as its documentation says it is. Warm-up, then
steps one behind the other with a CUDA event each; `step_us` is the median of their distances (slowest rank), `hot_us`
wall time over all; `host_us` what the host takes to issue a step to an idle GPU. Peaks are of the allocator.
"""

# ruff: noqa

import contextlib
import gc
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from drawn_models import GPUS, MAKERS, RANK
from torch.nn.attention import SDPBackend, sdpa_kernel

JOBS, OUT = [json.loads(line) for line in open(sys.argv[1])], sys.argv[2]
LIMIT, BEGAN = float(sys.argv[3]) if len(sys.argv) > 3 else 1e9, time.perf_counter()
torch.cuda.set_device(RANK)
if GPUS > 1:
    dist.init_process_group("nccl", device_id=torch.device("cuda", RANK))
    CONTROL = dist.new_group(backend="gloo")
BACKENDS = {"flash": SDPBackend.CUDNN_ATTENTION, "flash2": SDPBackend.FLASH_ATTENTION}


def clocks():
    try:
        import pynvml as nv

        nv.nvmlInit()
        h = nv.nvmlDeviceGetHandleByIndex(RANK)
        return [
            nv.nvmlDeviceGetClockInfo(h, 1),
            round(nv.nvmlDeviceGetPowerUsage(h) / 1e3),
            nv.nvmlDeviceGetTemperature(h, 0),
        ]
    except Exception as error:
        return repr(error)[:100]


def everyone(value):
    if GPUS == 1:
        return [value]
    found = [None] * GPUS
    dist.all_gather_object(found, value, group=CONTROL)
    return found


def kernels(step):
    """One recorded step: kernels in order of their begin, [index of name, us, us of gap before, stream]."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        step()
        torch.cuda.synchronize()
    events = [e for e in found.profiler.kineto_results.events() if str(e.device_type()).endswith("CUDA")]
    assert events, "no device events"
    events.sort(key=lambda e: e.start_ns())
    names, rows, last = {}, [], None
    for e in events:
        n = names.setdefault(e.name()[:150], len(names))
        gap = 0.0 if last is None else (e.start_ns() - last) / 1e3
        last = max(last or 0, e.start_ns() + e.duration_ns())
        rows.append([n, round(e.duration_ns() / 1e3, 2), round(gap, 1), e.device_resource_id()])
    return {"names": list(names), "kernels": rows}


def one(job):
    k = job["keys"]
    gc.collect()
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if k["dtype"] == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = k["dtype"] == "tf32"
    backends = (
        [BACKENDS[k["attention"]]]
        if k.get("attention")
        else [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    )
    chosen = (
        sdpa_kernel(list(dict.fromkeys([*backends, SDPBackend.FLASH_ATTENTION])), set_priority=True)
        if k.get("attention")
        else contextlib.nullcontext()
    )
    with chosen:
        began = time.perf_counter()
        step = MAKERS[k["kind"]](k)
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        built = time.perf_counter() - began
        torch.cuda.reset_peak_memory_stats()
        first = time.perf_counter()
        step()
        torch.cuda.synchronize()
        each = time.perf_counter() - first
        peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        hosts = []
        for _ in range(4):
            torch.cuda.synchronize()
            first = time.perf_counter()
            step()
            hosts.append((time.perf_counter() - first) * 1e6)
        torch.cuda.synchronize()
        each = max(everyone(each))
        warm, count = max(3, int(0.6 / each)), max(8, min(400, int(0.9 / each)))
        gc.disable()
        for _ in range(warm):
            step()
        torch.cuda.synchronize()
        if GPUS > 1:
            dist.barrier()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        first = time.perf_counter()
        events[0].record()
        for e in events[1:]:
            step()
            e.record()
        sampled = clocks()
        torch.cuda.synchronize()
        hot = (time.perf_counter() - first) / count * 1e6
        gc.enable()
        times = [a.elapsed_time(b) * 1e3 for a, b in zip(events, events[1:])]
        try:
            recorded = kernels(step)
        except Exception as error:
            recorded = {"error": repr(error)[:200]}
    return {
        "times": times,
        "hot": hot,
        "host": statistics.median(hosts),
        "peak": peak,
        "reserved": reserved,
        "built_s": round(built, 1),
        "clocks": sampled,
        **recorded,
    }


def main():
    if RANK == 0:
        about = {
            "gpu": torch.cuda.get_device_name(),
            "gpus": GPUS,
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "kernel": os.uname().release,
            "date": time.strftime("%Y-%m-%d"),
        }
        open(OUT, "a").write(json.dumps({"provenance": about}) + "\n")
    for job in JOBS:
        if job["gpus"] != GPUS:
            continue
        if max(everyone(time.perf_counter() - BEGAN)) > LIMIT:
            break
        try:
            found = one(job)
        except Exception as error:
            import traceback

            found = {"error": repr(error)[:300], "where": traceback.format_exc()[-500:]}
        found = everyone(found)
        if RANK == 0:
            bad = [f for f in found if "times" not in f]
            if bad:
                row = {"id": job["id"], **bad[0]}
                print(job["id"], bad[0]["error"], bad[0]["where"], flush=True)
            else:
                slow = [max(t) for t in zip(*(f["times"] for f in found))]
                row = {
                    "id": job["id"],
                    "step_us": round(statistics.median(slow), 1),
                    "min_us": round(min(slow), 1),
                    "max_us": round(max(slow), 1),
                    "steps": len(slow),
                    "hot_us": round(max(f["hot"] for f in found), 1),
                    "host_us": [round(f["host"], 1) for f in found],
                    "peak": max(f["peak"] for f in found),
                    "reserved": max(f["reserved"] for f in found),
                    "clocks": [f["clocks"] for f in found],
                    "built_s": found[0]["built_s"],
                    "names": found[0].get("names"),
                    "kernels": found[0].get("kernels"),
                    "record_error": found[0].get("error"),
                }
                print(
                    job["id"],
                    row["step_us"],
                    row["hot_us"],
                    row["host_us"],
                    round(row["peak"] / 1e9, 2),
                    row["clocks"],
                    row["built_s"],
                    row["record_error"],
                    flush=True,
                )
            with open(OUT, "a") as file:
                file.write(json.dumps(row) + "\n")


main()
if GPUS > 1:
    dist.destroy_process_group()
