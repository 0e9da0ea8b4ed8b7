"""A sliced GEMM and the collective of its output, as T3 configures them; and keys to a sub-layer, for the command line.

| configuration | GEMM and reduce-scatter | then |
|---|---|---|
| sequential | one after the other | all-gather |
| split | concurrent, some compute units for each | all-gather by these units |
| ideal | concurrent, no contention | all-gather |
| ideal-nmc | the same, additions near the memory | all-gather |
| t3 | tracked and triggered, memory round-robin | all-gather |
| t3-mca | tracked and triggered, memory compute-first | all-gather |
| direct, t3-direct | one after the other, or tracked; a link to each rank | all-gather over these links |
| all-to-all, t3-all-to-all | the same, of an all-to-all | nothing |
| gather, t3-gather | an all-gather of the left operand before the GEMM, or tracked | nothing |
| t3-mca-following | as t3-mca; additions that follow run near the memory, on each rank's chunk | all-gather |

Over direct links the GEMM stores what belongs to others into their memory, so nothing is read to be sent; of a
reduce-scatter only the additions remain. Without tracking the collective is a kernel behind the GEMM: a reduce-scatter
sends one p-th over each link, then reads p copies and writes their sum; an all-to-all reads and writes once.
Tracking an all-gather, stages of the GEMM start as the rows of their tiles have arrived. What follows an all-reduce, a
residual connection or an optimizer, runs on the whole array on every rank, or near the memory before the all-gather.
Source: T3, Secs. 5.3, 7.1, 7.2 and 7.6; `split`: Sec. 3.2.1 and Fig. 6.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from scaleout.cluster.device.kernel_times import kernel_time
from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.topology import Topology
from scaleout.config.units import Count, CountOrZero, Size
from scaleout.config.validated import Config
from scaleout.errors import ConfigError
from scaleout.program.operations import ITEM_BYTES, kernel
from scaleout.schedule.t3.gemm import TRIGGER_BYTES, Gemm, Region, Staged, constants_of, memory_rate, regions_of, stage
from scaleout.schedule.t3.memory import (
    COMPUTE_FIRST,
    ROUND_ROBIN,
    Policy,
    Ring,
    Traffic,
    following_s,
    near_memory_following_s,
    policy_named,
    threshold_of,
)
from scaleout.schedule.t3.overlap import Overlapped, gathered, overlap


@dataclass(frozen=True)
class Sublayer:
    """A GEMM whose output is reduced over a ring."""

    gemm: Gemm
    ring: Ring
    device: Device
    isolated_s: float  # what the GEMM takes isolated
    trigger_bytes: float = TRIGGER_BYTES  # most that copy engines send as one
    policy: Policy | None = None  # of the memory, instead of a configuration's own
    split_units: int = 8  # compute units for the collective under `split`
    following: int = 0  # arrays as large as the output that are added to the all-reduced one


@dataclass(frozen=True)
class Outcome:
    """How long a sub-layer takes under a configuration, and what its memory moves.

    `reduce_scatter_s` is what the reduce-scatter takes isolated, of which `fused_s - gemm_s` is exposed.
    """

    gemm_s: float
    reduce_scatter_s: float
    all_gather_s: float
    fused_s: float
    traffic: Traffic
    overlapped: Overlapped | None = None
    following_s: float = 0.0

    @property
    def total_s(self) -> float:
        """GEMM, reduce-scatter and all-gather, and what follows."""
        return self.fused_s + self.all_gather_s + self.following_s

    def plain(self) -> dict[str, Any]:
        """Return the times and bytes as plain values."""
        names = ("total_s", "gemm_s", "fused_s", "reduce_scatter_s", "all_gather_s", "following_s")
        memory_bytes = {**asdict(self.traffic), "total": self.traffic.total}
        return {**{name: getattr(self, name) for name in names}, "memory_bytes": memory_bytes}


def _parts(layer: Sublayer, *, units: int | None = None, others: int | None = None) -> tuple[Staged, Outcome]:
    """Return the GEMM, and it and its collectives one after the other, on all units or a share for each."""
    size, ring, device = layer.gemm.output_bytes, layer.ring, layer.device
    others = others or device.num_sms
    staged = stage(layer.gemm, device, units=units, isolated_s=layer.isolated_s)
    gemm_s = staged.isolated_s
    scatter_s, gather_s = (of(size, device, units=others) for of in (ring.reduce_scatter_s, ring.all_gather_s))
    traffic = Traffic(float(staged.read_bytes.sum()), float(staged.write_bytes.sum()))
    traffic += ring.reduce_scatter_traffic(size) + ring.all_gather_traffic(size)
    found = Outcome(gemm_s, scatter_s, gather_s, gemm_s + scatter_s, traffic)
    if not layer.following:
        return staged, found
    traffic += Traffic(following_reads=(layer.following + 1) * size, following_writes=size)
    return staged, replace(found, traffic=traffic, following_s=following_s(size, layer.following, device))


def split(layer: Sublayer) -> Outcome:
    """Concurrent, `split_units` for the collective and the others for the GEMM; no dependencies, no contention."""
    units = layer.device.num_sms - layer.split_units
    if not 0 < units < layer.device.num_sms:
        raise ConfigError(
            f"{layer.split_units} of {layer.device.num_sms} compute units for the collective leave {units} for the "
            f"GEMM; give each at least one"
        )
    _, found = _parts(layer, units=units, others=layer.split_units)
    return replace(found, fused_s=max(found.gemm_s, found.reduce_scatter_s))


def ideal(layer: Sublayer) -> Outcome:
    """Concurrent, each as fast as isolated."""
    found = _parts(layer)[1]
    return replace(found, fused_s=max(found.gemm_s, found.reduce_scatter_s))


def ideal_nmc(layer: Sublayer) -> Outcome:
    """As `ideal`, with additions near the memory."""
    _, found = _parts(layer)
    size, ring = layer.gemm.output_bytes, layer.ring
    scatter_s = ring.reduce_scatter_s(size, layer.device, units=layer.device.num_sms, near_memory=True)
    traffic = replace(found.traffic, scatter_reads=0.0, scatter_writes=0.0)
    traffic += ring.reduce_scatter_traffic(size, near_memory=True)
    return replace(found, reduce_scatter_s=scatter_s, fused_s=max(found.gemm_s, scatter_s), traffic=traffic)


def track_and_trigger(layer: Sublayer, policy: Policy = ROUND_ROBIN) -> Outcome:
    """Tracked and triggered, the memory under a policy."""
    device, gemm, size = layer.device, layer.gemm, layer.gemm.output_bytes
    isolated, found = _parts(layer)
    policy = _chosen(layer, policy, isolated)
    staged = stage(gemm, device, bypassed=True, isolated_s=layer.isolated_s)
    _check_tracker(staged, device)
    regions = regions_of(staged, size, layer.ring.ranks, trigger_bytes=layer.trigger_bytes)
    done = overlap(staged, regions, ring=layer.ring, device=device, policy=policy)
    after = Traffic(**{name: moved for name, moved in asdict(found.traffic).items() if name.startswith("following")})
    traffic = done.traffic + layer.ring.all_gather_traffic(size) + after
    return replace(found, gemm_s=done.gemm_s, fused_s=done.end_s, traffic=traffic, overlapped=done)


def following_near_memory(layer: Sublayer) -> Outcome:
    """Tracked as under T3-MCA; what follows runs near the memory on the rank's chunk, before the all-gather."""
    chunk = layer.gemm.output_bytes / layer.ring.ranks
    found = track_and_trigger(replace(layer, following=0), COMPUTE_FIRST)
    moved = Traffic(following_reads=layer.following * chunk, following_writes=layer.following * chunk)
    time_s = near_memory_following_s(chunk, layer.following, layer.device)
    return replace(found, following_s=time_s, traffic=found.traffic + moved)


def _chosen(layer: Sublayer, policy: Policy, isolated: Staged) -> Policy:
    """Return the memory's policy: the layer's own, if it has one, with a threshold by the GEMM's memory intensity."""
    policy = layer.policy or policy
    return replace(policy, threshold=threshold_of(_intensity(isolated))) if policy == COMPUTE_FIRST else policy


def _intensity(staged: Staged) -> float:
    """Share of the GEMM's first stage, alone, in which the memory is busy."""
    memory_s = float(staged.read_s[0] + staged.write_s[0])
    return memory_s / (memory_s + float(staged.compute_s[0]))


def _check_tracker(staged: Staged, device: Device) -> None:
    constants = constants_of(device)
    needed = int(staged.tiles.max()) * constants.waves_per_tile
    if needed > constants.tracker_entries:
        raise ConfigError(
            f"the tracker of device {device.name!r} follows {constants.tracker_entries} wavefronts, and a stage has "
            f"{needed} ({int(staged.tiles.max())} work-groups of {constants.waves_per_tile}), "
            f"{needed - constants.tracker_entries} too many; raise stages.tracker_entries in its file"
        )


CONFIGURATIONS: Mapping[str, Callable[[Sublayer], Outcome]] = {
    "sequential": lambda layer: _parts(layer)[1],
    "split": split,
    "ideal": ideal,
    "ideal-nmc": ideal_nmc,
    "t3": track_and_trigger,
    "t3-mca": lambda layer: track_and_trigger(layer, COMPUTE_FIRST),
}
"""Name to what it makes of a sub-layer."""

FOLLOWED: Mapping[str, Callable[[Sublayer], Outcome]] = {"t3-mca-following": following_near_memory}
"""The same, of one that additions follow."""


def _exchange_s(layer: Sublayer) -> float:
    """Time in which every rank sends one p-th of the output to each other one."""
    ring = layer.ring
    return layer.gemm.output_bytes / ring.ranks / ring.link_bytes_per_s + ring.latency_s


def _gathered(layer: Sublayer) -> Traffic:
    """Bytes of a direct all-gather: the own chunk is read for each of the others, theirs are written."""
    others_bytes = layer.gemm.output_bytes * (layer.ring.ranks - 1) / layer.ring.ranks
    return Traffic(gather_reads=others_bytes, gather_writes=others_bytes)


def direct(layer: Sublayer, *, adds: bool) -> Outcome:
    """One after the other: a direct reduce-scatter with its all-gather, or an all-to-all."""
    size, ranks, device = layer.gemm.output_bytes, layer.ring.ranks, layer.device
    staged = stage(layer.gemm, device, isolated_s=layer.isolated_s)
    gemm_s = staged.isolated_s
    others_bytes = size * (ranks - 1) / ranks
    traffic = Traffic(float(staged.read_bytes.sum()), float(staged.write_bytes.sum()), others_bytes, others_bytes)
    scatter_s, gather_s = _exchange_s(layer), 0.0
    if adds:
        added = Traffic(scatter_reads=size, scatter_writes=size / ranks)
        scatter_s += added.total / memory_rate(device)
        gather_s = _exchange_s(layer)
        traffic += added + _gathered(layer)
    return Outcome(gemm_s, scatter_s, gather_s, gemm_s + scatter_s, traffic)


def tracked(layer: Sublayer, *, adds: bool) -> Outcome:
    """Store each stage's output where it belongs, as it is made; the all-gather of a reduce-scatter comes after."""
    device, ranks = layer.device, layer.ring.ranks
    staged = stage(layer.gemm, device, isolated_s=layer.isolated_s, bypassed=True)
    ends = np.cumsum(staged.output_bytes) * (ranks - 1) / ranks
    begins = np.concatenate([[0.0], ends[:-1]])
    regions = [Region(index, 0, *map(float, cut)) for index, cut in enumerate(zip(begins, ends, strict=True))]
    links = Ring(2, (ranks - 1) * layer.ring.link_bytes_per_s, layer.ring.latency_s)
    done = overlap(staged, regions, ring=links, device=device, policy=layer.policy or COMPUTE_FIRST, adds=adds)
    isolated = direct(layer, adds=adds)
    traffic = done.traffic + (_gathered(layer) if adds else Traffic())
    return replace(isolated, gemm_s=done.gemm_s, fused_s=done.end_s, traffic=traffic, overlapped=done)


DIRECT: Mapping[str, Callable[[Sublayer], Outcome]] = {
    "direct": lambda layer: direct(layer, adds=True),
    "t3-direct": lambda layer: tracked(layer, adds=True),
    "all-to-all": lambda layer: direct(layer, adds=False),
    "t3-all-to-all": lambda layer: tracked(layer, adds=False),
}
"""Name to what it makes of a sub-layer whose ranks are fully connected, each link as fast as the ring's."""


def gather(layer: Sublayer, *, tracks: bool) -> Outcome:
    """All-gather the left operand around the ring, then multiply; or track it, and multiply what is there."""
    device, ring = layer.device, layer.ring
    size = float(layer.gemm.rows * layer.gemm.depth * ITEM_BYTES[layer.gemm.dtype])
    staged = stage(layer.gemm, device, isolated_s=layer.isolated_s)
    gather_s = ring.all_gather_s(size, device, units=device.num_sms)
    traffic = ring.all_gather_traffic(size) + Traffic(float(staged.read_bytes.sum()), float(staged.write_bytes.sum()))
    if not tracks:
        return Outcome(staged.isolated_s, 0.0, gather_s, staged.isolated_s, traffic)
    done = gathered(staged, size, ring=ring, device=device, policy=_chosen(layer, COMPUTE_FIRST, staged))
    return Outcome(done.gemm_s, 0.0, 0.0, done.gemm_s, done.traffic, done)


GATHER: Mapping[str, Callable[[Sublayer], Outcome]] = {
    "gather": lambda layer: gather(layer, tracks=False),
    "t3-gather": lambda layer: gather(layer, tracks=True),
}
"""Name to what it makes of a sub-layer whose left operand is all-gathered, instead of its output reduced."""


_Side = Annotated[int, Field(strict=True, gt=0, le=2**18)]
_Depth = Annotated[int, Field(strict=True, gt=0, le=2**20)]
_Parts = Annotated[int, Field(strict=True, gt=0, le=256)]


class TrackSettings(Config):
    """A GEMM of ``rows x depth`` by ``depth x columns`` on each rank, and how it is tracked."""

    rows: _Side = Field(default=8192, description="of the output: tokens")
    columns: _Side = Field(default=4256, description="of the output: hidden size")
    depth: _Depth = Field(default=1064, description="summed over on a rank: what tensor parallelism divides")
    dtype: Literal["fp16", "bf16"] = "fp16"
    split_depth: _Parts = Field(default=1, description="work-groups that share a tile (split-K)")
    transposed: bool = Field(default=True, description="whether the right operand lies along K, as weights in forward")
    collective: Literal["ring", "direct", "all_to_all", "all_gather"] = Field(
        default="ring",
        description="ring: ring all-reduce; direct: the same over a link to each rank; all_to_all; all_gather: of the "
        "left operand, before the GEMM",
    )
    following: CountOrZero = Field(default=0, description="arrays added to the all-reduced output, as a residual's is")
    policy: str | None = Field(
        default=None, description="of the memory: round-robin, first-ready, compute-first or dedicated"
    )
    trigger: Size = Field(default=TRIGGER_BYTES, description="what copy engines send as one, at most")
    tracker_entries: Count | None = Field(default=None, description="wavefronts followed; the device's if unset")
    split_units: Count = Field(default=8, description="compute units for the collective under `split`")


def sublayer_of(settings: TrackSettings, device: Device, topology: Topology) -> Sublayer:
    """Return the sub-layer of some settings, shared by all ranks of the topology; a ConfigError says what is wrong."""
    constants = constants_of(device)
    if len(topology.dimensions) != 1:
        raise ConfigError(
            f"topology {topology.name!r} has {len(topology.dimensions)} dimensions, and a tracked GEMM's ranks are "
            f"along one; take a ring or a switch, such as t3-ring-8"
        )
    if settings.tracker_entries is not None:
        device = replace(device, stages=constants.model_copy(update={"tracker_entries": settings.tracker_entries}))
    tracked_bytes = constants.tile_rows * constants.tile_columns * ITEM_BYTES[settings.dtype] / constants.waves_per_tile
    if settings.trigger < tracked_bytes:
        raise ConfigError(
            f"track: trigger: {settings.trigger:g} B are less than the {tracked_bytes:g} B that a wavefront writes and "
            f"the tracker counts; give at least those"
        )
    dimension = topology.dimensions[0]
    if settings.rows * settings.columns % dimension.size:
        raise ConfigError(
            f"the output of {settings.rows} x {settings.columns} does not divide over {dimension.size} ranks; "
            f"choose rows that are a multiple of {dimension.size}"
        )
    gemm = kernel("gemm", dtype=settings.dtype, M=settings.rows, N=settings.columns, K=settings.depth)
    return Sublayer(
        Gemm(
            settings.rows, settings.columns, settings.depth, settings.dtype, settings.split_depth, settings.transposed
        ),
        Ring(dimension.size, dimension.bytes_per_s, dimension.latency_s),
        device,
        kernel_time(device, gemm).seconds,
        trigger_bytes=settings.trigger,
        policy=None if settings.policy is None else policy_named(settings.policy),
        split_units=settings.split_units,
        following=settings.following,
    )


def outcomes_of(settings: TrackSettings, layer: Sublayer) -> dict[str, Outcome]:
    """Return what every configuration of the collective makes of a sub-layer, the one without overlap first."""
    wanted: dict[str, Iterable[str]] = {
        "ring": [*CONFIGURATIONS, *(FOLLOWED if layer.following else ())],
        "direct": ("direct", "t3-direct"),
        "all_to_all": ("all-to-all", "t3-all-to-all"),
        "all_gather": GATHER,
    }
    every = {**CONFIGURATIONS, **FOLLOWED, **DIRECT, **GATHER}
    return {name: every[name](layer) for name in wanted[settings.collective]}
