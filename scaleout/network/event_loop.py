"""The event loop of messages that are not in step: one message at a time, compiled.

Does to the same numbers what `traffic` does with whole batches, to the last bit, but touches only what an event
changes: the flows that share a link with one that starts or ends, directly or through others, are shared anew; the
rest goes on. Compiled by numba when it is first imported on a machine, which takes seconds, and cached for good.

Tables are structured arrays, whose columns the dtypes below name; heaps are arrays whose first entries are in use.

Symbols: F flows that may be in flight, K pairs of a flow and a link, L links, M members, G lanes of collectives.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

from scaleout.network.links import Floats, Ints
from scaleout.network.sharing import SAME

Table = np.ndarray[Any, Any]

LINK = np.dtype([(n, "f8") for n in ("bytes_per_s", "carried", "load", "left", "gone", "share")] + [("head", "i8")])
"""`head` is the first pair of the flows in flight, -1 for none; `gone` what the flows of a level put on the link."""

PAIR = np.dtype([("weight", "f8"), ("link", "i4"), ("flow", "i4"), ("next", "i4"), ("previous", "i4")])

FLOW = np.dtype(
    [(name, "f8") for name in ("latency_s", "left_bytes", "rate", "since_s", "end_s", "fair")]
    + [(name, "i8") for name in ("source", "destination", "first", "last", "step", "place")]
)
"""`first` to `last` are its pairs; `place` is its place in the heap of ends, -1 unless it is in flight."""

MEMBER = np.dtype([("lane", "i8"), ("at", "i8")])

LANE = np.dtype(
    [("after_s", "f8"), ("latencies", "f8")]
    + [(name, "i8") for name in ("member", "num_members", "step", "num_steps", "missing", "behind")]
)
"""Its first member, step and count of missing messages; `behind` members have not done their last step."""

STEP = np.dtype([("size_bytes", "f8"), ("out", "i8")])
"""`out` plus a member's number in its lane is its place in `outs`: its flows are ``out_flows[outs[i]:outs[i + 1]]``."""

EVENT = np.dtype([("time_s", "f8"), ("kind", "i8"), ("which", "i8"), ("step", "i8")])

START, ARRIVED, DONE = 0, 1, 2
"""Kinds of events: a lane starts, a flow arrives, a lane is done."""


class Tables(NamedTuple):
    """All that is in flight or may be. `missing` has for each lane one number a step and member."""

    links: Table
    pairs: Table
    flows: Table
    members: Table
    lanes: Table
    steps: Table
    outs: Ints
    out_flows: Ints
    missing: Ints
    events: Table
    ends: Ints
    moving: Ints
    changed: Ints
    found_links: Ints
    found_flows: Ints
    sent: Ints
    done: Ints
    counts: Ints
    """Entries in use of `events`, `ends`, `moving`, `changed`, `sent`, `done`."""


EVENTS, ENDS, MOVING, CHANGED, SENT, FINISHED = range(6)

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _compiled(function: _Function) -> _Function:
    try:
        made = numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # neither the package nor the user has a place to write to: compile anew in each process
        made = numba.njit(error_model="numpy")(function)
    return cast(_Function, made)


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
def _place_end(t: Tables, flow: int, at: int) -> None:
    """Let a flow whose end has changed rise or sink from its place in the heap of ends."""
    ends, flows = t.ends, t.flows
    end_s, size = flows[flow].end_s, t.counts[ENDS]
    while at > 0 and flows[ends[(at - 1) >> 1]].end_s > end_s:
        ends[at] = ends[(at - 1) >> 1]
        flows[ends[at]].place = at
        at = (at - 1) >> 1
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and flows[ends[child + 1]].end_s < flows[ends[child]].end_s:
            child += 1
        if flows[ends[child]].end_s >= end_s:
            break
        ends[at] = ends[child]
        flows[ends[at]].place = at
        at = child
    ends[at] = flow
    flows[flow].place = at


@_compiled
def _changes(t: Tables, link: int) -> None:
    """Note that the flows over a link are no longer the same; a share below zero marks it."""
    if t.links[link].share >= 0:
        t.links[link].share = -1.0
        t.changed[t.counts[CHANGED]] = link
        t.counts[CHANGED] += 1


@_compiled
def _start(t: Tables, flow: int, step: int, size_bytes: float, now_s: float) -> None:
    links, pairs, started = t.links, t.pairs, t.flows[flow]
    started.step, started.left_bytes, started.rate = step, size_bytes, 0.0
    started.since_s, started.end_s = now_s, np.inf
    for pair in range(started.first, started.last):
        link = pairs[pair].link
        links[link].carried += pairs[pair].weight * size_bytes
        head = links[link].head
        pairs[pair].next, pairs[pair].previous = head, -1
        if head >= 0:
            pairs[head].previous = pair
        links[link].head = pair
        _changes(t, link)
    t.counts[ENDS] += 1
    _place_end(t, flow, t.counts[ENDS] - 1)


@_compiled
def _stop(t: Tables) -> int:
    """Take the flow that ends first out of flight, and return it."""
    links, pairs, ends, counts = t.links, t.pairs, t.ends, t.counts
    flow = ends[0]
    counts[ENDS] -= 1
    t.flows[flow].place = -1
    if counts[ENDS]:
        _place_end(t, ends[counts[ENDS]], 0)
    for pair in range(t.flows[flow].first, t.flows[flow].last):
        link, after, before = pairs[pair].link, pairs[pair].next, pairs[pair].previous
        if after >= 0:
            pairs[after].previous = before
        if before >= 0:
            pairs[before].next = after
        else:
            links[link].head = after
        _changes(t, link)
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
def _reach(t: Tables, seed: int) -> tuple[int, int]:
    """Find the links and flows that a link shares with, directly or through others; zero their counts."""
    links, pairs, flows = t.links, t.pairs, t.flows
    num_links, num_flows, seen = 1, 0, 0
    t.found_links[0] = seed
    links[seed].share = -2.0
    while seen < num_links:
        link = links[t.found_links[seen]]
        seen += 1
        link.left, link.load, link.gone = link.bytes_per_s, 0.0, 0.0
        pair = link.head
        while pair >= 0:
            link.load += pairs[pair].weight
            flow = pairs[pair].flow
            if flows[flow].fair >= 0:
                flows[flow].fair = -1.0
                t.found_flows[num_flows] = flow
                num_flows += 1
                for other in range(flows[flow].first, flows[flow].last):
                    crossed = pairs[other].link
                    if links[crossed].share > -2:
                        links[crossed].share = -2.0
                        t.found_links[num_links] = crossed
                        num_links += 1
            pair = pairs[pair].next
    return num_links, num_flows


@_compiled
def _fill(t: Tables, num_links: int, num_flows: int) -> None:
    """Let flows grow together until a link is full, and the others grow on: see `sharing.max_min`."""
    links, pairs, flows, found = t.links, t.pairs, t.flows, t.found_links
    while num_flows:
        level = np.inf
        kept = 0
        for index in range(num_links):
            link = links[found[index]]
            if link.load > 0:
                link.share = link.left / link.load
                level = min(level, link.share)
                found[kept] = found[index]
                kept += 1
            else:
                link.share = 0.0
        num_links = kept
        for index in range(num_links):
            pair = links[found[index]].head if links[found[index]].share <= level * (1 + SAME) else -1
            while pair >= 0:
                flow = flows[pairs[pair].flow]
                if flow.fair < 0:
                    flow.fair = level
                    num_flows -= 1
                    for other in range(flow.first, flow.last):
                        links[pairs[other].link].gone += pairs[other].weight
                pair = pairs[pair].next
        for index in range(num_links):
            link = links[found[index]]
            link.load -= link.gone
            link.left = max(link.left - level * link.gone, 0.0)
            link.gone = 0.0


@_compiled
def _share(t: Tables, now_s: float) -> None:
    """Share anew the links that have changed, and those that hang together with them."""
    for index in range(t.counts[CHANGED]):
        seed = t.changed[index]
        if t.links[seed].share != -1:
            continue
        num_links, num_flows = _reach(t, seed)
        _fill(t, num_links, num_flows)
        for number in range(num_links):
            t.links[t.found_links[number]].share = 0.0
        for number in range(num_flows):
            flow = t.flows[t.found_flows[number]]
            if flow.fair != flow.rate:
                flow.left_bytes = max(flow.left_bytes - flow.rate * (now_s - flow.since_s), 0.0)
                flow.since_s, flow.rate = now_s, flow.fair
                flow.end_s = now_s + flow.left_bytes / flow.rate
                _place_end(t, t.found_flows[number], flow.place)
    t.counts[CHANGED] = 0


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


def empty(bytes_per_s: Floats) -> Tables:
    """Return tables of links over which nothing is in flight."""
    links = np.zeros(len(bytes_per_s), LINK)
    links["bytes_per_s"], links["head"] = bytes_per_s, -1
    none = np.zeros(0, np.int64)
    return Tables(
        links=links,
        pairs=np.zeros(0, PAIR),
        flows=np.zeros(0, FLOW),
        members=np.zeros(0, MEMBER),
        lanes=np.zeros(0, LANE),
        steps=np.zeros(0, STEP),
        outs=none,
        out_flows=none,
        missing=none,
        events=np.zeros(64, EVENT),
        ends=none,
        moving=none,
        changed=np.zeros(len(links), np.int64),
        found_links=np.zeros(len(links), np.int64),
        found_flows=none,
        sent=none,
        done=none,
        counts=np.zeros(6, np.int64),
    )
