"""The slots of all ranks as columns, and which of them waits for which.

A forward waits for the forward of the stage before it, a gradient for that of the stage after it. A rank runs its slots
in their order. Nothing here has a duration: the blocks of a schedule are found once and timed often.

Symbols: p ranks; v model chunks of a rank; N slots and S steps of all ranks.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaleout.errors import ConfigError, SimulationError
from scaleout.workloads.pipeline import PIPELINES, orders
from scaleout.workloads.pipeline.pipeline import Action, Order, Pipeline, Step

Index = npt.NDArray[np.int64]

FORWARD_FLOW, GRADIENT_FLOW, NO_FLOW = range(3)
"""Where what a step makes goes: to the next stage, to the stage before, nowhere."""

_FLOWS = np.array([FORWARD_FLOW, GRADIENT_FLOW, GRADIENT_FLOW, NO_FLOW])  # of each action
_NOTHING = -1


@dataclass(frozen=True, eq=False)
class Blocks:
    """Slots of all ranks, rank by rank; every slot has one or two steps."""

    pipeline: Pipeline
    num_ranks: int
    num_chunks: int
    orders: Sequence[Order]
    offsets: Index  # (p + 1,) slots of rank r are ``offsets[r]`` to ``offsets[r + 1]``
    # (N, 2) action, rank and chunk of both steps as one number, ``(action p + rank) v + chunk``; ``4 p v`` if none
    what: Index
    # (N, 2) which link the step's output takes to another rank: the link between chunk c of rank r and its successor is
    # ``r v + c``, whichever way it is used; ``p v`` if nothing is sent
    sends: Index
    makers: Index  # (N, 2) slot on another rank that makes what the step needs; N if there is none
    receives: Index  # (N, 2) link that the step's input takes, numbered as `sends`
    sequence: Index  # (N,) the slots so that every one comes after those that it waits for

    @property
    def previous(self) -> Index:
        """Slot that the same rank runs before each slot, shape (N,); ``N + 1 + r`` before the first of rank r."""
        previous = np.arange(-1, len(self.what) - 1)
        previous[self.offsets[:-1]] = len(self.what) + 1 + np.arange(self.num_ranks)
        return previous

    @property
    def first_forwards(self) -> Index:
        """Slot in which each chunk of each rank takes its first micro-batch forward, shape (p, v)."""
        return self._first_and_last(Action.FORWARD)[0]

    @property
    def first_gradients(self) -> Index:
        """Slot in which each chunk of each rank makes its first gradients of weights, shape (p, v)."""
        return self._weight_gradient_slots[0]

    @property
    def last_gradients(self) -> Index:
        """Slot in which each chunk of each rank makes its last gradients of weights, shape (p, v)."""
        return self._weight_gradient_slots[1]

    @functools.cached_property
    def _weight_gradient_slots(self) -> tuple[Index, Index]:
        return self._first_and_last(Action.BACKWARD, Action.WEIGHT_GRADIENT)

    def _first_and_last(self, *actions: Action) -> tuple[Index, Index]:
        pv = self.num_ranks * self.num_chunks
        slot, step = np.nonzero(np.isin(self.what // pv, actions))
        chunk = self.what[slot, step] % pv
        first, last = np.full(pv, len(self.what)), np.full(pv, _NOTHING)
        np.minimum.at(first, chunk, slot)
        np.maximum.at(last, chunk, slot)
        assert (last != _NOTHING).all(), "every chunk has such an action"
        return first.reshape(self.num_ranks, -1), last.reshape(self.num_ranks, -1)

    @functools.cached_property
    def counts(self) -> Index:
        """How often each chunk of each rank takes each action, shape (4, p, v)."""
        shape = (len(Action), self.num_ranks, self.num_chunks)
        return np.bincount(self.what.ravel(), minlength=math.prod(shape) + 1)[:-1].reshape(shape)

    def in_flight(self, until: Action = Action.WEIGHT_GRADIENT) -> tuple[Index, ...]:
        """Count the microbatches whose activations a rank holds during each of its slots.

        A microbatch is in flight from the start of its forward to the end of its backward; of a backward in two
        parts, to the end of the part `until`. Between two slots a rank holds what the next one starts with, less
        the forwards in it. For each rank an array of shape (slots of the rank, v).
        """
        assert until in (Action.INPUT_GRADIENT, Action.WEIGHT_GRADIENT)
        pv = self.num_ranks * self.num_chunks
        action, chunk = self.what // pv, self.what % self.num_chunks
        change = np.zeros((len(self.what) + 1, self.num_chunks), np.int64)
        slot, step = np.nonzero(action == Action.FORWARD)
        np.add.at(change, (slot, chunk[slot, step]), 1)
        slot, step = np.nonzero((action == Action.BACKWARD) | (action == until))
        np.subtract.at(change, (slot + 1, chunk[slot, step]), 1)
        return tuple(np.split(np.cumsum(change, axis=0)[:-1], self.offsets[1:-1]))


@functools.lru_cache(maxsize=64)
def blocks(name: str, *, stages: int, microbatches: int, chunks: int = 1, group: int | None = None) -> Blocks:
    """Return the blocks of a schedule in `PIPELINES`; the sizes are those of `orders`."""
    found = orders(name, stages=stages, microbatches=microbatches, chunks=chunks, group=group)
    return connect(PIPELINES[name], found, num_chunks=PIPELINES[name].num_chunks or chunks)


def connect(pipeline: Pipeline, orders: Sequence[Order], *, num_chunks: int) -> Blocks:
    """Find out who waits for whom in any orders, one for each rank, where stages lie as the pipeline lays them out.

    Raises
    ------
    ConfigError
        If a rank has nothing to do, a slot has no step or more than two, or a step stands twice.
    SimulationError
        If the orders cannot be run to their end: a rank waits for itself, in a circle, or for what nobody does.
    """
    for rank, order in enumerate(orders):
        if not order or not all(1 <= len(slot) <= 2 for slot in order):
            raise ConfigError(f"rank {rank} of the pipeline has no slots, or one that is not of one or two steps")
    steps = _Steps.of(orders, num_chunks)
    positions, num_slots = len(orders) * num_chunks, sum(map(len, orders))
    before, after = _neighbours(pipeline, len(orders), num_chunks)
    nowhere = np.full(positions, positions)
    source = np.array([before, after, nowhere])[steps.flow, steps.position]
    target = np.array([after, before, nowhere])[steps.flow, steps.position]
    from_afar, to_afar = ((other < positions) & (other // num_chunks != steps.rank) for other in (source, target))
    own, passed = _needs(steps, source, positions, num_slots)
    _check(pipeline, steps, own, local=np.ones_like(from_afar))
    _check(pipeline, steps, passed, local=~from_afar)
    forward = steps.flow == FORWARD_FLOW
    offsets = np.cumsum([0, *map(len, orders)])
    makers = steps.by_slot(np.where(from_afar, passed, num_slots), num_slots)
    return Blocks(
        pipeline,
        num_ranks=len(orders),
        num_chunks=num_chunks,
        orders=orders,
        offsets=offsets,
        what=steps.by_slot(steps.action * positions + steps.position, len(Action) * positions),
        sends=steps.by_slot(np.where(to_afar, np.where(forward, steps.position, target), positions), positions),
        makers=makers,
        receives=steps.by_slot(np.where(from_afar, np.where(forward, source, steps.position), positions), positions),
        sequence=_sequence(pipeline, orders, offsets, makers),
    )


@dataclass(frozen=True, eq=False)
class _Steps:
    """All steps as columns of shape (S,), in the order of `connect`'s orders."""

    all: list[Step]
    rank: Index
    slot: Index
    second: Index  # 1 for the second step of its slot
    action: Index
    flow: Index
    position: Index  # rank and chunk as one number, rank v + chunk
    microbatch: Index

    @classmethod
    def of(cls, orders: Sequence[Order], num_chunks: int) -> "_Steps":
        slots = [slot for order in orders for slot in order]
        steps = [step for slot in slots for step in slot]
        slot = np.repeat(np.arange(len(slots)), [len(slot) for slot in slots])
        rank = np.repeat(np.arange(len(orders)), [len(order) for order in orders])[slot]
        action = np.array([step.action for step in steps], np.int64)
        chunk = np.array([step.chunk for step in steps], np.int64)
        return cls(
            steps,
            rank,
            slot,
            second=(np.diff(slot, prepend=-1) == 0).astype(np.int64),
            action=action,
            flow=_FLOWS[action],
            position=rank * num_chunks + chunk,
            microbatch=np.array([step.microbatch for step in steps], np.int64),
        )

    def by_slot(self, values: Index, fill: int) -> Index:
        """Lay out a column by slot and step, shape (N, 2)."""
        both = np.full((self.slot[-1] + 1, 2), fill)
        both[self.slot, self.second] = values
        return both


def _neighbours(pipeline: Pipeline, p: int, v: int) -> tuple[Index, Index]:
    """Return the positions before and after each position, shape (p v,); p v if there is none."""
    positions = [(rank, chunk) for rank in range(p) for chunk in range(v)]
    found = [[pipeline.layout.neighbour(*position, p, v, by) for position in positions] for by in (-1, 1)]
    before, after = ([p * v if other is None else other[0] * v + other[1] for other in row] for row in found)
    return np.array(before), np.array(after)


def _needs(steps: _Steps, source: Index, positions: int, num_slots: int) -> tuple[Index, Index]:
    """Return the slots whose results each step needs: of its own position, and passed on by a neighbour, shape (S,)."""
    shape = (NO_FLOW + 2, positions + 1, int(steps.microbatch.max()) + 1)
    made = np.full(shape, _NOTHING)
    made[:, positions] = made[-1] = num_slots
    keys = np.ravel_multi_index((steps.flow, steps.position, steps.microbatch), shape)
    twice = np.flatnonzero(np.bincount(keys)[keys] > 1)
    if len(twice):
        raise ConfigError(f"rank {steps.rank[twice[0]]} of the pipeline runs {describe(steps.all[twice[0]])} twice")
    made.ravel()[keys] = steps.slot
    # A gradient needs its own position's forward, a gradient of weights that of the input, a forward (row -1) none.
    return made[steps.flow - 1, steps.position, steps.microbatch], made[steps.flow, source, steps.microbatch]


def _check(pipeline: Pipeline, steps: _Steps, needs: Index, *, local: npt.NDArray[np.bool_]) -> None:
    late = local & (needs >= steps.slot) & (needs <= steps.slot[-1])
    for index in np.flatnonzero(late | (needs == _NOTHING))[:1]:
        why = "runs later, or beside it; change the order" if late[index] else "nobody runs; add it to an order"
        raise SimulationError(
            f"pipeline {pipeline.name}: rank {steps.rank[index]} waits for ever: {describe(steps.all[index])} "
            f"needs a step that {'the rank itself ' if late[index] else ''}{why}"
        )


def _sequence(pipeline: Pipeline, orders: Sequence[Order], offsets: Index, makers: Index) -> Index:
    """Return all slots so that each comes after the one before it on its rank and after its makers, shape (N,)."""
    first, second = makers.T.tolist()
    upcoming, ends = offsets[:-1].tolist(), offsets[1:].tolist()
    done = [False] * ends[-1] + [True]
    waiting: dict[int, list[int]] = {}  # slot to the ranks that wait for it
    sequence = []
    ready = list(reversed(range(len(orders))))
    while ready:
        rank = ready.pop()
        slot, end = upcoming[rank], ends[rank]
        while slot < end:
            missing = first[slot] if not done[first[slot]] else second[slot]
            if not done[missing]:
                waiting.setdefault(missing, []).append(rank)
                break
            done[slot] = True
            sequence.append(slot)
            if slot in waiting:
                ready += waiting.pop(slot)
            slot += 1
        upcoming[rank] = slot
    if waiting:
        rank_of = np.repeat(np.arange(len(orders)), np.diff(offsets))
        waits = sorted((rank, int(rank_of[slot])) for slot, ranks in waiting.items() for rank in ranks)
        named = [
            f"rank {rank} waits for rank {other} before {describe(orders[rank][upcoming[rank] - offsets[rank]][0])}"
            for rank, other in waits
        ]
        raise SimulationError(f"pipeline {pipeline.name} cannot finish: {'; '.join(named)}; change the orders")
    return np.array(sequence)


def describe(step: Step) -> str:
    """Name a step in a message."""
    return f"the {step.action.name.lower().replace('_', ' ')} of microbatch {step.microbatch} on chunk {step.chunk}"
