"""Comparisons as tables on the terminal."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import fsum
from typing import TYPE_CHECKING, Any, TypeVar

from scaleout.analysis import breakdown as analysis
from scaleout.analysis.waits import Wait, most_awaited
from scaleout.cli.console import console, print_answer, print_links, print_table
from scaleout.cli.printing import say
from scaleout.config.units import (
    counted,
    format_bytes,
    format_count,
    format_dollars,
    format_joules,
    format_ranks,
    format_rate,
    format_seconds,
    format_share,
    format_sizes,
    format_times,
    format_watts,
)

if TYPE_CHECKING:
    from scaleout.analysis.bounds import Bound
    from scaleout.analysis.difference import Change
    from scaleout.analysis.efficiency import Fit
    from scaleout.simulation.result import Result
    from scaleout.study.comparison import Comparison
    from scaleout.study.job import Outcome
    from scaleout.workloads.memory.advice import Advice

_PATH_ROWS = 8
_OPERATION_ROWS = 12
_BOUND_ROWS = 6
_WAIT_ROWS = 8
_ADDED_UP = "calls added up"
"""What is said of busy times that are longer than all communication, counted once."""


def print_comparison(
    comparison: "Comparison", answer: "Mapping[str, str]", *, verbose: bool = False, unchanged: "Outcome | None" = None
) -> None:
    """Print a comparison: its answer, see `box_of`, the schedules, and where the time and the memory go.

    Of a recording all times, counts and energies are of one step, the mean of those recorded. `verbose` adds each
    schedule's critical path, what it decided, and when its ranks are done. `unchanged` is the fastest schedule without
    the changes of the network.
    """
    steps = comparison.steps or 1
    print_answer(_title(comparison), answer)
    rows = [_schedule_row(outcome, steps) for outcome in comparison.outcomes]
    columns = ("schedule", "makespan", "speed-up", "saved", "compute", "communication", "exposed", "idle")
    print_table("schedules", columns, rows)
    _print_fallbacks(comparison.outcomes)
    _print_efficiency(comparison)
    _print_rows("busy time by phase", comparison, analysis.by_phase, limit=None)
    by_operation = partial(analysis.by_operation, named=comparison.fit is None)  # of a trace, which has no memory
    _print_rows("busy time by operation", comparison, by_operation, limit=_OPERATION_ROWS)
    contends = comparison.provenance is not None and comparison.provenance.contention is not None
    _print_what_busy_has(comparison, contends=contends)
    _print_bounds(min(comparison.outcomes, key=lambda outcome: outcome.makespan_s), steps, contends=contends)
    for outcome in comparison.outcomes:
        if outcome.result.busiest_links:
            links = [{**asdict(use), "size_bytes": use.size_bytes / steps} for use in outcome.result.busiest_links]
            print_links(f"busiest links of {outcome.schedule}", links)
        if verbose:
            before = unchanged if unchanged is not None and unchanged.schedule == outcome.schedule else None
            _print_details(outcome, steps, before)
    fits = {id(outcome.fit): outcome.fit for outcome in comparison.outcomes if outcome.fit is not None}
    for key, found in fits.items():
        under = [outcome.schedule for outcome in comparison.outcomes if id(outcome.fit) == key]
        _print_fit(found, f" under {', '.join(under)}" if len(fits) > 1 else "")
    _print_cost(comparison, verbose=verbose)
    _print_sources(comparison)
    _print_recorded(comparison)
    model = comparison.provenance
    for note in (*comparison.notes, *(model.notes if model else ())):
        console().print(f"note: {note}")
    if not verbose:
        console().print("critical paths, who waits for whom and decisions: -v; all of it: --json or --output DIRECTORY")


def _title(comparison: "Comparison") -> str:
    """Return what was simulated, on what."""
    topology = min(comparison.outcomes, key=lambda outcome: outcome.makespan_s).topology
    altered = () if topology is None else topology.altered
    nodes = "".join(f" ({words})" for words in altered if words.startswith("nodes="))
    on = f"{comparison.topology}{nodes}, ranks {comparison.ranks:,}"
    return f"{comparison.workload} on {on}, device {comparison.device}"


def _print_fallbacks(outcomes: "Sequence[Outcome]") -> None:
    """Say which schedules run what a simpler one makes, and what a step of their own would take."""
    for outcome in outcomes:
        if outcome.runs_as:
            tried = [each for each in outcome.decisions if each.time_of == "a step" and each.alternatives_s]
            own = tried and tried[0].against(min(tried[0].alternatives_s.values()))
            why = f"its own step would take {own}" if own else "it finds nothing to change"
            console().print(f"{outcome.schedule} runs as {outcome.runs_as}: {why}")
    if any(outcome.runs_as for outcome in outcomes):
        console().print()


def _print_bounds(outcome: "Outcome", steps: int, *, contends: bool) -> None:
    """Print what bounds the collectives and messages of a schedule that are exposed longest."""
    alike = merged(
        outcome.bounds,
        lambda row: (row.operation, row.algorithm, row.axis, row.words, format_bytes(row.bytes), row.group_size),
        *("count", "busy_s", "exposed_communication_s", "waits_s"),
    )
    once_s = outcome.breakdown.communication_s
    shown = sorted(alike, key=lambda row: (-row.exposed_communication_s, -row.busy_s))[:_BOUND_ROWS]
    rows = [
        [
            f"{row.operation} {row.algorithm}".strip(),
            row.axis,
            row.words,
            size,
            str(row.group_size),
            format_count(row.count / steps / row.member_share),
            *(
                format_seconds(time_s / steps / row.member_share)
                for time_s in (row.busy_s, row.exposed_communication_s)
            ),
            ", ".join(f"{name} {format_share(share)}" for name, share in row.busy_shares.items()),
        ]
        for row, size in zip(shown, format_sizes(row.bytes for row in shown), strict=True)
    ]
    if rows:
        columns = (
            "communication",
            "axis",
            "bound by",
            "bytes",
            "ranks",
            "calls",
            f"busy, {_ADDED_UP}" if any(_more(row.busy_s, once_s) for row in alike) else "busy",
            "exposed",
            "share of its time",
        )
        print_table(f"what bounds communication under {outcome.schedule}", columns, rows, left=3)
        if any(row.member_share < 1 for row in alike):
            console().print("calls, busy and exposed are means over the ranks of the groups\n")
        together_s = outcome.breakdown.exposed_communication_s
        if _more(fsum(row.exposed_communication_s for row in outcome.bounds), together_s):
            whole = format_seconds(together_s / steps)
            console().print(f"exposed counts for each of those that run at the same time; together it is {whole}\n")
        if contends:
            console().print("busy has waiting for SMs that kernels hold; shares are of communication alone\n")


Row = TypeVar("Row", "Bound", "Change")


def merged(rows: "Iterable[Row]", named: "Callable[[Row], Hashable]", *adds: str) -> "list[Row]":
    """Return rows of which those that a table names alike are one, with some columns added up.

    Of sizes that differ by less than what is printed of them, and are in files and JSON.
    """
    found: dict[Hashable, list[Row]] = {}
    for row in rows:
        found.setdefault(named(row), []).append(row)

    def added(alike: list[Row]) -> Row:
        sums: dict[str, Any] = {name: fsum(getattr(row, name) for row in alike) for name in adds}
        return replace(alike[0], **sums)

    return [added(alike) if len(alike) > 1 else alike[0] for alike in found.values()]


def phase_name(phase: str) -> str:
    """Return the name of a phase; of what belongs to none a word."""
    return phase or "no phase"


def _print_details(outcome: "Outcome", steps: int, unchanged: "Outcome | None") -> None:
    """Print what few ask for: the critical path, when ranks are done, and what a schedule decided."""
    _print_critical_path(outcome, steps)
    _print_causes(outcome)
    _print_waits(outcome, steps, unchanged)
    if outcome.result.has_puts or len(outcome.result.timelines) > 1:
        _print_ranks(outcome)
    if outcome.decisions:
        print_table(f"what {outcome.schedule} decided", ("choice",), [[str(each)] for each in outcome.decisions])


def _print_recorded(comparison: "Comparison") -> None:
    """Print what was recorded, and what a step takes now, of all the steps that are simulated one after another."""
    if not comparison.recorded_s:
        return
    steps = comparison.steps or 1
    many = f"{steps} steps, {format_seconds(comparison.recorded_s / steps)} a step" if steps > 1 else "a step"
    console().print(f"recorded: {format_seconds(comparison.recorded_s)} in {many}")
    for outcome in comparison.outcomes:
        step, times = format_seconds(outcome.makespan_s / steps), outcome.makespan_s / comparison.recorded_s
        name = f" under {outcome.schedule}" if len(comparison.outcomes) > 1 else ""
        console().print(f"simulated{name}: {step} a step, {format_times(times)} what was recorded")


def _schedule_row(outcome: "Outcome", steps: int) -> list[str]:
    parts = outcome.breakdown
    times_s = (parts.compute_s, parts.communication_s, parts.exposed_communication_s, parts.idle_s)
    return [
        outcome.schedule,
        format_seconds(outcome.makespan_s / steps),
        format_times(outcome.speedup),
        format_share(1 - 1 / outcome.speedup),
        *(format_seconds(seconds / steps) for seconds in times_s),
    ]


def _print_rows(
    title: str, comparison: "Comparison", rows_of: "Callable[[Result], list[analysis.Row]]", *, limit: int | None
) -> None:
    columns: dict[tuple[str, str], dict[str, analysis.Row]] = {}
    for outcome in comparison.outcomes:
        for row in rows_of(outcome.result):
            columns.setdefault((row.name, row.kind), {})[outcome.schedule] = row
    names, steps = [outcome.schedule for outcome in comparison.outcomes], comparison.steps or 1
    once_s = {outcome.schedule: outcome.breakdown.communication_s for outcome in comparison.outcomes}
    rows = [
        [
            phase_name(name),
            f"{kind}, {_ADDED_UP}"
            if kind == "communication" and any(_more(each.busy_s, once_s[name]) for name, each in of.items())
            else kind,
            *(format_seconds(of[schedule].busy_s / steps) if schedule in of else "-" for schedule in names),
        ]
        for (name, kind), of in columns.items()
        if any(row.busy_s for row in of.values())
    ]
    if title.endswith(" by phase") and not any(name for name, _ in columns):
        return  # of a trace that names none
    print_table(title, (title.removeprefix("busy time by "), "", *names), rows[:limit], left=2)


def _more(busy_s: float, once_s: float) -> bool:
    """Whether calls add up to more than the time in which there is communication: some run at the same time."""
    return busy_s > once_s * (1 + 1e-9)


def _print_what_busy_has(comparison: "Comparison", *, contends: bool) -> None:
    """Say why busy times of communication may be longer than what `schedules` has, or than without overlap."""
    words = ["have waiting for SMs that kernels hold"] if contends else []
    for outcome in comparison.outcomes:
        calls_s = fsum(row.busy_s for row in analysis.by_operation(outcome.result) if row.kind == "communication")
        if _more(calls_s, outcome.breakdown.communication_s):
            words.append("add up where calls run at the same time, which `schedules` counts once")
            break
    if words:
        console().print(f"busy times of communication {', and '.join(words)}\n")


def _print_critical_path(outcome: "Outcome", steps: int) -> None:
    """Print how much of the makespan each operation of the critical path decides, and on which rank if they differ."""
    found = analysis.decisive(outcome.result)
    differ = len(outcome.result.timelines) > 1
    rows = [
        [
            phase_name(row.phase),
            row.operation,
            format_count(row.count / steps),
            format_seconds(row.critical_s / steps),
            format_share(row.share),
            *([f"{row.rank} ({row.rank_share:.0%})"] * differ),
        ]
        for row in found[:_PATH_ROWS]
    ]
    if rest := found[_PATH_ROWS:]:
        total_s = fsum(row.critical_s for row in rest) / steps
        times = format_seconds(total_s), format_share(fsum(row.share for row in rest))
        rows.append(["others", "", "", *times, *([""] * differ)])
    columns = ("phase", "operation", "graph nodes", "time", "of makespan", *(["most on rank"] * differ))
    print_table(f"critical path of {outcome.schedule}", columns, rows, left=2)


_LITTLE = 0.01
"""Of the width of error bars: by less no measurement is worth its time."""


def _print_causes(outcome: "Outcome") -> None:
    """Print what the error bars come from, each alone, and what to measure next."""
    bars = outcome.interval
    if bars is None:
        return
    rows = [
        [
            each.cause,
            format_share(each.share),
            f"{math.expm1(-each.faster) + 0.0:.1%}",
            f"+{math.expm1(each.slower):.1%}",
        ]
        for each in bars.causes
    ]
    print_table(f"error bars of {outcome.schedule}", ("cause", "of the step", "faster", "slower"), rows)
    if bars.measurement is not None:
        most = f"{bars.measurement.cause}, which narrows the bars by {format_share(bars.narrowed)}"
        if bars.narrowed < _LITTLE:
            most = f"none narrows the bars by {_LITTLE:.0%}; {bars.measurement.cause} would most"
        console().print(f"next measurement: {most} (--measure-next FILE lists what to measure)\n")


def _print_waits(outcome: "Outcome", steps: int, unchanged: "Outcome | None") -> None:
    """Print what idle ranks wait for, beside what they do without changes of the machine, and which wait for which."""
    found, step_s = outcome.waits, outcome.makespan_s / steps
    before_s = {} if unchanged is None else unchanged.waits.by_cause_s
    rows = [
        [name, format_seconds(seconds / steps), format_share(seconds / steps / step_s)]
        + ([] if unchanged is None else [format_seconds(before_s.get(name, 0.0) / steps)])
        for name, seconds in found.by_cause_s.items()
    ]
    if rows:
        title = f"what ranks of {outcome.schedule} wait for"
        columns = ("idle until", "mean over ranks", "of the step", *(["without the changes"] * (unchanged is not None)))
        print_table(title, columns, rows)
    waits: dict[tuple[tuple[int, ...], str], list[Wait]] = {}
    for each in found.by_rank:
        waits.setdefault((each.waits_for, each.until), []).append(each)
    lines = [
        [format_ranks(rank for each in alike for rank in each.ranks), format_ranks(awaited), until, _each(alike, steps)]
        for (awaited, until), alike in waits.items()
    ]
    if not lines:
        return
    print_table(
        f"who waits for whom under {outcome.schedule}",
        ("ranks", "wait for", "until", "each"),
        lines[:_WAIT_ROWS],
        left=3,
    )
    if lines[_WAIT_ROWS:]:
        console().print(f"{counted(len(lines) - _WAIT_ROWS, 'row')} of less: --json\n")
    most, seconds = most_awaited(found.by_rank, outcome.result.program.num_ranks)
    idle = format_seconds(outcome.breakdown.idle_s / steps)
    who = f"{'ranks' if len(most) > 1 else 'rank'} {format_ranks(most)}"
    words = f"most of all for {who}: {format_seconds(seconds / steps)} of {idle} idle, the mean over ranks"
    if unchanged is not None:
        words += f"; {format_seconds(unchanged.breakdown.idle_s / steps)} are idle without the changes"
    console().print(f"{words}\n")


def _each(waits: "Sequence[Wait]", steps: int) -> str:
    """Write how long each rank waits: one time, or the shortest and the longest."""
    ends = [format_seconds(seconds / steps) for seconds in sorted(each.idle_s for each in waits)]
    return ends[0] if ends[0] == ends[-1] else f"{ends[0]} to {ends[-1]}"


def _print_ranks(outcome: "Outcome") -> None:
    """Print which rank ends its last kernel of each phase first and which last; the JSON says it of all."""
    found = analysis.ends_of_ranks(outcome.result)
    rows = []
    for phase in dict.fromkeys(phase for each in found for phase in each.phase_end_s):
        ends = [(each.phase_end_s[phase], each.ranks[0]) for each in found if phase in each.phase_end_s]
        first, last = min(ends), max(ends)
        times = [format_seconds(seconds) for seconds in (first[0], last[0], last[0] - first[0])]
        rows.append([phase_name(phase), str(first[1]), times[0], str(last[1]), times[1], times[2]])
    columns = ("phase", "first rank", "last kernel ends", "last rank", "last kernel ends", "spread")
    print_table(f"ranks of {outcome.schedule}", columns, rows)


def _print_efficiency(comparison: "Comparison") -> None:
    """Print how well each schedule uses its devices, and the exposed communication of each axis."""
    found = {o.schedule: o.efficiency for o in comparison.outcomes if o.efficiency is not None}
    axes = sorted({axis for each in found.values() for axis in each.exposed_s})
    rows = []
    for schedule, each in found.items():
        speeds = map(format_rate, (each.tokens_per_s, each.tokens_per_s_per_rank))
        shares = map(format_share, (each.mfu, each.hfu, each.bubble))
        rows.append([schedule, *speeds, *shares, *(format_seconds(each.exposed_s.get(axis, 0.0)) for axis in axes)])
    if rows:
        exposed = (f"exposed {axis}" for axis in axes)
        columns = ("schedule", "tokens/s", "tokens/s/GPU", "MFU", "HFU", "bubble", *exposed)
        print_table("efficiency", columns, rows)


def _print_fit(found: "Fit", under: str) -> None:
    """Print the memory of the worst rank by kind, and if it does not fit, what would help."""
    total, capacity = found.peak.total_bytes, found.capacity_bytes
    held = {kind.replace("_", " "): size for kind, size in found.peak.bytes_of.items() if size} | {"total": total}
    *sizes, device = format_sizes([*held.values(), capacity], like=capacity)
    row = [*sizes, f"{device} ({format_share(total / capacity)})"]
    title = f"memory of the worst rank{under}, at {found.peak.place}"
    print_table(title, (*held, "device memory"), [row], left=0)
    reserved = ""
    if found.reserved_bytes:
        reserved = f"; besides, the device's driver keeps {format_bytes(found.reserved_bytes)}"
    console().print(f"peak in {found.peak.moment}{reserved}")
    if found.fits:
        console().print()
        return
    console().print(f"does not fit: {format_bytes(total - capacity, like=capacity)} too much; what would help:")
    for advice in found.advice:
        _print_advice(advice)
    if not found.advice:
        tried = "no change that was tried; " if not found.peak.named else "more ranks, a smaller batch or model; "
        console().print(f"  {tried}take devices with more memory")
    console().print()


def _print_advice(advice: "Advice") -> None:
    """Print what a change makes of the memory and of the step, and the whole command that simulates it."""
    made = f"{format_bytes(advice.peak.total_bytes)} on {counted(advice.ranks, 'rank')}"
    made += ", fits" if advice.fits else ", not enough"
    if advice.step_s is not None:
        made += f", step {format_seconds(advice.step_s)}"
    if advice.tokens_per_s_per_rank is not None:
        made += f", {format_rate(advice.tokens_per_s_per_rank)} tokens/s/GPU"
    console().print(f"  {advice.settings}: {made}")
    if advice.run:
        say(advice.run)


def _print_cost(comparison: "Comparison", *, verbose: bool) -> None:
    """Print the energy of a step under each schedule, and what the machine costs, as far as that is public.

    Of which parts no price is public is said where it is `verbose`.
    """
    rows, steps = [], comparison.steps or 1
    for outcome in comparison.outcomes:
        found = outcome.energy
        if found is not None and outcome.makespan_s:
            joules = (found.total_j, found.device_j, found.node_j, found.network_j)
            mean_w = format_watts(found.total_j / outcome.makespan_s)
            rows.append(
                [outcome.schedule, *("-" if each is None else format_joules(each / steps) for each in joules), mean_w]
            )
    if rows:
        columns = ("schedule", "energy of a step", "devices", "rest of the nodes", "network", "mean power")
        print_table("energy", columns, rows)
    machine = comparison.bill
    if machine is None:
        return
    if rows and machine.unpowered:
        console().print(f"not in the energy, as their power is not known: {'; '.join(machine.unpowered)}")
    if machine.unpriced and verbose:
        console().print(f"list price: not known of {'; '.join(machine.unpriced)}")
    elif machine.network_dollars is not None and machine.device_dollars is not None:
        words = (
            f"{format_dollars(machine.device_dollars)} of nodes, {format_dollars(machine.network_dollars)} of network"
        )
        guess = ", partly estimates" if any(row.estimate for row in machine.parts) else ""
        console().print(f"list price: {words}{guess} (--json has the parts)")


def _print_sources(comparison: "Comparison") -> None:
    """Print where the kernel times of the fastest schedule, that of the box, come from."""
    best = min(comparison.outcomes, key=lambda outcome: outcome.makespan_s)
    sources = best.breakdown.kernel_time_sources
    if sources:
        shares = ", ".join(f"{name} {format_share(share)}" for name, share in sources.items())
        under = f" under {best.schedule}" if len(comparison.outcomes) > 1 else ""
        console().print(f"kernel times{under}: {shares}")
