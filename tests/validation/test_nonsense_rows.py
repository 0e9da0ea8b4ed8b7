"""Nonsense in rows to measure and in measured rows: one message, whatever stands in a file that a verb is given."""

import json

import pytest

from scaleout.errors import ScaleoutError, printable
from scaleout.validation.measure import experiments
from scaleout.validation.measured.compare import compare_files

VALUES = [None, True, False, -1, 0, 1.5, 1e300, 2**63, float("nan"), "", "x", "5", "\x1b[31m", "\ud800", [], {}, [1],
          ["a"], [[]], [{}], {"a": 1}]  # fmt: skip
TEXTS = {"", "x", "5", "\x1b[31m", "\ud800"}
"""What a text may be, as a mode of a step, which the GPUs then know or not."""
ROWS = [
    *((name, next(iter(experiments.plan(name, gpus=2, quick=True)))) for name in experiments.EXPERIMENTS),
    ("collectives", experiments.plan("collectives", gpus=2)[-1]),  # of a protocol
]
ONE_OF = ("op", "name", "step", "collective", "method")


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_nonsense_in_a_row_to_measure_is_refused(name, row):
    assert experiments.check_rows(name, {"x": row}, gpus=2)
    fields = [(row, key) for key in row] + [(row["shape"], key) for key in row.get("shape", {})]
    for holder, key in fields:
        taken = []
        for value in VALUES:
            changed = {**holder, key: value}
            try:
                experiments.check_rows(name, {"x": changed if holder is row else {**row, "shape": changed}}, gpus=2)
            except ScaleoutError as error:
                said = str(error)
                assert printable(said) == said
            else:
                taken.append(value)
        may_be = TEXTS if isinstance(holder[key], str) and key not in ONE_OF else set()
        assert [value for value in taken if not isinstance(value, str) or value not in may_be] == [], key


@pytest.mark.parametrize("value", [None, [], {}, [1], {"a": 1}, 5, "x"])
def test_nonsense_as_an_experiment_is_refused(value):
    with pytest.raises(ScaleoutError, match="line 1: the row has experiment"):
        experiments.listed({"line 1": {"experiment": value, "op": "add"}}, where="list.jsonl")


JOB = {"kind": "transformer", "hidden": 64, "layers": 1, "heads": 4, "ffn": 128, "vocabulary": 128, "sequence": 32,
       "batch_per_replica": 2, "data_parallel": 2, "name": "x", "description": "x", "source": "x"}  # fmt: skip
DESCRIBED = {"workload": JOB, "topology": "h200-node-4", "device": "h200", "measured": "812 ms", "source": "arXiv:1"}
CONCURRENT = {"kind": "contention", "compute": "gemm_1024_1024_1024", "nccl_max_ctas": "default", "gpus": 2,
              "compute_alone_us": 100, "compute_together_us": 120, "collective_alone_us": 50,
              "collective_together_us": 80}  # fmt: skip
REDUCED = {"collective": "all_reduce", "ranks": 2, "bytes": 1024, "us": 5.9}
GEMM = {"op": "gemm", "dtype": "bf16", "us": 25.4, "M": 2048, "N": 2048, "K": 2048}


@pytest.fixture
def compared(tmp_path):
    def compare(row):
        (tmp_path / "environment.json").write_text('{"gpu": "NVIDIA H200"}')
        (tmp_path / "rows.jsonl").write_text(json.dumps(row))
        return compare_files([tmp_path / "rows.jsonl"])

    return compare


@pytest.mark.parametrize(("row", "key", "value", "told"), [
    *((DESCRIBED, key, value, f"{key} is .*; give a name or a file")
      for key in ("topology", "device") for value in (None, False, 0, "", [], {})),
    *((DESCRIBED, key, value, f"{key} is .*; give a text") for key in ("id", "name", "group", "source", "schedule")
      for value in (None, 5, [], {"a": 1})),
    (DESCRIBED, "clocks", "nonsense", "unknown clocks 'nonsense'"),
    (DESCRIBED, "network", [], "unknown network"),
    (GEMM, "M", True, "M is True; give a whole number"),
    (GEMM, "us", 1e16, r"us is 1e\+16; give a number from 1e-09 to 1e\+15"),
    (REDUCED, "ranks", 2**20 + 1, "ranks is 1048577; give a whole number, at most 1,048,576"),
])  # fmt: skip
def test_nonsense_in_a_measured_row_is_refused(compared, row, key, value, told):
    assert compared(row).accuracy.predicted
    with pytest.raises(ScaleoutError, match=told):
        compared({**row, key: value})


def test_where_a_row_stands_is_said_once(compared):
    with pytest.raises(ScaleoutError, match=r"^\S*rows\.jsonl, line 1: key 'dtype' is missing"):
        compared({key: value for key, value in GEMM.items() if key != "dtype"})


def test_a_causal_mask_is_a_truth_value_or_a_number(compared):
    shape = {"batch": 1, "heads": 32, "seq": 2048, "head_dim": 128}
    row = {"op": "attention_fwd", "dtype": "bf16", "us": 84.5, **shape}
    assert compared({**row, "causal": True}).rows == compared({**row, "causal": 1}).rows


@pytest.mark.parametrize(("key", "value", "told"), [
    ("compute", "gemm_" + "9" * 5000 + "_1_1", "is not known"),
    ("compute", "gemm_\u0663_1_1", "is not known"),
    ("compute", "embedding_bag_0x1x1x1", "is not known"),
    ("compute", "embedding_bag_100000000x1x1x1", "is not known"),
    ("compute", "embedding_bag_10000x1x1x1", "at most 50,000 are simulated"),
    ("collective_alone_us", 1e15, "at most 50,000 are simulated"),
    ("compute_alone_us", 1e-6, "at most 50,000 are simulated"),
])  # fmt: skip
def test_calls_that_cannot_be_simulated_are_told(compared, key, value, told):
    assert compared(CONCURRENT).accuracy.predicted == 2
    found = compared({**CONCURRENT, key: value})
    assert not found.accuracy.predicted
    assert all(told in row.reason for row in found.rows)


@pytest.mark.parametrize(("tables", "told"), [
    ([{"id": "a", "rows": [DESCRIBED]}, {"id": "a", "rows": [DESCRIBED]}], "the id of a table is 'a'"),
    ([{"id": "a", "rows": [DESCRIBED]}, {"id": 5, "rows": []}], "the id of a table is 5"),
    ([{"id": "a", "rows": []}], "holds no list 'rows'"),
    ([{"id": "a"}], "holds no list 'rows'"),
])  # fmt: skip
def test_tables_that_are_none_are_refused(tmp_path, tables, told):
    (tmp_path / "tables.json").write_text(json.dumps({"tables": tables}))
    with pytest.raises(ScaleoutError, match=told):
        compare_files([tmp_path / "tables.json"], table="a")
