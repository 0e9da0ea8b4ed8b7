"""How a device runs a GEMM stage by stage, and what its memory serves: the `stages` of its file.

A GEMM is cut into tiles, one a work-group; as many work-groups as the device holds are a stage. A stage reads what
the last-level cache does not hold, multiplies, and then writes its tiles. Every key has its source beside it in the
file.

Source of the notions: Pati et al., T3: Transparent Tracking & Triggering for Fine-grained Overlap of Compute &
Collectives, ASPLOS 2024, Secs. 2.5, 4.2, 4.3 and 4.5.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from scaleout.config.units import Bytes, Seconds
from scaleout.config.validated import Config, Count, Sourced

Positive = Annotated[Seconds, Field(gt=0)]


class StagesFile(Config):
    """What a device file says of stages; see `Stages`."""

    tile_rows: Sourced[Count]
    tile_columns: Sourced[Count]
    tiles_per_unit: Sourced[Count]
    waves_per_tile: Sourced[Count]
    cache_ways: Sourced[Count]
    threads_per_unit: Sourced[Count]
    thread_access: Sourced[Bytes]
    memory_latency: Sourced[Positive]
    queue_entries: Sourced[Count]
    memory_channels: Sourced[Count]
    access: Sourced[Bytes]
    banks: Sourced[Count]
    row_cycle: Sourced[Count]
    bank_groups: Sourced[Count]
    column_delay: Sourced[Count]
    group_column_delay: Sourced[Count]
    update_column_delay: Sourced[Count]
    tracker_entries: Sourced[Count]


@dataclass(frozen=True)
class Stages:
    """Constants of GEMMs in stages.

    Attributes
    ----------
    tile_rows, tile_columns : int
        Of the output that a work-group makes.
    tiles_per_unit : int
        Work-groups that a compute unit holds at once.
    waves_per_tile : int
        Wavefronts of a work-group: what the tracker counts.
    cache_ways : int
        Of the last-level cache.
    unit_bytes_per_s : float
        That one compute unit reads or writes in a kernel that copies or adds: its threads, one access each in flight,
        over the memory's latency.
    queue_s : float
        Time to serve a full queue of the memory's controllers.
    queue_entries : int
        Accesses that a controller's queue holds.
    update_cost : float
        Time of the memory for an update (it adds near the banks) over that of a read or write. Consecutive accesses
        meet the same of G bank groups every G-th time: ``((G - 1) d + update delay) / ((G - 1) d + group delay)``.
    turn_cost : float
        Time of an access that finds another row open, because accesses of two sides take turns, over that of one that
        does not: a bank is busy for a row cycle, and the banks work side by side.
    tracker_entries : int
        Wavefronts whose output the tracker can follow at once.
    """

    tile_rows: int
    tile_columns: int
    tiles_per_unit: int
    waves_per_tile: int
    cache_ways: int
    unit_bytes_per_s: float
    queue_s: float
    queue_entries: int
    update_cost: float
    turn_cost: float
    tracker_entries: int


def stages(given: StagesFile, *, memory_bytes_per_s: float) -> Stages:
    """Return the constants of a validated file."""
    others = (given.bank_groups.value - 1) * given.column_delay.value
    in_flight_bytes = given.threads_per_unit.value * given.thread_access.value
    queued_bytes = given.queue_entries.value * given.memory_channels.value * given.access.value
    return Stages(
        tile_rows=given.tile_rows.value,
        tile_columns=given.tile_columns.value,
        tiles_per_unit=given.tiles_per_unit.value,
        waves_per_tile=given.waves_per_tile.value,
        cache_ways=given.cache_ways.value,
        unit_bytes_per_s=in_flight_bytes / given.memory_latency.value,
        queue_s=queued_bytes / memory_bytes_per_s,
        queue_entries=given.queue_entries.value,
        update_cost=(others + given.update_column_delay.value) / (others + given.group_column_delay.value),
        turn_cost=max(1.0, given.row_cycle.value / (given.banks.value * given.column_delay.value)),
        tracker_entries=given.tracker_entries.value,
    )
