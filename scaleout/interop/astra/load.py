"""Collectives of a run to the bytes on the busiest link of each dimension, and the time that these need.

Without contention ASTRA-sim lets links carry more than they can. A message loads the links of the first dimension in
which its ends differ, where its time is counted too. Single messages are left out.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from scaleout.interop.astra.algorithms import NOBODY, Pattern, Tree
from scaleout.interop.astra.job import Job
from scaleout.interop.astra.links import folded_route, route
from scaleout.interop.astra.network import Dimension
from scaleout.interop.astra.plan import FLAT, GROUP, Phase
from scaleout.interop.astra.run import Outcome


@dataclass(frozen=True)
class DimensionLoad:
    """Load of a dimension by collectives.

    Attributes
    ----------
    link_bytes : int
        On the busiest link.
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
    """Yield dimension, link and bytes of all messages of a phase; one line represents all lines of a dimension."""
    if phase.dimension not in (FLAT, GROUP):
        for link, size_bytes in _line_loads(job.network.dimensions[phase.dimension], phase.pattern):
            yield phase.dimension, link, size_bytes
        return
    finders = [route(dimension) for dimension in job.network.dimensions]
    for source, target, size_bytes in _messages(phase.pattern):
        here, there = members[source], members[target]
        for number, dimension in enumerate(job.network.dimensions):
            coordinate, other = (rank // dimension.stride % dimension.size for rank in (here, there))
            if coordinate != other:
                line = here - coordinate * dimension.stride
                yield from ((number, (line, link), size_bytes) for link in finders[number](coordinate, other))
                break


def _line_loads(dimension: Dimension, pattern: Pattern) -> Iterator[tuple[Hashable, int]]:
    if isinstance(pattern, Tree) or (pattern.xor and dimension.kind == "Ring"):
        find = route(dimension)
        for source, target, size_bytes in _messages(pattern):
            yield from ((("line", link), size_bytes) for link in find(source, target))
        return
    folded = folded_route(dimension)
    for offset, size_bytes in _by_offset(pattern).items():
        yield from ((("line", link), size_bytes) for link in folded(0, pattern.target(0, offset)))


def _by_offset(pattern: Pattern) -> Counter[int]:
    assert not isinstance(pattern, Tree)
    sent: Counter[int] = Counter()
    for index in range(pattern.num_sends):
        sent[pattern.offset(index)] += pattern.size_bytes(index)
    return sent


def _messages(pattern: Pattern) -> Iterator[tuple[int, int, int]]:
    """Yield source, target and bytes; those between the same two in one."""
    if isinstance(pattern, Tree):
        for child, parent in enumerate(pattern.parents):
            if parent != NOBODY:
                yield child, parent, pattern.size_bytes
                yield parent, child, pattern.size_bytes
        return
    for offset, size_bytes in _by_offset(pattern).items():
        for source in range(pattern.num_ranks):
            yield source, pattern.target(source, offset), size_bytes
