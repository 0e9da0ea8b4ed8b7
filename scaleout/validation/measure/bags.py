"""A Triton kernel that fuses the backward of pooled embedding tables with their update, as production kernels do.

Each bag's gradient row is read once and added atomically to every table row that the bag looked up.

Source: the operation of FBGEMM's table-batched embedding, Khudia et al., arXiv:2101.05615, without its sorting.
"""

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _update_rows(table, indices, gradient, dim, pooling, rate, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803, PLR0917
    bag = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    inside = columns < dim
    step = tl.load(gradient + bag * dim + columns, mask=inside) * rate
    for position in range(pooling):
        row = tl.load(indices + bag * pooling + position)
        tl.atomic_add(table + row * dim + columns, step, mask=inside, sem="relaxed")


def update_rows(table: torch.Tensor, indices: torch.Tensor, gradient: torch.Tensor) -> None:
    """Take a gradient step on a (rows, dim) table in fp32, from (bags, pooling) indices and (bags, dim) gradients."""
    bags, pooling = indices.shape
    width = triton.next_power_of_2(table.shape[1])
    _update_rows[(bags,)](table, indices, gradient, table.shape[1], pooling, -1e-6, WIDTH=width, num_warps=1)
