"""Rows of an experiment that are written as they are measured, so that a crash loses nothing.

`NAME.jsonl` holds a line of provenance and then the rows; `NAME.failed.jsonl` holds rows that failed, with the reason.
A mark is written before a row is measured: if the process dies, the next start finds the mark and the row counts as
failed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaleout.config.checkpoint import Row, append, drop_incomplete_line, read_log
from scaleout.config.documents import read_json_lines
from scaleout.config.writing import write_json
from scaleout.errors import ConfigError


@dataclass(frozen=True)
class MeasurementLog:
    """The rows of one experiment in a folder, whose lock `measure` the process that starts the others holds."""

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
        """Start a file of rows, or continue an existing one; `ConfigError` if that is none of ours."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.rows.exists() and self.rows.stat().st_size and "provenance" not in read_log(self.rows).get(1, {}):
            raise ConfigError(f"{self.rows}: does not begin with a provenance; give another folder")
        for file in (self.rows, self.failed):
            drop_incomplete_line(file)
        if not self.rows.exists() or not self.rows.stat().st_size:
            append(self.rows, [{"provenance": provenance}])
        for mark in self.folder.glob(f".{self.name}.*.running"):
            with suppress(ConfigError):  # cut short when the machine went down: its row is measured again
                for row in read(mark).values():
                    append(self.failed, [{**row, "error": "its process ended while it was measured"}])
            mark.unlink()

    def begin(self, row: Row, worker: int) -> None:
        """Mark a row that a worker is about to measure."""
        write_json(self._mark(worker), row, indent=None)

    def end(self, row: Row, found: Sequence[Mapping[str, Any]], worker: int) -> None:
        """Write a row with its results, one line for each; one with a number that is not finite failed."""
        for each in found:
            try:
                append(self.failed if "error" in each else self.rows, [{**row, **each}])
            except ValueError as error:
                append(self.failed, [{**row, "error": str(error)}])
        self._mark(worker).unlink(missing_ok=True)

    def _mark(self, worker: int) -> Path:
        return self.folder / f".{self.name}.{worker}.running"

    def remaining(self, rows: Iterable[Row], keys: Sequence[str], *, retry: bool = False) -> list[Row]:
        """Return the rows that are neither measured nor, unless `retry`, failed."""
        if retry:
            self.failed.unlink(missing_ok=True)
        known = {identity(row, keys) for file in (self.rows, self.failed) for row in measured(file)}
        return [row for row in rows if identity(row, keys) not in known]

    def counts(self) -> tuple[int, int]:
        """Number of measured and of failed rows."""
        return len(measured(self.rows)), len(measured(self.failed))


def identity(row: Row, keys: Sequence[str]) -> str:
    """Key of a row: its values of some keys, as JSON."""
    return json.dumps([row.get(key) for key in keys], sort_keys=True)


def measured(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a log without its provenance; see `read_log`."""
    return [row for row in read_log(file).values() if "provenance" not in row]


def read(file: Path) -> dict[str, Row]:
    """Return the rows of a user's file by where each stands, without provenance; `ConfigError` if one is no object."""
    return {where: row for where, row in read_json_lines(file) if "provenance" not in row}
