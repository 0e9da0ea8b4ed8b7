"""Workload to program: the execution graphs that every rank of a job runs in one step, not yet timed."""

import functools

from scaleout.program.program import Program
from scaleout.workloads.config.family import ModelFamily, WholeModel
from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.generate import step


def generate(workload: ModelFamily) -> Program:
    """Write the execution graphs of one step of a workload.

    Returns
    -------
    Program
        Its kernels know their FLOPs and bytes, not their times: see `scaleout.cluster.device.annotate.time_kernels`.
    """
    return _written(workload)


@functools.lru_cache(maxsize=4)  # jobs that differ in their network or schedule alone have the same
def _written(workload: ModelFamily) -> Program:
    if isinstance(workload, WholeModel):
        return workload.program()
    assert isinstance(workload, LayeredModel), "a family is of layers or whole"
    return step.generate(workload)
