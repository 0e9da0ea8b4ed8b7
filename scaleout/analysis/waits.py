"""Whom ranks wait for: idle time by what ends it, and by the ranks that are its root.

A rank is idle where it neither computes nor communicates. What ends that is a node of its own, or the end of the step;
the ranks that made this late are those waited for. Knows no pipelines and no slowdowns: a straggler is found by what
others do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaleout.analysis.roots import Roots, Spans
from scaleout.config.units import format_seconds, format_share, ranks_in_words
from scaleout.program.graph import Bools, Floats, Ints, NodeKind
from scaleout.simulation.result import Result, Timeline

LEAST = 1e-3
"""Share of a step below which what ranks wait for another is not told."""
END = "the end of the step"
_MUCH = 1e-2
"""Share of a step, the mean over ranks, from which an answer names those that are waited for."""
_MOST = 0.5
"""Share of a wait from which what takes so much longer is the reason of it."""
_FEW = 0.25
"""Share of the ranks above which those that are waited for are no exception."""


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
    from_s: Floats  # (gaps + 1,) when each begins, and the end of the last node
    at_end_s: float  # from there to the makespan

    @classmethod
    def of(cls, line: Timeline, makespan_s: float) -> "_Gaps":
        """Find them."""
        order = np.argsort(line.start_s, kind="stable")
        starts = line.start_s[order]
        reach = np.r_[0.0, np.maximum.accumulate(line.end_s[order])]
        gaps = np.maximum(starts - reach[:-1], 0.0)
        begin = np.flatnonzero(gaps)
        end = np.searchsorted(starts, starts[begin], side="right")
        from_s = np.r_[reach[begin], reach[-1]]
        return cls(order, begin, end, gaps[begin], from_s, max(0.0, makespan_s - float(reach[-1])))


@dataclass(frozen=True)
class Wait:
    """What ranks that are alike wait for other ranks, which are alike too."""

    ranks: tuple[int, ...]  # which wait
    waits_for: tuple[int, ...]  # whose work it is that went on longer
    until: str  # what the idle time ends with
    idle_s: float  # of each of `ranks`


@dataclass(frozen=True)
class Waits:
    """What idle time ends with: the communication of an axis, kernels, or the step; and who waits for whom."""

    by_cause_s: Mapping[str, float]  # the mean over ranks, together `Breakdown.idle_s`; the longest first
    by_rank: tuple[Wait, ...]  # all from `LEAST` of the step, those that add up to most over their ranks first


def waits_of(result: Result, roots: Roots) -> Waits:
    """Divide idle time among what ranks wait for; where several nodes start, the communication counts.

    `roots` are those of the result's waits.
    """
    names = ["kernels", "messages", *(f"communication over {family.axis}" for family in result.program.groups), END]
    means: dict[str, float] = {}
    waits: list[Wait] = []
    for (number, root, cause), seconds in blamed(result, roots).items():
        ranks = result.timelines[number].ranks
        means[names[cause]] = means.get(names[cause], 0.0) + seconds * len(ranks) / result.program.num_ranks
        if root != number and seconds >= LEAST * result.makespan_s:
            awaited = result.timelines[root].ranks
            if names[cause] == END and len(result.timelines[number].graph):
                awaited = _ending_with(result, root, number, seconds)
            waits.append(Wait(ranks, awaited, names[cause], seconds))
    by_cause_s = dict(sorted(means.items(), key=lambda each: -each[1]))
    return Waits(by_cause_s, tuple(sorted(waits, key=lambda each: -each.idle_s * len(each.ranks))))


def _ending_with(result: Result, root: int, number: int, wait_s: float) -> tuple[int, ...]:
    """Return for which ranks a class waits at the end of a step, of which another is the root.

    Where that one's last collective took longer than its own by most of the wait, none of its members is late alone.
    """
    line, other = result.timelines[root], result.timelines[number]
    last = int(line.end_s.argmax())
    longer_s = line.duration_s[last] - other.duration_s[int(other.end_s.argmax())]
    if line.graph.kind[last] != NodeKind.COLLECTIVE or longer_s < _MOST * wait_s:
        return line.ranks
    family = result.program.groups[line.graph.group[last]]
    return tuple(sorted({member for rank in line.ranks for member in family.of(rank)}))


def blamed(result: Result, roots: Roots) -> dict[tuple[int, int, int], float]:
    """Return the idle time of each class of ranks by the class that is its root, maybe itself, and by what ends it.

    What ends it is numbered: 0 for kernels, 1 for messages, then the families of groups, then the end of the step.
    """
    sums: dict[tuple[int, int, int], float] = {}
    columns = []
    for number, line in enumerate(result.timelines):
        found = _Gaps.of(line, result.makespan_s)
        causes, nodes = _ended_by(line, found)
        causes = np.r_[causes, len(result.program.groups) + 2]
        nodes = np.r_[nodes + result.offsets[number], result.offsets[-1] + number]
        until_s = np.r_[line.start_s[found.order[found.begin]], result.makespan_s]
        columns.append((until_s, found.from_s, np.full(len(nodes), number), nodes, causes))
    *spans, causes = (np.concatenate(each) for each in zip(*columns, strict=True))
    for index, of_span in roots.divide(Spans(*spans)):
        for root, seconds in of_span.items():
            key = int(spans[2][index]), root, int(causes[index])
            sums[key] = sums.get(key, 0.0) + seconds
    return {key: seconds for key, seconds in sums.items() if seconds}


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


def most_awaited(waits: Sequence[Wait], num_ranks: int) -> tuple[tuple[int, ...], float]:
    """Return the ranks that others wait for most, and for how long, the mean over all ranks."""
    sums: dict[tuple[int, ...], float] = {}
    for each in waits:
        sums[each.waits_for] = sums.get(each.waits_for, 0.0) + each.idle_s * len(each.ranks)
    ranks = max(sums, key=lambda key: sums[key])
    return ranks, sums[ranks] / num_ranks


def told_waits(
    waits: Sequence[Wait],
    num_ranks: int,
    makespan_s: float,
    steps: int = 1,
    idle_s: tuple[float, float] | None = None,
) -> str:
    """Say for which few ranks others wait for much of a step; nothing if they do not.

    `idle_s` is all idle time, and that without the changes of the machine, where there are any: a pipeline's bubble is
    there without a slow rank as well.
    """
    if not waits:
        return ""
    most, seconds = most_awaited(waits, num_ranks)
    if seconds < _MUCH * makespan_s or len(most) > _FEW * num_ranks:
        return ""
    share = format_share(seconds / makespan_s)
    words = f"{format_seconds(seconds / steps)} for {ranks_in_words(most)}, {share} of the step, the mean over ranks"
    return words if idle_s is None else f"{words}; {beside_before(*(each / steps for each in idle_s))}"


def beside_before(idle_s: float, before_s: float) -> str:
    """Say how much idle time there is, and how much was there without the changes of the machine.

    >>> beside_before(0.1164, 0.107)
    'of 116 ms idle, 107 ms are there without the changes'
    """
    return f"of {format_seconds(idle_s)} idle, {format_seconds(before_s)} are there without the changes"
