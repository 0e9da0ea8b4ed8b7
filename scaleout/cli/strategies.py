"""`scaleout strategies`: a training job as DDP, ZeRO, Megatron-LM, breadth-first pipelines, Centauri would run it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli.options import algorithm_option, json_option, parse_algorithms, parse_settings, set_option

_SECONDS = ("compute_s", "communication_s", "exposed_communication_s", "idle_s")

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scaleout.study.strategies import Followed


@click.command()
@click.argument("workload")
@click.option("--topology", metavar="T", help="Name or file of the network; by default the workload's.")
@click.option("--device", metavar="D", help="Name or file of the device; by default the workload's.")
@click.option(
    "--strategy",
    "names",
    multiple=True,
    metavar="S",
    help="Such as ddp or centauri, as `scaleout list strategies` names them; repeatable; by default all.",
)
@set_option
@algorithm_option
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), help="Write tables, timelines and a figure here."
)
@json_option
def strategies(
    workload: str,
    topology: str | None,
    device: str | None,
    names: tuple[str, ...],
    settings: tuple[str, ...],
    algorithms: tuple[str, ...],
    output: Path | None,
    as_json: bool,
) -> None:
    """Simulate a step of training WORKLOAD under strategies that frameworks follow, at its degrees of parallelism.

    Those that do not fit the memory of a device are simulated as well, and marked.

    Example: scaleout strategies llama-big --topology a100-cluster-a-6 --set layers=30 --set tensor_parallel=4
    --set pipeline_parallel=3 --set data_parallel=4 --set batch_per_replica=6 --set microbatch=1.
    """
    from scaleout.cluster.device.spec import load_device
    from scaleout.cluster.topology.topology import check_ranks, load_topology
    from scaleout.study.strategies import STRATEGIES, follow, side_by_side
    from scaleout.workloads.config import layered, load_workload

    job = layered(load_workload(workload, parse_settings(settings)), wants="strategies train models of layers")
    network = load_topology(topology or job.topology)
    check_ranks(network, job.num_ranks)
    gpu = load_device(device or job.device)
    chosen = parse_algorithms(algorithms)
    found = [
        follow(name, job, topology=network, device=gpu, algorithms=chosen)
        for name in dict.fromkeys(names or STRATEGIES)
    ]
    comparison = side_by_side(found, device=gpu)
    rows = [_row(each, comparison.outcomes[0].makespan_s) for each in found]
    written = []
    if output is not None:
        from scaleout.report.files import write

        written = write(comparison, output)
    if as_json:
        summary = {"workload": job.name, "topology": network.name, "device": gpu.name, "results": rows}
        click.echo(json.dumps(summary, indent=2))
        return
    _print(f"{job.name} on {network.name}, ranks {job.num_ranks}, device {gpu.name}", rows)
    for path, meaning in written:
        click.echo(f"{path}  {meaning}")


def _row(each: "Followed", first_s: float) -> dict[str, Any]:
    """Return what became of a strategy as plain values."""
    if each.outcome is None or each.fit is None:
        return {"strategy": each.name, "reason": each.reason}
    return {
        "strategy": each.name,
        "schedule": each.outcome.schedule,
        "speedup": first_s / each.outcome.makespan_s,
        **asdict(each.outcome.breakdown),
        "memory_bytes": each.fit.peak.total_bytes,
        "fits": each.fits,
        "decisions": list(each.outcome.decisions),
    }


def _print(title: str, rows: "Sequence[dict[str, Any]]") -> None:
    from scaleout.cli.console import console, print_table
    from scaleout.config.units import format_bytes, format_seconds

    cells = [
        [
            row["strategy"],
            format_seconds(row["makespan_s"]),
            f"{row['speedup']:.3f}x",
            *(format_seconds(row[key]) for key in _SECONDS),
            format_bytes(row["memory_bytes"]),
            "" if row["fits"] else "does not fit",
        ]
        for row in rows
        if "makespan_s" in row
    ]
    chosen = [words for row in rows for words in row.get("decisions", ()) if row["strategy"] == "centauri"]
    if chosen:
        print_table("what centauri decided", ("choice",), [[words] for words in chosen], left=1)
    columns = ("strategy", "step", "speed-up", "compute", "communication", "exposed", "idle", "memory", "")
    print_table(title, columns, cells, left=1)
    for row in rows:
        if "reason" in row:
            console().print(f"{row['strategy']}: {row['reason']}", highlight=False)
