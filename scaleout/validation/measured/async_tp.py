"""Rows of products fused with their collective over symmetric memory: PyTorch's asynchronous tensor parallelism.

A product is cut into as many parts as there are ranks, and every part's data cross the links as one copy by the copy
engines, which hold no SM. *All-gather and product*: a rank puts its shard where others can read it, meets them, and
works on its own shard while it reads the next one; each further shard is read once the part before the last is done, as
two streams take turns. *Product and reduce-scatter*: parts for others come first, each is fetched when all have made
theirs, the buffer is free for the part after the next once all have read it, and last the parts are added up. Meetings
are kernels that wait for a flag of each other rank, as long as the topology's start of a call.

The host is one call's in a loop, and each part's; it is the longer of the two that a loop of such calls takes.

Knows no other transport: NVLink multicast and copies between hosts are not there.

Symbols: p ranks, and parts. Source: PyTorch 2.11, torch.distributed._symmetric_memory.
"""

from collections.abc import Callable, Mapping

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.spec import Device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import Topology
from scaleout.errors import ConfigError
from scaleout.program.graph import GraphBuilder, NodeRole
from scaleout.program.operations import ITEM_BYTES, Kernel, kernel
from scaleout.simulation.run import simulate
from scaleout.validation.measured.case import Case, NoModelError
from scaleout.validation.measured.rows import Row
from scaleout.validation.measured.steps import one_role

_COPIES = 1
"""Stream of copies and barriers, which run beside the products."""
_CALLS_OF_PART = ("gemm", "peer_copy")
_CALLS: Mapping[str, tuple[str, ...]] = {
    "fused_all_gather_matmul": (),
    "fused_matmul_reduce_scatter": ("barrier", "barrier"),
}
"""What the host calls for each part besides the product and the copy."""


class _Parts:
    """A graph that is written part by part: products on the compute stream, copies on one of their own."""

    def __init__(self, topology: Topology) -> None:
        self.graph = GraphBuilder("parts_loop", NodeRole.LOOP)
        self._link = topology.dimensions[0]
        self._startup_s = topology.startup_s

    def meet(self, *after: int) -> int:
        return self.graph.add(after, name="barrier", duration_s=self._startup_s, stream=_COPIES)

    def fetch(self, size_bytes: float, *after: int) -> int:
        lasts_s = self._link.latency_s + size_bytes / self._link.bytes_per_s
        return self.graph.add(after, name="peer_copy", duration_s=lasts_s, stream=_COPIES)

    def call(self, called: Kernel, *after: int) -> int:
        return self.graph.compute(called, after=after)


def _gather(parts: _Parts, product: Kernel, shard: Kernel, out: Kernel, ranks: int) -> None:
    ready = parts.meet(parts.call(shard, parts.meet()))
    done = [parts.call(product, ready)]
    for step in range(1, ranks):
        fetched = parts.fetch(shard.bytes / 2, done[max(step - 2, 0)] if step > 1 else ready)
        done.append(parts.call(product, fetched))
    parts.meet(parts.call(shard, done[-1]))


def _scatter(parts: _Parts, product: Kernel, shard: Kernel, out: Kernel, ranks: int) -> None:
    ready = parts.meet()
    free = [ready, ready]
    fetched = []
    for step in range(1, ranks):
        made = parts.meet(parts.call(product, free[step % 2]))
        fetched.append(parts.fetch(out.bytes / 2, made))
        free[step % 2] = parts.meet(fetched[-1])
    own = parts.call(product, free[ranks % 2])
    sizes = out.sizes
    rows = {"tokens": sizes["elements"] // product.sizes["N"], "hidden": product.sizes["N"], "topk": ranks}
    parts.call(kernel("moe_sum_topk", dtype=out.dtype, **rows), parts.meet(own, *fetched))


_WRITERS: Mapping[str, Callable[[_Parts, Kernel, Kernel, Kernel, int], None]] = {
    "fused_all_gather_matmul": _gather,
    "fused_matmul_reduce_scatter": _scatter,
}


def fused(row: Row, machine: Machine) -> Case:
    """One of the two operators; sizes are those of the whole product, of which a rank has a part of rows or of K."""
    operator = row.name.removeprefix("async_tp_")
    if operator not in _WRITERS:
        raise NoModelError(f"no model of an operator {operator!r}")
    ranks, dtype = row.count("gpus"), row.word("dtype", tuple(ITEM_BYTES))
    sizes = {key: row.count(key) for key in "MNK"}
    if sizes["M"] % ranks:
        raise ConfigError(f"{row.where}: {sizes['M']} rows do not divide over {ranks} ranks")
    sizes["M"] //= ranks
    product = kernel("gemm", dtype=dtype, **sizes)
    shard = kernel("copy_d2d", dtype=dtype, elements=sizes["M"] * sizes["K"])
    out = kernel("copy_d2d", dtype=dtype, elements=sizes["M"] * sizes["N"])
    parts = _Parts(machine.topology)
    _WRITERS[operator](parts, product, shard, out, ranks)
    program = one_role(row.id, parts.graph, ranks)

    def predict_s() -> float:
        timed = time_kernels(program, machine.device)
        device_s = simulate(timed, machine.of(ranks).topology).makespan_s
        return max(device_s, _host_s(operator, ranks, machine.device))

    return Case(row.number("step_us") * 1e-6, predict_s)


def _host_s(operator: str, ranks: int, device: Device) -> float:
    """Return what the host spends on one call of an operator in a loop."""
    needed = [f"{call}_loop" for call in (operator, *_CALLS_OF_PART, *_CALLS[operator])]
    missing = [call for call in needed if call not in device.host_launch_s]
    if missing:
        raise NoModelError(f"device {device.name!r} does not say what its host spends on {', '.join(missing)}")
    once_s, *part_s = (device.host_launch_s[call] for call in needed)
    return once_s + ranks * sum(part_s)
