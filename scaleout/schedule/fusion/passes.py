"""Fused computation-collectives in a program: a kernel and the collective next to it become one persistent kernel.

The kernel is cut into slices, each sent as it is complete, those for other ranks first; a kernel that consumes an
all-to-all starts with the slice that is already there. The kernel holds its stream until its last slice has arrived, as
it polls. Costs are the device's `work_groups`, and a pair that would be slower fused stays as it is. In oblivious order
ranks at different positions of a group run graphs of their own, and each slice is a one-sided put: a send along the
group whose receive depends on nothing. See docs/models/fused-operators.md.

Symbols: p ranks; M kernels that make the data; q slices of a shard, a multiple of M; k kernel, w link [s].
Source: Punniyamurthy et al., Optimizing Distributed ML Communication with Fused Computation-Collective Operations.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scaleout.cluster.machine import Machine
from scaleout.errors import ConfigError
from scaleout.program.graph import NONE, ExecutionGraph, NodeKind
from scaleout.program.operations import TimeSource
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule.fusion.pair_cost import FusedCost, fused_cost
from scaleout.schedule.overlap import communication_stream
from scaleout.schedule.pairs import Pair, agreed, find_pairs, keys_of
from scaleout.schedule.rewrite import Rewrite, divided

MOST_PUTS = 2**17
"""Most puts in all graphs together: half a minute."""


@dataclass(frozen=True)
class Position:
    """Where in a group a rank is, and the size of the group."""

    index: int
    size: int


Positions = dict[tuple[Position | None, ...], list[int]]
"""Positions in the groups of a role's pairs, None where a pair keeps nothing, to the ranks there."""


def in_shards(pair: Pair, graph: ExecutionGraph, group_sizes: Sequence[int]) -> Pair | None:
    """Return a pair with the slices of one shard, or None if there is nothing to put: too few ranks or bytes.

    Pairs that keep nothing (all-reduces) stay as they are: all ranks are alike there.
    """
    if not pair.kept:
        return pair
    size, makers = group_sizes[graph.group[pair.collective]], len(pair.kernels)
    if size < 2:
        return None
    each = -(-pair.slices // ((size - 1) * makers)) * makers
    return replace(pair, slices=each) if graph.bytes[pair.collective] >= size * each else None


def positions_of_roles(program: Program, pairs: Sequence[Sequence[Pair]]) -> list[Positions]:
    """Return, for each role, its ranks by their positions in the groups of its pairs; too many puts are an error."""
    where = [_positions(family) for family in program.groups]
    ranks_of: list[Positions] = [{} for _ in program.graphs]
    puts = 0
    for rank, role in enumerate(program.role_of_rank.tolist()):
        groups = [int(program.graphs[role].group[pair.collective]) for pair in pairs[role]]
        at_of = tuple(
            where[group][rank] if pair.kept else None for group, pair in zip(groups, pairs[role], strict=True)
        )
        if at_of not in ranks_of[role]:
            puts += sum(at.size * pair.slices for at, pair in zip(at_of, pairs[role], strict=True) if at)
        ranks_of[role].setdefault(at_of, []).append(rank)
    if puts > MOST_PUTS:
        raise ConfigError(
            f"in oblivious order every rank sends every other one slices of its own, {puts} in all, more than "
            f"{MOST_PUTS}; take fewer ranks, or the schedule fused"
        )
    return ranks_of


def _positions(family: GroupFamily) -> dict[int, Position]:
    return {rank: Position(index, len(group)) for group in family.members for index, rank in enumerate(group)}


@dataclass(frozen=True)
class Exchange:
    """A collective as one-sided puts with one tag, from the position of a rank: p shards of q slices."""

    pair: Pair
    position: Position
    tag: int
    gap_s: float  # of each slice on its link, beyond its bytes

    def cuts(self, maker: int, makers: int) -> tuple[list[float], list[str], list[tuple[int, int]]]:
        """Return where a kernel is cut, what its parts are called, and the shard and slice that each is."""
        own, size = self.position.index, self.position.size
        each = self.pair.slices // makers
        edges, names, parts = [0.0], list[str](), list[tuple[int, int]]()
        for shard in range(size):
            pieces = 1 if shard == own else each
            for piece in range(pieces):
                edges.append((shard + (piece + 1) / pieces) / size)
                names.append("kept" if shard == own else f"shard_{shard}_{maker * each + piece}")
                parts.append((shard, maker * each + piece))
        return edges, names, parts

    def send(self, new: Rewrite, shard: int, piece: int, after: Sequence[int]) -> None:
        """Write the put of a slice, or to oneself of a maker's whole part."""
        self._message(new, NodeKind.SEND, shard, shard * self.pair.slices + piece, after)

    def receive(self, new: Rewrite, source: int, piece: int) -> int:
        """Write the arrival of a slice from a rank of the group."""
        return self._message(new, NodeKind.RECV, source, self.position.index * self.pair.slices + piece, ())

    def own_pieces(self) -> int:
        """Return the slices of its own shard that a rank puts at once: all of a kernel."""
        return self.pair.slices // (len(self.pair.kernels) if self.pair.produces else 1)

    def _message(self, new: Rewrite, kind: NodeKind, other: int, first: int, after: Sequence[int]) -> int:
        own, size = self.position.index, self.position.size
        node, graph = self.pair.collective, new.graph
        group, whole = int(graph.group[node]), size * self.pair.slices
        last = first + (self.own_pieces() if other == own else 1)
        return new.add(
            node,
            after,
            name=f"{graph.names[node]}_{'to' if kind == NodeKind.SEND else 'from'}_{other}_{first % self.pair.slices}",
            kind=int(kind),
            peer=(other - own) % size,
            tag=self.tag,
            bytes=divided(int(graph.bytes[node]), [first / whole, last / whole])[0],
            slices=whole,
            stream=communication_stream(group),
            issue_s=0.0,
            duration_s=self.gap_s,
        )


def produce(new: Rewrite, node: int, exchange: Exchange, cost: FusedCost) -> list[int]:
    """Write a kernel's slices with their puts; after the last kernel, return what arrives, else nothing."""
    pair, own = exchange.pair, exchange.position.index
    maker, makers = pair.kernels.index(node), len(pair.kernels)
    edges, names, parts = exchange.cuts(maker, makers)
    sent = [index for index, (shard, _) in enumerate(parts) if shard != own]
    needs = [new.needs(node)] * len(names)
    made = new.add_kernel(node, edges, needs, names, lasts_s=cost.lasts_s(sent))
    for part, (shard, piece) in zip(made, parts, strict=True):
        exchange.send(new, shard, piece, [part])
    new.done[node] = made[-1]
    if node != pair.kernels[-1]:
        return []
    each = exchange.own_pieces()
    return [
        exchange.receive(new, source, piece)
        for source in range(exchange.position.size)
        for piece in range(0, pair.slices, each if source == own else 1)
    ]


def scatter(new: Rewrite, exchange: Exchange) -> list[int]:
    """Write the puts of data that are there, to all in turn, and return what arrives, in the order of the ranks."""
    node, own, size = exchange.pair.collective, exchange.position.index, exchange.position.size
    needs = new.needs(node)
    for piece in range(exchange.pair.slices):
        for shard in range(size):
            if shard != own or piece == 0:
                exchange.send(new, shard, piece, needs)
    return [
        exchange.receive(new, source, piece)
        for source in range(size)
        for piece in range(1 if source == own else exchange.pair.slices)
    ]


Candidates = list[list[tuple[Pair, FusedCost]]]
"""For each role of a program, what may be fused, and what it costs."""


def fuse(program: Program, machine: Machine | None = None, *, slices: int = 32, order: str = "aware") -> Program:
    """Replace each pair of a kernel and a collective that can be fused, of a timed program, by slices of both.

    Without a machine fusing costs nothing, and a collective is cut into `slices`; the paper's are finer, 32 embeddings
    each: with this many, what cannot overlap is one slice, 3% of the shorter of the two. In ``aware`` order what others
    need comes first, and what others send last; in ``oblivious`` order every rank works in the order of the ranks.
    """
    found = candidates(program, machine, slices=slices)
    return _in_turn(program, found) if order == "oblivious" else fused(program, found)


def fused(program: Program, found: Candidates) -> Program:
    """Replace candidates by their slices, but for those that other members of their groups do not cut alike."""
    pairs = agreed(program, [[pair for pair, _ in mine] for mine in found])
    return replace(program, graphs=tuple(map(_rewrite, program.graphs, pairs, map(dict, found))))


def _in_turn(program: Program, with_costs: Candidates) -> Program:
    """Give ranks at different positions graphs of their own, which make the shards in the order of the ranks."""
    group_sizes = _sizes(program)
    cut = [
        {shards: cost for pair, cost in mine if (shards := in_shards(pair, graph, group_sizes)) is not None}
        for graph, mine in zip(program.graphs, with_costs, strict=True)
    ]
    found = agreed(program, [list(mine) for mine in cut], uncut=0, even=True)
    tag = 1 + max((int(graph.tag.max()) for graph in program.graphs if len(graph)), default=0)  # free from here on
    graphs: list[ExecutionGraph] = []
    role_of_rank = np.zeros(program.num_ranks, np.int64)
    roles = zip(program.graphs, found, cut, keys_of(program.graphs), positions_of_roles(program, found), strict=True)
    for graph, mine, costs, names, positions in roles:
        for exchange_with, ranks in positions.items():
            role_of_rank[ranks] = len(graphs)
            exchanges = {
                pair: Exchange(pair, at, tag + names[pair.collective][1], costs[pair].gap_s)
                for pair, at in zip(mine, exchange_with, strict=True)
                if at is not None
            }
            graphs.append(_rewrite(graph, mine, costs, exchanges))
    return replace(program, graphs=tuple(graphs), role_of_rank=role_of_rank)


def fuse_oblivious(program: Program, machine: Machine | None = None) -> Program:
    """Fuse in oblivious order; see `fuse`."""
    return fuse(program, machine, order="oblivious")


def _sizes(program: Program) -> list[int]:
    """Return the size of the largest group of each process-group set."""
    return [max(map(len, family.members), default=0) for family in program.groups]


def candidates(program: Program, machine: Machine | None = None, *, slices: int = 32) -> Candidates:
    """Find the pairs that pay, with their costs and slices, the most that any role asks for."""
    keys = keys_of(program.graphs)
    costs: Candidates = []
    for graph in program.graphs:
        known: dict[tuple[object, ...], FusedCost] = {}
        costs.append([])
        for pair in find_pairs(graph, _sizes(program), slices):
            key = (*likeness(graph, pair), *graph.duration_s[list(pair.kernels)].tolist())
            if key not in known:
                known[key] = fused_cost(graph, pair, program.groups, machine)
            costs[-1].append((pair, known[key]))
    most: dict[tuple[int, int], int] = {}
    makers: dict[tuple[int, int], int] = {}
    paying: set[tuple[int, int]] = set()
    for names, mine in zip(keys, costs, strict=True):
        for pair, cost in mine:
            key = names[pair.collective]
            most[key] = max(most.get(key, 0), cost.slices)
            makers[key] = math.lcm(makers.get(key, 1), len(pair.kernels))
            if cost.pays:
                paying.add(key)
    return [
        [
            (_cut(pair, _divided(most[key], makers[key])), cost)
            for pair, cost in mine
            for key in (names[pair.collective],)
            if key in paying
        ]
        for names, mine in zip(keys, costs, strict=True)
    ]


def _divided(slices: int, makers: int) -> int:
    """Return about so many slices, the same for roles of which one has more makers than another; 0 of none."""
    return max(slices // makers, 1) * makers if slices else 0


def likeness(graph: ExecutionGraph, pair: Pair) -> tuple[object, ...]:
    """Return what pairs that are alike share, over layers and micro-batches: their pass, collective and kernels."""
    node = pair.collective
    return (
        int(graph.role[node]), int(graph.collective[node]), int(graph.group[node]), int(graph.bytes[node]),
        pair.produces, tuple(graph.kernels[graph.kernel[kernel]] for kernel in pair.kernels),
    )  # fmt: skip


def _cut(pair: Pair, slices: int) -> Pair:
    """Cut a pair into so many slices, at most as many as before; as before for 0."""
    if slices == 0:
        return pair
    makers = len(pair.kernels)
    return replace(pair, slices=max(min(slices, pair.slices) // makers, 1) * makers)


def _rewrite(
    graph: ExecutionGraph,
    pairs: Sequence[Pair],
    costs: Mapping[Pair, FusedCost],
    exchanges: Mapping[Pair, Exchange] | None = None,
) -> ExecutionGraph:
    """Write a graph with its pairs fused; the slices of `exchanges` are put one by one."""
    makers = {kernel: pair for pair in pairs if pair.produces for kernel in pair.kernels}
    takers = {pair.kernels[0]: pair for pair in pairs if not pair.produces}
    sent = {pair.collective: pair for pair in pairs}
    new = Rewrite(graph)
    before = 0
    for node in sorted({*makers, *takers, *sent}):
        new.keep(before, node)
        before = node + 1
        pair = makers.get(node) or takers.get(node) or sent[node]
        exchange = (exchanges or {}).get(pair)
        if node in makers:
            arriving = produce(new, node, exchange, costs[pair]) if exchange else _produce(new, node, pair, costs[pair])
            if node == pair.kernels[-1]:
                _poll(new, node, pair, costs[pair], arriving)
        elif node in takers:
            new.done[node] = _consume(new, node, pair, costs[pair], exchange)
            new.holds[int(graph.stream[node])] = new.done[node]
        elif not pair.produces:
            needs = [new.needs(node)] * pair.slices
            slices = scatter(new, exchange) if exchange else _puts(new, pair, needs, costs[pair])
            new.sliced[node] = slices
            new.done[node] = slices[-1]
    new.keep(before, len(graph))
    return new.build()


def _produce(new: Rewrite, node: int, pair: Pair, cost: FusedCost) -> list[int]:
    """Write a kernel's slices and what it keeps; after the last kernel, write and return the collective's slices."""
    share = pair.slices // len(pair.kernels)
    new.add_slices(node, share, pair.kept, lasts_s=cost.lasts_s(range(share)))
    if node != pair.kernels[-1]:
        return []
    return _puts(new, pair, [[part] for kernel in pair.kernels for part in new.sliced[kernel]], cost)


def _puts(new: Rewrite, pair: Pair, after: Sequence[Sequence[int]], cost: FusedCost) -> list[int]:
    """Write the slices of a collective that work-groups put, which the host need not issue."""
    return new.add_collective(pair.collective, after, issue_s=0.0, duration_s=cost.gap_s)


def _poll(new: Rewrite, node: int, pair: Pair, cost: FusedCost, arriving: Sequence[int]) -> None:
    """Write the end of the last kernel of a pair: it polls until everything has arrived, and holds its stream."""
    polled = new.add(
        node, [*arriving, new.done[node]], name=f"{new.graph.names[node]}_poll",
        kernel=NONE, duration_s=cost.flags_s, flops=0, bytes=0, time_source=int(TimeSource.GIVEN),
    )  # fmt: skip
    new.done[pair.collective] = new.holds[int(new.graph.stream[node])] = polled


def _consume(new: Rewrite, node: int, pair: Pair, cost: FusedCost, exchange: Exchange | None) -> int:
    """Write the slice of a kernel that is already there, and the others, each as it arrives; return the last.

    The kernel itself puts what others wait for, as many slices as it waits for.
    """
    others = [new.done[old] for old in new.graph.dependencies_of(node).tolist() if old != pair.collective]
    after = [[*others, arrived] for arrived in new.sliced[pair.collective]]
    if exchange:
        edges, names, parts = exchange.cuts(0, 1)
        arriving = {index for index, (shard, _) in enumerate(parts) if shard != exchange.position.index}
    else:
        edges = [pair.kept + (1 - pair.kept) * index / pair.slices for index in range(pair.slices + 1)]
        names = [f"slice_{index}" for index in range(pair.slices)]
        if pair.kept:
            edges, names = [0.0, *edges], ["kept", *names]
            after.insert(0, [*others, *new.needs(pair.collective)])
        arriving = set(range(len(names) - pair.slices, len(names)))
    lasts_s = cost.lasts_s(arriving, last=len(names) - 1)
    return new.add_kernel(node, edges, after, names, lasts_s=lasts_s)[-1]
