"""`scaleout measure`: kernels, collectives, contention, steps and fused operators on the GPUs at hand."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli.options import FILE, FOLDER, NAME_OR_FILE, Whole, parse_settings, set_option
from scaleout.cli.printing import say, say_json
from scaleout.config.documents import is_file
from scaleout.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from scaleout.config.checkpoint import Row

NAMES = ("kernels", "collectives", "host", "contention", "steps", "fused")


class Measurements(click.Choice[str]):
    """A kind of measurement, all of them, or a file of rows of several kinds."""

    def __init__(self) -> None:
        super().__init__((*NAMES, "all"))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the kind or the file; refuse what is neither."""
        return str(value) if is_file(Path(str(value))) else super().convert(value, param, ctx)


@click.command()
@click.argument("what", type=Measurements(), metavar=f"{'|'.join((*NAMES, 'all'))}|FILE")
@click.option("--output", required=True, type=FOLDER, help="Directory for all files.")
@click.option("--gpus", type=Whole(1024), metavar="N", help="GPUs that take part; by default all.")
@click.option("--quick", is_flag=True, help="Few rows of each kind: minutes instead of an hour.")
@click.option(
    "--only",
    multiple=True,
    metavar="PATTERN",
    help="Only operations, collectives or steps that match, such as 'attention_*'; repeatable.",
)
@click.option("--dtype", "dtypes", multiple=True, metavar="NAME", help="Only rows of this dtype; repeatable.")
@click.option("--workload", type=NAME_OR_FILE, help="Measure exactly the kernels of a workload.")
@set_option()
@click.option(
    "--rows",
    "file",
    type=FILE,
    help="Measure the rows of a file, one JSON object a line.",
)
@click.option("--repeats", type=Whole(), default=7, show_default=True, metavar="N", help="Repetitions of each row.")
@click.option("--retry", is_flag=True, help="Measure again rows that failed before.")
@click.option("--plan", "plan_only", is_flag=True, help="Print the rows that would be measured; needs no GPU.")
def measure(
    what: str,
    output: Path,
    gpus: int | None,
    quick: bool,
    only: tuple[str, ...],
    dtypes: tuple[str, ...],
    workload: str | None,
    settings: tuple[str, ...],
    file: Path | None,
    repeats: int,
    retry: bool,
    plan_only: bool,
) -> None:
    """Measure kernels, collectives and steps on this machine's GPUs.

    FILE is what `scaleout run --measure-next FILE` wrote: rows with their `experiment`, one JSON object a line.

    Needs PyTorch and Triton (pip install 'scaleout[measure]'). Rows are written as they are measured; the same command
    resumes where it was interrupted. In the end DIRECTORY/device.yaml and DIRECTORY/machine.yaml describe the machine:
    scaleout run llama-3-8b --device DIRECTORY/device.yaml --topology DIRECTORY/machine.yaml, and
    scaleout validate DIRECTORY/steps.jsonl.
    """
    from scaleout.validation.measure import experiments, shapes
    from scaleout.validation.measure.checkpoint import read
    from scaleout.validation.measure.machine import able, backend, check_machine

    listed = {} if what in (*NAMES, "all") else experiments.listed(read(Path(what)), where=what)
    if listed and (workload or file or quick):
        raise ConfigError(f"{what} says what to measure; leave out --workload, --rows and --quick")
    names = list(listed) or [name for name in NAMES if what in {name, "all"}]
    if what == "all" and (workload or file or only or dtypes):
        raise ConfigError("--workload, --rows, --only and --dtype are for one kind of measurement; name it, not all")
    if workload and names != ["kernels"]:
        raise ConfigError(f"--workload says which kernels to measure, not {what}; measure kernels")
    if workload and file:
        raise ConfigError("--workload and --rows both say what to measure; give one of them")
    if settings and not workload:
        raise ConfigError("--set changes a workload; name it with --workload")

    def rows_of(name: str, ranks: int) -> "list[Row]":
        if listed:
            found = experiments.check_rows(name, listed[name], gpus=ranks)
        elif workload is not None:
            found = shapes.of_workload(workload, parse_settings(settings))
        elif file is None:
            found = experiments.plan(name, gpus=ranks, quick=quick)
        elif file.is_file():
            found = experiments.check_rows(name, read(file), gpus=ranks)
        else:
            raise ConfigError(f"--rows {file}: no such file; give one JSON object a line")
        return experiments.chosen(found, only=only, dtypes=dtypes)

    if plan_only:
        for name in able(names, gpus or 2, of_all=what == "all"):
            for row in rows_of(name, gpus or experiments.EXPERIMENTS[name].least_gpus):
                say_json({"experiment": name, **row}, indent=None)
        return
    machine = backend()
    ranks = check_machine(machine, gpus=gpus)
    wanted = {name: rows_of(name, ranks) for name in able(names, ranks, of_all=what == "all")}
    _measure(machine, wanted, output, ranks, repeats=repeats, retry=retry)


def _measure(
    machine: "ModuleType", wanted: "dict[str, list[Row]]", output: Path, gpus: int, *, repeats: int, retry: bool
) -> None:
    """Measure the rows of each experiment, one experiment after the other, and write the files of the machine."""
    from scaleout.config.checkpoint import locked
    from scaleout.config.writing import check_writable
    from scaleout.validation.measure.checkpoint import MeasurementLog
    from scaleout.validation.measure.experiments import EXPERIMENTS, Job
    from scaleout.validation.measure.machine import measure
    from scaleout.validation.measure.machine_files import check_folder, write_files

    environment = {**machine.environment(), "gpus": gpus}
    check_folder(output, environment)
    check_writable(output)
    output.mkdir(parents=True, exist_ok=True)
    folder = output.absolute()
    with locked(folder, "measure"):
        write_files(folder, environment)
        try:
            for name, rows in wanted.items():
                log = MeasurementLog(folder, name)
                log.open({**environment, "command": f"scaleout measure {name}", "method": EXPERIMENTS[name].method})
                left = log.remaining(rows, EXPERIMENTS[name].keys, retry=retry)
                job = Job(name, tuple(left), str(folder), gpus, repeats)
                measured, failed = _follow(job, measure(job, machine=machine, log=log)) if left else (0, 0)
                kept = f", {len(rows) - len(left)} were there already" if len(left) < len(rows) else ""
                say(f"{name}: {measured} rows measured, {failed} failed{kept}  {log.rows}")
                _print_failed(log, failed)
        finally:
            for path, meaning in write_files(folder, environment).items():
                say(f"{path}  {meaning}")


def _follow(job: Any, found: Any) -> tuple[int, int]:
    """Show how far a job is; return how many rows were measured and how many failed."""
    from scaleout.cli.progress import progress

    measured = failed = 0
    with progress(kept="what was measured is kept; the same command goes on") as show, closing(found):
        for measured, failed in found:
            show(measured + failed, len(job.rows), job.experiment)
    return measured, failed


def _print_failed(log: Any, failed: int) -> None:
    from scaleout.validation.measure.checkpoint import measured

    for row in measured(log.failed)[-failed:][:5] if failed else ():
        what = " ".join(str(value) for key, value in row.items() if key not in ("error", "method"))
        say(f"  failed: {what}: {row['error']}")
    if failed > 5:
        say(f"  and {failed - 5} more, see {log.failed}")
