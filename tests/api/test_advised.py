"""Advice on memory as whole commands: each runs as it is printed, fits, and takes the step that is said."""

import json
import shlex

import pytest
from click.testing import CliRunner

import scaleout
from scaleout.cli.verbs import scaleout as command_line
from scaleout.cluster.device.spec import load_device

JOBS = {
    "a key given already, and more nodes": "llama-3-8b --set data_parallel=16 --set zero=0 --set microbatch=4 "
    "--set batch_per_replica=4 --set recompute=none --topology dgx-h100-2 --device h100 --slow 3=1.2 "
    "--schedule baseline --schedule overlap",
    "a topology of one node": "llama-3-8b --set data_parallel=2 --set tensor_parallel=4 --set zero=0 --set layers=240 "
    "--topology dgx-h100-1 --device h100 --ideal --schedule baseline",
}


def printed(*words):
    found = CliRunner().invoke(command_line, words, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_each_line_runs_as_it_is_printed(job):
    found = json.loads(printed("run", *shlex.split(job), "--json"))
    able = [each for each in found["memory"]["advice"] if each["fits"]]
    assert {each["ranks"] > found["ranks"] for each in able} == {
        not any(each["ranks"] == found["ranks"] for each in able)
    }
    assert [each["ranks"] for each in able] == sorted(each["ranks"] for each in able)
    same = [each["makespan_s"] for each in able if each["ranks"] == found["ranks"]]
    assert same == sorted(same)
    for each in able:
        program, *words = shlex.split(each["run"])
        assert program == "scaleout"
        again = json.loads(printed(*words, "--json"))
        (row,) = again["results"]
        fastest = min(found["results"], key=lambda result: result["makespan_s"])
        assert row["schedule"] == fastest["schedule"]
        assert row["makespan_s"] == each["makespan_s"]
        assert row["tokens_per_s_per_rank"] == each["tokens_per_s_per_rank"]
        assert again["memory"]["fits"]
        assert again["memory"]["peak_memory_bytes"] == each["peak_memory_bytes"]
        assert again["ranks"] == each["ranks"]
        assert {**again["model"], "inputs": {}} == {**found["model"], "inputs": {}}


def test_a_device_like_another_takes_networks_that_the_other_is_sold_with(tmp_path):
    twin = tmp_path / "twin.yaml"
    twin.write_text("like: h100\nrent: {value: 3 USD/h, source: made up}\n")
    job = JOBS["a topology of one node"]
    shipped, own = (
        [each.get("run") for each in json.loads(printed("run", *shlex.split(words), "--json"))["memory"]["advice"]]
        for words in (job, job.replace("--device h100", f"--device {twin}"))
    )
    assert any("--topology dgx-h100-2" in str(line) for line in shipped)
    assert [line and line.replace(str(twin), "h100") for line in own] == shipped


def test_the_terminal_has_the_lines_whole_and_the_step_in_the_box():
    words = shlex.split(JOBS["a key given already, and more nodes"])
    out = printed("run", *words)
    first = json.loads(printed("run", *words, "--json"))["memory"]["advice"][0]
    assert f"\n{first['run']}\n" in out
    assert " it does, step " in " ".join(out.replace("│", " ").split())


def test_what_has_no_name_has_no_command():
    """A loaded device is not found again by what it is called."""
    keys = {"data_parallel": 2, "zero": 0}
    answer = scaleout.run(
        "llama-3-8b", topology="ring(2,nvlink4)", device=load_device("h200"), changes=keys, schedules=["baseline"]
    )
    assert answer.comparison.fit is not None
    assert answer.comparison.fit.advice
    assert not any(each.run for each in answer.comparison.fit.advice)


def test_what_fits_simulates_nothing_more():
    told = []
    changes = {"global_batch": 4096}
    scaleout.run("dlrm-128", schedules=["baseline"], changes=changes, tell=lambda *each: told.append(each))
    assert [name for _, _, name in told] == ["baseline"]


def test_what_changes_nothing_is_said_and_not_advised():
    """Flash attention keeps no scores, so that selective recompute has none to leave out."""
    job = shlex.split(JOBS["a topology of one node"])
    plain, selective = (
        json.loads(printed("run", *job, "--set", f"recompute={recompute}", "--json"))
        for recompute in ("none", "selective")
    )
    (told,) = {*selective["model"]["notes"]} - {*plain["model"]["notes"]}
    assert told.startswith("recompute selective changes nothing: only attention unfused keeps scores")
    assert selective["memory"]["peak_memory_bytes"] == plain["memory"]["peak_memory_bytes"]
    lines = [each["run"] for each in selective["memory"]["advice"] if "run" in each]
    assert lines
    assert not any("selective" in line for line in lines)
    unfused = json.loads(printed("run", *job, "--set", "recompute=selective", "--set", "attention=unfused", "--json"))
    assert not any("selective" in note for note in unfused["model"]["notes"])
