"""Nonsense in the table of a study, column by column: `view` opens what a study writes, or refuses it in one message.

A column is missing, stands twice, is of each type that Parquet knows, or holds numbers that none is; the file is cut.
"""

import decimal
import warnings

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from scaleout.api.views import open_output
from scaleout.errors import ScaleoutError, printable
from scaleout.study.sweep import shards

ROWS = 2
ROW = {"case": 1, "key": "k", "status": "ok", "message": "", "run": "scaleout run dlrm-128", "timeline": "",
       "workload": "dlrm-128", "set.global_batch": 64, "topology": "torus-8x16", "schedule": "baseline", "ranks": 128,
       "makespan_s": 0.5, "exposed_share": 0.1, "samples_per_s": 100.0, "fits": True, "joules": 5.0,
       "dimension_bytes.0": 1e6, "model": "alpha-beta", "mine": 2.5}  # fmt: skip
TABLE = pa.Table.from_pylist([ROW] * ROWS)


def _column(value, kind=None):
    return pa.array([value] * ROWS, kind)


COLUMNS = {
    "none": pa.nulls(ROWS), "text": _column("x"), "control": _column("\x1b[31m"), "long": _column("x" * 100_000),
    "nan": _column(float("nan")), "infinity": _column(float("inf")), "negative": _column(-1.0),
    "huge": _column(1e308), "tiny": _column(5e-324), "zero": _column(0.0), "missing": pa.array([None, 1.0]),
    "whole": _column(0), "below zero": _column(-1), "largest": _column(2**63 - 1), "true": _column(True),
    "unsigned": _column(2**64 - 1, pa.uint64()), "byte": _column(5, pa.int8()), "list": _column([1, 2]),
    "half": pa.array(np.ones(ROWS, np.float16)), "empty list": _column([]), "struct": _column({"a": 1}),
    "map": _column([("a", 1)], pa.map_(pa.string(), pa.int64())), "bytes": _column(b"\xff\x00"),
    "date": _column(0, pa.date32()), "time": _column(2**62, pa.timestamp("ns")),
    "duration": _column(5, pa.duration("s")), "decimal": _column(decimal.Decimal("1.5")),
    "dictionary": _column("x").dictionary_encode(),
}  # fmt: skip
NUMBERS = {"nan", "negative", "huge", "tiny", "zero", "missing", "none"}
TEXTS = {"none", "text", "control", "long"}
PLAIN = {*NUMBERS, *TEXTS, "whole", "below zero", "largest", "true"}
TAKEN = {
    "case": {"whole", "below zero", "largest"},
    "ranks": {"whole", "below zero", "largest"},
    **dict.fromkeys(("key", "message", "run", "timeline", "model"), TEXTS),
    "status": TEXTS,  # which then says that no case ran
    "fits": {"true"},
    "makespan_s": {"huge", "tiny"},
    **dict.fromkeys(("exposed_share", "samples_per_s", "joules", "dimension_bytes.0"), NUMBERS - {"none"}),
}
"""Column to what it may be; inputs and derived columns may be texts, numbers and truth values."""


def _refusal(folder, table):
    """Return what is said of a table, or None where it is opened."""
    path = folder / "cases.parquet"
    if isinstance(table, bytes):
        path.write_bytes(table)
    else:
        pq.write_table(table, path)
    said = None
    try:
        output = open_output(folder)
        [output.controls(job) for job in range(len(output.jobs))]
    except ScaleoutError as error:
        said = str(error)
    assert said is None or (str(path) in said and printable(said) == said)
    return said


@pytest.mark.parametrize("name", ROW)
def test_a_column_of_something_else(tmp_path, name):
    place, taken = TABLE.column_names.index(name), set()
    for what, column in COLUMNS.items():
        if _refusal(tmp_path, TABLE.set_column(place, name, column)) is None:
            taken.add(what)
    assert taken <= TAKEN.get(name, PLAIN)
    needed = {"case", "status", "timeline", "ranks", "makespan_s", "workload"}
    said = _refusal(tmp_path, TABLE.drop_columns([name]))
    assert (f"has no column {name}" in (said or "")) == (name in needed)
    assert "stands twice" in _refusal(tmp_path, TABLE.append_column(name, TABLE[name]))


def test_a_table_as_a_whole(tmp_path):
    assert _refusal(tmp_path, TABLE) is None
    assert _refusal(tmp_path, TABLE.slice(0, 0)) is None
    assert "another order" in _refusal(tmp_path, TABLE.select(TABLE.column_names[::-1]))
    assert "has no column" in _refusal(tmp_path, pa.table({}))
    content = tmp_path.joinpath("cases.parquet").read_bytes()
    for tenth in range(10):
        assert "is no table of a study" in _refusal(tmp_path, content[: len(content) * tenth // 10])


def test_a_bit_that_falls_over_in_a_shard_is_noticed(tmp_path):
    rows = [{"key": f"k{number}", "status": "ok", "makespan_s": 1.5 + number} for number in range(20)]
    path = shards.write_shard(tmp_path, rows)
    content, held = path.read_bytes(), shards.read_shards(tmp_path)
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")  # of the pages
    for at in range(4, end, 3):
        path.write_bytes(content[:at] + bytes([content[at] ^ 64]) + content[at + 1 :])
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert shards.read_shards(tmp_path) == held or told, at
