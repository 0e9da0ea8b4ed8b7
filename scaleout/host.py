"""What the host spends to issue a step: a timed program to one whose nodes cannot start before they are issued.

Eager frameworks issue one call after another, in program order, and do not wait for the device. So when a node has
been issued follows from the calls alone, ``issue_s = sum of the costs of all nodes up to it``, and a step of many small
kernels takes as long as its calls. Kernels that are launched one by one also lie a little apart on the device. Where a
step is replayed as a CUDA graph, or is compiled into one, neither costs anything.

The cost of a node is that of its call in the device file's `host_launch`, by operation and direction, such as
`gemm_backward`. A direction is `no_grad` where the step has no backward, else `forward` or `backward`; calls of a
phase whose name ends in `loop` follow each other with nothing between, which a host does faster than a layer's. An
operation that is not in the file costs what a point-wise call does; nodes that take no time are no calls. A backward
pass that begins costs besides what the framework needs to start one.

Source of the mechanism: cost of calls among others, `scaleout.measure.host`.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from scaleout.config import nearest
from scaleout.device import Device
from scaleout.errors import ConfigError
from scaleout.graph import NONE, ExecutionGraph, Floats, NodeKind
from scaleout.program import Program

Bools = npt.NDArray[np.bool_]

HOSTS = ("none", "eager")
"""How a step is issued: at once, or call by call."""

_ENDS = ("_unfused", "_fused", "_fwd", "_bwd")
_LIKE = {"attention_gqa": "attention", "attention_decode": "attention", "gemm_fp8": "gemm", "gemv": "gemm"}
"""Operations that are issued as another one is."""

_NEEDED = tuple(f"pointwise_{direction}" for direction in ("no_grad", "forward", "backward", "loop"))


def issue(program: Program, device: Device, *, host: str) -> Program:
    """Say when the host has issued each node of a timed program, if it issues them one by one.

    Raises
    ------
    ConfigError
        If the host is unknown, or the device file says nothing of its host's costs.
    """
    if host not in HOSTS:
        raise ConfigError(f"unknown host {host!r}; {nearest(host, HOSTS)}")
    if host == "none":
        return program
    missing = [name for name in _NEEDED if name not in device.host_launch_s]
    if missing:
        raise ConfigError(
            f"device {device.name!r} does not say what its host spends on a call ({', '.join(missing)} in "
            f"host_launch); add it to its file (`scaleout measure host` measures it), or take host none"
        )
    return program.map_graphs(lambda graph: _issued(graph, device))


def _issued(graph: ExecutionGraph, device: Device) -> ExecutionGraph:
    is_backward = _in_phases(graph, ("_backward", "_recompute", "gradients"))
    costs_s = _costs(graph, is_backward, device.host_launch_s)
    changes = (graph.microbatch[1:] != graph.microbatch[:-1]) | (graph.stage[1:] != graph.stage[:-1])
    plays = _in_phases(graph, ("_backward", "_recompute"))
    begins = plays & np.concatenate(([True], ~plays[:-1] | changes))
    costs_s[begins] += device.host_launch_s.get("start_backward", 0.0)
    kernels = (graph.kind == NodeKind.COMPUTE) & (graph.kernel != NONE)
    return graph.with_columns(
        issue_s=np.cumsum(costs_s),
        duration_s=np.where(kernels, graph.duration_s + device.launch_gap_s, graph.duration_s),
    )


def _in_phases(graph: ExecutionGraph, ends: tuple[str, ...]) -> Bools:
    """Whether the phase of each node ends in one of these ways, shape (N,)."""
    return np.asarray(np.array([name.endswith(ends) for name in graph.phases])[graph.phase])


def _costs(graph: ExecutionGraph, is_backward: Bools, launch_s: Mapping[str, float]) -> Floats:
    """Return the host time of each node's call, shape (N,)."""
    forward = "forward" if is_backward.any() else "no_grad"
    in_loop = [name.endswith("loop") for name in graph.phases]
    known: dict[tuple[str, str], float] = {}
    costs_s = np.zeros(len(graph))
    for node, (backward, phase) in enumerate(zip(is_backward.tolist(), graph.phase.tolist(), strict=True)):
        if graph.kind[node] == NodeKind.COMPUTE and graph.kernel[node] == NONE:
            continue
        key = (graph.operation(node), "loop" if in_loop[phase] else "backward" if backward else forward)
        if key not in known:
            known[key] = _cost(*key, launch_s)
        costs_s[node] = known[key]
    return costs_s


def _cost(operation: str, direction: str, launch_s: Mapping[str, float]) -> float:
    call = operation
    for end in _ENDS:
        call = call.removesuffix(end)
    call = _LIKE.get(call, call)
    return launch_s.get(f"{call}_{direction}", launch_s[f"pointwise_{direction}"])
