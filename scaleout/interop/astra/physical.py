"""A run of ASTRA-sim to a `Result`, and to a comparison with the same work on our own networks.

Our network runs the same program on the same topology, by the algorithm nearest to the one in system.json. Where a
collective or message of ASTRA-sim takes less time than its bytes need on the links, the comparison says by how much.
As in our results, a collective lasts from the arrival of its last member, and a receive takes no time of its own.
"""

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from scaleout.analysis.breakdown import covered
from scaleout.cluster.topology.placement import Placement, place, place_alone
from scaleout.cluster.topology.topology import Topology
from scaleout.errors import ConfigError
from scaleout.interop.astra import Outcome as AstraOutcome
from scaleout.interop.astra.algorithms import TREE, Named
from scaleout.interop.astra.as_program import Counterpart, counterpart
from scaleout.interop.astra.load import dimension_loads
from scaleout.interop.astra.trace import Task, Work
from scaleout.network.alpha_beta.lower_bound import lower_bound_s
from scaleout.network.collectives import ALGORITHMS
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, Ints, NodeKind
from scaleout.program.program import Program
from scaleout.simulation.result import Result, Timeline
from scaleout.simulation.run import simulate
from scaleout.study.comparison import Comparison
from scaleout.study.job import Outcome


@dataclass(frozen=True, eq=False)
class _Line:
    """Ranks of one history and one role; times by node [ns]."""

    ranks: tuple[int, ...]
    graph: ExecutionGraph
    tasks: list[Task]
    issued: Ints
    start: Ints
    end: Ints
    offset: int

    def before(self, node: int) -> int:
        """Return the node whose end let this one start, its dependencies first; `NONE` for none."""
        at = self.issued[node]
        candidates = np.flatnonzero(self.end == at)
        earlier = candidates[(self.issued[candidates] < at) | (candidates < node)]
        needed = earlier[np.isin(earlier, self.graph.dependencies_of(node))]
        found = needed if needed.size else earlier
        return self.offset + int(found[-1]) if found.size else NONE


def result_of(outcome: AstraOutcome, ours: Counterpart) -> Result:
    """Turn an outcome into a result of the counterpart's program."""
    lines = _lines(outcome, ours)
    causes = _causes(lines, ours)
    job = outcome.job
    names = {kind.replace("-", "_"): "+".join(job.system.implementation(kind)) for kind in job.algorithms}
    timelines = []
    for line, cause in zip(lines, causes, strict=True):
        start_s, end_s = (np.asarray(times * 1e-9, np.float64) for times in (line.start, line.end))
        used = tuple(names.get(line.graph.operation(node), "") for node in range(len(line.graph)))
        timelines.append(
            Timeline(line.graph, line.ranks, start_s, end_s, end_s - start_s, end_s - start_s, cause, used)
        )
    network = "aware" if job.aware else "unaware"
    return Result(ours.program, ours.topology.name, network, tuple(timelines))


def _lines(outcome: AstraOutcome, ours: Counterpart) -> list[_Line]:
    lines = []
    offset = 0
    for history in outcome.histories:
        by_role: dict[int, list[int]] = defaultdict(list)
        for rank in history.ranks:
            by_role[int(ours.program.role_of_rank[rank])].append(rank)
        for role, ranks in by_role.items():
            order = ours.orders[role]
            issued = np.array([history.start_ns[task] for task in order], np.int64)
            end = np.array([history.end_ns[task] for task in order], np.int64)
            tasks = [outcome.job.graphs[history.graph].tasks[task] for task in order]
            start = np.where([task.work == Work.RECV for task in tasks], end, issued)
            lines.append(_Line(tuple(ranks), ours.program.graphs[role], tasks, issued, start, end, offset))
            offset += len(order)
    return lines


def _causes(lines: Sequence[_Line], ours: Counterpart) -> list[Ints]:
    """Return what each node waited for last, and let collectives start when their last member has arrived."""
    last = _last_members(lines, ours)
    sends = _sends(lines)
    causes = []
    for line in lines:
        cause = np.array([line.before(node) for node in range(len(line.graph))], np.int64)
        received: dict[tuple[int, int, int], int] = defaultdict(int)
        for node in np.argsort(line.issued, kind="stable").tolist():
            task = line.tasks[node]
            if task.work == Work.RECV:
                key = (task.peer, task.tag, task.size_bytes)
                sent, arrived = sends[(*key, line.ranks[0])][received[key]]
                received[key] += 1
                cause[node] = sent if arrived == line.end[node] else cause[node]
        causes.append(cause)
    by_offset = {line.offset + node: (line, node) for line in lines for node in range(len(line.graph))}
    for line, cause in zip(lines, causes, strict=True):
        for node, latest in last.get(line.offset, {}).items():
            other, other_node = by_offset[latest]
            line.start[node] = min(other.issued[other_node], line.end[node])
            cause[node] = other.before(other_node)
    return causes


def _last_members(lines: Sequence[_Line], ours: Counterpart) -> dict[int, dict[int, int]]:
    """Return, by line and node of a collective, the node of its last member to arrive."""
    latest: dict[tuple[int, int, int], tuple[int, int]] = {}
    arrivals: list[tuple[int, int, list[tuple[int, int, int]]]] = []
    for line in lines:
        count: dict[int, int] = defaultdict(int)
        for node in np.argsort(line.issued, kind="stable").tolist():
            if line.tasks[node].work != Work.COLLECTIVE:
                continue
            family = int(line.graph.group[node])
            groups = {ours.program.groups[family].group_of_rank[rank] for rank in line.ranks}
            keys = [(family, group, count[family]) for group in sorted(groups)]
            count[family] += 1
            for key in keys:
                latest[key] = max(latest.get(key, (-1, NONE)), (int(line.issued[node]), line.offset + node))
            arrivals.append((line.offset, node, keys))
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for offset, node, keys in arrivals:
        found[offset][node] = max(latest[key] for key in keys)[1]
    return found


def _sends(lines: Sequence[_Line]) -> dict[tuple[int, int, int, int], list[tuple[int, int]]]:
    """Return nodes that sent, and when the message arrived: by source, tag, bytes and target, in order."""
    sends: dict[tuple[int, int, int, int], list[tuple[int, int]]] = defaultdict(list)
    for line in lines:
        for node in np.argsort(line.issued, kind="stable").tolist():
            task = line.tasks[node]
            if task.work == Work.SEND:
                key = (line.ranks[0], task.tag, task.size_bytes, task.peer)
                sends[key].append((line.offset + node, int(line.end[node])))
    return sends


NEAREST: Mapping[str, tuple[str, ...]] = {
    "ring": ("ring",),
    "direct": ("direct",),
    "halvingDoubling": ("rabenseifner", "recursive_doubling"),
    TREE: ("double_binary_tree",),
}
"""ASTRA-sim's algorithm for a group as one dimension to ours, the nearest first."""

NEAREST_OF_SEVERAL: Mapping[str, tuple[str, ...]] = {
    "ring": ("hierarchical", "dimension_wise"),
    "direct": ("hierarchical_direct", "dimension_wise"),
    "halvingDoubling": ("hierarchical", "dimension_wise"),
    TREE: ("hierarchical", "dimension_wise"),
}
"""Its algorithm in the first of several dimensions to ours, which also run dimension by dimension."""

FILES = {
    "ranks.csv": "finish, compute, exposed communication and idle time of every rank, in ns",
    "transfers.csv": "collectives and messages, their times and link bounds",
    "dimensions.csv": "the busiest link of each dimension, by ASTRA-sim's algorithms",
}
"""Files that `write_tables` makes, and what they are."""

_ROUNDING_S = 1e-9
"""ASTRA-sim cuts times to whole nanoseconds: so much under the bound is not under it."""


@dataclass(frozen=True)
class Transfer:
    """Collectives or messages of one kind, size and placement.

    Attributes
    ----------
    size_bytes : int
        Of the whole buffer, for an all-gather too.
    count : float
        How many a rank has on average.
    mean_s : mapping of str to float
        Network to the time from the arrival of the last member, as the mean over ranks.
    bound_s : float
        Lower bound: what the links need for the bytes alone.
    under_bound_s : float
        By how much ASTRA-sim's longest is shorter than that; 0 if it is not.
    """

    kind: str
    size_bytes: int
    num_ranks: int
    count: float
    mean_s: Mapping[str, float]
    bound_s: float
    under_bound_s: float


@dataclass(frozen=True, eq=False)
class SideBySide:
    """ASTRA-sim's times, and ours.

    Attributes
    ----------
    comparison : Comparison
        ASTRA-sim's run as the first outcome, named after its back end; then one for each of our networks.
    topology : Topology
        What network.yml became.
    algorithms : mapping of str to str
        Kind of collective to our algorithm for it; ``"auto"`` for the fastest where none of ours is like ASTRA-sim's.
    """

    comparison: Comparison
    topology: Topology
    algorithms: Mapping[str, str]

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """Transfers, the largest share of ASTRA-sim's time first."""
        times: dict[tuple[str, int, Placement], dict[str, list[tuple[int, float]]]] = {}
        for outcome in self.comparison.outcomes:
            for kind, size_bytes, placement, ranks, seconds in _communication(outcome.result, self.topology):
                by_network = times.setdefault((kind, size_bytes, placement), defaultdict(list))
                by_network[outcome.schedule].append((ranks, seconds))
        astra = self.comparison.outcomes[0].schedule
        found = []
        for (kind, size_bytes, placement), by_network in times.items():
            bound_s = lower_bound_s(kind, size_bytes, placement)
            under_s = bound_s - max(seconds for _, seconds in by_network[astra])
            found.append(
                Transfer(
                    kind,
                    size_bytes,
                    placement.num_ranks,
                    sum(ranks for ranks, _ in by_network[astra]) / self.comparison.ranks,
                    {name: _mean(weighted) for name, weighted in by_network.items()},
                    bound_s,
                    under_s if under_s > _ROUNDING_S else 0.0,
                )
            )
        return tuple(sorted(found, key=lambda one: -one.count * one.mean_s[astra]))

    def summary(self) -> dict[str, Any]:
        """Return the numbers as plain values, as ``--json`` prints them."""
        facts = ("kind", "size", "bytes_per_s", "latency_s")
        dimensions = [{fact: getattr(dimension, fact) for fact in facts} for dimension in self.topology.dimensions]
        return {
            "topology": {"name": self.topology.name, "dimensions": dimensions},
            "algorithms": dict(self.algorithms),
            "networks": {outcome.schedule: network_facts(outcome) for outcome in self.comparison.outcomes},
            "transfers": [asdict(transfer) for transfer in self.transfers],
        }


def network_facts(outcome: Outcome) -> dict[str, Any]:
    """Return when the ranks finish, and how their time divides: of each, and the mean as a breakdown.

    Exposed communication of a rank is what ASTRA-sim calls so: all time until it finishes in which it does not compute.
    """
    result = outcome.result
    finish = np.zeros(result.program.num_ranks)
    compute = np.zeros(result.program.num_ranks)
    for line in result.timelines:
        ranks = list(line.ranks)
        finish[ranks] = line.end_s.max(initial=0.0)
        kernels = ~line.is_communication & (line.graph.stream == 0)
        compute[ranks] = line.duration_s[kernels].sum()
    per_rank_ns, exposed_ns = ((np.round(seconds * 1e9, 3)).tolist() for seconds in (finish, finish - compute))
    return {
        "time_ns": max(per_rank_ns),
        "exposed_communication_ns": max(exposed_ns),
        "per_rank_ns": per_rank_ns,
        "per_rank_exposed_communication_ns": exposed_ns,
        "breakdown": asdict(outcome.breakdown),
        "busiest_links": [asdict(use) for use in result.busiest_links],
    }


def side_by_side(astra: AstraOutcome, *, name: str, networks: Sequence[str]) -> SideBySide:
    """Compare ASTRA-sim's times with ours.

    Parameters
    ----------
    name : str
        What to call the workload.
    networks : sequence of str
        Network models of ours, from `options.NETWORKS`; with none the comparison is of ASTRA-sim's answer alone.

    Raises
    ------
    SimulationError
        If the program cannot finish in our order of issue.
    """
    ours = counterpart(astra, name=name)
    algorithms = _algorithms(astra, ours.program, ours.topology)
    given = {kind: algorithm for kind, algorithm in algorithms.items() if algorithm != "auto"}
    found = result_of(astra, ours)
    outcomes = [Outcome(f"ASTRA-sim {found.network}", found, 1.0)]
    for network in networks:
        result = simulate(ours.program, ours.topology, network=network, algorithms=given)
        speedup = found.makespan_s / result.makespan_s if result.makespan_s else 1.0
        outcomes.append(Outcome(network, result, speedup))
    comparison = Comparison(name, ours.topology.name, "as traced", ours.program.num_ranks, tuple(outcomes))
    return SideBySide(comparison, ours.topology, algorithms)


def write_tables(astra: AstraOutcome, compared: SideBySide, directory: Path) -> list[tuple[Path, str]]:
    """Write the tables of ranks, transfers and dimensions; return the files, and what they are.

    Raises
    ------
    ConfigError
        If the directory cannot be written.
    """
    names = [outcome.schedule for outcome in compared.comparison.outcomes]
    transfers = [
        {**asdict(one), "mean_s": one.mean_s[names[0]], **{f"{name}_s": one.mean_s[name] for name in names[1:]}}
        for one in compared.transfers
    ]
    tables = [list(_rank_rows(compared.comparison)), transfers, [asdict(load) for load in dimension_loads(astra)]]
    paths = [directory / name for name in FILES]
    try:
        for path, rows in zip(paths, tables, strict=True):
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]) if rows else [])
                writer.writeheader()
                writer.writerows(rows)
    except OSError as error:
        raise ConfigError(f"output {str(directory)!r} cannot be written ({error.strerror}); give another") from None
    return list(zip(paths, FILES.values(), strict=True))


def _rank_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yield how the time of each rank divides; idle is what is left until the last rank has finished."""
    for outcome in comparison.outcomes:
        rows: dict[int, dict[str, Any]] = {}
        for line in outcome.result.timelines:
            kernels = ~line.is_communication
            compute_s = covered(line.start_s[kernels], line.end_s[kernels])
            busy_s = covered(line.start_s, line.end_s)
            times_s = {
                "finish_ns": line.end_s.max(initial=0.0),
                "compute_ns": compute_s,
                "exposed_communication_ns": busy_s - compute_s,
                "idle_ns": outcome.makespan_s - busy_s,
            }
            values = {name: round(float(seconds) * 1e9, 3) for name, seconds in times_s.items()}
            rows |= {rank: {"network": outcome.schedule, "rank": rank, **values} for rank in line.ranks}
        yield from (rows[rank] for rank in sorted(rows))


def _algorithms(astra: AstraOutcome, program: Program, topology: Topology) -> dict[str, str]:
    """Choose the nearest algorithm of ours that serves all groups of a kind of collective."""
    placements: dict[str, set[Placement]] = defaultdict(set)
    for graph in program.graphs:
        for node in np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist():
            for members in program.groups[int(graph.group[node])].members:
                if len(members) > 1:
                    placements[COLLECTIVES[graph.collective[node]]].add(place(topology, members))
    return {
        kind: _nearest(astra.job.algorithms.get(kind.replace("_", "-"), ()), kind, found)
        for kind, found in sorted(placements.items())
    }


def _nearest(names: Sequence[Named], kind: str, placements: set[Placement]) -> str:
    several = any(len(placement.extents) > 1 and placement.regular for placement in placements)
    wanted: list[str] = []
    if names:
        table = NEAREST_OF_SEVERAL if several and not names[0].flat else NEAREST
        wanted += table[names[0].algorithm]
    able = (name for name in wanted if all(ALGORITHMS[name].supports(kind, one) is None for one in placements))
    return next(able, "auto")


def _communication(result: Result, topology: Topology) -> Iterator[tuple[str, int, Placement, int, float]]:
    """Yield kind, bytes, placement, ranks and seconds of what each class of ranks communicates, without receives."""
    found = cache(lambda members: _placement(topology, members))
    for line in result.timelines:
        graph, first = line.graph, line.ranks[0]
        for node in np.flatnonzero(line.is_communication & (graph.kind != NodeKind.RECV)).tolist():
            if graph.kind[node] == NodeKind.SEND:
                members: tuple[int, ...] = (first, int(graph.peer[node]))
            else:
                members = result.program.groups[int(graph.group[node])].of(first)
            placement = found(members)
            if placement.num_ranks > 1:
                kind = graph.operation(node)
                yield kind, int(graph.bytes[node]), placement, len(line.ranks), float(line.duration_s[node])


def _placement(topology: Topology, members: tuple[int, ...]) -> Placement:
    """Place a group as isolated, unless it fills its lines and so shares its links with no other."""
    whole = place(topology, members)
    own = whole.regular and all(extent.size == extent.dimension.size for extent in whole.extents)
    return whole if own else place_alone(topology, members)


def _mean(weighted: Sequence[tuple[int, float]]) -> float:
    return sum(ranks * seconds for ranks, seconds in weighted) / sum(ranks for ranks, _ in weighted)
