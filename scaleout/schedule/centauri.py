"""The schedule `centauri`: partition every communication where that pays, and overlap what is left.

Each all-reduce, all-gather and reduce-scatter passes the partition space in the paper's order. It is substituted and
carried out by levels where the sum of the costs is less, and cut into chunks with the products next to it where the
operation tier's pipeline ends earlier, with what chunks and products beside each other lose. Costs are the network
model's and the kernels'; all members of a group decide from the same numbers. The rest is `overlap`.

Not here: the layer tier (backward runs in the program's order) and the model tier (gathers of stepped parameters stay
at the end of a step). Source: Chen et al., Centauri, ASPLOS 2024.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from scaleout.config import nearest
from scaleout.contention import contention_of
from scaleout.errors import ConfigError
from scaleout.graph import COLLECTIVES, ExecutionGraph, NodeKind
from scaleout.machine import Machine
from scaleout.network.alpha_beta import collective_cost
from scaleout.operations import Kernel
from scaleout.placement import place
from scaleout.program import GroupFamily, Program
from scaleout.schedule.operation_tier import Costs, candidates, finish_s
from scaleout.schedule.order import in_program_order
from scaleout.schedule.overlap import overlap
from scaleout.schedule.partition.group import Levels, bytes_on_level, levels_of, partition_groups
from scaleout.schedule.partition.primitive import substitute
from scaleout.schedule.partition.workload import Chain, edges_of, part_times, partition_workload

_LEVELLED = ("all_gather", "reduce_scatter")

DIMENSIONS = ("primitive", "group", "workload")
"""Dimensions of the partition space, in the order in which they are applied."""


@dataclass(frozen=True)
class Decision:
    """What was decided for collectives that are alike.

    Attributes
    ----------
    count : int
        Collectives of one rank, of the role that has most of them.
    before_s, after_s : float
        Estimates; of a cut the time until collective and products are done.
    reason : str
        Why the group is not divided, if so.
    """

    kind: str
    family: str
    size_bytes: int
    count: int
    choice: str
    before_s: float
    after_s: float
    reason: str = ""


class _Prices:
    """What collectives of a program cost, whole and by levels; each asked once."""

    def __init__(self, program: Program, machine: Machine, dimensions: Collection[str]) -> None:
        self.program, self.machine, self.dimensions = program, machine, dimensions
        self._levels: dict[int, Levels | str] = {}
        self.contention = contention_of(machine.device, machine.topology)
        self._beside: dict[tuple[Kernel, float], tuple[float, float]] = {}
        self.weighed: dict[tuple[Hashable, ...], _Weighed] = {}  # layers are alike

    def levels(self, family: int) -> Levels | str:
        if family not in self._levels:
            self._levels[family] = levels_of(self.program.groups[family], self.machine.topology)
        return self._levels[family]

    def whole_s(self, family: int, kind: str, size_bytes: float) -> float:
        return self._cost_s(self.program.groups[family], kind, size_bytes)

    def _cost_s(self, family: GroupFamily, kind: str, size_bytes: float) -> float:
        placement = place(self.machine.topology, family.members[0])
        return collective_cost(kind, size_bytes, placement, self.machine.algorithms.get(kind, "auto")).time_s

    def levels_s(self, family: int, kind: str, size_bytes: float) -> tuple[float, ...]:
        """Seconds on each level, innermost first; nothing if the group does not divide."""
        found = self.levels(family)
        if isinstance(found, str) or kind not in _LEVELLED or "group" not in self.dimensions:
            return ()
        numbered = enumerate(found.families)
        return tuple(self._cost_s(each, kind, bytes_on_level(int(size_bytes), found.sizes, n)) for n, each in numbered)

    def by_levels(self, family: int, kind: str, size_bytes: float) -> bool:
        """Whether levels one after another take less than the whole group at once."""
        levels_s = self.levels_s(family, kind, size_bytes)
        return bool(levels_s) and sum(levels_s) < self.whole_s(family, kind, size_bytes)

    def best_s(self, family: int, kind: str, size_bytes: float) -> float:
        """Seconds of a collective as it will be carried out."""
        if self.by_levels(family, kind, size_bytes):
            return sum(self.levels_s(family, kind, size_bytes))
        return self.whole_s(family, kind, size_bytes)

    def substituted_s(self, family: int, size_bytes: float) -> float:
        """Seconds of an all-reduce as reduce-scatter and all-gather."""
        return sum(self.best_s(family, kind, size_bytes) for kind in _LEVELLED[::-1])

    def substitutes(self, family: int, kind: str, size_bytes: float) -> bool:
        """Whether an all-reduce is better as the two."""
        return kind == "all_reduce" and self.substituted_s(family, size_bytes) < self.whole_s(family, kind, size_bytes)

    def beside(self, graph: ExecutionGraph, node: int) -> tuple[float, float]:
        """How many times as long a product and a collective take beside each other, where the library says."""
        if self.contention is None:
            return 1.0, 1.0
        call, alone_s = graph.kernels[graph.kernel[node]], float(graph.duration_s[node])
        if (call, alone_s) not in self._beside:
            channels = self.contention.appetite.num_sms
            slower = self.contention.slows(call, alone_s, channels=channels)
            taken_bytes_per_s = self.contention.taken(channels, slower=slower)
            kernels = self.contention.slowed(call, num_sms=channels, taken_bytes_per_s=taken_bytes_per_s)
            self._beside[call, alone_s] = (kernels, slower)
        return self._beside[call, alone_s]


def dimensions_up_to(last: str) -> tuple[str, ...]:
    """Return the dimensions of the partition space up to one, as in the paper's ablation; all for no name.

    Raises
    ------
    ConfigError
        If there is none of that name.
    """
    if last and last not in DIMENSIONS:
        raise ConfigError(f"unknown dimension {last!r} of centauri's partition space; {nearest(last, DIMENSIONS)}")
    return DIMENSIONS[: DIMENSIONS.index(last) + 1] if last else DIMENSIONS


def centauri(program: Program, machine: Machine | None = None, *, dimensions: Collection[str] = DIMENSIONS) -> Program:
    """Partition every communication where that pays, along some dimensions, and overlap.

    Raises
    ------
    ConfigError
        Without a machine: there is nothing to weigh then.
    """
    return plan(program, machine, dimensions=dimensions)[0]


def plan(
    program: Program, machine: Machine | None, *, dimensions: Collection[str] = DIMENSIONS
) -> tuple[Program, tuple[Decision, ...]]:
    """Return the program as `centauri` schedules it, and what was decided; see `centauri`."""
    if machine is None:
        raise ConfigError("centauri weighs what collectives cost; say which device and network the program is for")
    prices = _Prices(program, machine, dimensions)
    found = _decisions(program, prices)
    program = substitute(program, chosen=prices.substitutes)
    cuts: dict[int, dict[int, _Weighed]] = {id(graph): {} for graph in program.graphs}
    ordered = in_program_order(overlap(program)).graphs  # what waits for its turn on a stream has less beside it
    independent = {id(graph): _Independent(other) for graph, other in zip(program.graphs, ordered, strict=True)}

    def granularity(graph: ExecutionGraph, chain: Chain) -> Sequence[float]:
        weighed = _weighed(graph, chain, prices, independent[id(graph)].beside(chain))
        cuts[id(graph)][chain.collective] = weighed
        return weighed.parts

    if "workload" in prices.dimensions:
        program_cut = partition_workload(program, machine, granularity=granularity)
        found += _cut_decisions(program, cuts)
        program = program_cut
    program = partition_groups(program, machine, chosen=prices.by_levels)
    return overlap(program), found


def in_words(decisions: Sequence[Decision]) -> tuple[str, ...]:
    """Say each decision in a sentence."""
    return tuple(_sentence(each) for each in decisions)


def _sentence(each: Decision) -> str:
    instead = f" instead of {each.before_s * 1e3:.4g}" if each.after_s < each.before_s else ""
    reason = f" ({each.reason})" if each.reason else ""
    what = f"{each.count} x {each.kind} of {each.size_bytes / 1e6:.4g} MB over {each.family}"
    return f"{what}: {each.choice}, {each.after_s * 1e3:.4g} ms{instead}{reason}"


def _decisions(program: Program, prices: _Prices) -> tuple[Decision, ...]:
    """Say what primitives and groups become, for each size of each kind."""
    counts: Counter[tuple[int, str, int]] = Counter()
    for graph in program.graphs:
        nodes = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist()
        of_graph = Counter((int(graph.group[n]), COLLECTIVES[graph.collective[n]], int(graph.bytes[n])) for n in nodes)
        counts |= of_graph
    found = []
    for (family, kind, size_bytes), count in sorted(counts.items()):
        if kind not in (*_LEVELLED, "all_reduce"):
            continue
        levels = prices.levels(family)
        before_s, after_s, choice = prices.whole_s(family, kind, size_bytes), 0.0, "whole"
        if prices.substitutes(family, kind, size_bytes):
            choice, after_s = "reduce_scatter and all_gather", prices.substituted_s(family, size_bytes)
        if prices.by_levels(family, "reduce_scatter" if kind == "all_reduce" else kind, size_bytes):
            sizes = " x ".join(map(str, levels.sizes[::-1])) if isinstance(levels, Levels) else ""
            choice = f"{choice} by levels {sizes}" if choice != "whole" else f"by levels {sizes}"
        after_s = after_s or prices.best_s(family, kind, size_bytes)
        reason = levels if isinstance(levels, str) else ""
        found.append(Decision(kind, program.groups[family].name, size_bytes, count, choice, before_s, after_s, reason))
    return tuple(found)


@dataclass(frozen=True)
class _Weighed:
    """The chunks that were chosen, and when collective and products are done whole and so."""

    parts: tuple[float, ...]
    whole_s: float
    cut_s: float


def _cut_decisions(program: Program, cuts: Mapping[int, Mapping[int, _Weighed]]) -> tuple[Decision, ...]:
    """Say what was cut; alike are collectives of one size and family that are cut alike."""
    alike: dict[tuple[str, str, int, int], list[_Weighed]] = {}
    for graph in program.graphs:
        for node, weighed in cuts[id(graph)].items():
            kind, family = COLLECTIVES[graph.collective[node]], program.groups[graph.group[node]].name
            if len(weighed.parts) > 1:
                alike.setdefault((kind, family, int(graph.bytes[node]), len(weighed.parts)), []).append(weighed)
    return tuple(
        Decision(
            kind, family, size_bytes, len(found), f"cut into {chunks} chunks with the products next to it",
            sum(each.whole_s for each in found) / len(found), sum(each.cut_s for each in found) / len(found),
        )
        for (kind, family, size_bytes, chunks), found in sorted(alike.items())
    )  # fmt: skip


def _weighed(graph: ExecutionGraph, chain: Chain, prices: _Prices, independent_s: float) -> _Weighed:
    """Weigh a chain, or remember what one like it came to."""
    node = chain.collective
    pieces = tuple(
        (graph.kernel[piece.node], graph.duration_s[piece.node], replace(piece, node=0)) for piece in chain.pieces
    )
    beside = f"{independent_s:.9e}"  # sums over other parts of a graph differ in their last bits
    key = (id(graph), graph.group[node], graph.collective[node], graph.bytes[node], chain.produces, pieces, beside)
    if key not in prices.weighed:
        prices.weighed[key] = _weigh(graph, chain, prices, independent_s)
    return prices.weighed[key]


def _weigh(graph: ExecutionGraph, chain: Chain, prices: _Prices, independent_s: float) -> _Weighed:
    """Take the way to cut after which collective and products are done first."""
    node = chain.collective
    family, kind = int(graph.group[node]), COLLECTIVES[graph.collective[node]]
    size_bytes = int(graph.bytes[node])
    levels = prices.levels(family)
    levels_s = prices.levels_s(family, kind, size_bytes) if prices.by_levels(family, kind, size_bytes) else ()
    sizes = levels.sizes if isinstance(levels, Levels) and len(levels_s) == 2 else (1, 1)  # within, between nodes
    costs = Costs(
        sum(float(graph.duration_s[piece.node]) for piece in chain.pieces),
        prices.best_s(family, kind, size_bytes),
        independent_s,
        inter_s=levels_s[-1] if levels_s else 0.0,
        inter_size=sizes[1],
        intra_size=sizes[0],
    )
    beside = prices.beside(graph, chain.pieces[-1].node)

    def done_s(parts: tuple[float, ...]) -> float:
        computation_s = costs.computation_s
        if len(parts) > 1 and len(chain.pieces) == 1:
            computation_s = sum(part_times(graph, chain.pieces[0], edges_of(parts), prices.machine))
        kernels, collectives = beside if len(parts) > 1 else (1.0, 1.0)
        return finish_s(
            parts,
            replace(costs, computation_s=computation_s * kernels),
            chunk_s=lambda part: prices.best_s(family, kind, part * size_bytes) * collectives,
            produces=chain.produces,
        )

    ways = {parts: done_s(parts) for parts in candidates(costs)}
    best = min(ways, key=ways.__getitem__)
    return _Weighed(best, ways[(1.0,)], ways[best])


class _Independent:
    """How much of a graph's computation can run beside a collective without any of its data, in program order."""

    def __init__(self, graph: ExecutionGraph) -> None:
        computes = graph.kind == NodeKind.COMPUTE
        durations_s = np.where(computes, np.nan_to_num(graph.duration_s), 0.0)
        self.until_s = [0.0, *accumulate(durations_s.tolist())]
        self.makes = [-1] * len(graph)  # the last kernel that a collective waits for
        self.takes = [len(graph)] * len(graph)  # the first kernel that waits for it
        for node in range(len(graph)):
            for old in graph.dependencies_of(node).tolist():
                self.makes[node] = max(self.makes[node], old if computes[old] else self.makes[old])
        for node in range(len(graph))[::-1]:
            for old in graph.dependencies_of(node).tolist():
                self.takes[old] = min(self.takes[old], node if computes[node] else self.takes[node])

    def beside(self, chain: Chain) -> float:
        """Seconds of kernels between the one that the collective waits for and the first that waits for it."""
        begin, end = self.makes[chain.collective] + 1, self.takes[chain.collective]
        return max(0.0, self.until_s[end] - self.until_s[begin]) if begin < end else 0.0
