"""Collectives between the layers of a network, forward and backward, over all GPUs of a measurement."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist


def all_reduce(x: torch.Tensor) -> torch.Tensor:
    """Sum in place."""
    dist.all_reduce(x)
    return x


def all_gather(x: torch.Tensor) -> torch.Tensor:
    """Join the shards along the first dimension."""
    whole = x.new_empty(x.shape[0] * dist.get_world_size(), *x.shape[1:])
    dist.all_gather_into_tensor(whole, x.contiguous())
    return whole


def reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    """Sum, and keep a shard along the first dimension."""
    shard = x.new_empty(x.shape[0] // dist.get_world_size(), *x.shape[1:])
    dist.reduce_scatter_tensor(shard, x.contiguous())
    return shard


def all_to_all(x: torch.Tensor) -> torch.Tensor:
    """Exchange equal parts along the first dimension."""
    sent = x.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return received


COLLECTIVES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nothing": lambda x: x,
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
}
"""Name of an exchange to its call."""


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """A collective forward, and one backward; either may be nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: str, backward: str) -> torch.Tensor:
        ctx.kind = backward
        return COLLECTIVES[forward](x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return COLLECTIVES[ctx.kind](gradient), None, None


def exchange(x: torch.Tensor, forward: str, backward: str) -> torch.Tensor:
    """Call one of `COLLECTIVES`, and another in its backward."""
    return _Exchange.apply(x, forward, backward)
