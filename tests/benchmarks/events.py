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
from scaleout.network.flow.instances import LinkNetwork
from scaleout.network.routes.links import links_of
from scaleout.schedule import apply_schedule
from scaleout.simulation import engine
from scaleout.simulation.columns import Sharing, Tasks
from scaleout.simulation.contention import Contention, contention_of
from scaleout.simulation.core import run as core
from scaleout.simulation.fold import fold
from scaleout.simulation.fold_links import fold_on_links
from scaleout.simulation.folded_program import FoldedProgram, instances_of
from scaleout.simulation.run import simulate
from scaleout.simulation.tasks import tasks_of
from scaleout.simulation.what_if import slow_ranks
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate


def cpu_s(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor time of a call, and its result."""
    begin = time.process_time()
    found = work()
    return time.process_time() - begin, found


def laid_out(
    folded: FoldedProgram, contention: Contention | None, *, on_links: bool
) -> tuple[Tasks, Sharing, Contention | None, LinkNetwork | None]:
    """Return what both run: the tasks of a program, what shares devices, and the links."""
    links = None
    if on_links:
        every_link = links_of(folded.topology)
        folded, alike = fold_on_links(folded, every_link, unfold=True)
        links = LinkNetwork(every_link, alike)
    use = None if contention is None else contention.resource_use
    tasks, sharing, _ = tasks_of(folded, instances_of(folded), links, use)
    return tasks, sharing, contention, links


def main() -> None:
    """Run, and print a table."""
    table = Table(box=None, title="events, seconds of one core", title_justify="left")
    for column in ("what", "tasks", "Python", "core", "ratio", "M tasks/s", "simulate"):
        table.add_column(column, justify="left" if column == "what" else "right")
    device, topology = load_device("h200"), load_topology("dgx-h200-128")
    workload = load_workload("llama-3-8b", {"tensor_parallel": 8, "data_parallel": 128})
    alike = apply_schedule(time_kernels(generate(workload), device), "overlap")
    differ = tuple((rank, 1 + 1e-4 * rank) for rank in range(1, topology.num_ranks))
    cases = [
        (f"{ranks}{', links' * on_links}{', contention' * shares}", slow, on_links, shares)
        for on_links in (False, True)
        for ranks, slow in (("all ranks", ()), ("ranks that differ", differ))
        for shares in (False, True)
    ]
    for what, slow, on_links, shares in cases:
        contention = contention_of(device, topology) if shares else None
        program = slow_ranks(alike, dict(slow))
        folded = FoldedProgram(program, topology, {}, fold(program, topology, unfold=True))
        network = "link" if on_links else "alpha_beta"
        found = [laid_out(folded, contention, on_links=on_links) for _ in range(3)]  # a network is for one run
        core.run(*found[0])  # compiled, and with it what it asks for
        plain_s, plain = cpu_s(lambda work=found[1]: engine.run(*work))
        core_s, compiled = cpu_s(lambda work=found[2]: core.run(*work))
        assert (compiled.end_s == plain.end_s).all(), "the same bits"
        options = {"unfold": True, "network": network, "contention": contention}
        cluster, tasks = replace(topology, slow_ranks=slow), found[0][0]
        whole_s, _ = cpu_s(lambda cluster=cluster, options=options: simulate(alike, cluster, **options))
        table.add_row(
            what, f"{len(tasks):,}", f"{plain_s:.2f}", f"{core_s:.2f}", f"{plain_s / core_s:.0f}",
            f"{len(tasks) / core_s / 1e6:.2f}", f"{whole_s:.2f}",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
