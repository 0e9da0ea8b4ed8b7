"""Collectives without contention: when each member begins one to when it has it.

Nothing else in the network matters, so a collective is a function of its plan and of its members' starts; and where
these are one and the same, of the plan alone. Knows no graphs.

Streams of a collective through their queues: when each member begins a collective to when it has it.

A queue runs a few streams at a time, the others wait in the order in which they arrived. A phase of a stream ends when
the phase's own timing says so, given when each of its members began it. Where all members start together and do
alike, one stands for all. Knows no graphs and no contention.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import lru_cache

from scaleout.errors import SimulationError
from scaleout.interop.astra.algorithms import Steps
from scaleout.interop.astra.job import Job
from scaleout.interop.astra.phase_time import MemberLayout, elapsed
from scaleout.interop.astra.plan import FLAT, GROUP, GROUP_ENDPOINT_NS, Phase, Plan

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
    starts : length n
        When each member begins the collective.

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
        self.instances: dict[tuple[int, int, int], dict[int, int]] = defaultdict(dict)
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
            instance = self.instances[stream, index, group[0]]
            instance[member] = now_ns
            if len(instance) == len(group):
                begun = [instance[other] for other in group]
                for other, end_ns in zip(group, self.phase_ends(phase, begun), strict=True):
                    self.count += 1
                    heapq.heappush(self.events, (end_ns, self.count, other, stream, index))


def _of_group(plan: Plan) -> bool:
    return plan.streams[0][0].dimension == GROUP


class Unaware:
    """Times of collectives on the network of a job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._elapsed = lru_cache(maxsize=None)(self._common_elapsed)
        self._world = {index: self._world_layout(index) for index in (FLAT, *range(len(job.network.dimensions)))}

    def elapsed(self, plan: Plan, members: tuple[int, ...]) -> int | None:
        """Time of a collective that all members begin and end together; None where they do not end together.

        Parameters
        ----------
        members : tuple of int
            Ranks in the order of their positions.
        """
        return self._elapsed(plan, members if _of_group(plan) else ())

    def ends(self, plan: Plan, members: tuple[int, ...], starts: Sequence[int]) -> list[int]:
        """Return when each member has a collective.

        Parameters
        ----------
        members : tuple of int, length n
            Ranks: a communicator group, or in ascending order all ranks of the lines that take part.
        starts : length n
        """
        from scaleout.interop.astra.staggered import ends  # noqa: PLC0415 - NumPy is worth its wait only here

        group_layout = self._group_layout(members) if _of_group(plan) else None
        position_of = {rank: position for position, rank in enumerate(members)}

        def phase_ends(phase: Phase, begun: Sequence[int]) -> Sequence[int]:
            return ends(phase.steps, group_layout or self._world[phase.dimension], begun)

        def peers(phase: Phase, member: int) -> Sequence[int]:
            if phase.dimension in (FLAT, GROUP):
                return range(len(members))
            dimension = self._job.network.dimensions[phase.dimension]
            rank = members[member]
            first = rank - rank // dimension.stride % dimension.size * dimension.stride
            return [position_of[first + step * dimension.stride] for step in range(dimension.size)]

        return run_streams(plan, starts, phase_ends=phase_ends, peers=peers)

    def _common_elapsed(self, plan: Plan, members: tuple[int, ...]) -> int | None:
        layout = self._group_layout(members) if members else None
        times: dict[Steps, int] = {}
        for phase in (phase for stream in plan.streams for phase in stream):
            if phase.steps not in times:
                passed_ns = elapsed(phase.steps, layout or self._world[phase.dimension])
                if passed_ns is None:
                    return None
                times[phase.steps] = passed_ns

        def phase_ends(phase: Phase, begun: Sequence[int]) -> Sequence[int]:
            return [begun[0] + times[phase.steps]]

        return run_streams(plan, [0], phase_ends=phase_ends, peers=lambda phase, member: (0,))[0]

    def _world_layout(self, index: int) -> MemberLayout:
        """Layout of the members along a dimension, or of all ranks."""
        job = self._job
        network = job.network
        dimension = network.dimensions[max(index, 0)]

        def send_ns(source: int, target: int, size_bytes: int) -> int:
            if index == FLAT:
                return network.send_ns(source, target, size_bytes)
            return dimension.send_ns((target - source) % dimension.size, size_bytes)

        return MemberLayout(send_ns, True, job.endpoint_ns, job.reduction_ns, job.rendezvous)

    def _group_layout(self, members: tuple[int, ...]) -> MemberLayout:
        """Layout of a communicator group; regular if all its neighbours, forth and back, are equally far."""
        job = self._job
        network = job.network

        def send_ns(source: int, target: int, size_bytes: int) -> int:
            return network.send_ns(members[source], members[target], size_bytes)

        def hop(source: int, target: int) -> tuple[int, int]:
            for index, dimension in enumerate(network.dimensions):
                distance = (target // dimension.stride - source // dimension.stride) % dimension.size
                if distance:
                    return index, min(distance, dimension.size - distance)
            return 0, 0

        regular = len({hop(members[i - 1], members[i]) for i in range(len(members))}) == 1
        return MemberLayout(send_ns, regular, GROUP_ENDPOINT_NS, job.reduction_ns, job.rendezvous)
