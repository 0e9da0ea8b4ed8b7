"""Heaps in arrays of the compiled core: of events, of whole numbers, and those that may be melded.

An event is a time and a whole number; equal times are ordered by the number. The caller keeps the sizes.
"""

from scaleout.network.flow.compiling import Table, inlined
from scaleout.program.graph import NONE, Floats


@inlined
def push(times: Floats, numbers: Table, size: int, time_s: float, number: int) -> None:
    """Add an event to a heap of a size."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if time_s < times[above] or (time_s == times[above] and number < numbers[above]):
            times[at], numbers[at] = times[above], numbers[above]
            at = above
        else:
            break
    times[at], numbers[at] = time_s, number


@inlined
def pop(times: Floats, numbers: Table, size: int) -> None:
    """Remove the first event of a heap of a size."""
    last = size - 1
    time_s, number = times[last], numbers[last]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= last:
            break
        if below + 1 < last and (
            times[below + 1] < times[below]
            or (times[below + 1] == times[below] and numbers[below + 1] < numbers[below])
        ):
            below += 1
        if times[below] < time_s or (times[below] == time_s and numbers[below] < number):
            times[at], numbers[at] = times[below], numbers[below]
            at = below
        else:
            break
    times[at], numbers[at] = time_s, number


@inlined
def push_number(heap: Table, begin: int, size: int, number: int) -> None:
    """Add a number to the heap of a size that begins at an entry."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if number < heap[begin + above]:
            heap[begin + at] = heap[begin + above]
            at = above
        else:
            break
    heap[begin + at] = number


@inlined
def pop_number(heap: Table, begin: int, size: int) -> int:
    """Remove the least number of the heap of a size that begins at an entry, and return it."""
    least = heap[begin]
    last = size - 1
    number = heap[begin + last]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= last:
            break
        if below + 1 < last and heap[begin + below + 1] < heap[begin + below]:
            below += 1
        if heap[begin + below] < number:
            heap[begin + at] = heap[begin + below]
            at = below
        else:
            break
    heap[begin + at] = number
    return int(least)


@inlined
def meld(entries: Table, left: Table, right: Table, one: int, other: int) -> int:
    """Make two skew heaps of entries one, and return its root; the least rank is at the root."""
    if one == NONE:
        return other
    if other == NONE:
        return one
    if entries[other]["rank"] < entries[one]["rank"]:
        one, other = other, one
    root = one
    while True:
        below = right[one]
        right[one] = left[one]
        if below == NONE:
            left[one] = other
            return root
        if entries[other]["rank"] < entries[below]["rank"]:
            below, other = other, below
        left[one] = below
        one = below


@inlined
def place(ends: Table, size: int, entries: Table, which: int, time_s: float) -> int:
    """Set when an entry ends, in a heap whose positions the entries know; return the size.

    Of those that end at a time the one of the lowest instance comes first.
    """
    at, instance = entries[which]["position"], entries[which]["instance"]
    if at == NONE:
        at = size
        size += 1
    while at > 0:
        above = (at - 1) >> 1
        other = ends[above]["which"]
        if time_s < ends[above]["key"] or (time_s == ends[above]["key"] and instance < entries[other]["instance"]):
            ends[at]["key"], ends[at]["which"] = ends[above]["key"], other
            entries[other]["position"] = at
            at = above
        else:
            break
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and (
            ends[below + 1]["key"] < ends[below]["key"]
            or (
                ends[below + 1]["key"] == ends[below]["key"]
                and entries[ends[below + 1]["which"]]["instance"] < entries[ends[below]["which"]]["instance"]
            )
        ):
            below += 1
        other = ends[below]["which"]
        if ends[below]["key"] < time_s or (ends[below]["key"] == time_s and entries[other]["instance"] < instance):
            ends[at]["key"], ends[at]["which"] = ends[below]["key"], other
            entries[other]["position"] = at
            at = below
        else:
            break
    ends[at]["key"], ends[at]["which"] = time_s, which
    entries[which]["position"] = at
    return size


@inlined
def remove(ends: Table, size: int, entries: Table, which: int) -> int:
    """Remove an entry from a heap whose positions the entries know, if it is there; return the size."""
    at = entries[which]["position"]
    if at == NONE:
        return size
    entries[which]["position"] = NONE
    size -= 1
    if at < size:
        last, time_s = ends[size]["which"], ends[size]["key"]
        entries[last]["position"] = at
        ends[at]["key"], ends[at]["which"] = time_s, last
        place(ends, size, entries, last, time_s)
    return size
