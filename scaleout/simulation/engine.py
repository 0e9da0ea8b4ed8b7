"""The engine: tasks with dependencies, streams and ports, to the times at which they start and end.

A *stream* runs one ready task at a time, by priority, then index. The tasks of an *instance* (a collective, one task a
member) hold their streams until every member has arrived and all *ports* of the instance are free; then all start.
What has no duration of its own, such as flows over shared links, a `Timer` times: engine and timers are one queue of
events. Ties are broken by index: the same input gives the same bits. Knows no ranks, graphs or collectives.

Source: Graham, SIAM J. Appl. Math. 17(2), 1969 (list scheduling). See docs/models/event-engine.md.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, NamedTuple, Protocol

import numpy as np

from scaleout.program.graph import NONE, Floats, Ints


def offsets_of(sizes: Ints) -> Ints:
    """Return where rows of (N,) sizes that lie one behind another begin and end, (N + 1,)."""
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Tasks:
    """What the engine runs, for N tasks, E dependencies, M instances and Q ports that they hold.

    Attributes
    ----------
    duration_s, occupancy_s : (N,), with ``0 <= occupancy_s <= duration_s``; NaN where a timer times the instance
    stream : (N,), or `NONE` for a task that holds no stream
    priority : (N,)
    user_offsets, users : (N + 1,) and (E,), the tasks that depend on each
    num_dependencies : (N,)
    instance : (N,), or `NONE`
    instance_size : (M,), members that must arrive
    port_offsets, ports : (M + 1,) and (Q,), the ports that each instance holds
    port_s : (Q,), how long it holds each of them at most; infinite for as long as its streams
    issue_s : (N,), the time before which each task cannot start
    """

    duration_s: Floats
    occupancy_s: Floats
    stream: Ints
    priority: Ints
    user_offsets: Ints
    users: Ints
    num_dependencies: Ints
    instance: Ints
    instance_size: Ints
    port_offsets: Ints
    ports: Ints
    port_s: Floats
    issue_s: Floats

    def __len__(self) -> int:
        return len(self.duration_s)

    @classmethod
    def of(
        cls,
        duration_s: Sequence[float],
        stream: Sequence[int],
        users: Sequence[Sequence[int]] = (),
        **columns: Sequence[Any],
    ) -> "Tasks":
        """Return tasks from lists; what is left out of the columns is zero, none or, for `occupancy_s`, `duration_s`.

        `instance_ports` and `port_s` have a list for each instance.
        """
        size, rows = len(duration_s), users or [()] * len(duration_s)
        sizes = columns.get("instance_size", ())
        ports = columns.get("instance_ports") or [()] * len(sizes)
        port_s = columns.get("port_s") or [(math.inf,) * len(held) for held in ports]
        flat = np.array(list(chain.from_iterable(rows)), np.int64)
        return cls(
            np.array(duration_s, np.float64),
            np.array(columns.get("occupancy_s") or duration_s, np.float64),
            np.array(stream, np.int64),
            np.array(columns.get("priority") or [0] * size, np.int64),
            np.cumsum([0, *map(len, rows)]),
            flat,
            np.bincount(flat, minlength=size),
            np.array(columns.get("instance") or [NONE] * size, np.int64),
            np.array(sizes, np.int64),
            np.cumsum([0, *map(len, ports)]),
            np.array(list(chain.from_iterable(ports)), np.int64),
            np.array(list(chain.from_iterable(port_s)), np.float64),
            np.array(columns.get("issue_s") or [0.0] * size, np.float64),
        )


class Timer(Protocol):
    """Times instances whose duration depends on what else runs.

    The engine tells every timer of every instance without a duration; a timer ignores those not registered with it. An
    instance that is registered with several ends when one of them says so, and the engine tells the others.
    """

    def arrive(self, instance: int, task: int, now_s: float) -> None:
        """Take note that a task has arrived at an instance, whether or not all others have."""
        ...

    def start(self, instance: int, now_s: float) -> None:
        """Start an instance, at which all its tasks have arrived."""
        ...

    def next_s(self) -> float:
        """Return the time of the next event here; no other timer may be further by then."""
        ...

    def advance(self, until_s: float) -> tuple[float, list[int], list[int]]:
        """Advance; return the time (`until_s` if nothing happens), instances that release streams, and those done."""
        ...

    def end(self, instances: Sequence[int], now_s: float) -> None:
        """Take note of instances that another timer has ended; `advance` to the same time follows."""
        ...


@dataclass(frozen=True)
class Times:
    """When each of N tasks ran. A task that never started has a NaN start; `cause` is what it last waited for."""

    start_s: Floats
    end_s: Floats
    cause: Ints
    posted: Ints
    """(N,) 1 where a task arrived at an instance that never started, else 0."""
    released_s: Floats
    """(N,) when it released its stream."""


class _Lists(NamedTuple):
    """Tasks as lists, which Python reads faster; users and ports of each are a list of their own."""

    duration_s: list[float]
    occupancy_s: list[float]
    stream: list[int]
    priority: list[int]
    users: list[list[int]]
    instance: list[int]
    instance_size: list[int]
    instance_ports: list[list[int]]
    port_s: list[list[float]]
    issue_s: list[float]


def _lists(tasks: Tasks) -> _Lists:
    def rows(offsets: Ints, values: Any) -> list[list[Any]]:
        ends = offsets.tolist()
        return list(map(values.tolist().__getitem__, map(slice, ends[:-1], ends[1:])))

    return _Lists(
        tasks.duration_s.tolist(),
        tasks.occupancy_s.tolist(),
        tasks.stream.tolist(),
        tasks.priority.tolist(),
        rows(tasks.user_offsets, tasks.users),
        tasks.instance.tolist(),
        tasks.instance_size.tolist(),
        rows(tasks.port_offsets, tasks.ports),
        rows(tasks.port_offsets, tasks.port_s),
        tasks.issue_s.tolist() if tasks.issue_s.any() else [],
    )


@dataclass
class _State:
    tasks: _Lists
    timers: Sequence[Timer] = ()
    neighbours: Sequence[tuple[Timer, Sequence[Timer], Sequence[Timer]]] = ()  # each, those before and those after it
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
    port_holder: dict[int, int] = field(default_factory=dict)
    port_freed: dict[int, tuple[float, int]] = field(default_factory=dict)
    held_up: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # port to the heap of instances waiting
    arrived: dict[int, list[int]] = field(default_factory=dict)  # kept until a timer is done with an instance
    queue: list[tuple[int, int]] = field(default_factory=list)
    events: list[tuple[float, int, int]] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)  # streams to look at


_RELEASE, _DONE, _BOTH, _ISSUED, _PORTS = 0, 1, 2, 3, 4
_NEVER = (-1.0, NONE)


def run(tasks: Tasks, timers: Sequence[Timer] = ()) -> Times:
    """Run until nothing moves any more.

    Parameters
    ----------
    timers : sequence of Timer, optional
        What times the instances that have no duration of their own. A timer that sets the speed of work in another
        one follows it, so that both are at the same time when it does.

    Returns
    -------
    Times
        Tasks that wait for each other, or for a member that never arrives, have not started: the caller tells the user.
    """
    size, waiting = len(tasks), tasks.num_dependencies.tolist()
    state = _State(
        _lists(tasks),
        timers,
        [(timer, timers[:index], timers[index + 1 :]) for index, timer in enumerate(timers)],
        start_s=[np.nan] * size,
        waiting=waiting,
        ready_cause=[NONE] * size,
        cause=[NONE] * size,
    )
    for task in np.flatnonzero(tasks.num_dependencies == 0).tolist():
        _make_ready(state, task)
    _issue(state)
    events = state.events
    while True:
        state.now_s = events[0][0] if events else math.inf
        if timers:
            _advance(state)
        now_s = state.now_s
        if now_s == math.inf:
            break
        while events and events[0][0] == now_s:
            _, task, kind = heapq.heappop(events)
            if kind == _ISSUED:
                _make_ready(state, task)
            elif kind == _PORTS:
                _free_ports(state, task)
            else:
                if kind != _DONE:
                    _release(state, task)
                if kind != _RELEASE:
                    _complete(state, task)
        _issue(state)
    start = np.array(state.start_s)
    posted = np.zeros(size, np.int64)
    arrived = [task for members in state.arrived.values() for task in members]
    posted[arrived] = np.isnan(start[arrived])
    end, released = start + tasks.duration_s, start + tasks.occupancy_s
    for known, times in ((state.done_s, end), (state.released_s, released)):
        times[list(known)] = list(known.values())
    return Times(start, end, np.array(state.cause, np.int64), posted, released)


def _advance(state: _State) -> None:
    """Advance all timers, none beyond the next event of those after it, and set the time; then release and complete."""
    ended: list[int] = []
    early: list[int] = []
    now_s = state.now_s
    for timer, earlier, later in state.neighbours:
        for other in later:
            now_s = min(now_s, other.next_s())
        now_s, released, done = timer.advance(now_s)
        early += released
        ended += done
        if done:
            for other in (*earlier, *later):
                other.end(done, now_s)
    state.now_s = now_s
    for instance in early:
        for task in sorted(state.arrived[instance]):
            state.released_s[task] = now_s
            _release(state, task)
    for instance in ended:
        for task in sorted(state.arrived.pop(instance)):
            if task not in state.released_s:
                state.released_s[task] = now_s
                _release(state, task)
            state.done_s[task] = now_s
            _complete(state, task)


def _make_ready(state: _State, task: int) -> None:
    """Queue a ready task on its stream, or start it if it needs none; one not issued yet comes back when it is."""
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
    """Let free streams take their next task, then let complete instances take their ports."""
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
        for timer in state.timers:
            timer.arrive(instance, task, now_s)
        _arrive(state, instance, task)
    state.touched.clear()
    if state.queue:
        _start_instances(state)


def _arrive(state: _State, instance: int, task: int) -> None:
    """Let a task arrive at its instance, which is queued when it is complete."""
    arrived = state.arrived.setdefault(instance, [])
    arrived.append(task)
    if len(arrived) == state.tasks.instance_size[instance]:
        priority = max(map(state.tasks.priority.__getitem__, arrived))
        heapq.heappush(state.queue, (-priority, instance))


def _start_instances(state: _State) -> None:
    """Start complete instances whose ports are free, the highest priority of a member first, then the lowest index."""
    tasks, now_s, holder = state.tasks, state.now_s, state.port_holder
    while state.queue:
        entry = heapq.heappop(state.queue)
        instance = entry[1]
        members = state.arrived[instance]
        last = members[-1]
        cause = state.cause[last]
        ports = tasks.instance_ports[instance]
        if ports:
            if not holder.keys().isdisjoint(ports):
                taken = next(port for port in ports if port in holder)
                heapq.heappush(state.held_up.setdefault(taken, []), entry)
                for port in ports:
                    if port not in holder:
                        _look_again(state, port)
                continue
            freed_s, by = max(map(state.port_freed.get, ports, repeat(_NEVER)))
            cause = by if by != NONE and freed_s == now_s else cause
            holder.update(dict.fromkeys(ports, instance))
            for hold_s in set(tasks.port_s[instance]) - {math.inf}:
                heapq.heappush(state.events, (now_s + hold_s, instance, _PORTS))
        for task in members:
            state.cause[task] = cause
            _start(state, task)
        if math.isnan(tasks.duration_s[last]):
            for timer in state.timers:
                timer.start(instance, now_s)


def _look_again(state: _State, port: int) -> None:
    """Queue the first of the instances that a port, now free, has held up; if it does not start, the next follows."""
    if state.held_up.get(port):
        heapq.heappush(state.queue, heapq.heappop(state.held_up[port]))


def _start(state: _State, task: int) -> None:
    now_s, tasks = state.now_s, state.tasks
    state.start_s[task] = now_s
    if tasks.stream[task] == NONE:
        state.cause[task] = state.ready_cause[task]
    duration_s, occupancy_s = tasks.duration_s[task], tasks.occupancy_s[task]
    if math.isnan(duration_s):
        return  # a timer says when it is done
    if occupancy_s == duration_s:
        heapq.heappush(state.events, (now_s + duration_s, task, _BOTH))
    else:
        heapq.heappush(state.events, (now_s + occupancy_s, task, _RELEASE))
        heapq.heappush(state.events, (now_s + duration_s, task, _DONE))


def _release(state: _State, task: int) -> None:
    """Release a task's stream and, with the first member of an instance, its ports."""
    tasks = state.tasks
    instance, stream = tasks.instance[task], tasks.stream[task]
    if instance != NONE:
        for port in tasks.instance_ports[instance]:
            if state.port_holder.get(port) == instance:
                _free(state, port, task)
    if stream != NONE:
        del state.holder[stream]
        state.freed[stream] = (state.now_s, task)
        state.touched.add(stream)


def _free_ports(state: _State, instance: int) -> None:
    """Free those ports of an instance that it has held as long as it needs them, unless a timer has ended it."""
    if instance not in state.arrived:
        return
    first = state.arrived[instance][0]
    for port, hold_s in zip(state.tasks.instance_ports[instance], state.tasks.port_s[instance], strict=True):
        if state.start_s[first] + hold_s <= state.now_s and state.port_holder.get(port) == instance:
            _free(state, port, first)


def _free(state: _State, port: int, task: int) -> None:
    del state.port_holder[port]
    state.port_freed[port] = (state.now_s, task)
    _look_again(state, port)


def _complete(state: _State, task: int) -> None:
    waiting, cause = state.waiting, state.ready_cause
    for user in state.tasks.users[task]:
        waiting[user] -= 1
        cause[user] = task
        if waiting[user] == 0:
            _make_ready(state, user)
