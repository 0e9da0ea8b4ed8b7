"""Embedding and all-to-all: a rank pools its tables for the whole batch and sends each rank the vectors of its samples.

A logical work-group pools one bag. By stores a vector is written where the interaction will read it; by PUT a slice of
vectors is sent when complete. The baseline pools in one kernel (or one a table, as PyTorch's modules do), then runs the
collective, then permutes what arrived into the order of samples.
"""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from scaleout.config.units import Seconds
from scaleout.program.operations import kernel
from scaleout.schedule.fusion.fused import ORDERS, Recipe
from scaleout.schedule.fusion.gather import Pooling, most_work_groups, pooling_tasks, table_by_table_s
from scaleout.schedule.fusion.machine import FusedMachine, groups_of
from scaleout.schedule.fusion.operator import Count, Plan, Settings, shard_of

PUT_SLICE = 32
"""Vectors that go in one PUT, as in the paper."""


class EmbeddingAllToAll(Settings):
    """Keys of the operator: the batch of all ranks, the tables of each, and how its baseline launches kernels.

    `row_latency` is that of another compiled kernel than the one that the device's file knows, in any order.
    """

    batch: Count = 2048
    tables: Count = 256
    dim: Count = 256
    pooling: Count = 70
    dtype: Literal["fp32", "fp16", "bf16"] = "fp32"
    baseline_kernels: Literal["together", "per_table"] = "together"
    row_latency: Annotated[Seconds, Field(gt=0)] | None = None


def plan(settings: EmbeddingAllToAll, machine: FusedMachine) -> Plan:
    """Lay out the operator on a machine."""
    machine = _with_kernel(settings, machine)
    device, groups = machine.device, groups_of(machine.device)
    local_batch = shard_of("batch", settings.batch, machine.ranks)
    pooling = Pooling(settings.pooling, settings.dim, settings.dtype)
    bags = settings.batch * settings.tables
    most = most_work_groups(device)
    slots = settings.slots(most, int(groups.fused_occupancy * most))
    of_baseline = settings.work_groups or most
    size_bytes = bags * pooling.vector_bytes
    order = kernel(
        "permute_for_all_to_all", dtype=settings.dtype, batch=local_batch, tables=settings.tables * machine.ranks,
        dim=settings.dim,
    )  # fmt: skip
    if settings.baseline_kernels == "per_table":
        kernel_s = table_by_table_s(device, pooling, bags=settings.batch, tables=settings.tables)
    else:
        kernel_s = pooling_tasks(device, pooling, tasks=bags, slots=of_baseline, written=1.0).isolated_s
    baseline = {
        "launch": groups.launch_s,
        "kernel": kernel_s,
        "collective": machine.collective_s("all_to_all", size_bytes),
        "shuffle": machine.cost_model.kernel_s(order),
    }

    def part_s(chunks: int) -> tuple[float, float]:
        part = pooling_tasks(device, pooling, tasks=-(-bags // chunks), slots=of_baseline, written=1.0)
        return groups.launch_s + part.isolated_s, machine.collective_s("all_to_all", size_bytes / chunks)

    recipes = {order: _recipe(settings, machine, order=order, slots=slots) for order in ORDERS}
    return Plan(baseline, recipes, part_s)


def _with_kernel(settings: EmbeddingAllToAll, machine: FusedMachine) -> FusedMachine:
    """Return the machine with the row latency that the settings name, if they do."""
    if settings.row_latency is None:
        return machine
    changes = {"row_latency_s": settings.row_latency, "narrow_row_elements": 0}
    groups = groups_of(machine.device).model_copy(update=changes)
    return FusedMachine(replace(machine.device, work_groups=groups), machine.topology)


def _recipe(settings: EmbeddingAllToAll, machine: FusedMachine, *, order: str, slots: int) -> Recipe:
    groups = groups_of(machine.device)
    pooling = Pooling(settings.pooling, settings.dim, settings.dtype)
    size = settings.tasks_of_slice(machine, PUT_SLICE)
    work = pooling_tasks(
        machine.device,
        pooling,
        tasks=settings.batch * settings.tables,
        slots=slots,
        slice_tasks=size,
        spread=settings.spread,
        other_s=groups.book_keeping_s,
        written=1 / machine.ranks if machine.stores else 1.0,
        reordered=order == "aware",
    )
    return Recipe(
        machine.ranks,
        work,
        machine.link,
        size * pooling.vector_bytes,
        call_s=machine.call_s,
        flag_s=machine.flag_s,
        launch_s=groups.launch_s,
    )
