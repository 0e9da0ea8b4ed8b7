"""What a kernel and the collective next to it cost as one persistent kernel of a program: what is credited is paid.

The kernel is slower by its occupancy and its own GEMM, its slices are one-sided puts (`one_sided`: no start-up of the
library), with calls and message gaps over a network, or flags over direct links. The same numbers are written into the
graph. Symbols: q slices; k kernel, w link [s], of all slices.
Source: the device's `work_groups`; docs/models/fused-operators.md.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.placement import place
from scaleout.network.alpha_beta.cost import CollectiveCost, one_sided
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph
from scaleout.program.operations import Kernel
from scaleout.program.program import GroupFamily
from scaleout.schedule.fusion.embedding import Pooling, most_work_groups, pooling_s
from scaleout.schedule.fusion.machine import LINKS
from scaleout.schedule.pairs import Pair
from scaleout.simulation.cost_model import CostModel

_FILL = 0.02
"""A slice of the shorter of kernel and link, over the longer: finer ones would only make the graph longer."""
_MESSAGES = 2
"""Messages of a put: the data and their flag."""


@dataclass(frozen=True)
class FusedCost:
    """What a fused kernel takes more than its parts, and what it saves."""

    slower: float  # time of the kernel over that of the same isolated
    call_s: float  # of each slice that is sent
    gap_s: float  # of each slice on its link, beyond its bytes
    flags_s: float  # at the end of the operator
    slices: int
    isolated_s: float  # what kernel and collective take one after the other
    saves_s: float  # of these, what the fused operator does not take

    @property
    def pays(self) -> bool:
        """Whether it is faster than kernel and collective one after the other."""
        return self.saves_s > 0

    def lasts_s(self, sent: Collection[int] = (), *, last: int = NONE) -> Callable[[int, float], float]:
        """Return what maps a slice and its isolated seconds to those that it lasts.

        Slices that are `sent` make calls, and the `last` one of a kernel without a poll waits for the flags.
        """

        def seconds(index: int, isolated_s: float) -> float:
            calls_s = self.call_s if index in sent else 0.0
            return self.slower * isolated_s + calls_s + (self.flags_s if index == last else 0.0)

        return seconds


FREE = FusedCost(1.0, 0.0, 0.0, 0.0, 0, isolated_s=float("inf"), saves_s=float("inf"))
"""Nothing: where the machine, or how its kernels run as work-groups, is not known."""


def fused_cost(
    graph: ExecutionGraph, pair: Pair, families: Sequence[GroupFamily], machine: Machine | None
) -> FusedCost:
    """Return what a pair costs as one operator."""
    if machine is None or machine.device.work_groups is None:
        return FREE
    groups = machine.device.work_groups
    members = max(families[graph.group[pair.collective]].members, key=len)
    placement = place(machine.topology, members)
    stores = all(extent.dimension.link in LINKS for extent in placement.extents)
    kind = COLLECTIVES[graph.collective[pair.collective]]
    whole = CostModel(machine).collective(kind, float(graph.bytes[pair.collective]), (placement,))
    kernel_s = float(graph.duration_s[list(pair.kernels)].sum())
    slower = max(_slower(graph.kernels[graph.kernel[node]], machine, len(members), stores) for node in pair.kernels)
    shorter_s, longer_s = sorted((kernel_s * slower, whole.serialization_s))
    slices = 1
    while slices < pair.slices and shorter_s / slices > _FILL * longer_s:
        slices *= 2
    slices = max(min(slices, pair.slices) // len(pair.kernels), 1) * len(pair.kernels)
    cost = FusedCost(
        slower,
        call_s=0.0 if stores else groups.put_call_s,
        gap_s=0.0 if stores else _MESSAGES * groups.message_gap_s,
        flags_s=groups.flag_s * (2 if kind == "all_reduce" else 1) if stores else 0.0,
        slices=slices,
        isolated_s=kernel_s + whole.time_s,
        saves_s=0.0,
    )
    return replace(cost, saves_s=cost.isolated_s - _fused_s(pair, cost, kernel_s, whole))


def _fused_s(pair: Pair, cost: FusedCost, kernel_s: float, whole: CollectiveCost) -> float:
    """Return how long the slices of a pair last that is isolated, as a flow through the kernel and the link.

    With ``a`` of a slice in the kernel and ``b`` on the link, a producer's last slice arrives after ``a + (q - 1)
    max(a, b) + b``, a consumer's last slice is done after ``b + (q - 1) max(a, b) + a``, and neither ends before its
    kernel with the part that it keeps.
    """
    puts = one_sided(whole, cost.slices * cost.gap_s)
    kept_s, link_s = pair.kept * cost.slower * kernel_s, puts.serialization_s / cost.slices
    slice_s = (1 - pair.kept) * cost.slower * kernel_s / cost.slices + cost.call_s
    flow_s = slice_s + (cost.slices - 1) * max(slice_s, link_s) + link_s + puts.latency_s
    return max(kept_s + cost.slices * slice_s, flow_s) + cost.flags_s


def _slower(call: Kernel, machine: Machine, ranks: int, stores: bool) -> float:
    """Return the time of a kernel within a fused operator over that alone."""
    device = machine.device
    assert device.work_groups is not None, "asked for devices that say how work-groups run"
    groups = device.work_groups
    if "pooling" not in call.sizes:
        return 1.0 if call.op == "gemv" else groups.gemm_slowdown * groups.fused_gemm_slowdown
    bag = Pooling(call.sizes["pooling"], call.sizes["dim"], call.dtype, written=1.0)  # over all tables
    most = most_work_groups(device)
    slots = int(groups.fused_occupancy * most)
    fused = replace(bag, other_s=groups.book_keeping_s, written=1 / ranks if stores else 1.0)
    fused_s = pooling_s(device, fused, slots) / slots
    return max(1.0, fused_s / (pooling_s(device, bag, most) / most))
