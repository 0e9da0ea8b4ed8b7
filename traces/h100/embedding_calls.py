"""What a call of nn.EmbeddingBag takes, table by table, as the public DLRM makes them; rows of JSON.

python3 embedding_calls.py > embedding-calls.jsonl
"""

# ruff: noqa: T201

import json
import statistics
import time

import torch

REPEATS, WARM_UP = 15, 3
torch.manual_seed(0)


def row(what, found, **more):
    """Print the spread of some times in us."""
    found = sorted(found)
    spread = {"us": statistics.median(found), "us_min": found[0], "us_max": found[-1]}
    rounded = {name: round(time_us, 3) for name, time_us in spread.items()}
    print(json.dumps({"what": what, **more, **rounded, "repeats": len(found)}), flush=True)


def calls(bags, indices, offsets, **more):
    """Time a pass over all tables by the host's clock and by events."""
    host, events = [], []
    for _ in range(REPEATS + WARM_UP):
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        started = time.perf_counter()
        out = [bag(*each, per_sample_weights=None) for bag, *each in zip(bags, indices, offsets, strict=True)]
        stopped = time.perf_counter()
        end.record()
        end.synchronize()
        host.append((stopped - started) * 1e6 / len(out))
        events.append(begin.elapsed_time(end) * 1e3 / len(out))
    row("embedding_bag_host", host[WARM_UP:], **more)
    row("embedding_bag_events", events[WARM_UP:], **more)


def kernels(bags, indices, offsets, **more):
    """Time the kernels of a pass by the profiler."""
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for bag, *each in zip(bags, indices, offsets, strict=True):
            bag(*each)
        torch.cuda.synchronize()
    found = [each for each in profile.events() if each.device_type == torch.autograd.DeviceType.CUDA]
    times_us = [each.device_time_total for each in found if "EmbeddingBag" in each.name]
    row("embedding_bag_kernel", times_us, **more, launches=len(found) / len(bags))


for tables in (64, 256):
    for batch in (64, 256, 1024):
        bags = [torch.nn.EmbeddingBag(20000, 256, mode="sum", sparse=True, device="cuda") for _ in range(tables)]
        indices = [torch.randint(0, 20000, (batch * 70,), device="cuda") for _ in range(tables)]
        offsets = [torch.arange(0, batch * 70, 70, device="cuda") for _ in range(tables)]
        sizes = {"tables": tables, "batch": batch, "dim": 256, "pooling": 70}
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                calls(bags, indices, offsets, **sizes, grad=grad)
        kernels(bags, indices, offsets, **sizes)
