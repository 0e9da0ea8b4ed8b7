"""Overlap of independent work: collectives on streams of their own, started when their data is ready.

As in PyTorch, where each process group has a stream: a collective waits only for what makes its data and for those of
its group before it, and holds up only what needs its result. `concurrent` gives a group several streams, so that
collectives wait for those before them only where their back end takes one at a time. The input of the next step is read
beside this one. What a kernel and a collective take from each other on the device is not charged here.
"""

import numpy as np

from scaleout.cluster.machine import Machine
from scaleout.program.graph import ExecutionGraph, NodeKind, NodeRole
from scaleout.program.program import Program

COMPUTE_STREAM = 0
CHAINS = 16
"""Streams of a group, and thus collectives of it that are under way side by side at the most, under `concurrent`."""


def communication_stream(group: int) -> int:
    """Return the stream of a group's collectives."""
    return 1 + group


def overlap(program: Program, machine: Machine | None = None) -> Program:
    """Move every collective to the stream of its group."""
    return program.map_graphs(_overlap)


def concurrent(program: Program, machine: Machine | None = None) -> Program:
    """Move the collectives of each group to streams in turn."""
    return program.map_graphs(lambda graph: _overlap(graph, chains=CHAINS))


def _overlap(graph: ExecutionGraph, *, chains: int = 1) -> ExecutionGraph:
    collective = graph.kind == NodeKind.COLLECTIVE
    num_groups = int(graph.group.max(initial=0)) + 1
    turn = np.cumsum(collective) % chains
    stream = np.where(collective, communication_stream(0) + graph.group + num_groups * turn, COMPUTE_STREAM)
    stream = np.where(graph.has_role(NodeRole.INPUT), communication_stream(num_groups * chains), stream)
    return graph.with_columns(stream=stream)
