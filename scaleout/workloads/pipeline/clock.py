"""The clock of a pipeline: who waits for whom, and seconds for each action, to the start and end of every slot.

A slot starts when its rank has ended the slot before and all that it needs has arrived: ``start = max(end of the slot
before, end of each maker + send)``. That is a longest path over fixed orders; nothing is decided here. Links are
never shared, and a message between two chunks of one rank takes no time.

Symbols: p ranks; v model chunks of a rank; N slots of all ranks together.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaleout.errors import ConfigError
from scaleout.workloads.pipeline.blocks import Blocks
from scaleout.workloads.pipeline.pipeline import Action, Step

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Timeline:
    """When every slot of a pipeline runs.

    Attributes
    ----------
    blocks : Blocks
        The slots.
    start_s, end_s : tuple of ndarray of float64, each of shape (slots of the rank,)
        For each rank, when its slots start and end.
    kept_s : ndarray of float64, shape (p,)
        How long each rank's last slot keeps it once its output is there.
    busy_s : ndarray of float64, shape (p,)
        How long each rank computes.
    makespan_s : float
        When the last slot of all ends.
    """

    blocks: Blocks
    start_s: tuple[Floats, ...]
    end_s: tuple[Floats, ...]
    kept_s: Floats
    busy_s: Floats
    makespan_s: float

    @property
    def bubble_s(self) -> Floats:
        """How long each rank does not compute between the first start and the last end of all, shape (p,)."""
        return self.makespan_s - self.busy_s

    @property
    def idle_s(self) -> Floats:
        """How long each rank does not compute between its own first start and its own last end, shape (p,)."""
        ranks = zip(self.start_s, self.end_s, strict=True)
        return np.array([end_s[-1] - start_s[0] for start_s, end_s in ranks]) + self.kept_s - self.busy_s


@dataclass(frozen=True, eq=False)
class Durations:
    """Seconds of what the slots of a pipeline do.

    Attributes
    ----------
    action_s : array_like, broadcast to shape (4, p, v)
        Each `Action` on a microbatch, for each chunk of each rank.
    send_s : array_like, broadcast to shape (p, v)
        A message between a chunk and its successor, either way; the receiver waits for it. That of a last stage, or
        between two chunks of one rank, is not used.
    after_s : array_like, broadcast to shape (4, p, v)
        How long each action keeps its rank once its output is there, such as to reduce gradients.
    begin_s : array_like, broadcast to shape (p,)
        When each rank begins with its first slot at the earliest.
    ready_s : array_like, broadcast to shape (p, v)
        When each chunk begins with its first forward at the earliest, such as after its parameters were gathered; of
        schedules with one step a slot.
    first_s, last_s : array_like, broadcast to shape (p, v)
        How much longer the first and the last gradients of weights of each chunk take than others; less if below zero:
        there are none yet to add the first ones to.
    last_after_s : array_like, broadcast to shape (p, v)
        How long the last gradients of weights of each chunk keep their rank besides, as `after_s`.
    """

    action_s: npt.ArrayLike
    send_s: npt.ArrayLike = 0.0
    after_s: npt.ArrayLike = 0.0
    begin_s: npt.ArrayLike = 0.0
    ready_s: npt.ArrayLike = 0.0
    first_s: npt.ArrayLike = 0.0
    last_s: npt.ArrayLike = 0.0
    last_after_s: npt.ArrayLike = 0.0

    def spread(self, what: str, *shape: int) -> Floats:
        """Return one of them as a flat array that has been spread to a shape.

        Raises
        ------
        ConfigError
            If it has another shape, or its seconds are negative or not finite.
        """
        array = np.asarray(getattr(self, what), np.float64)
        try:
            array = np.broadcast_to(array, shape)
        except ValueError:
            raise ConfigError(f"{what} has the shape {array.shape}; give one that spreads to {shape}") from None
        if not (np.isfinite(array).all() and (what == "first_s" or (array >= 0).all())):
            raise ConfigError(f"{what} holds seconds that are negative or not finite; give a time of 0 or more")
        return array.ravel()


def run(
    blocks: Blocks,
    durations: Durations,
    *,
    together_s: Callable[[int, Step, Step], float] | None = None,
    blocking: bool = False,
) -> Timeline:
    """Time the slots of a pipeline.

    Parameters
    ----------
    together_s : function, optional
        From rank and two steps to the seconds of both in one slot, the same for all microbatches; their sum if not
        given.
    blocking : bool
        Whether a rank starts nothing until what it sends has arrived; else sends run beside its next slots.

    Raises
    ------
    ConfigError
        If the arrays have other shapes, or seconds are negative or not finite.
    """
    p, v = blocks.num_ranks, blocks.num_chunks
    spread = durations.spread
    link_s = np.r_[spread("send_s", p, v), 0.0]
    slot_s, kept_s = (
        np.r_[spread(what, len(Action), p, v), 0.0][blocks.what].sum(axis=1) for what in ("action_s", "after_s")
    )
    if together_s is not None:
        _overlap(blocks, slot_s, together_s)
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
        blocks,
        start_s=tuple(np.split(start, cuts)),
        end_s=tuple(np.split(end, cuts)),
        kept_s=kept_s[blocks.offsets[1:] - 1],
        busy_s=np.add.reduceat(slot_s + kept_s, blocks.offsets[:-1]),
        makespan_s=float((end + kept_s).max()),
    )


def _overlap(blocks: Blocks, slot_s: Floats, together_s: Callable[[int, Step, Step], float]) -> None:
    """Fill in the seconds of the slots of two steps, asking once for each kind of pair."""
    p, v = blocks.num_ranks, blocks.num_chunks
    nothing = len(Action) * p * v
    pairs = np.flatnonzero(blocks.what[:, 1] < nothing)
    _, examples, kinds = np.unique(blocks.what[pairs] @ np.array([nothing, 1]), return_index=True, return_inverse=True)
    ranks = np.searchsorted(blocks.offsets, pairs[examples], side="right") - 1
    slots = [
        (rank, blocks.orders[rank][slot - blocks.offsets[rank]])
        for rank, slot in zip(ranks.tolist(), pairs[examples].tolist(), strict=True)
    ]
    pair_s = np.array([together_s(rank, *slot) for rank, slot in slots], np.float64)
    slot_s[pairs] = pair_s[kinds]


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
