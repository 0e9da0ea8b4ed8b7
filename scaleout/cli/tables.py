"""Comparisons and collectives as tables on the terminal."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scaleout import analysis
from scaleout.analysis import Row, Segment
from scaleout.result import Result
from scaleout.study import Comparison, Outcome
from scaleout.units import format_bytes, format_seconds

_PATH_ROWS = 8
_OPERATION_ROWS = 12


def console() -> Console:
    """Return the console that all tables are printed on: never narrower than what a table needs in a pipe."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=140)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
    """Print a table whose first `left` columns are text and whose others are numbers."""
    table = Table(
        title=escape(title), title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False
    )
    for index, column in enumerate(columns):
        table.add_column(escape(column), justify="left" if index < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    console().print(table)
    console().print()


def print_links(title: str, links: Sequence[dict[str, Any]]) -> None:
    """Print what the busiest links carry."""
    print_table(
        title,
        ("link", "alike", "bytes", "utilisation"),
        [
            [use["link"], str(use["alike"]), format_bytes(use["size_bytes"]), f"{use['utilisation']:.1%}"]
            for use in links
        ],
    )


def print_comparison(comparison: Comparison) -> None:
    """Print a comparison: schedules, phases, operations, and the critical path of each schedule."""
    print_table(
        f"{comparison.workload} on {comparison.topology}, ranks {comparison.ranks}, device {comparison.device}",
        ("schedule", "makespan", "speed-up", "saved", "compute", "communication", "exposed", "idle"),
        [_schedule_row(outcome) for outcome in comparison.outcomes],
    )
    _print_rows("busy time by phase", comparison, analysis.by_phase, limit=None)
    _print_rows("busy time by operation", comparison, analysis.by_operation, limit=_OPERATION_ROWS)
    for outcome in comparison.outcomes:
        _print_critical_path(outcome)
        if outcome.result.busiest_links:
            links = [asdict(use) for use in outcome.result.busiest_links]
            print_links(f"busiest links of {outcome.schedule}", links)
    _print_sources(comparison)


def _schedule_row(outcome: Outcome) -> list[str]:
    parts = outcome.breakdown
    return [
        outcome.schedule,
        format_seconds(outcome.makespan_s),
        f"{outcome.speedup:.3f}x",
        f"{1 - 1 / outcome.speedup:.1%}",
        format_seconds(parts.compute_s),
        format_seconds(parts.communication_s),
        format_seconds(parts.exposed_communication_s),
        format_seconds(parts.idle_s),
    ]


def _print_rows(
    title: str, comparison: Comparison, rows_of: Callable[[Result], list[Row]], *, limit: int | None
) -> None:
    columns: dict[tuple[str, bool], dict[str, Row]] = {}
    for outcome in comparison.outcomes:
        for row in rows_of(outcome.result):
            columns.setdefault((row.name, row.communication), {})[outcome.schedule] = row
    names = [outcome.schedule for outcome in comparison.outcomes]
    rows = [
        [
            name,
            "communication" if communicates else "compute",
            f"{next(iter(of.values())).count:g}",
            *(format_seconds(of[schedule].busy_s) if schedule in of else "-" for schedule in names),
        ]
        for (name, communicates), of in columns.items()
    ]
    print_table(title, (title.removeprefix("busy time by "), "", "nodes", *names), rows[:limit], left=2)


def _print_critical_path(outcome: Outcome) -> None:
    """Print how much of the makespan each operation of the critical path decides, the largest first."""
    groups: dict[tuple[str, str], list[Segment]] = {}
    for segment in analysis.critical_path(outcome.result):
        groups.setdefault((segment.phase, segment.operation), []).append(segment)
    totals = {key: sum(segment.end_s - segment.start_s for segment in group) for key, group in groups.items()}
    largest = sorted(totals, key=lambda key: -totals[key])
    rows = [
        [*key, str(len(groups[key])), format_seconds(totals[key]), f"{totals[key] / outcome.makespan_s:.1%}"]
        for key in largest[:_PATH_ROWS]
    ]
    rest = sum(totals[key] for key in largest[_PATH_ROWS:])
    if rest:
        rows.append(["others", "", "", format_seconds(rest), f"{rest / outcome.makespan_s:.1%}"])
    columns = ("phase", "operation", "nodes", "time", "of makespan")
    print_table(f"critical path of {outcome.schedule}", columns, rows, left=2)


def _print_sources(comparison: Comparison) -> None:
    sources = comparison.outcomes[0].breakdown.kernel_time_sources
    if sources:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in sources.items())
        console().print(f"kernel times: {shares}", highlight=False)


def print_facts(facts: dict[str, Any]) -> None:
    """Print a description: plain facts line by line, lists of rows as tables."""
    for key, value in facts.items():
        title = key.replace("_", " ")
        if isinstance(value, list) and value and isinstance(value[0], dict):
            print_table(title, tuple(value[0]), [[str(cell) for cell in row.values()] for row in value], left=2)
        elif isinstance(value, dict):
            print_table(title, ("", ""), [[str(name), str(cell)] for name, cell in value.items()], left=2)
        else:
            console().print(f"[bold]{escape(title)}[/bold]: {escape(str(value))}", highlight=False)
