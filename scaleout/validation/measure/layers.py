"""Operations between the GEMMs of a network to PyTorch calls: norms, point-wise functions, losses, optimisers, pooling.

PyTorch runs them without a compiler: an unfused operation launches several kernels. Operations that a compiler fuses
into one kernel each go through `torch.compile`, which takes seconds at the first call of each shape. Batch norms and
pooling are described by the number of elements alone; they run channels last on 64 channels of 56 by 56 or 7 by 7.
"""

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from scaleout.validation.measure.tensors import Call, Maker, Sizes, call_of, random


def _compiled(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, backward: bool) -> Call:
    """Compile for these shapes; a backward is compiled with its forward."""
    torch._dynamo.reset()
    return call_of(torch.compile(function, dynamic=False), *inputs, backward=backward)


def _pointwise(
    function: Callable[..., torch.Tensor], *, inputs: int = 1, backward: bool = False, fused: bool = False
) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        tensors = [random(s["elements"], dtype=dtype, grad=backward) for _ in range(inputs)]
        return (_compiled if fused else call_of)(function, *tensors, backward=backward)

    return make


def _copy(s: Sizes, dtype: torch.dtype) -> Call:
    source, target = (torch.empty(s["elements"], device="cuda", dtype=dtype) for _ in range(2))
    return lambda: target.copy_(source)


def _accumulate(s: Sizes, dtype: torch.dtype) -> Call:
    total, x = (random(s["elements"], dtype=dtype) for _ in range(2))
    return lambda: total.add_(x)


def _swiglu(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Gate with the sigmoid-weighted input."""
    return functional.silu(x) * gate


def _layer_norm(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        def normalise(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return functional.layer_norm(x, (s["hidden"],), weight, bias)

        x = random(s["tokens"], s["hidden"], dtype=dtype, grad=backward)
        weight, bias = (random(s["hidden"], dtype=dtype, grad=backward) for _ in range(2))
        return call_of(normalise, x, weight, bias, backward=backward)

    return make


def _rms_norm(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        def normalise(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return functional.rms_norm(x, (s["hidden"],), weight)

        x = random(s["tokens"], s["hidden"], dtype=dtype, grad=backward)
        weight = random(s["hidden"], dtype=dtype, grad=backward)
        return call_of(normalise, x, weight, backward=backward)

    return make


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the halves of each head by its angles."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def _rope(*, backward: bool, fused: bool = False) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        head = min(128, s["hidden"])
        x = random(s["tokens"], s["hidden"] // head, head, dtype=dtype, grad=backward)
        cos, sin = (random(s["tokens"], 1, head, dtype=dtype) for _ in range(2))
        return (_compiled if fused else call_of)(_rotate, x, cos, sin, backward=backward)

    return make


_VOCABULARY = 128256


def _embedding(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        rows = s.get("vocab", _VOCABULARY)
        table = random(rows, s["hidden"], dtype=dtype, grad=backward)
        ids = torch.randint(rows, (s["tokens"],), device="cuda")
        return call_of(lambda table: functional.embedding(ids, table), table, backward=backward)

    return make


def _cross_entropy(*, backward: bool, fused: bool = False) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        logits = random(s["tokens"], s["vocab"], dtype=dtype, grad=backward)
        target = torch.randint(s["vocab"], (s["tokens"],), device="cuda")
        if fused:
            return _compiled(lambda x, y: functional.cross_entropy(x.float(), y), logits, target, backward=backward)
        return call_of(functional.cross_entropy, logits, target, backward=backward)

    return make


def _softmax(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        x = random(s["tokens"], s["keys"], dtype=dtype, grad=backward)
        return call_of(lambda x: torch.softmax(x, dim=-1), x, backward=backward)

    return make


def _chosen(scores: torch.Tensor, k: int) -> torch.Tensor:
    weights = torch.softmax(scores.float(), dim=-1).topk(k, dim=-1).values
    return weights / weights.sum(dim=-1, keepdim=True)


def _top_k(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        x = random(s["tokens"], s["experts"], dtype=dtype, grad=backward)
        return call_of(lambda x: _chosen(x, s["topk"]), x, backward=backward)

    return make


def _router(s: Sizes, dtype: torch.dtype) -> Call:
    x, weight = random(s["tokens"], s["hidden"], dtype=dtype), random(s["hidden"], 64, dtype=dtype)
    return lambda: torch.softmax((x @ weight).float().topk(2, dim=-1).values, dim=-1)


def _repeat_top_k(s: Sizes, dtype: torch.dtype) -> Call:
    x = random(s["tokens"], s["hidden"], dtype=dtype)
    return lambda: x.repeat_interleave(s["topk"], dim=0)


def _sum_top_k(s: Sizes, dtype: torch.dtype) -> Call:
    x = random(s["tokens"], s["topk"], s["hidden"], dtype=dtype)
    return lambda: x.sum(dim=1)


def _permute_rows(s: Sizes, dtype: torch.dtype) -> Call:
    x, order = random(s["tokens"], s["hidden"], dtype=dtype), torch.randperm(s["tokens"], device="cuda")
    return lambda: x[order]


def _heads_cat(s: Sizes, dtype: torch.dtype) -> Call:
    """Concatenate queries, keys and values, a third of the heads each, along the last dimension."""
    heads = s["heads"] // 3
    of = (s["seq"], s["batch"], heads, s["head_dim"])  # as attention leaves gradients of a sequence-first layer
    parts = [random(*of, dtype=dtype).permute(1, 2, 0, 3) for _ in range(3)]
    return lambda: torch.cat(parts, dim=-1)


def _heads_to_rows(s: Sizes, dtype: torch.dtype) -> Call:
    """From heads first to sequence first, the layout of the GEMM's output."""
    x = random(s["batch"], s["heads"] // 3, s["seq"], 3 * s["head_dim"], dtype=dtype)
    return lambda: x.permute(2, 0, 1, 3).contiguous()


def _sgd(s: Sizes, dtype: torch.dtype) -> Call:
    weight, gradient = (random(s["parameters"], dtype=dtype) for _ in range(2))
    return lambda: weight.add_(gradient, alpha=-1e-6)


def _adamw(s: Sizes, dtype: torch.dtype) -> Call:
    tensors = [[random(s["parameters"], dtype=dtype).abs_()] for _ in range(4)]
    step = [torch.ones((), device="cuda")]
    return lambda: torch._fused_adamw_(
        *tensors, [], step, lr=1e-6, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False
    )  # fmt: skip


_CHANNELS = 64


def _images(s: Sizes, dtype: torch.dtype, *, grad: bool) -> torch.Tensor:
    """Square images of about so many elements: 56 by 56, or 7 by 7 for few elements."""
    side = 56 if s["elements"] >= 64 * 56**2 * _CHANNELS else 7
    batch = max(1, s["elements"] // (side**2 * _CHANNELS))
    return random(batch, _CHANNELS, side, side, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_(grad)


def _batch_norm(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        x = _images(s, dtype, grad=backward)
        weight, bias = (random(_CHANNELS, dtype=torch.float32, grad=backward) for _ in range(2))
        mean, variance = torch.zeros(_CHANNELS, device="cuda"), torch.ones(_CHANNELS, device="cuda")

        def normalise(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return functional.batch_norm(x, mean, variance, weight, bias, training=True)

        return call_of(normalise, x, weight, bias, backward=backward)

    return make


def _pool(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        x = _images(s, dtype, grad=backward)
        return call_of(lambda x: functional.max_pool2d(x, 3, stride=2, padding=1), x, backward=backward)

    return make


MAKERS: Mapping[str, Maker] = {
    "layer_norm_fwd": _layer_norm(backward=False),
    "layer_norm_bwd": _layer_norm(backward=True),
    "rms_norm_fwd": _rms_norm(backward=False),
    "rms_norm_bwd": _rms_norm(backward=True),
    "rope_fwd_unfused": _rope(backward=False),
    "rope_bwd": _rope(backward=True),
    "embedding_fwd": _embedding(backward=False),
    "embedding_bwd": _embedding(backward=True),
    "cross_entropy_fwd": _cross_entropy(backward=False),
    "cross_entropy_bwd": _cross_entropy(backward=True),
    "moe_router_64_experts": _router,
    "moe_top_k": _top_k(backward=False),
    "moe_top_k_bwd": _top_k(backward=True),
    "moe_repeat_topk": _repeat_top_k,
    "moe_sum_topk": _sum_top_k,
    "moe_permute_rows": _permute_rows,
    "heads_cat": _heads_cat,
    "heads_to_rows": _heads_to_rows,
    "add": _pointwise(torch.add, inputs=2),
    "mul_scalar": _pointwise(lambda x: x * 1.5),
    "clone": _pointwise(torch.clone),
    "copy_d2d": _copy,
    "gelu_fwd": _pointwise(functional.gelu),
    "gelu_bwd": _pointwise(functional.gelu, backward=True),
    "silu_fwd": _pointwise(functional.silu),
    "silu_bwd": _pointwise(functional.silu, backward=True),
    "relu_fwd": _pointwise(functional.relu),
    "relu_bwd": _pointwise(functional.relu, backward=True),
    "dropout_fwd": _pointwise(lambda x: torch.native_dropout(x, 0.1, True)),
    "dropout_bwd": _pointwise(lambda x: functional.dropout(x, 0.1), backward=True),
    "softmax_fwd": _softmax(backward=False),
    "softmax_bwd": _softmax(backward=True),
    "cast_to_fp32": _pointwise(lambda x: x.to(torch.float32)),
    "accumulate_fp32": _accumulate,
    "sum_all": _pointwise(torch.sum),
    "swiglu_fwd_unfused": _pointwise(_swiglu, inputs=2),
    "swiglu_bwd": _pointwise(_swiglu, inputs=2, backward=True),
    "adamw_fused": _adamw,
    "sgd": _sgd,
    "batch_norm_fwd": _batch_norm(backward=False),
    "batch_norm_bwd": _batch_norm(backward=True),
    "pool_fwd": _pool(backward=False),
    "pool_bwd": _pool(backward=True),
    "swiglu_fwd": _pointwise(_swiglu, inputs=2, fused=True),
    "swiglu_bwd_fused": _pointwise(_swiglu, inputs=2, backward=True, fused=True),
    "rope_fwd": _rope(backward=False, fused=True),
    "rope_bwd_fused": _rope(backward=True, fused=True),
    "cross_entropy_fused_fwd": _cross_entropy(backward=False, fused=True),
    "cross_entropy_fused_bwd": _cross_entropy(backward=True, fused=True),
}
"""Operation to the maker of its call."""
