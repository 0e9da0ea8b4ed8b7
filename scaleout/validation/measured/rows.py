"""Files of measured runs to rows: what was measured, where it stands, and on which machine.

A file holds one JSON object per line, or, where a table is named, one object with `tables` that have an `id` and
`rows`. ``environment.json`` in the same folder names the GPU of the rows, or the files of its device and topology, as
`scaleout measure` writes them; a row may name its own machine.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scaleout.config.validated import nearest
from scaleout.errors import ConfigError


@dataclass(frozen=True)
class Row:
    """One measured run.

    Attributes
    ----------
    where : str
        File and line, or table and number, for messages.
    source : str
        The file's stem, or the table's id.
    gpu : str
        The GPU that `environment.json` names; empty if it names none.
    machine : mapping
        Files of the `device` and the `topology` that `environment.json` names.
    """

    values: Mapping[str, Any]
    where: str
    id: str
    source: str
    gpu: str = ""
    machine: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The kind of run that the row says it is."""
        return str(self.values.get("name") or self.values.get("kind") or self.values.get("op") or "")

    def derived(self, suffix: str, **values: Any) -> "Row":
        """Return the row of one of several runs that this one holds: its id ends with `suffix`, `values` are set."""
        return replace(self, id=f"{self.id}:{suffix}", values={**self.values, **values})

    def number(self, key: str) -> float:
        """Return a number above zero; raise `ConfigError` with the row's place if it is missing or none."""
        value = self.values.get(key)
        if value is None:
            kind = f"{self.source} {self.name}".strip()
            raise ConfigError(f"{self.where}: key {key!r} is missing; a row of {kind} needs it")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ConfigError(f"{self.where}: {key} is {value!r}; give a number above zero")
        return value

    def count(self, key: str) -> int:
        """Return a whole number above zero; raise as `number` does."""
        value = self.number(key)
        if value != int(value):
            raise ConfigError(f"{self.where}: {key} is {value!r}; give a whole number")
        return int(value)

    def word(self, key: str, known: tuple[str, ...]) -> str:
        """Return one of the known words; raise `ConfigError` if it is missing or another one."""
        value = self.values.get(key)
        if value is None:
            raise ConfigError(f"{self.where}: key {key!r} is missing; give one of {', '.join(known)}")
        if value not in known:
            raise ConfigError(f"{self.where}: unknown {key} {value!r}; {nearest(str(value), known)}")
        return str(value)


def read_rows(path: Path, *, table: str | None = None) -> list[Row]:
    """Read the rows of a file, or of one table of a file of tables.

    Raises
    ------
    ConfigError
        If the file cannot be read, a line is no JSON object, or there is no such table.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ConfigError(f"{path}: cannot be read ({why}); give a file of measured rows") from None
    if table is not None:
        return _of_table(path, text, table)
    gpu, machine = _environment(path)
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{path}, line {number}"
        values = _parse(line, where) if line.strip() else {}
        if not isinstance(values, dict):
            raise ConfigError(f"{where}: holds {type(values).__name__}, not an object; give one JSON object a line")
        if values and "provenance" not in values:
            name = str(values.get("id") or f"{path.stem}:{number}")
            rows.append(Row(values, where, name, path.stem, gpu, machine))
    if not rows:
        raise ConfigError(f"{path}: holds no rows; give one JSON object a line")
    return rows


def _of_table(path: Path, text: str, table: str) -> list[Row]:
    whole = _parse(text, str(path))
    tables = whole.get("tables") if isinstance(whole, dict) else None
    if not isinstance(tables, list) or not all(isinstance(found, dict) and "id" in found for found in tables):
        raise ConfigError(f"{path}: holds no list 'tables' of objects with an 'id'; leave out --table for rows")
    by_id = {str(found["id"]): found for found in tables}
    if table not in by_id:
        raise ConfigError(f"{path}: has no table {table!r}; {nearest(table, by_id)}")
    return [
        Row(values, f"{path}, table {table}, row {number}", f"{table}:{number}", table)
        for number, values in enumerate(by_id[table].get("rows", []), start=1)
    ]


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON ({error}); mend it (`scaleout validate --help` has a row)") from None


def _environment(path: Path) -> tuple[str, Mapping[str, str]]:
    """Return the GPU that ``environment.json`` in the same folder names, and the files of its device and topology."""
    file = path.parent / "environment.json"
    if not file.is_file():
        return "", {}
    found = _parse(file.read_text(encoding="utf-8"), str(file))
    if not isinstance(found, dict):
        return "", {}
    files = {key: str(path.parent.absolute() / found[key]) for key in ("device", "topology") if key in found}
    return str(found.get("gpu", "")), files
