"""What layers of networks share: collectives between them, forward and backward, over all GPUs, and attention."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

Called = tuple[torch.Tensor, Any]
"""The result of an exchange, and what waits for it if it was started asynchronously."""


def _all_reduce(x: torch.Tensor, asynchronous: bool) -> Called:
    """Sum in place."""
    return x, dist.all_reduce(x, async_op=asynchronous)


def _all_gather(x: torch.Tensor, asynchronous: bool) -> Called:
    """Join the shards along the first dimension."""
    whole = x.new_empty(x.shape[0] * dist.get_world_size(), *x.shape[1:])
    return whole, dist.all_gather_into_tensor(whole, x.contiguous(), async_op=asynchronous)


def _reduce_scatter(x: torch.Tensor, asynchronous: bool) -> Called:
    """Sum, and keep a shard along the first dimension."""
    shard = x.new_empty(x.shape[0] // dist.get_world_size(), *x.shape[1:])
    return shard, dist.reduce_scatter_tensor(shard, x.contiguous(), async_op=asynchronous)


def _all_to_all(x: torch.Tensor, asynchronous: bool) -> Called:
    """Exchange equal parts along the first dimension."""
    sent = x.contiguous()
    received = torch.empty_like(sent)
    return received, dist.all_to_all_single(received, sent, async_op=asynchronous)


EXCHANGES: Mapping[str, Callable[[torch.Tensor, bool], Called]] = {
    "nothing": lambda x, asynchronous: (x, None),
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}
"""Kind of an exchange to its call."""


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """A collective forward, and one backward; either may be nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: str, backward: str) -> torch.Tensor:
        ctx.kind = backward
        return EXCHANGES[forward](x, False)[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return EXCHANGES[ctx.kind](gradient, False)[0], None, None


def exchange(x: torch.Tensor, forward: str, backward: str) -> torch.Tensor:
    """Call one of `EXCHANGES`, and another in its backward; where both are nothing, there is no call."""
    if forward == backward == "nothing":
        return x
    return _Exchange.apply(x, forward, backward)


MODES: Mapping[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "dp": (("nothing", "nothing"), ("nothing", "nothing")),
    "fsdp": (("nothing", "nothing"), ("nothing", "nothing")),
    "tp": (("nothing", "all_reduce"), ("all_reduce", "nothing")),
    "tp_sp": (("all_gather", "reduce_scatter"), ("reduce_scatter", "all_gather")),
}
"""Mode to the exchanges, forward and backward, before and after the two halves of a transformer layer."""

HEAD = 128
"""Size of a head."""


def attention(x: torch.Tensor) -> torch.Tensor:
    """Attention over heads of queries, keys and values in Megatron-LM's layout, sequence first."""
    parts = x.view(*x.shape[:2], -1, 3 * HEAD).permute(1, 2, 0, 3).chunk(3, dim=-1)
    y = functional.scaled_dot_product_attention(*parts, is_causal=True)
    return y.permute(2, 0, 1, 3).reshape(*x.shape[:2], -1)
