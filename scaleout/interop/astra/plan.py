"""A collective to its streams, each a list of phases with the queue that it passes through.

A collective is cut into equal chunks, one stream each; a remainder makes one more of full size. A stream runs a phase
in each dimension: reduce-scatter from the first to the last, all-gather in reverse, all-to-all once in each, and an
all-reduce as reduce-scatters, an all-reduce in the last dimension, and all-gathers. Knows nothing of time.

Source: ASTRA-sim 2.0 at commit 518bd51 (2026-03-26), behaviour as measured.
"""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from scaleout.errors import ConfigError
from scaleout.interop.astra.algorithms import TREE, Manner, Named, Pattern, build, check
from scaleout.interop.astra.job import Job

FLAT, GROUP = -1, -2
"""In place of a dimension: all ranks as one dimension; the members of a communicator group in the order of its list."""
GROUP_ENDPOINT_NS = 10
"""Endpoint delay within a communicator group, whatever system.json says."""


Turns = tuple[tuple[tuple[int, str], int], ...]
"""Level and share of its queues, or ``"tree"``, to which of them is next, where it is not the first."""


class Phase(NamedTuple):
    """One dimension's part of a stream."""

    kind: str
    dimension: int  # or `FLAT`, or `GROUP`
    queue: tuple[int, int]  # level and index of the queue that it passes through
    pattern: Pattern


@dataclass(frozen=True, eq=False)
class Plan:
    """A collective."""

    streams: tuple[tuple[Phase, ...], ...]
    capacity: int  # streams that run in a queue at a time
    turns: Turns  # which queues and trees the next collective takes first


@dataclass
class Queues:
    """Hands out the queues and trees of each level in turn; an all-reduce takes the first half on its way up."""

    count: int  # queues of a level
    turns: Counter[tuple[int, str]]  # which is next; kept from collective to collective

    def take(self, level: int, share: str) -> tuple[int, int]:
        """Return the next queue of a level, and the direction in which it goes round: 1 or -1."""
        half = self.count // 2
        first, many = {"all": (0, self.count), "first": (0, max(half, 1)), "last": (half, self.count - half)}[share]
        turn = self.turns[level, share]
        self.turns[level, share] = (turn + 1) % many
        queue = first + turn
        backward = share == "last" or (share == "all" and self.count > 1 and queue >= half)
        return queue, -1 if backward else 1

    def take_tree(self, level: int) -> int:
        """Return the next of the two trees of a level."""
        turn = self.turns[level, "tree"]
        self.turns[level, "tree"] = 1 - turn
        return turn


def split(size_bytes: int, splits: int, *, kind: str, num_ranks: int) -> tuple[int, int]:
    """Cut a collective into streams: the bytes of each, and how many.

    >>> split(1000003, 4, kind="all-reduce", num_ranks=12)
    (250000, 5)
    """
    chunk = size_bytes // splits
    if chunk < num_ranks and kind != "all-gather":
        chunk, size_bytes = num_ranks, splits * num_ranks
    if chunk == 0:
        raise ConfigError(
            f"an all-gather of {size_bytes} bytes cannot be cut into preferred-dataset-splits {splits}; ask for fewer"
        )
    return chunk, -(-size_bytes // chunk)


def dimensions_of(job: Job, kind: str, involved: tuple[bool, ...]) -> tuple[int, ...]:
    """Return the dimensions in which a collective runs, or `FLAT` alone."""
    names = _algorithms(job, kind)
    if involved and len(involved) < len(names):
        raise ConfigError(
            f"an {kind} has involved_dim {list(involved)}, but runs in {len(names)} dimensions; ASTRA-sim would read "
            f"beyond the end of the list: say of each dimension whether it takes part, or leave out involved_dim"
        )
    found = tuple(dimension for dimension in range(len(names)) if not involved or involved[dimension])
    if not found:
        raise ConfigError(f"an {kind} with involved_dim {list(involved)} has no dimension left to run in; involve one")
    return (FLAT,) if names[0].flat else found


def _algorithms(job: Job, kind: str) -> tuple[Named, ...]:
    """Return the algorithms of a kind of collective, one a dimension."""
    if not job.algorithms[kind]:
        raise ConfigError(f"the trace has an {kind}, but system.json no {kind}-implementation; add it")
    return job.algorithms[kind]


class _Leg(NamedTuple):
    """A phase that every stream has, without size and queue."""

    kind: str
    dimension: int
    share: str
    choice: Named
    num_ranks: int

    @property
    def level(self) -> int:
        """Dimension whose queues it takes; 0 for `FLAT` and `GROUP`."""
        return max(self.dimension, 0)

    def size_after(self, size_bytes: int) -> int:
        """Bytes that a stream has after the phase; a tree leaves them as they are."""
        if self.choice.algorithm == TREE:
            return size_bytes
        if self.kind == "reduce-scatter":
            return size_bytes // self.num_ranks
        return size_bytes * self.num_ranks if self.kind == "all-gather" else size_bytes


def _order(kind: str, dimensions: tuple[int, ...], *, baseline: bool) -> list[tuple[str, int, str]]:
    """Kinds and dimensions of the phases in order, and which share of the queues each takes."""
    if kind == "all-reduce" and not baseline:
        *inner, last = dimensions
        up = [("reduce-scatter", dimension, "first") for dimension in inner]
        down = [("all-gather", dimension, "last") for dimension in reversed(inner)]
        return [*up, ("all-reduce", last, "first"), *down]
    order = reversed(dimensions) if kind == "all-gather" else dimensions
    return [(kind, dimension, "all") for dimension in order]


def plan_collective(
    job: Job,
    kind: str,
    size_bytes: int,
    *,
    involved: tuple[bool, ...] = (),
    turns: Turns = (),
) -> Plan:
    """Plan a collective of all ranks; of `involved`, dimensions beyond its length take part."""
    dimensions = dimensions_of(job, kind, involved)
    legs = []
    for leg, dimension, share in _order(kind, dimensions, baseline=job.system.collective_optimization == "baseline"):
        choice = job.algorithms[kind][max(dimension, 0)]
        num_ranks = job.network.num_ranks if dimension == FLAT else job.network.dimensions[dimension].size
        check(choice, leg, num_ranks, where=f"{kind}-implementation, dimension {max(dimension, 0)}")
        legs.append(_Leg(leg, dimension, share, choice, num_ranks))
    return _plan(job, kind, size_bytes, legs=legs, turns=turns)


def plan_group(job: Job, kind: str, size_bytes: int, num_members: int, turns: Turns = ()) -> Plan:
    """Plan a collective of a communicator group, its members as one dimension in the order of its list.

    The algorithm is the one that system.json names if it names one alone, and a ring if it names one a dimension.
    """
    if num_members == 1:
        raise ConfigError(f"an {kind} in a communicator group of one rank has nobody to talk to; remove it")
    names = _algorithms(job, kind)
    choice = names[0] if len(names) == 1 else Named("ring")
    if choice.algorithm == TREE:
        raise ConfigError(f"{kind}-implementation: {TREE} crashes in communicator groups; use ring")
    check(choice, kind, num_members, where=f"{kind}-implementation, in a communicator group")
    share = "first" if kind == "all-reduce" and job.system.collective_optimization != "baseline" else "all"
    return _plan(job, kind, size_bytes, legs=[_Leg(kind, GROUP, share, choice, num_members)], turns=turns)


def _plan(job: Job, kind: str, size_bytes: int, *, legs: list[_Leg], turns: Turns) -> Plan:
    chunk, num_streams = split(size_bytes, job.system.splits, kind=kind, num_ranks=job.network.num_ranks)
    queues = Queues(job.num_queues, Counter(dict(turns)))
    made: dict[tuple[int, int, int, int], Pattern] = {}  # equal streams share their pattern
    streams = []
    for _ in range(num_streams):
        data = chunk
        phases = []
        for at, leg in enumerate(legs):
            queue, direction = queues.take(leg.level, leg.share)
            tree = queues.take_tree(leg.level) if leg.choice.algorithm == TREE else 0
            key = (at, data, tree, direction)
            if key not in made:
                made[key] = _pattern(leg, data, tree=tree, direction=direction)
            phases.append(Phase(leg.kind, leg.dimension, (leg.level, queue), made[key]))
            data = leg.size_after(data)
        streams.append(tuple(phases))
    return Plan(
        tuple(streams),
        -(-job.system.active_chunks // job.num_queues),
        tuple(sorted((+queues.turns).items())),
    )


def _pattern(leg: _Leg, size_bytes: int, *, tree: int, direction: int) -> Pattern:
    manner = Manner(leg.choice.window, direction, in_group=leg.dimension == GROUP)
    pattern = build(leg.choice, leg.kind, leg.num_ranks, size_bytes=size_bytes, tree=tree, manner=manner)
    if min(pattern.sizes) == 0:
        raise ConfigError(
            f"{leg.choice.algorithm} cuts an {leg.kind} of {size_bytes} bytes among {leg.num_ranks} ranks into "
            f"messages of 0 bytes, on which ASTRA-sim aborts; make it larger, or preferred-dataset-splits smaller"
        )
    return pattern
