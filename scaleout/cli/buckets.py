"""`scaleout buckets`: the best size of gradient buckets, and what others cost."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli.collective import SIZES_HELP, parse_sizes
from scaleout.cli.job import NamedJob
from scaleout.cli.options import Output, Stated, job_options, output_options, simulation_options
from scaleout.cli.printing import say
from scaleout.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scaleout.study.buckets import Bucketed


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
@output_options("Write a table and a figure here.", "buckets.png")
def buckets(job: NamedJob, sizes: str, ways: tuple[str, ...], options: Stated, output: Output) -> None:
    """Find the best size of DDP's gradient buckets for WORKLOAD.

    Each size is simulated under the schedule `overlap`, beside the default: the workload's own gradient_bucket, which
    `scaleout run` takes (PyTorch's 25 MiB where neither the workload nor its framework says another).

    Example: scaleout buckets llama-3-8b --set data_parallel=128 --topology dgx-h200-16 --algorithm auto
    --algorithm ring.
    """
    from scaleout.analysis.efficiency import fit
    from scaleout.cli.progress import progress
    from scaleout.report.box import network_of, room
    from scaleout.report.documents import document
    from scaleout.study.buckets import AUTO, best, sweep_buckets, with_buckets
    from scaleout.study.job import Job
    from scaleout.study.provenance import provenance_of
    from scaleout.study.realism import options_for

    if "gradient_bucket" in job.settings:
        raise ConfigError("the sweep sets gradient_bucket; leave it out, and give the sizes")
    ways = tuple(dict.fromkeys(ways))
    loaded, topology, device = job.load()
    how = options_for(loaded, device, **options)
    swept = Job(loaded, device, topology, "overlap:always", how)
    asked, own = parse_sizes(sizes), round(loaded.gradient_bucket)
    wanted = asked if own in asked else sorted([*asked, own])
    with progress(kept="nothing is kept", quiet=output.as_json) as tell:
        rows = sweep_buckets(swept, sizes_bytes=wanted, ways=ways, tell=tell)
    found, default = best(rows), min((row for row in rows if row.bucket_bytes == own), key=lambda row: row.way != AUTO)
    model, held = provenance_of(swept), fit(with_buckets(loaded, found.bucket_bytes), device)
    about = {"workload": loaded.name, "model": model.summary(), "memory": held.summary()}
    steps = {"best": asdict(found), "default": asdict(default), "results": [asdict(row) for row in rows]}
    inputs = {**job.inputs(loaded, how, ("overlap:always",)), "bytes": asked, "algorithm": list(ways)}
    facts = {
        **network_of(topology, device.name, loaded.num_ranks),
        "memory": room(held, loaded.num_ranks),
        "model": model.title,
    }
    answer = _answer(found, default, facts, fits=held.fits)
    summary = document("buckets", {**about, **steps}, inputs=inputs, models=[model.models], answer=answer)
    title = f"{loaded.name} on {topology.name}, ranks {loaded.num_ranks:,}, device {device.name}"
    run = "" if found == default else _run_line(job.given(options), found)
    shown = partial(_print, title, answer, rows, (found, default), run=run)

    def write(folder: Path) -> dict[str, str]:
        from scaleout.report.plots.studies import draw_buckets

        draw_buckets(rows, folder / "buckets.png", title=f"{loaded.name}: the step over the size of gradient buckets")
        return {"buckets.png": "the step, and exposed communication, over sizes"}

    output.give(summary, shown, write)


def _run_line(given: "Mapping[str, Any]", found: "Bucketed") -> str:
    """Return the command that simulates the step with buckets of the size and way that were found."""
    from scaleout.api.inputs import given_of
    from scaleout.config.units import BYTES, format_bytes, parse
    from scaleout.network.collectives import ALGORITHMS
    from scaleout.study.buckets import AUTO
    from scaleout.study.sweep.cases import run_line

    way = "algorithm.all_reduce" if found.way in ALGORITHMS else "policy"
    in_words, exact = format_bytes(found.bucket_bytes).replace(" ", ""), f"{found.bucket_bytes}B"
    size = in_words if parse(in_words, BYTES) == found.bucket_bytes else exact
    chosen = {"set.gradient_bucket": size, "schedule": "overlap:always"}
    return run_line(given_of({**given, **chosen, **({} if found.way == AUTO else {way: found.way})}))


def _answer(found: "Bucketed", default: "Bucketed", facts: "Mapping[str, str]", *, fits: bool) -> dict[str, str]:
    """Say what the best size is, what it gains over the default, and other facts."""
    from scaleout.config.units import format_bytes, format_difference, format_seconds
    from scaleout.report.box import FITTED

    step, own = format_seconds(found.step_s), format_seconds(default.step_s)
    own = f"{own} with buckets of {format_bytes(default.bucket_bytes)}, reduced by {default.way}"
    gain = "the best" if found == default else f"{format_difference(found.step_s, default.step_s)} with the best"
    answer = {
        "best": f"buckets of {format_bytes(found.bucket_bytes)}, reduced by {found.way}",
        "step": step if fits else step + FITTED,
        "default": f"{own}; {gain}",
        "exposed": format_seconds(found.exposed_s),
    }
    return {**answer, **facts} if fits else {"memory": facts["memory"], **answer, **facts}


def _print(
    title: str, answer: "Mapping[str, str]", rows: "Sequence[Bucketed]", named: "tuple[Bucketed, Bucketed]", *, run: str
) -> None:
    """Print the best size and the default (`named` are both), and all sizes."""
    from scaleout.cli.console import print_answer, print_table
    from scaleout.config.units import format_bytes, format_seconds

    found, default = named
    print_answer(title, answer)
    if run:
        say(f"{run}\n")
    cells = []
    for row in rows:
        mark = ", ".join(["best"] * (row == found) + ["default"] * (row == default))
        times = (row.step_s, row.compute_s, row.communication_s, row.exposed_s, row.idle_s)
        cells.append([row.way, mark, format_bytes(row.bucket_bytes), *map(format_seconds, times)])
    columns = ("algorithm", "", "bucket", "step", "compute", "communication", "exposed", "idle")
    print_table("gradient buckets", columns, cells, left=2)
