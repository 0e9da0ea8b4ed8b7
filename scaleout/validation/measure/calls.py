"""Operations to PyTorch calls: how each operation of `scaleout.program.operations` is carried out on a GPU.

A maker takes the sizes and the data type of a kernel and returns a function without arguments that makes one call on
its own random data. Backward kernels are called as autograd calls them.

GEMMs run as PyTorch runs them by default, fp32 without tensor cores; both operands are stored row by row. (fp32 GEMMs
whose second operand is stored by columns, as in `torch.nn.Linear`, are up to 28% slower if they are small.)
Convolutions are stored channels last, and cuDNN chooses the algorithm. Other operations run without a compiler: an
unfused operation launches several kernels. Those that a compiler fuses into one kernel each go through `torch.compile`,
which takes seconds at the first call of each shape. Batch norms and pooling are described by the number of elements
alone; they run channels last on 64 channels of 56 by 56 or 7 by 7. All embedding tables of a rank are one tensor, and
one call looks up all of them.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from scaleout.validation.measure import plain_calls
from scaleout.validation.measure.calling import Call, Maker, Sizes, call, of, random

DTYPES: Mapping[str, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp64": torch.float64,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "u8": torch.uint8,
}
"""Data types by the names that scaleout gives them."""


# ---- GEMMs, convolutions and attention


def _gemm_fp8(s: Sizes, dtype: torch.dtype) -> Call:
    a, b = (random(s[rows], s["K"], dtype=torch.bfloat16).to(dtype) for rows in "MN")
    scale = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


def _gemm_fp8_rowwise(s: Sizes, dtype: torch.dtype) -> Call:
    a, b = (random(s[rows], s["K"], dtype=torch.bfloat16).to(dtype) for rows in "MN")
    scale_a, scale_b = torch.ones(s["M"], 1, device="cuda"), torch.ones(1, s["N"], device="cuda")
    return lambda: torch._scaled_mm(a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16)


def _batched_gemm(s: Sizes, dtype: torch.dtype) -> Call:
    """Multiply groups of as many rows each by the matrix of the group, all stored row by row."""
    rows = random(s["groups"], s["M"], s["K"], dtype=dtype)
    matrices = random(s["groups"], s["K"], s["N"], dtype=dtype)
    return lambda: torch.bmm(rows, matrices)


def _grouped_gemm(s: Sizes, dtype: torch.dtype) -> Call:
    """Multiply rows of each group, one group after the other, by the matrix of the group, stored by columns."""
    rows = random(s["groups"] * s["M"], s["K"], dtype=dtype)
    matrices = random(s["groups"], s["N"], s["K"], dtype=dtype).transpose(1, 2)
    ends = torch.arange(1, s["groups"] + 1, device="cuda", dtype=torch.int32) * s["M"]
    return lambda: torch._grouped_mm(rows, matrices, offs=ends)


def _grouped_gemm_fp8(s: Sizes, dtype: torch.dtype) -> Call:
    """Multiply rows of each group by the matrix of the group, with a scale for each row of either."""
    rows = random(s["groups"] * s["M"], s["K"], dtype=torch.bfloat16).to(dtype)
    matrices = random(s["groups"], s["N"], s["K"], dtype=torch.bfloat16).to(dtype).transpose(1, 2)
    scales = torch.ones(s["groups"] * s["M"], device="cuda"), torch.ones(s["groups"], s["N"], device="cuda")
    ends = torch.arange(1, s["groups"] + 1, device="cuda", dtype=torch.int32) * s["M"]
    return lambda: torch._scaled_grouped_mm(rows, matrices, *scales, offs=ends, out_dtype=torch.bfloat16)


def _gemv(s: Sizes, dtype: torch.dtype) -> Call:
    matrix, vector = random(s["M"], s["N"], dtype=dtype), random(s["N"], dtype=dtype)
    out = torch.empty(s["M"], device="cuda", dtype=dtype)
    return lambda: torch.mv(matrix, vector, out=out)


def _channels_last(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return random(*shape, dtype=dtype).to(memory_format=torch.channels_last)


def _convolution(s: Sizes, dtype: torch.dtype, *, wanted: tuple[bool, ...] = ()) -> Call:
    """Make the forward, or the gradients of the inputs and weights that are `wanted`."""
    window, stride = s["kernel"], s["stride"]
    x = _channels_last(s["batch"], s["c_in"], s["hw"], s["hw"], dtype=dtype)
    weight = _channels_last(s["c_out"], s["c_in"], window, window, dtype=dtype)
    padding = window // 2
    if not wanted:
        return lambda: functional.conv2d(x, weight, stride=stride, padding=padding)
    gradient = torch.randn_like(functional.conv2d(x, weight, stride=stride, padding=padding))
    pair = [2 * [size] for size in (stride, padding, 1)]
    return lambda: torch.ops.aten.convolution_backward(
        gradient, x, weight, None, *pair, False, [0, 0], 1, [*wanted, False]
    )


def _attention(s: Sizes, dtype: torch.dtype, *, backward: bool = False, grouped: bool = False) -> Call:
    def tensor(heads: int) -> torch.Tensor:
        return random(s["batch"], heads, s["seq"], s["head_dim"], dtype=dtype, grad=backward)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=bool(s["causal"]), enable_gqa=grouped)

    kv_heads = s["kv_heads"] if grouped else s["heads"]
    return call(attend, tensor(s["heads"]), tensor(kv_heads), tensor(kv_heads), backward=backward)


def _attention_fa2(s: Sizes, dtype: torch.dtype, *, backward: bool = False) -> Call:
    """Attention by FlashAttention 2, as PyTorch carries it."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        attend = _attention(s, dtype, backward=backward, grouped=True)

    def chosen() -> Any:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return attend()

    return chosen


def _attention_decode(s: Sizes, dtype: torch.dtype) -> Call:
    q = random(s["batch"], s["heads"], 1, s["head_dim"], dtype=dtype)
    k, v = (random(s["batch"], s["kv_heads"], s["kv_seq"], s["head_dim"], dtype=dtype) for _ in range(2))
    grouped = s["kv_heads"] != s["heads"]
    return lambda: functional.scaled_dot_product_attention(q, k, v, enable_gqa=grouped)


# ---- Norms, point-wise functions, losses, optimizers and pooling


def _copy(s: Sizes, dtype: torch.dtype) -> Call:
    source, target = (torch.empty(s["elements"], device="cuda", dtype=dtype) for _ in range(2))
    return lambda: target.copy_(source)


_SCALE = 8.0


def _to_fp8(x: torch.Tensor) -> torch.Tensor:
    return (x.float() * _SCALE).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)


def _to_fp8_twice(s: Sizes, dtype: torch.dtype) -> Call:
    from scaleout.validation.measure.fused_kernels import cast_twice  # noqa: PLC0415 - needs Triton

    columns = 4096 if s["elements"] % 4096 == 0 and s["elements"] >= 2**20 else 64
    x = random(max(1, s["elements"] // columns), columns, dtype=dtype)
    return lambda: cast_twice(x, _SCALE)


def _swiglu(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return functional.silu(x) * gate


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, weight.shape, weight)


def _rms_norm_unfused(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6)).type_as(x) * weight


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


def _sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(dim=1)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def _rope(s: Sizes, dtype: torch.dtype, *, backward: bool = False, fused: bool = False) -> Call:
    head = min(128, s["hidden"])
    x = random(s["tokens"], s["hidden"] // head, head, dtype=dtype, grad=backward)
    cos, sin = (random(s["tokens"], 1, head, dtype=dtype) for _ in range(2))
    return call(_rotate, x, cos, sin, backward=backward, fused=fused)


_VOCABULARY = 128256


def _embedding(s: Sizes, dtype: torch.dtype, *, backward: bool = False) -> Call:
    rows = s.get("vocab", _VOCABULARY)
    table = random(rows, s["hidden"], dtype=dtype, grad=backward)
    ids = torch.randint(rows, (s["tokens"],), device="cuda")
    return call(lambda table: functional.embedding(ids, table), table, backward=backward)


def _cross_entropy(s: Sizes, dtype: torch.dtype, *, backward: bool = False, fused: bool = False) -> Call:
    def in_fp32(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(x.float(), y)

    logits = random(s["tokens"], s["vocab"], dtype=dtype, grad=backward)
    target = torch.randint(s["vocab"], (s["tokens"],), device="cuda")
    return call(in_fp32 if fused else functional.cross_entropy, logits, target, backward=backward, fused=fused)


def _top_k(s: Sizes, dtype: torch.dtype, *, backward: bool = False) -> Call:
    def chosen(scores: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(scores.float(), dim=-1).topk(s["topk"], dim=-1).values
        return weights / weights.sum(dim=-1, keepdim=True)

    return call(chosen, random(s["tokens"], s["experts"], dtype=dtype, grad=backward), backward=backward)


def _router(s: Sizes, dtype: torch.dtype) -> Call:
    x, weight = random(s["tokens"], s["hidden"], dtype=dtype), random(s["hidden"], 64, dtype=dtype)
    return lambda: torch.softmax((x @ weight).float().topk(2, dim=-1).values, dim=-1)


def _repeat_top_k(s: Sizes, dtype: torch.dtype) -> Call:
    x = random(s["tokens"], s["hidden"], dtype=dtype)
    return lambda: x.repeat_interleave(s["topk"], dim=0)


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


def _adamw(s: Sizes, dtype: torch.dtype) -> Call:
    tensors = [[random(s["parameters"], dtype=dtype).abs_()] for _ in range(4)]
    step = [torch.ones((), device="cuda")]
    return lambda: torch._fused_adamw_(
        *tensors, [], step, lr=1e-6, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False
    )  # fmt: skip


def _adamw_unfused(s: Sizes, dtype: torch.dtype) -> Call:
    """AdamW operation by operation on one tensor."""
    weight, gradient, first, second = (random(s["parameters"], dtype=dtype).abs_() for _ in range(4))

    def step() -> None:
        weight.mul_(1 - 1e-7)
        first.lerp_(gradient, 0.1)
        second.mul_(0.95).addcmul_(gradient, gradient, value=0.05)
        weight.addcdiv_(first, (second.sqrt() / 0.9).add_(1e-8), value=-1e-6)

    return step


_CHANNELS = 64


def _images(s: Sizes, dtype: torch.dtype, *, grad: bool) -> torch.Tensor:
    """Square images of about so many elements: 56 by 56, or 7 by 7 for few elements."""
    side = 56 if s["elements"] >= 64 * 56**2 * _CHANNELS else 7
    batch = max(1, s["elements"] // (side**2 * _CHANNELS))
    return _channels_last(batch, _CHANNELS, side, side, dtype=dtype).requires_grad_(grad)


def _batch_norm(s: Sizes, dtype: torch.dtype, *, backward: bool = False) -> Call:
    x = _images(s, dtype, grad=backward)
    weight, bias = (random(_CHANNELS, dtype=torch.float32, grad=backward) for _ in range(2))
    mean, variance = torch.zeros(_CHANNELS, device="cuda"), torch.ones(_CHANNELS, device="cuda")

    def normalise(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(x, mean, variance, weight, bias, training=True)

    return call(normalise, x, weight, bias, backward=backward)


def _pool(s: Sizes, dtype: torch.dtype, *, backward: bool = False) -> Call:
    x = _images(s, dtype, grad=backward)
    return call(lambda x: functional.max_pool2d(x, 3, stride=2, padding=1), x, backward=backward)


# ---- Recommendation models: pooled embedding tables and the feature interaction

_ROWS = 1_000_000
_TABLE_BYTES = 40e9
"""Limit of the memory of one call's tables; larger tables get fewer rows."""


def _indices(s: Sizes, rows: int) -> torch.Tensor:
    """Return the (bags, pooling) rows that the bags look up, one table after the other."""
    tables = torch.arange(s["tables"], device="cuda").repeat_interleave(s["batch"]) * rows
    return torch.randint(rows, (s["batch"] * s["tables"], s["pooling"]), device="cuda") + tables[:, None]


def _rows(s: Sizes) -> int:
    return min(_ROWS, int(_TABLE_BYTES / (4 * s["dim"] * s["tables"])))


def _bag(s: Sizes, dtype: torch.dtype) -> Call:
    table = torch.empty(s["rows"] * s["tables"], s["dim"], device="cuda", dtype=dtype).normal_()
    indices = _indices(s, s["rows"])
    return lambda: functional.embedding_bag(indices, table, mode="sum")


def _bag_back(s: Sizes, dtype: torch.dtype) -> Call:
    rows = _rows(s)
    table = torch.zeros(rows * s["tables"], s["dim"], device="cuda", dtype=dtype, requires_grad=True)
    indices = _indices(s, rows)
    return call(lambda table: functional.embedding_bag(indices, table, mode="sum", sparse=True), table, backward=True)


def _bag_update(s: Sizes, dtype: torch.dtype) -> Call:
    from scaleout.validation.measure.fused_kernels import update_rows  # noqa: PLC0415 - needs Triton

    rows = _rows(s)
    table = torch.zeros(rows * s["tables"], s["dim"], device="cuda", dtype=dtype)
    indices, gradient = _indices(s, rows), random(s["batch"] * s["tables"], s["dim"], dtype=dtype)
    return lambda: update_rows(table, indices, gradient)


def _interaction_bmm(x: torch.Tensor) -> torch.Tensor:
    return torch.bmm(x, x.transpose(1, 2))


def _interaction_gather(s: Sizes, dtype: torch.dtype, *, backward: bool = False) -> Call:
    features = s["features"]
    x = random(s["batch"], features**2, dtype=dtype, grad=backward)
    rows, columns = torch.tril_indices(features, features, offset=-1, device="cuda")
    triangle = rows * features + columns
    return call(lambda x: x[:, triangle], x, backward=backward)


def _interaction_cat(s: Sizes, dtype: torch.dtype) -> Call:
    dense = random(s["batch"], 1, s["dim"], dtype=dtype)
    pooled = random(s["batch"], max(1, s["features"] - 1), s["dim"], dtype=dtype)
    return lambda: torch.cat((dense, pooled), dim=1)


def _interaction_cat_back(s: Sizes, dtype: torch.dtype) -> Call:
    gradient = random(s["batch"], max(2, s["features"]), s["dim"], dtype=dtype)
    return lambda: (gradient[:, :1].contiguous(), gradient[:, 1:].contiguous())


def _interaction_sum_back(s: Sizes, dtype: torch.dtype) -> Call:
    gradient = random(s["batch"], 1, s["dim"], dtype=dtype)
    return lambda: gradient.expand(-1, s["features"], -1).contiguous()


MAKERS: Mapping[str, Maker] = {
    **plain_calls.MAKERS,
    "gemm": of(torch.matmul, "M K", "K N"),
    "gemm_fp8": _gemm_fp8,
    "gemm_fp8_rowwise": _gemm_fp8_rowwise,
    "batched_gemm": _batched_gemm,
    "grouped_gemm": _grouped_gemm,
    "grouped_gemm_fp8": _grouped_gemm_fp8,
    "gemv": _gemv,
    "conv2d_fwd": _convolution,
    "conv2d_bwd_data": partial(_convolution, wanted=(True, False)),
    "conv2d_bwd_weight": partial(_convolution, wanted=(False, True)),
    "attention_fwd": _attention,
    "attention_bwd": partial(_attention, backward=True),
    "attention_gqa_fwd": partial(_attention, grouped=True),
    "attention_gqa_bwd": partial(_attention, backward=True, grouped=True),
    "attention_fa2_fwd": _attention_fa2,
    "attention_fa2_bwd": partial(_attention_fa2, backward=True),
    "attention_decode": _attention_decode,
    "layer_norm_fwd": of(_layer_norm, "tokens hidden", "hidden", "hidden"),
    "layer_norm_bwd": of(_layer_norm, "tokens hidden", "hidden", "hidden", backward=True),
    "rms_norm_fwd": of(_rms_norm, "tokens hidden", "hidden"),
    "rms_norm_bwd": of(_rms_norm, "tokens hidden", "hidden", backward=True),
    "rms_norm_unfused_fwd": of(_rms_norm_unfused, "tokens hidden", "hidden"),
    "rms_norm_unfused_bwd": of(_rms_norm_unfused, "tokens hidden", "hidden", backward=True),
    "rope_fwd_unfused": _rope,
    "rope_bwd": partial(_rope, backward=True),
    "embedding_fwd": _embedding,
    "embedding_bwd": partial(_embedding, backward=True),
    "cross_entropy_fwd": _cross_entropy,
    "cross_entropy_bwd": partial(_cross_entropy, backward=True),
    "moe_router_64_experts": _router,
    "moe_top_k": _top_k,
    "moe_top_k_bwd": partial(_top_k, backward=True),
    "moe_repeat_topk": _repeat_top_k,
    "moe_sum_topk": of(_sum, "tokens topk hidden"),
    "moe_permute_rows": _permute_rows,
    "heads_cat": _heads_cat,
    "heads_to_rows": _heads_to_rows,
    "add": of(torch.add, "elements", "elements"),
    "mul_scalar": of(lambda x: x * 1.5, "elements"),
    "clone": of(torch.clone, "elements"),
    "copy_d2d": _copy,
    "fill": of(torch.Tensor.zero_, "elements"),
    "cast_to_fp8": of(_to_fp8, "elements", fused=True),
    "cast_to_fp8_twice": _to_fp8_twice,
    "gelu_fwd": of(functional.gelu, "elements"),
    "gelu_bwd": of(functional.gelu, "elements", backward=True),
    "silu_fwd": of(functional.silu, "elements"),
    "silu_bwd": of(functional.silu, "elements", backward=True),
    "relu_fwd": of(functional.relu, "elements"),
    "relu_bwd": of(functional.relu, "elements", backward=True),
    "dropout_fwd": of(lambda x: torch.native_dropout(x, 0.1, True), "elements"),
    "dropout_bwd": of(lambda x: functional.dropout(x, 0.1), "elements", backward=True),
    "softmax_fwd": of(_softmax, "tokens keys"),
    "softmax_bwd": of(_softmax, "tokens keys", backward=True),
    "cast_to_fp32": of(lambda x: x.to(torch.float32), "elements"),
    "accumulate_fp32": of(torch.Tensor.add_, "elements", "elements"),
    "sum_all": of(torch.sum, "elements"),
    "swiglu_fwd_unfused": of(_swiglu, "elements", "elements"),
    "swiglu_bwd": of(_swiglu, "elements", "elements", backward=True),
    "adamw_fused": _adamw,
    "adamw_unfused": _adamw_unfused,
    "sgd": of(lambda weight, gradient: weight.add_(gradient, alpha=-1e-6), "parameters", "parameters"),
    "batch_norm_fwd": _batch_norm,
    "batch_norm_bwd": partial(_batch_norm, backward=True),
    "pool_fwd": _pool,
    "pool_bwd": partial(_pool, backward=True),
    "swiglu_fwd": of(_swiglu, "elements", "elements", fused=True),
    "swiglu_bwd_fused": of(_swiglu, "elements", "elements", backward=True, fused=True),
    "rope_fwd": partial(_rope, fused=True),
    "rope_bwd_fused": partial(_rope, backward=True, fused=True),
    "cross_entropy_fused_fwd": partial(_cross_entropy, fused=True),
    "cross_entropy_fused_bwd": partial(_cross_entropy, backward=True, fused=True),
    "embedding_bag_fwd": _bag,
    "embedding_bag_bwd_sparse": _bag_back,
    "embedding_sgd_sparse": _bag_update,
    "permute_for_all_to_all": of(lambda x: x.transpose(0, 1).contiguous(), "tables batch dim"),
    "interaction_bmm_fwd": of(_interaction_bmm, "batch features dim"),
    "interaction_bmm_bwd": of(_interaction_bmm, "batch features dim", backward=True),
    "interaction_gather_fwd": _interaction_gather,
    "interaction_gather_bwd": partial(_interaction_gather, backward=True),
    "interaction_sum_fwd": of(_sum, "batch features dim"),
    "interaction_sum_bwd": _interaction_sum_back,
    "interaction_cat_fwd": _interaction_cat,
    "interaction_cat_bwd": _interaction_cat_back,
}
"""Operation to the maker of its call."""
