"""A folded program: classes of ranks, their graphs, and the instances of their collectives.

Numbers the nodes of all classes as tasks, and matches collectives to instances: which tasks arrive, what the
collective is and what it costs in isolation. Knows neither time nor what is in flight.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from scaleout.cluster.topology.topology import Topology
from scaleout.errors import GraphError, SimulationError
from scaleout.network.alpha_beta.cost import CollectiveCost, collective_cost, one_sided, send_cost
from scaleout.network.flow.demand import Group
from scaleout.program.graph import COLLECTIVES, FLOAT_COLUMNS, NONE, ExecutionGraph, Ints, NodeKind
from scaleout.program.operations import TimeSource
from scaleout.program.program import Program
from scaleout.simulation.columns import distinct
from scaleout.simulation.fold import FoldedFamily, Folding

_AGREED = ("collective", "bytes", "slices")
"""Columns in which members of a group must agree; but for the bytes of all-to-alls, of which each sends its own."""

_ALL_TO_ALL = COLLECTIVES.index("all_to_all")


class CollectiveInstance(NamedTuple):
    """A collective instance: the groups that it stands for, and the tasks that arrive at it."""

    family: int
    group_class: int
    tasks: tuple[int, ...]
    size_bytes: int  # the most of any member


@dataclass(frozen=True, eq=False)
class CollectiveInstances:
    """The M collective instances of a program, at which T tasks arrive.

    Their order decides between those that could take a link at the same moment: their order in the program, and, where
    members' programs differ, the family and the count within it. It is the same folded and unfolded.
    """

    family: Ints  # (M,)
    group_class: Ints  # (M,)
    tasks: Ints  # (T,) instance by instance, those of the first class first
    offsets: Ints  # (M + 1,) first index of each instance's tasks
    size_bytes: Ints  # (M,) the most of any member

    def __len__(self) -> int:
        return len(self.family)

    def __getitem__(self, index: int) -> CollectiveInstance:
        tasks = self.tasks[self.offsets[index] : self.offsets[index + 1]]
        return CollectiveInstance(
            int(self.family[index]), int(self.group_class[index]), tuple(tasks.tolist()), int(self.size_bytes[index])
        )

    def __iter__(self) -> Iterator[CollectiveInstance]:
        return (self[index] for index in range(len(self)))

    @property
    def firsts(self) -> Ints:
        """(M,) first task of each."""
        return self.tasks[self.offsets[:-1]]


@dataclass(frozen=True, eq=False)
class FoldedProgram:
    """A program on a topology with one graph for each class of ranks; tasks are the nodes of all classes in order."""

    program: Program
    topology: Topology
    algorithms: Mapping[str, str]
    folding: Folding
    _costs: dict[tuple[int, int, str, float], CollectiveCost] = field(default_factory=dict)
    _messages: dict[tuple[float, int, int], CollectiveCost] = field(default_factory=dict)
    _groups: dict[tuple[int, int], tuple[Group, ...]] = field(default_factory=dict)

    @cached_property
    def graphs(self) -> list[ExecutionGraph]:
        """The graph of each class of ranks."""
        return [self.program.graphs[self.program.role_of_rank[rank]] for rank in self.folding.representative]

    @cached_property
    def offsets(self) -> list[int]:
        """First task of each class, and the number of tasks."""
        return [0, *np.cumsum([len(graph) for graph in self.graphs]).tolist()]

    def column(self, name: str) -> Any:
        """Return a column of the graphs of all classes, one after another, (N,); zeros take no memory."""
        parts = [getattr(graph, name) for graph in self.graphs]
        if all(part is parts[0] for part in parts):
            return np.tile(parts[0], len(parts)) if parts[0].any() else np.zeros(self.offsets[-1], parts[0].dtype)
        column = np.zeros(self.offsets[-1], parts[0].dtype)
        some = {key for key, part in {id(part): part for part in parts}.items() if part.any()}
        for offset, part in zip(self.offsets, parts, strict=False):
            if id(part) in some:
                column[offset : offset + len(part)] = part
        return column

    def values(self, name: str, tasks: Ints) -> Any:
        """Return a column at some tasks; the others are not laid out where these are none, as messages may be."""
        return self.column(name)[tasks] if len(tasks) else np.zeros(0, getattr(self.graphs[0], name).dtype)

    def locate(self, task: int) -> tuple[int, int]:
        """Return the class and the index within its graph of a task."""
        number = bisect_right(self.offsets, task) - 1
        return number, task - self.offsets[number]

    def name(self, number: int, node: int) -> str:
        """Name a node of a class, for the user."""
        return f"rank {self.folding.representative[number]}, node {node} ({self.graphs[number].names[node]!r})"

    def kinds_of(self, instances: CollectiveInstances, *columns: str) -> tuple[Ints, Ints]:
        """Return the first of all instances alike in groups, bytes and some columns, and which each is of, (M,)."""
        values = [self.column(name)[instances.firsts] for name in columns]
        for index, name in enumerate(columns):
            if name in FLOAT_COLUMNS:
                values[index] = np.unique(values[index], return_inverse=True)[1]
        return distinct(instances.family, instances.group_class, instances.size_bytes, *values)

    def groups_of(self, instance: CollectiveInstance) -> tuple[Group, ...]:
        """Return all groups that an instance stands for; the same object for the same ones."""
        key = (instance.family, instance.group_class)
        if key not in self._groups:
            members = self.program.groups[instance.family].members
            chosen = np.flatnonzero(self.folding.families[instance.family].class_of_group == instance.group_class)
            self._groups[key] = tuple(members[number] for number in chosen.tolist())
        return self._groups[key]

    def request_of(self, instance: CollectiveInstance) -> tuple[str, float, int]:
        """Return the kind of an instance's collective, the bytes of its whole transfer, and its number of slices."""
        number, node = self.locate(instance.tasks[0])
        graph = self.graphs[number]
        slices = int(graph.slices[node])
        return *transfer_of(COLLECTIVES[graph.collective[node]], float(instance.size_bytes * slices)), slices

    def cost_of(self, instance: CollectiveInstance) -> CollectiveCost:
        """Cost of the whole transfer that an instance is a slice of, with the algorithm of the whole."""
        kind, size_bytes, slices = self.request_of(instance)
        if self.is_recorded(instance):
            return CollectiveCost(0.0, slices * self.gap_s(instance), RECORDED)
        whole = self.cost_among(self.folding.families[instance.family], instance.group_class, kind, size_bytes)
        return one_sided(whole, slices * self.gap_s(instance)) if self.is_one_sided(instance) else whole

    def message_cost(self, number: int, node: int, size_bytes: float, ends: tuple[int, int]) -> CollectiveCost:
        """Cost of a message between two ranks: as recorded, or of its bytes on the network."""
        if is_recorded(self.graphs[number], node):
            return CollectiveCost(0.0, float(self.graphs[number].duration_s[node]), RECORDED)
        if (size_bytes, *ends) not in self._messages:
            cost = send_cost(size_bytes, self.topology, source=ends[0], destination=ends[1])
            self._messages[size_bytes, *ends] = cost
        return self._messages[size_bytes, *ends]

    def is_one_sided(self, instance: CollectiveInstance) -> bool:
        """Whether the work-groups of kernels carry an instance out, not the communication library."""
        return not (math.isnan(self.gap_s(instance)) or self.is_recorded(instance))

    def is_recorded(self, instance: CollectiveInstance) -> bool:
        """Whether an instance takes the time that was recorded, not the network's."""
        number, node = self.locate(instance.tasks[0])
        return is_recorded(self.graphs[number], node)

    def gap_s(self, instance: CollectiveInstance) -> float:
        """Return what an instance that is one-sided takes of the links beyond its bytes; NaN for others."""
        number, node = self.locate(instance.tasks[0])
        return float(self.graphs[number].duration_s[node])

    def cost_among(self, family: FoldedFamily, group_class: int, kind: str, size_bytes: float) -> CollectiveCost:
        """Cost of a collective of the groups of a class."""
        key = (id(family), group_class, kind, size_bytes)
        if key not in self._costs:
            placement = family.placement_of_class[group_class]
            self._costs[key] = collective_cost(kind, size_bytes, placement, self.algorithms.get(kind, "auto"))
        return self._costs[key]


def instances_of(folded: FoldedProgram) -> CollectiveInstances:
    """Match the collectives of all classes: the k-th of a rank on its group meets the k-th of the other members."""
    tasks = np.flatnonzero(folded.column("kind") == NodeKind.COLLECTIVE)
    number = np.searchsorted(folded.offsets, tasks, side="right") - 1
    family = folded.column("group")[tasks].astype(np.int64)
    node = tasks - np.array(folded.offsets, np.int64)[number]

    calls, first, of_task = np.unique(number * _wide(family) + family, return_index=True, return_inverse=True)
    classes = np.array([_group_class(folded, int(number[task]), int(node[task])) for task in first], np.int64)
    group_class, count = classes[of_task], _count_of(of_task, len(calls))

    key = (family * _wide(group_class) + group_class) * _wide(count) + count
    by_key = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.diff(key[by_key], prepend=-1))
    node_of = np.minimum.reduceat(node[by_key], begins) if len(begins) else begins
    found = by_key[begins]
    order = np.lexsort((found, count[found], family[found], node_of))

    sizes = np.diff(begins, append=len(tasks))
    offsets = np.concatenate(([0], np.cumsum(sizes[order])))
    within = np.arange(len(tasks)) - np.repeat(offsets[:-1], sizes[order])
    ordered = tasks[by_key[np.repeat(begins[order], sizes[order]) + within]]
    size_bytes = np.maximum.reduceat(folded.column("bytes")[ordered], offsets[:-1]) if len(ordered) else ordered
    instances = CollectiveInstances(family[found[order]], group_class[found[order]], ordered, offsets, size_bytes)
    _check_agreement(folded, instances)
    return instances


def _wide(values: Ints) -> int:
    """Number of whole numbers, from zero, that hold the values."""
    return int(values.max(initial=0)) + 1


def _count_of(labels: Ints, size: int) -> Ints:
    """For each label, how many of it came before."""
    order = np.argsort(labels, kind="stable")
    counts = np.bincount(labels, minlength=size)
    found = np.empty(len(labels), np.int64)
    found[order] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return found


def _group_class(folded: FoldedProgram, number: int, node: int) -> int:
    """Return the class of the group of a node's collective."""
    rank, family_index = int(folded.folding.representative[number]), int(folded.graphs[number].group[node])
    family = folded.folding.families[family_index]
    group = int(family.group_of_rank[rank])
    if group == NONE:
        raise GraphError(
            f"rank {rank}, node {node} ({folded.graphs[number].names[node]!r}): the rank is in no group "
            f"{folded.program.groups[family_index].name!r}; add it to the group or remove the collective"
        )
    return int(family.class_of_group[group])


def _check_agreement(folded: FoldedProgram, instances: CollectiveInstances) -> None:
    """Refuse an instance whose members differ in what they call."""
    firsts = np.repeat(instances.firsts, np.diff(instances.offsets))
    for column in _AGREED:
        values = folded.column(column)
        differ = values[instances.tasks] != values[firsts]
        if column == "bytes" and differ.any():
            differ &= folded.column("collective")[firsts] != _ALL_TO_ALL
        if differ.any():
            for instance in instances:
                _check_instance(folded, instance)


def _check_instance(folded: FoldedProgram, instance: CollectiveInstance) -> None:
    first, *others = [folded.locate(task) for task in instance.tasks]
    for number, node in others:
        mine, theirs = folded.graphs[first[0]], folded.graphs[number]
        for column in _AGREED:
            if column == "bytes" and mine.collective[first[1]] == _ALL_TO_ALL:
                continue
            if getattr(mine, column)[first[1]] != getattr(theirs, column)[node]:
                raise SimulationError(
                    f"{folded.name(*first)} meets {folded.name(number, node)} on the same group, but they "
                    f"differ in {column}: {describe(mine, first[1])} against {describe(theirs, node)}; all members "
                    f"of a group must call the same collectives in the same order"
                )


def describe(graph: ExecutionGraph, node: int) -> str:
    """Say what a collective is, for the user."""
    return f"{COLLECTIVES[graph.collective[node]]} of {graph.bytes[node]} B"


RECORDED = "recorded"
"""In the place of an algorithm, for communication whose time was recorded."""

RECORDED_SOURCES = (TimeSource.RECORDED, TimeSource.SCALED)
"""Sources of times of communication that are recorded, or scaled from these, and not the network's."""


def is_recorded(graph: ExecutionGraph, node: int) -> bool:
    """Whether communication takes a time of `RECORDED_SOURCES`."""
    return int(graph.time_source[node]) in RECORDED_SOURCES


def transfer_of(kind: str, size_bytes: float) -> tuple[str, float]:
    """Return the kind and bytes that a collective is timed as: a barrier as the shortest all-reduce."""
    return ("all_reduce", 1.0) if kind == "barrier" else (kind, size_bytes)
