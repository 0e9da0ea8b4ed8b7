"""A document of `--json` as tables for a reader: one for each list in it, numbers at three digits with their unit.

What is listed within the rows of a list, such as the busy times of each schedule, is a table of its own, each row
beginning with what names the row that it is from.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeGuard

from scaleout.analysis.bounds import Bound
from scaleout.config import units
from scaleout.report.vocabulary import flattened, vocabulary

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
_TOLD_APART = (*_HEAD, "answer", "memory", "mfu_peak", "unchanged", "awaited", "best", "default")
"""Of a document: what the answer says in words, or a table, or nothing."""
_MOST_FACTS, _LONGEST = 100, 2000
"""Facts that a page shows, and letters of one, of whatever document."""
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
    """Rows of a list; `total` counts those that are left out as well, `meanings` say what columns hold, where known."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    total: int
    numbers: frozenset[int]  # columns of numbers
    meanings: Sequence[str] = ()

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
    """Return what a document says once: its answer, in the words of the terminal's box, then all else by its name.

    Not what stands in a mapping, such as kinds of memory. A document without an answer has the rest.
    """
    kept = {
        name: value
        for name, value in document.items()
        if name not in _TOLD_APART and not _is_list(value) and not _is_row(value)
    }
    answer = document.get("answer")
    told = [(name, text_of("", words)) for name, words in (answer.items() if isinstance(answer, Mapping) else ())]
    facts = [(_words(name), text_of(name, value)) for name, value in flattened(kept) if "." not in name]
    facts += [("model", str(each)) for each in document.get("models", ())]
    names = {name for name, _ in told}
    told += [(name, text) for name, text in facts if text and name not in names]
    return [(_bounded(name), _bounded(text)) for name, text in told[:_MOST_FACTS]]


def _bounded(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


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
    words, meanings = [_words(name) for name in columns], [_meaning(name) for name in columns]
    return Table(title, words, cells, len(rows), frozenset(numbers), meanings)


def _meaning(name: str) -> str:
    """Return what a column holds, as the schema of documents says it; nothing of keys of plans and workloads."""
    known = None if name.startswith(("plan.", "set.")) else vocabulary().get(name.partition(".")[0])
    return "" if known is None else known.meaning


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
        yield table_of(_title(name, within), flat)
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


def _title(name: str, within: tuple[str, ...]) -> str:
    """Return what a table is called; commands stand beside several lists of plans."""
    if name == "run" and within in (("fastest",), ("front",)):
        return f"{_TITLES[name]} of the {within[0]}"
    return _TITLES.get(name) or " of ".join([_words(name), *within])


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
        "unpowered": "without a rating", "done": "plans simulated", "choices": "plans to simulate",
        "bounded": "of them too slow or too large", "left": "of them left out",
    }  # fmt: skip
    return known.get(words, words) + (f" ({rest.replace('_', ' ')})" if rest else "")
