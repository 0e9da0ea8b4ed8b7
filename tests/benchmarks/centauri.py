"""How long Centauri's plans take to find and simulate, from names to the step. Reports; asserts nothing.

    python tests/benchmarks/centauri.py

CPU time of the second of two runs, as kernels and collectives are priced once a process; and that of a whole process.
"""

import resource
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from scaleout.cluster.topology.topology import Topology, load_topology
from scaleout.study.comparison import Comparison, compare

BIG = {
    "layers": 30, "tensor_parallel": 4, "pipeline_parallel": 3, "data_parallel": 4, "sequence_parallel": True,
    "batch_per_replica": 6, "microbatch": 1, "pipeline_schedule": "interleaved_1f1b",
}  # fmt: skip
SHARDED = {"layers": 30, "tensor_parallel": 1, "zero": 3}
SEVENTY = {
    "tensor_parallel": 8, "pipeline_parallel": 2, "data_parallel": 4, "batch_per_replica": 16, "microbatch": 1,
}  # fmt: skip


def eight_nodes() -> Topology:
    """Return 64 H200 of the machine that is described at other sizes."""
    topology = load_topology("dgx-h200-4")
    within, between = topology.dimensions
    return replace(topology, dimensions=(within, replace(between, size=8)))


def whole_process_s() -> float:
    """Seconds of CPU time of `scaleout run` with the Big plan."""
    line = [sys.executable, "-m", "scaleout.cli", "run", "llama-big", "--topology", "a100-cluster-a-6"]
    sets = [f"--set={key}={str(value).lower()}" for key, value in BIG.items()]
    before_s = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    subprocess.run([*line, *sets, "--schedule", "centauri"], check=True, stdout=subprocess.DEVNULL)
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before_s


def main() -> None:
    table = Table(box=None, title="plan and simulation under centauri", title_justify="left")
    for column in ("what", "nodes", "CPU"):
        table.add_column(column, justify="left" if column == "what" else "right")
    jobs: list[tuple[str, str, Topology | str, dict[str, Any]]] = [
        ("Big, 48 A100: TP 4, PP 3, DP 4", "llama-big", "a100-cluster-a-6", BIG),
        ("Big, 48 A100: FSDP", "llama-big", "a100-cluster-a-6", {**SHARDED, "data_parallel": 48}),
        ("Big, 256 A100: FSDP", "llama-big", "a100-cluster-b-32", {**SHARDED, "data_parallel": 256}),
        ("llama-3-70b, 64 H200: TP 8, PP 2, DP 4", "llama-3-70b", eight_nodes(), SEVENTY),
    ]
    for label, workload, topology, changes in jobs:
        seconds, found = 0.0, list[Comparison]()
        for _ in range(2):
            begin = time.process_time()
            found.append(compare(workload, topology=topology, changes=changes, schedules=["centauri"]))
            seconds = time.process_time() - begin
        nodes = sum(len(graph) for graph in found[-1].outcomes[0].result.program.graphs)
        table.add_row(label, f"{nodes:,}", f"{seconds:.2f} s")
    table.add_row("Big, 48 A100, the whole process", "", f"{whole_process_s():.2f} s")
    Console().print(table)


if __name__ == "__main__":
    main()
