"""The layer tier: which gradient goes first in backward of a layer, and what is gathered before what is reduced.

Equation (1) compares T1, activation gradient first, with T2, weight gradient first, and gathering parameters ahead of
reductions is a second candidate; either is taken only where a simulated step is shorter. Communication of activations
that is no all-gather counts as act_RS, recomputed kernels as others. See docs/models/centauri.md.
Source: Chen et al., Centauri, Sec. 3.2.2, equation (1), Fig. 6.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from scaleout.program.fastest import is_faster
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, Floats, Ints, NodeKind, NodeRole
from scaleout.program.program import Program
from scaleout.program.reorder import Key, early, gathers_parameters, reorder
from scaleout.schedule.cost import ProgramCosts, Trial, shorter
from scaleout.schedule.decision import Decision
from scaleout.schedule.out_of_order import Layer, layers_of, weight_gradients_first


@dataclass(frozen=True)
class LayerCosts:
    """Seconds of what backward of a layer does.

    In the order of the fields: T(W_AG), T(act_AG), T(act_RS), T(G_act) and T(G_w) of GEMMs, T(G_w_RS), other kernels.
    """

    gather_parameters_s: float = 0.0
    gather_activations_s: float = 0.0
    scatter_activations_s: float = 0.0
    activation_gradients_s: float = 0.0
    weight_gradients_s: float = 0.0
    reduce_gradients_s: float = 0.0
    others_s: float = 0.0

    @property
    def activation_first_s(self) -> float:
        """T1.

        >>> LayerCosts(3.0, 1.0, 2.0, 5.0, 4.0, 3.0, 1.0).activation_first_s  # 3 + 5 + 4 + 3
        15.0
        """
        return (
            self.gather_parameters_s
            + max(self.activation_gradients_s, self.gather_activations_s)
            + max(self.weight_gradients_s, self.scatter_activations_s)
            + max(self.reduce_gradients_s, self.others_s)
        )

    @property
    def weight_first_s(self) -> float:
        """T2.

        >>> LayerCosts(3.0, 1.0, 2.0, 5.0, 4.0, 3.0, 1.0).weight_first_s  # 1 + 4 + 5 + 2 + 1
        13.0
        """
        return (
            self.gather_activations_s
            + max(self.weight_gradients_s, self.gather_parameters_s)
            + max(self.activation_gradients_s, self.reduce_gradients_s)
            + self.scatter_activations_s
            + self.others_s
        )


def costs_of(graph: ExecutionGraph, layers: Sequence[Layer], program_costs: ProgramCosts) -> list[LayerCosts]:
    """Return what backward of each layer costs, collectives as they will be carried out."""
    costs, seconds, names = _cost_names(graph), _seconds(graph, program_costs), list(LayerCosts.__dataclass_fields__)
    nodes = np.array([node for layer in layers for node in layer.nodes], np.int64)
    of_layer = np.repeat(np.arange(len(layers)), [len(layer.nodes) for layer in layers])
    gathered = costs == names.index("gather_parameters_s")
    first, own = graph.dependency_offsets[nodes], ~gathered[nodes]
    counts = graph.dependency_offsets[nodes + 1] - first
    needs = graph.dependencies[np.arange(counts.sum()) + np.repeat(first - np.cumsum(counts) + counts, counts)]
    waits = gathered[needs]
    gathers = np.unique(np.repeat(of_layer, counts)[waits] * len(graph) + needs[waits])  # of a layer, each once
    nodes = np.concatenate([gathers % len(graph), nodes[own]])
    of_layer = np.concatenate([gathers // len(graph), of_layer[own]])
    bins = of_layer * len(names) + costs[nodes]
    totals_s = np.bincount(bins, weights=seconds[nodes], minlength=len(names) * len(layers))
    return [LayerCosts(*each) for each in totals_s.reshape(-1, len(names)).tolist()]


def _cost_names(graph: ExecutionGraph) -> Ints:
    """Return to which of a layer's costs each node adds, (N,)."""
    collective, gemm = graph.kind == NodeKind.COLLECTIVE, graph.kernel != NONE
    gathers, reduces = graph.collective == COLLECTIVES.index("all_gather"), graph.has_role(NodeRole.GRADIENTS)
    which = [
        collective & gathers_parameters(graph),
        collective & gathers & ~reduces,
        collective & ~reduces,
        gemm & graph.has_role(NodeRole.ACTIVATION_GRADIENT),
        gemm & graph.has_role(NodeRole.WEIGHT_GRADIENT),
        collective,
    ]
    return np.select(which, range(len(which)), default=len(which))


def _seconds(graph: ExecutionGraph, program_costs: ProgramCosts) -> Floats:
    """Return what each node takes, (N,)."""
    seconds, nodes = np.nan_to_num(graph.duration_s), np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)
    columns = np.stack([graph.group[nodes], graph.collective[nodes], graph.bytes[nodes]])
    kinds, which = np.unique(columns, axis=1, return_inverse=True)
    best_s = [program_costs.best_s(group, COLLECTIVES[kind], size) for group, kind, size in kinds.T.tolist()]
    seconds[nodes] = np.array(best_s)[which.reshape(-1)]
    return seconds


def gathers_first(program: Program) -> Program:
    """Gather parameters as soon as possible, ahead of the reductions in front of them."""

    def keys_of(graph: ExecutionGraph) -> dict[int, Key]:
        gathers = np.flatnonzero(gathers_parameters(graph)).tolist()
        moved = [node for node in gathers if _waits_behind_reductions(graph, node) and graph.users_of(node)]
        return early(graph, moved, tail=lambda old, node: False)

    return reorder(program, keys_of)


def _waits_behind_reductions(graph: ExecutionGraph, gather: int) -> bool:
    """Whether gradients are reduced between what a gather needs and the gather."""
    needs = graph.dependencies_of(gather)
    after = int(needs.max()) + 1 if needs.size else 0
    between = (graph.kind[after:gather] == NodeKind.COLLECTIVE) & (graph.role[after:gather] & NodeRole.GRADIENTS != 0)
    return bool(between.any())


def best_order(best: Trial, schedule: Callable[[Program], Trial]) -> tuple[Trial, tuple[Decision, ...]]:
    """Return the trial of the order in which a step is shortest, and the decisions; `best` has the program's order."""
    program, costs, weight_first = best.ordered, [], dict[int, list[Layer]]()
    for graph in program.graphs:
        layers = [layer for layer in layers_of(graph) if layer.weights]
        costs.append(costs_of(graph, layers, best.costs))
        faster = [is_faster(each.weight_first_s, each.activation_first_s) for each in costs[-1]]
        weight_first[id(graph)] = list(compress(layers, faster))
    other = weight_gradients_first(program, chosen=lambda graph: weight_first[id(graph)])
    rival = None if other is program else schedule(other).beside(best)
    words = _about_layers(costs, best, rival)
    best = shorter(best, rival)
    other = gathers_first(best.ordered)
    if other is not best.ordered:
        rival = schedule(other).beside(best)
        words += (_about_gathers(best, rival),)
        best = shorter(best, rival)
    return best, words


def _about_gathers(best: Trial, rival: Trial) -> Decision:
    about, ahead, kept = "gathers of parameters", "ahead of the reductions in front of them", "where they are"
    if is_faster(rival.step_s, best.step_s):
        return Decision(about, ahead, rival.step_s, {kept: best.step_s})
    return Decision(about, kept, best.step_s, {ahead: rival.step_s})


def _about_layers(costs: Sequence[Sequence[LayerCosts]], best: Trial, rival: Trial | None) -> tuple[Decision, ...]:
    """Say for layers that cost the same which gradient goes first, and why."""
    counts: Counter[tuple[float, float]] = Counter()
    for found in costs:
        counts |= Counter(
            (float(f"{each.activation_first_s:.6e}"), float(f"{each.weight_first_s:.6e}")) for each in found
        )
    taken, decisions = rival is not None and is_faster(rival.step_s, best.step_s), []
    for (activation_s, weight_s), count in sorted(counts.items()):
        times_s, reason = {"activation gradient first": activation_s, "weight gradient first": weight_s}, ""
        choice, other = times_s
        if is_faster(weight_s, activation_s) and rival is not None:
            choice, other = (other, choice) if taken else (choice, other)
            reason = "" if taken else "a step would be no shorter"
        others_s = {other: times_s[other]}
        decisions.append(
            Decision("backward of a layer", choice, times_s[choice], others_s, "each", reason=reason, count=count)
        )
    if rival is not None:
        steps = [("where that is shorter", rival.step_s), ("nowhere", best.step_s)]
        chosen, left = steps if taken else steps[::-1]
        decisions.append(Decision("weight gradients first", *chosen, dict([left])))
    return tuple(decisions)
