"""What repeats in a recorded graph, by the kernels of its compute stream, and graphs in which it repeats more or less.

Layers and micro-batches are not named in a recording; the order of launches shows them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scaleout.errors import ConfigError
from scaleout.program.cut import without
from scaleout.program.graph import NEUTRAL, NONE, Bools, ExecutionGraph, Ints, NodeKind, NodeRole, compress
from scaleout.program.operations import TimeSource
from scaleout.study.edits.recorded import operators_of

MOST_NODES = 500_000
"""Of a rank's graph that an edit makes."""


class Run(NamedTuple):
    """A unit that repeats: where each of its repetitions begins in the graph, and where the last one ends."""

    bounds: tuple[int, ...]  # (repetitions + 1,) indices of nodes

    @property
    def repeats(self) -> int:
        """How many times the unit stands."""
        return len(self.bounds) - 1


def runs_of(graph: ExecutionGraph, roles: int, *, steps: int, messages: bool = False, told: bool = True) -> list[Run]:
    """Find the unit that repeats in each stretch of passes, by the kernels of the compute stream.

    A stretch ends with a step, and at a message to or from another rank, unless units may hold `messages`: then all
    hold as many, and if `told` these stand in each before the same kernels.
    """
    main = np.flatnonzero((graph.stream == 0) & ~graph.has_role(NodeRole.HOST) & (graph.kind < NodeKind.SEND))
    chosen = graph.has_role(roles)[main].astype(np.int64)
    _, names = np.unique(graph.names, return_inverse=True)
    passed = np.r_[0, np.cumsum(graph.kind >= NodeKind.SEND)]
    follows = _follow(graph.kernel[main] != NONE, passed[main]) & (messages and told)
    rows = np.stack([operators_of(graph)[1][main], graph.collective[main], names[main], follows])
    what = np.unique(rows, axis=1, return_inverse=True)[1].reshape(-1)
    chosen *= 1 + np.searchsorted([end for _, end in steps_of(graph, steps)], main, side="right")
    if not messages:
        chosen = chosen * (len(graph) + 1) + chosen * passed[main]
    edges = np.flatnonzero(np.diff(np.r_[0, chosen, 0]))
    found = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        run = _longest(what[begin:end]) if chosen[begin] else None
        if run is not None:
            first, period, repeats = run
            found += _alike(np.r_[0, main + 1], begin + first, period, repeats, passed if messages else passed * 0)
    return found


def _follow(sized: Bools, passed: Ints) -> Bools:
    """(N,) before which of some kernels a message stands, of how many `passed` each.

    Kernels of which nothing is known are passed over, unless all are so: the first of a backward fills a number, and
    runs before the message of the pass before it, or after.
    """
    judged = np.flatnonzero(sized) if sized.any() else np.arange(len(sized))
    found = np.zeros(len(sized), bool)
    found[judged[1:]] = np.diff(passed[judged]) > 0
    return found


def _alike(bounds: Ints, first: int, period: int, repeats: int, passed: Ints) -> list[Run]:
    """Return the run of units between some of the bounds of kernels, if all hold as many messages.

    If they do not, a message stands near their ends, and units begin later, which are one less.
    """
    for later in range(period if repeats > 2 else 1):
        chosen = bounds[first + later + period * np.arange(repeats + (later == 0))]
        held = np.diff(passed[chosen])
        if (held == held[0]).all():
            return [Run(tuple(chosen.tolist()))]
    return []


_LONGER = 1.05
"""By how much more of a sequence a longer unit must cover than a shorter one, of which it may be several."""


def _longest(what: Ints) -> tuple[int, int, int] | None:
    """Return begin, length and number of the repetitions that cover most of a sequence, of the shortest unit.

    Nothing if that is less than a quarter: then what repeats is no layer.
    """
    best: tuple[int, int, int] | None = None
    covered = 0
    for period in range(2, len(what) // 2 + 1):
        same = np.r_[False, what[:-period] == what[period:], False]
        edges = np.flatnonzero(same[1:] != same[:-1])
        lengths = edges[1::2] - edges[::2]
        if not len(lengths) or lengths.max() < period:
            continue
        longest = int(lengths.argmax())
        repeats = int(lengths[longest]) // period + 1
        if repeats * period > covered * _LONGER:
            covered, best = repeats * period, (int(edges[::2][longest]), period, repeats)
    return best if 4 * covered >= len(what) else None


def repeated(graph: ExecutionGraph, begin: int, end: int, times: int, *, before: int) -> ExecutionGraph:
    """Return a graph in which nodes `begin` to `end` run `times` more, one after another.

    A copy waits for the copy before it where the nodes waited for those from `before` to `begin`: each for the one of
    its stream at the same place. What waited for the nodes waits for the last copy.
    """
    size, more = end - begin, (end - begin) * times
    if len(graph) + more > MOST_NODES:
        raise ConfigError(
            f"--edit: {size:,} kernels and collectives of a rank that run {times:,} times more make a graph of "
            f"{len(graph) + more:,}; at most {MOST_NODES:,} are simulated, choose less"
        )
    place = _places(graph, begin, end)
    twin = {key: begin + index for index, key in enumerate(place)}
    of_previous = dict(zip(range(before, begin), _places(graph, before, begin), strict=True))
    rows: list[list[int]] = [graph.dependencies_of(node).tolist() for node in range(end)]
    for copy in range(1, times + 1):
        for node in range(begin, end):
            row = []
            for need in rows[node]:
                if need >= begin:
                    row.append(need + copy * size)
                elif need in of_previous and of_previous[need] in twin:
                    row.append(twin[of_previous[need]] + (copy - 1) * size)
                else:
                    row.append(need)
            rows.append(sorted(set(row)))
    for node in range(end, len(graph)):
        needs = graph.dependencies_of(node).tolist()
        rows.append(sorted({need + more if need >= begin else need for need in needs}))
    take = np.r_[np.arange(end), np.tile(np.arange(begin, end), times), np.arange(end, len(graph))].astype(np.int64)
    offsets, dependencies = compress(rows)
    return graph.with_columns(
        names=tuple(graph.names[node] for node in take.tolist()),
        dependency_offsets=offsets,
        dependencies=dependencies,
        **{name: getattr(graph, name)[take] for name in NEUTRAL},
    )


def _places(graph: ExecutionGraph, begin: int, end: int) -> list[tuple[int, int]]:
    """Return the stream of each node, and how many of the stream follow it before the end."""
    counts: dict[int, int] = {}
    found = []
    for stream in graph.stream[begin:end][::-1].tolist():
        counts[stream] = counts.get(stream, 0) + 1
        found.append((stream, counts[stream]))
    return found[::-1]


def with_units(graph: ExecutionGraph, run: Run, more: int) -> ExecutionGraph:
    """Return the graph with so many units more, or fewer, taken from the middle."""
    middle = run.repeats // 2
    if more < 0:
        first = min(middle, run.repeats + more)
        mask = np.zeros(len(graph), bool)
        mask[run.bounds[first] : run.bounds[first - more]] = True
        return without(graph, mask)
    if more > 0:
        begin, end = run.bounds[middle], run.bounds[middle + 1]
        return repeated(graph, begin, end, more, before=run.bounds[middle - 1])
    return graph


def inserted(graph: ExecutionGraph, copied: Sequence[int], at: int) -> ExecutionGraph:
    """Return the graph with copies of kernels, one after another on the compute stream, before index `at`."""
    main = np.flatnonzero((graph.stream == 0) & ~graph.has_role(NodeRole.HOST))
    place = int(np.searchsorted(main, at))
    before = int(main[place - 1]) if place else NONE
    following = int(main[place]) if place < len(main) else NONE
    more = len(copied)
    rows = [graph.dependencies_of(node).tolist() for node in range(at)]
    rows += [[at + index - 1] if index else ([before] if before != NONE else []) for index in range(more)]
    for node in range(at, len(graph)):
        needs = {need + more if need >= at else need for need in graph.dependencies_of(node).tolist()}
        rows.append(sorted(needs | ({at + more - 1} if node == following else set())))
    take = np.r_[np.arange(at), np.array(copied, np.int64), np.arange(at, len(graph))].astype(np.int64)
    offsets, dependencies = compress(rows)
    columns = {name: getattr(graph, name)[take] for name in NEUTRAL}
    columns["role"] = columns["role"].copy()
    columns["role"][at : at + more] = int(NodeRole.BACKWARD | NodeRole.RECOMPUTE)
    columns["time_source"] = columns["time_source"].copy()
    columns["time_source"][at : at + more] = int(TimeSource.SCALED)
    names = tuple(graph.names[node] for node in take.tolist())
    return graph.with_columns(names=names, dependency_offsets=offsets, dependencies=dependencies, **columns)


def steps_of(graph: ExecutionGraph, steps: int) -> list[tuple[int, int]]:
    """Return where forward and backward of each step begin and end: up to its optimizer.

    Without an optimizer, as in inference, so many steps have as many kernels each.
    """
    main = np.flatnonzero((graph.stream == 0) & ~graph.has_role(NodeRole.HOST))
    works = graph.has_role(NodeRole.FORWARD | NodeRole.BACKWARD)[main]
    optimizes = graph.has_role(NodeRole.OPTIMIZER)[main]
    found, begin = [], 0
    ends = np.flatnonzero(optimizes & ~np.r_[False, optimizes[:-1]])
    if not len(ends):
        ends = len(main) // steps * np.arange(1, steps + 1) if len(main) % steps == 0 else np.array([len(main)])
    for end in ends.tolist():
        if works[begin:end].any():
            first = int(main[begin - 1]) + 1 if begin else 0
            found.append((first, int(main[end - 1]) + 1))
        later = np.flatnonzero(~optimizes[end:])
        begin = end + int(later[0]) if len(later) else len(main)
    return found
