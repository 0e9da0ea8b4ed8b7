"""The terminal: answers, tables and facts, whatever they are about, at any width.

Nothing is cut or left out for want of room. A table that is wider than the terminal has, in this order, its headings
and its words wrapped; then its columns of numbers in several bands, one below the other, each with the columns that
name the row; then a paragraph a row. What is not for a terminal is as wide as COLUMNS says, or as nearly any table.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

from rich.box import ROUNDED
from rich.cells import cell_len
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from scaleout.config.units import (
    format_bytes,
    format_bytes_per_s,
    format_dollars,
    format_flops,
    format_flops_per_s,
    format_hertz,
    format_seconds,
    format_share,
    format_sizes,
    format_watts,
)
from scaleout.errors import one_line, printable

_FORMATS = {
    "_bytes_per_s": format_bytes_per_s,
    "_flops_per_s": format_flops_per_s,
    "_flops_per_rank": format_flops,
    "_flops": format_flops,
    "_bytes": format_bytes,
    "_s": format_seconds,
    "_hz": format_hertz,
    "_usd": format_dollars,
    "_w": format_watts,
    "_error": format_share,
}
"""End of a fact's name to how its number is written."""

_TITLES = {
    "nodes_per_rank": "graph nodes per rank",  # beside topologies, whose nodes are machines
    "matrix_flops": "FLOPs of matrices",
    "matrix_flops_per_rank": "FLOPs of matrices per rank",
}
"""Names of facts that say too little without the unit at their end."""

_PIPE = 240
_GAP = 2
"""Columns of a terminal between two of a table."""

_TOGETHER = re.compile(r"(?<=\d) (?=[A-Za-zµ]{1,3}(?:/[A-Za-z]+)?(?![A-Za-z]))|(?<=[a-z]) (?=\d[\d.]*(?:,|$))")
"""Spaces at which no line ends: between a number and its unit, and in what a plan has, such as ``zero 2``."""
_HELD = "\ue000"
"""What stands for such a space until lines are made."""


class _Console(Console):
    """A console that writes no controls of a text, and ends quietly when its reader, such as `head`, has enough."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(printable(each) if isinstance(each, str) else each for each in objects), **how)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def console() -> Console:
    """Return the console that all is printed on.

    It prints words as they are: a colon or bracket in a name is neither an emoji nor markup.
    """
    as_it_is = partial(_Console, markup=False, emoji=False, highlight=False)
    plain = as_it_is()
    if plain.is_terminal:
        return plain
    given = os.environ.get("COLUMNS", "")
    return as_it_is(width=int(given) if given.isdecimal() and 0 < int(given) < 10_000 else _PIPE)


def print_answer(title: str, facts: Mapping[str, str]) -> None:
    """Print what is asked for first, in a box: a fact a line, wrapped at words."""
    shown = console()
    names = [one_line(name) for name in facts]
    room = shown.width - 4 - _GAP - max(map(cell_len, names), default=0)  # less the box, and a space to either side
    grid = Table.grid(padding=(0, _GAP))
    grid.add_column(style="bold", overflow="fold")
    grid.add_column(overflow="fold")
    lines = [_lines(shown, one_line(words), room) for words in facts.values()]
    for name, some in zip(names, lines, strict=True):
        grid.add_row(name, "\n".join(some))
    wide = any(len(some) > 1 for some in lines)
    shown.print(Panel(Group(Text(one_line(title), style="bold"), grid), box=ROUNDED, expand=wide))
    shown.print()


def _lines(shown: Console, words: str, width: int) -> list[str]:
    """Wrap words, but no number from its unit."""
    held = Text(_TOGETHER.sub(_HELD, words), overflow="fold").wrap(shown, max(1, width)) or [Text()]
    return [line.plain.rstrip().replace(_HELD, " ") for line in held]


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
    """Print a table whose first `left` columns name a row, and are text, and whose others are numbers or short words.

    How it is laid out on a narrow terminal, see above.
    """
    shown = console()
    cells = [[one_line(cell) for cell in row] for row in rows]
    headings = [one_line(column) for column in columns]
    used = [at for at in range(len(headings)) if at < left or headings[at] or any(row[at] for row in cells)]
    cells, headings = [[row[at] for at in used] for row in cells], [headings[at] for at in used]
    shown.print(Text(one_line(title), style="bold"))
    bands = _bands(headings, cells, left, shown.width)
    for band in bands:
        named = any(headings[place] for place, _ in band)
        table = Table(show_header=named, header_style="bold", box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
        for place, width in band:
            justify: Any = "left" if place < left else "right"
            table.add_column(headings[place], justify=justify, width=width, overflow="fold")
        for row in cells:
            table.add_row(
                *("\n".join(_lines(shown, row[place], width)) if place < left else row[place] for place, width in band)
            )
        shown.print(table)
        if band is not bands[-1]:
            shown.print()
    if not bands:
        _print_paragraphs(shown, headings, cells, left)
    shown.print()


class _Sizes(NamedTuple):
    """How wide a column is at least, without a number or word that is broken, and with nothing wrapped."""

    least: int
    most: int


def _bands(
    headings: Sequence[str], cells: Sequence[Sequence[str]], left: int, width: int
) -> list[list[tuple[int, int]]]:
    """Lay columns out in bands, each the places and widths of its columns; none if a row must be a paragraph.

    The first band has all columns that name a row, the others the fewest that tell rows apart.
    """
    sizes = [_sizes(heading, [row[at] for row in cells], at < left) for at, heading in enumerate(headings)]
    names = list(range(left))
    wanted = dict(_widened(names, sizes, width // 2) or ())
    told_apart = next((few for few in names if few and len({tuple(row[:few]) for row in cells}) == len(cells)), left)
    bands = [names]
    used = sum(wanted.get(name, sizes[name].least) + _GAP for name in names)
    for place in range(left, len(headings)):
        if len(bands[-1]) > (left if len(bands) == 1 else told_apart) and used + sizes[place].least > width:
            bands.append(names[:told_apart])
            used = sum(sizes[name].least + _GAP for name in bands[-1])
        bands[-1] = [*bands[-1], place]
        used += sizes[place].least + _GAP
    found = [_widened(band, sizes, width) for band in bands]
    return [] if None in found else [band for band in found if band is not None]


def _widened(places: Sequence[int], sizes: Sequence[_Sizes], width: int) -> list[tuple[int, int]] | None:
    """Share a width among columns: each has its least, then those to the left as much as they want."""
    spare = width - sum(sizes[place].least + _GAP for place in places) + _GAP
    if spare < 0:
        return None
    widths = []
    for place in places:
        more = min(spare, sizes[place].most - sizes[place].least)
        spare -= more
        widths.append((place, sizes[place].least + more))
    return widths


def _sizes(heading: str, cells: Sequence[str], text: bool) -> _Sizes:
    """Measure a column: a heading and text wrap at spaces, other cells do not."""
    words = heading.split(" ")
    least = [word for cell in cells for word in _TOGETHER.sub(_HELD, cell).split(" ")] if text else cells
    return _Sizes(max(map(cell_len, (*words, *least)), default=0), max(map(cell_len, (heading, *cells)), default=0))


def _print_paragraphs(shown: Console, headings: Sequence[str], cells: Sequence[Sequence[str]], left: int) -> None:
    """Print a row as a paragraph: a line a column, those below what names the row further in."""
    for number, row in enumerate(cells):
        if number:
            shown.print()
        for place, (heading, cell) in enumerate(zip(headings, row, strict=True)):
            words = f"{heading}: {cell}" if heading else cell
            if cell or place < left:
                _print_within(shown, words, 0 if place < left else _GAP, "bold" if place < left else "")


def _print_within(shown: Console, words: str, indent: int, style: str = "") -> None:
    """Print words on as many lines as they need, without spaces at the ends of these."""
    for line in _lines(shown, words, shown.width - indent):
        shown.print(Text.assemble(" " * indent, (line, style)))


def print_paragraph(name: str, words: str, lines: Iterable[str]) -> None:
    """Print what a name stands for, lines about it further in, and an empty one; lines without words are left out."""
    shown = console()
    shown.print(Text.assemble((one_line(name), "bold"), f": {one_line(words)}", overflow="fold"))
    for line in filter(None, lines):
        _print_within(shown, one_line(line), _GAP)
    shown.print()


def print_links(title: str, links: Sequence[dict[str, Any]]) -> None:
    """Print what the busiest links carry."""
    print_table(
        title,
        ("link", "symmetric links", "bytes", "utilisation"),
        [
            [use["link"], str(use["alike"]), size, format_share(use["utilisation"])]
            for use, size in zip(links, format_sizes(use["size_bytes"] for use in links), strict=True)
        ],
    )


def print_description(facts: Mapping[str, Any], drawing: Iterable[str] = ()) -> None:
    """Print the facts of a line in a box, named by the first of them; below it a drawing, if any, and all else."""
    (kind, name), *others = facts.items()
    lines = {key: _written(key, value) for key, value in others if not _is_table(value)}
    boxed = {key: line for key, line in lines.items() if "\n" not in line}
    print_answer(f"{_title(kind)} {name}", {_title(key): line for key, line in boxed.items()})
    for line in drawing:
        console().print(line)
    if drawing:
        console().print()
    print_facts({key: value for key, value in others if key not in boxed})


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print a description: plain facts line by line, mappings and lists of rows as tables."""
    for key, value in facts.items():
        title = _title(key)
        if isinstance(value, list) and _is_table(value):
            columns = list(dict.fromkeys(name for row in value for name in row))
            cells = [_column(name, [row.get(name, "") for row in value]) for name in columns]
            rows = [list(row) for row in zip(*cells, strict=True)]
            print_table(key.replace("_", " "), list(map(_title, columns)), rows, left=_leading_text(value))
        elif isinstance(value, dict):
            if value:
                print_table(title, ("", ""), _rows(key, value), left=1 if all(map(_is_number, value.values())) else 2)
        else:
            text = printable(_written(key, value)).replace("\n", "\n  ")  # no line of it is to pass for a fact
            console().print(Text.assemble((one_line(title), "bold"), f": {text}"))


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def _rows(key: str, entries: Mapping[str, Any]) -> list[list[str]]:
    """Write a mapping's entries, whose unit stands at the end of the mapping's name or else of each one's own."""
    if key.endswith(tuple(_FORMATS)):
        return [list(row) for row in zip(entries, _column(key, list(entries.values())), strict=True)]
    own = {name for name, value in entries.items() if _is_number(value) and name.endswith(tuple(_FORMATS))}
    return [
        [_title(name) if own else name, _written(name if name in own else key, value)]
        for name, value in entries.items()
    ]


def _column(name: str, values: Sequence[Any]) -> list[str]:
    """Write the facts of one name, sizes in one unit."""
    if name.endswith("_bytes") and all(map(_is_number, values)):
        return format_sizes(values)
    return [_written(name, value) for value in values]


def _leading_text(rows: Sequence[Mapping[str, Any]]) -> int:
    """Count the first columns of rows in which no cell is a number, the first among them whatever it has."""
    text = [not any(_is_number(row.get(name)) for row in rows) for name in rows[0]]
    return next((number for number, each in enumerate(text) if number and not each), len(text))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _title(name: str) -> str:
    """Write a fact's name without the unit at its end, which stands beside the number."""
    if name in _TITLES:
        return _TITLES[name]
    end = next((end for end in _FORMATS if name.endswith(end)), "")
    return name.removesuffix(end).replace("_", " ")


def _written(name: str, value: Any) -> str:
    """Write a fact: numbers with the unit that the end of the name says, several with commas."""
    if isinstance(value, list):
        return ", ".join(_written(name, each) for each in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        for end, form in _FORMATS.items():
            if name.endswith(end):
                return form(value)
        return f"{value:,}" if isinstance(value, int) else f"{float(f'{value:.3g}'):g}"
    return str(value)
