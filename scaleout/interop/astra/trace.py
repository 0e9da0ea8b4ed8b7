"""Chakra traces to the tasks of ranks, with whole nanoseconds, sizes and peers.

Ranks whose files have the same bytes share one graph. Node types on which ASTRA-sim aborts are refused.

Source: ASTRA-sim 2.0 at commit 518bd51 (2026-03-26), behaviour as measured; Chakra schema 0.0.4.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

from scaleout.config.documents import check_regular
from scaleout.errors import TraceError
from scaleout.interop.astra.inputs import RemoteMemoryFile, SystemFile
from scaleout.interop.chakra import wire
from scaleout.interop.chakra.attributes import get
from scaleout.interop.chakra.tables import CollectiveCommType, NodeType
from scaleout.interop.chakra.wire import Node

EVERYONE = "0"
"""Key of the group of all ranks."""


class Work:
    """What a node occupies and waits for: numbers, which are looked up in a third of the time of members of an enum."""

    CPU = 0
    COMPUTE = 1
    REPLAY = 2
    COLLECTIVE = 3
    SEND = 4
    RECV = 5
    NOTHING = 6
    WAIT = 7
    """A receive that is replayed: it lasts, and occupies nothing."""


class Task(NamedTuple):
    """One node of a trace."""

    node_id: int
    name: str
    work: int  # of `Work`
    duration_ns: int = 0  # of computation and replayed communication
    # of a collective: ``all-reduce``, ``all-gather``, ``reduce-scatter`` or ``all-to-all``; or ``broadcast``
    kind: str = ""
    size_bytes: int = 0  # as ASTRA-sim counts it: of an all-gather the shard
    group: str = EVERYONE  # key of a communicator group; `EVERYONE` for all ranks
    involved: tuple[bool, ...] = ()  # dimensions that take part; empty for all
    peer: int = 0  # of a send and a receive, as is the tag
    tag: int = 0

    def __str__(self) -> str:
        return f"node {self.node_id} ({self.name!r})"


@dataclass(frozen=True, eq=False)
class Graph:
    """What a rank does: tasks in ascending order of their ids, and who waits for whom."""

    tasks: tuple[Task, ...]  # (N,)
    users: tuple[tuple[int, ...], ...]  # (N,) indices of the tasks that depend on each
    num_dependencies: tuple[int, ...]  # (N,)

    @cached_property
    def has_messages(self) -> bool:
        """Whether the rank sends to or receives from a single other one."""
        return any(task.work in (Work.SEND, Work.RECV) for task in self.tasks)


_KINDS: Mapping[int, str] = {
    CollectiveCommType.ALL_REDUCE: "all-reduce",
    CollectiveCommType.ALL_GATHER: "all-gather",
    CollectiveCommType.REDUCE_SCATTER: "reduce-scatter",
    CollectiveCommType.ALL_TO_ALL: "all-to-all",
}


def read_graphs(
    prefix: Path, *, num_ranks: int, system: SystemFile, memory: RemoteMemoryFile | None
) -> tuple[tuple[Graph, ...], tuple[int, ...]]:
    """Read ``<prefix>.<rank>.et`` of all ranks: the distinct graphs, and which of them each rank runs."""
    known: dict[bytes, int] = {}
    reader = _Reader(system, memory)
    graphs: list[Graph] = []
    graph_of = []
    for rank in range(num_ranks):
        path = Path(f"{prefix}.{rank}.et")
        try:
            check_regular(path)
            content = path.read_bytes()
        except OSError as error:
            raise TraceError(
                f"{path}: cannot be read ({error.strerror}), but the network has ranks 0 to {num_ranks - 1}; "
                f"give a trace of each, or another network"
            ) from None
        if content not in known:
            known[content] = len(graphs)
            graphs.append(reader.read(path))
        graph_of.append(known[content])
    if Path(f"{prefix}.{num_ranks}.et").exists():
        raise TraceError(
            f"{prefix}.{num_ranks}.et: is a trace of rank {num_ranks}, but the network has ranks 0 to {num_ranks - 1}; "
            f"give a network of as many ranks as there are traces"
        )
    return tuple(graphs), tuple(graph_of)


class _Reader:
    """Reads the graphs of ranks; nodes, and who waits for whom, are looked at once where several files have them."""

    def __init__(self, system: SystemFile, memory: RemoteMemoryFile | None) -> None:
        self._system, self._memory = system, memory
        self._nodes: dict[bytes, Node] = {}
        self._tasks: dict[Node, Task] = {}
        self._orders: dict[tuple[tuple[int, tuple[int, ...]], ...], _Order] = {}

    def read(self, path: Path) -> Graph:
        _, nodes = wire.read(path, self._nodes)
        waits = tuple([node.waits for node in nodes])
        if waits not in self._orders:
            self._orders[waits] = _order_of(nodes, path)
        order = self._orders[waits]
        try:
            for node in nodes:
                if node not in self._tasks:
                    self._tasks[node] = _task(node, self._system, self._memory)
        except TraceError as error:
            raise TraceError(f"{path}: {error}") from None
        return Graph(tuple([self._tasks[nodes[at]] for at in order.positions]), order.users, order.num_dependencies)


class _Order(NamedTuple):
    """Where the nodes of a graph stand in its file, in ascending order of their ids, and who waits for whom."""

    positions: tuple[int, ...]
    users: tuple[tuple[int, ...], ...]
    num_dependencies: tuple[int, ...]


def _order_of(nodes: Sequence[Node], path: Path) -> _Order:
    positions = sorted(range(len(nodes)), key=lambda at: nodes[at].id)
    index = {nodes[at].id: position for position, at in enumerate(positions)}
    if len(index) < len(nodes):
        twice = next(nodes[at].id for at, after in itertools.pairwise(positions) if nodes[at].id == nodes[after].id)
        raise TraceError(f"{path}: two nodes have the id {twice}; give each its own")
    users: list[list[int]] = [[] for _ in nodes]
    for position, at in enumerate(positions):
        _, dependencies = nodes[at].waits
        unknown = [other for other in dependencies if other not in index]
        if unknown:
            raise TraceError(
                f"{path}: {nodes[at]} depends on node {unknown[0]}, which the trace does not hold; add it or drop the "
                f"dependency"
            )
        for other in dependencies:
            users[index[other]].append(position)
    num_dependencies = tuple(len(nodes[at].waits[1]) for at in positions)
    waiting = list(num_dependencies)
    ready = [position for position, count in enumerate(waiting) if count == 0]
    for position in ready:  # grows while it is walked
        for user in users[position]:
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    if len(ready) < len(nodes):
        stuck = next(at for at, count in zip(positions, waiting, strict=True) if count)
        raise TraceError(f"{path}: {nodes[stuck]} is in or behind a cycle of dependencies; break the cycle")
    return _Order(tuple(positions), tuple(map(tuple, users)), num_dependencies)


def _task(node: Node, system: SystemFile, memory: RemoteMemoryFile | None) -> Task:
    task = partial(Task, node.id, node.name)
    on_cpu = get(node, "is_cpu_op", bool, default=False)
    duration_ns = node.duration_micros * 1000 or 1
    kind = node.type
    if kind == NodeType.METADATA_NODE:
        raise TraceError(f"{node} is a METADATA_NODE, on which ASTRA-sim aborts; remove it")
    if kind == NodeType.COMP_NODE:
        if system.roofline_enabled and not on_cpu and not system.replay_only:
            return _roofline(node, system)
        return task(Work.CPU if on_cpu else Work.COMPUTE, duration_ns)
    if system.replay_only:  # whatever it is; only a receive does not occupy communication
        return task(Work.WAIT if kind == NodeType.COMM_RECV_NODE else Work.REPLAY, duration_ns)
    if kind in (NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE):
        if memory is None:
            raise TraceError(
                f"{node} is a {NodeType(kind).name}, for which a rank needs a remote memory of its own; give "
                f"PER_NPU_MEMORY_EXPANSION by --remote-memory-configuration, or remove the node"
            )
        return task(Work.REPLAY, memory.access_ns(get(node, "tensor_size", int)))  # as communication, there too
    if kind == NodeType.INVALID_NODE:
        return task(Work.NOTHING)
    if on_cpu:
        raise TraceError(f"{node} communicates, but is_cpu_op is true; set it to false")
    return _collective(node, duration_ns) if kind == NodeType.COMM_COLL_NODE else _message(node)


def _message(node: Node) -> Task:
    work, peer = (Work.SEND, "comm_dst") if node.type == NodeType.COMM_SEND_NODE else (Work.RECV, "comm_src")
    size_bytes = _size(node)
    if size_bytes == 0:
        raise TraceError(f"{node} sends 0 bytes, on which ASTRA-sim aborts; remove it")
    peer_rank, tag = get(node, peer, int), get(node, "comm_tag", int)
    return Task(node.id, node.name, work, size_bytes=size_bytes, peer=peer_rank, tag=tag)


def _roofline(node: Node, system: SystemFile) -> Task:
    """Time ``num_ops / min(local-mem-bw num_ops / tensor_size, peak-perf)``; without a tensor, no time."""
    num_ops = get(node, "num_ops", int)
    tensor_bytes = get(node, "tensor_size", int)
    if tensor_bytes == 0:
        return Task(node.id, node.name, Work.NOTHING)
    if num_ops <= 0 or tensor_bytes < 0:
        raise TraceError(
            f"{node} has num_ops {num_ops} and tensor_size {tensor_bytes}, for which "
            f"ASTRA-sim's roofline has no time (it divides 0 by 0); give it the operations that it does, or "
            f"tensor_size 0 if it shall take no time"
        )
    intensity = num_ops / tensor_bytes
    flops_per_s = min(system.local_mem_bw_gb_per_s * 1e9 * intensity, system.peak_perf_tflops * 1e12)
    return Task(node.id, node.name, Work.COMPUTE, int(num_ops / flops_per_s * 1e9))


def _collective(node: Node, duration_ns: int) -> Task:
    number = get(node, "comm_type", int)
    group = get(node, "pg_name", str, default="") or EVERYONE
    task = partial(Task, node.id, node.name, group=group)
    if number == CollectiveCommType.BROADCAST:
        size_bytes = get(node, "comm_size", int, default=0)
        return task(Work.REPLAY, duration_ns, kind="broadcast", size_bytes=size_bytes)
    if number not in _KINDS:
        name = CollectiveCommType(number).name if number in tuple(CollectiveCommType) else f"comm_type {number}"
        raise TraceError(f"{node} is a {name}, which ASTRA-sim does not support; use {', '.join(_KINDS.values())}")
    size_bytes = _size(node)
    if number == CollectiveCommType.ALL_GATHER and size_bytes == 0:
        raise TraceError(f"{node} is an all-gather of 0 bytes, which never ends; remove it")
    involved = tuple(get(node, "involved_dim", list[bool], default=[]))
    return task(Work.COLLECTIVE, kind=_KINDS[number], size_bytes=size_bytes, involved=involved)


def _size(node: Node) -> int:
    size_bytes = get(node, "comm_size", int)
    if size_bytes < 0:
        raise TraceError(f"{node} has comm_size {size_bytes}; a size is at least 0 bytes")
    return size_bytes
