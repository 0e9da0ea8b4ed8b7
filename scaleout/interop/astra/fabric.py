"""The two back ends as the simulation sees them: who comes to a collective, and when each rank has it.

Both carry single messages too. Where the times of ranks that were one unit differ, or may differ, the unit parts.

Collectives with contention: every message crosses the links of its route, one after the other.

Where all ranks begin the same collective together and nothing else is on its way, all do alike; one rank then stands
for all, and a link for all links like it, which is exact for algorithms and networks that look the same from every
rank. In all other cases every rank is simulated. Knows no graphs.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from scaleout.interop.astra.algorithms.double_binary_tree import Tree
from scaleout.interop.astra.algorithms.exchange import Exchange
from scaleout.interop.astra.clock import Clock
from scaleout.interop.astra.instance import CollectiveInstance
from scaleout.interop.astra.job import Job
from scaleout.interop.astra.links import Links, folded_route, route
from scaleout.interop.astra.members import Deliver, ExchangeMember, Surroundings, TreeMember
from scaleout.interop.astra.plan import GROUP, GROUP_ENDPOINT_NS, Phase, Plan
from scaleout.interop.astra.progress import Unit
from scaleout.interop.astra.unaware import Unaware


def looks_alike(job: Job, plan: Plan) -> bool:
    """Whether a collective looks the same from every rank: no trees, and partners by bits only off the ring."""
    kind = job.network.dimensions[0].kind
    return all(
        isinstance(phase.steps, Exchange) and phase.dimension != GROUP and not (phase.steps.xor and kind == "Ring")
        for stream in plan.streams
        for phase in stream
    )


def folded_elapsed(job: Job, plan: Plan) -> int:
    """Time of a collective that all ranks begin together on an idle network, from one rank alone."""
    clock = Clock()
    dimension = job.network.dimensions[0]
    links = Links(clock, dimension, folded_route(dimension))
    ended: list[int] = []
    collective = Collective(job, plan, clock=clock, carry=links.carry, members=(0,), folded=True)
    collective.begin(0, lambda: ended.append(clock.now_ns))
    clock.run()
    return ended[0]


class Collective:
    """A collective under way: the members of every stream, and the streams that wait.

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
        self._teams = [self._team(stream, phase) for stream, (phase,) in enumerate(plan.streams)]
        self._left = [len(plan.streams)] * len(members)
        self._running: dict[tuple[int, int], int] = defaultdict(int)
        self._waiting: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        self._done: dict[int, Deliver] = {}

    def begin(self, position: int, done: Deliver) -> None:
        """Let a member begin now; `done` is called when it has all streams."""
        self._done[position] = done
        for stream, (phase,) in enumerate(self._plan.streams):
            self._waiting[position, phase.queue[1]].append(stream)
            self._admit(position, phase.queue[1])

    def _admit(self, position: int, queue: int) -> None:
        key = (position, queue)
        while self._waiting[key] and self._running[key] < self._plan.capacity:
            self._running[key] += 1
            self._teams[self._waiting[key].popleft()][position].begin()

    def _team(self, stream: int, phase: Phase) -> "list[ExchangeMember] | list[TreeMember]":
        job = self._job
        endpoint_ns = GROUP_ENDPOINT_NS if phase.dimension == GROUP else job.endpoint_ns
        around = Surroundings(self._clock, endpoint_ns, job.reduction_ns, self._carry, job.rendezvous)
        positions = range(len(self.members))
        if isinstance(phase.steps, Tree):
            trees: list[TreeMember] = []
            trees.extend(TreeMember(phase.steps, around, p, trees, self._ender(p, phase.queue[1])) for p in positions)
            return trees
        team: list[ExchangeMember] = []
        peers = None if self._folded else team
        team.extend(ExchangeMember(phase.steps, around, p, peers, self._ender(p, phase.queue[1])) for p in positions)
        return team

    def _ender(self, position: int, queue: int) -> Deliver:
        def end() -> None:
            self._left[position] -= 1
            if self._left[position] == 0:
                self._done[position]()
            self._running[position, queue] -= 1
            self._admit(position, queue)

        return end


End = Callable[[Unit, int], None]
"""Called when a unit has ended a task."""


class Fabric(Protocol):
    """A network in use."""

    def carry(self, source: int, target: int, size_bytes: int, deliver: Callable[[], None]) -> None:
        """Carry a message and call `deliver` when it has arrived."""

    def joined(self, instance: CollectiveInstance, unit: Unit, index: int) -> None:
        """Take note that a unit has just come to a meeting."""


class UnawareFabric:
    """Without contention: a collective ends as its members' starts say, once all have come."""

    def __init__(self, job: Job, clock: Clock, end: End) -> None:
        self._job, self._clock, self._end = job, clock, end
        self._times = Unaware(job)

    def carry(self, source: int, target: int, size_bytes: int, deliver: Callable[[], None]) -> None:
        """Carry a message and call `deliver` when it has arrived."""
        self._clock.at(self._clock.now_ns + self._job.network.send_ns(source, target, size_bytes), deliver)

    def joined(self, instance: CollectiveInstance, unit: Unit, index: int) -> None:
        """Let the collective end for all, if the unit was the last to come."""
        if not instance.is_complete:
            return
        times = {now_ns for _, _, now_ns in instance.came}
        passed_ns = self._times.elapsed(instance.plan, instance.members) if len(times) == 1 else None
        if passed_ns is not None:
            for each, task, now_ns in instance.came:
                self._end_at(now_ns + passed_ns, each, task)
            return
        came = {rank: now_ns for each, _, now_ns in instance.came for rank in each.ranks}
        ends = self._times.ends(instance.plan, instance.members, [came[rank] for rank in instance.members])
        end_of = dict(zip(instance.members, ends, strict=True))
        for each, task, _ in instance.came:
            by_end: dict[int, list[int]] = {}
            for rank in each.ranks:
                by_end.setdefault(end_of[rank], []).append(rank)
            units = [each] if len(by_end) == 1 else each.part(list(by_end.values()))
            for part, end_ns in zip(units, by_end, strict=True):
                self._end_at(end_ns, part, task)

    def _end_at(self, end_ns: int, unit: Unit, index: int) -> None:
        known_ns = max(end_ns - self._job.endpoint_ns, 0)  # an endpoint delay is what ends every algorithm
        self._clock.at(end_ns, partial(self._end, unit, index), known_ns=known_ns)


class AwareFabric:
    """With contention: members send as soon as they come, and their messages queue for links."""

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

    def joined(self, instance: CollectiveInstance, unit: Unit, index: int) -> None:
        """Begin now, or if all may begin together, at the end of this nanosecond, when it is known."""
        now_ns = self._clock.now_ns
        if not self._new and (self._links.num_messages or instance.came[0][2] != now_ns):
            self._begin_each([(instance, unit, index)])
            return
        if not self._new:
            self._clock.at(now_ns, self._begin)
        self._new.append((instance, unit, index))

    def _begin(self) -> None:
        new, self._new = self._new, []
        instance = new[0][0]
        if self._is_alike(instance, new):
            if instance.plan not in self._folded:
                self._folded[instance.plan] = folded_elapsed(self._job, instance.plan)
            end_ns = self._clock.now_ns + self._folded[instance.plan]
            for unit, index, _ in instance.came:
                self._clock.at(end_ns, partial(self._end, unit, index), known_ns=end_ns - self._job.endpoint_ns)
            return
        self._begin_each(new)

    def _begin_each(self, new: list[tuple[CollectiveInstance, Unit, int]]) -> None:
        """Let every rank send for itself."""
        for instance, unit, index in new:
            units = [unit] if len(unit.ranks) == 1 else unit.part([(rank,) for rank in unit.ranks])
            for each in units:
                position = instance.members.index(each.ranks[0])
                self._collective(instance).begin(position, partial(self._end, each, index))

    def _is_alike(self, instance: CollectiveInstance, new: list[tuple[CollectiveInstance, Unit, int]]) -> bool:
        """Whether these are all ranks, which begin one collective together on an idle network."""
        return (
            sum(len(unit.ranks) for each, unit, _ in new if each is instance) == self._job.network.num_ranks
            and len(new) == len(instance.came)
            and self._links.num_messages == 0
            and looks_alike(self._job, instance.plan)
        )

    def _collective(self, instance: CollectiveInstance) -> Collective:
        if instance not in self._running:
            self._running[instance] = Collective(
                self._job, instance.plan, clock=self._clock, carry=self._links.carry, members=instance.members
            )
        return self._running[instance]
