"""Makers of calls of layers that PyTorch runs as they are written: rotation, heads, routing, gradients of tables."""

from collections.abc import Mapping
from functools import partial

import torch
from torch.nn import functional

from scaleout.validation.measure.calling import Call, Maker, Sizes, call, of, random


def _rotate_in_fp32(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, left * sin + right * cos), dim=-1).to(x.dtype)


def _rope_fp32(s: Sizes, dtype: torch.dtype, *, backward: bool = False) -> Call:
    head = min(128, s["hidden"])
    x = random(s["tokens"], s["hidden"] // head, head, dtype=dtype, grad=backward)
    cos, sin = (random(s["tokens"], 1, head // 2, dtype=torch.float32) for _ in range(2))
    return call(_rotate_in_fp32, x, cos, sin, backward=backward)


def _permute_rows_back(s: Sizes, dtype: torch.dtype) -> Call:
    x, order = random(s["tokens"], s["hidden"], dtype=dtype, grad=True), torch.randperm(s["tokens"], device="cuda")
    return call(lambda x: x[order], x, backward=True)


def _scatter_rows(s: Sizes, dtype: torch.dtype) -> Call:
    x, order = random(s["tokens"], s["hidden"], dtype=dtype), torch.randperm(s["tokens"], device="cuda")
    return lambda: torch.zeros_like(x).index_copy(0, order, x)


_RANKS, _EXPERTS = 2, 4


def _regroup_rows(s: Sizes, dtype: torch.dtype) -> Call:
    """Rows by the rank that sent them, each by expert, to rows by expert."""
    x = random(_RANKS, _EXPERTS, s["tokens"] // (_RANKS * _EXPERTS), s["hidden"], dtype=dtype)
    return lambda: x.transpose(0, 1).contiguous()


def _sort(s: Sizes, dtype: torch.dtype) -> Call:
    ids = torch.randint(8, (s["tokens"],), device="cuda")
    return lambda: torch.argsort(ids, stable=True)


def _weigh(s: Sizes, dtype: torch.dtype, *, backward: bool = False) -> Call:
    rows = random(s["tokens"], s["topk"], s["hidden"], dtype=dtype, grad=backward)
    weights = random(s["tokens"], s["topk"], 1, dtype=dtype, grad=backward)
    if not backward:
        return lambda: rows * weights
    output = (rows * weights).sum(1)
    gradient = torch.randn_like(output)
    return lambda: torch.autograd.grad(output, (rows, weights), gradient, retain_graph=True)


def _repeat_heads(s: Sizes, dtype: torch.dtype) -> Call:
    x = random(s["tokens"], s["heads"], s["head_dim"], dtype=dtype)
    return lambda: x.repeat_interleave(s["times"], 1)


def _bag_dense(s: Sizes, dtype: torch.dtype) -> Call:
    table = torch.zeros(s["tables"] * s["rows"], s["dim"], device="cuda", dtype=dtype, requires_grad=True)
    first = torch.arange(s["tables"], device="cuda").repeat_interleave(s["batch"]) * s["rows"]
    indices = torch.randint(s["rows"], (s["tables"] * s["batch"], s["pooling"]), device="cuda") + first[:, None]
    return call(lambda table: functional.embedding_bag(indices, table, mode="sum"), table, backward=True)


MAKERS: Mapping[str, Maker] = {
    "rope_fp32_fwd": _rope_fp32,
    "rope_fp32_bwd": partial(_rope_fp32, backward=True),
    "moe_permute_rows_bwd": _permute_rows_back,
    "moe_scatter_rows": _scatter_rows,
    "moe_regroup_rows": _regroup_rows,
    "moe_sort": _sort,
    "moe_weigh_fwd": _weigh,
    "moe_weigh_bwd": partial(_weigh, backward=True),
    "heads_repeat": _repeat_heads,
    "embedding_bag_bwd_dense": _bag_dense,
    "heads_sum": of(lambda x: x.sum(2), "tokens heads times head_dim"),
}
"""Operation to the maker of its call."""
