"""The clock: tasks with dependencies, streams and wires, to the times at which they start and end.

A task becomes ready when all it depends on is done and the host has issued it. A *stream* holds one task at a time:
when it is free it takes its ready task of the highest priority, of those the lowest index. A task of a *meeting* (a
collective between several timelines) waits on its stream until every member has come; the meeting then takes its
*wires*, which carry one meeting at a time, and all members start together. It holds each wire for as long as it needs
it; its tasks hold their streams, and the wires needed most, for their occupancy. A task is done after its duration,
which is longer when the last bytes are still in flight. Meetings whose duration depends on what else is in flight are
timed by a `Network` instead, which says when they let go of their streams and when they are done.

This is list scheduling, so more resources are not always faster (Graham, SIAM J. Appl. Math. 17(2), 1969). Ties are
broken by index alone: the same input gives the same bits. The engine knows no ranks, graphs or collectives.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from scaleout.program.graph import NONE, Floats, Ints


@dataclass(frozen=True)
class Tasks:
    """What the clock runs, for N tasks, E dependencies and M meetings.

    Attributes
    ----------
    duration_s, occupancy_s : length N, with ``0 <= occupancy_s <= duration_s``; NaN where the network times the meeting
    stream : length N, or `NONE` for a task that holds no stream
    priority : length N
    users : length N, the tasks that depend on each
    num_dependencies : length N
    meeting : length N, or `NONE`
    meeting_size : length M, members that must come
    meeting_wires : length M, the wires that each meeting holds
    wire_s : length M, how long it holds each of them at the most; empty if until its members let go of their streams
    issue_s : length N, the time before which each task cannot start; empty if there is no such time
    """

    duration_s: Sequence[float]
    occupancy_s: Sequence[float]
    stream: Sequence[int]
    priority: Sequence[int]
    users: Sequence[Sequence[int]]
    num_dependencies: Sequence[int]
    instance: Sequence[int]
    instance_size: Sequence[int]
    instance_links: Sequence[tuple[int, ...]]
    issue_s: Sequence[float] = ()
    wire_s: Sequence[tuple[float, ...]] = ()


class Network(Protocol):
    """What times the meetings that have no duration of their own."""

    def come(self, instance: int, task: int, now_s: float) -> None:
        """Let a task come to a meeting, whether or not all others have."""
        ...

    def begin(self, instance: int, now_s: float) -> None:
        """Let a meeting begin."""
        ...

    def advance(self, until_s: float) -> tuple[float, list[int], list[int]]:
        """Advance until meetings let go of their streams early or are done; return the time, and those of each.

        If there are none up to `until_s`, that time and no meetings.
        """
        ...


@dataclass(frozen=True)
class Times:
    """When each of N tasks ran. A task that never started has a NaN start; `cause` is what it last waited for."""

    start_s: Floats
    end_s: Floats
    cause: Ints
    posted: Ints
    """(N,) 1 where a task came to a meeting that never began, else 0."""
    released_s: Floats
    """(N,) when it let go of its stream."""


@dataclass
class _State:
    tasks: Tasks
    network: Network | None = None
    now_s: float = 0.0
    start_s: list[float] = field(default_factory=list)
    released_s: dict[int, float] = field(default_factory=dict)
    done_s: dict[int, float] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    ready_cause: list[int] = field(default_factory=list)
    cause: list[int] = field(default_factory=list)
    ready: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    holder: dict[int, int] = field(default_factory=dict)
    freed: dict[int, tuple[float, int]] = field(default_factory=dict)
    wire_holder: dict[int, int] = field(default_factory=dict)
    wire_freed: dict[int, tuple[float, int]] = field(default_factory=dict)
    held_up: dict[int, list[tuple[int, int]]] = field(
        default_factory=dict
    )  # wire to the heap of meetings held up by it
    come: dict[int, list[int]] = field(default_factory=dict)  # until the network is done with a meeting
    queue: list[tuple[int, int]] = field(default_factory=list)
    events: list[tuple[float, int, int]] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)  # streams to look at


_RELEASE, _DONE, _BOTH, _ISSUED, _WIRES = 0, 1, 2, 3, 4
_NEVER = (-1.0, NONE)


def run(tasks: Tasks, network: Network | None = None) -> Times:
    """Run the clock until nothing moves any more.

    Parameters
    ----------
    tasks : Tasks
    network : Network, optional
        Needed if a meeting's tasks have no duration.

    Returns
    -------
    Times
        Tasks that wait for each other, or for a member that never comes, have not started: the caller knows
        their names and tells the user.
    """
    size = len(tasks.duration_s)
    state = _State(
        tasks,
        network,
        start_s=[np.nan] * size,
        waiting=list(tasks.num_dependencies),
        ready_cause=[NONE] * size,
        cause=[NONE] * size,
    )
    for task, count in enumerate(tasks.num_dependencies):
        if count == 0:
            _make_ready(state, task)
    _issue(state)
    events = state.events
    while True:
        state.now_s = events[0][0] if events else math.inf
        if network is not None:
            _advance(state, network)
        now_s = state.now_s
        if now_s == math.inf:
            break
        while events and events[0][0] == now_s:
            _, task, kind = heapq.heappop(events)
            if kind == _ISSUED:
                _make_ready(state, task)
            elif kind == _WIRES:
                _free_wires(state, task)
            else:
                if kind != _DONE:
                    _release(state, task)
                if kind != _RELEASE:
                    _complete(state, task)
        _issue(state)
    start = np.array(state.start_s)
    posted = np.zeros(size, np.int64)
    came = [task for members in state.come.values() for task in members]
    posted[came] = np.isnan(start[came])
    end, released = start + np.array(tasks.duration_s), start + np.array(tasks.occupancy_s)
    for known, times in ((state.done_s, end), (state.released_s, released)):
        times[list(known)] = list(known.values())
    return Times(start, end, np.array(state.cause, np.int64), posted, released)


def _advance(state: _State, network: Network) -> None:
    """Let the network advance, but not beyond now, and turn the clock to when something happened there.

    Release and complete the tasks of its meetings.
    """
    now_s, released, done = network.advance(state.now_s)
    state.now_s = now_s
    for instance in released:
        for task in sorted(state.come[instance]):
            state.released_s[task] = now_s
            _release(state, task)
    for instance in done:
        for task in sorted(state.come.pop(instance)):
            if task not in state.released_s:
                state.released_s[task] = now_s
                _release(state, task)
            state.done_s[task] = now_s
            _complete(state, task)


def _make_ready(state: _State, task: int) -> None:
    """Queue a ready task on its stream, or start it if it needs none.

    One that the host has not issued yet comes back when it has; nothing that ran is then the cause of its start.
    """
    tasks = state.tasks
    if tasks.issue_s and tasks.issue_s[task] > state.now_s:
        state.ready_cause[task] = NONE
        heapq.heappush(state.events, (tasks.issue_s[task], task, _ISSUED))
        return
    stream = tasks.stream[task]
    if stream == NONE:
        _start(state, task)
        return
    heapq.heappush(state.ready.setdefault(stream, []), (-tasks.priority[task], task))
    state.touched.add(stream)


def _issue(state: _State) -> None:
    """Let free streams take their next task, then let meetings that are complete take their wires."""
    tasks, now_s = state.tasks, state.now_s
    for stream in sorted(state.touched):
        ready = state.ready.get(stream)
        if not ready or stream in state.holder:
            continue
        _, task = heapq.heappop(ready)
        state.holder[stream] = task
        freed_s, by = state.freed.get(stream, _NEVER)
        # Whatever came last let the task start: the stream's last holder, or the task's last dependency.
        state.cause[task] = by if freed_s == now_s and by != NONE else state.ready_cause[task]
        instance = tasks.instance[task]
        if instance == NONE:
            _start(state, task)
            continue
        if state.network is not None:
            state.network.come(instance, task, now_s)
        _come(state, instance, task)
    state.touched.clear()
    if state.queue:
        _start_instances(state)


def _come(state: _State, instance: int, task: int) -> None:
    """Let a task come to its meeting, which is queued when it is complete."""
    come = state.come.setdefault(instance, [])
    come.append(task)
    if len(come) == state.tasks.instance_size[instance]:
        priority = max(map(state.tasks.priority.__getitem__, come))
        heapq.heappush(state.queue, (-priority, instance))


def _start_instances(state: _State) -> None:
    """Start complete meetings whose wires are free, the highest priority of a member first, then the lowest index."""
    tasks, now_s, holder = state.tasks, state.now_s, state.wire_holder
    while state.queue:
        entry = heapq.heappop(state.queue)
        instance = entry[1]
        members = state.come[instance]
        last = members[-1]
        cause = state.cause[last]
        wires = tasks.instance_links[instance]
        if wires:
            if not holder.keys().isdisjoint(wires):
                taken = next(wire for wire in wires if wire in holder)
                heapq.heappush(state.held_up.setdefault(taken, []), entry)
                for wire in wires:
                    if wire not in holder:
                        _look_again(state, wire)
                continue
            freed_s, by = max([state.wire_freed.get(wire, _NEVER) for wire in wires])
            cause = by if by != NONE and freed_s == now_s else cause
            holder.update(dict.fromkeys(wires, instance))
            for hold_s in set(tasks.wire_s[instance] if tasks.wire_s else ()) - {math.inf}:
                heapq.heappush(state.events, (now_s + hold_s, instance, _WIRES))
        for task in members:
            state.cause[task] = cause
            _start(state, task)
        if math.isnan(tasks.duration_s[last]):
            assert state.network is not None
            state.network.begin(instance, now_s)


def _look_again(state: _State, wire: int) -> None:
    """Queue the first of the meetings that a wire, now free, has held up; if it does not start, the next follows."""
    if state.held_up.get(wire):
        heapq.heappush(state.queue, heapq.heappop(state.held_up[wire]))


def _start(state: _State, task: int) -> None:
    now_s, tasks = state.now_s, state.tasks
    state.start_s[task] = now_s
    if tasks.stream[task] == NONE:
        state.cause[task] = state.ready_cause[task]
    duration_s, occupancy_s = tasks.duration_s[task], tasks.occupancy_s[task]
    if math.isnan(duration_s):
        return  # the network says when it is done
    if occupancy_s == duration_s:
        heapq.heappush(state.events, (now_s + duration_s, task, _BOTH))
    else:
        heapq.heappush(state.events, (now_s + occupancy_s, task, _RELEASE))
        heapq.heappush(state.events, (now_s + duration_s, task, _DONE))


def _release(state: _State, task: int) -> None:
    """Free a task's stream and, with the first member of a meeting, its wires."""
    tasks = state.tasks
    instance, stream = tasks.instance[task], tasks.stream[task]
    if instance != NONE:
        for wire in tasks.instance_links[instance]:
            if state.wire_holder.get(wire) == instance:
                _free(state, wire, task)
    if stream != NONE:
        del state.holder[stream]
        state.freed[stream] = (state.now_s, task)
        state.touched.add(stream)


def _free_wires(state: _State, instance: int) -> None:
    """Free those wires of a meeting that it has held as long as it needs them."""
    first = state.come[instance][0]
    for wire, hold_s in zip(state.tasks.instance_links[instance], state.tasks.wire_s[instance], strict=True):
        if state.start_s[first] + hold_s <= state.now_s and state.wire_holder.get(wire) == instance:
            _free(state, wire, first)


def _free(state: _State, wire: int, task: int) -> None:
    del state.wire_holder[wire]
    state.wire_freed[wire] = (state.now_s, task)
    _look_again(state, wire)


def _complete(state: _State, task: int) -> None:
    waiting, cause = state.waiting, state.ready_cause
    for user in state.tasks.users[task]:
        waiting[user] -= 1
        cause[user] = task
        if waiting[user] == 0:
            _make_ready(state, user)
