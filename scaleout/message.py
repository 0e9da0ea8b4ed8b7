"""Messages of a job: which sends and receives belong together, and what they cost.

A put is a message that is part of a collective. Under alpha-beta it costs its share of what the whole collective does,
so that all puts of a collective together are no faster than it; the ports that it needs are those of the dimensions
along which the group extends.

Knows neither streams nor what else is in flight.
"""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from scaleout.errors import SimulationError
from scaleout.graph import COLLECTIVES, NONE, ExecutionGraph, NodeKind
from scaleout.job import Job, cost_among, locate, name_of
from scaleout.network.alpha_beta import CollectiveCost, send_cost
from scaleout.peers import check_peer, peer_of


@dataclass(frozen=True)
class Message:
    """A message between two classes of ranks: the tasks at its ends, what it costs, and two ranks that stand for all.

    Where it is sent along a group (`meets`), both ends must have come before it starts, as in NCCL. A message that
    names ranks is sent at once, and its receive is done when it arrives. A put holds the ports of both ends `along`
    dimensions; its receive, a buffer that is registered beforehand, waits for nothing.
    """

    send: int
    receive: int
    size_bytes: float
    ranks: tuple[int, int]
    cost: CollectiveCost
    meets: bool
    put: bool = False
    along: tuple[int, ...] = ()


_Ends = tuple[int, int, int, int]
"""What the two ends of a message agree on: the classes of sender and receiver, the family that names them, the tag."""


def messages_of(job: Job) -> list[Message]:
    """Match each receive with the send of the same tag, in order, and charge it.

    Raises
    ------
    GraphError
        If a message names a rank that the job does not have, or a group that its rank is not in.
    SimulationError
        If a message lacks an end, or its ends do not agree on its size.
    """
    sends: dict[_Ends, list[int]] = defaultdict(list)
    receives: dict[_Ends, list[int]] = defaultdict(list)
    peers: dict[int, tuple[int, int]] = {}
    begins: dict[tuple[int, int, int], int] = {}  # class, group and tag to the first node that sends
    class_of_rank = job.folding.class_of_rank.tolist()
    for number, graph in enumerate(job.graphs):
        rank = int(job.folding.representative[number])
        for node in np.flatnonzero(graph.kind > NodeKind.COLLECTIVE).tolist():
            peer = peer_of(job.program, rank, graph, node)
            check_peer(job.program, peer, name_of(job, number, node))
            tag, task, group = int(graph.tag[node]), job.offsets[number] + node, int(graph.group[node])
            if graph.kind[node] == NodeKind.RECV:
                receives[class_of_rank[peer], number, group, tag].append(task)
                continue
            sends[number, class_of_rank[peer], group, tag].append(task)
            begins.setdefault((number, group, tag), node)
            peers[task] = rank, peer
    messages: list[Message] = []
    puts: list[tuple[tuple[int, ...], Message]] = []
    for key in sorted(sends.keys() | receives.keys()):
        sent, received = sends.get(key, []), receives.get(key, [])
        if len(sent) != len(received):
            lonely = max(sent, received, key=len)[min(len(sent), len(received))]
            source, destination = (int(job.folding.representative[number]) for number in key[:2])
            raise SimulationError(
                f"{name_of(job, *locate(job, lonely))}: rank {source} sends {len(sent)} messages to rank "
                f"{destination} with tag {key[3]}, which receives {len(received)}; every send needs its receive"
            )
        for piece, (send, receive) in enumerate(zip(sent, received, strict=True)):
            number, node = locate(job, send)
            size_bytes, ends = _size_of(job, (number, node), locate(job, receive)), peers[send]
            if job.graphs[number].collective[node] == NONE:
                cost = send_cost(size_bytes, job.topology, source=ends[0], destination=ends[1])
                messages.append(Message(send, receive, size_bytes, ends, cost, meets=key[2] != NONE))
            else:
                cost, along = _share(job, number, node, ends)
                message = Message(send, receive, size_bytes, ends, cost, meets=True, put=True, along=along)
                puts.append(((begins[number, *key[2:]], *_turn(job, message, key[2], piece)), message))
    return messages + [message for _, message in sorted(puts, key=lambda put: put[0])]


def _turn(job: Job, message: Message, group: int, piece: int) -> tuple[int, ...]:
    """Say whose turn it is at a port, of the puts of a collective, folded or not: by receiver, slice and sender."""
    members = job.program.groups[group].of(message.ranks[0])
    source, destination = (members.index(rank) for rank in message.ranks)
    return destination, piece, source


def _share(job: Job, number: int, node: int, ends: tuple[int, int]) -> tuple[CollectiveCost, tuple[int, ...]]:
    """Charge a put: of its collective's time, its share of what leaves a rank; return the dimensions as well."""
    graph, group = job.graphs[number], int(job.graphs[number].group[node])
    members = len(job.program.groups[group].of(ends[0]))
    if ends[0] == ends[1]:
        return CollectiveCost(0.0, 0.0), ()
    family = job.folding.families[group]
    group_class = int(family.class_of_group[family.group_of_rank[ends[0]]])
    whole = cost_among(job, family, group_class, COLLECTIVES[graph.collective[node]], _whole_bytes(graph, node))
    share = members / (members - 1) / int(graph.pieces[node])
    return replace(whole, serialization_s=whole.serialization_s * share), family.dimensions_of_class[group_class]


def _whole_bytes(graph: ExecutionGraph, node: int) -> float:
    """Return the bytes of the collective that a put is part of: of all puts with its tag."""
    alike = (graph.kind == NodeKind.SEND) & (graph.group == graph.group[node]) & (graph.tag == graph.tag[node])
    return float(graph.bytes[alike].sum())


def _size_of(job: Job, send: tuple[int, int], receive: tuple[int, int]) -> float:
    """Return the bytes of a message, on which both ends must agree."""
    sent, received = (int(job.graphs[number].bytes[node]) for number, node in (send, receive))
    if sent != received:
        raise SimulationError(
            f"{name_of(job, *send)} sends {sent} B and {name_of(job, *receive)} receives {received} B of the same "
            f"message; give both ends the same size"
        )
    return float(sent)
