"""`scaleout study`: many jobs that differ in a few keys, as a file says, to one table and report."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli.options import FOLDER, Whole, json_option, look_options
from scaleout.errors import ConfigError, ScaleoutError, shown

if TYPE_CHECKING:
    import pandas as pd

    from scaleout.report.timelines import Which
    from scaleout.study.sweep.engine import Execution
    from scaleout.study.sweep.study import Study


def _part(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, int] | None:
    """Return which part of how many a text such as 3/8 is; `ConfigError` if it is none."""
    if text is None:
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise ConfigError(f"--shard {shown(text)}: is no part of a study; give 1/8 to 8/8 for eight parts")
    return int(found[1]), int(found[2])


class _Command(click.Command):
    """Where an option of other verbs is given, of which a study's file has a key, the message says so."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from scaleout.study.sweep.study import StudyFile

            key = error.option_name.lstrip("-").replace("-", "_")
            if key not in {field.alias or name for name, field in StudyFile.model_fields.items()}:
                raise
            words = f"No such option {error.option_name!r}. STUDY's file says it, by the key {key!r}; scaleout show "
            raise click.UsageError(f"{words}--keys study {key} says how.", ctx) from None


@click.command(cls=_Command)
@click.argument("file", metavar="STUDY")
@click.option(
    "--output",
    type=FOLDER,
    required=True,
    help="Keep results, table and report here; what is there is not run again.",
)
@click.option("--workers", type=Whole(), help="Processes, or workers of a cluster; by default all cores.")
@click.option("--cluster", metavar="local|slurm|tcp://HOST:PORT", default="", help="Run the cases on Dask.")
@click.option("--shard", callback=_part, metavar="I/N", help="Run one part of N, as jobs of an array; the rest later.")
@click.option("--yes", is_flag=True, help="Run a study of a million cases or more.")
@click.option(
    "--timelines",
    type=click.Choice(["best", "all", "none"]),
    help="Cases of which a timeline is written, for Perfetto; by default as the study says, or the best.",
)
@click.option("--top", type=Whole(), default=5, show_default=True, help="Fastest cases of each workload to print.")
@click.option("--no-report", is_flag=True, help="Write cases.parquet without report.html, cases.csv and figures/.")
@look_options
@json_option
def study(
    file: str,
    output: Path,
    workers: int | None,
    cluster: str,
    shard: tuple[int, int] | None,
    yes: bool,
    timelines: "Which | None",
    top: int,
    no_report: bool,
    look: tuple[str, str | None],
    as_json: bool,
) -> None:
    """Run jobs that differ in a few keys, as a file says, to one table and report.

    STUDY is a name (`scaleout list studies`) or a file. Each row of the table has the `scaleout run` line that gives
    the same numbers. An interrupted study goes on where it was when the same command is given again.

    Examples: scaleout study topologies --output results; scaleout study mine.yaml --output results --cluster
    local.
    """
    from scaleout.api.sweeps import SweepAnswer
    from scaleout.report.pages.vega import check_limits
    from scaleout.study.sweep.engine import Execution
    from scaleout.study.sweep.study import load_study

    if no_report and any(look):
        raise ConfigError("--format and --width are of the report's pictures; leave out --no-report, or these")
    if not no_report:
        check_limits("give --no-report")
    if shard is not None and cluster:
        raise ConfigError("--shard is a part for one machine, and --cluster shares all parts out; give one of them")
    asked = load_study(file)
    how = Execution(workers=workers, cluster=cluster, shard=shard or (1, 1), approved=yes)
    cases = _run(asked, output, how, quiet=as_json)
    if cases is None:
        _say_part(asked, output, how, as_json=as_json)
        return
    from scaleout.report.look import look as looking

    with looking(*look):
        cases, written = _write(asked, cases, output, timelines=timelines or asked.file.timelines, report=not no_report)
    summary = SweepAnswer(asked, cases, named=file, output=str(output), top=top, files=written).to_dict()
    _give(asked, output, summary, as_json=as_json)
    if not summary["ok"]:
        raise ScaleoutError(f"all cases failed, the first with: {summary['failed_for'][0]['message']}")


def _run(asked: "Study", output: Path, how: "Execution", *, quiet: bool) -> "pd.DataFrame | None":
    """Run the cases, with progress on standard error."""
    from dataclasses import replace

    from scaleout.cli.progress import progress
    from scaleout.study.sweep.engine import execute

    kept = f"what is done is kept in {output}; the same command goes on where it was"
    with progress(kept=kept, quiet=quiet) as show:

        def tell(done: int, total: int, failed: int) -> None:
            show(done, total, "cases" + (f", {failed:,} failed" if failed else ""))

        return execute(asked, output, replace(how, tell=tell))


def _write(
    asked: "Study", cases: "pd.DataFrame", output: Path, *, timelines: "Which", report: bool
) -> "tuple[pd.DataFrame, dict[str, str]]":
    """Write timelines, table and report; return the table with its timelines, and the files, and what each holds."""
    from scaleout.config.units import counted
    from scaleout.report.timelines import FOLDER, write_timelines
    from scaleout.study.sweep.table import FILE, write_table

    cases = write_timelines(cases, asked, output, timelines)
    write_table(cases, output / FILE)
    written = {FILE: "a row a case"}
    if report:
        from scaleout.report.pages.study import write_study_report

        written |= write_study_report(cases, asked, output)
    if count := int((cases["timeline"] != "").sum()):
        written[FOLDER] = f"timelines of {counted(count, 'case')}; open in https://ui.perfetto.dev"
    return cases, written


def _give(asked: "Study", output: Path, summary: dict[str, Any], *, as_json: bool) -> None:
    from scaleout.api.sweeps import estimated, unfit
    from scaleout.cli.console import console, print_answer, print_table
    from scaleout.cli.printing import say, say_files, say_json
    from scaleout.config.units import counted, format_dollars, format_rate, format_seconds
    from scaleout.errors import one_line
    from scaleout.study.sweep.columns import column_of

    if as_json:
        say_json(summary)
        return
    by = summary["fastest_by"]
    label, also = column_of(by).label, by != "makespan_s"
    fastest = summary["fastest_cases"]
    rows = [
        [each["workload"], each["varied"], str(each["case"]), format_seconds(each["makespan_s"])]
        + [format_rate(each[by])] * also
        + [f"{each['slower_share']:.1%}", estimated(each), "" if each.get("fits", True) else "no"]
        for each in fastest
    ]
    first = {each["workload"]: each for each in reversed(fastest)}
    print_answer(asked.title, summary["answer"])
    title = f"the fastest of each workload, by {label}"
    heads = ("workload", "inputs", "case", "makespan", *[label] * also, "slower by", "estimated", "fits")
    told = [
        place for place, head in enumerate(heads) if head not in ("estimated", "fits") or any(r[place] for r in rows)
    ]
    heads, rows = tuple(heads[place] for place in told), [[row[place] for place in told] for row in rows]
    if rows:
        print_table(title, heads, rows, left=2)
    for each in summary["cheapest_cases"]:
        console().print(
            one_line(
                f"cheapest network of {counted(each['ranks'], 'rank')} within {100 * summary['within_share']:.4g}% of "
                f"the fastest, {each['workload']}: "
                f"{each['varied']}, {format_dollars(each['network_dollars'])}, {each['slower_share']:.1%} slower: case "
                f"{each['case']}{unfit(each)}"
            )
        )
    for each in first.values():
        say(f"case {each['case']} alone:\n{one_line(each['run'])}")
    for each in summary["failed_for"]:
        console().print(one_line(f"{each['cases']:,} failed: {each['message']}"))
    for note in summary["notes"]:
        console().print(one_line(f"note: {note}"))
    say_files(output, summary["files"])


def _say_part(asked: "Study", output: Path, how: "Execution", *, as_json: bool) -> None:
    from scaleout.cli.printing import say, say_json

    part, parts = how.shard
    if as_json:
        from scaleout.report.documents import document

        found = {"study": asked.name, "output": str(output), "shard_of": [part, parts]}
        say_json(document("study", found, inputs={"study": asked.name, "shard": [part, parts]}))
        return
    say(f"part {part} of {parts} is done; run the same command without --shard when all are, for table and report")
