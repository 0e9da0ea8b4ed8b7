"""Fused computation-collectives: a kernel and the collective next to it become one persistent kernel.

The kernel is cut into slices, and each slice is sent as it finishes, the slices for other ranks first and the one
that stays last; or, where the kernel consumes an all-to-all, it starts with the slice that is already there and
takes the others as they arrive. Slices of one transfer follow each other on the wire without paying its latency
again. The persistent kernel holds its stream until its last slice has arrived, as its work-groups poll for it.

Where the machine is known, the fused kernel is charged what `fused_costs` says: lower occupancy and book-keeping, a
call for each slice, flags at the end; slices are as few as overlap needs, and a pair that would be slower fused is left
as it is. Not charged: messages of the network card beyond their bytes, of which a graph's slice stands for many.

In aware order all ranks of a group are alike, so their slices are slices of the collective. In oblivious order each
sends its own at another time: see `puts`.

Source: Punniyamurthy et al., Optimizing Distributed ML Communication with Fused Computation-Collective Operations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from scaleout.graph import NONE, ExecutionGraph
from scaleout.machine import Machine
from scaleout.operations import TimeSource
from scaleout.program import Program
from scaleout.schedule import puts
from scaleout.schedule.fused_costs import Charge, charge
from scaleout.schedule.pairs import Pair, agreed, find_pairs, keys_of
from scaleout.schedule.rewrite import Rewrite


def fuse(program: Program, machine: Machine | None = None, *, slices: int = 32, order: str = "aware") -> Program:
    """Replace each pair of a kernel and a collective that can be fused by slices of both.

    Parameters
    ----------
    program : Program
        Timed, and put on streams by another schedule.
    machine : Machine, optional
        What fusing costs; nothing without it.
    slices : int
        Slices that a collective is cut into where the machine is not known. The paper's are finer, 32 embeddings
        each; with this many, what cannot overlap is one slice, 3% of the shorter of the two.
    order : str
        ``"aware"``: what others need comes first, and what others send last. ``"oblivious"``: every rank works in the
        order of the ranks, so that its own share comes at its own place, and ranks of a group run graphs of their own.
    """
    group_sizes = [max(len(members) for members in family.members) for family in program.groups]
    pairs = [find_pairs(graph, group_sizes, slices) for graph in program.graphs]
    charged = _charge(program, pairs, machine)
    if order == "oblivious":
        return _in_turn(program, charged, group_sizes)
    found = agreed(program.graphs, [[pair for pair, _ in mine] for mine in charged])
    costs = [dict(mine) for mine in charged]
    return replace(program, graphs=tuple(map(_rewrite, program.graphs, found, costs)))


def _in_turn(program: Program, charged: Sequence[Sequence[tuple[Pair, Charge]]], group_sizes: Sequence[int]) -> Program:
    """Give ranks at different places graphs of their own, which make the shards in the order of the ranks."""
    cut = [
        {shards: cost for pair, cost in mine if (shards := puts.in_shards(pair, graph, group_sizes)) is not None}
        for graph, mine in zip(program.graphs, charged, strict=True)
    ]
    found = agreed(program.graphs, [list(mine) for mine in cut], uncut=0)
    tag = puts.first_tag(program)
    graphs: list[ExecutionGraph] = []
    role_of_rank = np.zeros(program.num_ranks, np.int64)
    roles = zip(program.graphs, found, cut, keys_of(program.graphs), puts.places_of_roles(program, found), strict=True)
    for graph, mine, costs, names, places in roles:
        for place, ranks in places.items():
            role_of_rank[ranks] = len(graphs)
            exchanges = {
                pair: puts.Exchange(pair, at, tag + names[pair.collective][1])
                for pair, at in zip(mine, place, strict=True)
                if at is not None
            }
            graphs.append(_rewrite(graph, mine, costs, exchanges))
    return replace(program, graphs=tuple(graphs), role_of_rank=role_of_rank)


def fuse_oblivious(program: Program, machine: Machine | None = None) -> Program:
    """Fuse in oblivious order; see `fuse`."""
    return fuse(program, machine, order="oblivious")


def _charge(
    program: Program, pairs: Sequence[Sequence[Pair]], machine: Machine | None
) -> list[list[tuple[Pair, Charge]]]:
    """Give pairs their costs and slices, the most that any role asks for, and leave out those that do not pay."""
    keys = keys_of(program.graphs)
    charges = [
        [(pair, charge(graph, pair, program.groups, machine)) for pair in mine]
        for graph, mine in zip(program.graphs, pairs, strict=True)
    ]
    most: dict[tuple[int, int], int] = {}
    for names, mine in zip(keys, charges, strict=True):
        for pair, cost in mine:
            key = names[pair.collective]
            most[key] = max(most.get(key, 0), cost.slices)
    return [
        [(_cut(pair, most[names[pair.collective]]), cost) for pair, cost in mine if cost.pays]
        for names, mine in zip(keys, charges, strict=True)
    ]


def _cut(pair: Pair, slices: int) -> Pair:
    """Cut a pair into so many slices, at most as many as before; as before for 0."""
    if slices == 0:
        return pair
    makers = len(pair.kernels)
    return replace(pair, slices=max(min(slices, pair.slices) // makers, 1) * makers)


def _rewrite(
    graph: ExecutionGraph,
    pairs: Sequence[Pair],
    costs: Mapping[Pair, Charge],
    exchanges: Mapping[Pair, puts.Exchange] | None = None,
) -> ExecutionGraph:
    """Write a graph with its pairs fused; the slices of `exchanges` are put one by one."""
    makers = {kernel: pair for pair in pairs if pair.produces for kernel in pair.kernels}
    takers = {pair.kernels[0]: pair for pair in pairs if not pair.produces}
    sent = {pair.collective: pair for pair in pairs}
    new = Rewrite(graph)
    for node in range(len(graph)):
        pair = makers.get(node) or takers.get(node) or sent.get(node)
        exchange = (exchanges or {}).get(pair) if pair else None
        if pair is None:
            new.done[node] = new.add(node, new.needs(node))
        elif node in makers:
            come = (
                puts.produce(new, node, exchange, costs[pair]) if exchange else _produce(new, node, pair, costs[pair])
            )
            if node == pair.kernels[-1]:
                _poll(new, node, pair, costs[pair], come)
        elif node in takers:
            if exchange:
                new.done[node] = puts.consume(new, node, exchange, costs[pair])
            else:
                new.done[node] = _consume(new, node, pair, costs[pair])
            new.holds[int(graph.stream[node])] = new.done[node]
        elif not pair.produces:
            needs = [new.needs(node)] * pair.slices
            slices = puts.scatter(new, exchange) if exchange else new.add_collective(node, needs)
            new.sliced[node] = slices
            new.done[node] = slices[-1]
    return new.build()


def _produce(new: Rewrite, node: int, pair: Pair, cost: Charge) -> list[int]:
    """Write a kernel's slices and what it keeps; after the last kernel, write and return the collective's slices."""
    share = pair.slices // len(pair.kernels)
    sent = range(share)
    edges = [(1 - pair.kept) * index / share for index in range(share + 1)]
    names = [f"slice_{index}" for index in sent]
    if pair.kept:
        edges, names = [*edges, 1.0], [*names, "kept"]
    needs = [new.needs(node)] * len(names)
    parts = new.add_kernel(node, edges, needs, names, slower=cost.slower, calls=sent, call_s=cost.call_s)
    new.sliced[node] = parts[:share]
    new.done[node] = parts[-1]
    if node != pair.kernels[-1]:
        return []
    return new.add_collective(pair.collective, [[part] for kernel in pair.kernels for part in new.sliced[kernel]])


def _poll(new: Rewrite, node: int, pair: Pair, cost: Charge, come: Sequence[int]) -> None:
    """Write the end of the last kernel of a pair: it polls until everything has come, and holds its stream."""
    polled = new.add(
        node, [*come, new.done[node]], name=f"{new.graph.names[node]}_poll",
        kernel=NONE, duration_s=cost.flags_s, flops=0, bytes=0, time_source=int(TimeSource.GIVEN),
    )  # fmt: skip
    new.done[pair.collective] = new.holds[int(new.graph.stream[node])] = polled


def _consume(new: Rewrite, node: int, pair: Pair, cost: Charge) -> int:
    """Write the slice of a kernel that is already there, and the others, each as it arrives; return the last."""
    others = [new.done[old] for old in new.graph.dependencies_of(node).tolist() if old != pair.collective]
    edges = [pair.kept + (1 - pair.kept) * index / pair.slices for index in range(pair.slices + 1)]
    names = [f"slice_{index}" for index in range(pair.slices)]
    after = [[*others, arrived] for arrived in new.sliced[pair.collective]]
    if pair.kept:
        edges, names = [0.0, *edges], ["kept", *names]
        after.insert(0, [*others, *new.needs(pair.collective)])
    return new.add_kernel(node, edges, after, names, slower=cost.slower)[-1]
