"""A program on its way to the clock: classes of ranks, their graphs, and the collectives at which they meet.

Maps a folded program to tasks by number, and to meetings: which timelines come to a collective, what it is and what
it costs alone. Knows neither time nor what is in flight.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scaleout.errors import GraphError, SimulationError
from scaleout.fold import FoldedFamily, Folding
from scaleout.graph import COLLECTIVES, NONE, ExecutionGraph, NodeKind
from scaleout.network.alpha_beta import CollectiveCost, collective_cost
from scaleout.network.demand import Group
from scaleout.program import Program
from scaleout.topology import Topology

_AGREED = ("collective", "bytes", "pieces")
"""Columns in which members of a group must agree."""


@dataclass
class Meeting:
    """A collective instance: which timelines have come, and what they want to do.

    `order` decides between meetings that could take a wire at the same moment: their place in the program, and,
    where members' programs differ, the family and the count within it. It is the same folded and unfolded.
    """

    family: FoldedFamily
    group_class: int
    order: tuple[int, int, int]
    tasks: list[int] = field(default_factory=list)


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


def meetings_of(job: Job) -> list[Meeting]:
    """Match the collectives of all classes: the k-th of a rank on its group meets the k-th of the other members."""
    found: dict[tuple[int, int, int], Meeting] = {}
    for number, graph in enumerate(job.graphs):
        count: dict[int, int] = defaultdict(int)
        classes: dict[int, int] = {}
        nodes = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)
        for node, family_index in zip(nodes.tolist(), graph.group[nodes].tolist(), strict=True):
            if family_index not in classes:
                classes[family_index] = _group_class(job, number, node)
            key = (family_index, classes[family_index], count[family_index])
            order = (node, family_index, count[family_index])
            count[family_index] += 1
            meeting = found.get(key)
            if meeting is None:
                meeting = found[key] = Meeting(job.folding.families[family_index], classes[family_index], order)
            elif order < meeting.order:
                meeting.order = order
            meeting.tasks.append(job.offsets[number] + node)
    _check_agreement(job, list(found.values()))
    return sorted(found.values(), key=lambda meeting: meeting.order)


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


def _check_agreement(job: Job, meetings: Sequence[Meeting]) -> None:
    """Refuse a meeting at which not all want to do the same."""
    firsts = np.repeat([meeting.tasks[0] for meeting in meetings], [len(meeting.tasks) for meeting in meetings])
    tasks = np.array([task for meeting in meetings for task in meeting.tasks], np.int64)
    for column in _AGREED if meetings else ():
        values = np.concatenate([getattr(graph, column) for graph in job.graphs])
        if (values[tasks] != values[firsts]).any():
            for meeting in meetings:
                _check_meeting(job, meeting)


def _check_meeting(job: Job, meeting: Meeting) -> None:
    first, *others = [locate(job, task) for task in meeting.tasks]
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


def groups_of(job: Job, meeting: Meeting) -> tuple[Group, ...]:
    """Return all groups that a meeting stands for; the same object for the same ones."""
    key = (meeting.order[1], meeting.group_class)
    if key not in job.groups:
        members = job.program.groups[meeting.order[1]].members
        chosen = np.flatnonzero(meeting.family.class_of_group == meeting.group_class).tolist()
        job.groups[key] = tuple(members[number] for number in chosen)
    return job.groups[key]


def asked(job: Job, meeting: Meeting) -> tuple[str, float, int]:
    """Return the kind of a meeting's collective, the bytes of its whole transfer, and the slices that it is cut in."""
    number, node = locate(job, meeting.tasks[0])
    graph = job.graphs[number]
    pieces = int(graph.pieces[node])
    name = COLLECTIVES[graph.collective[node]]
    if name == "barrier":  # the shortest message that everyone has to send to everyone
        return "all_reduce", 1.0, pieces
    return name, float(int(graph.bytes[node]) * pieces), pieces


def cost_of(job: Job, meeting: Meeting) -> CollectiveCost:
    """Charge the whole transfer that a meeting belongs to: a slice is part of one, with the algorithm of the whole."""
    name, size_bytes, _ = asked(job, meeting)
    return cost_among(job, meeting.family, meeting.group_class, name, size_bytes)


def cost_among(job: Job, family: FoldedFamily, group_class: int, kind: str, size_bytes: float) -> CollectiveCost:
    """Charge a collective of the groups of a class."""
    key = (id(family), group_class, kind, size_bytes)
    cost = job.costs.get(key)
    if cost is None:
        placement = family.placement_of_class[group_class]
        cost = collective_cost(kind, size_bytes, placement, job.algorithms.get(kind, "auto"))
        job.costs[key] = cost
    return cost
