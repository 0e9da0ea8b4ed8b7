"""The event loop of messages that are not in step: one message at a time, compiled.

Does to the same numbers what `in_step` does with whole batches, to the last bit, but touches only what an event
changes. Links that a flow starts or ends on are filled anew, from the lowest level at which anything differs: a link
that is now full at another rate lowers the flows above it or frees those that it held, and then their links are looked
at, in the order of rates; `sharing` says why that gives what filling everything anew would. Compiled by numba when it
is first imported on a machine, which takes seconds, and cached; numba looks for changes in this one file.

Symbols: see `flight`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import numba
import numpy as np

from scaleout.network.flight import ARRIVED, DONE, ENDS, EVENTS, FINISHED, LEVELS, MOVED, MOVING, SENT, TOUCHED, Tables
from scaleout.network.links import Floats, Ints
from scaleout.network.sharing import ABOVE, SAME, rounded

_NEAR = 1 + 1e-9
"""A link with so much more left than a rate asks for is not full at it, however the rest is rounded."""

_SPARE = 1 - 1e-6
"""Part of a link that is surely left by flows that are said to use no more, whatever their sum is rounded to."""

_OPEN = -1.0
"""Rate of a flow that has yet to find its own."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _compiled(function: _Function) -> _Function:
    njit: Any = partial(numba.njit, error_model="numpy", _nrt=False)  # no references to count: nothing is allocated
    try:
        return cast(_Function, njit(cache=True)(function))
    except RuntimeError:  # neither the package nor the user has a place to write to: compile anew in each process
        return cast(_Function, njit()(function))


_rounded = _compiled(rounded)


@_compiled
def push_event(t: Tables, time_s: float, kind: int, which: int, step: int) -> None:
    """Add an event to the heap, which has room for it."""
    events = t.events
    at = t.counts[EVENTS]
    t.counts[EVENTS] += 1
    while at > 0 and events[(at - 1) >> 1].time_s > time_s:
        events[at] = events[(at - 1) >> 1]
        at = (at - 1) >> 1
    events[at].time_s, events[at].kind, events[at].which, events[at].step = time_s, kind, which, step


@_compiled
def _pop_event(t: Tables) -> tuple[int, int, int]:
    events = t.events
    top = (events[0].kind, events[0].which, events[0].step)
    t.counts[EVENTS] -= 1
    size = t.counts[EVENTS]
    at, time_s = 0, events[size].time_s
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and events[child + 1].time_s < events[child].time_s:
            child += 1
        if events[child].time_s >= time_s:
            break
        events[at] = events[child]
        at = child
    events[at] = events[size]
    return top


@_compiled
def _sift(heap: Ints, keys: Floats, places: Ints, which: int, at: int) -> None:
    """Let an entry whose key has changed rise or sink from its place in a heap."""
    key, size = keys[which], len(heap)
    while at > 0 and keys[heap[(at - 1) >> 1]] > key:
        heap[at] = heap[(at - 1) >> 1]
        places[heap[at]] = at
        at = (at - 1) >> 1
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and keys[heap[child + 1]] < keys[heap[child]]:
            child += 1
        if keys[heap[child]] >= key:
            break
        heap[at] = heap[child]
        places[heap[at]] = at
        at = child
    heap[at] = which
    places[which] = at


@_compiled
def _touch(t: Tables, link: int) -> None:
    """Note that the flows over a link, or their rates, are no longer the same."""
    if not t.links[link].touched:
        t.links[link].touched = 1
        t.touched[t.counts[TOUCHED]] = link
        t.counts[TOUCHED] += 1


@_compiled
def _insert(t: Tables, pair: int, rate: float) -> None:
    """Put a pair into the chain of its link, after those of the same rate or lower, or to those whose rate is open."""
    pairs, link = t.pairs, t.links[t.pairs[pair].link]
    if rate < 0:
        before, after = -1, link.first_open
        link.first_open, link.open = pair, link.open + pairs[pair].weight
    else:
        before, after = link.tail, -1
        while before >= 0 and pairs[before].rate > rate:
            before, after = pairs[before].previous, before
        link.head, link.tail = pair if before < 0 else link.head, pair if after < 0 else link.tail
        link.used += pairs[pair].weight * rate
    pairs[pair].rate, pairs[pair].next, pairs[pair].previous = rate, after, before
    if after >= 0:
        pairs[after].previous = pair
    if before >= 0:
        pairs[before].next = pair
    _touch(t, pairs[pair].link)


@_compiled
def _remove(t: Tables, pair: int) -> None:
    """Take a pair out of the chain of its link."""
    pairs, link = t.pairs, t.links[t.pairs[pair].link]
    after, before, rate = pairs[pair].next, pairs[pair].previous, pairs[pair].rate
    if after >= 0:
        pairs[after].previous = before
    if before >= 0:
        pairs[before].next = after
    if rate < 0:
        link.first_open = after if before < 0 else link.first_open
        link.open -= pairs[pair].weight
    else:
        link.head, link.tail = after if before < 0 else link.head, before if after < 0 else link.tail
        link.used -= pairs[pair].weight * rate
    _touch(t, pairs[pair].link)


@_compiled
def _start(t: Tables, flow: int, step: int, size_bytes: float, now_s: float) -> None:
    started = t.flows[flow]
    started.step, started.left_bytes, started.rate = step, size_bytes, 0.0
    started.since_s, started.end_s, started.fair, started.moved = now_s, np.inf, _OPEN, 1
    t.moved[t.counts[MOVED]] = flow
    t.counts[MOVED] += 1
    for pair in range(started.first, started.last):
        link = t.links[t.pairs[pair].link]
        link.carried += t.pairs[pair].weight * size_bytes
        link.load += t.pairs[pair].weight
        _insert(t, pair, _OPEN)
    t.counts[ENDS] += 1
    _sift(t.ends[: t.counts[ENDS]], t.flows["end_s"], t.flows["place"], flow, t.counts[ENDS] - 1)


@_compiled
def _stop(t: Tables) -> int:
    """Take the flow that ends first out of flight, and return it."""
    ends, counts = t.ends, t.counts
    flow = ends[0]
    counts[ENDS] -= 1
    t.flows[flow].place = -1
    if counts[ENDS]:
        _sift(ends[: counts[ENDS]], t.flows["end_s"], t.flows["place"], ends[counts[ENDS]], 0)
    for pair in range(t.flows[flow].first, t.flows[flow].last):
        t.links[t.pairs[pair].link].load -= t.pairs[pair].weight
        _remove(t, pair)
    return int(flow)


@_compiled
def _settle(t: Tables, member: int, step: int) -> None:
    """Count a message of a step as sent or received by a member; note it if that lets it move on."""
    lane = t.lanes[t.members[member].lane]
    at = lane.missing + step * lane.num_members + member - lane.member
    t.missing[at] -= 1
    if t.missing[at] == 0 and t.members[member].at == step:
        t.moving[t.counts[MOVING]] = member
        t.counts[MOVING] += 1


@_compiled
def _move(t: Tables, member: int, now_s: float) -> None:
    """Let a member that has all it waits for start its next steps."""
    number = t.members[member].lane
    lane = t.lanes[number]
    local, step = member - lane.member, t.members[member].at
    while step < 0 or t.missing[lane.missing + step * lane.num_members + local] == 0:
        step += 1
        t.members[member].at = step
        if step == lane.num_steps:
            lane.behind -= 1
            if lane.behind == 0:
                t.sent[t.counts[SENT]] = number
                t.counts[SENT] += 1
                push_event(t, now_s + lane.after_s, DONE, number, 0)
            return
        its = t.steps[lane.step + step]
        for index in range(t.outs[its.out + local], t.outs[its.out + local + 1]):
            _start(t, t.out_flows[index], step, its.size_bytes, now_s)


@_compiled
def _note(t: Tables, number: int, estimate: float, passed: float) -> None:
    """Note at what rate a link will be full, and when to look at it again.

    That is where it comes to be full, if there is anything to change, and where it was until now, unless that rate is
    passed, as flows that it held there may grow on.
    """
    link = t.links[number]
    link.estimate = estimate
    key = abs(estimate) if link.open or estimate != link.level else np.inf
    if estimate != link.level and link.level > passed:
        key = min(key, link.level)
    if key < np.inf or link.place >= 0:
        link.key = key
        at = link.place
        if at < 0:
            at = t.counts[LEVELS]
            t.counts[LEVELS] += 1
        _sift(t.levels[: t.counts[LEVELS]], t.links["key"], t.links["place"], number, at)


@_compiled
def _weigh(t: Tables, number: int, passed: float) -> None:
    """Work out the rate at which a link is full, if only open flows grow on; those below `passed` are settled."""
    pairs, link = t.pairs, t.links[number]
    left, load, last, estimate, pair = link.bytes_per_s, link.load, 0.0, np.inf, link.head
    while load > 0:
        rate = pairs[pair].rate if pair >= 0 else np.inf
        if not left > rate * load * _NEAR:
            share = max(_rounded(left / load), _rounded(last * ABOVE))
            if share <= rate:
                estimate = share
                break
        gone = 0.0
        while pair >= 0 and pairs[pair].rate == rate:
            gone += pairs[pair].weight
            pair = pairs[pair].next
        load, left, last = load - gone, max(left - rate * gone, 0.0), rate
    _note(t, number, estimate, passed)


@_compiled
def _guess(t: Tables, passed: float) -> None:
    """Bound the rates at which touched links are full from below, noted as negative, where that says enough for now."""
    for index in range(t.counts[TOUCHED]):
        number = t.touched[index]
        link = t.links[number]
        link.touched = 0
        left = link.bytes_per_s * _SPARE - link.used
        if left > passed * link.open:
            bound = -left / link.open * _SPARE if link.open else np.inf
            _note(t, number, bound, passed)
        else:
            _weigh(t, number, passed)
    t.counts[TOUCHED] = 0


@_compiled
def _set(t: Tables, number: int, rate: float) -> None:
    """Give a flow its rate, or none for now."""
    flow = t.flows[number]
    if not flow.moved:
        flow.moved = 1
        t.moved[t.counts[MOVED]] = number
        t.counts[MOVED] += 1
    flow.fair = rate
    for pair in range(flow.first, flow.last):
        _remove(t, pair)
        _insert(t, pair, rate)


@_compiled
def _fill(t: Tables, link: int, level: float) -> None:
    """Hold at a level the flows over a link that is full there."""
    t.links[link].level = level
    while t.links[link].first_open >= 0:
        _set(t, t.pairs[t.links[link].first_open].flow, level)
    while t.links[link].tail >= 0 and t.pairs[t.links[link].tail].rate > level:
        _set(t, t.pairs[t.links[link].tail].flow, level)


@_compiled
def _free(t: Tables, link: int, level: float) -> None:
    """Let the flows grow on that a link held at a level until now, unless another one holds them there."""
    t.links[link].level = np.inf
    _touch(t, link)
    pair = t.links[link].tail
    while pair >= 0 and t.pairs[pair].rate >= level:
        number, rate, held = t.pairs[pair].flow, t.pairs[pair].rate, False
        while pair >= 0 and t.pairs[pair].flow == number:  # it may cross the link more than once
            pair = t.pairs[pair].previous
        for other in range(t.flows[number].first, t.flows[number].last):
            crossed = t.links[t.pairs[other].link]
            held |= crossed.level == level and crossed.estimate == level
        if rate == level and not held:
            _set(t, number, _OPEN)


@_compiled
def _share(t: Tables, now_s: float) -> None:
    """Fill links anew from the lowest level that has changed upwards, and let flows go on at their new rates."""
    links, levels, counts = t.links, t.levels, t.counts
    passed = 0.0
    _guess(t, passed)
    while counts[LEVELS] and links[levels[0]].key < np.inf:
        level, num_full = links[levels[0]].key, 0
        while counts[LEVELS] and links[levels[0]].key == level:
            top = levels[0]
            if links[top].estimate < 0:
                _weigh(t, top, passed)
                continue
            t.full[num_full] = top
            num_full += 1
            counts[LEVELS] -= 1
            links[top].place = -1
            if counts[LEVELS]:
                _sift(levels[: counts[LEVELS]], links["key"], links["place"], levels[counts[LEVELS]], 0)
        for index in range(num_full):
            if links[t.full[index]].estimate == level:
                _fill(t, t.full[index], level)
        for index in range(num_full):
            if links[t.full[index]].estimate != level:
                _free(t, t.full[index], level)
        if num_full:
            passed = level
            _guess(t, passed)
    for index in range(counts[LEVELS]):
        links[levels[index]].place = -1
    counts[LEVELS] = 0
    for index in range(counts[MOVED]):
        flow = t.flows[t.moved[index]]
        flow.moved = 0
        if flow.fair != flow.rate:
            flow.left_bytes = max(flow.left_bytes - flow.rate * (now_s - flow.since_s), 0.0)
            flow.since_s, flow.rate = now_s, flow.fair
            flow.end_s = now_s + flow.left_bytes / flow.rate
            _sift(t.ends[: counts[ENDS]], t.flows["end_s"], t.flows["place"], t.moved[index], flow.place)
    counts[MOVED] = 0


@_compiled
def run(t: Tables, until_s: float) -> float:
    """Run until something has been sent or is done, or all is handled up to a time; return the time.

    Not a number if the heap of events needs more room first.
    """
    counts = t.counts
    counts[SENT] = counts[FINISHED] = 0
    while True:
        now_s = min(
            t.events[0].time_s if counts[EVENTS] else np.inf, t.flows[t.ends[0]].end_s if counts[ENDS] else np.inf
        )
        if now_s > until_s or now_s == np.inf:
            return until_s
        if counts[EVENTS] + counts[ENDS] + len(t.lanes) > len(t.events):
            return np.nan
        together_s = now_s * (1 + SAME)
        while counts[ENDS] and t.flows[t.ends[0]].end_s <= together_s:
            flow = _stop(t)
            ended = t.flows[flow]
            latency_s = ended.latency_s * t.lanes[t.members[ended.source].lane].latencies
            push_event(t, now_s + latency_s, ARRIVED, flow, ended.step)
            _settle(t, ended.source, ended.step)
        while counts[MOVING] or (counts[EVENTS] and t.events[0].time_s <= together_s):
            while counts[EVENTS] and t.events[0].time_s <= together_s:
                kind, which, step = _pop_event(t)
                if kind == ARRIVED:
                    _settle(t, t.flows[which].destination, step)
                elif kind == DONE:
                    t.done[counts[FINISHED]] = which
                    counts[FINISHED] += 1
                else:
                    lane = t.lanes[which]
                    for member in range(lane.member, lane.member + lane.num_members):
                        t.moving[counts[MOVING]] = member
                        counts[MOVING] += 1
            while counts[MOVING]:
                counts[MOVING] -= 1
                _move(t, t.moving[counts[MOVING]], now_s)
        _share(t, now_s)
        if counts[SENT] or counts[FINISHED]:
            return now_s
