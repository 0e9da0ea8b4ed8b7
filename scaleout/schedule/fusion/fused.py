"""A fused operator: task lists of all ranks and the links between them to timelines and a time.

The work of a rank is in shards of equal size, one for each destination (or, where data arrive, for each source). A rank
is done when it has run all tasks and has all slices; where the operator reduces, it then adds up what it received, and
in an all-reduce sends the sum. In aware order one rank is simulated, in oblivious order all. See
docs/models/fused-operators.md.

Symbols: p ranks; N tasks and S slices of a rank; G persistent work-groups.
Source: Punniyamurthy, Hamidouche and Beckmann, SC 2024, Sec. III.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaleout.errors import ConfigError
from scaleout.schedule.fusion.machine import Link, first_come
from scaleout.schedule.fusion.persistent import Execution, TaskList, execute

Floats = npt.NDArray[np.float64]

ORDERS = ("aware", "oblivious")

MOST_TASKS = 2**25
"""Most logical work-groups of all ranks together: half a minute and 2 GB."""
MOST_ROUNDS = 2**17
"""Most times that all ranks' persistent work-groups take their next tasks: ten seconds."""


@dataclass(frozen=True)
class Recipe:
    """A fused operator, whatever it computes."""

    ranks: int
    work: TaskList  # of one rank; shards are whole slices
    link: Link
    slice_bytes: float  # what leaves of a slice of another rank's shard
    call_s: float = 0.0  # of the last finisher of a slice that leaves; 0 for stores
    flag_s: float = 0.0  # a round of flags at the end of a phase
    launch_s: float = 0.0  # before the first task
    consumes: bool = False  # slices arrive before their tasks run, instead of leaving after them
    reduce_s: float = 0.0  # to add up what arrived
    shared_bytes: float = 0.0  # what a rank sends to each other one after that: the sum of its shard, in an all-reduce

    def __post_init__(self) -> None:
        if self.work.tasks * self.ranks > MOST_TASKS:
            raise ConfigError(
                f"{self.work.tasks} logical work-groups on each of {self.ranks} ranks are more than {MOST_TASKS} in "
                f"all; take smaller sizes, fewer ranks or larger tiles"
            )
        rounds = -(-self.work.tasks // self.work.slots) * self.ranks
        if rounds > MOST_ROUNDS:
            raise ConfigError(
                f"{self.work.tasks:,} logical work-groups by {self.work.slots:,} persistent ones on each of "
                f"{self.ranks} ranks are {rounds:,} rounds, and at most {MOST_ROUNDS:,} are simulated; take more "
                f"work_groups, smaller sizes or fewer ranks"
            )
        if self.work.tasks % (self.ranks * self.work.slice_tasks):
            shard = self.work.tasks / self.ranks
            raise ConfigError(
                f"slices of {self.work.slice_tasks} work-groups do not divide the {shard:g} of each of {self.ranks} "
                f"ranks' shards; give a slice_size that does"
            )

    @property
    def sent_bytes(self) -> float:
        """Bytes that a rank sends in the first phase."""
        return self.slice_bytes * self.work.slices * (self.ranks - 1) / self.ranks

    @property
    def link_s(self) -> float:
        """The lower bound of the links for all that a rank sends."""
        return self.link.busy_s(self.sent_bytes + self.shared_bytes * (self.ranks - 1), self.ranks - 1)


@dataclass(frozen=True)
class RankTimeline:
    """One rank's part of a run."""

    rank: int
    shards: tuple[int, ...]  # in the order in which it runs them
    execution: Execution
    arrival_s: Floats  # (S,) when each slice is where it belongs: at its destination, or complete if it stays
    there_s: float  # when the last slice of another rank has arrived
    done_s: float  # when the rank has all that it is to have, launch and flags included

    @property
    def last_sent_s(self) -> float:
        """When the last slice for another rank was on its way."""
        own = np.repeat(np.array(self.shards) == self.rank, len(self.arrival_s) // len(self.shards))
        return float(self.execution.issued_s[~own].max())


@dataclass(frozen=True)
class Run:
    """A fused operator, simulated in one order; `ranks` are those that were simulated, one where all are alike."""

    order: str
    ranks: tuple[RankTimeline, ...]

    @property
    def time_s(self) -> float:
        """Until the last rank is done."""
        return max(rank.done_s for rank in self.ranks)

    @property
    def skew(self) -> float:
        """How much longer the last rank takes than the first that is done, as a part of the latter."""
        return self.time_s / min(rank.done_s for rank in self.ranks) - 1


def shard_order(rank: int, ranks: int, order: str) -> tuple[int, ...]:
    """Return the shards of a rank in the order in which it makes them.

    >>> shard_order(1, 4, "aware")
    (2, 3, 0, 1)
    """
    return tuple((rank + 1 + step) % ranks if order == "aware" else step for step in range(ranks))


def run(recipe: Recipe, order: str) -> Run:
    """Simulate a fused operator."""
    return _consume(recipe, order) if recipe.consumes else _produce(recipe, order)


def _produce(recipe: Recipe, order: str) -> Run:
    shown = range(1) if order == "aware" else range(recipe.ranks)
    shards = [shard_order(rank, recipe.ranks, order) for rank in shown]
    of = [np.repeat(np.array(mine), recipe.work.slices // recipe.ranks) for mine in shards]
    runs = [execute(recipe.work, of[rank] != rank, call_s=recipe.call_s) for rank in shown]
    arrival = [each.issued_s.copy() for each in runs]
    for rank in shown:
        _send(recipe.link, recipe.slice_bytes, rank, of[rank], arrival[rank])
    if not recipe.link.pairs and len(shown) > 1:
        _take_in(recipe, arrival, of)
    there_s = []
    for rank in shown:
        received = [arrival[sender][of[sender] == rank] for sender in shown if sender != rank]
        # At a rank that stands for all as many arrive as leave, at the same times.
        there_s.append(max(float(slices.max()) for slices in received or [arrival[rank][of[rank] != rank]]))
    done_s = _ends(recipe, [max(float(each.free_s.max()), there) for each, there in zip(runs, there_s, strict=True)])
    return Run(order, tuple(map(RankTimeline, shown, shards, runs, arrival, there_s, done_s)))


def _send(link: Link, size_bytes: float, rank: int, of: npt.NDArray[np.int64], arrival_s: Floats) -> None:
    """Put a rank's slices on its links or its port; those that stay are where they are."""
    remote = of != rank
    if not link.pairs:
        arrival_s[remote] = link.arrive(arrival_s[remote], size_bytes)
        return
    for peer in np.unique(of[remote]):
        to = of == peer
        arrival_s[to] = link.arrive(arrival_s[to], size_bytes)


def _take_in(recipe: Recipe, arrival: Sequence[Floats], of: Sequence[npt.NDArray[np.int64]]) -> None:
    """Let slices pass the port of their destination, which several senders may share at a time."""
    link, ranks = recipe.link, range(recipe.ranks)
    for rank in ranks:
        where = [(sender, np.flatnonzero(of[sender] == rank)) for sender in ranks if sender != rank]
        there = np.concatenate([arrival[sender][slices] for sender, slices in where])
        service = np.full(len(there), recipe.slice_bytes / link.bytes_per_s)
        passed = first_come(there - service, service)
        cuts = np.cumsum([len(slices) for _, slices in where])[:-1]
        for (sender, slices), part in zip(where, np.split(passed, cuts), strict=True):
            arrival[sender][slices] = part


def _ends(recipe: Recipe, phase_s: Sequence[float]) -> list[float]:
    """Return when each rank is done: its phase with launch and flags, and a second phase if there is one."""
    summed = [recipe.launch_s + end_s + recipe.flag_s + recipe.reduce_s for end_s in phase_s]
    if recipe.shared_bytes == 0:
        return summed
    peers = recipe.ranks - 1
    spread_s = recipe.link.busy_s(recipe.shared_bytes * peers, peers) + recipe.link.latency_s + recipe.flag_s
    return [max(summed) + spread_s] * len(summed)


def _consume(recipe: Recipe, order: str) -> Run:
    """Slices leave all ranks at the start, in the order in which their takers run them; tasks wait for theirs."""
    ranks, work = recipe.ranks, recipe.work
    each = work.slices // ranks
    timelines = []
    for rank in range(1) if order == "aware" else range(ranks):
        own_first = tuple((rank + step) % ranks for step in range(ranks))
        shards = own_first if order == "aware" else shard_order(rank, ranks, order)
        of = np.repeat(np.array(shards), each)
        arrival_s = np.zeros(work.slices)
        takers = ranks - 1 if order == "oblivious" and not recipe.link.pairs else 1  # of a port at the same time
        _send(recipe.link, recipe.slice_bytes * takers, rank, of, arrival_s)
        release_s = np.repeat(arrival_s, work.slice_tasks)
        execution = execute(work, np.zeros(work.slices, bool), release_s=release_s)
        done_s = recipe.launch_s + recipe.flag_s + float(execution.free_s.max())
        timelines.append(RankTimeline(rank, shards, execution, arrival_s, float(arrival_s.max()), done_s))
    return Run(order, tuple(timelines))
