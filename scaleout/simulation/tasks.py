"""A folded program to the tasks of the engine: durations, streams, dependencies, and the ports that tasks hold.

Collectives and messages become instances with ports; receives are matched with their sends. What links or shared
devices time has no duration of its own, and is registered with them. Knows no order: the engine says when tasks start.

A put is a message that is part of a collective. Under alpha-beta it costs its share of the whole collective, so that
all puts together are no faster than it.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scaleout.cluster.topology.communication_library import ResourceUse
from scaleout.cluster.topology.peers import check_peer, named_back, peer_of
from scaleout.errors import GraphError, SimulationError
from scaleout.network.alpha_beta.cost import CollectiveCost, one_sided
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, Floats, Ints, NodeKind, NodeRole
from scaleout.program.operations import Kernel
from scaleout.simulation.columns import NOTHING_SHARED, Indices, Sharing, Tasks, narrow, offsets_of
from scaleout.simulation.folded_program import CollectiveInstance, CollectiveInstances, FoldedProgram
from scaleout.simulation.result import Served

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


_Ends = tuple[int, int, int, int, int]
"""What the two ends of a message agree on: the classes of sender and receiver, the family that names them, the tag, and
without a family which of the ranks that the sender names it is for."""


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
    class_of_rank, back = folded.folding.class_of_rank.tolist(), named_back(folded.program)
    for number, graph in enumerate(folded.graphs):
        rank = int(folded.folding.representative[number])
        nodes, ranks_of = np.flatnonzero(graph.kind > NodeKind.COLLECTIVE), dict[tuple[int, int], int]()
        columns = (column[nodes].tolist() for column in (graph.kind, graph.tag, graph.group, graph.peer))
        for node, kind, tag, group, further in zip(nodes.tolist(), *columns, strict=True):
            if (group, further) not in ranks_of:
                ranks_of[group, further] = peer_of(folded.program, rank, graph, node)
                check_peer(folded.program, ranks_of[group, further], folded.name(number, node))
            peer, task = ranks_of[group, further], folded.offsets[number] + node
            index = further if group == NONE else NONE
            if kind == NodeKind.RECV:
                if group == NONE:
                    index = rank if folded.program.peers is None else int(back[rank, index])
                receives[class_of_rank[peer], number, group, tag, index].append(task)
                continue
            sends[number, class_of_rank[peer], group, tag, index].append(task)
            begins.setdefault((number, group, tag), node)
            peers[task] = rank, peer
    messages: list[Message] = []
    puts: list[tuple[tuple[int, ...], Message]] = []
    for key in sorted(sends.keys() | receives.keys()):
        sent, received = sends[key], receives[key]
        if len(sent) != len(received):
            raise _unmatched(folded, sent, received)
        for piece, (send, receive) in enumerate(zip(sent, received, strict=True)):
            number, node = folded.locate(send)
            size_bytes, ends = _size_of(folded, (number, node), folded.locate(receive)), peers[send]
            if folded.graphs[number].collective[node] == NONE:
                cost = folded.message_cost(number, node, size_bytes, ends)
                messages.append(Message(send, receive, size_bytes, ends, cost, rendezvous=key[2] != NONE))
            else:
                cost, along = _share(folded, number, node, ends)
                message = Message(send, receive, size_bytes, ends, cost, rendezvous=True, put=True, along=along)
                puts.append(((begins[number, *key[2:4]], *_turn(folded, message, key[2], piece)), message))
    return messages + [message for _, message in sorted(puts, key=lambda put: put[0])]


def _unmatched(folded: FoldedProgram, sent: list[int], received: list[int]) -> SimulationError:
    lonely = max(sent, received, key=len)[min(len(sent), len(received))]
    number, node = folded.locate(lonely)
    rank, graph = int(folded.folding.representative[number]), folded.graphs[number]
    peer = peer_of(folded.program, rank, graph, node)
    source, destination = (rank, peer) if len(sent) > len(received) else (peer, rank)
    return SimulationError(
        f"{folded.name(number, node)}: rank {source} sends {len(sent)} messages to rank {destination} with tag "
        f"{graph.tag[node]}, which receives {len(received)}; every send needs its receive"
    )


def _turn(folded: FoldedProgram, message: Message, group: int, piece: int) -> tuple[int, ...]:
    """Order of a collective's puts at a port, the same folded and unfolded: by receiver, slice and sender."""
    members = folded.program.groups[group].of(message.ranks[0])
    source, destination = (members.index(rank) for rank in message.ranks)
    return destination, piece, source


def _share(
    folded: FoldedProgram, number: int, node: int, ends: tuple[int, int]
) -> tuple[CollectiveCost, tuple[int, ...]]:
    """Cost of a put: of its collective's bytes, its share of what leaves a rank; and the collective's dimensions."""
    graph, group = folded.graphs[number], int(folded.graphs[number].group[node])
    members = len(folded.program.groups[group].of(ends[0]))
    if ends[0] == ends[1]:
        return CollectiveCost(0.0, 0.0), ()
    family = folded.folding.families[group]
    group_class = int(family.class_of_group[family.group_of_rank[ends[0]]])
    whole = folded.cost_among(family, group_class, COLLECTIVES[graph.collective[node]], _whole_bytes(graph, node))
    share = members / (members - 1) / int(graph.slices[node])
    put = replace(whole, serialization_s=whole.serialization_s * share)
    return one_sided(put, float(graph.duration_s[node])), family.dimensions_of_class[group_class]


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
    folded: FoldedProgram, instances: CollectiveInstances, links: "LinkNetwork | None", use: ResourceUse | None
) -> tuple[Tasks, Sharing, Served]:
    """Lay out what the engine runs, what shares devices (nothing without `use`), and what serves each task.

    What links or devices time has no duration of its own.
    """
    costs, of_instance = _costs(folded, instances, on_links=links is not None)
    if links is not None:
        _register(folded, instances, links, costs, of_instance, paced=use is not None)
    sizes = np.diff(instances.offsets)
    of_task = np.repeat(of_instance, sizes)
    duration_s = _durations(folded)
    occupancy_s = duration_s.copy()
    instance_of, served_by = np.full(len(duration_s), NONE, np.int32), np.zeros(len(duration_s), np.int16)
    number_of = {name: number for number, name in enumerate(dict.fromkeys(["", *(cost.served_by for cost in costs)]))}
    duration_s[instances.tasks] = np.array([cost.lasts_s for cost in costs], float)[of_task]
    occupancy_s[instances.tasks] = np.array([cost.holds_s for cost in costs], float)[of_task]
    served_by[instances.tasks] = np.array([number_of[cost.served_by] for cost in costs], np.int16)[of_task]
    instance_of[instances.tasks] = np.repeat(np.arange(len(sizes)), sizes)
    laid = _Laid(folded, len(sizes), use, duration_s, occupancy_s, *_dependencies(folded), instance_of)
    _add_messages(laid, links)
    sharing = NOTHING_SHARED if use is None else _share_devices(laid, instances, costs, of_instance, use)
    user_offsets, users = _with_receives(laid)
    occupancy_s = duration_s if (duration_s == occupancy_s).all() else occupancy_s  # in memory once
    row_sizes, rows = _rows([cost.ports for cost in costs], of_instance, laid.ports, len(sharing.kernel_instance))
    tasks = Tasks(
        duration_s, occupancy_s, _streams(folded), folded.column("priority"), user_offsets, users, laid.counts,
        instance_of,
        np.concatenate([np.array([cost.size for cost in costs], np.int64)[of_instance], laid.sizes,
                        np.ones(len(sharing.kernel_instance), np.int64)]).astype(np.int64),
        offsets_of(row_sizes), rows.astype(np.int64),
        _rows([cost.port_s for cost in costs], of_instance, laid.port_s, len(sharing.kernel_instance))[1],
        folded.column("issue_s"),
    )  # fmt: skip
    return tasks, sharing, Served(served_by, tuple(number_of))


def _rows(
    kinds: Sequence[Sequence[float]], of_instance: Ints, more: Sequence[Sequence[float]], empty: int
) -> tuple[Ints, Floats]:
    """Return the rows of instances of some kinds, of more, and of some that are empty, flat, and how long each is."""
    sizes = np.array([len(row) for row in kinds], np.int64)[of_instance]
    flat = np.array([value for row in kinds for value in row], np.float64)
    firsts = offsets_of(np.array([len(row) for row in kinds], np.int64))[of_instance]
    at = np.repeat(firsts - offsets_of(sizes)[:-1], sizes) + np.arange(sizes.sum())
    rest = np.array([value for row in more for value in row], np.float64)
    return (
        np.concatenate([sizes, np.array([len(row) for row in more], np.int64), np.zeros(empty, np.int64)]),
        np.concatenate([flat[at], rest]),
    )


class _Cost(NamedTuple):
    """What a collective costs, and what it holds for how long; the same for all of one kind, group and size."""

    lasts_s: float
    holds_s: float
    served_by: str
    size: int
    ports: tuple[int, ...]
    port_s: tuple[float, ...]
    is_sent: bool  # whether links time it
    is_kernel: bool  # whether it is one kernel of the library, which holds its stream throughout


def _costs(folded: FoldedProgram, instances: CollectiveInstances, *, on_links: bool) -> tuple[list[_Cost], Ints]:
    """Cost the kinds of collectives that differ; return them, and which of them each instance is, (M,)."""
    firsts, kinds = folded.kinds_of(instances, "collective", "slices", "stream", "duration_s")
    return [_cost(folded, instances[index], on_links=on_links) for index in firsts.tolist()], kinds


def _cost(folded: FoldedProgram, instance: CollectiveInstance, *, on_links: bool) -> _Cost:
    """Cost of a collective; what links time has no duration of its own."""
    cost = folded.cost_of(instance)
    slices = folded.request_of(instance)[2]
    serialization_s = cost.serialization_s / slices
    lasts_s = cost.latency_s + serialization_s
    # On a stream of its group a collective may release the stream while its last bytes are in flight.
    number, node = folded.locate(instance.tasks[0])
    own = folded.is_one_sided(instance)
    early = slices > 1 or own or (cost.concurrent and folded.graphs[number].stream[node] != 0)
    holds_s = serialization_s if early else lasts_s
    family = folded.folding.families[instance.family]
    members, along = family.members_of_class[instance.group_class], family.dimensions_of_class[instance.group_class]
    recorded = folded.is_recorded(instance)
    if recorded:
        along = ()
    is_sent = on_links and bool(cost.algorithm) and not recorded
    is_kernel = not own and lasts_s == holds_s and lasts_s > 0
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


@dataclass
class _Laid:
    """Tasks as they are laid out (see `Tasks`), and what messages add: instances, users and transfers."""

    folded: FoldedProgram
    num_collectives: int
    resource_use: ResourceUse | None
    duration_s: Floats
    occupancy_s: Floats
    user_offsets: Ints | Indices
    users: Indices
    counts: Indices
    instance_of: Indices
    sizes: list[int] = field(default_factory=list)
    ports: list[tuple[int, ...]] = field(default_factory=list)
    port_s: list[tuple[float, ...]] = field(default_factory=list)
    follows: list[tuple[int, int]] = field(default_factory=list)  # sends and the receives that follow them
    transfers: list[tuple[int, float, int, int]] = field(default_factory=list)
    """Instance, isolated time, communicator and number of devices of messages that share devices."""
    pairs: list[tuple[int, bool]] = field(default_factory=list)
    """The devices of these, one after another, and whether the message is posted there."""
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """Tasks that wait for the other end of one of these transfers, and its pair."""


def _share_devices(
    laid: _Laid, instances: CollectiveInstances, costs: Sequence[_Cost], of_instance: Ints, use: ResourceUse
) -> Sharing:
    """Let shared devices time kernels, whole collectives and messages; the links end those that they time."""
    shared = np.array([cost.is_kernel for cost in costs], bool)[of_instance]
    lasts_s = np.array([np.inf if cost.is_sent else cost.lasts_s for cost in costs], np.float64)[of_instance]
    sizes = np.diff(instances.offsets)
    tasks = instances.tasks[np.repeat(shared, sizes)]
    laid.duration_s[tasks] = laid.occupancy_s[tasks] = np.nan
    sent = [*zip(*laid.transfers, strict=True)] or [()] * 4
    pairs = [*zip(*laid.pairs, strict=True)] or [(), ()]
    waiting = np.array(laid.waiting, np.int64).reshape(-1, 2).T
    counts = [int(np.count_nonzero(shared)), len(laid.transfers)]
    return Sharing(
        *_share_kernels(laid),
        transfer_instance=np.concatenate([np.flatnonzero(shared), sent[0]]).astype(np.int64),
        lasts_s=np.concatenate([lasts_s[shared], sent[1]]),
        channels=np.repeat([use.num_sms, use.message_sms], counts),
        races=np.repeat([True, False], counts),
        communicator=np.concatenate([np.full(counts[0], NONE), sent[2]]).astype(np.int64),
        pair_offsets=offsets_of(np.concatenate([sizes[shared], sent[3]]).astype(np.int64)),
        pair_device=np.concatenate([np.searchsorted(laid.folded.offsets, tasks, side="right") - 1, pairs[0]]).astype(
            np.int64
        ),
        pair_posted=np.concatenate([np.zeros(len(tasks), bool), np.array(pairs[1], bool)]),
        waiting=np.concatenate([tasks, waiting[0]]),
        waiting_pair=np.concatenate([np.arange(len(tasks)), waiting[1] + len(tasks)]),
    )


_Kinds = dict[tuple[int, float], tuple[int, Kernel | None]]
"""Kernels, by identity, and their isolated times, to the number of the two and the kernel."""


def _kinds_of(graph: ExecutionGraph, nodes: Ints, kinds: _Kinds) -> tuple[Ints, Ints]:
    """Add what differs of the kernels of nodes, of which equal ones follow each other; return these and their kinds."""
    calls, times_s = graph.kernel[nodes], graph.duration_s[nodes]
    is_new = np.ones(len(nodes), bool)
    is_new[1:] = (calls[1:] != calls[:-1]) | (times_s[1:] != times_s[:-1])
    entries, numbers = (*graph.kernels, None), []  # `NONE` is the last entry
    for call, duration_s in zip(calls[is_new].tolist(), times_s[is_new].tolist(), strict=True):
        kernel = entries[call]
        numbers.append(kinds.setdefault((id(kernel), duration_s), (len(kinds), kernel))[0])
    kind_of = np.full(len(graph), NONE)
    kind_of[nodes] = np.array(numbers, np.int64)[np.cumsum(is_new) - 1]
    found = np.flatnonzero(kind_of != NONE)
    return found, kind_of[found]


def _share_kernels(laid: _Laid) -> tuple[list[tuple[Kernel | None, float]], Ints, Ints, Ints, Floats]:
    """Make kernels on devices instances of their own; return what differs of them, and a row for each."""
    kinds: _Kinds = {}
    known: dict[int, tuple[Ints, Ints]] = {}
    orders: dict[tuple[int, ...], Ints] = {}
    nodes_of, kinds_of = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for graph in laid.folded.graphs:
        if id(graph) not in known:
            columns = tuple(map(id, (graph.kind, graph.role, graph.kernel)))
            if columns not in orders:
                nodes = np.flatnonzero(
                    (graph.kind == NodeKind.COMPUTE) & ~graph.has_role(NodeRole.INPUT | NodeRole.HOST)
                )
                orders[columns] = nodes[np.lexsort((graph.duration_s[nodes], graph.kernel[nodes]))]
            order = orders[columns]
            known[id(graph)] = _kinds_of(graph, order[graph.duration_s[order] > 0], kinds)
        nodes_of.append(known[id(graph)][0])
        kinds_of.append(known[id(graph)][1])
    sizes = np.array([len(nodes) for nodes in nodes_of[1:]], np.int64)
    tasks = np.concatenate(nodes_of) + np.repeat(np.array(laid.folded.offsets[: len(sizes)], np.int64), sizes)
    instance = laid.num_collectives + len(laid.sizes) + np.arange(len(tasks))
    laid.instance_of[tasks] = instance
    laid.duration_s[tasks] = laid.occupancy_s[tasks] = np.nan
    issue_s = laid.folded.column("issue_s")[tasks]
    named = [(kernel, duration_s) for (_, duration_s), (_, kernel) in kinds.items()]
    return named, instance, np.repeat(np.arange(len(sizes)), sizes), np.concatenate(kinds_of), issue_s


def _add_messages(laid: _Laid, links: "LinkNetwork | None") -> None:
    """Cost messages, and register what links or shared devices time; puts take nothing from kernels."""
    for message in messages_of(laid.folded):
        ends = (message.send, message.receive) if message.rendezvous else (message.send,)
        lasts_s = message.cost.latency_s + message.cost.serialization_s
        holds_s = message.cost.serialization_s
        laid.duration_s[message.receive] = laid.occupancy_s[message.receive] = 0.0
        if not message.rendezvous:
            laid.follows.append((message.send, message.receive))
        on_links = links is not None and lasts_s > 0
        is_shared = laid.resource_use is not None and message.rendezvous and not message.put and lasts_s > 0
        instance = laid.num_collectives + len(laid.sizes)
        if links is not None and on_links:
            source, destination = message.ranks
            links.register_message(instance, message.size_bytes, source=source, destination=destination)
            if is_shared:
                links.pace([instance])
        if is_shared:
            _share_message(laid, message, instance, np.inf if on_links else lasts_s)
        if on_links or is_shared:
            lasts_s = holds_s = np.nan
        for task in ends:
            laid.duration_s[task], laid.occupancy_s[task] = lasts_s, holds_s
            laid.instance_of[task] = instance if message.rendezvous or on_links else NONE
        if message.rendezvous or on_links:
            laid.sizes.append(len(ends))
            of, to = ([laid.folded.locate(task)[0]] for task in (message.send, message.receive))
            along = () if on_links else message.along
            laid.ports.append((*_ports(laid.folded, of, along, _OUT), *_ports(laid.folded, to, along, _IN)))
            laid.port_s.append(2 * _held_s(message.cost, along, message.cost.serialization_s))


def _share_message(laid: _Laid, message: Message, instance: int, lasts_s: float) -> None:
    """Let a message hold channels at both ends; a receive that follows nothing was posted before it was needed."""
    (number, node), (other, _) = laid.folded.locate(message.send), laid.folded.locate(message.receive)
    posted = not laid.counts[message.receive]
    devices = {device: posted and device == other for device in sorted({number, other})}
    ends = [(message.send, number)] + [(message.receive, other)] * (not posted)
    laid.waiting += [(task, len(laid.pairs) + list(devices).index(device)) for task, device in ends]
    laid.pairs += devices.items()
    laid.transfers.append((instance, lasts_s, int(laid.folded.graphs[number].group[node]), len(devices)))


def _with_receives(laid: _Laid) -> tuple[Ints | Indices, Indices]:
    """Add the receives that follow sends to the users of these, and to the counts."""
    if not laid.follows:
        return laid.user_offsets, laid.users
    sends, receives = np.array(sorted(laid.follows), np.int64).T
    np.add.at(laid.counts, receives, 1)
    users = np.insert(laid.users, laid.user_offsets[sends + 1], receives)
    return narrow(laid.user_offsets + offsets_of(np.bincount(sends, minlength=len(laid.counts)))), users


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


def _dependencies(folded: FoldedProgram) -> tuple[Ints | Indices, Indices, Indices]:
    """Users of each task, as offsets and tasks, and how many tasks it depends on."""
    known: dict[tuple[int, int], tuple[slice, int]] = {}  # to the tasks of a graph, and its first user
    numbers, counts = np.zeros(folded.offsets[-1], np.int32), np.zeros(folded.offsets[-1], np.int32)
    users, end = np.zeros(sum(len(graph.dependencies) for graph in folded.graphs), np.int32), 0
    for offset, graph in zip(folded.offsets, folded.graphs, strict=False):
        here, begin, end = slice(offset, offset + len(graph)), end, end + len(graph.dependencies)
        rows = (id(graph.dependency_offsets), id(graph.dependencies))
        if rows in known:
            first, at = known[rows]
            numbers[here], counts[here] = numbers[first], counts[first]
            users[begin:end] = users[at : at + end - begin] + (offset - first.start)
            continue
        known[rows] = here, begin
        counts[here] = np.diff(graph.dependency_offsets)
        numbers[here] = np.bincount(graph.dependencies, minlength=len(graph))
        waiting = np.repeat(np.arange(offset, offset + len(graph)), counts[here])
        users[begin:end] = waiting[np.argsort(graph.dependencies, kind="stable")]
    return narrow(offsets_of(numbers)), users, counts


def _register(
    folded: FoldedProgram, instances: CollectiveInstances, links: "LinkNetwork", costs: Sequence[_Cost],
    of_instance: Ints, *, paced: bool,
) -> None:  # fmt: skip
    """Register what collectives send with the links, for all groups that they stand for."""
    order, ends = np.argsort(of_instance, kind="stable"), offsets_of(np.bincount(of_instance, minlength=len(costs)))
    for cost, begin, end in zip(costs, ends, ends[1:], strict=False):
        if not cost.is_sent:
            continue
        indices = order[begin:end].tolist()
        first = instances[indices[0]]
        kind, size_bytes, slices = folded.request_of(first)
        each, whole = folded.groups_of(first), folded.cost_of(first)
        links.register(
            indices, kind, size_bytes / slices, family=first.family, groups=each, cost=whole, sliced=slices > 1
        )
        if paced and cost.is_kernel:
            links.pace(indices)


def _streams(folded: FoldedProgram) -> Indices:
    """One number for each stream of each class.

    Sends have a stream of their own, so that they do not hold up kernels, and puts one for each receiver. Receives of
    a rendezvous have one each; other receives have none.
    """
    width = 2 + max((int(graph.stream.max()) for graph in folded.graphs if len(graph)), default=0)
    used, total = width * len(folded.graphs), folded.offsets[-1]
    streams = np.empty(total, np.int32)
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
        streams[offset : offset + len(graph)] = np.where(graph.kind == NodeKind.RECV, waits, own)
    return streams
