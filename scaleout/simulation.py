"""Program and cluster to result: the one place where graphs, collectives and the clock meet.

Ranks that do the same are folded into one timeline each. Every collective becomes a meeting of the timelines of its
group; it holds the streams of its members. Under alpha-beta it also holds the dimensions of the topology that its group
extends over, each for as long as its bytes need there: a dimension carries one collective at a time, so that two of
them never get more than the wire together, and the busiest one is held to the end. Under link, collectives that are in
flight at the same time share the links, and only ranks that are alike by a symmetry of the links are folded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scaleout.collectives import check_kind
from scaleout.config import nearest
from scaleout.contention import Contention
from scaleout.engine import Tasks, Times, run
from scaleout.errors import ConfigError, GraphError, SimulationError
from scaleout.fold import fold
from scaleout.graph import INPUT, NONE, NodeKind
from scaleout.job import Job, Meeting, asked, cost_of, groups_of, job_of, locate, meetings_of, name_of
from scaleout.message import Message, messages_of
from scaleout.network import demand
from scaleout.network.alpha_beta import CollectiveCost
from scaleout.network.link_traffic import LinkTraffic
from scaleout.network.meetings import LinkNetwork
from scaleout.network.symmetry import Symmetry, symmetry
from scaleout.peers import hops_of_program, names_ranks
from scaleout.program import Program
from scaleout.result import Result, Timeline
from scaleout.shared_devices import SharedDevices
from scaleout.stuck import why_stuck
from scaleout.topology import Topology, check_ranks
from scaleout.what_if import slow_ranks

NETWORKS = ("alpha_beta", "link")
"""Network models that can be asked for."""


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
        Its kernels must have times (`scaleout.timing.time_kernels`).
    topology : Topology
        As many ranks as the program has; its slow ranks take longer over their kernels.
    network : str
        A name in `NETWORKS`.
    algorithms : mapping of str to str, optional
        Kind of collective to the algorithm for it; the fastest for each of those not named.
    unfold : bool
        Simulate every rank on its own; same result, more work.
    injection_bytes_per_s : float, optional
        What a rank can send over all its links together, under the link model.
    contention : Contention, optional
        What kernels and collectives that run at the same time take from each other; nothing if left out, and under
        the link model, which does not know it.

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
    program = slow_ranks(program, dict(topology.slow_ranks))
    job = job_of(program, topology, algorithms or {}, fold(program, topology, unfold=unfold))
    links = None
    if network == "link":
        job, found = _on_links(job, unfold=unfold)
        links = LinkNetwork(topology, found, injection_bytes_per_s=injection_bytes_per_s)
    elif injection_bytes_per_s is not None:
        raise ConfigError(
            f"a limit to what a rank sends over all its links is one of the link model, and this is {network}; choose "
            f"the network model link (--network link), or leave the limit out (--injection)"
        )
    meetings = meetings_of(job)
    shared = None if contention is None or links is not None else _shared(job, contention)
    tasks, chosen = _tasks(job, meetings, links, shared)
    times = run(tasks, shared or links)
    if np.isnan(times.start_s).any():
        raise SimulationError(why_stuck(job, tasks, times, meetings))
    result = _result(job, tasks, times, chosen, network)
    if links is None:
        return result
    traffic = LinkTraffic(links.traffic.links, links.symmetry, links.traffic.link_bytes, result.makespan_s)
    return replace(result, link_traffic=traffic)


def _on_links(job: Job, *, unfold: bool) -> tuple[Job, Symmetry]:
    """Fold only what a symmetry of the links keeps; without one, or with messages that name ranks, nothing."""
    named = any(names_ranks(graph) for graph in job.program.graphs)
    found = Symmetry() if unfold or named else _symmetry(job)
    orbits = found.first(np.arange(job.program.num_ranks))
    folding = fold(job.program, job.topology, orbits=orbits)
    if len(folding.representative) > len(np.unique(orbits)):  # groups that are alike name their members otherwise
        found = Symmetry()
        folding = fold(job.program, job.topology, unfold=True)
    return job_of(job.program, job.topology, job.algorithms, folding), found


def _symmetry(job: Job) -> Symmetry:
    """Find the moves of all ranks that keep their roles, groups and messages."""
    messages = {}
    for meeting in meetings_of(job):
        name, algorithm = asked(job, meeting)[0], cost_of(job, meeting).algorithm
        key = (meeting.order[1], meeting.group_class, name, algorithm)
        if algorithm and key not in messages:
            messages[key] = demand.messages_of(job.topology, groups_of(job, meeting), name, algorithm)
    sets = [pairs for found in messages.values() for pairs in found]
    for ends in hops_of_program(job.program).values():
        having = np.flatnonzero(ends != NONE)
        sets.append((having, ends[having]))
    return symmetry(
        job.topology,
        [family.group_of_rank for family in job.folding.families.values()],
        messages=sets,
        roles=job.program.role_of_rank,
    )


def _shared(job: Job, contention: Contention) -> SharedDevices | None:
    """Let devices be shared, if anything can run at the same time there."""
    sends = any(((graph.kind == NodeKind.SEND) & (graph.collective == NONE)).any() for graph in job.graphs)
    overlaps = sends or any(len(set(graph.stream.tolist())) > 1 for graph in job.graphs)
    return SharedDevices(contention) if overlaps else None


def _tasks(
    job: Job, meetings: Sequence[Meeting], links: LinkNetwork | None, shared: SharedDevices | None
) -> tuple[Tasks, list[str]]:
    """Lay out what the clock runs, and the algorithm of each task; what others time has no duration of its own."""
    duration_s = _durations(job)
    occupancy_s = list(duration_s)
    meeting_of = [NONE] * job.offsets[-1]
    algorithms = [""] * job.offsets[-1]
    sizes: list[int] = []
    wires: list[tuple[int, ...]] = []
    wire_s: list[tuple[float, ...]] = []
    for index, meeting in enumerate(meetings):
        cost = cost_of(job, meeting)
        pieces = asked(job, meeting)[2]
        serialization_s = cost.serialization_s / pieces
        lasts_s = cost.latency_s + serialization_s
        early = pieces > 1 or (cost.concurrent and _is_aside(job, meeting))
        holds_s = serialization_s if early else lasts_s
        members = meeting.family.members_of_class[meeting.group_class]
        along = meeting.family.dimensions_of_class[meeting.group_class]
        if links is not None and cost.algorithm:
            _offer(job, meeting, links, index)
            lasts_s = holds_s = np.nan
            along = ()
        for task in meeting.tasks:
            meeting_of[task] = index
            algorithms[task] = cost.served_by
            duration_s[task], occupancy_s[task] = lasts_s, holds_s
        sizes.append(len(members))
        wires.append((*_ports(job, members, along, _OUT), *_ports(job, members, along, _IN)))
        wire_s.append(2 * len(members) * _held_s(cost, along, serialization_s))
    users, counts = _dependencies(job)
    laid = _Laid(job, duration_s, occupancy_s, users, counts, meeting_of, sizes, wires, wire_s)
    _add_messages(laid, links, shared)
    if shared is not None:
        _share_devices(laid, meetings, shared)
    priorities = [priority for graph in job.graphs for priority in graph.priority.tolist()]
    issue_s = np.concatenate([graph.issue_s for graph in job.graphs]).tolist()
    tasks = Tasks(
        duration_s, occupancy_s, _streams(job), priorities, users, counts, meeting_of, sizes, wires,
        issue_s if any(issue_s) else (), wire_s,
    )  # fmt: skip
    return tasks, algorithms


_OUT, _IN = 0, 1


def _ports(job: Job, classes: Sequence[int], along: Sequence[int], way: int) -> tuple[int, ...]:
    """Return the wires of classes of ranks along dimensions, out or in; collectives hold both, puts one at each end."""
    width = len(job.topology.dimensions)
    return tuple(2 * (number * width + dimension) + way for number in classes for dimension in along)


def _held_s(cost: CollectiveCost, along: Sequence[int], serialization_s: float) -> tuple[float, ...]:
    """Return for how long bytes need each dimension, shape (D,); infinite for as long as it takes."""
    shares = cost.shares[: len(along)] or (1.0,) * len(along)
    return tuple(np.inf if share == 1 else share * serialization_s for share in shares)


def _is_aside(job: Job, meeting: Meeting) -> bool:
    """Whether a collective is on a stream of its group, so that others may be under way while its last bytes fly."""
    number, node = locate(job, meeting.tasks[0])
    return int(job.graphs[number].stream[node]) != 0


class _Laid(NamedTuple):
    """Tasks as they are laid out; see `Tasks`."""

    job: Job
    duration_s: list[float]
    occupancy_s: list[float]
    users: list[list[int]]
    counts: list[int]
    meeting_of: list[int]
    sizes: list[int]
    wires: list[tuple[int, ...]]
    wire_s: list[tuple[float, ...]]


def _share_devices(laid: _Laid, meetings: Sequence[Meeting], shared: SharedDevices) -> None:
    """Let kernels and whole collectives be timed as they share the devices of their classes."""
    job = laid.job
    for index, meeting in enumerate(meetings):
        first = meeting.tasks[0]
        if laid.duration_s[first] > 0 and laid.duration_s[first] == laid.occupancy_s[first]:
            devices = meeting.family.members_of_class[meeting.group_class]
            shared.offer_transfer(
                index, devices, laid.duration_s[first], channels=shared.contention.appetite.num_sms,
                device_of={task: locate(job, task)[0] for task in meeting.tasks}, races=True,
            )  # fmt: skip
            for task in meeting.tasks:
                laid.duration_s[task] = laid.occupancy_s[task] = np.nan
    for number, (graph, offset) in enumerate(zip(job.graphs, job.offsets, strict=False)):
        kernels = (*graph.kernels, None)  # `NONE` is the last entry
        on_device = graph.phase != (graph.phases.index(INPUT) if INPUT in graph.phases else NONE)
        for node in np.flatnonzero((graph.kind == NodeKind.COMPUTE) & (graph.duration_s > 0) & on_device).tolist():
            task = offset + node
            call, issue_s = kernels[graph.kernel[node]], float(graph.issue_s[node])
            shared.offer_kernel(len(laid.sizes), number, call, laid.duration_s[task], issue_s=issue_s)
            laid.meeting_of[task] = len(laid.sizes)
            laid.duration_s[task] = laid.occupancy_s[task] = np.nan
            laid.sizes.append(1)
            laid.wires.append(())
            laid.wire_s.append(())


def _add_messages(laid: _Laid, links: LinkNetwork | None, shared: SharedDevices | None) -> None:
    """Let the ends of a message meet, or its receive wait for its send; on links its time is the network's to say.

    Puts take nothing from the kernels beside them: what storing or sending costs a fused kernel is in its time.
    """
    for message in messages_of(laid.job):
        ends = (message.send, message.receive) if message.meets else (message.send,)
        lasts_s = message.cost.latency_s + message.cost.serialization_s
        holds_s = message.cost.serialization_s
        laid.duration_s[message.receive] = laid.occupancy_s[message.receive] = 0.0
        if not message.meets:
            laid.users[message.send].append(message.receive)
            laid.counts[message.receive] += 1
        on_links = links is not None and lasts_s > 0
        if links is not None and on_links:
            source, destination = message.ranks
            links.offer_message(len(laid.sizes), message.size_bytes, source=source, destination=destination)
            lasts_s = holds_s = np.nan
        elif shared is not None and message.meets and not message.put and lasts_s > 0:
            _share_message(laid, message, ends, lasts_s, shared)
            lasts_s = holds_s = np.nan
        for task in ends:
            laid.duration_s[task], laid.occupancy_s[task] = lasts_s, holds_s
            laid.meeting_of[task] = len(laid.sizes) if message.meets or on_links else NONE
        if message.meets or on_links:
            laid.sizes.append(len(ends))
            of, to = ([locate(laid.job, task)[0]] for task in (message.send, message.receive))
            along = () if on_links else message.along
            laid.wires.append((*_ports(laid.job, of, along, _OUT), *_ports(laid.job, to, along, _IN)))
            laid.wire_s.append(2 * _held_s(message.cost, along, message.cost.serialization_s))


def _share_message(laid: _Laid, message: Message, ends: Sequence[int], lasts_s: float, shared: SharedDevices) -> None:
    """Let a message hold channels at both its ends; a receive that follows nothing was posted before it was needed.

    Its communicator is the group that it is sent along.
    """
    device_of = {task: locate(laid.job, task)[0] for task in ends}
    posted = {device_of.pop(message.receive)} if not laid.counts[message.receive] else set()
    devices = sorted({*device_of.values(), *posted})
    number, node = locate(laid.job, message.send)
    shared.offer_transfer(
        len(laid.sizes), devices, lasts_s, channels=shared.contention.appetite.message_sms, device_of=device_of,
        posted=posted, communicator=int(laid.job.graphs[number].group[node]),
    )  # fmt: skip


def _durations(job: Job) -> list[float]:
    """Times of all kernels, and zero or nothing yet for all else."""
    duration = np.concatenate([graph.duration_s for graph in job.graphs]) if job.graphs else np.zeros(0)
    kind = np.concatenate([graph.kind for graph in job.graphs])
    untimed = np.flatnonzero(np.isnan(duration) & (kind == NodeKind.COMPUTE))
    if untimed.size:
        number, node = locate(job, int(untimed[0]))
        raise GraphError(
            f"{name_of(job, number, node)} is a kernel with no time; name the device that it runs on (--device)"
        )
    return list(map(float, duration))


def _dependencies(job: Job) -> tuple[list[list[int]], list[int]]:
    """Return the users of each task, and how many it depends on."""
    users: list[list[int]] = [[] for _ in range(job.offsets[-1])]
    counts: list[int] = []
    for offset, graph in zip(job.offsets, job.graphs, strict=False):
        counts += np.diff(graph.dependency_offsets).tolist()
        owners = np.repeat(np.arange(len(graph)), np.diff(graph.dependency_offsets)).tolist()
        for user, dependency in zip(owners, graph.dependencies.tolist(), strict=True):
            users[offset + dependency].append(offset + user)
    return users, counts


def _offer(job: Job, meeting: Meeting, links: LinkNetwork, index: int) -> None:
    """Tell the network what a meeting sends: all groups that it stands for."""
    name, size_bytes, pieces = asked(job, meeting)
    links.offer(
        index,
        name,
        size_bytes / pieces,
        groups=groups_of(job, meeting),
        cost=cost_of(job, meeting),
        slice_of_more=pieces > 1,
    )


def _streams(job: Job) -> list[int]:
    """One number for each stream of each class.

    A class's sends have a stream of their own, so that they do not hold up its kernels; its puts one for each rank that
    they go to. Receives that meet their send have one each, and wait on it without holding up anything; others wait on
    none.
    """
    width = 2 + max((int(graph.stream.max()) for graph in job.graphs if len(graph)), default=0)
    alone, total = width * len(job.graphs), job.offsets[-1]
    streams: list[int] = []
    for number, (graph, offset) in enumerate(zip(job.graphs, job.offsets, strict=False)):
        own = number * width + graph.stream
        own = np.where(graph.kind == NodeKind.SEND, number * width + width - 1, own)
        puts = (graph.kind == NodeKind.SEND) & (graph.collective != NONE)
        if puts.any():
            _, first, same = np.unique(
                np.stack([graph.group[puts], graph.peer[puts]]), axis=1, return_index=True, return_inverse=True
            )
            own[puts] = alone + total + offset + first[same.reshape(-1)]
        waits = np.where(graph.group == NONE, NONE, alone + offset + np.arange(len(graph)))
        streams += np.where(graph.kind == NodeKind.RECV, waits, own).tolist()
    return streams


def _result(job: Job, tasks: Tasks, times: Times, chosen: list[str], network: str) -> Result:
    duration, occupancy = np.array(tasks.duration_s), np.array(tasks.occupancy_s)
    shared = np.isnan(duration)
    duration[shared] = (times.end_s - times.start_s)[shared]
    occupancy[shared] = (times.released_s - times.start_s)[shared]
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
