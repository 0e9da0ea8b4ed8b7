"""How long scaleout takes: whole processes and the simulation alone. Reports; asserts nothing.

    python tests/benchmarks/speed.py

Medians of several runs after a warm-up. For comparison, ASTRA-sim 2.0's analytical back end (unaware), a compiled
program, takes 0.24 s for an overlapped DLRM graph on a torus at 128 ranks and 8.4 s at 1024, on a similar machine.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

import scaleout

RUNS = 7


def median_s(work: Callable[[], object], runs: int = RUNS) -> float:
    work()
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def command(*arguments: str) -> Callable[[], object]:
    line = [sys.executable, "-m", "scaleout.cli", *arguments]
    return lambda: subprocess.run(line, check=True, stdout=subprocess.DEVNULL)


def simulation(name: str, schedule: str, *, unfold: bool = False, **changes: object) -> Callable[[], object]:
    workload = scaleout.load_workload(name, changes)
    program = scaleout.time_kernels(scaleout.generate(workload), scaleout.load_device(workload.device))
    scheduled = scaleout.apply_schedule(program, schedule)
    topology = scaleout.load_topology(workload.topology)
    return lambda: scaleout.simulate(scheduled, topology, unfold=unfold)


def main() -> None:
    table = Table(box=None, title="speed", title_justify="left")
    table.add_column("what")
    table.add_column("median", justify="right")
    for label, work in (
        ("scaleout --help", command("--help")),
        ("scaleout run dlrm-128, two schedules", command("run", "dlrm-128", "--schedule=baseline", "--schedule=fused")),
        (
            "scaleout run llama-3-8b, 1024 ranks, two schedules",
            command(
                *("run", "llama-3-8b", "--set=tensor_parallel=8", "--set=data_parallel=128"),
                *("--topology=dgx-h200-128", "--schedule=baseline", "--schedule=overlap"),
            ),
        ),
        ("simulate dlrm-128, baseline, folded", simulation("dlrm-128", "baseline")),
        ("simulate dlrm-128, fused, folded", simulation("dlrm-128", "fused")),
        ("simulate dlrm-128, baseline, all 128 ranks", simulation("dlrm-128", "baseline", unfold=True)),
        ("simulate gpt-3, overlap, folded", simulation("gpt-3", "overlap")),
    ):
        table.add_row(label, f"{median_s(work) * 1e3:.1f} ms")
    Console().print(table)


if __name__ == "__main__":
    main()
