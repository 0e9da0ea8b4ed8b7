"""Tasks and shared devices to the columns of the compiled loop, and back to times."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scaleout.network.flow.compiling import Table, is_ready
from scaleout.network.flow.event_driven import EventDrivenFlows
from scaleout.network.flow.incremental_max_min import ENTRY
from scaleout.network.flow.instances import LinkNetwork
from scaleout.program.graph import NONE, Floats, Ints
from scaleout.program.operations import Kernel
from scaleout.simulation.columns import Indices, Sharing, Tasks, Times, offsets_of
from scaleout.simulation.contention import Contention
from scaleout.simulation.core import devices, links
from scaleout.simulation.core.loop import (
    FINISHED,
    INSTANCE,
    LACKS,
    MISSES,
    OVERFLOWS,
    PORT,
    STREAM,
    TASK,
    State,
    Work,
    begin_all,
    run_for,
)

_STEPS = 100_000
"""Moments and events, tens of milliseconds, after which Python may be interrupted."""
_MISSED = 4096
"""Slowdowns that are asked for at a time."""
_LONG = 2_000_000
"""Tasks that Python takes longer for than compiling takes."""


def _numbered(values: Ints | Indices) -> tuple[Table, Ints]:
    """Number whole numbers from zero by size, but for `NONE`; return these, and how often each is there."""
    counts = np.bincount(values + 1, minlength=1)[1:]
    if counts.all():
        return values.astype(np.int32, copy=False), counts
    numbers = np.append(np.cumsum(counts > 0, dtype=np.int32) - np.int32(1), np.int32(NONE))  # `NONE` is the last
    return numbers[values], counts[counts > 0]


def _ranks(priority: Ints) -> Table:
    """Return the rank of each by priority, the highest first, and then index; nothing where all have one priority."""
    if (priority == priority.max(initial=0)).all():
        return np.zeros(0, np.int32)
    ranks = np.empty(len(priority), np.int32)
    ranks[np.argsort(-priority, kind="stable")] = np.arange(len(priority), dtype=np.int32)
    return ranks


def _columns(tasks: Tasks, num_kernels: int) -> tuple[Work, State]:
    """Number streams and ports from zero; `begin_all` fills the rows of tasks and instances."""
    n, m = len(tasks), len(tasks.instance_size) - num_kernels
    stream, num_in_stream = _numbered(tasks.stream)
    port, num_holders = _numbered(tasks.ports)
    ranks, instance_ranks, first_in_stream = _ranks(tasks.priority), np.zeros(0, np.int32), offsets_of(num_in_stream)
    if len(ranks):
        highest, members = np.full(m + num_kernels, tasks.priority.min()), tasks.instance != NONE
        np.maximum.at(highest, tasks.instance[members], tasks.priority[members])
        instance_ranks = _ranks(highest)
    work = Work(
        duration_s=tasks.duration_s,
        occupancy_s=tasks.occupancy_s,
        rank=ranks,
        stream=stream,
        first_in_stream=first_in_stream,
        num_dependencies=tasks.num_dependencies,
        first_user=tasks.user_offsets,
        users=tasks.users,
        instance=tasks.instance,
        members=np.empty(n, np.int32),
        size=tasks.instance_size,
        instance_rank=instance_ranks,
        first_port=tasks.port_offsets,
        ports=port,
        port_s=tasks.port_s,
        issue_s=tasks.issue_s if tasks.issue_s.any() else np.zeros(0),
    )
    streams, ports = np.zeros(len(num_in_stream), STREAM), np.zeros(len(num_holders), PORT)
    for table in (streams, ports):
        table["holder"], table["freed_by"], table["freed_s"] = NONE, NONE, -1.0
    ports["held_up"] = NONE
    end_s, room = np.full(n, np.nan), 2 * n + len(port) + 1
    state = State(
        start_s=np.full(n, np.nan),
        released_s=end_s if tasks.occupancy_s is tasks.duration_s else np.full(n, np.nan),
        end_s=end_s,
        cause=np.full(n, NONE, np.int32),
        tasks=np.empty(n, TASK),
        instances=np.zeros(m, INSTANCE),
        streams=streams,
        ports=ports,
        ready=np.empty(first_in_stream[-1], np.int64),
        touched=np.empty(len(streams), np.int32),
        queue=np.empty(m + len(streams), np.int64),
        left=np.empty(m, np.int32),
        right=np.empty(m, np.int32),
        event_s=np.empty(room),
        events=np.empty(room, np.int64),
        counts=np.zeros(3, np.int64),
    )
    return work, state


def _devices_of(state: State, sharing: Sharing, contention: Contention | None, num_slots: int) -> devices.Devices:
    """Lay out what shares devices in so many slots each; nothing without contention."""
    kinds, widths = np.zeros(len(sharing.kernels), devices.KIND), np.unique(sharing.channels)
    num_transfers, num_pairs = len(sharing.lasts_s), np.diff(sharing.pair_offsets)
    pairs, kernels = (
        np.zeros(len(sharing.pair_device), devices.PAIR),
        np.zeros(len(sharing.kernel_kind), devices.KERNEL_CALL),
    )
    pairs["device"], pairs["posted"], pairs["slot"] = sharing.pair_device, sharing.pair_posted, NONE
    pairs["instance"] = np.repeat(np.arange(num_transfers), num_pairs)
    shared = np.zeros(1 + max(sharing.kernel_device.max(initial=-1), pairs["device"].max(initial=-1)), devices.DEVICE)
    shared["freed_s"] = shared["raced_s"] = np.nan
    slots, rows = np.zeros((len(shared), num_slots), devices.SLOT), 0 if contention is None else num_transfers
    instances = np.zeros(rows + slots.size, devices.INSTANCE)
    pair_of_task, limits = np.full(len(state.tasks) if len(instances) else 0, NONE, np.int32), np.zeros(2)
    if contention is not None:
        limits[:] = contention.resource_use.queue_s, contention.device.num_sms
        kinds["isolated_s"], kinds["first_entry"] = [isolated_s for _, isolated_s in sharing.kernels], NONE
        kernels["device"], kernels["key"], kernels["row"] = sharing.kernel_device, sharing.kernel_kind, NONE
        kernels["call_s"] = sharing.kernel_issue_s
        assert (sharing.kernel_instance[:1] == len(state.instances)).all(), "kernels are the last instances"
        instances["position"] = NONE
        columns: dict[str, Any] = {"left_s": sharing.lasts_s, "width": np.searchsorted(widths, sharing.channels)}
        columns |= {"races": sharing.races, "communicator": sharing.communicator}
        columns |= {"first_pair": sharing.pair_offsets[:-1], "last_pair": sharing.pair_offsets[1:]}
        columns |= {"instance": sharing.transfer_instance}
        for name, column in columns.items():
            instances[name][:num_transfers] = column
        pair_of_task[sharing.waiting] = sharing.waiting_pair
    return devices.Devices(
        instances=instances,
        calls=state.instances,
        kernels=kernels,
        pairs=pairs,
        devices=shared,
        slots=slots,
        kinds=kinds,
        slowdowns=np.zeros(0, devices.SLOWDOWN),
        missed=np.zeros(_MISSED, devices.MISSING),
        pair_of_task=pair_of_task,
        widths=widths,
        slows=np.ones((len(kinds), len(widths))),
        slowest=np.full(2 * len(pairs), devices.NOTHING),
        limits=limits,
        changed=np.empty(len(shared), np.int64),
        ends=np.zeros(len(instances), ENTRY),
        spared_s=np.empty(2 * len(kernels)),
        spared=np.empty(2 * len(kernels), np.int64),
        told=np.empty(len(instances), np.int32),
        counts=np.zeros(6, np.int64),
        changed_s=np.zeros(1),
    )


class _Links:
    """Links in columns; what the loop lacks is added to them."""

    def __init__(self, network: LinkNetwork, num_instances: int) -> None:
        self._isolated = network.traffic.isolated
        self._flows = EventDrivenFlows(network.traffic.links)
        at = {id(transfer): transfer for transfer in network.transfers.values()}
        self._transfers = list(at.values())
        self._kinds = list({id(chain): chain for each in self._transfers for chain in each.demand.chains}.values())
        transfers = self._rows_of_transfers()
        number_of = {transfer: number for number, transfer in enumerate(at)}
        instances = np.zeros(num_instances, links.INSTANCE)
        instances["instance"], instances["transfer"], instances["position"] = np.arange(num_instances), NONE, NONE
        instances["transfer"][list(network.transfers)] = [number_of[id(each)] for each in network.transfers.values()]
        instances["is_paced"][list(network.paced)] = 1
        num_chains = np.append(transfers["num_chains"], 0)[instances["transfer"]]
        instances["first_chain"] = np.cumsum(num_chains) - num_chains
        kind_of = {id(chain): number for number, chain in enumerate(self._kinds)}
        crossed = [self._isolated.of(transfer).links for transfer in self._transfers]
        num_links = len(network.traffic.links)
        self.columns = links.Links(
            tables=self._flows.tables,
            transfers=transfers,
            instances=instances,
            crossed=np.concatenate([np.zeros(0, np.int32), *crossed]).astype(np.int32),
            link_bytes=np.zeros(sum(map(len, crossed))),
            user=np.full(num_links, NONE, np.int32),
            crossing=np.zeros(num_links, np.int32),
            carried=np.zeros(num_links),
            kinds=np.array([kind_of[id(chain)] for each in self._transfers for chain in each.demand.chains], np.int32),
            running=np.full(num_chains.sum(), NONE, np.int32),
            chains=np.zeros(0, links.CHAIN),
            free=np.full(len(self._kinds), NONE, np.int32),
            **{name: np.empty(num_instances, np.int32) for name in ("starting", "early", "ended")},
            alone=np.zeros(num_instances, ENTRY),
            counts=np.array([0, 0, 0, 0, NONE, NONE, NONE]),
            times=np.zeros(2),
        )

    def _rows_of_transfers(self) -> Table:
        rows = np.zeros(len(self._transfers), links.TRANSFER)
        rows["sent_s"] = rows["done_s"] = np.nan
        for name in ("size_bytes", "before_s", "after_s", "latencies"):
            rows[name] = [getattr(transfer, name) for transfer in self._transfers]
        rows["num_chains"] = [len(transfer.demand.chains) for transfer in self._transfers]
        rows["last_link"] = np.cumsum([len(self._isolated.of(each).links) for each in self._transfers])
        rows["first_kind"] = np.cumsum(rows["num_chains"]) - rows["num_chains"]
        rows["first_link"][1:] = rows["last_link"][:-1]
        return rows

    def add_lacking(self) -> None:
        """Lay out a chain once more, find what a transfer takes in isolation, or let the tables have more room."""
        n = self.columns
        kind, unknown = n.counts[links.LACKING], n.counts[links.UNKNOWN]
        n.counts[[links.LACKING, links.UNKNOWN]] = NONE
        added = np.zeros(int(kind != NONE), links.CHAIN)
        if kind != NONE:
            added["kind"], added["after"], n.free[kind] = kind, n.free[kind], self._flows.lay_out(self._kinds[kind])
        if unknown != NONE:
            row, found = n.transfers[unknown], self._isolated.of(self._transfers[unknown])
            row["sent_s"], row["done_s"] = found.sent_s, found.done_s
            n.link_bytes[row["first_link"] : row["last_link"]] = found.link_bytes
        self._flows.make_room()
        self.columns = n._replace(tables=self._flows.tables, chains=np.concatenate([n.chains, added]))

    @property
    def link_bytes(self) -> Floats:
        """(L,) what each link has carried."""
        return self.columns.carried + self._flows.link_bytes


def _kinds_of(sharing: Sharing) -> list[tuple[Kernel | None, Ints]]:
    """Return each kernel, and its kinds."""
    found: dict[int, list[int]] = {}
    for kind, (kernel, _) in enumerate(sharing.kernels):
        found.setdefault(id(kernel), []).append(kind)
    return [(sharing.kernels[which[0]][0], np.array(which)) for which in found.values()]


def _add_kinds(d: devices.Devices, contention: Contention, kinds_of: Sequence[tuple[Kernel | None, Ints]]) -> None:
    """Say what kernels of each kind do to transfers."""
    for number, (kernel, kinds) in enumerate(kinds_of):
        d.kinds["kernel"][kinds], d.kinds["tiles"][kinds] = number, contention.tiles(kernel)
        for at, width in enumerate(d.widths.tolist()):
            d.slows[kinds, at] = contention.slows(kernel, d.kinds["isolated_s"][kinds], channels=width)


def run(
    tasks: Tasks,
    sharing: Sharing,
    contention: Contention | None,
    network: LinkNetwork | None = None,
    *,
    compiles: bool = True,
) -> Times | None:
    """Run until nothing moves any more, with the bits of `engine.run`; None if it cannot.

    Without code of an earlier run this one `compiles`, or it cannot.
    """
    if len(np.unique(sharing.channels)) > 4:  # so many are counted in 64 bits
        return None
    kinds_of = _kinds_of(sharing)
    for slots in (8, 64):
        work, state = _columns(tasks, len(sharing.kernel_instance))
        shared = _devices_of(state, sharing, contention, slots)
        if contention is not None:
            _add_kinds(shared, contention, kinds_of)
        on = None if network is None else _Links(network, len(state.instances))
        arguments = work, state, shared, None if on is None else on.columns, _STEPS
        worth_it = len(tasks) >= _LONG
        if not is_ready(run_for, arguments, what="the event core", worth_it=worth_it, compiles=compiles):
            return None
        begin_all(work, state, sharing.transfer_instance)
        while True:
            found = run_for(work, state, shared, None if on is None else on.columns, _STEPS)
            if found in (FINISHED, OVERFLOWS):
                break
            if found == MISSES and contention is not None:
                shared = _answered(shared, contention, kinds_of)
            if found == LACKS and on is not None:
                on.add_lacking()
        if found == FINISHED:
            if network is not None and on is not None:
                network.traffic.hand_over(on.link_bytes)
            return _times(state)
    return None


def _times(state: State) -> Times:
    posted = np.zeros(len(state.start_s), bool)
    arrived = state.streams["holder"][state.streams["holder"] != NONE]
    posted[arrived] = np.isnan(state.start_s[arrived])
    return Times(state.start_s, state.end_s, state.cause, posted, state.released_s)


def _answered(
    d: devices.Devices, contention: Contention, kinds_of: Sequence[tuple[Kernel | None, Ints]]
) -> devices.Devices:
    """Add the slowdowns that the tables lacked, for all isolated times of a kernel at once."""
    missed = d.missed[: d.counts[devices.MISSED]]
    d.counts[devices.MISSED] = 0
    known, added, first_entry = len(d.slowdowns), [d.slowdowns], d.kinds["first_entry"]
    widths = [(width, moves) for width in d.widths.tolist() for moves in (False, True)]
    calls = zip(d.kinds["kernel"][missed["kind"]].tolist(), missed["code"].tolist(), strict=True)
    for number, code in dict.fromkeys(calls):
        held = [width for at, width in enumerate(widths) for _ in range((code >> (8 * at)) & 255)]
        kernel, kinds = kinds_of[number]
        found = np.zeros(len(kinds), devices.SLOWDOWN)
        found["code"], found["slowed"] = code, contention.slowed_by(kernel, d.kinds["isolated_s"][kinds], held)
        found["after"] = first_entry[kinds]
        first_entry[kinds] = np.arange(known, known + len(found))
        known += len(found)
        added.append(found)
    return d._replace(slowdowns=np.concatenate(added))
