"""Words by which nodes of a recording are known, in programs and in traces, and its kernels that are none of ours."""

import math
from dataclasses import replace

from scaleout.program.operations import ITEM_BYTES, RECORDED, Kernel

HOST = "host"
"""Name of nodes in which the host computes between its calls."""
LAUNCH = "launch"
"""Name of nodes by which work reaches a GPU that waits for it, after the host's call."""
RECORDER = "recorder"
"""Name of nodes in which the host writes down what it does; of an edited recording, the time that it loses by that."""
BEGINS = "rank begins"
"""Name of nodes by which a rank begins the recorded steps after the first rank: their profilers start one by one."""
UNTOLD = "untold wait"
"""Name of nodes in which a stream waited for what the recording does not tell."""
REDUCER = "torch::distributed::reducer::"
"""What the operations of kernels begin with that move gradients into DDP's buckets."""
BEFORE = "before the first step"
"""Phase of kernels that were launched before the recording began: the rest of a step that was not recorded."""


def recorded(name: str, *, dtype: str, token_bytes: int, other_bytes: int) -> Kernel:
    """Describe a recorded kernel that is no operation of ours, by the bytes of its tensors with and without tokens."""
    sizes = tuple(zip(RECORDED_SIZES, (token_bytes, other_bytes), strict=True))
    op = RECORDED + "_".join(name.split())  # a kernel is written in one line, where a space ends its name
    return Kernel(op, dtype, sizes, 0, token_bytes + other_bytes, "token_bytes")


def recorded_table_gradient(name: str, *, dtype: str, lookups: int, rows: int, width: int) -> Kernel:
    """Describe recorded kernels of the gradient of a table.

    Of n lookups spread evenly over R rows, ``R (1 - (1 - 1/R)^n)`` are touched in the mean; fewer if skewed. They run
    for the min(n, R) that could be, as PyTorch's do (``max_segments``, EmbeddingBackwardKernel.cu), and write these.
    """
    touched = -rows * math.expm1(lookups * math.log1p(-1 / rows)) if rows > 1 else rows
    token_bytes = min(round((touched + min(lookups, rows)) * width * ITEM_BYTES[dtype]), _MOST_BYTES)
    call = recorded(name, dtype=dtype, token_bytes=token_bytes, other_bytes=0)
    return replace(call, shape=(*call.shape, *zip(TABLE_SIZES, (lookups, rows, width), strict=True)))


RECORDED_SIZES = ("token_bytes", "other_bytes")
TABLE_SIZES = ("lookups", "rows", "width")
_MOST_BYTES = 2**60
