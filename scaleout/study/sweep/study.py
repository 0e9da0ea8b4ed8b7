"""A study's file to a `Study`: the inputs of its cases, constraints, derived columns, baseline and views.

See `grid` for how keys become cases. A file is the user's, or shipped in ``workloads/studies``.
"""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from scaleout.analysis.goodput import RESTART_S
from scaleout.config import library
from scaleout.config.reading import nearest
from scaleout.config.units import (
    BYTES_PER_S,
    SECONDS,
    Count,
    CountOrZero,
    Duration,
    Failures,
    Quantity,
    Seconds,
    ShareOrZero,
    Slowdown,
    Tokens,
    parse,
)
from scaleout.config.validated import Config, Text, read_yaml, validate
from scaleout.errors import ConfigError, shown
from scaleout.study.sweep import expressions
from scaleout.study.sweep.cases import check_names
from scaleout.study.sweep.columns import BEFORE, COLUMNS, DIMENSION_BYTES, Kind, kind_of
from scaleout.study.sweep.expressions import Expression
from scaleout.study.sweep.grid import Block, Grid, Value, everything, grids_of, numbered, place
from scaleout.study.sweep.views import View, check_view

ASKS_FROM = 1_000_000
"""Cases from which a study asks first."""
WITHIN = 0.05
"""Of the fastest case, by how much one on the cheapest network may be slower."""
_TRIES = 20
"""Times as many cases as a sample wants are drawn for it, where constraints leave some out."""
_MOST_CASES = 10**15
_MOST_EXPRESSIONS = 100
"""Constraints, derived columns and views of a study."""


class Sample(Config):
    """So many cases of all, at random."""

    count: Count = Field(description="cases")
    seed: CountOrZero = Field(default=0, description="of the random choice")


class Losses(Config):
    """What training loses besides the step: see `analysis.goodput`; what is not given is as the machine's files say."""

    checkpoint: Duration = Field(description="how long training waits for a checkpoint")
    restart: Seconds = Field(default=RESTART_S, description="from a failure until training goes on")
    interval: Duration | None = Field(default=None, description="training between checkpoints; the best if unset")
    failures: Failures | None = Field(default=None, description="of a device with its ports; its file's if unset")
    jitter: ShareOrZero | None = Field(default=None, description="of a rank's compute; the device's if unset")
    stragglers: ShareOrZero = Field(default=0.0, description="share of ranks that are slow")
    straggler_slowdown: Slowdown = Field(default=1.0, description="how many times as long they take")
    tokens: Tokens | None = Field(default=None, description="of the whole training")
    seed: CountOrZero = Field(default=0, description="of the random samples")


def _list_of(given: Any) -> Any:
    return given if isinstance(given, list | tuple) else [given]


class StudyFile(Block):
    """What a study's file holds."""

    title: Text = Field(default="", description="what it asks, in a line; its name if unset")
    description: str = Field(default="", description="what it is, in sentences")
    source: str = Field(default="", description="where it is from")
    cases: tuple[Block, ...] = Field(default=(), description="grids of their own, over the keys beside them")
    sample: Sample | None = Field(default=None, description="so many cases of all, at random; all if unset")
    where: Annotated[tuple[Text, ...], Field(max_length=_MOST_EXPRESSIONS), BeforeValidator(_list_of)] = Field(
        default=(), description="constraints: a case is left out where one is false"
    )
    columns: dict[Text, Text] = Field(
        default_factory=dict, max_length=_MOST_EXPRESSIONS, description="derived column to its expression"
    )
    goodput: Losses | None = Field(default=None, description="what training loses besides steps, for further columns")
    within: ShareOrZero = Field(
        default=WITHIN, description="by how much the cheapest network may be slower than the fastest"
    )
    baseline: dict[Text, Any] = Field(
        default_factory=dict, description="column to its value in the cases to which the others are compared"
    )
    views: Annotated[tuple[View, ...], Field(max_length=_MOST_EXPRESSIONS)] = Field(
        default=(), description="pictures of the report"
    )
    timelines: Literal["best", "all", "none"] = Field(
        default="best", description="cases of which a timeline is written: the best of each workload, all or none"
    )


@dataclass(frozen=True, eq=False)
class Study:
    """A study, read and checked.

    Attributes
    ----------
    where : constraints on the inputs and on `BEFORE`; a case is left out where one of them is false
    columns : derived columns, name to expression
    baseline : input column to its value in the cases to which the others are compared
    """

    name: str
    file: StudyFile
    grids: tuple[Grid, ...]
    where: tuple[Expression, ...]
    expressions: Mapping[str, Expression]

    @property
    def title(self) -> str:
        """What it asks, in a line."""
        return self.file.title or self.name

    @property
    def description(self) -> str:
        """What it is, in sentences."""
        return self.file.description

    @property
    def source(self) -> str:
        """Where it is from."""
        return self.file.source

    @property
    def views(self) -> tuple[View, ...]:
        """Pictures that its file asks for."""
        return self.file.views

    @property
    def columns(self) -> Mapping[str, str]:
        """Derived columns, name to expression."""
        return self.file.columns

    @property
    def baseline(self) -> Mapping[str, Value]:
        """Input column to its value in the cases that others are compared to."""
        return self.file.baseline

    @cached_property
    def size(self) -> int:
        """Cases before constraints and a sample."""
        return sum(map(len, self.grids))

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Columns of inputs, in the order of the table."""
        columns = dict.fromkeys(column for grid in self.grids for axis in grid.axes for column in axis.columns)
        return tuple(sorted((*columns, *(each for each in ALWAYS if each not in columns)), key=place))

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """What each column of the table holds: an input what its values are, a derived column what it can be."""
        types = {name: {_TYPES[kind_of(name, ())]} for name in (*COLUMNS, *_DIMENSIONS)}
        types |= {name: {str} if name in ALWAYS else set() for name in self.inputs}
        for grid in self.grids:
            for column, values in grid.values.items():
                types[column] |= {type(value) for value in values if value is not None}
        for name, expression in self.expressions.items():
            types[name] = {*expression.types(types)}
        return {name: kind_of(name, each) for name, each in types.items()}

    @cached_property
    def axes(self) -> dict[str, tuple[Value, ...]]:
        """Input columns that vary, to their values in the order of the file; not those that the workload decides."""
        found: dict[str, dict[Value, None]] = {column: {} for column in self.inputs}
        of_workload: dict[str, dict[Value, set[Value]]] = {column: {} for column in self.inputs}
        for grid in self.grids:
            values = grid.values
            for column in self.inputs:
                mine = values.get(column, (None,))
                found[column] |= dict.fromkeys(values.get(column, ()))
                for workload in values["workload"]:
                    of_workload[column].setdefault(workload, set()).update(mine)
        alone = {column for column, each in of_workload.items() if all(len(mine) == 1 for mine in each.values())}
        return {
            column: tuple(values)
            for column, values in found.items()
            if (len(values) > 1 if column == "workload" else column not in alone)
        }

    def numbers(self, column: str) -> dict[Value, float] | None:
        """Return what to plot for the values of an axis that are texts with numbers: factors, B/s or s; else None."""
        try:
            found: dict[Value, float] = {
                value: _number(column, value) for value in self.axes.get(column, ()) if value is not None
            }
        except (ConfigError, ValueError, ArithmeticError):
            return None
        return found if found and all(map(math.isfinite, found.values())) else None

    def every_case(self) -> Iterator[tuple[int, dict[str, Value]]]:
        """Yield number and inputs of the cases in the file's order, or in a random one for a sample to take from."""
        if self.file.sample is None:
            yield from enumerate(everything(self.grids))
            return
        most = min(self.size, _TRIES * int(self.file.sample.count))
        for number in random.Random(self.file.sample.seed).sample(range(self.size), most):
            yield number, numbered(self.grids, number)


_DIMENSIONS = tuple(f"{DIMENSION_BYTES}{number}" for number in range(8))
_TYPES: Mapping[Kind, type] = {"numbers": float, "truth values": bool, "texts": str}

ALWAYS = ("workload", "topology", "device", "schedule", "network")
"""Inputs that stand in every table."""

_QUANTITIES: Mapping[str, Quantity] = {
    "bandwidth": BYTES_PER_S, "injection": BYTES_PER_S, "degrade": BYTES_PER_S, "latency": SECONDS,
}  # fmt: skip


def _number(column: str, value: Value) -> float:
    key = column.partition(".")[0]
    if key == "taper" and isinstance(value, str):
        up, _, down = value.partition("@")[0].partition(":")
        return float(up) / float(down or 1)
    if isinstance(value, str) and value.endswith("x"):
        return float(value[:-1])
    if isinstance(value, bool | tuple) or value is None:
        raise ValueError(value)
    if isinstance(value, str) and key in _QUANTITIES:
        return parse(value, _QUANTITIES[key])
    return float(value)


def load_study(name_or_file: str | Path) -> Study:
    """Read a study by the name of a shipped one or by its file.

    Raises
    ------
    ConfigError
        If there is none, or a key, an expression or a column in it is wrong.
    """
    path = library.find("study", str(name_or_file))
    values = read_yaml(path)
    library.check_kind(values, "study", where=str(path))
    if "like" in values:
        raise ConfigError(f"{path}: a study is like no other; copy its file, and change the copy")
    return study_of(values, name=path.stem, where=str(path))


def study_of(values: Mapping[str, Any], *, name: str, where: str) -> Study:
    """Return the study of plain values, as a file or a program gives them; `ConfigError` if one is wrong."""
    file = validate(StudyFile, values, where=where)
    grids = tuple(grids_of(file, file.cases))
    constraints = tuple(expressions.parse(text, where=f"{where}: where") for text in file.where)
    derived = {key: expressions.parse(text, where=f"{where}: columns.{key}") for key, text in file.columns.items()}
    study = Study(name, file, grids, constraints, derived)
    _check_size(study, where)
    _check_columns(study, where)
    _check_names(study, where)
    return study


def _check_size(study: Study, where: str) -> None:
    if study.size > _MOST_CASES:
        raise ConfigError(f"{where}: its lists make more than {_MOST_CASES:.0e} cases; give fewer, or a study for each")
    if any("workload" not in grid.values for grid in study.grids):
        raise ConfigError(f"{where}: key 'workload' is missing; add one, or a list (`scaleout list workloads`)")


def _check_columns(study: Study, where: str) -> None:
    """Refuse constraints, derived columns, a baseline and views of columns that are not there."""
    known = {*COLUMNS, *_DIMENSIONS, *study.inputs}
    for key in study.expressions:
        if key in known or not all(part.isidentifier() and not iskeyword(part) for part in key.split(".")):
            raise ConfigError(f"{where}: columns.{key}: is the name of a column already, or no name; give another")
    shown_where = [
        expressions.parse(view.where, where=f"{where}: views.{number}")
        for number, view in enumerate(study.views)
        if view.where
    ]
    for example in _examples(study):
        for each in study.where:
            _check_constraint(each, {name: example[name] for name in (*study.inputs, *BEFORE)})
        if any(each(example) is False for each in study.where):  # it is left out
            example = dict.fromkeys(example)  # noqa: PLW2901 - names alone are checked
        for key, each in study.expressions.items():
            each.check(example)
            example[key] = each(example)
        for each in shown_where:
            _check_constraint(each, example)
    for number, view in enumerate(study.views):
        check_view(view, study.kinds, where=f"{where}: views.{number}")
    _check_baseline(study, where)


def _check_baseline(study: Study, where: str) -> None:
    for column, value in study.baseline.items():
        if column not in study.axes:
            raise ConfigError(
                f"{where}: baseline: {column!r} does not vary in this study; {nearest(column, study.axes)}"
            )
        if value not in study.axes[column]:
            raise ConfigError(
                f"{where}: baseline.{column}: no case has {value!r}; "
                f"{nearest(str(value), map(str, study.axes[column]))}"
            )


def _examples(study: Study) -> Iterator[dict[str, Any]]:
    """Yield a value of each column but expressions: inputs of a case for each type of value, results of their type."""
    plain: dict[Kind, Any] = {"texts": "", "truth values": True, "numbers": 1.0}
    results = {name: plain[kind_of(name, ())] for name in (*COLUMNS, *_DIMENSIONS)} | dict.fromkeys(study.inputs)
    for grid in study.grids:
        first = results | grid.at(0)
        yield dict(first)
        for axis in grid.axes:
            of_types = {tuple(map(type, row)): row for row in reversed(axis.rows)}  # the first of each
            for row in of_types.values():
                if row is not axis.rows[0]:
                    yield first | dict(zip(axis.columns, row, strict=True))


def _check_constraint(constraint: Expression, example: Mapping[str, Any]) -> None:
    if not constraint.names:
        raise ConfigError(f"{constraint.where}: {shown(constraint.text)} names no column; write it as `ranks == 128`")
    constraint.check(example)


def _check_names(study: Study, where: str) -> None:
    try:
        check_names(study.grids)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
