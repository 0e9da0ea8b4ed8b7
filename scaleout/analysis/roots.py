"""Which ranks are the root of a wait: not who came last, but who made it late.

What the last rank to come waited for before, and this before it, is a chain of nodes that leads back in time, and so it
is for the last kernel of the rank that waits. From where these chains meet both have had the same time. So a wait is
what the late rank worked longer since then, and what it waited for longer. The first is its own; the second is that of
the ranks that it waited for in turn, which were found before. What counts are the waits on the path through a rank's
own nodes to its last kernel, and from that on: what else waits beside kernels makes nobody late. Of the late rank that
is the last kernel before what is waited for began: while its message is in flight it may wait and work as it likes.
Kernels that take no time do not count. All times are in seconds.

Waits are told in the order of their ends, so that those which one comes of are known. Those that end at one moment come
of one another through nodes that take no time, each of at most one: they are told along that chain. It can be a circle
only where two nodes of no length on one stream began at that moment, but not in the graph's order, which the result
does not tell: then each wait in the circle, or that leads to it, has no roots for the others that are told before it.

Source: Boehme, Geimer, Wolf and Arnold, Identifying the Root Causes of Wait States in Large-Scale Parallel
Applications, ICPP 2010, who pass the cost of waits on to delays by what lies between two points of synchronisation.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import fsum
from typing import NamedTuple

import numpy as np

from scaleout.program.graph import NONE, Bools, ExecutionGraph, Floats, Ints, NodeKind, found_once
from scaleout.simulation.columns import distinct
from scaleout.simulation.result import Result, Timeline

Seconds = Mapping[int, float]
"""Of classes of ranks, by their numbers."""


class Spans(NamedTuple):
    """Times in which classes of ranks wait, and the nodes that end them; (N,) each."""

    until_s: Floats
    from_s: Floats
    class_of: Ints
    node: Ints  # of the result; behind these is one for each class, which is the end of the step


class _Nodes(NamedTuple):
    """The nodes of a result and, for each class, the end of the step, (N,) in all."""

    class_of: Ints
    cause: Ints  # what each waited for last, or `NONE`
    before: Ints  # what of its own class it waited for last, or `NONE`
    arrived_s: Floats  # when that had ended
    start_s: Floats
    end_s: Floats

    @classmethod
    def of(cls, result: Result) -> "_Nodes":
        """Join what classes did."""
        lines, offsets = result.timelines, result.offsets
        reads = ("dependency_offsets", "kind", "stream", "collective", "group", "peer")
        found = found_once((line.graph for line in lines), reads, _users_and_streams)
        own = [_before(line, *each) for line, each in zip(lines, found, strict=True)]
        ends_s = np.concatenate([line.end_s for line in lines])
        last = np.full(len(lines), ends_s.argmax() if len(ends_s) else NONE)
        lasts = [int(line.end_s.argmax()) if len(line.graph) else NONE for line in lines]
        before = np.r_[np.concatenate([each for each, _ in own]), lasts]
        class_of = np.r_[np.repeat(np.arange(len(lines)), np.diff(offsets)), np.arange(len(lines))]
        at_end = np.full(len(lines), result.makespan_s)
        return cls(
            class_of,
            np.concatenate([*(line.cause for line in lines), last]),
            np.where(before == NONE, NONE, before + offsets[class_of]),
            np.r_[np.concatenate([each for _, each in own]), [line.end_s.max(initial=0.0) for line in lines]],
            np.concatenate([*(line.start_s for line in lines), at_end]),
            np.r_[ends_s, at_end],
        )

    def waits(self) -> Spans:
        """Return when nodes waited for another class of ranks."""
        foreign = (self.cause != NONE) & (self.class_of[self.cause] != self.class_of)
        at = np.flatnonzero(foreign & (self.start_s > self.arrived_s))
        return Spans(self.start_s[at], self.arrived_s[at], self.class_of[at], at)

    def late(self, some: Ints) -> Ints:
        """Return what nodes waited for last: of several that ended at the same time the one that began first."""
        wanted = np.isin(self.cause, self.cause[some]) & (self.cause != NONE) & (self.before != NONE)
        free = np.flatnonzero(wanted & (self.arrived_s >= self.start_s))
        free = free[np.argsort(-self.start_s[self.before[free]], kind="stable")]
        of = np.r_[free, some]
        first, which = distinct(self.cause[of], self.start_s[of])
        before = np.full(len(first), NONE)
        before[which[: len(free)]] = self.before[free]  # the last one stays
        found = before[which[len(free) :]]
        return np.where(found == NONE, self.cause[some], found)

    def first_at(self, some: Ints, from_s: Floats) -> Ints:
        """Return of the nodes that take no time and lead to some nodes the first that arrived by given times."""
        late = np.flatnonzero(self.arrived_s[some] > from_s)
        found = some.copy()
        while len(late):
            found[late] = self.before[found[late]]
            late = late[self.arrived_s[found[late]] > from_s[late]]
        return found

    def ended_s(self, some: Ints) -> Floats:
        """Return when some nodes ended, 0 for `NONE`."""
        return np.where(some == NONE, 0.0, self.end_s[some])


def _users_and_streams(graph: ExecutionGraph) -> tuple[Ints, Ints]:
    """Return which node each dependency is of, and on which stream each node runs; (E,) and (N,).

    Sends have a stream of their own, puts one for each receiver.
    """
    users = np.repeat(np.arange(len(graph)), np.diff(graph.dependency_offsets))
    is_send = graph.kind == NodeKind.SEND
    streams = np.where(is_send, NONE, graph.stream)
    puts = np.flatnonzero(is_send & (graph.collective != NONE))
    receivers = np.unique(np.stack([graph.group[puts], graph.peer[puts]]), axis=1, return_inverse=True)[1].reshape(-1)
    streams[puts] = -2 - receivers
    return users, streams


def _before(line: Timeline, users: Ints, streams: Ints) -> tuple[Ints, Floats]:
    """Return what of its own class each node waited for last, or `NONE`, and when that had ended; (N,) each.

    That is one that it depends on, or the one before it on its stream; receives have none. Nodes of one stream that
    begin at the same time are in the graph's order, those of no length first.
    """
    graph = line.graph
    order = np.lexsort((line.occupancy_s, line.start_s, streams))
    order = order[graph.kind[order] != NodeKind.RECV]
    follows = np.flatnonzero(np.diff(streams[order]) == 0)
    users = np.r_[users, order[follows + 1]]
    needs = np.r_[graph.dependencies, order[follows]]
    free_s = np.r_[line.end_s[graph.dependencies], (line.start_s + line.occupancy_s)[order[follows]]]
    by_time = np.argsort(free_s, kind="stable")
    before, arrived_s = np.full(len(graph), NONE), np.zeros(len(graph))
    before[users[by_time]], arrived_s[users[by_time]] = needs[by_time], free_s[by_time]  # the last one stays
    return before, np.minimum(arrived_s, line.start_s)


def _lifted(above: Ints) -> list[Ints]:
    """Return what is 1, 2, 4 and so on above each of N in a tree; its root is the last, and above itself."""
    lifted = [above]
    while (lifted[-1] != len(above) - 1).any():
        lifted.append(lifted[-1][lifted[-1]])
    return lifted


def _depths(lifted: Sequence[Ints]) -> Ints:
    """Return how far below the root of a tree each of N is."""
    root = len(lifted[0]) - 1
    at, depth = np.arange(root + 1), np.zeros(root + 1, np.int64)
    for power, above in reversed(list(enumerate(lifted))):
        depth += np.where(above[at] != root, 1 << power, 0)
        at = np.where(above[at] != root, above[at], at)
    return np.asarray(depth + (at != root))


class _Chains:
    """What each of N nodes waited for last, what that waited for, and so on: a tree, whose root is the start."""

    def __init__(self, nodes: _Nodes) -> None:
        start = len(nodes.cause)
        self._lifted = _lifted(np.where(np.r_[nodes.cause, NONE] == NONE, start, np.r_[nodes.cause, NONE]))
        self._ends_s = np.r_[nodes.end_s, 0.0]
        self._depth = _depths(self._lifted)

    def met_s(self, some: Ints, others: Ints) -> Floats:
        """Return when the last node ended that the chains of two nodes share, 0 if there is none."""
        one, other = (np.where(each == NONE, len(self._depth) - 1, each) for each in (some, others))
        for power, above in reversed(list(enumerate(self._lifted))):
            deeper = self._depth[one] - self._depth[other]
            one = np.where(deeper >= 1 << power, above[one], one)
            other = np.where(-deeper >= 1 << power, above[other], other)
        for above in reversed(self._lifted):
            apart = above[one] != above[other]
            one, other = np.where(apart, above[one], one), np.where(apart, above[other], other)
        return np.asarray(self._ends_s[np.where(one == other, one, self._lifted[0][one])])


class _Paths:
    """What nodes waited for on the path through their own class that led to them: K waits, and their roots."""

    def __init__(self, nodes: _Nodes, waits: Spans) -> None:
        none, start = len(waits.node), len(nodes.before)
        number = np.full(start + 1, NONE)
        number[waits.node], number[start] = np.arange(none), none
        before = np.where(np.r_[nodes.before, NONE] == NONE, start, np.r_[nodes.before, NONE])
        up = np.where(number == NONE, before, np.arange(start + 1))
        while (number[up] == NONE).any():
            up = up[up]
        self._wait_of = number[up]  # (N + 1,) the last on the path to a node, maybe its own; K where there is none
        self._lifted = _lifted(np.r_[self._wait_of[before[waits.node]], none])
        self._above = self._lifted[0].tolist()
        self._until_s, self._wait_s = np.r_[waits.until_s, -np.inf], np.r_[waits.until_s - waits.from_s, 1.0]
        self._class_of = waits.class_of
        self._own: dict[int, Seconds] = {none: {}}
        self._sums: dict[int, Seconds] = {none: {}}  # with all before it on the path

    def at_once(self, late: Ints) -> Ints:
        """Return of how many waits that end at the same moment each wait comes, by what it waited for.

        Those that come of themselves have no roots until they are told.
        """
        none = len(self._class_of)
        up = np.r_[self._wait_of[late], none]
        up = at = np.where(self._until_s[up] == self._until_s, up, none)
        for _ in range(none.bit_length()):
            at = at[at]
        self._own |= {number: {} for number in np.flatnonzero(at != none).tolist()}
        return _depths(_lifted(np.where(at == none, up, none)))[:-1] - 1

    def since(self, ends: Ints, from_s: Floats) -> tuple[Ints, Ints, Ints, Floats]:
        """Return which waits on the paths to some nodes are after some times.

        That is the last wait, the last that was over, the one that was not, and the share of it that was over.
        """
        last = first = self._wait_of[ends]
        for above in reversed(self._lifted):
            first = np.where(self._until_s[above[first]] > from_s, above[first], first)
        inside = self._until_s[last] > from_s
        left_s = np.where(inside, self._until_s[first] - from_s, 0.0)
        over = np.where(inside, self._lifted[0][first], last)
        during = np.where(inside, first, len(self._wait_s) - 1)
        return last, over, during, np.maximum(1 - left_s / self._wait_s[first], 0.0)

    def waited_s(self, parts: Iterable[tuple[int, int, int, float]]) -> dict[int, float]:
        """Return the seconds by root of the waits that `since` found twice, less those of two more."""
        seconds: dict[int, float] = {}
        for (last, over, during, share), sign in zip(parts, (1.0, 1.0, -1.0, -1.0), strict=True):
            if last == over:
                continue
            terms = (
                (self._sum(last), sign),
                (self._sum(over), -sign),
                (self._own[during], -sign * share),
            )
            for known, factor in terms:
                for root, each in known.items():
                    seconds[root] = seconds.get(root, 0.0) + factor * each
        return seconds

    def add(self, number: int, roots: Seconds) -> None:
        """Tell the roots of a wait, of which the class that waits is none; those before it on its path are told."""
        one = int(self._class_of[number])
        self._own[number] = {root: seconds for root, seconds in roots.items() if root != one}

    def add_alone(self, numbers: Ints, roots: Ints) -> None:
        """Tell the only root of some waits, maybe the class that waits."""
        wait_s = self._wait_s[numbers]
        columns = (numbers, roots, wait_s * wait_s / wait_s, self._class_of[numbers] != roots)  # rounded as in shares
        for number, root, seconds, is_other in zip(*(each.tolist() for each in columns), strict=True):
            self._own[number] = {root: seconds} if is_other else {}

    def _sum(self, number: int) -> Seconds:
        """Add up the roots of a wait and of all before it on its path."""
        missing = []
        while number not in self._sums:
            missing.append(number)
            number = self._above[number]
        for each in reversed(missing):
            before = self._sums[number]
            more = {root: before.get(root, 0.0) + seconds for root, seconds in self._own[each].items()}
            number, self._sums[each] = each, {**before, **more} if more else before
        return self._sums[number]


class _SinceMet(NamedTuple):
    """Of times in which classes wait, what they and those that they wait for did since both last had the same time."""

    late: Ints  # the node that each waits for, or `NONE`
    others: Ints  # whose it is
    alone: Bools  # whether they are the only root
    parts: tuple[tuple[Ints, Ints, Ints, Floats], ...]  # what both had waited for: of the late, then of those that wait


class Roots:
    """All waits of a result, divided among the classes that are their roots; for idle time and for what is exposed.

    It takes as much memory as the result, or more: whoever asked drops it.
    """

    def __init__(self, result: Result) -> None:
        self._result, self._nodes = result, _Nodes.of(result)
        self._chains, self._kernels = _Chains(self._nodes), [_kernels_of(line) for line in result.timelines]
        waits = self._nodes.waits()
        self._paths = _Paths(self._nodes, waits)
        found = self._since_met(waits)
        self._paths.add_alone(np.flatnonzero(found.alone), found.others[found.alone])
        order = np.lexsort((self._paths.at_once(found.late), waits.until_s))  # one after those that it comes of
        for number, roots in self._divided(waits, found, order[~found.alone[order]]):
            self._paths.add(number, roots)

    def divide(self, spans: Spans) -> Iterator[tuple[int, Seconds]]:
        """Divide times among the classes that are their roots, maybe those that wait; yield each one's index with them.

        They come in the order of their ends.
        """
        spans = spans._replace(node=self._nodes.first_at(spans.node, spans.from_s))
        yield from self._divided(spans, self._since_met(spans), np.argsort(spans.until_s, kind="stable"))

    def last_members(self) -> tuple[Ints, Ints]:
        """Return of each node the class that came last to it, of a collective its last member; and to which node.

        That is the node itself, but of collectives that began as the one before them ended the first of these: to the
        others nobody came last.
        """
        nodes, lines, size = self._nodes, self._result.timelines, self._result.offsets[-1]
        found, first = nodes.class_of[:size].copy(), np.arange(size)
        if len(lines) > 1:
            kinds = np.concatenate([line.graph.kind for line in lines])
            at = np.flatnonzero(kinds == NodeKind.COLLECTIVE)
            before = nodes.before[at]
            queued = (nodes.arrived_s[at] >= nodes.start_s[at]) & (kinds[before] == NodeKind.COLLECTIVE)
            queued &= before != NONE
            first[at[queued]] = before[queued]
            for _ in range(len(at).bit_length()):
                first = first[first]
            late = nodes.late(first[at])
            found[at] = np.where(late == NONE, found[at], nodes.class_of[late])
        return found, first

    def _since_met(self, spans: Spans) -> _SinceMet:
        """Find with whom each class had the same time before it waited, and what both did since."""
        nodes, paths = self._nodes, self._paths
        late = nodes.late(spans.node)
        others = np.where(late == NONE, spans.class_of, nodes.class_of[late])
        kernels = self._last_kernels(spans.class_of, spans.from_s)
        of_late = self._last_kernels(others, nodes.start_s[late])
        met_s = np.minimum(self._chains.met_s(late, kernels), spans.from_s)
        parts = (
            paths.since(of_late, met_s),
            paths.since(late, np.maximum(met_s, nodes.ended_s(of_late))),
            paths.since(kernels, met_s),
            paths.since(nodes.before[spans.node], np.maximum(met_s, nodes.ended_s(kernels))),
        )
        worked = np.logical_and.reduce([last == over for last, over, *_ in parts])  # none of them waited
        return _SinceMet(late, others, worked | (others == spans.class_of), parts)

    def _divided(self, spans: Spans, found: _SinceMet, order: Ints) -> Iterator[tuple[int, Seconds]]:
        """Yield the roots of some spans (indices in `order`); the waits that each comes of have been told."""
        columns = (order, found.others[order], (spans.until_s - spans.from_s)[order], found.alone[order])
        rows = (zip(*(each[order].tolist() for each in part), strict=True) for part in found.parts)
        for index, other, wait_s, is_alone, *row in zip(*(each.tolist() for each in columns), *rows, strict=True):
            longer, total_s = {other: wait_s}, wait_s
            if not is_alone:
                longer = self._paths.waited_s(row)
                longer.pop(other, None)
                longer[other] = wait_s - fsum(longer.values())
                total_s = fsum(seconds for seconds in longer.values() if seconds > 0)
            yield index, {root: wait_s * seconds / total_s for root, seconds in longer.items() if seconds > 0}

    def _last_kernels(self, classes: Ints, at_s: Floats) -> Ints:
        """Return the kernel that each of some classes of ranks had ended last at a time, or `NONE`."""
        found = np.full(len(classes), NONE)
        by_class = np.argsort(classes, kind="stable")
        bounds = np.searchsorted(classes[by_class], np.arange(1, len(self._kernels)))
        for number, of_class in enumerate(np.split(by_class, bounds)):
            kernels, ends_s = self._kernels[number]
            ended = np.searchsorted(ends_s, at_s[of_class], side="right")
            found[of_class] = np.r_[NONE, kernels + self._result.offsets[number]][ended]
        return found


def _kernels_of(line: Timeline) -> tuple[Ints, Floats]:
    """Return the kernels of a class that take time in the order of their ends, and these."""
    kernels = np.flatnonzero(line.is_kernel & (line.end_s > line.start_s))
    kernels = kernels[np.argsort(line.end_s[kernels], kind="stable")]
    return kernels, line.end_s[kernels]
