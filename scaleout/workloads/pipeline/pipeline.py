"""What a pipeline schedule is: for every rank, the order of its forward and backward steps.

A schedule says nothing of time. A *step* is one action of one model chunk on one microbatch; a *slot* holds the steps
that a rank runs at the same time. The backward of a chunk is one step, or two where the schedule splits the gradient
of the input, for which the stage before waits, from the gradient of the weights, for which nobody waits.

A *layout* says which virtual stage each chunk of each rank is. A *path* is one way of microbatches through all stages
of the model: most layouts have one, and two where two directions run over the same ranks.

Symbols: p ranks (stages of the pipeline); m microbatches; v model chunks of a rank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum


class Action(IntEnum):
    """What a rank does with a microbatch; BACKWARD is both gradients in one."""

    FORWARD = 0
    BACKWARD = 1
    INPUT_GRADIENT = 2
    WEIGHT_GRADIENT = 3


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a rank: one of its v model chunks does it to one of the m microbatches."""

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


@dataclass(frozen=True)
class Layout:
    """Virtual stages over ranks and chunks."""

    stage_of: Callable[[int, int, int, int], int]  # from rank, chunk, p and v to the virtual stage
    holder_of: Callable[[int, int, int, int], tuple[int, int]]  # from path, virtual stage, p and v to rank and chunk
    copies: int = 1  # ranks that hold each stage: the number of paths; of two, chunk 0 goes the one, chunk 1 the other

    def num_stages(self, p: int, v: int) -> int:
        """Return the number of virtual stages that the model is cut into."""
        return p * v // self.copies

    def path_of(self, chunk: int) -> int:
        """Return the path that the microbatches of a chunk take; chunks of other paths are other copies."""
        return chunk if self.copies > 1 else 0

    def neighbour(self, rank: int, chunk: int, p: int, v: int, by: int) -> tuple[int, int] | None:
        """Return the rank and chunk `by` stages along the path of a chunk, or None if that has no such stage."""
        stage = self.stage_of(rank, chunk, p, v) + by
        return self.holder_of(self.path_of(chunk), stage, p, v) if 0 <= stage < self.num_stages(p, v) else None


LOOP = Layout(
    stage_of=lambda rank, chunk, p, _v: chunk * p + rank,
    holder_of=lambda _path, stage, p, _v: (stage % p, stage // p),
)
"""Down the ranks, once for each chunk; with one chunk the plain pipeline."""

VEE = Layout(
    stage_of=lambda rank, chunk, p, _v: rank if chunk == 0 else 2 * p - 1 - rank,
    holder_of=lambda _path, stage, p, _v: (stage, 0) if stage < p else (2 * p - 1 - stage, 1),
)
"""Down the ranks and up again: the first and the last stage lie on rank 0, and the last rank hands over to itself."""

TWO_WAY = Layout(
    stage_of=lambda rank, chunk, p, _v: rank if chunk == 0 else p - 1 - rank,
    holder_of=lambda path, stage, p, _v: (stage if path == 0 else p - 1 - stage, path),
    copies=2,
)
"""Two copies of the model: microbatches of chunk 0 flow down the ranks, those of chunk 1 up."""


@dataclass(frozen=True)
class Pipeline:
    """A pipeline schedule."""

    name: str
    description: str  # one line for `scaleout list`
    source: str
    num_chunks: int | None  # model chunks of a rank; None where the degree of interleaving is free
    order: Callable[[int, int, int, int], Order]  # from rank, p, m and v to the rank's slots
    layout: Layout
    # From p, m and v to the reason why the schedule cannot be, or None.
    check: Callable[[int, int, int], str | None] = lambda _p, _m, _v: None
    # From the microbatches that a chunk takes before another chunk's turn to the schedule that goes in such groups.
    in_groups: Callable[[int], "Pipeline"] | None = None
