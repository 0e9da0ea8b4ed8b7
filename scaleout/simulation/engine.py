"""The event core in plain Python: tasks with dependencies, streams and ports to the times at which they start and end.

A *stream* runs one ready task at a time, by priority, then index. The tasks of an *instance* (a collective, one task a
member) hold their streams until every member has arrived and all *ports* of the instance are free; then all start.
What has no duration of its own is timed by links, by shared devices or by both: all are one queue of events. Ties are
broken by index: the same input gives the same bits. Knows no ranks, graphs or collectives. Compiled, it is `core`.

Source: Graham, SIAM J. Appl. Math. 17(2), 1969 (list scheduling). See docs/models/event-engine.md.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from scaleout.network.flow.instances import LinkNetwork
from scaleout.program.graph import NONE
from scaleout.simulation.columns import NOTHING_SHARED, Sharing, Tasks, Times
from scaleout.simulation.contention import Contention
from scaleout.simulation.shared_devices import SharedDevices

_RELEASE, _COMPLETE, _BOTH, _ISSUED, _PORTS = range(5)


def run(
    tasks: Tasks,
    sharing: Sharing = NOTHING_SHARED,
    contention: Contention | None = None,
    links: LinkNetwork | None = None,
) -> Times:
    """Run until nothing moves any more.

    Tasks that wait for each other, or for a member that never arrives, have not started: the caller tells the user.
    """
    set_speed = None if links is None else links.set_speed
    devices = None if contention is None else SharedDevices(contention, sharing, set_speed)
    return _Engine(tasks, devices, links).run()


@dataclass(slots=True)
class _Held:
    """A stream or a port: the task or instance that holds it, when and by which task it was freed last, and who waits.

    Ready tasks wait for a stream, and instances that are complete for one port at a time.
    """

    holder: int = NONE
    freed: tuple[float, int] = (-1.0, NONE)
    waiting: list[tuple[int, int]] = field(default_factory=list)  # heap by priority and index


class _Engine:
    """What has been done so far, and what is next."""

    def __init__(self, tasks: Tasks, devices: SharedDevices | None, links: LinkNetwork | None) -> None:
        self.devices, self.links, self.now_s = devices, links, 0.0
        # Python reads lists faster.
        self.duration_s, self.occupancy_s = tasks.duration_s.tolist(), tasks.occupancy_s.tolist()
        self.stream, self.priority = tasks.stream.tolist(), tasks.priority.tolist()
        self.issue_s, self.waiting = tasks.issue_s.tolist(), tasks.num_dependencies.tolist()
        self.first_user, self.users = tasks.user_offsets.tolist(), tasks.users.tolist()
        self.instance, self.instance_size = tasks.instance.tolist(), tasks.instance_size.tolist()
        self.first_port, self.port_s = tasks.port_offsets.tolist(), tasks.port_s.tolist()
        self.start_s, self.released_s, self.end_s = ([math.nan] * len(tasks) for _ in range(3))
        self.cause, self.ready_cause = ([NONE] * len(tasks) for _ in range(2))
        self.streams: dict[int, _Held] = defaultdict(_Held)
        self.ports = list(map(defaultdict[int, _Held](_Held).__getitem__, tasks.ports.tolist()))
        self.touched: set[int] = set()  # streams to look at
        self.arrived: dict[int, list[int]] = defaultdict(list)
        self.complete: list[tuple[int, int]] = []  # the heap of instances at which all have arrived
        self.events: list[tuple[float, int, int]] = []

    def run(self) -> Times:
        for task, waiting in enumerate(self.waiting):
            if not waiting:
                self.make_ready(task)
        self.take_streams()
        while self.advance():
            while self.events and self.events[0][0] == self.now_s:
                _, which, kind = heappop(self.events)
                if kind == _ISSUED:
                    self.make_ready(which)
                elif kind == _PORTS:
                    self.free_ports(which, self.arrived[which][0], self.now_s)
                else:
                    self.finish(which, kind)
            self.take_streams()
        start_s, posted = np.array(self.start_s), np.zeros(len(self.start_s), bool)
        arrived = [stream.holder for stream in self.streams.values() if stream.holder != NONE]
        posted[arrived] = np.isnan(start_s[arrived])
        return Times(start_s, np.array(self.end_s), np.array(self.cause, np.int32), posted, np.array(self.released_s))

    def advance(self) -> bool:
        """Go to the next event of all and end what links and devices end then; return False if there is none."""
        early: list[int] = []
        ended: list[int] = []
        now_s = self.events[0][0] if self.events else math.inf
        if self.devices is not None:
            now_s = min(now_s, self.devices.next_s())
        if self.links is not None:
            now_s, early, ended = self.links.advance(now_s)
        if self.devices is not None and now_s < math.inf:
            ended = ended + self.devices.advance(now_s, ended)
        self.now_s = now_s
        for instance in early:
            for task in sorted(self.arrived[instance]):
                self.finish(task, _RELEASE)
        for instance in ended:
            for task in sorted(self.arrived[instance]):
                self.finish(task, _BOTH if math.isnan(self.released_s[task]) else _COMPLETE)
        return now_s < math.inf

    def make_ready(self, task: int) -> None:
        """Queue a ready task on its stream, or start it if it needs none; one not issued yet comes back when it is."""
        stream = self.stream[task]
        if self.issue_s[task] > self.now_s:
            self.ready_cause[task] = NONE
            heappush(self.events, (self.issue_s[task], task, _ISSUED))
        elif stream == NONE:
            self.cause[task] = self.ready_cause[task]
            self.start(task)
        else:
            heappush(self.streams[stream].waiting, (-self.priority[task], task))
            self.touched.add(stream)

    def take_streams(self) -> None:
        """Let free streams take their next task, then let complete instances take their ports."""
        for number in sorted(self.touched):
            stream = self.streams[number]
            if stream.holder != NONE or not stream.waiting:
                continue
            stream.holder = task = heappop(stream.waiting)[1]
            # Whatever came last let the task start: the stream's last holder, or the task's last dependency.
            self.cause[task] = stream.freed[1] if stream.freed[0] == self.now_s else self.ready_cause[task]
            if self.instance[task] == NONE:
                self.start(task)
            else:
                self.arrive(self.instance[task], task)
        self.touched.clear()
        while self.complete:
            self.start_instance(*heappop(self.complete))

    def arrive(self, instance: int, task: int) -> None:
        """Let a task arrive at its instance, which is queued when it is complete."""
        if self.devices is not None:
            self.devices.arrive(instance, task, self.now_s)
        arrived = self.arrived[instance]
        arrived.append(task)
        if len(arrived) == self.instance_size[instance]:
            heappush(self.complete, (-max(self.priority[member] for member in arrived), instance))

    def start_instance(self, order: int, instance: int) -> None:
        """Start a complete instance if its ports are free; else it waits for the first that is taken."""
        its = slice(self.first_port[instance], self.first_port[instance + 1])
        ports, last = self.ports[its], self.arrived[instance][-1]
        taken = [port for port in ports if port.holder != NONE]
        if taken:
            heappush(taken[0].waiting, (order, instance))
            for port in ports:
                self.look_again(port)
            return
        freed_s, by = max((port.freed for port in ports), default=(-1.0, NONE))
        cause = by if freed_s == self.now_s else self.cause[last]
        for port in ports:
            port.holder = instance
        for hold_s in set(self.port_s[its]) - {math.inf}:
            heappush(self.events, (self.now_s + hold_s, instance, _PORTS))
        for task in self.arrived[instance]:
            self.cause[task] = cause
            self.start(task)
        if math.isnan(self.duration_s[last]):
            for others in (self.links, self.devices):
                if others is not None:
                    others.start(instance, self.now_s)

    def look_again(self, port: _Held) -> None:
        """Queue the first of the instances that a free port has held up; if it does not start, the next follows."""
        if port.waiting and port.holder == NONE:
            heappush(self.complete, heappop(port.waiting))

    def start(self, task: int) -> None:
        """Start a task; one without a duration ends when links or devices say so."""
        self.start_s[task] = self.now_s
        released_s, end_s = self.now_s + self.occupancy_s[task], self.now_s + self.duration_s[task]
        if released_s == end_s:
            heappush(self.events, (end_s, task, _BOTH))
        elif released_s < end_s:
            heappush(self.events, (released_s, task, _RELEASE))
            heappush(self.events, (end_s, task, _COMPLETE))

    def finish(self, task: int, kind: int) -> None:
        """Release a task's stream and, with an instance's first member, its ports; or let its users go; or both."""
        if kind != _COMPLETE:
            self.released_s[task] = self.now_s
            if self.instance[task] != NONE:
                self.free_ports(self.instance[task], task, math.inf)
            if self.stream[task] != NONE:
                stream = self.streams[self.stream[task]]
                stream.holder, stream.freed = NONE, (self.now_s, task)
                self.touched.add(self.stream[task])
        if kind != _RELEASE:
            self.end_s[task] = self.now_s
            for user in self.users[self.first_user[task] : self.first_user[task + 1]]:
                self.waiting[user] -= 1
                self.ready_cause[user] = task
                if not self.waiting[user]:
                    self.make_ready(user)

    def free_ports(self, instance: int, task: int, until_s: float) -> None:
        """Free the ports that an instance still holds and needs until some time at most."""
        for at in range(self.first_port[instance], self.first_port[instance + 1]):
            port = self.ports[at]
            if port.holder == instance and self.start_s[task] + self.port_s[at] <= until_s:
                port.holder, port.freed = NONE, (self.now_s, task)
                self.look_again(port)
