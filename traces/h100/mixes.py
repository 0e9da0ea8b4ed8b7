"""Kernels among kernels over and over on one GPU: what each takes, what the GPU draws, and at which clock; rows of JSON.

    python mixes.py OUT [SECONDS]

A mix is a list of kernels and how often each is called in a cycle. After two seconds of it, cycles for as many seconds
again, each kernel's stretch between two CUDA events: `us` of a call is the median over stretches, by place in the cycle.
`watts` is the mean by NVML's counter of energy, `mhz` the mean of SM clocks read every 4 ms, `celsius` at the end.
"""

# ruff: noqa

import json
import statistics
import sys
import threading
import time

import pynvml as nv
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

OUT, SECONDS = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 3.0
nv.nvmlInit()
GPU = nv.nvmlDeviceGetHandleByIndex(0)
torch.manual_seed(0)
D = dict(device="cuda", dtype=torch.bfloat16)


def gemm(m, n, k):
    sets = [(torch.randn(m, k, **D), torch.randn(k, n, **D), torch.empty(m, n, **D)) for _ in range(3)]

    def call(i):
        a, b, c = sets[i % 3]
        torch.mm(a, b, out=c)

    return call


def attention(backend, batch, heads, seq, size, backward):
    q, k, v = (torch.randn(batch, heads, seq, size, **D, requires_grad=backward) for _ in range(3))
    with sdpa_kernel([backend]):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if backward:
        up = torch.randn_like(out)
        return lambda i: torch.autograd.grad(out, (q, k, v), up, retain_graph=True)

    def call(i):
        with torch.no_grad(), sdpa_kernel([backend]):
            F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return call


def add(numbers):
    a, b, c = (torch.randn(numbers, **D) for _ in range(3))
    return lambda i: torch.add(a, b, out=c)


def backward_too(function, *inputs):
    """Return calls of a function, and of its gradients alone."""
    inputs = [each.requires_grad_() for each in inputs]
    out = function(*inputs)
    up = torch.randn_like(out)

    def forward(i):
        with torch.no_grad():
            function(*inputs)

    return forward, lambda i: torch.autograd.grad(out, inputs, up, retain_graph=True)


def adam(numbers):
    weights, gradients, first, second = ([torch.rand(numbers, device="cuda")] for _ in range(4))
    steps, rates = [torch.ones((), device="cuda")], dict(lr=1e-6, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8)
    flags = dict(amsgrad=False, maximize=False)
    return lambda i: torch._fused_adamw_(weights, gradients, first, second, [], steps, **rates, **flags)


def rotated(tokens, heads, size):
    """Rotary embedding as Llama's code has it: halves are turned by cosines and sines."""
    x, angle = torch.randn(1, heads, tokens, size, **D), torch.randn(tokens, size, **D)
    cos, sin = angle.cos(), angle.sin()

    def function(x):
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat((-high, low), -1) * sin

    return backward_too(function, x)


NORM = backward_too(
    lambda x, w, b: F.layer_norm(x, (4096,), w, b),
    *(torch.randn(*shape, **D) for shape in [(16384, 4096), (4096,), (4096,)]),
)
GELU = backward_too(lambda x: F.gelu(x, approximate="tanh"), torch.randn(16384, 16384, **D))
SWIGLU = backward_too(lambda a, b: F.silu(a) * b, *(torch.randn(16384, 11008, **D) for _ in range(2)))
ROPE = rotated(16384, 32, 128)
TARGETS = torch.randint(50257, (8192,), device="cuda")
LOSS = backward_too(lambda x: F.cross_entropy(x, TARGETS), torch.randn(8192, 50257, device="cuda"))
FA2, CUDNN = SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION
KERNELS = {
    "gemm 8192 8192 8192": gemm(8192, 8192, 8192),
    "gemm 24576 11712 3912": gemm(24576, 11712, 3912),
    "gemm 16384 4096 4096": gemm(16384, 4096, 4096),
    "fa2_fwd 3 20 8192 192": attention(FA2, 3, 20, 8192, 192, False),
    "fa2_bwd 3 20 8192 192": attention(FA2, 3, 20, 8192, 192, True),
    "cudnn_fwd 4 32 4096 128": attention(CUDNN, 4, 32, 4096, 128, False),
    "cudnn_bwd 4 32 4096 128": attention(CUDNN, 4, 32, 4096, 128, True),
    "add 200000000": add(200_000_000),
    "fa2_fwd 4 32 4096 128": attention(FA2, 4, 32, 4096, 128, False),
    "fa2_bwd 4 32 4096 128": attention(FA2, 4, 32, 4096, 128, True),
    "add 8000000": add(8_000_000),
    "layer_norm_fwd 16384 4096": NORM[0],
    "layer_norm_bwd 16384 4096": NORM[1],
    "gelu_fwd 16384 16384": GELU[0],
    "gelu_bwd 16384 16384": GELU[1],
    "swiglu_fwd 16384 11008": SWIGLU[0],
    "swiglu_bwd 16384 11008": SWIGLU[1],
    "rope_fwd 16384 32 128": ROPE[0],
    "rope_bwd 16384 32 128": ROPE[1],
    "cross_entropy_fwd 8192 50257": LOSS[0],
    "cross_entropy_bwd 8192 50257": LOSS[1],
    "adam 100000000": adam(100_000_000),
    "gemm 2048 2048 2048": gemm(2048, 2048, 2048),
    "gemm 4096 12288 1024": gemm(4096, 12288, 1024),
}
G, H, S, AF, AB, CF, CB, M, DF, DB, SMALL, *OTHERS, G2, G1 = KERNELS
MIXES = [
    *([(name, 8)] for name in (G, H, S, AF, AB, CF, CB, M)),
    [(H, 3), (AF, 1), (H, 6), (AB, 1)],
    [(H, 6), (AF, 2), (H, 12), (AB, 2)],
    [(H, 30), (AF, 10), (H, 60), (AB, 10)],
    [(H, 120), (AF, 40)],
    [(G, 4), (CF, 2), (G, 4), (CB, 2)],
    [(G, 40), (CF, 20), (G, 40), (CB, 20)],
    [(G, 2), (CF, 4), (M, 4)],
    [(S, 4), (CF, 1), (M, 2), (S, 8), (CB, 1), (M, 4)],
    [(H, 2), (M, 8)],
    [(H, 2), (M, 20)],
    [(H, 20), (M, 200)],
    [(H, 60), (M, 300), (AF, 10)],
    [(AF, 2), (M, 8)],
    [(CF, 4), (M, 8)],
    *([(name, 8)] for name in (DF, DB, G2, G1, SMALL)),
    *([(name, 4)] for name in OTHERS),
    [pair for name in OTHERS for pair in ((G, 4), (name, 2))],
    [pair for name in (SMALL, G2, G1, *OTHERS) for pair in ((H, 2), (name, 2 if name in OTHERS else 20))],
    [(G, 4), (DF, 2), (G, 8), (DB, 2)],
    [(G, 1), (DF, 2), (G, 2), (DB, 2)],
    [(S, 4), (DF, 1), (M, 2), (S, 8), (DB, 1), (M, 4)],
    [(G, 1), (CF, 4), (G, 2), (CB, 4)],
    [(G1, 8), (CF, 1), (M, 2), (G1, 16), (CB, 1), (M, 4)],
]


def clocks(stop, found):
    while not stop.is_set():
        found.append(nv.nvmlDeviceGetClockInfo(GPU, nv.NVML_CLOCK_SM))
        time.sleep(0.004)


def one(mix, rest):
    time.sleep(rest)
    for name, _ in mix:
        KERNELS[name](0)
    torch.cuda.synchronize()
    # full clock: the fastest of a few calls after the rest
    firsts = {}
    for name, _ in mix:
        time.sleep(0.3)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(6)]
        events[0].record()
        for number, event in enumerate(events[1:]):
            KERNELS[name](number)
            event.record()
        torch.cuda.synchronize()
        firsts[name] = round(min(a.elapsed_time(b) for a, b in zip(events[1:], events[2:])) * 1e3, 1)

    def cycle(record):
        for name, count in mix:
            for number in range(count):
                KERNELS[name](number)
            if record is not None:
                event = torch.cuda.Event(enable_timing=True)
                event.record()
                record.append(event)

    began = time.perf_counter()
    while time.perf_counter() - began < 2.0:
        cycle(None)
        torch.cuda.synchronize()
    stop, mhz = threading.Event(), []
    thread = threading.Thread(target=clocks, args=(stop, mhz))
    events = [torch.cuda.Event(enable_timing=True)]
    before = nv.nvmlDeviceGetTotalEnergyConsumption(GPU)
    thread.start()
    began = time.perf_counter()
    events[0].record()
    while time.perf_counter() - began < SECONDS:
        cycle(events)
        events[-1].query()
        if len(events) > 2 * len(mix):  # the host stays two cycles ahead at most
            events[-1 - 2 * len(mix)].synchronize()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    joules = (nv.nvmlDeviceGetTotalEnergyConsumption(GPU) - before) / 1e3
    stop.set()
    thread.join()
    stretches = [a.elapsed_time(b) * 1e3 for a, b in zip(events, events[1:])]
    each = [round(statistics.median(stretches[place :: len(mix)]) / count, 1) for place, (_, count) in enumerate(mix)]
    return {
        "mix": mix,
        "us": each,
        "full_clock_us": firsts,
        "cycles": len(stretches) // len(mix),
        "watts": round(joules / seconds, 1),
        "mhz": round(statistics.mean(mhz)),
        "mhz_deciles": [round(each) for each in statistics.quantiles(mhz, n=10)],
        "celsius": nv.nvmlDeviceGetTemperature(GPU, 0),
    }


with open(OUT, "w") as out:
    for mix in MIXES:
        try:
            row = one(mix, 0.5)
        except Exception as error:
            row = {"mix": mix, "error": repr(error)[:300]}
        print(json.dumps(row), file=out, flush=True)
        print(json.dumps(row)[:220], flush=True)
