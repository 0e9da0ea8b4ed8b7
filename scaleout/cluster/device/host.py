"""The host's time to issue a step: a timed program to one whose nodes cannot start before they are issued.

Eager frameworks issue one call after another and do not wait for the device: ``issue_s = sum of the costs of all calls
up to it``, by operation and direction in the device file's `host_launch`. Where one rank runs on its own they are less:
no collective pushes their code out of the core's caches, and nobody waits for the slowest of several hosts. A host that
blocks (CUDA_LAUNCH_BLOCKING=1) issues a call when the one before is done, so that costs lengthen the kernels. One that
checks each collective (TORCH_DISTRIBUTED_DEBUG=DETAIL) compares it over all ranks of its group first, one by one. A
loop over a list of tensors, which the host begins when the device has nothing left to do, lasts as long as its calls,
views and copies. Where the host reads a value, the device waits for it, and for the next calls. CUDA graphs have no
such cost, nor a gap between kernels. See docs/models/host-issue.md.

Source: costs of calls measured among other calls, `scaleout.validation.measure.host`.
"""

from collections.abc import Mapping

import numpy as np

from scaleout.cluster.device.spec import Device
from scaleout.config.validated import nearest
from scaleout.errors import ConfigError
from scaleout.program.calls import columns_of
from scaleout.program.graph import NONE, ExecutionGraph, Floats, Ints, NodeKind, NodeRole
from scaleout.program.program import Program
from scaleout.program.reorder import gathers_parameters

HOSTS = ("none", "eager", "blocking", "checking")
"""How a step is issued: everything at once, call by call, each call when the device is done with the one before, or
call by call with a check of each collective over its ranks."""
CHECK = "collective_check"
"""In `host_launch`: what a check of a collective takes the host for each rank of its group."""

_ENDS = ("_unfused", "_fused", "_fwd", "_bwd")
_LIKE = dict.fromkeys(
    ("attention_gqa", "attention_window", "attention_decode", "attention_decode_latent"), "attention"
) | {
    "gemm_fp8": "gemm",
    "gemv": "gemm",
    "conv2d_bwd_data": "conv2d",
    "conv2d_bwd_weight": "conv2d",
    "embedding_bag_bwd_dense": "embedding_bag",
    "moe_permute_rows_bwd": "index_rows",  # of indexing, in PyTorch; what frameworks' own kernels do has no such cost
}
"""Operations whose calls cost as much as those of another one."""

_PASSES = {"forward": NodeRole.FORWARD, "backward": NodeRole.BACKWARD | NodeRole.RECOMPUTE}
"""Passes of a micro-batch: each costs, beyond its calls, the time to start it and for each layer that it gathers."""

ALONE = "alone"
"""End of the name of a cost of the host of one rank."""

_LOOPS = {"list_in": (2.0, 0, 1), "list_out": (1.5, 0, 0), "list_spread": (0, 3, 1)}
"""Loop to what the host does for each tensor: views before any copy, views among the copies, copies.

A look at the own rank is half a view. Copies out of a list are issued beside its gather. DeepSpeed,
runtime/zero/partition_parameters.py, 5ca86ae4e; PyTorch 1.8, ProcessGroupNCCL.cpp, which copies in before it reduces.
"""

READ_BACKS = ("moe_rows_by_mask", "moe_probs_by_mask")
"""Operations whose result's size the host reads: it issues nothing before they are done, so that the device waits."""

READ_BACK = "read_back"
"""In `host_launch`: how long the device waits for work after a value that the host has read."""

_NEEDED = tuple(f"pointwise_{direction}" for direction in ("no_grad", "forward", "backward", "loop"))


def issue(program: Program, device: Device, *, host: str) -> Program:
    """Set when the host has issued each node of a timed program, if it issues them one by one.

    Raises
    ------
    ConfigError
        If the host is unknown, or the device file says nothing of its host's costs.
    """
    check_host(device, host)
    if host == "none":
        return program
    check_s = device.host_launch_s[CHECK] if host == "checking" else 0.0
    checks_s = np.array([check_s * max(map(len, group.members), default=0) for group in program.groups] + [0.0])
    costs_s = host_costs_s(device, alone=program.num_ranks == 1)
    return program.map_graphs(lambda graph: _issued(graph, device, costs_s, checks_s, blocking=host == "blocking"))


def check_host(device: Device, host: str) -> None:
    """Check that a host is known, and that the device file has the costs of its calls (else `ConfigError`)."""
    if host not in HOSTS:
        raise ConfigError(f"unknown host {host!r}; {nearest(host, HOSTS)}")
    missing = unknown_costs(device)
    if host == "checking" and CHECK not in device.host_launch_s:
        missing.append(CHECK)
    if missing and host != "none":
        raise ConfigError(
            f"device {device.name!r} does not say what its host spends on a call ({', '.join(missing)} in "
            f"host_launch); add it to its file (`scaleout measure host` measures it), or take host none"
        )


def unknown_costs(device: Device) -> list[str]:
    """Return which costs of calls an eager host needs that the device's file does not have."""
    return [name for name in _NEEDED if name not in device.host_launch_s]


def host_costs_s(device: Device, *, alone: bool) -> Mapping[str, float]:
    """Return what a device's host spends by name of a call: as one of several ranks, or `alone` where known."""
    known = device.host_launch_s
    return {name: known.get(f"{name}_{ALONE}", seconds) if alone else seconds for name, seconds in known.items()}


def _issued(
    graph: ExecutionGraph, device: Device, known_s: Mapping[str, float], checks_s: Floats, *, blocking: bool
) -> ExecutionGraph:
    issued, numbers = calls_of(graph)
    costs_s = np.array([call_s(call, known_s) for call in issued] + [0.0])[numbers]  # `NONE` is the last entry
    collectives = graph.kind == NodeKind.COLLECTIVE
    costs_s[collectives] += checks_s[graph.group[collectives]]
    trains = _trains(graph)
    changes = (graph.microbatch[1:] != graph.microbatch[:-1]) | (graph.stage[1:] != graph.stage[:-1])
    gathers = gathers_parameters(graph)
    for name, roles in _PASSES.items():
        runs = graph.has_role(roles)
        starts = runs & np.concatenate(([True], ~runs[:-1] | changes))
        start = f"start_{name}" if trains else "start_no_grad"
        costs_s[starts] += known_s.get(start, 0.0)
        costs_s[gathers & runs] += known_s.get(f"gathered_{name}", 0.0)
    kernels = (graph.kind == NodeKind.COMPUTE) & (graph.kernel != NONE)
    launches, before_s, among_s = _loops_s(graph, known_s)
    busy_s = before_s + np.maximum(graph.duration_s + launches * device.launch_gap_s, among_s)
    if blocking:  # a collective's call, which has no duration here, comes with the next kernel
        number = np.minimum(np.searchsorted(np.flatnonzero(kernels), np.arange(len(graph))), max(kernels.sum() - 1, 0))
        busy_s[kernels] += np.bincount(number, weights=costs_s, minlength=kernels.sum())[: kernels.sum()]
    return graph.with_columns(
        issue_s=np.zeros(len(graph)) if blocking else np.cumsum(costs_s),
        duration_s=np.where(kernels, busy_s, graph.duration_s),
    )


def _loops_s(graph: ExecutionGraph, known_s: Mapping[str, float]) -> tuple[Floats, Floats, Floats]:
    """Return the launches of each node, (N,), and of loops the host's time before them and among them.

    What the device waits after a value was read is before them, too: nothing runs beside it on that stream.

    A view whose cost is not known costs what a point-wise call does.
    """
    calls, copy_s = columns_of(graph.kernels), known_s["pointwise_loop"]
    costs = np.zeros((len(calls.kinds) + 1, 3))
    costs[:, 0] = 1
    for number, call in enumerate(calls.kinds):
        if call.op in _LOOPS:
            before, among, copies = _LOOPS[call.op]
            view_s = known_s.get("view_loop", copy_s)
            costs[number] = np.array([1, before * view_s, among * view_s + copies * copy_s]) * call.sizes["tensors"]
        elif call.op in READ_BACKS:
            costs[number, 1] = known_s.get(READ_BACK, 0.0)
    kinds = np.append(calls.kind, len(calls.kinds))  # `NONE` is the last entry
    launches, before_s, among_s = costs[kinds[graph.kernel]].T
    return launches, before_s, among_s


def _trains(graph: ExecutionGraph) -> bool:
    """Return whether calls keep what a backward needs: a step without one runs under `no_grad`."""
    return bool(graph.has_role(NodeRole.BACKWARD | NodeRole.DEFERRED | NodeRole.REDUCTION | NodeRole.RECOMPUTE).any())


Call = tuple[str, str]
"""An operation and its direction: forward, backward, no_grad or loop."""


def calls_of(graph: ExecutionGraph) -> tuple[tuple[Call, ...], Ints]:
    """Return the host's different calls, and which of them issues each node, (N,), `NONE` for none.

    Recomputed nodes are issued as forward ones, reductions of gradients as calls in a loop: no operation of autograd
    wraps them.
    """
    names = ("loop", "backward", "forward" if _trains(graph) else "no_grad")
    backward = graph.has_role(NodeRole.BACKWARD | NodeRole.DEFERRED | NodeRole.REDUCTION)
    reductions = graph.has_role(NodeRole.GRADIENTS) & (graph.kind == NodeKind.COLLECTIVE)
    directions = np.where(graph.has_role(NodeRole.LOOP) | reductions, 0, np.where(backward, 1, 2))
    nodes = np.flatnonzero((graph.kind != NodeKind.COMPUTE) | (graph.kernel != NONE))
    columns = [(column - NONE)[nodes] for column in (graph.kind_of_kernel, graph.collective, graph.kind, directions)]
    alike = np.ravel_multi_index(columns, [int(column.max(initial=0)) + 1 for column in columns])
    _, firsts, members = np.unique(alike, return_index=True, return_inverse=True)
    found = [(graph.operation(node), names[directions[node]]) for node in nodes[firsts].tolist()]
    calls = {call: number for number, call in enumerate(dict.fromkeys(found))}
    numbers = np.full(len(graph), NONE)
    numbers[nodes] = np.array([calls[call] for call in found], np.int64)[members]
    return tuple(calls), numbers


def call_s(call: Call, costs_s: Mapping[str, float]) -> float:
    """Return the host time of a call in seconds, of `host_costs_s`; of a point-wise call if its own is not known."""
    operation, direction = call
    for end in () if operation in _LIKE else _ENDS:
        operation = operation.removesuffix(end)
    operation = _LIKE.get(operation, operation)
    return costs_s.get(f"{operation}_{direction}", costs_s[f"pointwise_{direction}"])
