"""Pairs of kernels and a collective next to them, of which schedules make one operator.

A kernel makes a collective's data where the collective waits for nothing else, or for a join of such kernels; it takes
the data where nothing else waits for the collective.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, NodeKind
from scaleout.program.program import Program

PRODUCERS = {
    "all_to_all": ("embedding_bag_fwd", "gemm"),
    "all_reduce": ("gemm", "gemv"),
    "reduce_scatter": ("gemm",),
}
"""Collective to the operations that can be fused into it as they make its data."""

CONSUMERS = {"all_to_all": ("embedding_bag_bwd_sparse", "embedding_sgd_sparse")}
"""Collective to the operations that can be fused with it as they consume its data."""

KEEPS_A_SHARE = ("all_to_all", "reduce_scatter")
"""Collectives of which a rank keeps the share 1/p: that slice is computed and not sent."""


@dataclass(frozen=True)
class Pair:
    """A collective, the kernels that make its data or the one that takes it, and how they are cut.

    `kept` is the share of the kernels' work that is not sent.
    """

    collective: int
    kernels: tuple[int, ...]
    produces: bool
    slices: int
    kept: float


def find_pairs(graph: ExecutionGraph, group_sizes: Sequence[int], slices: int) -> list[Pair]:
    """Find what can be fused; a kernel belongs to one pair at most, the first in program order.

    `group_sizes` has a size for each process-group set; a collective is cut into at most so many `slices`. What another
    pass has cut stays as it is.
    """
    taken: set[int] = set()
    pairs = []
    for node in np.flatnonzero((graph.kind == NodeKind.COLLECTIVE) & (graph.slices == 1)).tolist():
        kind = COLLECTIVES[graph.collective[node]]
        makers = _makers(graph, graph.dependencies_of(node).tolist()) if kind in PRODUCERS else []
        size, users = group_sizes[graph.group[node]], graph.users_of(node)
        for kernels, produces, operations in (
            (makers, True, PRODUCERS.get(kind, ())),
            (users if len(users) == 1 else [], False, CONSUMERS.get(kind, ())),
        ):
            fits = kernels and all(
                graph.operation(kernel) in operations and _is_whole(graph, kernel) for kernel in kernels
            )
            if not fits or taken.intersection(kernels):
                continue
            # Each maker's slices are sent on their own, so there are at least as many slices as makers.
            count = max(min(slices, int(graph.bytes[node])) // len(kernels), 1) * len(kernels)
            kept = 1 / size if kind in KEEPS_A_SHARE else 0.0
            pairs.append(Pair(node, tuple(kernels), produces, count, kept))
            taken.update(kernels)
            break
    return pairs


def _is_whole(graph: ExecutionGraph, node: int) -> bool:
    """Whether a kernel does all the work of its call: no pass has cut it into parts."""
    call = graph.kernels[graph.kernel[node]]
    return bool(graph.flops[node] == call.flops and graph.bytes[node] == call.bytes)


def keys_of(graphs: Sequence[ExecutionGraph]) -> list[dict[int, tuple[int, int]]]:
    """Return, for the collectives of each graph, the group and which of the group's collectives each is.

    Where members of a group run several graphs, equal keys are one collective instance.
    """
    names: list[dict[int, tuple[int, int]]] = []
    for graph in graphs:
        count: Counter[int] = Counter()
        names.append({})
        nodes = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)
        for node, group in zip(nodes.tolist(), graph.group[nodes].tolist(), strict=True):
            names[-1][node] = (group, count[group])
            count[group] += 1
    return names


def agreed(program: Program, pairs: Sequence[list[Pair]], *, uncut: int = 1, even: bool = False) -> list[list[Pair]]:
    """Leave out pairs whose collective another member of a group does not cut into as many slices.

    Roles that share no group, such as the stages of a pipeline along the tensor axis, need not agree. A collective that
    is not fused counts as `uncut` slices. With `even`, members also send equally many bytes.
    """
    names, sets = keys_of(program.graphs), _sets_of_roles(program)
    ways: dict[tuple[int, int, int], set[tuple[int, int]]] = {}
    for role, (graph, name, mine) in enumerate(zip(program.graphs, names, pairs, strict=True)):
        cut = {pair.collective: pair.slices for pair in mine}
        for node, (group, number) in name.items():
            way = cut.get(node, uncut), int(graph.bytes[node]) if even else 0
            ways.setdefault((sets[group][role], group, number), set()).add(way)
    return [
        [
            pair
            for pair in mine
            for group, number in (name[pair.collective],)
            if len(ways[sets[group][role], group, number]) == 1
        ]
        for role, (name, mine) in enumerate(zip(names, pairs, strict=True))
    ]


def _sets_of_roles(program: Program) -> list[list[int]]:
    """For each family of groups, the set of roles that are in its groups together, directly or not, a number a role."""
    found = []
    for family in program.groups:
        sets = list(range(len(program.graphs)))
        for _, members in family.blocks:
            for roles in np.unique(np.sort(program.role_of_rank[members], axis=1), axis=0).tolist():
                joined = {sets[role] for role in roles}
                sets = [min(joined) if each in joined else each for each in sets]
        found.append(sets)
    return found


def _makers(graph: ExecutionGraph, dependencies: list[int]) -> list[int]:
    """Kernels that make a collective's data, seen through a join; none if that is not all they wait for."""
    if len(dependencies) != 1 or graph.kind[dependencies[0]] != NodeKind.COMPUTE:
        return []
    if graph.kernel[dependencies[0]] == NONE and graph.duration_s[dependencies[0]] == 0:
        return [int(node) for node in graph.dependencies_of(dependencies[0]).tolist()]
    return dependencies
