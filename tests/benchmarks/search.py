"""How long plans take: one of GPT-3 on 1024 GPUs, its lower bound, and the search over all. Reports; asserts nothing.

    python tests/benchmarks/search.py

Wall time says what a user waits on this machine now; CPU time, of this process and its workers, what the work is.
"""

import resource
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.study.search.cost import plan_costs_of
from scaleout.study.search.evaluate import evaluate
from scaleout.study.search.lower_bound import bound_of, lower_bounds_of, stage_bounds_of
from scaleout.study.search.request import SearchRequest
from scaleout.study.search.search import search
from scaleout.study.search.stages import stages_of
from scaleout.workloads.families import load_workload

BATCH = 1536


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of wall time and of CPU time, workers included once they have ended."""
    wall, cpu = time.perf_counter(), cpu_s()
    call()
    return time.perf_counter() - wall, cpu_s() - cpu


def cpu_s() -> float:
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def main() -> None:
    table = Table(box=None, title="GPT-3, 1024 H200", title_justify="left")
    for column in ("what", "wall", "CPU"):
        table.add_column(column, justify="left" if column == "what" else "right")
    topology, device = load_topology("dgx-h200-128"), load_device("h200")
    degrees = {"tensor_parallel": 8, "pipeline_parallel": 16, "data_parallel": 8}
    changes = degrees | {"batch_per_replica": BATCH // 8, "microbatch": 1}
    workload, other = load_workload("gpt-3", changes), load_workload("gpt-3", changes | {"microbatch": 2})

    def bound() -> float:
        return bound_of(workload, stage_bounds_of(stages_of(workload, plan_costs_of(topology, device))))

    base = load_workload("gpt-3")
    request = SearchRequest(base, topology, device, BATCH, 80e9)
    answers = []
    for what, call in (
        (
            "lower bound of kernels, first call",
            lambda: lower_bounds_of(topology, device).kernels_s(workload, ordered=True),
        ),
        ("lower bound of kernels", lambda: lower_bounds_of(topology, device).kernels_s(workload, ordered=True)),
        ("one plan, first call", lambda: evaluate(workload, topology, device)),
        ("another micro-batch", lambda: evaluate(other, topology, device)),
        ("the plan again", lambda: evaluate(workload, topology, device)),
        ("bound of priced stages", bound),
        ("search", lambda: answers.append(search(request))),
    ):
        wall_s, cpu = timed(call)
        table.add_row(what, f"{wall_s * 1e3:,.2f} ms", f"{cpu * 1e3:,.2f} ms")
    console = Console()
    console.print(table)
    console.print(", ".join(f"{key} {count:,}" for key, count in vars(answers[0].counts).items()))
    largest = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    console.print(f"largest process: {largest / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
