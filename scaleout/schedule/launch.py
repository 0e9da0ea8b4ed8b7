"""How many micro-batches of a model chunk Centauri launches together in an interleaved pipeline.

Equation (2) of the paper says how much of a chunk's gathers and reductions stays exposed beside them:

    T = max(C_AG - L1 C_fw, 0) + max(C_RS - L2 C_bw, 0)

C_AG and C_RS are what one chunk's parameters and gradients take on the wires, by levels where that is less; C_fw and
C_bw what a micro-batch of it takes forward and backward, simulated alone. T is that of the stage where most stays
exposed. Groups have one size L: L1 is the first group, L2 the last, which may be smaller. So L1 + L2 <= m holds where
there are two groups; one group of all m (breadth-first) is the first and the last.

T has no messages, nor micro-batches that wait for their own chunk's gathers. In groups of p a chunk's first activations
come round when they are needed, so that every group waits for its messages; in larger ones they have time, but
gradients are ready later. So a step is run on the pipeline's clock, with messages, gathers as they come in and
reductions as they are made, for each group of equal size and for the one that equation (2) names.

Symbols: p stages of a pipeline; v chunks of a rank; m micro-batches; L1, L2 those launched together, forward and
backward. Source: Chen et al., Centauri, ASPLOS 2024, Sec. 3.2.3.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from scaleout.machine import Machine
from scaleout.memory import peak
from scaleout.network.hops import neighbours, sends_s, slowest
from scaleout.pipelines import PIPELINES, Action, named
from scaleout.pipelines.blocks import blocks
from scaleout.pipelines.clock import run
from scaleout.workload import Transformer


@dataclass(frozen=True)
class Costs:
    """What a stage takes, in seconds: its gathers and reductions, and a micro-batch forward and backward."""

    gather_s: float
    reduce_s: float
    forward_s: float
    backward_s: float

    def exposed_s(self, launched: tuple[int, int]) -> float:
        """Return equation (2): what stays exposed beside so many micro-batches, forward and backward.

        >>> Costs(4.0, 3.0, 1.0, 2.0).exposed_s((3, 1))
        2.0
        """
        forward, backward = launched
        return max(self.gather_s - forward * self.forward_s, 0.0) + max(self.reduce_s - backward * self.backward_s, 0.0)


NOTHING = Costs(0.0, 0.0, 0.0, 0.0)
"""Of a workload in which nothing is chosen."""


def launched_together(workload: Transformer) -> tuple[int, int]:
    """Return the micro-batches of a chunk that are launched together, forward and backward: L1 and L2."""
    pipeline = named(workload.pipeline_schedule, workload.microbatch_group)
    if pipeline.in_groups is None:
        return 1, 1
    group = workload.microbatch_group or workload.pipeline_parallel
    return group, workload.num_microbatches % group or group


@dataclass(frozen=True)
class Launch:
    """A group that was chosen, the one of equation (2) alone, and the seconds of a step with each."""

    group: int
    step_s: float
    by_equation: int
    by_equation_s: float


def best_launch(
    workload: Transformer, stages: Sequence[Costs], machine: Machine, capacity_bytes: float
) -> Launch | None:
    """Return the group with which the step is shortest, of those that fit, and of equal ones the smallest.

    The smallest if none fits; None where there are no groups, or the workload says which.
    """
    in_groups = named(workload.pipeline_schedule).in_groups
    if in_groups is None or workload.microbatch_group is not None:
        return None
    p, m = workload.pipeline_parallel, workload.num_microbatches
    plans = {
        size: workload.model_copy(update={"microbatch_group": size})
        for size in range(p, m + 1)
        if in_groups(size).check(p, m, workload.chunks) is None
    }
    # Memory grows with the group.
    fit = bisect_right(list(plans), capacity_bytes, key=lambda size: peak(plans[size]).total_bytes)
    sizes = list(plans)[: max(fit, 1)]
    exposed_s = {size: max(each.exposed_s(launched_together(plans[size])) for each in stages) for size in sizes}
    by_equation = min(sizes, key=exposed_s.__getitem__)
    hops = slowest(
        workload.message_bytes, machine.topology, between=neighbours(machine.topology, workload.mesh, "pipeline")
    )
    hops_s = [hop.time_s for hop in hops]
    steps_s = {size: step_s(plans[size], stages, hops_s) for size in sizes if m % size == 0 or size == by_equation}
    rounded_s = {size: float(f"{each:.9e}") for size, each in steps_s.items()}  # sums differ in their last bits
    best = min(rounded_s, key=rounded_s.__getitem__)
    return Launch(best, steps_s[best], by_equation, steps_s[by_equation])


def step_s(workload: Transformer, stages: Sequence[Costs], hops_s: Sequence[float]) -> float:
    """Return the seconds of an interleaved pipeline, its messages, gathers and reductions, without what ends a step.

    Parameters
    ----------
    stages : sequence of Costs
        Of every stage.
    hops_s : sequence of float, length p
        What a message takes from each place to the next.
    """
    name, p, v = workload.pipeline_schedule, workload.pipeline_parallel, workload.chunks
    at = np.array([[PIPELINES[name].stage_of(place, chunk, p, v) for chunk in range(v)] for place in range(p)])
    gather_s, reduce_s, forward_s, backward_s = np.array([astuple(each) for each in stages]).T[:, at]
    share = 1 / np.maximum(np.array(workload.layers_of_stage)[at], 1)  # of a layer in its stage
    action_s = np.zeros((len(Action), p, v))
    action_s[Action.FORWARD], action_s[Action.BACKWARD] = forward_s, backward_s
    found = blocks(name, stages=p, microbatches=workload.num_microbatches, chunks=v, group=workload.microbatch_group)
    timeline = run(
        found,
        action_s,
        send_s=sends_s(hops_s, name, p, v),
        ready_s=np.cumsum(gather_s, axis=1) - (1 - share) * np.minimum(gather_s, forward_s),
        blocking=not workload.overlap_sends,
    )
    # Reductions of a place follow each other, layer by layer as the last backward of their chunk makes them.
    end_s = np.concatenate(timeline.end_s)[found.last_gradients]
    first_s, last_s = end_s - (1 - share) * backward_s, end_s + share * reduce_s
    done_s = np.zeros(p)
    for chunk in reversed(range(v)):
        done_s = np.maximum(np.maximum(done_s, first_s[:, chunk]) + reduce_s[:, chunk], last_s[:, chunk])
    return max(float(done_s.max()), timeline.makespan_s)
