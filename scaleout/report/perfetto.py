"""Timelines of a comparison in Chrome's trace format [us], which Perfetto (ui.perfetto.dev) opens.

A process for each schedule and class of ranks. In it a track for each stream, tracks of messages, one of phases, and
counters of what kernels compute and move, of what communication carries, and of memory. Arrows lead from what
communication waited for last to it, and from it to the kernels that waited for it. A slice of a pipelined transfer is
drawn for as long as it holds the link.

Source: the Trace Event Format, Google, 2016.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scaleout.analysis.breakdown import critical_path
from scaleout.analysis.pipeline import over_time
from scaleout.cluster.device.kernel_times import source_names
from scaleout.cluster.topology.peers import peer_of
from scaleout.program.graph import NONE, ExecutionGraph, Floats, Ints, NodeKind
from scaleout.program.labels import labels
from scaleout.simulation.result import Result, Timeline

if TYPE_CHECKING:
    from scaleout.study.comparison import Comparison
    from scaleout.study.job import Outcome

Event = dict[str, Any]

_COLOURS = {NodeKind.COMPUTE: "thread_state_running", NodeKind.COLLECTIVE: "thread_state_iowait"}
_INSIDE = 0.01
"""How far inside a slice its arrows begin and end, of its length: at its edge they would hold to its neighbour."""


def trace_events(comparison: "Comparison") -> dict[str, Any]:
    """Return the timelines of all schedules as one object of Chrome's trace format."""
    events: list[Event] = []
    for outcome in comparison.outcomes:
        critical = {(segment.rank, segment.node) for segment in critical_path(outcome.result)}
        memory = _memory(outcome)
        first, tracks = len({event["pid"] for event in events}), list[Ints]()
        for process, line in enumerate(outcome.result.timelines, start=first):
            label = f"{outcome.schedule}: {ranks_label(line)}"
            events.append({"ph": "M", "pid": process, "name": "process_name", "args": {"name": label}})
            track, names = _tracks(line)
            tracks.append(track)
            events += [_named(process, number, name) for number, name in names.items()]
            events += _phases(line, process, max(names, default=-1) + 1)
            events += _slices(outcome.result, line, process, track, critical)
            events += _counters(line, process, memory)
        events += _arrows(outcome.result, first, tracks)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def ranks_label(line: Timeline) -> str:
    """Say which ranks a timeline stands for, such as ``ranks 0-127``."""
    ranks = line.ranks
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks[-1] - ranks[0] + 1 == len(ranks):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"rank {ranks[0]} and {len(ranks) - 1} like it"


def _tracks(line: Timeline) -> tuple[Ints, dict[int, str]]:
    """(N,) the track of each node, and names of tracks: one a stream, then as many as messages under way at a time.

    Messages hold no stream: kernels of theirs run at the same time, and slices of a track may not overlap.
    """
    graph, track = line.graph, line.graph.stream.astype(np.int64)
    is_message = (graph.kind == NodeKind.SEND) | (graph.kind == NodeKind.RECV)
    names = {}
    for stream in sorted(set(track[~is_message].tolist())):
        here = line.is_communication[(track == stream) & ~is_message]
        kinds = [] if here.all() else ["compute"]
        kinds += ["communication"] if here.any() else []
        names[stream] = f"stream {stream}: {' and '.join(kinds)}"
    first, free_at_s = int(graph.stream.max(initial=-1)) + 1, list[float]()
    messages = np.flatnonzero(is_message & (line.duration_s > 0))
    for node in messages[np.argsort(line.start_s[messages], kind="stable")].tolist():
        start_s = float(line.start_s[node])
        free = next((lane for lane, end_s in enumerate(free_at_s) if end_s <= start_s), len(free_at_s))
        free_at_s[free : free + 1] = [start_s + float(line.occupancy_s[node])]
        track[node] = first + free
        names[first + free] = "messages"
    return track, names


def _named(process: int, track: int, name: str) -> Event:
    return {"ph": "M", "pid": process, "tid": track, "name": "thread_name", "args": {"name": name}}


def _phases(line: Timeline, process: int, track: int) -> Iterator[Event]:
    """A track of the phases that the kernels of the first stream with any are in, one after another."""
    graph = line.graph
    kernels = np.flatnonzero(line.is_kernel & (line.duration_s > 0))
    if not len(kernels):
        return
    yield _named(process, track, "phases")
    kernels = kernels[graph.stream[kernels] == graph.stream[kernels].min()]
    kernels = kernels[np.argsort(line.start_s[kernels], kind="stable")]
    for phase, group in groupby(kernels.tolist(), key=lambda node: int(graph.phase[node])):
        nodes = list(group)
        start_s, end_s = float(line.start_s[nodes[0]]), float(line.end_s[nodes[-1]])
        yield {"ph": "X", "pid": process, "tid": track, "name": graph.phases[phase], "cat": "phase",
               "ts": start_s * 1e6, "dur": (end_s - start_s) * 1e6}  # fmt: skip


def _slices(
    result: Result, line: Timeline, process: int, track: Ints, critical: set[tuple[int, int]]
) -> Iterator[Event]:
    graph, operations = line.graph, labels(line.graph)
    for node in range(len(graph)):
        if not line.duration_s[node]:
            continue
        event = {
            "ph": "X",
            "pid": process,
            "tid": int(track[node]),
            "name": graph.names[node],
            "cat": operations[node],
            "ts": float(line.start_s[node]) * 1e6,
            "dur": float(line.occupancy_s[node]) * 1e6,
            "args": {
                "phase": graph.phases[graph.phase[node]],
                **_place(graph, node),
                "critical": (line.ranks[0], node) in critical,
                **_facts(result, line, node),
            },
        }
        if graph.kind[node] in _COLOURS:
            event["cname"] = _COLOURS[NodeKind(int(graph.kind[node]))]
        yield event


def _place(graph: ExecutionGraph, node: int) -> dict[str, int]:
    columns = {"microbatch": graph.microbatch, "stage": graph.stage}
    return {name: int(column[node]) for name, column in columns.items() if column[node] != NONE}


def _facts(result: Result, line: Timeline, node: int) -> dict[str, Any]:
    graph = line.graph
    if graph.kind[node] == NodeKind.COMPUTE:
        source = source_names()[int(graph.time_source[node])]
        return {"flops": int(graph.flops[node]), "bytes": int(graph.bytes[node]), "time": source}
    facts: dict[str, Any] = {"bytes": int(graph.bytes[node])}
    if graph.kind[node] == NodeKind.COLLECTIVE:
        facts["group"] = result.program.groups[int(graph.group[node])].name
        facts["algorithm"] = line.algorithm[node]
        if graph.slices[node] > 1:
            facts["latency_us"] = float(line.duration_s[node] - line.occupancy_s[node]) * 1e6
    else:
        facts["peer"] = peer_of(result.program, line.ranks[0], graph, node)
    return facts


def _arrows(result: Result, first: int, tracks: Sequence[Ints]) -> Iterator[Event]:
    """Arrows to communication from what it waited for last, and from it to kernels that did; `first` is the process."""
    for here, line in enumerate(result.timelines):
        for node in np.flatnonzero((line.cause != NONE) & (line.duration_s > 0)).tolist():
            there, cause = result.locate(int(line.cause[node]))
            source = result.timelines[there]
            if not (line.is_communication[node] or source.is_communication[cause]) or not source.duration_s[cause]:
                continue
            arrow = {"cat": "waits", "name": "waits", "id": f"{first + here}.{node}"}
            begin_s, end_s = _inside(source, cause)[1], _inside(line, node)[0]
            if source.start_s[cause] > line.start_s[node]:  # a message that was received as it was sent
                end_s = max(end_s, min(begin_s, _inside(line, node)[1]))
            begin = {"pid": first + there, "tid": int(tracks[there][cause]), "ts": begin_s * 1e6}
            end = {"pid": first + here, "tid": int(tracks[here][node]), "ts": end_s * 1e6}
            yield {"ph": "s", **arrow, **begin}
            yield {"ph": "f", "bp": "e", **arrow, **end}


def _inside(line: Timeline, node: int) -> tuple[float, float]:
    """Where arrows to a slice end, and those from it begin [s]."""
    start_s, length_s = float(line.start_s[node]), float(line.occupancy_s[node])
    return start_s + _INSIDE * length_s, start_s + (1 - _INSIDE) * length_s


def _counters(line: Timeline, process: int, memory: dict[int, tuple[Floats, Floats]]) -> Iterator[Event]:
    graph, kernels = line.graph, line.is_kernel
    yield from _rate(line, process, "compute [TFLOP/s]", kernels, graph.flops / 1e12)
    yield from _rate(line, process, "memory traffic [GB/s]", kernels, graph.bytes / 1e9)
    yield from _rate(line, process, "communication [GB/s]", line.is_communication, graph.bytes / 1e9)
    if line.ranks[0] in memory:
        yield from _counter(process, "memory held [GiB]", *memory[line.ranks[0]])


def _rate(line: Timeline, process: int, name: str, which: npt.NDArray[np.bool_], amounts: Floats) -> Iterator[Event]:
    """A counter of what some nodes do a second, each evenly over its duration."""
    nodes = np.flatnonzero(which & (line.duration_s > 0) & (amounts > 0))
    rates = amounts[nodes] / line.duration_s[nodes]
    times = np.concatenate([line.start_s[nodes], line.start_s[nodes] + line.duration_s[nodes]])
    order = np.lexsort((np.concatenate([rates, -rates]), times))
    yield from _counter(process, name, times[order], np.cumsum(np.concatenate([rates, -rates])[order]))


def _counter(process: int, name: str, time_s: Floats, value: Floats) -> Iterator[Event]:
    """A counter as it is after the last change of each moment; what is left of sums of floats is none."""
    last = np.append(time_s[1:] != time_s[:-1], True)[: len(time_s)]
    value = np.where(np.abs(value) < 1e-9 * np.abs(value).max(initial=0.0), 0.0, value)
    for moment, each in zip(time_s[last].tolist(), value[last].tolist(), strict=True):
        yield {"ph": "C", "pid": process, "name": name, "ts": moment * 1e6, "args": {"value": each}}


def _memory(outcome: "Outcome") -> dict[int, tuple[Floats, Floats]]:
    """First rank of a class to the memory that it holds [GiB] at moments [s], for a model of layers."""
    if outcome.workload is None or outcome.efficiency is None:
        return {}
    held = over_time(outcome.result, outcome.workload)
    return {each.ranks[0]: (each.time_s, np.sum([*each.bytes_of.values()], axis=0) / 2**30) for each in held}
