"""Comparisons and collectives to files: a summary, tables of nodes and links, a timeline and figures in one folder.

The timeline is in Chrome's trace format [us], which Perfetto (ui.perfetto.dev) opens: a process for each schedule and
class of ranks, a track for each stream. A slice of a pipelined transfer is drawn for as long as it holds the link.

Source: the Trace Event Format, Google, 2016.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scaleout.analysis.breakdown import critical_path
from scaleout.analysis.pipeline import actions, over_time
from scaleout.cluster.device.kernel_times import source_names
from scaleout.cluster.topology.peers import peer_of
from scaleout.config.writing import replacing, write_json
from scaleout.network.flow.link_traffic import LinkTraffic
from scaleout.program.graph import NONE, ExecutionGraph, NodeKind
from scaleout.simulation.result import Result, Timeline

if TYPE_CHECKING:
    import pandas as pd

    from scaleout.study.comparison import Comparison
    from scaleout.study.job import Outcome

_COLOURS = {NodeKind.COMPUTE: "thread_state_running", NodeKind.COLLECTIVE: "thread_state_iowait"}


def trace_events(comparison: "Comparison") -> dict[str, Any]:
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


FILES = {
    "summary.json": "the numbers of the table",
    "nodes.parquet": "every graph node (operation) of every schedule, with its times",
    "timeline.json": "open in https://ui.perfetto.dev or chrome://tracing",
    "breakdown.png": "where the time goes",
}
"""Files that `write` makes, and what they are; under the link model those of `LINKS` as well."""

LINKS = {"links.parquet": "bytes and utilisation of every link", "links.png": "heat map of all links"}
"""Files about links; where there are several schedules there is a heat map of each."""


def write(comparison: "Comparison", folder: Path, summary: Mapping[str, Any]) -> dict[str, str]:
    """Write all files of a comparison into a folder, with a summary of it; return their names, and what they are."""
    from scaleout.report.plots.links import draw_links  # noqa: PLC0415 - matplotlib takes half a second
    from scaleout.report.plots.schedules import draw_comparison  # noqa: PLC0415

    write_json(folder / "summary.json", summary)
    write_json(folder / "timeline.json", trace_events(comparison), indent=None)
    _write_nodes(comparison, folder / "nodes.parquet")
    draw_comparison(comparison, folder / "breakdown.png")
    files = dict(FILES)
    traffic = {o.schedule: o.result.link_traffic for o in comparison.outcomes if o.result.link_traffic is not None}
    if traffic:
        _write_links(traffic, folder / "links.parquet")
        files["links.parquet"] = LINKS["links.parquet"]
    for schedule, links in traffic.items():
        name = f"links-{schedule}.png" if len(traffic) > 1 else "links.png"
        draw_links(links, folder / name, title=f"{comparison.workload}, {schedule}, on {comparison.topology}")
        files[name] = f"{LINKS['links.png']} under {schedule}"
    return files | _draw_steps(comparison, folder)


def _draw_steps(comparison: "Comparison", folder: Path) -> dict[str, str]:
    """Draw pipelines and memory of a model's steps, and return the files and what they are."""
    if comparison.fit is None:
        return {}
    from scaleout.report.plots.pipelines import draw_memory, draw_pipelines  # noqa: PLC0415 - matplotlib takes half a second

    files = {}
    for outcome in comparison.outcomes:
        end = f"-{outcome.schedule}.png" if len(comparison.outcomes) > 1 else ".png"
        title, makespan_s = f"{comparison.workload}, {outcome.schedule}, on {comparison.topology}", outcome.makespan_s
        job = outcome.workload
        if job is None or outcome.efficiency is None:
            continue
        if job.pipeline_parallel > 1:
            name, about = f"pipeline{end}", f"{job.pipeline_schedule}, bubble {outcome.efficiency.bubble:.1%}"
            done = actions(outcome.result, job)
            draw_pipelines([(f"{title}: {about}", done, makespan_s)], folder / name, columns=1)
            files[name] = f"which micro-batch each rank works on under {outcome.schedule}"
        name, held = f"memory{end}", over_time(outcome.result, job)
        draw_memory(
            held, folder / name, capacity_bytes=comparison.fit.capacity_bytes, makespan_s=makespan_s, title=title
        )
        files[name] = f"memory of each pipeline rank over time under {outcome.schedule}"
    return files


def write_links(title: str, summary: dict[str, Any], traffic: LinkTraffic | None, folder: Path) -> dict[str, str]:
    """Write a summary of one collective, and the traffic of all links, if any, as a table and as a heat map."""
    from scaleout.report.plots.links import draw_links  # noqa: PLC0415 - matplotlib takes half a second

    write_json(folder / "summary.json", summary)
    files = {"summary.json": FILES["summary.json"]}
    if traffic is None:
        return files
    _write_links({"": traffic}, folder / "links.parquet")
    draw_links(traffic, folder / "links.png", title=title)
    return files | LINKS


def _write_links(traffic: dict[str, LinkTraffic], path: Path) -> None:
    import pandas as pd  # noqa: PLC0415 - takes half a second

    frames = [pd.DataFrame({"schedule": schedule, **links.columns()}) for schedule, links in traffic.items()]
    whole = pd.concat(frames, ignore_index=True)
    _write_table(whole if "".join(traffic) else whole.drop(columns="schedule"), path)


def _write_nodes(comparison: "Comparison", path: Path) -> None:
    import pandas as pd  # noqa: PLC0415 - takes half a second

    frames = [pd.DataFrame(columns) for outcome in comparison.outcomes for columns in _columns(outcome)]
    _write_table(pd.concat(frames, ignore_index=True), path)


def _write_table(table: "pd.DataFrame", path: Path) -> None:
    with replacing(path) as file:
        table.to_parquet(file, engine="pyarrow", index=False)


def node_columns(graph: ExecutionGraph) -> dict[str, Any]:
    """Return what a graph says of its nodes, before any schedule: columns of shape (N,)."""
    sources = source_names()
    return {
        "node": np.arange(len(graph)),
        "name": list(graph.names),
        "kind": [NodeKind(kind).name.lower() for kind in graph.kind.tolist()],
        "operation": [graph.operation(node) for node in range(len(graph))],
        "stage": graph.stage,
        "microbatch": graph.microbatch,
        "phase": [graph.phases[phase] for phase in graph.phase.tolist()],
        "stream": graph.stream,
        "priority": graph.priority,
        "flops": graph.flops,
        "bytes": graph.bytes,
        "time_source": [sources[source] for source in graph.time_source.tolist()],
    }


def _columns(outcome: "Outcome") -> list[dict[str, Any]]:
    """Columns over the nodes of each class of ranks of one schedule."""
    critical = {(segment.rank, segment.node) for segment in critical_path(outcome.result)}
    return [
        {
            "schedule": outcome.schedule,
            "rank": line.ranks[0],
            "ranks_alike": len(line.ranks),
            **node_columns(line.graph),
            "start_s": line.start_s,
            "end_s": line.end_s,
            "duration_s": line.duration_s,
            "algorithm": list(line.algorithm),
            "critical": [(line.ranks[0], node) in critical for node in range(len(line.graph))],
        }
        for line in outcome.result.timelines
    ]
