"""The two back ends of ASTRA-sim: from who has arrived at a collective to when each rank has it.

*unaware*: no contention, so a collective is a function of its plan and its members' starts. *aware*: every message
crosses the links of its route, one after the other. Where all ranks start the same collective at once on an idle
network that looks the same from every rank, one rank is simulated for all. Both carry single messages too. Where the
end times of ranks that were one unit differ, or may differ, the unit is split. Knows no graphs.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Protocol

from scaleout.errors import SimulationError
from scaleout.interop.astra.algorithms import Exchange, Pattern, Tree
from scaleout.interop.astra.clock import Clock
from scaleout.interop.astra.instance import CollectiveInstance
from scaleout.interop.astra.job import Job
from scaleout.interop.astra.links import Links, folded_route, route
from scaleout.interop.astra.members import Deliver, ExchangeMember, Shared, TreeMember
from scaleout.interop.astra.phase_time import MemberLayout, elapsed
from scaleout.interop.astra.plan import FLAT, GROUP, GROUP_ENDPOINT_NS, Phase, Plan
from scaleout.interop.astra.progress import Unit


def is_symmetric(job: Job, plan: Plan) -> bool:
    """Whether a collective looks the same from every rank: no tree, and on a ring no partners by bits."""
    kind = job.network.dimensions[0].kind
    return all(
        isinstance(phase.pattern, Exchange) and phase.dimension != GROUP and not (phase.pattern.xor and kind == "Ring")
        for stream in plan.streams
        for phase in stream
    )


def folded_elapsed(job: Job, plan: Plan) -> int:
    """Time of a collective that all ranks start at once on an idle network, from one orbit representative."""
    clock = Clock()
    dimension = job.network.dimensions[0]
    links = Links(clock, dimension, folded_route(dimension))
    ended: list[int] = []
    collective = Collective(job, plan, clock=clock, carry=links.carry, members=(0,), folded=True)
    collective.start(0, lambda: ended.append(clock.now_ns))
    clock.run()
    return ended[0]


class Collective:
    """A running collective under contention: the members of every stream, and the streams that wait.

    Attributes
    ----------
    members : tuple of int
        Ranks, in the order of their positions.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        *,
        clock: Clock,
        carry: Callable[[int, int, int, Deliver], None],
        members: tuple[int, ...],
        folded: bool = False,
    ) -> None:
        self._job, self._plan, self._clock, self._folded = job, plan, clock, folded
        self.members = members

        def carry_between(source: int, target: int, size_bytes: int, deliver: Deliver) -> None:
            if folded:
                carry(source, target, size_bytes, deliver)
            else:
                carry(members[source], members[target], size_bytes, deliver)

        self._carry = carry_between
        self._streams = [self._members_of(stream, phase) for stream, (phase,) in enumerate(plan.streams)]
        self._left = [len(plan.streams)] * len(members)
        self._running: dict[tuple[int, int], int] = defaultdict(int)
        self._waiting: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        self._done: dict[int, Deliver] = {}

    def start(self, position: int, done: Deliver) -> None:
        """Start a member now; `done` is called when it has finished all streams."""
        self._done[position] = done
        for stream, (phase,) in enumerate(self._plan.streams):
            self._waiting[position, phase.queue[1]].append(stream)
            self._admit(position, phase.queue[1])

    def _admit(self, position: int, queue: int) -> None:
        key = (position, queue)
        while self._waiting[key] and self._running[key] < self._plan.capacity:
            self._running[key] += 1
            self._streams[self._waiting[key].popleft()][position].start()

    def _members_of(self, stream: int, phase: Phase) -> "list[ExchangeMember] | list[TreeMember]":
        job = self._job
        endpoint_ns = GROUP_ENDPOINT_NS if phase.dimension == GROUP else job.endpoint_ns
        shared = Shared(self._clock, endpoint_ns, job.reduction_ns, self._carry, job.rendezvous)
        positions = range(len(self.members))
        if isinstance(phase.pattern, Tree):
            trees: list[TreeMember] = []
            trees.extend(TreeMember(phase.pattern, shared, p, trees, self._ender(p, phase.queue[1])) for p in positions)
            return trees
        exchanges: list[ExchangeMember] = []
        peers = None if self._folded else exchanges
        exchanges.extend(
            ExchangeMember(phase.pattern, shared, p, peers, self._ender(p, phase.queue[1])) for p in positions
        )
        return exchanges

    def _ender(self, position: int, queue: int) -> Deliver:
        def end() -> None:
            self._left[position] -= 1
            if self._left[position] == 0:
                self._done[position]()
            self._running[position, queue] -= 1
            self._admit(position, queue)

        return end


PhaseEnds = Callable[[Phase, Sequence[int]], Sequence[int]]
"""Start times of the members of one phase to their end times."""
Peers = Callable[[Phase, int], Sequence[int]]
"""Members that do a phase together with one of them, in the order of their positions."""
NONE = -1
"""In place of a stream: the event that a member starts the collective."""


class _Member:
    """Queues of one member."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.running: dict[tuple[int, int], int] = defaultdict(int)
        self.waiting: dict[tuple[int, int], deque[tuple[int, int]]] = defaultdict(deque)

    def admit(self, queue: tuple[int, int]) -> list[tuple[int, int]]:
        """Return the streams that may start now, with their phase."""
        admitted = []
        while self.waiting[queue] and self.running[queue] < self.capacity:
            self.running[queue] += 1
            admitted.append(self.waiting[queue].popleft())
        return admitted


def run_streams(plan: Plan, starts: Sequence[int], *, phase_ends: PhaseEnds, peers: Peers) -> list[int]:
    """Return when each member has finished all streams, given when each starts the collective."""
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
    """Streams of a collective through their queues; a queue runs a few at a time, the others wait in arrival order."""

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


class Uncontended:
    """Times of collectives on the network of a job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._elapsed = lru_cache(maxsize=None)(self._common_elapsed)
        self._world = {index: self._world_layout(index) for index in (FLAT, *range(len(job.network.dimensions)))}

    def elapsed(self, plan: Plan, members: tuple[int, ...]) -> int | None:
        """Time of a collective that all members start at once; None where they do not end at once."""
        return self._elapsed(plan, members if _of_group(plan) else ())

    def ends(self, plan: Plan, members: tuple[int, ...], starts: Sequence[int]) -> list[int]:
        """Return when each member has finished a collective, given when each starts.

        Members are a communicator group, or in ascending order all ranks of the lines that take part.
        """
        from scaleout.interop.astra.staggered import ends  # noqa: PLC0415 - NumPy is worth its wait only here

        group_layout = self._group_layout(members) if _of_group(plan) else None
        position_of = {rank: position for position, rank in enumerate(members)}

        def phase_ends(phase: Phase, begun: Sequence[int]) -> Sequence[int]:
            return ends(phase.pattern, group_layout or self._world[phase.dimension], begun)

        def peers(phase: Phase, member: int) -> Sequence[int]:
            if phase.dimension in (FLAT, GROUP):
                return range(len(members))
            dimension = self._job.network.dimensions[phase.dimension]
            rank = members[member]
            first = rank - rank // dimension.stride % dimension.size * dimension.stride
            return [position_of[first + along * dimension.stride] for along in range(dimension.size)]

        return run_streams(plan, starts, phase_ends=phase_ends, peers=peers)

    def _common_elapsed(self, plan: Plan, members: tuple[int, ...]) -> int | None:
        layout = self._group_layout(members) if members else None
        times: dict[Pattern, int] = {}
        for phase in (phase for stream in plan.streams for phase in stream):
            if phase.pattern not in times:
                passed_ns = elapsed(phase.pattern, layout or self._world[phase.dimension])
                if passed_ns is None:
                    return None
                times[phase.pattern] = passed_ns

        def phase_ends(phase: Phase, begun: Sequence[int]) -> Sequence[int]:
            return [begun[0] + times[phase.pattern]]

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


End = Callable[[Unit, int], None]
"""Called when a unit has ended a task."""


class Fabric(Protocol):
    """A network in use."""

    def carry(self, source: int, target: int, size_bytes: int, deliver: Callable[[], None]) -> None:
        """Carry a message and call `deliver` when it has arrived."""

    def registered(self, instance: CollectiveInstance, unit: Unit, index: int) -> None:
        """Take note that a unit has just arrived at a collective."""


class UnawareFabric:
    """Without contention: once all members have arrived, their starts give the ends."""

    def __init__(self, job: Job, clock: Clock, end: End) -> None:
        self._job, self._clock, self._end = job, clock, end
        self._times = Uncontended(job)

    def carry(self, source: int, target: int, size_bytes: int, deliver: Callable[[], None]) -> None:
        """Carry a message and call `deliver` when it has arrived."""
        self._clock.at(self._clock.now_ns + self._job.network.send_ns(source, target, size_bytes), deliver)

    def registered(self, instance: CollectiveInstance, unit: Unit, index: int) -> None:
        """Schedule the ends of the collective if the unit was the last to arrive."""
        if not instance.is_complete:
            return
        times = {now_ns for _, _, now_ns in instance.arrived}
        passed_ns = self._times.elapsed(instance.plan, instance.members) if len(times) == 1 else None
        if passed_ns is not None:
            for each, task, now_ns in instance.arrived:
                self._end_at(now_ns + passed_ns, each, task)
            return
        start_of = {rank: now_ns for each, _, now_ns in instance.arrived for rank in each.ranks}
        ends = self._times.ends(instance.plan, instance.members, [start_of[rank] for rank in instance.members])
        end_of = dict(zip(instance.members, ends, strict=True))
        for each, task, _ in instance.arrived:
            by_end: dict[int, list[int]] = {}
            for rank in each.ranks:
                by_end.setdefault(end_of[rank], []).append(rank)
            units = [each] if len(by_end) == 1 else each.split(list(by_end.values()))
            for split, end_ns in zip(units, by_end, strict=True):
                self._end_at(end_ns, split, task)

    def _end_at(self, end_ns: int, unit: Unit, index: int) -> None:
        known_ns = max(end_ns - self._job.endpoint_ns, 0)  # an endpoint delay is what ends every algorithm
        self._clock.at(end_ns, partial(self._end, unit, index), known_ns=known_ns)


class AwareFabric:
    """With contention: members send as soon as they arrive, and their messages queue for links."""

    def __init__(self, job: Job, clock: Clock, end: End) -> None:
        self._job, self._clock, self._end = job, clock, end
        dimension = job.network.dimensions[0]
        self._links = Links(clock, dimension, route(dimension))
        self._new: list[tuple[CollectiveInstance, Unit, int]] = []
        self._running: dict[CollectiveInstance, Collective] = {}
        self._folded: dict[Plan, int] = {}

    def carry(self, source: int, target: int, size_bytes: int, deliver: Callable[[], None]) -> None:
        """Carry a message and call `deliver` when it has arrived."""
        self._links.carry(source, target, size_bytes, deliver)

    def registered(self, instance: CollectiveInstance, unit: Unit, index: int) -> None:
        """Start now; if all ranks might start in this nanosecond, decide at its end."""
        now_ns = self._clock.now_ns
        if not self._new and (self._links.num_messages or instance.arrived[0][2] != now_ns):
            self._start_each([(instance, unit, index)])
            return
        if not self._new:
            self._clock.at(now_ns, self._start_new)
        self._new.append((instance, unit, index))

    def _start_new(self) -> None:
        new, self._new = self._new, []
        instance = new[0][0]
        if self._all_start(instance, new):
            if instance.plan not in self._folded:
                self._folded[instance.plan] = folded_elapsed(self._job, instance.plan)
            end_ns = self._clock.now_ns + self._folded[instance.plan]
            for unit, index, _ in instance.arrived:
                self._clock.at(end_ns, partial(self._end, unit, index), known_ns=end_ns - self._job.endpoint_ns)
            return
        self._start_each(new)

    def _start_each(self, new: list[tuple[CollectiveInstance, Unit, int]]) -> None:
        """Let every rank send for itself."""
        for instance, unit, index in new:
            units = [unit] if len(unit.ranks) == 1 else unit.split([(rank,) for rank in unit.ranks])
            for each in units:
                position = instance.members.index(each.ranks[0])
                self._collective(instance).start(position, partial(self._end, each, index))

    def _all_start(self, instance: CollectiveInstance, new: list[tuple[CollectiveInstance, Unit, int]]) -> bool:
        """Whether these are all ranks, which start one symmetric collective at once on an idle network."""
        return (
            sum(len(unit.ranks) for each, unit, _ in new if each is instance) == self._job.network.num_ranks
            and len(new) == len(instance.arrived)
            and self._links.num_messages == 0
            and is_symmetric(self._job, instance.plan)
        )

    def _collective(self, instance: CollectiveInstance) -> Collective:
        if instance not in self._running:
            self._running[instance] = Collective(
                self._job, instance.plan, clock=self._clock, carry=self._links.carry, members=instance.members
            )
        return self._running[instance]
