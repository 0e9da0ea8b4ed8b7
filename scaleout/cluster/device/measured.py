"""Files of measured kernel times to look-up tables and arrays.

A file holds one JSON object a line: first ``{"provenance": {...}}``, what was measured, where and how; then rows
``{"op", "dtype", "shape": {...}, "us", "method", "launches"}``, the last two optional. A row is one measurement, or a
column of them where its sizes and `us` (and `launches`) are lists. Repeated rows of one shape, by one method in one
file, are one measurement: their median. Of the same shape in several files the first one counts, and of several
methods in a file the one with most rows. The module knows no model of a time and fills no gap.

Symbols: a series is one operation in one dtype; a source is a file and a method; S measurements of a series.
Source: the provenance line of each file.
"""

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.config.validated import nearest
from scaleout.errors import ConfigError
from scaleout.program.operations import ITEM_BYTES, OPERATIONS, Kernel

Array = npt.NDArray[np.float64]
Key = tuple[str, str]
"""An operation and a dtype."""
Shape = tuple[int, ...]
Source = tuple[int, str]
"""Number of the file, and the method."""
WARM = "kernel_durations"
"""The method of rows that ran over the same buffers again and again."""


class Rows(NamedTuple):
    """Measurements of one series from one source, as they stand in the file."""

    shapes: list[Shape]
    microseconds: list[float]
    launches: list[float]


class Series(NamedTuple):
    """All measurements of one operation in one dtype.

    Attributes
    ----------
    shapes : tuple of tuple of int, length S
        Sizes in the operation's order.
    seconds, warm : ndarray, shape (S,)
        The time, and whether it ran over the same buffers again and again, so that small data lay in the L2 cache.
    sources : ndarray of int64, shape (S,)
        0 for the source that estimates follow, the one with most rows in the first file; others count up from 1.
    launches : float
        Device kernels that one call launches, the median over the rows that say so.
    exact : mapping
        Sizes to seconds: of each shape, its first source.
    """

    shapes: tuple[Shape, ...]
    seconds: Array
    warm: npt.NDArray[np.bool_]
    sources: npt.NDArray[np.int64]
    launches: float
    exact: Mapping[Shape, float]


@dataclass(frozen=True, eq=False)
class KernelTable:
    """All measured kernels of a device.

    Attributes
    ----------
    rows : mapping
        Operation and dtype to the measurements of each source.
    provenance : tuple of mapping
        The first line of each file.
    """

    rows: Mapping[Key, Mapping[Source, Rows]]
    provenance: tuple[Mapping[str, Any], ...]
    _series: dict[Key, Series] = field(default_factory=dict, repr=False)

    def series(self, key: Key) -> Series:
        """Return all measurements of an operation in a dtype, which must be in `rows`."""
        if key not in self._series:
            self._series[key] = _gathered(self.rows[key])
        return self._series[key]

    def exact(self, kernel: Kernel) -> float | None:
        """Return the measured time of exactly this kernel in seconds, or None."""
        key = (kernel.op, kernel.dtype)
        return self.series(key).exact.get(tuple(kernel.sizes.values())) if key in self.rows else None

    @functools.cached_property
    def shortest_s(self) -> float:
        """The shortest time of any kernel: what a launch costs however little it does."""
        every = (min(rows.microseconds) for sources in self.rows.values() for rows in sources.values())
        return 1e-6 * min(every, default=0.0)


def _gathered(sources: Mapping[Source, Rows]) -> Series:
    ordered = sorted(sources, key=lambda source: (source[0], -len(sources[source].shapes)))
    exact: dict[Shape, float] = {}
    shapes: list[Shape] = []
    seconds: list[float] = []
    counts: list[int] = []
    for source in ordered:
        times = _merged(sources[source])
        shapes += times
        seconds += times.values()
        counts.append(len(times))
        exact = times | exact
    launches = [count for rows in sources.values() for count in rows.launches]
    warm = np.array([method == WARM for _, method in ordered])
    return Series(
        tuple(shapes),
        np.array(seconds),
        np.repeat(warm, counts),
        np.repeat(np.arange(len(ordered)), counts),
        median(launches) if launches else 1.0,
        exact,
    )


def _merged(rows: Rows) -> dict[Shape, float]:
    """Return the seconds of each shape: the median where it was measured more than once."""
    times = {shape: 1e-6 * us for shape, us in zip(rows.shapes, rows.microseconds, strict=True)}
    if len(times) < len(rows.shapes):
        repeats: dict[Shape, list[float]] = {}
        for shape, us in zip(rows.shapes, rows.microseconds, strict=True):
            repeats.setdefault(shape, []).append(us)
        times.update({shape: 1e-6 * median(several) for shape, several in repeats.items() if len(several) > 1})
    return times


@functools.cache
def read_table(files: tuple[Path, ...]) -> KernelTable:
    """Read the measured kernel times of a device.

    Raises
    ------
    ConfigError
        If a file cannot be read, has no provenance line, or a row is not a measurement of a known operation.
    """
    found: dict[Key, dict[Source, Rows]] = {}
    provenance = []
    for number, path in enumerate(files):
        rows = _parse(path)
        if not rows or "provenance" not in rows[0]:
            raise ConfigError(f'{path}: line 1 must be {{"provenance": {{...}}}}: say what was measured, and how')
        provenance.append(rows[0]["provenance"])
        for line, row in enumerate(rows[1:], start=2):
            try:
                _add(found, row, number)
            except (KeyError, TypeError, ValueError):
                raise ConfigError(f"{path}, line {line}: {_fault(row)}") from None
    return KernelTable(found, tuple(provenance))


def _add(found: dict[Key, dict[Source, Rows]], row: Mapping[str, Any], number: int) -> None:
    """Add a row of a file to the measurements of its series; one of any other form raises."""
    key, shape, us = (row["op"], row["dtype"]), row["shape"], row["us"]
    sizes = [shape[name] for name in OPERATIONS[row["op"]].parameters]
    launches = row.get("launches")
    source = (number, row.get("method", ""))
    rows = found.setdefault(key, {}).setdefault(source, Rows([], [], []))
    if isinstance(us, list):
        if not us or min(us) <= 0 or len(shape) != len(sizes) or key[1] not in ITEM_BYTES:
            raise ValueError
        rows.shapes.extend(_whole(zip(*sizes, strict=True)))
        rows.microseconds.extend(us)
        if len(rows.shapes) != len(rows.microseconds):
            raise ValueError
        if launches is not None:
            rows.launches.extend(launches if isinstance(launches, list) else [launches])
        return
    if us <= 0 or len(shape) != len(sizes) or key[1] not in ITEM_BYTES:
        raise ValueError
    rows.shapes.append(tuple([int(size) for size in sizes]))
    rows.microseconds.append(us)
    if launches is not None:
        rows.launches.append(launches)


def _whole(shapes: Iterable[tuple[Any, ...]]) -> Iterable[Shape]:
    return (tuple(map(int, shape)) for shape in shapes)


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
    times = row["us"] if isinstance(row["us"], list) else [row["us"]]
    if not times or not all(isinstance(us, int | float) and us > 0 for us in times):
        return f"{row['op']}: us must be a time, or a list of times, above zero"
    names = ", ".join(OPERATIONS[row["op"]].parameters)
    return f"{row['op']}: shape must give whole numbers for {names}, as many as there are times"
