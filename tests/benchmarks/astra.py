"""`scaleout astra` as a whole process, beside what ASTRA-sim 2.0 was recorded to take. Reports; asserts nothing.

    python tests/benchmarks/astra.py

The graphs are of the size of a training step that overlaps communication (14 all-reduces, 4 all-to-alls, 19
computations); ASTRA-sim's seconds are of one core of a similar machine, medians of three to five runs but for the
one on a switch with contention, which was run once. A ratio says how many times faster ours is. Ours are seconds of CPU
with the bytecode that an installation has: an environment in which Python keeps none compiles all that it imports, half
as much again where a collective stands alone.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from scaleout.interop.chakra.files import write
from scaleout.interop.chakra.save import traced
from scaleout.interop.chakra.schema import GlobalMetadata, Node
from scaleout.interop.chakra.tables import CollectiveCommType, NodeType

RUNS = 5
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


def node(number: int, kind: str, size_bytes: int, after: list[int]) -> Node:
    """One collective, or a computation of 100 us."""
    values: dict[str, object] = {"is_cpu_op": False}
    if kind == "COMP":
        attributes = [traced(name, value) for name, value in values.items()]
        return Node(id=number, type=NodeType.COMP_NODE, duration_micros=100, data_deps=after, attr=attributes)
    values |= {"comm_type": int(CollectiveCommType[kind]), "comm_size": size_bytes}
    attributes = [traced(name, value) for name, value in values.items()]
    return Node(id=number, type=NodeType.COMM_COLL_NODE, data_deps=after, attr=attributes)


def step() -> list[Node]:
    """Computations one after the other, each with a collective that only the last one waits for."""
    nodes: list[Node] = []
    for layer in range(18):
        kind = "ALL_TO_ALL" if layer % 5 == 2 else "ALL_REDUCE"
        nodes.append(node(2 * layer, "COMP", 0, [2 * layer - 2] if layer else []))
        nodes.append(node(2 * layer + 1, kind, 4 << 20, [2 * layer]))
    return [*nodes, node(36, "COMP", 0, [2 * layer + 1 for layer in range(18)])]


def inputs(folder: Path, nodes: list[Node], shape: list[int], kind: str, algorithms: list[str]) -> list[str]:
    """Write all files of a job; return the command line."""
    ranks = 1
    for size in shape:
        ranks *= size
    write(folder / "w.0.et", GlobalMetadata(version="0.0.4"), nodes)
    for rank in range(1, ranks):
        (folder / f"w.{rank}.et").write_bytes((folder / "w.0.et").read_bytes())
    lists = {"topology": [kind] * len(shape), "npus_count": shape}
    lists |= {"bandwidth": [25.0] * len(shape), "latency": [700.0] * len(shape)}
    (folder / "network.yml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in lists.items()))
    system = {"preferred-dataset-splits": 1, "local-mem-bw": 1600, "collective-optimization": "localBWAware"}
    names = dict(zip(KINDS, (algorithms[0], algorithms[0], algorithms[0], algorithms[1]), strict=True))
    system |= {f"{each}-implementation": [name] * len(shape) for each, name in names.items()}
    (folder / "system.json").write_text(json.dumps(system))
    return [
        *(sys.executable, "-m", "scaleout.cli", "astra", f"--workload-configuration={folder / 'w'}"),
        *(f"--network-configuration={folder / 'network.yml'}", f"--system-configuration={folder / 'system.json'}"),
    ]


def median_s(line: list[str]) -> float:
    """Seconds of CPU of a command, as installed: the first run, which may write bytecode, is left out."""
    kept, ends_s = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}, list[float]()
    for _ in range(RUNS + 2):
        ends_s.append(sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]))
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, env=kept)
    return statistics.median(end_s - begin_s for begin_s, end_s in pairwise(ends_s[1:]))


def main() -> None:
    table = Table(box=None, title="scaleout astra beside ASTRA-sim", title_justify="left")
    for column in ("what", "ours, CPU", "ASTRA-sim", "ratio"):
        table.add_column(column, justify="left" if column == "what" else "right")
    single = [node(0, "ALL_TO_ALL", 1 << 20, [])]
    reduction = [node(0, "ALL_REDUCE", 1 << 20, [])]
    for label, nodes, shape, kind, algorithms, backend, recorded_s in (
        ("all-reduce, torus, 128 ranks", reduction, [8, 16], "Ring", ["ring", "ring"], "unaware", 0.05),
        ("all-to-all, switch, 128 ranks", single, [128], "Switch", ["ring", "direct"], "unaware", 0.07),
        ("training step, torus, 128 ranks", step(), [8, 16], "Ring", ["ring", "direct"], "unaware", 0.24),
        ("training step, torus, 1024 ranks", step(), [32, 32], "Ring", ["ring", "direct"], "unaware", 8.42),
        (
            "training step, switch, aware, 1024",
            step(),
            [1024],
            "Switch",
            ["halvingDoubling", "direct"],
            "aware",
            111.84,
        ),
        ("all-to-all, switch, aware, 1024", single, [1024], "Switch", ["ring", "direct"], "aware", 14.15),
    ):
        with tempfile.TemporaryDirectory() as folder:
            ours_s = median_s([*inputs(Path(folder), nodes, shape, kind, algorithms), f"--backend={backend}"])
        table.add_row(label, f"{ours_s:.3f} s", f"{recorded_s:.2f} s", f"{recorded_s / ours_s:,.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
