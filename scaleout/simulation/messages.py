"""Sends and receives of a folded program to messages, in columns: who sends to whom, how much, and what it costs.

A receive is matched with the send of the same tag, in order. A put is a message that is part of a collective. Under
alpha-beta it costs its share of the whole collective, so that all puts together are no faster than it.

Symbols: M messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from scaleout.cluster.topology.peers import check_peer, named_back, peer_of
from scaleout.errors import SimulationError
from scaleout.network.alpha_beta.cost import CollectiveCost, one_sided
from scaleout.program.graph import COLLECTIVES, NONE, Bools, ExecutionGraph, Floats, Ints, NodeKind
from scaleout.simulation.columns import distinct
from scaleout.simulation.folded_program import RECORDED_SOURCES, FoldedProgram


class Put(NamedTuple):
    """What a put costs, and the dimensions along which it holds the ports of both ends."""

    cost: CollectiveCost
    along: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages between two classes of ranks, of which the last are puts.

    Along a group both ends must have arrived before a message starts (`rendezvous`), as in NCCL. A message that names
    ranks is sent at once, and its receive is done when it arrives. The receive of a put, a buffer that is registered
    beforehand, waits for nothing.
    """

    send: Ints  # (M,) tasks at both ends
    receive: Ints
    sender: Ints  # (M,) the classes of these
    receiver: Ints
    source: Ints  # (M,) two ranks that stand for all
    destination: Ints
    group: Ints  # (M,) along which it goes; `NONE` if it names ranks
    size_bytes: Ints  # (M,)
    lasts_s: Floats  # (M,)
    holds_s: Floats  # (M,) how long its bytes hold its streams and ports
    puts: Sequence[Put]

    def __len__(self) -> int:
        return len(self.send)

    @property
    def rendezvous(self) -> Bools:
        """Whether both ends must have arrived, (M,)."""
        found: Bools = self.is_put | (self.group != NONE)
        return found

    @property
    def is_put(self) -> Bools:
        """Whether each is part of a collective, (M,)."""
        found: Bools = np.arange(len(self)) >= len(self) - len(self.puts)
        return found


def messages_of(folded: FoldedProgram) -> Messages:
    """Match each receive with the send of the same tag, in order, and cost the message.

    Raises
    ------
    GraphError
        If a message names a rank that the program does not have, or a group that its rank is not in.
    SimulationError
        If a message lacks an end, or its ends do not agree on its size.
    """
    every = _Ends.of(folded)
    sent, received = (
        np.flatnonzero(way)[np.argsort(every.kind[way], kind="stable")] for way in (~every.receives, every.receives)
    )
    if not np.array_equal(every.kind[sent], every.kind[received]):
        raise _unmatched(folded, every)
    sends, receives = every.at(sent), every.at(received)
    size_bytes = _agreed_bytes(folded, sends.task, receives.task)
    is_put = folded.values("collective", sends.task) != NONE
    turns, puts = _puts_of(folded, sends, np.flatnonzero(is_put))
    order = np.concatenate([np.flatnonzero(~is_put), turns])
    sends, size_bytes = sends.at(order), size_bytes[order]
    costs, kinds = _costs(folded, sends.at(np.arange(len(order) - len(puts))), size_bytes)
    latency_s, serialization_s = (
        np.array([getattr(cost, name) for cost in (*costs, *(put.cost for put in puts))], np.float64)[
            np.concatenate([kinds, len(costs) + np.arange(len(puts))])
        ]
        for name in ("latency_s", "serialization_s")
    )
    return Messages(
        sends.task, receives.task[order], sends.number, receives.number[order], sends.rank, sends.peer,
        folded.values("group", sends.task), size_bytes, latency_s + serialization_s, serialization_s, puts,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Ends:
    """Ends of messages in the order of their tasks, (E,)."""

    task: Ints
    number: Ints  # class of ranks
    rank: Ints  # that stands for the class
    peer: Ints  # rank at the other end
    receives: Bools
    kind: Ints  # the same at the two ends of a message, and in the order in which messages take ports

    @classmethod
    def of(cls, folded: FoldedProgram) -> "_Ends":
        """Find the ends; `GraphError` if one names a rank or group that is none."""
        task = np.flatnonzero(folded.column("kind") > NodeKind.COLLECTIVE)
        number = np.searchsorted(folded.offsets, task, side="right") - 1
        receives = folded.values("kind", task) == NodeKind.RECV
        group, further, tag = (folded.values(name, task).astype(np.int64) for name in ("group", "peer", "tag"))
        firsts, kinds = distinct(number, group, further)
        peers = np.zeros(len(firsts), np.int64)
        for index in np.argsort(firsts).tolist():
            class_, node = folded.locate(int(task[firsts[index]]))
            of = int(folded.folding.representative[class_])
            peers[index] = peer_of(folded.program, of, folded.graphs[class_], node)
            check_peer(folded.program, int(peers[index]), folded.name(class_, node))
        rank, peer = folded.folding.representative[number], peers[kinds]
        # Without a group both ends agree on which of the ranks that the sender names it is for.
        index, back = np.where(group == NONE, further, NONE), receives & (group == NONE)
        named = folded.program.peers is None
        index[back] = rank[back] if named else named_back(folded.program)[rank[back], further[back]]
        other = folded.folding.class_of_rank[peer]
        sender, receiver = np.where(receives, other, number), np.where(receives, number, other)
        return cls(task, number, rank, peer, receives, distinct(sender, receiver, group, tag, index)[1])

    def at(self, which: Ints) -> "_Ends":
        """Return some of them."""
        return _Ends(*(getattr(self, name)[which] for name in self.__dataclass_fields__))


def _unmatched(folded: FoldedProgram, ends: _Ends) -> SimulationError:
    counts = [np.bincount(ends.kind[way], minlength=len(ends.kind)) for way in (~ends.receives, ends.receives)]
    sent, received = (
        ends.task[(ends.kind == np.argmax(counts[0] != counts[1])) & way].tolist()
        for way in (~ends.receives, ends.receives)
    )
    lonely = max(sent, received, key=len)[min(len(sent), len(received))]
    number, node = folded.locate(lonely)
    rank, graph = int(folded.folding.representative[number]), folded.graphs[number]
    peer = peer_of(folded.program, rank, graph, node)
    source, destination = (rank, peer) if len(sent) > len(received) else (peer, rank)
    return SimulationError(
        f"{folded.name(number, node)}: rank {source} sends {len(sent)} messages to rank {destination} with tag "
        f"{graph.tag[node]}, which receives {len(received)}; every send needs its receive"
    )


def _agreed_bytes(folded: FoldedProgram, sends: Ints, receives: Ints) -> Ints:
    """Return the bytes of messages, on which both ends must agree, (M,)."""
    sent: Ints = folded.values("bytes", sends)
    received = folded.values("bytes", receives)
    for at in np.flatnonzero(sent != received)[:1].tolist():
        source, destination = (folded.name(*folded.locate(int(tasks[at]))) for tasks in (sends, receives))
        raise SimulationError(
            f"{source} sends {sent[at]} B and {destination} receives {received[at]} B of the same message; give both "
            f"ends the same size"
        )
    return sent


def _costs(folded: FoldedProgram, sends: _Ends, size_bytes: Ints) -> tuple[list[CollectiveCost], Ints]:
    """Cost the kinds of messages that differ; return them, and which of them each message is, (M,)."""
    recorded = np.isin(folded.values("time_source", sends.task), RECORDED_SOURCES)
    recorded_s = np.where(recorded, folded.values("duration_s", sends.task), -1.0)
    firsts, kinds = distinct(size_bytes[: len(recorded)], sends.rank, sends.peer, recorded_s)
    costs = []
    for at in firsts.tolist():
        ends = int(sends.rank[at]), int(sends.peer[at])
        costs.append(folded.message_cost(*folded.locate(int(sends.task[at])), float(size_bytes[at]), ends))
    return costs, kinds


def _puts_of(folded: FoldedProgram, sends: _Ends, which: Ints) -> tuple[Ints, list[Put]]:
    """Return some of the sends in the order of their turns at a port, and what these puts cost.

    The collective that begins first comes first; of its puts the order is the same folded and unfolded: by receiver,
    slice and sender.
    """
    begins: dict[tuple[int, int, int], int] = {}  # class, group and tag to the first node that sends
    piece = np.arange(len(sends.kind)) - np.searchsorted(sends.kind, sends.kind)
    if len(which):
        for task in np.sort(sends.task).tolist():
            number, node = folded.locate(task)
            graph = folded.graphs[number]
            begins.setdefault((number, int(graph.group[node]), int(graph.tag[node])), node)
    found = []
    for at in which.tolist():
        number, node = folded.locate(int(sends.task[at]))
        graph, ends = folded.graphs[number], (int(sends.rank[at]), int(sends.peer[at]))
        group = int(graph.group[node])
        members = folded.program.groups[group].of(ends[0])
        source, destination = (members.index(rank) for rank in ends)
        turn = begins[number, group, int(graph.tag[node])], destination, int(piece[at]), source
        found.append((turn, at, _put(folded, number, node, ends)))
    found.sort(key=lambda each: each[0])
    return np.array([at for _, at, _ in found], np.int64), [put for *_, put in found]


def _put(folded: FoldedProgram, number: int, node: int, ends: tuple[int, int]) -> Put:
    """Cost of a put: of its collective's bytes, its share of what leaves a rank; and the collective's dimensions."""
    graph, group = folded.graphs[number], int(folded.graphs[number].group[node])
    members = len(folded.program.groups[group].of(ends[0]))
    if ends[0] == ends[1]:
        return Put(CollectiveCost(0.0, 0.0), ())
    family = folded.folding.families[group]
    group_class = int(family.class_of_group[family.group_of_rank[ends[0]]])
    whole = folded.cost_among(family, group_class, COLLECTIVES[graph.collective[node]], _whole_bytes(graph, node))
    share = members / (members - 1) / int(graph.slices[node])
    put = replace(whole, serialization_s=whole.serialization_s * share)
    return Put(one_sided(put, float(graph.duration_s[node])), family.dimensions_of_class[group_class])


def _whole_bytes(graph: ExecutionGraph, node: int) -> float:
    """Bytes of the collective that a put is part of: of all puts with its tag."""
    alike = (graph.kind == NodeKind.SEND) & (graph.group == graph.group[node]) & (graph.tag == graph.tag[node])
    return float(graph.bytes[alike].sum())
