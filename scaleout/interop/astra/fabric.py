"""The two back ends as the simulation sees them: who comes to a collective, and when each rank has it.

Both carry single messages too. Where the times of ranks that were one unit differ, or may differ, the unit parts.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from scaleout.interop.astra.aware import Collective, folded_elapsed, looks_alike
from scaleout.interop.astra.clock import Clock
from scaleout.interop.astra.instance import CollectiveInstance
from scaleout.interop.astra.job import Job
from scaleout.interop.astra.links import Links, route
from scaleout.interop.astra.plan import Plan
from scaleout.interop.astra.progress import Unit
from scaleout.interop.astra.unaware import Unaware

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
