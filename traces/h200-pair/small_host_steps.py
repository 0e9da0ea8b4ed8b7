"""Small steps that the host bounds, on one and two GPUs, each between two readings of the host's pace; rows of JSON.

    torchrun --standalone --nproc-per-node N small_host_steps.py OUT PART ROUNDS [SECONDS]

PART is steps, training, async, compiled or marginal. A row's `pace_us` is what the host of each rank took a layer,
forward and backward, of eight tiny layers without collectives just before: machines, and seconds of one, differ by a
factor of two there. Steps are those of `scaleout.validation.measure.steps`; training drops gradients, runs forward and
backward, clips and steps AdamW. `step_us`: behind a barrier, CUDA events, the slowest rank, median of the repeats;
`host_us`: each rank's host; `hot_us`: of eight steps one behind the other. After SECONDS no row begins.
"""

# ruff: noqa: D103, E731, PLC0415, PLR0912, T201

import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scaleout.validation.measure import steps as measured
from scaleout.validation.measure.host import _SHAPES, STEPS, _random

OUT, PART, ROUNDS = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
LIMIT = float(sys.argv[4]) if len(sys.argv) > 4 else 1e9
BEGAN = time.perf_counter()
RANK, GPUS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(RANK)
dist.init_process_group("nccl", device_id=torch.device("cuda", RANK))
CONTROL = dist.new_group(backend="gloo")
REPEATS, HOT = 12, 8

CONFIGS = [
    {"hidden": 2048, "layers": 4, "seq": 1024, "batch": 1},
    {"hidden": 2048, "layers": 8, "seq": 512, "batch": 1},
    {"hidden": 2048, "layers": 8, "seq": 2048, "batch": 1},
    {"hidden": 1024, "layers": 24, "seq": 512, "batch": 1},
    {"hidden": 1024, "layers": 8, "seq": 2048, "batch": 2},
    {"hidden": 512, "layers": 8, "seq": 512, "batch": 1},
    {"hidden": 2048, "layers": 16, "seq": 2048, "batch": 1},
]


def everyone(found: Any) -> list[Any]:
    """Return the results of all ranks."""
    if GPUS == 1:
        return [found]
    all_found: list[Any] = [None] * GPUS
    dist.all_gather_object(all_found, found, group=CONTROL)
    return all_found


def barrier() -> None:
    dist.all_reduce(torch.zeros(1, device="cuda"))
    torch.cuda.synchronize()


WEIGHTS = [[_random(*shape) for shape in _SHAPES] for _ in range(8)]


def pace() -> list[float]:
    """Host us a layer, forward and backward, of eight tiny layers without collectives: the median of six passes."""
    found = []
    for _ in range(7):
        for layer in WEIGHTS:
            for weight in layer:
                weight.grad = None
        x = _random(128, 1, 512)
        barrier()
        begin = time.perf_counter()
        skipped = x
        for layer in WEIGHTS:
            for _, call in STEPS["data_parallel"]:
                x = x + skipped if call is None else call(x, layer)
                skipped = x if call is None else skipped
        middle = time.perf_counter()
        torch.autograd.backward(x, torch.ones_like(x))
        end = time.perf_counter()
        torch.cuda.synchronize()
        found.append(((middle - begin) * 1e6 / 8, (end - middle) * 1e6 / 8))
    return [round(statistics.median(values[1:]), 1) for values in zip(*found, strict=True)]


def parallel(row: dict[str, Any]) -> Any:
    """Return a step of plain layers by the row's name."""
    return measured._STEPS[row["name"]](row)


def training(row: dict[str, Any]) -> Any:
    """Return a training step of plain layers on each rank, under DDP on several."""
    network: nn.Module = measured._layers(row, 1)
    parameters = list(network.parameters())
    fused = row["optimizer"] == "adamw_fused"
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=fused, foreach=not fused)
    if GPUS > 1:
        network = nn.parallel.DistributedDataParallel(network, device_ids=[RANK])
    if row.get("compiled"):
        network = torch.compile(network)
    x = torch.randn(row["seq"], row["batch"], row["hidden"], device="cuda", dtype=torch.bfloat16)
    gradient = torch.randn_like(x)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(network(x), gradient)
        if row["clip"]:
            nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return step


def compiled(row: dict[str, Any]) -> Any:
    """Return a forward, or forward and backward, of compiled layers."""
    network = measured._layers(row, 1)
    parameters = list(network.parameters())
    backward = row["name"] != "transformer_forward"
    x = torch.randn(row["seq"], row["batch"], row["hidden"], device="cuda", dtype=torch.bfloat16)
    x.requires_grad_(backward)
    return measured._step(torch.compile(network), x, parameters, backward=backward)


def async_tp(row: dict[str, Any]) -> Any:
    """Return a fused GEMM, or its parts one after the other."""
    import torch.distributed._symmetric_memory as symm

    symm.enable_symm_mem_for_group(dist.group.WORLD.group_name)
    group, m, n, k = dist.group.WORLD.group_name, row["M"], row["N"], row["K"]
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02
    b = make(k, n)
    if row["name"] == "async_tp_fused_all_gather_matmul":
        a = make(m // GPUS, k)
        return torch.no_grad()(lambda: torch.ops.symm_mem.fused_all_gather_matmul(a, [b], 0, group))
    if row["name"] == "async_tp_fused_matmul_reduce_scatter":
        a = make(m, k)
        return torch.no_grad()(lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b, "sum", 0, group))
    return measured._gather_then_gemm(row)


def marginal(row: dict[str, Any]) -> Any:
    """Return a loop of the host: all-reduces one behind the other, an optimizer, clipping, dropped gradients."""
    what, tensors = row["name"], row["tensors"]
    parameters = [nn.Parameter(torch.randn(256, device="cuda", dtype=torch.bfloat16)) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    if what == "all_reduce_loop":
        return lambda: [dist.all_reduce(parameter.grad) for parameter in parameters]
    if what == "clip":
        return lambda: nn.utils.clip_grad_norm_(parameters, 1.0)
    if what == "zero_grad":
        kept = [parameter.grad for parameter in parameters]
        optimizer = torch.optim.AdamW(parameters, lr=1e-5)

        def dropped() -> None:
            optimizer.zero_grad(set_to_none=True)
            for parameter, gradient in zip(parameters, kept, strict=True):
                parameter.grad = gradient

        return dropped
    fused = what == "adamw_fused"
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=fused, foreach=not fused)
    return optimizer.step


def rows() -> list[tuple[dict[str, Any], Any]]:
    """Return the rows of PART, and what makes the step of each."""
    common = {"gpus": GPUS, "dtype": "bf16"}
    made: list[tuple[dict[str, Any], Any]] = []
    if PART == "steps":
        for config in CONFIGS:
            of = {**config, "heads": config["hidden"] // 128, **common}
            kinds = [
                ("transformer_forward", "tp"),
                ("transformer_forward_backward", "tp"),
                ("transformer_forward", "tp_sp"),
                ("transformer_forward_backward", "tp_sp"),
                ("dp_compute_only", "dp"),
                ("dp_serial_allreduce_per_parameter", "dp"),
                ("dp_ddp_overlap", "dp"),
                ("fsdp2_fully_shard", "fsdp"),
            ]
            if GPUS == 1:
                kinds = [("transformer_forward", "dp"), ("dp_compute_only", "dp")]
            for name, mode in kinds:
                more = {"bucket_mb": 25} if name == "dp_ddp_overlap" else {}
                made.append(({"name": name, **of, "mode": mode, **more}, parallel))
    elif PART == "training":
        for config in CONFIGS:
            for optimizer, clip in (("adamw_foreach", False), ("adamw_foreach", True), ("adamw_fused", True)):
                of = {**config, "heads": config["hidden"] // 128, **common, "mode": "dp"}
                made.append(({"name": "training", **of, "optimizer": optimizer, "clip": clip}, training))
    elif PART == "compiled":
        for config in (CONFIGS[1], CONFIGS[3], CONFIGS[2]):
            of = {**config, "heads": config["hidden"] // 128, **common, "mode": "dp", "compiled": True}
            made.append(({"name": "transformer_forward", **of}, compiled))
            made.append(({"name": "dp_compute_only", **of}, compiled))
    elif PART == "async":
        for m, n, k in ((8192, 4096, 1024), (4096, 4096, 4096), (2048, 8192, 2048), (8192, 8192, 2048)):
            for name in (
                "async_tp_fused_all_gather_matmul",
                "async_tp_fused_matmul_reduce_scatter",
                "all_gather_then_matmul",
            ):
                made.append(({"name": name, "M": m, "N": n, "K": k, **common}, async_tp))
    else:
        for name in ("adamw_foreach", "adamw_fused", "clip", "zero_grad", *(["all_reduce_loop"] if GPUS > 1 else [])):
            for tensors in (16, 64, 192):
                made.append(({"name": name, "tensors": tensors, **common}, marginal))
    return made


def one(row: dict[str, Any], make: Any, number: int) -> None:
    """Measure a row, and write it on rank 0."""
    torch.manual_seed(0)
    before = pace()
    step = make(row)
    for _ in range(4):
        step()
    gc.collect()
    gc.disable()
    times, hosts = [], []
    for _ in range(REPEATS):
        barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first = time.perf_counter()
        begin.record()
        step()
        end.record()
        hosts.append((time.perf_counter() - first) * 1e6)
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    barrier()
    first = time.perf_counter()
    for _ in range(HOT):
        step()
    torch.cuda.synchronize()
    hot = (time.perf_counter() - first) * 1e6 / HOT
    gc.enable()
    found = everyone((times, statistics.median(hosts), hot, before))
    slowest = [max(each) for each in zip(*(of[0] for of in found), strict=True)]
    value = {
        **row,
        "step_us": round(statistics.median(slowest), 1),
        "step_us_min": round(min(slowest), 1),
        "step_us_max": round(max(slowest), 1),
        "host_us": [round(of[1], 1) for of in found],
        "hot_us": round(max(of[2] for of in found), 1),
        "pace_us": [of[3] for of in found],
        "round": number,
    }
    if RANK == 0:
        with OUT.open("a") as file:
            file.write(json.dumps(value) + "\n")


def main() -> None:
    if RANK == 0:
        about = {
            "gpu": torch.cuda.get_device_name(),
            "gpus": GPUS,
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "kernel": os.uname().release,
            "part": PART,
        }
        with OUT.open("a") as file:
            file.write(json.dumps({"provenance": about}) + "\n")
    for number in range(ROUNDS):
        for row, make in rows():
            late = torch.tensor([time.perf_counter() - BEGAN > LIMIT], device="cuda").int()
            dist.all_reduce(late)
            if int(late):
                return
            try:
                one(row, make, number)
            except Exception as error:  # the next row may do
                print(RANK, row, repr(error)[:300], flush=True)
            torch.cuda.empty_cache()


main()
dist.destroy_process_group()
