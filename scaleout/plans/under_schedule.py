"""A plan under a schedule: its program, kernel by kernel, scheduled and simulated, and what a step of it takes.

Blocks (`evaluate`) know what follows each other; what a schedule puts side by side only the clock knows. Numbers mean
what they mean there: exposed communication by axis, and waiting for other places of the pipeline and their messages as
the bubble.
"""

from dataclasses import replace

from scaleout.analysis import breakdown, exposed_by_family
from scaleout.contention import contention_of
from scaleout.device import Device
from scaleout.generators import generate
from scaleout.machine import Machine
from scaleout.plans.best import Question
from scaleout.plans.evaluate import AXIS_OF, Estimate, peak_of
from scaleout.plans.space import Plan
from scaleout.result import Result
from scaleout.schedule import plan_schedule, prepare
from scaleout.simulation import simulate
from scaleout.timing import time_kernels
from scaleout.topology import Topology
from scaleout.workload import Transformer


def run_under(
    workload: Transformer, topology: Topology, device: Device, schedule: str, *, memory_bytes: float | None = None
) -> tuple[Result, Transformer]:
    """Simulate a step under a schedule; return it, and the workload that the schedule made of the plan's.

    `memory_bytes` is what a schedule that chooses keys of the workload may fill; the device's memory if not given.
    """
    capacity_bytes = device.memory_bytes if memory_bytes is None else memory_bytes
    prepared, _ = prepare(workload, schedule, Machine(replace(device, memory_bytes=capacity_bytes), topology))
    assert isinstance(prepared, Transformer)
    program = time_kernels(generate(prepared), device)
    planned = plan_schedule(program, schedule, machine=Machine(device, topology))
    if planned.result is not None:
        return planned.result, prepared
    return simulate(planned.program, topology, contention=contention_of(device, topology)), prepared


def estimate_of(result: Result, workload: Transformer, device: Device) -> Estimate:
    """Say what a simulated step takes; see `evaluate.Estimate`."""
    step_s, compute_s = result.makespan_s, breakdown(result).compute_s
    exposed_s: dict[str, float] = {}
    for family, seconds in exposed_by_family(result).items():
        if family and family != "pipeline":  # messages are part of the bubble
            axis = axis_of(family)
            exposed_s[axis] = exposed_s.get(axis, 0.0) + seconds
    tokens = workload.tokens * workload.data_parallel
    return Estimate(
        step_s,
        compute_s,
        exposed_s,
        bubble_s=max(0.0, step_s - compute_s - sum(exposed_s.values())),
        tokens_per_s=tokens / step_s,
        mfu=workload.flops_per_token * tokens / (workload.num_ranks * step_s * device.peak(workload.dtype)),
        memory_bytes=peak_of(workload).bytes_of,
    )


def whole_family(name: str) -> str:
    """Return the family that a family of one level of the network was made of."""
    stem, _, end = name.rpartition("_")
    return stem if end in ("intra", "inter") else name.partition("_level_")[0]


def axis_of(family: str) -> str:
    """Return the axis that the time of a family of groups, or of one of its levels, is counted for."""
    return AXIS_OF.get(whole_family(family), "data")


def estimate_under(question: Question, plan: Plan, schedule: str) -> Estimate:
    """Simulate a plan of a question under a schedule, and say what a step takes."""
    result, workload = run_plan(question, plan, schedule)
    return estimate_of(result, workload, question.device)


def run_plan(question: Question, plan: Plan, schedule: str) -> tuple[Result, Transformer]:
    """Simulate a plan of a question under a schedule; see `run_under`."""
    workload, memory_bytes = question.workload(plan), question.memory_bytes
    return run_under(workload, question.topology, question.device, schedule, memory_bytes=memory_bytes)
