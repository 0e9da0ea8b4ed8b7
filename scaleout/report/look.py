"""How pictures are written: their format, and their width in a journal. Knows no picture.

A verb says it once for all that is drawn within, by whatever draws it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

WIDTHS = {"column": 3.35, "page": 7.0}
"""Widths of a journal's column and page [in]."""
NARROW_IN = 5.0
"""Below which panels stand one below the other."""
COLUMN_POINTS, PAGE_POINTS = 6.0, 7.0
"""Sizes of fonts at these widths."""


class Look(NamedTuple):
    """How pictures are written: their format, and their width in inches, or as wide as each reads well."""

    format: str = ""  # that of each kind of picture if empty: PNG, of a study's figures SVG too
    width_in: float | None = None


_LOOK = ContextVar("_LOOK", default=Look())  # noqa: B039 - a tuple


@contextmanager
def look(format: str = "", width: str | None = None) -> Iterator[None]:  # noqa: A002 - as `savefig` calls it
    """Pictures that are drawn within have this format and, if one is named, a width of `WIDTHS`.

    At the width of a page fonts have 7 points, at that of a column 6, and the title is left to the caption.
    """
    token = _LOOK.set(Look(format, None if width is None else WIDTHS[width]))
    try:
        yield
    finally:
        _LOOK.reset(token)


def look_now() -> Look:
    """Return how pictures are to be written now."""
    return _LOOK.get()
