"""Primitive substitution and group partition: one collective as several that follow each other, where a caller chooses.

`SUBSTITUTES` is Table 2; Centauri itself takes the unrooted ones, as the paper prunes those through one root, and
`substituted` carries out any, whether that pays or not. A collective over several levels of a network becomes one on
each level. Levels are the dimensions that a group extends along, neighbours of equal
bandwidth together. An all-gather goes from the outermost level inwards, a reduce-scatter outwards: every shard crosses
the slow links once, and each rank receives as many bytes as before. See docs/models/centauri.md.
Source: Chen et al., Centauri, Secs. 3.1.1 and 3.1.2, Table 2.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

import numpy as np

from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.cluster.device.spec import Device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.dimension import Dimension
from scaleout.cluster.topology.placement import congruent_members, place
from scaleout.cluster.topology.topology import Topology
from scaleout.config.reading import nearest
from scaleout.errors import ConfigError
from scaleout.program.graph import COLLECTIVES, Bools, ExecutionGraph, NodeKind
from scaleout.program.operations import ITEM_BYTES, kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule.overlap import COMPUTE_STREAM
from scaleout.schedule.rewrite import JOIN, Rewrite, divided
from scaleout.simulation.columns import distinct

Chooser = Callable[[int, str, int], bool]
"""Whether a collective is rewritten: its family of groups, its kind and its bytes, on which all members agree."""

SUBSTITUTES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "all_reduce": {
        "unrooted": ("reduce_scatter", "all_gather"),
        "rooted": ("reduce", "broadcast"),
        "distinct-roots": ("reduce", "broadcast"),  # both unrooted ones by theirs
    },
    "reduce_scatter": {"rooted": ("reduce", "scatter"), "distinct-roots": ("reduce",)},
    "all_gather": {"rooted": ("gather", "broadcast"), "distinct-roots": ("broadcast",)},
}
"""Kind to each way in which it can be substituted, and the kinds that then follow each other.

By distinct roots there is a chain of them for each member, of its shard, with the member as root.
"""

WAYS = tuple(dict.fromkeys(way for ways in SUBSTITUTES.values() for way in ways))
"""Names of the ways."""

LEVELLED = ("reduce_scatter", "all_gather", "all_to_all")
"""What is carried out by levels."""

_NAMES = ("intra", "inter")


def substituted_with(option: str) -> Callable[[Program, Machine | None], Program]:
    """Return `substituted` in one of `WAYS`; a ConfigError says that there is no such way."""
    if option not in WAYS:
        raise ConfigError(f"substituted:{option}: unknown way {option!r}; {nearest(option, WAYS)}")
    return partial(substituted, way=option)


def substituted(program: Program, machine: Machine | None = None, *, way: str = WAYS[0]) -> Program:
    """Substitute every collective that has a substitute in a way, whether that pays or not."""
    return substitute(program, way=way)


def substitute(
    program: Program, *, way: str = WAYS[0], chosen: Chooser = lambda family, kind, size_bytes: True
) -> Program:
    """Write every collective that is chosen as what `SUBSTITUTES` says; all of the same bytes but by distinct roots.

    Groups of different sizes have different numbers of roots: there collectives are left whole.
    """
    becomes = {kind: ways[way] for kind, ways in SUBSTITUTES.items() if way in ways}
    if way == "distinct-roots":
        return _by_distinct_roots(program, becomes, chosen)

    def chains(graph: ExecutionGraph, node: int) -> list[list[dict[str, Any]]]:
        return [_substitutes(graph, node, becomes)]

    return program.map_graphs(lambda graph: _replaced(graph, tuple(becomes), chosen, chains))


def _substitutes(graph: ExecutionGraph, node: int, becomes: Mapping[str, tuple[str, ...]]) -> list[dict[str, Any]]:
    """Return what differs in each collective that a node becomes."""
    kinds = becomes[COLLECTIVES[graph.collective[node]]]
    return [{"name": f"{graph.names[node]}_{kind}", "collective": COLLECTIVES.index(kind)} for kind in kinds]


def _by_distinct_roots(program: Program, becomes: Mapping[str, tuple[str, ...]], chosen: Chooser) -> Program:
    """Write collectives as chains, one for each member: the i-th shard by way of the i-th member.

    As the root is the first of a group, each but the first has a process-group set whose groups begin with its root.
    """
    families, first = list(program.groups), dict[int, int]()  # and the number of the second root's
    for number in _used(program, tuple(becomes)):
        family = program.groups[number]
        if len({len(group) for group in family.members}) == 1:
            first[number] = len(families)
            families += _begun_with_each(family)
    stream = _new_streams(program)

    def chains(graph: ExecutionGraph, node: int) -> Iterable[list[dict[str, Any]]]:
        number = int(graph.group[node])
        count = len(program.groups[number].members[0])
        shards = divided(int(graph.bytes[node]), [root / count for root in range(count + 1)])
        for root, size_bytes in enumerate(shards):
            group = first[number] + root - 1
            own = {"group": group, "stream": stream(graph, node, group)} if root else {}
            yield [
                {**part, "name": f"{part['name']}_root_{root}", "bytes": size_bytes, **own}
                for part in _substitutes(graph, node, becomes)
            ]

    def divides(family: int, kind: str, size_bytes: int) -> bool:
        return family in first and chosen(family, kind, size_bytes)

    graphs = tuple(_replaced(graph, tuple(becomes), divides, chains) for graph in program.graphs)
    return replace(program, graphs=graphs, groups=tuple(families))


def _begun_with_each(family: GroupFamily) -> list[GroupFamily]:
    """Return the groups of a family so that they begin with their second member, their third, ..."""
    return [
        GroupFamily(f"{family.name}_root_{root}", tuple(g[root:] + g[:root] for g in family.members), family.axis)
        for root in range(1, len(family.members[0]))
    ]


def _used(program: Program, kinds: Sequence[str]) -> list[int]:
    """Return the numbers of the families over which there are collectives of some kinds."""
    return sorted({int(group) for graph in program.graphs for group in graph.group[_are(graph, kinds)]})


def _are(graph: ExecutionGraph, kinds: Sequence[str]) -> Bools:
    """Return which nodes are collectives of some kinds, (N,)."""
    wanted = [COLLECTIVES.index(kind) for kind in kinds]
    return np.asarray((graph.kind == NodeKind.COLLECTIVE) & np.isin(graph.collective, wanted))


def _new_streams(program: Program) -> Callable[[ExecutionGraph, int, int], int]:
    """Return what gives a new process-group set a stream of its own, but where a node stood among the kernels."""
    free = 1 + max((int(graph.stream.max()) for graph in program.graphs if len(graph)), default=0)

    def stream(graph: ExecutionGraph, node: int, group: int) -> int:
        return free - len(program.groups) + group if graph.stream[node] != COMPUTE_STREAM else COMPUTE_STREAM

    return stream


def _replaced(
    graph: ExecutionGraph,
    kinds: Sequence[str],
    chosen: Chooser,
    chains: Callable[[ExecutionGraph, int], Iterable[Iterable[dict[str, Any]]]],
) -> ExecutionGraph:
    """Write whole collectives of some kinds that are chosen as chains of parts: what differs in each part.

    Parts of a chain follow each other; chains do not wait for each other.
    """
    nodes = np.flatnonzero(_are(graph, kinds) & (graph.slices == 1))
    columns = [column[nodes] for column in (graph.group, graph.collective, graph.bytes)]
    first, which = distinct(*columns)
    calls = zip(*(column[first].tolist() for column in columns), strict=True)
    takes = np.array([chosen(family, COLLECTIVES[kind], size_bytes) for family, kind, size_bytes in calls], bool)
    found = nodes[takes[which]].tolist()
    if not found:
        return graph
    new, upto = Rewrite(graph), 0
    for node in found:
        new.keep(upto, node)
        upto = node + 1
        ends: list[int] = []
        for chain in chains(graph, node):
            after = new.needs(node)
            for changes in chain:
                after = [new.add(node, after, **changes)]
            ends += after
        new.done[node] = ends[0] if len(ends) == 1 else new.join(node, ends)
    new.keep(upto, len(graph))
    return new.build()


@dataclass(frozen=True)
class Levels:
    """A family's sub-groups, innermost level first: a family for each, and members of a group along it."""

    families: tuple[GroupFamily, ...]
    sizes: tuple[int, ...]


@lru_cache(maxsize=256)
def levels_of(family: GroupFamily, topology: Topology) -> Levels | str:
    """Return the levels that the groups of a family divide into, or why they do not."""
    groups = family.members
    if len({len(group) for group in groups}) > 1:
        return "its groups have different sizes"
    if not groups or len(groups[0]) < 2:
        return "its groups have one rank"
    alike = groups[:1] if congruent_members(topology, groups) is not None else groups
    found = {_level_dimensions(topology, group) for group in alike}
    if len(found) > 1:
        return "its groups lie in different ways"
    (dimensions,) = found
    if isinstance(dimensions, str):
        return dimensions
    split: list[list[tuple[int, ...]]] = [[] for _ in dimensions]
    for group in groups:
        ranks = np.sort(np.array(group, np.int64))  # so that sub-groups hold the same shards everywhere
        at = topology.coordinates(ranks)
        for number, along in enumerate(dimensions):
            others = np.delete(at, along, axis=1)
            _, which = np.unique(others, axis=0, return_inverse=True)
            which = which.reshape(-1)
            split[number] += [tuple(ranks[which == part].tolist()) for part in range(int(which.max()) + 1)]
    if any(len({len(part) for part in parts}) > 1 for parts in split):
        return "its groups lie in different ways"
    return Levels(
        tuple(
            GroupFamily(f"{family.name}_{_name(number, len(split))}", tuple(members), family.axis)
            for number, members in enumerate(split)
        ),
        tuple(len(members[0]) for members in split),
    )


def _name(number: int, count: int) -> str:
    return _NAMES[number] if count == len(_NAMES) else f"level_{number}"


def _level_dimensions(topology: Topology, group: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | str:
    """Return the dimensions of each level of a group, innermost first, or why it has none."""
    if not place(topology, group).regular:
        return "its ranks are no grid in the network"
    if topology.changes:
        return "links of the network are slower than their like, so sub-groups would have unequal bandwidths"
    extends = np.flatnonzero(np.ptp(topology.coordinates(group), axis=0)).tolist()
    for number in extends:
        if _unbalanced(topology.dimensions[number]):
            return f"links of dimension {number} have unequal bandwidths"
    runs = groupby(extends, key=lambda number: topology.dimensions[number].bytes_per_s)
    found = tuple(tuple(run) for _, run in runs)
    return found if len(found) > 1 else "its links have one bandwidth; finer sub-groups would only leave links idle"


def _unbalanced(dimension: Dimension) -> bool:
    """Whether links of a dimension differ: a graph, a dragonfly, or a tree that narrows."""
    return not dimension.structure.even or any(ratio != 1 for ratio in dimension.oversubscription)


def partition_groups(
    program: Program, machine: Machine, *, chosen: Chooser = lambda family, kind, size_bytes: True
) -> Program:
    """Carry out every collective of `LEVELLED` that is chosen level by level, where its groups divide.

    Each new process-group set has a stream of its own, but where the collective stood among the kernels.
    """
    families = list(program.groups)
    levels: dict[int, tuple[Levels, int]] = {}  # and the number of the first of its families
    for number in _used(program, COLLECTIVES):
        found = levels_of(program.groups[number], machine.topology)
        if isinstance(found, Levels):
            levels[number] = (found, len(families))
            families += found.families
    if not levels:
        return program
    stream = _new_streams(program)

    def parts(graph: ExecutionGraph, node: int) -> Iterable[dict[str, Any]]:
        found, first = levels[int(graph.group[node])]
        order = range(len(found.sizes))
        kind, size_bytes = COLLECTIVES[graph.collective[node]], int(graph.bytes[node])
        for number in order[::-1] if kind == "all_gather" else order:
            if kind == "all_to_all" and number:
                seconds = sorting_s(machine.device, size_bytes)
                yield {**JOIN, "name": f"{graph.names[node]}_sorted", "duration_s": seconds, "bytes": 2 * size_bytes}
            group = first + number
            yield {
                "name": f"{graph.names[node]}_{_name(number, len(order))}",
                "group": group,
                "bytes": bytes_on_level(kind, size_bytes, found.sizes, number),
                "stream": stream(graph, node, group),
            }

    def divides(family: int, kind: str, size_bytes: int) -> bool:
        return family in levels and chosen(family, kind, size_bytes)

    graphs = tuple(
        _replaced(graph, LEVELLED, divides, lambda old, node: [parts(old, node)]) for graph in program.graphs
    )
    return replace(program, graphs=graphs, groups=tuple(families))


def bytes_on_level(kind: str, size_bytes: int, sizes: tuple[int, ...], number: int) -> int:
    """Return the bytes of the collective on one level: the buffer over all members farther in, rounded up.

    Of an all-to-all it is the whole buffer.
    """
    return size_bytes if kind == "all_to_all" else -(-size_bytes // math.prod(sizes[:number]))


@lru_cache(maxsize=4096)
def sorting_s(device: Device, size_bytes: int) -> float:
    """Return how long it takes to sort a buffer by whom it is for next: it is read and written."""
    call = kernel("clone", dtype="bf16", elements=max(size_bytes // ITEM_BYTES["bf16"], 1))
    return float(kernel_times(device, [call])[0][0])
