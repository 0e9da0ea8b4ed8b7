"""A folded program to the tasks of the engine: durations, streams, dependencies, and the ports that tasks hold.

Collectives and messages become instances with ports; receives are matched with their sends. What links or shared
devices time has no duration of its own, and is registered with them. Knows no order: the engine says when tasks start.

A put is a message that is part of a collective. Under alpha-beta it costs its share of the whole collective, so that
all puts together are no faster than it.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scaleout.cluster.topology.peers import check_peer, peer_of
from scaleout.errors import GraphError, SimulationError
from scaleout.network.alpha_beta.cost import CollectiveCost, send_cost
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, Floats, Ints, NodeKind, NodeRole, users_in
from scaleout.simulation.engine import Tasks
from scaleout.simulation.folded_program import CollectiveInstance, CollectiveInstances, FoldedProgram
from scaleout.simulation.shared_devices import Running, SharedDevices

if TYPE_CHECKING:
    from scaleout.network.flow.instances import LinkNetwork


@dataclass(frozen=True)
class Message:
    """A message between two classes of ranks: the tasks at its ends, what it costs, and two ranks that stand for all.

    Along a group both ends must have arrived before it starts (`rendezvous`), as in NCCL. A message that names ranks is
    sent at once, and its receive is done when it arrives. A put holds the ports of both ends `along` dimensions; its
    receive, a buffer that is registered beforehand, waits for nothing.
    """

    send: int
    receive: int
    size_bytes: float
    ranks: tuple[int, int]
    cost: CollectiveCost
    rendezvous: bool
    put: bool = False
    along: tuple[int, ...] = ()


_Ends = tuple[int, int, int, int]
"""What the two ends of a message agree on: the classes of sender and receiver, the family that names them, the tag."""


def messages_of(folded: FoldedProgram) -> list[Message]:
    """Match each receive with the send of the same tag, in order, and cost the message.

    Raises
    ------
    GraphError
        If a message names a rank that the program does not have, or a group that its rank is not in.
    SimulationError
        If a message lacks an end, or its ends do not agree on its size.
    """
    sends: dict[_Ends, list[int]] = defaultdict(list)
    receives: dict[_Ends, list[int]] = defaultdict(list)
    peers: dict[int, tuple[int, int]] = {}
    begins: dict[tuple[int, int, int], int] = {}  # class, group and tag to the first node that sends
    class_of_rank = folded.folding.class_of_rank.tolist()
    for number, graph in enumerate(folded.graphs):
        rank = int(folded.folding.representative[number])
        for node in np.flatnonzero(graph.kind > NodeKind.COLLECTIVE).tolist():
            peer = peer_of(folded.program, rank, graph, node)
            check_peer(folded.program, peer, folded.name(number, node))
            tag, task, group = int(graph.tag[node]), folded.offsets[number] + node, int(graph.group[node])
            if graph.kind[node] == NodeKind.RECV:
                receives[class_of_rank[peer], number, group, tag].append(task)
                continue
            sends[number, class_of_rank[peer], group, tag].append(task)
            begins.setdefault((number, group, tag), node)
            peers[task] = rank, peer
    messages: list[Message] = []
    puts: list[tuple[tuple[int, ...], Message]] = []
    for key in sorted(sends.keys() | receives.keys()):
        sent, received = sends[key], receives[key]
        if len(sent) != len(received):
            lonely = max(sent, received, key=len)[min(len(sent), len(received))]
            source, destination = (int(folded.folding.representative[number]) for number in key[:2])
            raise SimulationError(
                f"{folded.name(*folded.locate(lonely))}: rank {source} sends {len(sent)} messages to rank "
                f"{destination} with tag {key[3]}, which receives {len(received)}; every send needs its receive"
            )
        for piece, (send, receive) in enumerate(zip(sent, received, strict=True)):
            number, node = folded.locate(send)
            size_bytes, ends = _size_of(folded, (number, node), folded.locate(receive)), peers[send]
            if folded.graphs[number].collective[node] == NONE:
                cost = send_cost(size_bytes, folded.topology, source=ends[0], destination=ends[1])
                messages.append(Message(send, receive, size_bytes, ends, cost, rendezvous=key[2] != NONE))
            else:
                cost, along = _share(folded, number, node, ends)
                message = Message(send, receive, size_bytes, ends, cost, rendezvous=True, put=True, along=along)
                puts.append(((begins[number, *key[2:]], *_turn(folded, message, key[2], piece)), message))
    return messages + [message for _, message in sorted(puts, key=lambda put: put[0])]


def _turn(folded: FoldedProgram, message: Message, group: int, piece: int) -> tuple[int, ...]:
    """Order of a collective's puts at a port, the same folded and unfolded: by receiver, slice and sender."""
    members = folded.program.groups[group].of(message.ranks[0])
    source, destination = (members.index(rank) for rank in message.ranks)
    return destination, piece, source


def _share(
    folded: FoldedProgram, number: int, node: int, ends: tuple[int, int]
) -> tuple[CollectiveCost, tuple[int, ...]]:
    """Cost of a put: of its collective's time, its share of what leaves a rank; and the collective's dimensions."""
    graph, group = folded.graphs[number], int(folded.graphs[number].group[node])
    members = len(folded.program.groups[group].of(ends[0]))
    if ends[0] == ends[1]:
        return CollectiveCost(0.0, 0.0), ()
    family = folded.folding.families[group]
    group_class = int(family.class_of_group[family.group_of_rank[ends[0]]])
    whole = folded.cost_among(family, group_class, COLLECTIVES[graph.collective[node]], _whole_bytes(graph, node))
    share = members / (members - 1) / int(graph.slices[node])
    return replace(whole, serialization_s=whole.serialization_s * share), family.dimensions_of_class[group_class]


def _whole_bytes(graph: ExecutionGraph, node: int) -> float:
    """Bytes of the collective that a put is part of: of all puts with its tag."""
    alike = (graph.kind == NodeKind.SEND) & (graph.group == graph.group[node]) & (graph.tag == graph.tag[node])
    return float(graph.bytes[alike].sum())


def _size_of(folded: FoldedProgram, send: tuple[int, int], receive: tuple[int, int]) -> float:
    """Bytes of a message, on which both ends must agree."""
    sent, received = (int(folded.graphs[number].bytes[node]) for number, node in (send, receive))
    if sent != received:
        raise SimulationError(
            f"{folded.name(*send)} sends {sent} B and {folded.name(*receive)} receives {received} B of the "
            f"same message; give both ends the same size"
        )
    return float(sent)


def tasks_of(
    folded: FoldedProgram, instances: CollectiveInstances, links: "LinkNetwork | None", shared: SharedDevices | None
) -> tuple[Tasks, list[str]]:
    """Lay out what the engine runs, and the algorithm of each task; what timers time has no duration of its own."""
    costs, of_instance = _costs(folded, instances, on_links=links is not None)
    sizes = np.diff(instances.offsets)
    lasts_s = np.array([cost.lasts_s for cost in costs], np.float64)
    holds_s = np.array([cost.holds_s for cost in costs], np.float64)
    served_by = np.array([cost.served_by for cost in costs], object)
    duration_s = _durations(folded)
    occupancy_s = duration_s.copy()
    instance_of, algorithms = np.full(len(duration_s), NONE), np.full(len(duration_s), "", object)
    of_task = np.repeat(of_instance, sizes)
    duration_s[instances.tasks], occupancy_s[instances.tasks] = lasts_s[of_task], holds_s[of_task]
    instance_of[instances.tasks] = np.repeat(np.arange(len(sizes)), sizes)
    algorithms[instances.tasks] = served_by[of_task]
    cost_of_each = [costs[kind] for kind in of_instance.tolist()]
    if links is not None:
        for index, cost in enumerate(cost_of_each):
            if cost.is_sent:
                _register(folded, instances[index], links, index)
                if shared is not None and cost.is_kernel:
                    links.pace(index)
    users, counts = _dependencies(folded)
    laid = _Laid(
        folded, duration_s.tolist(), occupancy_s.tolist(), users, counts, instance_of.tolist(),
        [cost.size for cost in cost_of_each], [cost.ports for cost in cost_of_each],
        [cost.port_s for cost in cost_of_each],
    )  # fmt: skip
    _add_messages(laid, links, shared)
    if shared is not None:
        _share_devices(laid, instances, shared, cost_of_each)
    issue_s, priority = folded.column("issue_s"), folded.column("priority")
    tasks = Tasks(
        laid.duration_s, laid.occupancy_s, _streams(folded), priority.tolist(), users, counts, laid.instance_of,
        laid.sizes, laid.ports, issue_s.tolist() if issue_s.any() else (), laid.port_s,
    )  # fmt: skip
    return tasks, algorithms.tolist()


class _Cost(NamedTuple):
    """What a collective costs, and what it holds for how long; the same for all of one kind, group and size."""

    lasts_s: float
    holds_s: float
    served_by: str
    size: int
    ports: tuple[int, ...]
    port_s: tuple[float, ...]
    is_sent: bool
    """Whether links time it."""
    is_kernel: bool
    """Whether it is one kernel of the library, which holds its stream throughout."""


def _costs(folded: FoldedProgram, instances: CollectiveInstances, *, on_links: bool) -> tuple[list[_Cost], Ints]:
    """Cost the kinds of collectives that differ; return them, and which of them each instance is, (M,)."""
    columns = [folded.column(name)[instances.firsts] for name in ("collective", "bytes", "slices", "stream")]
    keys = np.stack([instances.family, instances.group_class, *columns])
    _, firsts, kinds = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    return [_cost(folded, instances[index], on_links=on_links) for index in firsts.tolist()], kinds.reshape(-1)


def _cost(folded: FoldedProgram, instance: CollectiveInstance, *, on_links: bool) -> _Cost:
    """Cost of a collective; what links time has no duration of its own."""
    cost = folded.cost_of(instance)
    slices = folded.request_of(instance)[2]
    serialization_s = cost.serialization_s / slices
    lasts_s = cost.latency_s + serialization_s
    # On a stream of its group a collective may release the stream while its last bytes are in flight.
    number, node = folded.locate(instance.tasks[0])
    early = slices > 1 or (cost.concurrent and folded.graphs[number].stream[node] != 0)
    holds_s = serialization_s if early else lasts_s
    family = folded.folding.families[instance.family]
    members, along = family.members_of_class[instance.group_class], family.dimensions_of_class[instance.group_class]
    is_sent, is_kernel = on_links and bool(cost.algorithm), lasts_s == holds_s and lasts_s > 0
    if is_sent:
        lasts_s = holds_s = np.nan
        along = ()
    ports = (*_ports(folded, members, along, _OUT), *_ports(folded, members, along, _IN))
    port_s = 2 * len(members) * _held_s(cost, along, serialization_s)
    return _Cost(lasts_s, holds_s, cost.served_by, len(members), ports, port_s, is_sent, is_kernel)


_OUT, _IN = 0, 1


def _ports(folded: FoldedProgram, classes: Sequence[int], along: Sequence[int], way: int) -> tuple[int, ...]:
    """Ports of classes of ranks along dimensions, out or in; collectives hold both, puts one at each end."""
    width = len(folded.topology.dimensions)
    return tuple(2 * (number * width + dimension) + way for number in classes for dimension in along)


def _held_s(cost: CollectiveCost, along: Sequence[int], serialization_s: float) -> tuple[float, ...]:
    """For how long bytes need each dimension, shape (D,); infinite for as long as the collective takes."""
    shares = cost.shares[: len(along)] or (1.0,) * len(along)
    return tuple(np.inf if share == 1 else share * serialization_s for share in shares)


class _Laid(NamedTuple):
    """Tasks as they are laid out; see `Tasks`."""

    folded: FoldedProgram
    duration_s: list[float]
    occupancy_s: list[float]
    users: list[tuple[int, ...]]
    counts: list[int]
    instance_of: list[int]
    sizes: list[int]
    ports: list[tuple[int, ...]]
    port_s: list[tuple[float, ...]]


def _share_devices(
    laid: _Laid, instances: CollectiveInstances, shared: SharedDevices, cost_of_each: Sequence[_Cost]
) -> None:
    """Let shared devices time kernels and whole collectives; the links end those that they time."""
    folded = laid.folded
    for index, (instance, cost) in enumerate(zip(instances, cost_of_each, strict=True)):
        if cost.is_kernel:
            devices = folded.folding.families[instance.family].members_of_class[instance.group_class]
            lasts_s = np.inf if cost.is_sent else cost.lasts_s
            entry = Running(devices, lasts_s, channels=shared.contention.resource_use.num_sms, races=True)
            shared.register_transfer(index, entry, {task: folded.locate(task)[0] for task in instance.tasks})
            for task in instance.tasks:
                laid.duration_s[task] = laid.occupancy_s[task] = np.nan
    for number, (graph, offset) in enumerate(zip(folded.graphs, folded.offsets, strict=False)):
        kernels = (*graph.kernels, None)  # `NONE` is the last entry
        on_device = ~graph.has_role(NodeRole.INPUT)
        nodes = np.flatnonzero((graph.kind == NodeKind.COMPUTE) & (graph.duration_s > 0) & on_device)
        columns = (nodes.tolist(), graph.kernel[nodes].tolist(), graph.issue_s[nodes].tolist())
        first = len(laid.sizes)
        for index, (node, kernel, issue_s) in enumerate(zip(*columns, strict=True), first):
            task = offset + node
            shared.register_kernel(index, number, kernels[kernel], laid.duration_s[task], issue_s=issue_s)
            laid.instance_of[task] = index
            laid.duration_s[task] = laid.occupancy_s[task] = np.nan
        laid.sizes.extend([1] * len(nodes))
        laid.ports.extend([()] * len(nodes))
        laid.port_s.extend([()] * len(nodes))


def _add_messages(laid: _Laid, links: "LinkNetwork | None", shared: SharedDevices | None) -> None:
    """Cost messages, and register what links or shared devices time; puts take nothing from kernels."""
    for message in messages_of(laid.folded):
        ends = (message.send, message.receive) if message.rendezvous else (message.send,)
        lasts_s = message.cost.latency_s + message.cost.serialization_s
        holds_s = message.cost.serialization_s
        laid.duration_s[message.receive] = laid.occupancy_s[message.receive] = 0.0
        if not message.rendezvous:
            laid.users[message.send] += (message.receive,)
            laid.counts[message.receive] += 1
        on_links = links is not None and lasts_s > 0
        is_shared = shared is not None and message.rendezvous and not message.put and lasts_s > 0
        if links is not None and on_links:
            source, destination = message.ranks
            links.register_message(len(laid.sizes), message.size_bytes, source=source, destination=destination)
            if is_shared:
                links.pace(len(laid.sizes))
        if shared is not None and is_shared:
            _share_message(laid, message, ends, np.inf if on_links else lasts_s, shared)
        if on_links or is_shared:
            lasts_s = holds_s = np.nan
        for task in ends:
            laid.duration_s[task], laid.occupancy_s[task] = lasts_s, holds_s
            laid.instance_of[task] = len(laid.sizes) if message.rendezvous or on_links else NONE
        if message.rendezvous or on_links:
            laid.sizes.append(len(ends))
            of, to = ([laid.folded.locate(task)[0]] for task in (message.send, message.receive))
            along = () if on_links else message.along
            laid.ports.append((*_ports(laid.folded, of, along, _OUT), *_ports(laid.folded, to, along, _IN)))
            laid.port_s.append(2 * _held_s(message.cost, along, message.cost.serialization_s))


def _share_message(laid: _Laid, message: Message, ends: Sequence[int], lasts_s: float, shared: SharedDevices) -> None:
    """Let a message hold channels at both ends; a receive that follows nothing was posted before it was needed."""
    device_of = {task: laid.folded.locate(task)[0] for task in ends}
    posted = {device_of.pop(message.receive)} if not laid.counts[message.receive] else set()
    number, node = laid.folded.locate(message.send)
    entry = Running(
        tuple(sorted({*device_of.values(), *posted})), lasts_s, channels=shared.contention.resource_use.message_sms,
        posted=frozenset(posted), communicator=int(laid.folded.graphs[number].group[node]),
    )  # fmt: skip
    shared.register_transfer(len(laid.sizes), entry, device_of)


def _durations(folded: FoldedProgram) -> Floats:
    """Times of all kernels, and zero or nothing yet for all else."""
    duration_s: Floats = folded.column("duration_s")
    untimed = np.flatnonzero(np.isnan(duration_s) & (folded.column("kind") == NodeKind.COMPUTE))
    if untimed.size:
        number, node = folded.locate(int(untimed[0]))
        raise GraphError(
            f"{folded.name(number, node)} is a kernel with no time; name the device that it runs on (--device)"
        )
    return duration_s


def _dependencies(folded: FoldedProgram) -> tuple[list[tuple[int, ...]], list[int]]:
    """Users of each task, and how many tasks it depends on."""
    users: list[tuple[int, ...]] = []
    counts: list[int] = []
    for offset, graph in zip(folded.offsets, folded.graphs, strict=False):
        counts += np.diff(graph.dependency_offsets).tolist()
        users += users_in(graph.dependency_offsets, graph.dependencies, first=offset)
    return users, counts


def _register(folded: FoldedProgram, instance: CollectiveInstance, links: "LinkNetwork", index: int) -> None:
    """Register what an instance sends with the links: all groups that it stands for."""
    kind, size_bytes, slices = folded.request_of(instance)
    groups, cost = folded.groups_of(instance), folded.cost_of(instance)
    links.register(index, kind, size_bytes / slices, groups=groups, cost=cost, sliced=slices > 1)


def _streams(folded: FoldedProgram) -> list[int]:
    """One number for each stream of each class.

    Sends have a stream of their own, so that they do not hold up kernels, and puts one for each receiver. Receives of
    a rendezvous have one each; other receives have none.
    """
    width = 2 + max((int(graph.stream.max()) for graph in folded.graphs if len(graph)), default=0)
    used, total = width * len(folded.graphs), folded.offsets[-1]
    streams: list[int] = []
    for number, (graph, offset) in enumerate(zip(folded.graphs, folded.offsets, strict=False)):
        own = number * width + graph.stream
        own = np.where(graph.kind == NodeKind.SEND, number * width + width - 1, own)
        puts = (graph.kind == NodeKind.SEND) & (graph.collective != NONE)
        if puts.any():
            _, first, same = np.unique(
                np.stack([graph.group[puts], graph.peer[puts]]), axis=1, return_index=True, return_inverse=True
            )
            own[puts] = used + total + offset + first[same.reshape(-1)]
        waits = np.where(graph.group == NONE, NONE, used + offset + np.arange(len(graph)))
        streams += np.where(graph.kind == NodeKind.RECV, waits, own).tolist()
    return streams
