"""What fusing a kernel with its collective costs on a machine, and into how many slices that is best cut.

A fused kernel runs at the occupancy that its communication leaves it, with book-keeping for each task (gathers). A
fused product is the operators' own and not the library's, `product` times as long, and slower by `fused_product` as it
stores to peers; a matrix by a vector is bound by memory either way. Over a network each slice costs a call; over direct
links a round of flags ends the operator. Slices are as few as keep what cannot overlap, one slice of the shorter of
kernel and wire, below `_FILL` of the longer.

Symbols: k kernel, w wire [s].
Source: the device's `work_groups`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scaleout.graph import COLLECTIVES, ExecutionGraph
from scaleout.machine import Machine
from scaleout.network.alpha_beta import collective_cost
from scaleout.operations import Kernel
from scaleout.operators.gather import Pooling, most_work_groups, pooling_s
from scaleout.operators.machine import LINKS
from scaleout.placement import place
from scaleout.program import GroupFamily
from scaleout.schedule.pairs import Pair

_FILL = 0.02
MOST_SLICES = 64
"""More would only make the graph longer."""


@dataclass(frozen=True)
class Charge:
    """What a fused kernel takes more than its parts.

    Attributes
    ----------
    slower : float
        Time of the kernel over that of the same alone.
    call_s : float
        Of each slice that is sent.
    flags_s : float
        At the end of the operator.
    slices : int
        That it is cut into.
    pays : bool
        Whether it is faster than kernel and collective one after the other.
    """

    slower: float
    call_s: float
    flags_s: float
    slices: int
    pays: bool


FREE = Charge(1.0, 0.0, 0.0, 0, pays=True)
"""Nothing: where the machine, or how its kernels run as work-groups, is not known."""


def charge(graph: ExecutionGraph, pair: Pair, families: Sequence[GroupFamily], machine: Machine | None) -> Charge:
    """Return what a pair costs as one operator."""
    if machine is None or machine.device.work_groups is None:
        return FREE
    groups = machine.device.work_groups
    family = families[graph.group[pair.collective]]
    members = max(family.members, key=len)
    placement = place(machine.topology, members)
    stores = all(extent.dimension.link in LINKS for extent in placement.extents)
    kind = COLLECTIVES[graph.collective[pair.collective]]
    cost = collective_cost(kind, float(graph.bytes[pair.collective]), placement)
    kernel_s = float(graph.duration_s[list(pair.kernels)].sum())
    slower = max(_slower(graph.kernels[graph.kernel[node]], machine, len(members), stores) for node in pair.kernels)
    shorter_s, longer_s = sorted((kernel_s * slower, cost.serialization_s))
    slices = 1
    while slices < MOST_SLICES and shorter_s / slices > _FILL * longer_s:
        slices *= 2
    call_s = 0.0 if stores else groups.put_call_s
    flags_s = groups.flag_s * (2 if kind == "all_reduce" else 1) if stores else 0.0
    fused_s = longer_s + shorter_s / slices + slices * call_s + flags_s
    return Charge(slower, call_s, flags_s, slices, pays=fused_s < kernel_s + cost.time_s)


def _slower(call: Kernel, machine: Machine, ranks: int, stores: bool) -> float:
    """Return the time of a kernel within a fused operator over that alone."""
    device = machine.device
    assert device.work_groups is not None, "asked for devices that say how work-groups run"
    groups = device.work_groups
    if "pooling" not in call.sizes:
        return 1.0 if call.op == "gemv" else groups.product * groups.fused_product
    bag = Pooling(call.sizes["pooling"], call.sizes["dim"], call.dtype)
    most = most_work_groups(device)
    slots = int(groups.fused_occupancy * most)
    written = 1 / ranks if stores else 1.0
    fused_s = pooling_s(device, bag, slots, other_s=groups.book_keeping_s, written=written) / slots
    return max(1.0, fused_s / (pooling_s(device, bag, most) / most))
