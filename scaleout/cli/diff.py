"""`scaleout diff`: what takes longer in one result or recording than in another."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli.options import AS_GIVEN, NAME_OR_FILE, Output, output_options
from scaleout.cli.printing import say
from scaleout.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scaleout.analysis.difference import Change, Difference
    from scaleout.report.difference import Side

_ROWS = 12

_NAMED = 3
"""Operations of the box."""

_MANY = 10
"""Times A from which a growth is written as a multiple, not in per cent."""


@click.command()
@click.argument("a", type=AS_GIVEN)
@click.argument("b", type=AS_GIVEN)
@click.option(
    "--schedule",
    "schedules",
    multiple=True,
    metavar="NAME",
    help="Which schedule of a result to take, or to simulate a trace under; given twice, that of A, then of B. By "
    "default the first, and a recording as it ran.",
)
@click.option("--topology", type=NAME_OR_FILE, help="Network to simulate traces on; by default their own.")
@output_options("Write tables and a timeline of both here.", "differences.csv", "timeline.json")
def diff(a: str, b: str, schedules: tuple[str, ...], topology: str | None, output: Output) -> None:
    """Compare two results or recordings: what takes longer in B than in A.

    A and B are each a folder of `scaleout run --output`, a file of `scaleout run --json`, or a folder of Chakra traces
    (`scaleout trace`, `scaleout import pytorch`), which are simulated first as `scaleout run --trace` does. Times are
    means over ranks; a difference above zero says that B takes longer.

    Example: scaleout diff results/before results/after --output results/difference.
    """
    from scaleout.analysis.difference import difference
    from scaleout.report.difference import is_result, named_apart, summary_of, write
    from scaleout.report.documents import document

    if len(schedules) > 2:
        raise ConfigError(f"--schedule is given {len(schedules)} times; give it once, or once for A and once for B")
    if topology is not None and all(is_result(Path(path)) for path in (a, b)):
        raise ConfigError("--topology is for traces, and neither A nor B is a folder of them; leave it out")
    output.spare(a, b)
    of_a, of_b = (schedules * 2)[:2] if schedules else (None, None)
    timeline = output.folder is not None
    sides = named_apart([_side(path, of, topology, timeline=timeline) for path, of in ((a, of_a), (b, of_b))])
    found = difference(sides[0].profile, sides[1].profile)
    inputs = {"a": a, "b": b, "schedule": [each.schedule for each in sides]}
    inputs |= {"topology": topology} if topology else {}
    models = list(dict.fromkeys(each for side in sides for each in side.models))
    plain = summary_of(found, sides)
    answer = _answer(found, models, plain.get("awaited"), _others(sides) if not schedules else "")
    summary = document("diff", plain, inputs=inputs, models=models, answer=answer)
    output.give(summary, partial(_print, found, answer), partial(write, found, sides, summary=summary))
    without = [path for path, side in zip((a, b), sides, strict=True) if side.events is None]
    if timeline and without and not output.as_json:
        say(f"no timeline.json: {without[0]} is a summary without one; give folders of `scaleout run --output`")


def _others(sides: "Sequence[Side]") -> str:
    """Say which other schedules both results have, and which of all is A's fastest, as its box has it."""
    a, b = sides
    both = [name for name in a.schedules if name in b.schedules and name not in (a.schedule, b.schedule)]
    fastest = f", of which {a.schedules[0]} is the fastest of A" if both and both[0] == a.schedules[0] else ""
    return f"{', '.join(both)}{fastest}; --schedule compares another" if both else ""


def _side(path: str, schedule: str | None, topology: str | None, *, timeline: bool) -> "Side":
    from scaleout.report.difference import is_result, read_side, side_of
    from scaleout.report.perfetto import trace_events

    if is_result(Path(path)):
        return read_side(Path(path), schedule, timeline=timeline)
    if Path(path).is_dir() and not any(Path(path).glob("*.et")):
        raise ConfigError(
            f"{path}: is neither a result of `scaleout run` (summary.json) nor holds traces (<prefix>.<rank>.et); give "
            f"one of them"
        )
    from scaleout.api.traces import read_trace

    trace = read_trace(path)
    plain = () if trace.is_recording else ("baseline",)
    found = trace.run(topology=topology, schedules=plain if schedule is None else (schedule,))
    return side_of(found.to_dict(), None, trace_events(found.comparison) if timeline else None, where=path)


def _answer(found: "Difference", models: list[str], awaited: "Mapping[str, Any] | None", others: str) -> dict[str, str]:
    """Say what the step and its parts come to in either, for whom others wait, and what changes most."""
    from scaleout.report.difference import awaited_words

    changed = [f"{row.name} {_times(row)[2]}" for row in found.operations[:_NAMED] if row.difference_s]
    facts = {row.name: _words(row) for row in (found.makespan, *found.step)}
    if awaited:
        facts["waits"] = awaited_words(awaited, models)
    facts |= {"most": ", ".join(changed) or "-", "A": str(found.a), "B": str(found.b)}
    facts |= {"also in both": others} if others else {}
    return facts | {"model": "; ".join(models)} if models else facts


def _print(found: "Difference", answer: "Mapping[str, str]") -> None:
    from scaleout.cli.console import print_answer, print_table
    from scaleout.cli.tables import merged
    from scaleout.config.units import format_bytes

    print_answer("B against A", answer)
    whole: Sequence[Change] = (*found.step, found.makespan)
    collectives = merged(
        found.collectives,
        lambda row: (row.name, format_bytes(row.bytes), row.group_size, row.only_in),
        *("a_count", "b_count", "a_s", "b_s", "difference_s"),
    )
    collectives.sort(key=lambda row: -abs(row.difference_s))
    tables: dict[str, Sequence[Change]]
    tables = {"phase": found.phases, "operation": found.operations, "collective": collectives}
    for what, rows in tables.items():
        sized = what == "collective"
        columns = (what, *(("size", "ranks") if sized else ("",)), "A", "B", "difference", "of A", "")
        if rows:
            cells = [_cells(row, sized=sized) for row in rows[:_ROWS]]
            left = "" if len(rows) <= _ROWS else f", the {_ROWS} largest of {len(rows)}"
            print_table(f"busy time by {what}{left}", columns, cells, left=1 if sized else 2)
    cells = [[row.name, *_times(row)] for row in whole] + [[f"busy: {row.kind}", *_times(row)] for row in found.busy]
    print_table("step", ("", "A", "B", "difference", "of A", ""), cells, left=1)


def _words(row: "Change") -> str:
    a, b, difference, share, _ = _times(row)
    return f"{b} against {a}, {difference}{f' ({share})' if share else ''}"


def _cells(row: "Change", *, sized: bool) -> list[str]:
    from scaleout.cli.tables import phase_name
    from scaleout.config.units import format_bytes

    if not sized:
        return [phase_name(row.name), row.kind, *_times(row)]
    return [row.name, format_bytes(row.bytes) if row.bytes else "-", str(row.group_size or "-"), *_times(row)]


def _times(row: "Change") -> list[str]:
    from scaleout.config.units import format_seconds

    change = row.difference_s
    sign = "+" if change > 0 else "-" if change < 0 else ""
    share = f"{change / row.a_s:+.1%}" if row.a_s and change else ""
    if row.a_s and change > _MANY * row.a_s:
        share = f"{row.b_s / row.a_s:,.0f}x"
    a, b = ("-" if row.only_in == other else format_seconds(at) for other, at in (("B", row.a_s), ("A", row.b_s)))
    return [a, b, f"{sign}{format_seconds(abs(change))}", share, f"only in {row.only_in}" if row.only_in else ""]
