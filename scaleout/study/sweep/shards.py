"""The folder of a study: results as Parquet shards, each written under a hidden name and renamed.

A shard holds the rows of some cases by their key, whatever study they are of. A shard that is damaged is named in a
warning and counts for nothing; what it held is computed again. Nothing else of a study's progress is kept anywhere.
"""

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scaleout.config.writing import replacing
from scaleout.errors import one_line, shown
from scaleout.study.sweep.columns import TEXTS
from scaleout.study.sweep.worker import LEFT_OUT, OK, Row

FOLDER = "shards"
"""Of an output folder, where its shards are."""

_MOST_VALUES = 10**7
"""Of a shard."""
_TEXTS = ("key", "status", "message", *TEXTS)


def type_of(column: str) -> pa.DataType:
    """Return the type of a column of results."""
    if column in _TEXTS:
        return pa.string()
    return {"ranks": pa.int64(), "fits": pa.bool_()}.get(column, pa.float64())


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Return rows as a table, with the columns that any of them has."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return pa.table({name: pa.array([row.get(name) for row in rows], type_of(name)) for name in columns})


def write_shard(folder: Path, rows: Sequence[Row]) -> Path:
    """Write rows as a shard of an output folder, whole, and return its file.

    `OSError` if the folder cannot be written, or the disk is full.
    """
    digest = hashlib.sha256("".join(row["key"] for row in rows).encode()).hexdigest()[:24]
    path = folder / FOLDER / f"{digest}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        pq.write_table(table_of(rows), file, write_page_checksum=True)
    return path


def read_shards(folder: Path) -> dict[str, Row]:
    """Return the rows of all shards of an output folder by their keys; those that ran go before those left out."""
    found: dict[str, Row] = {}
    for table in _tables(folder):
        for row in table.to_pylist():
            if row["key"] not in found or row["status"] != LEFT_OUT:
                found[row["key"]] = row
    return found


def known_keys(folder: Path) -> set[str]:
    """Return the keys of the cases that ran, be it in vain; constraints that left others out may be gone."""
    tables = (table.select(["key", "status"]) for table in _tables(folder))
    return {row["key"] for table in tables for row in table.to_pylist() if row["status"] != LEFT_OUT}


def _tables(folder: Path) -> Iterator[pa.Table]:
    for path in sorted((folder / FOLDER).glob("*.parquet")):
        try:
            yield _table(path)
        except (pa.ArrowException, OSError, ValueError) as error:
            why = one_line(str(error).splitlines()[0] if str(error) else type(error).__name__)
            warnings.warn(f"{path}: damaged ({why}); its cases are run again", stacklevel=2)


def _table(path: Path) -> pa.Table:
    """Read a shard; `ValueError` if it holds what no case gives: a few bytes may stand for any number of rows."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        if file.metadata.num_rows * file.metadata.num_columns > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES:,} values")
        wrong = [field.name for field in file.schema_arrow if field.type != type_of(field.name)]
        wrong += {"key", "status"} - {*file.schema_arrow.names}
        if wrong or len({*file.schema_arrow.names}) < file.metadata.num_columns:
            raise ValueError(f"columns of no study, such as {shown(wrong[0]) if wrong else 'one twice'}")
        table = file.read()
    numbers = [column for column in table.columns if pa.types.is_floating(column.type)]
    whole = not (table["key"].null_count or table["status"].null_count)
    if not (whole and all(pc.all(pc.is_finite(each), min_count=0).as_py() for each in numbers)):
        raise ValueError("a row without key or status, or a number that is not finite")
    ran = table.filter(pc.equal(table["status"], OK))
    timed = "makespan_s" in table.column_names and pc.all(pc.fill_null(pc.greater(ran["makespan_s"], 0), False)).as_py()
    if ran.num_rows and not timed:
        raise ValueError("a case that ran, without a makespan above zero")
    return table
