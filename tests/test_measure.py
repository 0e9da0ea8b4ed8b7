"""Measuring without a GPU: what is said where PyTorch or a GPU is missing, and that every operation can be called."""

import ast
import importlib
import io
import json
import sys
import types
from pathlib import Path

import pytest

import scaleout.measure
from scaleout.collectives import KINDS
from scaleout.device import load_device
from scaleout.errors import ConfigError, GraphError
from scaleout.kernel_table import read_table
from scaleout.measure import collectives, kernels
from scaleout.measure.unmeasured import BORROWING
from scaleout.operations import OPERATIONS

FOLDER = Path(scaleout.measure.__file__).parent


def makers():
    """Keys of the tables named MAKERS, read without importing PyTorch."""
    found = []
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "MAKERS":
                found += [key.value for key in node.value.keys if key is not None]
    return found


def test_every_operation_can_be_measured_in_one_way():
    assert sorted([*makers(), *BORROWING]) == sorted(OPERATIONS)


def test_every_measured_operation_has_a_maker():
    measured = {op for op, _ in read_table(load_device("h200").kernel_files).rows}
    assert measured <= set(makers())


def test_importing_needs_no_pytorch():
    assert importlib.reload(kernels)
    assert "torch" not in sys.modules


@pytest.fixture
def pytorch(monkeypatch):
    """A stand-in for PyTorch that finds no GPU."""
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", torch)


def test_missing_pytorch_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match="needs PyTorch; install it"):
        kernels.gpu_timer()


def test_missing_gpu_is_said(pytorch):
    with pytest.raises(ConfigError, match="PyTorch finds none; run this on the machine that has it"):
        kernels.gpu_timer()


def test_the_command_ends_with_the_message(pytorch):
    with pytest.raises(SystemExit, match="error: measuring kernels needs a GPU"):
        kernels.main()


class Timer:
    """A GPU on which a call takes a microsecond and a method."""

    def environment(self):
        return {"gpu": "toy"}

    def time_kernel(self, call, method):
        return {"us": 1.0, "launches": 1}


def measured(*rows):
    output = io.StringIO()
    kernels.measure(rows, output, timer=Timer())
    return [json.loads(line) for line in output.getvalue().splitlines()]


def test_rows_come_back_with_their_times(tmp_path):
    row = {"op": "add", "dtype": "bf16", "shape": {"elements": 64}}
    (found,) = measured(row)
    assert found == row | {"us": 1.0, "launches": 1, "method": "graph_replay"}
    table = tmp_path / "toy.jsonl"
    table.write_text('{"provenance": {}}\n' + json.dumps(found) + "\n", encoding="utf-8")
    assert read_table((table,)).series(("add", "bf16")).exact == {(64,): pytest.approx(1e-6)}


def test_a_call_that_a_graph_cannot_hold_is_profiled():
    (found,) = measured(
        {"op": "embedding_bwd", "dtype": "bf16", "shape": {"tokens": 8, "hidden": 64, "vocab": 100}},
    )
    assert found["method"] == "kernel_durations"


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        ({"op": "add"}, ConfigError, "needs the keys op, dtype and shape, not op"),
        ({"op": "ad", "dtype": "bf16", "shape": {}}, GraphError, "unknown operation 'ad'"),
        (
            {"op": "add", "dtype": "bf16", "shape": {"elements": 1}, "method": "stopwatch"},
            ConfigError,
            "unknown method 'stopwatch'; use graph_replay or kernel_durations",
        ),
    ],
)
def test_rows_that_are_no_kernel_are_refused(row, error, message):
    with pytest.raises(error, match=message):
        measured(row)


# ---- Collectives


ROW = {"collective": "all_reduce", "ranks": 4, "bytes": 1024}


def checked(**changes):
    return collectives.check_rows([ROW | changes], gpus=4, kinds=("all_reduce", "send"))


def test_rows_of_collectives_pass():
    assert checked(algorithm="Ring", protocol="LL")[0]["protocol"] == "LL"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"proto": "LL"}, "has the keys collective, ranks, bytes, and at most algorithm and protocol"),
        ({"collective": "gather"}, "cannot measure collective 'gather'; use one of all_reduce, send"),
        ({"ranks": 8}, "a row has 8 ranks; this machine can measure 2 to 4"),
        ({"ranks": 1}, "a row has 1 ranks"),
        ({"bytes": 2}, "a row has 2 bytes; give a whole number, at least two a rank"),
    ],
)
def test_rows_that_cannot_be_measured_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        checked(**changes)


def test_what_was_measured_is_not_measured_again(tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [ROW, ROW | {"protocol": "LL"}, ROW | {"bytes": 2048}]
    assert collectives.remaining(rows, file) == rows
    file.write_text("".join(json.dumps(row | {"us": 9.1}) + "\n" for row in rows[:2]))
    assert collectives.remaining(rows, file) == rows[2:]


def test_measuring_collectives_needs_a_folder_and_pytorch(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["collectives"])
    with pytest.raises(SystemExit, match="give the folder for the rows"):
        collectives.main()
    monkeypatch.setattr(sys, "argv", ["collectives", "folder"])
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match="needs PyTorch; install it"):
        collectives.main()


def test_every_collective_can_be_measured():
    tree = ast.parse((FOLDER / "communicator.py").read_text(encoding="utf-8"))
    tables = [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    (calls,) = (table for table in tables if getattr(table.target, "id", "") == "CALLS")
    assert sorted(key.value for key in calls.value.keys) == sorted(KINDS)
