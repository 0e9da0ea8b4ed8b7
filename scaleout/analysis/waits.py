"""Whom ranks wait for: idle time by what ends it, and by the ranks whose work goes on meanwhile.

A rank is idle where it neither computes nor communicates. What ends that is a node of its own, or the end of the step;
what that waited for last, and this before it, is a chain of nodes that leads back in time. At each moment of the idle
time one node of the chain runs, or is held up, and the rank that runs it is the one waited for. All times are in
seconds. Knows no pipelines and no slowdowns: a straggler is found by what others do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaleout.program.graph import NONE, Bools, Floats, Ints
from scaleout.simulation.result import Result, Timeline

LEAST = 1e-3
"""Share of a step below which what ranks wait for another is not told."""
END = "the end of the step"


def waited_for(result: Result, chooses: Callable[[Timeline], Bools]) -> float:
    """Idle time that ends with a node that `chooses` picks, or with the makespan, in seconds, the mean over ranks.

    A rank that neither computes nor communicates waits for the node that starts next; of several, for any chosen one.
    `chooses` says of each node of a class, (N,), whether it is one.
    """
    total = 0.0
    for line in result.timelines:
        found = _Gaps.of(line, result.makespan_s)
        chosen = np.r_[0, np.cumsum(chooses(line)[found.order])]
        ends_idle = chosen[found.end] > chosen[found.begin]
        total += len(line.ranks) * float(np.cumsum(np.r_[found.at_end_s, found.gap_s[ends_idle]])[-1])
    return total / result.program.num_ranks


@dataclass(frozen=True)
class _Gaps:
    """When a class of ranks neither computes nor communicates, and which nodes start at the end of each such gap."""

    order: Ints  # (N,) nodes by their start
    begin: Ints  # (gaps,) of the nodes that start next, the first in that order
    end: Ints  # (gaps,) and one beyond the last
    gap_s: Floats  # (gaps,)
    from_s: Floats  # (gaps,) when each begins
    at_end_s: float  # from the last node to the makespan

    @classmethod
    def of(cls, line: Timeline, makespan_s: float) -> "_Gaps":
        """Find them."""
        order = np.argsort(line.start_s, kind="stable")
        starts = line.start_s[order]
        reach = np.r_[0.0, np.maximum.accumulate(line.end_s[order])]
        gaps = np.maximum(starts - reach[:-1], 0.0)
        begin = np.flatnonzero(gaps)
        end = np.searchsorted(starts, starts[begin], side="right")
        return cls(order, begin, end, gaps[begin], reach[begin], max(0.0, makespan_s - float(reach[-1])))


@dataclass(frozen=True)
class Wait:
    """What ranks that are alike wait for other ranks, which are alike too."""

    ranks: tuple[int, ...]  # which wait
    waits_for: tuple[int, ...]  # whose work goes on meanwhile
    until: str  # what the idle time ends with
    idle_s: float  # of each of `ranks`


@dataclass(frozen=True)
class Waits:
    """What idle time ends with: the communication of an axis, kernels, or the step; and who waits for whom."""

    by_cause_s: Mapping[str, float]  # the mean over ranks, together `Breakdown.idle_s`; the longest first
    by_rank: tuple[Wait, ...]  # all from `LEAST` of the step, those that add up to most over their ranks first


def waits_of(result: Result) -> Waits:
    """Divide idle time among what ranks wait for; where several nodes start, the communication counts."""
    names = ["kernels", "messages", *(f"communication over {family.axis}" for family in result.program.groups), END]
    totals, chain = np.zeros(len(names)), _Chain(result)
    waits: list[Wait] = []
    for number, line in enumerate(result.timelines):
        found = _Gaps.of(line, result.makespan_s)
        of_gap, nodes = _ended_by(line, found)
        causes = np.r_[of_gap, len(names) - 1]
        idle_s = np.r_[found.gap_s, found.at_end_s]
        totals += len(line.ranks) * np.bincount(causes, weights=idle_s, minlength=len(names))
        before = np.r_[line.cause[nodes], chain.last]
        from_s = np.r_[found.from_s, result.makespan_s - found.at_end_s]
        for awaited, cause, seconds in chain.divided(before, causes, from_s, from_s + idle_s):
            if awaited != number and seconds >= LEAST * result.makespan_s:
                waits.append(Wait(line.ranks, result.timelines[awaited].ranks, names[cause], seconds))
    means: dict[str, float] = {}
    for name, seconds in zip(names, (totals / result.program.num_ranks).tolist(), strict=True):
        means[name] = means.get(name, 0.0) + seconds
    by_cause_s = dict(sorted(((name, each) for name, each in means.items() if each), key=lambda each: -each[1]))
    return Waits(by_cause_s, tuple(sorted(waits, key=lambda each: -each.idle_s * len(each.ranks))))


def _ended_by(line: Timeline, found: _Gaps) -> tuple[Ints, Ints]:
    """Return for each gap what ends it, 0 for kernels, 1 for messages, then the families, and the first such node."""
    if not len(found.begin):
        return found.begin, found.begin
    kinds = np.where(line.is_communication, line.graph.group + 2, 0)[found.order]
    nodes = len(kinds)
    keys = np.r_[kinds * (nodes + 1) + nodes - np.arange(nodes), 0]  # the highest: of the last kind, the first in order
    best = np.maximum.reduceat(keys, np.column_stack([found.begin, found.end]).ravel())[::2]
    kind, place = np.divmod(best, nodes + 1)
    return kind, found.order[nodes - place]


class _Chain:
    """What each node of a result waited for last, the node before that, and so on."""

    def __init__(self, result: Result) -> None:
        self._offsets, lines = result.offsets, result.timelines
        self._cause = np.concatenate([line.cause for line in lines])
        self._start_s = np.concatenate([line.start_s for line in lines])
        self._class = np.repeat(np.arange(len(lines)), [len(line.graph) for line in lines])
        ends_s = np.concatenate([line.end_s for line in lines])
        self.last = int(ends_s.argmax()) if len(ends_s) else NONE

    def divided(self, nodes: Ints, causes: Ints, from_s: Floats, until_s: Floats) -> Iterator[tuple[int, int, float]]:
        """Divide times among the classes that run the chains of `nodes`; yield a class, a cause, and seconds in all."""
        sums = np.zeros((len(self._offsets) - 1, int(causes.max(initial=0)) + 1))
        at, until_s = nodes.astype(np.int64), until_s.copy()
        left = np.flatnonzero((at != NONE) & (until_s > from_s))
        while len(left):
            node = at[left]
            begins_s = np.maximum(self._start_s[node], from_s[left])
            np.add.at(sums, (self._class[node], causes[left]), np.maximum(until_s[left] - begins_s, 0.0))
            until_s[left], at[left] = np.minimum(until_s[left], begins_s), self._cause[node]
            left = left[(at[left] != NONE) & (until_s[left] > from_s[left])]
        for one, cause in np.argwhere(sums).tolist():
            yield one, cause, float(sums[one, cause])


def most_awaited(waits: Sequence[Wait], num_ranks: int) -> tuple[tuple[int, ...], float]:
    """Return the ranks that others wait for most, and for how long, the mean over all ranks."""
    sums: dict[tuple[int, ...], float] = {}
    for each in waits:
        sums[each.waits_for] = sums.get(each.waits_for, 0.0) + each.idle_s * len(each.ranks)
    ranks = max(sums, key=lambda key: sums[key])
    return ranks, sums[ranks] / num_ranks
