"""Primitive substitution and group partition: one collective as several that follow each other, where a caller chooses.

An all-reduce becomes a reduce-scatter and an all-gather; the other substitutes of Table 2 are left out, as those
through one root double the latency and collectives of a graph have no roots to spread. A collective over several levels
of a network becomes one on each level. Levels are the dimensions that a group extends along, neighbours of equal
bandwidth together. An all-gather goes from the outermost level inwards, a reduce-scatter outwards: every shard crosses
the slow links once, and each rank receives as many bytes as before. See docs/models/centauri.md.
Source: Chen et al., Centauri, Secs. 3.1.1 and 3.1.2.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np

from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.cluster.device.spec import Device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.dimension import Dimension
from scaleout.cluster.topology.placement import congruent_members, place
from scaleout.cluster.topology.topology import Topology
from scaleout.program.graph import COLLECTIVES, ExecutionGraph, NodeKind
from scaleout.program.operations import ITEM_BYTES, kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule.overlap import COMPUTE_STREAM
from scaleout.schedule.rewrite import JOIN, Rewrite

Chooser = Callable[[int, str, int], bool]
"""Whether a collective is rewritten: its family of groups, its kind and its bytes, on which all members agree."""

_KINDS = ("reduce_scatter", "all_gather")
"""What an all-reduce becomes, in this order."""

LEVELLED = (*_KINDS, "all_to_all")
"""What is carried out by levels."""

_NAMES = ("intra", "inter")


def substitute(program: Program, *, chosen: Chooser = lambda family, kind, size_bytes: True) -> Program:
    """Write every all-reduce that is chosen as a reduce-scatter and an all-gather of the same bytes."""

    def parts(graph: ExecutionGraph, node: int) -> list[dict[str, Any]]:
        return [{"name": f"{graph.names[node]}_{kind}", "collective": COLLECTIVES.index(kind)} for kind in _KINDS]

    return program.map_graphs(lambda graph: _replaced(graph, ("all_reduce",), chosen, parts))


def _replaced(
    graph: ExecutionGraph,
    kinds: Sequence[str],
    chosen: Chooser,
    parts: Callable[[ExecutionGraph, int], Iterable[dict[str, Any]]],
) -> ExecutionGraph:
    """Write whole collectives of some kinds that are chosen as parts that follow each other: what differs in each."""
    whole = np.isin(graph.collective, [COLLECTIVES.index(kind) for kind in kinds]) & (graph.slices == 1)
    found = [
        node
        for node in np.flatnonzero(whole).tolist()
        if chosen(int(graph.group[node]), COLLECTIVES[graph.collective[node]], int(graph.bytes[node]))
    ]
    if not found:
        return graph
    new, upto = Rewrite(graph), 0
    for node in found:
        new.keep(upto, node)
        upto = node + 1
        after = new.needs(node)
        for changes in parts(graph, node):
            after = [new.add(node, after, **changes)]
        new.done[node] = after[0]
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
    used = {int(group) for graph in program.graphs for group in graph.group[graph.kind == NodeKind.COLLECTIVE]}
    families = list(program.groups)
    levels: dict[int, tuple[Levels, int]] = {}  # and the number of the first of its families
    for number in sorted(used):
        found = levels_of(program.groups[number], machine.topology)
        if isinstance(found, Levels):
            levels[number] = (found, len(families))
            families += found.families
    if not levels:
        return program
    free = 1 + max((int(graph.stream.max()) for graph in program.graphs if len(graph)), default=0)

    def parts(graph: ExecutionGraph, node: int) -> Iterable[dict[str, Any]]:
        found, first = levels[int(graph.group[node])]
        order = range(len(found.sizes))
        kind, size_bytes = COLLECTIVES[graph.collective[node]], int(graph.bytes[node])
        for number in order[::-1] if kind == "all_gather" else order:
            if kind == "all_to_all" and number:
                seconds = sorting_s(machine.device, size_bytes)
                yield {**JOIN, "name": f"{graph.names[node]}_sorted", "duration_s": seconds, "bytes": 2 * size_bytes}
            group, aside = first + number, graph.stream[node] != COMPUTE_STREAM
            yield {
                "name": f"{graph.names[node]}_{_name(number, len(order))}",
                "group": group,
                "bytes": bytes_on_level(kind, size_bytes, found.sizes, number),
                "stream": free - len(program.groups) + group if aside else COMPUTE_STREAM,
            }

    def divides(family: int, kind: str, size_bytes: int) -> bool:
        return family in levels and chosen(family, kind, size_bytes)

    graphs = tuple(_replaced(graph, LEVELLED, divides, parts) for graph in program.graphs)
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
