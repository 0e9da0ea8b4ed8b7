"""A folded program to the tasks of the engine: durations, streams, dependencies, and the ports that tasks hold.

Collectives and messages become instances with ports. What links or shared devices time has no duration of its own, and
is registered with them. Knows no order: the engine says when tasks start.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scaleout.cluster.topology.communication_library import ResourceUse
from scaleout.errors import GraphError
from scaleout.network.alpha_beta.cost import CollectiveCost
from scaleout.program.calls import columns_of
from scaleout.program.graph import NONE, Bools, ExecutionGraph, Floats, Ints, NodeKind, NodeRole, found_once
from scaleout.program.operations import Kernel
from scaleout.simulation.columns import NOTHING_SHARED, Indices, Sharing, Tasks, distinct, narrow, offsets_of
from scaleout.simulation.folded_program import CollectiveInstance, CollectiveInstances, FoldedProgram
from scaleout.simulation.messages import Messages, messages_of
from scaleout.simulation.result import Served

if TYPE_CHECKING:
    from scaleout.network.flow.instances import LinkNetwork


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
    messages = messages_of(folded)
    added = _add_messages(laid, messages, links)
    sharing = NOTHING_SHARED if use is None else _share_devices(laid, added, instances, (costs, of_instance), use)
    user_offsets, users = _with_receives(laid, messages)
    if links is None and np.array_equal(duration_s, occupancy_s, equal_nan=True):
        occupancy_s = duration_s  # in memory once; links may free streams before they end what they carry
    row_of = np.concatenate([of_instance, added.row + len(costs)])  # kernels hold no ports
    row_sizes, ports = _rows([*(cost.ports for cost in costs), *added.ports], row_of)
    num_kernels = len(sharing.kernel_instance)
    tasks = Tasks(
        duration_s, occupancy_s, _streams(folded), folded.column("priority"), user_offsets, users, laid.counts,
        instance_of,
        np.concatenate([np.array([cost.size for cost in costs], np.int64)[of_instance], added.sizes,
                        np.ones(num_kernels, np.int64)]).astype(np.int64),
        np.pad(offsets_of(row_sizes), (0, num_kernels), "edge"), ports.astype(np.int64),
        _rows([*(cost.port_s for cost in costs), *added.port_s], row_of)[1],
        folded.column("issue_s"),
    )  # fmt: skip
    return tasks, sharing, Served(served_by, tuple(number_of))


def _rows(kinds: Sequence[Sequence[float]], row_of: Ints) -> tuple[Ints, Floats]:
    """Return how long the row of each instance is, (M,), and all rows, one behind another."""
    lengths = np.array([len(row) for row in kinds], np.int64)
    sizes = lengths[row_of]
    flat = np.array([value for row in kinds for value in row], np.float64)
    at = np.repeat(offsets_of(lengths)[row_of] - offsets_of(sizes)[:-1], sizes) + np.arange(sizes.sum())
    return sizes, flat[at]


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


@dataclass(frozen=True, eq=False)
class _Laid:
    """Tasks as they are laid out, see `Tasks`."""

    folded: FoldedProgram
    num_collectives: int
    resource_use: ResourceUse | None
    duration_s: Floats
    occupancy_s: Floats
    user_offsets: Ints | Indices
    users: Indices
    counts: Indices
    instance_of: Indices


@dataclass(frozen=True, eq=False)
class _Added:
    """What messages add: the members of their instances, the rows of ports that these hold, and shared transfers."""

    sizes: Ints  # (A,)
    row: Ints  # (A,), of `ports`; the first is empty
    ports: list[tuple[int, ...]]
    port_s: list[tuple[float, ...]]
    transfer_instance: Ints  # (T,), these and the following as in `Sharing`
    lasts_s: Floats  # (T,)
    communicator: Ints  # (T,)
    num_devices: Ints  # (T,)
    pair_device: Ints  # (P,)
    pair_posted: Bools  # (P,)
    waiting: Ints  # (W,)
    waiting_pair: Ints  # (W,)


def _share_devices(
    laid: _Laid, added: _Added, instances: CollectiveInstances, kinds: tuple[Sequence[_Cost], Ints], use: ResourceUse
) -> Sharing:
    """Let shared devices time kernels, whole collectives and messages; the links end those that they time."""
    costs, of_instance = kinds
    shared = np.array([cost.is_kernel for cost in costs], bool)[of_instance]
    lasts_s = np.array([np.inf if cost.is_sent else cost.lasts_s for cost in costs], np.float64)[of_instance]
    sizes = np.diff(instances.offsets)
    tasks = instances.tasks[np.repeat(shared, sizes)]
    laid.duration_s[tasks] = laid.occupancy_s[tasks] = np.nan
    counts = [int(np.count_nonzero(shared)), len(added.lasts_s)]
    return Sharing(
        *_share_kernels(laid, laid.num_collectives + len(added.sizes)),
        transfer_instance=np.concatenate([np.flatnonzero(shared), added.transfer_instance]),
        lasts_s=np.concatenate([lasts_s[shared], added.lasts_s]),
        channels=np.repeat([use.num_sms, use.message_sms], counts),
        races=np.repeat([True, False], counts),
        communicator=np.concatenate([np.full(counts[0], NONE), added.communicator]).astype(np.int64),
        pair_offsets=offsets_of(np.concatenate([sizes[shared], added.num_devices]).astype(np.int64)),
        pair_device=np.concatenate(
            [np.searchsorted(laid.folded.offsets, tasks, side="right") - 1, added.pair_device]
        ).astype(np.int64),
        pair_posted=np.concatenate([np.zeros(len(tasks), bool), added.pair_posted]),
        waiting=np.concatenate([tasks, added.waiting]),
        waiting_pair=np.concatenate([np.arange(len(tasks)), added.waiting_pair + len(tasks)]),
    )


_Keys = dict[tuple[int, int, int], tuple[int, Kernel | None]]
"""Kernels, by identity but for their counts, to the number of each and the kernel."""


def _numbers_of(graph: ExecutionGraph, keys: _Keys) -> Ints:
    """Add the kernels of a graph that differ; return the number of each, and behind them that of what is none."""
    rows = columns_of(graph.kernels)
    identity = [*zip([id(rows.kinds[kind]) for kind in rows.kind.tolist()], *rows.rows()[1:], strict=True), (0, 0, 0)]
    for call, key in enumerate(identity):
        if key not in keys:
            keys[key] = len(keys), graph.kernels[call] if call < len(rows) else None
    return np.array([keys[key][0] for key in identity], np.int64)


def _kernels_by_call(graph: ExecutionGraph) -> Ints:
    """Return the kernels on the device, equal ones one after another; so they are with other times as well."""
    nodes = np.flatnonzero((graph.kind == NodeKind.COMPUTE) & ~graph.has_role(NodeRole.INPUT | NodeRole.HOST))
    return nodes[np.lexsort((graph.duration_s[nodes], graph.kernel[nodes]))]


def _share_kernels(laid: _Laid, first: int) -> tuple[list[tuple[Kernel | None, float]], Ints, Ints, Ints, Floats]:
    """Make kernels on devices instances of their own, numbered from `first`; return what differs, and a row of each."""
    keys: _Keys = {}
    graphs, offsets = laid.folded.graphs, np.array(laid.folded.offsets, np.int64)
    numbers_of = found_once(graphs, ("kernels",), lambda graph: _numbers_of(graph, keys))
    orders = found_once(graphs, ("kind", "role", "kernel"), _kernels_by_call)
    sizes = np.array([len(order) for order in orders], np.int64)
    tasks = np.concatenate([np.zeros(0, np.int64), *orders]) + np.repeat(offsets[:-1], sizes)
    calls = zip(graphs, orders, numbers_of, strict=True)
    number = np.concatenate([np.zeros(0, np.int64), *(its[graph.kernel[order]] for graph, order, its in calls)])
    takes = laid.duration_s[tasks] > 0
    tasks, number = tasks[takes], number[takes]
    times_s = laid.duration_s[tasks]
    begins = np.ones(len(tasks), bool)
    begins[1:] = (number[1:] != number[:-1]) | (times_s[1:] != times_s[:-1])
    firsts, kinds = distinct(number[begins], times_s[begins])
    kind_of = np.full(offsets[-1], NONE)
    kind_of[tasks] = kinds[np.cumsum(begins) - 1]
    kernels = [kernel for _, kernel in keys.values()]
    columns = (column[begins][firsts].tolist() for column in (number, times_s))
    named = [(kernels[each], isolated_s) for each, isolated_s in zip(*columns, strict=True)]
    tasks = np.flatnonzero(kind_of != NONE)
    instance = first + np.arange(len(tasks))
    laid.instance_of[tasks] = instance
    laid.duration_s[tasks] = laid.occupancy_s[tasks] = np.nan
    device = np.repeat(np.arange(len(graphs)), np.diff(np.searchsorted(tasks, offsets)))
    return named, instance, device, kind_of[tasks], laid.folded.column("issue_s")[tasks]


def _add_messages(laid: _Laid, sent: Messages, links: "LinkNetwork | None") -> _Added:
    """Time messages, and register what links or shared devices time; puts take nothing from kernels."""
    rendezvous, takes = sent.rendezvous, sent.lasts_s > 0
    on_links = takes & (links is not None)
    is_shared = takes & rendezvous & ~sent.is_put & (laid.resource_use is not None)
    has_instance = rendezvous | on_links
    instance = np.where(has_instance, laid.num_collectives + np.cumsum(has_instance) - 1, NONE)
    if links is not None:
        for at in np.flatnonzero(on_links).tolist():
            source, destination = int(sent.source[at]), int(sent.destination[at])
            links.register_message(
                int(instance[at]), float(sent.size_bytes[at]), source=source, destination=destination
            )
        links.pace(instance[on_links & is_shared].tolist())
    laid.duration_s[sent.receive] = laid.occupancy_s[sent.receive] = 0.0
    lasts_s, holds_s = (np.where(on_links | is_shared, np.nan, each) for each in (sent.lasts_s, sent.holds_s))
    for tasks, which in ((sent.send, slice(None)), (sent.receive, rendezvous)):
        laid.duration_s[tasks[which]], laid.occupancy_s[tasks[which]] = lasts_s[which], holds_s[which]
        laid.instance_of[tasks[which]] = instance[which]
    ports, port_s = list[tuple[int, ...]]([()]), list[tuple[float, ...]]([()])
    for at, put in enumerate(sent.puts, len(sent) - len(sent.puts)):
        along = () if on_links[at] else put.along
        ends = (int(sent.sender[at]),), (int(sent.receiver[at]),)
        ports.append((*_ports(laid.folded, ends[0], along, _OUT), *_ports(laid.folded, ends[1], along, _IN)))
        port_s.append(2 * _held_s(put.cost, along, put.cost.serialization_s))
    row = np.maximum(np.arange(1 - len(sent), 1) + len(sent.puts), 0)
    return _Added(
        (1 + rendezvous)[has_instance], row[has_instance], ports, port_s,
        instance[is_shared], np.where(on_links, np.inf, sent.lasts_s)[is_shared], sent.group[is_shared],
        *_pairs_of(laid, sent, is_shared),
    )  # fmt: skip


def _pairs_of(laid: _Laid, sent: Messages, which: Bools) -> tuple[Ints, Ints, Bools, Ints, Ints]:
    """Let messages hold channels at both ends; a receive that follows nothing was posted before it was needed.

    Return the devices of each message, these one after another, whether it is posted there, the tasks that wait for the
    other end, and for which device.
    """
    ends = np.stack([sent.sender[which], sent.receiver[which]], axis=1)
    tasks = np.stack([sent.send[which], sent.receive[which]], axis=1)
    posted = laid.counts[tasks[:, 1]] == 0
    is_own = np.stack([np.ones(len(ends), bool), ends[:, 0] != ends[:, 1]], axis=1)  # one device may be both ends
    devices = np.sort(ends, axis=1)
    num_devices = is_own.sum(axis=1)
    pair = offsets_of(num_devices)[:-1, None] + (ends > devices[:, :1])
    waits = np.stack([np.ones(len(ends), bool), ~posted], axis=1)
    is_posted = posted[:, None] & (devices == ends[:, 1:])
    return num_devices, devices[is_own], is_posted[is_own], tasks[waits], pair[waits]


def _with_receives(laid: _Laid, messages: Messages) -> tuple[Ints | Indices, Indices]:
    """Add the receives that follow sends to the users of these, and to the counts."""
    follows = ~messages.rendezvous
    if not follows.any():
        return laid.user_offsets, laid.users
    order = np.argsort(messages.send[follows])
    sends, receives = messages.send[follows][order], messages.receive[follows][order]
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
    width = 2 + max(found_once(folded.graphs, ("stream",), lambda graph: int(graph.stream.max(initial=0))), default=0)
    used, total = width * len(folded.graphs), folded.offsets[-1]

    def within(graph: ExecutionGraph) -> tuple[Indices, Ints, Ints]:
        """Stream of each node in its class, the ends of messages with streams besides, and the numbers of these."""
        own = np.where(graph.kind == NodeKind.SEND, width - 1, graph.stream).astype(np.int32)
        receives = np.flatnonzero(graph.kind == NodeKind.RECV)
        puts = np.flatnonzero((graph.kind == NodeKind.SEND) & (graph.collective != NONE))
        _, first, same = np.unique(
            np.stack([graph.group[puts], graph.peer[puts]]), axis=1, return_index=True, return_inverse=True
        )
        waits = np.where(graph.group[receives] == NONE, NONE, receives)
        return own, np.concatenate([receives, puts]), np.concatenate([waits, total + first[same.reshape(-1)]])

    columns = found_once(folded.graphs, ("stream", "kind", "collective", "group", "peer"), within)
    streams = np.empty(total, np.int32)
    for number, (offset, (own, ends, besides)) in enumerate(zip(folded.offsets, columns, strict=False)):
        streams[offset : offset + len(own)] = own + number * width
        streams[offset + ends] = np.where(besides == NONE, NONE, besides + used + offset)
    return streams
