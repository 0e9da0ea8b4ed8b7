"""`scaleout diff`: folders, summaries and traces give the same answer, and what is no result is refused."""

import csv
import json

import pytest

from scaleout.config.units import format_seconds
from scaleout.report.difference import awaited_words
from scaleout.report.pages.document import facts_of

TABLES = ("makespan_parts", "by_kind", "by_phase", "by_operation", "by_collective")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("diff")


@pytest.fixture
def made(scaleout, folder):
    """Two results of one workload as folders, a summary of the first, and traces of the first."""
    if not (folder / "a.json").exists():
        for name, more in (("a", ()), ("b", ("--set", "global_batch=4096"))):
            schedules = ("--ideal", "--schedule", "baseline", "--schedule", "overlap")
            code, out, _ = scaleout("run", "dlrm-128", *more, *schedules, "--json", "--output", folder / name)
            assert code == 0
            (folder / f"{name}.json").write_text(out)
        assert scaleout("trace", "dlrm-128", "--output", folder / "traces")[0] == 0
    return folder


@pytest.fixture
def diff(scaleout):
    def run(*arguments):
        code, out, err = scaleout("diff", *arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return run


def rows(found):
    return [found["makespan"], *(row for name in TABLES for row in found[name])]


@pytest.mark.parametrize("name", ["a", "a.json", "a/summary.json", "traces"])
def test_a_result_does_not_differ_from_itself_whatever_its_form(made, diff, name):
    topology = ("--topology", "torus-8x16") if name == "traces" else ()
    found = diff(made / name, made / "a", *topology)
    assert found["makespan"]["a_s"] > 0
    assert found["by_collective"]
    for row in rows(found):
        assert row["difference_s"] == 0
        assert row["only_in"] == ""


def test_the_makespans_are_those_of_the_results_and_the_order_turns_the_sign(made, diff):
    there, back = diff(made / "a", made / "b"), diff(made / "b", made / "a.json")
    a, b = (json.loads((made / f"{name}.json").read_text())["results"][0] for name in "ab")
    assert there["makespan"]["difference_s"] == b["makespan_s"] - a["makespan_s"] > 0
    assert [row["difference_s"] for row in rows(there)] == [-row["difference_s"] for row in rows(back)]
    other = {"A": "B", "B": "A", "": ""}
    assert [row["only_in"] for row in rows(there)] == [other[row["only_in"]] for row in rows(back)]
    sizes = {(row["name"], row["only_in"]): row for row in there["by_collective"]}
    row = sizes["all_to_all", "B"]
    assert (row["group_size"], row["a_s"]) == (128, 0)
    assert row["bytes"] > 0


def test_schedules_are_chosen_by_name_once_or_of_each(made, diff):
    results = {row["schedule"]: row for row in json.loads((made / "a.json").read_text())["results"]}
    found = diff(made / "a", made / "a", "--schedule", "overlap")
    assert found["makespan"]["a_s"] == found["makespan"]["b_s"] == results["overlap"]["makespan_s"]
    found = diff(made / "a", made / "a", "--schedule", "baseline", "--schedule", "overlap")
    assert found["makespan"]["a_s"] == results["baseline"]["makespan_s"]
    assert found["makespan"]["b_s"] == results["overlap"]["makespan_s"]


def test_other_schedules_of_both_results_are_named(made, diff):
    """The first is compared, which a reader of boxes, where the fastest stands, may not mean."""
    said = diff(made / "a", made / "b")["answer"]["also in both"]
    assert said == "overlap, of which overlap is the fastest of A; --schedule compares another"
    assert "also in both" not in diff(made / "a", made / "b", "--schedule", "baseline")["answer"]


def test_tables_name_the_rows_and_files_hold_both_timelines(made, scaleout, tmp_path):
    code, out, _ = scaleout("diff", made / "a", made / "b", "--output", tmp_path / "d")
    assert code == 0
    for words in ("busy time by phase", "busy time by operation", "busy time by collective", "exposed communication",
                  "makespan", "idle", "only in A", "only in B", "timeline.json"):  # fmt: skip
        assert words in out
    events = json.loads((tmp_path / "d" / "timeline.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(names.values()) == ["A baseline: ranks 0-127", "B baseline: ranks 0-127"]
    assert {event["pid"] for event in events} == set(names)
    with (tmp_path / "d" / "differences.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    found = json.loads((tmp_path / "d" / "summary.json").read_text())
    assert [float(row["difference_s"]) for row in table] == [row["difference_s"] for row in rows(found)]


def test_a_timeline_may_be_longer_than_other_files(made, scaleout, tmp_path):
    """Those of large jobs have more than the 16 MiB of a summary."""
    (tmp_path / "long").mkdir()
    (tmp_path / "long" / "summary.json").write_text((made / "a" / "summary.json").read_text())
    timeline = json.dumps(json.loads((made / "a" / "timeline.json").read_text()), indent=20_000)
    assert len(timeline) > 2**24
    (tmp_path / "long" / "timeline.json").write_text(timeline)
    code, _, err = scaleout("diff", tmp_path / "long", made / "b", "--output", tmp_path / "d")
    assert (code, err) == (0, "")
    assert (tmp_path / "d" / "timeline.json").exists()


def test_a_summary_alone_has_no_timeline(made, scaleout, tmp_path):
    code, out, _ = scaleout("diff", made / "a.json", made / "b", "--output", tmp_path / "d")
    assert code == 0
    assert not (tmp_path / "d" / "timeline.json").exists()
    assert "no timeline.json: a.json" in out.replace(str(made) + "/", "")


def wrong(made, change):
    found = json.loads((made / "a.json").read_text())
    change(found)
    (made / "wrong.json").write_text(json.dumps(found))
    return made / "wrong.json"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: [row.pop("busy") for row in found["results"]], "says nothing of phases and operations"),
        (lambda found: found.pop("results"), "is no result of `scaleout run`"),
        (lambda found: found.update(results=[]), "is no result of `scaleout run`"),
        (lambda found: found["results"][0].pop("idle_s"), "is no result of `scaleout run`"),
        (lambda found: found["results"][0].update(makespan_s="1"), "is no result of `scaleout run`"),
        (lambda found: found["results"][0].update(busy={}), "`busy` is no list"),
        (lambda found: found["results"][0]["busy"][1].pop("phase"), "`busy`, row 1: phase is missing or wrong"),
        (lambda found: found["results"][0]["busy"][0].update(count=-1), "`busy`, row 0: count is missing or wrong"),
        (lambda found: found["results"][0].update(makespan_s=1e308), "is no result of `scaleout run`"),
    ],
)
def test_what_is_no_result_is_refused(made, scaleout, change, words):
    code, out, err = scaleout("diff", made / "a", wrong(made, change))
    assert (code, out) == (2, "")
    assert "wrong.json: " in err
    assert words in err


def test_other_input_is_refused(made, scaleout, tmp_path):
    _, answer, _ = scaleout("collective", "all_reduce", "--bytes", "1MiB", "--topology", "ring-128", "--json")
    (tmp_path / "collective.json").write_text(answer)
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "text.json").write_text("no JSON")
    (tmp_path / "empty").mkdir()
    a = made / "a"
    for arguments, words in (
        ([a, tmp_path / "collective.json"], "collective.json: is no result of `scaleout run`"),
        ([a, tmp_path / "list.json"], "list.json: is no result of `scaleout run`"),
        ([a, tmp_path / "text.json"], "text.json"),
        ([a, tmp_path / "empty"], "neither a result of `scaleout run`"),
        ([tmp_path / "missing", a], "missing"),
        ([a, a, "--schedule", "fused"], "has no schedule 'fused'"),
        ([a, a, *["--schedule", "baseline"] * 3], "--schedule is given 3 times"),
        ([a, a, "--topology", "ring-128"], "--topology is for traces"),
    ):
        code, out, err = scaleout("diff", *arguments)
        assert (code, out) == (2, ""), (arguments, err)
        assert words in err
        assert "Traceback" not in err


def test_what_differs_of_two_results_is_in_their_names_and_no_two_rows_read_alike(scaleout, tmp_path):
    job = ("run", "llama-3-8b", "--set", "layers=2", "--schedule", "overlap")
    scaleout(*job, "--output", tmp_path / "a")
    scaleout(*job, "--set", "framework=fsdp2", "--device", "h100", "--output", tmp_path / "b")
    found = json.loads(scaleout("diff", tmp_path / "a", tmp_path / "b", "--json")[1])
    assert found["a"] == "llama-3-8b, overlap, on dgx-h200-1, device=h200"
    assert found["b"] == "llama-3-8b, overlap, on dgx-h200-1, device=h100, framework=fsdp2"
    rows = scaleout("diff", tmp_path / "a", tmp_path / "b")[1].partition("by collective\n")[2].partition("\n\n")[0]
    printed = [line.split()[:4] + line.split()[-1:] for line in rows.splitlines()[1:]]
    assert len(printed) == len(set(map(tuple, printed)))
    line = next(line for line in rows.splitlines() if "reduce_scatter" in line and "1000 MiB" in line)
    large = [row for row in found["by_collective"] if row["name"] == "reduce_scatter" and row["bytes"] > 1.04e9]
    assert len(large) == 2
    assert f"{1e3 * sum(row['b_s'] for row in large):.3g} ms" in line


def test_the_box_names_the_rank_that_others_wait_for(scaleout, tmp_path):
    """A straggler's doing stood as compute, exposed communication and idle time of the healthy ranks alone."""
    job = ("run", "llama-small", "--topology=dgx-h100-2", "--schedule=overlap", "--no-contention", "--set=zero=3",
           "--set=tensor_parallel=1", "--set=data_parallel=16", "--set=layers=8", "--json")  # fmt: skip
    for name, more in (("a", ()), ("b", ("--slow", "5=2"))):
        (tmp_path / name).write_text(scaleout(*job, *more)[1])
    out = " ".join(scaleout("diff", tmp_path / "a", tmp_path / "b")[1].replace("│", " ").split())
    (row,) = json.loads((tmp_path / "b").read_text())["results"]
    idle_s = sum(each["idle_s"] * len(each["members"]) for each in row["waits"] if each["waits_for"] == [5]) / 16
    waits_s = idle_s + sum(each["waits_s"] for each in row["bounds"])
    assert f" waits {format_seconds(waits_s)} against 0 s for rank 5, idle or in collectives most " in out
    assert awaited_words({"waits_for": [5], "a_s": 0, "b_s": 1}, ["link, contention, no host"]).endswith("too")
    document = json.loads(scaleout("diff", tmp_path / "a", tmp_path / "b", "--json")[1])
    told = dict(facts_of(document))["waits"]
    assert f" waits {told}" in out
    assert " waits " not in scaleout("diff", tmp_path / "b", tmp_path / "b")[1]
    for wrong in (
        {"waits_for": "5", "waits_for_s": 1},
        {"waits_for": [5], "waits_for_s": "1"},
        {"waits_for": [5]},
        None,
    ):
        document = json.loads((tmp_path / "b").read_text())
        document["results"][0]["bounds"] = document["results"][0]["waits"] = [wrong]
        (tmp_path / "wrong").write_text(json.dumps(document))
        code, out, _ = scaleout("diff", tmp_path / "a", tmp_path / "wrong")
        assert (code, " waits " in out) == (0, False)
