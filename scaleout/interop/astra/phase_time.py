"""Time of a phase that all its members start at once, without contention, in closed form.

Where all distances are equal all members do the same, and one number holds for all. Knows no queues, graphs or links.

Symbols: n members; ed endpoint delay; send(m) time of a message; red(m) time of a reduction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scaleout.interop.astra.algorithms import Exchange, Pattern, Tree
from scaleout.interop.astra.clock import Clock
from scaleout.interop.astra.members import Deliver, ExchangeMember, Shared
from scaleout.interop.astra.network import RENDEZVOUS_BYTES


@dataclass(frozen=True, eq=False)
class MemberLayout:
    """Where the members of a phase are: the time between any two, and the delays of a rank.

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


def elapsed(pattern: Pattern, layout: MemberLayout) -> int | None:
    """Time from a common start to the common end; None where members do not end together.

    A list of messages one after the other takes ``ed + sum (send + ed + red)``.
    """
    if isinstance(pattern, Tree) or not layout.is_regular:
        return None
    if pattern.window == 1:
        work_ns = layout.endpoint_ns + sum(map(layout.reduction_ns, pattern.reduced))
        if len(pattern.offsets) == len(pattern.sizes) == 1:
            return work_ns + pattern.num_sends * (arrival_ns(pattern, layout, 0) + layout.endpoint_ns)
        return work_ns + sum(
            arrival_ns(pattern, layout, index) + layout.endpoint_ns for index in range(pattern.num_sends)
        )
    if pattern.window == pattern.num_ranks - 1:
        return _direct(pattern, layout)
    return simulated(pattern, layout, [0], folded=True)[0]


def arrival_ns(pattern: Exchange, layout: MemberLayout, index: int) -> int:
    """Time from when all members send and receive until their messages have arrived."""
    offset = pattern.offset(index)
    request_ns = layout.send_ns(0, pattern.source(0, offset), RENDEZVOUS_BYTES) if layout.rendezvous else 0
    return request_ns + layout.send_ns(0, pattern.target(0, offset), pattern.size_bytes(index))


def _direct(pattern: Exchange, layout: MemberLayout) -> int:
    """All messages leave at once: ``ed + max send + ed + red``, and of an all-reduce a second wave."""
    others = pattern.num_ranks - 1
    sends = [arrival_ns(pattern, layout, index) for index in range(others)]
    arrived = sorted(layout.endpoint_ns + send_ns for send_ns in sends)
    work_ns = layout.endpoint_ns + (layout.reduction_ns(pattern.reduced[0]) if pattern.reduced else 0)
    permits = [each + work_ns for each in arrived]
    if not pattern.gate:
        return permits[-1]
    # Permits that are ready before the last message has arrived are used with the first that is ready after.
    opened = next(permit for permit in permits if permit >= arrived[-1])
    after_ns = layout.endpoint_ns + layout.reduction_ns(pattern.reduced[-1])
    return after_ns + max(max(permit, opened) + send_ns for permit, send_ns in zip(permits, sends, strict=True))


def simulated(pattern: Exchange, layout: MemberLayout, starts: Sequence[int], *, folded: bool = False) -> list[int]:
    """Simulate members message by message and return when each ends; folded, one member represents all."""
    clock = Clock()
    ended = [0] * len(starts)

    def carry(source: int, target: int, size_bytes: int, deliver: Deliver) -> None:
        clock.at(clock.now_ns + layout.send_ns(source, target, size_bytes), deliver)

    shared = Shared(clock, layout.endpoint_ns, layout.reduction_ns, carry, layout.rendezvous)
    members: list[ExchangeMember] = []
    for position, start_ns in enumerate(starts):

        def done(position: int = position) -> None:
            ended[position] = clock.now_ns

        members.append(ExchangeMember(pattern, shared, position, None if folded else members, done))
        clock.at(start_ns, members[-1].start)
    clock.run()
    return ended
