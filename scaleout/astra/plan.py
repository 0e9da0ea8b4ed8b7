"""A collective to its streams, each a list of phases with the queue that it passes through.

A collective is cut into equal chunks, one stream each; a remainder makes one more of full size. A stream runs a phase
in each dimension: reduce-scatter from the first to the last, all-gather the other way, all-to-all once in each, and an
all-reduce as reduce-scatters, an all-reduce in the last dimension, and all-gathers. Knows nothing of time.

Source: ASTRA-sim 2.0 at commit 518bd51 (2026-03-26), behaviour as measured.
"""

from collections import Counter
from dataclasses import dataclass

from scaleout.astra.algorithms import TREE, Named, Steps, build, check
from scaleout.astra.job import Job
from scaleout.errors import ConfigError

FLAT, GROUP = -1, -2
"""In place of a dimension: all ranks as one dimension; the members of a communicator group in the order of its list."""
GROUP_ENDPOINT_NS = 10
"""Endpoint delay within a communicator group, whatever system.json says."""


@dataclass(frozen=True, eq=False)
class Phase:
    """One step of a stream.

    Attributes
    ----------
    kind : str
    dimension : int
        Or `FLAT`, or `GROUP`.
    queue : tuple of int
        Level and index of the queue that it passes through.
    steps : Steps
    """

    kind: str
    dimension: int
    queue: tuple[int, int]
    steps: Steps


@dataclass(frozen=True, eq=False)
class Plan:
    """A collective.

    Attributes
    ----------
    streams : tuple of tuple of Phase
    capacity : int
        Streams that run in a queue at a time.
    tree_dimensions : frozenset of int
        Where every stream takes a tree, in turns that go on with the next collective.
    """

    streams: tuple[tuple[Phase, ...], ...]
    capacity: int
    tree_dimensions: frozenset[int]


@dataclass
class Queues:
    """Hands out the queues of each level in turn; an all-reduce takes the first half on its way up."""

    count: int
    turns: Counter[tuple[int, str]]

    def take(self, level: int, share: str) -> int:
        """Return the next queue of a level."""
        turn = self.turns[level, share]
        self.turns[level, share] += 1
        half = self.count // 2
        if self.count == 1 or share == "all":
            return turn % self.count
        return turn % half if share == "first" else half + turn % (self.count - half)


def split(size_bytes: int, splits: int, *, kind: str, num_ranks: int) -> tuple[int, int]:
    """Cut a collective into streams.

    Returns
    -------
    chunk_bytes, num_streams : int

    Examples
    --------
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
    """Return the dimensions in which a collective runs, or `FLAT` alone.

    Raises
    ------
    ConfigError
        If none is left, or no algorithm is named.
    """
    names = job.algorithms[kind]
    if not names:
        raise ConfigError(f"the trace has an {kind}, but system.json no {kind}-implementation; add it")
    if names[0].flat:
        if not all(involved[: len(job.network.dimensions)]):
            raise ConfigError(f"{kind}-implementation spans all dimensions, but involved_dim is {list(involved)}")
        return (FLAT,)
    found = tuple(dimension for dimension in range(len(names)) if dimension >= len(involved) or involved[dimension])
    if not found:
        raise ConfigError(f"an {kind} with involved_dim {list(involved)} has no dimension left to run in; involve one")
    return found


@dataclass(frozen=True)
class _Leg:
    """A phase that every stream has, before its size and queue are known."""

    kind: str
    dimension: int
    share: str
    choice: Named
    num_ranks: int

    @property
    def level(self) -> int:
        """Whose queues it takes; those of dimension 0 where it is none of them."""
        return max(self.dimension, 0)

    def size_after(self, size_bytes: int) -> int:
        """Bytes that a stream has after the phase."""
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
    job: Job, kind: str, size_bytes: int, *, involved: tuple[bool, ...] = (), trees: tuple[int, ...] = ()
) -> Plan:
    """Plan a collective of all ranks.

    Parameters
    ----------
    job : Job
    kind : str
    size_bytes : int
    involved : tuple of bool
        Dimensions that take part; those beyond its length do.
    trees : tuple of int
        Which of the two trees the first stream takes in each dimension; tree 0 beyond its length.

    Raises
    ------
    ConfigError
        If an algorithm cannot do its part.
    """
    dimensions = dimensions_of(job, kind, involved)
    legs = []
    for leg, dimension, share in _order(kind, dimensions, baseline=job.system.collective_optimization == "baseline"):
        choice = job.algorithms[kind][max(dimension, 0)]
        num_ranks = job.network.num_ranks if dimension == FLAT else job.network.dimensions[dimension].size
        check(choice, leg, num_ranks, where=f"{kind}-implementation, dimension {max(dimension, 0)}")
        legs.append(_Leg(leg, dimension, share, choice, num_ranks))
    return _plan(job, kind, size_bytes, legs=legs, trees=trees)


def plan_group(job: Job, kind: str, size_bytes: int, num_members: int) -> Plan:
    """Plan a collective of a communicator group: a ring over its members.

    Raises
    ------
    ConfigError
        If the group has one member, or system.json asks for trees.
    """
    if num_members == 1:
        raise ConfigError(f"an {kind} in a communicator group of one rank has nobody to talk to; remove it")
    names = job.algorithms[kind]
    if not names:
        raise ConfigError(f"the trace has an {kind}, but system.json no {kind}-implementation; add it")
    if any(name.algorithm == TREE for name in names):
        raise ConfigError(f"{kind}-implementation: {TREE} crashes in communicator groups; use ring")
    share = "first" if kind == "all-reduce" else "all"
    return _plan(job, kind, size_bytes, legs=[_Leg(kind, GROUP, share, Named("ring"), num_members)], trees=())


def _plan(job: Job, kind: str, size_bytes: int, *, legs: list[_Leg], trees: tuple[int, ...]) -> Plan:
    chunk, num_streams = split(size_bytes, job.system.splits, kind=kind, num_ranks=job.network.num_ranks)
    queues = Queues(job.num_queues, Counter())
    made: dict[tuple[int, int, int, int], Steps] = {}  # streams that do the same share their steps
    streams = []
    for stream in range(num_streams):
        data = chunk
        phases = []
        for place, leg in enumerate(legs):
            queue = queues.take(leg.level, leg.share)
            first = trees[leg.level] if leg.level < len(trees) else 0
            turn, direction = (first + stream) % 2, -1 if queue % 2 else 1
            key = (place, data, turn, direction)
            if key not in made:
                made[key] = build(leg.choice, leg.kind, leg.num_ranks, size_bytes=data, tree=turn, direction=direction)
            phases.append(Phase(leg.kind, leg.dimension, (leg.level, queue), made[key]))
            data = leg.size_after(data)
        streams.append(tuple(phases))
    tree_dimensions = frozenset(leg.dimension for leg in legs if leg.choice.algorithm == TREE)
    return Plan(tuple(streams), -(-job.system.active_chunks // job.num_queues), tree_dimensions)
