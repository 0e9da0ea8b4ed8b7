"""A recorded job as it is simulated: replayed as it ran, or its kernels on another network.

A replay takes the recorded time of every kernel, and of every collective once its ranks are there; what ran at the same
time has slowed each other down already, so nothing contends anew.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from scaleout.cluster.topology.dimension import Dimension
from scaleout.cluster.topology.topology import Topology
from scaleout.errors import ConfigError
from scaleout.program.cut import BEFORE, without_phase
from scaleout.program.graph import ExecutionGraph, NodeKind
from scaleout.program.operations import TimeSource
from scaleout.program.program import Program
from scaleout.simulation.options import SimulationOptions


def replayed(program: Program, options: SimulationOptions) -> tuple[Program, Topology, SimulationOptions]:
    """Return the program of a recording's steps, a network that takes no part in it, and options without contention.

    `ConfigError` if the options are about the network.
    """
    plain = SimulationOptions()
    named = {"network": "--network", "algorithms": "--algorithm", "injection_bytes_per_s": "--injection",
             "placement": "--placement"}  # fmt: skip
    for name, option in named.items():
        if getattr(options, name) != getattr(plain, name):
            raise ConfigError(f"{option}: a replay takes the recorded times of collectives; give --topology as well")
    nowhere = Topology("recorded network", (Dimension("switch", program.num_ranks, 1.0, 0.0),))
    return program.map_graphs(without_phase(BEFORE)), nowhere, replace(options, contention=False)


def on_network(program: Program) -> Program:
    """Return the program of a recording's steps with collectives and messages that a network times.

    `ConfigError` if the size of one is not known.
    """
    found = program.map_graphs(without_phase(BEFORE)).map_graphs(_untimed)
    unsized = {
        name
        for graph in found.graphs
        for name in np.array(graph.names)[(graph.kind != NodeKind.COMPUTE) & (graph.bytes == 0)].tolist()
    }
    if unsized:
        raise ConfigError(
            f"the recording does not tell the size of {len(unsized)} kinds of collective, such as {min(unsized)[:60]}; "
            f"replay it without --topology, or record it with record_shapes=True"
        )
    return found


def _untimed(graph: ExecutionGraph) -> ExecutionGraph:
    communicates = graph.kind != NodeKind.COMPUTE
    return graph.with_columns(
        duration_s=np.where(communicates, np.nan, graph.duration_s),
        time_source=np.where(communicates, int(TimeSource.UNKNOWN), graph.time_source),
    )


def shares(program: Program, duration_s: Mapping[int, float] | None = None) -> dict[str, float]:
    """Return how much of the kernels' and collectives' time was recorded, scaled and modelled; the sum is 1."""
    seconds = dict.fromkeys(("recorded", "scaled", "modelled"), 0.0)
    for count, graph in zip(program.ranks_of_role, program.graphs, strict=True):
        known = np.where(np.isfinite(graph.duration_s), graph.duration_s, 0.0)
        for source, name in ((TimeSource.RECORDED, "recorded"), (TimeSource.SCALED, "scaled")):
            seconds[name] += float(count) * float(known[graph.time_source == source].sum())
        rest = ~np.isin(graph.time_source, (TimeSource.RECORDED, TimeSource.SCALED))
        seconds["modelled"] += float(count) * float(known[rest].sum())
    total = sum(seconds.values())
    return {f"{name}_share": value / total if total else 0.0 for name, value in seconds.items()}
