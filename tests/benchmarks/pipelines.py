"""How long the clock of a pipeline takes: 16 stages, 192 microbatches, every schedule. Reports; asserts nothing.

    python tests/benchmarks/pipelines.py

Orders and who waits for whom are found once for each schedule and sizes; the clock runs for every plan.
"""

import numpy as np
from rich.console import Console
from rich.table import Table
from speed import median_s

from scaleout.workloads.pipeline import PIPELINES, orders
from scaleout.workloads.pipeline.blocks import connect
from scaleout.workloads.pipeline.clock import Durations, run

STAGES, MICROBATCHES, INTERLEAVED = 16, 192, 2


def main() -> None:
    table = Table(box=None, title=f"{STAGES} stages, {MICROBATCHES} microbatches", title_justify="left")
    for column in ("schedule", "slots", "orders", "who waits for whom", "clock"):
        table.add_column(column, justify="left" if column == "schedule" else "right")
    for name, pipeline in PIPELINES.items():
        v = pipeline.num_chunks or INTERLEAVED
        sizes = {"stages": STAGES, "microbatches": MICROBATCHES, "chunks": v}
        found = orders(name, **sizes)
        blocks = connect(pipeline, found, num_chunks=v)
        action_s = np.array([1.0, 2.0, 1.0, 1.0])[:, None, None]
        times = (
            median_s(lambda name=name, sizes=sizes: orders.__wrapped__(name, **sizes)),
            median_s(lambda pipeline=pipeline, found=found, v=v: connect(pipeline, found, num_chunks=v)),
            median_s(lambda blocks=blocks, action_s=action_s: run(blocks, Durations(action_s, send_s=0.1))),
        )
        table.add_row(name, str(sum(map(len, found))), *(f"{seconds * 1e3:.1f} ms" for seconds in times))
    Console().print(table)


if __name__ == "__main__":
    main()
