"""What kernels lost to collectives that ran beside them, told apart from the time that they take by themselves.

A kernel beside a collective has fewer SMs and less memory bandwidth. The recording itself tells how much that costs:
kernels of one name and of the same sizes run with and without a collective beside them. An edit changes what kernels
take by themselves; what they lose follows from what then runs beside them.
"""

from collections.abc import Callable

import numpy as np

from scaleout.cluster.topology.dimension import Dimension
from scaleout.cluster.topology.topology import Topology
from scaleout.errors import SimulationError
from scaleout.program.graph import ExecutionGraph, Floats
from scaleout.program.program import Program
from scaleout.simulation.options import SimulationOptions
from scaleout.simulation.result import Result, Timeline
from scaleout.study.edits.recorded import operators_of
from scaleout.study.job import Job, run

_LONG_S = 20e-6
"""Kernels from which a loss is told; shorter ones vary by as much."""
_BESIDE = 0.01
"""Of the time of kernels, how much must be beside collectives for a loss to be told."""
_MOST = 0.9
"""Of its time, the most that a kernel is taken to have lost."""


def nowhere(num_ranks: int) -> Topology:
    """Return a network that takes no part in a replay, where collectives take their recorded times."""
    return Topology("recorded network", (Dimension("switch", num_ranks, 1.0, 0.0),))


def without_losses(program: Program) -> tuple[Program, float]:
    """Return a recording's program with what kernels take by themselves, and the share that they lose.

    The share is of the time in which a collective runs beside a kernel: the slope of times over it among kernels that
    are alike, of all of them together; 0 where none tell.
    """
    try:
        lines = _replayed(program)
    except SimulationError:  # which whoever runs the recording is told
        return program, 0.0
    share = _share(lines)
    if not share:
        return program, 0.0

    def own_s(graph: ExecutionGraph, beside_s: Floats) -> Floats:
        return graph.duration_s - np.minimum(share * beside_s, _MOST * graph.duration_s)

    return _with_durations(program, lines, own_s), share


def with_losses(program: Program, share: float) -> Program:
    """Return a program whose kernels lose a share of the time in which a collective runs beside them."""
    if not share:
        return program
    return _with_durations(program, _replayed(program), lambda graph, beside_s: graph.duration_s + share * beside_s)


def replay(program: Program) -> Result:
    """Return how a recorded program runs with the times that it has."""
    job = Job(program, "recorded", nowhere(program.num_ranks), "recorded", SimulationOptions(contention=False), True)
    return run(job).result


def _replayed(program: Program) -> dict[int, Timeline]:
    """Return a timeline for each graph of a program."""
    lines: dict[int, Timeline] = {}
    for line in replay(program).timelines:
        lines.setdefault(int(program.role_of_rank[line.ranks[0]]), line)
    return lines


def _with_durations(
    program: Program, lines: dict[int, Timeline], change: Callable[[ExecutionGraph, Floats], Floats]
) -> Program:
    graphs = iter(range(len(program.graphs)))

    def changed(graph: ExecutionGraph) -> ExecutionGraph:
        line = lines.get(next(graphs))
        if line is None:  # no rank runs it any more
            return graph
        return graph.with_columns(duration_s=np.where(line.is_kernel, change(graph, _beside_s(line)), graph.duration_s))

    return program.map_graphs(changed)


def _share(lines: dict[int, Timeline]) -> float:
    together = apart = beside_s = kernels_s = 0.0
    for line in lines.values():
        beside = _beside_s(line)
        chosen = np.flatnonzero(line.is_kernel & (line.duration_s > _LONG_S))
        beside_s, kernels_s = beside_s + float(beside[chosen].sum()), kernels_s + float(line.duration_s[chosen].sum())
        _, names = np.unique(np.array(line.graph.names, object)[chosen], return_inverse=True)
        _, alike = np.unique(np.stack([names, operators_of(line.graph)[1][chosen]]), axis=1, return_inverse=True)
        counts = np.maximum(np.bincount(alike.ravel()), 1)
        x, y = (
            values[chosen] - (np.bincount(alike.ravel(), values[chosen]) / counts)[alike.ravel()]
            for values in (beside, line.duration_s)
        )
        together, apart = together + float(x @ y), apart + float(x @ x)
    if beside_s < _BESIDE * kernels_s or not apart:
        return 0.0
    return min(max(together / apart, 0.0), _MOST)


def _beside_s(line: Timeline) -> Floats:
    """(N,) for how long a collective or message runs beside each node, once all its ranks are there."""
    communicates = np.flatnonzero(line.is_communication & (line.graph.duration_s > 0))
    ends = line.end_s[communicates]
    begins = ends - line.graph.duration_s[communicates]
    times = np.concatenate([begins, ends])
    order = np.argsort(times, kind="stable")
    times = times[order]
    running = np.cumsum(np.repeat([1, -1], len(begins))[order])
    if not len(times):
        return np.zeros(len(line.graph))
    passed = np.concatenate([[0.0], np.cumsum(np.diff(times) * (running[:-1] > 0))])
    return np.asarray(np.interp(line.end_s, times, passed) - np.interp(line.start_s, times, passed))
