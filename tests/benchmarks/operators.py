"""Fused operators of half a million logical work-groups: seconds of processor time. Reports; asserts nothing.

python tests/benchmarks/operators.py
"""

import time

from rich.console import Console
from rich.table import Table

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.schedule.fusion import FusedMachine, plan_operator
from scaleout.schedule.fusion.fused import ORDERS, run

CASES = (("mi210", "mi210-pair"), ("mi210", "mi210-node"), ("h200", "h200-node-4"))


def main() -> None:
    """Time both orders on each machine."""
    table = Table("device", "topology", "order", "work-groups a rank", "ranks simulated", "seconds")
    for device, topology in CASES:
        on = FusedMachine(load_device(device), load_topology(topology))
        plan = plan_operator("embedding_all_to_all", {"batch": 2048, "tables": 256}, on)
        for order in ORDERS:
            begin = time.process_time()
            found = run(plan.recipes[order], order)
            spent = time.process_time() - begin
            work = plan.recipes[order].work
            table.add_row(device, topology, order, f"{work.tasks:,}", str(len(found.ranks)), f"{spent:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
