"""Pipeline schedules: stages and microbatches to the order of steps on every rank.

All schedules stand in `PIPELINES`. Knows nothing of kernels, graphs, devices or networks; how long an order takes is
said by `clock`, given the seconds of each step.

Symbols: p ranks (stages of the pipeline); m microbatches; v model chunks of a rank; L microbatches of a group.
"""

import functools

import numpy as np
import numpy.typing as npt

from scaleout.errors import ConfigError
from scaleout.workloads.pipeline.dualpipe import DUALPIPE, DUALPIPE_V
from scaleout.workloads.pipeline.gpipe import GPIPE
from scaleout.workloads.pipeline.one_forward_one_backward import INTERLEAVED, ONE_FORWARD_ONE_BACKWARD
from scaleout.workloads.pipeline.pipeline import Action, Order, Pipeline, Slot, Step
from scaleout.workloads.pipeline.zero_bubble import ZB_H1, ZB_V

PIPELINES: dict[str, Pipeline] = {
    pipeline.name: pipeline
    for pipeline in (GPIPE, ONE_FORWARD_ONE_BACKWARD, INTERLEAVED, ZB_H1, ZB_V, DUALPIPE, DUALPIPE_V)
}
"""Name to pipeline schedule."""

__all__ = [
    "PIPELINES", "Action", "Order", "Pipeline", "Slot", "Step", "named", "orders", "stages_of_ranks",
]  # fmt: skip


def named(name: str, group: int | None = None) -> Pipeline:
    """Return a schedule by name, in groups of L microbatches if given; a ConfigError says that it has none."""
    if group is None:
        return PIPELINES[name]
    in_groups = PIPELINES[name].in_groups
    if in_groups is None:
        able = ", ".join(pipeline.name for pipeline in PIPELINES.values() if pipeline.in_groups is not None)
        raise ConfigError(
            f"pipeline schedule {name!r} has no groups of microbatches; leave {group} out, or choose {able}"
        )
    return in_groups(group)


@functools.lru_cache(maxsize=64)
def orders(
    name: str, *, stages: int, microbatches: int, chunks: int = 1, group: int | None = None
) -> tuple[Order, ...]:
    """Return the slots of every rank, in the order in which it runs them.

    The sizes are p, m of a step of training, both directions together, v and L; `Pipeline.check` says whether they can
    be, and v is the schedule's own number of chunks where it has one.
    """
    pipeline = named(name, group)
    return tuple(pipeline.order(rank, stages, microbatches, chunks) for rank in range(stages))


@functools.lru_cache(maxsize=512)
def stages_of_ranks(name: str, p: int, v: int) -> npt.NDArray[np.int64]:
    """Return which virtual stage each chunk of each rank is, shape (p, v)."""
    stage_of = PIPELINES[name].layout.stage_of
    return np.array([[stage_of(rank, chunk, p, v) for chunk in range(v)] for rank in range(p)])
