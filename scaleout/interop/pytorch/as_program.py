"""Timelines of a job's ranks to its program: kernels with their recorded times, collectives matched between ranks.

A collective starts when its last rank is there, so what it takes is the shortest of its ranks' kernels: the others hold
waiting too. The k-th collective of a rank on a group is that of the group's other ranks. Ranks that were not recorded
are cloned where groups tell how.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, pairwise
from statistics import median
from typing import Any

import numpy as np

from scaleout.errors import TraceError
from scaleout.interop.pytorch.communication import (
    RECEIVE,
    SEND,
    Communication,
    check_named,
    communications_of,
    is_communication,
)
from scaleout.interop.pytorch.kernels import Communicated, describe
from scaleout.interop.pytorch.kineto import NONE
from scaleout.interop.pytorch.roles import where_of
from scaleout.interop.pytorch.timeline import CLOCK_US, UNTOLD_US, Moment, Timeline, streams_of
from scaleout.program.graph import COLLECTIVES, ExecutionGraph, GraphBuilder, NodeKind, NodeRole, lowest_first, users_in
from scaleout.program.operations import Kernel, TimeSource
from scaleout.program.program import GroupFamily, Program
from scaleout.program.recorded import BEFORE, BEGINS, HOST, LAUNCH, RECORDER, UNTOLD

_AXES = {"tp": "tensor", "tensor": "tensor", "dp": "data", "data": "data", "fsdp": "data",
         "ep": "expert", "expert": "expert", "cp": "context", "context": "context",
         "pp": "pipeline", "pipeline": "pipeline"}  # fmt: skip

Key = tuple[tuple[int, ...], str, int]
"""What ranks agree on: the group, the kind of what they do (`send` for messages, with both ends), and its turn."""


@dataclass
class _Rank:
    """A recorded rank."""

    number: int
    timeline: Timeline
    calls: dict[int, tuple[Communication, ...]]  # work to what it communicates
    keys: dict[int, list[Key]] = field(default_factory=dict)  # moment to what others must match
    order: list[int] = field(default_factory=list)  # moments in the order of the program
    offset_us: float = 0.0  # what its clock must be set back by


@dataclass
class Imported:
    """A job's program and what the report says of it."""

    program: Program
    steps_s: list[float]  # recorded time of each step
    collectives: int = 0
    collectives_sized: int = 0
    notes: list[str] = field(default_factory=list)
    by_group: list[dict[str, Any]] = field(default_factory=list)  # collectives by kind, group and size


def program_of(timelines: Mapping[int, Timeline], *, name: str, num_ranks: int, allow_partial: bool) -> Imported:
    """Build the program of a job from the timelines of its recorded ranks.

    Parameters
    ----------
    timelines : mapping of int to Timeline
        Rank to what it did, of the same steps.
    num_ranks : int
        Ranks of the job, recorded or not.
    allow_partial : bool
        Go on where ranks are missing or a collective was seen by some of its ranks only: what is known is kept.

    Raises
    ------
    TraceError
        If ranks are missing that cannot be cloned, or ranks do not agree on a collective.
    """
    ranks = [_Rank(number, timeline, _communications(timeline)) for number, timeline in sorted(timelines.items())]
    notes: list[str] = []
    everyone = tuple(range(num_ranks))
    for rank in ranks:
        rank.order = _in_order(rank.timeline)
        rank.keys = _keys(rank, everyone)
    if len(ranks) > 1:
        _set_clocks(ranks, notes)
    if len(ranks) < num_ranks and allow_partial:
        notes.append(f"ranks {_missing(ranks, num_ranks)} of {num_ranks} were not recorded and are left out")
        everyone = tuple(rank.number for rank in ranks)
    elif len(ranks) < num_ranks and len(ranks) > 1:
        raise _not_all(ranks, num_ranks)
    lasts = _lengths(ranks, notes, allow_partial=allow_partial)
    families = _families(ranks, everyone)
    index_of = {rank: index for index, rank in enumerate(everyone)}
    graphs = [_graph(rank, lasts, families, ranks) for rank in ranks]
    role = {rank.number: number for number, rank in enumerate(ranks)}
    role_of_rank = np.array([role.get(rank, 0) for rank in everyone], np.int64)
    groups = tuple(
        GroupFamily(
            family.name, tuple(tuple(index_of[rank] for rank in group) for group in family.members), family.axis
        )
        for family in families
    )
    if cloned := len(everyone) - len(ranks):
        notes.append(f"{cloned} of {num_ranks} ranks were not recorded and are clones of those that were")
    imported = Imported(Program(name, tuple(graphs), role_of_rank, groups), _steps_s(ranks), notes=notes)
    _count(imported, ranks, lasts)
    return imported


def _communications(timeline: Timeline) -> dict[int, tuple[Communication, ...]]:
    works = timeline.recording.works
    mine = [moment.work for moment in timeline.moments if moment.work != NONE and is_communication(works[moment.work])]
    return communications_of(timeline.recording, mine)


def _keys(rank: _Rank, everyone: tuple[int, ...]) -> dict[int, list[Key]]:
    """Number the collectives of each group, and the messages of each pair of ranks."""
    turns: Counter[tuple[tuple[int, ...], str]] = Counter()
    found: dict[int, list[Key]] = {}
    named = 0
    for number in rank.order:
        moment = rank.timeline.moments[number]
        for call in rank.calls.get(moment.work, ()) if moment.work != NONE else ():
            group = call.group or everyone
            named += len(group)
            check_named(rank.timeline.recording.path, named)
            if call.kind in (SEND, RECEIVE) and call.peer is not None:
                ends = (rank.number, call.peer) if call.kind == SEND else (call.peer, rank.number)
                group, kind = ends, SEND
            else:
                kind = "collective"
            found.setdefault(number, []).append((group, kind, turns[group, kind]))
            turns[group, kind] += 1
    return found


def _set_clocks(ranks: Sequence[_Rank], notes: list[str]) -> None:
    """Find how far clocks differ: a collective, or a message, ends on all its ranks at the same moment.

    Clocks are set from rank to rank among those that share most; a rank that shares nothing began with the first.
    """
    import networkx as nx  # noqa: PLC0415 - half a second that only recordings of several ranks need

    ends: dict[Key, dict[int, float]] = defaultdict(dict)
    for index, rank in enumerate(ranks):
        for number, keys in rank.keys.items():
            for key in keys:
                ends[key][index] = rank.timeline.recording.start_us + rank.timeline.moments[number].end_us
    apart: dict[tuple[int, int], list[float]] = defaultdict(list)
    for seen in ends.values():
        for one, other in combinations(sorted(seen), 2):
            apart[one, other].append(seen[other] - seen[one])
    shared = nx.Graph()
    shared.add_nodes_from(range(len(ranks)))
    shared.add_weighted_edges_from((*pair, len(each)) for pair, each in apart.items())
    for told in nx.connected_components(shared):
        first = min(told)
        ranks[first].offset_us = _unset_us(ranks[first]) - _unset_us(ranks[0]) if first else 0.0
        for one, other in nx.bfs_edges(nx.maximum_spanning_tree(shared.subgraph(told)), first):
            each = median(apart[min(one, other), max(one, other)])
            ranks[other].offset_us = ranks[one].offset_us + (each if one < other else -each)
    worst = max((abs(ranks[index].offset_us) for index in shared if shared.degree(index)), default=0.0)
    if worst > 1000:
        notes.append(
            f"clocks of ranks differ by up to {worst / 1e3:.1f} ms; they were set by the ends of what ranks share"
        )


def _unset_us(rank: _Rank) -> float:
    return rank.timeline.recording.start_us + rank.timeline.begin_us


def _begin_us(rank: _Rank) -> float:
    return _unset_us(rank) - rank.offset_us


def _steps_s(ranks: Sequence[_Rank]) -> list[float]:
    """Return the recorded time of each step: from the first rank's begin, or the step before, to the last one's end."""
    reached = min(_begin_us(rank) for rank in ranks)
    found = []
    for step in range(len(ranks[0].timeline.ends_us)):
        ends = [rank.timeline.recording.start_us + rank.timeline.ends_us[step] - rank.offset_us for rank in ranks]
        found.append((max(ends) - reached) / 1e6)
        reached = max(ends)
    return found


def _missing(ranks: Sequence[_Rank], num_ranks: int) -> str:
    return _listed(sorted(set(range(num_ranks)) - {rank.number for rank in ranks}))


def _not_all(ranks: Sequence[_Rank], num_ranks: int) -> TraceError:
    """Say that some of several ranks are missing: which of the others one of them is like is not recorded."""
    return TraceError(
        f"ranks {_missing(ranks, num_ranks)} of {num_ranks} are missing; "
        f"give the recordings of all ranks, of one rank that all others are like, or --allow-partial"
    )


@dataclass(frozen=True)
class _Length:
    """What a collective or message takes once all are there, and how many of its ranks were seen."""

    us: float
    seen: int
    kind: str
    size_bytes: int | None


def _lengths(ranks: Sequence[_Rank], notes: list[str], *, allow_partial: bool) -> dict[Key, _Length]:
    """Return what each collective takes: the shortest of its ranks' kernels, which came last and waited for none."""
    seen: dict[Key, list[tuple[float, Communication, _Rank]]] = defaultdict(list)
    for rank in ranks:
        for number, keys in rank.keys.items():
            moment = rank.timeline.moments[number]
            for key, call in zip(keys, rank.calls[moment.work], strict=True):
                seen[key].append((moment.lasts_us - _apart_us(moment), call, rank))
    found = {}
    lonely: list[str] = []
    recorded = {rank.number for rank in ranks}
    for key, calls in seen.items():
        expected = _expected(key, recorded)
        kinds = {call.kind for _, call, _ in calls} if key[1] == "collective" else {SEND}
        if len(kinds) > 1:
            raise TraceError(
                f"collective {key[2]} of ranks {_listed(key[0])} is {' and '.join(sorted(kinds))} on different ranks; "
                f"give recordings of the same steps"
            )
        if len(calls) < len(expected):
            there = sorted(rank.number for _, _, rank in calls)
            lonely.append(f"{min(kinds)} {key[2]} of ranks {_listed(key[0])} by {_listed(there)}")
        sizes = [call.size_bytes for _, call, _ in calls if call.size_bytes is not None]
        found[key] = _Length(min(us for us, _, _ in calls), len(calls), min(kinds), max(sizes) if sizes else None)
    if lonely:
        told = f"{len(lonely)} of {len(seen)} collectives and messages were recorded by some of their ranks only"
        if not allow_partial:
            raise TraceError(f"{told}, the first: {lonely[0]}; give recordings of the same steps, or --allow-partial")
        notes.append(f"{told}; they are kept as kernels")
    return found


def _expected(key: Key, recorded: set[int]) -> set[int]:
    """Return the ranks whose recordings must tell of a collective: of a message both ends, which cannot be cloned."""
    return set(key[0]) if key[1] == SEND else recorded.intersection(key[0])


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _group_of(key: Key, everyone: frozenset[int]) -> tuple[int, ...]:
    """Return the ranks among which a collective runs, or a message goes, as far as they are of the program."""
    return tuple(rank for rank in (sorted(key[0]) if key[1] == SEND else key[0]) if rank in everyone)


def _families(ranks: Sequence[_Rank], everyone: tuple[int, ...]) -> list[GroupFamily]:
    """Put groups of the same name and size that share no rank into one family; of cloned ranks those that follow."""
    names: dict[tuple[int, ...], str] = {}
    kept = frozenset(everyone)
    for rank in ranks:
        for number, keys in rank.keys.items():
            for key, call in zip(keys, rank.calls[rank.timeline.moments[number].work], strict=True):
                group = _group_of(key, kept)
                if len(group) > 1 or key[1] != SEND:
                    names.setdefault(group, call.group_name)
    if len(ranks) < len(everyone):
        check_named(ranks[0].timeline.recording.path, len(names) * len(everyone))
    families: list[tuple[str, list[tuple[int, ...]], set[int]]] = []
    for group, name in sorted(names.items(), key=lambda item: (item[1], item[0])):
        members = _tiled(group, len(everyone)) if len(ranks) < len(everyone) else [group]
        taken = {rank for each in members for rank in each}
        home = next((each for each in families if len(each[1][0]) == len(group) and not each[2] & taken), None)
        if home is None:
            families.append((name, members, taken))
        else:
            home[1].extend(members)
            home[2].update(taken)
    return [
        GroupFamily(
            f"group {number}" if len(members[0]) < len(everyone) else _name(number),
            tuple(members),
            _axis(name, members, everyone),
        )
        for number, (name, members, _) in enumerate(families)
    ]


def _name(number: int) -> str:
    return "world" if number == 0 else f"world {number}"


def _axis(name: str, members: Sequence[tuple[int, ...]], everyone: tuple[int, ...]) -> str:
    words = re.split(r"[^a-z]+", name.lower())
    named = next((_AXES[word] for word in words if word in _AXES), "")
    return named or ("world" if len(members[0]) == len(everyone) else "")


def _tiled(group: tuple[int, ...], num_ranks: int) -> list[tuple[int, ...]]:
    """Return the groups of all ranks that are like one with equal steps between its ranks."""
    steps = {later - earlier for earlier, later in pairwise(group)}
    if len(group) < 2:
        return [(rank,) for rank in range(num_ranks)]
    stride = steps.pop()
    block = stride * len(group)
    if steps or stride < 1 or num_ranks % block:
        raise TraceError(
            f"the groups of ranks that were not recorded cannot be told from ranks {_listed(group)}; give the "
            f"recordings of all ranks, or --allow-partial"
        )
    return [
        tuple(range(first + offset, first + offset + block, stride))
        for first in range(0, num_ranks, block)
        for offset in range(stride)
    ]


def _graph(
    rank: _Rank, lasts: Mapping[Key, _Length], families: Sequence[GroupFamily], ranks: Sequence[_Rank]
) -> ExecutionGraph:
    """Build the graph of a rank."""
    timeline, builder, recording = rank.timeline, GraphBuilder(), rank.timeline.recording
    timed, described = timeline.modelled is None, timeline.modelled
    if described is None:
        described = describe(recording, [moment.work for moment in timeline.moments if moment.work != NONE])
    carried = Communicated(recording, described.values())
    streams = streams_of(timeline)
    host = max(streams.values(), default=0) + 1
    ends: dict[int, tuple[int, ...]] = {}  # moment to its nodes
    recorded = {each.number for each in ranks}
    everyone = frozenset(chain.from_iterable(members for family in families for members in family.members))
    root = _root(builder, rank, ranks, streams)
    for number in rank.order:
        moment = timeline.moments[number]
        after = tuple(node for each in moment.follows for node in ends[each]) or root
        if moment.work == NONE:
            ends[number] = (_host(builder, after, moment, host),)
            continue
        work = recording.works[moment.work]
        where = where_of(recording, work)
        carried.passes(where.get("role", 0))
        columns: dict[str, Any] = {
            "name": work.name, "stream": streams[work.stream], **where,
            "time_source": TimeSource.RECORDED if timed else TimeSource.UNKNOWN,
        }  # fmt: skip
        calls = rank.calls.get(moment.work, ())
        matched = [
            (key, call)
            for key, call in zip(rank.keys.get(number, ()), calls, strict=True)
            if lasts[key].seen >= len(_expected(key, recorded)) and len(set(key[0])) > 1
        ]
        waits_us = _apart_us(moment)
        if waits_us and waits_us <= UNTOLD_US:  # beside what the stream still does, and hidden where that takes longer
            after = (*after, _wait(builder, ends[moment.launch], waits_us, host + 1 + streams[work.stream], LAUNCH))
        elif waits_us:
            after = (_wait(builder, after, waits_us, streams[work.stream], UNTOLD),)
        if not matched or any(call.kind in (SEND, RECEIVE) and key[1] != SEND for key, call in matched):
            columns |= _work(builder, described.get(moment.work))
            columns["duration_s"] = (moment.lasts_us - waits_us) / 1e6 if timed or moment.work in described else 0.0
            ends[number] = (builder.add(after, **columns),)
            continue
        sent = []
        for key, call in matched:
            own = _communication(rank.number, _group_of(key, everyone), call, lasts[key], families)
            if timed:
                own["kernel"] = builder.kernel_index(carried.describe(moment.work, call, lasts[key].size_bytes or 0))
            sent.append(builder.add(after, **columns, **own))
        ends[number] = tuple(sent)
    return builder.build()


def _in_order(timeline: Timeline) -> list[int]:
    """Order moments as the host called for them, and after what they follow: the order of the job's program."""
    recording, moments = timeline.recording, timeline.moments
    keys = []
    for moment in moments:
        call = recording.works[moment.work].call if moment.work != NONE else NONE
        keys.append(recording.calls[call].start_us if call != NONE else moment.start_us)
    follows = [moment.follows for moment in moments]
    return lowest_first(list(map(len, follows)), users_in(follows).__getitem__, keys.__getitem__)


def _work(builder: GraphBuilder, call: Kernel | None) -> dict[str, Any]:
    """Return the columns that say what a kernel did, where that is known."""
    if call is None:
        return {}
    return {"kernel": builder.kernel_index(call), "flops": call.flops, "bytes": call.bytes}


def _before(builder: GraphBuilder, rank: _Rank, streams: Mapping[tuple[int, int], int]) -> tuple[int, ...]:
    """Add what the GPU still had to do as the recording began, which no replay counts; return its last nodes."""
    last: dict[tuple[int, int], int] = {}
    for work in rank.timeline.before:
        after = (last[work.stream],) if work.stream in last else ()
        columns = {"stream": streams.get(work.stream, 0), "phase": BEFORE, "time_source": TimeSource.RECORDED}
        last[work.stream] = builder.add(
            after, name=work.name, duration_s=(work.end_us - work.start_us) / 1e6, **columns
        )
    return tuple(last.values())


def _root(
    builder: GraphBuilder, rank: _Rank, ranks: Sequence[_Rank], streams: Mapping[tuple[int, int], int]
) -> tuple[int, ...]:
    """Add what the first works and calls of a rank follow: the rest of a step before, and that it begins late."""
    root = _before(builder, rank, streams)
    late_us = _begin_us(rank) - min(map(_begin_us, ranks))
    return (_wait(builder, root, late_us, max(streams.values(), default=0) + 1, BEGINS),) if late_us > 1 else root


def _apart_us(moment: Moment) -> float:
    """Return the wait of a work that is a node of its own: one that nothing explains, or for its launch."""
    return moment.waits_us if moment.waits_us > (UNTOLD_US if moment.launch == NONE else CLOCK_US) else 0.0


def _wait(builder: GraphBuilder, after: tuple[int, ...], lasts_us: float, stream: int, name: str) -> int:
    columns = {"role": NodeRole.HOST, "stream": stream, "phase": HOST, "time_source": TimeSource.RECORDED}
    return builder.add(after, name=name, duration_s=lasts_us / 1e6, **columns)


def _host(builder: GraphBuilder, after: tuple[int, ...], moment: Moment, stream: int) -> int:
    """Add the host's time before a call, and what recording took of it."""
    if moment.recorder_us:
        after = (_wait(builder, after, moment.recorder_us, stream, RECORDER),)
    return _wait(builder, after, moment.lasts_us - moment.recorder_us, stream, HOST)


def _communication(
    rank: int, group: tuple[int, ...], call: Communication, length: _Length, families: Sequence[GroupFamily]
) -> dict[str, Any]:
    """Return the columns of a collective, or of one end of a message."""
    number = next(
        index for index, family in enumerate(families) if rank in family.group_of_rank and family.of(rank) == group
    )
    columns: dict[str, Any] = {
        "bytes": length.size_bytes or 0, "group": number, "duration_s": length.us / 1e6,
    }  # fmt: skip
    if call.kind not in (SEND, RECEIVE):
        return columns | {"kind": NodeKind.COLLECTIVE, "collective": COLLECTIVES.index(call.kind)}
    kind = NodeKind.SEND if call.kind == SEND else NodeKind.RECV
    return columns | {"kind": kind, "peer": 1}


def _count(imported: Imported, ranks: Sequence[_Rank], lasts: Mapping[Key, _Length]) -> None:
    """Count the collectives for the report, those of equal kind, group and size together, and how long they waited."""
    rows: dict[tuple[str, int, int | None], list[float]] = {}
    for rank in ranks:
        for number, keys in rank.keys.items():
            moment = rank.timeline.moments[number]
            for key, call in zip(keys, rank.calls[moment.work], strict=True):
                imported.collectives += 1
                imported.collectives_sized += lasts[key].size_bytes is not None
                row = rows.setdefault((call.kind, len(key[0]), lasts[key].size_bytes), [0, 0.0, 0.0])
                row[0] += 1
                row[1] += lasts[key].us / 1e6
                row[2] += (moment.lasts_us - lasts[key].us) / 1e6
    imported.by_group = [
        {
            "kind": kind,
            "ranks": size,
            "bytes": size_bytes,
            "calls": int(row[0]),
            **({"transfer_s": row[1], "waiting_s": row[2]} if ranks[0].timeline.modelled is None else {}),
        }
        for (kind, size, size_bytes), row in sorted(rows.items(), key=lambda item: -item[1][1])
    ]
