"""The stage that annotates a program with times on a device: kernel times, then when the host issues each call."""

import numpy as np

from scaleout.cluster.device.host import issue
from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.cluster.device.spec import Device
from scaleout.errors import GraphError
from scaleout.program.calls import columns_of
from scaleout.program.graph import NONE, Bools, ExecutionGraph, NodeKind
from scaleout.program.program import Program


def annotate(program: Program, device: Device, *, host: str = "none", recompute: bool = False) -> Program:
    """Give a program its kernel times on a device, and say when the host has issued each node.

    `host` is one of `host.HOSTS`; `recompute` also replaces times that kernels have already, see `time_kernels`.

    Raises
    ------
    GraphError
        If a kernel has neither a time nor FLOPs or bytes; the message names it.
    ConfigError
        If the host is unknown, or the device file says nothing of its host's costs.
    """
    return issue(time_kernels(program, device, recompute=recompute), device, host=host)


def time_kernels(program: Program, device: Device, *, recompute: bool = False) -> Program:
    """Give every kernel that has no time yet its time on a device, and say where the time comes from.

    `recompute` also replaces the times of kernels whose operation and sizes are known, such as those of a trace that
    was written for another device. Times of unknown kernels stay.

    Raises
    ------
    GraphError
        If a kernel has neither a time nor FLOPs or bytes; the message names it.
    """
    untimed = {id(graph): _untimed(graph, recompute=recompute) for graph in program.graphs}
    asked = [columns_of(graph.kernels) for graph in program.graphs if untimed[id(graph)].any()]
    kernel_times(device, list(dict.fromkeys(call for calls in asked for call in calls.of_operations())))  # at once

    def timed(graph: ExecutionGraph) -> ExecutionGraph:
        nodes = untimed[id(graph)]
        if not nodes.any():
            return graph
        seconds, sources = kernel_times(device, graph.kernels)
        calls = graph.kernel[nodes]
        duration_s, time_source = graph.duration_s.copy(), graph.time_source.copy()
        duration_s[nodes], time_source[nodes] = seconds[calls], sources[calls]
        return graph.with_columns(duration_s=duration_s, time_source=time_source)

    return program.map_graphs(timed)


def _untimed(graph: ExecutionGraph, *, recompute: bool) -> Bools:
    """Return which nodes are to be timed, (N,)."""
    untimed = (graph.kind == NodeKind.COMPUTE) & np.isnan(graph.duration_s)
    if recompute:
        of_operations = ~columns_of(graph.kernels).is_custom
        untimed |= np.append(of_operations, False)[graph.kernel]  # `NONE` is the last entry
    unknown = np.flatnonzero(untimed & (graph.kernel == NONE))
    if unknown.size:
        node = int(unknown[0])
        raise GraphError(
            f"node {node} ({graph.names[node]!r}) is a kernel with no time and no FLOPs; "
            f"give it a duration, or FLOPs and bytes"
        )
    return np.asarray(untimed)
