"""Backward's two gradients: which kernels make those of weights, of which layer, and which of the two goes first.

Autograd makes the gradient of a product's input and then that of its weights (activation first). Nothing of backward
waits for the second, but what adds it up, copies and reduces it: so it may as well go first, or later.

Layers and gradients are found by the names and phases that generators give them, also in programs of many
micro-batches; a graph without such names has no layers. Gradients of weights that a pipeline puts off are no part of
them: they are where they are to fill its bubbles.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from scaleout.program.graph import ExecutionGraph, NodeKind
from scaleout.program.program import Program
from scaleout.program.reorder import Key, early, reorder

WEIGHT, INPUT = "weight_gradient", "input_gradient"
"""How names of products of backward end."""

_PHASES = ("_backward", "_recompute")
_LAYER = re.compile(r"(layer_\d+|head)(?:_|$)")


@dataclass
class Layer:
    """What backward does of one layer for one micro-batch.

    Attributes
    ----------
    name : str
        Such as `layer_3`, or `head`.
    nodes : list of int
        From the first that bears its name up to the first of the next layer.
    weights : list of int
        Products among them that make gradients of weights.
    """

    name: str
    nodes: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)


def layers_of(graph: ExecutionGraph) -> list[Layer]:
    """Return the layers of backward, as they come."""
    plays = [name.endswith(_PHASES) for name in graph.phases]
    current: dict[tuple[int, int], Layer] = {}
    found = []
    computes = graph.kind == NodeKind.COMPUTE
    columns = (graph.phase.tolist(), graph.microbatch.tolist(), graph.stage.tolist(), computes.tolist())
    for node, (phase, microbatch, stage, compute) in enumerate(zip(*columns, strict=True)):
        if not plays[phase]:
            continue
        name = _LAYER.match(graph.names[node])
        layer = current.get((microbatch, stage))
        if name is not None and (layer is None or layer.name != name[1]):
            layer = current[microbatch, stage] = Layer(name[1])
            found.append(layer)
        if layer is not None:
            layer.nodes.append(node)
            if compute and graph.names[node].endswith(WEIGHT):
                layer.weights.append(node)
    return found


def goes_along(graph: ExecutionGraph) -> Callable[[int, int], bool]:
    """Return whether a kernel goes along with one that it waits for: within backward of one micro-batch."""
    plays = [name.endswith(_PHASES) for name in graph.phases]

    def tail(old: int, node: int) -> bool:
        same = graph.microbatch[old] == graph.microbatch[node] and graph.stage[old] == graph.stage[node]
        return bool(same) and plays[graph.phase[node]]

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
