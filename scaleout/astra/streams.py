"""Streams of a collective through their queues: when each member begins a collective to when it has it.

A queue runs a few streams at a time, the others wait in the order in which they came. A phase of a stream ends when
the phase's own timing says so, given when each of its members began it. Where all members start together and do
alike, one stands for all. Knows no graphs and no contention.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from scaleout.astra.plan import Phase, Plan
from scaleout.errors import SimulationError

PhaseEnds = Callable[[Phase, Sequence[int]], Sequence[int]]
"""Starts of the members of one phase to their ends."""
Peers = Callable[[Phase, int], Sequence[int]]
"""Members that do a phase together with one of them, in the order of their positions."""
NONE = -1
"""In place of a stream: a member begins the collective."""


class _Member:
    """Queues of one member."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.running: dict[tuple[int, int], int] = defaultdict(int)
        self.waiting: dict[tuple[int, int], deque[tuple[int, int]]] = defaultdict(deque)

    def admit(self, queue: tuple[int, int]) -> list[tuple[int, int]]:
        """Return the streams that may begin now, with their phase."""
        admitted = []
        while self.waiting[queue] and self.running[queue] < self.capacity:
            self.running[queue] += 1
            admitted.append(self.waiting[queue].popleft())
        return admitted


def run_streams(plan: Plan, starts: Sequence[int], *, phase_ends: PhaseEnds, peers: Peers) -> list[int]:
    """Return when each member has finished all streams.

    Parameters
    ----------
    plan : Plan
    starts : length n
        When each member begins the collective.
    phase_ends, peers : callable

    Raises
    ------
    SimulationError
        If members wait for each other with streams in different order.
    """
    run = _Run(plan, phase_ends, peers, [_Member(plan.capacity) for _ in starts])
    for member, start_ns in enumerate(starts):
        heapq.heappush(run.events, (start_ns, 0, member, NONE, NONE))
    ended = [0] * len(starts)
    left = [len(plan.streams)] * len(starts)
    while run.events:
        now_ns, _, member, stream, index = heapq.heappop(run.events)
        if stream == NONE:
            for each in range(len(plan.streams)):
                run.enter(member, each, 0, now_ns)
            continue
        last = index + 1 == len(plan.streams[stream])
        if last:
            ended[member] = now_ns
            left[member] -= 1
        else:
            run.enter(member, stream, index + 1, now_ns)
        run.leave(member, stream, index, now_ns)
    if any(left):
        raise SimulationError(
            "a collective cannot finish: its members run its streams in different order; "
            "set active-chunks-per-dimension to at least preferred-dataset-splits"
        )
    return ended


class _Run:
    """Phases that wait for members, and those that will end."""

    def __init__(self, plan: Plan, phase_ends: PhaseEnds, peers: Peers, members: list[_Member]) -> None:
        self.plan, self.phase_ends, self.peers, self.members = plan, phase_ends, peers, members
        self.events: list[tuple[int, int, int, int, int]] = []  # time, order, member, stream, phase
        self.meetings: dict[tuple[int, int, int], dict[int, int]] = defaultdict(dict)
        self.count = 0

    def enter(self, member: int, stream: int, index: int, now_ns: int) -> None:
        """Join the queue of a phase."""
        queue = self.plan.streams[stream][index].queue
        self.members[member].waiting[queue].append((stream, index))
        self._admit(member, queue, now_ns)

    def leave(self, member: int, stream: int, index: int, now_ns: int) -> None:
        """Make room in the queue of a phase that ended."""
        queue = self.plan.streams[stream][index].queue
        self.members[member].running[queue] -= 1
        self._admit(member, queue, now_ns)

    def _admit(self, member: int, queue: tuple[int, int], now_ns: int) -> None:
        for stream, index in self.members[member].admit(queue):
            phase = self.plan.streams[stream][index]
            group = self.peers(phase, member)
            meeting = self.meetings[stream, index, group[0]]
            meeting[member] = now_ns
            if len(meeting) == len(group):
                begun = [meeting[other] for other in group]
                for other, end_ns in zip(group, self.phase_ends(phase, begun), strict=True):
                    self.count += 1
                    heapq.heappush(self.events, (end_ns, self.count, other, stream, index))
