"""Starts of the members of a phase to when each is done, without contention, over arrays.

Maps ``starts`` (n,) to ends (n,), both whole ns. A member that begins later than its neighbours holds them up exactly
as far as the algorithm makes them wait. Knows no queues, graphs or links.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scaleout.interop.astra.algorithms import Steps
from scaleout.interop.astra.algorithms.double_binary_tree import NOBODY, Tree
from scaleout.interop.astra.algorithms.exchange import Exchange
from scaleout.interop.astra.clock import Clock
from scaleout.interop.astra.members import Deliver, ExchangeMember, Surroundings
from scaleout.interop.astra.network import RENDEZVOUS_BYTES
from scaleout.interop.astra.phase_time import MemberLayout, arrival_ns

Times = npt.NDArray[np.int64]


def ends(steps: Steps, layout: MemberLayout, starts: Sequence[int]) -> list[int]:
    """Return when each member is done.

    Parameters
    ----------
    starts : length n
    """
    if isinstance(steps, Tree):
        return _tree(steps, layout, starts)
    begun = np.array(starts, dtype=np.int64)
    if steps.window == 1:
        return [int(end) for end in _stepwise(steps, layout, begun)]
    if steps.window == steps.num_ranks - 1:
        return [int(end) for end in _direct(steps, layout, begun)]
    return _windowed(steps, layout, starts)


def _sends(steps: Exchange, layout: MemberLayout, offset: int, size_bytes: int) -> int | Times:
    """Time to the member at an offset: one number, or (n,) by sender."""
    if layout.is_regular:
        return layout.send_ns(0, steps.target(0, offset), size_bytes)
    times = [layout.send_ns(i, steps.target(i, offset), size_bytes) for i in range(steps.num_ranks)]
    return np.array(times, dtype=np.int64)


def _requests(steps: Exchange, layout: MemberLayout, offset: int) -> int | Times:
    """Time of a request to the member that sends at an offset: one number, or (n,) by who is asked."""
    if layout.is_regular:
        return layout.send_ns(0, steps.source(0, offset), RENDEZVOUS_BYTES)
    times = [layout.send_ns(steps.target(i, offset), i, RENDEZVOUS_BYTES) for i in range(steps.num_ranks)]
    return np.array(times, dtype=np.int64)


def _from_source(steps: Exchange, offset: int, values: Times) -> Times:
    """Values of the members that send at an offset, by receiver."""
    if steps.xor:
        return np.take(values, np.arange(steps.num_ranks) ^ offset)
    return np.roll(values, offset)


def _from_target(steps: Exchange, offset: int, values: Times) -> Times:
    if steps.xor:
        return np.take(values, np.arange(steps.num_ranks) ^ offset)
    return np.roll(values, -offset)


def _arrivals(steps: Exchange, layout: MemberLayout, step: int, ready: Times) -> Times:
    """When the messages of a step are received, by receiver, given when each member sends and waits; (n,)."""
    offset = steps.offset(step)
    leaves = ready
    if layout.rendezvous:
        leaves = np.maximum(ready, _from_target(steps, offset, ready) + _requests(steps, layout, offset))
    sent = leaves + _sends(steps, layout, offset, steps.size_bytes(step))
    received: Times = np.maximum(ready, _from_source(steps, offset, sent))
    return received


def _stepwise(steps: Exchange, layout: MemberLayout, starts: Times) -> Times:
    """Each step waits for the one before: ``ready' = max(ready, ready of the source + send) + ed + red``."""
    ready = starts + layout.endpoint_ns
    for step in range(steps.num_sends):
        if (
            step >= max(steps.num_ranks, len(steps.reduced))
            and len(steps.offsets) == len(steps.sizes) == 1
            and layout.is_regular
            and not layout.rendezvous
        ):
            # By now everybody waits for the latest: from here on all values only move on by a step.
            left = steps.num_sends - step
            moved = np.roll(ready, steps.offset(0) * left)
            return moved + left * (arrival_ns(steps, layout, step) + layout.endpoint_ns)
        work_ns = layout.reduction_ns(steps.reduced[step]) if step < len(steps.reduced) else 0
        ready = _arrivals(steps, layout, step, ready) + layout.endpoint_ns + work_ns
    return ready


def _direct(steps: Exchange, layout: MemberLayout, starts: Times) -> Times:
    """All messages leave at once; of an all-reduce, those of the second wave by the rule of the gate."""
    others = steps.num_ranks - 1
    ready = starts + layout.endpoint_ns
    arrived = np.stack([_arrivals(steps, layout, step, ready) for step in range(others)])  # (n - 1, n)
    work_ns = layout.reduction_ns(steps.reduced[0]) if steps.reduced else 0
    permits = np.sort(arrived, axis=0) + layout.endpoint_ns + work_ns
    if not steps.gate:
        only: Times = permits[-1]
        return only
    # Permits that are ready before the last message has come are spent with the first that is ready after.
    last = arrived.max(axis=0)
    opened = np.where(permits >= last, permits, permits[-1]).min(axis=0)
    leaves = np.maximum(permits, opened)
    arrived = np.stack([_arrivals(steps, layout, step, leaves[step]) for step in range(others)])
    ended: Times = arrived.max(axis=0) + layout.endpoint_ns + layout.reduction_ns(steps.reduced[-1])
    return ended


def _tree(steps: Tree, layout: MemberLayout, starts: Sequence[int]) -> list[int]:
    """Up from the leaves, then down from the root."""
    climbs: list[int] = [0] * steps.num_ranks
    done: list[int] = [0] * steps.num_ranks
    reduce_ns = layout.endpoint_ns + layout.reduction_ns(steps.size_bytes)
    order = [steps.root]
    for member in order:  # grows while it is walked
        order.extend(steps.children[member])

    def arrival(source: int, target: int, leaves_ns: int, posted_ns: int) -> int:
        if layout.rendezvous:
            leaves_ns = max(leaves_ns, posted_ns + layout.send_ns(target, source, RENDEZVOUS_BYTES))
        return max(posted_ns, leaves_ns + layout.send_ns(source, target, steps.size_bytes))

    for member in reversed(order):
        start_ns = starts[member]
        below = [arrival(child, member, climbs[child], start_ns) for child in steps.children[member]]
        climbs[member] = max(below) + reduce_ns if below else start_ns + layout.endpoint_ns
    for member in order:
        parent = steps.parents[member]
        if parent == NOBODY:
            done[member] = climbs[member]
            continue
        arrived = arrival(parent, member, done[parent], climbs[member])
        done[member] = arrived + (reduce_ns if steps.children[member] else layout.endpoint_ns)
    return done


def _windowed(steps: Exchange, layout: MemberLayout, starts: Sequence[int]) -> list[int]:
    """Let all members react message by message."""
    clock = Clock()
    ended = [0] * len(starts)

    def carry(source: int, target: int, size_bytes: int, deliver: Deliver) -> None:
        clock.at(clock.now_ns + layout.send_ns(source, target, size_bytes), deliver)

    around = Surroundings(clock, layout.endpoint_ns, layout.reduction_ns, carry, layout.rendezvous)
    members: list[ExchangeMember] = []
    for position, start_ns in enumerate(starts):

        def done(position: int = position) -> None:
            ended[position] = clock.now_ns

        members.append(ExchangeMember(steps, around, position, members, done))
        clock.at(start_ns, members[-1].begin)
    clock.run()
    return ended
