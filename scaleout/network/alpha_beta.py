"""Collectives and messages under the alpha-beta model: latency of the farthest, bytes on the busiest link.

A step of an algorithm takes the latency of its farthest message and the time that its busiest link needs for its
bytes, with all groups of the axis active (see `load`); the steps of a schedule add up. All but the pipelined ones
thus cost ``A + B n``. A pipelined schedule cuts the buffer into ``c`` chunks: the first passes all steps, and each
further one is done as much later as the links that are used most often need for it:
``A + B n / c + (c - 1) (a + b n / c)``, with the best ``c`` (Sanders, Speck and Traeff, 2009). Lanes of a schedule
run at once: ``A`` and ``B`` are those of the longest, and no link takes less than what all lanes put on it.

What is left out: the additions of a reduction, the cost of issuing a message beyond its latency, and contention
with anything but the other groups of the same axis.

Symbols: p members; n bytes, as in `collectives.convention`; c chunks; A, a [s]; B, b [s/B].
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from scaleout import collectives
from scaleout.errors import ConfigError
from scaleout.network.load import Load, load_of
from scaleout.placement import Placement, place_alone
from scaleout.topology import Topology

MAX_CHUNKS = 1024
"""Most chunks that a pipelined schedule may cut the buffer into; reached only where latencies are next to nothing."""


@dataclass(frozen=True)
class CollectiveCost:
    """What a collective costs.

    Attributes
    ----------
    latency_s : float
        The part that several pieces, sent back to back, can hide behind one another, start-up included.
    serialization_s : float
        The time that the busiest links are occupied: what each piece adds to the ones before it.
    algorithm : str
        The algorithm that was charged; empty if there was nothing to do.
    num_chunks : int
        Chunks that a pipelined algorithm cuts the buffer into.
    """

    latency_s: float
    serialization_s: float
    algorithm: str = ""
    num_chunks: int = 1

    @property
    def time_s(self) -> float:
        """Latency and serialization together."""
        return self.latency_s + self.serialization_s


def collective_cost(kind: str, size_bytes: float, placement: Placement, algorithm: str = "auto") -> CollectiveCost:
    """Cost of one collective, with all groups of its axis active at the same time.

    Parameters
    ----------
    kind : str
        One of `collectives.KINDS`.
    size_bytes : float
        The ``bytes`` of `collectives.convention`: the larger side, never a shard.
    placement : Placement
        Where the group lies, from `placement.place`.
    algorithm : str
        One of `collectives.ALGORITHMS`, or ``"auto"`` for the fastest at this size.

    Returns
    -------
    CollectiveCost
        Zero for no bytes or a group of one.

    Raises
    ------
    ConfigError
        If kind or algorithm are unknown, the algorithm cannot do it on this group, or the size is negative.

    >>> from scaleout.placement import place
    >>> from scaleout.topology import load_topology
    >>> group = place(load_topology("ring-128"), range(128))
    >>> cost = collective_cost("all_reduce", 128e6, group, "ring")
    >>> round(cost.time_s * 1e6, 3)  # 2 * 127 * (0.7 us + 1 MB / 25 GB/s)
    10337.8
    """
    if not (math.isfinite(size_bytes) and size_bytes >= 0):
        raise ConfigError(f"a collective of {size_bytes} bytes; give a size of zero or more")
    return _collective_cost(kind, float(size_bytes), placement, algorithm)


def send_cost(size_bytes: float, topology: Topology, *, source: int, destination: int) -> CollectiveCost:
    """Cost of one message, alone on the network: ``hops alpha + n beta`` of the slowest dimension on its way.

    Parameters
    ----------
    size_bytes : float
        The message.
    topology : Topology
        The network.
    source, destination : int
        Ranks; with both the same the cost is zero.

    Raises
    ------
    ConfigError
        If a rank is not in the topology or the size is negative.
    """
    return collective_cost("send", size_bytes, place_alone(topology, sorted({source, destination})))


@dataclass(frozen=True)
class _Profile:
    """Sums over the steps of a schedule: ``A`` and ``B`` of all, ``a`` and ``b`` of the most used links."""

    latency_s: float
    seconds_per_byte: float
    link_latency_s: float
    link_s_per_byte: float
    pipelined: bool


@lru_cache(maxsize=262144)
def _collective_cost(kind: str, size_bytes: float, placement: Placement, algorithm: str) -> CollectiveCost:
    names = _candidates(kind, placement) if algorithm == "auto" else (algorithm,)
    profiles = [_profile(kind, placement, name) for name in names]
    if size_bytes == 0 or placement.num_ranks == 1:
        return CollectiveCost(0.0, 0.0)
    costs = [_at_size(profile, size_bytes, name) for profile, name in zip(profiles, names, strict=True)]
    best = min(costs, key=lambda cost: cost.time_s)
    return replace(best, latency_s=best.latency_s + placement.startup_s)


@lru_cache(maxsize=4096)
def _candidates(kind: str, placement: Placement) -> tuple[str, ...]:
    return tuple(algorithm.name for algorithm in collectives.candidates(kind, placement))


@lru_cache(maxsize=16384)
def _profile(kind: str, placement: Placement, algorithm: str) -> _Profile:
    schedule = collectives.schedule(kind, placement, algorithm=algorithm)
    lanes = [[(step.repeat, load_of(step, placement)) for step in lane] for lane in schedule.lanes]
    latency_s = max((sum(repeat * load.latency_s for repeat, load in lane) for lane in lanes), default=0.0)
    seconds_per_byte = max((sum(r * load.busiest_s_per_byte for r, load in lane) for lane in lanes), default=0.0)
    link_latency_s, link_s_per_byte = _most_used([each for lane in lanes for each in lane])
    if len(lanes) > 1:  # lanes share the links that they meet on
        seconds_per_byte = max(seconds_per_byte, link_s_per_byte)
    if not schedule.pipelined:
        link_latency_s, link_s_per_byte = latency_s, seconds_per_byte
    return _Profile(latency_s, seconds_per_byte, link_latency_s, link_s_per_byte, schedule.pipelined)


def _most_used(repeated: list[tuple[int, Load]]) -> tuple[float, float]:
    """Latency and serialization of the steps that use a link, summed up; the largest of each over all links."""
    latency_s: dict[int, npt.NDArray[np.float64]] = {}
    seconds_per_byte: dict[int, npt.NDArray[np.float64]] = {}
    for repeat, load in repeated:
        for extent, links in load.seconds_per_byte.items():
            delayed = np.where(links > 0, repeat * load.latency_s, 0.0)
            latency_s[extent] = latency_s.get(extent, np.zeros(1)) + delayed
            seconds_per_byte[extent] = seconds_per_byte.get(extent, np.zeros(1)) + repeat * links
    sums = (latency_s, seconds_per_byte)
    most = [max((float(links.max()) for links in total.values()), default=0.0) for total in sums]
    return most[0], most[1]


def _at_size(profile: _Profile, size_bytes: float, algorithm: str) -> CollectiveCost:
    whole_s = profile.seconds_per_byte * size_bytes
    if not profile.pipelined:
        return CollectiveCost(profile.latency_s, whole_s, algorithm)
    link_s = profile.link_s_per_byte * size_bytes
    # d/dc of (whole - link) / c + c * a is zero at the best c; on both sides of it lies the best whole number.
    hidden_s = max(0.0, whole_s - link_s)
    chunks = math.sqrt(hidden_s / profile.link_latency_s) if profile.link_latency_s > 0 else math.inf
    chunks = min(max(chunks, 1.0), float(MAX_CHUNKS))
    latency_s, num_chunks = min(
        (profile.latency_s + (c - 1) * profile.link_latency_s + hidden_s / c, c)
        for c in (math.floor(chunks), math.ceil(chunks))
    )
    return CollectiveCost(latency_s, link_s, algorithm, num_chunks)
