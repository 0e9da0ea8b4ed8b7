"""The event loop of messages that are not in step: one message at a time, compiled.

Does to the same numbers what `in_step` does with whole batches, to the last bit, but touches only what an event
changes. A flow that slows down keeps its place in the heap of those that leave until it is at the top.

Symbols: see `flight`.
"""

import numpy as np

from scaleout.network.compiled import compiled
from scaleout.network.flight import (
    ARRIVED,
    ASKING,
    DONE,
    EVENTS,
    FINISHED,
    GONE,
    MOVED,
    MOVING,
    OPEN,
    SENT,
    START,
    Tables,
)
from scaleout.network.mending import drop, share, sift, touch
from scaleout.network.sharing import SAME


@compiled
def _push_event(t: Tables, time_s: float, kind: int, which: int, step: int) -> None:
    """Add an event to the heap, which has room for it."""
    events = t.events
    at = t.counts[EVENTS]
    t.counts[EVENTS] += 1
    while at > 0 and events[(at - 1) >> 1].time_s > time_s:
        events[at] = events[(at - 1) >> 1]
        at = (at - 1) >> 1
    events[at].time_s, events[at].kind, events[at].which, events[at].step = time_s, kind, which, step


@compiled
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


@compiled
def _start(t: Tables, number: int, step: int, size_bytes: float, now_s: float) -> None:
    flow = t.flows[number]
    flow.left_bytes, flow.rate, flow.since_s, flow.moved = size_bytes, 0.0, now_s, 1
    t.fair[number] = OPEN
    t.ends[number].step = step
    t.moved[t.counts[MOVED]] = number
    t.counts[MOVED] += 1
    whole = flow.whole
    for pair in range(flow.first, flow.last):
        weight = 1.0 if whole else t.weights[pair]
        which = t.crossed[pair]
        link = t.links[which]
        t.carried[which] += weight * size_bytes
        t.load[which] += weight
        link.open += weight
        if not t.listed[pair]:
            t.listed[pair] = 1
            entry = t.over[t.first_over[which] + link.num_over]
            entry.weight, entry.flow, entry.pair = weight, number, pair
            link.num_over += 1
        touch(t, which)


@compiled
def _stop(t: Tables) -> int:
    """Take the flow that ends first out of flight, and return it; links that were not full are so still less."""
    number = int(t.leaving[1].which)
    drop(t.leaving, t.flows["place"])
    flow, rate = t.flows[number], t.fair[number]
    whole = flow.whole
    for pair in range(flow.first, flow.last):
        weight = 1.0 if whole else t.weights[pair]
        link = t.links[t.crossed[pair]]
        t.load[t.crossed[pair]] -= weight
        link.used -= weight * rate
        link.weighed = 0
        if link.level < np.inf:
            touch(t, t.crossed[pair])
    t.fair[number] = GONE
    return number


@compiled
def _settle(t: Tables, member: int, step: int) -> None:
    """Count a message of a step as sent or received by a member; note it if that lets it move on."""
    lane = t.lanes[t.members[member].lane]
    at = lane.missing + step * lane.num_members + member - lane.member
    t.missing[at] -= 1
    if t.missing[at] == 0 and t.members[member].at == step:
        t.moving[t.counts[MOVING]] = member
        t.counts[MOVING] += 1


@compiled
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
                _push_event(t, now_s + lane.after_s, DONE, number, 0)
            return
        its = t.steps[lane.step + step]
        for index in range(t.outs[its.out + local], t.outs[its.out + local + 1]):
            _start(t, t.out_flows[index], step, its.fraction * lane.size_bytes, now_s)


@compiled
def _first_end(t: Tables) -> float:
    """When the next flow ends; infinite if none is in flight."""
    while t.leaving[0].which:
        flow = t.leaving[1].which
        if t.flows[flow].end_s == t.leaving[1].key:
            return float(t.leaving[1].key)
        sift(t.leaving, t.flows["place"], flow, t.flows[flow].end_s, 1)
    return np.inf


@compiled
def _begin(t: Tables) -> None:
    """Let lanes start at their time that have been asked for."""
    for index in range(t.counts[ASKING]):
        asked = t.asked[index]
        lane = t.lanes[asked.lane]
        lane.after_s, lane.latencies, lane.size_bytes = asked.after_s, asked.latencies, asked.size_bytes
        lane.behind = lane.num_members
        for member in range(lane.member, lane.member + lane.num_members):
            t.members[member].at = -1
        for at in range(lane.missing, lane.missing + lane.num_steps * lane.num_members):
            t.missing[at] = t.expected[at]
        _push_event(t, asked.start_s, START, asked.lane, 0)
    t.counts[ASKING] = 0


@compiled
def run(t: Tables, until_s: float) -> float:
    """Run until something has been sent or is done, or all is handled up to a time; return the time.

    Not a number if the heap of events needs more room first.
    """
    counts = t.counts
    counts[SENT] = counts[FINISHED] = 0
    _begin(t)
    while True:
        now_s = min(t.events[0].time_s if counts[EVENTS] else np.inf, _first_end(t))
        if now_s > until_s or now_s == np.inf:
            return until_s
        if counts[EVENTS] + t.leaving[0].which + len(t.lanes) > len(t.events):
            return np.nan
        together_s = now_s * (1 + SAME)
        while _first_end(t) <= together_s:
            flow = _stop(t)
            ended = t.ends[flow]
            latency_s = ended.latency_s * t.lanes[t.members[ended.source].lane].latencies
            _push_event(t, now_s + latency_s, ARRIVED, flow, ended.step)
            _settle(t, ended.source, ended.step)
        while counts[MOVING] or (counts[EVENTS] and t.events[0].time_s <= together_s):
            while counts[EVENTS] and t.events[0].time_s <= together_s:
                kind, which, step = _pop_event(t)
                if kind == ARRIVED:
                    _settle(t, t.ends[which].destination, step)
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
        share(t, now_s)
        if counts[SENT] or counts[FINISHED]:
            return now_s
