"""The schedule `centauri`: partition every communication where that pays, and overlap what is left.

Each all-reduce, all-gather and reduce-scatter passes the partition space in the paper's order. It is substituted and
carried out by levels where the sum of the costs is less, and cut into chunks with the products next to it where the
operation tier's pipeline ends earlier, with what chunks and products beside each other lose. Costs are the network
model's and the kernels'; all members of a group decide from the same numbers. The layer tier orders backward where a
simulated step is shorter for it. The rest is `overlap`.

The model tier chooses keys of the workload before it becomes a program (`model_tier`).
Source: Chen et al., Centauri, ASPLOS 2024.
"""

from collections import Counter
from collections.abc import Collection

import numpy as np

from scaleout.config import nearest
from scaleout.errors import ConfigError
from scaleout.graph import COLLECTIVES, NodeKind
from scaleout.machine import Machine
from scaleout.program import Program
from scaleout.schedule.chunks import Weights, cut
from scaleout.schedule.decision import Decision, collectives
from scaleout.schedule.layer_tier import best_order
from scaleout.schedule.overlap import overlap
from scaleout.schedule.partition.group import Levels, partition_groups
from scaleout.schedule.partition.primitive import substitute
from scaleout.schedule.prices import Prices, machine_for

_PARTITIONED = ("all_gather", "reduce_scatter", "all_reduce")

DIMENSIONS = ("primitive", "group", "workload", "order")
"""Dimensions of the partition space, in the order in which they are applied, and the layer tier's order of backward."""


def dimensions_up_to(last: str) -> tuple[str, ...]:
    """Return the dimensions of the partition space up to one, as in the paper's ablation.

    Raises
    ------
    ConfigError
        If there is none of that name.
    """
    if last not in DIMENSIONS:
        raise ConfigError(f"unknown dimension {last!r} of centauri's partition space; {nearest(last, DIMENSIONS)}")
    return DIMENSIONS[: DIMENSIONS.index(last) + 1]


def plan(
    program: Program, machine: Machine | None = None, *, dimensions: Collection[str] = DIMENSIONS
) -> tuple[Program, tuple[Decision, ...]]:
    """Return the program partitioned where that pays, along some dimensions, and overlapped; and what was decided.

    Raises
    ------
    ConfigError
        Without a machine: there is nothing to weigh then.
    """
    machine = machine_for("centauri", machine)
    prices = Prices(program, machine, divides="group" in dimensions)
    weights = Weights(prices, prices.best_s)
    found = _decisions(program, prices)
    program = substitute(program, chosen=prices.substitutes)

    def operation_tier(program: Program) -> tuple[Program, tuple[Decision, ...]]:
        program, cuts = cut(program, weights) if "workload" in dimensions else (program, ())
        return overlap(partition_groups(program, machine, chosen=prices.by_levels)), cuts

    program, decided = best_order(program, prices, operation_tier) if "order" in dimensions else operation_tier(program)
    return program, found + decided


def _decisions(program: Program, prices: Prices) -> tuple[Decision, ...]:
    """Say what primitives and groups become, for each size of each kind."""
    counts: Counter[tuple[int, str, int]] = Counter()
    for graph in program.graphs:
        nodes = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist()
        of_graph = Counter((int(graph.group[n]), COLLECTIVES[graph.collective[n]], int(graph.bytes[n])) for n in nodes)
        counts |= of_graph
    found = []
    for (family, kind, size_bytes), count in sorted(counts.items()):
        if kind not in _PARTITIONED:
            continue
        levels = prices.levels(family)
        before_s, after_s, choice = prices.whole_s(family, kind, size_bytes), 0.0, "whole"
        if prices.substitutes(family, kind, size_bytes):
            choice, after_s = "reduce_scatter and all_gather", prices.substituted_s(family, size_bytes)
        if prices.by_levels(family, "reduce_scatter" if kind == "all_reduce" else kind, size_bytes):
            sizes = " x ".join(map(str, levels.sizes[::-1])) if isinstance(levels, Levels) else ""
            choice = f"{choice} by levels {sizes}" if choice != "whole" else f"by levels {sizes}"
        after_s = after_s or prices.best_s(family, kind, size_bytes)
        reason = levels if isinstance(levels, str) else ""
        what = collectives(count, kind, size_bytes, program.groups[family].name)
        found.append(Decision(what, choice, before_s, after_s, reason))
    return tuple(found)
