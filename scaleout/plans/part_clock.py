"""Work that does several things at once to its seconds.

Those are messages beside kernels, such as keys and values round a ring, or collectives beside kernels, where a schedule
overlaps them. All neighbours do the same at the same time, so what a rank sends is what it receives.
"""

from collections.abc import Mapping

import numpy as np

from scaleout import engine
from scaleout.graph import COLLECTIVES, NONE, NodeKind
from scaleout.operations import Kernel
from scaleout.plans.work import Collective, Work
from scaleout.program import GroupFamily, Program
from scaleout.schedule import apply_schedule


def clock_s(
    work: Work,
    kernel_s: Mapping[Kernel, float],
    collective_s: Mapping[Collective, float],
    hops: Mapping[int, tuple[float, float]],
    *,
    schedule: str = "baseline",
) -> float:
    """Return the seconds of a rank's graph under a schedule, one rank standing for all.

    Parameters
    ----------
    work : Work
        With its graph.
    kernel_s, collective_s : mapping
        Seconds of each.
    hops : mapping
        Bytes of a message to its seconds, and to those in which it holds the wire.
    """
    assert work.graph is not None
    groups = tuple(GroupFamily(name, ()) for name in work.families)
    graph = apply_schedule(Program("part", (work.graph,), np.zeros(1, np.int64), groups), schedule).graphs[0]
    kind, sizes = graph.kind.tolist(), graph.bytes.tolist()
    duration_s, wire_s, stream = [0.0] * len(graph), dict[int, float](), graph.stream.tolist()
    sends = max(stream, default=0) + 1
    users: list[list[int]] = [[] for _ in range(len(graph))]
    counts = np.diff(graph.dependency_offsets).tolist()
    for node in range(len(graph)):
        for dependency in graph.dependencies_of(node).tolist():
            users[dependency].append(node)
        if kind[node] == NodeKind.COMPUTE and graph.kernel[node] != NONE:
            duration_s[node] = kernel_s[graph.kernels[graph.kernel[node]]]
        elif kind[node] == NodeKind.COLLECTIVE:
            asked = Collective(COLLECTIVES[graph.collective[node]], sizes[node], work.families[graph.group[node]])
            duration_s[node] = collective_s[asked]
        elif kind[node] == NodeKind.SEND:
            (duration_s[node], wire_s[node]), stream[node] = hops[sizes[node]], sends
        elif kind[node] == NodeKind.RECV:  # of the send before it
            stream[node] = NONE
            users[node - 1].append(node)
            counts[node] += 1
    occupancy_s = [wire_s.get(node, seconds) for node, seconds in enumerate(duration_s)]
    alone = [NONE] * len(graph)
    priority = graph.priority.tolist()
    times = engine.run(engine.Tasks(duration_s, occupancy_s, stream, priority, users, counts, alone, (), ()))
    return float(times.end_s.max())
