"""Out-of-order backpropagation (reverse first-k): weight gradients of the first k layers are deferred.

They are made at the end of the micro-batch's backward, from the first layer on. k doubles from 0 while a simulated step
gets no longer. Memory of the activation gradients that wait meanwhile is not counted. Layers are found by the columns
`layer` and `role`; weight gradients that a pipeline defers are not moved. See docs/models/centauri.md.
Source: Oh et al., Out-of-order backprop, EuroSys 2022; Chen et al., Centauri, ASPLOS 2024, Fig. 6 a.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from scaleout.cluster.machine import Machine
from scaleout.config.units import counted
from scaleout.program.fastest import is_faster
from scaleout.program.graph import HEAD, NONE, ExecutionGraph, NodeKind, NodeRole
from scaleout.program.program import Program
from scaleout.program.reorder import Key, early, reorder
from scaleout.schedule.cost import ProgramCosts, Trial, cost_model_for
from scaleout.schedule.decision import Decision, Planned
from scaleout.schedule.overlap import overlap

_PASSES = NodeRole.BACKWARD | NodeRole.RECOMPUTE
_BEGINS = NodeRole.WEIGHTS | NodeRole.ACTIVATION_GRADIENT | NodeRole.WEIGHT_GRADIENT | NodeRole.EXCHANGE


@dataclass
class Layer:
    """What backward does of one layer for one micro-batch.

    Its nodes go from its first GEMM with weights or exchange up to that of the next layer: point-wise kernels between
    the two are counted with the earlier.
    """

    number: int  # as in the graph's `layer`, `HEAD` among them
    nodes: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)  # GEMMs among them that make gradients of weights


def layers_of(graph: ExecutionGraph) -> list[Layer]:
    """Return the layers of backward, as they come."""
    current: dict[tuple[int, int], Layer] = {}
    found = []
    nodes = np.flatnonzero(graph.has_role(_PASSES))
    begins = graph.has_role(_BEGINS) & (graph.layer != NONE)
    weights = graph.has_role(NodeRole.WEIGHT_GRADIENT) & (graph.kind == NodeKind.COMPUTE)
    columns = (graph.microbatch, graph.stage, graph.layer, begins, weights)
    of_nodes = (nodes.tolist(), *(column[nodes].tolist() for column in columns))
    for node, microbatch, stage, number, begin, weight in zip(*of_nodes, strict=True):
        layer = current.get((microbatch, stage))
        if begin and (layer is None or layer.number != number):
            layer = current[microbatch, stage] = Layer(number)
            found.append(layer)
        if layer is not None:
            layer.nodes.append(node)
            if weight:
                layer.weights.append(node)
    return found


def weight_gradients_first(
    program: Program, *, chosen: Callable[[ExecutionGraph], Sequence[Layer]] = layers_of
) -> Program:
    """Make weight gradients as soon as their operands exist, in those layers of a graph that are chosen."""

    def keys_of(graph: ExecutionGraph) -> dict[int, Key]:
        moved = [node for layer in chosen(graph) for node in layer.weights]
        backward = graph.has_role(_PASSES)

        def tail(old: int, node: int) -> bool:
            same = graph.microbatch[old] == graph.microbatch[node] and graph.stage[old] == graph.stage[node]
            return bool(same and backward[node])

        return early(graph, moved, tail=tail)

    return reorder(program, keys_of)


def plan(program: Program, machine: Machine | None = None) -> Planned:
    """Return the program with weight gradients deferred where that pays, and overlapped; it needs a machine."""
    costs = ProgramCosts(program, cost_model_for("out-of-order", machine))
    layers = max((len(_numbered(graph)) for graph in program.graphs), default=0)
    if not layers:
        return Planned(overlap(program))
    first = best = Trial(costs, program, overlap(program))
    chosen, k = 0, 1
    while k <= layers:
        later = defer(program, k)
        found = Trial(costs, later, overlap(later))
        if is_faster(best.step_s, found.step_s):
            break
        if is_faster(found.step_s, best.step_s):
            best, chosen = found, k
        k = min(2 * k, layers) if k < layers else layers + 1
    about = f"gradients of weights of the first {max(chosen, 1)} of {counted(layers, 'layer')}"
    choice, others_s = "deferred to the end of backward, in reverse order", {"where they are": first.step_s}
    if not chosen:
        choice, others_s = "where they are", {"deferred": found.step_s}
    return Planned(best.scheduled, (Decision(about, choice, best.step_s, others_s),), best.known)


def defer(program: Program, k: int) -> Program:
    """Make weight gradients of the first k layers at the end of backward of each micro-batch, in forward order."""
    return reorder(program, lambda graph: _keys(graph, k))


def _keys(graph: ExecutionGraph, k: int) -> dict[int, Key]:
    first = _numbered(graph)[:k]
    keys: dict[int, Key] = {}
    layers = layers_of(graph)
    ends: dict[tuple[int, int], int] = {}  # of a micro-batch on a stage to the last kernel of its backward
    passes = [(int(graph.microbatch[layer.nodes[0]]), int(graph.stage[layer.nodes[0]])) for layer in layers]
    for layer, at in zip(layers, passes, strict=True):
        ends[at] = max(node for node in layer.nodes if graph.kind[node] == NodeKind.COMPUTE)
    for layer, at in zip(layers, passes, strict=True):
        for node in layer.weights if layer.number in first else ():
            keys[node] = (float(ends[at]), float(first.index(layer.number)), float(-node))
    return keys


def _numbered(graph: ExecutionGraph) -> list[int]:
    """Return a graph's layers that have gradients of weights, in forward order and without the head."""
    return sorted({layer.number for layer in layers_of(graph) if layer.weights and layer.number != HEAD})
