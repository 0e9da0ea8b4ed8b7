"""An answer in a notebook: a line, the rows of the terminal's box, and the main table.

The notebook has its own style, so that elements say no more than how text lies in them.
"""

from collections.abc import Iterable, Sequence
from html import escape

from scaleout.report.pages.document import Table

_STYLES = {"left": "text-align: left", "right": "text-align: right; white-space: nowrap"}
"""Of cells of text and of numbers."""


def in_notebook(title: str, facts: Iterable[tuple[str, str]], table: Table, notes: Iterable[str]) -> str:
    """Return it as HTML.

    >>> from scaleout.report.pages.document import table_of
    >>> in_notebook("a < b", [("step", "1 s")], table_of("", [{"mfu": 0.5}]), ["exact"]).splitlines()[-1]
    '<p>exact</p>'
    """
    parts = [f"<p><b>{escape(title)}</b></p>"]
    rows = [_row([("th", name, "left"), ("td", text, "left")]) for name, text in facts]
    parts += ["<table><tbody>", *rows, "</tbody></table>"] if rows else []
    if table.rows:
        sides = ["right" if place in table.numbers else "left" for place in range(len(table.columns))]
        parts += [
            "<table><thead>",
            _row(zip(["th"] * len(sides), table.columns, sides, strict=True)),
            "</thead><tbody>",
        ]
        parts += [_row(("td", cell.text, side) for cell, side in zip(row, sides, strict=True)) for row in table.rows]
        parts += ["</tbody></table>"]
    return "\n".join((*parts, *(f"<p>{escape(note)}</p>" for note in notes)))


def _row(cells: Iterable[Sequence[str]]) -> str:
    """Return a row of cells, each an element, its text and the side on which that stands."""
    written = (f'<{tag} style="{_STYLES[side]}">{escape(text)}</{tag}>' for tag, text, side in cells)
    return f"<tr>{''.join(written)}</tr>"
