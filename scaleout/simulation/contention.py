"""What kernels and collectives that run concurrently take from each other on a device.

A collective of NCCL holds an SM for each of its channels, and uses memory bandwidth once it moves bytes. A kernel has
the SMs and bandwidth that are left; a channel is ``a + b u`` times as slow while a kernel uses the part u of the
bandwidth. Knows no time: `shared_devices` runs kernels and collectives concurrently. See docs/models/contention.md.

Symbols: c channels; f channels that fill the links; s slowdown of a channel; u part of the bandwidth.
Source: `topologies/nccl/h200.yaml` for the numbers; Rashidi et al., ISCA 2021, for the resources in question.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

import numpy as np

from scaleout.cluster.device.kernel_times.estimate import STREAM_SHARE, contended_estimate, estimate, thread_blocks
from scaleout.cluster.device.kernel_times.model import calls_of
from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.communication_library import ResourceUse
from scaleout.cluster.topology.topology import Topology
from scaleout.program.graph import Floats
from scaleout.program.operations import CUSTOM, Kernel

_LEAST_LEFT = 0.1
"""Part of the SMs, and of the memory's bandwidth, that kernels keep on a device with less than is asked for."""

SAME = 1e-9
"""Parts of a tile that are rounding."""


@dataclass(frozen=True)
class Contention:
    """A device and what the library's collectives take from it."""

    device: Device
    resource_use: ResourceUse

    def slows(self, kernel: Kernel | None, isolated_s: Floats | Sequence[float], *, channels: int) -> list[float]:
        """Slowdowns of a collective beside a kernel of (T,) isolated times, whose channels take ``a + b u``."""
        moved = 0 if kernel is None else kernel.bytes
        times_s = np.asarray(isolated_s, np.float64)
        moved_bytes_per_s = np.divide(moved, times_s, out=np.zeros(len(times_s)), where=times_s > 0)
        shares = np.minimum(1.0, moved_bytes_per_s / self.device.memory_bytes_per_s)
        slower = self.resource_use.slowdown + self.resource_use.slowdown_by_memory * shares
        whole = self._reached(channels)
        return [whole / self._reached(channels, each) for each in slower.tolist()]

    def taken(self, channels: int, *, slower: Floats | float = 1.0) -> Floats:
        """Traffic of the memory by a collective of (T,) slowdowns, in B/s."""
        whole = self.resource_use.memory_bytes_per_s / self._reached(self.resource_use.num_sms)
        return np.asarray(whole * self._reached(channels) / slower)

    def slowed(self, kernel: Kernel | None, *, num_sms: int, taken_bytes_per_s: Floats) -> Floats:
        """Slowdowns of a kernel where others hold SMs and (T,) bandwidths; of an unknown one, by the SMs it lacks."""
        device = self.device
        left = max(device.num_sms - num_sms, round(_LEAST_LEFT * device.num_sms), 1)
        if kernel is None or kernel.op == CUSTOM:
            return np.full(len(taken_bytes_per_s), device.num_sms / left)
        calls = calls_of([kernel] * len(taken_bytes_per_s))
        whole = device.memory_bytes_per_s
        rest = replace(
            device,
            memory_bytes_per_s=cast(
                float, np.maximum(whole - taken_bytes_per_s / STREAM_SHARE, _LEAST_LEFT * whole)
            ),  # one a time
            num_sms=left,
            peak_flops_per_s={name: peak * left / device.num_sms for name, peak in device.peak_flops_per_s.items()},
        )
        return np.asarray(np.maximum(1.0, contended_estimate(calls, device, rest) / estimate(calls, device)))

    def slowed_by(
        self, kernel: Kernel | None, isolated_s: Floats | Sequence[float], held: Sequence[tuple[int, bool]]
    ) -> tuple[float, ...]:
        """Slowdowns of a kernel of (T,) isolated times beside collectives of so many channels that may move bytes."""
        return _slowed_by(self, kernel, tuple(isolated_s), tuple(held))

    def tiles(self, kernel: Kernel | None) -> float:
        """Thread blocks of a GEMM; NaN for other kernels."""
        return _tiles_of(kernel, self.device)

    def freed_s(
        self, kernel: Kernel | None, isolated_s: float, *, num_sms: int, held_s: float
    ) -> tuple[float, float] | None:
        """Return how long a GEMM takes in all whose SMs were held from its start and are free from now on.

        And how long on the SMs that were never held. None for other kernels, and where it has no more blocks than SMs
        were left.
        """
        tiles, every, left = self.tiles(kernel), self.device.num_sms, self.device.num_sms - num_sms
        if not (0 < left < every and tiles > left):  # NaN is above nothing
            return None
        tile_s = isolated_s / math.ceil(tiles / every)
        held = held_s / tile_s  # in tiles, as all times below
        first = math.floor((tiles + num_sms * held) / every)
        ends = sorted(at for whole in range(first + 3) for at in (whole, held + whole) if at >= first)
        enough = (at for at in ends if left * math.floor(at + SAME) + num_sms * math.floor(at - held + SAME) >= tiles)
        at = next(enough)
        whole_s = max(held_s, isolated_s, tile_s * at)
        return whole_s, min(whole_s, max(isolated_s, held_s, tile_s * math.floor(at + SAME)))

    def _reached(self, channels: int, slower: float = 1.0) -> float:
        """Part ``(1 + (f s / c)**3)**(-1/3)`` of the links' bandwidth that channels of a slowdown reach."""
        return float((1.0 + (self.resource_use.channels_to_fill * slower / max(channels, 1)) ** 3) ** (-1 / 3))


@lru_cache(maxsize=4096)  # schedules simulate candidates with the same kernels
def _slowed_by(
    contention: Contention, kernel: Kernel | None, isolated_s: tuple[float, ...], held: tuple[tuple[int, bool], ...]
) -> tuple[float, ...]:
    taken = np.zeros(len(isolated_s))
    for channels, moves in held:
        if moves:
            slower = contention.slows(kernel, isolated_s, channels=channels)
            taken += contention.taken(channels, slower=np.array(slower))
    num_sms = sum(channels for channels, _ in held)
    return tuple(contention.slowed(kernel, num_sms=num_sms, taken_bytes_per_s=taken).tolist())


@lru_cache(maxsize=4096)
def _tiles_of(kernel: Kernel | None, device: Device) -> float:
    found = None if kernel is None or kernel.op == CUSTOM else thread_blocks(calls_of([kernel]), device)
    return math.nan if found is None else float(found[0])


def contention_of(device: Device, topology: Topology) -> Contention | None:
    """Return what kernels and collectives of a device on a network take from each other; None for nothing."""
    resource_use = None if topology.library is None else topology.library.resource_use
    return None if resource_use is None else Contention(device, resource_use)


def undisturbed(topology: Topology) -> Topology:
    """Return a topology whose collectives take nothing from a device."""
    library = topology.library
    return topology if library is None else replace(topology, library=replace(library, resource_use=None))
