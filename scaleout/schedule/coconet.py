"""CoCoNet: all-reduces become reduce-scatter and all-gather, in even chunks overlapped with the GEMM before them.

Groups stay whole, and what takes a collective's data waits for all chunks. A program stays as it is where a simulated
step would be longer, as its autotuner retains the fastest. Not modelled: kernels that compute and send chunks in one.
Source: Jangda et al., CoCoNet, ASPLOS 2022; as compared in Chen et al., Centauri, ASPLOS 2024, Table 1.
"""

from scaleout.cluster.machine import Machine
from scaleout.program.fastest import is_faster
from scaleout.program.program import Program
from scaleout.schedule.centauri.operation_tier import Weights, cut
from scaleout.schedule.centauri.partition.group import substitute
from scaleout.schedule.cost import ProgramCosts, Trial, cost_model_for
from scaleout.schedule.decision import Decision, Planned, collective_counts, collectives
from scaleout.schedule.overlap import overlap

CHUNKS = (1, 2, 4, 8)
"""Even chunks that are weighed."""


def plan(program: Program, machine: Machine | None = None) -> Planned:
    """Return the program with its all-reduces substituted and what makes their data cut; it needs a machine."""
    costs = ProgramCosts(program, cost_model_for("coconet", machine), divides=False)

    def collective_s(family: int, kind: str, size_bytes: float) -> float:
        if kind == "all_reduce":
            return costs.substituted_s(family, size_bytes)
        return costs.whole_s(family, kind, size_bytes)

    whole, found = Trial(costs, program, overlap(program)), _decisions(program, costs)
    weights = Weights(costs, collective_s, lambda _: tuple((1 / count,) * count for count in CHUNKS))
    chunks, cuts = cut(program, weights, chosen=lambda chain: chain.produces and not chain.gradients)
    if not found + cuts:
        return Planned(whole.scheduled)
    rival = Trial(costs, program, overlap(substitute(chunks)), found + cuts)
    if is_faster(rival.step_s, whole.step_s):
        return Planned(rival.scheduled, rival.decisions, rival.known)
    others_s = {"substituted and in chunks": rival.step_s}
    kept = Decision("all-reduces and GEMMs before collectives", "whole", whole.step_s, others_s)
    return Planned(whole.scheduled, (kept,), whole.known)


def _decisions(program: Program, costs: ProgramCosts) -> tuple[Decision, ...]:
    """Say what all-reduces become, for each size."""
    return tuple(
        Decision(
            collectives(kind, size_bytes, program.groups[family].name),
            "reduce_scatter and all_gather",
            costs.substituted_s(family, size_bytes),
            {kind: costs.whole_s(family, kind, size_bytes)},
            time_of="each, isolated",
            count=count,
        )
        for (family, kind, size_bytes), count in sorted(collective_counts(program).items())
        if kind == "all_reduce"
    )
