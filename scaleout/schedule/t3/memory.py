"""Who the memory serves when a GEMM and a collective both wait, and ring collectives by compute units: time and bytes.

In each of ``p - 1`` rounds a rank sends one of p chunks, in the longer of the link's time and the units', which move
``unit_bytes_per_s`` each and no more than the memory. With additions near the memory a rank reads one copy a round and
nothing is left to add at the end. The paper gives four thresholds (5, 10, 30 or no limit) and not where they change;
here a GEMM's memory intensity is the share of its first stage, isolated, in which the memory is busy. See
docs/models/t3.md. Source: T3, Secs. 2.3, 3.2, 4.3, 4.5 and 6.1.1, Figs. 3 and 10.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import fsum

from scaleout.cluster.device.sections import Stages
from scaleout.cluster.device.spec import Device
from scaleout.config.validated import nearest
from scaleout.errors import ConfigError
from scaleout.schedule.t3.gemm import constants_of, memory_rate

THRESHOLDS = ((0.5, 5), (0.25, 10), (0.1, 30))
"""Memory intensity from which communication may fill only so many entries of a controller's queue."""

STARVATION_LIMIT_S = 1e-6
"""Communication that was not served for so long is served once, where the GEMM goes first; assumed, not published."""


@dataclass(frozen=True)
class Policy:
    """How the memory divides its time."""

    name: str
    alternates: bool = False  # accesses of both sides take turns, one by one, while both wait; else the GEMM goes first
    first_ready: bool = False  # whether turns are taken into a queue that serves what finds its row open first
    fills_gaps: bool = True  # whether communication is served before the GEMM has ended
    threshold: int | None = None  # entries of a queue that communication may fill; all of them by default

    def shares(
        self, gemm_cost: float, other_cost: float, constants: Stages, memory_bytes_per_s: float
    ) -> tuple[float, float]:
        """Return how fast the GEMM's accesses and the others proceed while both wait, over how fast isolated.

        `gemm_cost` and `other_cost` are the time of each side's accesses over that of a read.
        """
        if self.alternates:
            both = (gemm_cost + other_cost) * (1.0 if self.first_ready else constants.turn_cost)
            return gemm_cost / both, other_cost / both
        if not self.fills_gaps:
            return 1.0, 0.0
        access_s = constants.queue_s(memory_bytes_per_s) / constants.queue_entries
        rare = access_s / (access_s + STARVATION_LIMIT_S)
        return 1.0 - rare, rare

    def turn_s(self, constants: Stages, memory_bytes_per_s: float) -> float:
        """Return what the GEMM waits for when it turns to the memory: what communication has put into its queues."""
        if not self.fills_gaps:
            return 0.0
        entries = constants.queue_entries if self.threshold is None else min(self.threshold, constants.queue_entries)
        return constants.queue_s(memory_bytes_per_s) * entries / constants.queue_entries


ROUND_ROBIN = Policy("round-robin", alternates=True)
FIRST_READY = Policy("first-ready", alternates=True, first_ready=True)
DEDICATED = Policy("dedicated", fills_gaps=False)
COMPUTE_FIRST = Policy("compute-first")
POLICIES: Mapping[str, Policy] = {
    policy.name: policy for policy in (ROUND_ROBIN, FIRST_READY, DEDICATED, COMPUTE_FIRST)
}
"""Round-robin falls back to whoever waits, each turn opening another row; first-ready takes the same turns into queues
that serve open rows first; dedicated holds communication back until the GEMM has ended; compute-first fills gaps, with
a threshold that the GEMM's memory intensity chooses."""


def policy_named(name: str) -> Policy:
    """Return a policy by its name; a ConfigError says that there is none."""
    if name not in POLICIES:
        raise ConfigError(f"unknown memory policy {name!r}; {nearest(name, POLICIES)}")
    return POLICIES[name]


def threshold_of(intensity: float) -> int | None:
    """Return the entries that communication may fill concurrently with a GEMM of some memory intensity, None for all.

    >>> threshold_of(0.6), threshold_of(0.05)
    (5, None)
    """
    return next((entries for bound, entries in THRESHOLDS if intensity >= bound), None)


@dataclass(frozen=True)
class Traffic:
    """Bytes of one rank's memory: of the GEMM, of the reduce-scatter or all-to-all, of the all-gather, and after it.

    Writes of the GEMM into other ranks' memory are theirs; `scatter_writes` are those that arrive, updates included.
    """

    gemm_reads: float = 0.0
    gemm_writes: float = 0.0
    scatter_reads: float = 0.0
    scatter_writes: float = 0.0
    gather_reads: float = 0.0
    gather_writes: float = 0.0
    following_reads: float = 0.0
    following_writes: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return float(fsum(asdict(self).values()))

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(**{name: size + getattr(other, name) for name, size in asdict(self).items()})


@dataclass(frozen=True)
class Ring:
    """Ranks in a ring, one link to the next, and their collectives by compute units, as kernels of their own."""

    ranks: int
    link_bytes_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ConfigError(
                f"a GEMM is tracked for the collective behind it, and {self.ranks} rank has none; "
                f"give tensor_parallel of 2 or more"
            )

    def reduce_scatter_s(self, size_bytes: float, device: Device, *, units: int, near_memory: bool = False) -> float:
        """Time of a reduce-scatter isolated, by some compute units or near the memory."""
        chunk = size_bytes / self.ranks
        link_s = chunk / self.link_bytes_per_s
        if near_memory:
            return (self.ranks - 1) * (link_s + self.latency_s)
        added_s = _units_s(3 * chunk, device, units, 1 / 3)
        first_s = max(link_s, _units_s(2 * chunk, device, units, 1 / 2))
        launch_s = constants_of(device).kernel_launch
        return (
            launch_s + first_s + (self.ranks - 2) * max(link_s, added_s) + (self.ranks - 1) * self.latency_s + added_s
        )

    def all_gather_s(self, size_bytes: float, device: Device, *, units: int) -> float:
        """Time of an all-gather isolated, by some compute units."""
        chunk = size_bytes / self.ranks
        round_s = max(chunk / self.link_bytes_per_s, _units_s(2 * chunk, device, units, 1 / 2))
        return constants_of(device).kernel_launch + (self.ranks - 1) * (round_s + self.latency_s)

    def reduce_scatter_traffic(self, size_bytes: float, *, near_memory: bool = False) -> Traffic:
        """Bytes of a rank's memory in a reduce-scatter isolated."""
        chunk, rounds = size_bytes / self.ranks, self.ranks - 1
        if near_memory:
            return Traffic(scatter_reads=rounds * chunk, scatter_writes=rounds * chunk)
        return Traffic(scatter_reads=(2 * self.ranks - 1) * chunk, scatter_writes=self.ranks * chunk)

    def all_gather_traffic(self, size_bytes: float) -> Traffic:
        """Bytes of a rank's memory in an all-gather isolated."""
        moved = (self.ranks - 1) * (size_bytes / self.ranks)
        return Traffic(gather_reads=moved, gather_writes=moved)


def _units_s(size_bytes: float, device: Device, units: int, written: float) -> float:
    """Time of compute units to read and write some bytes, all accesses counted, a share of them written."""
    constants = constants_of(device)
    return size_bytes / min(units * constants.unit_bytes_per_s, memory_rate(device) / constants.mixed_cost(written))


def following_s(size_bytes: float, operands: int, device: Device) -> float:
    """Time of a kernel that adds so many further arrays to one of some size, all read and the sum written."""
    moved = (operands + 2) * size_bytes
    launch_s = constants_of(device).kernel_launch
    return launch_s + _units_s(moved, device, device.num_sms, 1 / (operands + 2))


def near_memory_following_s(size_bytes: float, operands: int, device: Device) -> float:
    """Time of the same near the memory: each further array is read, and added by an update."""
    return operands * size_bytes * (1 + constants_of(device).update_cost) / memory_rate(device)
