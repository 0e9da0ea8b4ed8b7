"""Collectives of a run to what they put on the links of each dimension: bytes, and the time of the busiest link.

Without contention ASTRA-sim lets links carry more than they can; here a link's bytes over its bandwidth are set beside
the time of the run. A message loads the links of the first dimension in which its ends differ, as it is charged.
Single messages are left out.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from scaleout.interop.astra.algorithms import Steps
from scaleout.interop.astra.algorithms.double_binary_tree import NOBODY, Tree
from scaleout.interop.astra.job import Job
from scaleout.interop.astra.links import folded_route, route
from scaleout.interop.astra.network import Dimension
from scaleout.interop.astra.plan import FLAT, GROUP, Phase
from scaleout.interop.astra.run import Outcome


@dataclass(frozen=True)
class DimensionLoad:
    """What collectives put on a dimension.

    Attributes
    ----------
    link_bytes : int
        On its busiest link.
    link_ns : float
        Time that these bytes need on the link, latency left out.
    """

    dimension: int
    kind: str
    size: int
    link_bytes: int
    link_ns: float


def dimension_loads(outcome: Outcome) -> tuple[DimensionLoad, ...]:
    """Add up the bytes of all collectives on the busiest link of each dimension."""
    job = outcome.job
    totals: list[Counter[Hashable]] = [Counter() for _ in job.network.dimensions]
    for (plan, members), times in outcome.num_runs.items():
        for phase, count in Counter(phase for stream in plan.streams for phase in stream).items():
            for number, link, size_bytes in _loads(job, phase, members):
                totals[number][link] += size_bytes * times * count
    return tuple(
        DimensionLoad(
            number,
            dimension.kind,
            dimension.size,
            most := max(totals[number].values(), default=0),
            most / dimension.bytes_per_ns,
        )
        for number, dimension in enumerate(job.network.dimensions)
    )


def _loads(job: Job, phase: Phase, members: tuple[int, ...]) -> Iterator[tuple[int, Hashable, int]]:
    """Yield dimension, link and bytes of all messages of a phase; one line stands for all lines of a dimension."""
    if phase.dimension not in (FLAT, GROUP):
        for link, size_bytes in _line_loads(job.network.dimensions[phase.dimension], phase.steps):
            yield phase.dimension, link, size_bytes
        return
    finders = [route(dimension) for dimension in job.network.dimensions]
    for source, target, size_bytes in _messages(phase.steps):
        here, there = members[source], members[target]
        for number, dimension in enumerate(job.network.dimensions):
            coordinate, other = (rank // dimension.stride % dimension.size for rank in (here, there))
            if coordinate != other:
                line = here - coordinate * dimension.stride
                yield from ((number, (line, link), size_bytes) for link in finders[number](coordinate, other))
                break


def _line_loads(dimension: Dimension, steps: Steps) -> Iterator[tuple[Hashable, int]]:
    if isinstance(steps, Tree) or (steps.xor and dimension.kind == "Ring"):
        find = route(dimension)
        for source, target, size_bytes in _messages(steps):
            yield from ((("line", link), size_bytes) for link in find(source, target))
        return
    alike = folded_route(dimension)
    for offset, size_bytes in _by_offset(steps).items():
        yield from ((("line", link), size_bytes) for link in alike(0, steps.target(0, offset)))


def _by_offset(steps: Steps) -> Counter[int]:
    assert not isinstance(steps, Tree)
    sent: Counter[int] = Counter()
    for step in range(steps.num_sends):
        sent[steps.offset(step)] += steps.size_bytes(step)
    return sent


def _messages(steps: Steps) -> Iterator[tuple[int, int, int]]:
    """Yield source, target and bytes; those between the same two in one."""
    if isinstance(steps, Tree):
        for child, parent in enumerate(steps.parents):
            if parent != NOBODY:
                yield child, parent, steps.size_bytes
                yield parent, child, steps.size_bytes
        return
    for offset, size_bytes in _by_offset(steps).items():
        for source in range(steps.num_ranks):
            yield source, steps.target(source, offset), size_bytes
