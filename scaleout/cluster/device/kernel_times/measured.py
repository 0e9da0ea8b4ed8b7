"""Measured kernel times: files to look-up tables, and the times of exactly those kernels that were measured.

A file holds one JSON object a line: first ``{"provenance": {...}}``, then rows ``{"op", "dtype", "shape": {...}, "us",
"method", "launches"}``, the last two optional; sizes and `us` (and `launches`) may be lists, a column of measurements.
Of repeats the median counts; of several files the first; of several methods of a file the one with the most rows.
Estimates nothing and fills no gap.

Symbols: a series is one operation in one dtype; a source is a file and a method; S measurements of a series.
Source: the provenance line of each file.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.cluster.device.kernel_times.model import Array, Calls, Key, Shape
from scaleout.cluster.device.sections import Power
from scaleout.cluster.device.spec import Device
from scaleout.config.documents import read_json_lines
from scaleout.config.units import MOST_COUNT
from scaleout.config.validated import nearest
from scaleout.errors import ConfigError, shown
from scaleout.program.operations import ITEM_BYTES, OPERATIONS, kernel

SOURCE = "measured"

Source = tuple[int, str]
"""Number of the file, and the method."""
WARM = "kernel_durations"
"""The method of rows that ran over the same buffers again and again."""
FULL_CLOCK = (WARM, "rested_replay")
"""Methods of rows that were over before the power limit lowers the clock."""
UNLIMITED = "unlimited"
"""The method of rows whose operands draw too little for the power limit; they count as slowed down by it."""
SHORTEST_US, LONGEST_US, MOST_LAUNCHES = 1e-6, 1e12, 10**6
"""What times, in microseconds, and launches of one call may be."""


def times(device: Device, calls: Calls) -> Array:
    """Return the measured seconds of calls over the device's calibration, shape (N,); NaN for sizes not measured."""
    table = table_of(device)
    if calls.key not in table.rows:
        return np.full(len(calls.bytes), np.nan)
    exact = table.series(calls.key).exact
    return np.array([exact.get(shape, np.nan) for shape in calls.shapes()]) / device.calibrated(calls.op)


def table_of(device: Device) -> "KernelTable":
    """Return all kernels that were measured on a device; see `read_table`."""
    return _at_limit(device.kernel_files, device.power)


class Rows(NamedTuple):
    """Measurements of one series from one source, as they stand in the file."""

    shapes: list[Shape]
    microseconds: list[float]
    launches: list[float]


class Series(NamedTuple):
    """All measurements of one operation in one dtype."""

    calls: Calls  # what was measured, S calls; `launches` is the median over the rows that say so
    seconds: Array  # (S,)
    # (S,); 0 for the source that estimates follow, the one with most rows in the first file; others count up from 1
    sources: npt.NDArray[np.int64]
    full_clock: npt.NDArray[np.bool_]  # (S,); whether the power limit had not lowered the clock yet
    exact: Mapping[Shape, float]  # sizes to seconds: of each shape, its first source

    def alike(self, calls: Calls) -> Calls:
        """Return calls as the first source makes them: as many launches, and from the L2 cache if it reuses buffers."""
        warm = np.full(len(calls.bytes), self.calls.warm[0])
        return calls._replace(launches=self.calls.launches, warm=warm)


@dataclass(frozen=True, eq=False)
class KernelTable:
    """All measured kernels of a device."""

    rows: Mapping[Key, Mapping[Source, Rows]]
    power: Power | None = None
    _series: dict[Key, Series] = field(default_factory=dict, repr=False)

    def series(self, key: Key) -> Series:
        """Return all measurements of an operation in a dtype, which must be in `rows`."""
        if key not in self._series:
            self._series[key] = _gathered(key, _limited(key, self.rows[key], self.power))
        return self._series[key]

    @functools.cached_property
    def shortest_s(self) -> float:
        """The shortest time of any kernel: what a launch costs however little it does."""
        every = (min(rows.microseconds) for sources in self.rows.values() for rows in sources.values())
        return 1e-6 * min(every, default=0.0)


@functools.cache
def _at_limit(files: tuple[Path, ...], power: Power | None) -> KernelTable:
    return KernelTable(read_table(files).rows, power)


def _limited(key: Key, sources: Mapping[Source, Rows], power: Power | None) -> Mapping[Source, Rows]:
    """Return rows by source: those that no limit slowed down as they would be at it, among the others of their file.

    On a device whose file says nothing of power they stay as they are.
    """
    (op, dtype), found = key, dict[Source, Rows]()
    for (number, method), rows in sources.items():
        us = rows.microseconds
        if method == UNLIMITED and power is not None:
            named = [dict(zip(OPERATIONS[op].parameters, shape, strict=True)) for shape in rows.shapes]
            calls = [kernel(op, dtype=dtype, **sizes) for sizes in named]
            us = [1e6 * power.at_limit_s(call, 1e-6 * one) for call, one in zip(calls, us, strict=True)]
        same = found.setdefault((number, "" if method == UNLIMITED else method), Rows([], [], []))
        same.shapes.extend(rows.shapes)
        same.microseconds.extend(us)
        same.launches.extend(rows.launches)
    return found


def _gathered(key: Key, sources: Mapping[Source, Rows]) -> Series:
    op, dtype = key
    operation = OPERATIONS[op]
    ordered = sorted(sources, key=lambda source: (source[0], -len(sources[source].shapes)))
    each = [_merged(sources[source]) for source in ordered]
    counts = [len(found) for found in each]
    exact = {shape: seconds for found in reversed(each) for shape, seconds in found.items()}
    shapes = [shape for found in each for shape in found]
    named = [dict(zip(operation.parameters, shape, strict=True)) for shape in shapes]
    launches = [count for rows in sources.values() for count in rows.launches]
    calls = Calls(
        op,
        dtype,
        dict(zip(operation.parameters, np.array(shapes, dtype=np.float64).T, strict=True)),
        np.array([operation.flops(sizes) for sizes in named], dtype=np.float64),
        np.array([operation.bytes(sizes, ITEM_BYTES[dtype]) for sizes in named], dtype=np.float64),
        np.repeat([method == WARM for _, method in ordered], counts),
        median(launches) if launches else 1.0,
    )
    seconds = np.array([one for found in each for one in found.values()])
    full_clock = np.repeat([method in FULL_CLOCK for _, method in ordered], counts)
    return Series(calls, seconds, np.repeat(np.arange(len(ordered)), counts), full_clock, exact)


def _merged(rows: Rows) -> dict[Shape, float]:
    """Return the seconds of each shape: the median where it was measured more than once."""
    repeats: dict[Shape, list[float]] = {}
    for shape, us in zip(rows.shapes, rows.microseconds, strict=True):
        repeats.setdefault(shape, []).append(us)
    return {shape: 1e-6 * (median(several) if len(several) > 1 else several[0]) for shape, several in repeats.items()}


@functools.cache
def read_table(files: tuple[Path, ...]) -> KernelTable:
    """Read the measured kernel times of a device; refuse files without provenance and rows of any other form."""
    found: dict[Key, dict[Source, Rows]] = {}
    for number, path in enumerate(files):
        rows = read_json_lines(path)
        if "provenance" not in next(rows, ("", {}))[1]:
            raise ConfigError(f'{path}: line 1 must be {{"provenance": {{...}}}}: say what was measured, and how')
        for where, row in rows:
            try:
                _add(found, row, number)
            except (KeyError, TypeError, ValueError):
                raise ConfigError(f"{where}: {_fault(row)}") from None
    return KernelTable(found)


def _add(found: dict[Key, dict[Source, Rows]], row: Mapping[str, Any], number: int) -> None:
    """Add a row of a file, or a column of them, to the measurements of its series; one of any other form raises."""
    key, shape, us = (row["op"], row["dtype"]), row["shape"], _column(row["us"])
    parameters = OPERATIONS[row["op"]].parameters
    sizes = [_column(shape[name]) for name in parameters]
    named = zip(parameters, sizes, strict=True)
    launches = _launches(row)
    method = row.get("method", "")
    if not us or len(us) != len(sizes[0]) or len(shape) != len(sizes) or key[1] not in ITEM_BYTES:
        raise ValueError
    if launches is None or not isinstance(method, str) or not _are_times(us):
        raise ValueError
    if not all(_are_counts(column, MOST_COUNT, least=name != "causal") for name, column in named):
        raise ValueError
    rows = found.setdefault(key, {}).setdefault((number, method), Rows([], [], []))
    rows.shapes.extend(zip(*sizes, strict=True))
    rows.microseconds.extend(us)
    rows.launches.extend(launches)


def _column(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _launches(row: Mapping[str, Any]) -> list[Any] | None:
    """Return what a row says of launches, nothing maybe; None if that is of another form."""
    given = row.get("launches")
    found = [] if given is None else _column(given)
    fits = given is None or (_are_counts(found, MOST_LAUNCHES) and len(found) in (1, len(_column(row["us"]))))
    return found if fits else None


def _are_counts(column: list[Any], most: int, *, least: int = 1) -> bool:
    return set(map(type, column)) == {int} and min(column) >= least and max(column) <= most


def _are_times(column: list[Any]) -> bool:
    return set(map(type, column)) <= {int, float} and min(column) >= SHORTEST_US and max(column) <= LONGEST_US


def _fault(row: Mapping[str, Any]) -> str:
    """Say in the user's words what is wrong with a row."""
    if not {"op", "dtype", "shape", "us"} <= row.keys():
        return "a measured row needs the keys op, dtype, shape and us"
    op, dtype = row["op"], row["dtype"]
    if not isinstance(op, str) or op not in OPERATIONS:
        return f"unknown operation {shown(op)}; {nearest(str(op), OPERATIONS)}"
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        return f"{op}: unknown dtype {shown(dtype)}; {nearest(str(dtype), ITEM_BYTES)}"
    return f"{op}: {_fault_of_values(row, OPERATIONS[op].parameters)}"


def _fault_of_values(row: Mapping[str, Any], parameters: Sequence[str]) -> str:
    if not isinstance(row.get("method", ""), str):
        return f"method is {shown(row['method'])}; give a name"
    if not (row["us"] != [] and _are_times(_column(row["us"]))):
        return f"us must be a time, or a list of times, above zero, from {SHORTEST_US:g} to {LONGEST_US:g}"
    if _launches(row) is None:
        return f"launches must be a count from 1 to {MOST_LAUNCHES:,}, or a list of as many as there are times"
    return f"shape must give whole numbers for {', '.join(parameters)}, above zero, as many as there are times"
