"""The cases of a study as charts take them: fields, labels, units and formats, and which cases a chart draws.

Knows no kind of chart.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from scaleout.config.units import format_bytes, format_dollars, format_number, format_rate, format_seconds, format_share
from scaleout.report.colours import size_scale, time_scale
from scaleout.report.pages.style import Panels
from scaleout.study.sweep import expressions
from scaleout.study.sweep.columns import column_of
from scaleout.study.sweep.study import Study
from scaleout.study.sweep.table import axes_of, eligible, numbers_of, ordered, unfit_words
from scaleout.study.sweep.views import View

_FORMATS = {
    "s": ".4~g", "B": ".4~g", "B/s": ".3~s", "1/s": ".3~s", "J": ".3~s", "W": ".3~s", "$": ".3~s", "share": ".1~%",
    "x": ".3~f",
}  # fmt: skip
"""How d3 writes a number of each unit; SI prefixes where `s` stands."""
_UNITS = {"share": "", "x": ""}
"""Units that the numbers or the labels themselves show."""


class Cases:
    """The cases of a study that were simulated, as charts take them: of each workload those that fit, if any does.

    A field of a chart's data must hold no dot or bracket, so `field_of` gives it another name.
    Times and sizes are in the unit that suits their column.
    """

    def __init__(self, cases: pd.DataFrame, study: Study, panels: Panels = Panels()) -> None:  # noqa: B008 - a tuple
        self.study, self.panels = study, panels
        self.all = cases.copy()
        self._units: dict[str, str] = {}
        self._scales: dict[str, float] = {}
        for column in cases.columns:
            unit, values = column_of(column).unit, cases[column]
            if unit in ("s", "B") and values.notna().any():
                found = time_scale(float(values.median())) if unit == "s" else size_scale(float(values.max()))
                self._scales[column], self._units[column] = found
                self.all[column] = values * self._scales[column]
        ran = self.all[cases["status"] == "ok"]
        self.frame = eligible(ran)
        self.left_out = ran.drop(self.frame.index)
        self.inputs = [name for name in study.inputs if name in cases]
        self.axes = axes_of(self.frame, [name for name in study.axes if self.has(name)])

    def has(self, column: str) -> bool:
        """Whether a column is there and not all of its values are missing or the same."""
        return column in self.frame and self.frame[column].nunique() > 1

    def alike(self, column: str) -> list[str]:
        """Return the inputs that vary with one."""
        return [name for alike in self.axes.values() if column in alike for name in alike if name != column]

    def of(self, view: View) -> "Cases":
        """Return the cases that a view draws: its constraint holds, and they have its axes, panel and result."""
        found = copy(self)
        found.frame, found.left_out = (self._chosen(frame, view) for frame in (self.frame, self.left_out))
        return found

    def _chosen(self, frame: pd.DataFrame, view: View) -> pd.DataFrame:
        if view.where:
            holds = expressions.parse(view.where, where=f"view {view.title!r}")
            plain = frame.assign(**{name: frame[name] / scale for name, scale in self._scales.items()}).astype(object)
            rows = plain.where(frame.notna(), None).to_dict("records")
            frame = frame[[bool(holds({str(name): value for name, value in row.items()})) for row in rows]]
        needed = {view.x, view.y, view.facet, view.result} - {""}
        needed |= {name for name in view.columns if name not in self.all or self.all[name].isna().all()}
        return frame.reindex(columns=[*frame, *(needed - {*frame})]).dropna(subset=[*needed])

    def lack(self, view: View) -> str:
        """Say why a view has nothing to draw."""
        ran = self.all[self.all["status"] == "ok"]
        lacking = [name for name in view.columns if name not in ran or ran[name].isna().all()]
        columns = ", ".join(column_of(name).label for name in lacking)
        return f"no case that ran has a value of {columns}" if columns else "it shows none of the cases that ran"

    def unfit(self) -> str:
        """Say which of these cases are left out as they do not fit into memory, or are drawn as none fits."""
        names = {name: column_of(name).label for name in self.inputs}
        return unfit_words(self.frame, self.left_out, names)

    def label(self, column: str) -> str:
        """Label of a column, its unit in brackets."""
        known = column_of(column)
        unit = self._units.get(column, _UNITS.get(known.unit, known.unit))
        return f"{known.label} [{unit}]" if unit else known.label

    def text(self, column: str, value: Any) -> str:
        """Return a value of a column as words; a time has its unit."""
        if pd.isna(value):
            return ""
        if isinstance(value, bool | np.bool_):
            return "yes" if value else "no"
        if isinstance(value, str):
            return value
        if column in self._units:
            plain = value / self._scales[column]
            return format_seconds(plain) if column_of(column).unit == "s" else format_bytes(plain)
        if write := {"share": format_share, "$": format_dollars, "1/s": format_rate}.get(column_of(column).unit):
            return write(value)
        return format_number(value)

    def format(self, column: str) -> str:
        """How d3 writes the numbers of a column."""
        unit = column_of(column).unit
        few = unit in ("1/s", "$") and self.frame[column].max() < 1e3  # of which a part has no prefix
        return ".4~g" if few else _FORMATS.get(unit, ".4~g")

    def order(self, column: str) -> list[Any]:
        """Values of a column in the order of the study's file."""
        return ordered(self.study, self.all, column)

    def numbers(self, column: str) -> dict[Any, float] | None:
        """Where the values of a column lie on an axis of numbers; None where they are names."""
        return numbers_of(self.study, self.all, column)

    def best(self, shown: Sequence[str], by: str) -> tuple[pd.DataFrame, list[str]]:
        """Return the best case by a column of all that agree in the shown inputs, and in which inputs they differ."""
        found = self.frame.sort_values(by, ascending=column_of(by).better != "high", kind="stable")
        best = found.drop_duplicates(list(shown)).sort_values("case")
        if len(best) == len(self.frame):  # all are shown, as where a result is shown that no two of them share
            return best, []
        return best, [name for name, alike in self.axes.items() if not {*alike} & {*shown} and self.has(name)]

    def rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return cases as the data of a chart: whole fields, whose missing values are none."""
        plain = frame.astype(object).where(frame.notna(), None)
        return plain.rename(columns=field_of)

    def tooltip(self, *results: str) -> list[alt.Tooltip]:
        """What pointing at a case shows: its number, all inputs, some results and the line that runs it alone."""
        shown = [alt.Tooltip("case:Q", title="case")]
        shown += [alt.Tooltip(f"{field_of(name)}:N", title=column_of(name).label) for name in self.inputs]
        shown += [
            alt.Tooltip(f"{field_of(name)}:Q", title=self.label(name), format=self.format(name))
            for name in dict.fromkeys((*results, "makespan_s", "exposed_share"))
            if name in self.frame
        ]
        return [*shown, alt.Tooltip("run:N", title="run")]


def field_of(column: str) -> str:
    """Return the field of a chart's data that holds a column."""
    return column.replace(".", "__").replace("[", "_").replace("]", "_")
