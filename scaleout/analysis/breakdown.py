"""Where the time goes: results to breakdowns by activity, phase and operation, and to critical paths.

All numbers of a breakdown are means over ranks, so that compute, exposed communication and idle time add up to the
makespan. Exposed communication is time in which a rank communicates and does not compute.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import fsum
from typing import TypeVar

import numpy as np

from scaleout.cluster.device.kernel_times import source_names
from scaleout.config.units import format_share
from scaleout.network.flow.max_min import SAME
from scaleout.program.graph import NONE, Bools, ExecutionGraph, Floats, Ints, NodeKind, NodeRole
from scaleout.program.labels import label, label_numbers, own_name, own_name_numbers
from scaleout.program.operations import TimeSource
from scaleout.program.program import GroupFamily
from scaleout.simulation.columns import distinct
from scaleout.simulation.result import Result, Timeline

Label = TypeVar("Label", bound=Hashable)


@dataclass(frozen=True)
class Breakdown:
    """Mean times of a rank in one step.

    `kernel_time_sources` is the share of the kernels' time by where it comes from: measured, interpolated, roofline
    and, for times that a trace brought along, given. It is empty if there are no kernels.
    """

    makespan_s: float  # compute_s + exposed_communication_s + idle_s
    compute_s: float  # in which kernels run
    communication_s: float  # in which something is being communicated, overlapped or exposed
    exposed_communication_s: float  # in which it is, and no kernel runs
    idle_s: float  # in which neither happens
    kernel_time_sources: dict[str, float]


def breakdown(result: Result) -> Breakdown:
    """Say how a result's time divides into compute, exposed communication and idle time."""
    makespan_s = result.makespan_s
    compute, communication, busy = np.zeros(3)
    names = source_names()
    sources = dict.fromkeys((number for number in names if number >= 0), 0.0)  # less `UNKNOWN`
    for line in result.timelines:
        ranks = len(line.ranks)
        kernels, communicates = line.is_kernel, line.is_communication
        works = kernels | communicates
        compute += ranks * covered(line.start_s[kernels], line.end_s[kernels])
        communication += ranks * covered(line.start_s[communicates], line.end_s[communicates])
        busy += ranks * covered(line.start_s[works], line.end_s[works])
        for source in sources:
            sources[source] += ranks * float(line.duration_s[kernels & (line.graph.time_source == source)].sum())
    num_ranks = result.program.num_ranks
    compute_s, communication_s, busy_s = (float(total) / num_ranks for total in (compute, communication, busy))
    total = fsum(sources.values())
    shares = {names[source]: seconds / total for source, seconds in sources.items()} if total else {}
    shares = {name: share for name, share in shares.items() if share or name not in _RARE}
    idle_s = makespan_s - busy_s if busy_s < makespan_s * (1 - SAME) else 0.0  # what rounding leaves is none
    return Breakdown(makespan_s, compute_s, communication_s, busy_s - compute_s, idle_s, shares)


_RARE = ("given", "recorded", "scaled")
"""Sources of kernel times that are said only where there are some."""


def covered(start_s: Floats, end_s: Floats) -> float:
    """Length of the union of intervals, shape (N,) each."""
    if not len(start_s):
        return 0.0
    order = np.argsort(start_s, kind="stable")
    start, end = start_s[order], end_s[order]
    reach = np.maximum.accumulate(end)
    gaps = np.maximum(start[1:] - reach[:-1], 0.0)
    return max(0.0, float(reach[-1] - start[0] - gaps.sum()))  # rounding may leave less than nothing


@dataclass(frozen=True, eq=False)
class Running:
    """When some nodes of a rank run: seconds of them up to any time, those that run at the same time counted once."""

    times_s: Floats
    until_s: Floats

    @classmethod
    def of(cls, line: Timeline, chosen: Bools) -> "Running":
        """Read off what `chosen` nodes, (N,), ran."""
        nodes = np.flatnonzero(chosen & (line.end_s > line.start_s))
        order = nodes[np.argsort(line.start_s[nodes], kind="stable")]
        starts, reach = line.start_s[order], np.maximum.accumulate(line.end_s[order])
        before = np.r_[0.0, reach[:-1]] if len(order) else reach
        lengths = np.maximum(reach - np.maximum(starts, before), 0.0)
        times_s = np.stack([reach - lengths, reach], axis=1).ravel()
        return cls(times_s, np.cumsum(np.stack([np.zeros(len(order)), lengths], axis=1).ravel()))

    def changes_s(self) -> Floats:
        """Return when none has run before and one begins, or none runs any more, (C,)."""
        starts, ends = self.times_s[::2], self.times_s[1::2]
        apart = starts[1:] > ends[:-1]
        return np.asarray(np.r_[starts[:1], starts[1:][apart], ends[:-1][apart], ends[-1:]])

    def between(self, start_s: Floats, end_s: Floats) -> Floats:
        """Seconds in which any of them runs, from some times to others."""
        if not len(self.times_s):
            return np.zeros(len(start_s))
        return np.asarray(np.interp(end_s, self.times_s, self.until_s) - np.interp(start_s, self.times_s, self.until_s))


@lru_cache(maxsize=1)  # asked for by what bounds a step, and by what its time is lost to
def exposed_by_family(result: Result) -> dict[GroupFamily | None, float]:
    """Divide exposed communication among the families of process groups, in seconds, the mean over ranks.

    Moments in which several families communicate count for each in equal parts; the sum is
    `Breakdown.exposed_communication_s`. Messages and collectives without a group count as None.
    """
    groups = [None, *result.program.groups]
    totals = np.zeros(len(groups))
    for line in result.timelines:
        edges = np.unique(np.concatenate([line.start_s, line.end_s]))
        if len(edges) < 2:
            continue
        chains = np.where(line.is_communication, line.graph.group + 2, 0)  # kernels, no group, each family
        steps = np.zeros((len(groups) + 1, len(edges)), np.int64)
        for times, change in ((line.start_s, 1), (line.end_s, -1)):
            np.add.at(steps, (chains, np.searchsorted(edges, times)), change)
        busy = np.cumsum(steps, axis=1)[:, :-1] > 0
        families = busy[1:] & ~busy[0]
        parts = families / np.maximum(families.sum(axis=0), 1)
        totals += len(line.ranks) * (parts * np.diff(edges)).sum(axis=1)
    means = totals / result.program.num_ranks
    return {family: seconds for family, seconds in zip(groups, means.tolist(), strict=True) if seconds}


def by_axis(exposed_s: Mapping[GroupFamily | None, float]) -> dict[str, float]:
    """Add up what families of one axis take; what has no group counts as ``""``."""
    found: dict[str, float] = {}
    for family, seconds in exposed_s.items():
        axis = family.axis if family else ""
        found[axis] = found.get(axis, 0.0) + seconds
    return found


@dataclass(frozen=True)
class RankEnds:
    """When ranks that are alike have run the last kernel of each phase, in seconds from the step's begin."""

    ranks: tuple[int, ...]
    phase_end_s: dict[str, float]


def ends_of_ranks(result: Result) -> list[RankEnds]:
    """When each class of ranks is done with each phase, in the order of the ranks.

    Polling for what others send counts as a kernel, sending does not: it goes on during the next phase.
    """
    found = []
    for line in result.timelines:
        kernels, phases = ~line.is_communication, line.graph.phases
        phase, end_s = line.graph.phase[kernels], np.zeros(len(phases))
        np.maximum.at(end_s, phase, line.end_s[kernels])
        numbers, first = np.unique(phase, return_index=True)
        ends = {phases[number]: float(end_s[number]) for number in numbers[np.argsort(first)]}
        found.append(RankEnds(line.ranks, ends))
    return found


@dataclass(frozen=True)
class Row:
    """Mean time of a rank's nodes of one name and kind, and how many there are.

    `kind` is ``compute``, ``communication`` or, for time of the host between its calls, ``host``.
    """

    name: str
    kind: str
    count: float
    busy_s: float

    @property
    def communication(self) -> bool:
        """Whether they communicate."""
        return self.kind == "communication"


def by_phase(result: Result) -> list[Row]:
    """Busy time of kernels, of communication and of the host in each phase, in program order."""
    return _rows(result, lambda line: line.graph.phase, lambda graph, node: graph.phases[graph.phase[node]])


def by_operation(result: Result, *, named: bool = False) -> list[Row]:
    """Busy time of each kind of kernel and of collective, the largest first; of collectives by their names as well."""

    def numbers(line: Timeline) -> Ints:
        if not named:
            return label_numbers(line.graph)
        own = np.where(line.is_communication, own_name_numbers(line.graph), 0)
        return distinct(label_numbers(line.graph), own)[1]

    def name(graph: ExecutionGraph, node: int) -> str:
        own = own_name(graph, node) if named and graph.kind[node] != NodeKind.COMPUTE else ""
        return f"{label(graph, node)} {own}".rstrip()

    return sorted(_rows(result, numbers, name), key=lambda row: -row.busy_s)


MUCH = 0.1
"""Share of the kernels' time from which an operation's times are told to be of another kind than the others'."""


def estimated_beside_measured(result: Result, sources: Mapping[str, float]) -> dict[str, float]:
    """Return operations whose times are estimates, and their share of the kernels' time, where others' are measured.

    Nothing where next to none of the time is measured or interpolated, or each operation that is not takes little.
    `sources` are the result's `Breakdown.kernel_time_sources`.
    """
    own = fsum(sources.get(name, 0.0) for name in ("measured", "interpolated"))
    return {} if min(own, sources.get("roofline", 0.0)) < MUCH else _estimated(result)


def _estimated(result: Result) -> dict[str, float]:
    """Return operations whose times are estimates, and their share of the kernels' time, each of which is much."""
    total_s = 0.0
    estimated_s: dict[str, float] = {}
    for line in result.timelines:
        kernels = np.flatnonzero(line.is_kernel)
        source, time_s = line.graph.time_source[kernels], len(line.ranks) * line.duration_s[kernels]
        total_s += float(time_s.sum())
        (others,) = np.nonzero(source == TimeSource.ROOFLINE)
        first, which = distinct(label_numbers(line.graph)[kernels[others]])
        for number, seconds in enumerate(np.bincount(which, time_s[others], minlength=len(first)).tolist()):
            name = label(line.graph, int(kernels[others[first[number]]]))
            estimated_s[name] = estimated_s.get(name, 0.0) + seconds
    return {name: seconds / total_s for name, seconds in estimated_s.items() if seconds >= MUCH * total_s}


def told_estimates(result: Result, sources: Mapping[str, float], *, device: str) -> str:
    """Say how much of the kernels' time are estimates, and which kernels were not measured; nothing if it is little.

    `sources` are the result's `Breakdown.kernel_time_sources`.
    """
    share = sources.get("roofline", 0.0)
    return told_estimated(share, _estimated(result) if share >= MUCH else {}, device)


def told_estimated(share: float, of: Mapping[str, float], device: str) -> str:
    """Say it of a share of the kernels' time; `of` has that of each kind that was not measured, as far as known."""
    if share < MUCH:
        return ""
    most = ", ".join(f"{name} {format_share(each)}" for name, each in sorted(of.items(), key=lambda each: -each[1]))
    words = f"{'all' if share > 1 - SAME else format_share(share)} of their time is a roofline estimate"
    return f"{words}; not measured on {device}: {most}" if most else f"{words}, not measured on {device}"


@dataclass(frozen=True)
class Busy:
    """Mean time of a rank's nodes that do the same in one phase, and how many there are.

    `kind` is ``compute``, ``communication`` or, for time of the host between its calls, ``host``. Of communication,
    `bytes` is the payload and `group_size` the number of ranks of its group; 0 if not known, and for all else.
    """

    phase: str
    operation: str
    kind: str
    bytes: int
    group_size: int
    count: float
    busy_s: float


def busy_times(result: Result) -> list[Busy]:
    """Busy time by phase, operation and, of communication, size and group: finer than phases and operations alone."""

    def numbers(line: Timeline) -> Ints:
        graph, communicates = line.graph, line.is_communication
        columns = [graph.phase, label_numbers(graph), graph.has_role(NodeRole.HOST).astype(np.int64)]
        columns += [np.where(communicates, column, 0) for column in (graph.bytes, graph.group)]
        return distinct(*columns)[1]

    def key(line: Timeline, node: int) -> tuple[str, str, str, int, int]:
        graph = line.graph
        phase, operation = graph.phases[graph.phase[node]], label(graph, node)
        if not line.is_communication[node]:
            return phase, operation, _kind(line, node), 0, 0
        group = int(graph.group[node])
        size = 0 if group == NONE else len(result.program.groups[group].of(line.ranks[0]))
        return phase, operation, "communication", int(graph.bytes[node]), size

    return [Busy(*key, count, busy_s) for key, count, busy_s in _added(result, numbers, key)]


def _kind(line: Timeline, node: int) -> str:
    if line.is_communication[node]:
        return "communication"
    return "host" if line.graph.role[node] & NodeRole.HOST else "compute"


def _rows(
    result: Result, numbers_of: Callable[[Timeline], Ints], name_of: Callable[[ExecutionGraph, int], str]
) -> list[Row]:
    """Add up kernels and communication of one name, which nodes of one number have."""
    found = _added(
        result,
        lambda line: 4 * numbers_of(line) + 2 * line.graph.has_role(NodeRole.HOST) + line.is_communication,
        lambda line, node: (name_of(line.graph, node), _kind(line, node)),
    )
    return [Row(*key, count, busy_s) for key, count, busy_s in found]


def _added(
    result: Result, numbers_of: Callable[[Timeline], Ints], key: Callable[[Timeline, int], Label]
) -> list[tuple[Label, float, float]]:
    """Count nodes of one key, which nodes of one number have, and add up their time, in order of first nodes."""
    found: dict[Label, int] = {}
    count, busy_s = np.zeros(0), np.zeros(0)
    known: dict[tuple[tuple[int, ...], ...], Ints] = {}  # the entry of each node, once for ranks alike but in times
    for line in result.timelines:
        share = len(line.ranks) / result.program.num_ranks
        alike = (line.graph.but_times, result.program.group_sizes(line.ranks[0]))
        if alike not in known:
            numbers = numbers_of(line)
            first = np.full(numbers.max(initial=-1) + 1, len(numbers))
            first[numbers[::-1]] = np.arange(len(numbers))[::-1]
            entry_of = np.zeros(len(first), np.int64)
            for node in np.sort(first[first < len(numbers)]).tolist():
                entry_of[numbers[node]] = found.setdefault(key(line, node), len(found))
            known[alike] = entry_of[numbers]
            count, busy_s = (np.pad(sums, (0, len(found) - len(sums))) for sums in (count, busy_s))
        np.add.at(count, known[alike], share)
        np.add.at(busy_s, known[alike], share * line.duration_s)
    return list(zip(found, count.tolist(), busy_s.tolist(), strict=True))


@dataclass(frozen=True)
class Segment:
    """A stretch of the critical path: one node, from its start to the start of what waited for it."""

    rank: int
    node: int
    name: str
    operation: str
    phase: str
    communication: bool
    start_s: float
    end_s: float


def critical_nodes(result: Result) -> tuple[list[int], list[float]]:
    """Return the result's nodes that decide the makespan, last first, and their starts, with the makespan before them.

    Each lasts from its start to the one before it in the list. What is left before the last start, nothing that ran
    held up: the host had not issued it.
    """
    ends = np.concatenate([line.end_s for line in result.timelines])
    if not len(ends):
        return [], [0.0]
    starts = np.concatenate([line.start_s for line in result.timelines])
    causes = np.concatenate([line.cause for line in result.timelines])
    node, nodes, times = int(ends.argmax()), [], [float(ends.max())]
    while node != NONE:
        start = float(starts[node])
        if times[-1] > start:
            nodes.append(node)
            times.append(start)
        node = int(causes[node])
    return nodes, times


def critical_path(result: Result) -> list[Segment]:
    """Nodes that decide the makespan, from first to last, each waiting for the one before it.

    Unlike the longest chain of dependencies, it includes waiting for a stream or a link that another node holds.
    The segments follow each other without a gap and add up to the makespan. Where
    the first node waited for the host to issue it, a segment `host` stands for the host's calls up to there.
    """
    nodes, times = critical_nodes(result)
    path: list[Segment] = []
    for node, start, until in zip(nodes, times[1:], times, strict=False):
        number, index = result.locate(node)
        line = result.timelines[number]
        graph = line.graph
        name, phase = graph.names[index], graph.phases[graph.phase[index]]
        communicates, span_s = bool(line.is_communication[index]), (start, until)
        path.append(Segment(line.ranks[0], index, name, label(graph, index), phase, communicates, *span_s))
    if path and times[-1] > 0:
        path.append(replace(path[-1], name="host", operation="host", communication=False, start_s=0.0, end_s=times[-1]))
    return path[::-1]


@dataclass(frozen=True)
class Decisive:
    """What operations of one kind in one phase decide of the makespan, and its share.

    Most of it, `rank_share` of its time, lies on one rank, of those alike the first.
    """

    phase: str
    operation: str
    count: int
    critical_s: float
    share: float
    rank: int
    rank_share: float


def decisive(result: Result) -> list[Decisive]:
    """Add up the critical path by phase and operation, the largest first; the times add up to the makespan."""
    groups: dict[tuple[str, str], list[Segment]] = {}
    for segment in critical_path(result):
        groups.setdefault((segment.phase, segment.operation), []).append(segment)
    found = list[Decisive]()
    for key, group in groups.items():
        total_s = _total_s(group)
        on_rank = {
            rank: _total_s([each for each in group if each.rank == rank]) for rank in {each.rank for each in group}
        }
        rank, most_s = max(sorted(on_rank.items()), key=lambda each: each[1])
        found.append(Decisive(*key, len(group), total_s, total_s / result.makespan_s, rank, most_s / total_s))
    return sorted(found, key=lambda each: -each.critical_s)


def _total_s(path: Iterable[Segment]) -> float:
    return fsum(segment.end_s - segment.start_s for segment in path)
