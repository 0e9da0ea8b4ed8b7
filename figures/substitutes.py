"""What each substitution of Centauri's Table 2 costs: 100 MB over 8 and 128 H200, nothing else running.

    python figures/substitutes.py [--network link] [--output DIR]

Prints a table of microseconds and writes it as substitutes.md, collectives by NCCL as `topologies/nccl/h200.yaml`
describes it.

Source: Chen et al., Centauri, ASPLOS 2024, Table 2.
"""

import argparse
from pathlib import Path

import numpy as np

from scaleout.cluster.topology.topology import load_topology
from scaleout.config.writing import write_text
from scaleout.program.graph import GraphBuilder
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import apply_schedule
from scaleout.schedule.centauri.partition.group import SUBSTITUTES, WAYS
from scaleout.simulation.run import simulate

TOPOLOGIES = ("dgx-h200-1", "dgx-h200-16")
BYTES = 100_000_000


def time_us(kind: str, way: str, topology_name: str, network: str) -> str:
    """Return how long a collective over all ranks takes, whole or substituted in a way; nothing if there is none."""
    if way and way not in SUBSTITUTES[kind]:
        return ""
    topology, graph = load_topology(topology_name), GraphBuilder()
    graph.collective(kind, BYTES, group=0)
    world = GroupFamily("world", (tuple(range(topology.num_ranks)),))
    program = Program(kind, (graph.build(),), np.zeros(topology.num_ranks, np.int64), (world,))
    scheduled = apply_schedule(program, f"overlap+substituted:{way}" if way else "overlap")
    return f"{simulate(scheduled, topology, network=network).makespan_s * 1e6:,.0f}"


def main() -> None:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="alpha_beta", help="alpha_beta or link")
    parser.add_argument("--output", type=Path, help="directory to write to; nothing is written without")
    given = parser.parse_args()
    lines = [f"| {BYTES // 10**6} MB, us | ranks | whole | {' | '.join(WAYS)} |", "|---" * (len(WAYS) + 3) + "|"]
    for kind in SUBSTITUTES:
        for name in TOPOLOGIES:
            cells = [time_us(kind, way, name, given.network) for way in ("", *WAYS)]
            lines.append(f"| {kind} | {load_topology(name).num_ranks} | {' | '.join(cells)} |")
    print("\n".join(lines))
    if given.output is not None:
        given.output.mkdir(parents=True, exist_ok=True)
        write_text(given.output / "substitutes.md", "\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
