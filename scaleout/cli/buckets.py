"""`scaleout buckets`: the best size of gradient buckets, and what others cost."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaleout.cli.options import NamedJob, job_options, json_option, output_option, print_files, simulation_options

if TYPE_CHECKING:
    from scaleout.simulation.options import SimulationOptions

SIZES = "1MiB:4GiB"


@click.command()
@job_options(faults=True)
@click.option("--bytes", "sizes", default=SIZES, show_default=True, metavar="SIZE[,SIZE...]", help="Or FIRST:LAST.")
@click.option(
    "--algorithm",
    "ways",
    multiple=True,
    default=("auto",),
    show_default=True,
    metavar="A",
    help="An algorithm of all-reduce, or a policy over the topology's back ends; repeatable.",
)
@simulation_options("host", "clocks", "network", "injection", "contention", "placement")
@output_option("Write a table and a figure here.")
@json_option
def buckets(
    job: NamedJob, sizes: str, ways: tuple[str, ...], options: "SimulationOptions", output: Path | None, as_json: bool
) -> None:
    """Simulate WORKLOAD with gradient buckets of many sizes under overlap, and print the best.

    Example: scaleout buckets llama-3-8b --set data_parallel=128 --topology dgx-h200-16 --algorithm auto
    --algorithm ring.
    """
    from scaleout.cli.collective import parse_sizes
    from scaleout.cli.console import print_table
    from scaleout.config.units import format_bytes, format_seconds
    from scaleout.errors import ConfigError
    from scaleout.study.buckets import best, sweep_buckets
    from scaleout.study.job import Job

    if "gradient_bucket" in job.settings:
        raise ConfigError("the sweep sets gradient_bucket; leave it out, and give the sizes")
    workload = str(job.workload)
    loaded, topology, device = job.load()
    swept = Job(loaded, device, topology, "overlap", options)
    rows = sweep_buckets(swept, sizes_bytes=parse_sizes(sizes), ways=tuple(dict.fromkeys(ways)))
    found = best(rows)
    summary = {"workload": workload, "best": asdict(found), "results": [asdict(row) for row in rows]}
    written = []
    if output:
        from scaleout.report.plots.scaling import draw_buckets

        output.mkdir(parents=True, exist_ok=True)
        table, picture = output / "buckets.json", output / "buckets.png"
        table.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        draw_buckets(rows, picture, title=f"{workload}: the step over the size of gradient buckets")
        written = [(table, "every step"), (picture, "the step, and exposed communication, over sizes")]
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    print_table(
        f"{workload}: gradient buckets",
        ("algorithm", "", "bucket", "step", "communication", "exposed"),
        [
            [
                row.way,
                "best" if row == found else "",
                format_bytes(row.bucket_bytes),
                *(format_seconds(time_s) for time_s in (row.step_s, row.communication_s, row.exposed_s)),
            ]
            for row in rows
        ],
        left=2,
    )
    print_files(written)
