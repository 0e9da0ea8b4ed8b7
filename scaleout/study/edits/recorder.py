"""What a job lost to being recorded, told apart from what it takes by itself.

Recording slows the host, and a GPU that waits for it; and profilers start on one rank after the other, so that ranks
wait for the last. The nodes of both are known, and left out of what is edited; the replay then tells what holds the job
up: its kernels, its collectives or its host. How many times as long the recorded job took as it does without them is
what an edited one would take longer too if it were recorded so.
"""

import numpy as np

from scaleout.config.units import format_seconds
from scaleout.errors import SimulationError
from scaleout.program.concat import Splice
from scaleout.program.cut import without
from scaleout.program.graph import Bools, ExecutionGraph, GraphBuilder, NodeRole
from scaleout.program.operations import TimeSource
from scaleout.program.program import Program
from scaleout.program.recorded import BEGINS, HOST, RECORDER
from scaleout.study.edits.recorded import Recorded
from scaleout.study.edits.slowdown import replay


def without_recorder(program: Program) -> tuple[Program, float]:
    """Return a recording's program without what recording cost it, and how many times as long it took with that."""
    quiet = program.map_graphs(lambda graph: without(graph, _named(graph, RECORDER, BEGINS)))
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


_LATE = 0.01
"""Of the time that the GPU computes, by how much ranks begin apart at least where it is told."""


def told_of_host(recording: Recorded, slowed: float) -> str:
    """Say what recording cost the job: how many times as long it took for it, and of what that is known."""
    graphs = recording.program.graphs
    late_s = max((float(graph.duration_s[_named(graph, BEGINS)].sum()) for graph in graphs), default=0.0)
    busy_s = max((float(graph.duration_s[graph.stream == 0].sum()) for graph in graphs), default=0.0)
    recorder = any(_named(graph, RECORDER).any() for graph in graphs)
    costs = ["what recording its operators cost the host"] if recorder else []
    if late_s > _LATE * busy_s:
        costs.append(f"the {format_seconds(late_s)} by which ranks began to be recorded one after another")
    waited = f"the GPU waited {recording.host_bound:.1%} of the time for the host"
    if not costs:
        return f"{waited}, which is kept as recorded: no operators tell what recording cost it"
    return (
        f"{waited}; without {' and '.join(costs)}, the recorded steps would take {1 / slowed:.3f} of their time. What "
        f"is edited runs without, and is then lengthened by as large a share of the step"
    )


def _named(graph: ExecutionGraph, *names: str) -> Bools:
    """(N,) which nodes are the host's and have one of some names."""
    return np.array([name in names for name in graph.names], bool) & graph.has_role(NodeRole.HOST)
