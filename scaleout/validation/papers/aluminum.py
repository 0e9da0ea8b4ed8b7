"""Aluminum: latency- and bandwidth-optimised all-reduce, the paper's figures, simulated.

The machine is Sierra, four V100 per node: `sierra-8` to `sierra-2048`. The model is ResNet-50 as LBANN trained it. The
synthetic step of Figs. 2 and 7 to 9 has only convolutions and an all-reduce per gradient buffer; that of Fig. 12 has
all layers, the optimizer and the input pipeline. *Minimal* uses host-transfer up to the largest power of two at which
it is faster on so many GPUs, and NCCL's rings above; *static* up to what LBANN's source has, Fig. 12's "static
performance model". See docs/models/back-ends.md.

Source: Dryden et al., Aluminum: An Asynchronous, GPU-Aware Communication Library Optimized for Large-Scale Training of
Deep Neural Networks on HPC Systems, MLHPC 2018.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.backends import with_policy, with_table
from scaleout.cluster.topology.communication_library import Rule, Table
from scaleout.cluster.topology.topology import Topology, load_topology
from scaleout.program.mesh import Mesh
from scaleout.program.program import Program
from scaleout.study.backends import BackendComparison, compare_backends
from scaleout.study.job import Job, run, timed
from scaleout.workloads.families import load_workload

DEVICE = "v100"
WORKLOAD = "resnet-50-lbann"
STRONG_BATCH, WEAK_BATCH = 256, 32
"""Samples of a step over all GPUs, and per GPU."""
STRONG_RANKS = (8, 16, 32, 64, 128, 256)
WEAK_RANKS = (*STRONG_RANKS, 512, 1024, 2048)
RANKS = {"strong": STRONG_RANKS, "weak": WEAK_RANKS}
NCCL, HOST_TRANSFER, MPI, MINIMAL, STATIC = "nccl_ring", "host_transfer", "cuda_aware_mpi", "minimal", "static"
INPUT_PER_SAMPLE = "1 ms"
"""A core decodes about 100 images of ImageNet per second, and a GPU has ten of a node's 40 cores: 1 ms per image."""
SMALL_BYTES = 4096
"""Largest small message: 1024 parameters."""
PARAMETER_BYTES = 4
MOST_BY_HOST = {64: 4096, 128: 8192, 256: 32768}
"""GPUs to the most parameters that LBANN reduces by host-transfer, "tuned for Sierra" by the paper's first author: its
src/comm.cpp at 88f0665, 19 November 2018."""


@dataclass(frozen=True)
class Step:
    """One point of a scaling curve, strong or weak: times of all kernels, of all all-reduces, and of the step."""

    scaling: str
    num_ranks: int
    policy: str
    compute_s: float
    communication_s: float
    serial_s: float
    overlapped_s: float

    @property
    def exposed_s(self) -> float:
        """Exposed communication, with overlap."""
        return self.overlapped_s - self.compute_s


def comparison() -> BackendComparison:
    """Return Figs. 10 and 11: host-transfer and NCCL's rings over sizes, on 8 to 2048 GPUs."""
    return compare_backends(load_topology("sierra-2048"), names=(NCCL, HOST_TRANSFER))


def under(policy: str, topology: Topology, measured: BackendComparison) -> Topology:
    """Return a topology whose all-reduces use a policy."""
    if policy == MINIMAL:
        return with_table(topology, measured.table(HOST_TRANSFER, NCCL), name=policy)
    if policy == STATIC:
        by_host = [Rule(ranks, PARAMETER_BYTES * most, HOST_TRANSFER) for ranks, most in MOST_BY_HOST.items()]
        by_nccl = [Rule(ranks, math.inf, NCCL) for ranks in (*WEAK_RANKS, math.inf)]
        return with_table(topology, Table((*by_host, *by_nccl)), name=policy)
    return with_policy(topology, policy)


def sweep(policies: Sequence[str], *, scalings: Sequence[str] = ("strong", "weak"), whole: bool = False) -> list[Step]:
    """Return the steps of scaling curves: synthetic ones, or whole ones on up to 256 GPUs as in Fig. 12."""
    measured = comparison()
    steps = []
    for scaling in scalings:
        for ranks in RANKS[scaling]:
            if whole and ranks > STRONG_RANKS[-1]:
                continue
            batch = WEAK_BATCH if scaling == "weak" else STRONG_BATCH // ranks
            sierra = load_topology(f"sierra-{ranks}")
            steps += [_step(scaling, batch, under(policy, sierra, measured), policy, whole) for policy in policies]
    return steps


def _step(scaling: str, batch: int, topology: Topology, policy: str, whole: bool) -> Step:
    everyone = Mesh(data=topology.num_ranks).groups("world")
    roles = np.zeros(topology.num_ranks, np.int64)
    program = replace(_program(batch, whole), role_of_rank=roles, groups=(everyone,))
    serial, overlapped = (run(Job(program, DEVICE, topology, schedule)) for schedule in ("baseline", "overlap:always"))
    parts, times = serial.breakdown, (serial.makespan_s, overlapped.makespan_s)
    return Step(scaling, topology.num_ranks, policy, parts.compute_s, parts.communication_s, *times)


@functools.lru_cache(maxsize=64)
def _program(batch: int, whole: bool) -> Program:
    """Return the timed step of a GPU; the caller sets its group."""
    changes: dict[str, Any] = {
        "data_parallel": 2,
        "global_batch": None,
        "batch_per_replica": batch,
        "convolutions_only": not whole,
    }
    if whole:
        changes["input_per_sample"] = INPUT_PER_SAMPLE
    return timed(load_workload(WORKLOAD, changes), load_device(DEVICE))


def _of(steps: Sequence[Step], scaling: str, ranks: int, policy: str) -> Step:
    return next(s for s in steps if (s.scaling, s.num_ranks, s.policy) == (scaling, ranks, policy))


def _scaling_claims() -> Mapping[str, float]:
    """Figs. 2, 7, 8 and 9."""
    steps = sweep((NCCL, MINIMAL))
    strong = [step for step in steps if step.scaling == "strong" and step.policy == NCCL]
    weak = [step for step in steps if step.scaling == "weak" and step.policy == NCCL]
    at_32 = _of(steps, "strong", 32, NCCL)
    nccl, minimal = (_of(steps, "weak", 2048, policy) for policy in (NCCL, MINIMAL))
    at_1024 = _of(steps, "weak", 1024, NCCL)
    return {
        "A2-strong-best": float(min(strong, key=lambda step: step.serial_s).num_ranks),
        "A2-strong-32": 100 * at_32.communication_s / at_32.serial_s,
        "A2-weak-1024": at_1024.communication_s / at_1024.compute_s,
        "A2-weak-2048": nccl.communication_s / nccl.compute_s,
        "A7-strong-32": at_32.serial_s / at_32.overlapped_s,
        "A7-weak-knee": float(max(step.num_ranks for step in weak if step.exposed_s < step.compute_s)),
        "A9-weak-2048": nccl.communication_s / minimal.communication_s,
        "A8-weak-2048": nccl.exposed_s / minimal.exposed_s,
    }


def small_message_ratio(found: BackendComparison, ranks: int) -> float:
    """Return NCCL's time over host-transfer's: the geometric mean over small messages."""
    small = np.array(found.sizes_bytes) <= SMALL_BYTES
    ratio = found.curve(NCCL, ranks)[small] / found.curve(HOST_TRANSFER, ranks)[small]
    return float(np.exp(np.log(ratio).mean()))


def _collective_claims() -> Mapping[str, float]:
    """Figs. 10 and 11."""
    found = comparison()
    won = {f"A10-{ranks}": found.largest_won(HOST_TRANSFER, ranks) / PARAMETER_BYTES for ranks in (64, 2048)}
    return won | {f"A11-{ranks}": small_message_ratio(found, ranks) for ranks in (128, 2048)}


def _whole_claims() -> Mapping[str, float]:
    """Fig. 12."""
    policies = MPI, NCCL, STATIC
    steps = sweep(policies, whole=True)
    mpi, nccl, both = (_of(steps, "strong", 64, policy).overlapped_s for policy in policies)
    found = {"A12-strong-64": mpi / both, "A12-strong-64-nccl": mpi / nccl}
    mpi, nccl, both = (_of(steps, "weak", 256, policy).overlapped_s for policy in policies)
    return found | {"A12-weak-256": mpi / both, "A12-weak-256-nccl": mpi / nccl, "A12-weak-256-ht": nccl / both}


FIGURES: Mapping[str, Callable[[], Mapping[str, float]]] = {
    **dict.fromkeys(("A2", "A7", "A9", "A8"), _scaling_claims),
    **dict.fromkeys(("A10", "A11"), _collective_claims),
    "A12": _whole_claims,
}
