"""Kernels, collectives and messages that share devices, timed together as the clock goes.

What runs at the moment has a rate, which `contention` says, and rates change when something comes, starts or ends on
the same device. A rank that comes to a collective or a message waits for the kernels that fill its device to end, as
blocks start in the order of launches; from then on its channels hold their SMs, and it waits for the others. Once all
are there the bytes move. A communicator runs one kernel at a time on a device: messages of one, such as what a ring
sends and receives in a step, hold SMs and take bandwidth there once. Slices of fused operators are left out: they share
the device by construction.

A collective that waits for an event of the stream of kernels races the kernel that follows there, if that was issued
long enough ago to be in the queue. Ranks are not alike in this: on some the collective gets its SMs first, and holds
them until the others come; on some the kernel does, which nothing slows down, and the others wait for its end. A class
of ranks takes the worst of both: the SMs are held beside the kernel, and the bytes move when it would have ended alone.
The ranks on which it did have begun the next kernel then, and the next collective waits for that one: they race once,
and lag from there on. Without a host that issues calls one by one there is no queue, and the collective goes first.

Blocks of a product that got their SMs late end last. The other SMs are free meanwhile, and a transfer that waits for
the product gets them.

Source: profiles of products in chunks on two H200, `traces/h200-pair-unseen/profiles.jsonl`.

A device is a class of ranks. The `Network` that the clock asks (see `engine`): what comes, begins and ends here is a
meeting there.
"""

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from scaleout.program.graph import NONE
from scaleout.program.operations import Kernel
from scaleout.simulation.contention import Contention


@dataclass(slots=True)
class _Running:
    """A kernel, or a transfer of some channels, that has begun: what is left of it alone, and how fast it goes."""

    devices: tuple[int, ...]
    left_s: float
    kernel: tuple[Kernel | None, float] | None
    channels: int = 0
    posted: frozenset[int] = frozenset()
    races: bool = False
    communicator: int = NONE
    begun_s: float = 0.0
    held_sms: int = 0
    held_by: frozenset[int] = frozenset()
    """Transfers that held SMs when it began, as long as one of them does."""
    won: bool = False
    """Whether it won a race on some rank."""
    spares: set[int] | None = None
    """Transfers that hold only SMs that it does not need any more; None as long as it needs all."""
    rate: float = 0.0
    since_s: float = 0.0
    turn: int = 0


@dataclass(slots=True)
class _Stand:
    """Where a transfer stands on a device: the kernels that it comes behind, and those that it races for its SMs."""

    behind: set[int]
    event_s: float = math.nan
    """When an event let it come; NaN where it follows another transfer."""
    races: set[int] = field(default_factory=set)


class SharedDevices:
    """Kernels and transfers that share devices."""

    def __init__(self, contention: Contention) -> None:
        self.contention = contention
        self._kernel_offers: dict[int, tuple[int, tuple[Kernel | None, float], float]] = {}
        """Meeting to a kernel's device, to itself and its time alone, and to when the host issues it."""
        self._alike: dict[tuple[int, int, float, float], tuple[int, tuple[Kernel | None, float], float]] = {}
        """What was offered, each kernel of a device once: layers are alike."""
        self._offers: dict[int, _Running] = {}
        self._device_of: dict[int, int] = {}
        self._running: dict[int, _Running] = {}
        self._kernels: dict[int, list[int]] = {}
        """Device to the kernels that run on it."""
        self._arrived: dict[int, dict[int, _Stand]] = {}
        """Device to the transfers that came to it."""
        self._freed_s: dict[int, float] = {}
        """Device to when a transfer ended there last."""
        self._raced_s: dict[int, float] = {}
        """Device to when a kernel ended there that had won a race on some rank."""
        self._ends: list[tuple[float, int, int]] = []
        self._spared: list[tuple[float, int, bool]] = []
        """When a running kernel leaves SMs to transfers, and whether as it ended where it won a race."""
        self._slowed: dict[tuple[object, ...], float] = {}
        self._slows: dict[tuple[object, ...], float] = {}

    def offer_kernel(
        self, instance: int, device: int, kernel: Kernel | None, duration_s: float, *, issue_s: float = 0.0
    ) -> None:
        """Say what a meeting is: a kernel on a device, which the host issues at a time; 0 if no host issues calls."""
        key = (device, id(kernel), duration_s, issue_s)
        self._kernel_offers[instance] = self._alike.setdefault(key, (device, (kernel, duration_s), issue_s))

    def offer_transfer(
        self, instance: int, devices: Sequence[int], duration_s: float, *, channels: int,
        device_of: Mapping[int, int] | None = None, posted: Collection[int] = (), races: bool = False,
        communicator: int = NONE,
    ) -> None:  # fmt: skip
        """Say what a meeting is: a collective or a message over some devices.

        `device_of` says where each of its tasks runs that waits for the others there. On devices in `posted` it was
        launched long before, by something that waits for it in turn: it holds SMs from its begin, and waits for none.
        One that `races` does so with kernels that begin when it comes. Those of one `communicator` are one kernel of
        as many channels as the widest; `NONE` is a communicator of its own.
        """
        self._offers[instance] = _Running(
            tuple(devices), duration_s, None, channels, frozenset(posted), races, communicator
        )
        self._device_of |= device_of or {}

    def come(self, instance: int, task: int, now_s: float) -> None:
        """Let a member come to a transfer: it waits for the kernels that run there, then its channels hold SMs."""
        if task in self._device_of:
            device = self._device_of[task]
            races = self._offers[instance].races and self._freed_s.get(device) != now_s
            event_s = now_s if races else math.nan
            self._arrive(instance, device, _Stand(self._ahead(instance, device), event_s))
            self._turn(self._kernels.get(device, ()), now_s)

    def _ahead(self, instance: int, device: int) -> set[int]:
        """Return the kernels that a transfer comes behind on a device; the others spare it what they do not need."""
        ahead: set[int] = set()
        for found in self._kernels.get(device, ()):
            spares = self._running[found].spares
            if spares is None:
                ahead.add(found)
            else:
                spares.add(instance)
        return ahead

    def _arrive(self, instance: int, device: int, stand: _Stand) -> None:
        self._arrived.setdefault(device, {}).setdefault(instance, stand)

    def begin(self, instance: int, now_s: float) -> None:
        """Let a meeting begin."""
        if instance in self._kernel_offers:
            self._begin_kernel(instance, now_s)
            return
        entry = self._running[instance] = self._offers.pop(instance)
        entry.since_s = entry.begun_s = now_s
        for device in entry.devices:
            if instance not in self._arrived.get(device, ()):
                self._arrive(
                    instance, device, _Stand(set() if device in entry.posted else self._ahead(instance, device))
                )
        self._turn_around(instance, entry.devices, now_s)

    def _begin_kernel(self, instance: int, now_s: float) -> None:
        device, kernel, issue_s = self._kernel_offers.pop(instance)
        entry = self._running[instance] = _Running((device,), kernel[1], kernel, since_s=now_s, begun_s=now_s)
        self._kernels.setdefault(device, []).append(instance)
        arrived = self._arrived.get(device)
        if not arrived:
            self._turn((instance,), now_s)
            return
        is_queued = 0 < issue_s <= now_s - self.contention.resource_use.queue_s
        if self._raced_s.get(device) == now_s:  # where the kernel before won, this one has begun long ago
            for stand in arrived.values():
                if stand.event_s == now_s:
                    stand.behind.add(instance)
        held = [found for found, stand in arrived.items() if not stand.behind]
        entry.held_by, entry.held_sms = frozenset(held), sum(channels for channels, _ in self._held(device))
        for found in held:
            if is_queued and arrived[found].event_s == now_s:
                arrived[found].races.add(instance)
                entry.won = True
                heapq.heappush(self._spared, (now_s + entry.left_s, instance, True))
        self._turn_around(instance, entry.devices, now_s)

    def advance(self, until_s: float) -> tuple[float, list[int], list[int]]:
        """Advance to the next end, but not beyond a time; return the time, and what is done then."""
        ends, spared = self._ends, self._spared
        while True:
            while ends and self._is_stale(ends[0]):
                heapq.heappop(ends)
            end_s = ends[0][0] if ends else math.inf
            if not spared or spared[0][0] > until_s or spared[0][0] >= end_s:
                break
            self._spare(*heapq.heappop(spared))
        if not ends or end_s > until_s:
            return until_s, [], []
        now_s = ends[0][0]
        done: list[int] = []
        while ends and ends[0][0] == now_s:
            entry = heapq.heappop(ends)
            if not self._is_stale(entry):
                done.append(entry[1])
        self._end(done, now_s)
        return now_s, [], sorted(done)

    def _is_stale(self, end: tuple[float, int, int]) -> bool:
        running = self._running.get(end[1])
        return running is None or running.turn != end[2]

    def _end(self, done: list[int], now_s: float) -> None:
        beside: set[int] = set()
        for instance in done:
            entry = self._running.pop(instance)
            for device in entry.devices:
                if entry.kernel is None:
                    del self._arrived[device][instance]
                    self._freed_s[device] = now_s
                    self._free(device, instance, now_s)
                    beside |= self._beside(device)
                    continue
                self._kernels[device].remove(instance)
                if entry.won:
                    self._raced_s[device] = now_s
                if self._arrived.get(device):  # else nothing is beside it but kernels, which take nothing of each other
                    for stand in self._arrived[device].values():
                        stand.behind.discard(instance)
                        stand.races.discard(instance)
                    beside |= self._beside(device)
        if beside:
            self._turn(sorted(beside.difference(done)), now_s)

    def _free(self, device: int, transfer: int, now_s: float) -> None:
        """Let products go on over all SMs that lacked those of a transfer since they began."""
        for found in self._kernels.get(device, ()):
            entry = self._running[found]
            if entry.kernel is None or transfer not in entry.held_by:
                continue
            entry.held_by -= {transfer}
            held_s = now_s - entry.begun_s
            freed = self.contention.freed_s(*entry.kernel, num_sms=entry.held_sms, held_s=held_s)
            if not entry.held_by and freed is not None:
                whole_s, others_s = freed
                entry.left_s, entry.since_s, entry.rate = whole_s - held_s, now_s, 0.0
                if others_s < whole_s:
                    heapq.heappush(self._spared, (entry.begun_s + others_s, found, False))

    def _spare(self, now_s: float, kernel: int, in_race: bool) -> None:
        """Let transfers have SMs of a kernel that still runs.

        Those behind it, once only blocks are left that came late; or those that it raced, once it has ended where it
        won, as nothing slowed it down there.
        """
        entry = self._running.get(kernel)
        if entry is None:
            return
        (device,) = entry.devices
        stands = self._arrived.get(device, {})
        if not in_race:
            entry.spares = {found for found, stand in stands.items() if kernel in stand.behind}
        for stand in stands.values():
            (stand.races if in_race else stand.behind).discard(kernel)
        self._turn(sorted(self._beside(device)), now_s)

    def _beside(self, device: int) -> set[int]:
        """Return all that runs on a device."""
        running = self._running
        return {*self._kernels.get(device, ()), *[found for found in self._arrived.get(device, ()) if found in running]}

    def _turn_around(self, instance: int, devices: Sequence[int], now_s: float) -> None:
        beside = set[int]().union(*[self._beside(device) for device in devices]) - {instance}
        self._turn([instance, *sorted(beside)], now_s)

    def _turn(self, instances: Sequence[int], now_s: float) -> None:
        """Give meetings the rates that what runs beside them leaves."""
        for instance in instances:
            entry = self._running[instance]
            rate = self._kernel_rate(entry) if entry.kernel is not None else self._transfer_rate(instance, entry)
            if rate == entry.rate and entry.turn:
                continue
            entry.left_s = max(0.0, entry.left_s - (now_s - entry.since_s) * entry.rate)
            entry.rate, entry.since_s, entry.turn = rate, now_s, entry.turn + 1
            if rate > 0:
                heapq.heappush(self._ends, (now_s + entry.left_s / rate, instance, entry.turn))

    def _transfer_rate(self, instance: int, entry: _Running) -> float:
        if self._waits(instance, entry):
            return 0.0
        beside = {self._running[found].kernel for device in entry.devices for found in self._kernels.get(device, ())}
        return 1.0 / max((self._slows_of(kernel, entry.channels) for kernel in beside if kernel), default=1.0)

    def _waits(self, instance: int, entry: _Running) -> bool:
        """Whether a transfer that all have come to still waits for kernels somewhere."""
        stands = (self._arrived[device][instance] for device in entry.devices)
        return any(stand.behind or stand.races for stand in stands)

    def _slows_of(self, kernel: tuple[Kernel | None, float], channels: int) -> float:
        key = (*kernel, channels)
        if key not in self._slows:
            self._slows[key] = self.contention.slows(*kernel, channels=channels)
        return self._slows[key]

    def _kernel_rate(self, entry: _Running) -> float:
        assert entry.kernel is not None
        held = self._held(entry.devices[0], spared=entry.spares or ())
        if not held:
            return 1.0
        key = (*entry.kernel, held)
        if key not in self._slowed:
            self._slowed[key] = self.contention.slowed(
                entry.kernel[0],
                num_sms=sum(channels for channels, _ in held),
                taken_bytes_per_s=sum(
                    self.contention.taken(channels, slower=self._slows_of(entry.kernel, channels))
                    for channels, moves in held if moves
                ),
            )  # fmt: skip
        return 1.0 / self._slowed[key]

    def _held(self, device: int, *, spared: Collection[int] = ()) -> tuple[tuple[int, bool], ...]:
        """Return the channels of each of the library's kernels on a device but some, and whether it moves bytes."""
        alone: list[tuple[int, bool]] = []
        together: dict[int, tuple[int, bool]] = {}
        for found, stand in self._arrived.get(device, {}).items():
            if stand.behind or found in spared:
                continue
            running = self._running.get(found)
            entry = running or self._offers[found]
            moves = running is not None and not self._waits(found, running)
            if entry.communicator == NONE:
                alone.append((entry.channels, moves))
            else:
                channels, others_move = together.get(entry.communicator, (0, False))
                together[entry.communicator] = max(channels, entry.channels), others_move or moves
        return tuple(sorted((*alone, *together.values())))
