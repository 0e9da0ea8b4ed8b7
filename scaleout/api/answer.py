"""What every question is answered with: a document, a table and a picture of the same numbers."""

import html
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scaleout.config.units import format_number
from scaleout.report.documents import document

if TYPE_CHECKING:
    import pandas as pd

    from scaleout.report.plots.schedules import Axes

_OF_ALL_ROWS = ("workload", "topology", "device", "ranks", "mode", "samples", "mfu_peak", "memory", "cost")
"""What a document says once, and a table in each row."""
_MOST_ROWS = 40
"""Of a table in a notebook."""


class Shown(ABC):
    """What shows itself: in a line as text, as a table in a notebook, and by `plot` as a picture."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is, in a line."""

    @abstractmethod
    def to_frame(self) -> "pd.DataFrame":
        """Return it as a table."""

    @abstractmethod
    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw it on axes of matplotlib, or on new ones, and return them."""

    @property
    def notes(self) -> Sequence[str]:
        """What was assumed or left out."""
        return ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.title}>"

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        shown = frame.head(_MOST_ROWS).to_html(index=False, na_rep="", float_format=format_number)
        more = [f"and {len(frame) - _MOST_ROWS:,} rows more"] if len(frame) > _MOST_ROWS else []
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in (*more, *self.notes))
        return f"<p><b>{html.escape(self.title)}</b></p>{shown}{notes}"


class Answer(Shown):
    """An answer to a question: `to_dict` is what the command line prints with ``--json``, `to_frame` its rows."""

    command: str
    """Of the command line, which gives the same document."""
    rows: str = "results"
    """Name of the list in the document of which the table has a row each."""

    @property
    @abstractmethod
    def inputs(self) -> Mapping[str, Any]:
        """What was asked, by the keys of a study's file, with what was left to defaults."""

    @property
    def models(self) -> Sequence[str]:
        """What answered, a line each."""
        return ()

    @abstractmethod
    def found(self) -> Mapping[str, Any]:
        """Return the results as plain values."""

    def to_dict(self) -> dict[str, Any]:
        """Return the document: plain values, by the names of `scaleout.schema`."""
        return document(self.command, self.found(), inputs=self.inputs, models=self.models)

    def to_frame(self) -> "pd.DataFrame":
        """Return a row for each result, with columns by the names of the document.

        Numbers of a mapping have a column each, ``exposed_by_axis_s.data``; lists of objects are left out.
        """
        import pandas as pd  # noqa: PLC0415 - takes half a second

        from scaleout.report.vocabulary import flattened  # noqa: PLC0415 - only tables need it

        plain = document(self.command, self.found(), inputs=self.inputs, models=self.models)
        about = dict(flattened({name: plain[name] for name in _OF_ALL_ROWS if name in plain}))
        about |= {"model": "; ".join(self.models)} if self.models else {}
        return pd.DataFrame([{**about, **dict(flattened(row))} for row in plain[self.rows]])

    @property
    def notes(self) -> Sequence[str]:
        """What was assumed or left out."""
        return tuple(self.to_dict().get("notes", ()))
