"""The two back ends of ASTRA-sim: from who has arrived at a collective to when each rank has it.

*unaware*: no contention, so a collective is a function of its plan and its members' starts. *aware*: every message
crosses the links of its route, one after the other. Where all ranks start the same collective at once on an idle
network that looks the same from every rank, one rank is simulated for all. Both carry single messages too. Where the
end times of ranks that were one unit differ, or may differ, the unit is split. Knows no graphs.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from scaleout.errors import SimulationError
from scaleout.interop.astra.algorithms import Exchange, Pattern
from scaleout.interop.astra.clock import Clock
from scaleout.interop.astra.instance import CollectiveInstance
from scaleout.interop.astra.job import Job
from scaleout.interop.astra.links import Links, folded_route, route
from scaleout.interop.astra.members import Carry, Deliver, MemberLayout, Shared, elapsed, members_of
from scaleout.interop.astra.network import HOPS
from scaleout.interop.astra.plan import FLAT, GROUP, GROUP_ENDPOINT_NS, Phase, Plan
from scaleout.interop.astra.progress import Unit

End = Callable[[Unit, int], None]
"""Called when a unit has ended a task."""


class Streams:
    """The streams of a collective in its members' queues: a queue runs a few at a time, the others wait in order.

    `begin` is called with member, stream and index of a phase that may start; its end is to be reported by `end`.
    """

    def __init__(self, plan: Plan, begin: Callable[[int, int, int], None]) -> None:
        self._plan, self._begin = plan, begin
        self._done: dict[int, Deliver] = {}
        self._left: Counter[int] = Counter()
        self._running: Counter[tuple[int, tuple[int, int]]] = Counter()
        self._waiting: dict[tuple[int, tuple[int, int]], deque[tuple[int, int]]] = defaultdict(deque)

    def start(self, member: int, done: Deliver) -> None:
        """Start a member now; `done` is called when it has finished all streams."""
        self._done[member] = done
        self._left[member] = len(self._plan.streams)
        for stream in range(len(self._plan.streams)):
            self._enter(member, stream, 0)

    def end(self, member: int, stream: int, index: int) -> None:
        """End a phase now: its stream goes on to the next, and its queue has room."""
        if index + 1 < len(self._plan.streams[stream]):
            self._enter(member, stream, index + 1)
        else:
            self._left[member] -= 1
            if self._left[member] == 0:
                self._done[member]()
        queue = self._plan.streams[stream][index].queue
        self._running[member, queue] -= 1
        self._admit(member, queue)

    def _enter(self, member: int, stream: int, index: int) -> None:
        queue = self._plan.streams[stream][index].queue
        self._waiting[member, queue].append((stream, index))
        self._admit(member, queue)

    def _admit(self, member: int, queue: tuple[int, int]) -> None:
        waiting = self._waiting[member, queue]
        while waiting and self._running[member, queue] < self._plan.capacity:
            self._running[member, queue] += 1
            self._begin(member, *waiting.popleft())


PhaseEnds = Callable[[Phase, Sequence[int]], Sequence[int]]
"""Start times of the members of one phase to their end times."""
Peers = Callable[[Phase, int], Sequence[int]]
"""Members that do a phase together with one of them, in the order of their positions."""


def run_streams(plan: Plan, starts: Sequence[int], *, phase_ends: PhaseEnds, peers: Peers) -> list[int]:
    """Return when each member has finished all streams, given when each starts the collective."""
    clock = Clock()
    ended: dict[int, int] = {}
    arrived: dict[tuple[int, int, int], dict[int, int]] = defaultdict(dict)

    def begin(member: int, stream: int, index: int) -> None:
        phase = plan.streams[stream][index]
        group = peers(phase, member)
        starts_ns = arrived[stream, index, group[0]]
        starts_ns[member] = clock.now_ns
        if len(starts_ns) == len(group):
            ends = phase_ends(phase, [starts_ns[other] for other in group])
            for other, end_ns in zip(group, ends, strict=True):
                clock.at(end_ns, partial(streams.end, other, stream, index), known_ns=0)

    def done(member: int) -> None:
        ended[member] = clock.now_ns

    streams = Streams(plan, begin)
    for member, start_ns in enumerate(starts):
        clock.at(start_ns, partial(streams.start, member, partial(done, member)), known_ns=0)
    clock.run()
    if len(ended) < len(starts):
        raise SimulationError(
            "a collective cannot finish: its members run its streams in different order; "
            "set active-chunks-per-dimension to at least preferred-dataset-splits"
        )
    return [ended[member] for member in range(len(starts))]


class UnawareFabric:
    """Without contention: once all members have arrived, their starts give the ends."""

    def __init__(self, job: Job, clock: Clock, end: End) -> None:
        self._job, self._clock, self._end = job, clock, end
        self._elapsed = lru_cache(maxsize=None)(self._common_elapsed)
        self._staggered = lru_cache(maxsize=1024)(self._ends)
        self._world = {index: self._world_layout(index) for index in (FLAT, *range(len(job.network.dimensions)))}

    def carry(self, source: int, target: int, size_bytes: int, deliver: Deliver) -> None:
        """Carry a message and call `deliver` when it has arrived."""
        self._clock.at(self._clock.now_ns + self._job.network.send_ns(source, target, size_bytes), deliver)

    def registered(self, instance: CollectiveInstance, unit: Unit, index: int) -> None:
        """Schedule the ends of the collective if the unit was the last to arrive."""
        if not instance.is_complete:
            return
        plan, members = instance.plan, instance.members
        group = members if plan.streams[0][0].dimension == GROUP else ()
        times = {now_ns for _, _, now_ns in instance.arrived}
        passed_ns = self._elapsed(plan, group) if len(times) == 1 else None
        if passed_ns is not None:
            for each, task, now_ns in instance.arrived:
                self._end_at(now_ns + passed_ns, each, task)
            return
        start_of = {rank: now_ns for each, _, now_ns in instance.arrived for rank in each.ranks}
        first_ns = min(times)
        passed = self._staggered(plan, members, tuple(start_of[rank] - first_ns for rank in members))
        end_of = {rank: first_ns + end_ns for rank, end_ns in zip(members, passed, strict=True)}
        for each, task, _ in instance.arrived:
            by_end: dict[int, list[int]] = {}
            for rank in each.ranks:
                by_end.setdefault(end_of[rank], []).append(rank)
            for split, end_ns in zip(each.split(list(by_end.values())), by_end, strict=True):
                self._end_at(end_ns, split, task)

    def _end_at(self, end_ns: int, unit: Unit, index: int) -> None:
        known_ns = max(end_ns - self._job.endpoint_ns, 0)  # an endpoint delay is what ends every algorithm
        self._clock.at(end_ns, partial(self._end, unit, index), known_ns=known_ns)

    def _common_elapsed(self, plan: Plan, group: tuple[int, ...]) -> int | None:
        """Time of a collective that all members start at once; None where they do not end at once."""
        layout = self._group_layout(group) if group else None
        times: dict[Pattern, int] = {}
        for phase in (phase for stream in plan.streams for phase in stream):
            if phase.pattern not in times:
                passed_ns = elapsed(phase.pattern, layout or self._world[phase.dimension])
                if passed_ns is None:
                    return None
                times[phase.pattern] = passed_ns

        def phase_ends(phase: Phase, starts: Sequence[int]) -> Sequence[int]:
            return [starts[0] + times[phase.pattern]]

        return run_streams(plan, [0], phase_ends=phase_ends, peers=lambda phase, member: (0,))[0]

    def _ends(self, plan: Plan, members: tuple[int, ...], starts: tuple[int, ...]) -> list[int]:
        """Return when each member has finished a collective, given when each starts.

        Members are a communicator group, or in ascending order all ranks of the lines that take part.
        """
        from scaleout.interop.astra.staggered import ends  # noqa: PLC0415 - NumPy is worth its wait only here

        layouts = self._world | {GROUP: self._group_layout(members)}
        position_of = {rank: position for position, rank in enumerate(members)}

        def phase_ends(phase: Phase, starts: Sequence[int]) -> Sequence[int]:
            return ends(phase.pattern, layouts[phase.dimension], starts)

        def peers(phase: Phase, member: int) -> Sequence[int]:
            if phase.dimension in (FLAT, GROUP):
                return range(len(members))
            dimension = self._job.network.dimensions[phase.dimension]
            rank = members[member]
            first = rank - rank // dimension.stride % dimension.size * dimension.stride
            return [position_of[first + along * dimension.stride] for along in range(dimension.size)]

        return run_streams(plan, starts, phase_ends=phase_ends, peers=peers)

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
            number, distance = network.crossed(source, target)
            return number, HOPS[network.dimensions[number].kind](distance, network.dimensions[number].size)

        regular = len({hop(members[i - 1], members[i]) for i in range(len(members))}) == 1
        return MemberLayout(send_ns, regular, GROUP_ENDPOINT_NS, job.reduction_ns, job.rendezvous)


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
    streams = contended_streams(job, plan, clock, links.carry, num_members=1, folded=True)
    streams.start(0, lambda: ended.append(clock.now_ns))
    clock.run()
    return ended[0]


def contended_streams(
    job: Job, plan: Plan, clock: Clock, carry: Carry, *, num_members: int, folded: bool = False
) -> Streams:
    """Return the streams of a collective in one dimension, whose members pass every message by `carry`."""

    def begin(member: int, stream: int, index: int) -> None:
        phases[stream][member].start()

    streams = Streams(plan, begin)
    phases = []
    for stream, (phase,) in enumerate(plan.streams):
        endpoint_ns = GROUP_ENDPOINT_NS if phase.dimension == GROUP else job.endpoint_ns
        shared = Shared(clock, carry, endpoint_ns, job.reduction_ns, job.rendezvous)
        ends = [partial(streams.end, member, stream, 0) for member in range(num_members)]
        phases.append(members_of(phase.pattern, shared, ends, folded=folded))
    return streams


class AwareFabric:
    """With contention: members send as soon as they arrive, and their messages queue for links."""

    def __init__(self, job: Job, clock: Clock, end: End) -> None:
        self._job, self._clock, self._end = job, clock, end
        dimension = job.network.dimensions[0]
        self._links = Links(clock, dimension, route(dimension))
        self.carry = self._links.carry
        self._new: list[tuple[CollectiveInstance, Unit, int]] = []
        self._streams: Callable[[CollectiveInstance], Streams] = lru_cache(maxsize=None)(self._streams_of)
        self._folded: Callable[[Plan], int] = lru_cache(maxsize=None)(partial(folded_elapsed, job))

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
        if not self._all_start(instance, new):
            self._start_each(new)
            return
        end_ns = self._clock.now_ns + self._folded(instance.plan)
        for unit, index, _ in instance.arrived:
            self._clock.at(end_ns, partial(self._end, unit, index), known_ns=end_ns - self._job.endpoint_ns)

    def _start_each(self, new: list[tuple[CollectiveInstance, Unit, int]]) -> None:
        """Let every rank send for itself."""
        for instance, unit, index in new:
            for each in unit.split([(rank,) for rank in unit.ranks]):
                position = instance.members.index(each.ranks[0])
                self._streams(instance).start(position, partial(self._end, each, index))

    def _all_start(self, instance: CollectiveInstance, new: list[tuple[CollectiveInstance, Unit, int]]) -> bool:
        """Whether these are all ranks, which start one symmetric collective at once on an idle network."""
        return (
            sum(len(unit.ranks) for each, unit, _ in new if each is instance) == self._job.network.num_ranks
            and len(new) == len(instance.arrived)
            and self._links.num_messages == 0
            and is_symmetric(self._job, instance.plan)
        )

    def _streams_of(self, instance: CollectiveInstance) -> Streams:
        members = instance.members

        def carry(source: int, target: int, size_bytes: int, deliver: Deliver) -> None:
            self._links.carry(members[source], members[target], size_bytes, deliver)

        return contended_streams(self._job, instance.plan, self._clock, carry, num_members=len(members))
