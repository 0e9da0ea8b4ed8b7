"""Tensor parallelism as PyTorch runs it: collectives that block, or cut into slices that overlap with GEMMs.

Under `blocking-tp` functional collectives of the tensor axis stand among the kernels. Under `async-tp` a GEMM that
takes an all-gather or feeds a reduce-scatter is cut into one slice a rank. See docs/models/async-tp.md.
Knows no network and no other axis. Source: torch.distributed._symmetric_memory; Wang et al., ASPLOS 2023.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scaleout.cluster.machine import Machine
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, NodeKind, NodeRole
from scaleout.program.operations import TimeSource, custom
from scaleout.program.program import Program
from scaleout.schedule.overlap import COMPUTE_STREAM, communication_stream
from scaleout.schedule.pairs import Pair, agreed
from scaleout.schedule.rewrite import Rewrite
from scaleout.simulation.cost_model import CostModel

_AXIS = "tensor"
_GEMMS = ("gemm", "gemm_fp8", "gemm_fp8_rowwise")


def blocking_tp(program: Program, machine: Machine | None = None) -> Program:
    """Put the collectives of the tensor axis among the kernels."""
    axis = _axis(program)
    return program if axis == NONE else program.map_graphs(lambda graph: _blocking(graph, axis))


def async_tp(program: Program, machine: Machine | None = None) -> Program:
    """Cut GEMMs and the tensor axis's collectives next to them into a slice a rank."""
    axis = _axis(program)
    ranks = 1 if axis == NONE else min(len(members) for members in program.groups[axis].members)
    if ranks == 1:
        return program
    program = blocking_tp(program)
    pairs = agreed(program, [_pairs(graph, axis, ranks) for graph in program.graphs])
    return replace(
        program,
        graphs=tuple(_rewrite(graph, mine, machine) for graph, mine in zip(program.graphs, pairs, strict=True)),
    )


def _axis(program: Program) -> int:
    return next((number for number, family in enumerate(program.groups) if family.axis == _AXIS), NONE)


def _blocking(graph: ExecutionGraph, axis: int) -> ExecutionGraph:
    blocks = (graph.kind == NodeKind.COLLECTIVE) & (graph.group == axis)
    return graph.with_columns(stream=np.where(blocks, COMPUTE_STREAM, graph.stream))


def _pairs(graph: ExecutionGraph, axis: int, ranks: int) -> list[Pair]:
    """Find gathers and the first GEMM that takes each, and scatters and the GEMM that makes their data."""
    taken: set[int] = set()
    pairs = []
    whole = (graph.kind == NodeKind.COLLECTIVE) & (graph.group == axis) & (graph.slices == 1)
    for node in np.flatnonzero(whole).tolist():
        kind = COLLECTIVES[graph.collective[node]]
        produces = kind == "reduce_scatter"
        near = graph.dependencies_of(node).tolist() if produces else graph.users_of(node)
        gemms = tuple(user for user in near if _cuts(graph, user) and user not in taken)
        alone = len(near) == 1 or not produces
        if kind in ("all_gather", "reduce_scatter") and gemms and near[0] == gemms[0] and alone:
            taken.update(gemms)
            pairs.append(Pair(node, gemms, produces, ranks - 1, 1 / ranks))
    return pairs


def _cuts(graph: ExecutionGraph, node: int) -> bool:
    """Whether a node is a GEMM that can be cut along the tokens; gradients of weights add up over them."""
    if graph.kind[node] != NodeKind.COMPUTE or graph.operation(node) not in _GEMMS:
        return False
    return not graph.role[node] & NodeRole.WEIGHT_GRADIENT


def _rewrite(graph: ExecutionGraph, pairs: Sequence[Pair], machine: Machine | None) -> ExecutionGraph:
    makers = {pair.kernels[0]: pair for pair in pairs if pair.produces}
    takers = {kernel: pair for pair in pairs if not pair.produces for kernel in pair.kernels}
    moved = {pair.collective: pair for pair in pairs}
    bulk = {node: gemm for gathered, scattered, gemm in _bulks(graph) for node in (gathered, scattered)}
    new = Rewrite(graph)
    for node in range(len(graph)):
        if node in bulk:
            _beside(new, node, bulk[node])
        elif node in makers:
            _scatter(new, node, makers[node], machine)
        elif node in takers:
            if node == takers[node].kernels[0]:
                _take(new, takers[node])
        elif node not in moved:
            new.done[node] = new.add(node, new.needs(node))
        elif not moved[node].produces:
            _gather(new, node, moved[node], machine)
    return new.build()


def _bulks(graph: ExecutionGraph) -> list[tuple[int, int, int]]:
    """Find gathers of an input that is kept in parts, the scatters behind them, and the GEMMs before both.

    That GEMM makes the input's gradient: the gather, for the weight's gradient, needs nothing of it.
    """
    found = []
    for node in np.flatnonzero((graph.kind == NodeKind.COLLECTIVE) & (graph.slices == 1)).tolist():
        before, users = graph.dependencies_of(node).tolist(), graph.users_of(node)
        gathers = COLLECTIVES[graph.collective[node]] == "all_gather" and len(users) == len(before) == 1
        if gathers and _cuts(graph, before[0]) and graph.kind[users[0]] == NodeKind.COLLECTIVE:
            scatters = COLLECTIVES[graph.collective[users[0]]] == "reduce_scatter"
            if scatters and graph.group[users[0]] == graph.group[node]:
                found.append((node, users[0], before[0]))
    return found


def _beside(new: Rewrite, node: int, gemm: int) -> None:
    """Write a whole collective beside the GEMMs: the gather with this one, the scatter behind both."""
    gathers = gemm in new.needed(node)
    after = new.needs(gemm) if gathers else [*new.needs(node), new.done[gemm]]
    new.done[node] = new.add(node, after, stream=communication_stream(int(new.graph.group[node])))


def _aside_s(machine: Machine | None, size_bytes: float) -> float:
    """Return the time of a kernel that copies or adds up so many bytes, read and written."""
    if machine is None:
        return 0.0
    return CostModel(machine).kernel_s(custom(dtype="bf16", flops=0, bytes=int(size_bytes)))


def _kernel(new: Rewrite, node: int, after: Sequence[int], name: str, duration_s: float) -> int:
    return new.add(
        node, after, name=f"{new.graph.names[node]}_{name}", kernel=NONE, duration_s=duration_s, flops=0, bytes=0,
        time_source=int(TimeSource.ROOFLINE),
    )  # fmt: skip


def _gather(new: Rewrite, node: int, pair: Pair, machine: Machine | None) -> None:
    """Copy the own shard to where others read it, then read theirs; the GEMM stands for the copy's columns."""
    shard_bytes = float(new.graph.bytes[node]) * pair.kept
    ready = _kernel(new, pair.kernels[0], new.needs(node), "own_shard", _aside_s(machine, 2 * shard_bytes))
    new.sliced[node] = new.add_collective(node, [[ready]] * pair.slices)
    new.done[node] = ready


def _take(new: Rewrite, pair: Pair) -> None:
    """Work on the own shard with each GEMM that takes it, then on each other shard as it arrives."""
    edges = [0.0, *(pair.kept + (1 - pair.kept) * index / pair.slices for index in range(pair.slices)), 1.0]
    arrived = [new.done[pair.collective], *new.sliced[pair.collective]]
    for number, ready in enumerate(arrived):
        for node in pair.kernels:
            others = [new.done[old] for old in new.graph.dependencies_of(node).tolist() if old != pair.collective]
            before = [new.done[node]] if number else []
            (part,) = new.add_kernel(node, edges[number : number + 2], [[*others, ready, *before]], [f"part_{number}"])
            new.done[node] = part
    new.done[pair.collective] = new.done[pair.kernels[-1]]


def _scatter(new: Rewrite, node: int, pair: Pair, machine: Machine | None) -> None:
    """Make the parts of others, each sent as it is done, and last the own one; then add up what came."""
    edges = [(1 - pair.kept) * index / pair.slices for index in range(pair.slices + 1)]
    names = [*(f"part_{index}" for index in range(pair.slices)), "own"]
    parts = new.add_kernel(node, [*edges, 1.0], [new.needs(node)] * len(names), names)
    sent = new.add_collective(pair.collective, [[part] for part in parts[:-1]])
    size_bytes = float(new.graph.bytes[pair.collective])
    added = _kernel(new, node, [*sent, parts[-1]], "sum_of_parts", _aside_s(machine, size_bytes * (1 + pair.kept)))
    new.done[node], new.done[pair.collective] = parts[-1], added
