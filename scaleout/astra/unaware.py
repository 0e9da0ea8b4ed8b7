"""Collectives without contention: when each member begins one to when it has it.

Nothing else in the network matters, so a collective is a function of its plan and of its members' starts; and where
these are one and the same, of the plan alone. Knows no graphs.
"""

from collections.abc import Sequence
from functools import lru_cache

from scaleout.astra.algorithms import Steps
from scaleout.astra.job import Job
from scaleout.astra.phase_time import elapsed
from scaleout.astra.place import Place
from scaleout.astra.plan import FLAT, GROUP, GROUP_ENDPOINT_NS, Phase, Plan
from scaleout.astra.streams import run_streams


def _of_group(plan: Plan) -> bool:
    return plan.streams[0][0].dimension == GROUP


class Unaware:
    """Times of collectives on the network of a job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._elapsed = lru_cache(maxsize=None)(self._common_elapsed)
        self._world = {index: self._world_place(index) for index in (FLAT, *range(len(job.network.dimensions)))}

    def elapsed(self, plan: Plan, members: tuple[int, ...]) -> int | None:
        """Time of a collective that all members begin and end together; None where they do not end together.

        Parameters
        ----------
        plan : Plan
        members : tuple of int
            Ranks in the order of their positions.
        """
        return self._elapsed(plan, members if _of_group(plan) else ())

    def ends(self, plan: Plan, members: tuple[int, ...], starts: Sequence[int]) -> list[int]:
        """Return when each member has a collective.

        Parameters
        ----------
        plan : Plan
        members : tuple of int, length n
            Ranks: a communicator group, or in ascending order all ranks of the lines that take part.
        starts : length n
        """
        from scaleout.astra.staggered import ends  # noqa: PLC0415 - NumPy is worth its wait only here

        group_place = self._group_place(members) if _of_group(plan) else None
        position_of = {rank: position for position, rank in enumerate(members)}

        def phase_ends(phase: Phase, begun: Sequence[int]) -> Sequence[int]:
            return ends(phase.steps, group_place or self._world[phase.dimension], begun)

        def peers(phase: Phase, member: int) -> Sequence[int]:
            if phase.dimension in (FLAT, GROUP):
                return range(len(members))
            dimension = self._job.network.dimensions[phase.dimension]
            rank = members[member]
            first = rank - rank // dimension.stride % dimension.size * dimension.stride
            return [position_of[first + step * dimension.stride] for step in range(dimension.size)]

        return run_streams(plan, starts, phase_ends=phase_ends, peers=peers)

    def _common_elapsed(self, plan: Plan, members: tuple[int, ...]) -> int | None:
        place = self._group_place(members) if members else None
        times: dict[Steps, int] = {}
        for phase in (phase for stream in plan.streams for phase in stream):
            if phase.steps not in times:
                passed_ns = elapsed(phase.steps, place or self._world[phase.dimension])
                if passed_ns is None:
                    return None
                times[phase.steps] = passed_ns

        def phase_ends(phase: Phase, begun: Sequence[int]) -> Sequence[int]:
            return [begun[0] + times[phase.steps]]

        return run_streams(plan, [0], phase_ends=phase_ends, peers=lambda phase, member: (0,))[0]

    def _world_place(self, index: int) -> Place:
        """Place of the members along a dimension, or of all ranks."""
        job = self._job
        network = job.network
        dimension = network.dimensions[max(index, 0)]

        def send_ns(source: int, target: int, size_bytes: int) -> int:
            if index == FLAT:
                return network.send_ns(source, target, size_bytes)
            return dimension.send_ns((target - source) % dimension.size, size_bytes)

        return Place(send_ns, True, job.endpoint_ns, job.reduction_ns, job.rendezvous)

    def _group_place(self, members: tuple[int, ...]) -> Place:
        """Place of a communicator group; regular if all its neighbours, forth and back, are equally far."""
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
        return Place(send_ns, regular, GROUP_ENDPOINT_NS, job.reduction_ns, job.rendezvous)
