"""Pipeline schedules: stages and microbatches to the order of steps on every rank.

One schedule a file, all of them in `PIPELINES`. Knows nothing of kernels, graphs, devices or networks; how long an
order takes is said by `clock`, given the seconds of each step.

Symbols: p ranks (stages of the pipeline); m microbatches; v model chunks of a rank; L microbatches of a group.
"""

import functools

from scaleout.config import validated
from scaleout.errors import ConfigError
from scaleout.workloads.pipeline import dualpipe, dualpipe_v, gpipe, interleaved, one_forward_one_backward, zb_h1, zb_v
from scaleout.workloads.pipeline.layout import Layout
from scaleout.workloads.pipeline.pipeline import Action, Order, Pipeline, Slot, Step

PIPELINES: dict[str, Pipeline] = {
    pipeline.name: pipeline
    for pipeline in (
        gpipe.PIPELINE,
        one_forward_one_backward.PIPELINE,
        interleaved.PIPELINE,
        zb_h1.PIPELINE,
        zb_v.PIPELINE,
        dualpipe.PIPELINE,
        dualpipe_v.PIPELINE,
    )
}
"""Name to pipeline schedule."""

__all__ = ["PIPELINES", "Action", "Layout", "Order", "Pipeline", "Slot", "Step", "chunks_of", "named", "orders"]


def named(name: str, group: int | None = None) -> Pipeline:
    """Return a schedule by name, in groups of L microbatches if these are given.

    Raises
    ------
    ConfigError
        If the schedule is unknown, or has no groups.
    """
    if name not in PIPELINES:
        raise ConfigError(f"unknown pipeline schedule {name!r}; {validated.nearest(name, PIPELINES)}")
    if group is None:
        return PIPELINES[name]
    in_groups = PIPELINES[name].in_groups
    if in_groups is None:
        able = ", ".join(pipeline.name for pipeline in PIPELINES.values() if pipeline.in_groups is not None)
        raise ConfigError(
            f"pipeline schedule {name!r} has no groups of microbatches; leave {group} out, or choose {able}"
        )
    return in_groups(group)


def chunks_of(name: str, chunks: int = 1) -> int:
    """Return how many model chunks a rank holds: the degree of interleaving if it is free, else the schedule's own.

    Raises
    ------
    ConfigError
        If the schedule is unknown, or interleaving is asked of one that has none.
    """
    own = named(name).num_chunks
    if own is None:
        return chunks
    if chunks not in (1, own):
        free = ", ".join(pipeline.name for pipeline in PIPELINES.values() if pipeline.num_chunks is None)
        raise ConfigError(f"pipeline schedule {name!r} holds {own} model chunks a rank, not {chunks}; choose {free}")
    return own


@functools.lru_cache(maxsize=64)
def orders(
    name: str, *, stages: int, microbatches: int, chunks: int = 1, group: int | None = None
) -> tuple[Order, ...]:
    """Return the slots of every rank, in the order in which it runs them.

    Parameters
    ----------
    name : str
        One of `PIPELINES`.
    stages : int
        Ranks of the pipeline, p.
    microbatches : int
        Microbatches of a step of training, m, both directions together.
    chunks : int
        Model chunks of a rank, v, where the schedule leaves them free; otherwise 1 or the schedule's own number.
    group : int, optional
        Microbatches of a group, L, where the schedule has groups; its own number if left out.

    Raises
    ------
    ConfigError
        If the schedule is unknown or cannot be with these sizes; the message says why.
    """
    v = chunks_of(name, chunks)
    for what, number in (("stages", stages), ("microbatches", microbatches), ("chunks", v)):
        if number < 1:
            raise ConfigError(f"a pipeline of {number} {what} does nothing; give 1 or more")
    pipeline = named(name, group)
    reason = pipeline.check(stages, microbatches, v)
    if reason is not None:
        raise ConfigError(f"pipeline schedule {name!r} cannot be: {reason}")
    return tuple(pipeline.order(rank, stages, microbatches, v) for rank in range(stages))
