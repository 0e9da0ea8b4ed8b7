"""Keys of a tracked product to a sub-layer on a device and a network, for the command line."""

from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from scaleout.cluster.device.kernel_times import kernel_time
from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.topology import Topology
from scaleout.config.units import Bytes
from scaleout.config.validated import Config
from scaleout.errors import ConfigError
from scaleout.program.operations import ITEM_BYTES, kernel
from scaleout.schedule.t3.direct import DIRECT
from scaleout.schedule.t3.gemm import Product, constants_of
from scaleout.schedule.t3.memory import policy_named
from scaleout.schedule.t3.regions import TRIGGER_BYTES
from scaleout.schedule.t3.ring import Ring
from scaleout.schedule.t3.sublayer import CONFIGURATIONS, Outcome, Sublayer

Count = Annotated[int, Field(ge=1)]


class TrackSettings(Config):
    """A product of ``rows x depth`` by ``depth x columns`` on each rank, and how it is tracked."""

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
    """Return the sub-layer that settings describe; all ranks of the topology share it.

    Raises
    ------
    ConfigError
        If the device does not say how it runs products in stages, the topology has several dimensions, or a value
        cannot be.
    """
    constants = constants_of(device)
    if len(topology.dimensions) != 1:
        raise ConfigError(
            f"topology {topology.name!r} has {len(topology.dimensions)} dimensions, and a tracked product's ranks are "
            f"along one; take a ring or a switch, such as t3-ring-8"
        )
    if settings.tracker_entries is not None:
        device = replace(device, stages=replace(constants, tracker_entries=settings.tracker_entries))
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
        Product(settings.rows, settings.columns, settings.depth, settings.dtype, settings.split_depth),
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
        "product_s": outcome.product_s,
        "fused_s": outcome.fused_s,
        "reduce_scatter_s": outcome.reduce_scatter_s,
        "all_gather_s": outcome.all_gather_s,
        "memory_bytes": {**asdict(outcome.traffic), "total": outcome.traffic.total},
    }
