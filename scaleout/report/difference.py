"""Results that `scaleout run` wrote or printed to profiles and timelines, and the difference of two to files.

A result is a folder of `scaleout run --output`, or the summary that `scaleout run --json` prints.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from scaleout.analysis.breakdown import Busy
from scaleout.analysis.difference import Difference, Profile
from scaleout.config.documents import LARGEST_INTEGER, is_file, opened, read_json
from scaleout.config.long_json import read_long_json
from scaleout.config.reading import nearest
from scaleout.config.units import SECONDS, format_seconds, ranks_in_words
from scaleout.config.writing import write_csv, write_json
from scaleout.errors import ConfigError, shown
from scaleout.report.documents import check_version

_MOST_TIMELINE_BYTES = 2**30
_MUCH = 1e-3
"""Share of a step from which a change of what others wait for some ranks is told."""
_TABLES = ("busy", "phases", "operations", "collectives")


@dataclass(frozen=True, eq=False)
class Side:
    """One of two results that are compared; `events` are those of its schedule's timeline, None if there is none."""

    profile: Profile
    schedule: str
    events: tuple[Mapping[str, Any], ...] | None
    schedules: tuple[str, ...] = ()  # all of the result, the fastest first
    models: tuple[str, ...] = ()  # what answered
    inputs: Mapping[str, Any] = field(default_factory=dict)  # what was asked
    waits_s: Mapping[tuple[int, ...], float] = field(
        default_factory=dict
    )  # for ranks, idle or exposed: mean over ranks


def is_result(path: Path) -> bool:
    """Whether a path is a folder of `scaleout run --output` or a file, rather than a folder of traces."""
    return is_file(path / "summary.json") or is_file(path)


def read_side(path: Path, schedule: str | None, *, timeline: bool) -> Side:
    """Read a folder or summary of `scaleout run`; of several schedules one by name, or the first.

    With `timeline` also the folder's timeline. `ConfigError` if it is no result, an older one without busy times, or
    of other schedules.
    """
    if is_file(path):
        return side_of(read_json(path), schedule, None, where=str(path))
    summary, file = read_json(path / "summary.json"), path / "timeline.json"
    trace = None
    if timeline and is_file(file):
        trace = _timeline_in(file)
        if not isinstance(trace, dict) or not _are_events(trace.get("traceEvents")):
            raise ConfigError(f"{file}: is no timeline of `scaleout run --output`; run it again")
    return side_of(summary, schedule, trace, where=str(path))


def _timeline_in(file: Path) -> Any:
    if file.stat().st_size > _MOST_TIMELINE_BYTES:
        raise ConfigError(f"{file}: has more than {_MOST_TIMELINE_BYTES:,} bytes; give less")
    with opened(file, "timeline") as stream:
        try:
            return read_long_json(stream.read, {"traceEvents": lambda event: event})
        except ValueError as error:
            raise ConfigError(f"{file}: not valid JSON ({error}); mend it") from None


def side_of(summary: Any, schedule: str | None, trace: Mapping[str, Any] | None, *, where: str) -> Side:
    """Return a schedule of a `Comparison.summary`, with its part of `perfetto.trace_events` where there is one.

    `where` is what messages call it. `ConfigError` as `read_side`.
    """
    rows = summary.get("results") if isinstance(summary, dict) else None
    if isinstance(summary, dict):
        check_version(summary, where=where)
    results = [row for row in rows if _is_result(row)] if isinstance(rows, list) else []
    if not results or len(results) != len(rows or ()) or not isinstance(summary.get("workload"), str):
        raise ConfigError(f"{where}: is no result of `scaleout run` (--output DIR or --json); give one")
    row = _chosen({each["schedule"]: each for each in results}, schedule, where=where)
    if "busy" not in row:
        raise ConfigError(f"{where}: says nothing of phases and operations, as results of older releases; run it again")
    steps = summary.get("num_steps") or 1  # of a recording, which all its numbers are of
    if not _is(steps, int):
        raise ConfigError(f"{where}: `num_steps` is no number of steps; run it again")
    name = f"{summary['workload']}, {row['schedule']}, on {summary.get('topology', '?')}"
    name = ", ".join([name, *_changes(summary)])
    name += f", a step of {steps}" if steps > 1 else ""
    busy = tuple(
        replace(one, count=one.count / steps, busy_s=one.busy_s / steps) for one in _busy(row["busy"], where=where)
    )
    profile = Profile(name=name, busy=busy, **{key: float(row[key]) / steps for key in _SECONDS})
    events = None if trace is None else _of_schedule(trace["traceEvents"], row["schedule"])
    models, inputs = summary.get("models"), summary.get("inputs")
    answered = tuple(map(str, models)) if isinstance(models, list) else ()
    waits_s = {ranks: seconds / steps for ranks, seconds in _waits(row, summary.get("ranks")).items()}
    named = tuple(each["schedule"] for each in sorted(results, key=lambda each: float(each["makespan_s"])))
    return Side(profile, row["schedule"], events, named, answered, inputs if isinstance(inputs, dict) else {}, waits_s)


def _waits(row: Mapping[str, Any], num_ranks: Any) -> dict[tuple[int, ...], float]:
    """Return how long ranks wait for others, idle and in collectives that these hide: by whom for, the mean over ranks.

    Nothing where a result does not say it, as those of older releases.
    """
    found: dict[tuple[int, ...], float] = {}
    waits, bounds = (each if isinstance(each, list) else [] for each in (row.get("waits"), row.get("bounds")))
    for each in (*waits, *bounds):
        ranks = each.get("waits_for") if isinstance(each, dict) else None
        if not _is_ranks(ranks) or not ranks or not _is(num_ranks, int) or not num_ranks:
            continue
        seconds, share = each.get("waits_for_s"), 1.0
        if "idle_s" in each:
            members = each.get("members")
            seconds, share = each["idle_s"], len(members) / num_ranks if _is_ranks(members) else 0.0
        if _is(seconds, float):
            found[tuple(ranks)] = found.get(tuple(ranks), 0.0) + share * seconds
    return found


def _is_ranks(value: Any) -> bool:
    return isinstance(value, list) and all(_is(each, int) for each in value)


def named_apart(sides: Sequence[Side]) -> list[Side]:
    """Return two results, each with what was asked of it and not of the other in its name."""
    found = []
    for side, other in zip(sides, reversed(sides), strict=True):
        changed = {key: value for key, value in side.inputs.items() if other.inputs.get(key) != value}
        keys = [key for key, value in changed.items() if not _is_in(side.profile.name, key, value)]
        words = [f"{key.removeprefix('set.')}={_plain(side.inputs[key])}" for key in keys]
        name = ", ".join([side.profile.name, *words])
        found.append(replace(side, profile=replace(side.profile, name=name)))
    return found


def _is_in(name: str, key: str, value: Any) -> bool:
    """Whether a result's name has an input already: what is run, or a change as `_changes` words it."""
    listed = isinstance(value, list) and f"{key} {', '.join(map(str, value))}" in name
    return key in ("workload", "topology", "schedule") or listed or f"{key.replace('.', ' ', 1)}={value}" in name


def _plain(value: Any) -> str:
    """Return a value of JSON on a line, cut if it is long."""
    return value if isinstance(value, str) and len(value) <= _LONGEST else shown(value)


_LONGEST = 80


def _changes(summary: Mapping[str, Any]) -> list[str]:
    """Return what was changed of the network and edited of a recording, as far as the result says it."""
    found: Any = summary
    for key in ("model", "inputs", "changes"):
        found = found.get(key) if isinstance(found, dict) else None
    return [str(each) for each in found] if isinstance(found, list) else []


_SECONDS = tuple(each.name for each in fields(Profile) if each.name.endswith("_s"))


def _is_result(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("schedule"), str)
        and all(_is(row.get(key), float) for key in _SECONDS)
    )


def _is(value: Any, kind: type) -> bool:
    """Whether a value of JSON is of a field's type; times, counts and sizes are not negative, and within bounds."""
    if kind is str:
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
        return False
    return 0 <= value <= (LARGEST_INTEGER if kind is int else SECONDS.largest)


def _busy(rows: Any, *, where: str) -> tuple[Busy, ...]:
    if not isinstance(rows, list):
        raise ConfigError(f"{where}: `busy` is no list; run it again")
    kinds = get_type_hints(Busy)
    for number, row in enumerate(rows):
        wrong = [key for key, kind in kinds.items() if not (isinstance(row, dict) and _is(row.get(key), kind))]
        if wrong:
            raise ConfigError(f"{where}: `busy`, row {number}: {wrong[0]} is missing or wrong; run it again")
    return tuple(Busy(**{key: row[key] for key in kinds}) for row in rows)


def _chosen(results: Mapping[str, dict[str, Any]], schedule: str | None, *, where: str) -> dict[str, Any]:
    if schedule is None:
        return next(iter(results.values()))
    if schedule not in results:
        raise ConfigError(f"{where}: has no schedule {shown(schedule)}; {nearest(schedule, results)}")
    return results[schedule]


def _are_events(events: Any) -> bool:
    return isinstance(events, list) and all(
        isinstance(each, dict) and isinstance(each.get("pid"), int) for each in events
    )


def _label(event: Mapping[str, Any]) -> str | None:
    """Return the name of the process that an event names; None if it names none."""
    arguments = event.get("args")
    if event.get("name") != "process_name" or not isinstance(arguments, dict):
        return None
    return str(arguments.get("name"))


def _of_schedule(events: Sequence[Mapping[str, Any]], schedule: str) -> tuple[Mapping[str, Any], ...]:
    mine = {event["pid"] for event in events if (_label(event) or "").startswith(f"{schedule}: ")}
    return tuple(event for event in events if event["pid"] in mine)


def side_by_side(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return two timelines as one: the processes of each under names that begin with ``A`` or ``B``."""
    joined: list[dict[str, Any]] = []
    first = 0
    for letter, events in (("A", a), ("B", b)):
        number = {pid: first + index for index, pid in enumerate(sorted({event["pid"] for event in events}))}
        for event in events:
            label = _label(event)
            renamed = {} if label is None else {"args": {"name": f"{letter} {label}"}}
            joined.append({**event, "pid": number[event["pid"]], **renamed})
        first += len(number)
    return {"displayTimeUnit": "ms", "traceEvents": joined}


def summary_of(found: Difference, sides: Sequence[Side]) -> dict[str, Any]:
    """Return a difference as plain values, as `scaleout diff --json` prints them."""
    awaited = awaited_in(sides)
    return {**asdict(found), **({"awaited": awaited} if awaited else {})}


def awaited_in(sides: Sequence[Side]) -> dict[str, Any]:
    """Return the ranks for which others wait longer or shorter in the second of two results, and how long in each.

    Where that changes most; nothing where it is little of a step.
    """
    a, b = (side.waits_s for side in sides)
    longer_s = {ranks: b.get(ranks, 0.0) - a.get(ranks, 0.0) for ranks in (*a, *b)}
    ranks = max(longer_s, key=lambda each: abs(longer_s[each]), default=())
    if abs(longer_s.get(ranks, 0.0)) < _MUCH * sides[1].profile.makespan_s:
        return {}
    in_each = {"a_s": a.get(ranks, 0.0), "b_s": b.get(ranks, 0.0)}
    return {"waits_for": list(ranks), **in_each, "difference_s": longer_s[ranks]}


def awaited_words(awaited: Mapping[str, Any], models: Sequence[str]) -> str:
    """Say for which ranks others wait longer or shorter, in results that models answered."""
    before, after = (format_seconds(awaited[name]) for name in ("a_s", "b_s"))
    beside = "idle or in collectives"
    if any("contention" in model.split(", ") for model in models):
        beside += "; contention makes kernels beside these longer, too"
    return f"{after} against {before} for {ranks_in_words(awaited['waits_for'])}, {beside}"


FILES = {
    "summary.json": "the numbers of the tables",
    "differences.csv": "every row of every table",
    "timeline.json": "both side by side; open in https://ui.perfetto.dev or chrome://tracing",
}
"""Files that `write` makes, and what they are; the timeline only where both results have one."""


def write(found: Difference, sides: Sequence[Side], folder: Path, summary: Mapping[str, Any]) -> dict[str, str]:
    """Write all files of a difference into a folder, with a summary; return their names, and what they are."""
    write_json(folder / "summary.json", summary)
    tables = {"makespan": (found.makespan,), "step": found.step, **{name: getattr(found, name) for name in _TABLES}}
    write_csv(
        folder / "differences.csv",
        [{"table": name, **asdict(row)} for name, rows in tables.items() for row in rows],
    )
    files = dict(FILES)
    a, b = (side.events for side in sides)
    if a is None or b is None:
        del files["timeline.json"]
    else:
        write_json(folder / "timeline.json", side_by_side(a, b), indent=None)
    return files
