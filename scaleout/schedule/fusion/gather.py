"""How long a work-group gathers rows, and a kernel of them pools tables: by how many work-groups share the memory.

    t(G) = ((rows L + o)^3 + (c G b / B)^3)^(1/3),  c = 1 + k w (u - u0) / (1 - u0) beyond occupancy u0

See docs/models/fused-operators.md. A kernel that keeps to one table has no crowding: it holds few pages open.

Symbols: L latency of a row [s]; o other work [s]; b bytes of a work-group; B bandwidth that random rows reach [B/s];
u occupancy; c crowding; w output written locally. Source: Little's law; the constants are the device's `work_groups`.
"""

from dataclasses import dataclass

from scaleout.cluster.device.spec import Device
from scaleout.program.operations import ITEM_BYTES
from scaleout.schedule.fusion.machine import groups_of
from scaleout.schedule.fusion.persistent import TaskList

_SHARPNESS = 3.0
_INDEX_BYTES = 8


@dataclass(frozen=True)
class Pooling:
    """One pooled vector of a table, the work of one work-group."""

    rows: int
    dim: int
    dtype: str

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


def pooling_s(
    device: Device, pooling: Pooling, resident: int, *, other_s: float = 0.0, written: float = 0.0,
    reordered: bool = False,
) -> float:  # fmt: skip
    """Time of one work-group with so many resident.

    Parameters
    ----------
    other_s : float
        What it does besides.
    written : float
        Part of the output that a kernel over all tables writes locally; 0 for a kernel that keeps to one table.
    reordered : bool
        Whether addresses follow the remote-first order, which narrow rows pay for.
    """
    groups = groups_of(device)
    narrow = reordered and pooling.dim <= groups.narrow_row_elements
    latency_s = pooling.rows * (groups.narrow_row_latency_s if narrow else groups.row_latency_s) + other_s
    occupancy = min(resident / most_work_groups(device), 1.0)
    beyond = max(0.0, occupancy - groups.crowded_from) / (1 - groups.crowded_from) if groups.crowded_from < 1 else 0.0
    crowd = 1 + groups.crowding * written * beyond
    share_s = crowd * resident * pooling.memory_bytes / (groups.memory_share * device.memory_bytes_per_s)
    return float((latency_s**_SHARPNESS + share_s**_SHARPNESS) ** (1 / _SHARPNESS))


def pooling_tasks(
    device: Device, pooling: Pooling, *, tasks: int, slots: int, slice_tasks: int = 1, spread: float = 0.0,
    other_s: float = 0.0, written: float = 0.0, reordered: bool = False,
) -> TaskList:  # fmt: skip
    """Return the task list of a persistent pooling kernel; more work-groups than the device holds take turns."""
    resident = min(slots, most_work_groups(device), tasks)

    def task_s(active: int) -> float:
        return pooling_s(device, pooling, active, other_s=other_s, written=written, reordered=reordered)

    last_s = task_s(tasks % resident) if tasks % resident else 0.0
    return TaskList(tasks, resident, slice_tasks, task_s(resident), last_s, spread)


_BLOCKS = 1024
"""Work-groups that PyTorch launches for a table, whatever the batch; each takes every 1024th bag."""


def table_by_table_s(device: Device, pooling: Pooling, *, bags: int, tables: int) -> float:
    """Time of one kernel for each table, as PyTorch runs them: each its bags, or the host's call, if that is longer."""
    blocks = min(bags, _BLOCKS)
    full, rest = divmod(blocks, most_work_groups(device))
    waves_s = full * pooling_s(device, pooling, most_work_groups(device)) if full else 0.0
    waves_s += pooling_s(device, pooling, rest) if rest else 0.0
    kernel_s = bags / blocks * waves_s + device.launch_gap_s
    return tables * max(kernel_s, device.host_launch_s.get("embedding_bag_no_grad", 0.0))
