"""Collectives without contention: when each member begins one to when it has it.

Nothing else in the network matters, so a collective is a function of its plan and of its members' starts; and where
these are one and the same, of the plan alone. Knows no graphs.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from scaleout.astra.job import Job
from scaleout.astra.phase_time import Place, Times, elapsed, ends
from scaleout.astra.plan import FLAT, GROUP, GROUP_ENDPOINT_NS, Phase, Plan
from scaleout.astra.streams import run_streams


class Unaware:
    """Times of collectives on the network of a job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._elapsed = lru_cache(maxsize=None)(self._common_elapsed)
        self._world = {index: self._world_place(index) for index in (FLAT, *range(len(job.network.dimensions)))}

    def ends(self, plan: Plan, members: Sequence[int], starts: Times) -> Times:
        """Return when each member has a collective.

        Parameters
        ----------
        plan : Plan
        members : sequence of int, length n
            Ranks; for a plan of all ranks, all of them in order.
        starts : (n,)

        Returns
        -------
        ends : (n,)
        """
        first = int(starts[0])
        if bool((starts == first).all()):
            passed = self._elapsed(plan, tuple(members) if self._of_group(plan) else ())
            if passed is not None:
                return np.full(len(starts), first + passed, dtype=np.int64)
        return self._each(plan, members, starts)

    def _of_group(self, plan: Plan) -> bool:
        return plan.streams[0][0].dimension == GROUP

    def _common_elapsed(self, plan: Plan, members: tuple[int, ...]) -> int | None:
        """Time of a collective that all begin and end together, or None."""
        place = self._group_place(members) if members else None
        for phase in {id(phase.steps): phase for stream in plan.streams for phase in stream}.values():
            if self._phase_elapsed(phase, place) is None:
                return None

        def phase_ends(phase: Phase, starts: Times) -> Times:
            passed = self._phase_elapsed(phase, place)
            assert passed is not None
            return starts + passed

        start = np.zeros(1, dtype=np.int64)
        return int(run_streams(plan, start, phase_ends=phase_ends, peers=lambda phase, member: (0,))[0])

    def _phase_elapsed(self, phase: Phase, place: Place | None) -> int | None:
        return elapsed(phase.steps, place or self._world[phase.dimension])

    def _each(self, plan: Plan, members: Sequence[int], starts: Times) -> Times:
        group_place = self._group_place(tuple(members)) if self._of_group(plan) else None
        everyone = range(len(members))

        def phase_ends(phase: Phase, begun: Times) -> Times:
            return ends(phase.steps, group_place or self._world[phase.dimension], begun)

        def peers(phase: Phase, member: int) -> Sequence[int]:
            if phase.dimension in (FLAT, GROUP):
                return everyone
            dimension = self._job.network.dimensions[phase.dimension]
            first = member - member // dimension.stride % dimension.size * dimension.stride
            return range(first, first + dimension.size * dimension.stride, dimension.stride)

        return run_streams(plan, starts, phase_ends=phase_ends, peers=peers)

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
