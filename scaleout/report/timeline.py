"""Results to timelines in Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Each schedule and class of ranks is a process, each stream a track; nodes of the critical path say so. A slice of a
pipelined transfer is drawn for as long as it holds the wire; its latency stands in its arguments.

Source: the Trace Event Format, Google, 2016. Times are microseconds.
"""

from collections.abc import Iterator
from typing import Any

from scaleout.analysis.breakdown import critical_path
from scaleout.cluster.topology.peers import peer_of
from scaleout.program.graph import NONE, ExecutionGraph, NodeKind
from scaleout.program.operations import TimeSource
from scaleout.simulation.result import Result, Timeline
from scaleout.study.comparison import Comparison

_COLOURS = {NodeKind.COMPUTE: "thread_state_running", NodeKind.COLLECTIVE: "thread_state_iowait"}


def trace_events(comparison: Comparison) -> dict[str, Any]:
    """Return the timelines of all schedules as one object of Chrome's trace format."""
    events: list[dict[str, Any]] = []
    for outcome in comparison.outcomes:
        critical = {(segment.rank, segment.node) for segment in critical_path(outcome.result)}
        for line in outcome.result.timelines:
            process = len({event["pid"] for event in events})
            label = f"{outcome.schedule}: {ranks_label(line)}"
            events.append({"ph": "M", "pid": process, "name": "process_name", "args": {"name": label}})
            events += _tracks(line, process)
            events += _slices(outcome.result, line, process, critical)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def ranks_label(line: Timeline) -> str:
    """Say which ranks a timeline stands for, such as ``ranks 0-127``."""
    ranks = line.ranks
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks[-1] - ranks[0] + 1 == len(ranks):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"rank {ranks[0]} and {len(ranks) - 1} like it"


def _tracks(line: Timeline, process: int) -> Iterator[dict[str, Any]]:
    communicates = line.is_communication
    for stream in sorted(set(line.graph.stream.tolist())):
        here = communicates[line.graph.stream == stream]
        kinds = [] if here.all() else ["compute"]
        kinds += ["communication"] if here.any() else []
        name = f"stream {stream}: {' and '.join(kinds)}"
        yield {"ph": "M", "pid": process, "tid": stream, "name": "thread_name", "args": {"name": name}}


def _slices(result: Result, line: Timeline, process: int, critical: set[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    graph = line.graph
    for node in range(len(graph)):
        if not line.duration_s[node]:
            continue
        event = {
            "ph": "X",
            "pid": process,
            "tid": int(graph.stream[node]),
            "name": graph.names[node],
            "cat": graph.operation(node),
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
    """Return the micro-batch and stage of a node, if it has them."""
    columns = {"microbatch": graph.microbatch, "stage": graph.stage}
    return {name: int(column[node]) for name, column in columns.items() if column[node] != NONE}


def _facts(result: Result, line: Timeline, node: int) -> dict[str, Any]:
    graph = line.graph
    if graph.kind[node] == NodeKind.COMPUTE:
        source = TimeSource(int(graph.time_source[node])).name.lower()
        return {"flops": int(graph.flops[node]), "bytes": int(graph.bytes[node]), "time": source}
    facts: dict[str, Any] = {"bytes": int(graph.bytes[node])}
    if graph.kind[node] == NodeKind.COLLECTIVE:
        facts["group"] = result.program.groups[int(graph.group[node])].name
        facts["algorithm"] = line.algorithm[node]
        if graph.pieces[node] > 1:
            facts["latency_us"] = float(line.duration_s[node] - line.occupancy_s[node]) * 1e6
    else:
        facts["peer"] = peer_of(result.program, line.ranks[0], graph, node)
    return facts
