"""Overlap of independent work: collectives on streams of their own, started when their data is ready.

As in PyTorch, where each process group has a stream: a collective waits only for what makes its data and for those of
its group before it, and holds up only what needs its result. What a kernel and a collective take from each other on
the device is not charged.
"""

import numpy as np

from scaleout.graph import ExecutionGraph, NodeKind
from scaleout.program import Program
from scaleout.schedule.machine import Machine

COMPUTE_STREAM = 0


def communication_stream(group: int) -> int:
    """Return the stream of a group's collectives."""
    return 1 + group


def overlap(program: Program, machine: Machine | None = None) -> Program:
    """Move every collective to the stream of its group."""
    return program.map_graphs(_overlap)


def _overlap(graph: ExecutionGraph) -> ExecutionGraph:
    collective = graph.kind == NodeKind.COLLECTIVE
    return graph.with_columns(stream=np.where(collective, communication_stream(0) + graph.group, COMPUTE_STREAM))
