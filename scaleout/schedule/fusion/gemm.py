"""GEMMs fused with a collective: tiles to tasks.

A logical work-group makes one tile. The tasks' time is the library kernel's, times `gemm_slowdown` for the operators'
own GEMM and `fused_gemm_slowdown` where it is fused, spread over the rounds of tiles. Tiles of one rank's rows are a
shard.
`gemv_all_reduce` is the two-phase direct all-reduce of partial sums, `gemm_reduce_scatter` its first phase;
`gemm_all_to_all` returns experts' rows to their tokens' ranks (combine); `all_gather_gemm` starts with its own rows.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from scaleout.config.units import Count
from scaleout.program.operations import ITEM_BYTES, kernel
from scaleout.schedule.fusion.fused import ORDERS, Recipe
from scaleout.schedule.fusion.machine import FusedMachine, groups_of
from scaleout.schedule.fusion.operator import Plan, Settings, shard_of
from scaleout.schedule.fusion.persistent import TaskList

Dtype = Literal["bf16", "fp16", "fp32"]
_GEMV_GROUPS_PER_SM = 2


class GemvAllReduce(Settings):
    """Keys of the operator: an (M, K) matrix on each rank, of which a work-group multiplies `tile_rows` rows."""

    M: Count = 16384
    K: Count = 8192
    tile_rows: Count = 16
    dtype: Dtype = "fp16"


class Gemm(Settings):
    """Keys of an operator with an (M, K) by (K, N) GEMM on each rank, in tiles."""

    M: Count = 8192
    N: Count = 4096
    K: Count = 4096
    tile_rows: Count = 128
    tile_cols: Count = 128
    dtype: Dtype = "fp16"


class GemmAllToAll(Gemm):
    """Keys of the combine of a mixture of experts: a row goes to `topk` ranks."""

    topk: Count = 1


def gemv_all_reduce(settings: GemvAllReduce, machine: FusedMachine) -> Plan:
    """Lay out GEMV and all-reduce on a machine."""
    item_bytes, ranks = ITEM_BYTES[settings.dtype], machine.ranks
    tiles = ranks * -(-shard_of("M", settings.M, ranks) // settings.tile_rows)
    most, sent_bytes = _GEMV_GROUPS_PER_SM * machine.device.num_sms, settings.M * item_bytes
    shard_bytes = settings.M // ranks * item_bytes

    def gemv_s(rows: int) -> float:
        return machine.cost_model.kernel_s(kernel("gemv", dtype=settings.dtype, M=rows, N=settings.K))

    recipe = _recipe(settings, machine, gemv_s(settings.M), tiles=tiles, most=most, tile_bytes=sent_bytes / tiles)
    recipe = replace(recipe, reduce_s=_reduce_s(machine, shard_bytes), shared_bytes=shard_bytes)
    return _plan(settings, machine, "all_reduce", sent_bytes, kernel_s=gemv_s, recipe=recipe)


def gemm_all_to_all(settings: GemmAllToAll, machine: FusedMachine) -> Plan:
    """Lay out a GEMM and the all-to-all of its rows on a machine."""
    sent = settings.topk * settings.M * settings.N * ITEM_BYTES[settings.dtype]
    return _gemm(settings, machine, "all_to_all", sent)


def gemm_reduce_scatter(settings: Gemm, machine: FusedMachine) -> Plan:
    """Lay out a GEMM and the reduce-scatter of its partial sums on a machine."""
    result_bytes = settings.M * settings.N * ITEM_BYTES[settings.dtype]
    reduce_s = _reduce_s(machine, result_bytes / machine.ranks)
    return _gemm(settings, machine, "reduce_scatter", result_bytes, reduce_s=reduce_s)


def all_gather_gemm(settings: Gemm, machine: FusedMachine) -> Plan:
    """Lay out the all-gather of a GEMM's rows and the GEMM on a machine."""
    input_bytes = settings.M * settings.K * ITEM_BYTES[settings.dtype]
    return _gemm(settings, machine, "all_gather", input_bytes)


def _gemm(settings: Gemm, machine: FusedMachine, kind: str, moved_bytes: float, *, reduce_s: float = 0.0) -> Plan:
    """Lay out a GEMM and the collective behind it, or the all-gather in front of one that consumes its data."""
    rows, groups = shard_of("M", settings.M, machine.ranks), groups_of(machine.device)
    tiles = machine.ranks * -(-rows // settings.tile_rows) * -(-settings.N // settings.tile_cols)

    def gemm_s(rows: int) -> float:
        call = kernel("gemm", dtype=settings.dtype, M=rows, N=settings.N, K=settings.K)
        return groups.gemm_slowdown * machine.cost_model.kernel_s(call)

    fused_s = gemm_s(settings.M) * groups.fused_gemm_slowdown
    most, tile_bytes = machine.device.num_sms, moved_bytes / tiles
    recipe = _recipe(settings, machine, fused_s, tiles=tiles, most=most, tile_bytes=tile_bytes)
    recipe = replace(recipe, consumes=kind == "all_gather", reduce_s=reduce_s)
    return _plan(settings, machine, kind, moved_bytes, kernel_s=gemm_s, recipe=recipe)


def _plan(
    settings: Gemm | GemvAllReduce,
    machine: FusedMachine,
    kind: str,
    moved_bytes: float,
    *,
    kernel_s: Callable[[int], float],
    recipe: Recipe,
) -> Plan:
    """Lay out a kernel that can be cut along its rows, whose time `kernel_s` gives, and the collective next to it."""

    def part_s(chunks: int) -> tuple[float, float]:
        if settings.M % (chunks * machine.ranks):
            return math.inf, math.inf
        return kernel_s(settings.M // chunks), machine.collective_s(kind, moved_bytes / chunks)

    baseline = {"kernel": kernel_s(settings.M), "collective": machine.collective_s(kind, moved_bytes)}
    if recipe.consumes:
        baseline = dict(reversed(baseline.items()))
    return Plan(baseline, dict.fromkeys(ORDERS, recipe), part_s)


def _recipe(
    settings: Settings, machine: FusedMachine, whole_s: float, *, tiles: int, most: int, tile_bytes: float
) -> Recipe:
    size = settings.tasks_of_slice(machine, 1)
    # A kernel with fewer work-groups than the device holds takes as much longer as it needs more rounds.
    task_s = whole_s / -(-tiles // most)
    work = TaskList(tiles, min(settings.slots(most, most), tiles), size, task_s, task_s, settings.spread)
    return Recipe(machine.ranks, work, machine.link, size * tile_bytes, call_s=machine.call_s, flag_s=machine.flag_s)


def _reduce_s(machine: FusedMachine, shard_bytes: float) -> float:
    """Time to read a shard from all ranks and to write its sum: at the rate of the memory, after one access."""
    groups = groups_of(machine.device)
    moved = (machine.ranks + 1) * shard_bytes
    return groups.row_latency_s + moved / (groups.memory_share * machine.device.memory_bytes_per_s)
