"""Calls through PyTorch to the time that the host takes to issue them within whole layers.

Layers of tiny tensors run forward and backward, so that the device ends before the host issues the next call. The clock
is read after every forward call and, by a hook on its result, in backward; a second hook measures the cost of a hook,
which is subtracted. A call in a loop of its own (the step `loop`, without gradients) is up to twice as fast as among
others.

The first layer of a forward takes longer than those after it: the difference is the call `start`.

A backward includes autograd's own work, such as the sum of two gradients, which counts to the call whose backward comes
last. Collectives run over all GPUs of the host; times are means over them. See docs/models/host-issue.md.

The step `pace` runs the same layers without reading the clock between calls: a few passes at a time, as the other steps
do, over and over for a while. A core is slow for seconds at a time, so the mean over that while is what a job meets;
over what the calls of these layers cost elsewhere it is the pace of this host.
"""

import gc
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from scaleout.validation.measure.exchange import EXCHANGES, MODES, attention, exchange
from scaleout.validation.measure.session import Session

_LAYERS, _REPEATS, _WARM_UP = 8, 40, 8
_ROWS, _HIDDEN, _TOP_K = 128, 512, 2

Weights = list[torch.Tensor]
Call = Callable[[torch.Tensor, Weights], torch.Tensor]
Times = dict[str, list[float]]


def _communicate(forward: str, backward: str) -> Call:
    return lambda x, _: exchange(x, forward, backward)


def _layer_norm(x: torch.Tensor, weights: Weights) -> torch.Tensor:
    return functional.layer_norm(x, (x.shape[-1],), weights[0][0], weights[0][1])


def _gemm(number: int) -> Call:
    return lambda x, weights: functional.linear(x, weights[number])


_SHAPES = ((2, _HIDDEN), (3 * _HIDDEN, _HIDDEN), (_HIDDEN, _HIDDEN), (4 * _HIDDEN, _HIDDEN), (_HIDDEN, 4 * _HIDDEN))


def _block(mode: str) -> list[tuple[str, Call | None]]:
    """Calls of a transformer layer; a call without a function adds the input of the residual block."""
    into, out = MODES[mode]
    enter, leave = ([("_into_".join(pair), _communicate(*pair))] if into != out else [] for pair in (into, out))
    return [
        ("layer_norm", _layer_norm), *enter, ("gemm", _gemm(1)), ("attention", lambda x, _: attention(x)),
        ("gemm", _gemm(2)), *leave, ("add", None),
        ("layer_norm", _layer_norm), *enter, ("gemm", _gemm(3)), ("gelu", lambda x, _: functional.gelu(x)),
        ("gemm", _gemm(4)), *leave, ("add", None),
    ]  # fmt: skip


STEPS: Mapping[str, list[tuple[str, Call | None]]] = {
    "data_parallel": _block("dp"),
    "tensor_parallel": _block("tp"),
    "sequence_parallel": _block("tp_sp"),
    "mixture_of_experts": [
        ("moe_repeat_topk", lambda x, _: x.repeat_interleave(_TOP_K, dim=0)),
        ("all_to_all_into_all_to_all", _communicate("all_to_all", "all_to_all")),
        ("gemm", _gemm(3)),
        ("gelu", lambda x, _: functional.gelu(x)),
        ("gemm", _gemm(4)),
        ("all_to_all_into_all_to_all", _communicate("all_to_all", "all_to_all")),
        ("moe_sum_topk", lambda x, _: x.view(-1, _TOP_K, 1, x.shape[-1]).sum(dim=1)),
    ],
    "perceptron": [("gemm", _gemm(2)), ("relu", lambda x, _: torch.relu(x))],
}
"""Name of a step to the calls of a layer, in order."""


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).mul_(0.02).requires_grad_()


def _run(
    calls: Sequence[tuple[str, Call | None]], weights: Sequence[Weights], read: bool, totals_us: Times | None = None
) -> tuple[float, list[Any]]:
    """Run all layers once; return the host's us for the step, and (call, direction, us) of each call.

    `totals_us` takes those of each pass.
    """
    passes: list[tuple[str, float]] = []
    ticks: list[tuple[str, float]] = []
    x = _random(_ROWS, 1, _HIDDEN)
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    before = skipped = x
    for layer in weights:
        for name, call in calls:
            x = x + skipped if call is None else call(x, layer)
            skipped = x if call is None else skipped
            if read:
                passes.append((name, time.perf_counter()))
                if x.requires_grad:
                    _watch(x, name, ticks)
                passes.append(("hooks", time.perf_counter()))
    issued = time.perf_counter()
    if x.requires_grad:
        ticks.append(("start", time.perf_counter()))
        torch.autograd.backward(x, torch.ones_like(x))
        ticks.append(("end", time.perf_counter()))
    elapsed_us = (time.perf_counter() - begin) * 1e6
    if totals_us is not None:
        forward_us = (issued - begin) * 1e6
        totals_us["forward" if x.requires_grad else "no_grad"].append(forward_us)
        if x.requires_grad:
            totals_us["backward"].append(elapsed_us - forward_us)
    torch.cuda.synchronize()
    del before
    return elapsed_us, [*_forward(begin, passes, len(calls)), *_backward(ticks)]


def _watch(x: torch.Tensor, name: str, ticks: list[tuple[str, float]]) -> None:
    """Record twice when the gradient of a call's result is ready; the second record measures the cost of recording."""
    for end in (name, "hook"):
        x.register_hook(lambda gradient, end=end: ticks.append((end, time.perf_counter())))


def _forward(begin: float, passes: list[tuple[str, float]], calls: int) -> list[tuple[str, str, float]]:
    """Return each call of the layers after the first, and what the first layer takes beyond the median of these.

    What a pass uses first after a barrier, or after a backward that another thread ran, is in no cache of the core.
    """
    if not passes:
        return []
    found = []
    for name, tick in passes:
        if name != "hooks":
            found.append((name, "forward", (tick - begin) * 1e6))
        begin = tick
    layers = range(0, len(found), calls)
    first, *others = (sum(us for _, _, us in found[layer : layer + calls]) for layer in layers)
    return [*found[calls:], ("start", "forward", first - statistics.median(others))]


def _backward(ticks: list[tuple[str, float]]) -> list[tuple[str, str, float]]:
    """Backward of a call: from the second hook of its result to the first hook of its input, and one hook."""
    found = []
    for number, ((name, begin), (following, end)) in enumerate(itertools.pairwise(ticks[:-1])):
        what = "hook" if following == "hook" else ticks[number - 1][0] if name == "hook" else name
        found.append((what, "backward", (end - begin) * 1e6))
    return found


def measure(row: Mapping[str, Any], session: Session) -> list[dict[str, Any]]:
    """Return the host's microseconds of each call of a row's step, and of the whole step."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        if row["step"] == PACE:
            return _paces()
        return _loops(session.repeats) if row["step"] == LOOP else _measured(STEPS[row["step"]])
    finally:
        if enabled:
            gc.enable()


def join(found: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the means over the ranks."""
    return [
        {**rows[0], "us": round(statistics.fmean(row["us"] for row in rows), 2)} for rows in zip(*found, strict=True)
    ]


def _measured(calls: Sequence[tuple[str, Call | None]]) -> list[dict[str, Any]]:
    weights = [[_random(*shape) for shape in _SHAPES] for _ in range(_LAYERS)]
    rows = []
    for grad in (False, True):
        whole, times = [], defaultdict(list)
        with torch.set_grad_enabled(grad):
            for repeat in range(_REPEATS):
                for weight in (weight for layer in weights for weight in layer):
                    weight.grad = None
                elapsed_us, found = _run(calls, weights, read=repeat % 2 == 0)
                if repeat < _WARM_UP:
                    continue
                if repeat % 2:
                    whole.append(elapsed_us)
                for name, direction, us in found:
                    times[name, direction].append(us)
        hook_us = statistics.median(times.pop(("hook", "backward"), [0.0]))
        for (name, direction), values in times.items():
            us = statistics.median(values) - (hook_us if direction == "backward" else 0.0)
            rows.append({"call": name, "direction": direction if grad else "no_grad", "us": us})
        rows.append({"call": "whole", "direction": "both" if grad else "no_grad", "us": statistics.median(whole)})
    return rows


PACE = "pace"
"""The step of whole layers over a while."""
_PACE_S, _PASSES = 20.0, 8
"""How long whole layers are read, the mean over a host that wavers, and how many passes of each kind a round has."""


def _paces() -> list[dict[str, Any]]:
    """Return the host's microseconds of a layer without gradients, forward and backward: of each round the median."""
    weights = [[_random(*shape) for shape in _SHAPES] for _ in range(_LAYERS)]
    rounds: Times = defaultdict(list)
    until = time.perf_counter() + _PACE_S
    while time.perf_counter() < until or not rounds:
        gc.collect()
        torch.cuda.empty_cache()
        passes: Times = defaultdict(list)
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                for _ in range(_WARM_UP + _PASSES):
                    for weight in itertools.chain.from_iterable(weights):
                        weight.grad = None
                    _run(STEPS["data_parallel"], weights, read=False, totals_us=passes)
        for direction, times in passes.items():
            rounds[direction].append(statistics.median(times[_WARM_UP:]))
    return [
        {"call": "layer", "direction": direction, "us": statistics.fmean(times) / _LAYERS}
        for direction, times in rounds.items()
    ]


LOOP = "loop"
"""The step of one call in a loop, as in benchmarks of single calls."""
_LOOPED = 200


def _loops(repeats: int) -> list[dict[str, Any]]:
    x, weights = _random(_ROWS, 1, _HIDDEN).detach(), [_random(*shape).detach() for shape in _SHAPES]
    calls: dict[str, Callable[[], Any]] = {
        "pointwise": lambda: torch.add(x, x),
        "gemm": lambda: x[:, 0] @ weights[2],
        "layer_norm": lambda: _layer_norm(x, weights),
        "attention": lambda: attention(functional.linear(x, weights[1])),
        **{kind: partial(make, x, False) for kind, make in EXCHANGES.items() if kind != "nothing"},
    }
    medians = {}
    for name, call in calls.items():
        times = []
        for _ in range(repeats + 1):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(_LOOPED):
                call()
            times.append((time.perf_counter() - begin) / _LOOPED * 1e6)
            torch.cuda.synchronize()
        medians[name] = statistics.median(times[1:])
    medians["attention"] -= medians["gemm"]  # its input is the output of a GEMM
    return [{"call": name, "direction": LOOP, "us": us} for name, us in medians.items()]
