"""Keys of a study file to the inputs of its cases: grids, lists that go together, and grids of their own.

A case's inputs are a flat mapping, column to value: ``workload``, ``topology``, ``set.global_batch``, ``bandwidth.0``.
Cases are counted and found by their number, without those before, so that a few of a billion cost no more than a few.
Knows neither what the values mean nor how a case is run.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from scaleout.config.documents import LARGEST_INTEGER, MOST_LEVELS
from scaleout.config.validated import Config
from scaleout.errors import shown

Value = str | int | float | bool | None | tuple[Any, ...]
"""Of an input; a tuple is one value, such as the layers of each stage."""
Inputs = Mapping[str, Value]

PLAIN = (
    "label", "workload", "device", "gpus", "host", "clocks", "placement", "topology", "nodes", "nic_down", "break",
    "policy", "injection", "network", "contention", "ideal", "schedule",
)  # fmt: skip
"""Keys with a value or a list."""
KEYED = ("set", "bandwidth", "latency", "taper", "degrade", "slow", "algorithm")
"""Keys with a mapping, each of whose entries has a value or a list."""
ORDER = (
    "label", "workload", "device", "gpus", "set", "host", "clocks", "placement", "topology", "nodes", "taper",
    "bandwidth", "latency", "nic_down", "degrade", "break", "slow", "policy", "injection", "network", "algorithm",
    "contention", "ideal", "schedule",
)  # fmt: skip
"""Of inputs; in a grid the last varies fastest, so that cases of one program follow each other."""


def _several(given: Any) -> tuple[Value, ...]:
    """Return a value or a list as a tuple of values; a list within it is one value."""
    values = given if isinstance(given, list | tuple) else [given]
    if not values:
        raise ValueError("is an empty list; give at least one value, or leave the key out")
    return tuple(map(value_of, values))


def value_of(value: Any, levels: int = MOST_LEVELS) -> Value:
    """Return a value of YAML or JSON as one of an input; `ValueError` if it is none, such as a mapping."""
    if isinstance(value, list | tuple) and levels:
        return tuple(value_of(each, levels - 1) for each in value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float) and not abs(value) <= LARGEST_INTEGER:
        raise ValueError(f"{shown(value)} is no number of at most 64 bits; give one")
    if value is None or isinstance(value, int | float):
        return value
    raise ValueError(f"{shown(value)} is no value; give a text, a number, true or false, or a list of such")


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which no table holds
        raise ValueError(f"{shown(value)} is no text in UTF-8; mend it") from None
    return value


Several = Annotated[tuple[Any, ...], BeforeValidator(_several)]
Keyed = dict[str, Several]


def _named(given: Any) -> Any:
    """Return a mapping with its keys as texts; dimensions and ranks are numbers in YAML."""
    return {_text(str(key)): value for key, value in given.items()} if isinstance(given, Mapping) else given


NamedKeys = Annotated[Keyed, BeforeValidator(_named)]


class Varied(Config):
    """Keys that a study file, each of its cases, and lists that go together have."""

    label: Several = Field(default=(), description="words for a case")
    workload: Several = Field(default=(), description="name or file of the workload")
    device: Several = Field(default=(), description="name or file of the device; the workload's if unset")
    gpus: Several = Field(
        default=(),
        description="ranks, by as many replicas and nodes of the topology, or of the device's own network",
    )
    host: Several = Field(
        default=(),
        description="CPU launch overhead: none, eager, blocking or checking; if unset as the device's file has it",
    )
    clocks: Several = Field(
        default=(),
        description="GPU clocks: unthrottled, sustained or cold_start; if unset as the device's file has its power",
    )
    placement: Several = Field(
        default=(), description="on which rank of the topology each rank of the job runs, such as linear"
    )
    topology: Several = Field(
        default=(), description="name, file or expression of the topology; the workload's if unset"
    )
    nodes: Several = Field(default=(), description="size of the outermost dimension")
    nic_down: Several = Field(default=(), description="rank whose network card is down")
    break_: Several = Field(default=(), alias="break", description="link that is broken, such as 3-4")
    policy: Several = Field(default=(), description="which back end serves all-reduces")
    injection: Several = Field(default=(), description="total egress limit of a rank, such as 400 Gb/s")
    network: Several = Field(default=(), description="network model: alpha_beta or link")
    contention: Several = Field(default=(), description="whether kernels and collectives slow each other down")
    ideal: Several = Field(default=(), description="true leaves out host, sustained clocks and contention")
    schedule: Several = Field(default=(), description="how communication is overlapped, fused or partitioned")
    set: NamedKeys = Field(default_factory=dict, description="key of the workload to its values")
    bandwidth: NamedKeys = Field(default_factory=dict, description="dimension to its bandwidth, such as 2x or 400Gb/s")
    latency: NamedKeys = Field(default_factory=dict, description="dimension to its latency, such as 0.5x or 700ns")
    taper: NamedKeys = Field(default_factory=dict, description="dimension to its ratio, such as 2:1")
    degrade: NamedKeys = Field(default_factory=dict, description="link to what is left of it, such as 0.5 or 10 GB/s")
    slow: NamedKeys = Field(default_factory=dict, description="rank to how many times as long its kernels take")
    algorithm: NamedKeys = Field(default_factory=dict, description="kind of collective to its algorithm, such as ring")

    @property
    def varied(self) -> dict[str, tuple[Value, ...]]:
        """Column to its values, in the order of the keys."""
        found: dict[str, tuple[Value, ...]] = {}
        for key in ORDER:
            given = getattr(self, "break_" if key == "break" else key)
            if key in KEYED:
                found |= {f"{key}.{name}": values for name, values in given.items()}
            elif given:
                found[key] = given
        return found


class Zip(Varied):
    """Lists of one length that go together."""

    @model_validator(mode="after")
    def _is_even(self) -> "Zip":
        lengths = {column: len(values) for column, values in self.varied.items()}
        if not lengths:
            raise ValueError("has no lists; give two or more that go together")
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{column} {length}" for column, length in lengths.items())
            raise ValueError(f"lists that go together are of one length, and these have {said}; make them as long")
        return self


def _as_list(given: Any) -> Any:
    return given if isinstance(given, list | tuple) else [given]


class Block(Varied):
    """A grid, with the lists that go together in it."""

    zip: Annotated[tuple[Zip, ...], BeforeValidator(_as_list)] = Field(
        default=(), description="lists of one length that go together, instead of each with each"
    )

    @model_validator(mode="after")
    def _says_once(self) -> "Block":
        seen: dict[str, str] = dict.fromkeys(self.varied, "beside zip")
        for number, each in enumerate(self.zip):
            for column in each.varied:
                if column in seen:
                    raise ValueError(f"{column} stands in zip and {seen[column]}; give it once")
                seen[column] = f"in another zip (the one before number {number})"
        return self


@dataclass(frozen=True)
class Axis:
    """Columns that vary together, and their values, one row a step."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True)
class Grid:
    """Axes, the last of which varies fastest."""

    axes: tuple[Axis, ...]

    def __len__(self) -> int:
        return math.prod(len(axis.rows) for axis in self.axes)

    @property
    def values(self) -> dict[str, tuple[Value, ...]]:
        """Column to all its values."""
        return {
            column: tuple(dict.fromkeys(row[number] for row in axis.rows))
            for axis in self.axes
            for number, column in enumerate(axis.columns)
        }

    def at(self, number: int) -> dict[str, Value]:
        """Return the inputs of a case of the grid."""
        rows: list[tuple[Value, ...]] = []
        for axis in reversed(self.axes):
            number, row = divmod(number, len(axis.rows))
            rows.append(axis.rows[row])
        return {column: rows[axis][place] for column, axis, place in self._places}

    @cached_property
    def _places(self) -> list[tuple[str, int, int]]:
        """Columns in their order, each with its axis, from the last, and its place in the rows of that."""
        last = len(self.axes) - 1
        found = [
            (column, last - number, each)
            for number, axis in enumerate(self.axes)
            for each, column in enumerate(axis.columns)
        ]
        return sorted(found, key=lambda item: place(item[0]))


def grids_of(base: Block, cases: Sequence[Block]) -> list[Grid]:
    """Return the grid of a file, or one for each of its cases: what it says over what the file says.

    What a case says of a column is in the place of all that the file says of it, be it in a list of its own or in one
    that goes together with others.

    >>> base = Block(workload=["a"], set={"x": [1, 2]})
    >>> [len(grid) for grid in grids_of(base, [Block(set={"x": 3}), Block(set={"y": [1, 2, 3]})])]
    [1, 6]
    """
    return [_grid(base, case) for case in cases] if cases else [_grid(base, Block())]


def _grid(base: Block, case: Block) -> Grid:
    said = {*case.varied, *(column for each in case.zip for column in each.varied)}
    together = [each.varied for each in case.zip]
    together += [kept for each in base.zip if (kept := _without(each.varied, said))]
    zipped = {column for each in together for column in each}
    alone = {**_without(base.varied, {*said, *zipped}), **case.varied}
    axes = [Axis(tuple(each), tuple(zip(*each.values(), strict=True))) for each in together]
    axes += [Axis((column,), tuple((value,) for value in alone[column])) for column in sorted(alone, key=place)]
    return Grid(tuple(sorted(axes, key=lambda axis: place(axis.columns[0]))))


def _without(varied: Mapping[str, tuple[Value, ...]], said: set[str]) -> dict[str, tuple[Value, ...]]:
    return {column: values for column, values in varied.items() if column not in said}


def place(column: str) -> int:
    """Return where a column stands in `ORDER`; those of one key stay in the order of the file."""
    return ORDER.index(column.partition(".")[0])


def numbered(grids: Sequence[Grid], number: int) -> dict[str, Value]:
    """Return the inputs of a case of several grids, one after the other."""
    for grid in grids:
        if number < len(grid):
            return grid.at(number)
        number -= len(grid)
    raise IndexError(number)


def everything(grids: Sequence[Grid]) -> Iterator[dict[str, Value]]:
    """Yield the inputs of all cases."""
    for grid in grids:
        yield from map(grid.at, range(len(grid)))
