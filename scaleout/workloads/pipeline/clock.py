"""The clock of a pipeline: who waits for whom, and seconds for each action, to the start and end of every slot.

A slot starts when its rank has ended the slot before and all that it needs has arrived: ``start = max(end of the slot
before, end of each maker + send)``. That is a longest path over fixed orders; nothing is decided here. Links are
never shared, and a message between two chunks of one rank takes no time.

Symbols: p ranks; v model chunks of a rank; N slots of all ranks together.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaleout.workloads.pipeline.blocks import Blocks
from scaleout.workloads.pipeline.pipeline import Action

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Timeline:
    """When every slot of a pipeline runs: for each rank its slots, in the order in which it runs them."""

    start_s: tuple[Floats, ...]
    end_s: tuple[Floats, ...]
    kept_s: Floats  # (p,) how long each rank's last slot keeps it once its output is there
    makespan_s: float


@dataclass(frozen=True, eq=False)
class Durations:
    """Seconds of what the slots of a pipeline do, each spread to its shape."""

    # (4, p, v) each `Action` on a microbatch
    action_s: npt.ArrayLike
    # (p, v) a message between a chunk and its successor, either way, for which the receiver waits; that of a last
    # stage, or between two chunks of one rank, is not used
    send_s: npt.ArrayLike = 0.0
    # (4, p, v) how long each action keeps its rank once its output is there, such as to reduce gradients
    after_s: npt.ArrayLike = 0.0
    # (p,) when each rank begins with its first slot at the earliest
    begin_s: npt.ArrayLike = 0.0
    # (p, v) when each chunk begins with its first forward at the earliest, such as after its parameters were gathered;
    # of schedules with one step a slot
    ready_s: npt.ArrayLike = 0.0
    # (p, v) how much longer the first and the last gradients of weights of each chunk take than others; less if below
    # zero: there are none yet to add the first ones to
    first_s: npt.ArrayLike = 0.0
    last_s: npt.ArrayLike = 0.0
    # (p, v) how long the last gradients of weights of each chunk keep their rank besides, as `after_s`
    last_after_s: npt.ArrayLike = 0.0

    def spread(self, what: str, *shape: int) -> Floats:
        """Return one of them as a flat array that has been spread to a shape."""
        array = np.broadcast_to(np.asarray(getattr(self, what), np.float64), shape)
        assert np.isfinite(array).all(), f"{what} holds times that are not finite"
        return array.ravel()


def run(blocks: Blocks, durations: Durations, *, blocking: bool = False) -> Timeline:
    """Time the slots of a pipeline; two steps of one slot take their sum.

    If `blocking`, a rank starts nothing until what it sends has arrived; else sends run beside its next slots.
    """
    p, v = blocks.num_ranks, blocks.num_chunks
    spread = durations.spread
    link_s = np.r_[spread("send_s", p, v), 0.0]
    slot_s, kept_s = (
        np.r_[spread(what, len(Action), p, v), 0.0][blocks.what].sum(axis=1) for what in ("action_s", "after_s")
    )
    if np.any(durations.first_s):
        np.add.at(slot_s, blocks.first_gradients.ravel(), spread("first_s", p, v))
    if np.any(durations.last_s):
        np.add.at(slot_s, blocks.last_gradients.ravel(), spread("last_s", p, v))
    if np.any(durations.last_after_s):
        np.add.at(kept_s, blocks.last_gradients.ravel(), spread("last_after_s", p, v))
    held_s = np.maximum(kept_s, link_s[blocks.sends].max(axis=1)) if blocking else kept_s
    receive_s = link_s[blocks.receives]
    if np.any(durations.ready_s):
        first = blocks.first_forwards.ravel()
        assert (blocks.makers[first, 1] == len(slot_s)).all(), "a second step needs this column"
        receive_s[first, 1] = spread("ready_s", p, v)
    start = _longest_paths(blocks, slot_s, held_s, receive_s, spread("begin_s", p))
    end = start + slot_s
    cuts = blocks.offsets[1:-1]
    return Timeline(
        start_s=tuple(np.split(start, cuts)),
        end_s=tuple(np.split(end, cuts)),
        kept_s=kept_s[blocks.offsets[1:] - 1],
        makespan_s=float((end + kept_s).max()),
    )


def _longest_paths(blocks: Blocks, slot_s: Floats, held_s: Floats, receive_s: Floats, begin_s: Floats) -> Floats:
    """Return the start of every slot, shape (N,): one pass over the slots in an order in which all needs come first."""
    sequence, previous, makers = blocks.sequence, blocks.previous[blocks.sequence], blocks.makers[blocks.sequence]
    end_s = [0.0] * (len(slot_s) + 1) + begin_s.tolist()  # behind the slots: nothing to wait for, and each rank's begin
    start_s = []
    for slot, before, held, first, first_s, second, second_s, seconds in zip(
        sequence.tolist(),
        previous.tolist(),
        np.r_[held_s, 0.0, np.zeros(blocks.num_ranks)][previous].tolist(),
        *(column for i in (0, 1) for column in (makers[:, i].tolist(), receive_s[sequence, i].tolist())),
        slot_s[sequence].tolist(),
        strict=True,
    ):
        start = end_s[before] + held
        arrival = end_s[first] + first_s
        if arrival > start:  # noqa: PLR1730 - a third of the time of max()
            start = arrival
        arrival = end_s[second] + second_s
        if arrival > start:  # noqa: PLR1730
            start = arrival
        start_s.append(start)
        end_s[slot] = start + seconds
    starts = np.empty(len(slot_s))
    starts[sequence] = start_s
    return starts
