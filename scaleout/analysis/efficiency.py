"""A simulated step to tokens per second, MFU, HFU, bubble, exposed communication and memory.

MFU counts the FLOPs that the model needs, by convention with all of causal attention; HFU adds recomputation.

Source: PaLM, arXiv:2204.02311, appendix B (MFU); Korthikanti et al., arXiv:2205.05198 (HFU).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaleout.analysis.breakdown import by_axis, exposed_by_family
from scaleout.analysis.waits import waited_for
from scaleout.cluster.device.spec import Device
from scaleout.program.graph import Bools, NodeRole
from scaleout.simulation.result import Result, Timeline
from scaleout.workloads.config.family import ModelFamily
from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.memory import Peak, peak
from scaleout.workloads.memory.advice import Advice, advise


@dataclass(frozen=True)
class Efficiency:
    """How well a step used its devices.

    `mfu` and `hfu` are FLOPs a second over the device's peak for the data type: those that the model needs, and
    recomputed ones too. `bubble` is the share of the step in which a rank waits for other pipeline ranks, `exposed_s`
    the exposed communication of each axis; both are means over ranks.
    """

    step_s: float
    tokens_per_s: float
    tokens_per_s_per_rank: float
    mfu: float
    hfu: float
    bubble: float
    exposed_s: Mapping[str, float]


@dataclass(frozen=True)
class Fit:
    """Whether a job fits into the memory of its devices: the peak of the worst rank, and, if not, what would help."""

    peak: Peak
    capacity_bytes: float  # what a job can hold
    reserved_bytes: float  # the rest of the device's memory, which its driver keeps
    advice: tuple[Advice, ...]

    @property
    def fits(self) -> bool:
        """Whether it does."""
        return self.peak.total_bytes <= self.capacity_bytes

    def summary(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "peak_bytes": self.peak.total_bytes,
            "capacity_bytes": self.capacity_bytes,
            "reserved_bytes": self.reserved_bytes,
            "fits": self.fits,
            "place": self.peak.rank,
            "moment": self.peak.moment,
            "bytes_of": dict(self.peak.bytes_of),
            "advice": [
                {
                    "set": dict(a.changes),
                    "ranks": a.ranks,
                    "peak_bytes": a.peak.total_bytes,
                    "fits": a.fits,
                    **({} if a.step_s is None else {"makespan_s": a.step_s, "run": a.run}),
                    **({} if a.tokens_per_s_per_rank is None else {"tokens_per_s_per_rank": a.tokens_per_s_per_rank}),
                }
                for a in self.advice
            ],
        }


def fit(workload: ModelFamily, device: Device) -> Fit:
    """Hold a job's peak memory against what its devices have; advice is for models of layers."""
    capacity_bytes = device.usable_bytes
    advice = tuple(advise(workload, capacity_bytes)) if isinstance(workload, LayeredModel) else ()
    return Fit(peak(workload), capacity_bytes, device.reserved_bytes, advice)


def mfu_of(workload: LayeredModel, device: Device, step_s: float) -> float:
    """Return the FLOPs that the model needs in a step over what its ranks could do at the peak of the data type.

    `ConfigError` if the device states no such peak.
    """
    tokens_per_s = workload.tokens * workload.data_parallel / step_s
    return tokens_per_s * workload.flops_per_token / (workload.num_ranks * device.peak(workload.dtype))


def mfu_peak(workload: LayeredModel, device: Device) -> dict[str, Any]:
    """Return the rate that MFU and HFU are shares of: that of the model's data type, whatever its GEMMs run in."""
    dtype = workload.dtype
    source = device.sources.get(f"peak_flops.{dtype}", "")
    return {"dtype": dtype, "flops_per_s": device.peak(dtype), "source": source}


def efficiency(result: Result, workload: LayeredModel, device: Device) -> Efficiency:
    """Say how well a simulated step used its devices; `ConfigError` as `mfu_of`."""
    step_s, ranks = result.makespan_s, workload.num_ranks
    tokens_per_s = workload.tokens * workload.data_parallel / step_s
    pipeline_rank = result.program.pipeline_rank
    spans = [len(set(pipeline_rank[list(family.members[0])].tolist())) > 1 for family in result.program.groups]
    meets = np.array([*spans, False])  # whether a group does; `NONE` is the last entry

    def meets_other_pipeline_ranks(line: Timeline) -> Bools:
        return np.asarray(line.is_communication & meets[line.graph.group])

    mfu = mfu_of(workload, device, step_s)
    return Efficiency(
        step_s,
        tokens_per_s,
        tokens_per_s / ranks,
        mfu=mfu,
        hfu=mfu / (1 - _recomputed(result)),
        bubble=waited_for(result, meets_other_pipeline_ranks) / step_s if workload.pipeline_parallel > 1 else 0.0,
        exposed_s=by_axis(exposed_by_family(result)),
    )


def _recomputed(result: Result) -> float:
    recomputed = 0.0
    for line in result.timelines:
        recomputed += len(line.ranks) * float(line.graph.flops[line.graph.has_role(NodeRole.RECOMPUTE)].sum())
    return recomputed / result.program.total_flops if result.program.total_flops else 0.0
