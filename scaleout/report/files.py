"""Comparisons and collectives to files: a summary, tables of nodes and links, a timeline and figures in one folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scaleout.analysis.breakdown import critical_path
from scaleout.analysis.pipeline import actions, over_time
from scaleout.analysis.traffic import DimensionTraffic, dimension_traffic
from scaleout.cluster.device.kernel_times import source_names
from scaleout.config.writing import replacing, write_json
from scaleout.network.flow.link_traffic import LinkTraffic
from scaleout.program.graph import ExecutionGraph, NodeKind
from scaleout.program.labels import labels
from scaleout.report.perfetto import trace_events

if TYPE_CHECKING:
    import pandas as pd

    from scaleout.study.comparison import Comparison
    from scaleout.study.job import Outcome

FILES = {
    "summary.json": "the numbers of the table",
    "nodes.parquet": "every graph node (operation) of every schedule, with its times",
    "timeline.json": "open in https://ui.perfetto.dev or chrome://tracing",
    "breakdown.png": "where the time goes",
}
"""Files that `write` makes, and what they are; of links those of `LINKS` as well."""

LINKS = {"links.parquet": "bytes and utilisation of every link", "links.png": "the network and how busy its links are"}
"""Files about links; where there are several schedules there is a picture of each."""


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
    files |= {} if traffic else _draw_dimensions(comparison, folder, summary)
    for schedule, links in traffic.items():
        name = f"links-{schedule}.png" if len(traffic) > 1 else "links.png"
        draw_links(links, folder / name, title=f"{comparison.workload}, {schedule}, on {comparison.topology}")
        files[name] = f"{LINKS['links.png']} under {schedule}"
    return files | _draw_steps(comparison, folder)


def _draw_dimensions(comparison: "Comparison", folder: Path, summary: Mapping[str, Any]) -> dict[str, str]:
    """Draw the network with what a closed form knows of its loads under the fastest schedule; nothing of a replay."""
    from scaleout.report.plots.links import draw_links  # noqa: PLC0415 - matplotlib takes half a second

    found = loads_of_fastest(comparison, summary.get("inputs", {}))
    if found is None:
        return {}
    schedule, loads = found
    draw_links(loads, folder / "links.png", title=f"{comparison.workload}, {schedule}, on {comparison.topology}")
    return {"links.png": f"the network and how busy the busiest link of each dimension is under {schedule}"}


def loads_of_fastest(comparison: "Comparison", inputs: Mapping[str, Any]) -> tuple[str, DimensionTraffic] | None:
    """Return the fastest schedule and the loads of its dimensions; None of a replay, which has no network of its own.

    `inputs` are those of the comparison, which may name algorithms.
    """
    fastest = min(comparison.outcomes, key=lambda each: each.makespan_s)
    if fastest.topology is None or comparison.steps:
        return None
    named = {key: str(name) for key, name in inputs.items() if key.startswith("algorithm.")}
    algorithms = {key.removeprefix("algorithm."): name for key, name in named.items()}
    loads = dimension_traffic(fastest.result, fastest.topology, algorithms)
    return None if loads is None else (fastest.schedule, loads)


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
    """Write a summary of one collective, and the traffic of all links, if any, as a table and as a picture."""
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
        "operation": labels(graph),
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
            "algorithm": line.algorithm,
            "critical": [(line.ranks[0], node) in critical for node in range(len(line.graph))],
        }
        for line in outcome.result.timelines
    ]
