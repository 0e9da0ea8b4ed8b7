"""Generated jobs as if they had been recorded, to which edits of recordings are held."""

from collections import Counter

import numpy as np

from scaleout import load_device, load_workload
from scaleout.cluster.device.annotate import time_kernels
from scaleout.program.graph import COLLECTIVES, NONE, NodeKind, NodeRole
from scaleout.program.operations import TimeSource
from scaleout.program.recorded import recorded
from scaleout.simulation.clocks import at_full_clock
from scaleout.simulation.options import SimulationOptions
from scaleout.study.edits import Recorded
from scaleout.study.job import Job, run
from scaleout.study.recording import replayed
from scaleout.workloads.generate import generate

BYTES_PER_S = 100e9


def recording_of(name, **changes):
    """Return a workload as if recorded: kernels by shapes or bytes, collectives at one rate of what leaves a rank.

    Kernels have their times at full clock, at which edits compare them.
    """
    device = load_device("h200")
    program = at_full_clock(time_kernels(generate(load_workload(name, changes)), device), device)

    def as_recorded(graph):
        calls = {}
        index = np.full(len(graph), NONE)
        duration_s = graph.duration_s.copy()
        for node in range(len(graph)):
            size = int(graph.bytes[node])
            if graph.kind[node] >= NodeKind.SEND:
                duration_s[node] = size / BYTES_PER_S
                call = recorded("send", dtype="bf16", token_bytes=size, other_bytes=0)
            elif graph.kind[node] == NodeKind.COLLECTIVE:
                exchanged = bool(graph.role[node] & NodeRole.EXCHANGE)
                kind, ranks = COLLECTIVES[graph.collective[node]], len(program.groups[graph.group[node]].members[0])
                sums = 2 if kind == "all_reduce" else 1
                duration_s[node] = sums * (ranks - 1) / ranks * size / BYTES_PER_S
                call = recorded(kind, dtype="bf16", token_bytes=size * exchanged, other_bytes=size * (not exchanged))
            elif graph.kernel[node] == NONE:
                continue
            else:
                call = graph.kernels[graph.kernel[node]]
                if call.op in ("gemm", "batched_gemm", "grouped_gemm"):
                    weights = graph.role[node] & NodeRole.WEIGHT_GRADIENT
                    call = call.counting("K" if weights else "M")
                elif call.op.startswith("attention"):
                    call = call.counting("batch*seq")
                else:
                    updates = bool(graph.role[node] & NodeRole.OPTIMIZER)
                    call = recorded(
                        call.op, dtype=call.dtype, token_bytes=size * (not updates), other_bytes=size * updates
                    )
            index[node] = calls.setdefault(call, len(calls))
        kernels = tuple(calls)
        return graph.with_columns(
            kernel=index,
            kernels=kernels,
            names=tuple(kernels[at].op if at != NONE else "other" for at in index.tolist()),
            tag=np.where(graph.kind >= NodeKind.SEND, 0, graph.tag),
            duration_s=duration_s,
            time_source=np.full(len(graph), TimeSource.RECORDED),
            **{
                name: np.array([getattr(kernels[at], name) if at != NONE else 0 for at in index])
                for name in ("flops", "bytes")
            },
        )

    parameters = Counter()
    for graph in program.graphs[:1]:
        for node in np.flatnonzero(graph.has_role(NodeRole.WEIGHT_GRADIENT)).tolist():
            sizes = graph.kernels[graph.kernel[node]].sizes
            parameters[sizes["M"] * sizes["N"] * sizes.get("groups", 1)] += 1
    return Recorded(program.map_graphs(as_recorded), device, 0.5, 1, tuple(parameters.items()))


def makespan_s(program):
    topology, options = replayed(program, SimulationOptions())
    return run(Job(program, "as recorded", topology, "recorded", options, traced=True)).makespan_s
