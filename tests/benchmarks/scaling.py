"""How long Aluminum's sweeps take: strong and weak scaling of ResNet-50 to 2048 GPUs, all policies. Reports only.

    python tests/benchmarks/scaling.py

Wall time says what a user waits on this machine now; processor time what the work is. The first sweep also reads and
times the kernels of six batch sizes.
"""

import time

from rich.console import Console
from rich.table import Table

from scaleout.validation.papers.aluminum import HOST_TRANSFER, MINIMAL, MPI, NCCL, comparison, sweep

POLICIES = (NCCL, "nccl_tree", "recursive_doubling", "rabenseifner", HOST_TRANSFER, MPI, MINIMAL)


def compared() -> list[int]:
    """Return the winners at all sizes on all numbers of ranks."""
    return comparison().best.ravel().tolist()


def main() -> None:
    """Run, and print a table."""
    table = Table(box=None, title="ResNet-50 on 8 to 2048 V100, with and without overlap", title_justify="left")
    for column in ("what", "steps", "wall", "CPU"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for what, call in (
        ("all back ends over sizes and ranks", compared),
        (f"{len(POLICIES)} policies, the first time", lambda: sweep(POLICIES)),
        ("again", lambda: sweep(POLICIES)),
        ("end to end, 3 policies", lambda: sweep((MPI, NCCL, MINIMAL), whole=True)),
    ):
        wall, cpu = time.perf_counter(), time.process_time()
        count = len(call())
        table.add_row(what, str(count), f"{time.perf_counter() - wall:.2f} s", f"{time.process_time() - cpu:.2f} s")
    Console().print(table)


if __name__ == "__main__":
    main()
