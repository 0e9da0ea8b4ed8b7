"""`scaleout run`: simulate a job under several schedules and say where the time goes."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaleout.cli import completion
from scaleout.cli.job import NamedJob
from scaleout.cli.options import (
    AS_GIVEN,
    FILE,
    SIMULATION,
    Output,
    Stated,
    job_options,
    output_options,
    pairs_of,
    simulation_options,
    verbose_option,
)
from scaleout.cli.printing import FILES_OF_RUN
from scaleout.errors import ConfigError, ScaleoutError

if TYPE_CHECKING:
    from scaleout.api.runs import RunAnswer
    from scaleout.study.job import Tell


@click.command()
@job_options(required=False)
@click.option(
    "--schedule",
    "schedules",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.schedules,
    help="How communication is overlapped, fused or partitioned, not the pipeline schedule (--set pipeline_schedule): "
    "baseline, which overlaps no collective; overlap, to which PyTorch and Megatron-LM are nearer; fused; others "
    "(`scaleout list schedules`); or several joined by +. Repeatable; speed-ups are over the first. By default those "
    "of the workload, or baseline, overlap and fused.",
)
@simulation_options(*SIMULATION)
@click.option(
    "--trace",
    "trace_path",
    type=AS_GIVEN,
    metavar="DIRECTORY",
    help="Simulate the Chakra traces of a directory, not a workload.",
)
@click.option(
    "--edit",
    "edits",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a recorded job of --trace: batch, sequence, layers, microbatches, accumulate, or ranks of data, "
    "tensor or expert, by a factor (2x) or OLD->NEW; bucket=SIZE of gradients, chunks=N of an exchange, recompute=full "
    "or none; repeatable.",
)
@click.option(
    "--plan",
    metavar="FILE#N",
    shell_complete=completion.plans,
    help="Simulate plan N (a number, or a letter as its tables have them) of a folder that `scaleout search --output` "
    "has written, such as plans#1, not a workload; "
    "beside it there may be all that the plan does not set, such as --slow or --bandwidth.",
)
@click.option(
    "--measure-next",
    "measure_next",
    type=FILE,
    metavar="FILE",
    help="Write what to measure to make the error bars of the fastest schedule narrower, for `scaleout measure FILE`.",
)
@verbose_option
@output_options("Write tables, timeline and figure here.", *FILES_OF_RUN)
def run(
    job: NamedJob,
    schedules: tuple[str, ...],
    options: Stated,
    trace_path: str | None,
    edits: tuple[str, ...],
    plan: str | None,
    measure_next: Path | None,
    verbose: bool,
    output: Output,
) -> None:
    """Simulate a step of WORKLOAD, and print where the time goes.

    WORKLOAD is a name (`scaleout list workloads`) or a file; it is simulated under each --schedule. Where one of them
    fails, the others are printed, then why it failed, and the exit code is not zero.

    Examples: scaleout run dlrm-128 --output results; scaleout run llama-3-8b --set tensor_parallel=8
    --set data_parallel=16 --topology dgx-h200-16; scaleout run dlrm-128 --break 3-4 --slow 5=1.3.

    --degrade, --break and --slow number the ranks as the topology does, whatever the --placement. Where the network is
    changed (by more than --nodes), the box also has the step without the changes, under the same schedule.
    """
    from scaleout.cli.progress import progress

    output.spare(*([plan.rpartition("#")[0]] if plan else []))
    with progress(kept="nothing is kept", quiet=output.as_json) as told:

        def tell(done: int, total: int, schedule: str) -> None:
            told(done, total, f"schedules, now {schedule}")

        answer = _answer(job, schedules, options, (trace_path, edits, plan), tell)
    _give(answer, output, verbose=verbose, measure_next=measure_next)


def _answer(
    job: NamedJob,
    schedules: tuple[str, ...],
    options: Stated,
    given: tuple[str | None, tuple[str, ...], str | None],
    tell: "Tell",
) -> "RunAnswer":
    """Simulate a plan, a workload or traces; `given` are --trace, --edit and --plan."""
    trace_path, edits, plan = given
    if plan is not None:
        from scaleout.cli.plan import run_plan

        if trace_path is not None or edits:
            raise ConfigError(f"--plan {plan} is of a workload; leave out --trace and --edit")
        return run_plan(plan, job, options, schedules, tell)
    if job.workload is None and trace_path is None:
        raise ConfigError(
            "give a workload, such as `scaleout run dlrm-128` (`scaleout list workloads`), or --trace DIR"
        )
    if job.workload is not None and trace_path is not None:
        raise ConfigError(f"give either the workload {job.workload} or --trace {trace_path}, not both")
    if trace_path is None:
        if edits:
            raise ConfigError(f"--edit {edits[0]} changes a recording (--trace); a workload is changed by --set")
        return job.run(schedules, options, tell)
    if job.settings:
        raise ConfigError("--set changes a workload, which a trace has none of; leave it out")
    from scaleout.api.traces import read_trace
    from scaleout.study.job import check_traced
    from scaleout.study.realism import stated_options

    check_traced(stated_options(**options))
    trace = read_trace(trace_path).edit(**pairs_of(edits, option="--edit", form="as batch=2x or layers=8->4"))
    return trace.run(
        topology=job.topology, device=job.device, schedules=schedules, network_changes=job.changes, tell=tell,
        **options,
    )  # fmt: skip


def _give(answer: "RunAnswer", output: Output, *, verbose: bool, measure_next: Path | None) -> None:
    """Print or write an answer, and what to measure; `ScaleoutError` if a schedule of it failed."""
    from scaleout.cli.tables import print_comparison
    from scaleout.report.files import write

    found = answer.comparison
    documented = output.as_json or output.folder is not None
    summary = answer.to_dict() if documented else {}  # rows by the thousand, of which tables have few
    if measure_next is not None:
        _write_next(answer, measure_next)
    printed = partial(print_comparison, found, answer.answer(), verbose=verbose, unchanged=answer.unchanged)
    output.give(summary, printed, partial(write, found, summary=summary))
    if found.failures:
        raise ScaleoutError("; ".join(map(str, found.failures)))


def _write_next(answer: "RunAnswer", file: Path) -> None:
    """Write rows to measure, what narrows the error bars of the fastest schedule most first."""
    from scaleout.config.documents import to_json
    from scaleout.config.writing import replace_own

    best = min(answer.outcomes, key=lambda outcome: outcome.makespan_s)
    rows = best.interval.rows if best.interval is not None else []
    if not rows:
        raise ConfigError(f"--measure-next {file}: nothing of this step is left to measure that `scaleout measure` can")
    replace_own(file, "".join(f"{to_json(row, indent=None)}\n" for row in rows), mark='{"experiment": ')
