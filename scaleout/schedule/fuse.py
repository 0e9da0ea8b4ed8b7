"""Fused computation-collectives: a kernel and the collective next to it become one persistent kernel.

The kernel is cut into slices, and each slice is sent as it finishes, the slices for other ranks first and the one
that stays last; or, where the kernel consumes an all-to-all, it starts with the slice that is already there and
takes the others as they arrive. Slices of one transfer follow each other on the wire without paying its latency
again. The persistent kernel holds its stream until its last slice has arrived, as its work-groups poll for it.

Where the machine is known, the fused kernel is charged what `fused_costs` says: lower occupancy and book-keeping, a
call for each slice, flags at the end; slices are as few as overlap needs, and a pair that would be slower fused is left
as it is. Not charged: messages of the network card beyond their bytes, of which a graph's slice stands for many.

In oblivious order all members of a group wait for each slice together, so all are done when the last one is; that some
are done earlier, `operators` tells.

Source: Punniyamurthy et al., Optimizing Distributed ML Communication with Fused Computation-Collective Operations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from scaleout.graph import NONE, ExecutionGraph
from scaleout.machine import Machine
from scaleout.operations import TimeSource
from scaleout.program import Program
from scaleout.schedule.fused_costs import Charge, charge
from scaleout.schedule.pairs import Pair, agreed, find_pairs, keys_of, places_of_roles
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
    found = agreed(program.graphs, [[pair for pair, _ in mine] for mine in charged])
    costs = [dict(mine) for mine in charged]
    if order == "aware":
        return replace(program, graphs=tuple(map(_rewrite, program.graphs, found, costs)))
    graphs: list[ExecutionGraph] = []
    role_of_rank = np.zeros(program.num_ranks, np.int64)
    for graph, mine, cost, places in zip(program.graphs, found, costs, places_of_roles(program, found), strict=True):
        for place, ranks in places.items():
            role_of_rank[list(ranks)] = len(graphs)
            graphs.append(_rewrite(graph, mine, cost, dict(zip(mine, place, strict=True))))
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
    places: Mapping[Pair, float] | None = None,
) -> ExecutionGraph:
    """Write a graph with its pairs fused; `places` says where the own share comes, from 0 first to 1 last."""
    makers = {kernel: pair for pair in pairs if pair.produces for kernel in pair.kernels}
    takers = {pair.kernels[0]: pair for pair in pairs if not pair.produces}
    sent = {pair.collective: pair for pair in pairs}
    new = Rewrite(graph)
    for node in range(len(graph)):
        if node in makers:
            pair = makers[node]
            _produce(new, node, pair, costs[pair], 1.0 if places is None else places[pair])
        elif node in takers:
            pair = takers[node]
            _consume(new, node, pair, costs[pair], 0.0 if places is None else places[pair])
        elif node not in sent:
            new.done[node] = new.add(node, new.needs(node))
        elif not sent[node].produces:
            slices = new.add_collective(node, [new.needs(node)] * sent[node].slices)
            new.sliced[node] = slices
            new.done[node] = slices[-1]
    return new.build()


def _parts(kept: float, slices: int, place: float) -> tuple[list[float], list[str], int]:
    """Return where a kernel is cut, what its parts are called, and how many slices come before what it keeps."""
    if not kept:
        edges = [index / slices for index in range(slices + 1)]
        return edges, [f"slice_{index}" for index in range(slices)], slices
    ahead = round(place * slices)
    edges = [(1 - kept) * index / slices for index in range(ahead + 1)]
    edges += [*(kept + (1 - kept) * index / slices for index in range(ahead, slices)), 1.0]
    names = [f"slice_{index}" for index in range(slices)]
    return edges, [*names[:ahead], "kept", *names[ahead:]], ahead


def _produce(new: Rewrite, node: int, pair: Pair, cost: Charge, place: float) -> None:
    """Write a kernel's slices and what it keeps; after the last kernel, the collective and the polling."""
    share = pair.slices // len(pair.kernels)
    edges, names, ahead = _parts(pair.kept, share, place)
    sent = [*range(ahead), *range(ahead + 1, len(names))] if pair.kept else list(range(share))
    needs = [new.needs(node)] * len(names)
    parts = new.add_kernel(node, edges, needs, names, slower=cost.slower, calls=sent, call_s=cost.call_s)
    new.sliced[node] = [parts[index] for index in sent]
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


def _consume(new: Rewrite, node: int, pair: Pair, cost: Charge, place: float) -> None:
    """Write a kernel's slices, each as it arrives, and the one that is already there."""
    edges, names, ahead = _parts(pair.kept, pair.slices, place)
    others = [new.done[old] for old in new.graph.dependencies_of(node).tolist() if old != pair.collective]
    after = [[*others, arrived] for arrived in new.sliced[pair.collective]]
    if pair.kept:
        after.insert(ahead, [*others, *new.needs(pair.collective)])
    parts = new.add_kernel(node, edges, after, names, slower=cost.slower)
    new.done[node] = new.holds[int(new.graph.stream[node])] = parts[-1]
