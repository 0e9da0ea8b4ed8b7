"""How the cost of a simulation grows: time and memory against ranks, nodes a rank, ranks that differ, and messages.

    python tests/benchmarks/growth.py [--csv FILE]

Llama 3 8B under `overlap`, tensor parallel 8, on DGX H200 nodes of a fat tree. A rank that differs is slowed by a
factor of its own, so that nothing stands for it. Each point is a process forked from one that has loaded everything:
the time is that of `simulate` alone, the faster of two, and the memory what the process adds for it at its peak.
Messages go between ranks drawn at random over single links of a 32 x 32 torus, all in flight at once and of sizes that
differ; their memory is what is allocated for them. The last columns are exponents, fitted to the larger half of the
points of a curve. Reports; asserts nothing.
"""

import argparse
import math
import os
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import Topology, load_topology
from scaleout.network.flow.demand import demand_of_message
from scaleout.network.flow.flows import Demand
from scaleout.network.flow.shared import BY_MESSAGE, SharedTraffic, Transfer
from scaleout.network.routes.links import Links, links_of
from scaleout.program.program import Program
from scaleout.schedule import apply_schedule
from scaleout.simulation.contention import contention_of
from scaleout.simulation.core import run as _core  # noqa: F401 - loaded once, before the processes are forked
from scaleout.simulation.run import simulate
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate

LAYERS = 32
SWEEPS = {
    "ranks": [(ranks, LAYERS, ranks) for ranks in (64, 128, 256, 512, 1024)],
    "nodes a rank": [(64, layers, 64) for layers in (16, 32, 64, 128, 256)],
    "ranks that differ": [(1024, LAYERS, differ) for differ in (1, 4, 16, 64, 256, 1024)],
    "messages in flight": [(messages,) for messages in (128, 256, 512, 1024, 2048, 4096)],
}
"""What grows, to points: ranks, layers of the model, and how many ranks differ; or messages."""

MODELS = ("alone", "contention")
"""Whether kernels and collectives take SMs and memory from each other."""

SECONDS_APART = 1e-9
"""Between the starts of messages, which all take longer than all starts."""


def job(ranks: int, layers: int, differ: int) -> tuple[Program, Topology]:
    """Return a job whose ranks that differ lie evenly among the others."""
    workload = load_workload("llama-3-8b", {"tensor_parallel": 8, "data_parallel": ranks // 8, "layers": layers})
    program = apply_schedule(time_kernels(generate(workload), load_device("h200")), "overlap")
    whole = load_topology("dgx-h200-128")
    node, nodes = whole.dimensions
    slow = tuple((rank * (ranks // differ), 1 + 1e-4 * (rank + 1)) for rank in range(differ))
    return program, replace(whole, dimensions=(node, replace(nodes, size=ranks // 8)), slow_ranks=slow)


def measure(model: str, point: tuple[int, ...]) -> tuple[int, int, float, float]:
    """Simulate a point; return nodes a rank, nodes simulated, seconds and bytes."""
    if model == "links":
        (count,) = point
        links = links_of(load_topology("torus-32x32"))
        pairs = np.random.default_rng(7).permuted(np.tile(np.arange(1024), (count, 1)), axis=1)[:, :2].tolist()
        demands = [demand_of_message(links, *pair) for pair in pairs]
        seconds, _ = cost(lambda: carry(links, demands))
        tracemalloc.start()
        carry(links, demands)
        return 0, count, seconds, tracemalloc.get_traced_memory()[1]
    program, topology = job(*point)
    contention = contention_of(load_device("h200"), topology) if model == "contention" else None
    found = []
    costs = cost(lambda: found.append(simulate(program, topology, contention=contention)))
    return len(program.graphs[0]), sum(len(line.graph) for line in found[0].timelines), *costs


def carry(links: Links, demands: Sequence[Demand]) -> None:
    """Carry messages over links until all have arrived."""
    traffic = SharedTraffic(links, BY_MESSAGE)
    for number, demand in enumerate(demands):
        start_s = number * SECONDS_APART
        traffic.start(number, Transfer(demand, 1e6 * (1 + number % 7)), start_s)
    left = len(demands)
    while left:
        left -= len(traffic.advance()[2])


def cost(work: Callable[[], object]) -> tuple[float, float]:
    """Return the processor time of some work, the faster of two, and the bytes that it adds at its peak."""
    before, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(2):
        begin = time.process_time()
        work()
        seconds.append(time.process_time() - begin)
    return min(seconds), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def forked(model: str, point: tuple[int, ...]) -> tuple[float, ...]:
    """Measure a point in a process of its own."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writes, " ".join(map(repr, measure(model, point))).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    if not found:
        sys.exit(f"{model} {point}: the process failed")
    return tuple(map(float, found.split()))


def rows() -> Iterator[dict[str, object]]:
    """Measure all points."""
    for model in MODELS:
        measure(model, (64, 4, 64))  # compiled and loaded
    measure("links", (2,))
    for sweep, points in SWEEPS.items():
        for model in ("links",) if sweep == "messages in flight" else MODELS:
            for point in points:
                nodes, simulated, seconds, added_bytes = forked(model, point)
                value = nodes if sweep == "nodes a rank" else point[-1 if sweep == "ranks that differ" else 0]
                yield {
                    "against": sweep, "model": model, "value": int(value), "simulated_nodes": int(simulated),
                    "processor_s": seconds, "added_bytes": added_bytes,
                }  # fmt: skip


def exponents(curve: pd.DataFrame) -> tuple[float, float]:
    """Fit time and memory to powers of what grows, over the larger half of the points."""
    last = curve.sort_values("value").tail(math.ceil(len(curve) / 2))
    logs = np.log(last[["value", "processor_s", "added_bytes"]].to_numpy())
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]), float(np.polyfit(logs[:, 0], logs[:, 2], 1)[0])


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, help="file to write the points to")
    arguments = parser.parse_args()
    points = pd.DataFrame(rows())
    if arguments.csv:
        points.to_csv(arguments.csv, index=False)
    table = Table(box=None, title="cost of a simulation, one core", title_justify="left")
    for column in ("against", "", "value", "nodes", "s", "MB", "time ~", "memory ~"):
        table.add_column(column, justify="left" if column in ("against", "") else "right")
    for (sweep, model), curve in points.groupby(["against", "model"], sort=False):
        powers = [f"n^{power:.2f}" for power in exponents(curve)]
        for place, row in enumerate(curve.itertuples()):
            is_last = place == len(curve) - 1
            table.add_row(
                *((sweep, model) if place == 0 else ("", "")), f"{row.value:,}", f"{row.simulated_nodes:,}",
                f"{row.processor_s:.3f}", f"{row.added_bytes / 1e6:.0f}", *(powers if is_last else ("", "")),
            )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
