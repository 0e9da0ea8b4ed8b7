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


_MASKED = 8
"""Experts that an index is of, as many tokens of each, in their order."""


def _index(s: Sizes) -> torch.Tensor:
    size = -(-s["tokens"] * s["topk"] // _MASKED)
    return torch.cat([torch.randperm(s["tokens"], device="cuda")[:size].sort().values for _ in range(_MASKED)])


def _select(s: Sizes, dtype: torch.dtype, *, backward: bool = False) -> Call:
    index, x = _index(s), random(s["tokens"], s["hidden"], dtype=dtype, grad=backward)
    return call(lambda x: x.index_select(0, index), x, backward=backward)


def _add_rows(s: Sizes, dtype: torch.dtype, *, backward: bool = False) -> Call:
    """Add rows up in zeros, by an index of each element."""
    index = _index(s)
    wide = index.unsqueeze(1).expand(-1, s["hidden"])

    def added(rows: torch.Tensor) -> torch.Tensor:
        return torch.zeros(s["tokens"], s["hidden"], device="cuda", dtype=dtype).scatter_add(0, wide, rows)

    return call(added, random(len(index), s["hidden"], dtype=dtype, grad=backward), backward=backward)


def _scale(s: Sizes, dtype: torch.dtype, *, backward: bool = False) -> Call:
    rows = s["tokens"] * s["topk"]
    pair = random(rows, s["hidden"], dtype=dtype, grad=backward), random(rows, dtype=dtype, grad=backward)
    return call(lambda x, weights: x * weights.unsqueeze(-1), *pair, backward=backward)


def _mask(s: Sizes) -> torch.Tensor:
    scores = torch.rand(s["tokens"], s["experts"], device="cuda")
    return torch.zeros_like(scores).scatter(0, scores.topk(_capacity(s), dim=0).indices, 1).bool()


def _capacity(s: Sizes) -> int:
    return -(-s["tokens"] * s["topk"] // s["experts"])


def _rows_by_mask(s: Sizes, dtype: torch.dtype) -> Call:
    mask, tokens = _mask(s), torch.arange(s["tokens"], device="cuda").expand(s["experts"], -1)
    return lambda: tokens.masked_select(mask.T.contiguous())


def _probs_by_mask(s: Sizes, dtype: torch.dtype) -> Call:
    mask, x = _mask(s), random(s["tokens"], s["experts"], dtype=dtype)
    return lambda: x.T.contiguous().masked_select(mask.T.contiguous())


def _capacity_top_k(s: Sizes, dtype: torch.dtype, *, backward: bool = False) -> Call:
    """Weights of the k largest scores of a token, of these the largest of an expert, and a loss of their balance."""
    scores = random(s["tokens"], s["experts"], dtype=dtype, grad=True)

    def chosen() -> tuple[torch.Tensor, torch.Tensor]:
        values, ids = scores.topk(s["topk"], dim=1)
        weights = torch.zeros_like(scores).scatter(1, ids, torch.softmax(values, -1, dtype=torch.float32).to(dtype))
        counts = torch.zeros_like(scores).int().scatter(1, ids, 1).bool().sum(0)
        kept = weights.topk(_capacity(s), dim=0, sorted=False).indices
        mask = torch.zeros_like(scores).scatter(0, kept, 1).bool()
        return weights * mask, (torch.softmax(scores, -1, dtype=torch.float32).sum(0) * counts).sum() * 1e-6

    if not backward:
        return chosen
    made = chosen()
    gradients = [torch.randn_like(each) for each in made]
    return lambda: torch.autograd.grad(made, scores, gradients, retain_graph=True)


def _repeat_heads(s: Sizes, dtype: torch.dtype) -> Call:
    x = random(s["tokens"], s["heads"], s["head_dim"], dtype=dtype)
    return lambda: x.repeat_interleave(s["times"], 1)


def _bag_dense(s: Sizes, dtype: torch.dtype) -> Call:
    table = torch.zeros(s["tables"] * s["rows"], s["dim"], device="cuda", dtype=dtype, requires_grad=True)
    first = torch.arange(s["tables"], device="cuda").repeat_interleave(s["batch"]) * s["rows"]
    indices = torch.randint(s["rows"], (s["tables"] * s["batch"], s["pooling"]), device="cuda") + first[:, None]
    return call(lambda table: functional.embedding_bag(indices, table, mode="sum"), table, backward=True)


_CACHED = 16
"""Tokens of a sequence in a cache, of which one is written: more would only take memory."""


def _write_to_cache(s: Sizes, dtype: torch.dtype) -> Call:
    """Write a token of each sequence, as a linear layer makes it, to its place in a cache that has heads first."""
    head = min(128, s["hidden"])
    x = random(s["tokens"], 1, s["hidden"] // head, head, dtype=dtype).transpose(1, 2)
    cache = random(s["tokens"], s["hidden"] // head, _CACHED, head, dtype=dtype)
    at = torch.full((1,), _CACHED - 1, device="cuda")
    return lambda: cache.index_copy_(2, at, x)


MAKERS: Mapping[str, Maker] = {
    "cache_write": _write_to_cache,
    "rope_fp32_fwd": _rope_fp32,
    "rope_fp32_bwd": partial(_rope_fp32, backward=True),
    "moe_permute_rows_bwd": _permute_rows_back,
    "moe_scatter_rows": _scatter_rows,
    "moe_regroup_rows": _regroup_rows,
    "moe_sort": _sort,
    "moe_weigh_fwd": _weigh,
    "moe_weigh_bwd": partial(_weigh, backward=True),
    "moe_select_rows_fwd": _select,
    "moe_select_rows_bwd": partial(_select, backward=True),
    "moe_add_rows_fwd": _add_rows,
    "moe_add_rows_bwd": partial(_add_rows, backward=True),
    "moe_scale_rows_fwd": _scale,
    "moe_scale_rows_bwd": partial(_scale, backward=True),
    "moe_rows_by_mask": _rows_by_mask,
    "moe_probs_by_mask": _probs_by_mask,
    "moe_capacity_top_k_fwd": _capacity_top_k,
    "moe_capacity_top_k_bwd": partial(_capacity_top_k, backward=True),
    "heads_repeat": _repeat_heads,
    "embedding_bag_bwd_dense": _bag_dense,
    "heads_sum": of(lambda x: x.sum(2), "tokens heads times head_dim"),
}
"""Operation to the maker of its call."""
