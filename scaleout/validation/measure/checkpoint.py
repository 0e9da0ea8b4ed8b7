"""Files of rows that grow as they are measured, so that what was measured is kept whatever happens.

`NAME.jsonl` holds a line of provenance and then the rows, as every other part of scaleout reads them;
`NAME.failed.jsonl` those that could not be measured, with the reason. A row is marked before it is measured: one that
took its process with it is found by its mark at the next start, and counts as failed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaleout.errors import ConfigError

Row = Mapping[str, Any]


@dataclass(frozen=True)
class CheckpointLog:
    """The rows of one experiment in a folder."""

    folder: Path
    name: str

    @property
    def rows(self) -> Path:
        """The file of measured rows."""
        return self.folder / f"{self.name}.jsonl"

    @property
    def failed(self) -> Path:
        """The file of rows that failed."""
        return self.folder / f"{self.name}.failed.jsonl"

    def open(self, provenance: Mapping[str, Any]) -> None:
        """Begin a file of rows, or go on with the one that is there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in (self.rows, self.failed):
            _mend(file)
        if not self.rows.exists():
            _append(self.rows, [{"provenance": provenance}])
        for mark in self.folder.glob(f".{self.name}.*.running"):
            row = json.loads(mark.read_text(encoding="utf-8"))
            _append(self.failed, [{**row, "error": "its process ended while it was measured"}])
            mark.unlink()

    def begin(self, row: Row, worker: int) -> None:
        """Mark a row that a process is about to measure."""
        self._mark(worker).write_text(json.dumps(row), encoding="utf-8")

    def end(self, row: Row, found: Sequence[Mapping[str, Any]], worker: int) -> None:
        """Write a row with what was found; with several findings, one row for each."""
        for each in found:
            _append(self.failed if "error" in each else self.rows, [{**row, **each}])
        self._mark(worker).unlink(missing_ok=True)

    def _mark(self, worker: int) -> Path:
        return self.folder / f".{self.name}.{worker}.running"

    def remaining(self, rows: Iterable[Row], keys: Sequence[str], *, retry: bool = False) -> list[Row]:
        """Return the rows that were not measured yet, nor failed unless they are to be tried again.

        Raises
        ------
        ConfigError
            If a file of rows is none.
        """
        if retry:
            self.failed.unlink(missing_ok=True)
        known = {identity(row, keys) for file in (self.rows, self.failed) for row in read(file)}
        return [row for row in rows if identity(row, keys) not in known]

    def counts(self) -> tuple[int, int]:
        """How many rows were measured, and how many failed."""
        return len(read(self.rows)), len(read(self.failed))


def identity(row: Row, keys: Sequence[str]) -> str:
    """What tells a row from others: its values of some keys."""
    return json.dumps([row.get(key) for key in keys], sort_keys=True)


def read(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file without its provenance; none if there is no such file.

    Raises
    ------
    ConfigError
        If a line is no JSON object; a last line that was cut off is left out.
    """
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise TypeError  # noqa: TRY301 - the same fault as a line that is no JSON
        except (json.JSONDecodeError, TypeError):
            if number == len(lines):
                break
            raise ConfigError(
                f"{file}, line {number}: not a JSON object; mend the file, or give another folder"
            ) from None
        if "provenance" not in row:
            rows.append(row)
    return rows


def _mend(file: Path) -> None:
    """Drop a last line that was cut off."""
    if file.exists():
        whole = file.read_bytes()
        file.write_bytes(whole[: whole.rfind(b"\n") + 1])


def _append(file: Path, rows: Iterable[Row]) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.write("".join(json.dumps(row) + "\n" for row in rows))
