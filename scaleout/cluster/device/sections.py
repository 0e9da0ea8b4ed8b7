"""Sections of a device file beyond its rates: `power`, `work_groups` (gathers and fused kernels), `stages`, `spread`.

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
    LogRatio,
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

_FLOPS_OF: Mapping[Family, str] = {
    Family.GEMM: "gemm",
    Family.CONVOLUTION: "gemm",
    Family.ATTENTION: "attention",
    Family.DECODE: "attention",
}


class WorkEnergy(Config):
    """Energy at full clock of what kernels with FLOPs in two-byte types do: of a FLOP, by class, and of a byte."""

    gemm: Cited[Joules] = Field(description="of a FLOP of a GEMM or convolution")
    attention: Cited[Joules] = Field(description="of a FLOP of attention")
    byte: Cited[Joules] = Field(
        default=0.0, description="of a byte that such a kernel must move between the memory and the SMs"
    )


class SentEnergy(Config):
    """Energy of a byte that a rank must send, by kind of collective; other kinds draw nothing."""

    all_reduce: Cited[Joules] = Field(description="of a byte sent by an all-reduce")
    all_gather: Cited[Joules] = Field(description="of a byte sent by an all-gather")
    reduce_scatter: Cited[Joules] = Field(description="of a byte sent by a reduce-scatter")
    all_to_all: Cited[Joules] = Field(description="of a byte sent by an all-to-all")


class Power(Config):
    """What a device may draw, and what its work draws."""

    limit_w: Cited[Watts] = Field(alias="limit", description="most that the device may draw")
    idle_w: Cited[Watts] = Field(alias="idle", description="drawn in any case")
    other_w: Cited[Watts] = Field(alias="other", description="drawn beyond idle by kernels whose FLOPs have no energy")
    exponent: Cited[Annotated[float, Field(strict=True, ge=1.01, le=100)]] = Field(
        description="the power of work, beyond idle, falls with this power of its slowdown; above 1, as slow work "
        "saves energy"
    )
    memory_s: Cited[Duration] = Field(alias="memory", description="time over which the governor takes the mean")
    energy: WorkEnergy = Field(description="energy of FLOPs, by class of kernels, and of their bytes")
    sent: SentEnergy = Field(description="energy of sent bytes, by kind of collective")

    @model_validator(mode="after")
    def _leaves_room(self) -> Self:
        if self.limit_w <= self.idle_w:
            raise ValueError(f"the limit, {self.limit_w} W, must be above idle, {self.idle_w} W")
        return self

    def joules(self, kernel: Kernel, seconds: float) -> float:
        """Return the energy at full clock, beyond idle, of one call that takes so long isolated."""
        per_flop = self.joules_per_flop(kernel)
        if per_flop is None:
            return self.other_w * seconds
        return per_flop * kernel.flops + float(self.energy.byte) * kernel.bytes

    def joules_per_flop(self, kernel: Kernel) -> float | None:
        """Return the energy of a FLOP of one call; None where they have none, and `other_w` is drawn."""
        operation = OPERATIONS.get(kernel.op)
        kind = _FLOPS_OF.get(operation.family) if operation and kernel.dtype in _DTYPES else None
        return float(getattr(self.energy, kind)) if kind else None

    def slowdown(self, joules: float, seconds: float) -> float:
        """How many times as slow the clock makes work of an energy at full clock that takes so long at the limit.

        With a slowdown s the power of work is ``s**-exponent`` of that at full clock, and its energy s times that; over
        its time that is what the limit has room for: ``E s**(1 - exponent) = room T``. 1 where there is room for more.
        """
        room_w = self.limit_w - self.idle_w
        return float(max(1.0, (joules / (room_w * seconds)) ** (1 / (self.exponent - 1))))

    def at_limit_s(self, kernel: Kernel, seconds: float) -> float:
        """Return how long a call that takes so long at full clock takes over and over: ``t (E / (room t))**(1 / n)``.

        With a slowdown s its power, E / t at full clock, is ``s**-n`` of that, which is what there is room for.
        """
        over = self.joules(kernel, seconds) / ((self.limit_w - self.idle_w) * seconds)
        return float(seconds * max(1.0, over ** (1 / self.exponent)))


class DeviceCost(Config):
    """What a device costs and draws as part of its node, whose price and power are those that are public."""

    price_usd: Cited[Dollars] = Field(
        alias="price", description="the node's price over its devices, with network cards"
    )
    node_w: Cited[Watts] = Field(
        alias="node_power", description="the node's rated power over its devices, those included"
    )


class Reliability(Config):
    """How often a job on a device fails because of it or its node, and how much its steps vary."""

    failures_per_s: Cited[Failures] = Field(
        alias="failures", description="failures of one device and its share of the node"
    )
    jitter: Cited[ShareOrZero] = Field(
        default=0.0, description="standard deviation of a device's compute in a step, over its mean"
    )


class Spread(Config):
    """How far off times are: ``ln(actual / predicted)`` of what errs as one, at either end of 90% of all cases.

    What a device does not state is that of its reference device. See docs/models/uncertainty.md.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {"host": "host_slower"}

    machine: Cited[LogRatio] | None = Field(
        default=None, description="of all kernels together, from one machine of the device to another"
    )
    interpolated: dict[str, Cited[LogRatio]] = Field(
        default_factory=dict, description="class of kernels to that of one that lies between measured ones"
    )
    transferred: dict[str, Cited[LogRatio]] = Field(
        default_factory=dict,
        description="class of kernels to that of all of them together, where their times are another device's, scaled",
    )
    transferred_each: dict[str, Cited[LogRatio]] = Field(
        default_factory=dict, description="the same of one kernel, beside that of its class"
    )
    host_faster: Cited[LogRatio] | None = Field(
        default=None, description="by how much the host's calls together are faster"
    )
    host_slower: Cited[LogRatio] | None = Field(default=None, description="by how much they are slower")
    paced_host_faster: Cited[LogRatio] | None = Field(
        default=None, description="by how much they are faster on a machine whose pace `scaleout measure host` has read"
    )
    paced_host_slower: Cited[LogRatio] | None = Field(default=None, description="by how much they are slower there")
    links_faster: Cited[LogRatio] | None = Field(
        default=None, description="by how much collectives are faster than bare links, of which no library knows a cost"
    )
    links_slower: Cited[LogRatio] | None = Field(default=None, description="by how much they are slower")
    step_faster: Cited[LogRatio] | None = Field(
        default=None, description="by how much a step is faster than its parts say, as other software runs it"
    )
    step_slower: Cited[LogRatio] | None = Field(default=None, description="by how much it is slower")
    framework: Cited[LogRatio] | None = Field(
        default=None, description="by how much steps of a framework of which none was compared differ together, besides"
    )


class WorkGroups(Config):
    """Constants of work-groups on a device."""

    RENAMED: ClassVar[Mapping[str, str]] = {"product": "gemm_slowdown", "fused_product": "fused_gemm_slowdown"}

    most_per_sm: Cited[Count] = Field(description="work-groups of a gathering kernel that an SM holds")
    row_latency_s: Cited[Seconds] = Field(
        alias="row_latency", description="from one row of a gather to the next, with next to nothing else resident"
    )
    memory_share: Cited[Share] = Field(description="part of the memory's bandwidth that random rows reach")
    book_keeping_s: Cited[Seconds] = Field(
        alias="book_keeping",
        description="of a logical work-group of a fused kernel: task loop, shuffled addresses, its bit of WG_Done",
    )
    put_call_s: Cited[Seconds] = Field(
        alias="put_call",
        description="what the last work-group of a slice spends on the two PUTs and the fence between them",
    )
    message_gap_s: Cited[Seconds] = Field(
        alias="message_gap", description="of the network card for a message, beyond its bytes"
    )
    flag_s: Cited[Seconds] = Field(
        alias="flag", description="one round between peers with direct links: fence, store, poll"
    )
    launch_s: Cited[Seconds] = Field(alias="launch", description="launch and drain of a kernel that fills the device")
    gemm_slowdown: Cited[Positive] = Field(
        description="time of the operators' own GEMM over that of the device's library"
    )
    fused_gemm_slowdown: Cited[Slowdown] = Field(
        default=1.0,
        description="time of a GEMM that stores into peers' memory, tiles ordered by destination, over that of "
        "the same isolated; 1 if unset, as stores to peers make no calls (the paper, Sec. III.C)",
    )
    narrow_row_latency_s: Cited[Seconds] = Field(
        default=0.0,
        alias="narrow_row_latency",
        description="row_latency in the fused kernel's remote-first order for rows of up to narrow_row_elements",
    )
    narrow_row_elements: Cited[Count] = Field(
        default=0, description="elements up to which a row is narrow; 0 if rows of any width take the same latency"
    )
    crowded_from: Cited[Share] = Field(
        default=1.0,
        description="occupancy beyond which work-groups of a persistent kernel that write locally disturb each other",
    )
    crowding: Cited[NotNegative] = Field(
        default=0.0, description="by how much the memory is slower when the device is full"
    )
    fused_occupancy: Cited[Share] = Field(
        default=1.0, description="highest occupancy of a fused kernel, whose communication takes registers"
    )

    @model_validator(mode="after")
    def _narrow_rows(self) -> Self:
        if len({"narrow_row_latency_s", "narrow_row_elements"} & self.model_fields_set) == 1:
            raise ValueError("narrow_row_latency and narrow_row_elements belong together; give both or neither")
        return self


class Stages(Config):
    """Constants of GEMMs in stages."""

    tile_rows: Cited[Count] = Field(description="rows of the output of a work-group")
    tile_columns: Cited[Count] = Field(description="columns of the output of a work-group")
    tile_depth: Cited[Count] = Field(description="what a work-group reads of K in one iteration")
    tiles_per_unit: Cited[Count] = Field(description="work-groups that a compute unit holds at once")
    waves_per_tile: Cited[Count] = Field(description="wavefronts of a work-group: what the tracker counts")
    cache_ways: Cited[Count] = Field(description="ways of the last-level cache")
    cache_write: Cited[BytesPerSecond] = Field(description="what the last-level cache takes in a second")
    threads_per_unit: Cited[Count] = Field(
        description="threads of a compute unit, each with one access of thread_access in flight for memory_latency"
    )
    thread_access: Cited[Bytes] = Field(description="size of a thread's access")
    memory_latency: Cited[Duration] = Field(description="time of a thread's access")
    queue_entries: Cited[Count] = Field(description="accesses that a memory controller's queue holds")
    memory_channels: Cited[Count] = Field(description="memory controllers")
    access: Cited[Bytes] = Field(description="size of a memory controller's access")
    banks: Cited[Count] = Field(description="banks of a channel")
    row_cycle: Cited[Count] = Field(description="cycles for which an access to a new row occupies a bank")
    row_delay: Cited[Count] = Field(description="cycles between opening two rows of a channel")
    bank_groups: Cited[Count] = Field(description="groups of banks of a channel")
    column_delay: Cited[Count] = Field(description="cycles between accesses to different bank groups")
    group_column_delay: Cited[Count] = Field(description="cycles between accesses to the same bank group")
    update_column_delay: Cited[Count] = Field(description="cycles between updates of the same bank group")
    turnaround: Cited[Count] = Field(description="cycles of the bus from reads to writes and back")
    kernel_launch: Cited[Seconds] = Field(description="from a kernel's launch to its first work-group")
    tracker_entries: Cited[Count] = Field(description="wavefronts whose output the tracker can follow at once")

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
