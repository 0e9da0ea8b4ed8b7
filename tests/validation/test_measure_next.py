"""Lists of what to measure: written by a run, taken by `scaleout measure`."""

import json

import pytest

from scaleout.errors import ConfigError
from scaleout.validation.measure.experiments import check_rows, listed


def test_what_a_run_lists_is_what_measure_takes(scaleout, tmp_path):
    file = tmp_path / "next.jsonl"
    changes = ("--set", "layers=2", "--set", "tensor_parallel=4", "--set", "data_parallel=2")
    code, _, _ = scaleout("run", "llama-3-8b", *changes, "--device", "a100-40g", "--measure-next", file)
    assert code == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert rows[0]["experiment"] == "kernels"
    assert rows[0]["op"] == "gemm"
    code, out, _ = scaleout("measure", file, "--output", tmp_path / "m", "--plan", "--gpus", "8")
    assert code == 0
    planned = [json.loads(line) for line in out.splitlines()]
    assert len(planned) == len(rows)
    assert {row["experiment"] for row in planned} == {row["experiment"] for row in rows}
    for name, found in listed({str(at): row for at, row in enumerate(rows)}, where="here").items():
        assert check_rows(name, found, gpus=8)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"f, line 1": {"op": "gemm"}}, "f, line 1: the row has experiment None"),
        ({"f, line 1": {"experiment": "kernel"}}, "did you mean"),
        ({}, "holds no rows"),
    ],
)
def test_a_list_of_something_else_is_refused(rows, message):
    with pytest.raises(ConfigError, match=message):
        listed(rows, where="f.jsonl")


def test_options_that_say_what_to_measure_as_well_are_refused(scaleout, tmp_path):
    file = tmp_path / "next.jsonl"
    file.write_text(json.dumps({"experiment": "host", "step": "loop"}) + "\n")
    code, _, error = scaleout("measure", file, "--quick", "--output", tmp_path / "m", "--plan")
    assert code == 2
    assert "leave out" in error


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"experiment": "kernels", "op": "gemm", "dtype": None, "shape": {}}, "a kernel to measure has dtype None"),
        ({"experiment": "kernels", "op": "gemm", "dtype": "bf16", "shape": {"M": 1}}, "gemm"),
        ({"experiment": "collectives", "collective": "all_reduce", "ranks": -2, "bytes": 64}, "the row has ranks -2"),
        ({"experiment": "host"}, "this one has none"),
        ({"experiment": "steps", "name": "x"}, "a row to measure of steps"),
    ],
)
def test_a_row_that_cannot_be_measured_is_named_by_file_and_line(scaleout, tmp_path, row, told):
    file = tmp_path / "next.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in ({"experiment": "host", "step": "loop"}, row)))
    code, _, error = scaleout("measure", file, "--output", tmp_path / "m", "--plan", "--gpus", "2")
    assert (code, error.startswith(f"error: {file}, line 2: "), told in error) == (2, True, True)
