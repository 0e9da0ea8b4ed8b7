"""The page on Python holds: its examples run one after the other, as they stand."""

import re

import matplotlib.pyplot as plt
import pytest
from guides import FOLDER
from recorded_jobs import makespan_s, recording_of

from scaleout.interop.chakra.save import save_program
from scaleout.network.collectives import ALGORITHMS
from scaleout.schedule import SCHEDULES


@pytest.fixture(autouse=True)
def _as_before(tmp_path, monkeypatch):
    """Run in a folder that holds a recording, and forget what the page defines."""
    monkeypatch.chdir(tmp_path)
    program = recording_of("llama-small", layers=2, data_parallel=8).program
    facts = {"recorded": "1", "recorded_steps": "1", "recorded_s": repr(makespan_s(program)), "device": "h200"}
    save_program(program, tmp_path / "recording", name="job", facts=facts)
    schedules, algorithms = dict(SCHEDULES), dict(ALGORITHMS)
    yield
    for table, before in ((SCHEDULES, schedules), (ALGORITHMS, algorithms)):
        table.clear()
        table.update(before)
    plt.close("all")


def test_the_examples_of_the_page_run(tmp_path, capsys):
    text = (FOLDER / "use-python.md").read_text(encoding="utf-8")
    names = {}
    for number, example in enumerate(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)):
        exec(compile(example, f"use-python.md, example {number}", "exec"), names)
    out = capsys.readouterr().out
    assert "speedup" in out
    assert "bandwidth.infiniband" in out
    assert "<RunAnswer: llama-small on two-leaves, ranks 8" in out
    assert "one_way_ring" in out
    assert (tmp_path / "schedules.svg").exists()
