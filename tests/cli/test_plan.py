"""From a search to a run: the line that it prints, and the plan of its folder."""

import json
import shlex

import pytest

SEARCH = (
    "search", "llama-3-8b", "--topology", "dgx-h200-2", "--nodes", "1", "--bandwidth", "nvlink=2x",
    "--global-batch", "8", "--set", "recompute=none", "--set", "zero=1", "--set", "context_parallel=1",
    "--workers", "1", "--top", "2",
)  # fmt: skip


@pytest.fixture
def found(scaleout, tmp_path):
    """Search, and return the answer and the folder."""
    code, out, _ = scaleout(*SEARCH, "--output", tmp_path / "plans", "--json")
    assert code == 0
    return json.loads(out), tmp_path / "plans"


def test_the_answer_comes_first_and_says_how_to_run_it(scaleout, tmp_path):
    code, out, _ = scaleout(*SEARCH, "--output", tmp_path)
    lines = out.splitlines()
    assert code == 0
    assert "tokens/s/GPU" in out
    assert " left" in out
    (line,) = [line for line in lines if line.startswith("scaleout run llama-3-8b ")]
    assert lines[lines.index(line) + 1] == f"or: scaleout run --plan {tmp_path}#1"
    assert "free" in out


def test_a_plan_runs_as_the_search_says(scaleout, found):
    """By the line and by the folder alike, on the changed network, and as long as the search says."""
    answer, folder = found
    row = answer["fastest"][0]
    assert row["tokens_per_s_per_rank"] == pytest.approx(row["tokens_per_s"] / 8)
    assert row["headroom_bytes"] == pytest.approx(answer["memory_capacity_bytes"] - row["peak_memory_bytes"])
    by_line = json.loads(scaleout(*shlex.split(row["run"])[1:], "--json")[1])
    for file in (folder, folder / "summary.json"):
        code, out, _ = scaleout("run", "--plan", f"{file}#1", "--json")
        assert code == 0
        assert json.loads(out) == by_line
    assert by_line["results"][0]["makespan_s"] == pytest.approx(row["makespan_s"], rel=1e-6)
    assert by_line["model"]["inputs"]["changes"] == ["nodes=1", "bandwidth nvlink=2x"]
    assert by_line["memory"]["peak_memory_bytes"] == pytest.approx(row["peak_memory_bytes"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{}#3",), "has 2 plans; give 1 to 2"),
        (("{}#0",), "write FILE#1, the number of a plan"),
        (("{}",), "write FILE#1, the number of a plan"),
        (("{}/plans.jsonl#1",), "plans.jsonl"),
        (("{}/none#1",), "cannot be read"),
        (("{}#1", "--topology", "dgx-h200-1"), "says workload, machine and options; leave out all but --schedule"),
        (("{}#1", "--host", "eager"), "says workload, machine and options"),
        (("{}#1", "--trace", "x"), "leave out --trace and --edit"),
    ],
)
def test_what_is_no_plan_is_refused(scaleout, found, arguments, message):
    file, *rest = arguments
    code, _, error = scaleout("run", "--plan", file.format(found[1]), *rest)
    assert code == 2
    assert message in error
    assert error.count("\n") <= 2


def test_another_schedule_of_a_plan(scaleout, found):
    code, out, _ = scaleout("run", "--plan", f"{found[1]}#1", "--schedule", "overlap", "--json")
    assert code == 0
    assert json.loads(out)["results"][0]["schedule"] == "overlap"


def test_a_plan_is_shown_as_the_workload_that_it_runs(scaleout, found):
    answer, folder = found
    code, out, _ = scaleout("show", f"{folder}#2", "--json")
    assert code == 0
    shown, plan = json.loads(out), answer["fastest"][1]["plan"]
    assert shown["workload"] == "llama-3-8b"
    assert {name: shown["keys"][name] for name in plan} == plan
    code, _, err = scaleout("show", folder)
    assert code == 2
    assert f"holds results, not what is simulated; open it by scaleout view {folder}" in err
