"""What every question is answered with: a document, a table and a picture of the same numbers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scaleout.config.units import counted
from scaleout.report.documents import document

if TYPE_CHECKING:
    import pandas as pd

    from scaleout.report.plots.schedules import Axes

_OF_ALL_ROWS = ("workload", "topology", "device", "ranks", "mode", "samples", "mfu_peak", "memory", "cost")
"""What a document says once, and a table in each row."""
_MOST_ROWS = 40
"""Of a table in a notebook."""


class Answer(ABC):
    """An answer to a question: `to_dict` is what the command line prints with ``--json``, `to_frame` its rows.

    It shows itself in a line, printed with its `notes`, as the answer and its main table in a notebook, and by `plot`
    as a picture.
    """

    command: str
    """Of the command line, which gives the same document."""
    rows: str = "results"
    """Name of the list in the document of which the table has a row each."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is, in a line."""

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

    def answer(self) -> Mapping[str, str] | None:
        """Return what the terminal's box says: its rows, names to words; None of what has no box."""
        return None

    @abstractmethod
    def columns(self) -> Sequence[str]:
        """Return the columns of the table that a notebook shows, as far as there are such: those of the terminal."""

    @abstractmethod
    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw it on axes of matplotlib, or on new ones, and return them."""

    def to_dict(self) -> dict[str, Any]:
        """Return the document: plain values, by the names of `scaleout.schema`."""
        return document(
            self.command, self.found(), inputs=self.inputs, models=self.models, answer=self.answer()
        )  # fmt: skip

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
        """What was assumed or left out, as the terminal tells it."""
        found = self.found()
        return (*found.get("notes", ()), *found.get("model", {}).get("notes", ()))

    def _main(self, frame: "pd.DataFrame") -> "pd.DataFrame":
        """Return the rows that a notebook shows, of which `frame` has all."""
        return frame

    def _in_line(self) -> str:
        """Return what it shows in a line."""
        return self.title

    def __repr__(self) -> str:
        notes = self.notes
        return f"<{type(self).__name__}: {self._in_line()}" + (f"; {counted(len(notes), 'note')}>" if notes else ">")

    def __str__(self) -> str:
        return "\n".join([repr(self), *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        from scaleout.report.pages.document import table_of  # noqa: PLC0415 - only notebooks need it
        from scaleout.report.pages.notebook import in_notebook  # noqa: PLC0415

        frame = self.to_frame()
        rows = self._main(frame)
        names = [name for name in self.columns() if name in rows]
        shown = rows[names].head(_MOST_ROWS).astype(object)
        known = shown.where(shown.notna(), None)
        table = table_of("", [dict(zip(names, row, strict=True)) for row in known.itertuples(index=False)])
        facts = dict(self.answer() or {})
        if self.models:
            facts.setdefault("model", "; ".join(self.models))
        told = f"all {len(frame.columns)} columns of {counted(len(frame), 'row')}: to_frame()"
        return in_notebook(self.title, facts.items(), table, (*self.notes, told))
