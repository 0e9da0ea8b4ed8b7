"""Embedding and all-to-all: a rank pools its tables for the whole batch and sends each rank the vectors of its samples.

A logical work-group pools one bag. By stores a vector is written where the interaction will read it; by PUT a slice of
vectors is sent when complete. The baseline pools in one kernel (or one a table, as PyTorch's modules do), then runs the
collective, then permutes what arrived into the order of samples. How long a work-group takes, by how many share the
memory, and what its symbols are, is in docs/models/fused-operators.md; a kernel that keeps to one table has no
crowding, as it holds few pages open. Source: Little's law; the constants are the device's `work_groups`.
"""

from dataclasses import dataclass, replace
from typing import Literal

from scaleout.cluster.device.spec import Device
from scaleout.config.units import Count, Duration
from scaleout.program.operations import ITEM_BYTES, kernel
from scaleout.schedule.fusion.fused import ORDERS, Recipe
from scaleout.schedule.fusion.machine import FusedMachine, groups_of
from scaleout.schedule.fusion.operator import Plan, Settings, shard_of
from scaleout.schedule.fusion.persistent import TaskList

_SHARPNESS = 3.0
_INDEX_BYTES = 8

_BLOCKS = 1024
"""Work-groups that PyTorch launches for a table, whatever the batch; each takes every 1024th bag."""

PUT_SLICE = 32
"""Vectors that go in one PUT, as in the paper."""


@dataclass(frozen=True)
class Pooling:
    """One pooled vector of a table, the work of one work-group."""

    rows: int
    dim: int
    dtype: str
    other_s: float = 0.0  # what the work-group does besides
    written: float = 0.0  # part of the output that a kernel over all tables writes locally; 0 if it keeps to one table
    reordered: bool = False  # whether addresses follow the remote-first order, which narrow rows pay for

    @property
    def vector_bytes(self) -> int:
        """Bytes of a pooled vector."""
        return self.dim * ITEM_BYTES[self.dtype]

    @property
    def memory_bytes(self) -> int:
        """Bytes read and written: rows, their indices, the result."""
        return self.rows * (self.vector_bytes + _INDEX_BYTES) + self.vector_bytes


def most_work_groups(device: Device) -> int:
    """Return how many gathering work-groups the device holds."""
    return groups_of(device).most_per_sm * device.num_sms


def pooling_s(device: Device, pooling: Pooling, resident: int) -> float:
    """Time of one work-group with so many resident."""
    groups = groups_of(device)
    narrow = pooling.reordered and pooling.dim <= groups.narrow_row_elements
    latency_s = pooling.rows * (groups.narrow_row_latency_s if narrow else groups.row_latency_s) + pooling.other_s
    occupancy = min(resident / most_work_groups(device), 1.0)
    beyond = max(0.0, occupancy - groups.crowded_from) / (1 - groups.crowded_from) if groups.crowded_from < 1 else 0.0
    crowd = 1 + groups.crowding * pooling.written * beyond
    share_s = crowd * resident * pooling.memory_bytes / (groups.memory_share * device.memory_bytes_per_s)
    return float((latency_s**_SHARPNESS + share_s**_SHARPNESS) ** (1 / _SHARPNESS))


def pooling_tasks(
    device: Device, pooling: Pooling, *, tasks: int, slots: int, slice_tasks: int = 1, spread: float = 0.0
) -> TaskList:
    """Return the task list of a persistent pooling kernel; more work-groups than the device holds take turns."""
    resident = min(slots, most_work_groups(device), tasks)
    rest = tasks % resident
    last_s = pooling_s(device, pooling, rest) if rest else 0.0
    return TaskList(tasks, resident, slice_tasks, pooling_s(device, pooling, resident), last_s, spread)


def table_by_table_s(device: Device, pooling: Pooling, *, bags: int, tables: int) -> float:
    """Time of one kernel for each table, as PyTorch runs them: each its bags, or the host's call, if that is longer."""
    blocks = min(bags, _BLOCKS)
    waves_s = pooling_tasks(device, pooling, tasks=blocks, slots=blocks).isolated_s
    kernel_s = bags / blocks * waves_s + device.launch_gap_s
    return tables * max(kernel_s, device.host_launch_s.get("embedding_bag_no_grad", 0.0))


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
    row_latency: Duration | None = None


def plan(settings: EmbeddingAllToAll, machine: FusedMachine) -> Plan:
    """Lay out the operator on a machine."""
    machine = _with_kernel(settings, machine)
    device, groups = machine.device, groups_of(machine.device)
    local_batch = shard_of("batch", settings.batch, machine.ranks)
    pooling = Pooling(settings.pooling, settings.dim, settings.dtype)
    over_tables = replace(pooling, written=1.0)
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
        kernel_s = pooling_tasks(device, over_tables, tasks=bags, slots=of_baseline).isolated_s
    baseline = {
        "launch": groups.launch_s,
        "kernel": kernel_s,
        "collective": machine.collective_s("all_to_all", size_bytes),
        "shuffle": machine.cost_model.kernel_s(order),
    }

    def part_s(chunks: int) -> tuple[float, float]:
        part = pooling_tasks(device, over_tables, tasks=-(-bags // chunks), slots=of_baseline)
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
    written = 1 / machine.ranks if machine.stores else 1.0
    pooling = Pooling(
        settings.pooling, settings.dim, settings.dtype, groups.book_keeping_s, written, reordered=order == "aware"
    )
    size, tasks = settings.tasks_of_slice(machine, PUT_SLICE), settings.batch * settings.tables
    work = pooling_tasks(machine.device, pooling, tasks=tasks, slots=slots, slice_tasks=size, spread=settings.spread)
    slice_bytes = size * pooling.vector_bytes
    return Recipe(machine.ranks, work, machine.link, slice_bytes, machine.call_s, machine.flag_s, groups.launch_s)
