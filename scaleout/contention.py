"""What kernels and collectives take from each other on a device.

A collective of a library that moves bytes with kernels of its own (NCCL) needs some SMs and some bandwidth of the
memory. Launched behind a kernel that fills the device, it waits for that to end. Then both run: a kernel as it would on
a device with what is left, which the guess of its time knows (`kernel_models.guess`: tiles over SMs, bytes over
bandwidth); the collective slower by a constant, and by how much of the memory's bandwidth the kernel takes.

`SharedDevices` times both as the clock goes: what runs at the moment has a rate, and rates change when something
starts or ends on the same device. Slices of fused operators are left out: they share the device by construction.

Symbols: u part of the memory's bandwidth that a kernel takes.
Source: `topologies/nccl/h200.yaml` for the numbers; Rashidi et al., ISCA 2021, for the resources in question.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from scaleout.device import Device
from scaleout.kernel_models import calls_of, guess
from scaleout.operations import CUSTOM, Kernel
from scaleout.topology import Topology
from scaleout.transport import Appetite

_LEAST_LEFT = 0.1
"""Part of the memory's bandwidth that kernels keep on a device with less than the library asks for."""


@dataclass(frozen=True)
class Contention:
    """A device and what the library's collectives take from it."""

    device: Device
    appetite: Appetite

    @cached_property
    def rest(self) -> Device:
        """What is left of the device while a collective runs."""
        device, appetite = self.device, self.appetite
        num_sms = max(1, device.num_sms - appetite.num_sms)
        peaks = {name: peak * num_sms / device.num_sms for name, peak in device.peak_flops_per_s.items()}
        whole = device.memory_bytes_per_s
        left = max(whole - appetite.memory_bytes_per_s, _LEAST_LEFT * whole)
        return replace(device, num_sms=num_sms, peak_flops_per_s=peaks, memory_bytes_per_s=left)

    def slowed(self, kernel: Kernel | None) -> float:
        """How many times as long a kernel takes beside a collective; of one that nothing is known of, by its SMs."""
        if kernel is None or kernel.op == CUSTOM:
            return self.device.num_sms / self.rest.num_sms
        calls = calls_of([kernel])
        return max(1.0, float(guess(calls, self.rest)[0] / guess(calls, self.device)[0]))

    def slows(self, kernel: Kernel | None, duration_s: float) -> float:
        """How many times as long a collective takes beside a kernel that takes so long alone: ``a + b u``."""
        moved = 0 if kernel is None or duration_s <= 0 else kernel.bytes
        share = min(1.0, moved / duration_s / self.device.memory_bytes_per_s) if moved else 0.0
        return self.appetite.slowdown + self.appetite.slowdown_by_memory * share


def contention_of(device: Device, topology: Topology) -> Contention | None:
    """Return what kernels and collectives of a device on a network take from each other; None for nothing."""
    appetite = None if topology.library is None else topology.library.appetite
    return None if appetite is None else Contention(device, appetite)


@dataclass
class _Running:
    """A kernel or a collective that has begun: what is left of it alone, and how fast it goes."""

    devices: tuple[int, ...]
    left_s: float
    kernel: bool
    slowed: float = 1.0
    slows: float = 1.0
    rate: float = 0.0
    since_s: float = 0.0
    turn: int = 0
    waits: set[int] = field(default_factory=set)


class SharedDevices:
    """Kernels and collectives that share devices, timed together; a device is a class of ranks.

    The `Network` that the clock asks (see `engine`): what begins and ends here is a meeting there.
    """

    def __init__(self, contention: Contention) -> None:
        self.contention = contention
        self._offers: dict[int, _Running] = {}
        self._running: dict[int, _Running] = {}
        self._on: dict[int, list[int]] = {}
        self._ends: list[tuple[float, int, int]] = []
        self._factors: dict[Kernel | None, float] = {}

    def offer_kernel(self, meeting: int, device: int, kernel: Kernel | None, duration_s: float) -> None:
        """Say what a meeting is: a kernel on a device."""
        if kernel not in self._factors:
            self._factors[kernel] = self.contention.slowed(kernel)
        slows = self.contention.slows(kernel, duration_s)
        self._offers[meeting] = _Running((device,), duration_s, True, self._factors[kernel], slows)

    def offer_collective(self, meeting: int, devices: Sequence[int], duration_s: float) -> None:
        """Say what a meeting is: a collective of some devices."""
        self._offers[meeting] = _Running(tuple(devices), duration_s, False)

    def begin(self, meeting: int, now_s: float) -> None:
        """Let a meeting begin; a collective waits for the kernels that are running."""
        entry = self._offers.pop(meeting)
        entry.since_s = now_s
        beside = {other for device in entry.devices for other in self._on.get(device, ())}
        if not entry.kernel:
            entry.waits = {other for other in beside if self._running[other].kernel}
        self._running[meeting] = entry
        for device in entry.devices:
            self._on.setdefault(device, []).append(meeting)
        self._turn([meeting, *sorted(beside)], now_s)

    def advance(self, until_s: float) -> tuple[float, list[int], list[int]]:
        """Advance to the next end, but not beyond a time; return the time, and what is done then."""
        ends = self._ends
        while ends and self._is_stale(ends[0]):
            heapq.heappop(ends)
        if not ends or ends[0][0] > until_s:
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
        for meeting in done:
            for device in self._running.pop(meeting).devices:
                self._on[device].remove(meeting)
                beside.update(self._on[device])
        beside -= set(done)
        for other in beside:
            self._running[other].waits.difference_update(done)
        self._turn(sorted(beside), now_s)

    def _turn(self, meetings: Sequence[int], now_s: float) -> None:
        """Give meetings the rates that what runs beside them leaves."""
        for meeting in meetings:
            entry = self._running[meeting]
            rate = self._rate(entry)
            if rate == entry.rate and entry.turn:
                continue
            entry.left_s = max(0.0, entry.left_s - (now_s - entry.since_s) * entry.rate)
            entry.rate, entry.since_s, entry.turn = rate, now_s, entry.turn + 1
            if rate > 0:
                heapq.heappush(self._ends, (now_s + entry.left_s / rate, meeting, entry.turn))

    def _rate(self, entry: _Running) -> float:
        if entry.waits:
            return 0.0
        others = [self._running[other] for device in entry.devices for other in self._on[device]]
        if entry.kernel:
            return 1.0 / entry.slowed if any(not other.kernel and not other.waits for other in others) else 1.0
        slowest = max((other.slows for other in others if other.kernel), default=1.0)
        return 1.0 / slowest
