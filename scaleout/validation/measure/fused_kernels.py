"""Triton kernels that compute and store into peers' memory: persistent pooling, and GEMMs with direct exchanges.

A peer's buffer is reached through a table of addresses, one per rank, including the own rank. The same kernels make the
bulk-synchronous baseline, with a table of local buffers only.

Symbols: R ranks; G programs of a persistent kernel; T tables, B samples in the whole batch, D columns of a table.
Source: the operators of Punniyamurthy et al., Optimizing distributed ML communication with fused
computation-collective operations, SC 2024; `update_rows`, on one GPU: FBGEMM's table-batched embedding, Khudia et al.,
arXiv:2101.05615, without its sorting.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803, PLR0917

import torch
import triton
import triton.language as tl

SPINS = 1 << 18
"""Polls of a flag before a kernel stops waiting for a peer: a fault gives wrong results instead of a hang."""


@triton.jit
def pool(
    table, indices, peers, rank, ranks, batch, tables, dim, pooling, rows, first,
    WIDTH: tl.constexpr, SAMPLE_MAJOR: tl.constexpr,
):  # fmt: skip
    """Pool the bags of a rank's tables and store each to the rank that has its sample.

    G programs take bags in turn, starting with the samples of rank `first`. The receiver's buffer is in sample order,
    (B / R, R * T, D), or in sender order, (R, T, B / R, D).
    """
    local = batch // ranks
    columns = tl.arange(0, WIDTH)
    inside = columns < dim
    per_rank = local * tables
    for task in range(tl.program_id(0), per_rank * ranks, tl.num_programs(0)):
        to = (first + task // per_rank) % ranks
        sample = task % per_rank // tables
        slot = task % tables
        bag = (slot * batch + to * local + sample).to(tl.int64)
        total = tl.zeros((WIDTH,), dtype=tl.float32)
        for position in range(pooling):
            row = tl.load(indices + bag * pooling + position) + slot.to(tl.int64) * rows
            total += tl.load(table + row * dim + columns, mask=inside, other=0.0)
        target = tl.load(peers + to).to(tl.pointer_type(tl.float32))
        if SAMPLE_MAJOR:
            place = (sample * ranks + rank).to(tl.int64) * tables + slot
        else:
            place = (rank * tables + slot).to(tl.int64) * local + sample
        tl.store(target + place * dim + columns, total, mask=inside)


@triton.jit
def matrix_vector(matrix, vector, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Multiply a (rows, columns) matrix by a vector; each of G programs takes a slice of the rows, in blocks."""
    blocks = tl.cdiv(rows, ROWS)
    first, end = _slice(blocks)
    for block in range(first, end):
        line = block * ROWS + tl.arange(0, ROWS)
        part = _rows_times(matrix, vector, line, columns, ROWS, COLUMNS)
        tl.store(result + line, part.to(matrix.dtype.element_ty), mask=line < rows)


@triton.jit
def _slice(blocks):
    number, programs = tl.program_id(0), tl.num_programs(0)
    return number * blocks // programs, (number + 1) * blocks // programs


@triton.jit
def _rows_times(matrix, vector, line, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for begin in range(0, columns, COLUMNS):
        across = begin + tl.arange(0, COLUMNS)
        a = tl.load(matrix + line.to(tl.int64)[:, None] * columns + across[None, :])
        x = tl.load(vector + across)
        total += a.to(tl.float32) * x[None, :].to(tl.float32)
    return tl.sum(total, axis=1)


@triton.jit
def matrix_vector_all_reduce(
    matrix, vector, parts, sums, flags, rank, ranks, rows, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPINS: tl.constexpr,
):  # fmt: skip
    """Multiply, and sum over the ranks in two direct phases, in one persistent kernel.

    The slice of program g goes to rank g mod R, whose program g sums it up once its flag has counted the parts of all
    ranks, and stores the sum to all ranks. `parts`, `sums` and `flags` are tables of addresses: (R, rows), (rows,), one
    int32 per program. All G programs must be resident at the same time. Flags are zero before and after.
    """
    number = tl.program_id(0)
    first, end = _slice(tl.cdiv(rows, ROWS))
    owner = number % ranks
    target = tl.load(parts + owner).to(tl.pointer_type(matrix.dtype.element_ty))
    for block in range(first, end):
        line = block * ROWS + tl.arange(0, ROWS)
        part = _rows_times(matrix, vector, line, columns, ROWS, COLUMNS)
        tl.store(target + rank * rows + line, part.to(matrix.dtype.element_ty), mask=line < rows)
    tl.debug_barrier()  # all threads have stored before one of them raises the flag
    flag = tl.load(flags + owner).to(tl.pointer_type(tl.int32)) + number
    tl.atomic_add(flag, 1, sem="release", scope="sys")
    if owner == rank:
        seen = 0
        spins = 0
        while (seen < ranks) & (spins < SPINS):
            seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
            spins += 1
        tl.debug_barrier()
        for block in range(first, end):
            line = block * ROWS + tl.arange(0, ROWS)
            total = tl.zeros((ROWS,), dtype=tl.float32)
            for sender in range(ranks):
                part = tl.load(target + sender * rows + line, mask=line < rows, other=0.0, volatile=True)
                total += part.to(tl.float32)
            for receiver in range(ranks):
                to = tl.load(sums + receiver).to(tl.pointer_type(matrix.dtype.element_ty))
                tl.store(to + line, total.to(matrix.dtype.element_ty), mask=line < rows)
        tl.atomic_xchg(flag, 0)


@triton.jit
def gemm(
    a, b, peers, rank, ranks, M, N, K, first,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Multiply (M, K) by (K, N); each tile of the result is stored to the rank that owns its M / R rows.

    Tiles of the rows of rank `first` come first; within a rank's rows `TOGETHER` tiles along M share columns, for the
    cache. The receiver's buffer is (R, M / R, N), by sender.
    """
    local = M // ranks
    tiles_m, tiles_n = tl.cdiv(local, BLOCK_M), tl.cdiv(N, BLOCK_N)
    number = tl.program_id(0)
    to = (first + number // (tiles_m * tiles_n)) % ranks
    number = number % (tiles_m * tiles_n)
    group = number // (TOGETHER * tiles_n)
    height = min(tiles_m - group * TOGETHER, TOGETHER)
    m = group * TOGETHER + number % (TOGETHER * tiles_n) % height
    n = number % (TOGETHER * tiles_n) // height

    line = m * BLOCK_M + tl.arange(0, BLOCK_M)
    across = n * BLOCK_N + tl.arange(0, BLOCK_N)
    along = tl.arange(0, BLOCK_K)
    left = a + (to * local + line).to(tl.int64)[:, None] * K + along[None, :]
    right = b + along.to(tl.int64)[:, None] * N + across[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(0, K, BLOCK_K):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += BLOCK_K
        right += BLOCK_K * N
    target = tl.load(peers + to).to(tl.pointer_type(a.dtype.element_ty))
    place = (rank * local + line).to(tl.int64)[:, None] * N + across[None, :]
    tl.store(target + place, total.to(a.dtype.element_ty))


@triton.jit
def _update_rows(table, indices, gradient, dim, pooling, rate, WIDTH: tl.constexpr):
    bag = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    inside = columns < dim
    step = tl.load(gradient + bag * dim + columns, mask=inside) * rate
    for position in range(pooling):
        row = tl.load(indices + bag * pooling + position)
        tl.atomic_add(table + row * dim + columns, step, mask=inside, sem="relaxed")


def update_rows(table: torch.Tensor, indices: torch.Tensor, gradient: torch.Tensor) -> None:
    """Take a gradient step on a (rows, dim) table in fp32, from (bags, pooling) indices and (bags, dim) gradients.

    The backward of pooled tables and their update are one kernel, as in production: each bag's gradient row is read
    once and added atomically to every table row that the bag looked up.
    """
    bags, pooling = indices.shape
    width = triton.next_power_of_2(table.shape[1])
    _update_rows[(bags,)](table, indices, gradient, table.shape[1], pooling, -1e-6, WIDTH=width, num_warps=1)


@triton.jit
def _cast_twice(x, plain, turned, rows, columns, scale, BLOCK: tl.constexpr):
    line = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    across = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = (line < rows)[:, None] & (across < columns)[None, :]
    place = line[:, None] * columns + across[None, :]
    wide = tl.load(x + place, mask=inside).to(tl.float32) * scale
    narrow = tl.minimum(tl.maximum(wide, -448.0), 448.0).to(tl.float8e4nv)
    tl.store(plain + place, narrow, mask=inside)
    place = across[:, None] * rows + line[None, :]
    tl.store(turned + place, tl.trans(narrow), mask=(across < columns)[:, None] & (line < rows)[None, :])


def cast_twice(x: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cast a (rows, columns) matrix to fp8, as it is and transposed, in one kernel that reads it once."""
    rows, columns = x.shape
    plain = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    turned = torch.empty(columns, rows, device=x.device, dtype=torch.float8_e4m3fn)
    grid = (triton.cdiv(rows, 64), triton.cdiv(columns, 64))
    _cast_twice[grid](x, plain, turned, rows, columns, scale, BLOCK=64, num_warps=4)
    return plain, turned
