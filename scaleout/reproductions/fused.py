"""Fused computation-collectives: the paper's figures, simulated.

Each figure is a sweep, which the scripts under ``figures/`` draw, and what its claims come to.

Source: Punniyamurthy, Hamidouche and Beckmann, Optimizing Distributed ML Communication with Fused
Computation-Collective Operations, SC 2024.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from scaleout.reproductions.claims import Figure
from scaleout.study import compare

GLOBAL_BATCHES = (256, 512, 1024, 2048)
TABLES_PER_RANK = (64, 128, 256)
ALGORITHMS = {"all_reduce": "hierarchical"}
"""The paper simulated on ASTRA-sim, whose all-reduce goes dimension by dimension."""


@dataclass(frozen=True)
class Pass:
    """One DLRM training pass, bulk-synchronous and fused."""

    global_batch: int
    tables_per_rank: int
    baseline_s: float
    fused_s: float

    @property
    def reduction(self) -> float:
        """Share of the time that fusing saves."""
        return 1 - self.fused_s / self.baseline_s


def training_passes() -> list[Pass]:
    """Return Fig. 15: passes of `dlrm-128` over batch sizes and table counts.

    The paper's text does not give its sizes: batches go from the smallest to the largest that the text names (Secs.
    IV.A and IV.C), table counts up to the 256 that it names.
    """
    passes = []
    for batch in GLOBAL_BATCHES:
        for tables in TABLES_PER_RANK:
            changes = {"global_batch": batch, "tables_per_rank": tables}
            comparison = compare("dlrm-128", schedules=("baseline", "fused"), changes=changes, algorithms=ALGORITHMS)
            baseline, fused = comparison.outcomes
            passes.append(Pass(batch, tables, baseline.makespan_s, fused.makespan_s))
    return passes


def _training_pass_claims() -> Mapping[str, float]:
    reductions = [each.reduction for each in training_passes()]
    return {"F15-mean": 100 * sum(reductions) / len(reductions)}


FIGURES: tuple[Figure, ...] = (
    Figure(
        ("F15-mean",),
        _training_pass_claims,
        {
            "F15-mean": "the paper gives no sizes of this figure: batches of 256 to 2048 and 64 to 256 tables a rank; "
            "over batches of 512 to 4096 it is 26.6%"
        },
    ),
)
"""In the paper's order."""
