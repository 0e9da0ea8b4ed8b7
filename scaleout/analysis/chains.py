"""Results to chains of nodes that wait for each other: the longest when work of one kind takes longer or shorter.

The chain that decides a step as predicted need not decide it where a cause is off: one that is 4% shorter and all of
the network does where that is twice as slow. Chains run along what each node waited for last, its dependencies, the
node before it on its stream and the host's calls, so that none is longer than the step. What a node would wait for if
other ranks were later than they are is left out: the longest chain found may be too short, never too long. Knows no
devices and no spreads.

Symbols: N nodes of all classes, E waits of a node for another.
Source: Howard, Dynamic Programming and Markov Processes, MIT Press 1960 (policy iteration).
"""

from collections.abc import Mapping
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from scaleout.program.graph import NONE, Floats, Ints, NodeKind, NodeRole
from scaleout.simulation.result import Result, Timeline


class Work(IntEnum):
    """Kinds of work that nodes of a chain are."""

    KERNELS = 0
    COMMUNICATION = 1
    HOST = 2


class Chain(NamedTuple):
    """Nodes of a result that wait for each other, for how long each counts, and what the host takes before the first.

    They follow each other, in any order; their times add up to `length_s`.
    """

    nodes: Ints
    lasts_s: Floats
    host_s: float

    @property
    def length_s(self) -> float:
        """How long the step takes at least."""
        return float(self.lasts_s.sum()) + self.host_s


class _Waits(NamedTuple):
    """Which node waits for which, and how long that has run when it may start, (E,)."""

    before: Ints
    after: Ints
    lasts_s: Floats


class Chains:
    """All chains of a result."""

    def __init__(self, result: Result) -> None:
        self._result = result

    def _column(self, name: str) -> Floats:
        return np.concatenate([getattr(line, name) for line in self._result.timelines])

    @cached_property
    def _lasts_s(self) -> Floats:
        return self._column("end_s") - self._column("start_s")

    @cached_property
    def _issue_s(self) -> Floats:
        return np.concatenate([line.graph.issue_s for line in self._result.timelines])

    @cached_property
    def work(self) -> Ints:
        """(N,) the kind of work of each node."""
        kinds = [
            np.where(
                line.is_communication,
                Work.COMMUNICATION,
                np.where(line.graph.has_role(NodeRole.HOST), Work.HOST, Work.KERNELS),
            )
            for line in self._result.timelines
        ]
        return np.concatenate(kinds)

    @cached_property
    def most_s(self) -> dict[Work, float]:
        """What a chain has at most of each kind of work: all of a class of ranks, the host's calls, or the step."""
        found = dict.fromkeys(Work, 0.0)
        for begin, end in pairwise(self._result.offsets.tolist()):
            of_kind = np.bincount(self.work[begin:end], self._lasts_s[begin:end], len(Work))
            for kind in Work:
                found[kind] = max(found[kind], float(of_kind[kind]))
        found[Work.HOST] += float(self._issue_s.max(initial=0.0))
        return {kind: min(most, self._result.makespan_s) for kind, most in found.items()}

    @cached_property
    def _waits(self) -> _Waits:
        """What each node waited for last, its dependencies, and what ran before it on its stream."""
        start_s, cause = self._column("start_s"), self._column("cause").astype(np.int64)
        waited = np.flatnonzero(cause != NONE)
        found = [_Waits(cause[waited], waited, start_s[waited] - start_s[cause[waited]])]
        for offset, line in zip(self._result.offsets.tolist(), self._result.timelines, strict=False):
            found.append(_of_class(line, offset))
        return _Waits(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def longest(self, factors: Mapping[Work, float]) -> Chain:
        """Return the chain that would take longest if work of some kinds took so many times as long."""
        factor = np.array([factors.get(kind, 1.0) for kind in Work])
        waits, factor_of = self._waits, factor[self.work]
        taken_s = waits.lasts_s * factor_of[waits.before]
        issued_s = self._issue_s * factor[Work.HOST]
        via = np.full(len(self.work), NONE)
        recorded = int(np.count_nonzero(self._column("cause") != NONE))
        via[waits.after[:recorded]] = np.arange(recorded)
        while True:
            starts_s = _starts_s(waits, via, taken_s, issued_s)
            offered_s = starts_s[waits.before] + taken_s
            best_s = np.maximum(starts_s, issued_s)
            np.maximum.at(best_s, waits.after, offered_s)
            better = best_s > starts_s * (1.0 + _SAME)
            if not better.any():
                break
            via[better & (issued_s >= best_s)] = NONE
            chosen = np.flatnonzero(better[waits.after])
            chosen = chosen[offered_s[chosen] >= best_s[waits.after[chosen]]]
            via[waits.after[chosen]] = chosen
        return self._back(int((starts_s + self._lasts_s * factor_of).argmax()), via)

    def _back(self, node: int, via: Ints) -> Chain:
        nodes, lasts_s = [node], [float(self._lasts_s[node])]
        while (wait := int(via[node])) != NONE:
            node = int(self._waits.before[wait])
            nodes.append(node)
            lasts_s.append(float(self._waits.lasts_s[wait]))
        runs = np.array(lasts_s) > 0.0
        return Chain(np.array(nodes)[runs], np.array(lasts_s)[runs], float(self._issue_s[node]))


_SAME = 1e-12
"""Part of a time by which another one is no later."""


def _of_class(line: Timeline, offset: int) -> _Waits:
    """Return the waits of a class of ranks for their dependencies and streams.

    Messages hold none of the streams of the graph. What starts at the same time may have run in either order.
    """
    graph, index = line.graph, np.arange(len(line.graph))
    depends = np.repeat(index, np.diff(graph.dependency_offsets))
    on_streams = np.flatnonzero(graph.kind < NodeKind.SEND)
    order = on_streams[np.lexsort((line.start_s[on_streams], graph.stream[on_streams]))]
    first, second = order[:-1], order[1:]
    follows = (graph.stream[first] == graph.stream[second]) & (line.start_s[first] < line.start_s[second])
    first, second = first[follows], second[follows]
    ran_s = (line.end_s - line.start_s)[graph.dependencies]
    return _Waits(
        np.concatenate([graph.dependencies, first]).astype(np.int64) + offset,
        np.concatenate([depends, second]) + offset,
        np.concatenate([ran_s, line.occupancy_s[first]]),
    )


def _starts_s(waits: _Waits, via: Ints, taken_s: Floats, issued_s: Floats) -> Floats:
    """Return when each node starts whose chain leads along one wait a node; sums over 1, 2, 4 and so on of them."""
    waiting = np.flatnonzero(via != NONE)
    above, total_s = np.arange(len(via)), np.zeros(len(via))
    above[waiting], total_s[waiting] = waits.before[via[waiting]], taken_s[via[waiting]]
    while True:
        further = above[above]
        if (further == above).all():
            return np.asarray(total_s + issued_s[above])
        total_s += total_s[above]
        above = further
