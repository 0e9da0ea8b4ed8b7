"""What bounds a step and its collectives: results to the largest part of a step, and to the busiest links.

A collective takes ``latency + serialization``; in the serialization the busiest link of dimension d is busy for a share
of the time. It is bound by the largest of latency and dimensions, so another number of that one changes it most, until
the next one bounds it. Both are those of the isolated collective under the alpha-beta model, whatever network answered.

Exposed time of collectives that are alike is that in which one of them runs and no kernel does. Of unlike ones that
run at the same time each has it, so it may add up to more than the exposed communication of a step; none has more than
that. All times are means over ranks.

A collective starts when its last member comes; until then the others are idle (`analysis.waits`). Of the exposed time
after that a rank waits for the last member for as long as that one still has kernels beside it: the others lie before
it in the step, would wait for its next kernels as long if the links were faster, and what makes this shorter is a last
member that is less late, or whom it waited for itself (`analysis.roots`). What bounds the collective bounds the rest.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import fsum
from typing import Any

import numpy as np

from scaleout.analysis.breakdown import Running, by_axis, exposed_by_family
from scaleout.analysis.roots import Roots, Spans
from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.peers import peer_of
from scaleout.cluster.topology.placement import place, place_isolated
from scaleout.cluster.topology.topology import Topology
from scaleout.cluster.topology.what_if import names_of
from scaleout.config.units import ranks_in_words
from scaleout.network.alpha_beta.cost import CollectiveCost, collective_cost
from scaleout.program.calls import columns_of
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, Floats, Ints, NodeKind, found_once
from scaleout.program.program import Program
from scaleout.simulation.columns import distinct
from scaleout.simulation.folded_program import RECORDED, transfer_of
from scaleout.simulation.result import Result, Timeline

LATENCY = "latency"
"""What bounds a collective whose messages are short."""
MEMORY = "memory bandwidth"
"""What bounds a step of kernels that read and write more than they compute."""
_MOST = 0.5
"""Share of the kernels' time from which it is what bounds them."""


def bound_of_step(result: Result, compute_s: float, device: Device | None = None) -> tuple[str, float]:
    """Return what takes the largest part of a step, and its seconds: ``compute``, an axis's communication, waiting.

    Kernels run in `compute_s` of it; it is ``memory bandwidth`` where most of that is of kernels whose bytes take
    longer at the rate of the device's memory than their FLOPs at its peak. What waits for a pipeline's messages is
    ``bubble``, as in a search; without a pipeline it is ``idle``.
    """
    exposed = exposed_by_family(result)
    exposed_s = by_axis({each: seconds for each, seconds in exposed.items() if not each or each.name != "pipeline"})
    waits = "bubble" if any(family.name == "pipeline" for family in result.program.groups) else "idle"
    parts = {"compute": compute_s, waits: result.makespan_s - compute_s - fsum(exposed_s.values())}
    parts |= {f"{axis} communication" if axis else "messages": seconds for axis, seconds in exposed_s.items()}
    limited = 0.0 if device is None else of_memory(result, device)[0]
    return bound_of_parts(parts, limited_share=limited), max(parts.values())


def bound_of_parts(parts: Mapping[str, float], *, limited_share: float) -> str:
    """Return the largest part of a step; `MEMORY` for ``compute`` most of which is of kernels that memory limits.

    >>> bound_of_parts({"compute": 2.0, "bubble": 1.0}, limited_share=0.6)
    'memory bandwidth'
    """
    largest = max(parts, key=lambda name: parts[name])
    return MEMORY if largest == "compute" and limited_share > _MOST else largest


def memory_limits(flops: Any, least_s: Any, peak_flops_per_s: Any) -> Any:
    """Return whether bytes take longer at the rate of the memory, `least_s`, than FLOPs at the peak; also of arrays."""
    return (least_s > 0) & (flops <= least_s * peak_flops_per_s)


def of_memory(result: Result, device: Device) -> tuple[float, float]:
    """Return the share of kernels that memory limits in the time of all, and which share of its rate these reach."""
    kernels_s = limited_s = bytes_s = 0.0
    for line in result.timelines:
        graph, nodes = line.graph, np.flatnonzero(line.is_kernel)
        kernels_s += len(line.ranks) * float(line.duration_s[nodes].sum())
        nodes = nodes[graph.kernel[nodes] != NONE]
        columns = columns_of(graph.kernels)
        peaks = np.array([device.peak_flops_per_s.get(kind.dtype, 0.0) for kind in columns.kinds])
        least_s = graph.bytes[nodes] / device.memory_bytes_per_s
        limited = memory_limits(graph.flops[nodes], least_s, peaks[columns.kind[graph.kernel[nodes]]])
        limited_s += len(line.ranks) * float(line.duration_s[nodes][limited].sum())
        bytes_s += len(line.ranks) * float(least_s[limited].sum())
    return (limited_s / kernels_s, bytes_s / limited_s) if limited_s else (0.0, 0.0)


def busy_shares(cost: CollectiveCost, topology: Topology, ranks: Sequence[int]) -> dict[str, float]:
    """Return the share of a collective's time that latency takes, and that the busiest link of a dimension is busy."""
    if not cost.time_s:
        return {}
    called = dimension_names(topology)
    differ = np.flatnonzero(np.ptp(topology.coordinates(ranks), axis=0)).tolist()
    busy = {called[number]: share * cost.serialization_s for number, share in zip(differ, cost.shares, strict=True)}
    return {name: seconds / cost.time_s for name, seconds in {**busy, LATENCY: cost.latency_s}.items() if seconds}


_ALIKE = 0.9
"""Share of the largest from which another dimension bounds a collective as well: both must change."""


def bound_of(shares: Mapping[str, float]) -> str:
    """Return what bounds a collective: what takes most of its time, and which other dimensions nearly as much.

    >>> bound_of({"nvlink4": 0.88, "ndr": 0.89, "latency": 0.11}), bound_of({"ndr": 0.1, "latency": 0.9})
    ('ndr and nvlink4', 'latency')
    """
    ordered = sorted(shares, key=lambda name: -shares[name])
    return " and ".join(name for name in ordered if shares[name] >= _ALIKE * shares[ordered[0]])


def dimension_names(topology: Topology) -> list[str]:
    """Return what no other dimension is called: the link type, link or kind of each, or ``dimension`` and its number.

    ``--bandwidth`` takes these names and numbers.

    >>> from scaleout.cluster.topology.topology import load_topology
    >>> dimension_names(load_topology("dgx-h200-16")), dimension_names(load_topology("torus-8x16"))
    (['nvlink4', 'ndr'], ['dimension 0', 'dimension 1'])
    """
    called = names_of(topology)
    often = Counter(name for names in called for name in names)
    return [next((name for name in names[1:] if often[name] == 1), f"dimension {names[0]}") for names in called]


@dataclass(frozen=True)
class Bound:
    """Collectives of one kind, size and group set in a step, or messages, and what bounds each of them."""

    operation: str
    axis: str
    bytes: int  # of the whole buffer of one
    group_size: int
    count: float
    busy_s: float
    exposed_communication_s: float
    algorithm: str
    bound_by: str  # `LATENCY` or a dimension, or those that are alike
    busy_shares: Mapping[str, float]
    waits_s: float = 0.0  # of the exposed time, what ranks wait for a last member that still has kernels
    waits_for: tuple[int, ...] = ()  # the ranks that are the root of most of this
    waits_for_s: float = 0.0  # what is for these
    member_share: float = 1.0  # of all ranks, those in such groups: what others have none of is longer in a member

    @property
    def mostly_waits(self) -> bool:
        """Whether most of the exposed time waits for a last member, so that no faster link helps."""
        return self.waits_s > 0.5 * self.exposed_communication_s

    @property
    def words(self) -> str:
        """What bounds it, or for which ranks it waits."""
        if not self.mostly_waits:
            return self.bound_by
        most = self.waits_for_s > 0.5 * self.exposed_communication_s
        return f"waits for {ranks_in_words(self.waits_for) if most else 'several ranks'}"


_Call = tuple[int, ...]
"""Kind of node, kind of collective, group and bytes: what nodes have in common that are one row."""


def bounds(result: Result, topology: Topology, roots: Roots) -> list[Bound]:
    """Say of the collectives and messages of a step how long they are exposed, and what bounds each, by exposed time.

    `topology` is the one that the result was simulated on, `roots` are those of its waits.
    """
    found: dict[_Call, Floats] = {}  # count, busy, exposed and waited seconds
    seen: dict[_Call, tuple[Timeline, int]] = {}
    spans: list[Spans] = []
    waiting: list[_Call] = []
    reads = ("kind", "collective", "group", "bytes", "slices")
    found_calls = found_once((line.graph for line in result.timelines), reads, _calls_of)
    running = [Running.of(line, line.is_kernel) for line in result.timelines]
    last, late = roots.last_members()
    for number, (line, (nodes, first, which, calls)) in enumerate(zip(result.timelines, found_calls, strict=True)):
        graph = line.graph
        start_s, end_s = _once(line.start_s[nodes], line.end_s[nodes], which)
        hidden_s = running[number].between(start_s, end_s)
        alone_s = (end_s - start_s) - hidden_s
        alone_s[alone_s < _ROUNDING * (end_s - start_s)] = 0.0
        others = last[nodes + result.offsets[number]]
        longer_s = _between(running, others, start_s, end_s) - hidden_s
        waits_s = np.where(others == number, 0.0, np.clip(longer_s, 0.0, alone_s))
        waits_s[end_s - waits_s >= end_s] = 0.0  # the rounding of differences of times
        each = np.stack([1 / graph.slices[nodes], line.duration_s[nodes], alone_s, waits_s])
        sums = np.stack([np.bincount(which, row, minlength=len(first)) for row in each])
        share = len(line.ranks) / result.program.num_ranks
        for index, call in enumerate(calls):
            found[call] = found.get(call, np.zeros(len(sums))) + share * sums[:, index]
            seen.setdefault(call, (line, int(nodes[first[index]])))
        at = np.flatnonzero(waits_s)
        classes, ends_s = np.full(len(at), number), end_s[at]
        spans.append(Spans(ends_s, ends_s - waits_s[at], classes, late[nodes[at] + result.offsets[number]]))
        waiting.extend(calls[each] for each in which[at].tolist())
    awaited = _awaited(result, roots, spans, waiting)
    rows = []
    for call, total in found.items():
        row = _bound(result.program, topology, seen[call], total)
        if call in awaited:
            root, seconds = max(awaited[call].items(), key=lambda item: item[1])
            row = replace(row, waits_for=result.timelines[root].ranks, waits_for_s=seconds)
        rows.append(row)
    return sorted(rows, key=lambda row: (-row.exposed_communication_s, -row.busy_s))


def _awaited(
    result: Result, roots: Roots, spans: Sequence[Spans], calls: Sequence[_Call]
) -> dict[_Call, dict[int, float]]:
    """Return how long collectives wait, the mean over ranks, by the class that is the root of it.

    `spans` are those waits of each class, the ends of collectives; `calls` is what each is of.
    """
    found: dict[_Call, dict[int, float]] = {}
    if not calls:
        return found
    joined = Spans(*(np.concatenate(each) for each in zip(*spans, strict=True)))
    for index, of_span in roots.divide(joined):
        of_call, one = found.setdefault(calls[index], {}), int(joined.class_of[index])
        share = len(result.timelines[one].ranks) / result.program.num_ranks
        for root, seconds in of_span.items():
            of_call[root] = of_call.get(root, 0.0) + share * seconds
    return found


def _between(running: Sequence[Running], which: Ints, start_s: Floats, end_s: Floats) -> Floats:
    """Return the seconds in which kernels of classes (`which`, one for each span) run, from some times to others."""
    found = np.zeros(len(which))
    order = np.argsort(which, kind="stable")
    for at in np.split(order, np.flatnonzero(np.diff(which[order])) + 1):
        if len(at):
            found[at] = running[int(which[at[0]])].between(start_s[at], end_s[at])
    return found


def _calls_of(graph: ExecutionGraph) -> tuple[Ints, Ints, Ints, list[_Call]]:
    """Return the collectives and sends of a graph, the first of those alike, which each is of, and what they are."""
    nodes = np.flatnonzero((graph.kind != NodeKind.COMPUTE) & (graph.kind != NodeKind.RECV))
    columns = (graph.kind, graph.collective, graph.group, graph.bytes * graph.slices)
    first, which = distinct(*(column[nodes] for column in columns))
    calls = zip(*(column[nodes][first].tolist() for column in columns), strict=True)
    return nodes, first, which, list(calls)


def _once(start_s: Floats, end_s: Floats, which: Ints) -> tuple[Floats, Floats]:
    """Return spans without what an earlier one that is alike (`which`) has already covered."""
    order = np.lexsort((start_s, which))
    follows = np.flatnonzero(np.diff(which[order]) == 0)
    if (start_s[order[follows + 1]] >= end_s[order[follows]]).all():  # none begins before the one before it ends
        return start_s, end_s
    start_s, end_s = start_s.copy(), end_s.copy()
    for number in range(int(which.max(initial=-1)) + 1):
        alike = np.flatnonzero(which == number)
        alike = alike[np.argsort(start_s[alike], kind="stable")]
        covered_s = np.maximum.accumulate(end_s[alike])[:-1]
        start_s[alike[1:]] = np.maximum(start_s[alike[1:]], covered_s)
    return start_s, np.maximum(start_s, end_s)


_ROUNDING = 1e-9
"""Share of a collective below which what is left of it is rounding."""


def _bound(program: Program, topology: Topology, seen: tuple[Timeline, int], total: Floats) -> Bound:
    """Return the row of nodes that are alike, of which one was `seen`."""
    line, node = seen
    graph, rank, group = line.graph, line.ranks[0], int(line.graph.group[node])
    size_bytes = int(graph.bytes[node] * graph.slices[node])
    algorithm = line.algorithm[node].rpartition(": ")[2]
    sends = graph.kind[node] == NodeKind.SEND
    ranks = sorted({rank, peer_of(program, rank, graph, node)}) if sends else list(program.groups[group].of(rank))
    if algorithm == RECORDED:  # which says how long it took, not why
        cost = CollectiveCost(0.0, 0.0)
    elif sends:
        algorithm, cost = "", collective_cost("send", size_bytes, place_isolated(topology, ranks))
    else:
        kind = transfer_of(COLLECTIVES[graph.collective[node]], size_bytes)
        cost = collective_cost(*kind, place(topology, ranks), algorithm or "auto")
    shares = busy_shares(cost, topology, ranks)
    count, busy_s, exposed_s, waits_s = total.tolist()
    axis, member_share = "", 1.0
    if group != NONE:
        axis = program.groups[group].axis
        member_share = len(set(chain(*program.groups[group].members))) / program.num_ranks
    return Bound(
        graph.operation(node),
        axis,
        size_bytes,
        len(ranks),
        count,
        busy_s,
        exposed_s,
        algorithm,
        bound_of(shares),
        shares,
        waits_s,
        member_share=member_share,
    )
