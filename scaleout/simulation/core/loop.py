"""The loop of the event core: what `engine.run` does, compiled.

Streams and ports are numbered from zero, in the order of their names; tasks and instances have a rank by priority, and
heaps take the lowest ``2**32 rank + number``. Events are a time and ``8 task + kind``. What is looked at together lies
together, as ranks that differ take turns, each of which has left the processor's caches when it is on again.

Symbols: N tasks, S streams, M instances, Q ports.
"""

import math
from typing import NamedTuple

import numpy as np

from scaleout.network.flow.compiling import Table, compiled, inlined
from scaleout.program.graph import NONE, Floats, Ints
from scaleout.simulation.core.devices import (
    OVERFLOW,
    SPARED,
    Devices,
    arrive,
    begin,
    begin_kernel,
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
LOW = 2**32 - 1
"""The number in what heaps hold, without the rank."""

STREAM = np.dtype([("freed_s", "f8")] + [(name, "i4") for name in ("holder", "freed_by", "num_ready", "is_touched")])
"""Who holds a stream, when and by whom it was freed last, its ready tasks, and whether it is to be looked at."""

PORT = np.dtype([("freed_s", "f8")] + [(name, "i4") for name in ("holder", "freed_by", "held_up")])
"""As a stream; `held_up` is the first of the instances that wait for it."""


TASK = np.dtype([(name, "i4") for name in ("stream", "instance", "waiting", "ready_cause")])
"""Of a task: where it runs, for how many others it still waits, and which of them ended last."""

INSTANCE = np.dtype(
    [("first_port", "i8")]
    + [
        (name, "i4")
        for name in ("num_ports", "num_held", "first_member", "size", "num_arrived", "first", "last", "rank")
    ]
    + [("transfer", "i4")]
)
"""Of an instance that is no kernel: its ports, of which it holds so many, its members, how many must arrive and have,
the first and last of these, its rank, and its row among the transfers that share devices, or `NONE`."""


class Work(NamedTuple):
    """What is to be done; see `columns.Tasks`."""

    duration_s: Floats
    occupancy_s: Floats
    rank: Table  # (N,) of tasks by priority; empty where all have one
    stream: Table
    first_in_stream: Table
    num_dependencies: Table
    first_user: Table
    users: Table
    instance: Table
    members: Table  # of each instance by index
    size: Table
    instance_rank: Table  # as `rank`
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
    tasks: Table
    instances: Table
    streams: Table
    ports: Table
    ready: Table
    touched: Table
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
        s.tasks[task]["ready_cause"] = NONE
        add_event(s, w.issue_s[task], task, ISSUED)
        return
    stream = s.tasks[task]["stream"]
    if stream == NONE:
        s.cause[task] = s.tasks[task]["ready_cause"]
        start_task(w, s, task, now_s)
        return
    rank = int(w.rank[task]) if len(w.rank) else 0
    push_number(s.ready, w.first_in_stream[stream], s.streams[stream]["num_ready"], (rank << 32) + task)
    s.streams[stream]["num_ready"] += 1
    touch(s, stream)


@inlined
def queue(s: State, instance: int, rank: int) -> None:
    """Let a complete instance take its ports, when those before it have."""
    push_number(s.queue, 0, s.counts[QUEUED], (rank << 32) + instance)
    s.counts[QUEUED] += 1


@inlined
def look_again(s: State, port: int) -> None:
    """Queue the first of the instances that a port, now free, has held up."""
    first = s.ports[port]["held_up"]
    if first != NONE:
        s.ports[port]["held_up"] = meld(s.instances, s.left, s.right, s.left[first], s.right[first])
        queue(s, first, int(s.instances[first]["rank"]))


@inlined
def free(s: State, port: int, task: int, now_s: float) -> None:
    """Free a port."""
    s.instances[s.ports[port]["holder"]]["num_held"] -= 1
    s.ports[port]["holder"] = NONE
    s.ports[port]["freed_s"], s.ports[port]["freed_by"] = now_s, task
    look_again(s, port)


@inlined
def release(w: Work, s: State, task: int, now_s: float) -> None:
    """Release a task's stream and, with the first member of an instance, its ports."""
    instance, stream = s.tasks[task]["instance"], s.tasks[task]["stream"]
    if NONE != instance < len(s.instances) and s.instances[instance]["num_held"]:
        begins = s.instances[instance]["first_port"]
        for at in range(begins, begins + s.instances[instance]["num_ports"]):
            if s.ports[w.ports[at]]["holder"] == instance:
                free(s, w.ports[at], task, now_s)
    if stream != NONE:
        s.streams[stream]["holder"] = NONE
        s.streams[stream]["freed_s"], s.streams[stream]["freed_by"] = now_s, task
        touch(s, stream)


@inlined
def complete(w: Work, s: State, task: int, now_s: float) -> None:
    """Let what waits for a task become ready."""
    for at in range(w.first_user[task], w.first_user[task + 1]):
        user = w.users[at]
        s.tasks[user]["waiting"] -= 1
        s.tasks[user]["ready_cause"] = task
        if s.tasks[user]["waiting"] == 0:
            make_ready(w, s, user, now_s)


@inlined
def take_ports(w: Work, s: State, instance: int, now_s: float) -> bool:
    """Take the ports of an instance, or wait for the first that is taken."""
    begins = s.instances[instance]["first_port"]
    ends = begins + s.instances[instance]["num_ports"]
    for at in range(begins, ends):
        if s.ports[w.ports[at]]["holder"] != NONE:
            taken = w.ports[at]
            s.left[instance] = s.right[instance] = NONE
            s.ports[taken]["held_up"] = meld(s.instances, s.left, s.right, s.ports[taken]["held_up"], instance)
            for other in range(begins, ends):
                if s.ports[w.ports[other]]["holder"] == NONE:
                    look_again(s, w.ports[other])
            return False
    for at in range(begins, ends):
        s.ports[w.ports[at]]["holder"] = instance
        hold_s, known, before = w.port_s[at], math.isinf(w.port_s[at]), begins
        while not known and before < at:
            known = w.port_s[before] == hold_s
            before += 1
        if not known:
            add_event(s, now_s + hold_s, instance, PORTS)
    s.instances[instance]["num_held"] = ends - begins
    return True


@inlined
def take_streams(w: Work, s: State, d: Devices, now_s: float) -> None:
    """Let free streams take their next task."""
    while s.counts[TOUCHED]:
        stream = pop_number(s.touched, 0, s.counts[TOUCHED])
        s.counts[TOUCHED] -= 1
        s.streams[stream]["is_touched"] = 0
        if s.streams[stream]["num_ready"] == 0 or s.streams[stream]["holder"] != NONE:
            continue
        first = w.first_in_stream[stream]
        task = pop_number(s.ready, first, s.streams[stream]["num_ready"]) & LOW
        s.streams[stream]["num_ready"] -= 1
        s.streams[stream]["holder"] = task
        by = s.streams[stream]["freed_by"]
        s.cause[task] = by if s.streams[stream]["freed_s"] == now_s and by != NONE else s.tasks[task]["ready_cause"]
        instance = s.tasks[task]["instance"]
        if instance == NONE:
            start_task(w, s, task, now_s)
            continue
        number = instance - len(s.instances)
        if number >= 0:
            d.kernels[number]["task"] = task
            queue(s, instance, int(w.instance_rank[instance]) if len(w.instance_rank) else instance)
            continue
        if len(d.instances):
            arrive(d, instance, task, now_s)
        if s.instances[instance]["num_arrived"] == 0:
            s.instances[instance]["first"] = task
        s.instances[instance]["last"] = task
        s.instances[instance]["num_arrived"] += 1
        if s.instances[instance]["num_arrived"] == s.instances[instance]["size"]:
            queue(s, instance, int(s.instances[instance]["rank"]))


@inlined
def start_complete(w: Work, s: State, d: Devices, n: Links | None, now_s: float) -> None:
    """Let complete instances take their ports, and kernels start."""
    while s.counts[QUEUED]:
        instance = pop_number(s.queue, 0, s.counts[QUEUED]) & LOW
        s.counts[QUEUED] -= 1
        number = instance - len(s.instances)
        if number >= 0:
            s.start_s[d.kernels[number]["task"]] = now_s
            begin_kernel(d, number, now_s)
            continue
        if not start_instance(w, s, instance, now_s):
            continue
        if n is not None:
            start_transfer(n, instance, now_s)
        if len(d.instances):
            begin(d, instance, now_s)


@inlined
def member(w: Work, s: State, instance: int, at: int) -> int:
    """Return a member of an instance at which all have arrived, by index."""
    row = s.instances[instance]
    return int(row["first"] if row["size"] == 1 else w.members[row["first_member"] + at])


@inlined
def start_instance(w: Work, s: State, instance: int, now_s: float) -> bool:
    """Start an instance at which all have arrived, if its ports are free; return whether devices or links time it."""
    last = s.instances[instance]["last"]
    cause, freed_s, by = s.cause[last], -1.0, NONE
    begins = s.instances[instance]["first_port"]
    for at in range(begins, begins + s.instances[instance]["num_ports"]):
        port = w.ports[at]
        if s.ports[port]["freed_s"] > freed_s or (
            s.ports[port]["freed_s"] == freed_s and s.ports[port]["freed_by"] > by
        ):
            freed_s, by = s.ports[port]["freed_s"], s.ports[port]["freed_by"]
    if not take_ports(w, s, instance, now_s):
        return False
    if by != NONE and freed_s == now_s:
        cause = by
    for at in range(s.instances[instance]["size"]):
        task = member(w, s, instance, at)
        s.cause[task] = cause
        start_task(w, s, task, now_s)
    return math.isnan(w.duration_s[last])


@inlined
def end_task(w: Work, s: State, task: int, kind: int, now_s: float) -> None:
    """Release or complete a task that links or devices time, or both."""
    if kind != COMPLETE:
        s.released_s[task] = now_s
        release(w, s, task, now_s)
    if kind != RELEASE:
        s.end_s[task] = now_s
        complete(w, s, task, now_s)


@inlined
def end_instance(w: Work, s: State, instance: int, kind: int, now_s: float) -> None:
    """Release or complete the tasks of an instance, or both, in their order."""
    for at in range(s.instances[instance]["size"]):
        end_task(w, s, member(w, s, instance, at), kind, now_s)


@inlined
def free_ports(w: Work, s: State, instance: int, now_s: float) -> None:
    """Free those ports of an instance that it has held as long as it needs them."""
    first, begins = s.instances[instance]["first"], s.instances[instance]["first_port"]
    for at in range(begins, begins + s.instances[instance]["num_ports"]):
        if s.start_s[first] + w.port_s[at] <= now_s and s.ports[w.ports[at]]["holder"] == instance:
            free(s, w.ports[at], first, now_s)


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
        if instance >= len(s.instances):
            end_task(w, s, d.kernels[instance - len(s.instances)]["task"], BOTH, now_s)
        else:
            end_instance(w, s, instance, BOTH, now_s)


@inlined
def end_on_links(w: Work, s: State, d: Devices, n: Links, now_s: float) -> None:
    """Release the streams of all that has left, and end all instances that links end at a moment."""
    while n.counts[EARLY]:
        end_instance(w, s, next_early(n), RELEASE, now_s)
    while n.counts[ENDED]:
        instance = next_ended(n)
        if len(d.instances) and d.calls[instance]["transfer"] != NONE:
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
        take_streams(w, s, d, now_s)
        start_complete(w, s, d, n, now_s)
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


@compiled
def begin_all(w: Work, s: State, transfers: Ints) -> None:
    """Lay out tasks, instances and their members, and let tasks that wait for nothing be ready.

    `transfers` are the instances that share devices besides kernels.
    """
    for task in range(len(s.tasks)):
        row, instance = s.tasks[task], w.instance[task]
        row["stream"], row["instance"], row["waiting"] = w.stream[task], instance, w.num_dependencies[task]
        row["ready_cause"] = NONE
        if NONE != instance < len(s.instances):
            s.instances[instance]["num_arrived"] += 1
    first_member = 0
    for instance in range(len(s.instances)):
        its, first_port = s.instances[instance], w.first_port[instance]
        its["first_port"], its["num_ports"] = first_port, w.first_port[instance + 1] - first_port
        its["first_member"], its["size"], its["transfer"] = first_member, w.size[instance], NONE
        its["rank"] = w.instance_rank[instance] if len(w.instance_rank) else instance
        first_member += its["num_arrived"]
        its["num_arrived"] = 0
    for number in range(len(transfers)):
        s.instances[transfers[number]]["transfer"] = number
    for task in range(len(s.tasks)):
        instance = w.instance[task]
        if NONE != instance < len(s.instances):
            w.members[s.instances[instance]["first_member"] + s.instances[instance]["num_arrived"]] = task
            s.instances[instance]["num_arrived"] += 1
    s.instances["num_arrived"][:] = 0
    for task in range(len(s.tasks)):
        if w.num_dependencies[task] == 0:
            make_ready(w, s, task, 0.0)
