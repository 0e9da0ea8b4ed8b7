"""Fused computation-collectives: a kernel and the collective next to it become one persistent kernel.

The kernel is cut into slices, and each slice is sent as it finishes, the slices for other ranks first and the one
that stays last; or, where the kernel consumes an all-to-all, it starts with the slice that is already there and
takes the others as they arrive. Slices of one transfer follow each other on the wire without paying its latency
again. The persistent kernel holds its stream until its last slice has arrived, as its work-groups poll for it.

What a slice costs besides (the call that sends it, book-keeping, lower occupancy) is not charged here.

Source: Punniyamurthy et al., Optimizing Distributed ML Communication with Fused Computation-Collective Operations.
"""

from collections.abc import Sequence
from dataclasses import replace

from scaleout.graph import NONE, ExecutionGraph
from scaleout.operations import TimeSource
from scaleout.program import Program
from scaleout.schedule.machine import Machine
from scaleout.schedule.pairs import Pair, agreed, find_pairs
from scaleout.schedule.rewrite import Rewrite


def fuse(program: Program, machine: Machine | None = None, *, slices: int = 32) -> Program:
    """Replace each pair of a kernel and a collective that can be fused by slices of both.

    Parameters
    ----------
    program : Program
        Timed, and put on streams by another schedule.
    machine : Machine, optional
        Not needed.
    slices : int
        Slices that a collective is cut into. The paper's are finer, 32 embeddings each; with this many, what
        cannot overlap is one slice, 3% of the shorter of the two.
    """
    group_sizes = [max(len(members) for members in family.members) for family in program.groups]
    pairs = [find_pairs(graph, group_sizes, slices) for graph in program.graphs]
    return replace(program, graphs=tuple(map(_rewrite, program.graphs, agreed(program.graphs, pairs))))


def _rewrite(graph: ExecutionGraph, pairs: Sequence[Pair]) -> ExecutionGraph:
    makers = {kernel: pair for pair in pairs if pair.produces for kernel in pair.kernels}
    takers = {pair.kernels[0]: pair for pair in pairs if not pair.produces}
    sent = {pair.collective: pair for pair in pairs}
    new = Rewrite(graph)
    for node in range(len(graph)):
        if node in makers:
            _produce(new, node, makers[node])
        elif node in takers:
            _consume(new, node, takers[node])
        elif node not in sent:
            new.done[node] = new.add(node, new.needs(node))
        elif not sent[node].produces:
            slices = new.add_collective(node, [new.needs(node)] * sent[node].slices)
            new.sliced[node] = slices
            new.done[node] = slices[-1]
    return new.build()


def _produce(new: Rewrite, node: int, pair: Pair) -> None:
    """Write a kernel's slices, those that are sent first; after the last kernel, the collective and the polling."""
    share = pair.slices // len(pair.kernels)
    edges = [(1 - pair.kept) * index / share for index in range(share + 1)]
    names = [f"slice_{index}" for index in range(share)]
    if pair.kept:
        edges, names = [*edges, 1.0], [*names, "kept"]
    parts = new.add_kernel(node, edges, [new.needs(node)] * len(names), names)
    new.sliced[node] = parts[:share]
    new.done[node] = parts[-1]
    if node != pair.kernels[-1]:
        return
    data = [[part] for kernel in pair.kernels for part in new.sliced[kernel]]
    slices = new.add_collective(pair.collective, data)
    polled = new.add(
        node, [*slices, parts[-1]], name=f"{new.graph.names[node]}_poll",
        kernel=NONE, duration_s=0.0, flops=0, bytes=0, time_source=int(TimeSource.GIVEN),
    )  # fmt: skip
    new.done[pair.collective] = new.holds[int(new.graph.stream[node])] = polled


def _consume(new: Rewrite, node: int, pair: Pair) -> None:
    """Write a kernel's slices: the one that is already there, then each other as it arrives."""
    edges = [pair.kept + (1 - pair.kept) * index / pair.slices for index in range(pair.slices)] + [1.0]
    names = [f"slice_{index}" for index in range(pair.slices)]
    others = [new.done[old] for old in new.graph.dependencies_of(node).tolist() if old != pair.collective]
    after = [[*others, arrived] for arrived in new.sliced[pair.collective]]
    if pair.kept:
        edges, names = [0.0, *edges], ["kept", *names]
        after = [[*others, *new.needs(pair.collective)], *after]
    parts = new.add_kernel(node, edges, after, names)
    new.done[node] = new.holds[int(new.graph.stream[node])] = parts[-1]
