"""Starts of the members of a phase to when each is done, without contention, over arrays.

Maps ``starts`` (n,) to ends (n,), both whole ns. A member that starts later than its neighbours delays them exactly as
far as the algorithm makes them wait. Knows no queues, graphs or links.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from scaleout.interop.astra.algorithms import Exchange, Pattern, Tree
from scaleout.interop.astra.members import MemberLayout, arrival_ns, simulated
from scaleout.interop.astra.network import RENDEZVOUS_BYTES

Times = npt.NDArray[np.int64]
_Sends = Callable[[int, int], int | Times]
"""Offset and bytes to the time of a message, the same in every round."""


def ends(pattern: Pattern, layout: MemberLayout, starts: Sequence[int]) -> list[int]:
    """Return when each member is done, length n as `starts`."""
    if isinstance(pattern, Tree) or pattern.window not in (1, pattern.num_ranks - 1):
        return simulated(pattern, layout, starts)
    by_arrays = _round_by_round if pattern.window == 1 else _direct
    found: list[int] = by_arrays(pattern, layout, np.array(starts, dtype=np.int64)).tolist()
    return found


def _sends(pattern: Exchange, layout: MemberLayout, offset: int, size_bytes: int) -> int | Times:
    """Time to the relative peer at an offset: one number, or (n,) by sender."""
    if layout.is_regular:
        return layout.send_ns(0, pattern.target(0, offset), size_bytes)
    times = [layout.send_ns(i, pattern.target(i, offset), size_bytes) for i in range(pattern.num_ranks)]
    return np.array(times, dtype=np.int64)


def _requests(pattern: Exchange, layout: MemberLayout, offset: int) -> int | Times:
    """Time of a request to the member that sends at an offset: one number, or (n,) by who receives it."""
    if layout.is_regular:
        return layout.send_ns(0, pattern.source(0, offset), RENDEZVOUS_BYTES)
    times = [layout.send_ns(pattern.target(i, offset), i, RENDEZVOUS_BYTES) for i in range(pattern.num_ranks)]
    return np.array(times, dtype=np.int64)


def _moved(pattern: Exchange, offset: int, values: Times) -> Times:
    """Values of members to the relative peers at an offset."""
    return values[np.arange(pattern.num_ranks) ^ offset] if pattern.xor else np.roll(values, offset)


def _arrivals(pattern: Exchange, layout: MemberLayout, sends: _Sends, index: int, ready: Times) -> Times:
    """When the messages of a round are received, (n,) by receiver, given when each member is ready."""
    offset = pattern.offset(index)
    leaves = ready
    if layout.rendezvous:
        leaves = np.maximum(
            ready, _moved(pattern, offset if pattern.xor else -offset, ready) + _requests(pattern, layout, offset)
        )
    sent = leaves + sends(offset, pattern.size_bytes(index))
    received: Times = np.maximum(ready, _moved(pattern, offset, sent))
    return received


def _round_by_round(pattern: Exchange, layout: MemberLayout, starts: Times) -> Times:
    """Each round waits for the one before: ``ready' = max(ready, ready of the source + send) + ed + red``."""
    ready = starts + layout.endpoint_ns
    sends = cache(partial(_sends, pattern, layout))
    for index in range(pattern.num_sends):
        if (
            index >= max(pattern.num_ranks, len(pattern.reduced))
            and len(pattern.offsets) == len(pattern.sizes) == 1
            and layout.is_regular
            and not layout.rendezvous
        ):
            # By now all wait for the latest: from here on each round only moves all values to the next member.
            left = pattern.num_sends - index
            moved = np.roll(ready, pattern.offset(0) * left)
            return moved + left * (arrival_ns(pattern, layout, index) + layout.endpoint_ns)
        work_ns = layout.reduction_ns(pattern.reduced[index]) if index < len(pattern.reduced) else 0
        ready = _arrivals(pattern, layout, sends, index, ready) + layout.endpoint_ns + work_ns
    return ready


def _direct(pattern: Exchange, layout: MemberLayout, starts: Times) -> Times:
    """All messages leave at once; of an all-reduce, those of the second wave by the rule of the gate."""
    others = pattern.num_ranks - 1
    ready = starts + layout.endpoint_ns
    sends = cache(partial(_sends, pattern, layout))
    arrived = np.stack([_arrivals(pattern, layout, sends, index, ready) for index in range(others)])  # (n - 1, n)
    work_ns = layout.reduction_ns(pattern.reduced[0]) if pattern.reduced else 0
    permits = np.sort(arrived, axis=0) + layout.endpoint_ns + work_ns
    if not pattern.gate:
        only: Times = permits[-1]
        return only
    # Permits that are ready before the last message has arrived are used with the first that is ready after.
    last = arrived.max(axis=0)
    opened = np.where(permits >= last, permits, permits[-1]).min(axis=0)
    leaves = np.maximum(permits, opened)
    arrived = np.stack([_arrivals(pattern, layout, sends, index, leaves[index]) for index in range(others)])
    ended: Times = arrived.max(axis=0) + layout.endpoint_ns + layout.reduction_ns(pattern.reduced[-1])
    return ended
