"""Fused computation-collectives: a kernel and the collective next to it become one persistent kernel.

The kernel is cut into slices, and each slice is sent as it finishes, the slices for other ranks first and the one
that stays last; or, where the kernel consumes an all-to-all, it starts with the slice that is already there and
takes the others as they arrive. Slices of one transfer follow each other on the wire without paying its latency
again. The persistent kernel holds its stream until its last slice has arrived, as its work-groups poll for it.

Where the machine is known, the fused kernel is charged what `fused_costs` says: lower occupancy and book-keeping, a
call for each slice, flags at the end; slices are as few as overlap needs, and a pair that would be slower fused is left
as it is. Not charged: messages of the network card beyond their bytes, of which a graph's slice stands for many.

Source: Punniyamurthy et al., Optimizing Distributed ML Communication with Fused Computation-Collective Operations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from scaleout.graph import NONE, ExecutionGraph
from scaleout.operations import TimeSource
from scaleout.program import Program
from scaleout.schedule.fused_costs import Charge, charge
from scaleout.schedule.machine import Machine
from scaleout.schedule.pairs import Pair, agreed, find_pairs, keys_of
from scaleout.schedule.rewrite import Rewrite


def fuse(program: Program, machine: Machine | None = None, *, slices: int = 32) -> Program:
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
    """
    group_sizes = [max(len(members) for members in family.members) for family in program.groups]
    pairs = [find_pairs(graph, group_sizes, slices) for graph in program.graphs]
    charged = _charge(program, pairs, machine)
    found = agreed(program.graphs, [[pair for pair, _ in mine] for mine in charged])
    costs = [dict(mine) for mine in charged]
    return replace(program, graphs=tuple(map(_rewrite, program.graphs, found, costs)))


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


def _rewrite(graph: ExecutionGraph, pairs: Sequence[Pair], costs: Mapping[Pair, Charge]) -> ExecutionGraph:
    makers = {kernel: pair for pair in pairs if pair.produces for kernel in pair.kernels}
    takers = {pair.kernels[0]: pair for pair in pairs if not pair.produces}
    sent = {pair.collective: pair for pair in pairs}
    new = Rewrite(graph)
    for node in range(len(graph)):
        if node in makers:
            _produce(new, node, makers[node], costs[makers[node]])
        elif node in takers:
            _consume(new, node, takers[node], costs[takers[node]])
        elif node not in sent:
            new.done[node] = new.add(node, new.needs(node))
        elif not sent[node].produces:
            slices = new.add_collective(node, [new.needs(node)] * sent[node].slices)
            new.sliced[node] = slices
            new.done[node] = slices[-1]
    return new.build()


def _produce(new: Rewrite, node: int, pair: Pair, cost: Charge) -> None:
    """Write a kernel's slices, those that are sent first; after the last kernel, the collective and the polling."""
    share = pair.slices // len(pair.kernels)
    edges = [(1 - pair.kept) * index / share for index in range(share + 1)]
    names = [f"slice_{index}" for index in range(share)]
    if pair.kept:
        edges, names = [*edges, 1.0], [*names, "kept"]
    needs = [new.needs(node)] * len(names)
    parts = new.add_kernel(node, edges, needs, names, slower=cost.slower, calls=share, call_s=cost.call_s)
    new.sliced[node] = parts[:share]
    new.done[node] = parts[-1]
    if node != pair.kernels[-1]:
        return
    data = [[part] for kernel in pair.kernels for part in new.sliced[kernel]]
    slices = new.add_collective(pair.collective, data)
    polled = new.add(
        node, [*slices, parts[-1]], name=f"{new.graph.names[node]}_poll",
        kernel=NONE, duration_s=cost.flags_s, flops=0, bytes=0, time_source=int(TimeSource.GIVEN),
    )  # fmt: skip
    new.done[pair.collective] = new.holds[int(new.graph.stream[node])] = polled


def _consume(new: Rewrite, node: int, pair: Pair, cost: Charge) -> None:
    """Write a kernel's slices: the one that is already there, then each other as it arrives."""
    edges = [pair.kept + (1 - pair.kept) * index / pair.slices for index in range(pair.slices)] + [1.0]
    names = [f"slice_{index}" for index in range(pair.slices)]
    others = [new.done[old] for old in new.graph.dependencies_of(node).tolist() if old != pair.collective]
    after = [[*others, arrived] for arrived in new.sliced[pair.collective]]
    if pair.kept:
        edges, names = [0.0, *edges], ["kept", *names]
        after = [[*others, *new.needs(pair.collective)], *after]
    parts = new.add_kernel(node, edges, after, names, slower=cost.slower)
    new.done[node] = new.holds[int(new.graph.stream[node])] = parts[-1]
