"""Tables and facts on the terminal, whatever they are about."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scaleout.config.units import (
    format_bytes,
    format_bytes_per_s,
    format_dollars,
    format_flops_per_s,
    format_seconds,
    format_watts,
)
from scaleout.errors import one_line, printable

_FORMATS = {
    "_bytes_per_s": format_bytes_per_s,
    "_flops_per_s": format_flops_per_s,
    "_bytes": format_bytes,
    "_s": format_seconds,
    "_usd": format_dollars,
    "_w": format_watts,
    "_error": "{:.1%}".format,
}
"""End of a fact's name to how its number is written."""


class _Console(Console):
    """A console that writes no controls of a text, and ends quietly when its reader, such as `head`, has enough."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(printable(each) if isinstance(each, str) else each for each in objects), **how)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def console() -> Console:
    """Return the console that all tables are printed on: in a pipe as wide as any table.

    It prints words as they are: a colon or bracket in a name is neither an emoji nor markup.
    """
    as_it_is = partial(_Console, markup=False, emoji=False, highlight=False)
    plain = as_it_is()
    return plain if plain.is_terminal else as_it_is(width=240)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
    """Print a table whose first `left` columns are text and whose others are numbers, which are never cut short."""
    table = Table(header_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        text = index < left
        table.add_column(one_line(column), justify="left" if text else "right", no_wrap=not text, overflow="fold")
    for row in rows:
        table.add_row(*map(one_line, row))
    console().print(one_line(title), style="bold", soft_wrap=True)
    console().print(table)
    console().print()


def print_links(title: str, links: Sequence[dict[str, Any]]) -> None:
    """Print what the busiest links carry."""
    print_table(
        title,
        ("link", "symmetric links", "bytes", "utilisation"),
        [
            [use["link"], str(use["alike"]), format_bytes(use["size_bytes"]), f"{use['utilisation']:.1%}"]
            for use in links
        ],
    )


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print a description: plain facts line by line, mappings and lists of rows as tables."""
    for key, value in facts.items():
        title = _title(key)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            columns = list(dict.fromkeys(name for row in value for name in row))
            rows = [[_written(name, row.get(name, "")) for name in columns] for row in value]
            print_table(key.replace("_", " "), list(map(_title, columns)), rows, left=max(2, _leading_text(value)))
        elif isinstance(value, dict):
            if value:
                print_table(title, ("", ""), [_row(key, name, cell) for name, cell in value.items()], left=2)
        else:
            text = printable(_written(key, value)).replace("\n", "\n  ")  # no line of it is to pass for a fact
            console().print(Text.assemble((one_line(title), "bold"), f": {text}"))


def _row(key: str, name: str, value: Any) -> list[str]:
    """Write an entry of a mapping, whose unit stands at the end of the mapping's name or else of the entry's own."""
    if key.endswith(tuple(_FORMATS)) or not (_is_number(value) and name.endswith(tuple(_FORMATS))):
        return [name, _written(key, value)]
    return [_title(name), _written(name, value)]


def _leading_text(rows: Sequence[Mapping[str, Any]]) -> int:
    """Count the first columns of rows in which no cell but the second is a number."""
    text = [not any(_is_number(row.get(name)) for row in rows) for name in rows[0]]
    return next((number for number, each in enumerate(text) if number > 1 and not each), len(text))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _title(name: str) -> str:
    """Write a fact's name without the unit at its end, which stands beside the number."""
    if name == "nodes_per_rank":  # beside topologies, whose nodes are machines
        return "graph nodes per rank"
    end = next((end for end in _FORMATS if name.endswith(end)), "")
    return name.removesuffix(end).replace("_", " ")


def _written(name: str, value: Any) -> str:
    """Write a fact: numbers with the unit that the end of the name says."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        for end, form in _FORMATS.items():
            if name.endswith(end):
                return form(value)
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return str(value)
