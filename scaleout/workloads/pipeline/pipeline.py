"""What a pipeline schedule is: for every rank, the order of its forward and backward steps.

A schedule says nothing of time. A *step* is one action of one model chunk on one microbatch; a *slot* holds the steps
that a rank runs at the same time. The backward of a chunk is one step, or two where the schedule parts the gradient
of the input, for which the stage before waits, from the gradient of the weights, for which nobody waits.

Symbols: p ranks (stages of the pipeline); m microbatches; v model chunks of a rank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from scaleout.workloads.pipeline.layout import Layout


class Action(IntEnum):
    """What a rank does with a microbatch; BACKWARD is both gradients in one."""

    FORWARD = 0
    BACKWARD = 1
    INPUT_GRADIENT = 2
    WEIGHT_GRADIENT = 3


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a rank.

    Attributes
    ----------
    action : Action
        What is done.
    chunk : int
        Which of the rank's model chunks does it.
    microbatch : int
        Which of the m microbatches it is done to.
    """

    action: Action
    chunk: int
    microbatch: int


Slot = tuple[Step, ...]
"""Steps that a rank runs at the same time: one, or two that overlap."""

Order = tuple[Slot, ...]
"""All slots of a rank, first to last."""


def alone(action: Action, microbatch: int, chunk: int = 0) -> Slot:
    """Return a slot of one step."""
    return (Step(action, chunk, microbatch),)


def always(_p: int, _m: int, _v: int) -> str | None:
    """Hold for all sizes."""
    return None


@dataclass(frozen=True)
class Pipeline:
    """A pipeline schedule.

    Attributes
    ----------
    name : str
        As the user writes it.
    description : str
        One line for `scaleout list`.
    source : str
        Where it was published.
    num_chunks : int or None
        Model chunks of a rank; None where the degree of interleaving is free.
    order : function
        From rank, p, m and v to the rank's slots.
    layout : Layout
        Which virtual stage each chunk is.
    check : function
        From p, m and v to the reason why the schedule cannot be, or None.
    in_groups : function or None
        From the microbatches that a chunk takes before another chunk's turn to the schedule that goes in such groups;
        None where a schedule has none.
    """

    name: str
    description: str
    source: str
    num_chunks: int | None
    order: Callable[[int, int, int, int], Order]
    layout: Layout
    check: Callable[[int, int, int], str | None] = always
    in_groups: Callable[[int], "Pipeline"] | None = None

    @property
    def copies(self) -> int:
        """Ranks that hold the parameters of each stage: a rank holds v stages, ``copies / p`` of the model."""
        return self.layout.copies

    def num_stages(self, p: int, v: int) -> int:
        """Return the number of virtual stages that the model is cut into."""
        return self.layout.num_stages(p, v)

    def stage_of(self, rank: int, chunk: int, p: int, v: int) -> int:
        """Return the virtual stage that a chunk of a rank is."""
        return self.layout.stage_of(rank, chunk, p, v)

    def path_of(self, chunk: int) -> int:
        """Return the path that the microbatches of a chunk take; chunks of other paths are other copies."""
        return self.layout.path_of(chunk)

    def before(self, rank: int, chunk: int, p: int, v: int) -> tuple[int, int] | None:
        """Return the rank and chunk that make the input of a chunk, or None for the first stage."""
        return self.layout.before(rank, chunk, p, v)

    def after(self, rank: int, chunk: int, p: int, v: int) -> tuple[int, int] | None:
        """Return the rank and chunk that take the output of a chunk, or None for the last stage."""
        return self.layout.after(rank, chunk, p, v)
