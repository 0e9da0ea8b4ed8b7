"""Programs: the graphs of a whole job, which rank runs which, and the process groups that its collectives span.

Ranks that run the same graph share a *role*, and the graph is stored once. Programs know nothing of time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from scaleout.config.units import counted
from scaleout.errors import GraphError, shown
from scaleout.program.graph import NONE, ExecutionGraph, Ints, NodeKind, found_once


@dataclass(frozen=True, eq=False)
class GroupFamily:
    """Disjoint process groups of one axis, such as all tensor-parallel groups of a job."""

    name: str  # its name in the program, or the group's key in a trace
    members: tuple[tuple[int, ...], ...]  # the ranks of each group, in group order
    # the parallelism axis that its communication counts for: `data`, `tensor`, `context`, `expert`, `pipeline`, or
    # `world` for all of them; by default the name
    axis: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "axis", self.axis or self.name)
        ranks = np.sort(np.concatenate([np.zeros(0, np.int64), *(block.ravel() for _, block in self.blocks)]))
        repeats = np.flatnonzero(ranks[1:] == ranks[:-1])
        if repeats.size:
            rank = ranks[repeats[0]]
            raise GraphError(f"group {self.name!r} has rank {rank} twice; a rank is in at most one group of an axis")

    @cached_property
    def group_of_rank(self) -> dict[int, int]:
        """Rank to the index of its group; ranks outside are absent."""
        return {rank: index for index, group in enumerate(self.members) for rank in group}

    @cached_property
    def blocks(self) -> tuple[tuple[Ints, Ints], ...]:
        """The groups as arrays, those of one size together: numbers of G groups, (G,), and members, (G, m)."""
        sizes = np.fromiter(map(len, self.members), np.int64, len(self.members))
        return tuple(
            (numbers, np.array([self.members[number] for number in numbers.tolist()], np.int64))
            for numbers in (np.flatnonzero(sizes == size) for size in sorted(set(sizes.tolist())))
        )

    @cached_property
    def extremes(self) -> tuple[int, ...]:
        """The lowest and the highest rank of all groups; nothing if there is no group."""
        members = [block for _, block in self.blocks if block.size]
        return (int(min(map(np.min, members))), int(max(map(np.max, members)))) if members else ()

    def of(self, rank: int) -> tuple[int, ...]:
        """Return the members of a rank's group, or raise `GraphError` if it is in none."""
        index = self.group_of_rank.get(rank)
        if index is None:
            raise GraphError(f"rank {rank} is in no group {self.name!r}; add it, or remove its collective there")
        return self.members[index]


@dataclass(frozen=True, eq=False)
class Program:
    """The execution graphs of a job."""

    name: str
    graphs: tuple[ExecutionGraph, ...]  # one a role
    role_of_rank: Ints  # (R,) which graph each rank runs
    groups: tuple[GroupFamily, ...]  # what the graphs' `group` column indexes
    # (R, P) for each rank the distinct ranks that its messages name, filled up with `NONE`: where given, `peer` of a
    # message without a group indexes its rank's row, so that ranks that name others can share a graph
    peers: Ints | None = None

    def __post_init__(self) -> None:
        for name, given in (("graphs", self.graphs), ("groups", self.groups)):
            if not isinstance(given, tuple):
                raise GraphError(f"{shown(given)} stands for the program's {name}; give a tuple of them")
        roles = self.role_of_rank
        if not (isinstance(roles, np.ndarray) and roles.ndim == 1 and roles.dtype.kind in "iu"):
            raise GraphError(f"{shown(roles)} stands for the roles of ranks; give an array of a whole number for each")
        roles.flags.writeable = False
        if not (self.peers is None or (isinstance(self.peers, np.ndarray) and len(self.peers) == self.num_ranks)):
            raise GraphError(f"{shown(self.peers)} stands for the peers of ranks; give an array of a row for each rank")
        for family in self.groups:
            if not isinstance(family, GroupFamily):
                raise GraphError(f"{shown(family)} stands for groups of the program; give a GroupFamily for each")
        for family in self.groups:
            for rank in family.extremes:
                if not 0 <= rank < self.num_ranks:
                    raise GraphError(
                        f"group {family.name!r} has rank {rank}, which the job does not have; "
                        f"give ranks 0 to {self.num_ranks - 1}"
                    )
        for graph in self.graphs:
            if not isinstance(graph, ExecutionGraph):
                raise GraphError(f"{shown(graph)} stands for a graph of the program; return a graph for each")
        found_once(self.graphs, ("kind", "group"), self._check_groups)

    def _check_groups(self, graph: ExecutionGraph) -> None:
        communication = graph.kind == NodeKind.COLLECTIVE
        bad = np.flatnonzero(communication & ((graph.group < 0) | (graph.group >= len(self.groups))))
        if bad.size:
            node = int(bad[0])
            raise GraphError(
                f"node {node} ({graph.names[node]!r}) is a collective over group {graph.group[node]}, "
                f"which the program does not have; give it one of {counted(len(self.groups), 'group')}"
            )

    def check_roles(self) -> None:
        """Raise `GraphError` where a rank has no graph, as ranks may in a part of a program, which is not simulated."""
        roles = self.role_of_rank
        if len(roles) and not 0 <= roles.min() <= roles.max() < len(self.graphs):
            raise GraphError(f"a rank has role {roles.min()} or {roles.max()}; of graphs there are {len(self.graphs)}")

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the job, its world size."""
        return len(self.role_of_rank)

    @property
    def ranks_of_role(self) -> Ints:
        """(roles,) number of ranks that run each graph."""
        return np.bincount(self.role_of_rank, minlength=len(self.graphs)).astype(np.int64)

    @property
    def total_flops(self) -> int:
        """FLOPs of all kernels of all ranks."""
        return sum(int(count) * graph.total_flops for count, graph in zip(self.ranks_of_role, self.graphs, strict=True))

    @property
    def payload_bytes(self) -> int:
        """Payload of all communication nodes of all ranks."""
        return sum(int(n) * graph.payload_bytes for n, graph in zip(self.ranks_of_role, self.graphs, strict=True))

    @property
    def pipeline_rank(self) -> Ints:
        """The position of each rank in its pipeline, shape (R,); 0 without pipelines."""
        found = np.zeros(self.num_ranks, np.int64)
        for family in self.groups:
            if family.name == "pipeline":
                members = np.array(family.members)
                found[members] = np.arange(members.shape[1])
        return found

    def group_sizes(self, rank: int) -> tuple[int, ...]:
        """Return how many members a rank's group of each family has; 0 where it is in none."""
        groups = [(family, family.group_of_rank.get(rank)) for family in self.groups]
        return tuple(0 if number is None else len(family.members[number]) for family, number in groups)

    def map_graphs(self, change: Callable[[ExecutionGraph], ExecutionGraph]) -> "Program":
        """Return the program with each graph replaced; this one stays as it is."""
        return replace(self, graphs=tuple(change(graph) for graph in self.graphs))

    def map_columns(self, change: Callable[[ExecutionGraph], ExecutionGraph], reads: Sequence[str]) -> "Program":
        """As `map_graphs`, for what replaces columns, by what `reads` names alone: graphs that share these share those.

        So many ranks whose kernels take other times are in memory once but for these.
        """
        known: dict[tuple[int, ...], tuple[ExecutionGraph, ExecutionGraph]] = {}
        changed = []
        for graph in self.graphs:
            key = (len(graph), *(id(getattr(graph, name)) for name in reads))
            if key not in known:
                known[key] = graph, change(graph)
                changed.append(known[key][1])
                continue
            before, after = known[key]
            pairs = {
                column.name: (getattr(before, column.name), getattr(after, column.name)) for column in fields(graph)
            }
            changed.append(graph.with_columns(**{name: new for name, (old, new) in pairs.items() if new is not old}))
        return replace(self, graphs=tuple(changed))


def with_distinct_roles(program: Program) -> Program:
    """Return the program with equal graphs as one role, as a program that is read from traces has them."""
    first: list[int] = []
    sums: dict[tuple[int, int, int], list[int]] = {}  # roles whose graphs may be equal
    role: list[int] = []
    for number, graph in enumerate(program.graphs):
        near = sums.setdefault((len(graph), graph.total_flops, graph.payload_bytes), [])
        same = next((each for each in near if _same(program.graphs[first[each]], graph)), None)
        if same is None:
            same = len(first)
            near.append(same)
            first.append(number)
        role.append(same)
    if len(first) == len(role):
        return program
    graphs = tuple(program.graphs[number] for number in first)
    return replace(program, graphs=graphs, role_of_rank=np.array(role, np.int64)[program.role_of_rank])


def _same(one: ExecutionGraph, other: ExecutionGraph) -> bool:
    """Whether two graphs are equal, node by node."""
    return all(_equal(getattr(one, column.name), getattr(other, column.name)) for column in fields(ExecutionGraph))


def alike(one: Program, other: Program) -> bool:
    """Whether two programs are equal, node by node, and in the groups up to the last that a node names."""
    last = max((int(graph.group.max(initial=NONE)) for graph in one.graphs), default=NONE)
    groups = ([(each.name, each.members, each.axis) for each in program.groups[: last + 1]] for program in (one, other))
    return (
        len(one.graphs) == len(other.graphs)
        and _equal(one.role_of_rank, other.role_of_rank)
        and _equal(one.peers, other.peers)
        and _equal(*groups)
        and all(map(_same, one.graphs, other.graphs))
    )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one is other or np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return one is other or bool(one == other)
