"""Program and cluster to result: the one place where graphs, collectives and the clock meet.

Ranks that do the same are folded into one timeline each. Every collective becomes a meeting of the timelines of its
group; it holds the streams of its members and, while its bytes are on the wire, the dimensions of the topology that
its group extends over: under alpha-beta a dimension carries one collective at a time, so that two of them never
get more than the wire together.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scaleout.collectives import check_kind
from scaleout.config import nearest
from scaleout.engine import Tasks, Times, run
from scaleout.errors import ConfigError, GraphError, SimulationError
from scaleout.fold import FoldedFamily, Folding, fold
from scaleout.graph import COLLECTIVES, NONE, ExecutionGraph, Floats, NodeKind
from scaleout.network.alpha_beta import CollectiveCost, collective_cost, send_cost
from scaleout.program import Program
from scaleout.result import Result, Timeline
from scaleout.topology import Topology, check_ranks

NETWORKS = ("alpha_beta",)
"""Network models that can be asked for."""


@dataclass
class _Meeting:
    """A collective instance: which timelines have come, and what they want to do.

    `order` decides between meetings that could take a wire at the same moment: their place in the program, and,
    where members' programs differ, the family and the count within it. It is the same folded and unfolded.
    """

    family: FoldedFamily
    group_class: int
    order: tuple[int, int, int]
    tasks: list[int] = field(default_factory=list)


@dataclass
class _Job:
    """Everything about a program on its way to the engine; tasks are the nodes of all classes, one after another."""

    program: Program
    topology: Topology
    algorithms: Mapping[str, str]
    folding: Folding
    graphs: list[ExecutionGraph]
    offsets: list[int]
    costs: dict[tuple[int, int, int, int, int], CollectiveCost] = field(default_factory=dict)


def simulate(
    program: Program,
    topology: Topology,
    *,
    network: str = "alpha_beta",
    algorithms: Mapping[str, str] | None = None,
    unfold: bool = False,
) -> Result:
    """Run a timed and scheduled program on a topology.

    Parameters
    ----------
    program : Program
        Its kernels must have times (`scaleout.timing.time_kernels`).
    topology : Topology
        As many ranks as the program has.
    network : str
        A name in `NETWORKS`.
    algorithms : mapping of str to str, optional
        Kind of collective to the algorithm for it; the fastest for each of those not named.
    unfold : bool
        Simulate every rank on its own; same result, more work.

    Raises
    ------
    ConfigError
        If program and topology differ in ranks, a kind of collective or an algorithm is unknown, or the algorithm
        cannot carry out a collective.
    GraphError
        If a kernel has no time.
    SimulationError
        If members of a group do not agree on a collective, a message has no other end, or ranks wait for each
        other for ever; the message names the ranks, nodes and collectives.
    """
    if network not in NETWORKS:
        raise ConfigError(f"unknown network model {network!r}; {nearest(network, NETWORKS)}")
    for kind in algorithms or {}:
        check_kind(kind)
    check_ranks(topology, program.num_ranks)
    folding = fold(program, topology, unfold=unfold)
    graphs = [program.graphs[program.role_of_rank[rank]] for rank in folding.representative]
    offsets = [0, *np.cumsum([len(graph) for graph in graphs]).tolist()]
    job = _Job(program, topology, algorithms or {}, folding, graphs, offsets)
    meetings = _meetings(job)
    tasks, chosen = _tasks(job, meetings)
    times = run(tasks)
    if np.isnan(times.start_s).any():
        raise SimulationError(_why_stuck(job, tasks, times, meetings))
    return _result(job, tasks, times, chosen, network)


def _meetings(job: _Job) -> list[_Meeting]:
    """Match the collectives of all classes: the k-th of a rank on its group meets the k-th of the other members."""
    found: dict[tuple[int, int, int], _Meeting] = {}
    for number, graph in enumerate(job.graphs):
        rank = int(job.folding.representative[number])
        count: dict[int, int] = defaultdict(int)
        for node in np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist():
            family_index = int(graph.group[node])
            family = job.folding.families[family_index]
            group = int(family.group_of_rank[rank])
            if group == NONE:
                raise GraphError(
                    f"rank {rank}, node {node} ({graph.names[node]!r}): the rank is in no group "
                    f"{job.program.groups[family_index].name!r}; add it to the group or remove the collective"
                )
            group_class = int(family.class_of_group[group])
            key = (family_index, group_class, count[family_index])
            order = (node, family_index, count[family_index])
            count[family_index] += 1
            meeting = found.setdefault(key, _Meeting(family, group_class, order))
            meeting.order = min(meeting.order, order)
            meeting.tasks.append(job.offsets[number] + node)
    for meeting in found.values():
        _check_agreement(job, meeting)
    return sorted(found.values(), key=lambda meeting: meeting.order)


def _check_agreement(job: _Job, meeting: _Meeting) -> None:
    first, *others = [_locate(job, task) for task in meeting.tasks]
    for number, node in others:
        mine, theirs = job.graphs[first[0]], job.graphs[number]
        for column in ("collective", "bytes", "pieces"):
            if getattr(mine, column)[first[1]] != getattr(theirs, column)[node]:
                raise SimulationError(
                    f"{_name(job, *first)} meets {_name(job, number, node)} on the same group, but they differ in "
                    f"{column}: {_say(mine, first[1])} against {_say(theirs, node)}; all members of a group must "
                    f"call the same collectives in the same order"
                )


def _say(graph: ExecutionGraph, node: int) -> str:
    return f"{COLLECTIVES[graph.collective[node]]} of {graph.bytes[node]} B"


def _locate(job: _Job, task: int) -> tuple[int, int]:
    number = int(np.searchsorted(job.offsets, task, side="right")) - 1
    return number, task - job.offsets[number]


def _name(job: _Job, number: int, node: int) -> str:
    return f"rank {job.folding.representative[number]}, node {node} ({job.graphs[number].names[node]!r})"


def _tasks(job: _Job, meetings: Sequence[_Meeting]) -> tuple[Tasks, list[str]]:
    size = job.offsets[-1]
    duration = np.concatenate([graph.duration_s for graph in job.graphs]) if job.graphs else np.zeros(0)
    kind = np.concatenate([graph.kind for graph in job.graphs])
    untimed = np.flatnonzero(np.isnan(duration) & (kind == NodeKind.COMPUTE))
    if untimed.size:
        number, node = _locate(job, int(untimed[0]))
        raise GraphError(
            f"{_name(job, number, node)} is a kernel with no time; name the device that it runs on (--device)"
        )
    duration_s, occupancy_s = duration.tolist(), duration.tolist()
    meeting_of = [NONE] * size
    algorithms = [""] * size
    wires: list[tuple[int, ...]] = []
    num_dimensions = len(job.topology.dimensions)
    for index, meeting in enumerate(meetings):
        cost = _cost(job, meeting)
        number, node = _locate(job, meeting.tasks[0])
        serialization_s = cost.serialization_s / int(job.graphs[number].pieces[node])
        pipelined = job.graphs[number].pieces[node] > 1
        for task in meeting.tasks:
            meeting_of[task] = index
            algorithms[task] = cost.algorithm
            duration_s[task] = cost.latency_s + serialization_s
            occupancy_s[task] = serialization_s if pipelined else duration_s[task]
        members = meeting.family.members_of_class[meeting.group_class]
        along = meeting.family.dimensions_of_class[meeting.group_class]
        wires.append(tuple(member * num_dimensions + dimension for member in members for dimension in along))
    users: list[list[int]] = [[] for _ in range(size)]
    counts: list[int] = []
    for offset, graph in zip(job.offsets, job.graphs, strict=False):
        counts += np.diff(graph.dependency_offsets).tolist()
        owners = np.repeat(np.arange(len(graph)), np.diff(graph.dependency_offsets)).tolist()
        for user, dependency in zip(owners, graph.dependencies.tolist(), strict=True):
            users[offset + dependency].append(offset + user)
    streams = _streams(job)
    _add_messages(job, duration_s, occupancy_s, users, counts)
    tasks = Tasks(
        duration_s,
        occupancy_s,
        streams,
        [priority for graph in job.graphs for priority in graph.priority.tolist()],
        users,
        counts,
        meeting_of,
        [len(meeting.family.members_of_class[meeting.group_class]) for meeting in meetings],
        wires,
    )
    return tasks, algorithms


def _streams(job: _Job) -> list[int]:
    """One number for each stream of each class. Messages have streams of their own: they do not hold up a rank."""
    width = 2 + max((int(graph.stream.max()) for graph in job.graphs if len(graph)), default=0)
    streams: list[int] = []
    for number, graph in enumerate(job.graphs):
        own = number * width + graph.stream
        own = np.where(graph.kind == NodeKind.SEND, number * width + width - 1, own)
        streams += np.where(graph.kind == NodeKind.RECV, NONE, own).tolist()
    return streams


def _cost(job: _Job, meeting: _Meeting) -> CollectiveCost:
    number, node = _locate(job, meeting.tasks[0])
    graph = job.graphs[number]
    kind, size, pieces = int(graph.collective[node]), int(graph.bytes[node]), int(graph.pieces[node])
    key = (id(meeting.family), meeting.group_class, kind, size, pieces)
    cost = job.costs.get(key)
    if cost is None:
        # A slice is part of one transfer: the algorithm is chosen for the whole.
        placement = meeting.family.placement_of_class[meeting.group_class]
        name, size_bytes = COLLECTIVES[kind], float(size * pieces)
        if name == "barrier":  # the shortest message that everyone has to send to everyone
            name, size_bytes = "all_reduce", 1.0
        cost = collective_cost(name, size_bytes, placement, job.algorithms.get(name, "auto"))
        job.costs[key] = cost
    return cost


def _add_messages(
    job: _Job, duration_s: list[float], occupancy_s: list[float], users: list[list[int]], counts: list[int]
) -> None:
    """Charge sends, and let each receive wait for the send of the same tag that it matches, in order."""
    sends: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    receives: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for number, graph in enumerate(job.graphs):
        rank = int(job.folding.representative[number])
        for node in np.flatnonzero(graph.kind > NodeKind.COLLECTIVE).tolist():
            peer, tag, task = int(graph.peer[node]), int(graph.tag[node]), job.offsets[number] + node
            if not 0 <= peer < job.program.num_ranks:
                raise GraphError(f"{_name(job, number, node)} names rank {peer}, which the job does not have")
            if graph.kind[node] == NodeKind.RECV:
                receives[peer, rank, tag].append(task)
                duration_s[task] = occupancy_s[task] = 0.0
                continue
            sends[rank, peer, tag].append(task)
            cost = send_cost(float(graph.bytes[node]), job.topology, source=rank, destination=peer)
            duration_s[task] = cost.latency_s + cost.serialization_s
            occupancy_s[task] = cost.serialization_s
    for key in sorted(sends.keys() | receives.keys()):
        sent, received = sends.get(key, []), receives.get(key, [])
        if len(sent) != len(received):
            lonely = max(sent, received, key=len)[min(len(sent), len(received))]
            raise SimulationError(
                f"{_name(job, *_locate(job, lonely))}: rank {key[0]} sends {len(sent)} messages to rank {key[1]} with "
                f"tag {key[2]}, which receives {len(received)}; every send needs its receive"
            )
        for send, receive in zip(sent, received, strict=True):
            users[send].append(receive)
            counts[receive] += 1


def _why_stuck(job: _Job, tasks: Tasks, times: Times, meetings: Sequence[_Meeting]) -> str:
    """Say who waits for whom, from the collectives at which some members have come and others have not."""
    reasons: list[str] = []
    for index, meeting in enumerate(meetings):
        come = [task for task in meeting.tasks if times.posted[task]]
        if not come:
            continue
        classes = {_locate(job, task)[0] for task in come}
        absent = [c for c in meeting.family.members_of_class[meeting.group_class] if c not in classes]
        ranks = [int(job.folding.representative[number]) for number in absent]
        number, node = _locate(job, come[0])
        never = len(meeting.tasks) < tasks.meeting_size[index]
        verb = "never calls it" if never else "has not reached it"
        reasons.append(
            f"{_name(job, number, node)} waits in {_say(job.graphs[number], node)} for rank "
            f"{', '.join(map(str, ranks))}, which {verb}"
        )
    if not reasons:
        task = int(np.flatnonzero(np.isnan(times.start_s))[0])
        reasons.append(f"{_name(job, *_locate(job, task))} waits for a message that depends on it")
    more = f" (and {len(reasons) - 3} more like it)" if len(reasons) > 3 else ""
    return (
        f"the program cannot finish: {'; '.join(reasons[:3])}{more}; "
        f"all members of a group must call the same collectives in the same order"
    )


def _result(job: _Job, tasks: Tasks, times: Times, chosen: list[str], network: str) -> Result:
    duration: Floats = np.array(tasks.duration_s)
    occupancy: Floats = np.array(tasks.occupancy_s)
    ranks: list[list[int]] = [[] for _ in job.graphs]
    for rank, number in enumerate(job.folding.class_of_rank.tolist()):
        ranks[number].append(rank)
    timelines = []
    for number, graph in enumerate(job.graphs):
        part = slice(job.offsets[number], job.offsets[number + 1])
        timelines.append(
            Timeline(
                graph,
                tuple(ranks[number]),
                times.start_s[part],
                times.end_s[part],
                duration[part],
                occupancy[part],
                times.cause[part],
                tuple(chosen[part]),
            )
        )
    return Result(job.program, job.topology.name, network, tuple(timelines))
