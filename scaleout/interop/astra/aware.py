"""Collectives with contention: every message crosses the links of its route, one after the other.

Where all ranks begin the same collective together and nothing else is on its way, all do alike; one rank then stands
for all, and a link for all links like it, which is exact for algorithms and networks that look the same from every
rank. In all other cases every rank is simulated. Knows no graphs.
"""

from collections import defaultdict, deque
from collections.abc import Callable

from scaleout.interop.astra.algorithms.double_binary_tree import Tree
from scaleout.interop.astra.algorithms.exchange import Exchange
from scaleout.interop.astra.clock import Clock
from scaleout.interop.astra.job import Job
from scaleout.interop.astra.links import Links, folded_route
from scaleout.interop.astra.members import Deliver, ExchangeMember, Surroundings, TreeMember
from scaleout.interop.astra.plan import GROUP, GROUP_ENDPOINT_NS, Phase, Plan


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
