"""From a search to a run: the line that it prints, and the plan of its folder."""

import json
import re
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


def test_a_pipeline_waits_in_a_run_as_its_search_says(scaleout, tmp_path):
    """Its bubble and its exposed messages: the search counted messages as bubble, and a run did not."""
    held = ("--set", "pipeline_parallel=2", "--set", "layers=8", "--schedule", "overlap", "--simulations", "2")
    row = json.loads(scaleout(*SEARCH, *held, "--output", tmp_path, "--json")[1])["fastest"][0]
    result = json.loads(scaleout("run", "--plan", f"{tmp_path}#1", "--json")[1])["results"][0]
    assert row["exposed_by_axis_s"]["pipeline"] > 0
    for key in ("makespan_s", "bubble", "exposed_by_axis_s", "tokens_per_s", "mfu", "compute_s", "bound_by"):
        assert row[key] == result[key], key
    parts_s = [row["compute_s"], row["bubble_s"], row["host_s"], *row["exposed_by_axis_s"].values()]
    assert sum(parts_s) == pytest.approx(row["makespan_s"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{}#3",), "has 2 plans; give 1 to 2"),
        (("{}#0",), "write FILE#1, the number of a plan"),
        (("{}",), "write FILE#1, the number of a plan"),
        (("{}/plans.jsonl#1",), "plans.jsonl"),
        (("{}/none#1",), "cannot be read"),
        (("{}#1", "--topology", "dgx-h200-1"), "the plan sets what --topology would; leave that out, or change"),
        (("{}#1", "llama-3-8b", "--nodes", "2"), "the plan sets what WORKLOAD, --nodes would"),
        (("{}#1", "--bandwidth", "nvlink=1x"), "the plan sets what --bandwidth nvlink would"),
        (("{}#1", "--set", "tensor_parallel=2"), "the plan sets what --set tensor_parallel would"),
        (
            ("{}#1", "--set", "zero=2"),
            "--schedule; of the machine --nodes, --taper, --bandwidth, --latency, --nic-down",
        ),
        (
            ("{}#1", "--set", "zero=2"),
            "of the simulation --algorithm, --host, --clocks, --network, --injection, --policy",
        ),
        (("{}#1", "--set", "zero=2"), "-v, --json, --output, --format, --width, --measure-next"),
        (("{}#1", "--slow", "5=0"), "#1: rank 5 is slowed by 0.0"),
        (("{}#1", "--trace", "x"), "leave out --trace and --edit"),
    ],
)
def test_what_is_no_plan_is_refused(scaleout, found, arguments, message):
    file, *rest = arguments
    code, _, error = scaleout("run", "--plan", file.format(found[1]), *rest)
    assert code == 2
    assert message in error
    assert error.count("\n") <= 2


def test_a_letter_is_the_plan_that_the_front_alone_has(scaleout, found):
    """Its table and picture named plans by letters that --plan refused."""
    answer, folder = found
    known = [each["inputs"] for each in answer["fastest"]]
    alone = [each for each in answer["front"] if each["inputs"] not in known]
    assert alone
    ran = json.loads(scaleout("run", "--plan", f"{folder}#a", "--json")[1])
    assert ran["results"][0]["makespan_s"] == pytest.approx(alone[0]["makespan_s"], rel=1e-6)
    code, _, error = scaleout("run", "--plan", f"{folder}#zz")
    assert code == 2
    assert "give 1 to 2, or a" in error


@pytest.mark.parametrize(
    "changes",
    [
        ("--slow", "5=1.2"),
        ("--degrade", "3-switch=0.5", "--latency", "nvlink=2x", "--network", "link", "--injection", "400 Gb/s"),
        ("--host", "none", "--no-contention", "--algorithm", "all_gather=ring", "--set", "gradient_bucket=25MiB"),
        ("--ideal", "--placement", "transposed"),
    ],
)
def test_a_what_if_of_a_plan_is_that_of_its_command(scaleout, found, changes):
    answer, folder = found
    code, out, error = scaleout("run", "--plan", f"{folder}#2", *changes, "--json")
    assert (code, error) == (0, "")
    _, same, _ = scaleout(*shlex.split(answer["fastest"][1]["run"])[1:], *changes, "--json")
    one, other = json.loads(out), json.loads(same)
    assert one["results"] == other["results"]
    assert one["model"]["inputs"]["changes"] == other["model"]["inputs"]["changes"]


def test_the_box_of_a_what_if_has_the_plan_without_it(scaleout, found):
    code, out, _ = scaleout("run", "--plan", f"{found[1]}#1", "--slow", "5=1.2")
    assert code == 0
    assert re.search(r"│ unchanged +[\d.]+ ms under baseline; ", out)
    assert re.search(r"│ waits +.* for rank 5", out)


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


def test_a_shell_completes_the_plans_of_folders_here(found, tmp_path, monkeypatch):
    from click.shell_completion import ShellComplete

    from scaleout.cli.verbs import scaleout as command

    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "summary.json").write_text("{")
    completed = ShellComplete(command, {}, "scaleout", "_SCALEOUT_COMPLETE").get_completions
    names = [item.value for item in completed(["run", "--plan"], "")]
    assert names[:2] == ["plans#1", "plans#2"]
    assert [item.value for item in completed(["run", "--plan"], f"{tmp_path}/plans#2")] == [f"{tmp_path}/plans#2"]
    assert completed(["run", "--plan"], "other#") == []
