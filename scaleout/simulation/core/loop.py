"""The loop of the event core: what `engine.run` does, compiled.

Streams and ports are numbered from zero, in the order of their names; tasks of a stream and instances have a rank, by
which heaps take them. Events are a time and ``8 task + kind``.

Symbols: N tasks, S streams, M instances, Q ports.
"""

import math
from typing import NamedTuple

import numpy as np

from scaleout.network.flow.compiling import Table, compiled, inlined
from scaleout.program.graph import NONE, Floats
from scaleout.simulation.core.devices import (
    OVERFLOW,
    SPARED,
    Devices,
    arrive,
    begin,
    end,
    ending,
    next_end_s,
    set_rates,
    spares,
)
from scaleout.simulation.core.heaps import meld, pop, pop_number, push, push_number
from scaleout.simulation.core.links import (
    EARLY,
    ENDED,
    REACHED,
    Links,
    advance,
    next_early,
    next_ended,
    start_transfer,
)

RELEASE, COMPLETE, BOTH, ISSUED, PORTS = range(5)
EVENTS, TOUCHED, QUEUED = range(3)
FINISHED, MISSES, OVERFLOWS, GOES_ON, LACKS = range(5)
"""What stopped the loop."""


STREAM = np.dtype([("freed_s", "f8")] + [(name, "i4") for name in ("holder", "freed_by", "num_ready", "is_touched")])
"""Who holds a stream, when and by whom it was freed last, its ready tasks, and whether it is to be looked at."""

PORT = np.dtype([("freed_s", "f8")] + [(name, "i4") for name in ("holder", "freed_by", "held_up")])
"""As a stream; `held_up` is the first of the instances that wait for it."""


class Work(NamedTuple):
    """What is to be done; see `columns.Tasks`."""

    duration_s: Floats
    occupancy_s: Floats
    by_priority: Table
    stream: Table
    order: Table
    stream_tasks: Table
    first_in_stream: Table
    first_user: Table
    users: Table
    instance: Table
    instance_size: Table
    members: Table  # of each instance by index
    first_member: Table
    rank: Table
    instance_of_rank: Table
    first_port: Table
    ports: Table
    port_s: Floats
    issue_s: Floats


class State(NamedTuple):
    """What has been done so far."""

    start_s: Floats
    released_s: Floats
    end_s: Floats
    cause: Table
    ready_cause: Table
    waiting: Table
    streams: Table
    ports: Table
    ready: Table
    touched: Table
    arrived: Table
    num_arrived: Table
    num_held: Table  # (M,) ports that each instance holds
    queue: Table
    left: Table
    right: Table
    event_s: Floats
    events: Table
    counts: Table


@inlined
def add_event(s: State, time_s: float, which: int, kind: int) -> None:
    """Queue an event."""
    push(s.event_s, s.events, s.counts[EVENTS], time_s, 8 * which + kind)
    s.counts[EVENTS] += 1


@inlined
def touch(s: State, stream: int) -> None:
    """Note that a stream may take its next task."""
    if not s.streams[stream]["is_touched"]:
        s.streams[stream]["is_touched"] = 1
        push_number(s.touched, 0, s.counts[TOUCHED], stream)
        s.counts[TOUCHED] += 1


@inlined
def start_task(w: Work, s: State, task: int, now_s: float) -> None:
    """Start a task; one without a duration ends when its device says so."""
    s.start_s[task] = now_s
    if w.stream[task] == NONE:
        s.cause[task] = s.ready_cause[task]
    duration_s, occupancy_s = w.duration_s[task], w.occupancy_s[task]
    if math.isnan(duration_s):
        return
    s.end_s[task], s.released_s[task] = now_s + duration_s, now_s + occupancy_s
    if occupancy_s == duration_s:
        add_event(s, now_s + duration_s, task, BOTH)
    else:
        add_event(s, now_s + occupancy_s, task, RELEASE)
        add_event(s, now_s + duration_s, task, COMPLETE)


@inlined
def make_ready(w: Work, s: State, task: int, now_s: float) -> None:
    """Queue a ready task on its stream, or start it if it needs none; one not issued yet comes back when it is."""
    if len(w.issue_s) and w.issue_s[task] > now_s:
        s.ready_cause[task] = NONE
        add_event(s, w.issue_s[task], task, ISSUED)
        return
    stream = w.stream[task]
    if stream == NONE:
        start_task(w, s, task, now_s)
        return
    push_number(s.ready, w.first_in_stream[stream], s.streams[stream]["num_ready"], w.order[task])
    s.streams[stream]["num_ready"] += 1
    touch(s, stream)


@inlined
def look_again(w: Work, s: State, port: int) -> None:
    """Queue the first of the instances that a port, now free, has held up."""
    first = s.ports[port]["held_up"]
    if first != NONE:
        s.ports[port]["held_up"] = meld(w.rank, s.left, s.right, s.left[first], s.right[first])
        push_number(s.queue, 0, s.counts[QUEUED], w.rank[first])
        s.counts[QUEUED] += 1


@inlined
def free(w: Work, s: State, port: int, task: int, now_s: float) -> None:
    """Free a port."""
    s.num_held[s.ports[port]["holder"]] -= 1
    s.ports[port]["holder"] = NONE
    s.ports[port]["freed_s"], s.ports[port]["freed_by"] = now_s, task
    look_again(w, s, port)


@inlined
def release(w: Work, s: State, task: int, now_s: float) -> None:
    """Release a task's stream and, with the first member of an instance, its ports."""
    instance, stream = w.instance[task], w.stream[task]
    if instance != NONE and s.num_held[instance]:
        for at in range(w.first_port[instance], w.first_port[instance + 1]):
            if s.ports[w.ports[at]]["holder"] == instance:
                free(w, s, w.ports[at], task, now_s)
    if stream != NONE:
        s.streams[stream]["holder"] = NONE
        s.streams[stream]["freed_s"], s.streams[stream]["freed_by"] = now_s, task
        touch(s, stream)


@inlined
def complete(w: Work, s: State, task: int, now_s: float) -> None:
    """Let what waits for a task become ready."""
    for at in range(w.first_user[task], w.first_user[task + 1]):
        user = w.users[at]
        s.waiting[user] -= 1
        s.ready_cause[user] = task
        if s.waiting[user] == 0:
            make_ready(w, s, user, now_s)


@inlined
def take_ports(w: Work, s: State, instance: int, now_s: float) -> bool:
    """Take the ports of an instance, or wait for the first that is taken."""
    begins, ends = w.first_port[instance], w.first_port[instance + 1]
    for at in range(begins, ends):
        if s.ports[w.ports[at]]["holder"] != NONE:
            taken = w.ports[at]
            s.left[instance] = s.right[instance] = NONE
            s.ports[taken]["held_up"] = meld(w.rank, s.left, s.right, s.ports[taken]["held_up"], instance)
            for other in range(begins, ends):
                if s.ports[w.ports[other]]["holder"] == NONE:
                    look_again(w, s, w.ports[other])
            return False
    for at in range(begins, ends):
        s.ports[w.ports[at]]["holder"] = instance
        hold_s, known, before = w.port_s[at], math.isinf(w.port_s[at]), begins
        while not known and before < at:
            known = w.port_s[before] == hold_s
            before += 1
        if not known:
            add_event(s, now_s + hold_s, instance, PORTS)
    s.num_held[instance] = ends - begins
    return True


@inlined
def issue(w: Work, s: State, d: Devices, n: Links | None, now_s: float) -> None:
    """Let free streams take their next task, then let complete instances take their ports."""
    while s.counts[TOUCHED]:
        stream = pop_number(s.touched, 0, s.counts[TOUCHED])
        s.counts[TOUCHED] -= 1
        s.streams[stream]["is_touched"] = 0
        if s.streams[stream]["num_ready"] == 0 or s.streams[stream]["holder"] != NONE:
            continue
        first = w.first_in_stream[stream]
        task = w.stream_tasks[first + pop_number(s.ready, first, s.streams[stream]["num_ready"])]
        s.streams[stream]["num_ready"] -= 1
        s.streams[stream]["holder"] = task
        by = s.streams[stream]["freed_by"]
        s.cause[task] = by if s.streams[stream]["freed_s"] == now_s and by != NONE else s.ready_cause[task]
        instance = w.instance[task]
        if instance == NONE:
            start_task(w, s, task, now_s)
            continue
        if len(d.instances):
            arrive(d, instance, task, now_s)
        s.arrived[w.first_member[instance] + s.num_arrived[instance]] = task
        s.num_arrived[instance] += 1
        if s.num_arrived[instance] == w.instance_size[instance]:
            push_number(s.queue, 0, s.counts[QUEUED], w.rank[instance])
            s.counts[QUEUED] += 1
    while s.counts[QUEUED]:
        instance = w.instance_of_rank[pop_number(s.queue, 0, s.counts[QUEUED])]
        s.counts[QUEUED] -= 1
        if not start_instance(w, s, instance, now_s):
            continue
        if n is not None:
            start_transfer(n, instance, now_s)
        if len(d.instances):
            begin(d, instance, now_s)


@inlined
def start_instance(w: Work, s: State, instance: int, now_s: float) -> bool:
    """Start an instance at which all have arrived, if its ports are free; return whether devices or links time it."""
    begins = w.first_member[instance]
    ends = begins + s.num_arrived[instance]
    last = s.arrived[ends - 1]
    cause, freed_s, by = s.cause[last], -1.0, NONE
    for at in range(w.first_port[instance], w.first_port[instance + 1]):
        port = w.ports[at]
        if s.ports[port]["freed_s"] > freed_s or (
            s.ports[port]["freed_s"] == freed_s and s.ports[port]["freed_by"] > by
        ):
            freed_s, by = s.ports[port]["freed_s"], s.ports[port]["freed_by"]
    if not take_ports(w, s, instance, now_s):
        return False
    if by != NONE and freed_s == now_s:
        cause = by
    for at in range(begins, ends):
        s.cause[s.arrived[at]] = cause
        start_task(w, s, s.arrived[at], now_s)
    return math.isnan(w.duration_s[last])


@inlined
def end_instance(w: Work, s: State, instance: int, kind: int, now_s: float) -> None:
    """Release or complete the tasks of an instance, or both, in their order."""
    for at in range(w.first_member[instance], w.first_member[instance + 1]):
        task = w.members[at]
        if kind != COMPLETE:
            s.released_s[task] = now_s
            release(w, s, task, now_s)
        if kind != RELEASE:
            s.end_s[task] = now_s
            complete(w, s, task, now_s)


@inlined
def free_ports(w: Work, s: State, instance: int, now_s: float) -> None:
    """Free those ports of an instance that it has held as long as it needs them."""
    first = s.arrived[w.first_member[instance]]
    for at in range(w.first_port[instance], w.first_port[instance + 1]):
        if s.start_s[first] + w.port_s[at] <= now_s and s.ports[w.ports[at]]["holder"] == instance:
            free(w, s, w.ports[at], first, now_s)


@inlined
def handle_events(w: Work, s: State, now_s: float) -> int:
    """Handle all events of a moment; return how many."""
    handled = 0
    while s.counts[EVENTS] and s.event_s[0] == now_s:
        which, kind = s.events[0] >> 3, s.events[0] & 7
        pop(s.event_s, s.events, s.counts[EVENTS])
        s.counts[EVENTS] -= 1
        if kind == ISSUED:
            make_ready(w, s, which, now_s)
        elif kind == PORTS:
            free_ports(w, s, which, now_s)
        else:
            if kind != COMPLETE:
                release(w, s, which, now_s)
            if kind != RELEASE:
                complete(w, s, which, now_s)
        handled += 1
    return handled


@inlined
def end_on_devices(w: Work, s: State, d: Devices, now_s: float) -> None:
    """End all instances that devices end at a moment."""
    while next_end_s(d) == now_s:
        instance = ending(d)
        end(d, instance, now_s)
        end_instance(w, s, instance, BOTH, now_s)


@inlined
def end_on_links(w: Work, s: State, d: Devices, n: Links, now_s: float) -> None:
    """Release the streams of all that has left, and end all instances that links end at a moment."""
    while n.counts[EARLY]:
        end_instance(w, s, next_early(n), RELEASE, now_s)
    while n.counts[ENDED]:
        instance = next_ended(n)
        if len(d.instances) and d.kind_of[instance]:
            end(d, instance, now_s)
        end_instance(w, s, instance, COMPLETE if n.instances[instance]["is_released"] else BOTH, now_s)


@inlined
def next_moment_s(s: State, d: Devices, n: Links | None) -> float:
    """Return when something happens next, with links advanced to it; NaN if they lack room to go on."""
    now_s = min(s.event_s[0] if s.counts[EVENTS] else math.inf, next_end_s(d))
    if n is None:
        return now_s
    until_s = min(now_s, d.spared_s[0] if d.counts[SPARED] else math.inf)
    return float(n.times[REACHED]) if n.counts[EARLY] or n.counts[ENDED] else advance(n, d, until_s)


@compiled
def run_for(w: Work, s: State, d: Devices, n: Links | None, steps: int) -> int:
    """Go on for about so many moments and events, or until nothing moves any more or the caller has to lay out more."""
    now_s = 0.0
    while True:
        issue(w, s, d, n, now_s)
        if steps <= 0:
            return GOES_ON
        steps -= 1
        if not set_rates(d):
            return MISSES
        if d.counts[OVERFLOW]:
            return OVERFLOWS
        now_s = next_moment_s(s, d, n)
        if math.isnan(now_s):
            return LACKS
        if (n is None or not n.counts[ENDED]) and spares(d, now_s):
            continue
        if math.isinf(now_s):
            return FINISHED
        if n is not None:
            end_on_links(w, s, d, n, now_s)
        end_on_devices(w, s, d, now_s)
        steps -= handle_events(w, s, now_s)


@inlined
def list_tasks(w: Work, s: State) -> None:
    """List the tasks of streams by priority and then index, each with its rank there, and those of instances."""
    for task in w.by_priority:
        stream = w.stream[task]
        if stream != NONE:
            w.order[task] = s.streams[stream]["num_ready"]
            w.stream_tasks[w.first_in_stream[stream] + w.order[task]] = task
            s.streams[stream]["num_ready"] += 1
    s.streams["num_ready"][:] = 0
    for task in range(len(w.instance)):
        instance = w.instance[task]
        if instance != NONE:
            w.members[w.first_member[instance] + s.num_arrived[instance]] = task
            s.num_arrived[instance] += 1
    s.num_arrived[:] = 0


@compiled
def begin_all(w: Work, s: State) -> None:
    """Let tasks that wait for nothing be ready."""
    list_tasks(w, s)
    for task in range(len(s.waiting)):
        if s.waiting[task] == 0:
            make_ready(w, s, task, 0.0)
