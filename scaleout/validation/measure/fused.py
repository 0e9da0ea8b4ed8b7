"""Fused operators and their bulk-synchronous baselines, timed on the GPUs of one host, with a check of their results.

embedding_all_to_all stores pooled bags directly into the buffer of the rank that has their samples, remote ones first
or in plain order. gemv_all_reduce stores parts of the GEMV to the rank that sums them up, and the sums to all ranks.
gemm_all_to_all stores each tile to the rank of its rows. Peers' buffers are PyTorch's symmetric memory. A fused
operator ends with a barrier, which counts. CUDA graphs exclude the launch cost of the host.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
import triton

from scaleout.validation.measure import fused_kernels
from scaleout.validation.measure.session import Session, Work, captured, elapsed_us, slowest_of, times_us

_ROWS = 200_000
"""Rows of each embedding table."""
_TILE = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "TOGETHER": 8}
_STRIP = {"ROWS": 16, "COLUMNS": 256}
_PROGRAMS_PER_SM = 4
"""Programs of the persistent GEMV per SM: few enough to be resident at the same time."""
_AIM_US = 5000
_MOST_CALLS = 10


class _Operator(NamedTuple):
    """A fused operator ready to run: `works` to time by name, and its buffers that kernels know only by address.

    `results` are the outputs of the baseline and of the fused operator; by rounding they differ by `tolerance` at most.
    """

    works: Mapping[str, Work]
    results: tuple[torch.Tensor, torch.Tensor]
    tolerance: float
    keeps: tuple[Any, ...]


def measure(row: Mapping[str, Any], session: Session) -> Mapping[str, Any]:
    """Check and time the operator of a row as one of the processes."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        operator = _OPERATORS[row["op"]](row, session)
        difference = _difference(operator, session)
        if not difference <= operator.tolerance:
            return {"error": f"fused and baseline differ by {difference}; at most {operator.tolerance} is rounding"}
        agree = session.slowest(dist.group.WORLD)
        times = {}
        for name, work in operator.works.items():
            session.barrier()
            work()
            once_us = agree(elapsed_us(work))
            calls = max(2, min(_MOST_CALLS, int(_AIM_US / max(once_us, 1.0))))
            replay = captured([work] * calls, stream)
            times[name] = times_us(replay, calls=calls, repeats=session.repeats, least_us=_AIM_US, most=20, agree=agree)
    return {"times": times, "max_abs_diff": difference}


def join(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the slowest rank's time of each repeat, summed up, and the largest difference."""
    times = slowest_of(found)
    medians = {f"{name}_us": round(statistics.median(values), 2) for name, values in times.items()}
    return {"max_abs_diff": max(each["max_abs_diff"] for each in found), **medians}


def _difference(operator: _Operator, session: Session) -> float:
    """Run baseline and fused operator over buffers of NaN; return the largest difference of their results."""
    operator.works["fused"]()
    session.barrier()
    for flags in (kept for kept in operator.keeps if isinstance(kept, torch.Tensor) and kept.dtype == torch.int32):
        flags.zero_()  # ranks may have timed out while one of them compiled
    for result in operator.results:
        result.fill_(float("nan"))
    session.barrier()
    operator.works["baseline"]()
    operator.works["fused"]()
    session.barrier()
    baseline, fused = operator.results
    return float((baseline.float() - fused.float()).abs().max())


def _shared(*shape: int, dtype: torch.dtype) -> tuple[torch.Tensor, Any, torch.Tensor]:
    """Return a buffer that peers can store into, its handle, and the addresses of all ranks' buffers."""
    buffer = symmetric_memory.empty(*shape, dtype=dtype, device=torch.device("cuda", torch.cuda.current_device()))
    buffer.zero_()
    handle = symmetric_memory.rendezvous(buffer, dist.group.WORLD)
    return buffer, handle, torch.tensor(list(handle.buffer_ptrs), dtype=torch.int64, device="cuda")


def _slabs(buffer: torch.Tensor) -> torch.Tensor:
    """Return the addresses of the parts of a local buffer, along its first dimension."""
    return torch.tensor([part.data_ptr() for part in buffer], dtype=torch.int64, device="cuda")


def _one_after_another(*works: Work) -> Work:
    def all_of_them() -> None:
        for work in works:
            work()

    return all_of_them


def _embedding_all_to_all(row: Mapping[str, Any], session: Session) -> _Operator:
    batch, tables, dim, ranks = row["batch"], row["tables_per_gpu"], row["dim"], session.gpus
    local, width = batch // ranks, triton.next_power_of_2(dim)
    table = torch.randn(tables * _ROWS, dim, device="cuda")
    indices = torch.randint(_ROWS, (tables * batch, row["pooling"]), device="cuda")
    received, handle, peers = _shared(local, ranks * tables, dim, dtype=torch.float32)
    sent = torch.empty(ranks, tables, local, dim, device="cuda")
    gathered, ordered, slabs = torch.empty_like(sent), torch.empty_like(received), _slabs(sent)
    all_to_all = partial(dist.all_to_all_single, gathered, sent)
    sizes = (ranks, batch, tables, dim, row["pooling"], _ROWS)
    warps = {"WIDTH": width, "num_warps": max(1, min(4, width // 128))}
    kernel = fused_kernels.pool[(row["persistent_programs"],)]

    def pool() -> None:
        kernel(table, indices, slabs, 0, *sizes, 0, SAMPLE_MAJOR=False, **warps)

    def shuffle() -> None:
        ordered.view(local, ranks, tables, dim).copy_(gathered.permute(2, 0, 1, 3))

    def fused(first: int) -> Work:
        def work() -> None:
            kernel(table, indices, peers, session.rank, *sizes, first, SAMPLE_MAJOR=True, **warps)
            handle.barrier()

        return work

    works: Mapping[str, Work] = {
        "pool": pool,
        "all_to_all": all_to_all,
        "shuffle": shuffle,
        "baseline": _one_after_another(pool, all_to_all, shuffle),
        "fused": fused((session.rank + 1) % ranks),
        "fused_oblivious": fused(0),
    }
    return _Operator(works, (ordered, received), 1e-3, (sent, handle))


def _gemv_all_reduce(row: Mapping[str, Any], session: Session) -> _Operator:
    rows, columns, ranks = row["M"], row["K"], session.gpus
    matrix = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * columns**-0.5
    vector = torch.randn(columns, device="cuda", dtype=torch.bfloat16)
    parts, handle, part_peers = _shared(ranks, rows, dtype=torch.bfloat16)
    sums, _, sum_peers = _shared(rows, dtype=torch.bfloat16)
    num_sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    programs = min(rows // _STRIP["ROWS"], _PROGRAMS_PER_SM * num_sms)
    flags, _, flag_peers = _shared(programs, dtype=torch.int32)
    result = torch.empty(rows, device="cuda", dtype=torch.bfloat16)
    all_reduce = partial(dist.all_reduce, result)
    launch = {**_STRIP, "num_warps": 4}

    def gemv() -> None:
        fused_kernels.matrix_vector[(programs,)](matrix, vector, result, rows, columns, **launch)

    def fused() -> None:
        fused_kernels.matrix_vector_all_reduce[(programs,)](
            matrix, vector, part_peers, sum_peers, flag_peers, session.rank, ranks, rows, columns,
            SPINS=fused_kernels.SPINS, **launch,
        )  # fmt: skip
        handle.barrier()

    works: Mapping[str, Work] = {
        "gemv": gemv,
        "all_reduce": all_reduce,
        "baseline": _one_after_another(gemv, all_reduce),
        "fused": fused,
    }
    return _Operator(works, (result, sums), 0.1, (parts, flags, handle))


def _gemm_all_to_all(row: Mapping[str, Any], session: Session) -> _Operator:
    m, n, k, ranks = row["M"], row["N"], row["K"], session.gpus
    if m % (ranks * _TILE["BLOCK_M"]) or n % _TILE["BLOCK_N"] or k % _TILE["BLOCK_K"]:
        raise ValueError(f"tiles of {_TILE} on {ranks} ranks do not divide M {m}, N {n}, K {k}")
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16) * k**-0.5
    b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    received, handle, peers = _shared(ranks, m // ranks, n, dtype=torch.bfloat16)
    sent = torch.empty(ranks, m // ranks, n, device="cuda", dtype=torch.bfloat16)
    gathered, slabs = torch.empty_like(sent), _slabs(sent)
    all_to_all = partial(dist.all_to_all_single, gathered, sent)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    grid = (ranks * (m // ranks // _TILE["BLOCK_M"]) * (n // _TILE["BLOCK_N"]),)
    launch = {**_TILE, "num_warps": 8, "num_stages": 3}

    def gemm() -> None:
        fused_kernels.gemm[grid](a, b, slabs, 0, ranks, m, n, k, 0, **launch)

    def fused() -> None:
        first = (session.rank + 1) % ranks
        fused_kernels.gemm[grid](a, b, peers, session.rank, ranks, m, n, k, first, **launch)
        handle.barrier()

    works: Mapping[str, Work] = {
        "gemm": gemm,
        "cublas_gemm": lambda: torch.mm(a, b, out=out),
        "all_to_all": all_to_all,
        "baseline": _one_after_another(gemm, all_to_all),
        "fused": fused,
    }
    return _Operator(works, (gathered, received), 0.1, (sent, handle))


_OPERATORS: Mapping[str, Callable[[Mapping[str, Any], Session], _Operator]] = {
    "embedding_all_to_all": _embedding_all_to_all,
    "gemv_all_reduce": _gemv_all_reduce,
    "gemm_all_to_all": _gemm_all_to_all,
}
"""Name of an operator to the function that sets it up."""
