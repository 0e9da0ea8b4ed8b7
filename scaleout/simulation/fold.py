"""Folding: which ranks do the same thing at the same time, so that one of them stands for all.

Colour refinement: the ranks of a role start as one class, and a class splits where its ranks' groups or peers differ,
in placement or in the classes of their members, until nothing splits. Ranks of a class name the same of their peers,
and are named by these alike. See docs/models/placement-and-folding.md.

Source: Berkholz, Bonsma and Grohe, Theory of Computing Systems 60(4), 2017 (colour refinement).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from scaleout.cluster.topology.peers import distances, named_back, relative_peers_of_program, roles_that_name_ranks
from scaleout.cluster.topology.placement import Placement, place
from scaleout.cluster.topology.topology import Topology
from scaleout.program.graph import NONE, Ints, found_once
from scaleout.program.program import GroupFamily, Program


@dataclass(frozen=True, eq=False)
class FoldedFamily:
    """A family of groups after folding."""

    group_of_rank: Ints  # (R,) index of each rank's group, or `NONE`
    class_of_group: Ints  # (G,) groups that are alike share a class
    placement_of_class: tuple[Placement, ...]  # of each class of groups
    dimensions_of_class: tuple[tuple[int, ...], ...]  # those of the topology that its members differ in
    members_of_class: tuple[tuple[int, ...], ...]  # the rank classes that take part


@dataclass(frozen=True, eq=False)
class Folding:
    """Classes of ranks."""

    class_of_rank: Ints  # (R,)
    representative: Ints  # (C,) the lowest rank of each class
    families: dict[int, FoldedFamily]  # those that any graph uses, by their index in the program


def fold(program: Program, topology: Topology, *, unfold: bool = False, orbits: Ints | None = None) -> Folding:
    """Find the classes of ranks of a program on a topology.

    With `unfold` every rank is a class of its own, with the same result. Ranks share a class only where they share
    their number in `orbits`, (R,), as groups without common members slow each other down on shared links.
    """
    columns = found_once(program.graphs, ("group", "collective"), lambda graph: graph.group[graph.collective != NONE])
    used = np.unique(np.concatenate([np.zeros(0, np.int64), *columns])).tolist()
    groups = {index: _group_of_rank(program.groups[index], program.num_ranks) for index in used}
    shapes = {index: _shapes(program.groups[index], topology, alike=orbits is not None)[0] for index in used}
    unfolded = np.array(roles_that_name_ranks(program))
    ranks = np.arange(program.num_ranks)
    apart = unfold | unfolded[program.role_of_rank]
    peers = [] if apart.all() else list(relative_peers_of_program(program).values())
    back = [] if apart.all() else list(named_back(program).T)
    classes = _number(
        np.stack(
            [
                program.role_of_rank,
                np.where(apart, ranks, -1 if orbits is None else orbits),
                *(column for ends in peers for column in _distances(topology, ends)),
                *back,
            ],
            axis=1,
        )
    )
    while True:
        columns = [classes, *(np.where(ends == NONE, NONE, classes[ends]) for ends in peers)]
        for index in used:
            alike = _alike(program.groups[index], shapes[index], classes)
            columns.append(np.where(groups[index] == NONE, NONE, alike[groups[index]]))
        refined = _number(np.stack(columns, axis=1))
        if refined.max() == classes.max():
            break
        classes = refined
    representative = np.unique(classes, return_index=True)[1].astype(np.int64)
    families = {
        index: _folded(program.groups[index], topology, groups[index], shapes[index], classes) for index in used
    }
    return Folding(classes, representative, families)


def _distances(topology: Topology, peers: Ints) -> list[Ints]:
    """How far each rank's peer is away, a column a dimension; `NONE` for ranks without one."""
    having = np.flatnonzero(peers != NONE)
    columns = np.full((len(topology.dimensions), len(peers)), NONE, np.int64)
    columns[:, having] = distances(topology, having, peers[having]).T
    return list(columns)


def _number(rows: Ints) -> Ints:
    """Number distinct rows by first appearance, so that classes are in the order of their lowest rank."""
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[inverse.reshape(-1)], np.int64)


def _group_of_rank(family: GroupFamily, num_ranks: int) -> Ints:
    column = np.full(num_ranks, NONE, np.int64)
    for numbers, members in family.blocks:
        column[members] = numbers[:, None]
    return column


def placements_of(family: GroupFamily, topology: Topology) -> list[Placement]:
    """Return the placements of a family's groups, each once or a few times."""
    return [place(topology, family.members[number]) for number in _shapes(family, topology)[1]]


def _shapes(family: GroupFamily, topology: Topology, *, alike: bool = False) -> tuple[Ints, list[int]]:
    """Number groups (G,) by placement, translated copies alike if `alike` or on even topologies; the first of each."""
    anywhere = alike or topology.even
    rows: list[tuple[bytes, Placement | None]] = [(b"", None)] * len(family.members)
    for numbers, members in family.blocks:
        coordinates = topology.coordinates(members.ravel()).reshape(*members.shape, -1)
        for number, shape in zip(numbers.tolist(), coordinates - coordinates[:, :1], strict=True):
            rows[number] = shape.tobytes(), None if anywhere else place(topology, family.members[number])
    return _distinct(rows)


def _alike(family: GroupFamily, position: Ints, classes: Ints) -> Ints:
    """(G,) class of each group: where it lies, and the classes of its members in any order."""
    rows: list[tuple[int, bytes]] = [(0, b"")] * len(family.members)
    for numbers, members in family.blocks:
        of_members = np.sort(classes[members], axis=1)
        for number, where, row in zip(numbers.tolist(), position[numbers].tolist(), of_members, strict=True):
            rows[number] = (where, row.tobytes())
    return _distinct(rows)[0]


def _distinct(rows: Sequence[Hashable]) -> tuple[Ints, list[int]]:
    """Number distinct rows by first appearance; return the number of each, and where each number appears first."""
    found: dict[Hashable, int] = {}
    column = np.fromiter((found.setdefault(row, len(found)) for row in rows), np.int64, len(rows))
    return column, np.unique(column, return_index=True)[1].tolist()


def _folded(family: GroupFamily, topology: Topology, group_of_rank: Ints, shapes: Ints, classes: Ints) -> FoldedFamily:
    class_of_group = _alike(family, shapes, classes)
    first = np.unique(class_of_group, return_index=True)[1]
    members = [list(family.members[group]) for group in first]
    _, places, same = np.unique(shapes[first] if topology.even else first, return_index=True, return_inverse=True)
    placements = [place(topology, members[number]) for number in places]
    return FoldedFamily(
        group_of_rank,
        class_of_group,
        tuple(placements[number] for number in same),
        tuple(tuple(np.flatnonzero(np.ptp(topology.coordinates(ranks), axis=0)).tolist()) for ranks in members),
        tuple(tuple(sorted(set(classes[ranks].tolist()))) for ranks in members),
    )
