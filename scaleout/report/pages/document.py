"""A document of `--json` as tables for a reader: one for each list in it, numbers at three digits with their unit.

What is listed within the rows of a list, such as the busy times of each schedule, is a table of its own, each row
beginning with what names the row that it is from.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from scaleout.analysis.bounds import Bound
from scaleout.analysis.cost import Rent
from scaleout.analysis.waits import Wait, told_waits
from scaleout.cluster.topology.what_if import cost_of_changes
from scaleout.config import units
from scaleout.report.difference import awaited_words
from scaleout.report.vocabulary import flattened

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
    ("_bytes_per_s", units.format_bytes_per_s), ("_per_s", units.format_rate), ("_per_rank", units.format_rate),
    ("_s", units.format_seconds), ("bytes", units.format_bytes), ("_dollars", units.format_dollars),
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
        if name not in (*_HEAD, "memory", "mfu_peak", "unchanged", "awaited")
        and not _is_list(value)
        and not _is_row(value)
    }
    facts = [(_words(name), text_of(name, value)) for name, value in flattened(kept) if "." not in name]
    facts = [(name, text) for name, text in facts if text]
    rows = [row for name in ("fastest", "results") for row in _timed(document.get(name))]
    if rows:
        best = min(rows, key=lambda row: float(row["makespan_s"]))
        answer = _answer_of(best, rows[0].get("schedule", "the first"))
        facts = [*answer, *_waits(document, best), *_rent(document, best), *_peak(document), *_room(document), *facts]
        facts[1:1] = _unchanged(document, best["makespan_s"])
    else:
        facts[1:1] = _unchanged(document)
    compared = [(name.upper(), str(document[name])) for name in ("a", "b") if name in document]
    facts = [*compared, *_differences(document), *(fact for fact in facts if fact[0] not in ("A", "B"))]
    return [*facts, *_changed(document), *(("model", str(each)) for each in document.get("models", ()))]


def _changed(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what was changed of the machine, such as a rank that is slow."""
    if changes := _changes(document):
        yield "changed", text_of("changes", changes)


def _changes(document: Mapping[str, Any]) -> list[Any]:
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
    before_s, steps = before[times[0]], document.get("num_steps")
    how = f" under {before['schedule']}" if "schedule" in before else ""
    if makespan_s is None:
        yield "unchanged", f"{units.format_seconds(before_s)}{how}"
        return
    each = steps if isinstance(steps, int) and steps else 1
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


def _answer_of(row: Mapping[str, Any], first: str) -> Iterator[tuple[str, str]]:
    """Yield what the fastest schedule or plan comes to, in the order of the terminal's box.

    `first` is the schedule that speed-ups are over.
    """
    if isinstance(plan := row.get("plan"), Mapping):
        chosen = (f"{_words(key)} {text_of(key, each)}" for key, each in plan.items() if each not in _USUAL)
        yield "plan", ", ".join(chosen)
    step_s = row["makespan_s"]
    speedup = row.get("speedup", 1)
    faster = f", {text_of('speedup', speedup)} as fast as under {first}" if speedup != 1 else ""
    runs_as = f", which runs as {row['runs_as']}" if row.get("runs_as") else ""
    yield "step", f"{text_of('makespan_s', step_s)} under {row.get('schedule', '')}{runs_as}{faster}"
    for name in ("tokens_per_s_per_rank", "samples_per_s", "mfu"):
        if row.get(name) is not None:
            yield _words(name), text_of(name, row[name])
    exposed = row.get("exposed_communication_s")
    if isinstance(exposed, float):
        share = units.format_share(exposed / step_s) if step_s else "0%"
        yield "exposed", f"{units.format_seconds(exposed)} of communication, {share} of the step"
    yield "bound by", text_of("bound_by", row.get("bound_by"))


def _waits(document: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield for which few ranks others wait, as the terminal says it."""
    ranks, rows = document.get("ranks"), row.get("waits")
    if not (isinstance(ranks, int) and isinstance(rows, list)):
        return
    try:
        waits = [Wait(tuple(each["members"]), tuple(each["waits_for"]), each["until"], each["idle_s"]) for each in rows]
        before = document.get("unchanged")
        idle_s = (row["idle_s"], before["idle_s"]) if isinstance(before, Mapping) and "idle_s" in before else None
        words = told_waits(waits, ranks, row["makespan_s"], document.get("num_steps") or 1, idle_s)
    except (KeyError, TypeError, ValueError):  # a document that something else wrote
        return
    if words:
        yield "waits", words


def _rent(document: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a step costs, and tokens, as the terminal says it."""
    if not _is_number(row.get("step_dollars")):
        return
    million = row.get("dollars_per_million_tokens")
    rent = Rent(row["step_dollars"], million if _is_number(million) else None)
    yield "rent", rent.words(document.get("mode"))


_USUAL = (None, False, 1, 0, "none")
"""Values of keys of a plan that need not be said."""


def _peak(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield which rate MFU is a share of, where there is one."""
    peak = document.get("mfu_peak")
    if isinstance(peak, Mapping) and _is_number(peak.get("flops_per_s")):
        yield "peak of MFU", f"{units.format_flops_per_s(peak['flops_per_s'])} in {peak.get('dtype', '')}"


def _room(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield whether a job fits into the memory of its devices, where that is known."""
    if words := room_of(document.get("memory")):
        yield "memory", words


def room_of(held: Any) -> str:
    """Say whether a job fits into the memory of its devices; nothing where that is not known."""
    if not (isinstance(held, Mapping) and {"fits", "peak_memory_bytes", "memory_capacity_bytes"} <= held.keys()):
        return ""
    sizes = (units.format_bytes(held[name]) for name in ("peak_memory_bytes", "memory_capacity_bytes"))
    return f"{'fits' if held['fits'] else 'does not fit'}: {' of '.join(sizes)}"


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
    cells = [[_cell(name, row.get(name)) for name in columns] for row in shown]
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


def _cell(name: str, value: Any) -> Cell:
    text = text_of(name, value)
    return Cell(text, float(value) if _is_number(value) and not math.isnan(value) else text)


def _is_number(value: Any) -> bool:
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
        if plain.endswith(end) and not plain.endswith("_per_s"):
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
        "mfu": "MFU",
        "a": "A",
        "b": "B",
        "members": "ranks",
        "waits for": "wait for",
        "most utilisation": "highest utilisation",
        "step price": "rent of a step",
        "dollars per million tokens": "rent of a million tokens",
        "training price": "rent of the training",
        "rent dollars per hour": "rent of an hour",
        "hfu": "HFU",
        "busy": "busy times",
        "busy shares": "busy share",
        "kernel time sources": "kernel time",
        "samples": "samples of a step",
        "unpriced": "without a price",
        "unpowered": "without a rating",
    }
    return known.get(words, words) + (f" ({rest.replace('_', ' ')})" if rest else "")
