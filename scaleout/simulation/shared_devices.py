"""Kernels, collectives and messages that share devices, in plain Python: which of them runs at which rate.

What runs has a rate, given by `contention`, which changes when something arrives, starts or ends on the same device. A
transfer has a duration of its own, which its rate stretches (alpha-beta), or links time it and are told the rate as a
speed. Races for SMs, SMs that are released early and communicators are as docs/models/contention.md says. A device is a
class of ranks; kernels, collectives and messages are instances of the engine. `core.devices` is the same, compiled.

Source: profiles of chunked GEMMs on two H200, `traces/h200-pair-unseen/profiles.jsonl`.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from itertools import pairwise

from scaleout.program.graph import NONE
from scaleout.program.operations import Kernel
from scaleout.simulation.columns import Sharing
from scaleout.simulation.contention import Contention


@dataclass(slots=True, eq=False)
class _Device:
    kernels: list["_Kernel"] = field(default_factory=list)
    arrivals: dict["_Transfer", "_Arrival"] = field(default_factory=dict)
    freed_s: float = math.nan  # when a transfer ended here last
    raced_s: float = math.nan  # when a kernel ended here that had won a race on some rank


@dataclass(slots=True, eq=False)
class _Work:
    """A kernel or a transfer, and how much of its isolated time passes in a second since a time."""

    instance: int
    left_s: float  # of its isolated time; infinite if links time it
    rate: float = field(default=0.0, init=False)  # 0 before it starts, and while it waits
    since_s: float = field(default=0.0, init=False)
    end_s: float = field(default=math.inf, init=False)


@dataclass(slots=True, eq=False)
class _Kernel(_Work):
    device: _Device
    kernel: Kernel | None
    isolated_s: float
    issue_s: float
    started_s: float = 0.0
    held_sms: int = 0
    held_by: set["_Transfer"] = field(default_factory=set)  # which have held these since it started
    won: bool = False  # a race on some rank
    spares: bool = False  # to transfers that arrive the SMs that they hold


@dataclass(slots=True, eq=False)
class _Transfer(_Work):
    devices: dict[_Device, bool]  # and whether it was posted there long before
    channels: int
    races: bool
    communicator: int
    runs: bool = False

    @property
    def waits(self) -> bool:
        """Whether it still waits for kernels, or a member, somewhere."""
        return not self.runs or any(device.arrivals[self].waits for device in self.devices)


@dataclass(slots=True, eq=False)
class _Arrival:
    """A transfer that has arrived at a device."""

    event_s: float  # when an event let it; NaN where it follows another transfer
    behind: set[_Kernel]  # those that it waits for
    spare: set[_Kernel]  # those that lose nothing to it
    races: set[_Kernel] = field(default_factory=set)  # those that it competes with for SMs, and waits for

    @property
    def waits(self) -> bool:
        return bool(self.behind or self.races)


class SharedDevices:
    """Kernels and transfers that share devices; `set_speed` tells links the rate of a transfer that they time."""

    def __init__(
        self, contention: Contention, sharing: Sharing, set_speed: Callable[[int, float, float], None] | None = None
    ) -> None:
        self._contention, self._set_speed = contention, set_speed
        self._slows = cache(lambda kernel, alone_s, channels: contention.slows(kernel, [alone_s], channels=channels)[0])
        self._slowed = cache(lambda kernel, alone_s, held: contention.slowed_by(kernel, [alone_s], held)[0])
        self._ends: list[tuple[float, int]] = []
        # When a running kernel leaves SMs to transfers, and whether as it ended where it won a race.
        self._spared: list[tuple[float, int, bool]] = []
        self._changed: set[_Device] = set()  # since rates were set, and when
        self._changed_s = 0.0
        devices: dict[int, _Device] = defaultdict(_Device)
        self._work: dict[int, _Kernel | _Transfer] = {}
        kernels = (sharing.kernel_instance, sharing.kernel_device, sharing.kernel_kind, sharing.kernel_issue_s)
        for instance, at, kind, issue_s in zip(*[column.tolist() for column in kernels], strict=True):
            kernel, isolated_s = sharing.kernels[kind]
            self._work[instance] = _Kernel(instance, isolated_s, devices[at], kernel, isolated_s, issue_s)
        at_pair = [devices[at] for at in sharing.pair_device.tolist()]
        pairs = list(zip(at_pair, sharing.pair_posted.tolist(), strict=True))
        transfers = (sharing.transfer_instance, sharing.lasts_s, sharing.channels, sharing.races, sharing.communicator)
        rows = zip(pairwise(sharing.pair_offsets.tolist()), *[column.tolist() for column in transfers], strict=True)
        for (begin, end), instance, lasts_s, *rest in rows:
            self._work[instance] = _Transfer(instance, lasts_s, dict(pairs[begin:end]), *rest)
        waiting = zip(sharing.waiting.tolist(), sharing.waiting_pair.tolist(), strict=True)
        self._device_of = {task: at_pair[pair] for task, pair in waiting}

    def arrive(self, instance: int, task: int, now_s: float) -> None:
        """Let a member arrive at a transfer: it waits for the kernels that run there, then its channels hold SMs."""
        device, transfer = self._device_of.get(task), self._work.get(instance)
        if device is not None and isinstance(transfer, _Transfer):
            races = transfer.races and device.freed_s != now_s
            self._add_arrival(transfer, device, now_s, now_s if races else math.nan)

    def _add_arrival(self, transfer: _Transfer, device: _Device, now_s: float, event_s: float) -> None:
        """Let a transfer wait for the kernels of a device, unless these leave it SMs; nothing if it has arrived."""
        if transfer not in device.arrivals:
            kernels = [] if transfer.runs and transfer.devices[device] else device.kernels
            behind, spare = ({kernel for kernel in kernels if kernel.spares is spares} for spares in (False, True))
            device.arrivals[transfer] = _Arrival(event_s, behind, spare)
        self._change(device, now_s)

    def start(self, instance: int, now_s: float) -> None:
        """Start a kernel or a transfer, if it shares devices."""
        work = self._work.get(instance)
        if isinstance(work, _Kernel):
            self._start_kernel(work, now_s)
        elif work is not None:
            work.runs = True
            for device in work.devices:
                self._add_arrival(work, device, now_s, math.nan)

    def _start_kernel(self, kernel: _Kernel, now_s: float) -> None:
        """Start a kernel, which transfers hold SMs of that have arrived before, and race others for."""
        device = kernel.device
        kernel.started_s = now_s
        device.kernels.append(kernel)
        self._change(device, now_s)
        if not device.arrivals:
            return
        at_once = [arrival for arrival in device.arrivals.values() if arrival.event_s == now_s]
        if device.raced_s == now_s:  # where the kernel before won, this one has started long ago
            for arrival in at_once:
                arrival.behind.add(kernel)
        kernel.held_by = {transfer for transfer, arrival in device.arrivals.items() if not arrival.behind}
        kernel.held_sms = sum(channels for channels, _ in self._held(device, kernel))
        if 0 < kernel.issue_s <= now_s - self._contention.resource_use.queue_s:
            for arrival in at_once:
                if not arrival.behind:
                    arrival.races.add(kernel)
                    kernel.won = True
        if kernel.won:
            heappush(self._spared, (now_s + kernel.left_s, kernel.instance, True))

    def next_s(self) -> float:
        """Return when the next kernel or transfer ends, or a kernel leaves SMs to transfers."""
        self._set_rates()
        return min(self._next_end_s(), self._spared[0][0] if self._spared else math.inf)

    def _next_end_s(self) -> float:
        ends, work = self._ends, self._work
        while ends and (ends[0][1] not in work or work[ends[0][1]].end_s != ends[0][0]):
            heappop(ends)  # has ended, or its rate has changed
        return ends[0][0] if ends else math.inf

    def advance(self, now_s: float, ended: Sequence[int]) -> list[int]:
        """Advance to a time, not beyond `next_s`; return what ends then besides the transfers that links have ended."""
        while not ended and self._spared and self._spared[0][0] <= now_s and self._spared[0][0] < self._next_end_s():
            self._spare(*heappop(self._spared))
            self._set_rates()
        done: list[int] = []
        while self._next_end_s() <= now_s:
            done.append(heappop(self._ends)[1])
            self._end(done[-1], now_s)
        for instance in ended:
            self._end(instance, now_s)
        return sorted(done)

    def _end(self, instance: int, now_s: float) -> None:
        work = self._work.pop(instance, None)
        if isinstance(work, _Kernel):
            work.device.kernels.remove(work)
            if work.won:
                work.device.raced_s = now_s
            for arrival in work.device.arrivals.values():
                arrival.behind.discard(work)
                arrival.races.discard(work)
            if work.device.arrivals:  # else only kernels run there, which take nothing from each other
                self._change(work.device, now_s)
        elif work is not None:
            for device in work.devices:
                del device.arrivals[work]
                device.freed_s = now_s
                for kernel in device.kernels:
                    if kernel.held_by == {work}:
                        self._regain(kernel, now_s)
                    kernel.held_by.discard(work)
                self._change(device, now_s)

    def _regain(self, kernel: _Kernel, now_s: float) -> None:
        """Let a GEMM use all SMs that it lacked because transfers held them since it started."""
        held_s = now_s - kernel.started_s
        freed = self._contention.freed_s(kernel.kernel, kernel.isolated_s, num_sms=kernel.held_sms, held_s=held_s)
        if freed is not None:
            kernel.left_s, kernel.since_s, kernel.rate = freed[0] - held_s, now_s, 0.0
            if freed[1] < freed[0]:
                heappush(self._spared, (kernel.started_s + freed[1], kernel.instance, False))

    def _spare(self, now_s: float, instance: int, in_race: bool) -> None:
        """Free SMs of a running kernel: its last blocks started late, or it ended where it won a race."""
        kernel = self._work.get(instance)
        if isinstance(kernel, _Kernel):
            kernel.spares = kernel.spares or not in_race
            for arrival in kernel.device.arrivals.values():
                if in_race:
                    arrival.races.discard(kernel)
                elif kernel in arrival.behind:
                    arrival.behind.remove(kernel)
                    arrival.spare.add(kernel)
            self._change(kernel.device, now_s)

    def _change(self, device: _Device, now_s: float) -> None:
        self._changed.add(device)
        self._changed_s = now_s

    def _set_rates(self) -> None:
        """Give all that runs where something has changed the rates that what runs concurrently leaves."""
        now_s = self._changed_s
        running: dict[int, _Kernel | _Transfer] = {}
        for device in self._changed:
            running |= {kernel.instance: kernel for kernel in device.kernels}
            running |= {transfer.instance: transfer for transfer in device.arrivals}
        self._changed.clear()
        for instance, work in sorted(running.items()):
            rate = self._rate(work)
            if rate == work.rate:
                continue
            work.left_s = max(0.0, work.left_s - (now_s - work.since_s) * work.rate)
            work.rate, work.since_s = rate, now_s
            work.end_s = now_s + work.left_s / rate if rate else math.inf
            heappush(self._ends, (work.end_s, instance))
            if work.left_s == math.inf:
                assert self._set_speed is not None, "who times this transfer?"
                self._set_speed(instance, rate, now_s)

    def _rate(self, work: _Kernel | _Transfer) -> float:
        if isinstance(work, _Kernel):
            held = self._held(work.device, work) if work.device.arrivals else ()
            return 1.0 / self._slowed(work.kernel, work.isolated_s, held) if held else 1.0
        if work.waits:
            return 0.0
        kernels = [kernel for device in work.devices for kernel in device.kernels]
        slows = (self._slows(kernel.kernel, kernel.isolated_s, work.channels) for kernel in kernels)
        return 1.0 / max(slows, default=1.0)

    def _held(self, device: _Device, kernel: _Kernel) -> tuple[tuple[int, bool], ...]:
        """Return the channels that each of the library's kernels takes from a kernel, and whether it moves bytes."""
        held: dict[_Transfer | int, tuple[int, bool]] = {}
        for transfer, arrival in device.arrivals.items():
            if not arrival.behind and kernel not in arrival.spare:
                which = transfer if transfer.communicator == NONE else transfer.communicator
                channels, moves = held.get(which, (0, False))
                held[which] = max(channels, transfer.channels), moves or not transfer.waits
        return tuple(sorted(held.values()))
