"""The pictures that a study's file asks for, and which columns each kind of picture takes.

What a column holds is known before any case runs, so that a picture that cannot be drawn is refused before. Knows
neither cases nor charts.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from scaleout.config.reading import nearest
from scaleout.config.validated import Config
from scaleout.errors import ConfigError, shown
from scaleout.study.sweep.columns import Kind, is_result


class View(Config):
    """A picture of the report: what is drawn over what."""

    kind: Literal["line", "bar", "heat_map", "pareto", "tornado"] = Field(description="kind of picture")
    x: str = Field(default="", description="column along the horizontal axis")
    y: str = Field(default="", description="column along the vertical axis")
    colour: str = Field(default="", description="column by which it is coloured")
    facet: str = Field(default="", description="column with a panel for each value")
    title: str = Field(default="", description="words above it")
    where: str = Field(default="", description="constraint on the cases that it shows")

    @property
    def result(self) -> str:
        """The column of numbers by which the best of several cases is drawn."""
        return (self.colour or "makespan_s") if self.kind == "heat_map" else self.y

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it draws."""
        named = (self.x, self.y, self.colour, self.facet, self.result)
        return tuple(dict.fromkeys(name for name in named if name))


_CHANNELS = ("x", "y", "colour", "facet")
_AXES: Mapping[str, Mapping[str, str]] = {
    "line": {"x": "anything", "y": "numbers"},
    "bar": {"x": "names", "y": "numbers"},
    "heat_map": {"x": "names", "y": "names"},
    "pareto": {"x": "numbers", "y": "numbers"},
    "tornado": {"y": "numbers"},
}
"""Kind of picture to the axes that it must have, and what each takes: `names` are values that cases share."""
_MAY: Mapping[str, Mapping[str, str]] = {
    **{kind: {"colour": "names", "facet": "names"} for kind in ("line", "bar", "pareto")},
    "heat_map": {"colour": "numbers", "facet": "names"},
    "tornado": {"facet": "names"},
}
"""Kind of picture to what it may have besides."""


def check_view(view: View, kinds: Mapping[str, Kind], *, where: str) -> None:
    """Refuse a view that lacks a column, or whose columns are none or not of what its kind takes (`ConfigError`)."""
    must, takes = _AXES[view.kind], {**_AXES[view.kind], **_MAY[view.kind]}
    for channel in _CHANNELS:
        column, at = getattr(view, channel), f"{where}.{channel}"
        if column and column not in kinds:
            raise ConfigError(f"{at}: unknown column {shown(column)}; {nearest(column, kinds)}")
        if column and channel not in takes:
            raise ConfigError(f"{at}: a {_said(view)} has no {channel}; leave it out, or give another kind")
        if channel in must and not column:
            raise ConfigError(f"{at}: is missing; give the column of a {_said(view)}, {_EXAMPLES[takes[channel]]}")
        if column:
            check_column(column, takes[channel], kinds[column], where=at)
    if view.x and view.x == view.y:
        raise ConfigError(f"{where}: x and y are one column, {view.x!r}; give two")


_EXAMPLES: Mapping[str, str] = {
    "anything": "such as an input",
    "names": "such as an input, for example schedule",
    "numbers": "such as makespan_s",
}


def check_column(column: str, takes: str, kind: Kind, *, where: Any) -> None:
    """Refuse a column that is not of what an axis takes (`ConfigError`)."""
    if takes == "numbers" and kind != "numbers":
        raise ConfigError(
            f"{where}: {column!r} holds no numbers, but {kind}; give a column of numbers, such as makespan_s"
        )
    if takes == "names" and is_result(column):
        raise ConfigError(
            f"{where}: {column!r} is a result, which hardly two cases share; give an input, for example schedule"
        )


def _said(view: View) -> str:
    return view.kind.replace("_", " ")
