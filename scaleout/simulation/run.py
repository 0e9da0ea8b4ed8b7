"""Program and cluster to result: the one place where graphs, collectives and the engine meet.

Ranks that do the same are folded into one timeline each; every collective is an instance of its group's timelines.
Under alpha-beta it holds the dimensions that its group extends over, each for as long as its bytes need there. Under
link, collectives in flight share the links, and only ranks fold whose messages cross links that are alike as well.
Under both, kernels and collectives contend for SMs and memory. See docs/models/event-engine.md.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from scaleout.cluster.topology.peers import peer_of
from scaleout.cluster.topology.topology import Topology, check_ranks
from scaleout.errors import SimulationError
from scaleout.network.flow.instances import LinkNetwork
from scaleout.network.flow.link_traffic import LinkTraffic
from scaleout.network.routes.links import links_of
from scaleout.program.graph import NONE, ExecutionGraph, Floats, NodeKind, found_once
from scaleout.program.program import Program
from scaleout.simulation.columns import Sharing, Tasks, Times
from scaleout.simulation.contention import Contention
from scaleout.simulation.engine import run
from scaleout.simulation.fold import fold
from scaleout.simulation.fold_links import fold_on_links
from scaleout.simulation.folded_program import CollectiveInstances, FoldedProgram, describe, instances_of
from scaleout.simulation.options import check_network
from scaleout.simulation.result import Result, Served, Timeline
from scaleout.simulation.tasks import tasks_of
from scaleout.simulation.what_if import slow_ranks


def simulate(
    program: Program,
    topology: Topology,
    *,
    network: str = "alpha_beta",
    algorithms: Mapping[str, str] | None = None,
    unfold: bool = False,
    injection_bytes_per_s: float | None = None,
    contention: Contention | None = None,
) -> Result:
    """Run a timed and scheduled program on a topology.

    Parameters
    ----------
    program : Program
        Its kernels must have times (`scaleout.cluster.device.annotate.time_kernels`).
    topology : Topology
        As many ranks as the program has; its slow ranks take longer over their kernels.
    network, algorithms, injection_bytes_per_s
        As in `SimulationOptions`.
    unfold : bool
        Simulate every rank on its own; same result, more work.
    contention : Contention, optional
        What kernels and collectives that run concurrently take from each other; nothing if left out.

    Raises
    ------
    ConfigError
        If program and topology differ in ranks, or an algorithm or a kind of collective cannot be had.
    GraphError
        If a kernel has no time, or a rank no graph.
    SimulationError
        If members of a group do not agree on a collective, a message has no other end, or ranks wait for each
        other for ever; the message names the ranks, nodes and collectives.
    """
    check_network(network, algorithms or {}, injection_bytes_per_s=injection_bytes_per_s)
    check_ranks(topology, program.num_ranks)
    program.check_roles()
    program = slow_ranks(program, dict(topology.slow_ranks))
    folded = FoldedProgram(program, topology, algorithms or {}, fold(program, topology, unfold=unfold))
    links = None
    if network == "link":
        every_link = links_of(topology, injection_bytes_per_s=injection_bytes_per_s)
        folded, alike = fold_on_links(folded, every_link, unfold=unfold)
        links = LinkNetwork(every_link, alike)
    instances = instances_of(folded)
    shares = contention if contention is not None and _overlaps(folded) else None
    tasks, sharing, served = tasks_of(folded, instances, links, None if shares is None else shares.resource_use)
    times = _times(tasks, sharing, shares, links)
    if np.isnan(times.start_s).any():
        raise SimulationError(_why_stuck(folded, tasks, times, instances))
    lasts_s, holds_s = tasks.duration_s, tasks.occupancy_s
    del tasks, sharing, instances  # half of the memory that a simulation of millions of tasks takes
    result = _result(folded, lasts_s, holds_s, times, served, network=network)
    if links is None:
        return result
    carried = links.sent_bytes, links.traffic.link_bytes
    return replace(
        result, link_traffic=LinkTraffic(links.traffic.links, links.alike[NONE], *carried, result.makespan_s)
    )


def _overlaps(folded: FoldedProgram) -> bool:
    """Whether anything can run at the same time on a device."""

    def overlaps(graph: ExecutionGraph) -> bool:
        sends = (graph.kind == NodeKind.SEND) & (graph.collective == NONE)
        return bool(sends.any() or (graph.stream != graph.stream[:1]).any())

    return any(found_once(folded.graphs, ("kind", "collective", "stream"), overlaps))


_LOADING_S = 0.4
"""What it takes to load the core."""
_CALLING_S, _CALLING_ON_LINKS_S = 0.004, 0.04
"""What it takes to hand tasks to the core and back, on links those of the network as well."""
_python_s = [0.0]
"""What Python has taken in this process. Which of the two runs changes no bit."""


def _takes_s(tasks: Tasks, contention: Contention | None, links: LinkNetwork | None) -> float:
    """Return what Python takes about: it runs 0.25 M tasks/s, or 0.05 M that others time."""
    return len(tasks) / (250_000 if contention is None and links is None else 50_000)


def _is_long(takes_s: float, links: LinkNetwork | None) -> bool:
    """Whether the core is quicker than the seconds that Python takes.

    Once Python has taken as long as loading the core takes, it is loaded: many short programs are as one long one.
    """
    if "scaleout.simulation.core.run" in sys.modules:
        return takes_s >= (_CALLING_S if links is None else _CALLING_ON_LINKS_S)
    _python_s[0] += takes_s
    return _python_s[0] >= _LOADING_S


def _times(tasks: Tasks, sharing: Sharing, contention: Contention | None, links: LinkNetwork | None) -> Times:
    """Run in Python, or if it is long in the compiled core, which gives the same bits.

    Short programs run in the core if a long one has had it compiled on this machine.
    """
    takes_s = _takes_s(tasks, contention, links)
    if _is_long(takes_s, links):
        from scaleout.simulation.core.run import run as run_compiled  # noqa: PLC0415 - numba takes a while to import

        compiles = takes_s >= _LOADING_S
        if (found := run_compiled(tasks, sharing, contention, links, compiles=compiles)) is not None:
            return found
    return run(tasks, sharing, contention, links)


def _result(
    folded: FoldedProgram, duration: Floats, occupancy: Floats, times: Times, served: Served, *, network: str
) -> Result:
    """Return what was found; times that links or devices gave are put into `duration` and `occupancy`."""
    shared = np.isnan(duration)
    duration[shared] = (times.end_s - times.start_s)[shared]
    occupancy[shared] = (times.released_s - times.start_s)[shared]
    ranks: list[list[int]] = [[] for _ in folded.graphs]
    for rank, number in enumerate(folded.folding.class_of_rank.tolist()):
        ranks[number].append(rank)
    timelines = []
    for number, graph in enumerate(folded.graphs):
        part = slice(folded.offsets[number], folded.offsets[number + 1])
        timelines.append(
            Timeline(
                graph,
                tuple(ranks[number]),
                times.start_s[part],
                times.end_s[part],
                duration[part],
                occupancy[part],
                times.cause[part],
                Served(served.number[part], served.names),
            )
        )
    return Result(folded.program, folded.topology.name, network, tuple(timelines))


def _why_stuck(folded: FoldedProgram, tasks: Tasks, times: Times, instances: CollectiveInstances) -> str:
    """Say who waits for whom, from the collectives at which some members have arrived and others have not."""
    reasons: list[str] = []
    for index, instance in enumerate(instances):
        arrived = [task for task in instance.tasks if times.posted[task]]
        if not arrived:
            continue
        classes = {folded.locate(task)[0] for task in arrived}
        members = folded.folding.families[instance.family].members_of_class[instance.group_class]
        ranks = [int(folded.folding.representative[number]) for number in members if number not in classes]
        number, node = folded.locate(arrived[0])
        never = len(instance.tasks) < tasks.instance_size[index]
        verb = "never calls it" if never else "has not reached it"
        reasons.append(
            f"{folded.name(number, node)} waits in {describe(folded.graphs[number], node)} for rank "
            f"{', '.join(map(str, ranks))}, which {verb}"
        )
    advice = "all members of a group must call the same collectives in the same order"
    if not reasons:
        reasons = _waiting_for_messages(folded, times)
        advice = "ranks wait for each other's messages in a circle; let one of them send before it receives"
    more = f" (and {len(reasons) - 3} more like it)" if len(reasons) > 3 else ""
    return f"the program cannot finish: {'; '.join(reasons[:3])}{more}; {advice}"


def _waiting_for_messages(folded: FoldedProgram, times: Times) -> list[str]:
    """Name the ends of messages that lack only the other end."""
    reasons = []
    for number, (offset, graph) in enumerate(zip(folded.offsets, folded.graphs, strict=False)):
        started = ~np.isnan(times.start_s[offset : offset + len(graph)])
        for node in np.flatnonzero((graph.kind > NodeKind.COLLECTIVE) & ~started).tolist():
            if started[graph.dependencies_of(node)].all():
                peer = peer_of(folded.program, int(folded.folding.representative[number]), graph, node)
                verb = "waits to send a message to" if graph.kind[node] == NodeKind.SEND else "waits for a message from"
                reasons.append(f"{folded.name(number, node)} {verb} rank {peer}")
    return reasons
