"""A run of ASTRA-sim to a comparison with the same work on our own networks, and to the load of each dimension.

Our network runs the same program on the same topology, by the algorithm nearest to the one in system.json. Where a
collective or message of ASTRA-sim takes less time than its bytes need on the links, the comparison says by how much.
The load of a dimension is that of its busiest link by collectives; without contention links carry more than they can.
A message loads the links of the first dimension in which its ends differ, where its time is counted too.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np

from scaleout.analysis.breakdown import covered
from scaleout.cluster.topology.placement import Placement, place, place_isolated
from scaleout.cluster.topology.topology import Topology
from scaleout.config.writing import write_csv
from scaleout.interop.astra import Outcome as AstraOutcome
from scaleout.interop.astra.algorithms import NOBODY, TREE, Named, Pattern, Tree
from scaleout.interop.astra.as_program import counterpart, result_of
from scaleout.interop.astra.job import Job
from scaleout.interop.astra.links import folded_route, route
from scaleout.interop.astra.network import Dimension
from scaleout.interop.astra.plan import FLAT, GROUP, Phase
from scaleout.network.alpha_beta.lower_bound import lower_bound_s
from scaleout.network.collectives import ALGORITHMS
from scaleout.program.graph import COLLECTIVES, NodeKind
from scaleout.program.program import Program
from scaleout.simulation.result import Result
from scaleout.simulation.run import simulate
from scaleout.study.comparison import Comparison
from scaleout.study.job import Outcome

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
    """Collectives or messages of one kind, size and placement."""

    kind: str
    size_bytes: int  # of the whole buffer, for an all-gather too
    num_ranks: int
    count: float  # how many a rank has on average
    mean_s: Mapping[str, float]  # network to the time from the arrival of the last member, as the mean over ranks
    bound_s: float  # lower bound: what the links need for the bytes alone
    under_bound_s: float  # by how much ASTRA-sim's longest is shorter than that; 0 if it is not


@dataclass(frozen=True, eq=False)
class SideBySide:
    """ASTRA-sim's times, and ours."""

    # ASTRA-sim's run as the first outcome, named after its back end; then one for each of our networks
    comparison: Comparison
    topology: Topology  # what network.yml became
    # kind of collective to our algorithm for it; ``"auto"`` for the fastest where none of ours is like ASTRA-sim's
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


def write_tables(astra: AstraOutcome, compared: SideBySide, folder: Path) -> None:
    """Write the tables of ranks, transfers and dimensions, which are the files of `FILES`."""
    names = [outcome.schedule for outcome in compared.comparison.outcomes]
    transfers = [
        {**asdict(one), "mean_s": one.mean_s[names[0]], **{f"{name}_s": one.mean_s[name] for name in names[1:]}}
        for one in compared.transfers
    ]
    tables = [list(_rank_rows(compared.comparison)), transfers, [asdict(load) for load in dimension_loads(astra)]]
    for name, rows in zip(FILES, tables, strict=True):
        write_csv(folder / name, rows)


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


@dataclass(frozen=True)
class DimensionLoad:
    """Load of a dimension by collectives."""

    dimension: int
    kind: str
    size: int
    link_bytes: int  # on the busiest link
    link_ns: float  # time that these bytes need on the link, latency left out


def dimension_loads(outcome: AstraOutcome) -> tuple[DimensionLoad, ...]:
    """Add up the bytes of all collectives on the busiest link of each dimension."""
    job = outcome.job
    totals: list[Counter[Hashable]] = [Counter() for _ in job.network.dimensions]
    for (plan, members), times in outcome.num_runs.items():
        for phase, count in Counter(phase for stream in plan.streams for phase in stream).items():
            for number, link, size_bytes in _loads(job, phase, members):
                totals[number][link] += size_bytes * times * count
    return tuple(
        DimensionLoad(
            number,
            dimension.kind,
            dimension.size,
            most := max(totals[number].values(), default=0),
            most / dimension.bytes_per_ns,
        )
        for number, dimension in enumerate(job.network.dimensions)
    )


def _loads(job: Job, phase: Phase, members: tuple[int, ...]) -> Iterator[tuple[int, Hashable, int]]:
    """Yield dimension, link and bytes of all messages of a phase; one line represents all lines of a dimension."""
    if phase.dimension not in (FLAT, GROUP):
        for link, size_bytes in _line_loads(job.network.dimensions[phase.dimension], phase.pattern):
            yield phase.dimension, link, size_bytes
        return
    finders = [route(dimension) for dimension in job.network.dimensions]
    for source, target, size_bytes in _messages(phase.pattern):
        number, distance = job.network.crossed(members[source], members[target])
        dimension = job.network.dimensions[number]
        coordinate = members[source] // dimension.stride % dimension.size
        links = finders[number](coordinate, (coordinate + distance) % dimension.size) if distance else ()
        line = members[source] - coordinate * dimension.stride
        yield from ((number, (line, link), size_bytes) for link in links)


def _line_loads(dimension: Dimension, pattern: Pattern) -> Iterator[tuple[Hashable, int]]:
    if isinstance(pattern, Tree) or (pattern.xor and dimension.kind == "Ring"):
        find = route(dimension)
        for source, target, size_bytes in _messages(pattern):
            yield from ((("line", link), size_bytes) for link in find(source, target))
        return
    folded = folded_route(dimension)
    for offset, size_bytes in _by_offset(pattern).items():
        yield from ((("line", link), size_bytes) for link in folded(0, pattern.target(0, offset)))


def _by_offset(pattern: Pattern) -> Counter[int]:
    assert not isinstance(pattern, Tree)
    sent: Counter[int] = Counter()
    for index in range(pattern.num_sends):
        sent[pattern.offset(index)] += pattern.size_bytes(index)
    return sent


def _messages(pattern: Pattern) -> Iterator[tuple[int, int, int]]:
    """Yield source, target and bytes; those between the same two in one."""
    if isinstance(pattern, Tree):
        for child, parent in enumerate(pattern.parents):
            if parent != NOBODY:
                yield child, parent, pattern.size_bytes
                yield parent, child, pattern.size_bytes
        return
    for offset, size_bytes in _by_offset(pattern).items():
        for source in range(pattern.num_ranks):
            yield source, pattern.target(source, offset), size_bytes


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
    return whole if own else place_isolated(topology, members)


def _mean(weighted: Sequence[tuple[int, float]]) -> float:
    return fsum(ranks * seconds for ranks, seconds in weighted) / sum(ranks for ranks, _ in weighted)
