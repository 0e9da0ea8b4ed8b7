"""The schedule `coconet`: all-reduces as reduce-scatter and all-gather, in a pipeline with the product before them.

What a product makes and the collective that reduces it are cut into as many even chunks as are done first, and each
chunk of an all-reduce is a reduce-scatter and an all-gather, so that a chunk is on its way while the next is computed.
Groups stay whole, as do gradients that several products make, nothing changes places, and what takes a collective's
data waits for all chunks. As its autotuner keeps the fastest of what it runs, a program stays as it is where a
simulated step would be longer. The rest is `overlap`.

Not here: kernels that compute and send chunks in one, and computation that is put between reduce-scatter and
all-gather (of the optimizer that is ZeRO, a key of the workload).

Source: Jangda et al., CoCoNet, ASPLOS 2022; as compared in Chen et al., Centauri, ASPLOS 2024, Table 1.
"""

from collections import Counter

import numpy as np

from scaleout.cluster.machine import Machine
from scaleout.program.graph import COLLECTIVES
from scaleout.program.program import Program
from scaleout.schedule.centauri.operation_tier import Costs, Weights, cut
from scaleout.schedule.centauri.partition.primitive import substitute
from scaleout.schedule.cost import ProgramCosts, cost_model_for
from scaleout.schedule.decision import Decision, Planned, Trial, collectives
from scaleout.schedule.overlap import overlap

CHUNKS = (1, 2, 4, 8)
"""Even chunks that are weighed."""


def plan(program: Program, machine: Machine | None = None) -> Planned:
    """Return the program with its all-reduces substituted and what makes their data cut.

    Raises
    ------
    ConfigError
        Without a machine: there is nothing to weigh then.
    """
    costs = ProgramCosts(program, cost_model_for("coconet", machine), divides=False)

    def collective_s(family: int, kind: str, size_bytes: float) -> float:
        if kind == "all_reduce":
            return costs.substituted_s(family, size_bytes)
        return costs.whole_s(family, kind, size_bytes)

    whole, found = Trial(costs, program, overlap(program)), _decisions(program, costs)
    chunks, cuts = cut(
        program,
        Weights(costs, collective_s, _even),
        chosen=lambda chain: chain.produces and not chain.gradients,
    )
    if not found + cuts:
        return Planned(whole.scheduled)
    rival = Trial(costs, program, overlap(substitute(chunks)), found + cuts)
    if rival.step_s < whole.step_s:
        return Planned(rival.scheduled, rival.decisions, rival.known)
    what, reason = (
        "all-reduces and products before collectives",
        f"substituted and in chunks {rival.step_s * 1e3:.4g} ms",
    )
    kept = Decision(what, "whole", whole.step_s, whole.step_s, f"a step; {reason}")
    return Planned(whole.scheduled, (kept,), whole.known)


def _even(costs: Costs) -> tuple[tuple[float, ...], ...]:
    del costs
    return tuple((1 / count,) * count for count in CHUNKS)


def _decisions(program: Program, costs: ProgramCosts) -> tuple[Decision, ...]:
    """Say what all-reduces become, for each size."""
    counts: Counter[tuple[int, int]] = Counter()
    for graph in program.graphs:
        nodes = np.flatnonzero(graph.collective == COLLECTIVES.index("all_reduce")).tolist()
        counts |= Counter((int(graph.group[node]), int(graph.bytes[node])) for node in nodes)
    return tuple(
        Decision(
            collectives(count, "all_reduce", size_bytes, program.groups[family].name),
            "reduce_scatter and all_gather",
            costs.whole_s(family, "all_reduce", size_bytes),
            costs.substituted_s(family, size_bytes),
        )
        for (family, size_bytes), count in sorted(counts.items())
    )
