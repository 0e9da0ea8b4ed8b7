"""Bulk-synchronous execution: one stream for kernels and collectives alike, in program order.

Every collective waits for the kernels before it and is waited for by the kernels after it, as when each framework
operator is launched on the default stream.
"""

import numpy as np

from scaleout.cluster.machine import Machine
from scaleout.program.graph import ExecutionGraph
from scaleout.program.program import Program


def baseline(program: Program, machine: Machine | None = None) -> Program:
    """Put everything on the compute stream, with equal priority."""
    return program.map_graphs(_serial)


def _serial(graph: ExecutionGraph) -> ExecutionGraph:
    zero = np.zeros(len(graph), np.int64)
    return graph.with_columns(stream=zero, priority=zero)
