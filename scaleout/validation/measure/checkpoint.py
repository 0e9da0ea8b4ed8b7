"""Files of rows that are appended as they are measured, so that a crash loses nothing.

`NAME.jsonl` holds a line of provenance and then the rows; `NAME.failed.jsonl` holds rows that failed, with the reason.
A mark is written before a row is measured: if the process dies, the next start finds the mark and the row counts as
failed.
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
        """Start a file of rows, or continue an existing one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in (self.rows, self.failed):
            _drop_incomplete_line(file)
        if not self.rows.exists():
            _append(self.rows, [{"provenance": provenance}])
        for mark in self.folder.glob(f".{self.name}.*.running"):
            row = json.loads(mark.read_text(encoding="utf-8"))
            _append(self.failed, [{**row, "error": "its process ended while it was measured"}])
            mark.unlink()

    def begin(self, row: Row, worker: int) -> None:
        """Mark a row that a worker is about to measure."""
        self._mark(worker).write_text(json.dumps(row), encoding="utf-8")

    def end(self, row: Row, found: Sequence[Mapping[str, Any]], worker: int) -> None:
        """Write a row with its results, one line for each."""
        for each in found:
            _append(self.failed if "error" in each else self.rows, [{**row, **each}])
        self._mark(worker).unlink(missing_ok=True)

    def _mark(self, worker: int) -> Path:
        return self.folder / f".{self.name}.{worker}.running"

    def remaining(self, rows: Iterable[Row], keys: Sequence[str], *, retry: bool = False) -> list[Row]:
        """Return the rows that are neither measured nor, unless `retry`, failed."""
        if retry:
            self.failed.unlink(missing_ok=True)
        known = {identity(row, keys) for file in (self.rows, self.failed) for row in read(file)}
        return [row for row in rows if identity(row, keys) not in known]

    def counts(self) -> tuple[int, int]:
        """Number of measured and of failed rows."""
        return len(read(self.rows)), len(read(self.failed))


def identity(row: Row, keys: Sequence[str]) -> str:
    """Key of a row: its values of some keys, as JSON."""
    return json.dumps([row.get(key) for key in keys], sort_keys=True)


def read(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file without its provenance; none if there is no such file.

    `ConfigError` if a line is no JSON object; an incomplete last line is ignored.
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


def _drop_incomplete_line(file: Path) -> None:
    if file.exists():
        whole = file.read_bytes()
        file.write_bytes(whole[: whole.rfind(b"\n") + 1])


def _append(file: Path, rows: Iterable[Row]) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.write("".join(json.dumps(row) + "\n" for row in rows))
