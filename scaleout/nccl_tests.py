"""What nccl-tests print, read back: sizes and times of a collective on some ranks.

A file holds one run or several, one after another. A run's header lists its ranks, a line each that begins with
``#  Rank``; two lines name the columns and their units; then one line a size: size, count, type, and of the collectives
that have them reduction and root, then time and bandwidths out of place, and in place. Times out of place are taken,
unless a line says that it has none.

Source: NVIDIA/nccl-tests, src/common.cu, for the form.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from scaleout.errors import ConfigError
from scaleout.units import BYTES, SECONDS, parse

_RANK = re.compile(r"#\s+Rank\s+(\d+)\b")
_UNITS = re.compile(r"#\s+\((\w+)\)")
_MISSING = "N/A"
_COLUMNS = 4
"""Of a measurement, at the end of a line: time, algorithm and bus bandwidth, how many values are wrong."""


@dataclass(frozen=True)
class Run:
    """One run: sizes in ascending order, and the seconds that each took."""

    num_ranks: int
    sizes_bytes: tuple[float, ...]
    seconds: tuple[float, ...]


def read_runs(path: Path) -> tuple[Run, ...]:
    """Read all runs of a file.

    Raises
    ------
    ConfigError
        If there is no such file, it holds no run, a run does not list its ranks or their units, two runs of it have
        different units, or a line is not one of a table; the message names the line.
    """
    if not path.is_file():
        raise ConfigError(f"benchmark '{path}' does not exist; give a file that nccl-tests printed")
    reader = _Reader(path)
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        reader.take(number, line.strip())
    return reader.runs()


class _Reader:
    """Goes through a file line by line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ranks: set[int] = set()
        self._units: list[str] = []
        self._units_of_file: tuple[int, list[str]] | None = None
        self._rows: dict[float, float] = {}
        self._runs: list[Run] = []

    def take(self, number: int, line: str) -> None:
        """Take a line."""
        if rank := _RANK.match(line):
            if self._rows:
                self._end()
            self._ranks.add(int(rank[1]))
        elif _UNITS.match(line):
            self._take_units(number, re.findall(r"\((\S+?)\)", line))
        elif line and not line.startswith("#"):
            self._take_row(number, line)

    def runs(self) -> tuple[Run, ...]:
        """Return the runs that were read."""
        if self._rows:
            self._end()
        if not self._runs:
            raise ConfigError(f"{self._path}: no sizes and times; give a file that nccl-tests printed")
        return tuple(self._runs)

    def _take_units(self, number: int, units: list[str]) -> None:
        if self._units_of_file is not None and units != self._units_of_file[1]:
            raise ConfigError(
                f"{self._path}, line {number}: units {', '.join(units)} are not those of line "
                f"{self._units_of_file[0]}, {', '.join(self._units_of_file[1])}; give runs with the same units, or "
                f"files of their own"
            )
        if len(set(units[2::3])) > 1:
            raise ConfigError(
                f"{self._path}, line {number}: times out of place and in place have different units, "
                f"{' and '.join(units[2::3])}; give both in one"
            )
        self._units_of_file, self._units = (number, units), units

    def _take_row(self, number: int, line: str) -> None:
        cells = line.split()
        if not self._units:
            raise ConfigError(
                f"{self._path}, line {number}: no line before it names the units, as '#  (B) ... (us) ...'; keep the "
                f"header that nccl-tests print"
            )
        ends = _COLUMNS * len(self._units[2::3])  # cells of times and bandwidths; those before them differ by version
        try:
            size = parse(f"{cells[0]} {self._units[0]}", BYTES)
            times = [cell for cell in cells[3:][-ends::_COLUMNS] if cell != _MISSING] if len(cells) > ends + 2 else []
            seconds = parse(f"{times[0]} {self._units[2]}", SECONDS)
        except (ConfigError, IndexError) as error:
            raise ConfigError(
                f"{self._path}, line {number}: {line!r} is no size and time in {', '.join(self._units)}; keep what "
                f"nccl-tests printed ({error})"
            ) from None
        if not (size > 0 and seconds > 0):
            raise ConfigError(f"{self._path}, line {number}: size and time must be above zero; leave the line out")
        self._rows[size] = seconds

    def _end(self) -> None:
        if not self._ranks:
            raise ConfigError(
                f"{self._path}: a run does not say its ranks; keep the lines '#  Rank  0 ...' that nccl-tests print"
            )
        sizes = tuple(sorted(self._rows))
        self._runs.append(Run(len(self._ranks), sizes, tuple(self._rows[size] for size in sizes)))
        self._ranks, self._rows = set(), {}
