"""Tracked GEMMs with direct collectives over links between all ranks; and keys to a sub-layer, for the command line.

The GEMM stores what belongs to others into their memory, over all links at once, so nothing is read to be sent; of a
reduce-scatter only the additions remain. Without tracking the collective is a kernel behind the GEMM: a reduce-scatter
sends one p-th over each link, then reads p copies and writes their sum; an all-to-all reads and writes once.
Source: T3, Secs. 7.1 and 7.2.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from scaleout.cluster.device.kernel_times import kernel_time
from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.topology import Topology
from scaleout.config.units import Bytes
from scaleout.config.validated import Config
from scaleout.errors import ConfigError
from scaleout.program.operations import ITEM_BYTES, kernel
from scaleout.schedule.t3.gemm import TRIGGER_BYTES, Gemm, Region, constants_of, stage
from scaleout.schedule.t3.memory import COMPUTE_FIRST, Traffic, policy_named
from scaleout.schedule.t3.overlap import overlap
from scaleout.schedule.t3.ring import Ring
from scaleout.schedule.t3.sublayer import CONFIGURATIONS, Outcome, Sublayer


def _exchange_s(layer: Sublayer) -> float:
    """Time in which every rank sends one p-th of the output to each other one."""
    ring = layer.ring
    return layer.gemm.output_bytes / ring.ranks / ring.link_bytes_per_s + ring.latency_s


def _gathered(layer: Sublayer) -> Traffic:
    """Bytes of a direct all-gather: the own chunk is read for each of the others, theirs are written."""
    others_bytes = layer.gemm.output_bytes * (layer.ring.ranks - 1) / layer.ring.ranks
    return Traffic(gather_reads=others_bytes, gather_writes=others_bytes)


def sequential(layer: Sublayer, *, adds: bool) -> Outcome:
    """One after the other: a direct reduce-scatter with its all-gather, or an all-to-all."""
    size, ranks, device = layer.gemm.output_bytes, layer.ring.ranks, layer.device
    staged = stage(layer.gemm, device, isolated_s=layer.isolated_s)
    gemm_s = staged.isolated_s(device.memory_bytes_per_s)
    others_bytes = size * (ranks - 1) / ranks
    traffic = Traffic(float(staged.read_bytes.sum()), float(staged.write_bytes.sum()), others_bytes, others_bytes)
    scatter_s, gather_s = _exchange_s(layer), 0.0
    if adds:
        added = Traffic(scatter_reads=size, scatter_writes=size / ranks)
        scatter_s += added.total / device.memory_bytes_per_s
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
    done = overlap(
        staged,
        regions,
        ring=Ring(2, (ranks - 1) * layer.ring.link_bytes_per_s, layer.ring.latency_s),
        constants=constants_of(device),
        policy=layer.policy or COMPUTE_FIRST,
        memory_bytes_per_s=device.memory_bytes_per_s,
        adds=adds,
    )
    alone = sequential(layer, adds=adds)
    traffic = done.traffic + (_gathered(layer) if adds else Traffic())
    return replace(alone, gemm_s=done.gemm_s, fused_s=done.end_s, traffic=traffic, overlapped=done)


DIRECT: Mapping[str, Callable[[Sublayer], Outcome]] = {
    "direct": lambda layer: sequential(layer, adds=True),
    "t3-direct": lambda layer: tracked(layer, adds=True),
    "all-to-all": lambda layer: sequential(layer, adds=False),
    "t3-all-to-all": lambda layer: tracked(layer, adds=False),
}
"""Name to what it makes of a sub-layer whose ranks are fully connected, each link as fast as the ring's."""


Count = Annotated[int, Field(ge=1)]


class TrackSettings(Config):
    """A GEMM of ``rows x depth`` by ``depth x columns`` on each rank, and how it is tracked."""

    rows: Count = Field(default=8192, description="of the output: tokens")
    columns: Count = Field(default=4256, description="of the output: hidden size")
    depth: Count = Field(default=1064, description="summed over on a rank: what tensor parallelism divides")
    dtype: Literal["fp16", "bf16"] = "fp16"
    split_depth: Count = Field(default=1, description="work-groups that share a tile (split-K)")
    collective: Literal["ring", "direct", "all_to_all"] = Field(
        default="ring", description="ring: ring all-reduce; direct: the same over a link to each rank; all_to_all"
    )
    policy: str | None = Field(default=None, description="of the memory: round-robin, compute-first or dedicated")
    trigger: Bytes = Field(default=TRIGGER_BYTES, gt=0, description="what copy engines send as one, at most")
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
        Gemm(settings.rows, settings.columns, settings.depth, settings.dtype, settings.split_depth),
        Ring(dimension.size, dimension.bytes_per_s, dimension.latency_s),
        device,
        kernel_time(device, gemm).seconds,
        trigger_bytes=settings.trigger,
        policy=None if settings.policy is None else policy_named(settings.policy),
        split_units=settings.split_units,
    )


def outcomes_of(settings: TrackSettings, layer: Sublayer) -> dict[str, Outcome]:
    """Return what every configuration of the collective makes of a sub-layer, the one without overlap first."""
    wanted = {"ring": CONFIGURATIONS, "direct": ("direct", "t3-direct"), "all_to_all": ("all-to-all", "t3-all-to-all")}
    every = {**CONFIGURATIONS, **DIRECT}
    return {name: every[name](layer) for name in wanted[settings.collective]}


def plain(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as plain values."""
    return {
        "total_s": outcome.total_s,
        "gemm_s": outcome.gemm_s,
        "fused_s": outcome.fused_s,
        "reduce_scatter_s": outcome.reduce_scatter_s,
        "all_gather_s": outcome.all_gather_s,
        "memory_bytes": {**asdict(outcome.traffic), "total": outcome.traffic.total},
    }
