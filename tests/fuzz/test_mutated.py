"""Thousands of changed inputs of every kind, the same ones every time; `run.py` beside this takes as many as wanted."""

from pathlib import Path

import pytest
from inputs import KINDS, case_of
from judge import Case, judge

COUNTS = {
    "command": 250,
    "measure log": 200,
    "search log": 150,
    "measured rows": 200,
    "astra": 400,
    "recording": 250,
    "question": 150,
    "answer": 250,
    "device": 250,
    "kernel rows": 300,
}
"""How many of a kind; of the others 500."""


@pytest.mark.parametrize("kind", KINDS)
def test_mutated(kind, tmp_path):
    """What must hold of every input is said in `judge`."""
    outcomes = set()
    for number in range(COUNTS.get(kind, 500)):
        case = case_of(0, number, kind)
        verdict = judge(case, KINDS[kind].read, tmp_path / "case")
        assert verdict.outcome != "failed", f"{verdict.why}\npython tests/fuzz/run.py --kind '{kind}' --first {number}"
        outcomes.add(verdict.outcome)
    assert "accepted" in outcomes  # or nothing behind the first check was reached
    assert "refused" in outcomes or kind in (
        "measure log",
        "search log",
    )  # which leave damaged lines out, with a warning


def test_an_input_is_the_same_every_time():
    for kind in KINDS:
        first = case_of(3, 7, kind)
        assert case_of(3, 7, kind) == first
        assert any(case_of(3, number, kind) != first for number in range(8, 12))


def test_an_input_takes_little_memory_however_often_it_is_repeated():
    """One repeated lists of lists until nothing could write it."""
    assert sum(map(len, case_of(26113, 45060, "topology").files.values())) < 20_000_000


def broken(case):
    """Readers with the faults that must be found."""
    content = case.files["x"]
    if content == b"raise":
        raise KeyError("x")
    if content == b"slow":
        while True:
            pass
    if content == b"large":
        bytearray(600_000_000)


@pytest.mark.parametrize(("content", "why"), [("raise", "KeyError"), ("slow", "takes more"), ("large", "needs")])
def test_a_reader_that_fails_is_found(tmp_path, monkeypatch, content, why):
    if content == "slow":
        monkeypatch.setattr("judge.REFUSAL_S", 0.2)
    verdict = judge(Case("x", {"x": content.encode()}), broken, tmp_path / "case")
    assert verdict.outcome == "failed"
    assert why in verdict.why


@pytest.mark.parametrize(
    ("out", "err", "code", "why"),
    [
        ("", "", 2, "does not begin with its message"),
        ("", "Traceback\nerror: x\n", 2, "does not begin with its message"),
        ("", "error: x\nerror: y\n", 2, "not one message"),
        ("half\n", "error: x\n", 2, "printed before a refusal"),
        ("", "error: x\x1b[31m\n", 2, "controls"),
        ("", "error: x\n", 3, "exit code"),
        ("{}", "something\n", 0, "on standard error"),
        ('{"a": NaN}', "", 0, "no JSON"),
        ('{"makespan_s": 0.0}', "", 0, "makespan_s is 0.0"),
        ('{"results": [{"time_s": null}]}', "", 0, "time_s is None"),
        ('{"time_s": -1.0}', "", 0, "time_s is -1.0"),
    ],
)
def test_a_command_that_fails_is_found(tmp_path, monkeypatch, *, out, err, code, why):
    def main():
        import sys

        sys.stdout.write(out)
        sys.stderr.write(err)
        sys.exit(code)

    monkeypatch.setattr("judge.main", main)
    verdict = judge(Case("command", {}, ("run", "--json")), None, tmp_path / "case")
    assert verdict.outcome == "failed"
    assert why in verdict.why
    assert not Path(tmp_path / "case").exists()
