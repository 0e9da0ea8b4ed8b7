"""What operands hold, at the power limit: GEMMs and layers over and over, by their values; rows of JSON.

    python operands.py OUT [SECONDS]

A row is of one kernel, or of a forward and backward of four pre-norm transformer layers (GELU, causal attention by
PyTorch, no bias), with operands of some values: the median of calls at full clock (0.25 s of rest before each), the
median over SECONDS (3) after as long of it, what the GPU drew by its counter of energy, and the mean SM clock.
"""

# ruff: noqa

import json
import statistics
import sys
import threading
import time

import pynvml as nv
import torch
import torch.nn as nn
import torch.nn.functional as F

OUT, SECONDS = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 3.0
D = dict(device="cuda", dtype=torch.bfloat16)
SEQUENCE = 2048
nv.nvmlInit()
GPU = nv.nvmlDeviceGetHandleByIndex(0)


class Layer(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.hidden = hidden
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        sizes = ((hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden))
        self.products = nn.ModuleList(nn.Linear(*size, bias=False) for size in sizes)

    def forward(self, x):
        qkv, out, up, down = self.products
        heads = self.hidden // 128
        q, k, v = qkv(self.norms[0](x)).view(-1, SEQUENCE, 3, heads, 128).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + out(attended)
        return x + down(F.gelu(up(self.norms[1](x)), approximate="tanh"))


def measure(call):
    call()
    torch.cuda.synchronize()
    full = []
    for _ in range(9):
        time.sleep(0.25)
        torch.cuda._sleep(2_000_000)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        full.append(first.elapsed_time(last) * 1e3)
    full_us = statistics.median(full)

    def over_and_over():
        events = [torch.cuda.Event(enable_timing=True)]
        events[0].record()
        for _ in range(max(8, int(SECONDS * 1e6 / full_us))):
            call()
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) * 1e3 for a, b in zip(events, events[1:])]

    over_and_over()
    clocks, done = [], threading.Event()

    def watch():
        while not done.wait(0.02):
            clocks.append(nv.nvmlDeviceGetClockInfo(GPU, nv.NVML_CLOCK_SM))

    watcher = threading.Thread(target=watch)
    watcher.start()
    began_j, began_s = nv.nvmlDeviceGetTotalEnergyConsumption(GPU) / 1e3, time.perf_counter()
    times = over_and_over()
    watts = (nv.nvmlDeviceGetTotalEnergyConsumption(GPU) / 1e3 - began_j) / (time.perf_counter() - began_s)
    done.set()
    watcher.join()
    return {
        "full_clock_us": round(full_us, 1), "us": round(statistics.median(times), 1), "watts": round(watts, 1),
        "mhz": round(statistics.fmean(clocks)),
        "celsius": nv.nvmlDeviceGetTemperature(GPU, nv.NVML_TEMPERATURE_GPU),
    }  # fmt: skip


def save(file, **row):
    file.write(json.dumps(row) + "\n")
    file.flush()
    print(row, flush=True)


VALUES = {
    "normal": lambda *shape: torch.randn(shape, **D),
    "normal / 1000": lambda *shape: torch.randn(shape, **D) / 1000,
    "uniform": lambda *shape: torch.rand(shape, **D) * 2 - 1,
    "GELU of normal": lambda *shape: F.gelu(torch.randn(shape, **D)),
    "normal, half of it zero": lambda *shape: torch.randn(shape, **D) * (torch.rand(shape, **D) > 0.5),
    "equal rows": lambda *shape: torch.randn(1, shape[1], **D).expand(shape).contiguous(),
    "ones": lambda *shape: torch.ones(shape, **D),
    "zeros": lambda *shape: torch.zeros(shape, **D),
}


def products(file, size):
    for values, made in VALUES.items():
        torch.manual_seed(0)
        a, b, c = made(size, size), made(size, size), torch.empty(size, size, **D)
        save(file, kernel=f"gemm {size} {size} {size}", operands=values, **measure(lambda: torch.mm(a, b.t(), out=c)))


def layers(file, hidden, batch):
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(hidden) for _ in range(4))).to(**D)
    shape = batch, SEQUENCE, hidden
    random = torch.randn(shape, **D)

    def step(x, gradient):
        model(x).backward(gradient)
        model.zero_grad(set_to_none=True)
        x.grad = None

    def row(inputs, weights, gradients, x, gradient):
        x = x.clone().requires_grad_(True)
        found = measure(lambda: step(x, gradient))
        save(file, layers=4, hidden=hidden, batch=batch, inputs=inputs, weights=weights, gradients=gradients, **found)

    row("normal", "uniform", "normal", random, torch.randn_like(random))
    row("normal", "uniform", "normal / 100000", random, torch.randn_like(random) / 1e5)
    row("normal", "uniform", "ones", random, torch.ones_like(random))
    row("normal", "uniform", "zeros", random, torch.zeros_like(random))
    row("equal rows", "uniform", "normal", random[:, :1].expand(shape).contiguous(), torch.randn_like(random))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
    row("normal", "normal", "normal", random, torch.randn_like(random))


with open(OUT, "w") as file:
    save(file, provenance={
        "device": torch.cuda.get_device_name(), "driver": nv.nvmlSystemGetDriverVersion(),
        "software": f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}", "date": time.strftime("%Y-%m-%d"),
        "clocks": "as the driver governs them", "unit": "us of a call; W by NVML's counter of energy",
    })  # fmt: skip
    products(file, 8192)
    layers(file, 4096, 1)
    layers(file, 4096, 4)
    layers(file, 8192, 1)
