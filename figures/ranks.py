"""Cost of a simulation against ranks: GPT-3, tensor parallel 8, data parallel 16 to 16384, on pods of DGX H200.

    python figures/ranks.py [--output DIR] [--unfolded RANKS]

Writes ranks.png and ranks.csv. Every point is a process of its own with one baseline schedule; times and peak
memory are those of the whole process, Python's start included. Drawn is processor time, which is the wall time of an
idle machine. The networks are `fat-tree-131072` with as few nodes
as it takes. *Folded* is what `scaleout run` does: ranks that do the same are one, so the cost is that of what differs.
*Unfolded* simulates every rank, to the same result, up to the ranks that are asked for (256 take a minute in all).
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from matplotlib.ticker import LogLocator

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import Topology, load_topology
from scaleout.config.writing import write_text
from scaleout.report.colours import COMMUNICATION, COMPUTE, IDLE
from scaleout.report.plots.schedules import drawn
from scaleout.schedule import apply_schedule
from scaleout.simulation.run import simulate
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate

ALGORITHMS = {"all_reduce": "rabenseifner"}
"""The same at every size: halving and doubling, which serves any power of two of nodes in as many steps."""

RANKS = tuple(128 * 2**k for k in range(11))
CURVES = tuple((network, engine) for engine in ("folded", "unfolded") for network in ("alpha_beta", "link"))
"""Network model and engine of each curve."""


def draw_scaling(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]], *, title: str, path: Path
) -> None:
    """Draw what simulating costs against the number of ranks: processor time, and peak memory beside it.

    Parameters
    ----------
    curves : mapping of str to three sequences
        Label to ranks, times in seconds, and peak memories in bytes.
    """
    colours = dict(zip(curves, (COMPUTE, COMMUNICATION, COMPUTE, COMMUNICATION), strict=False))
    with drawn(path, 1, 2, title=title, figsize=(9, 3.4), sharex=True) as (_, grid):
        panels = grid[0]
        for panel, which, scale, unit in (
            (panels[0], 1, 1.0, "processor time [s]"),
            (panels[1], 2, 1e-6, "memory [MB]"),
        ):
            for index, (label, points) in enumerate(curves.items()):
                panel.plot(
                    points[0],
                    [value * scale for value in points[which]],
                    marker="o",
                    markersize=3.5,
                    color=colours[label],
                    linestyle="-" if index < 2 else "--",
                    label=label.replace("_", "-"),
                )
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_xticks([128 * 4**k for k in range(6)], [f"{128 * 4**k:,}" for k in range(6)])
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter("{x:g}")
            panel.yaxis.set_minor_formatter("")
            panel.grid(which="major", color=IDLE, linewidth=0.5)
            panel.set_xlabel("ranks")
            panel.set_ylabel(unit)
        for panel, bottom in zip(panels, (0.1, 10.0), strict=True):
            most = max(float(max(line.get_ydata())) for line in panel.get_lines())
            panel.set_ylim(bottom, most * (most / bottom) ** 0.08)  # room above the highest marker
        panels[0].legend(frameon=False, fontsize=8)


def pod(num_ranks: int) -> Topology:
    """Return the network of so many ranks: 8 in a node, leaves of 32 nodes, pods of 32 leaves."""
    whole = load_topology("fat-tree-131072")
    node, tree = whole.dimensions
    left, radices = num_ranks // node.size, []
    for radix in tree.radices:
        radices.append(min(radix, left))
        left //= radices[-1]
    radices = [radix for radix in radices if radix > 1]
    nodes = replace(
        tree,
        size=num_ranks // node.size,
        radices=tuple(radices),
        oversubscription=tree.oversubscription[: len(radices) - 1],
    )
    return replace(whole, name=f"pod-{num_ranks}", dimensions=(node, nodes))


def simulate_one(num_ranks: int, network: str, engine: str) -> float:
    """Simulate one point; return the time of the step that comes out."""
    workload = load_workload("gpt-3", {"tensor_parallel": 8, "data_parallel": num_ranks // 8})
    program = apply_schedule(time_kernels(generate(workload), load_device("h200")), "baseline")
    return simulate(
        program, pod(num_ranks), network=network, unfold=engine == "unfolded", algorithms=ALGORITHMS
    ).makespan_s


def measure(num_ranks: int, network: str, engine: str) -> dict[str, object]:
    """Run one point in a process of its own."""
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, __file__, "--one", str(num_ranks), network, engine], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    makespan_s = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    wall_s = time.perf_counter() - start
    if status:
        raise SystemExit(f"{num_ranks} ranks, {network}, {engine}: the process failed")
    return {
        "ranks": num_ranks,
        "network": network,
        "engine": engine,
        "wall_s": wall_s,
        "processor_s": usage.ru_utime + usage.ru_stime,
        "peak_memory_bytes": usage.ru_maxrss * 1024,
        "makespan_s": float(makespan_s),
    }


def main() -> None:
    """Measure all points, print the table, and write it and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="directory to write to")
    parser.add_argument("--unfolded", type=int, default=256, help="most ranks that are simulated one by one")
    parser.add_argument("--one", nargs=3, metavar=("RANKS", "NETWORK", "ENGINE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        num_ranks, network, engine = arguments.one
        print(repr(simulate_one(int(num_ranks), network, engine)))
        return
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    most = {"folded": RANKS[-1], "unfolded": arguments.unfolded}
    points = [(ranks, *curve) for curve in CURVES for ranks in RANKS if ranks <= most[curve[1]]]
    # Message by message over links takes about eight times as long as rank by rank.
    slow = ("link", "unfolded")
    points = [point for point in points if point[1:] != slow or point[0] <= max(128, arguments.unfolded // 8)]
    table = pd.DataFrame([measure(*point) for point in points])
    write_text(output / "ranks.csv", table.to_csv(index=False))
    curves = {
        f"{network}, {engine}": (
            rows["ranks"].tolist(),
            rows["processor_s"].tolist(),
            rows["peak_memory_bytes"].tolist(),
        )
        for (network, engine), rows in table.groupby(["network", "engine"], sort=False)
    }
    draw_scaling(curves, title="Simulating a step of GPT-3 on a fat tree of DGX H200 nodes", path=output / "ranks.png")
    print(table.to_string(index=False, float_format="%.4g"))


if __name__ == "__main__":
    main()
