"""Comparisons to files: a summary, a table of all nodes, a timeline and a figure in one directory.

Files are written beside the directory first and moved into it when all are whole.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from scaleout.analysis import critical_path
from scaleout.errors import ConfigError
from scaleout.graph import NodeKind
from scaleout.operations import TimeSource
from scaleout.study import Comparison, Outcome
from scaleout.timeline import trace_events

FILES = {
    "summary.json": "the numbers of the table",
    "nodes.parquet": "every node of every schedule, with its times",
    "timeline.json": "open in https://ui.perfetto.dev or chrome://tracing",
    "breakdown.png": "where the time goes",
}
"""Files that `write` makes, and what they are."""


def write(comparison: Comparison, directory: Path) -> list[Path]:
    """Write all files of a comparison into a directory, which is made if need be.

    Raises
    ------
    ConfigError
        If the directory cannot be written.
    """
    from scaleout.plot import draw_comparison  # noqa: PLC0415 - matplotlib takes half a second

    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".unfinished-") as name:
            unfinished = Path(name)
            (unfinished / "summary.json").write_text(json.dumps(comparison.summary(), indent=2) + "\n")
            (unfinished / "timeline.json").write_text(json.dumps(trace_events(comparison)))
            _write_nodes(comparison, unfinished / "nodes.parquet")
            draw_comparison(comparison, unfinished / "breakdown.png")
            return [(unfinished / file).replace(directory / file) for file in FILES]
    except OSError as error:
        raise ConfigError(
            f"output directory {str(directory)!r} cannot be written ({error.strerror}); give another one"
        ) from None


def _write_nodes(comparison: Comparison, path: Path) -> None:
    import pandas as pd  # noqa: PLC0415 - takes half a second

    frames = [pd.DataFrame(columns) for outcome in comparison.outcomes for columns in _columns(outcome)]
    pd.concat(frames, ignore_index=True).to_parquet(path, index=False)


def _columns(outcome: Outcome) -> list[dict[str, Any]]:
    """Columns over the nodes of each class of ranks of one schedule."""
    result = outcome.result
    critical = {(segment.rank, segment.node) for segment in critical_path(result)}
    tables = []
    for line in result.timelines:
        graph = line.graph
        nodes = range(len(graph))
        tables.append(
            {
                "schedule": outcome.schedule,
                "rank": line.ranks[0],
                "ranks_alike": len(line.ranks),
                "node": np.arange(len(graph)),
                "name": list(graph.names),
                "kind": [NodeKind(kind).name.lower() for kind in graph.kind.tolist()],
                "operation": [graph.operation(node) for node in nodes],
                "phase": [graph.phases[phase] for phase in graph.phase.tolist()],
                "stream": graph.stream,
                "priority": graph.priority,
                "start_s": line.start_s,
                "end_s": line.end_s,
                "duration_s": line.duration_s,
                "flops": graph.flops,
                "bytes": graph.bytes,
                "time_source": [TimeSource(source).name.lower() for source in graph.time_source.tolist()],
                "algorithm": list(line.algorithm),
                "critical": [(line.ranks[0], node) in critical for node in nodes],
            }
        )
    return tables
