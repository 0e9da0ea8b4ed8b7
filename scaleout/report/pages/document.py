"""A document of `--json` as tables for a reader: one for each list in it, numbers at three digits with their unit.

What is listed within the rows of a list, such as the busy times of each schedule, is a table of its own, each row
beginning with what names the row that it is from.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, TypeGuard

from scaleout.analysis.bounds import Bound
from scaleout.analysis.breakdown import told_estimated
from scaleout.analysis.cost import Rent
from scaleout.analysis.waits import Wait, told_waits
from scaleout.cluster.topology.what_if import cost_of_changes
from scaleout.config import units
from scaleout.report import box
from scaleout.report.difference import awaited_words
from scaleout.report.vocabulary import flattened
from scaleout.workloads.memory.advice import settings_of

MOST_ROWS = 500
_FEW_ROWS, _MANY_COLUMNS = 12, 14
_MOST_UPRIGHT = 6
"""Rows that fit into a page as columns beside the names of quantities."""
_SOUGHT = ("makespan_s", "mfu", "peak_memory_bytes", "tokens_per_s_per_rank")
"""Columns that stand first in a row of many: those by which plans and cases are sorted."""
_LONG_TEXT = 80
"""Letters of a text that stands in a table of its own where its row has much else."""
_HEAD = ("schema", "version", "command", "inputs", "models", "model")
_FORMS = (
    ("_bytes_per_s", units.format_bytes_per_s), ("_flops", units.format_flops),
    ("_per_s", units.format_rate), ("_per_rank", units.format_rate), ("_s", units.format_seconds),
    ("bytes", units.format_bytes), ("_dollars", units.format_dollars),
    ("dollars", units.format_dollars), ("dollars_per_million_tokens", units.format_dollars),
    ("rent_dollars_per_hour", units.format_dollars), ("joules", units.format_joules),
    ("tokens", units.format_tokens), ("_share", units.format_share), ("utilisation", units.format_share),
    ("_shares", units.format_share), ("_error", units.format_share), ("watts", units.format_watts),
    ("speedup", units.format_times), ("gain", units.format_times),
)  # fmt: skip
"""End of a name to how its numbers are written; the first that fits."""
_SHARES = (
    "mfu", "hfu", "bubble", "saving", "goodput", "kernel_time_sources", "share", "error", "worst", "bias", "coverage",
    "within", "below", "above",
)  # fmt: skip
_MOST_LOGARITHM = 700.0
_LOGARITHMS = {
    "faster": lambda log: f"-{units.format_share(-math.expm1(-min(log, _MOST_LOGARITHM)))}",
    "slower": lambda log: f"+{units.format_share(math.expm1(min(log, _MOST_LOGARITHM)))}",
}
"""Names of natural logarithms of ratios, to how they are written: by how much the time changes."""
_NUMBERS = ("number", "case")
"""Of rows: names of what tells them apart, where there is one; otherwise their first text does."""
_TOLD_APART = (*_HEAD, "memory", "mfu_peak", "unchanged", "awaited")
"""Of a document: what the facts say in other words, or not."""
_OF_RANKS = ("members", "waits_for")
"""Lists of ranks."""
_LEFT_OUT = ("inputs",)
"""Of rows: what stands in their command as well."""


@dataclass(frozen=True)
class Cell:
    """A value as text, and what it is sorted by: a number, or else the text."""

    text: str
    key: float | str


@dataclass(frozen=True)
class Table:
    """Rows of a list; `total` counts those that are left out as well."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    total: int
    numbers: frozenset[int]  # columns of numbers

    @property
    def upright(self) -> bool:
        """Whether it reads better with a column for each of its few rows, which have many quantities."""
        return self.total <= _MOST_UPRIGHT and len(self.columns) > _MANY_COLUMNS


def text_of(name: str, value: Any) -> str:
    """Write a value as people read it, by the name of its quantity.

    >>> text_of("makespan_s", 0.0541), text_of("mfu", 0.412), text_of("ranks", 1024), text_of("fits", True)
    ('54.1 ms', '41.2%', '1,024', 'yes')
    >>> text_of("slower", 0.4466), text_of("faster", 0.0)  # natural logarithms: ln 1.563 is 56.3% more
    ('+56.3%', '-0.0%')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, list | tuple):
        if name in _OF_RANKS and all(isinstance(each, int) for each in value):
            return units.format_ranks(value)
        return ", ".join(text_of(name, each) for each in value)
    if not _is_number(value):
        return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    form = _form(name.partition(".")[0])
    if form is not None:
        return f"-{form(-value)}" if value < 0 else form(value)
    return f"{value:,}" if isinstance(value, int) else units.format_number(value)


def _form(name: str) -> Callable[[float], str] | None:
    if name in _SHARES:
        return units.format_share
    if name in _LOGARITHMS:
        return _LOGARITHMS[name]
    return next((form for end, form in _FORMS if name.endswith(end)), None)


def facts_of(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a document says once: names in words, and values; not those of a mapping, such as kinds of memory."""
    kept = {
        name: value
        for name, value in document.items()
        if name not in _TOLD_APART and not _is_list(value) and not _is_row(value)
    }
    facts = [(_words(name), text_of(name, value)) for name, value in flattened(kept) if "." not in name]
    facts = [(name, text) for name, text in facts if text]
    answer = box_of(document)
    if answer:
        facts = [*answer, *facts]
    else:
        facts[1:1] = _unchanged(document)
    compared = [(name.upper(), str(document[name])) for name in ("a", "b") if name in document]
    facts = [*compared, *_differences(document), *(fact for fact in facts if fact[0] not in ("A", "B"))]
    changed = [("changed", text_of("changes", changes)) for changes in [_changes(document)] if changes]
    return [*facts, *changed, *(("model", str(each)) for each in document.get("models", ()))]


def box_of(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the terminal's box: what the fastest schedule or plan comes to; none of other documents."""
    rows = [row for name in ("fastest", "results") for row in _timed(document.get(name))]
    best = min(rows, key=lambda row: float(row["makespan_s"]), default=None)
    return [] if best is None else list(_answer_of(document, best, rows))


def _changes(document: Mapping[str, Any]) -> list[Any]:
    """Return what was changed of the machine, such as a rank that is slow."""
    model = document.get("model")
    inputs = model.get("inputs") if isinstance(model, Mapping) else None
    changes = inputs.get("changes") if isinstance(inputs, Mapping) else None
    return changes if isinstance(changes, list) else []


def _unchanged(document: Mapping[str, Any], makespan_s: float | None = None) -> Iterator[tuple[str, str]]:
    """Yield how long it takes without the changes, and what these cost in a step, as the terminal says it."""
    before = document.get("unchanged")
    times = [name for name in ("makespan_s", "step_s", "time_s") if isinstance(before, Mapping) and name in before]
    if not (isinstance(before, Mapping) and times and _is_number(before[times[0]])):
        return
    before_s, each = before[times[0]], _steps(document)
    how = f" under {before['schedule']}" if "schedule" in before else ""
    if makespan_s is None:
        yield "unchanged", f"{units.format_seconds(before_s)}{how}"
        return
    cost = cost_of_changes([str(change) for change in _changes(document)], before_s, makespan_s, each)
    yield "unchanged", f"{units.format_seconds(before_s / each)}{how}; {cost}"


def _differences(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what two results come to beside each other, where a document compares them."""
    parts = document.get("makespan_parts")
    for row in (document.get("makespan"), *(parts if isinstance(parts, list) else ())):
        if isinstance(row, Mapping) and {"name", "a_s", "b_s", "difference_s"} <= row.keys():
            b, a = (text_of(name, row[name]) for name in ("b_s", "a_s"))
            yield str(row["name"]), f"{b} in B against {a} in A, {_signed(row['difference_s'])}"
    awaited = document.get("awaited")
    if isinstance(awaited, Mapping):
        with suppress(KeyError, TypeError, ValueError):  # a document that something else wrote
            yield "waits", awaited_words(awaited, [str(each) for each in document["models"]])


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0 else ''}{text_of('difference_s', seconds)}"


def _timed(rows: Any) -> list[Mapping[str, Any]]:
    """Return rows of schedules or plans that say how long a step takes."""
    listed = rows if isinstance(rows, list) else []
    return [row for row in listed if isinstance(row, Mapping) and _is_number(row.get("makespan_s"))]


def _answer_of(
    document: Mapping[str, Any], row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """Yield what the fastest schedule or plan comes to, in the order and the words of the terminal's box."""
    held = row.get("memory", document.get("memory"))
    words, fits = room_of(held, document.get("ranks")), not (isinstance(held, Mapping) and held.get("fits") is False)
    fitted = "" if fits else box.FITTED
    if isinstance(plan := row.get("plan"), Mapping):
        chosen = (f"{_words(key)} {text_of(key, each)}" for key, each in plan.items() if each not in _USUAL)
        yield "plan", ", ".join(chosen)
    if words and not fits:
        yield "memory", words
    steps = _steps(document)
    yield "step", _step(_of_step(row, steps), rows) + box.recorded(steps) + fitted
    yield from _today(_of_step(row, steps), [_of_step(each, steps) for each in rows])
    yield from _unchanged(document, row["makespan_s"])
    for name, text in _speed(document, row):
        yield name, text + fitted
    yield from _kernels(document, row)
    exposed_s, by_axis = row.get("exposed_communication_s"), row.get("exposed_by_axis_s")
    if isinstance(exposed_s, float):
        found = by_axis.items() if isinstance(by_axis, Mapping) else ()
        axes = {str(axis): each / steps for axis, each in found if _is_number(each)}
        yield "exposed", box.exposed(exposed_s / steps, row["makespan_s"] / steps, axes)
    yield "bound by", text_of("bound_by", row.get("bound_by"))
    yield from _waits(document, row)
    if fits and (words or _is_traced(document)):
        yield "memory", words or box.ROOM_UNKNOWN
    yield from _rent(document, row)


def _steps(document: Mapping[str, Any]) -> int:
    """Return how many steps the times of a document are of: several where they were recorded."""
    steps = document.get("num_steps")
    return steps if isinstance(steps, int) and steps > 0 else 1


def _of_step(row: Mapping[str, Any], steps: int) -> Mapping[str, Any]:
    """Return a row with the times of one of so many steps."""
    times = [name for name in ("makespan_s", "step_low_s", "step_high_s") if _is_number(row.get(name))]
    return {**row, **{name: row[name] / steps for name in times}}


def _step(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Say how long a step is, between which ends, and against what."""
    low_s, high_s, speedup = row.get("step_low_s"), row.get("step_high_s"), row.get("speedup", 1)
    ends_s = (float(low_s), float(high_s)) if _is_number(low_s) and _is_number(high_s) else None
    schedule, schedules = str(row.get("schedule", "")), [str(each.get("schedule", "the first")) for each in rows]
    gains = "" if "plan" in row else box.among(schedule, schedules, speedup if _is_number(speedup) else 1)
    return f"{box.took(row['makespan_s'], ends_s)} under {box.named(schedule, row.get('runs_as'))}{gains}"


def _today(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield how long a step of schedules is under that of today's frameworks, see `box.today`."""
    if "plan" not in row:
        times_s = {str(each.get("schedule")): (each["makespan_s"], each.get("runs_as")) for each in rows}
        yield from box.today(str(row.get("schedule")), times_s).items()


def _speed(document: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield how fast a step is, of tokens or samples, and how much of the device's peak that is."""
    each, mfu = row.get("tokens_per_s_per_rank"), row.get("mfu")
    peak, ranks = document.get("mfu_peak"), document.get("ranks")
    known = isinstance(peak, Mapping) and _is_number(peak.get("flops_per_s")) and "dtype" in peak
    if _is_number(each) and _is_number(mfu) and known:
        yield "speed", box.speed(each, mfu, peak)
    elif _is_number(document.get("samples")) and row["makespan_s"] and _is_number(ranks) and ranks:
        yield "speed", box.speed_of_samples(document["samples"] / row["makespan_s"], ranks)
    else:
        for name in ("tokens_per_s_per_rank", "mfu"):
            if row.get(name) is not None:
                yield _words(name), text_of(name, row[name])


def _kernels(document: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield how much of the kernels' time is an estimate, where that is much."""
    sources = row.get("kernel_time_sources")
    share = sources.get("roofline") if isinstance(sources, Mapping) else None
    if _is_number(share) and (words := told_estimated(share, {}, str(document.get("device")))):
        yield "kernels", words


def _is_traced(document: Mapping[str, Any]) -> bool:
    inputs = document.get("inputs")
    return isinstance(inputs, Mapping) and "trace" in inputs


def _waits(document: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield for which few ranks others wait, as the terminal says it."""
    ranks, rows = document.get("ranks"), row.get("waits")
    if not (isinstance(ranks, int) and isinstance(rows, list)):
        return
    try:
        waits = [Wait(tuple(each["members"]), tuple(each["waits_for"]), each["until"], each["idle_s"]) for each in rows]
        before = document.get("unchanged")
        idle_s = (row["idle_s"], before["idle_s"]) if isinstance(before, Mapping) and "idle_s" in before else None
        words = told_waits(waits, ranks, row["makespan_s"], _steps(document), idle_s)
    except (KeyError, TypeError, ValueError):  # a document that something else wrote
        return
    if words:
        yield "waits", words


def _rent(document: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a step costs, and tokens, as the terminal says it."""
    cost, ranks, device = document.get("cost"), document.get("ranks"), document.get("device")
    if not _is_number(row.get("step_dollars")):
        if isinstance(cost, Mapping) and isinstance(device, str):
            yield "rent", box.no_rent(device)
        return
    million = row.get("dollars_per_million_tokens")
    rent = Rent(row["step_dollars"], million if _is_number(million) else None)
    hour = cost.get("rent_dollars_per_hour") if isinstance(cost, Mapping) else None
    if _is_number(hour) and isinstance(ranks, int) and ranks:
        yield "rent", box.rent(rent, hour / 3600, ranks, document.get("mode"))
    else:
        yield "rent", rent.words(document.get("mode"))


_USUAL = (None, False, 1, 0, "none")
"""Values of keys of a plan that need not be said."""


def room_of(held: Any, ranks: Any) -> str:
    """Say whether a job of so many ranks fits into the memory of its devices; nothing where that is not known."""
    if not (isinstance(held, Mapping) and {"fits", "peak_memory_bytes", "memory_capacity_bytes"} <= held.keys()):
        return ""
    sizes = held["peak_memory_bytes"], held["memory_capacity_bytes"]
    if not all(map(_is_number, sizes)):
        return ""
    advice = held.get("advice")
    helps = [
        (settings_of(each["set"]), each["ranks"], each.get("makespan_s"))
        for each in (advice if isinstance(advice, list) else ())
        if isinstance(each, Mapping) and each.get("fits") and {"set", "ranks"} <= each.keys()
    ]
    return box.room(*sizes, ranks, helps)


def tables_of(document: Mapping[str, Any]) -> list[Table]:
    """Return the lists of a document, those within their rows, and the memory of a job, each as a table."""
    held = document.get("memory")
    if not isinstance(held, Mapping):
        return list(_tables(document, ()))
    memory = {"memory": [{key: each for key, each in held.items() if key != "advice"}], "advice": held.get("advice")}
    return [*_tables(document, ()), *_tables(memory, ())]


def table_of(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return rows as a table; columns that are empty throughout are left out."""
    shown = rows[:MOST_ROWS]
    columns = [name for name in dict.fromkeys(name for row in shown for name in row) if _any(shown, name)]
    if len(columns) > _MANY_COLUMNS:
        name, *rest = columns
        columns = [name, *(each for each in _SOUGHT if each in rest), *(each for each in rest if each not in _SOUGHT)]
    cells = list(zip(*(_cells(name, [row.get(name) for row in shown]) for name in columns), strict=True))
    numbers = {
        place for place, name in enumerate(columns)
        if all(_is_number(row.get(name)) for row in shown if row.get(name) is not None)
    }  # fmt: skip
    return Table(title, [_words(name) for name in columns], cells, len(rows), frozenset(numbers))


def _any(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    zero = name in _OF_COLLECTIVES or name.startswith("memory_by_kind_bytes.")
    nothing: tuple[Any, ...] = (None, "", [], 0) if zero else (None, "", [])
    return any(row.get(name) not in nothing for row in rows)


_OF_COLLECTIVES = ("bytes", "group_size")
"""Columns that are 0 where a row is of no collective."""


def _cells(name: str, values: Sequence[Any]) -> list[Cell]:
    """Write the values of a column, sizes in one unit."""
    is_size = _form(name.partition(".")[0]) is units.format_bytes
    sizes = [value for value in values if is_size and _is_number(value) and value >= 0]
    one_unit = dict(zip(sizes, units.format_sizes(sizes), strict=True))
    texts = [one_unit[each] if _is_number(each) and each in one_unit else text_of(name, each) for each in values]
    keys = (value if _is_number(value) and not math.isnan(value) else None for value in values)
    return [Cell(text, text if key is None else key) for text, key in zip(texts, keys, strict=True)]


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, Mapping) for each in value)


def _is_row(value: Any) -> bool:
    return isinstance(value, Mapping) and "name" in value


def _named(value: Any) -> Any:
    """Return rows under names, such as configurations, as a list of them with their names; all else as it is."""
    if (
        isinstance(value, Mapping)
        and value
        and all(isinstance(row, Mapping) and "time_s" in row for row in value.values())
    ):
        return [{"name": name, **row} for name, row in value.items()]
    return value


def _tables(value: Mapping[str, Any], within: tuple[str, ...]) -> Iterator[Table]:
    for name, found in value.items():
        given = [found] if _is_row(found) else _named(found)
        if name in _HEAD or not _is_list(given):
            continue
        rows = [{key: row[key] for key in row if key not in _LEFT_OUT} for row in given if isinstance(row, Mapping)]
        if name == "bounds":
            rows = [_waited(row) for row in rows]
        if any(isinstance(row.get("plan"), Mapping) for row in rows):
            rows = [{"number": number, **row} for number, row in enumerate(rows, start=1)]
        apart = _apart(rows)
        flat = [dict(flattened({key: _in_cell(key, row[key]) for key in row if key not in apart})) for row in rows]
        yield table_of(_TITLES.get(name) or " of ".join([_words(name), *within]), flat)
        nested: dict[str, list[Mapping[str, Any]]] = {}
        for row in rows:
            called = next(((key, each) for key, each in row.items() if key in _NUMBERS or isinstance(each, str)), None)
            own = dict([called]) if called else {}
            for key, each in row.items():
                if key in apart:
                    listed = each if isinstance(each, list) else [each]
                    nested.setdefault(key, []).extend(
                        {**own, **(_weighed(one) if isinstance(one, Mapping) else {key: one})} for one in listed
                    )
        yield from _tables(nested, (_words(name),))


def _waited(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of what bounds a collective in the words of the terminal: a link, or the ranks that it waits for."""
    try:
        return {**row, "bound_by": Bound(**{each.name: row[each.name] for each in fields(Bound)}).words}
    except (KeyError, TypeError, ValueError):  # a document that something else wrote
        return row


def _weighed(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of a decision with what else was weighed in one cell, as every decision weighs other things."""
    others = row.get("alternatives_s")
    if not isinstance(others, Mapping):
        return row
    return {**row, "alternatives_s": ", ".join(f"{name} {text_of('time_s', each)}" for name, each in others.items())}


def _apart(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return which values of rows stand in tables of their own: lists of rows or texts, long lists and long texts."""

    def is_apart(key: str, value: Any, row: Mapping[str, Any]) -> bool:
        if isinstance(value, list):
            plain = all(_is_number(each) for each in value)
            return not plain or (len(value) > _FEW_ROWS and key not in _OF_RANKS)
        return isinstance(value, str) and len(value) > _LONG_TEXT and len(row) > _MANY_COLUMNS

    return {key for row in rows for key, value in row.items() if is_apart(key, value, row)}


def _in_cell(key: str, value: Any) -> Any:
    return text_of(key, value) if isinstance(value, list) else value


_TITLES = {
    "bounds": "what bounds each collective", "critical_path": "the critical path",
    "causes": "what makes the error bars", "waits": "who waits for whom", "busy": "time by operation",
    "busiest_links": "the busiest links", "traffic": "what the links of each dimension carry",
    "rank_ends": "when ranks end each phase", "decisions": "what the schedule decided",
    "fastest": "the fastest plans", "front": "plans of which no other takes less memory in less time",
    "run": "how to run each", "makespan_parts": "what the step consists of", "by_kind": "time by kind",
    "by_phase": "time by phase", "by_operation": "time by operation", "by_collective": "time by collective",
    "advice": "what would make it fit", "same_plan": "the fastest plan under every schedule",
    "best_plan_under_baseline": "the plan that is the fastest under baseline, under every schedule",
    "by_size": "what auto takes at each size",
}  # fmt: skip
"""Of tables, in the words of the terminal; other tables are called as their list is."""
_QUANTITIES = {"dollars": "price", "watts": "power", "joules": "energy"}
"""Units at the end of names to what has them."""


def _words(name: str) -> str:
    """Return a name in words: without the unit, which stands at each number."""
    if name == "bubble_s":  # beside its share
        return "bubble time"
    plain, _, rest = name.partition(".")
    for end in ("_bytes_per_s", "_s", "_bytes"):
        if plain.endswith(end) and (end == "_bytes_per_s" or not plain.endswith("_per_s")):
            plain = plain.removesuffix(end)
            break
    for end, what in _QUANTITIES.items():
        if plain == end or plain.endswith(f"_{end}"):
            plain = f"{plain.removesuffix(end)}{what}"
    if plain == "plan" and rest:
        plain, rest = rest, ""
    if plain == "set" and rest:
        plain, rest = rest, ""
    if plain[:2] in ("a_", "b_"):
        plain = f"{plain[2:]} in {plain[0].upper()}"
    words = plain.replace("_per_s", "/s").replace("_", " ")
    known = {
        "mfu": "MFU", "a": "A", "b": "B", "members": "ranks", "waits for": "wait for",
        "most utilisation": "highest utilisation", "step price": "rent of a step",
        "dollars per million tokens": "rent of a million tokens", "training price": "rent of the training",
        "rent dollars per hour": "rent of an hour", "hfu": "HFU", "busy": "busy times", "busy shares": "busy share",
        "kernel time sources": "kernel time", "samples": "samples of a step", "unpriced": "without a price",
        "unpowered": "without a rating",
    }  # fmt: skip
    return known.get(words, words) + (f" ({rest.replace('_', ' ')})" if rest else "")
