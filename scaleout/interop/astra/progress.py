"""Progress of ranks in a graph: which tasks may start now, and what they occupy.

A rank runs one CPU task, one computation and one communication at a time; a receive occupies nothing. When a task ends,
the ready tasks start in ascending order of their ids, each if its slot is free. Ranks that do the same at the same time
are one unit, which is split when their times differ. Knows no time of any task.

Source: ASTRA-sim 2.0 at commit 518bd51 (2026-03-26), behaviour as measured.
"""

import bisect
import copy
from collections import Counter
from collections.abc import Mapping, Sequence

from scaleout.interop.astra.trace import Graph, Work

_CPU, _COMPUTE, _COMMUNICATION = range(3)
SLOTS: Mapping[int, int | None] = {
    Work.CPU: _CPU,
    Work.COMPUTE: _COMPUTE,
    Work.REPLAY: _COMMUNICATION,
    Work.COLLECTIVE: _COMMUNICATION,
    Work.SEND: _COMMUNICATION,
    Work.RECV: None,
    Work.NOTHING: None,
    Work.WAIT: None,
}
"""What a task occupies while it runs."""

NEVER = -1
"""In place of a time."""


class Unit:
    """Ranks that are at the same point of the same graph."""

    def __init__(self, ranks: Sequence[int], graph: Graph) -> None:
        self.ranks = tuple(ranks)
        self.graph = graph
        self.left = len(graph.tasks)  # tasks that have not ended
        self.start_ns, self.end_ns = [NEVER] * self.left, [NEVER] * self.left  # of each task
        # When the last task ended; sums of the durations of computation, and of communication that holds its slot.
        self.finish_ns = self.compute_ns = self.communication_ns = 0
        self.num_collectives: Counter[str] = Counter()  # of each group, which the ranks have issued
        self.turns: tuple[tuple[tuple[int, str], int], ...] = ()  # queues and trees that come next
        self.successors: list[Unit] = []  # the units that this one was split into
        self.running: set[int] = set()
        self._waiting = list(graph.num_dependencies)
        self._ready = [index for index, count in enumerate(self._waiting) if count == 0]
        self._busy = [False, False, False]
        self._slots = [SLOTS[task.work] for task in graph.tasks]

    def split(self, groups: Sequence[Sequence[int]]) -> "list[Unit]":
        """Split into units of these ranks, all at the same point; one group is the unit itself."""
        if len(groups) == 1:
            return [self]
        for ranks in groups:
            unit = copy.copy(self)
            unit.ranks, unit.successors = tuple(ranks), []
            unit.num_collectives, unit.running = self.num_collectives.copy(), set(self.running)
            unit.start_ns, unit.end_ns = list(self.start_ns), list(self.end_ns)
            unit._waiting, unit._ready, unit._busy = list(self._waiting), list(self._ready), list(self._busy)
            self.successors.append(unit)
        return self.successors

    def leaves(self) -> "list[Unit]":
        """Return the units that the unit has been split into by now, itself if it has not."""
        return [leaf for unit in self.successors for leaf in unit.leaves()] if self.successors else [self]

    def startable(self, now_ns: int) -> int | None:
        """Occupy the slot of the next task that can start and return the task, or None."""
        slots, busy = self._slots, self._busy
        for position, index in enumerate(self._ready):
            slot = slots[index]
            if slot is None or not busy[slot]:
                if slot is not None:
                    busy[slot] = True
                del self._ready[position]
                self.running.add(index)
                self.start_ns[index] = now_ns
                return index
        return None

    def end(self, index: int, now_ns: int) -> None:
        """Free what a task occupied, and the tasks that waited for it."""
        slot = self._slots[index]
        self.running.remove(index)
        self.end_ns[index] = now_ns
        passed_ns = now_ns - self.start_ns[index]
        if slot is not None:
            self._busy[slot] = False
        if slot == _COMPUTE:
            self.compute_ns += passed_ns
        elif slot == _COMMUNICATION:
            self.communication_ns += passed_ns
        self.left -= 1
        self.finish_ns = now_ns
        for user in self.graph.users[index]:
            self._waiting[user] -= 1
            if self._waiting[user] == 0:
                bisect.insort(self._ready, user)
