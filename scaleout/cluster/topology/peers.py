"""Who sends to whom: places in process groups to ranks, and how far apart two ranks lie.

A message of an SPMD program names its other end by a *hop*: a family of groups, and how many places further on in the
rank's group the other end stands, the first place following the last. So ranks that do the same say the same, and can
be folded. Messages of traces name ranks; their hop is None.
"""

from collections.abc import Iterable

import numpy as np

from scaleout.cluster.topology.topology import Topology
from scaleout.errors import GraphError
from scaleout.program.graph import NONE, ExecutionGraph, Ints, NodeKind
from scaleout.program.program import Program

Hop = tuple[int, int]
"""A family of groups, by its index in the program, and places further on in the group."""


def hops_of(graph: ExecutionGraph) -> list[Hop]:
    """Return the distinct hops of a graph's messages that name no rank."""
    relative = (graph.kind > NodeKind.COLLECTIVE) & (graph.group != NONE)
    return sorted(set(zip(graph.group[relative].tolist(), graph.peer[relative].tolist(), strict=True)))


def names_ranks(graph: ExecutionGraph) -> bool:
    """Whether a graph has messages to or from ranks that it names."""
    return bool(((graph.kind > NodeKind.COLLECTIVE) & (graph.group == NONE)).any())


def peer_of(program: Program, rank: int, graph: ExecutionGraph, node: int) -> int:
    """Return the rank at the other end of a message.

    Raises
    ------
    GraphError
        If the rank is in no group of the message's family.
    """
    group, peer = int(graph.group[node]), int(graph.peer[node])
    if group == NONE:
        return peer
    members = program.groups[group].of(rank)
    return members[(members.index(rank) + peer) % len(members)]


def peers_of(program: Program, hop: Hop, ranks: Iterable[int]) -> Ints:
    """Return the rank at the other end of a hop from each rank, shape (R,); `NONE` for ranks in no group.

    Only for `ranks`; all others get `NONE` as well.
    """
    family, places = hop
    found = np.full(program.num_ranks, NONE, np.int64)
    wanted = np.zeros(program.num_ranks, bool)
    wanted[list(ranks)] = True
    for members in program.groups[family].members:
        row = np.array(members, np.int64)
        found[row] = np.roll(row, -places)
    found[~wanted] = NONE
    return found


def hops_of_program(program: Program) -> dict[Hop, Ints]:
    """Return each hop of a program and the other end of it from each rank whose role takes it, `NONE` from others."""
    roles: dict[Hop, list[int]] = {}
    for role, graph in enumerate(program.graphs):
        for hop in hops_of(graph):
            roles.setdefault(hop, []).append(role)
    return {
        hop: peers_of(program, hop, np.flatnonzero(np.isin(program.role_of_rank, using)).tolist())
        for hop, using in sorted(roles.items())
    }


def distances(topology: Topology, ranks: Ints, peers: Ints) -> Ints:
    """Return numbers that decide what a message costs alone, shape (R, D): equal rows cost the same.

    Parameters
    ----------
    ranks, peers : (R,)
    """
    at, to = topology.coordinates(ranks), topology.coordinates(peers)
    columns = [
        dimension.structure.distance(dimension, (source, destination))
        for dimension, source, destination in zip(topology.dimensions, at.T, to.T, strict=True)
    ]
    found = np.stack(columns, axis=1)
    for change in topology.changes:
        # A message that may meet a changed link is like no other.
        line, number = topology.coordinates([change.line]), change.dimension
        on_line = (at == line) | (to == line)
        on_line[:, number] = at[:, number] != to[:, number]
        met = on_line.all(axis=1)
        found[met, number] = -(1 + ranks[met]) * topology.num_ranks - peers[met] - topology.shape[number]
    return found


def check_peer(program: Program, peer: int, where: str) -> None:
    """Refuse a message whose other end the job does not have.

    Raises
    ------
    GraphError
        If so; `where` begins the message.
    """
    if not 0 <= peer < program.num_ranks:
        raise GraphError(f"{where} names rank {peer}, which the job does not have")
