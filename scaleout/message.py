"""Messages of a job: which sends and receives belong together, and what they cost.

Knows neither streams nor what else is in flight.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from scaleout.errors import SimulationError
from scaleout.graph import NONE, NodeKind
from scaleout.job import Job, locate, name_of
from scaleout.network.alpha_beta import CollectiveCost, send_cost
from scaleout.peers import check_peer, peer_of


@dataclass(frozen=True)
class Message:
    """A message between two classes of ranks: the tasks at its ends, what it costs, and two ranks that stand for all.

    Where it is sent along a group (`meets`), both ends must have come before it starts, as in NCCL. A message that
    names ranks is sent at once, and its receive is done when it arrives.
    """

    send: int
    receive: int
    size_bytes: float
    ranks: tuple[int, int]
    cost: CollectiveCost
    meets: bool


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
            peers[task] = rank, peer
    messages = []
    for key in sorted(sends.keys() | receives.keys()):
        sent, received = sends.get(key, []), receives.get(key, [])
        if len(sent) != len(received):
            lonely = max(sent, received, key=len)[min(len(sent), len(received))]
            source, destination = (int(job.folding.representative[number]) for number in key[:2])
            raise SimulationError(
                f"{name_of(job, *locate(job, lonely))}: rank {source} sends {len(sent)} messages to rank "
                f"{destination} with tag {key[3]}, which receives {len(received)}; every send needs its receive"
            )
        for send, receive in zip(sent, received, strict=True):
            size_bytes = _size_of(job, locate(job, send), locate(job, receive))
            cost = send_cost(size_bytes, job.topology, source=peers[send][0], destination=peers[send][1])
            messages.append(Message(send, receive, size_bytes, peers[send], cost, meets=key[2] != NONE))
    return messages


def _size_of(job: Job, send: tuple[int, int], receive: tuple[int, int]) -> float:
    """Return the bytes of a message, on which both ends must agree."""
    sent, received = (int(job.graphs[number].bytes[node]) for number, node in (send, receive))
    if sent != received:
        raise SimulationError(
            f"{name_of(job, *send)} sends {sent} B and {name_of(job, *receive)} receives {received} B of the same "
            f"message; give both ends the same size"
        )
    return float(sent)
