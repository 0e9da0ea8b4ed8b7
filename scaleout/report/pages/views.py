"""Cases of a study to charts: lines, bars, heat maps, Pareto fronts and sensitivities.

A chart is one Vega-Lite specification, so that the page, PNG and SVG show the same; pointing at a mark shows all inputs
of its case. Where cases differ in an input that a chart does not show, the best of them is drawn, and the chart's
subtitle says so, as it says how many do not fit into memory. Nothing here knows of pages and files.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from scaleout.analysis.breakdown import MUCH
from scaleout.report.colours import DASHES, IDLE, PUBLISHED, SERIES, depths
from scaleout.report.pages.cases import Cases, field_of
from scaleout.report.pages.names import shortened
from scaleout.report.pages.style import ESTIMATED, PALE, SHAPES, STYLE
from scaleout.study.sweep.columns import column_of
from scaleout.study.sweep.views import View

_LOG_FROM = 8
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
_SI_FROM = 1e6
"""Numbers of an input from which they have SI prefixes."""


def _axis(cases: Cases, column: str, **more: Any) -> alt.Axis:
    return alt.Axis(title=cases.label(column), format=cases.format(column), labelFlush=False, **more)


def _short(cases: Cases, column: str) -> dict[str, Any]:
    """Return how a label of a column's values is made of them, as a keyword; nothing where they are as they stand."""
    order = cases.order(column)
    short = {**shortened(value for value in order if isinstance(value, str))}
    short |= {str(value): f"{value:,}" for value in order if isinstance(value, int) and value >= 1000}
    written = f"({json.dumps(short)})[datum.label] || (datum.label)" if short else ""
    if any(isinstance(value, float) for value in order):
        written = "format(datum.value, '.4~g')"
    if cases.frame[column].isna().any():
        written = f"datum.value === null ? {json.dumps(_UNSET)} : {written or '(datum.label)'}"
    return {"labelExpr": written} if written else {}


def _called(cases: Cases, column: str) -> dict[str, Any]:
    """Return how titles of panels are made of values that are no names: with what they are of, as a keyword."""
    if any(isinstance(value, str) for value in cases.order(column)):
        return {}
    return {"labelExpr": f"{json.dumps(column_of(column).label + ' ')} + (datum.label)"}


def _names(channel: Any, cases: Cases, view: View, column: str) -> Any:
    """Return the axis of an input whose values are names, in the order of the file; slanted where they do not fit."""
    names = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in cases.order(column)]
    short = shortened(names)
    wide = _LETTER * max(len(short.get(name, name)) for name in names) * cases.frame[column].nunique()
    slanted = channel is alt.X and wide > cases.panels.widths[_columns(cases, view) - 1]
    axis = alt.Axis(
        title=cases.label(column), labelLimit=_LONGEST_LABEL, labelAngle=-35 if slanted else 0,
        **_short(cases, column),
    )  # fmt: skip
    return channel(f"{field_of(column)}:O", sort=cases.order(column), axis=axis)


def _series(channel: Any, cases: Cases, column: str, looks: Sequence[Any] = SERIES) -> Any:
    """Return the channel of an input by which series are told apart: a look for each value, in turn."""
    if not column:
        return alt.value(looks[0])
    order = cases.order(column)
    domain: list[Any] = order
    drawn: Any = [value for value in order if cases.frame[column].eq(value).any()]
    if cases.frame[column].isna().any():
        domain, drawn = [*order, None], alt.Undefined
    chosen = [looks[number % len(looks)] for number in range(len(domain))]
    return channel(
        f"{field_of(column)}:N", title=column_of(column).label, sort=order,
        scale=alt.Scale(domain=domain, range=chosen),
        legend=alt.Legend(labelLimit=_LONGEST_LABEL, values=drawn, **_short(cases, column)),
    )  # fmt: skip


def _marks(cases: Cases, column: str) -> tuple[alt.Chart, dict[str, Any]]:
    """Return marks of cases and their looks: a colour and a shape a series, open where much is an estimate."""
    chart = alt.Chart().mark_point(filled=False, opacity=1, size=cases.panels.mark, strokeWidth=cases.panels.line)
    return chart, {
        "stroke": _series(alt.Stroke, cases, column),
        "fill": alt.condition(ESTIMATED, alt.value("white"), _series(alt.Fill, cases, column)),
        "shape": _series(alt.Shape, cases, column, SHAPES),
    }


def _apart(cases: Cases, view: View, found: pd.DataFrame, *, log: bool) -> tuple[list[int], dict[str, Any]]:
    """Return of each case how many lines lie below its own, and a channel of marks, larger where others lie on them.

    So two series are both seen where one lies on the other: the later line is dashed, as its depth says.
    """
    if not view.colour:
        return [0] * len(found), {}
    values = found[view.y].to_numpy("float64")
    places = np.log(values) / _NEAR_LOG if log else values / (_NEAR * max(np.abs(values).max(initial=0.0), 1e-300))
    at = list(zip(*(found[name] for name in (view.facet, view.x) if name), strict=True))
    order = cases.order(view.colour)
    lines = [
        {at[row]: places[row] for row in np.flatnonzero(found[view.colour].eq(name).fillna(False))} for name in order
    ]
    depth = dict(zip(order, depths(lines, share=0.5), strict=True))
    larger = [1 + min(above, _LARGEST) * _LARGER for above in reversed(depths(lines[::-1]))]
    sizes = [cases.panels.mark * each**2 for each in larger]
    sized = {"size": _series(alt.Size, cases, view.colour, sizes)} if max(larger) > 1 else {}
    return [min(depth.get(name, 0), len(DASHES) - 1) for name in found[view.colour]], sized


def _estimates(view: View, drawn: pd.DataFrame) -> list[str]:
    """Say how cases look whose kernel times are estimates, if some are drawn."""
    many = "roofline_share" in drawn and bool((drawn["roofline_share"].astype("float64") >= MUCH).any())
    return [f"{_ESTIMATED[view.kind]}: {MUCH:.0%} or more of kernel time is an estimate"] if many else []


_ESTIMATED = {
    "line": "open marks",
    "bar": "pale bars",
    "heat_map": "~",
    "pareto": "open marks",
    "tornado": "open marks",
}
_UNSET = "unset"
"""Name of a series of cases that lack what colours it."""
_FRONT = "black edge and line: no other case beats these; pale: one does"
_LONGEST_LABEL = 400  # pixels
_LETTER = 6.5  # pixels
_BAR = 36  # pixels from an input of a tornado to the next
_NEAR, _NEAR_LOG = 0.025, 0.05  # within which marks hide each other: of the largest value, and of a logarithm
_LARGER, _LARGEST = 0.7, 3  # by how much a mark is wider for each that lies on it, up to so many
_PADDING = 6  # pixels between the first mark and an axis
_MUCH_LARGER = 4
"""Ratio of the largest values of two panels beyond which each has an axis and colours of its own."""
_FROM_ZERO = 0.8
"""Smallest value over the largest, up to which an axis of two results begins at zero."""


def _compares(cases: Cases, view: View, column: str) -> bool:
    """Whether a result of one panel compares to that of another: then a height or colour is one number in all panels.

    It does where it is a ratio, or where no panel's values are all much smaller than those of another.
    """
    if not view.facet or column_of(column).unit in ("", "x", "share"):
        return True
    largest = cases.frame.groupby(view.facet)[column].max()
    return bool(largest.min() * _MUCH_LARGER >= largest.max())


def _columns(cases: Cases, view: View) -> int:
    """Return how many panels stand side by side: one less than have room where that leaves fewer places empty."""
    if not view.facet:
        return 1
    many, most = cases.frame[view.facet].nunique(), len(cases.panels.widths)
    return min((min(most, many), max(1, min(most, many) - (most > 2))), key=lambda columns: (-many % columns, -columns))


def _panels(cases: Cases, view: View, layers: Sequence[alt.Chart], rows: pd.DataFrame, open_axes: Sequence[str]) -> Any:
    """Return layers over the same data as one chart, a panel for each value of the view's facet."""
    names = [column_of(name).label for name in open_axes]
    told = [f"only where {view.where}"] if view.where else []
    told += [f"the best over {', '.join(names)}"] if names else []
    told += [f"{column_of(one).label} goes with {', '.join(column_of(name).label for name in others)}"
             for one in view.columns if (others := cases.alike(one))]  # fmt: skip
    if unfit := cases.unfit():
        told.append(unfit)
    told += [_FRONT] if view.kind == "pareto" else []
    told += _estimates(view, rows)
    title = alt.TitleParams(view.title, subtitle=told, anchor="start")
    columns = _columns(cases, view)
    high = alt.Step(_BAR) if view.kind == "tornado" else cases.panels.height
    chart = alt.layer(*layers, data=rows).properties(width=cases.panels.widths[columns - 1], height=high)
    if not view.facet:
        return chart.properties(title=title)
    header = alt.Header(**(_short(cases, view.facet) or _called(cases, view.facet)))
    panel = alt.Facet(f"{field_of(view.facet)}:N", title=None, sort=cases.order(view.facet), header=header)
    faceted = chart.facet(panel, columns=columns).properties(title=title)
    if view.kind == "tornado":
        return faceted
    if cases.frame[view.facet].nunique() % columns:  # the axis of a column would lie below its empty place
        faceted = faceted.resolve_axis(x="independent")
    if view.kind == "heat_map":
        own = [] if _compares(cases, view, view.result) else ["color"]
    else:
        own = [] if _compares(cases, view, view.y) else ["y"]
        own += ["x"] if view.x and _has_own_range(cases, view.x) and not _compares(cases, view, view.x) else []
    alone: dict[str, Any] = dict.fromkeys(own, "independent")
    return faceted.resolve_scale(**alone) if own else faceted


def _has_own_range(cases: Cases, column: str) -> bool:
    """Whether a column is none of the inputs, and has numbers of its own in each panel; ranks are an input's."""
    return column not in (*cases.inputs, "ranks") and cases.numbers(column) is not None


def _lines(cases: Cases, view: View) -> Any:
    """Draw a result over a column, a line for each value of another; over names marks alone, which are in no order."""
    numbers = cases.numbers(view.x)
    shown = [name for name in (view.x, view.colour, view.facet) if name]
    found, open_axes = cases.best(shown, view.y)
    low, high = float(found[view.y].min()), float(found[view.y].max())
    log_y = low > 0 and high / low >= _LOG_FROM
    depth, sized = _apart(cases, view, found, log=log_y)
    rows = cases.rows(found).assign(depth=depth)
    if numbers is None:
        x = _names(alt.X, cases, view, view.x)
    else:
        rows = rows.assign(at=[numbers[value] for value in found[view.x]])
        x = _along(cases, view.x, sorted(set(rows["at"])))
    scale = alt.Scale(type="log") if log_y else alt.Scale(zero=True)
    y = alt.Y(f"{field_of(view.y)}:Q", axis=_axis(cases, view.y), scale=scale)
    dash = alt.StrokeDash("depth:O", scale=alt.Scale(domain=[*range(len(DASHES))], range=DASHES), legend=None)
    line = alt.Chart().mark_line(strokeWidth=cases.panels.line)
    line = line.encode(x=x, y=y, stroke=_series(alt.Stroke, cases, view.colour), strokeDash=dash)
    chart, looks = _marks(cases, view.colour)
    points = chart.encode(x=x, y=y, **looks, **sized, tooltip=cases.tooltip(view.y))
    return _panels(cases, view, (points,) if numbers is None else (line, points), rows, open_axes)


def _along(cases: Cases, column: str, ticks: Sequence[float]) -> alt.X:
    """Return the axis of numbers of a line: an input has ticks at its values."""
    if _has_own_range(cases, column):
        axis = _axis(cases, column, tickCount=5, grid=False)
        return alt.X("at:Q", scale=alt.Scale(zero=False, padding=_PADDING), axis=axis)
    log = ticks[0] > 0 and ticks[-1] / ticks[0] >= _LOG_FROM
    form = "," if ticks[-1] < _SI_FROM else ".4~s"  # an axis of logarithms would write one digit of its own format
    return alt.X(
        "at:Q",
        scale=alt.Scale(padding=_PADDING, nice=False, **({"type": "log", "base": 2} if log else {"zero": False})),
        axis=alt.Axis(
            title=cases.label(column), values=ticks, labelExpr=f"format(datum.value, '{form}')", grid=False
        ),
    )  # fmt: skip


def _bars(cases: Cases, view: View) -> Any:
    """Draw a bar for each value of an input, side by side for those of another."""
    shown = [name for name in (view.x, view.colour, view.facet) if name]
    found, open_axes = cases.best(shown, view.y)
    x = _names(alt.X, cases, view, view.x)
    y = alt.Y(f"{field_of(view.y)}:Q", axis=_axis(cases, view.y))
    pale = alt.condition(ESTIMATED, alt.value(PALE), alt.value(1.0))
    encoding: dict[str, Any] = {"x": x, "y": y, "color": _series(alt.Color, cases, view.colour), "opacity": pale}
    if view.colour:
        encoding["xOffset"] = alt.XOffset(f"{field_of(view.colour)}:N", sort=cases.order(view.colour))
    bars = alt.Chart().mark_bar().encode(**encoding, tooltip=cases.tooltip(view.y))
    return _panels(cases, view, (bars,), cases.rows(found), open_axes)


def _heat_map(cases: Cases, view: View) -> Any:
    """Draw a result by colour over two inputs, its number in each field."""
    result = view.result
    shown = [name for name in (view.x, view.y, view.facet) if name]
    found, open_axes = cases.best(shown, result)
    x, y = _names(alt.X, cases, view, view.x), _names(alt.Y, cases, view, view.y)
    high = column_of(result).better == "high"
    colour = alt.Color(
        f"{field_of(result)}:Q",
        scale=alt.Scale(scheme="viridis", reverse=not high),
        legend=alt.Legend(
            title=cases.label(result), titleLimit=0, format=cases.format(result).replace(".4~g", ",.3~r"), orient="top"
        ),
    )
    alone = not _compares(cases, view, result)  # a panel has colours of its own
    ends = found.groupby(view.facet)[result] if alone else found[result]
    middle = (ends.transform("min") + ends.transform("max")) / 2 if alone else (ends.min() + ends.max()) / 2
    found = found.assign(dark=found[result].lt(middle) if high else found[result].gt(middle))
    fields = alt.Chart().mark_rect().encode(x=x, y=y, color=colour, tooltip=cases.tooltip(result))
    form = cases.format(result).replace("~", "").replace(".4g", ",.3r").replace(".3f", ",.3r")
    told = f"({ESTIMATED} ? '~' : '') + format(datum['{field_of(result)}'], '{form}')"
    numbers = alt.Chart().mark_text(fontSize=9).transform_calculate(told=told).encode(
        x=x, y=y, text="told:N",
        color=alt.condition("datum.dark", alt.value("white"), alt.value(PUBLISHED)),
    )  # fmt: skip
    return _panels(cases, view, (fields, numbers), cases.rows(found), open_axes)


def _pareto(cases: Cases, view: View) -> Any:
    """Draw two results of cases that fit, and join those that no other beats; of equal ones the first is larger."""
    found = cases.frame
    groups = [found] if not view.facet else [group for _, group in found.groupby(view.facet, sort=False)]
    found = pd.concat([group.assign(front=_front(group, view.x, view.y)) for group in groups])
    found = found.sort_values("front", kind="stable")  # which is drawn over the others
    place = [name for name in (view.facet, view.x, view.y) if name]
    found = found.assign(over=found.groupby(place, dropna=False).cumcount(ascending=False).clip(upper=_LARGEST))
    sizes = [cases.panels.mark * (1 + _LARGER * over) ** 2 for over in range(_LARGEST + 1)]
    zero = {name: bool(found[name].min() < _FROM_ZERO * found[name].max()) for name in (view.x, view.y)}
    scales = {name: alt.Scale(zero=zero[name], nice=True, padding=0 if zero[name] else _PADDING) for name in zero}
    x = alt.X(f"{field_of(view.x)}:Q", axis=_axis(cases, view.x, tickCount=6), scale=scales[view.x])
    y = alt.Y(f"{field_of(view.y)}:Q", axis=_axis(cases, view.y, tickCount=6), scale=scales[view.y])
    chart, looks = _marks(cases, view.colour)
    looks["stroke"] = alt.condition("datum.front", alt.value(PUBLISHED), looks["stroke"])
    points = chart.encode(
        x=x, y=y, **looks, tooltip=cases.tooltip(view.x, view.y),
        opacity=alt.condition("datum.front", alt.value(1.0), alt.value(PALE)),
        size=alt.Size("over:O", scale=alt.Scale(domain=[*range(_LARGEST + 1)], range=sizes), legend=None),
    )  # fmt: skip
    line = alt.Chart().mark_line(color=PUBLISHED, strokeWidth=1).encode(x=x, y=y)
    line.mark.interpolate = "step-after" if column_of(view.x).better != "high" else "step-before"
    return _panels(cases, view, (line.transform_filter("datum.front"), points), cases.rows(found), ())


def _front(cases: pd.DataFrame, x: str, y: str) -> pd.Series:
    """Return which cases no other beats in both results; equal ones alike."""
    falls = {name: column_of(name).better != "high" for name in (x, y)}
    there = cases[[x, y]].astype("float64")
    sorted_ = there.sort_values([x, y], ascending=[falls[x], falls[y]], kind="stable")
    values = sorted_[y] if falls[y] else -sorted_[y]
    before = values.cummin().shift(fill_value=float("inf"))
    first = values < before
    return first.groupby([sorted_[x], sorted_[y]]).transform("any").reindex(cases.index)


def _tornado(cases: Cases, view: View) -> Any:
    """Draw how far a result moves as one input at a time leaves the reference, the best case of its panel that fits.

    A bar reaches over all values of its input; a mark stands for each of them, and words name those at its ends.
    """
    axes = {name: alike for name, alike in cases.axes.items() if name != view.facet and cases.has(name)}
    groups = [cases.frame] if not view.facet else [group for _, group in cases.frame.groupby(view.facet, sort=False)]
    found = pd.concat([_one_at_a_time(group, axes, view.y) for group in groups])
    if found.empty:
        return None
    order = found.groupby("axis")["change"].agg(lambda each: each.max() - each.min()).sort_values(ascending=False)
    written = "datum.value ? format(datum.value, '+.3~%') : '0%'"
    title = alt.Axis(title=f"change of {column_of(view.y).label} from the best case", labelExpr=written, tickCount=5)
    x = alt.X("change:Q", axis=title)
    y = alt.Y("axis:N", sort=list(order.index), axis=alt.Axis(title=None, labelLimit=_LONGEST_LABEL))
    change = alt.Tooltip("change:Q", format="+.1%")
    span = alt.Chart().mark_bar(color=IDLE, height=10).encode(
        x=alt.X("min(change):Q", axis=title), x2="max(change):Q", y=y
    )  # fmt: skip
    chart, looks = _marks(cases, "")
    marks = chart.encode(
        x=x, y=y, **looks,
        tooltip=[alt.Tooltip("axis:N"), alt.Tooltip("value:N"), change, *cases.tooltip(view.y)],
    )  # fmt: skip
    named = alt.Chart().mark_text(fontSize=9, align="left", dy=-11).transform_filter("datum.ends").encode(
        x=x, y=y, text="ends:N"
    )  # fmt: skip
    return _panels(cases, view, (span, marks, named), cases.rows(found), ())


def _one_at_a_time(cases: pd.DataFrame, axes: Mapping[str, Sequence[str]], result: str) -> pd.DataFrame:
    """Return the cases that differ from the best one in one input at most, with that input and the result's change.

    Inputs that vary together are one. `ends` names, at the least change, the values of the least and the largest.
    """
    number = cases[result].argmax() if column_of(result).better == "high" else cases[result].argmin()
    best = cases.iloc[int(number)]
    same = pd.DataFrame(
        {
            name: cases[name].eq(best[name]).fillna(False).astype(bool) | (cases[name].isna() & pd.isna(best[name]))
            for alike in axes.values()
            for name in alike
        }
    )
    rows = []
    for alike in axes.values():
        near = cases[same.drop(columns=alike).all(axis=1)]
        if len(near) > 1:
            change = near[result] / best[result] - 1
            label, words = ", ".join(column_of(name).label for name in alike), near[alike].astype(object).map(_worded)
            values = words.replace({alike[0]: shortened(words[alike[0]])}).agg(", ".join, axis=1)
            ends = pd.Series("", near.index)
            ends[change.idxmin()] = f"{values[change.idxmin()]} to {values[change.idxmax()]}"
            rows.append(near.assign(axis=label, value=values, change=change, ends=ends))
    return pd.concat(rows) if rows else cases.head(0).assign(axis="", value="", change=0.0, ends="")


def _worded(value: Any) -> str:
    return _UNSET if pd.isna(value) else str(value)


_KINDS = {"line": _lines, "bar": _bars, "heat_map": _heat_map, "pareto": _pareto, "tornado": _tornado}


def chart_of(cases: Cases, view: View) -> Any:
    """Return a view as an Altair chart; None if no case can be drawn, which `Cases.lack` explains."""
    chosen = cases.of(view)
    chart = None if chosen.frame.empty else _KINDS[view.kind](chosen, view)
    return None if chart is None else chart.configure(**STYLE)
