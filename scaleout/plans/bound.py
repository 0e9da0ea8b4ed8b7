"""Bounds below the time of a step, from what stages take at least, without the clock.

A place is busy with all its micro-batches; before its first one the stages before it run forward, and after its last
one the gradient runs back through them. The longest of these paths is no longer than the step. `lower_bound` takes
matrix products at the peak rate and nothing else, and so needs neither kernel times nor costs of collectives;
`bound_of` takes stages as they are priced.

Symbols: p places of the pipeline; v model chunks of a rank; S stages; m micro-batches.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaleout.device import Device
from scaleout.pipelines import PIPELINES, Action
from scaleout.plans.stages import Ledger, Stage, contents_of
from scaleout.topology import Topology
from scaleout.workload import Transformer

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Least:
    """What each stage takes at least of one micro-batch, and in a step, shape (S,) each.

    Attributes
    ----------
    forward_s, back_s : ndarray
        Forward, and until the gradient of the input is there.
    both_s : ndarray
        Forward and backward, both gradients.
    once_s : ndarray
        What comes on top once a step, or less than 0 if it is spared.
    later_s : ndarray
        Part of the backward for which no other stage ever waits.
    last_s : ndarray
        Reductions, which follow the last micro-batch or run by its gradients.
    begin_s : ndarray
        What comes before the first micro-batch.
    """

    forward_s: Floats
    back_s: Floats
    both_s: Floats
    once_s: Floats
    later_s: Floats
    last_s: Floats
    begin_s: Floats


def lower_bound(workload: Transformer, topology: Topology, device: Device) -> float:
    """Return seconds that no step of a plan is shorter than: its matrix products at the device's peak.

    ``max over places (forward of the stages before + m (forward + backward) + backward of the stages before)``.
    """
    del topology
    peak = device.peak(workload.dtype)
    layers = [_layer_flops(workload, number) / peak for number in range(workload.layers)]
    ends = np.cumsum([0, *workload.layers_of_stage])
    forward_s = np.diff(np.r_[0.0, np.cumsum(layers)][ends])
    forward_s[-1] += (
        2.0 * workload.local_tokens * workload.hidden * workload.vocabulary / workload.tensor_parallel / peak
    )
    nothing = np.zeros(len(forward_s))
    if workload.mode != "training":
        return bound_of(workload, Least(forward_s, nothing, forward_s, nothing, nothing, nothing, nothing))
    return bound_of(workload, Least(forward_s, forward_s, 3 * forward_s, nothing, forward_s, nothing, nothing))


def _layer_flops(workload: Transformer, number: int) -> float:
    """Return the FLOPs of a layer's matrix products on a rank, forward, of one micro-batch; half of attention's."""
    weights = workload.attention_parameters + workload.active_feed_forward_parameters(number)
    rows = workload.local_tokens / workload.tensor_parallel
    scores = workload.heads * workload.score_dim * workload.sequence if workload.mode != "decode" else 0
    return 2.0 * rows * (weights + scores)


def least_of(stages: Sequence[Stage]) -> Least:
    """Return what priced stages take at least."""
    columns = []
    for stage in stages:
        forward, whole, inputs, weights = (spent.total_s for spent in stage.actions)
        parted = inputs + weights
        if parted:
            columns.append((forward, min(inputs, whole - stage.after_s), forward + min(whole, parted), weights))
        else:
            columns.append((forward, whole - stage.after_s, forward + whole, 0.0))
    forward_s, back_s, both_s, later_s = np.array(columns).T
    once_s = np.array([-stage.saved.total_s for stage in stages])
    last_s = np.array([sum(spent.total_s for spent in (stage.put_off, *stage.reduced)) for stage in stages])
    begin_s = np.array([stage.gathered.total_s for stage in stages])
    return Least(forward_s, back_s, both_s, once_s, later_s, last_s, begin_s)


def bound_of(workload: Transformer, least: Least) -> float:
    """Return the longest path through one place."""
    stage_of, copies = _stages(workload.pipeline_schedule, workload.pipeline_parallel, workload.chunks)
    m = workload.num_microbatches / copies
    busy_s = (m * least.both_s + least.once_s)[stage_of].sum(axis=1)
    last_s = least.last_s[stage_of].sum(axis=1)
    begin_s = least.begin_s[stage_of].sum(axis=1)
    if len(stage_of) == 1:
        return float(begin_s[0] + busy_s[0] + last_s[0])
    first = stage_of.min(axis=1)
    before_s = np.maximum(np.r_[0.0, np.cumsum(least.forward_s)][first], begin_s)
    # Behind its last gradient of an input a place may only have gradients of weights left.
    later_s = (m * least.later_s)[stage_of].sum(axis=1)
    back_s = np.r_[0.0, np.cumsum(least.back_s)][first] - later_s
    return float((before_s + busy_s + np.maximum(back_s, last_s)).max())


def family_bound(workload: Transformer, ledger: Ledger) -> float:
    """Return what no plan of a family is faster than: all micro-batches through all parts, spread over all places."""
    total_s = 0.0
    for content in contents_of(workload):
        for kind, count in content:
            part = ledger.parts[kind]
            works = (part.works[action] for action in (Action.FORWARD, Action.BACKWARD))
            total_s += count * sum(ledger.prices.work(work, workload, ledger.axes).total_s for work in works)
    return workload.num_microbatches * total_s / workload.pipeline_parallel


@functools.lru_cache(maxsize=512)
def _stages(name: str, p: int, v: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return the stage of each chunk of each place, shape (p, v), and how many places hold each."""
    pipeline = PIPELINES[name]
    return np.array([[pipeline.stage_of(r, c, p, v) for c in range(v)] for r in range(p)]), pipeline.copies
