"""`scaleout buckets`: the best size of gradient buckets, and what others cost."""

from dataclasses import asdict
from pathlib import Path

import click

from scaleout.cli.collective import SIZES_HELP, parse_sizes
from scaleout.cli.job import NamedJob
from scaleout.cli.options import Output, Stated, job_options, output_options, simulation_options
from scaleout.errors import ConfigError


@click.command()
@job_options()
@click.option("--bytes", "sizes", default="1MiB:4GiB", show_default=True, metavar="SIZES", help=SIZES_HELP)
@click.option(
    "--algorithm",
    "ways",
    multiple=True,
    default=("auto",),
    show_default=True,
    metavar="NAME",
    help="An algorithm of all-reduce, or back ends as --policy of `scaleout run` names them; repeatable.",
)
@simulation_options("host", "clocks", "network", "injection", "contention", "placement")
@output_options("Write a table and a figure here.")
def buckets(job: NamedJob, sizes: str, ways: tuple[str, ...], options: Stated, output: Output) -> None:
    """Find the best size of DDP's gradient buckets for WORKLOAD.

    Each size is simulated under the schedule `overlap`.

    Example: scaleout buckets llama-3-8b --set data_parallel=128 --topology dgx-h200-16 --algorithm auto
    --algorithm ring.
    """
    from scaleout.cli.answer import network_of
    from scaleout.cli.console import print_answer, print_table
    from scaleout.cli.progress import progress
    from scaleout.config.units import format_bytes, format_seconds
    from scaleout.report.documents import document
    from scaleout.study.buckets import best, sweep_buckets
    from scaleout.study.job import Job
    from scaleout.study.provenance import provenance_of
    from scaleout.study.realism import options_for

    if "gradient_bucket" in job.settings:
        raise ConfigError("the sweep sets gradient_bucket; leave it out, and give the sizes")
    workload = str(job.workload)
    ways = tuple(dict.fromkeys(ways))
    loaded, topology, device = job.load()
    how = options_for(loaded, device, **options)
    swept = Job(loaded, device, topology, "overlap:always", how)
    with progress(kept="nothing is kept", quiet=output.as_json) as tell:
        rows = sweep_buckets(swept, sizes_bytes=parse_sizes(sizes), ways=ways, tell=tell)
    found = best(rows)
    model = provenance_of(swept)
    about = {"workload": workload, "model": model.summary()}
    answer = {**about, "best": asdict(found), "results": [asdict(row) for row in rows]}
    inputs = {**job.inputs(loaded, how, ("overlap:always",)), "bytes": parse_sizes(sizes), "algorithm": list(ways)}
    summary = document("buckets", answer, inputs=inputs, models=[model.models])

    def print_tables() -> None:
        columns = ("algorithm", "", "bucket", "step", "communication", "exposed")
        cells = []
        for row in rows:
            times = map(format_seconds, (row.step_s, row.communication_s, row.exposed_s))
            cells.append([row.way, "best" if row == found else "", format_bytes(row.bucket_bytes), *times])
        answer = {
            "best": f"buckets of {format_bytes(found.bucket_bytes)}, reduced by {found.way}",
            "step": format_seconds(found.step_s),
            "exposed": format_seconds(found.exposed_s),
            **network_of(topology, device.name, loaded.num_ranks),
            "model": model.title,
        }
        print_answer(f"{workload} on {topology.name}, ranks {loaded.num_ranks}, device {device.name}", answer)
        print_table("gradient buckets", columns, cells, left=2)

    def write(folder: Path) -> dict[str, str]:
        from scaleout.report.plots.studies import draw_buckets

        draw_buckets(rows, folder / "buckets.png", title=f"{workload}: the step over the size of gradient buckets")
        return {"buckets.png": "the step, and exposed communication, over sizes"}

    output.give(summary, print_tables, write)
