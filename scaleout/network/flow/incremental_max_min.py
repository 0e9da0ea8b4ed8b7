"""Incremental max-min: only rates that an event changes are computed anew; and the tables of `event_driven`.

Gives the bits of filling all links anew; `max_min` says why any order will do. Links that something has changed on are
visited in the order of their levels. A link that becomes full holds the flows above its level there; one that is full
no longer raises the flows that it held, and is visited again if that overfills it. So what is below the level that has
been reached is final. Of most links of flows that start it is enough to know a bound below which they are not full.
Tables are structured arrays, whose columns the dtypes below name; heaps are arrays whose first entries are in use.

Symbols: F flows that may be in flight, K pairs of a flow and a link, L links, M members, G chains of collectives.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.network.flow.compiling import Table, inlined
from scaleout.network.flow.max_min import ABOVE, rounded
from scaleout.network.routes.links import Floats, Ints

SPARE = 1 - 1e-6
"""Part of a link that is surely left by flows that are said to use no more, whatever their sum is rounded to."""

OPEN, GONE = np.inf, 0.0
"""Fair rates of a flow that has yet to find its own, and of one that is not in flight."""

LINK = np.dtype(
    [(name, "f8") for name in ("used", "limit", "open", "held", "level", "estimate")]
    + [(name, "i4") for name in ("touched", "weighed", "num_over", "position")]
)
"""`open` is the load of flows whose rate is open, `used` about what the others take; a link that uses no more than its
`limit` is not full. `level` is the rate at which it is full, infinite if never, and `estimate` what it will be once
`event_driven` has come there, for a load of `held`, or the negative of a bound to it. `weighed` is 0 if rates over it
have changed since, 2 if some are above it, and else 1; `position` is that in the heap of levels."""

FLOW = np.dtype(
    [(name, "f8") for name in ("rate", "left_bytes", "since_s", "end_s")]
    + [(name, "i4") for name in ("first", "last", "position", "moved", "whole", "free")]
)
"""`first` to `last` are its pairs, of weight 1 all if it is `whole`; `position` is that in the heap of those that
leave. `rate` is in force since `since_s`: the `fair` one times the chain's speed, unless the flow is `moved`."""

ENDS = np.dtype([("latency_s", "f8"), ("source", "i8"), ("destination", "i8"), ("round", "i8"), ("times", "i8")])

OVER = np.dtype([("weight", "f8"), ("flow", "u4"), ("pair", "u4")])
"""A flow over a link, which may be gone; the first `num_over` from a link's entry in `first_over` are in use."""

ENTRY = np.dtype([("key", "f8"), ("which", "i8")])
"""Of a heap, whose first entry is its size: positions are counted from 1, and are 0 for what is not in it. The key of
what an entry stands for may be higher by now."""

MEMBER = np.dtype([("chain", "i8"), ("at", "i8")])

CHAIN = np.dtype(
    [(name, "f8") for name in ("after_s", "latencies", "size_bytes", "speed", "stretch")]
    + [(name, "i8") for name in ("member", "num_members", "round", "num_rounds", "missing", "behind")]
    + [(name, "i8") for name in ("flow", "num_flows")]
)
"""Its first member, round, count of missing messages, and flow; `behind` members have not done their last round. Its
messages go at `speed` times their fair rate, and its latencies are divided by it; as that changes, the time to its
events grows by `stretch`."""

ROUND = np.dtype([("fraction", "f8"), ("out", "i8")])
"""`fraction` is of the bytes of its chain. `out` plus a member's number in the chain is an index into `outs`: its flows
are ``out_flows[outs[i]:outs[i + 1]]``."""

REQUEST = np.dtype([("start_s", "f8"), ("chain", "i8"), ("after_s", "f8"), ("latencies", "f8"), ("size_bytes", "f8")])
"""Of a chain that is to start."""

EVENT = np.dtype([("time_s", "f8"), ("kind", "i8"), ("which", "i8"), ("round", "i8")])

START, ARRIVED, DONE = 0, 1, 2
"""Kinds of events: a chain starts, a flow arrives, a chain is done."""


class Tables(NamedTuple):
    """All that is in flight or may be; `missing` has a number for each round and member, `expected` at its start."""

    links: Table
    bytes_per_s: Floats
    carried: Floats
    load: Floats
    crossed: npt.NDArray[np.uint32]
    weights: Floats
    listed: npt.NDArray[np.uint8]
    over: Table
    first_over: Ints
    rates: Floats
    flows: Table
    fair: Floats
    ends: Table
    members: Table
    chains: Table
    rounds: Table
    outs: Ints
    out_flows: Ints
    missing: Ints
    expected: Ints
    requests: Table
    events: Table
    leaving: Table
    levels: Table
    moving: Ints
    touched: Ints
    full: Ints
    moved: Ints
    sent: Ints
    done: Ints
    counts: Ints
    """Entries in use of `events`, `moving`, `touched`, `full`, `moved`, `sent`, `done`, `requests`; whether speeds have
    been set since the last `run`."""


EVENTS, MOVING, TOUCHED, FULL, MOVED, SENT, FINISHED, REQUESTED, CHANGED = range(9)


def empty(bytes_per_s: Floats) -> Tables:
    """Return tables of links over which nothing is in flight."""
    links = np.zeros(len(bytes_per_s), LINK)
    links["level"], links["limit"] = np.inf, bytes_per_s * SPARE
    names = ("outs", "out_flows", "missing", "expected", "moving", "moved", "sent", "done")
    numbers = {name: np.zeros(0, np.int64) for name in names}
    return Tables(
        links=links,
        bytes_per_s=bytes_per_s,
        carried=np.zeros(len(links)),
        load=np.zeros(len(links)),
        crossed=np.zeros(0, np.uint32),
        weights=np.zeros(0),
        listed=np.zeros(0, np.uint8),
        over=np.zeros(0, OVER),
        first_over=np.zeros(len(links) + 1, np.int64),
        rates=np.zeros(0),
        flows=np.zeros(0, FLOW),
        fair=np.zeros(0),
        ends=np.zeros(0, ENDS),
        members=np.zeros(0, MEMBER),
        chains=np.zeros(0, CHAIN),
        rounds=np.zeros(0, ROUND),
        requests=np.zeros(0, REQUEST),
        events=np.zeros(64, EVENT),
        leaving=np.zeros(1, ENTRY),
        levels=np.zeros(len(links) + 1, ENTRY),
        touched=np.zeros(len(links), np.int64),
        full=np.zeros(len(links), np.int64),
        counts=np.zeros(9, np.int64),
        **numbers,
    )


_NEAR = 1 + 1e-9
"""A link with so much more left than a rate asks for is not full at it, however the rest is rounded."""

_CLOSING = -1.0
"""Says of a link that is filled that open flows find their rate there."""

_rounded = inlined(rounded)


@inlined
def lower(heap: Table, positions: Ints, which: int, key: float) -> None:
    """Put an entry into a heap, or let it rise there; that a key has become higher is seen when it is at the top."""
    at = positions[which]
    if at == 0:
        heap[0].which += 1
        at = heap[0].which
    elif key >= heap[at].key:
        return
    while at > 1 and heap[at >> 1].key > key:
        heap[at] = heap[at >> 1]
        positions[heap[at].which] = at
        at >>= 1
    heap[at].key, heap[at].which = key, which
    positions[which] = at


@inlined
def sink(heap: Table, positions: Ints, key: float) -> None:
    """Give the top of a heap a higher key; take it out if that is infinite."""
    which, at = heap[1].which, 1
    if key == np.inf:
        last = heap[heap[0].which]
        positions[which] = 0
        which, key = last.which, last.key
        heap[0].which -= 1
    size = heap[0].which
    if not size:
        return
    while 2 * at <= size:
        child = 2 * at
        if child < size and heap[child + 1].key < heap[child].key:
            child += 1
        if heap[child].key >= key:
            break
        heap[at] = heap[child]
        positions[heap[at].which] = at
        at = child
    heap[at].key, heap[at].which = key, which
    positions[which] = at


@inlined
def touch(t: Tables, link: int) -> None:
    """Note that a link is to be looked at."""
    if not t.links[link].touched:
        t.links[link].touched = 1
        t.touched[t.counts[TOUCHED]] = link
        t.counts[TOUCHED] += 1


@inlined
def _set(t: Tables, number: int, before: float, rate: float) -> None:
    """Give a flow another rate; mark links that are full, or may be with it."""
    flow = t.flows[number]
    if not flow.moved:
        flow.moved = 1
        t.moved[t.counts[MOVED]] = number
        t.counts[MOVED] += 1
    closing, rising, whole = before == OPEN, before < rate, flow.whole
    more = rate if closing else rate - before
    t.fair[number] = rate
    for pair in range(flow.first, flow.last):
        weight = 1.0 if whole else t.weights[pair]
        link = t.links[t.crossed[pair]]
        link.used += weight * more
        link.weighed = 0
        if closing:
            link.open -= weight
        if link.used > link.limit or (rising and link.open):
            touch(t, t.crossed[pair])


@inlined
def _order(t: Tables, number: int) -> int:
    """Sort the flows over a link by their rates, without those that are gone, and count them."""
    link, first = t.links[number], t.first_over[number]
    over, size = t.over[first : first + link.num_over], 0
    for index in range(link.num_over):
        weight, flow, pair = over[index].weight, over[index].flow, over[index].pair
        rate, at = t.fair[flow], size
        if rate == GONE:
            t.listed[pair] = 0
            continue
        while at > 0 and t.rates[at - 1] > rate:
            t.rates[at] = t.rates[at - 1]
            over[at] = over[at - 1]
            at -= 1
        t.rates[at], over[at].weight, over[at].flow, over[at].pair = rate, weight, flow, pair
        size += 1
    link.num_over = size
    return size


@inlined
def _weigh(t: Tables, number: int) -> None:
    """Work out the rate at which a link is full, if only open flows grow on."""
    link, first = t.links[number], t.first_over[number]
    size, at = _order(t, number), 0
    left, load, last, estimate = t.bytes_per_s[number], t.load[number], 0.0, np.inf
    while load > 0:
        rate = t.rates[at]
        if not left > rate * load * _NEAR:
            share = max(_rounded(left / load), _rounded(last * ABOVE))
            if share <= rate:
                estimate = share
                break
        gone = 0.0
        while at < size and t.rates[at] == rate:
            gone += t.over[first + at].weight
            at += 1
        load, left, last = load - gone, max(left - rate * gone, 0.0), rate
    link.estimate, link.held, link.weighed = estimate, load, 2 if size and t.rates[size - 1] > estimate else 1


@inlined
def _key(t: Tables, number: int, passed: float) -> float:
    """Level at which to visit a link again: where it becomes full, if that changes anything, or was, if not passed."""
    link = t.links[number]
    if link.estimate == link.level:
        return float(link.level) if link.weighed == 2 else np.inf
    key = abs(link.estimate)
    return float(min(key, link.level) if link.level > passed else key)


@inlined
def _bound(t: Tables, passed: float) -> None:
    """Bound the rates at which touched links are full from below, noted as negative, where that says enough for now."""
    for index in range(t.counts[TOUCHED]):
        number = t.touched[index]
        link = t.links[number]
        link.touched = 0
        left = t.bytes_per_s[number] * SPARE - link.used
        if link.weighed == 1 and link.open and link.estimate == link.level < np.inf:  # flows have started, and no more
            link.estimate = -link.level * link.held / (link.held + link.open) * SPARE
        elif link.open < t.load[number] and left > passed * link.open:
            link.estimate = -left / link.open * SPARE if link.open else -np.inf
        else:
            _weigh(t, number)
        key = _key(t, number, passed)
        if key < np.inf:
            lower(t.levels, t.links["position"], number, key)
    t.counts[TOUCHED] = 0


@inlined
def _fill(t: Tables, number: int, level: float, before: float) -> None:
    """Let a link hold the flows above a level; free ones had a rate `before`, open ones may stay open."""
    link, first = t.links[number], t.first_over[number]
    touched, link.touched = link.touched, 1
    for index in range(link.num_over):
        which = t.over[first + index].flow
        rate = t.fair[which]
        if rate > level:
            if t.flows[which].free:
                t.flows[which].free, rate = 0, before
            elif rate == OPEN and before != _CLOSING:
                continue
            _set(t, which, rate, level)
    link.touched, link.level, link.weighed = touched, level, 2 if link.open else 1
    link.limit = -np.inf if level < np.inf else t.bytes_per_s[number] * SPARE
    if link.open:
        lower(t.levels, t.links["position"], number, level)


@inlined
def _free(t: Tables, number: int, level: float) -> None:
    """Let the flows that a link held at a level until now find another rate, unless another link holds them there."""
    link, first = t.links[number], t.first_over[number]
    for index in range(link.num_over):
        which = t.over[first + index].flow
        if t.fair[which] == level:
            flow = t.flows[which]
            flow.free = 1
            for pair in range(flow.first, flow.last):
                crossed = t.links[t.crossed[pair]]
                if crossed.level == level and crossed.estimate == level:
                    flow.free = 0
                    break
            if flow.free:
                t.fair[which] = OPEN


@inlined
def _next_full(t: Tables, passed: float) -> float:
    """Collect the links to visit next, and return at what level; a bound is computed exactly at its own."""
    levels, level = t.levels, np.inf
    t.counts[FULL] = 0
    while levels[0].which and levels[1].key <= level:
        number, key = levels[1].which, np.inf
        link = t.links[number]
        if link.open or link.used > link.limit:  # else there is nothing to change any more
            if levels[1].key != link.level and (link.estimate < 0 or not link.weighed):
                _weigh(t, number)
            key = _key(t, number, passed)
        if key == levels[1].key:
            level, key = key, np.inf
            t.full[t.counts[FULL]] = number
            t.counts[FULL] += 1
        sink(levels, t.links["position"], key)
    return level


@inlined
def share(t: Tables, now_s: float) -> int:
    """Update the rates from the lowest level that has changed upwards, and let flows go on at their new ones.

    Returns how many flows were looked at.
    """
    passed = 0.0
    while passed < np.inf:
        _bound(t, passed)
        passed = _next_full(t, passed)
        for rises in range(2):  # links that hold flows at this level, and then those that no longer do
            for index in range(t.counts[FULL]):
                number, before = t.full[index], _CLOSING
                if (t.links[number].estimate != passed) != rises:
                    continue
                if rises:
                    before = passed
                    _free(t, number, passed)
                    _weigh(t, number)
                _fill(t, number, t.links[number].estimate, before)
    for index in range(t.counts[MOVED]):
        flow, ends = t.flows[t.moved[index]], t.ends[t.moved[index]]
        rate = t.fair[t.moved[index]] * t.chains[t.members[ends.source].chain].speed
        flow.moved = 0
        if rate != flow.rate:
            flow.left_bytes = max(flow.left_bytes - flow.rate * (now_s - flow.since_s), 0.0)
            flow.since_s, flow.rate = now_s, rate
            flow.end_s = now_s + flow.left_bytes / flow.rate
            lower(t.leaving, t.flows["position"], t.moved[index], flow.end_s)
    moved = t.counts[MOVED]
    t.counts[MOVED] = 0
    return int(moved)
