"""Sections of a device file beyond its rates: `power`, `work_groups` (gathers and fused kernels) and `stages`.

In `stages` a GEMM is cut into tiles, one for each work-group; as many work-groups as the device holds are a stage,
which reads, multiplies and writes. See docs/models/clocks-and-power.md, fused-operators.md and t3.md.

Symbols: occupancy is the share of all work-groups that the device can hold which are resident.
Source: of each number, beside it in the file; of stages, Pati et al., T3: Transparent Tracking & Triggering for
Fine-grained Overlap of Compute & Collectives, ASPLOS 2024, Secs. 2.5, 4.2, 4.3 and 4.5.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from scaleout.config.units import (
    Bytes,
    BytesPerSecond,
    Count,
    Dollars,
    Duration,
    Failures,
    Joules,
    NotNegative,
    Positive,
    Seconds,
    Share,
    ShareOrZero,
    Slowdown,
    Watts,
)  # fmt: skip
from scaleout.config.validated import Cited, Config
from scaleout.program.operations import OPERATIONS, Family, Kernel

_DTYPES = ("bf16", "fp16")
"""Dtypes whose FLOPs have the energies of the file; the energies of others are not known."""

_FLOPS_OF: Mapping[Family, str] = {Family.GEMM: "gemm", Family.CONVOLUTION: "gemm", Family.ATTENTION: "attention"}


class FlopEnergy(Config):
    """Energy of a FLOP at full clock in two-byte types, by class of kernels, with the bytes that come with it."""

    gemm: Cited[Joules]
    attention: Cited[Joules]


class SentEnergy(Config):
    """Energy of a byte that a rank must send, by kind of collective; other kinds draw nothing."""

    all_reduce: Cited[Joules]
    all_gather: Cited[Joules]
    reduce_scatter: Cited[Joules]
    all_to_all: Cited[Joules]


class Power(Config):
    """What a device may draw, and what its work draws."""

    limit_w: Cited[Watts] = Field(alias="limit")
    idle_w: Cited[Watts] = Field(alias="idle")  # drawn in any case
    other_w: Cited[Watts] = Field(alias="other")  # drawn beyond that by kernels whose FLOPs have no energy
    # the power of work, beyond idle, falls with this power of its slowdown; above 1, as slow work saves energy
    exponent: Cited[Annotated[float, Field(strict=True, ge=1.01, le=100)]]
    memory_s: Cited[Duration] = Field(alias="memory")  # the time over which the governor takes the mean
    energy: FlopEnergy
    sent: SentEnergy

    @model_validator(mode="after")
    def _leaves_room(self) -> Self:
        if self.limit_w <= self.idle_w:
            raise ValueError(f"the limit, {self.limit_w} W, must be above idle, {self.idle_w} W")
        return self

    def joules(self, kernel: Kernel, seconds: float) -> float:
        """Return the energy at full clock, beyond idle, of one call that takes so long isolated."""
        operation = OPERATIONS.get(kernel.op)
        kind = _FLOPS_OF.get(operation.family) if operation and kernel.dtype in _DTYPES else None
        return float(getattr(self.energy, kind)) * kernel.flops if kind else self.other_w * seconds

    def slowdown(self, joules: float, seconds: float) -> float:
        """How many times as slow the clock makes work of an energy at full clock that takes so long at the limit.

        With a slowdown s the power of work is ``s**-exponent`` of that at full clock, and its energy s times that; over
        its time that is what the limit has room for: ``E s**(1 - exponent) = room T``. 1 where there is room for more.
        """
        room_w = self.limit_w - self.idle_w
        return float(max(1.0, (joules / (room_w * seconds)) ** (1 / (self.exponent - 1))))


class DeviceCost(Config):
    """What a device costs and draws as part of its node, whose price and power are those that are public."""

    price_usd: Cited[Dollars] = Field(alias="price")  # the node's price over its devices, with network cards
    node_w: Cited[Watts] = Field(alias="node_power")  # the node's rating over its devices, those included


class Reliability(Config):
    """How often a job on a device fails because of it or its node, and how much its steps vary."""

    failures_per_s: Cited[Failures] = Field(alias="failures")  # of one device and its share of the node
    # standard deviation of a device's compute in a step, over its mean
    jitter: Cited[ShareOrZero] = 0.0


class WorkGroups(Config):
    """Constants of work-groups on a device."""

    RENAMED: ClassVar[Mapping[str, str]] = {"product": "gemm_slowdown", "fused_product": "fused_gemm_slowdown"}

    most_per_sm: Cited[Count]  # work-groups of a gathering kernel that an SM holds
    # from one row of a gather to the next, with next to nothing else resident
    row_latency_s: Cited[Seconds] = Field(alias="row_latency")
    memory_share: Cited[Share]  # part of the memory's bandwidth that random rows reach
    # of a logical work-group of a fused kernel: task loop, shuffled addresses, its bit of WG_Done
    book_keeping_s: Cited[Seconds] = Field(alias="book_keeping")
    # what the last work-group of a slice spends on the two PUTs and the fence between them
    put_call_s: Cited[Seconds] = Field(alias="put_call")
    message_gap_s: Cited[Seconds] = Field(alias="message_gap")  # of the network card for a message beyond its bytes
    flag_s: Cited[Seconds] = Field(alias="flag")  # one round between peers with direct links: fence, store, poll
    launch_s: Cited[Seconds] = Field(alias="launch")  # of a kernel that fills the device: launch and drain
    gemm_slowdown: Cited[Positive]  # of the operators' own GEMM over the device's library
    # time of a GEMM that stores into peers' memory, tiles ordered by destination, over that of the same isolated; 1
    # where the file does not say, as stores to peers make no calls (the paper, Sec. III.C)
    fused_gemm_slowdown: Cited[Slowdown] = 1.0
    # `row_latency_s` in the fused kernel's remote-first order for rows of up to `narrow_row_elements` elements
    narrow_row_latency_s: Cited[Seconds] = Field(default=0.0, alias="narrow_row_latency")
    narrow_row_elements: Cited[Count] = 0  # 0 if rows of any width take the same latency
    # occupancy beyond which work-groups of a persistent kernel that write locally disturb each other
    crowded_from: Cited[Share] = 1.0
    crowding: Cited[NotNegative] = 0.0  # by how much the memory is slower when the device is full
    fused_occupancy: Cited[Share] = 1.0  # highest occupancy of a fused kernel, whose communication takes registers

    @model_validator(mode="after")
    def _narrow_rows(self) -> Self:
        if len({"narrow_row_latency_s", "narrow_row_elements"} & self.model_fields_set) == 1:
            raise ValueError("narrow_row_latency and narrow_row_elements belong together; give both or neither")
        return self


class Stages(Config):
    """Constants of GEMMs in stages."""

    tile_rows: Cited[Count]  # of the output of a work-group
    tile_columns: Cited[Count]
    tile_depth: Cited[Count]  # what a work-group reads of K in one iteration
    tiles_per_unit: Cited[Count]  # work-groups that a compute unit holds at once
    waves_per_tile: Cited[Count]  # wavefronts of a work-group: what the tracker counts
    cache_ways: Cited[Count]  # of the last-level cache
    cache_write: Cited[BytesPerSecond]  # bytes that it takes in a second
    # threads of a compute unit, each with one access of `thread_access` bytes in flight for `memory_latency` seconds
    threads_per_unit: Cited[Count]
    thread_access: Cited[Bytes]
    memory_latency: Cited[Duration]
    queue_entries: Cited[Count]  # accesses of `access` bytes that a memory controller's queue holds
    memory_channels: Cited[Count]  # the controllers
    access: Cited[Bytes]
    banks: Cited[Count]  # of a channel, as are the groups of banks
    row_cycle: Cited[Count]  # cycles for which an access to a new row occupies a bank
    row_delay: Cited[Count]  # cycles between opening two rows of a channel
    bank_groups: Cited[Count]
    column_delay: Cited[Count]  # cycles between accesses to different bank groups
    group_column_delay: Cited[Count]  # cycles between accesses to the same one
    update_column_delay: Cited[Count]  # cycles between updates of the same one
    turnaround: Cited[Count]  # cycles of the bus from reads to writes and back
    kernel_launch: Cited[Seconds]  # seconds from a kernel's launch to its first work-group
    tracker_entries: Cited[Count]  # wavefronts whose output the tracker can follow at once

    @property
    def unit_bytes_per_s(self) -> float:
        """What one compute unit reads or writes in a kernel that copies or adds."""
        return self.threads_per_unit * self.thread_access / self.memory_latency

    def _cycles(self, same_group: int) -> float:
        """Cycles of an access: consecutive ones meet the same of G bank groups every G-th time."""
        return ((self.bank_groups - 1) * self.column_delay + same_group) / self.bank_groups

    @property
    def access_cost(self) -> float:
        """Time of an access over that of the bus alone, to which the memory's bandwidth is stated."""
        return self._cycles(self.group_column_delay) / self.column_delay

    @property
    def update_cost(self) -> float:
        """Time of the memory for an update (it adds near the banks) over that of a read or write."""
        return self._cycles(self.update_column_delay) / self._cycles(self.group_column_delay)

    def piece_cost(self, piece_bytes: float) -> float:
        """Time of an access over that of one in a long row, where every so many contiguous bytes open another row."""
        accesses = max(1.0, piece_bytes / self.access)
        row_cycles = max(self.row_cycle / self.banks, self.row_delay)
        return max(1.0, row_cycles / accesses / self._cycles(self.group_column_delay))

    @property
    def turn_cost(self) -> float:
        """Time of an access that finds another row open, as two sides take turns, over that of one that does not."""
        return self.piece_cost(self.access)

    def mixed_cost(self, written: float) -> float:
        """Time of an access over that of a read, where a share is written: the bus turns for each queue of writes."""
        return 1 + written * self.turnaround / self.queue_entries / self._cycles(self.group_column_delay)

    def queue_s(self, memory_bytes_per_s: float) -> float:
        """Return the time to serve a full queue of the memory's controllers."""
        return self.queue_entries * self.memory_channels * self.access / memory_bytes_per_s
