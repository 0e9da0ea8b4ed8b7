"""Operations to PyTorch calls: how each operation of `scaleout.operations` is carried out on a GPU.

Each maker takes the sizes and the data type of a kernel and returns a function without arguments that makes one
call on random data of its own. Backward kernels are called as autograd calls them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

Sizes = Mapping[str, int]
Call = Callable[[], Any]
Maker = Callable[[Sizes, torch.dtype], Call]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Data types by the names that scaleout gives them."""


def _random(*shape: int, dtype: torch.dtype, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_(grad)


def _backward(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Call:
    """Call the backward of a function: its gradients with respect to all inputs that want one."""
    output = function(*inputs)
    gradient = torch.randn_like(output)
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    return lambda: torch.autograd.grad(output, wanted, gradient, retain_graph=True)


def _pointwise(function: Callable[[torch.Tensor], torch.Tensor], *, backward: bool = False) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        x = _random(s["elements"], dtype=dtype, grad=backward)
        return _backward(function, x) if backward else lambda: function(x)

    return make


def _gemm(s: Sizes, dtype: torch.dtype) -> Call:
    a, b = _random(s["M"], s["K"], dtype=dtype), _random(s["N"], s["K"], dtype=dtype)
    out = torch.empty(s["M"], s["N"], device="cuda", dtype=dtype)
    return lambda: torch.mm(a, b.t(), out=out)


def _attention(*, backward: bool, grouped: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        def tensor(heads: int) -> torch.Tensor:
            return _random(s["batch"], heads, s["seq"], s["head_dim"], dtype=dtype, grad=backward)

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=bool(s["causal"]), enable_gqa=grouped)

        kv_heads = s["kv_heads"] if grouped else s["heads"]
        inputs = (tensor(s["heads"]), tensor(kv_heads), tensor(kv_heads))
        return _backward(attend, *inputs) if backward else lambda: attend(*inputs)

    return make


def _attention_decode(s: Sizes, dtype: torch.dtype) -> Call:
    q = _random(s["batch"], s["heads"], 1, s["head_dim"], dtype=dtype)
    k, v = (_random(s["batch"], s["kv_heads"], s["kv_seq"], s["head_dim"], dtype=dtype) for _ in range(2))
    grouped = s["kv_heads"] != s["heads"]
    return lambda: functional.scaled_dot_product_attention(q, k, v, enable_gqa=grouped)


def _norm(kind: str, *, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        x = _random(s["tokens"], s["hidden"], dtype=dtype, grad=backward)
        weight, bias = (_random(s["hidden"], dtype=dtype, grad=backward) for _ in range(2))
        width = (s["hidden"],)
        if kind == "layer":
            inputs = (x, weight, bias)
            return (
                _backward(lambda x, w, b: functional.layer_norm(x, width, w, b), *inputs)
                if backward
                else lambda: functional.layer_norm(x, width, weight, bias)
            )
        return (
            _backward(lambda x, w: functional.rms_norm(x, width, w), x, weight)
            if backward
            else lambda: functional.rms_norm(x, width, weight)
        )

    return make


def _swiglu(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return functional.silu(x) * gate


def _swiglu_call(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        x, gate = (_random(s["elements"], dtype=dtype, grad=backward) for _ in range(2))
        return _backward(_swiglu, x, gate) if backward else lambda: _swiglu(x, gate)

    return make


def _rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def _rope_call(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        head = min(128, s["hidden"])
        x = _random(s["tokens"], s["hidden"] // head, head, dtype=dtype, grad=backward)
        cos, sin = (_random(s["tokens"], 1, head, dtype=dtype) for _ in range(2))
        if backward:
            return _backward(lambda x: _rope(x, cos, sin), x)
        return lambda: _rope(x, cos, sin)

    return make


_VOCABULARY = 128256


def _embedding(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        table = _random(_VOCABULARY, s["hidden"], dtype=dtype, grad=backward)
        ids = torch.randint(_VOCABULARY, (s["tokens"],), device="cuda")
        if backward:
            return _backward(lambda table: functional.embedding(ids, table), table)
        return lambda: functional.embedding(ids, table)

    return make


def _cross_entropy(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        logits = _random(s["tokens"], s["vocab"], dtype=dtype, grad=backward)
        target = torch.randint(s["vocab"], (s["tokens"],), device="cuda")
        if backward:
            return _backward(lambda x: functional.cross_entropy(x, target), logits)
        return lambda: functional.cross_entropy(logits, target)

    return make


def _bag(s: Sizes, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices (bags, pooling) into one table that holds all tables, and each table's gradient or output rows."""
    tables = torch.arange(s["tables"], device="cuda").repeat(s["batch"]) * rows
    indices = torch.randint(rows, (s["batch"] * s["tables"], s["pooling"]), device="cuda") + tables[:, None]
    return indices, torch.randn(s["batch"] * s["tables"], s["dim"], device="cuda")


def _bag_rows(s: Sizes) -> int:
    """Rows a table so that all tables fit into 40 GB."""
    return min(s.get("rows", 1_000_000), int(40e9 / (4 * s["dim"] * s["tables"])))


def _bag_forward(s: Sizes, dtype: torch.dtype) -> Call:
    indices, _ = _bag(s, s["rows"])
    table = torch.empty(s["rows"] * s["tables"], s["dim"], device="cuda", dtype=dtype).normal_()
    return lambda: functional.embedding_bag(indices, table, mode="sum")


def _bag_update(s: Sizes, dtype: torch.dtype) -> Call:
    from scaleout.measure.bags import update_rows  # noqa: PLC0415 - needs Triton

    rows = _bag_rows(s)
    indices, gradient = _bag(s, rows)
    table = torch.zeros(rows * s["tables"], s["dim"], device="cuda", dtype=dtype)
    return lambda: update_rows(table, indices, gradient)


def _interaction_sum(s: Sizes, dtype: torch.dtype) -> Call:
    x = _random(s["batch"], s["features"], s["dim"], dtype=dtype)
    return lambda: x.sum(dim=1)


def _interaction_sum_back(s: Sizes, dtype: torch.dtype) -> Call:
    dy = _random(s["batch"], 1, s["dim"], dtype=dtype)
    return lambda: dy.expand(-1, s["features"], -1).contiguous()


def _permute(s: Sizes, dtype: torch.dtype) -> Call:
    x = _random(s["tables"], s["batch"], s["dim"], dtype=dtype)
    return lambda: x.transpose(0, 1).contiguous()


def _top_k(*, backward: bool) -> Maker:
    def choose(x: torch.Tensor, k: int) -> torch.Tensor:
        weights = torch.softmax(x.float(), dim=-1).topk(k, dim=-1).values
        return weights / weights.sum(dim=-1, keepdim=True)

    def make(s: Sizes, dtype: torch.dtype) -> Call:
        x = _random(s["tokens"], s["experts"], dtype=dtype, grad=backward)
        return _backward(lambda x: choose(x, s["topk"]), x) if backward else lambda: choose(x, s["topk"])

    return make


def _repeat_top_k(s: Sizes, dtype: torch.dtype) -> Call:
    x = _random(s["tokens"], s["hidden"], dtype=dtype)
    return lambda: x.repeat_interleave(s["topk"], dim=0)


def _sum_top_k(s: Sizes, dtype: torch.dtype) -> Call:
    x = _random(s["tokens"], s["topk"], s["hidden"], dtype=dtype)
    return lambda: x.sum(dim=1)


def _permute_rows(s: Sizes, dtype: torch.dtype) -> Call:
    x, order = _random(s["tokens"], s["hidden"], dtype=dtype), torch.randperm(s["tokens"], device="cuda")
    return lambda: x[order]


def _sgd(s: Sizes, dtype: torch.dtype) -> Call:
    weight, gradient = (_random(s["parameters"], dtype=dtype) for _ in range(2))
    return lambda: weight.add_(gradient, alpha=-1e-6)


def _adamw(s: Sizes, dtype: torch.dtype) -> Call:
    tensors = [[_random(s["parameters"], dtype=dtype).abs()] for _ in range(4)]
    step = [torch.ones((), device="cuda")]
    return lambda: torch._fused_adamw_(
        *tensors, [], step, lr=1e-6, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False
    )  # fmt: skip


def _add(s: Sizes, dtype: torch.dtype) -> Call:
    x, y = (_random(s["elements"], dtype=dtype) for _ in range(2))
    return lambda: x + y


MAKERS: dict[str, Maker] = {
    "gemm": _gemm,
    "attention_fwd": _attention(backward=False, grouped=False),
    "attention_bwd": _attention(backward=True, grouped=False),
    "attention_gqa_fwd": _attention(backward=False, grouped=True),
    "attention_gqa_bwd": _attention(backward=True, grouped=True),
    "attention_decode": _attention_decode,
    "layer_norm_fwd": _norm("layer", backward=False),
    "layer_norm_bwd": _norm("layer", backward=True),
    "rms_norm_fwd": _norm("rms", backward=False),
    "rms_norm_bwd": _norm("rms", backward=True),
    "gelu_fwd": _pointwise(functional.gelu),
    "gelu_bwd": _pointwise(functional.gelu, backward=True),
    "relu_fwd": _pointwise(functional.relu),
    "relu_bwd": _pointwise(functional.relu, backward=True),
    "clone": _pointwise(torch.clone),
    "swiglu_fwd_unfused": _swiglu_call(backward=False),
    "swiglu_bwd": _swiglu_call(backward=True),
    "rope_fwd_unfused": _rope_call(backward=False),
    "rope_bwd": _rope_call(backward=True),
    "embedding_fwd": _embedding(backward=False),
    "embedding_bwd": _embedding(backward=True),
    "cross_entropy_fwd": _cross_entropy(backward=False),
    "cross_entropy_bwd": _cross_entropy(backward=True),
    "embedding_bag_fwd": _bag_forward,
    "embedding_sgd_sparse": _bag_update,
    "interaction_sum_fwd": _interaction_sum,
    "interaction_sum_bwd": _interaction_sum_back,
    "permute_for_all_to_all": _permute,
    "moe_top_k": _top_k(backward=False),
    "moe_top_k_bwd": _top_k(backward=True),
    "moe_repeat_topk": _repeat_top_k,
    "moe_sum_topk": _sum_top_k,
    "moe_permute_rows": _permute_rows,
    "sgd": _sgd,
    "adamw_fused": _adamw,
    "add": _add,
}
"""Operation to the maker of its call."""
