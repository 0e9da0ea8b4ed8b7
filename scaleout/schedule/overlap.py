"""Streams: which kernels and collectives of a program wait for each other beyond its dependencies.

`baseline` is bulk-synchronous: one stream for all. Messages, of pipelines and of attention round a ring, wait for no
stream under any schedule: their sender goes on, and their dependencies say what waits for them. Under `overlap` each
process group has a stream, as in PyTorch: a collective waits for its data and for the group's collective before it.
`concurrent` gives a group several streams, so that collectives wait only where their back end takes one at a time.
Contention on the device is charged elsewhere.
"""

from functools import lru_cache

import numpy as np

from scaleout.cluster.machine import Machine
from scaleout.program.graph import ExecutionGraph, NodeKind, NodeRole, compress_edges
from scaleout.program.program import Program

COMPUTE_STREAM = 0
CHAINS = 16
"""Streams of a group under `concurrent`: at most so many of its collectives are concurrent."""
_PLACES = ("kind", "role", "group")
"""Columns that tell a node's stream."""


def communication_stream(group: int) -> int:
    """Return the stream of a group's collectives."""
    return 1 + group


def host_stream(graph: ExecutionGraph, chains: int = 1) -> int:
    """Return the stream of the host, behind those of all groups and of input."""
    return communication_stream((int(graph.group.max(initial=0)) + 1) * chains + 1)


def recorded(program: Program, machine: Machine | None = None) -> Program:
    """Leave everything on the stream on which it was recorded."""
    return program


def overlap(program: Program, machine: Machine | None = None) -> Program:
    """Move every collective to the stream of its group."""
    return program.map_columns(_overlap, _PLACES)


def concurrent(program: Program, machine: Machine | None = None) -> Program:
    """Move the collectives of each group to streams in turn."""
    return program.map_columns(lambda graph: _overlap(graph, chains=CHAINS), _PLACES)


@lru_cache(maxsize=4)  # sweeps schedule one graph on many networks
def _overlap(graph: ExecutionGraph, *, chains: int = 1) -> ExecutionGraph:
    collective = graph.kind == NodeKind.COLLECTIVE
    num_groups = int(graph.group.max(initial=0)) + 1
    turn = np.cumsum(collective) % chains
    stream = np.where(collective, communication_stream(0) + graph.group + num_groups * turn, COMPUTE_STREAM)
    stream = np.where(graph.has_role(NodeRole.INPUT), communication_stream(num_groups * chains), stream)
    return graph.with_columns(stream=np.where(graph.has_role(NodeRole.HOST), host_stream(graph, chains), stream))


def baseline(program: Program, machine: Machine | None = None) -> Program:
    """Put everything on the compute stream in program order, with equal priority."""
    return program.map_columns(_serial, _PLACES)


@lru_cache(maxsize=4)
def _serial(graph: ExecutionGraph) -> ExecutionGraph:
    zero = np.zeros(len(graph), np.int64)
    return graph.with_columns(stream=np.where(graph.has_role(NodeRole.HOST), host_stream(graph), zero), priority=zero)


def in_program_order(program: Program) -> Program:
    """Let every collective wait for the one before it on its stream, as on hardware.

    Slices of transfers overlap; each waits for the last whole collective before it. Otherwise ranks that become ready
    in different orders could wait for each other forever.
    """
    return program.map_columns(_chain, ("kind", "stream", "slices", "dependency_offsets", "dependencies"))


@lru_cache(maxsize=4)
def _chain(graph: ExecutionGraph) -> ExecutionGraph:
    nodes = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)
    nodes = nodes[np.argsort(graph.stream[nodes], kind="stable")]
    whole, order = graph.slices[nodes] == 1, np.arange(len(nodes))
    last_whole = np.maximum.accumulate(np.where(whole, order, 0))
    before, after = nodes[np.where(whole[1:], order[:-1], last_whole[:-1])], nodes[1:]
    waits = graph.stream[before] == graph.stream[after]
    waits &= (graph.slices[before] == 1) | (graph.slices[after] == 1)
    users = np.repeat(np.arange(len(graph)), np.diff(graph.dependency_offsets))
    users, needs = np.append(users, after[waits]), np.append(graph.dependencies, before[waits])
    offsets, dependencies = compress_edges(users, needs, len(graph))
    return graph.with_columns(dependency_offsets=offsets, dependencies=dependencies)
