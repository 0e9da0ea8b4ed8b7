"""The operation tier: into which chunks collectives and the GEMMs next to them are cut.

Algorithm 1 gives candidates from the costs of a collective and of the computation concurrent with it; `finish_s`
follows chunks and GEMMs, with what they lose to each other, through a pipeline of two, and the first of the shortest is
taken. All members of a group decide from the same numbers. See docs/models/centauri.md.
Source: Chen et al., Centauri, Sec. 3.2.1, Algorithm 1.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import ceil, floor, fsum

import numpy as np

from scaleout.program.fastest import MARGIN, fastest, is_faster
from scaleout.program.graph import COLLECTIVES, ExecutionGraph, NodeKind
from scaleout.program.program import Program
from scaleout.schedule.centauri.partition.exchange import Written, largest_count, partition_exchanges
from scaleout.schedule.centauri.partition.exchange import finish_s as finish_segment_s
from scaleout.schedule.centauri.partition.group import Levels
from scaleout.schedule.centauri.partition.segments import Segment, find_segments
from scaleout.schedule.centauri.partition.workload import Chain, Known, own_edges, part_times, partition_workload
from scaleout.schedule.cost import CollectiveSeconds, ProgramCosts
from scaleout.schedule.decision import Decision, collective_counts, collectives
from scaleout.schedule.overlap import in_program_order, overlap

MAX_CHUNKS = 8
"""Most chunks that a collective is evenly cut into."""


@dataclass(frozen=True)
class Costs:
    """What Algorithm 1 decides from.

    Attributes
    ----------
    computation_s : float
        comp_cost: the computation that takes the collective's data, or makes them.
    communication_s : float
        comm_cost: the collective.
    independent_s : float
        in_cost: computation that can be concurrent with it, without any of its data.
    inter_s : float
        cost_inter: the share between nodes, where the group is partitioned.
    inter_size, intra_size : int
        Members of the sub-groups between and within nodes; both above 1 only where the group is partitioned.
    """

    computation_s: float
    communication_s: float
    independent_s: float
    inter_s: float = 0.0
    inter_size: int = 1
    intra_size: int = 1

    @property
    def group_partitioned(self) -> bool:
        """Whether there are levels."""
        return self.inter_size > 1 and self.intra_size > 1


def even(costs: Costs) -> tuple[float, ...]:
    """Return equal chunks, each no longer than the computation that overlaps it (lines 3 to 7), so rounded up."""
    if not is_faster(costs.independent_s, costs.communication_s):
        return (1.0,)
    count = MAX_CHUNKS
    if costs.independent_s > 0:
        count = ceil(min(costs.communication_s / costs.independent_s, MAX_CHUNKS) * (1 - MARGIN))
    return (1 / count,) * count


def granularity(costs: Costs) -> tuple[float, ...]:
    """Return the chunks of Algorithm 1, in parts of the whole.

    >>> granularity(Costs(10.0, 4.0, 5.0))  # hidden whole
    (1.0,)
    >>> granularity(Costs(10.0, 4.0, 1.0))
    (0.25, 0.25, 0.25, 0.25)
    >>> granularity(Costs(10.0, 4.0, 3.0, inter_s=2.0, inter_size=2, intra_size=8))  # between nodes is hidden
    (0.125, 0.875)
    """
    if not is_faster(costs.independent_s, costs.communication_s) or not costs.group_partitioned:
        return even(costs)
    inter, intra = costs.inter_size, costs.intra_size
    world = inter * intra
    if is_faster(costs.inter_s, costs.independent_s):
        return (inter / world, 1 - inter / world)
    if is_faster(intra * costs.inter_s, costs.computation_s / inter):
        return (intra / world, 1 - intra / world)
    return (intra / world, (inter - 1) / world, 1 - (inter + intra - 1) / world)


def candidates(costs: Costs) -> tuple[tuple[float, ...], ...]:
    """Return the ways to cut that are weighed, the whole first: of equally long ones the first is taken."""
    return tuple(dict.fromkeys(((1.0,), even(costs), granularity(costs))))


def finer(costs: Costs) -> tuple[tuple[float, ...], ...]:
    """Return the ways to cut of Algorithm 1, and equal chunks up to MAX_CHUNKS whatever overlaps with them."""
    halved = tuple((1 / count,) * count for count in (2, 4, MAX_CHUNKS))
    return tuple(dict.fromkeys((*candidates(costs), *halved)))


def finish_s(parts: Sequence[float], costs: Costs, *, chunk_s: Callable[[float], float], produces: bool) -> float:
    """Return when both the collective and the computation are done.

    A chunk that is taken is worked on when it has arrived and what is independent is done; one that is produced is sent
    when it is made, and what is independent follows the computation. `chunk_s` maps a part of the collective to the
    seconds that it takes as a chunk; computation goes in proportion.
    """
    sent_s, computed_s = 0.0, 0.0 if produces else costs.independent_s
    for part in parts:
        computes_s = part * costs.computation_s
        if produces:
            computed_s += computes_s
            sent_s = max(sent_s, computed_s) + chunk_s(part)
        else:
            sent_s += chunk_s(part)
            computed_s = max(computed_s, sent_s) + computes_s
    return max(sent_s, computed_s + costs.independent_s) if produces else computed_s


Ways = Callable[[Costs], Sequence[tuple[float, ...]]]
"""From what a collective and its GEMMs cost to the ways to cut that are weighed, the whole first."""


@dataclass(frozen=True)
class Weighed:
    """The chunks that were chosen, and when collective and GEMMs are done whole and so."""

    parts: tuple[float, ...]
    whole_s: float
    cut_s: float


@dataclass
class Weights:
    """Chains that were weighed before, and spans that were written: layers are alike.

    Candidates share graphs, as another order of layers changes few: these are weighed and written once, too.
    `collective_s` is what a collective or a chunk of it takes. Reductions of gradients are cut only with `gradients`,
    all-to-alls only with `exchanges`.
    """

    costs: ProgramCosts
    collective_s: CollectiveSeconds
    ways: Ways = candidates
    gradients: bool = False
    exchanges: bool = False
    found: dict[tuple[Hashable, ...], Weighed] = field(default_factory=dict)
    requests: dict[tuple[Hashable, ...], tuple[ExecutionGraph, Chain, float]] = field(default_factory=dict)
    segments: dict[tuple[Hashable, ...], dict[int, float]] = field(default_factory=dict)
    written: Written = field(default_factory=Written)
    chained: Known = field(default_factory=Known)
    independent: dict[int, "_Independent"] = field(default_factory=dict)  # of graphs in `chained`, by identity
    exchanged: dict[int, tuple[ExecutionGraph, list[tuple[Segment, Weighed]]]] = field(default_factory=dict)

    def weigh(self, graph: ExecutionGraph, chain: Chain, independent_s: float) -> Weighed:
        """Weigh a chain, or remember what one like it came to."""
        node = chain.collective
        pieces = tuple(
            (graph.kernels[graph.kernel[each.node]], float(graph.duration_s[each.node]), *each[1:])
            for each in chain.pieces
        )
        rounded = f"{independent_s:.9e}"  # sums over other parts of a graph differ in their last bits
        of_collective = (int(graph.group[node]), int(graph.collective[node]), int(graph.bytes[node]))
        key = (*of_collective, chain.produces, pieces, rounded)
        if key not in self.found:
            self.found[key] = self._weigh(graph, chain, independent_s)
            self.requests[key] = (graph, chain, independent_s)
        return self.found[key]

    def with_ways(self, ways: Ways) -> "Weights":
        """Return the same with other ways to cut; itself if none that was weighed would be cut otherwise."""
        other = replace(self, ways=ways, found={}, requests={}, independent={})
        same = all(other.weigh(*request).parts == self.found[key].parts for key, request in self.requests.items())
        return self if same else other

    def with_gradients(self) -> "Weights":
        """Return the same with reductions of gradients cut; itself if none that was weighed would be."""
        cuts = any(chain.gradients and len(self.found[key].parts) > 1 for key, (_, chain, _) in self.requests.items())
        return replace(self, gradients=True) if cuts else self

    def with_exchanges(self) -> "Weights":
        """Return the same with all-to-alls cut; itself if there are none."""
        has_any = any(kind == "all_to_all" for _, kind, _ in collective_counts(self.costs.program))
        return replace(self, exchanges=True) if has_any else self

    def weigh_segments(self, graph: ExecutionGraph) -> list[tuple[Segment, Weighed]]:
        """Weigh the all-to-alls of a graph, or remember what they came to."""
        if id(graph) not in self.exchanged:
            self.exchanged[id(graph)] = graph, self._weigh_segments(graph)  # kept, lest the id returns
        return self.exchanged[id(graph)][1]

    def _weigh_segments(self, graph: ExecutionGraph) -> list[tuple[Segment, Weighed]]:
        """Weigh the all-to-alls of a graph; those of a layer are cut alike, as autograd plays chunks back."""
        layers: dict[int, list[Segment]] = {}
        done_of: dict[int, dict[int, float]] = {}  # shapes, by identity
        for segment in find_segments(graph):
            layers.setdefault(int(graph.layer[segment.collectives[0]]), []).append(segment)
            if id(segment.shape) not in done_of:
                done_of[id(segment.shape)] = self._segment_s(graph, segment)
        found = []
        for segments in layers.values():
            done_s = [done_of[id(segment.shape)] for segment in segments]
            common = set[int].intersection(*(set(each) for each in done_s))
            total_s = {count: fsum(each[count] for each in done_s) for count in sorted(common)}
            best = fastest(total_s, total_s.__getitem__)
            for segment, each in zip(segments, done_s, strict=True):
                found.append((segment, Weighed((1 / best,) * best, each[1], each[best])))
        return found

    def _segment_s(self, graph: ExecutionGraph, segment: Segment) -> dict[int, float]:
        """Return when all of a segment is done, by the count of chunks, or remember what one like it came to."""

        def collective_s(node: int, part: float) -> float:
            kind, size_bytes = _sent(graph, node)
            return self.collective_s(int(graph.group[node]), kind, part * size_bytes)

        signature = segment.shape.signature
        if signature not in self.segments:
            most = min(MAX_CHUNKS, largest_count(graph, segment))
            self.segments[signature] = {
                count: finish_segment_s(graph, segment, count, self.costs.machine, collective_s=collective_s)
                for count in (1, 2, 4, 8)
                if count <= most
            }
        return self.segments[signature]

    def _weigh(self, graph: ExecutionGraph, chain: Chain, independent_s: float) -> Weighed:
        """Take the way to cut after which collective and GEMMs are done first."""
        node, program_costs = chain.collective, self.costs
        family = int(graph.group[node])
        kind, size_bytes = _sent(graph, node)
        levels = program_costs.levels(family)
        by_levels = program_costs.by_levels(family, kind, size_bytes)
        levels_s = program_costs.levels_s(family, kind, size_bytes) if by_levels else ()
        sizes = levels.sizes if isinstance(levels, Levels) and len(levels_s) == 2 else (1, 1)  # within, between nodes
        costs = Costs(
            fsum(float(graph.duration_s[piece.node]) for piece in chain.pieces),
            self.collective_s(family, kind, size_bytes),
            independent_s,
            inter_s=levels_s[-1] if levels_s else 0.0,
            inter_size=sizes[1],
            intra_size=sizes[0],
        )
        slowdowns = program_costs.slowdowns(graph, chain.pieces[-1].node)

        def done_s(parts: tuple[float, ...]) -> float:
            computation_s = costs.computation_s
            if len(parts) > 1 and (len(chain.pieces) == 1 or chain.gradients):
                to_whole = ceil if chain.produces else floor
                cuts = [(piece, own_edges(graph, piece, parts, to_whole)) for piece in chain.pieces]
                computation_s = fsum(fsum(part_times(graph, *each, program_costs.machine)) for each in cuts)
            kernels, collective = slowdowns if len(parts) > 1 else (1.0, 1.0)
            return finish_s(
                parts,
                replace(costs, computation_s=computation_s * kernels),
                chunk_s=lambda part: self.collective_s(family, kind, part * size_bytes) * collective,
                produces=chain.produces,
            )

        ways = {parts: done_s(parts) for parts in self.ways(costs)}
        best = fastest(ways, ways.__getitem__)
        return Weighed(best, ways[(1.0,)], ways[best])


def cut(
    program: Program, weights: Weights, *, chosen: Callable[[Chain], bool] = lambda chain: True
) -> tuple[Program, tuple[Decision, ...]]:
    """Return the program with every chain that is chosen cut as it is done first, and what was cut."""
    cuts: dict[int, dict[int, Weighed]] = {id(graph): {} for graph in program.graphs}

    def granularity(graph: ExecutionGraph, chain: Chain) -> Sequence[float]:
        if not chosen(chain):
            return (1.0,)
        if id(graph) not in weights.independent:
            alone = replace(program, graphs=(graph,))
            ordered = in_program_order(overlap(alone))  # collectives that wait on a stream overlap with less
            weights.independent[id(graph)] = _Independent(ordered.graphs[0], weights.costs)
        weighed = weights.independent[id(graph)].weigh(graph, chain, weights)
        if chain.gradients and not weights.gradients:
            return (1.0,)
        cuts[id(graph)][chain.collective] = weighed
        return weighed.parts

    new, decisions = (
        partition_workload(program, weights.costs.machine, granularity=granularity, known=weights.chained),
        _decisions(program, cuts),
    )
    if not weights.exchanges:
        return new, decisions
    weighed = [weights.weigh_segments(graph) for graph in new.graphs]
    counts = [[(segment, len(each.parts)) for segment, each in mine] for mine in weighed]
    of_nodes = {
        id(graph): {node: each for segment, each in mine for node in segment.collectives}
        for graph, mine in zip(new.graphs, weighed, strict=True)
    }
    decisions += _decisions(new, of_nodes)
    return partition_exchanges(new, weights.costs.machine, counts, before=weights.written), decisions


def _decisions(program: Program, cuts: Mapping[int, Mapping[int, Weighed]]) -> tuple[Decision, ...]:
    """Say what was cut; alike are collectives of one size and family that are cut alike."""
    alike: dict[tuple[str, str, int, int], list[Weighed]] = {}
    for graph in program.graphs:
        for node, weighed in cuts[id(graph)].items():
            kind, family = COLLECTIVES[graph.collective[node]], program.groups[graph.group[node]].name
            if len(weighed.parts) > 1:
                alike.setdefault((kind, family, int(graph.bytes[node]), len(weighed.parts)), []).append(weighed)
    return tuple(
        Decision(
            collectives(kind, size_bytes, family),
            f"cut into {chunks} chunks with the {'kernels' if kind == 'all_to_all' else 'GEMMs'} next to it",
            fsum(each.cut_s for each in found) / len(found),
            {"whole": fsum(each.whole_s for each in found) / len(found)},
            time_of="each with what is next to it",
            count=len(found),
        )
        for (kind, family, size_bytes, chunks), found in sorted(alike.items())
    )


class _Independent:
    """How much of a graph's computation can run beside a collective without any of its data, in program order."""

    def __init__(self, graph: ExecutionGraph, program_costs: ProgramCosts) -> None:
        self.graph, self.costs = graph, program_costs
        self.sent_s: dict[int, list[float]] = {}  # of a group's collectives up to each node
        self.weighed: dict[tuple[Hashable, ...], Weighed] = {}  # by what chains of the graph consist of
        self.columns = [
            getattr(graph, name).tolist() for name in ("kernel", "duration_s", "group", "collective", "bytes")
        ]
        computes = graph.kind == NodeKind.COMPUTE
        durations_s = np.where(computes, np.nan_to_num(graph.duration_s), 0.0)
        self.until_s: list[float] = [0.0, *accumulate(durations_s.tolist())]
        self.makes = [-1] * len(graph)  # the last kernel that a collective waits for
        self.takes = [len(graph)] * len(graph)  # the first kernel that waits for it
        users, needs = np.repeat(np.arange(len(graph)), np.diff(graph.dependency_offsets)), graph.dependencies
        waits, awaited = ~computes[users], ~computes[needs]
        is_kernel = computes.tolist()
        for node, old in zip(users[waits].tolist(), needs[waits].tolist(), strict=True):
            self.makes[node] = max(self.makes[node], old if is_kernel[old] else self.makes[old])
        for node, old in zip(users[awaited][::-1].tolist(), needs[awaited][::-1].tolist(), strict=True):
            self.takes[old] = min(self.takes[old], node if is_kernel[node] else self.takes[node])

    def weigh(self, graph: ExecutionGraph, chain: Chain, weights: Weights) -> Weighed:
        """Weigh a chain of the graph, which is in another order here, or remember what one like it came to."""
        independent_s = self.concurrent_s(chain)
        kernel, duration_s, group, collective, size_bytes = self.columns
        node, pieces = chain.collective, [(kernel[node], duration_s[node], *place) for node, *place in chain.pieces]
        key = (group[node], collective[node], size_bytes[node], chain.produces, independent_s, *pieces)
        if key not in self.weighed:
            self.weighed[key] = weights.weigh(graph, chain, independent_s)
        return self.weighed[key]

    def concurrent_s(self, chain: Chain) -> float:
        """Seconds of kernels between the one that the collective waits for and the first that waits for it.

        A layer's gradients are waited for late, and the group's other collectives until then overlap with the same
        kernels. They count only where they are reduced by levels, where chunks within and between nodes overlap.
        """
        begin, end = self.makes[chain.collective] + 1, self.takes[chain.collective]
        if begin >= end:
            return 0.0
        others_s = self._others_s(chain.collective, begin, end) if chain.gradients else 0.0
        return max(0.0, self.until_s[end] - self.until_s[begin] - others_s)

    def _others_s(self, reduction: int, begin: int, end: int) -> float:
        """Seconds of the group's other collectives by levels from one node to another, if the reduction is one."""
        graph, program_costs = self.graph, self.costs
        group = int(graph.group[reduction])
        if not program_costs.by_levels(group, *_sent(graph, reduction)):
            return 0.0
        if group not in self.sent_s:
            seconds = [0.0] * len(graph)
            for node in np.flatnonzero((graph.kind == NodeKind.COLLECTIVE) & (graph.group == group)).tolist():
                if program_costs.by_levels(group, *_sent(graph, node)):
                    seconds[node] = program_costs.best_s(group, *_sent(graph, node))
            self.sent_s[group] = [0.0, *accumulate(seconds)]
        sent_s = self.sent_s[group]
        own_s = sent_s[reduction + 1] - sent_s[reduction] if begin <= reduction < end else 0.0
        return sent_s[end] - sent_s[begin] - own_s


def _sent(graph: ExecutionGraph, node: int) -> tuple[str, int]:
    """Return a collective's kind and bytes."""
    return COLLECTIVES[graph.collective[node]], int(graph.bytes[node])
