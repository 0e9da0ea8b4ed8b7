"""What both event cores run, and what they find, in columns: tasks, what shares devices, and times.

Symbols: N tasks, E dependencies, M instances, Q ports that they hold; A kernels of K kinds, T transfers, P pairs of a
transfer and a device, W tasks that wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scaleout.program.graph import NONE, Bools, Floats, Ints
from scaleout.program.operations import Kernel

Indices = npt.NDArray[np.int32]
"""Numbers of tasks, streams and instances, of which there may be millions: memory holds fewer than 2^31 tasks."""


def offsets_of(sizes: Ints | Indices) -> Ints:
    """Return where rows of (N,) sizes that lie one behind another begin and end, (N + 1,)."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def distinct(*columns: Ints | Floats) -> tuple[Ints, Ints]:
    """Return the first of all rows that are alike, in the order of their values, and which of these each row is, (N,).

    >>> [each.tolist() for each in distinct(np.array([7, 5, 7]))]
    [[1, 0], [1, 0, 1]]
    """
    order = np.lexsort(columns[::-1])
    is_first = np.ones(len(order), bool)
    is_first[1:] = np.any([np.diff(column[order]) != 0 for column in columns], axis=0)
    kinds = np.empty(len(order), np.int64)
    kinds[order] = np.cumsum(is_first) - 1
    return order[is_first], kinds


def narrow(offsets: Ints) -> Ints | Indices:
    """Return offsets in half of the memory, where they are small enough."""
    return offsets.astype(np.int32) if offsets[-1] <= np.iinfo(np.int32).max else offsets


@dataclass(frozen=True, eq=False)
class Tasks:
    """Tasks with dependencies, streams and ports."""

    duration_s: Floats  # (N,); NaN where links or devices time a task
    occupancy_s: Floats  # (N,), 0 to `duration_s`
    stream: Indices  # (N,), or `NONE` for a task that holds no stream
    priority: Ints  # (N,)
    user_offsets: Ints | Indices  # (N + 1,)
    users: Indices  # (E,), the tasks that depend on each
    num_dependencies: Indices  # (N,)
    instance: Indices  # (N,), or `NONE`
    instance_size: Ints  # (M,), members that must arrive
    port_offsets: Ints  # (M + 1,)
    ports: Ints  # (Q,), the ports that each instance holds
    port_s: Floats  # (Q,), how long it holds each of them at most; infinite for as long as its streams
    issue_s: Floats  # (N,), the time before which each task cannot start

    def __len__(self) -> int:
        return len(self.duration_s)

    @classmethod
    def of(cls, duration_s: Sequence[float], users: Sequence[Sequence[int]] = (), **columns: npt.ArrayLike) -> "Tasks":
        """Return tasks from rows of users; columns that are left out say nothing, and `occupancy_s` is `duration_s`."""
        size = len(duration_s)
        flat = np.array([user for row in users for user in row], np.int64)
        plain: dict[str, npt.ArrayLike] = {"duration_s": duration_s, "occupancy_s": duration_s}
        plain |= {"stream": [NONE] * size, "instance": [NONE] * size, "priority": [0] * size, "issue_s": [0.0] * size}
        plain |= {"user_offsets": np.cumsum([0, *map(len, users or [()] * size)]), "users": flat}
        plain |= {"num_dependencies": np.bincount(flat, minlength=size), "instance_size": (), "ports": (), "port_s": ()}
        plain |= {"port_offsets": [0] * (1 + np.size(columns.get("instance_size", ())))}
        kinds = dict.fromkeys(("stream", "users", "num_dependencies", "instance"), np.int32)
        arrays: dict[str, Any] = {
            name: np.array(values, np.float64 if name.endswith("_s") else kinds.get(name, np.int64))
            for name, values in {**plain, **columns}.items()
        }
        return cls(**arrays)


@dataclass(frozen=True, eq=False)
class Sharing:
    """Kernels and transfers that share devices."""

    kernels: Sequence[tuple[Kernel | None, float]]  # (K,), with their isolated times
    kernel_instance: Ints  # (A,), in the compiled core the last of all instances, one after another
    kernel_device: Ints  # (A,)
    kernel_kind: Ints  # (A,)
    kernel_issue_s: Floats  # (A,), when the host issues each; 0 if no host issues calls
    transfer_instance: Ints  # (T,)
    lasts_s: Floats  # (T,), isolated time; infinite if links time it
    channels: Ints  # (T,), each of which holds an SM
    races: Bools  # (T,), whether it competes with kernels that start when it arrives
    # (T,); transfers of one are one kernel of as many channels as the widest; `NONE` is one of its own
    communicator: Ints
    pair_offsets: Ints  # (T + 1,), first pair of each transfer
    pair_device: Ints  # (P,)
    # (P,), whether the transfer was launched there long before, by something that waits for it in turn: it holds SMs
    # from its start, and waits for none
    pair_posted: Bools
    waiting: Ints  # (W,), tasks that wait for the others
    waiting_pair: Ints  # (W,), and where


_NONE, _WHOLE, _YES = np.zeros(0), np.zeros(0, np.int64), np.zeros(0, bool)
NOTHING_SHARED = Sharing(
    (), _WHOLE, _WHOLE, _WHOLE, _NONE, _WHOLE, _NONE, _WHOLE, _YES, _WHOLE, np.zeros(1, np.int64), _WHOLE, _YES, _WHOLE,
    _WHOLE,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Times:
    """When each of N tasks ran. A task that never started has NaN times; `cause` is what it last waited for."""

    start_s: Floats
    end_s: Floats
    cause: Indices
    posted: Bools  # (N,) where a task arrived at an instance that never started
    released_s: Floats  # (N,) when it released its stream
