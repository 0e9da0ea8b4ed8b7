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


def offsets_of(sizes: Ints) -> Ints:
    """Return where rows of (N,) sizes that lie one behind another begin and end, (N + 1,)."""
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Tasks:
    """Tasks with dependencies, streams and ports.

    Attributes
    ----------
    duration_s, occupancy_s : (N,), with ``0 <= occupancy_s <= duration_s``; NaN where links or devices time a task
    stream : (N,), or `NONE` for a task that holds no stream
    priority : (N,)
    user_offsets, users : (N + 1,) and (E,), the tasks that depend on each
    num_dependencies : (N,)
    instance : (N,), or `NONE`
    instance_size : (M,), members that must arrive
    port_offsets, ports : (M + 1,) and (Q,), the ports that each instance holds
    port_s : (Q,), how long it holds each of them at most; infinite for as long as its streams
    issue_s : (N,), the time before which each task cannot start
    """

    duration_s: Floats
    occupancy_s: Floats
    stream: Ints
    priority: Ints
    user_offsets: Ints
    users: Ints
    num_dependencies: Ints
    instance: Ints
    instance_size: Ints
    port_offsets: Ints
    ports: Ints
    port_s: Floats
    issue_s: Floats

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
        arrays: dict[str, Any] = {
            name: np.array(values, np.float64 if name.endswith("_s") else np.int64)
            for name, values in {**plain, **columns}.items()
        }
        return cls(**arrays)


@dataclass(frozen=True, eq=False)
class Sharing:
    """Kernels and transfers that share devices.

    Attributes
    ----------
    kernels : (K,) kernels and their isolated times
    kernel_instance, kernel_device, kernel_kind : (A,)
    kernel_issue_s : (A,) when the host issues each; 0 if no host issues calls
    transfer_instance : (T,)
    lasts_s : (T,) isolated time; infinite if links time it
    channels : (T,) each holds an SM
    races : (T,) whether it competes with kernels that start when it arrives
    communicator : (T,) transfers of one are one kernel of as many channels as the widest; `NONE` is one of its own
    pair_offsets : (T + 1,) first pair of each transfer
    pair_device : (P,)
    pair_posted : (P,) whether the transfer was launched there long before, by something that waits for it in turn: it
        holds SMs from its start, and waits for none
    waiting, waiting_pair : (W,) tasks that wait for the others, and where
    """

    kernels: Sequence[tuple[Kernel | None, float]]
    kernel_instance: Ints
    kernel_device: Ints
    kernel_kind: Ints
    kernel_issue_s: Floats
    transfer_instance: Ints
    lasts_s: Floats
    channels: Ints
    races: Bools
    communicator: Ints
    pair_offsets: Ints
    pair_device: Ints
    pair_posted: Bools
    waiting: Ints
    waiting_pair: Ints


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
    cause: Ints
    posted: Ints
    """(N,) 1 where a task arrived at an instance that never started, else 0."""
    released_s: Floats
    """(N,) when it released its stream."""
