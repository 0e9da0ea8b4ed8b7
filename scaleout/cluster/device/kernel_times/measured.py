"""Measured kernel times: files to look-up tables, and the times of exactly those kernels that were measured.

A file holds one JSON object a line: first ``{"provenance": {...}}``, then rows ``{"op", "dtype", "shape": {...}, "us",
"method", "launches"}``, the last two optional; sizes and `us` (and `launches`) may be lists, a column of measurements.
Of repeats the median counts; of several files the first; of several methods of a file the one with the most rows.
Estimates nothing and fills no gap.

Symbols: a series is one operation in one dtype; a source is a file and a method; S measurements of a series.
Source: the provenance line of each file.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.cluster.device.kernel_times.model import Array, Calls, Key, Shape
from scaleout.cluster.device.spec import Device
from scaleout.config.validated import nearest
from scaleout.errors import ConfigError
from scaleout.program.operations import ITEM_BYTES, OPERATIONS

SOURCE = "measured"

Source = tuple[int, str]
"""Number of the file, and the method."""
WARM = "kernel_durations"
"""The method of rows that ran over the same buffers again and again."""


def times(device: Device, calls: Calls) -> Array:
    """Return the measured seconds of calls over the device's calibration, shape (N,); NaN for sizes not measured."""
    table = table_of(device)
    if calls.key not in table.rows:
        return np.full(len(calls.bytes), np.nan)
    exact = table.series(calls.key).exact
    return np.array([exact.get(shape, np.nan) for shape in calls.shapes()]) / device.calibrated(calls.op)


def table_of(device: Device) -> "KernelTable":
    """Return all kernels that were measured on a device; see `read_table`."""
    return read_table(device.kernel_files)


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
    exact: Mapping[Shape, float]  # sizes to seconds: of each shape, its first source

    def alike(self, calls: Calls) -> Calls:
        """Return calls as the first source makes them: as many launches, and from the L2 cache if it reuses buffers."""
        warm = np.full(len(calls.bytes), self.calls.warm[0])
        return calls._replace(launches=self.calls.launches, warm=warm)


@dataclass(frozen=True, eq=False)
class KernelTable:
    """All measured kernels of a device."""

    rows: Mapping[Key, Mapping[Source, Rows]]
    _series: dict[Key, Series] = field(default_factory=dict, repr=False)

    def series(self, key: Key) -> Series:
        """Return all measurements of an operation in a dtype, which must be in `rows`."""
        if key not in self._series:
            self._series[key] = _gathered(key, self.rows[key])
        return self._series[key]

    @functools.cached_property
    def shortest_s(self) -> float:
        """The shortest time of any kernel: what a launch costs however little it does."""
        every = (min(rows.microseconds) for sources in self.rows.values() for rows in sources.values())
        return 1e-6 * min(every, default=0.0)


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
    return Series(calls, seconds, np.repeat(np.arange(len(ordered)), counts), exact)


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
        rows = _parse(path)
        if not rows or "provenance" not in rows[0]:
            raise ConfigError(f'{path}: line 1 must be {{"provenance": {{...}}}}: say what was measured, and how')
        for line, row in enumerate(rows[1:], start=2):
            try:
                _add(found, row, number)
            except (KeyError, TypeError, ValueError):
                raise ConfigError(f"{path}, line {line}: {_fault(row)}") from None
    return KernelTable(found)


def _add(found: dict[Key, dict[Source, Rows]], row: Mapping[str, Any], number: int) -> None:
    """Add a row of a file, or a column of them, to the measurements of its series; one of any other form raises."""
    key, shape, us = (row["op"], row["dtype"]), row["shape"], _column(row["us"])
    sizes = [_column(shape[name]) for name in OPERATIONS[row["op"]].parameters]
    shapes = [tuple(map(int, one)) for one in zip(*sizes, strict=True)]
    if not us or min(us) <= 0 or len(us) != len(shapes) or len(shape) != len(sizes) or key[1] not in ITEM_BYTES:
        raise ValueError
    rows = found.setdefault(key, {}).setdefault((number, row.get("method", "")), Rows([], [], []))
    rows.shapes.extend(shapes)
    rows.microseconds.extend(us)
    if row.get("launches") is not None:
        rows.launches.extend(_column(row["launches"]))


def _column(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _parse(path: Path) -> list[Any]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ConfigError(f"{path}: cannot be read ({why}); give an existing file") from None
    try:
        rows: list[Any] = json.loads("[" + ",".join(line for line in lines if line.strip()) + "]")
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: not one JSON object a line ({error.msg}); mend the file") from None
    return rows


def _fault(row: Any) -> str:
    """Say in the user's words what is wrong with a row."""
    if not isinstance(row, dict) or not {"op", "dtype", "shape", "us"} <= row.keys():
        return "a measured row needs the keys op, dtype, shape and us"
    if row["op"] not in OPERATIONS:
        return f"unknown operation {row['op']!r}; {nearest(str(row['op']), OPERATIONS)}"
    if row["dtype"] not in ITEM_BYTES:
        return f"{row['op']}: unknown dtype {row['dtype']!r}; {nearest(str(row['dtype']), ITEM_BYTES)}"
    times_us = _column(row["us"])
    if not times_us or not all(isinstance(us, int | float) and us > 0 for us in times_us):
        return f"{row['op']}: us must be a time, or a list of times, above zero"
    names = ", ".join(OPERATIONS[row["op"]].parameters)
    return f"{row['op']}: shape must give whole numbers for {names}, as many as there are times"
