"""Cases of a study to a picture: a result over an input, with a line for each combination of the other inputs.

Cases that do not fit into memory are left out where others of their workload fit, and the picture says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FormatStrFormatter, Formatter, MaxNLocator, PercentFormatter

from scaleout.analysis.breakdown import MUCH
from scaleout.errors import ConfigError
from scaleout.report.colours import DASHES, SERIES, depths, size_scale, time_scale
from scaleout.report.pages.names import shortened
from scaleout.report.plots.schedules import STYLE, as_given, on_axes, panels
from scaleout.study.sweep.columns import column_of
from scaleout.study.sweep.study import Study
from scaleout.study.sweep.table import axes_of, eligible, numbers_of, ordered, unfit_words

_MOST_LINES, _FEW_LINES, _MOST_PANELS, _ACROSS = 28, 8, 12, 3
_MARKERS = "osD^vPX"
_MOST_TICKS = 10
_LOG_FROM = 8
"""Ratio of the largest to the smallest value of an input from which its axis is logarithmic."""
_NEAR = 0.025
"""Within which marks hide each other, of the largest value."""
_MARK, _LARGER = 4.0, 3.0
"""Points of a mark, and by how many it is larger for each that lies on it, up to two."""
_LETTER = 0.08
"""Width of a letter below an axis, at most [in], of which a panel has 3 and a picture 6."""

_TICKS: Mapping[str, Callable[[], Formatter]] = {
    "share": lambda: PercentFormatter(1.0, symbol="%"), "x": lambda: FormatStrFormatter("%gx"),
    "1/s": lambda: EngFormatter(sep=""), "B/s": lambda: EngFormatter("B/s"),
}  # fmt: skip
"""How numbers of a unit stand at ticks, which then show the unit, but for those a second."""


@dataclass(frozen=True)
class Drawn:
    """What a picture shows: columns along the axes, one that colours the lines and one with a panel for each value.

    What is empty is chosen.
    """

    x: str
    y: str
    colour: str = ""
    facet: str = ""


def plot_cases(study: Study, cases: pd.DataFrame, shown: Drawn, axes: Axes | None = None) -> Axes:
    """Draw cases and return the axes, or the first of several panels.

    Where `x` is itself a result, a line runs along an input, whose values stand at its points.
    """
    ran = cases[cases["status"] == "ok"]
    found = eligible(ran)
    left_out = ran.drop(found.index)
    found = found.dropna(subset=[name for name in (shown.x, shown.y) if name])
    if found.empty:
        of = f"a {shown.x} and a {shown.y}" if shown.x else f"a {shown.y}"
        raise ConfigError(f"plot() has no case that ran with {of}; see the column `message`")
    shown = _chosen(study, found, shown, facets=axes is None)
    found = found.dropna(subset=[shown.x])
    along, others, following = _lines_of(study, found, shown)
    combinations = _combinations(found, shown, others)
    lines = [*combinations]
    if len(combinations) > _MOST_LINES:
        names = ", ".join(lines)
        raise ConfigError(
            f"plot() has a line for each combination of {names}: {len(combinations)} of them, of which "
            f"{_MOST_LINES} are told apart; give {'' if shown.facet else 'one of these as facet=, or '}"
            f"a study of fewer values, or draw some of the rows of to_frame()"
        )
    notes = [unfit_words(found, left_out, {name: column_of(name).label for name in study.inputs if name in found})]
    notes += [f"follows from the others: {', '.join(column_of(name).label for name in following)}"] * bool(following)
    notes += [f"open marks: {MUCH:.0%} or more of kernel time is an estimate"] * bool(_estimated(found).any())
    drawing = _Drawing(study, found, shown, along, lines, combinations, [each for each in notes if each])
    if not shown.facet:
        with on_axes(axes, figsize=(7, 4 + 0.1 * len(combinations))) as drawn_on:
            drawing.draw(drawn_on, found)
            drawing.legend(drawn_on, outside=axes is None)
        return drawn_on
    if axes is not None:
        raise ConfigError("plot() draws the panels of facet= on axes of its own; leave ax out, or facet")
    return _facets(drawing)


def _facets(drawing: "_Drawing") -> Axes:
    facet = drawing.shown.facet
    values = ordered(drawing.study, drawing.found, facet)
    if not 0 < len(values) <= _MOST_PANELS:
        raise ConfigError(f"plot(facet={facet!r}) has {len(values)} panels; it draws 1 to {_MOST_PANELS}")
    rows, columns = panels(len(values), _ACROSS)
    high = 2.6 * rows + 0.1 * len(drawing.combinations) + 0.8
    with mpl.rc_context(STYLE):
        figure, grid = plt.subplots(rows, columns, squeeze=False, layout="constrained", figsize=(3.5 * columns, high))
        for axes in grid.flat[len(values) :]:
            axes.set_visible(False)
        short = shortened(value for value in values if isinstance(value, str))
        for axes, value in zip(grid.flat, values, strict=False):
            drawing.draw(axes, drawing.found[drawing.found[facet] == value])
            name = column_of(facet).label
            axes.set_title(str(short.get(value, value)) if isinstance(value, str) else f"{name} {_worded(value)}")
        drawing.legend(grid[0, 0], outside=True)
        top = max(axes.get_ylim()[1] for axes in grid.flat[: len(values)])
        for axes in grid.flat[: len(values)]:
            axes.set_ylim(0, top)
            axes.label_outer(remove_inner_ticks=False)
        figure.suptitle("\n".join(drawing.notes), fontsize=9)
        as_given(figure)
    first: Axes = grid[0, 0]
    return first


def _chosen(study: Study, found: pd.DataFrame, shown: Drawn, *, facets: bool) -> Drawn:
    """Return what to show, with what is not given chosen among the inputs that vary.

    Along x are numbers, of which those with the fewest lines; the input with the most values has the colours, and the
    next one, where there would be more than a few lines, panels if there may be `facets`.
    """
    taken = (shown.y, shown.colour, shown.facet)
    varied = [name for name in study.axes if name in found and found[name].nunique() > 1 and name not in taken]
    if not shown.x:

        def lines(name: str) -> tuple[bool, int]:
            given = replace(shown, x=name)
            return bool(found[name].isna().any()), len(_combinations(found, given, _lines_of(study, found, given)[1]))

        shown = replace(
            shown, x=min([each for each in varied if numbers_of(study, found, each)] or varied or ["case"], key=lines)
        )
    _, others, _ = _lines_of(study, found, shown)
    others.sort(key=lambda name: -found[name].nunique())
    if not shown.colour and others:
        shown = replace(shown, colour=others.pop(0))
    if not facets or shown.facet or len(_combinations(found, shown, others)) <= _FEW_LINES:
        return shown
    for name in others:
        left = _combinations(found, shown, [each for each in others if each != name])
        if found[name].nunique() <= _MOST_PANELS and len(left) <= _MOST_LINES:
            return replace(shown, facet=name)
    return shown


def _combinations(found: pd.DataFrame, shown: Drawn, others: Sequence[str]) -> pd.DataFrame:
    """Return what each line has in the columns that tell lines of a panel apart."""
    lines = [name for name in (shown.colour, *others) if name]
    return found.drop_duplicates(lines)[lines] if lines else found.head(1)[[]]


def _lines_of(study: Study, found: pd.DataFrame, shown: Drawn) -> tuple[str, list[str], list[str]]:
    """Return the column along which a line runs, and the inputs besides the colour and panels that tell lines apart.

    Also those that do not as they follow from the others, such as the data parallelism that is left on so many ranks.
    """
    varied = [name for name in study.axes if name in found and found[name].nunique() > 1]
    groups = axes_of(found, list(dict.fromkeys((*varied, *(["ranks"] if shown.x == "ranks" else [])))))
    free = [alike for alike in groups.values() if {*alike} & {*varied} and not {*alike} & {shown.colour, shown.facet}]
    own = next((alike for alike in free if shown.x in alike), None)
    if own is None and shown.x not in (*study.inputs, "case"):
        own = next((alike for alike in free if numbers_of(study, found, alike[0])), None)
    along = shown.x if own is None or shown.x in own else own[0]
    others = [alike[0] for alike in free if alike is not own and shown.y not in alike]
    following = list[str]()
    for name in sorted(others, key=lambda each: -found[each].nunique()):
        rest = [each for each in others if each != name]
        told = [each for each in (along, shown.colour, shown.facet, *rest) if each]
        if len(found.drop_duplicates(told)) == len(found.drop_duplicates([*told, name])):
            others, following = rest, [*following, name]
    return along, others, following


def _estimated(found: pd.DataFrame) -> "pd.Series[bool]":
    if "roofline_share" not in found:
        return pd.Series(False, index=found.index)
    return found["roofline_share"].astype("float64") >= MUCH


@dataclass(frozen=True)
class _Drawing:
    """Cases, and how those of one panel are drawn."""

    study: Study
    found: pd.DataFrame
    shown: Drawn
    along: str
    lines: Sequence[str]
    combinations: pd.DataFrame
    notes: Sequence[str]

    def draw(self, axes: Axes, cases: pd.DataFrame) -> None:
        """Draw the lines of a panel."""
        at, y = self._at(cases), cases[self.shown.y].astype("float64") * self._scale(self.shown.y)[0]
        order = at if self.along == self.shown.x else self._at_input(cases, self.along)
        near = _NEAR * (float(y.max()) or 1.0) if len(y) else 1.0
        members = [order[self._rows(cases, values)].sort_values(kind="stable").index for values in self._values()]
        places = [dict(zip(order[rows], y[rows] / near, strict=True)) for rows in members]
        below, above = depths(places, share=0.5), depths(places[::-1])[::-1]
        joined = self.along != self.shown.x or self._is_number()
        estimated = _estimated(cases)
        for number, rows in enumerate(members):
            colour, marker = self._look(number)
            size = _MARK + _LARGER * min(above[number], 2)
            dash = DASHES[min(below[number], len(DASHES) - 1)]
            style: Any = (0, (*dash,)) if dash else "-"
            axes.plot(
                at[rows], y[rows], color=colour, marker=marker, markersize=size, linewidth=1.5,
                linestyle=style if joined else "", label=self._label(number),
            )  # fmt: skip
            open_ = rows[estimated[rows]]
            axes.plot(at[open_], y[open_], marker, color=colour, markerfacecolor="white", markersize=size)
        if self.along != self.shown.x:
            for value, *place in zip(cases[self.along], at, y, strict=True):
                axes.annotate(
                    f"{value}", (place[0], place[1]), (-3, 3), textcoords="offset points", ha="right", fontsize=6.5
                )
        self._axes(axes, at)

    def legend(self, axes: Axes, *, outside: bool) -> None:
        """Name the lines, and say what is left out: below a picture of our own, else on its axes."""
        if self.lines:
            title = ", ".join(column_of(name).label for name in self.lines)
            handles, labels = axes.get_legend_handles_labels()
            if outside:
                axes.figure.legend(
                    handles, labels, frameon=False, fontsize=7, title=title, loc="outside lower center", ncols=2
                )
            else:
                axes.legend(handles, labels, frameon=False, fontsize=7, title=title)

    def _values(self) -> list[tuple[Any, ...]]:
        """Return what each line has in the columns that tell them apart, in the order of the study's file."""
        there = {tuple(map(str, row)): tuple(row) for row in self.combinations.itertuples(index=False)}
        orders = [[str(value) for value in ordered(self.study, self.found, name)] for name in self.lines]
        known = [there.pop(key) for key in product(*orders) if key in there]
        return [*known, *there.values()]

    def _rows(self, cases: pd.DataFrame, values: tuple[Any, ...]) -> "pd.Series[bool]":
        """Return which cases are of a line."""
        same = pd.Series(True, index=cases.index)
        for name, value in zip(self.lines, values, strict=True):
            same &= cases[name].isna() if pd.isna(value) else cases[name].eq(value).fillna(False).astype(bool)
        return same

    def _look(self, number: int) -> tuple[str, str]:
        """Return colour and marker of a line: the first of the columns has the colours, the others the markers."""
        keys = [(str(values[:1]), str(values[1:])) for values in self._values()]
        first, rest = (list(dict.fromkeys(each)) for each in zip(*keys, strict=True))
        if len(rest) == 1 or len(first) > len(SERIES) or len(rest) > len(_MARKERS):
            turn = number // len(SERIES)
            return SERIES[number % len(SERIES)], _MARKERS[(number + turn) % len(_MARKERS)]
        return SERIES[first.index(keys[number][0])], _MARKERS[rest.index(keys[number][1])]

    def _label(self, number: int) -> str:
        values = [str(value) for value in self._values()[number]]
        return ", ".join(shortened(values).get(value, value) for value in values)

    def _scale(self, column: str) -> tuple[float, str]:
        """Return what to multiply a column by, and its unit: what suits the median time, or the largest size."""
        unit = column_of(column).unit
        values = self.found[column]
        if unit not in ("s", "B") or not values.notna().any():
            return 1.0, unit
        return time_scale(float(values.median())) if unit == "s" else size_scale(float(values.max()))

    def _is_number(self) -> bool:
        return numbers_of(self.study, self.found, self.shown.x) is not None

    def _at(self, cases: pd.DataFrame) -> "pd.Series[float]":
        """Return where cases lie along the horizontal axis."""
        return self._at_input(cases, self.shown.x) * self._scale(self.shown.x)[0]

    def _at_input(self, cases: pd.DataFrame, column: str) -> "pd.Series[float]":
        """Return the number of each case's value of a column, or its place among those of the file."""
        numbers = numbers_of(self.study, self.found, column)
        if numbers is None:
            there = ordered(self.study, self.found, column)
            numbers = {value: float(place) for place, value in enumerate(there)}
        return cases[column].map(numbers).astype("float64")

    def _labelled(self, column: str) -> str:
        label, unit = column_of(column).label, self._scale(column)[1]
        unit = "" if unit in _TICKS and unit != "1/s" else unit
        return f"{label} [{unit}]" if unit else label

    def _axes(self, axes: Axes, at: "pd.Series[float]") -> None:
        """Label the axes: an input has ticks at its values."""
        values = ordered(self.study, self.found, self.shown.x)
        places = self._at(self.found)
        words = dict(zip(places, self.found[self.shown.x], strict=True))
        ticks = sorted(words)
        if not self._is_number():
            short = shortened(map(str, values))
            names = [short.get(str(value), str(value)) for value in values]
            wide = _LETTER * sum(map(len, names)) > (3 if self.shown.facet else 6)
            axes.set_xticks(range(len(names)), names, rotation=20 if wide else 0, ha="right" if wide else "center")
            axes.set_xlim(-0.5, max(len(names), 1) - 0.5)
        elif self.shown.x in (*self.study.axes, "ranks"):
            log = len(ticks) > 1 and ticks[0] > 0 and ticks[-1] / ticks[0] >= _LOG_FROM
            if log:
                axes.set_xscale("log", base=2)
            if log or len(ticks) <= _MOST_TICKS:
                ticks = ticks[:: -(-len(ticks) // _MOST_TICKS)]
                axes.set_xticks(ticks, [_worded(words[tick]) for tick in ticks])
                axes.minorticks_off()
            else:
                axes.xaxis.set_major_locator(MaxNLocator(integer=bool(np.all(places == places.round()))))
        elif self.shown.x == "case":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        points = [f"numbers at the marks: {column_of(self.along).label}"] * (self.along != self.shown.x)
        axes.set_xlabel("\n".join([self._labelled(self.shown.x), *points, *([] if self.shown.facet else self.notes)]))
        for axis, column in ((axes.xaxis, self.shown.x), (axes.yaxis, self.shown.y)):
            if (form := _TICKS.get(column_of(column).unit)) is not None:
                axis.set_major_formatter(form())
        axes.set_ylabel(self._labelled(self.shown.y))
        axes.set_ylim(0, None)


def _worded(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, int | float | np.number) else str(value)
