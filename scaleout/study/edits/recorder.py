"""What a job lost to being recorded, told apart from what it takes by itself.

Recording slows the host, and a GPU that waits for it. The nodes in which the host recorded are known, and left out of
what is edited; the replay then tells what holds the job up: its kernels, its collectives or its host. How many times as
long the recorded job took as it does without them is what an edited one would take longer too if it were recorded so.
"""

import numpy as np

from scaleout.errors import SimulationError
from scaleout.program.concat import Splice
from scaleout.program.cut import without
from scaleout.program.graph import Bools, ExecutionGraph, GraphBuilder, NodeRole
from scaleout.program.operations import TimeSource
from scaleout.program.program import Program
from scaleout.program.recorded import HOST, RECORDER
from scaleout.study.edits.slowdown import replay


def without_recorder(program: Program) -> tuple[Program, float]:
    """Return a recording's program without its recorder, and how many times as long it took with it."""
    quiet = program.map_graphs(lambda graph: without(graph, _records(graph)))
    if sum(map(len, quiet.graphs)) == sum(map(len, program.graphs)):
        return program, 1.0
    try:
        return quiet, max(1.0, replay(program).makespan_s / replay(quiet).makespan_s)
    except SimulationError:  # which whoever runs the recording is told
        return quiet, 1.0


def with_recorder(program: Program, slowed: float) -> Program:
    """Return an edited program that ends as much later as the recorded one did: a node `RECORDER` ends each rank."""
    if slowed == 1:
        return program
    lost_s = (slowed - 1) * replay(program).makespan_s
    tail = GraphBuilder(phase=HOST, role=NodeRole.HOST)
    tail.add((), name=RECORDER, duration_s=lost_s, time_source=TimeSource.SCALED)
    end = tail.build()

    def longer(graph: ExecutionGraph) -> ExecutionGraph:
        last = np.ones(len(graph), bool)
        last[graph.dependencies] = False
        whole = Splice()
        whole.add(graph)
        whole.add(end, after=np.flatnonzero(last).tolist(), stream=int(graph.stream.max(initial=0)))
        return whole.build()

    return program.map_graphs(longer)


def _records(graph: ExecutionGraph) -> Bools:
    """(N,) in which nodes the host records what it does."""
    return np.array([name == RECORDER for name in graph.names], bool) & graph.has_role(NodeRole.HOST)
