"""A persistent kernel: a task list of logical work-groups to when each of them runs, and when slices are complete.

Work-group j of G runs tasks ``j, j + G, j + 2 G, ...``; a slice is `slice_tasks` consecutive tasks. Its last finisher
issues it, at the cost of a call; nobody else waits. A task may wait for data (its release). Knows no bytes and no
network. Symbols: N tasks; G persistent work-groups; S slices.
Source: Punniyamurthy, Hamidouche and Beckmann, SC 2024, Sec. III.A and Fig. 6.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TaskList:
    """Logical work-groups of a rank: N tasks, run by G slots; `slice_tasks` divides N.

    Persistent work-groups differ in speed: the last takes ``1 + spread`` times as long as the first, in an order that
    is drawn once.
    """

    tasks: int
    slots: int
    slice_tasks: int
    task_s: float  # one task, with all G at work
    last_task_s: float  # one task of the last round where it is not full: fewer share the memory
    spread: float = 0.0

    @property
    def slices(self) -> int:
        """Slices S."""
        return self.tasks // self.slice_tasks

    @property
    def isolated_s(self) -> float:
        """What the tasks take with nothing sent."""
        full, rest = divmod(self.tasks, self.slots)
        return (full * self.task_s + (self.last_task_s if rest else 0.0)) * (1 + self.spread)

    def speeds(self) -> Floats:
        """Return how many times as long each persistent work-group takes, shape (G,)."""
        factors = np.linspace(1.0, 1.0 + self.spread, self.slots)
        return np.asarray(np.random.default_rng(0).permutation(factors))


@dataclass(frozen=True)
class Execution:
    """When the tasks of a rank ran, in the order of its list."""

    start_s: Floats  # (N,) of each task
    end_s: Floats  # (N,) without the call that it may have made
    issued_s: Floats  # (S,) when each slice was issued, or complete if it stays
    issuer: npt.NDArray[np.int64]  # (S,) the persistent work-group that finished each slice last
    free_s: Floats  # (G,) when each persistent work-group had nothing left to run


def execute(work: TaskList, sent: Bools, *, call_s: float = 0.0, release_s: Floats | None = None) -> Execution:
    """Run a task list; the last finisher of each slice that is `sent`, shape (S,), makes a call of `call_s`.

    `release_s`, shape (N,), is when each task's data are there; at once without it.
    """
    total, slots, size = work.tasks, work.slots, work.slice_tasks
    start, end, issued = np.zeros(total), np.zeros(total), np.zeros(work.slices)
    issuer = np.zeros(work.slices, np.int64)
    free, speed = np.zeros(slots), work.speeds()
    open_s = 0.0  # latest end so far of the slice that a round leaves open
    for low in range(0, total, slots):
        high = min(low + slots, total)
        active = high - low
        begin = free[:active] if release_s is None else np.maximum(free[:active], release_s[low:high])
        done = begin + (work.task_s if active == slots else work.last_task_s) * speed[:active]
        start[low:high], end[low:high] = begin, done
        free[:active] = done
        first, after = low // size, high // size
        if after > first:
            begins = np.maximum(np.arange(first, after) * size - low, 0)
            ready, finisher = _complete(done[: after * size - low], begins)
            ready[0] = max(ready[0], open_s)
            issued[first:after] = ready + call_s * sent[first:after]
            free[finisher] += call_s * sent[first:after]
            issuer[first:after] = finisher
            open_s = 0.0
        if high % size:
            open_s = max(open_s, float(done[max(after * size - low, 0) :].max()))
    return Execution(start, end, issued, issuer, free)


def _complete(done_s: Floats, begins: npt.NDArray[np.int64]) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return when slices are complete, and the index of the last finisher of each; of equals the last one."""
    ready = np.maximum.reduceat(done_s, begins)
    of = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(done_s))))
    latest = np.flatnonzero(done_s == ready[of])
    finisher = np.zeros(len(begins), np.int64)
    finisher[of[latest]] = latest
    return ready, finisher
