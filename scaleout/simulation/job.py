"""A program on its way to the engine: classes of ranks, their graphs, and the instances of their collectives.

Maps a folded program to tasks by number, and to instances: which timelines arrive at a collective, what it is and what
it costs alone. Knows neither time nor what is in flight.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from scaleout.cluster.topology.topology import Topology
from scaleout.errors import GraphError, SimulationError
from scaleout.network.alpha_beta.cost import CollectiveCost, collective_cost
from scaleout.network.flow.demand import Group
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, Ints, NodeKind
from scaleout.program.program import Program
from scaleout.simulation.fold import FoldedFamily, Folding

_AGREED = ("collective", "bytes", "pieces")
"""Columns in which members of a group must agree."""


class CollectiveInstance(NamedTuple):
    """A collective instance: the groups that it stands for, and the tasks of the timelines that come."""

    family: int
    group_class: int
    tasks: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class CollectiveInstances:
    """The M collective instances of a job, at which T tasks meet.

    Their order decides between those that could take a wire at the same moment: their place in the program, and, where
    members' programs differ, the family and the count within it. It is the same folded and unfolded.

    Attributes
    ----------
    family, group_class : (M,)
    tasks : (T,) instance by instance, those of the first class first
    offsets : (M + 1,) where each instance's tasks begin
    """

    family: Ints
    group_class: Ints
    tasks: Ints
    offsets: Ints

    def __len__(self) -> int:
        return len(self.family)

    def __getitem__(self, index: int) -> CollectiveInstance:
        tasks = self.tasks[self.offsets[index] : self.offsets[index + 1]]
        return CollectiveInstance(int(self.family[index]), int(self.group_class[index]), tuple(tasks.tolist()))

    def __iter__(self) -> Iterator[CollectiveInstance]:
        return (self[index] for index in range(len(self)))

    @property
    def firsts(self) -> Ints:
        """(M,) first task of each."""
        return self.tasks[self.offsets[:-1]]


@dataclass
class Job:
    """Everything about a program on its way to the engine; tasks are the nodes of all classes, one after another."""

    program: Program
    topology: Topology
    algorithms: Mapping[str, str]
    folding: Folding
    graphs: list[ExecutionGraph]
    offsets: list[int]
    costs: dict[tuple[int, int, str, float], CollectiveCost] = field(default_factory=dict)
    groups: dict[tuple[int, int], tuple[Group, ...]] = field(default_factory=dict)


def job_of(program: Program, topology: Topology, algorithms: Mapping[str, str], folding: Folding) -> Job:
    """Lay out the graphs of all classes of ranks."""
    graphs = [program.graphs[program.role_of_rank[rank]] for rank in folding.representative]
    offsets = [0, *np.cumsum([len(graph) for graph in graphs]).tolist()]
    return Job(program, topology, algorithms, folding, graphs, offsets)


def column_of(job: Job, name: str) -> Any:
    """Return a column of the graphs of all classes, one after another, (N,)."""
    return np.concatenate([getattr(graph, name) for graph in job.graphs])


def instances_of(job: Job) -> CollectiveInstances:
    """Match the collectives of all classes: the k-th of a rank on its group meets the k-th of the other members."""
    tasks = np.flatnonzero(column_of(job, "kind") == NodeKind.COLLECTIVE)
    number = np.searchsorted(job.offsets, tasks, side="right") - 1
    family = column_of(job, "group")[tasks].astype(np.int64)
    node = tasks - np.array(job.offsets, np.int64)[number]

    calls, first, of_task = np.unique(number * _wide(family) + family, return_index=True, return_inverse=True)
    classes = np.array([_group_class(job, int(number[task]), int(node[task])) for task in first], np.int64)
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
    instances = CollectiveInstances(family[found[order]], group_class[found[order]], ordered, offsets)
    _check_agreement(job, instances)
    return instances


def _wide(values: Ints) -> int:
    """Return how many whole numbers hold the values, from zero."""
    return int(values.max(initial=0)) + 1


def _count_of(labels: Ints, size: int) -> Ints:
    """Return for each label how many of it came before."""
    order = np.argsort(labels, kind="stable")
    counts = np.bincount(labels, minlength=size)
    found = np.empty(len(labels), np.int64)
    found[order] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return found


def _group_class(job: Job, number: int, node: int) -> int:
    """Return the class of the group of a node's collective."""
    rank, family_index = int(job.folding.representative[number]), int(job.graphs[number].group[node])
    family = job.folding.families[family_index]
    group = int(family.group_of_rank[rank])
    if group == NONE:
        raise GraphError(
            f"rank {rank}, node {node} ({job.graphs[number].names[node]!r}): the rank is in no group "
            f"{job.program.groups[family_index].name!r}; add it to the group or remove the collective"
        )
    return int(family.class_of_group[group])


def _check_agreement(job: Job, instances: CollectiveInstances) -> None:
    """Refuse an instance at which not all want to do the same."""
    firsts = np.repeat(instances.firsts, np.diff(instances.offsets))
    for column in _AGREED:
        values = column_of(job, column)
        if (values[instances.tasks] != values[firsts]).any():
            for instance in instances:
                _check_instance(job, instance)


def _check_instance(job: Job, instance: CollectiveInstance) -> None:
    first, *others = [locate(job, task) for task in instance.tasks]
    for number, node in others:
        mine, theirs = job.graphs[first[0]], job.graphs[number]
        for column in _AGREED:
            if getattr(mine, column)[first[1]] != getattr(theirs, column)[node]:
                raise SimulationError(
                    f"{name_of(job, *first)} meets {name_of(job, number, node)} on the same group, but they differ in "
                    f"{column}: {say(mine, first[1])} against {say(theirs, node)}; all members of a group must "
                    f"call the same collectives in the same order"
                )


def say(graph: ExecutionGraph, node: int) -> str:
    """Say what a collective is, for the user."""
    return f"{COLLECTIVES[graph.collective[node]]} of {graph.bytes[node]} B"


def locate(job: Job, task: int) -> tuple[int, int]:
    """Return the class and the index within its graph of a task."""
    number = bisect_right(job.offsets, task) - 1
    return number, task - job.offsets[number]


def name_of(job: Job, number: int, node: int) -> str:
    """Name a node, for the user."""
    return f"rank {job.folding.representative[number]}, node {node} ({job.graphs[number].names[node]!r})"


def groups_of(job: Job, instance: CollectiveInstance) -> tuple[Group, ...]:
    """Return all groups that an instance stands for; the same object for the same ones."""
    key = (instance.family, instance.group_class)
    if key not in job.groups:
        members = job.program.groups[instance.family].members
        chosen = np.flatnonzero(job.folding.families[instance.family].class_of_group == instance.group_class).tolist()
        job.groups[key] = tuple(members[number] for number in chosen)
    return job.groups[key]


def asked(job: Job, instance: CollectiveInstance) -> tuple[str, float, int]:
    """Return the kind of a instance's collective, the bytes of its whole transfer, and the slices that it is cut in."""
    number, node = locate(job, instance.tasks[0])
    graph = job.graphs[number]
    pieces = int(graph.pieces[node])
    return *transfer_of(COLLECTIVES[graph.collective[node]], float(int(graph.bytes[node]) * pieces)), pieces


def transfer_of(kind: str, size_bytes: float) -> tuple[str, float]:
    """Return the kind and bytes that a collective is timed as: of a barrier the shortest message of all to all."""
    return ("all_reduce", 1.0) if kind == "barrier" else (kind, size_bytes)


def cost_of(job: Job, instance: CollectiveInstance) -> CollectiveCost:
    """Cost the whole transfer that an instance belongs to: a slice is part of one, with the algorithm of the whole."""
    name, size_bytes, _ = asked(job, instance)
    return cost_among(job, job.folding.families[instance.family], instance.group_class, name, size_bytes)


def cost_among(job: Job, family: FoldedFamily, group_class: int, kind: str, size_bytes: float) -> CollectiveCost:
    """Charge a collective of the groups of a class."""
    key = (id(family), group_class, kind, size_bytes)
    cost = job.costs.get(key)
    if cost is None:
        placement = family.placement_of_class[group_class]
        cost = collective_cost(kind, size_bytes, placement, job.algorithms.get(kind, "auto"))
        job.costs[key] = cost
    return cost
