"""Traces and recordings read by whole processes: CPU seconds and memory. Asserts nothing.

    python tests/benchmarks/traces.py

GPT-3 on 128 GPUs (tensor 8, pipeline 16), written to Chakra in a temporary folder: 1.0 million nodes in 337 MB; beside
the generated job. Then sets of as many files and nodes as issues of others name, of several roles whose kernels all
take other times; sets as other tools write them, without our attributes, of nodes whose times differ on every rank, and
of nodes whose FLOPs and bytes differ too; and a host execution trace of 30,000 nodes.
"""

import os
import subprocess
import sys
import tempfile
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from scaleout.interop.chakra import schema
from scaleout.interop.chakra.files import write
from scaleout.interop.chakra.save import save_program
from scaleout.interop.chakra.tables import NodeType
from scaleout.program.graph import GraphBuilder
from scaleout.program.operations import TimeSource, kernel
from scaleout.program.program import GroupFamily, Program

sys.path.insert(0, str(Path(__file__).parents[1]))
from host_builder import Host

JOB = ("gpt-3-1024", "--set", "data_parallel=1")
RUN = ("--topology", "dgx-h200-16", "--schedule", "baseline", "--schedule", "overlap", "--json")
REPEATS = 3
_SETS = ((128, 10_000, 16, "switch-128"), (64, 60_000, 4, "sierra-64"))
"""Ranks, nodes of each, roles, and a topology of as many."""


def scaleout(*arguments: str) -> tuple[float, float]:
    """CPU seconds and the largest memory [MB] of a command."""
    return process("-m", "scaleout.cli", *arguments)


def process(*arguments: str) -> tuple[float, float]:
    """CPU seconds and the largest memory [MB] of a process of Python."""
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL) as started:
        _, status, usage = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
    if started.returncode:
        sys.exit(f"{' '.join(arguments)} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def show(label: str, used: tuple[float, float]) -> None:
    """Print what a process took."""
    print(f"{label}: {used[0]:.2f} s, {used[1]:.0f} MB", flush=True)


def write_set(ranks: int, nodes: int, roles: int, folder: str) -> None:
    """Write traces of kernels one after another, and every tenth an all-reduce beside them."""
    call = kernel("gemm", dtype="bf16", M=1024, N=1024, K=1024)
    graphs = []
    for role in range(roles):
        times_s = np.random.default_rng(role).uniform(5e-6, 500e-6, nodes)
        builder, last = GraphBuilder(), -1
        for node in range(nodes):
            if node % 10 == 9:
                builder.collective("all_reduce", 2**20, group=0, after=(last,))
            else:
                timed = {"duration_s": float(times_s[node]), "time_source": TimeSource.RECORDED}
                last = builder.compute(call, name=f"layer_{node // 40}", after=(last,), **timed)
        graphs.append(builder.build())
    role_of_rank = np.arange(ranks) * roles // ranks
    world = GroupFamily("world", (tuple(range(ranks)),))
    save_program(Program("job", tuple(graphs), role_of_rank, (world,)), folder, name="job", facts={})


def write_plain_set(ranks: int, nodes: int, folder: str, *, counts: bool) -> None:
    """Write traces as other tools do: all-reduces, and kernels that all differ in time, and, if so, in counts."""
    cpu, kind = schema.attribute("is_cpu_op", "bool_val", False), schema.attribute("comm_type", "int64_val", 0)
    for rank in range(ranks):
        numbers = np.random.default_rng(rank).integers(5, 500_000, nodes).tolist()
        work = np.random.default_rng((rank, 1)).integers(10**6, 10**12, (nodes, 2)).tolist() if counts else []
        written = []
        for node, number in enumerate(numbers):
            message = schema.Node(id=node, name=f"node_{node // 40}", data_deps=range(node)[-1:], attr=[cpu])
            if node % 10 == 9:
                message.type = NodeType.COMM_COLL_NODE
                message.attr.extend([kind, schema.attribute("comm_size", "int64_val", 4096 * node)])
            else:
                message.type, message.duration_micros = NodeType.COMP_NODE, number
                for name, count in zip(("num_ops", "tensor_size"), work[node], strict=True) if counts else ():
                    message.attr.append(schema.attribute(name, "int64_val", count))
            written.append(message)
        write(f"{folder}/job.{rank}.et", schema.GlobalMetadata(version="0.0.4"), written)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        scaleout("trace", *JOB, "--output", folder)
        for label, arguments in (("traces", ("--trace", folder)), ("generated", JOB)):
            seconds, megabytes = zip(*(scaleout("run", *arguments, *RUN) for _ in range(REPEATS)), strict=True)
            show(label, (min(seconds), max(megabytes)))
    load = "import sys; from scaleout.interop.chakra.load import load_program; load_program(sys.argv[1])"
    for ranks, nodes, roles, topology in _SETS:
        kinds = {
            f"of {roles} roles": partial(write_set, ranks, nodes, roles),
            "plain nodes whose times differ": partial(write_plain_set, ranks, nodes, counts=False),
            "plain nodes whose times, FLOPs and bytes differ": partial(write_plain_set, ranks, nodes, counts=True),
        }
        for kind, write_files in kinds.items():
            with tempfile.TemporaryDirectory() as folder:
                writer = get_context("spawn").Process(target=write_files, args=(folder,))
                writer.start()  # a process started by this one would count the memory that writing took
                writer.join()
                show(f"{ranks} x {nodes:,}, {kind}, loaded", process("-c", load, folder))
                run = scaleout("run", "--trace", folder, "--topology", topology, "--schedule", "baseline", "--json")
                show(f"{ranks} x {nodes:,}, {kind}, run", run)
    with tempfile.TemporaryDirectory() as folder:
        host = Host()
        for node in range(30_000):
            host.operator("aten::mm" if node % 2 else "aten::relu", dims=[[512, 512]] * (1 + node % 2))
        host.write(Path(folder))
        show("host trace of 30,000 nodes, imported",
             scaleout("import", "pytorch", folder, "--output", f"{folder}/traces", "--json"))  # fmt: skip


if __name__ == "__main__":
    main()
