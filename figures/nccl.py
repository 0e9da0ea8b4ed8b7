"""NCCL's collectives on four H200: bus bandwidth against size, measured and predicted, and the error of each row.

    python figures/nccl.py [--output DIR] [--measured FILE [--startup]] [--forced]
    python figures/nccl.py --tables TABLES [--output DIR]

Writes nccl.png and nccl.csv, and prints each collective's rows and the median and the worst error from 1 MiB up. The
measured rows are those of traces/h200/collectives.jsonl, taken on the device without the launch of a call, so the
topology's start-up is left out of the prediction; --startup keeps it, for rows that have it. With --forced the rows
are those whose protocol was forced, from which the constants of topologies/nccl/h200.yaml were fitted, and the fit is
made anew and printed. With --tables it draws the all-reduces of nodes of A100 and V100 instead, from a file of
published tables, as nccl_nodes.png and nccl_nodes.csv, and prints the error by group and size.
"""

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from scaleout.cluster.topology.placement import place, place_isolated
from scaleout.cluster.topology.topology import Topology, load_topology
from scaleout.config.library import folder
from scaleout.config.writing import write_text
from scaleout.network.alpha_beta.cost import CollectiveCost, collective_cost
from scaleout.network.collectives import bus_bandwidth
from scaleout.report.colours import IDLE, SERIES
from scaleout.report.plots.schedules import drawn
from scaleout.validation.measure.experiments import RINGS
from scaleout.validation.measure.machine_files import fit
from scaleout.validation.measured.rows import read_rows

MEBIBYTE = 2**20
NAMES = {"send_recv": "send"}
"""Other names of collectives in measured files."""
FITTED = {"LL": (1024, 16 * MEBIBYTE), "LL128": (MEBIBYTE // 4, 256 * MEBIBYTE), "Simple": (MEBIBYTE, 1024 * MEBIBYTE)}
"""Protocol to the sizes that it is fitted over: about those that it is used for."""

NODES = {"nccl_allreduce_a100_node": ("A100", "dgx-a100-1"), "nccl_allreduce_v100_node": ("V100", "v100-node-8")}
"""Published table to the GPU and the topology of its node."""


def draw_bandwidths(table: pd.DataFrame, path: Path, *, title: str) -> None:
    """Draw bus bandwidth against size: measured points and predicted lines, a panel a collective, a colour a group.

    Parameters
    ----------
    table : DataFrame
        Columns `collective`, `ranks`, `forced` (a protocol, or empty), `bytes`, and `measured_bus_GB_per_s` and
        `predicted_bus_GB_per_s`.
    """
    kinds = list(dict.fromkeys(table["collective"]))
    pairs = sorted(set(zip(table["ranks"].tolist(), table["forced"].tolist(), strict=True)))
    lines = dict(zip(pairs, SERIES, strict=False))
    rows = -(-len(kinds) // 4)
    names = {10: "1 KiB", 20: "1 MiB", 30: "1 GiB"}
    size = (11, 0.6 + 2.5 * rows)
    with drawn(path, rows, min(4, len(kinds)), figsize=size, sharex=True, sharey=True) as (figure, grid):
        panels = grid.ravel()
        for axes, kind in zip(panels, kinds, strict=False):
            for (ranks, forced), colour in lines.items():
                chosen = (table["collective"] == kind) & (table["ranks"] == ranks) & (table["forced"] == forced)
                use = table[chosen].sort_values("bytes")
                axes.plot(use["bytes"], use["predicted_bus_GB_per_s"], color=colour, linewidth=1.2)
                axes.plot(use["bytes"], use["measured_bus_GB_per_s"], "o", color=colour, markersize=2.5)
            axes.set_title(kind)
            axes.set_xscale("log", base=2)
            powers = [power for power in (10, 20, 30) if 2 ** (power + 9) >= table["bytes"].min()]
            axes.set_xticks([2**power for power in powers], [names[power] for power in powers])
            axes.grid(color="#eeeeee")
        for axes in panels[len(kinds) :]:
            axes.axis("off")
        marks: list[Any] = [Line2D([], [], color=c, label=f"{r} ranks {f}".strip()) for (r, f), c in lines.items()]
        marks.append(Line2D([], [], color=IDLE, marker="o", markersize=3, label="points measured, lines predicted"))
        figure.legend(handles=marks, loc="outside lower center", ncols=4, frameon=False)
        figure.supylabel("bus bandwidth [GB/s]", fontsize=9)
        figure.suptitle(title, fontsize=11)


def measured_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read the rows of a file of measured collectives, whether in columns or one a line."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "provenance" in row or "bytes" not in row:
            continue
        table = pd.DataFrame({"bytes": np.atleast_1d(row["bytes"]), "us": np.atleast_1d(row["us"])})
        for size_bytes, us in table.itertuples(index=False):
            yield {
                "collective": NAMES.get(row["collective"], row["collective"]),
                "ranks": row["ranks"],
                "algorithm": row.get("algorithm", ""),
                "forced": row.get("protocol", ""),
                "bytes": int(size_bytes),
                "measured_us": float(us),
            }


def predict(topology: Topology, row: dict[str, Any], *, startup: bool) -> dict[str, Any]:
    """Add to a row what the topology says of it."""
    kind, ranks = row["collective"], range(row["ranks"])
    if row["forced"]:
        assert topology.library
        only = tuple(protocol for protocol in topology.library.protocols if protocol.name == row["forced"])
        topology = dataclasses.replace(topology, library=dataclasses.replace(topology.library, protocols=only))
    group = place_isolated(topology, list(ranks)) if kind == "send" else place(topology, ranks)
    cost: CollectiveCost = collective_cost(kind, row["bytes"], group)
    time_s = cost.time_s - (0.0 if startup else topology.startup_s)
    found = {"protocol": cost.protocol, "predicted_us": time_s * 1e6, "error": time_s * 1e6 / row["measured_us"] - 1}
    for name in ("measured", "predicted"):
        seconds = (row | found)[f"{name}_us"] * 1e-6
        found[f"{name}_bus_GB_per_s"] = bus_bandwidth(kind, row["bytes"], time_s=seconds, num_ranks=row["ranks"]) / 1e9
    return row | found


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Median and worst absolute error from 1 MiB up, and the median over all sizes."""
    keys = ["collective", "ranks", *(["forced"] if table["forced"].any() else [])]
    absolute = table.assign(error=table["error"].abs())
    large = absolute[absolute["bytes"] >= 0.99 * MEBIBYTE].groupby(keys)["error"]
    every = absolute.groupby(keys)["error"]
    return pd.DataFrame({"median": large.median(), "worst": large.max(), "median_all_sizes": every.median()})


def fitted(table: pd.DataFrame, protocol: str) -> dict[str, float]:
    """Fit the terms of a protocol to a ring's rows; the wire's latency is part of a step."""
    low, high = FITTED[protocol]
    use = table[(table["forced"] == protocol) & (table["algorithm"] == "Ring") & table["bytes"].between(low, high)]
    chosen = use[use["collective"].isin(RINGS)].rename(columns={"measured_us": "us"})
    terms = fit({str(key): value for key, value in row.items()} for row in chosen.to_dict("records"))
    return {
        "startup_us": terms.startup_s * 1e6,
        "step_us": terms.step_s * 1e6,
        "bandwidth_GB_per_s": terms.bytes_per_s / 1e9,
        "local_GB_per_s": terms.local_bytes_per_s / 1e9,
        "median_error": terms.median_error,
    }


def draw_nodes(tables: Path, output: Path) -> None:
    """Predict the all-reduces of nodes whose curves are published; print the errors, and draw them."""
    found = []
    for name, (gpu, node) in NODES.items():
        topology = load_topology(node)
        for row in read_rows(tables, table=name):
            values = {"collective": "all_reduce", "ranks": row.count("gpus"), "forced": "", "bytes": row.count("bytes")}
            values |= {"measured_us": row.number("time_us")}
            found.append(predict(topology, values, startup=False) | {"collective": gpu})
    table = pd.DataFrame(found)
    write_text(output / "nccl_nodes.csv", table.to_csv(index=False))
    sizes = pd.cut(table["bytes"] / MEBIBYTE, [0, 16, 64, 256, 1024], labels=["16 MiB", "64 MiB", "256 MiB", "1 GiB"])
    absolute = table.assign(error=table["error"].abs(), up_to=sizes)
    keys = ["collective", "ranks"]
    means = absolute.pivot_table("error", keys, "up_to", observed=True, margins=True, margins_name="all")
    print((100 * means).round(1).to_string(na_rep="-"), "\nmean absolute error [%]")
    draw_bandwidths(table, output / "nccl_nodes.png", title="NCCL's all-reduce on eight GPUs: measured and predicted")


def main() -> None:
    """Predict, print the tables, and write them and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="directory to write to")
    parser.add_argument("--measured", type=Path, default=folder("device") / "h200" / "collectives.jsonl")
    parser.add_argument("--startup", action="store_true", help="the rows have the launch of a call in them")
    parser.add_argument("--forced", action="store_true", help="rows with a forced protocol, and the fit to them")
    parser.add_argument("--tables", type=Path, help="file of published tables")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.tables:
        draw_nodes(options.tables, options.output)
        return
    topology = load_topology("h200-node-4")
    rows = measured_rows(options.measured)
    if options.forced:
        found = [row for row in rows if row["algorithm"] == "Ring" and row["collective"] in RINGS]
    else:
        found = [row for row in rows if not row["algorithm"]]
    table = pd.DataFrame([predict(topology, row, startup=options.startup) for row in found])
    write_text(options.output / "nccl.csv", table.to_csv(index=False))
    with pd.option_context("display.max_rows", None, "display.width", 160, "display.precision", 3):
        print(table.drop(columns=["algorithm", *([] if options.forced else ["forced"])]).to_string(index=False))
        print(summarise(table).to_string())
        if options.forced:
            print(pd.DataFrame({name: fitted(table, name) for name in FITTED}).T.to_string())
    large = table[table["bytes"] >= 0.99 * MEBIBYTE]["error"].abs()
    print(f"from 1 MiB up: median error {large.median():.1%} of {len(large)} rows")
    draw_bandwidths(table, options.output / "nccl.png", title="NCCL 2.28.9 on 4 H200: measured and predicted")


if __name__ == "__main__":
    main()
