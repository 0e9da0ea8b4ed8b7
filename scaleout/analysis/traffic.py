"""A result to bytes by dimension of the network: what the busiest link of each carries in a step.

Under the flow network every link's bytes are known. Under the alpha-beta model a collective keeps the busiest link of
dimension d busy for a share of its serialization, on bare links for that by its inflation, and carries the bytes of
the latter; a message likewise over each dimension that it crosses, and those of other ranks that pass the same link are
not counted. Bytes are those at the bandwidth of a port: where a tree is tapered, a byte over its narrow part counts as
many times as it takes longer there; and where a node has a card less, those of a card that is left, which carries part
of the missing one's.

Symbols: ``busy_d = sum of serialization * share_d`` over the collectives and messages of a rank, and
``bytes_d = sum of serialization / inflation * share_d * bandwidth_d``.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaleout.cluster.topology.peers import peer_of
from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import Topology
from scaleout.network.alpha_beta.cost import CollectiveCost, collective_cost, send_cost
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
    """Return how busy the links are under the alpha-beta model, with what protocols keep them busy for besides bytes.

    None where nothing is sent, and of graphs: which of their edges is the busiest only routing says.
    """
    links = links_of(topology)
    if any(port.role == "edge" for port in links.ports) or not result.makespan_s:
        return None
    busy_s = _busiest(result, topology, algorithms)[1]
    busy = {number: each / result.makespan_s for number, each in enumerate(busy_s.tolist()) if each}
    return DimensionTraffic(links, busy, result.makespan_s) if busy else None


def bytes_by_dimension(
    result: Result, topology: Topology, algorithms: Mapping[str, str] | None = None
) -> dict[int, float]:
    """Return what the busiest link of each dimension carries in a step, in bytes, of dimensions that carry any.

    `topology` and `algorithms` are those that the result was simulated with.
    """
    rates = np.array([dimension.bytes_per_s for dimension in topology.dimensions])
    if result.link_traffic is None:
        found = _busiest(result, topology, algorithms or {})[0] * rates
    else:
        found = np.zeros(len(rates))
        for port, _, _, utilisation in result.link_traffic.ports():
            if port.dimension < len(found) and len(utilisation):
                carried = float(utilisation.max()) * result.makespan_s * rates[port.dimension]
                found[port.dimension] = max(found[port.dimension], carried)
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


def _busiest(result: Result, topology: Topology, algorithms: Mapping[str, str]) -> Floats:
    """Return how long the busiest link of each dimension is busy, (2, D): for the bytes alone, and in all.

    Protocols keep links busy for their flags and at rates below the links'.
    """
    graphs = {id(line.graph): line.graph for line in result.timelines}  # which classes share
    calls = {key: _calls_of(graph) for key, graph in graphs.items()}
    each = [_of_class(line, calls[id(line.graph)], result.program, topology, algorithms) for line in result.timelines]
    return np.asarray(np.max([np.zeros((2, len(topology.dimensions))), *each], axis=0), np.float64)


def _of_class(
    line: Timeline, calls: _Calls, program: Program, topology: Topology, algorithms: Mapping[str, str]
) -> Floats:
    """Return what a class of ranks takes part in, (2, D) as `_busiest`."""
    graph, rank, total = line.graph, line.ranks[0], np.zeros((2, len(topology.dimensions)))

    def add(ranks: Sequence[int], cost: CollectiveCost, count: float) -> None:
        differ = np.flatnonzero(np.ptp(topology.coordinates(ranks), axis=0))
        if cost.serialization_s:
            busy_s = count * cost.serialization_s * np.array(cost.shares)
            total[:, differ] += busy_s / [[cost.inflation], [1.0]]

    groups = {group: program.groups[group].of(rank) for _, _, group, _ in calls}
    placed = {group: place(topology, ranks) for group, ranks in groups.items()}
    for kind, size_bytes, group, count in calls:
        add(groups[group], collective_cost(kind, size_bytes, placed[group], algorithms.get(kind, "auto")), count)
    sends = np.flatnonzero(graph.kind == NodeKind.SEND).tolist()
    alike = Counter((peer_of(program, rank, graph, node), float(graph.bytes[node])) for node in sends)
    for (peer, size_bytes), count in alike.items():
        add((rank, peer), send_cost(size_bytes, topology, source=rank, destination=peer), count)
    return total
