"""How kernels run as work-groups on a device: the `work_groups` of its file.

A work-group gathers rows one after the other: alone it waits for their latency, and as more are resident they share
the memory's bandwidth (see `operators.gather`). The other numbers are what fusing costs: book-keeping, calls, flags,
a slower product. Every key has its source beside it in the file.

Symbols: occupancy is the share of all work-groups that the device can hold which are resident.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from scaleout.config.units import Seconds
from scaleout.config.validated import Config, Count, Sourced

Part = Annotated[float, Field(gt=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
Duration = Annotated[Seconds, Field(ge=0)]


class WorkGroupsFile(Config):
    """What a device file says of work-groups; see `WorkGroups`."""

    most_per_sm: Sourced[Count]
    row_latency: Sourced[Duration]
    narrow_row_latency: Sourced[Duration] | None = None
    narrow_row_elements: Sourced[Count] | None = None
    memory_share: Sourced[Part]
    crowded_from: Sourced[Part] | None = None
    crowding: Sourced[NotNegative] | None = None
    book_keeping: Sourced[Duration]
    put_call: Sourced[Duration]
    message_gap: Sourced[Duration]
    fused_occupancy: Sourced[Part] | None = None
    flag: Sourced[Duration]
    launch: Sourced[Duration]
    product: Sourced[Annotated[float, Field(gt=0)]]
    fused_product: Sourced[Annotated[float, Field(ge=1)]] | None = None


@dataclass(frozen=True)
class WorkGroups:
    """Constants of work-groups on a device.

    Attributes
    ----------
    most_per_sm : int
        Work-groups of a gathering kernel that an SM holds.
    row_latency_s : float
        From one row of a gather to the next, with next to nothing else resident.
    narrow_row_latency_s : float
        The same in the fused kernel's remote-first order for rows of up to `narrow_row_elements` elements.
    narrow_row_elements : int
        0 if rows of any width are alike.
    memory_share : float
        Part of the memory's bandwidth that random rows reach.
    crowded_from, crowding : float
        Occupancy beyond which work-groups of a persistent kernel that write locally disturb each other, and by how much
        the memory is slower when the device is full.
    book_keeping_s : float
        Of a logical work-group of a fused kernel: task loop, shuffled addresses, its bit of WG_Done.
    put_call_s : float
        That the last work-group of a slice spends on the two PUTs and the fence between them.
    message_gap_s : float
        That the network card needs for a message beyond its bytes.
    fused_occupancy : float
        Occupancy that a fused kernel reaches at the most, whose communication takes registers.
    launch_s : float
        Of a kernel that fills the device: launch and drain.
    flag_s : float
        One round of flags between peers with direct links: fence, store, poll.
    product : float
        Time of the operators' own matrix product over that of the device's library.
    fused_product : float
        Time of a product that stores into peers' memory, tiles ordered by destination, over that of the same alone; 1
        where the file does not say, as stores to peers make no calls (the paper, Sec. III.C).
    """

    most_per_sm: int
    row_latency_s: float
    memory_share: float
    book_keeping_s: float
    put_call_s: float
    message_gap_s: float
    flag_s: float
    launch_s: float
    product: float
    fused_product: float = 1.0
    narrow_row_latency_s: float = 0.0
    narrow_row_elements: int = 0
    crowded_from: float = 1.0
    crowding: float = 0.0
    fused_occupancy: float = 1.0


def work_groups(given: WorkGroupsFile) -> WorkGroups:
    """Return the constants of a validated file."""
    narrow, elements = given.narrow_row_latency, given.narrow_row_elements
    return WorkGroups(
        most_per_sm=given.most_per_sm.value,
        row_latency_s=given.row_latency.value,
        memory_share=given.memory_share.value,
        book_keeping_s=given.book_keeping.value,
        put_call_s=given.put_call.value,
        message_gap_s=given.message_gap.value,
        flag_s=given.flag.value,
        launch_s=given.launch.value,
        product=given.product.value,
        fused_product=given.fused_product.value if given.fused_product else 1.0,
        narrow_row_latency_s=narrow.value if narrow else 0.0,
        narrow_row_elements=elements.value if narrow and elements else 0,
        crowded_from=given.crowded_from.value if given.crowded_from else 1.0,
        crowding=given.crowding.value if given.crowding else 0.0,
        fused_occupancy=given.fused_occupancy.value if given.fused_occupancy else 1.0,
    )
