"""Who sends to whom: relative peers to ranks, and how far apart two ranks are.

A message of an SPMD program names its other end by a *relative peer*: a process-group set, and how many members further
on in the rank's group the other end is (cyclic), so that ranks that do the same have the same graph and can be folded.
Messages of traces name ranks: there the relative peer is the number of the other end among the ranks that a rank names,
see `Program.peers`.
"""

import numpy as np

from scaleout.cluster.topology.topology import Topology
from scaleout.errors import GraphError
from scaleout.program.graph import NONE, ExecutionGraph, Ints, NodeKind, found_once
from scaleout.program.program import Program

RelativePeer = tuple[int, int]
"""A process-group set, by its index in the program, and members further on in the group; or `NONE` and the index of a
rank that messages name, see `Program.peers`."""


def relative_peers_of(graph: ExecutionGraph) -> list[RelativePeer]:
    """Return the distinct relative peers of a graph's messages."""
    messages = graph.kind > NodeKind.COLLECTIVE
    return sorted(set(zip(graph.group[messages].tolist(), graph.peer[messages].tolist(), strict=True)))


def roles_that_name_ranks(program: Program) -> list[bool]:
    """Whether messages of each role's graph name ranks by their numbers, which no other rank can do alike."""
    return [program.peers is None and any(group == NONE for group, _ in peers) for peers in _of_roles(program)]


def _of_roles(program: Program) -> list[list[RelativePeer]]:
    return found_once(program.graphs, ("kind", "group", "peer"), relative_peers_of)


def peer_of(program: Program, rank: int, graph: ExecutionGraph, node: int) -> int:
    """Return the rank at the other end of a message."""
    group, peer = int(graph.group[node]), int(graph.peer[node])
    if group == NONE:
        return peer if program.peers is None else int(program.peers[rank, peer])
    members = program.groups[group].of(rank)
    return members[(members.index(rank) + peer) % len(members)]


def relative_peers_of_program(program: Program) -> dict[RelativePeer, Ints]:
    """Return each relative peer of a program and which rank it is of each rank that sends to it, `NONE` of others."""
    roles: dict[RelativePeer, list[int]] = {}
    for role, (peers, name_ranks) in enumerate(zip(_of_roles(program), roles_that_name_ranks(program), strict=True)):
        for peer in [] if name_ranks else peers:
            roles.setdefault(peer, []).append(role)
    found = {}
    for (group_set, further), using in sorted(roles.items()):
        ranks = np.full(program.num_ranks, NONE, np.int64)
        if group_set == NONE and program.peers is not None:
            ranks = program.peers[:, further]
        else:
            for _, members in program.groups[group_set].blocks:
                ranks[members] = np.roll(members, -further, axis=1)
        found[group_set, further] = np.where(np.isin(program.role_of_rank, using), ranks, NONE)
    return found


def named_back(program: Program) -> Ints:
    """Return the index under which each peer that a rank names has that rank, shape of `Program.peers`; else `NONE`."""
    peers = np.zeros((program.num_ranks, 0), np.int64) if program.peers is None else program.peers
    found = np.full(peers.shape, NONE, np.int64)
    ranks, indices = np.nonzero(peers != NONE)
    named = peers[ranks, indices]
    there, back = ranks * program.num_ranks + named, named * program.num_ranks + ranks
    by_key = np.argsort(there)
    at = by_key[np.searchsorted(there[by_key], back) % max(len(by_key), 1)]
    found[ranks, indices] = np.where(there[at] == back, indices[at], NONE)
    return found


def distances(topology: Topology, ranks: Ints, peers: Ints) -> Ints:
    """Return numbers that decide the cost of an isolated message, shape (R, D): equal rows cost the same."""
    at, to = topology.coordinates(ranks), topology.coordinates(peers)
    columns = [
        dimension.structure.distance(dimension, (source, destination))
        for dimension, source, destination in zip(topology.dimensions, at.T, to.T, strict=True)
    ]
    found = np.stack(columns, axis=1)
    for change in topology.changes:
        # A message that may use a changed link has a cost of its own.
        line, number = topology.coordinates([change.line]), change.dimension
        on_line = (at == line) | (to == line)
        on_line[:, number] = at[:, number] != to[:, number]
        met = on_line.all(axis=1)
        for end in topology.ends_of_users(change):
            met &= (at[:, number] == end) | (to[:, number] == end)
        found[met, number] = -(1 + ranks[met]) * topology.num_ranks - peers[met] - topology.shape[number]
    return found


def check_peer(program: Program, peer: int, where: str) -> None:
    """Refuse a message whose other end the job does not have; `where` begins the error's message."""
    if not 0 <= peer < program.num_ranks:
        raise GraphError(f"{where} names rank {peer}, which the job does not have")
