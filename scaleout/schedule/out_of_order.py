"""Backward's two gradients: which kernels make those of weights, of which layer, and which of the two goes first.

Autograd makes the gradient of a product's input and then that of its weights (activation first). Nothing of backward
waits for the second, but what adds it up, copies and reduces it: so it may as well go first, or later.

Layers and gradients are found by the columns `layer` and `role`, also in programs of many micro-batches; a graph that
does not state them has no layers. Gradients of weights that a pipeline puts off are no part of them: they are where
they are to fill its bubbles.

The schedule `out-of-order`: gradients of weights of the first layers are put off, and made in reverse order.

Out-of-order backpropagation for data parallelism (reverse first-k): backward goes through all gradients of activations,
makes those of weights as they come, but for the first k layers puts them off to its end, where they are made from the
first layer on. So what the next forward needs first is reduced first, while the gradients of the layers behind are
made. In a pipeline the layers are a rank's own, and the end is that of each micro-batch, so that other stages wait for
gradients of activations alone. Collectives are overlapped and not partitioned.

Here k doubles, from 0, for as long as a simulated step gets no longer, and is all layers at most; the published search
is over k as well. A step ends with one optimizer for all parameters, so that nothing is seen of a next forward that
could begin early: what is left to gain is the order of the reductions. The gradients of activations that wait meanwhile
are not counted in the memory.

Source: Oh et al., Out-of-order backprop, EuroSys 2022; Chen et al., Centauri, ASPLOS 2024, Fig. 6 a.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from scaleout.cluster.machine import Machine
from scaleout.program.graph import HEAD, NONE, ExecutionGraph, NodeKind, NodeRole
from scaleout.program.program import Program
from scaleout.program.reorder import Key, early, reorder
from scaleout.schedule.cost import ProgramCosts, cost_model_for
from scaleout.schedule.decision import Decision, Planned, Trial
from scaleout.schedule.overlap import overlap

_PASSES = NodeRole.BACKWARD | NodeRole.RECOMPUTE
_BEGINS = NodeRole.WEIGHTS | NodeRole.ACTIVATION_GRADIENT | NodeRole.WEIGHT_GRADIENT | NodeRole.EXCHANGE


@dataclass
class Layer:
    """What backward does of one layer for one micro-batch.

    Attributes
    ----------
    number : int
        As in the graph's `layer`, `HEAD` among them.
    nodes : list of int
        From its first GEMM with weights or exchange up to that of the next layer: point-wise kernels between the two
        are counted with the earlier.
    weights : list of int
        GEMMs among them that make gradients of weights.
    """

    number: int
    nodes: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)


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


def goes_along(graph: ExecutionGraph) -> Callable[[int, int], bool]:
    """Return whether a kernel goes along with one that it waits for: within backward of one micro-batch."""
    plays = graph.has_role(_PASSES)

    def tail(old: int, node: int) -> bool:
        same = graph.microbatch[old] == graph.microbatch[node] and graph.stage[old] == graph.stage[node]
        return bool(same and plays[node])

    return tail


def weight_gradients_first(
    program: Program,
    *,
    chosen: Callable[[ExecutionGraph, Layer], bool] = lambda graph, layer: True,
) -> Program:
    """Make gradients of weights as soon as what they are made of is there, in the layers that are chosen."""

    def keys_of(graph: ExecutionGraph) -> list[Key] | None:
        moved = [node for layer in layers_of(graph) if chosen(graph, layer) for node in layer.weights]
        return early(graph, moved, tail=goes_along(graph)) if moved else None

    return reorder(program, keys_of)


def plan(program: Program, machine: Machine | None = None) -> Planned:
    """Return the program with gradients of weights put off where that pays, and overlapped.

    Raises
    ------
    ConfigError
        Without a machine: there is nothing to weigh then.
    """
    costs = ProgramCosts(program, cost_model_for("out-of-order", machine))
    layers = max((len(_numbered(graph)) for graph in program.graphs), default=0)
    if not layers:
        return Planned(overlap(program))
    first = best = Trial(costs, program, overlap(program))
    chosen, k = 0, 1
    while k <= layers:
        later = put_off(program, k)
        found = Trial(costs, later, overlap(later))
        if found.step_s > best.step_s:
            break
        if found.step_s < best.step_s:
            best, chosen = found, k
        k = min(2 * k, layers) if k < layers else layers + 1
    what = f"gradients of weights of the first {chosen} of {layers} layers"
    choice = "put off to the end of backward, in reverse order"
    return Planned(best.scheduled, (Decision(what, choice, first.step_s, best.step_s, "a step"),), best.known)


def put_off(program: Program, k: int) -> Program:
    """Make gradients of weights of the first k layers at the end of backward of each micro-batch, in forward order."""
    return reorder(program, lambda graph: _keys(graph, k))


def _keys(graph: ExecutionGraph, k: int) -> list[Key] | None:
    first = _numbered(graph)[:k]
    keys: list[Key] = [(float(node),) for node in range(len(graph))]
    layers = layers_of(graph)
    ends: dict[tuple[int, int], int] = {}  # of a micro-batch on a stage to the last kernel of its backward
    for layer in layers:
        at = (int(graph.microbatch[layer.nodes[0]]), int(graph.stage[layer.nodes[0]]))
        ends[at] = max(node for node in layer.nodes if graph.kind[node] == NodeKind.COMPUTE)
    for layer in layers:
        if layer.number in first:
            at = (int(graph.microbatch[layer.nodes[0]]), int(graph.stage[layer.nodes[0]]))
            for node in layer.weights:
                keys[node] = (float(ends[at]), float(first.index(layer.number)), float(-node))
    return keys if first else None


def _numbered(graph: ExecutionGraph) -> list[int]:
    """Return a graph's layers that have gradients of weights, in forward order and without the head."""
    return sorted({layer.number for layer in layers_of(graph) if layer.weights and layer.number != HEAD})
