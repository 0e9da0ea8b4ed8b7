"""Files of measured kernel times to look-up tables and arrays.

A file holds one JSON object a line: first ``{"provenance": {...}}``, what was measured, where and how; then rows
``{"op", "dtype", "shape": {...}, "us", "method", "launches"}``, the last two optional. Repeated rows of one shape, in
one file or over several, are one measurement: their median. The module knows no model of a time and fills no gap.

Symbols: a series is one operation in one dtype. Source: the provenance line of each file.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaleout.config import nearest
from scaleout.errors import ConfigError
from scaleout.operations import ITEM_BYTES, OPERATIONS, Kernel

Key = tuple[str, str]
"""An operation and a dtype."""
WARM = "kernel_durations"
"""The method of rows that ran over the same buffers again and again."""


@dataclass(frozen=True, eq=False)
class KernelTable:
    """All measured kernels of a device.

    Attributes
    ----------
    times : mapping
        Operation and dtype to a mapping of sizes, in the operation's order, to seconds.
    launches : mapping
        Operation and dtype to the device kernels that one call launches, the median over its rows.
    warm : mapping
        Operation and dtype to whether most rows ran over the same buffers, so that small data lay in the L2 cache.
    provenance : tuple of mapping
        The first line of each file.
    """

    times: Mapping[Key, Mapping[tuple[int, ...], float]]
    launches: Mapping[Key, float]
    warm: Mapping[Key, bool]
    provenance: tuple[Mapping[str, Any], ...]

    def exact(self, kernel: Kernel) -> float | None:
        """Return the measured time of exactly this kernel in seconds, or None."""
        series = self.times.get((kernel.op, kernel.dtype))
        return None if series is None else series.get(tuple(value for _, value in kernel.shape))

    @functools.cached_property
    def shortest_s(self) -> float:
        """The shortest time of any kernel: what a call costs on the device however little it does."""
        return min((seconds for series in self.times.values() for seconds in series.values()), default=0.0)


@functools.cache
def read_table(files: tuple[Path, ...]) -> KernelTable:
    """Read the measured kernel times of a device.

    Raises
    ------
    ConfigError
        If a file cannot be read, has no provenance line, or a row is not a measurement of a known operation.
    """
    repeats: dict[Key, dict[tuple[int, ...], list[float]]] = {}
    launches: dict[Key, list[float]] = {}
    warm: dict[Key, list[bool]] = {}
    provenance = []
    for path in files:
        rows = _parse(path)
        if not rows or "provenance" not in rows[0]:
            raise ConfigError(f'{path}: line 1 must be {{"provenance": {{...}}}}: say what was measured, and how')
        provenance.append(rows[0]["provenance"])
        for number, row in enumerate(rows[1:], start=2):
            try:
                key, shape = (row["op"], row["dtype"]), row["shape"]
                sizes = tuple([int(shape[name]) for name in OPERATIONS[key[0]].parameters])
                repeats.setdefault(key, {}).setdefault(sizes, []).append(row["us"] * 1e-6)
                launches.setdefault(key, []).append(row.get("launches", 1.0))
                warm.setdefault(key, []).append(row.get("method") == WARM)
            except (KeyError, TypeError, ValueError):
                raise ConfigError(f"{path}, line {number}: {_fault(row)}") from None
    times = {key: {sizes: _median(us) for sizes, us in series.items()} for key, series in repeats.items()}
    for (op, dtype), series in times.items():
        if dtype not in ITEM_BYTES or min(series.values()) <= 0:
            raise ConfigError(f"{files[0].parent}: {op}: unknown dtype {dtype!r}, or a time that is not above zero")
    return KernelTable(
        times,
        {key: _median(counts) for key, counts in launches.items()},
        {key: 2 * sum(flags) > len(flags) for key, flags in warm.items()},
        tuple(provenance),
    )


def _parse(path: Path) -> list[Any]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give an existing file") from None
    try:
        rows: list[Any] = json.loads("[" + ",".join(line for line in lines if line.strip()) + "]")
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: not one JSON object a line ({error.msg}); mend the file") from None
    return rows


def _median(values: list[float]) -> float:
    """Return the median; numpy's costs more than reading the file for so many short lists."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])


def _fault(row: Any) -> str:
    """Say in the user's words what is wrong with a row."""
    if not isinstance(row, dict) or not {"op", "dtype", "shape", "us"} <= row.keys():
        return "a measured row needs the keys op, dtype, shape and us"
    if row["op"] not in OPERATIONS:
        return f"unknown operation {row['op']!r}; {nearest(str(row['op']), OPERATIONS)}"
    return f"{row['op']}: shape must give whole numbers for {', '.join(OPERATIONS[row['op']].parameters)}"
