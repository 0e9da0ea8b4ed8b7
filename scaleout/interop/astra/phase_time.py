"""Time of a phase that all its members begin together, without contention, in closed form.

Where all distances are alike all members do alike, and one number stands for all. Knows no queues, graphs or links.

Symbols: n members; ed endpoint delay; send(m) time of a message; red(m) time of a reduction.

Where the members of a phase are, as far as its timing goes: the time between any two, and what a rank costs.

Knows no algorithms.
"""

from collections.abc import Callable
from dataclasses import dataclass

from scaleout.interop.astra.algorithms import Steps
from scaleout.interop.astra.algorithms.double_binary_tree import Tree
from scaleout.interop.astra.algorithms.exchange import Exchange
from scaleout.interop.astra.clock import Clock
from scaleout.interop.astra.members import Deliver, ExchangeMember, Surroundings
from scaleout.interop.astra.network import RENDEZVOUS_BYTES


@dataclass(frozen=True, eq=False)
class MemberLayout:
    """Where the members of a phase are.

    Attributes
    ----------
    send_ns : callable
        Position, position and bytes to time.
    is_regular : bool
        Whether the time depends on the members' distance alone, be it forward or in the bits that differ.
    reduction_ns : callable
        Bytes to time.
    """

    send_ns: Callable[[int, int, int], int]
    is_regular: bool
    endpoint_ns: int
    reduction_ns: Callable[[int], int]
    rendezvous: bool


def elapsed(steps: Steps, layout: MemberLayout) -> int | None:
    """Time from a common start to the common end; None where members do not end together.

    A list of messages one after the other takes ``ed + sum (send + ed + red)``.
    """
    if isinstance(steps, Tree) or not layout.is_regular:
        return None
    if steps.window == 1:
        work_ns = layout.endpoint_ns + sum(map(layout.reduction_ns, steps.reduced))
        if len(steps.offsets) == len(steps.sizes) == 1:
            return work_ns + steps.num_sends * (arrival_ns(steps, layout, 0) + layout.endpoint_ns)
        return work_ns + sum(arrival_ns(steps, layout, step) + layout.endpoint_ns for step in range(steps.num_sends))
    if steps.window == steps.num_ranks - 1:
        return _direct(steps, layout)
    return _windowed(steps, layout)


def arrival_ns(steps: Exchange, layout: MemberLayout, step: int) -> int:
    """Time from when all members send and wait until their messages have come."""
    offset = steps.offset(step)
    request_ns = layout.send_ns(0, steps.source(0, offset), RENDEZVOUS_BYTES) if layout.rendezvous else 0
    return request_ns + layout.send_ns(0, steps.target(0, offset), steps.size_bytes(step))


def _direct(steps: Exchange, layout: MemberLayout) -> int:
    """All messages leave at once: ``ed + max send + ed + red``, and of an all-reduce a second wave."""
    others = steps.num_ranks - 1
    sends = [arrival_ns(steps, layout, step) for step in range(others)]
    arrived = sorted(layout.endpoint_ns + send_ns for send_ns in sends)
    work_ns = layout.endpoint_ns + (layout.reduction_ns(steps.reduced[0]) if steps.reduced else 0)
    permits = [each + work_ns for each in arrived]
    if not steps.gate:
        return permits[-1]
    # Permits that are ready before the last message has come are spent with the first that is ready after.
    opened = next(permit for permit in permits if permit >= arrived[-1])
    after_ns = layout.endpoint_ns + layout.reduction_ns(steps.reduced[-1])
    return after_ns + max(max(permit, opened) + send_ns for permit, send_ns in zip(permits, sends, strict=True))


def _windowed(steps: Exchange, layout: MemberLayout) -> int:
    """Let one member stand for all and react message by message."""
    clock = Clock()
    ended: list[int] = []

    def carry(source: int, target: int, size_bytes: int, deliver: Deliver) -> None:
        clock.at(clock.now_ns + layout.send_ns(source, target, size_bytes), deliver)

    around = Surroundings(clock, layout.endpoint_ns, layout.reduction_ns, carry, layout.rendezvous)
    ExchangeMember(steps, around, 0, None, lambda: ended.append(clock.now_ns)).begin()
    clock.run()
    return ended[0]
