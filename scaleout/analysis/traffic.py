"""A result to bytes by dimension of the network: what the busiest link of each carries in a step.

Under the flow network every link's bytes are known. Under the alpha-beta model a collective keeps the busiest link of
dimension d busy for a share of its serialization on bare links, and carries that time's bytes; a message carries its
own over each dimension that it crosses, and those of other ranks that pass the same link are not counted. Bytes are
those at the bandwidth of a port: where a tree is tapered, a byte over its narrow part counts as many times as it takes
longer there; and where a node has a card less, those of a card that is left, which carries part of the missing one's.

Symbols: ``bytes_d = sum of serialization / inflation * share_d * bandwidth_d`` over the collectives of a rank.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from scaleout.cluster.topology.peers import peer_of
from scaleout.cluster.topology.placement import Placement, place
from scaleout.cluster.topology.topology import Topology
from scaleout.network.alpha_beta.cost import collective_cost
from scaleout.network.routes.links import Ints, Links, Port, links_of
from scaleout.program.graph import COLLECTIVES, ExecutionGraph, Floats, NodeKind
from scaleout.program.program import Program
from scaleout.simulation.folded_program import transfer_of
from scaleout.simulation.result import Result, Timeline


@dataclass(frozen=True)
class DimensionTraffic:
    """What the links of a network carry as far as a closed form knows: of each dimension its busiest link's load."""

    links: Links
    utilisation: Mapping[int, float]
    time_s: float

    def ports(self) -> Iterator[tuple[Port, Ints, Floats, Floats]]:
        """Yield every port with its ranks, and bytes and utilisation of its links: those of the dimension's busiest."""
        for number, port in enumerate(self.links.ports):
            ranks, busy = self.links.having(number), self.utilisation.get(port.dimension, 0.0)
            yield port, ranks, np.full(len(ranks), busy * port.bytes_per_s * self.time_s), np.full(len(ranks), busy)


def dimension_traffic(result: Result, topology: Topology, algorithms: Mapping[str, str]) -> DimensionTraffic | None:
    """Return the loads of a result under the alpha-beta model, see `bytes_by_dimension`.

    None where nothing is sent, and of graphs: which of their edges is the busiest only routing says.
    """
    links = links_of(topology)
    if any(port.role == "edge" for port in links.ports):
        return None
    carried = bytes_by_dimension(result, topology, algorithms)
    if not (carried and result.makespan_s):
        return None
    rates = [dimension.bytes_per_s for dimension in topology.dimensions]
    busy = {number: size / rates[number] / result.makespan_s for number, size in carried.items()}
    return DimensionTraffic(links, busy, result.makespan_s)


def bytes_by_dimension(
    result: Result, topology: Topology, algorithms: Mapping[str, str] | None = None
) -> dict[int, float]:
    """Return what the busiest link of each dimension carries in a step, in bytes, of dimensions that carry any.

    `topology` and `algorithms` are those that the result was simulated with.
    """
    found = np.zeros(len(topology.dimensions))
    if result.link_traffic is not None:
        for port, _, _, utilisation in result.link_traffic.ports():
            if port.dimension < len(found) and len(utilisation):
                carried = float(utilisation.max()) * result.makespan_s * topology.dimensions[port.dimension].bytes_per_s
                found[port.dimension] = max(found[port.dimension], carried)
    else:
        graphs = {id(line.graph): line.graph for line in result.timelines}  # which classes share
        calls = {key: _calls_of(graph) for key, graph in graphs.items()}
        for line in result.timelines:
            mine = _of_class(line, calls[id(line.graph)], result.program, topology, algorithms or {})
            found = np.maximum(found, mine)
    return {number: size_bytes for number, size_bytes in enumerate(found.tolist()) if size_bytes}


def slowest_dimension_bytes(topology: Topology, by_dimension: Mapping[int, float]) -> float:
    """Return the bytes over the dimension of least bandwidth; where several have it, those of the one with most."""
    slowest = min(dimension.bytes_per_s for dimension in topology.dimensions)
    numbers = [number for number, each in enumerate(topology.dimensions) if each.bytes_per_s == slowest]
    return max(by_dimension.get(number, 0.0) for number in numbers)


_Calls = list[tuple[str, float, int, float]]
"""Kinds of collectives of a graph: kind, bytes of the whole, group, and how many times."""


def _calls_of(graph: ExecutionGraph) -> _Calls:
    """Return the collectives of a graph, those that are alike once."""
    chosen = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)
    keys = np.stack([column[chosen] for column in (graph.collective, graph.group, graph.bytes, graph.slices)])
    kinds, counts = np.unique(keys, axis=1, return_counts=True)
    return [
        (*transfer_of(COLLECTIVES[number], float(size * slices)), group, count / slices)
        for (number, group, size, slices), count in zip(kinds.T.tolist(), counts.tolist(), strict=True)
    ]


def _of_class(
    line: Timeline, calls: _Calls, program: Program, topology: Topology, algorithms: Mapping[str, str]
) -> Floats:
    """Return bytes over each dimension, (D,), of what a class of ranks takes part in."""
    graph, rank, total = line.graph, line.ranks[0], np.zeros(len(topology.dimensions))
    groups = {group: program.groups[group].of(rank) for _, _, group, _ in calls}
    placed = {group: place(topology, ranks) for group, ranks in groups.items()}
    for kind, size_bytes, group, count in calls:
        each = _busy(kind, size_bytes, placed[group], algorithms.get(kind, "auto"))
        for number, busy_s in zip(_differing(topology, groups[group]), each, strict=True):
            total[number] += count * busy_s * topology.dimensions[number].bytes_per_s
    for node in np.flatnonzero(graph.kind == NodeKind.SEND).tolist():
        ends = sorted({rank, peer_of(program, rank, graph, node)})
        total[_differing(topology, ends)] += float(graph.bytes[node])
    return total


def _busy(kind: str, size_bytes: float, placement: Placement, algorithm: str) -> list[float]:
    """Return how long the busiest link of each extent of a group is busy, on bare links."""
    cost = collective_cost(kind, size_bytes, placement, algorithm)
    if not cost.serialization_s:
        return [0.0] * len(placement.extents)
    bare_s = cost.serialization_s / cost.inflation
    return [bare_s * share for share in cost.shares]


def _differing(topology: Topology, ranks: "tuple[int, ...] | list[int]") -> list[int]:
    """Return the dimensions that extents of a group are of: those in which its ranks differ."""
    return [int(number) for number in np.flatnonzero(np.ptp(topology.coordinates(ranks), axis=0))]
