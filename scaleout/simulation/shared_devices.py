"""Kernels, collectives and messages that share devices: the timer of contention.

What runs has a rate, given by `contention`, which changes when something arrives, starts or ends on the same device. A
transfer has a duration of its own, which its rate stretches (alpha-beta), or another timer times it (links) and is told
the rate as a speed. Races for SMs, SMs that are released early and communicators are as docs/models/contention.md says.
A device is a class of ranks; kernels, collectives and messages are instances of the engine, whose `Timer` this is.

Source: profiles of chunked GEMMs on two H200, `traces/h200-pair-unseen/profiles.jsonl`.
"""

import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from scaleout.program.graph import NONE, Bools, Floats, Ints
from scaleout.program.operations import Kernel
from scaleout.simulation.contention import Contention


@dataclass(slots=True)
class Running:
    """A kernel or a transfer, and its rate.

    Attributes
    ----------
    left_s : isolated time that is left of it; infinite if another timer times it
    kernel : a kernel and its isolated time; None for a transfer
    posted : devices on which a transfer was launched long before, by something that waits for it in turn: it holds SMs
        from its start there, and waits for none
    races : whether it competes with kernels that start when it arrives
    communicator : transfers of one are one kernel of as many channels as the widest; `NONE` is one of its own
    """

    devices: tuple[int, ...]
    left_s: float
    kernel: tuple[Kernel | None, float] | None = None
    channels: int = 0
    posted: frozenset[int] = frozenset()
    races: bool = False
    communicator: int = NONE
    started_s: float = 0.0
    held_sms: int = 0
    held_by: frozenset[int] = frozenset()
    """Transfers that held SMs when it started, as long as one of them does."""
    won: bool = False
    """Whether it won a race on some rank."""
    spares: set[int] | None = None
    """Transfers that hold only SMs that it does not need any more; None as long as it needs all."""
    rate: float = 0.0
    since_s: float = 0.0
    version: int = 0


@dataclass(slots=True)
class _Arrival:
    """A transfer that has arrived at a device: the kernels that it waits for, and those that it races for its SMs."""

    behind: set[int]
    event_s: float = math.nan
    """When an event let it arrive; NaN where it follows another transfer."""
    races: set[int] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class Sharing:
    """What shares devices: A kernels of K kinds, and T transfers with P pairs of a transfer and a device.

    Attributes
    ----------
    kernels : (K,) kernels and their isolated times
    kernel_instance, kernel_device, kernel_kind, kernel_issue_s : (A,)
    transfer_instance : (T,)
    lasts_s : (T,) isolated time; infinite if another timer times it
    channels, races, communicator : (T,) see `Running`
    pair_offsets : (T + 1,) first pair of each transfer
    pair_device : (P,)
    pair_posted : (P,) whether the transfer was launched there long before
    waiting, waiting_pair : (W,) tasks that wait for the others, and where
    """

    kernels: Sequence[tuple[Kernel | None, float]]
    kernel_instance: Ints
    kernel_device: Ints
    kernel_kind: Ints
    kernel_issue_s: Floats
    transfer_instance: Ints
    lasts_s: Floats
    channels: Ints
    races: Bools
    communicator: Ints
    pair_offsets: Ints
    pair_device: Ints
    pair_posted: Bools
    waiting: Ints
    waiting_pair: Ints


_NONE, _WHOLE, _YES = np.zeros(0), np.zeros(0, np.int64), np.zeros(0, bool)
NOTHING_SHARED = Sharing(
    (), _WHOLE, _WHOLE, _WHOLE, _NONE, _WHOLE, _NONE, _WHOLE, _YES, _WHOLE, np.zeros(1, np.int64), _WHOLE, _YES, _WHOLE,
    _WHOLE,
)  # fmt: skip


class SharedDevices:
    """Kernels and transfers that share devices.

    `set_speed` tells the timer of transfers with no duration of their own the speed of one of them, at a time: a
    fraction of its isolated rate, and 0 while it waits for SMs.
    """

    def __init__(self, contention: Contention, set_speed: Callable[[int, float, float], None] | None = None) -> None:
        self.contention = contention
        self._set_speed = set_speed
        self._registered_kernels: dict[int, tuple[int, tuple[Kernel | None, float], float]] = {}
        """Instance to a kernel's device, to itself and its isolated time, and to when the host issues it."""
        self._registered: dict[int, Running] = {}
        self._device_of: dict[int, int] = {}
        self._running: dict[int, Running] = {}
        self._kernels: dict[int, list[int]] = {}
        """Device to the kernels that run on it."""
        self._arrived: dict[int, dict[int, _Arrival]] = {}
        """Device to the transfers that arrived at it."""
        self._freed_s: dict[int, float] = {}
        """Device to when a transfer ended there last."""
        self._raced_s: dict[int, float] = {}
        """Device to when a kernel ended there that had won a race on some rank."""
        self._ends: list[tuple[float, int, int]] = []
        self._spared: list[tuple[float, int, bool]] = []
        """When a running kernel leaves SMs to transfers, and whether as it ended where it won a race."""
        self._ended: Sequence[int] = ()
        """Transfers that another timer has ended at the time that is to be advanced to."""
        self._changed: set[int] = set()
        """Devices on which something has changed since rates were set."""
        self._changed_s = 0.0
        self._slowed: dict[tuple[object, ...], float] = {}
        self._slows: dict[tuple[object, ...], float] = {}

    @classmethod
    def of(
        cls, contention: Contention, sharing: Sharing, set_speed: Callable[[int, float, float], None] | None
    ) -> "SharedDevices":
        """Register all that shares devices."""
        found = cls(contention, set_speed)
        columns = (sharing.kernel_instance, sharing.kernel_device, sharing.kernel_kind, sharing.kernel_issue_s)
        for instance, device, kind, issue_s in zip(*[column.tolist() for column in columns], strict=True):
            found._registered_kernels[instance] = device, sharing.kernels[kind], issue_s
        rows = zip(
            pairwise(sharing.pair_offsets.tolist()), sharing.transfer_instance.tolist(), sharing.lasts_s.tolist(),
            sharing.channels.tolist(), sharing.races.tolist(), sharing.communicator.tolist(), strict=True,
        )  # fmt: skip
        for (begin, end), instance, lasts_s, channels, races, communicator in rows:
            devices = sharing.pair_device[begin:end]
            posted = frozenset(devices[sharing.pair_posted[begin:end]].tolist())
            rest = (channels, posted, races, communicator)
            found.register_transfer(instance, Running(tuple(devices.tolist()), lasts_s, None, *rest))
        at = sharing.pair_device[sharing.waiting_pair].tolist()
        found._device_of.update(zip(sharing.waiting.tolist(), at, strict=True))
        return found

    def register_kernel(
        self, instance: int, device: int, kernel: Kernel | None, duration_s: float, *, issue_s: float = 0.0
    ) -> None:
        """Register a kernel on a device, which the host issues at a time; 0 if no host issues calls."""
        self._registered_kernels[instance] = device, (kernel, duration_s), issue_s

    def register_transfer(self, instance: int, transfer: Running, device_of: Mapping[int, int] | None = None) -> None:
        """Register a collective or a message, and where each of its tasks runs that waits for the others there."""
        self._registered[instance] = transfer
        self._device_of |= device_of or {}

    def arrive(self, instance: int, task: int, now_s: float) -> None:
        """Let a member arrive at a transfer: it waits for the kernels that run there, then its channels hold SMs."""
        if task in self._device_of:
            device = self._device_of[task]
            races = self._registered[instance].races and self._freed_s.get(device) != now_s
            event_s = now_s if races else math.nan
            self._add_arrival(instance, device, _Arrival(self._ahead(instance, device), event_s))
            self._change((device,), now_s)

    def _ahead(self, instance: int, device: int) -> set[int]:
        """Kernels that a transfer waits for on a device; the others leave it the SMs that they do not need."""
        ahead: set[int] = set()
        for found in self._kernels.get(device, ()):
            spares = self._running[found].spares
            if spares is None:
                ahead.add(found)
            else:
                spares.add(instance)
        return ahead

    def _add_arrival(self, instance: int, device: int, arrival: _Arrival) -> None:
        self._arrived.setdefault(device, {}).setdefault(instance, arrival)

    def start(self, instance: int, now_s: float) -> None:
        """Start a kernel or a transfer, if it was registered here."""
        if instance in self._registered_kernels:
            self._start_kernel(instance, now_s)
            return
        if instance not in self._registered:
            return
        entry = self._running[instance] = self._registered.pop(instance)
        entry.since_s = entry.started_s = now_s
        for device in entry.devices:
            if instance not in self._arrived.get(device, ()):
                self._add_arrival(
                    instance, device, _Arrival(set() if device in entry.posted else self._ahead(instance, device))
                )
        self._change(entry.devices, now_s)

    def _start_kernel(self, instance: int, now_s: float) -> None:
        device, kernel, issue_s = self._registered_kernels.pop(instance)
        entry = self._running[instance] = Running((device,), kernel[1], kernel, since_s=now_s, started_s=now_s)
        self._kernels.setdefault(device, []).append(instance)
        self._change((device,), now_s)
        arrived = self._arrived.get(device)
        if not arrived:
            return
        is_queued = 0 < issue_s <= now_s - self.contention.resource_use.queue_s
        if self._raced_s.get(device) == now_s:  # where the kernel before won, this one has started long ago
            for arrival in arrived.values():
                if arrival.event_s == now_s:
                    arrival.behind.add(instance)
        held = [found for found, arrival in arrived.items() if not arrival.behind]
        entry.held_by, entry.held_sms = frozenset(held), sum(channels for channels, _ in self._held(device))
        for found in held:
            if is_queued and arrived[found].event_s == now_s:
                arrived[found].races.add(instance)
                entry.won = True
                heapq.heappush(self._spared, (now_s + entry.left_s, instance, True))

    def next_s(self) -> float:
        """Return when the next kernel or transfer ends, or a kernel leaves SMs to transfers."""
        self._set_rates()
        return min(self._next_end_s(), self._spared[0][0] if self._spared else math.inf)

    def _next_end_s(self) -> float:
        ends = self._ends
        while ends and self._is_stale(ends[0]):
            heapq.heappop(ends)
        return ends[0][0] if ends else math.inf

    def end(self, instances: Sequence[int], now_s: float) -> None:
        """Take note of transfers that another timer has ended; they end together with what ends here at that time."""
        self._ended = [instance for instance in instances if instance in self._running]

    def advance(self, until_s: float) -> tuple[float, list[int], list[int]]:
        """Advance to the next end, but not beyond a time; return the time, and what is done then."""
        self._set_rates()
        ends, spared = self._ends, self._spared
        while True:
            end_s = until_s if self._ended else self._next_end_s()
            if not spared or spared[0][0] > until_s or spared[0][0] >= end_s:
                break
            self._spare(*heapq.heappop(spared))
            self._set_rates()
        if not self._ended and (not ends or end_s > until_s):
            return until_s, [], []
        done: list[int] = []
        while ends and ends[0][0] == end_s:
            entry = heapq.heappop(ends)
            if not self._is_stale(entry):
                done.append(entry[1])
        self._end([*done, *self._ended], end_s)
        self._ended = ()
        return end_s, [], sorted(done)

    def _is_stale(self, end: tuple[float, int, int]) -> bool:
        running = self._running.get(end[1])
        return running is None or running.version != end[2]

    def _end(self, done: list[int], now_s: float) -> None:
        for instance in done:
            entry = self._running.pop(instance)
            for device in entry.devices:
                if entry.kernel is None:
                    del self._arrived[device][instance]
                    self._freed_s[device] = now_s
                    self._free(device, instance, now_s)
                    self._change((device,), now_s)
                    continue
                self._kernels[device].remove(instance)
                if entry.won:
                    self._raced_s[device] = now_s
                if self._arrived.get(device):  # else only kernels run there, which take nothing from each other
                    for arrival in self._arrived[device].values():
                        arrival.behind.discard(instance)
                        arrival.races.discard(instance)
                    self._change((device,), now_s)

    def _free(self, device: int, transfer: int, now_s: float) -> None:
        """Let GEMMs use all SMs that they lacked because a transfer held them since they started."""
        for found in self._kernels.get(device, ()):
            entry = self._running[found]
            if entry.kernel is None or transfer not in entry.held_by:
                continue
            entry.held_by -= {transfer}
            held_s = now_s - entry.started_s
            freed = self.contention.freed_s(*entry.kernel, num_sms=entry.held_sms, held_s=held_s)
            if not entry.held_by and freed is not None:
                whole_s, others_s = freed
                entry.left_s, entry.since_s, entry.rate = whole_s - held_s, now_s, 0.0
                if others_s < whole_s:
                    heapq.heappush(self._spared, (entry.started_s + others_s, found, False))

    def _spare(self, now_s: float, kernel: int, in_race: bool) -> None:
        """Free SMs of a running kernel: its last blocks started late, or it ended where it won a race."""
        entry = self._running.get(kernel)
        if entry is None:
            return
        (device,) = entry.devices
        arrivals = self._arrived.get(device, {})
        if not in_race:
            entry.spares = {found for found, arrival in arrivals.items() if kernel in arrival.behind}
        for arrival in arrivals.values():
            (arrival.races if in_race else arrival.behind).discard(kernel)
        self._change((device,), now_s)

    def _concurrent(self, device: int) -> set[int]:
        """Return all that runs on a device."""
        running = self._running
        return {*self._kernels.get(device, ()), *[found for found in self._arrived.get(device, ()) if found in running]}

    def _change(self, devices: Sequence[int], now_s: float) -> None:
        self._changed.update(devices)
        self._changed_s = now_s

    def _set_rates(self) -> None:
        """Give all that runs where something has changed the rates that what runs concurrently leaves."""
        now_s = self._changed_s
        instances = sorted(set[int]().union(*map(self._concurrent, self._changed)))
        self._changed.clear()
        for instance in instances:
            entry = self._running[instance]
            rate = self._kernel_rate(entry) if entry.kernel is not None else self._transfer_rate(instance, entry)
            if rate == entry.rate and entry.version:
                continue
            entry.left_s = max(0.0, entry.left_s - (now_s - entry.since_s) * entry.rate)
            entry.rate, entry.since_s, entry.version = rate, now_s, entry.version + 1
            if entry.left_s == math.inf:
                assert self._set_speed is not None, "who times this transfer?"
                self._set_speed(instance, rate, now_s)
            elif rate > 0:
                heapq.heappush(self._ends, (now_s + entry.left_s / rate, instance, entry.version))

    def _transfer_rate(self, instance: int, entry: Running) -> float:
        if self._waits(instance, entry):
            return 0.0
        concurrent = {
            self._running[found].kernel for device in entry.devices for found in self._kernels.get(device, ())
        }
        return 1.0 / max((self._slows_of(kernel, entry.channels) for kernel in concurrent if kernel), default=1.0)

    def _waits(self, instance: int, entry: Running) -> bool:
        """Whether a transfer at which all have arrived still waits for kernels somewhere."""
        arrivals = (self._arrived[device][instance] for device in entry.devices)
        return any(arrival.behind or arrival.races for arrival in arrivals)

    def _slows_of(self, kernel: tuple[Kernel | None, float], channels: int) -> float:
        key = (*kernel, channels)
        if key not in self._slows:
            (self._slows[key],) = self.contention.slows(kernel[0], [kernel[1]], channels=channels)
        return self._slows[key]

    def _kernel_rate(self, entry: Running) -> float:
        assert entry.kernel is not None
        held = self._held(entry.devices[0], spared=entry.spares or ())
        if not held:
            return 1.0
        key = (*entry.kernel, held)
        if key not in self._slowed:
            kernel, isolated_s = entry.kernel
            (self._slowed[key],) = self.contention.slowed_by(kernel, [isolated_s], held)
        return 1.0 / self._slowed[key]

    def _held(self, device: int, *, spared: Collection[int] = ()) -> tuple[tuple[int, bool], ...]:
        """Return the channels of each of the library's kernels on a device but some, and whether it moves bytes."""
        isolated: list[tuple[int, bool]] = []
        joint: dict[int, tuple[int, bool]] = {}
        for found, arrival in self._arrived.get(device, {}).items():
            if arrival.behind or found in spared:
                continue
            running = self._running.get(found)
            entry = running or self._registered[found]
            moves = running is not None and not self._waits(found, running)
            if entry.communicator == NONE:
                isolated.append((entry.channels, moves))
            else:
                channels, others_move = joint.get(entry.communicator, (0, False))
                joint[entry.communicator] = max(channels, entry.channels), others_move or moves
        return tuple(sorted((*isolated, *joint.values())))
