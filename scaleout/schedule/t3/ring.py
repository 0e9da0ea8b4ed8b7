"""Ring reduce-scatter and all-gather by compute units, as kernels of their own: what they take and move.

In each of ``p - 1`` rounds a rank sends one of p chunks, in the longer of the link's time and the units', which move
``unit_bytes_per_s`` each and no more than the memory. With additions near the memory a rank reads one copy a round and
nothing is left to add at the end. See docs/models/t3.md. Source: T3, Secs. 2.3, 3.2, 4.3 and 6.1.1, Figs. 3 and 10.
"""

from dataclasses import dataclass

from scaleout.cluster.device.spec import Device
from scaleout.errors import ConfigError
from scaleout.schedule.t3.gemm import constants_of
from scaleout.schedule.t3.memory import Traffic


@dataclass(frozen=True)
class Ring:
    """Ranks in a ring, one link to the next."""

    ranks: int
    link_bytes_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ConfigError(
                f"a GEMM is tracked for the collective behind it, and {self.ranks} rank has none; "
                f"give tensor_parallel of 2 or more"
            )


def _units_s(size_bytes: float, device: Device, units: int) -> float:
    """Time of compute units to read and write some bytes, all accesses counted."""
    return size_bytes / min(units * constants_of(device).unit_bytes_per_s, device.memory_bytes_per_s)


def reduce_scatter_s(size_bytes: float, ring: Ring, device: Device, *, units: int, near_memory: bool = False) -> float:
    """Time of a ring reduce-scatter alone, by some compute units or near the memory."""
    chunk = size_bytes / ring.ranks
    link_s = chunk / ring.link_bytes_per_s
    if near_memory:
        return (ring.ranks - 1) * (link_s + ring.latency_s)
    first_s = max(link_s, _units_s(2 * chunk, device, units))
    round_s = max(link_s, _units_s(3 * chunk, device, units))
    return first_s + (ring.ranks - 2) * round_s + (ring.ranks - 1) * ring.latency_s + _units_s(3 * chunk, device, units)


def all_gather_s(size_bytes: float, ring: Ring, device: Device, *, units: int) -> float:
    """Time of a ring all-gather alone, by some compute units."""
    chunk = size_bytes / ring.ranks
    round_s = max(chunk / ring.link_bytes_per_s, _units_s(2 * chunk, device, units))
    return (ring.ranks - 1) * (round_s + ring.latency_s)


def reduce_scatter_traffic(size_bytes: float, ranks: int, *, near_memory: bool = False) -> Traffic:
    """Bytes of a rank's memory in a ring reduce-scatter alone."""
    chunk = size_bytes / ranks
    if near_memory:
        return Traffic(scatter_reads=(ranks - 1) * chunk, scatter_writes=(ranks - 1) * chunk)
    return Traffic(scatter_reads=(2 * ranks - 1) * chunk, scatter_writes=ranks * chunk)


def all_gather_traffic(size_bytes: float, ranks: int) -> Traffic:
    """Bytes of a rank's memory in a ring all-gather alone."""
    chunk = size_bytes / ranks
    return Traffic(gather_reads=(ranks - 1) * chunk, gather_writes=(ranks - 1) * chunk)
