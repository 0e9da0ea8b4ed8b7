"""What layers draw on their own operands, at the power limit and below: each of their kernels, and all; rows of JSON.

    python layer_energies.py OUT PARTS [SCALE]

Pre-norm transformer layers ("gpt": LayerNorm, GELU; "llama": RMS norm, rotary embedding, SwiGLU; causal attention by
PyTorch, no bias) run forward and backward from normal inputs and gradients, with PyTorch's weights ("uniform") or
those of GPT ("std 0.02"). What enters each product and attention then is kept, and each runs by itself on that, layer
after layer (`operands` "layer"), or on normal numbers of the same sizes ("normal").

`full_clock_us` of a call: the median of groups of calls, each after 0.2 s of rest. `us`: the median of groups over and
over, after some seconds of it, and `thirds_us` of each third of that time. `watts`: by NVML's counter of energy, from
its first to its last change; `mhz`: the mean SM clock; `reasons`: NVML's clock event reasons, as shares of reads. A
pause behind each group is a kernel of one thread that waits, or the GPU is idle ("host"). `from_rest`: what a call
takes, MHz and J by time. `profile`: the kernels of a step, summed by name: how many, and their microseconds at full
clock (after rest) and after 3 s over and over. SCALE shortens all times, for a trial.
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

OUT, PARTS = sys.argv[1], sys.argv[2].split(",")
SCALE = float(sys.argv[3]) if len(sys.argv) > 3 else 1.0
SIZE = 1 if SCALE == 1 else 8
REST, GROUP_US = 0.2 * SCALE, 5000
D = dict(device="cuda", dtype=torch.bfloat16)
nv.nvmlInit()
GPU = nv.nvmlDeviceGetHandleByIndex(0)
REASONS = getattr(nv, "nvmlDeviceGetCurrentClocksEventReasons", None) or nv.nvmlDeviceGetCurrentClocksThrottleReasons
BEGAN = time.perf_counter()


class Layer(nn.Module):
    def __init__(self, kind, hidden, ffn, sequence):
        super().__init__()
        self.kind, self.hidden, self.sequence, self.kept = kind, hidden, sequence, None
        norm = nn.LayerNorm if kind == "gpt" else nn.RMSNorm
        self.norms = nn.ModuleList(norm(hidden) for _ in range(2))
        gates = 1 if kind == "gpt" else 2
        sizes = dict(qkv=(hidden, 3 * hidden), out=(hidden, hidden), up=(hidden, gates * ffn), down=(ffn, hidden))
        self.products = nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})
        angle = torch.outer(torch.arange(sequence), 10000 ** -(torch.arange(0, 128, 2) / 128)).repeat(1, 2)
        self.cos, self.sin = angle.cos().to(**D), angle.sin().to(**D)

    def keep(self, name, x):
        if self.kept is not None:
            self.kept[name] = x.detach()
            if x.requires_grad:
                x.register_hook(lambda gradient, kept=self.kept: kept.__setitem__(name + "'", gradient.detach()))
        return x

    def product(self, name, x):
        return self.keep(name + " out", self.products[name](self.keep(name + " in", x)))

    def rotated(self, x):
        low, high = x.chunk(2, -1)
        return x * self.cos + torch.cat((-high, low), -1) * self.sin

    def activated(self, x):
        if self.kind == "gpt":
            return F.gelu(x, approximate="tanh")
        gate, value = x.chunk(2, -1)
        return F.silu(gate) * value

    def forward(self, x):
        heads = self.hidden // 128
        qkv = self.product("qkv", self.norms[0](self.keep("norm in", x)))
        q, k, v = qkv.view(-1, self.sequence, 3, heads, 128).permute(2, 0, 3, 1, 4)
        if self.kind == "llama":
            q, k = self.rotated(self.keep("rotary in", q)), self.rotated(k)
        attended = F.scaled_dot_product_attention(
            self.keep("q", q), self.keep("k", k), self.keep("v", v), is_causal=True
        )
        merged = self.keep("attended", attended).transpose(1, 2).reshape(x.shape)
        x = x + self.product("out", merged)
        up = self.product("up", self.norms[1](x))
        return self.keep("layer out", x + self.product("down", self.activated(up)))


class Watch(threading.Thread):
    """Reads the counter of energy, the SM clock and what governs it every 8 ms."""

    def __init__(self):
        super().__init__()
        self.done, self.seconds, self.mhz, self.reasons, self.joules = threading.Event(), [], [], [], []

    def run(self):
        while not self.done.wait(0.008):
            joules = nv.nvmlDeviceGetTotalEnergyConsumption(GPU) / 1e3
            if not self.joules or joules != self.joules[-1][1]:
                self.joules.append((time.perf_counter(), joules))
            self.seconds.append(time.perf_counter())
            self.mhz.append(nv.nvmlDeviceGetClockInfo(GPU, nv.NVML_CLOCK_SM))
            self.reasons.append(REASONS(GPU))

    def found(self):
        self.done.set()
        self.join()
        # the first reading may lie anywhere behind a change of the counter
        (first_s, first_j), (last_s, last_j) = self.joules[1 if len(self.joules) > 2 else 0], self.joules[-1]
        counted = {hex(each): self.reasons.count(each) / len(self.reasons) for each in sorted(set(self.reasons))}
        return {
            "watts": round((last_j - first_j) / max(last_s - first_s, 1e-9), 1), "mhz": round(statistics.fmean(self.mhz)),
            "reasons": {name: round(share, 2) for name, share in counted.items()},
            "celsius": nv.nvmlDeviceGetTemperature(GPU, nv.NVML_TEMPERATURE_GPU),
        }  # fmt: skip


def mark():
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def burst(calls, count):
    for number in range(count):
        calls[number % len(calls)]()


def full_clock(calls, count, groups=3):
    times = []
    for _ in range(groups):
        time.sleep(REST)
        torch.cuda._sleep(10_000_000)  # so that the host is ahead
        first = mark()
        burst(calls, count)
        last = mark()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) * 1e3 / count)
    return statistics.median(times)


def ahead(groups):
    """The host stays three groups ahead at most."""
    if len(groups) > 3:
        groups[-3][-1].synchronize()


def over_and_over(calls, count, warm, seconds, pause_us=0.0, host=False, each=False):
    """Times of groups and of their periods, and what was drawn, with a pause behind each group."""

    def run(seconds):
        groups, until = [], time.perf_counter() + seconds * SCALE
        while time.perf_counter() < until or len(groups) < 4:
            marks = [mark()]
            for _ in range(count if each else 1):
                burst(calls, 1 if each else count)
                marks.append(mark())
            groups.append(marks)
            if host:
                torch.cuda.synchronize()
                time.sleep(pause_us / 1e6)
            elif pause_us:
                torch.cuda._sleep(int(pause_us * 1980))
            ahead(groups)
        torch.cuda.synchronize()
        return groups

    run(warm)
    watch = Watch()
    watch.start()
    groups = run(seconds)
    drawn = watch.found()
    times = [g[0].elapsed_time(g[-1]) * 1e3 / count for g in groups]
    third = len(times) // 3
    found = {
        "us": round(statistics.median(times), 2), "calls": count,
        "thirds_us": [round(statistics.median(times[i * third : (i + 1) * third]), 2) for i in range(3)],
    }  # fmt: skip
    if each:
        steps = [[a.elapsed_time(b) for a, b in zip(g, g[1:])] for g in groups]
        found["each_us"] = [round(statistics.median(of) * 1e3, 1) for of in zip(*steps)]
    if pause_us:
        periods = [a[0].elapsed_time(b[0]) for a, b in zip(groups, groups[1:])]
        found["period_us"] = round(statistics.fmean(periods) * 1e3, 1)
    return found | drawn


def from_rest(calls, count, seconds=6.0, bin_s=0.1):
    """Means of a call's time, of clocks and of power, by 100 ms since the start."""
    time.sleep(2 * SCALE)
    watch = Watch()
    watch.start()
    groups, began = [], time.perf_counter()
    while time.perf_counter() - began < seconds * SCALE:
        first = mark()
        burst(calls, count)
        groups.append((first, mark()))
        ahead(groups)
    torch.cuda.synchronize()
    watch.found()
    bins = [[[], []] for _ in range(int(seconds * SCALE / bin_s) + 2)]
    for first, last in groups:
        place = int(groups[0][0].elapsed_time(first) / 1e3 / bin_s)
        if place < len(bins):
            bins[place][0].append(first.elapsed_time(last) * 1e3 / count)
    for at, mhz in zip(watch.seconds, watch.mhz):
        place = int((at - began) / bin_s)
        if 0 <= place < len(bins):
            bins[place][1].append(mhz)
    few = max(1, len(watch.joules) // 80)
    return {
        "us": [round(statistics.fmean(us), 1) if us else None for us, _ in bins],
        "mhz": [round(statistics.fmean(mhz)) if mhz else None for _, mhz in bins],
        "joules": [[round(at - began, 3), round(j - watch.joules[0][1], 2)] for at, j in watch.joules][::few],
    }


def count_of(calls):
    burst(calls, len(calls))
    torch.cuda.synchronize()
    first = mark()
    burst(calls, 2 * len(calls))
    last = mark()
    torch.cuda.synchronize()
    one_us = first.elapsed_time(last) * 1e3 / 2
    return len(calls) * max(1, round(GROUP_US / one_us))


def unhurried(calls):
    """A kernel below the limit: at full clock, and its groups with pauses, at some half of the power."""
    count = count_of(calls)
    full_us = full_clock(calls, count)
    return {"full_clock_us": round(full_us, 2)} | over_and_over(calls, count, 0.3, 1.2, full_us * count * 1.2)


def profile(step):
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    steps = 0
    with recorded(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            time.sleep(REST + 0.1)
            step()
            torch.cuda.synchronize()
            steps += 1
        until, groups = time.perf_counter() + 3 * SCALE, []
        while time.perf_counter() < until:
            step()
            groups.append([mark()])
            ahead(groups)
        steps += len(groups)
        torch.cuda.synchronize()
    kernels = [
        e
        for e in found.profiler.kineto_results.events()
        if str(e.device_type()).endswith("CUDA") and "Sync" not in e.name()
    ]
    kernels = sorted((e.start_ns(), e.name(), e.duration_ns() / 1e3) for e in kernels)
    each, left = divmod(len(kernels), steps)
    if left:
        return {"error": f"{len(kernels)} kernels in {steps} steps"}
    by_name = {}
    for place in range(each):
        column = [us for _, _, us in kernels[place::each]]
        sums = by_name.setdefault(kernels[place][1][:90], [0, 0.0, 0.0])
        sums[0] += 1
        sums[1] += statistics.median(column[:3])
        sums[2] += statistics.median(column[-20:])
    return {name: [count, round(full, 1), round(limit, 1)] for name, (count, full, limit) in by_name.items()}


def save(file, **row):
    file.write(json.dumps(row | {"s": round(time.perf_counter() - BEGAN)}) + "\n")
    file.flush()
    print(json.dumps(row)[:230], flush=True)


def normal(x):
    return torch.randn(x.shape, **D)


def products(kepts, layers, values):
    """Name, sizes and calls of each product, forward and backward, layer after layer."""
    for name in ("qkv", "out", "up", "down"):
        sets = []
        for kept, layer in zip(kepts, layers):
            x, gradient = kept[name + " in"], kept[name + " out'"]
            x, gradient = x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
            sets.append([values(each) for each in (x, layer.products[name].weight.detach(), gradient)])
        sizes = [*sets[0][0].shape, sets[0][1].shape[0]]
        yield f"{name} forward", sizes, [lambda x=x, w=w: torch.mm(x, w.t()) for x, w, _ in sets]
        yield f"{name} inputs", sizes, [lambda w=w, g=g: torch.mm(g, w) for _, w, g in sets]
        yield f"{name} weights", sizes, [lambda x=x, g=g: torch.mm(g.t(), x) for x, _, g in sets]


def gradients_of(function, inputs, gradient):
    inputs = [each.detach().requires_grad_() for each in inputs]
    out = function(*inputs)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def without_gradients(function, inputs):
    def call():
        with torch.no_grad():
            function(*inputs)

    return call


def attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def both(function, inputs, gradients):
    """Calls forward and calls backward of a function, for each layer's inputs and gradient."""
    yield [without_gradients(function, each) for each in inputs]
    yield [gradients_of(function, each, gradient) for each, gradient in zip(inputs, gradients)]


def attentions(kepts, values):
    def strided(x):  # as the layer has it
        return x if values is same else x.copy_(torch.randn(x.shape, **D))

    inputs = [[strided(kept[name]) for name in "qkv"] for kept in kepts]
    sizes = list(kepts[0]["q"].shape)
    calls = both(attend, inputs, [values(kept["attended'"]) for kept in kepts])
    for direction in ("forward", "backward"):
        yield f"attention {direction}", sizes, next(calls)


def others(kepts, layers):
    """Norm, activation, rotary embedding, residual addition and a copy of queries by heads."""
    first = layers[0]
    norm_in, up, q = ([kept[name] for kept in kepts] for name in ("norm in", "up out", "q"))
    normed = F.layer_norm if first.kind == "gpt" else F.rms_norm
    inputs = [(x, *layer.norms[0].parameters()) for x, layer in zip(norm_in, layers)]
    gradients = [kept["qkv in'"] for kept in kepts]
    parts = {"norm": both(lambda x, *weights: normed(x, (first.hidden,), *weights), inputs, gradients)}
    parts["activation"] = both(first.activated, [(x,) for x in up], [kept["down in'"] for kept in kepts])
    if first.kind == "llama":
        parts["rotary"] = both(first.rotated, [(kept["rotary in"],) for kept in kepts], [kept["q'"] for kept in kepts])
    for name, calls in parts.items():
        for direction in ("forward", "backward"):
            yield f"{name} {direction}", list(up[0].shape), next(calls)
    yield "addition", list(norm_in[0].shape), [lambda x=x, y=y: x + y for x, y in zip(norm_in, gradients)]
    yield "copy", list(norm_in[0].shape), [lambda x=x: x.contiguous() for x in q]


def same(x):
    return x


def layers(file, kind, hidden, ffn, sequence, batch, number, weights, measured):
    """Rows of so many layers; `measured`: what beside them: "kernels", "normal", "pauses", "from rest"."""
    hidden, ffn, sequence = max(256, hidden // SIZE), ffn // SIZE, sequence // SIZE
    torch.manual_seed(0)
    stack = [Layer(kind, hidden, ffn, sequence).to(**D) for _ in range(number)]
    model = nn.Sequential(*stack)
    if weights == "std 0.02":
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
    x = torch.randn(batch, sequence, hidden, **D).requires_grad_(True)
    gradient = torch.randn_like(x)

    def step(model=model):
        model(x).backward(gradient)
        model.zero_grad(set_to_none=True)
        x.grad = None

    about = dict(kind=kind, hidden=hidden, ffn=ffn, sequence=sequence, batch=batch, layers=number, weights=weights)

    def row(call, **rest):
        try:
            save(file, **about, **rest, **call())
        except Exception as error:
            save(file, **about, **rest, error=repr(error)[:300])

    def steady(warm=1.2, seconds=1.8, count=1, **options):
        return over_and_over([step], count, warm, seconds, **options)

    step()
    torch.cuda.synchronize()
    kepts = []
    for layer in stack:
        layer.kept = {}
    step()
    for layer in stack:
        kepts.append(layer.kept)
        layer.kept = None
    kernels = [*products(kepts, stack, same), *attentions(kepts, same)]
    if "kernels" in measured:
        for name, sizes, calls in kernels:
            row(lambda: unhurried(calls), kernel=name, sizes=sizes, operands="layer", at="full clock, with pauses")
    if "normal" in measured:
        for name, sizes, calls in products(kepts, stack, normal):
            if "forward" in name or name in ("down inputs", "down weights"):
                row(lambda: unhurried(calls), kernel=name, sizes=sizes, operands="normal", at="full clock, with pauses")
    full_us = full_clock([step], 1, 4)
    row(lambda: {"full_clock_us": round(full_us, 1)} | steady(3, 2.5), stack="over and over")
    if "pauses" in measured:
        for share in (0.05, 0.15, 0.3, 0.6):
            row(lambda: steady(pause_us=full_us * 1.1 * share / (1 - share)), stack="pauses", share=share)
        row(lambda: steady(pause_us=full_us * 1.1 * 0.3 / 0.7, host=True), stack="pauses of the host", share=0.3)
        for count in measured["pauses"]:
            pause_us = full_us * count * 0.42
            row(lambda: steady(1.5, 2.5, count, each=True, pause_us=pause_us), stack="steps, then a pause", steps=count)
    row(lambda: {"profile": profile(step)}, stack="profile")
    if "kernels" in measured:
        over_and_over([step], 1, 0, 1.5)
        for name, sizes, calls in kernels:
            row(
                lambda: over_and_over(calls, count_of(calls), 0.8, 1.2),
                kernel=name,
                sizes=sizes,
                operands="layer",
                at="over and over",
            )
        for name, sizes, calls in others(kepts, stack):
            count = count_of(calls)
            full = {"full_clock_us": round(full_clock(calls, count), 2)}
            row(
                lambda: full | over_and_over(calls, count, 0.3, 0.9),
                kernel=name,
                sizes=sizes,
                operands="layer",
                at="over and over",
            )
    if "from rest" in measured:
        row(lambda: {"from_rest": from_rest([step], 1)}, stack="from rest")


def square(file, size=8192):
    size //= SIZE
    for operands, made in (("ones", torch.ones), ("normal", torch.randn)):
        a, b, c = made(size, size, **D), made(size, size, **D), torch.empty(size, size, **D)
        calls = [lambda: torch.mm(a, b.t(), out=c)]
        about = dict(kernel="gemm", sizes=[size] * 3, operands=operands)
        save(file, **about, at="full clock, with pauses", **unhurried(calls))
        save(file, **about, at="over and over", **over_and_over(calls, 3, 3, 2))
    save(file, **about, at="from rest", from_rest=from_rest(calls, 3))
    save(
        file,
        kernel="one thread that waits",
        at="behind it",
        **over_and_over([lambda: torch.cuda._sleep(10_000_000)], 1, 0.3, 1),
    )


with open(OUT, "w") as file:
    save(file, provenance={
        "device": torch.cuda.get_device_name(), "driver": nv.nvmlSystemGetDriverVersion(),
        "software": f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}", "date": time.strftime("%Y-%m-%d"),
        "clocks": "as the driver governs them", "unit": "us of a call; W by NVML's counter of energy",
    })  # fmt: skip
    idle = over_and_over([lambda: torch.cuda._sleep(10_000_000)], 1, 0.3, 1)
    save(file, kernel="one thread that waits", **idle)
    if "square" in PARTS:
        square(file)
    for part, (size, kind) in {
        "gpt4096": ((4096, 16384, 2048, 1, 4), "gpt"), "gpt2048": ((2048, 8192, 2048, 8, 3), "gpt"),
        "gpt8192": ((8192, 32768, 2048, 1, 2), "gpt"), "gpt4096x4": ((4096, 16384, 2048, 4, 2), "gpt"),
        "gpt4096long": ((4096, 16384, 8192, 1, 2), "gpt"), "llama4096": ((4096, 11008, 4096, 1, 3), "llama"),
    }.items():  # fmt: skip
        if part in PARTS:
            measured = {"kernels": True, "pauses": (8,)}
            if part == "gpt4096":
                measured |= {"pauses": (4, 8, 16), "normal": True, "from rest": True}
            layers(file, kind, *size, "uniform", {"kernels": True} if kind == "llama" else measured)
            torch.cuda.empty_cache()
        if part + ":std" in PARTS:
            layers(file, kind, *size, "std 0.02", {})
            torch.cuda.empty_cache()
