"""When the ends of messages are posted: orders of slots to orders of slots, sends and receives.

A stage's output goes to another rank as a message, each end of which is one of the things that its rank does. *At
need*, a receive comes just before the slot that needs it, and messages wait for nothing but their makers. *As made*, as
runtimes do that lower a schedule to one list a rank, both ends are posted as soon as the maker is in a list: ranks take
turns, first to last, each to put its next slot into its list if its inputs have been posted. A rank's messages are then
carried out in that order, one at a time, so that one which waits holds up those behind it, as in a stream of NCCL's.
*In turn*, both ends stand between the slots, which wait for them as they wait for the slots: a rank sends what it has
made once its turn to exchange has come. Two neighbours that have gone a forward and a backward exchange the activations
first.

Source: torch.distributed.pipelining, PyTorch 2.11, whose interleaved schedules behave so on 4 H200 (as made);
DeepSpeed v0.5.3, runtime/pipe/schedule.py, TrainSchedule (in turn).

Symbols: p pipeline ranks; v model chunks of a rank.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scaleout.workloads.pipeline import PIPELINES
from scaleout.workloads.pipeline.pipeline import Action, Order, Pipeline, Slot, Step


@dataclass(frozen=True, slots=True)
class Message:
    """One end of a message."""

    sends: bool
    forward: bool  # whether it carries activations, or their gradients
    chunk: int  # of the step at this end
    microbatch: int
    peer: int  # the rank at the other end
    maker: int  # the stage that makes the message


Items = tuple[Slot | Message, ...]
"""All that a rank does, in order."""


def at_need(pipeline: Pipeline, orders: Sequence[Order], *, num_chunks: int) -> tuple[Items, ...]:
    """Put each receive before the slot that needs it, and each send after the slot that makes it."""
    found = []
    for rank, order in enumerate(orders):
        items: list[Slot | Message] = []
        for slot in order:
            ends = [_ends(pipeline, rank, step, p=len(orders), v=num_chunks) for step in slot]
            items += [receive for receive, _ in ends if receive is not None]
            items.append(slot)
            items += [send for _, send in ends if send is not None]
        found.append(tuple(items))
    return tuple(found)


def as_made(pipeline: Pipeline, orders: Sequence[Order], *, num_chunks: int) -> tuple[Items, ...]:
    """Post both ends of a message as soon as its maker stands in a list."""
    p, v = len(orders), num_chunks
    lists: list[list[Slot | Message]] = [[] for _ in orders]
    left = [list(order)[::-1] for order in orders]
    posted: set[tuple[int, bool, int, int]] = set()
    while any(left):
        before = len(posted), sum(map(len, left))
        for rank, slots in enumerate(left):
            ends = [_ends(pipeline, rank, step, p=p, v=v) for step in slots[-1]] if slots else []
            needs = [(rank, end.forward, end.chunk, end.microbatch) for end, _ in ends if end is not None]
            if not slots or not posted.issuperset(needs):
                continue
            lists[rank].append(slots.pop())
            for _, send in ends:
                if send is not None:
                    target = pipeline.layout.neighbour(rank, send.chunk, p, v, 1 if send.forward else -1)
                    assert target is not None
                    lists[rank].append(send)
                    lists[send.peer].append(replace(send, sends=False, chunk=target[1], peer=rank))
                    posted.add((send.peer, send.forward, target[1], send.microbatch))
        assert before != (len(posted), sum(map(len, left))), "orders of `PIPELINES` come to an end"
    return tuple(map(tuple, lists))


def in_turn(pipeline: Pipeline, orders: Sequence[Order], *, num_chunks: int) -> tuple[Items, ...]:
    """Put sends and receives between the slots: sends first, but behind a backward the activations that come."""
    found = []
    for rank, order in enumerate(orders):
        items: list[Slot | Message] = []
        sends: list[Message] = []
        for slot in order:
            ends = [_ends(pipeline, rank, step, p=len(orders), v=num_chunks) for step in slot]
            receives = [receive for receive, _ in ends if receive is not None]
            turns = sends and receives and not sends[0].forward and receives[0].forward
            items += [*receives, *sends, slot] if turns else [*sends, *receives, slot]
            sends = [send for _, send in ends if send is not None]
        found.append((*items, *sends))
    return tuple(found)


POSTINGS = {"at_need": at_need, "as_made": as_made, "in_turn": in_turn}
"""Ways to post messages by name."""


def _ends(pipeline: Pipeline, rank: int, step: Step, *, p: int, v: int) -> tuple[Message | None, Message | None]:
    """What a step receives and sends."""
    if step.action == Action.WEIGHT_GRADIENT:
        return None, None
    forward, stage = step.action == Action.FORWARD, pipeline.layout.stage_of(rank, step.chunk, p, v)
    by = 1 if forward else -1
    source, target = (pipeline.layout.neighbour(rank, step.chunk, p, v, way) for way in (-by, by))
    here = (forward, step.chunk, step.microbatch)
    return (
        None if source is None or source[0] == rank else Message(False, *here, source[0], stage - by),
        None if target is None or target[0] == rank else Message(True, *here, target[0], stage),
    )


def sends_s(messages_s: Sequence[float], pipeline_schedule: str, p: int, v: int) -> list[list[float]]:
    """Return the seconds of a message between each chunk of each rank and its successor, shape (p, v).

    `messages_s`, of length p, are those from each rank to the next.
    """
    return [
        [0.0 if to is None else messages_s[rank if (to - rank) % p == 1 else to] for to in row]
        for rank, row in enumerate(_targets(pipeline_schedule, p, v))
    ]


@functools.lru_cache(maxsize=512)
def _targets(name: str, p: int, v: int) -> tuple[tuple[int | None, ...], ...]:
    """Return the rank that each chunk of each rank sends to; None for the last stage, or its own rank."""
    rows = []
    for rank in range(p):
        found = [PIPELINES[name].layout.neighbour(rank, chunk, p, v, 1) for chunk in range(v)]
        rows.append(tuple(None if to is None or to[0] == rank else to[0] for to in found))
    return tuple(rows)
