"""Workload to program: the execution graphs that every rank of a job runs in one step, not yet timed."""

from scaleout.program.program import Program
from scaleout.workloads.config import Convolutional, Dlrm, Workload
from scaleout.workloads.generate import convolutional, dlrm, step


def generate(workload: Workload) -> Program:
    """Write the execution graphs of one step of a workload.

    Returns
    -------
    Program
        Its kernels know their FLOPs and bytes, not their times: see `scaleout.cluster.device.annotate.time_kernels`.
    """
    if isinstance(workload, Convolutional):
        return convolutional.generate(workload)
    return dlrm.generate(workload) if isinstance(workload, Dlrm) else step.generate(workload)
