"""Tasks a second of the event core beside the engine in Python, on the same tasks. Reports; asserts nothing.

    python tests/benchmarks/events.py

Llama 3 8B on 1,024 H200, every rank simulated: the events alone in both, and the whole simulation with the compiled
core. Where the ranks differ each is slowed by a factor of its own, as in a recording of every rank.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.schedule import apply_schedule
from scaleout.simulation import engine
from scaleout.simulation.contention import contention_of
from scaleout.simulation.core import run as core
from scaleout.simulation.fold import fold
from scaleout.simulation.folded_program import FoldedProgram, instances_of
from scaleout.simulation.run import simulate
from scaleout.simulation.shared_devices import SharedDevices
from scaleout.simulation.tasks import tasks_of
from scaleout.simulation.what_if import slow_ranks
from scaleout.workloads.config import load_workload
from scaleout.workloads.generate import generate


def cpu_s(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor time of a call, and its result."""
    begin = time.process_time()
    found = work()
    return time.process_time() - begin, found


def main() -> None:
    """Run, and print a table."""
    table = Table(box=None, title="events, seconds of one core", title_justify="left")
    for column in ("what", "tasks", "Python", "core", "ratio", "M tasks/s", "simulate"):
        table.add_column(column, justify="left" if column == "what" else "right")
    device, topology = load_device("h200"), load_topology("dgx-h200-128")
    workload = load_workload("llama-3-8b", {"tensor_parallel": 8, "data_parallel": 128})
    alike = apply_schedule(time_kernels(generate(workload), device), "overlap")
    differ = tuple((rank, 1 + 1e-4 * rank) for rank in range(1, topology.num_ranks))
    for what, slow, shares in (
        ("all ranks", (), False),
        ("all ranks, contention", (), True),
        ("ranks that differ", differ, False),
        ("ranks that differ, contention", differ, True),
    ):
        contention = contention_of(device, topology) if shares else None
        cluster = replace(topology, slow_ranks=slow)
        program = slow_ranks(alike, dict(slow))
        folded = FoldedProgram(program, topology, {}, fold(program, topology, unfold=True))
        use = None if contention is None else contention.resource_use
        tasks, sharing, _ = tasks_of(folded, instances_of(folded), None, use)
        timers = () if contention is None else (SharedDevices.of(contention, sharing, None),)
        core.run(tasks, sharing, contention)  # compiled, and with it what it asks for
        plain_s, plain = cpu_s(lambda tasks=tasks, timers=timers: engine.run(tasks, timers))
        core_s, found = cpu_s(
            lambda tasks=tasks, sharing=sharing, contention=contention: core.run(tasks, sharing, contention)
        )
        assert (found.end_s == plain.end_s).all(), "the same bits"
        whole_s, _ = cpu_s(
            lambda cluster=cluster, contention=contention: simulate(alike, cluster, unfold=True, contention=contention)
        )
        table.add_row(
            what, f"{len(tasks):,}", f"{plain_s:.2f}", f"{core_s:.2f}", f"{plain_s / core_s:.0f}",
            f"{len(tasks) / core_s / 1e6:.2f}", f"{whole_s:.2f}",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
