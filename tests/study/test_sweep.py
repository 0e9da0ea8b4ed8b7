"""Studies as they run: the same numbers as `run`, resumed, in parts, under locks, with cases that fail."""

import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import time

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

import scaleout as scaleout_package
from scaleout.api.sweeps import SweepAnswer
from scaleout.config.checkpoint import locked
from scaleout.errors import ConfigError
from scaleout.study.sweep import engine
from scaleout.study.sweep.cases import Resolver, run_line
from scaleout.study.sweep.engine import Execution, cases_of, execute
from scaleout.study.sweep.study import load_study, study_of
from scaleout.study.sweep.table import best_of, cheapest_of, measure_of

SMALL = {
    "title": "A small study",
    "description": "of two models",
    "topology": ["torus-8x16", "switch-128"],
    "schedule": ["baseline", "fused"],
    "cases": [
        {"workload": "dlrm-128", "set": {"global_batch": [512, 1000, 2048]}, "bandwidth": {0: ["1x", "400 Gb/s"]}},
        {
            "workload": "llama-3-8b",
            "set": {"tensor_parallel": 8, "data_parallel": 16, "sequence_parallel": True, "layers": 4},
            "network": ["alpha_beta", "link"],
            "algorithm": {"all_reduce": "ring"},
        },
    ],
    "baseline": {"schedule": "baseline"},
    "columns": {"milliseconds": "makespan_s * 1000", "both": "milliseconds + ranks"},
}
"""Of which cases with a batch of 1000 fail: it does not divide over 128 ranks."""


def small(**changes):
    return study_of({**SMALL, **changes}, name="small", where="small.yaml")


@pytest.fixture(scope="module")
def cases():
    return execute(small())


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL, sort_keys=False))
    return path


def test_every_command_gives_the_same_numbers_to_the_bit(cases, scaleout):
    assert len(cases) == 3 * 2 * 2 * 2 + 2 * 2 * 2
    for row in cases.iloc[::3].to_dict("records"):
        code, out, err = scaleout(*shlex.split(row["run"])[1:], "--json")
        if row["status"] == "ok":
            (found,) = json.loads(out)["results"]
            assert found["makespan_s"] == row["makespan_s"], row["run"]
            assert found["exposed_communication_s"] == row["exposed_communication_s"]
            if not pd.isna(row["tokens_per_s"]):
                assert found["mfu"] == row["mfu"]
                assert json.loads(out)["memory"]["peak_memory_bytes"] == row["peak_memory_bytes"]
        else:
            assert code == 2
            assert row["message"].splitlines()[0] in err


def test_a_case_that_fails_is_a_row_with_its_message(cases):
    failed = cases[cases["status"] == "failed"]
    assert set(failed["set.global_batch"]) == {1000}
    assert all("does not divide over data_parallel 128" in message for message in failed["message"])
    assert failed["makespan_s"].isna().all()


def test_a_case_that_fails_as_it_runs_does_not_fit_nor_not(tmp_path):
    """Those that a topology has no room for were listed as fitting into memory, with no result."""
    job = {"workload": "llama-3-8b", "topology": "dgx-h200-1", "schedule": "baseline"}
    sizes = {"layers": 2, "data_parallel": 1, "tensor_parallel": [2, 8]}
    found = execute(study_of({**job, "set": sizes}, name="some", where="some.yaml"))
    assert dict(zip(found["status"], found["fits"].isna(), strict=True)) == {"failed": True, "ok": False}


def test_speedups_are_over_the_baseline_that_agrees_in_all_else(cases):
    ran = cases[cases["status"] == "ok"]
    assert (ran[ran["schedule"] == "baseline"]["speedup"] == 1).all()
    keys = ["workload", "topology", "set.global_batch", "bandwidth.0", "network"]
    for _, group in ran.groupby(keys, dropna=False):
        first, second = group.to_dict("records")
        assert second["speedup"] == first["makespan_s"] / second["makespan_s"]
    assert (ran["both"] == ran["makespan_s"] * 1000 + ran["ranks"]).all()


def test_a_baseline_of_a_zip_brings_along_what_goes_with_it():
    """A label names a network: the same case on another network has another topology besides."""
    file = {
        "workload": "dlrm-128", "set": {"global_batch": [512, 1024]}, "baseline": {"label": "a torus"},
        "zip": {"label": ["a torus", "a switch"], "topology": ["torus-8x16", "switch-128"]},
    }  # fmt: skip
    found = execute(study_of(file, name="zipped", where="zipped.yaml")).set_index(["label", "set.global_batch"])
    for batch in (512, 1024):
        torus, switch = found.loc[("a torus", batch)], found.loc[("a switch", batch)]
        assert torus["speedup"] == 1
        assert switch["speedup"] == torus["makespan_s"] / switch["makespan_s"] != 1


def test_columns_have_the_types_of_their_values(cases):
    kinds = cases.dtypes.astype(str)
    assert kinds["set.global_batch"] == "Int64"
    assert kinds["set.sequence_parallel"] == "boolean"
    assert kinds["fits"] == "boolean"
    assert kinds["makespan_s"] == "float64"
    assert kinds["case"] == "int64"
    assert set(cases[cases["workload"] == "dlrm-128"]["bandwidth.0"]) == {"1x", "400 Gb/s"}


def test_a_study_that_is_resumed_runs_what_is_left_and_no_more(tmp_path, monkeypatch, cases):
    monkeypatch.setattr(engine, "_SHORTEST_S", 0.0)  # more shards
    whole = tmp_path / "whole"
    pd.testing.assert_frame_equal(execute(small(), whole), cases)
    shards = sorted((whole / "shards").iterdir())
    lost = pq.read_table(shards[0]).num_rows
    shards[0].unlink()
    (whole / "shards" / shards[1].name).write_bytes(shards[1].read_bytes()[:-20])
    ran = []
    monkeypatch.setattr(engine.execution.Here, "submit", counted(engine.execution.Here.submit, ran))
    with pytest.warns(UserWarning, match="damaged"):
        again = execute(small(), whole, Execution(workers=1))
    assert lost < len(ran) < len(cases)
    pd.testing.assert_frame_equal(again, cases)


def counted(submit, ran):
    def counting(self, chunk):
        ran.extend(case.key for case in chunk.cases)
        submit(self, chunk)

    return counting


def test_more_cases_take_the_results_of_those_that_were_there(tmp_path, monkeypatch):
    execute(small(), tmp_path)
    ran = []
    monkeypatch.setattr(engine.execution.Here, "submit", counted(engine.execution.Here.submit, ran))
    wider = execute(small(schedule=["baseline", "overlap", "fused"]), tmp_path, Execution(workers=1))
    assert len(ran) == (wider["schedule"] == "overlap").sum()
    assert not ran or len(set(ran)) == len(ran)


def test_parts_together_are_the_whole(tmp_path, cases):
    for part in (3, 1, 2):
        assert execute(small(), tmp_path, Execution(shard=(part, 3))) is None
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").iterdir()}
    pd.testing.assert_frame_equal(execute(small(), tmp_path), cases)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").iterdir()}


def test_keys_are_of_what_is_meant_not_of_how_it_is_said(tmp_path):
    resolver = Resolver()
    said = [
        {"workload": "dlrm-128"},
        {"workload": "dlrm-128", "topology": "torus-8x16", "device": "h200", "schedule": "baseline"},
        {"workload": "dlrm-128", "set.global_batch": 2048, "bandwidth.0": "200 Gb/s", "network": "alpha_beta"},
    ]
    assert len({resolver.resolve(0, inputs).key for inputs in said}) == 1
    other = [{"set.global_batch": 1024}, {"bandwidth.0": "2x"}, {"network": "link"}, {"schedule": "fused"},
             {"device": "mi210"}, {"contention": False}, {"algorithm.all_reduce": "ring"}]  # fmt: skip
    keys = {resolver.resolve(0, {**said[0], **inputs}).key for inputs in other}
    assert len(keys) == len(other)
    assert resolver.resolve(0, said[0]).key not in keys
    shutil.copy("topologies/torus-8x16.yaml", tmp_path / "torus-8x16.yaml")
    copied = {**said[0], "topology": str(tmp_path / "torus-8x16.yaml")}
    assert resolver.resolve(0, copied).key == resolver.resolve(0, said[0]).key
    text = (tmp_path / "torus-8x16.yaml").read_text().replace("700 ns", "701 ns")
    (tmp_path / "torus-8x16.yaml").write_text(text)
    assert Resolver().resolve(0, copied).key != resolver.resolve(0, said[0]).key


def test_commands_are_read_back_as_they_were_meant(scaleout):
    line = run_line(
        {
            "workload": "llama-3-8b", "set.framework": None, "set.stage_layers": (20, 12),
            "set.gradient_bucket": "1.5MiB", "set.pipeline_parallel": 2, "set.microbatch": 1,
            "set.data_parallel": 4, "set.batch_per_replica": 4, "topology": "dgx-h200-1",
            "placement": "random:3", "contention": False, "network": "link", "schedule": "overlap+fused",
        }
    )  # fmt: skip
    words = shlex.split(line)[1:]
    words = [
        word
        for number, word in enumerate(words)
        if "framework" not in (word + words[number + 1 if number + 1 < len(words) else 0]).split("=")[0]
    ]
    assert "stage_layers=[20, 12]" in line
    assert "gradient_bucket=1.5MiB " in line
    code, out, err = scaleout(*words, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["results"][0]["schedule"] == "overlap+fused"


def test_constraints_leave_out_by_ranks_and_memory(tmp_path):
    values = {
        "title": "t", "workload": "llama-3-8b", "topology": "dgx-h200-1", "set": {"recompute": "full", "zero": 1,
        "batch_per_replica": [1, 64], "data_parallel": [4, 8]}, "where": ["ranks == 8", "fits"],
    }  # fmt: skip
    found = execute(study_of(values, name="t", where="t"), tmp_path)
    assert found["status"].tolist() == ["ok", "left out"]
    assert found["message"].tolist() == ["", "fits does not hold"]
    assert found["fits"].tolist() == [True, False]
    without = execute(study_of({**values, "where": "ranks == 8"}, name="t", where="t"), tmp_path)
    assert without["status"].tolist() == ["ok", "ok"]
    again = execute(study_of(values, name="t", where="t"), tmp_path)
    pd.testing.assert_frame_equal(again, found)
    with pytest.raises(ConfigError, match="leave no case of 4"):
        execute(study_of({**values, "where": "ranks == 9"}, name="t", where="t"))


def test_a_sample_is_of_all_cases_and_the_same_every_time():
    grid = {"global_batch": [128 * n for n in range(1, 101)], "embedding_dim": [4 * n for n in range(1, 1001)]}
    values = {"title": "t", "workload": "dlrm-128", "set": grid, "sample": {"count": 50, "seed": 1}}
    drawn = [dict(pair[1]) for pair in cases_of(study_of(values, name="t", where="t"), Resolver())]
    again = [dict(pair[1]) for pair in cases_of(study_of(values, name="t", where="t"), Resolver())]
    values["sample"]["seed"] = 2
    other = [dict(pair[1]) for pair in cases_of(study_of(values, name="t", where="t"), Resolver())]
    assert drawn == again != other
    assert len(drawn) == 50
    assert len({case["set.global_batch"] for case in drawn}) > 25
    values["where"] = "set.embedding_dim > 3900"
    assert all(
        case["set.embedding_dim"] > 3900 for _, case in cases_of(study_of(values, name="t", where="t"), Resolver())
    )


def test_a_million_cases_are_asked_for_first(tmp_path, scaleout):
    grid = {"global_batch": [128 * n for n in range(1, 1001)], "embedding_dim": list(range(1, 1001))}
    (tmp_path / "wide.yaml").write_text(yaml.safe_dump({"title": "t", "workload": "dlrm-128", "set": grid}))
    code, out, err = scaleout("study", tmp_path / "wide.yaml", "--output", tmp_path / "out")
    assert (code, out) == (2, "")
    assert "has 1,000,000 cases; give --yes" in err
    assert not (tmp_path / "out").exists()


def test_the_command_writes_a_table_and_says_what_it_found(file, tmp_path, scaleout, cases):
    out = tmp_path / "out"
    code, text, err = scaleout("study", file, "--output", out, "--json", "--no-report", "--timelines", "none")
    assert (code, err) == (0, "")
    summary = json.loads(text)
    assert (summary["cases"], summary["ok"], summary["failed"]) == (32, 24, 8)
    assert summary["failed_for"][0]["cases"] == 8
    assert {each["run"].split()[2] for each in summary["fastest_cases"]} == {"dlrm-128", "llama-3-8b"}
    pd.testing.assert_frame_equal(pd.read_parquet(out / "cases.parquet"), cases)
    first = (out / "cases.parquet").read_bytes()
    code, text, err = scaleout("study", file, "--output", out, "--no-report", "--timelines", "none")
    assert code == 0
    assert "32: 24 simulated, 8 failed" in text
    assert (out / "cases.parquet").read_bytes() == first


def test_timelines_are_of_the_fastest_of_each_workload_and_written_once(tmp_path, file, scaleout, cases):
    words = ("study", file, "--output", tmp_path / "out", "--no-report")
    assert scaleout(*words)[0] == 0
    found = pd.read_parquet(tmp_path / "out" / "cases.parquet")
    drawn = found[found["timeline"] != ""]
    assert list(drawn["case"]) == sorted(each["case"] for each in best_of(small(), found))
    assert set(drawn["workload"]) == {"dlrm-128", "llama-3-8b"}
    first = tmp_path / "out" / drawn["timeline"].iloc[0]
    ends = [event["ts"] + event["dur"] for event in json.loads(first.read_text())["traceEvents"] if event["ph"] == "X"]
    assert max(ends) / 1e6 == pytest.approx(drawn["makespan_s"].iloc[0])
    before = first.stat().st_mtime_ns
    assert scaleout(*words)[0] == 0
    assert first.stat().st_mtime_ns == before


def test_the_fastest_is_by_throughput_where_steps_are_not_of_one_size():
    """Tokens where all have them, samples where some have none, of a rank where ranks vary; else the makespan."""
    llama = {"workload": "llama-3-8b", "set": {"tensor_parallel": 8, "layers": 2, "batch_per_replica": [1, 4]}}
    dlrm = {"workload": "dlrm-128", "set": {"global_batch": [512, 2048]}}
    nodes = {"nodes": [2, 4], "set": {"data_parallel": [2, 4]}}
    one = {"workload": "dlrm-128", "topology": ["torus-8x16", "ring-128"]}
    wide = {**llama, "set": {**llama["set"], "data_parallel": 16}}
    for cases, wanted in (
        ([wide], "tokens_per_s"),
        ([wide, dlrm], "samples_per_s"),
        ([{**llama, "topology": "dgx-h200-16", "zip": nodes}], "tokens_per_s_per_rank"),
        ([one], "makespan_s"),
    ):
        study = study_of({"title": "fastest", "topology": "switch-128", "cases": cases}, name="", where="")
        frame = execute(study, None, Execution(workers=1))
        assert (frame["status"] == "ok").all()
        assert measure_of(frame) == wanted
        for best in best_of(study, frame):
            own = frame[frame["workload"] == best["workload"]]
            least = wanted == "makespan_s"
            values = own["samples_per_s"] if wanted == "samples_per_s" else own[wanted]
            assert best[wanted] == (values.min() if least else values.max())


def test_goodput_is_that_of_its_command(scaleout):
    losses = {"checkpoint": "10 s", "tokens": "15T", "stragglers": 0.005, "straggler_slowdown": 1.1}
    keys = {"tensor_parallel": 8, "data_parallel": 16, "layers": 4}
    study = {"title": "losses", "workload": "llama-3-8b", "set": keys, "topology": "dgx-h200-16", "goodput": losses}
    (row,) = execute(study_of(study, name="", where="")).to_dict("records")
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    command = ("goodput", "llama-3-8b", *words, "--topology", "dgx-h200-16", "--schedule", "baseline", "--tokens")
    _, out, _ = scaleout(*command, "15T", "--checkpoint", "10s", "--stragglers", "0.005=1.1", "--json")
    found = json.loads(out)
    for name in ("goodput", "step_p95_s", "training_s", "between_failures_s"):
        assert row[name] == pytest.approx(found[name], rel=1e-12)
    assert row["checkpoint_interval_s"] == pytest.approx(found["checkpoint_interval_s"], rel=1e-12)
    other = execute(study_of({**study, "goodput": {**losses, "failures": "100/h"}}, name="", where=""))
    assert other["goodput"][0] < row["goodput"]
    with pytest.raises(ConfigError, match=r"goodput\.checkpoint"):
        study_of({**study, "goodput": {}}, name="", where="x.yaml")


def test_the_folder_of_another_study_is_refused(tmp_path):
    execute(small(), tmp_path, Execution(workers=1))
    other = study_of(SMALL, name="other", where="")
    with pytest.raises(ConfigError, match=r"has the results of study 'small'; give another --output"):
        execute(other, tmp_path)
    (tmp_path / ".study").unlink()
    assert len(execute(other, tmp_path)) == len(execute(other, tmp_path))


def test_results_of_a_study_and_of_a_command_are_not_mixed(tmp_path, scaleout):
    """Each once wrote among the files of the other, of which `view` then hid one."""
    collective = ("collective", "all_reduce", "--bytes", "1MiB", "--topology", "dgx-h200-1", "--network", "link")
    code, _, err = scaleout(*collective, "--output", tmp_path / "answer")
    assert code == 0, err
    before = sorted(path.name for path in (tmp_path / "answer").iterdir())
    with pytest.raises(ConfigError, match=r"answer has the output of another command, .*; give another --output"):
        execute(small(), tmp_path / "answer")
    assert {path.name for path in (tmp_path / "answer").iterdir()} - {*before} <= {".study.lock"}
    execute(small(), tmp_path / "study", Execution(workers=1))
    code, out, err = scaleout(*collective, "--output", tmp_path / "study")
    assert (code, out) == (2, "")
    assert "study has the results of a study, and would mix them; give another --output, or empty it" in err


def test_progress_is_told_in_logs(file, tmp_path, scaleout, monkeypatch):
    monkeypatch.setattr("scaleout.cli.progress._A_LINE_S", 0.0)
    code, _, err = scaleout("study", file, "--output", tmp_path / "out", "--no-report", "--workers", 1)
    assert code == 0
    assert "of 32 cases" in err


@pytest.mark.parametrize("baseline", [{}, {"schedule": "baseline"}])
def test_a_study_of_which_all_fails_is_an_error(tmp_path, scaleout, baseline):
    """With a baseline of all keys that vary, too: its cases are one group, then without any that ran."""
    schedules = {"schedule": ["baseline", "overlap"], "baseline": baseline} if baseline else {}
    asked = {"title": "t", "workload": "dlrm-128", "set": {"global_batch": 1}, **schedules}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(asked))
    code, out, err = scaleout("study", tmp_path / "s.yaml", "--output", tmp_path / "out", "--no-report")
    assert code == 2
    assert "all cases failed, the first with: workload dlrm-128: global_batch 1" in err
    assert f"failed {1 + bool(baseline)}: workload dlrm-128: global_batch 1" in " ".join(out.split())
    assert pd.read_parquet(tmp_path / "out" / "cases.parquet")["status"].tolist() == ["failed"] * (1 + bool(baseline))


def test_two_processes_on_a_folder_are_told(tmp_path, monkeypatch, file, scaleout):
    monkeypatch.setattr("scaleout.config.checkpoint._PATIENCE_S", 0.0)
    for held, words in (("study", []), ("study", ["--shard", "1/2"]), ("study-1-of-2", [])):
        with locked(tmp_path, held):
            code, _, err = scaleout("study", file, "--output", tmp_path, *words)
            assert code == 2
            assert f"process {os.getpid()} works in this folder" in err
    with locked(tmp_path, "study-1-of-2"):
        assert scaleout("study", file, "--output", tmp_path, "--shard", "2/2")[0] == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no full disk")  # noqa: PTH110
def test_a_full_disk_and_a_folder_that_cannot_be_written_are_told(tmp_path, file, scaleout, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    code, _, err = scaleout("study", file, "--output", blocked / "out")
    assert code == 2
    assert "cannot be written" in err

    def full(*_):
        raise OSError(28, "No space left on device", str(tmp_path / "out"))

    monkeypatch.setattr("scaleout.config.writing.os.fsync", full)
    code, _, err = scaleout("study", file, "--output", tmp_path / "out", "--workers", "1")
    assert code == 2
    assert "No space left on device" in err
    assert not list((tmp_path / "out" / "shards").glob("*"))


@pytest.mark.parametrize("words", [["--shard", "0/3"], ["--shard", "4/3"], ["--shard", "x"], ["--workers", "0"]])
def test_what_is_no_part_is_refused(file, tmp_path, scaleout, words):
    code, out, err = scaleout("study", file, "--output", tmp_path / "out", *words)
    assert (code, out) == (2, "")
    assert words[1] in err


def test_python_takes_names_and_keys(cases):
    pd.testing.assert_frame_equal(scaleout_package.run_study(SMALL), cases)
    with pytest.raises(ConfigError, match="unknown study 'topologie'; did you mean 'topologies'"):
        scaleout_package.run_study("topologie")
    with pytest.raises(ConfigError, match="workers"):
        scaleout_package.run_study(SMALL, workers="two")


def test_an_answer_says_in_a_line_what_failed_and_why(cases):
    """Two cases that had failed were told as `2 cases, 0 simulated`."""
    answer = SweepAnswer(small(), cases)
    few = int((cases["status"] == "failed").sum())
    assert f"{few} failed: " in repr(answer)
    assert "does not divide over data_parallel 128" in repr(answer)
    assert answer.answer()["failed"].startswith(f"{few}: ")
    assert "failed" not in repr(SweepAnswer(small(), cases[cases["status"] == "ok"]))


def test_processes_give_the_same_table(tmp_path, cases):
    pd.testing.assert_frame_equal(execute(small(), tmp_path, Execution(workers=2)), cases)


def test_a_study_that_is_killed_goes_on(tmp_path, file, cases):
    """Killed at random moments until it is through: no case is lost, and what was written is not run again."""
    out, command = (
        tmp_path / "out",
        [sys.executable, "-m", "scaleout.cli", "study", str(file), "--no-report", "--timelines", "none"],
    )
    for delay_s in (1.2, 1.6, 2.0):
        process = subprocess.Popen([*command, "--output", str(out), "--workers", "2"], stdout=subprocess.DEVNULL)
        time.sleep(delay_s)
        process.kill()
        process.wait()
    assert subprocess.run([*command, "--output", str(out)], stdout=subprocess.DEVNULL, check=False).returncode == 0
    pd.testing.assert_frame_equal(pd.read_parquet(out / "cases.parquet"), cases)


def test_the_shipped_topology_study_has_what_it_says():
    assert load_study("topologies").size == 5 * 3 * 5 * 4


@pytest.mark.parametrize(
    ("within", "expected"),
    [(0.05, (3, 0.04)), (0.04, (3, 0.04)), (0.03, (1, 0.0)), (1.0, (4, 0.3)), (0.0, (1, 0.0))],
    ids=["5%", "its very share", "3%", "anything", "none"],
)
def test_the_cheapest_network_that_is_nearly_as_fast(within, expected):
    """By hand: 10 ms for $500 and $900, 10.4 ms for $300 (4% slower), 13 ms for $100; each network in two orders."""
    asked = study_of(
        {"title": "Prices", "workload": "dlrm-128", "topology": ["ring-128", "torus-8x16", "switch-128"],
         "within": within, "schedule": ["baseline", "fused"]}, name="", where="",
    )  # fmt: skip
    rows = [
        ("ring-128", 900.0, 10.0), ("torus-8x16", 500.0, 10.0), ("ring-128", 300.0, 10.5), ("ring-128", 300.0, 10.4),
        ("switch-128", 100.0, 13.0), ("switch-128", None, 10.0),
    ]  # fmt: skip
    cases = pd.DataFrame(
        [
            {"case": number, "status": "ok", "workload": "dlrm-128", "topology": topology, "schedule": "fused",
             "makespan_s": milliseconds / 1000, "network_dollars": price, "run": "", "ranks": 128}
            for number, (topology, price, milliseconds) in enumerate(rows)
        ]
    )  # fmt: skip
    (found,) = cheapest_of(asked, cases)
    assert (found["case"], found["slower_share"]) == (expected[0], pytest.approx(expected[1], abs=1e-12))
    assert found["network_dollars"] == rows[expected[0]][1]
    assert cheapest_of(asked, cases[:1]) == []


def test_there_is_no_cheapest_network_where_none_that_is_fast_has_a_price():
    asked = study_of(
        {"title": "Prices", "workload": "dlrm-128", "topology": ["ring-128", "switch-128"]}, name="", where=""
    )
    cases = pd.DataFrame(
        {"case": [0, 1, 2], "status": "ok", "workload": "dlrm-128", "topology": "ring-128", "schedule": "fused",
         "makespan_s": [1.0, 2.0, 3.0], "network_dollars": [None, 1.0, 2.0], "run": "", "ranks": 128}
    )  # fmt: skip
    assert cheapest_of(asked, cases) == []


def test_networks_of_other_sizes_are_not_compared():
    """Eight ranks need no network, which was told as the cheapest of all sizes; here two of 16 ranks are compared."""
    asked = study_of({"title": "t", "workload": "llama-3-8b", "gpus": [8, 16], "within": 0.5}, name="", where="")
    rows = [(8, 0.0, 900.0), (16, 500.0, 2000.0), (16, 300.0, 1900.0), (16, 100.0, 500.0)]
    cases = pd.DataFrame(
        [
            {"case": number, "status": "ok", "workload": "llama-3-8b", "gpus": ranks, "ranks": ranks, "run": "",
             "makespan_s": 1.0, "tokens_per_s": tokens, "network_dollars": dollars}
            for number, (ranks, dollars, tokens) in enumerate(rows)
        ]
    )  # fmt: skip
    (found,) = cheapest_of(asked, cases)
    assert (found["case"], found["ranks"], found["slower_share"]) == (2, 16, pytest.approx(2000 / 1900 - 1))
    assert cheapest_of(asked, cases[:2]) == []


def test_a_case_that_does_not_fit_is_neither_the_fastest_nor_the_cheapest():
    """Two networks, three sizes of batch: the largest, which has most tokens a second, is too large for memory."""
    asked = study_of(
        {"title": "t", "workload": "llama-3-8b", "topology": ["torus-8x16", "switch-128"], "within": 0.5},
        name="small",
        where="small.yaml",
    )
    rows = [
        {
            "case": number,
            "status": "ok",
            "workload": "llama-3-8b",
            "topology": topology,
            "ranks": 8,
            "makespan_s": 1.0 + batch,
            "tokens_per_s": 1000.0 * batch / (1 + batch) * factor,
            "fits": batch < 4,
            "network_dollars": dollars,
            "run": f"scaleout run {number}",
        }
        for number, (batch, (topology, dollars, factor)) in enumerate(
            itertools.product((1, 2, 4), (("torus-8x16", 10.0, 0.9), ("switch-128", 40.0, 1.0)))
        )
    ]
    cases = pd.DataFrame(rows).assign(fits=lambda found: found["fits"].astype("boolean"))
    assert [each["case"] for each in best_of(asked, cases, top=9)] == [3, 2, 1, 0]
    (cheapest,) = cheapest_of(asked, cases)
    assert (cheapest["case"], cheapest["slower_share"]) == (2, pytest.approx(1 / 0.9 - 1))
    none = cases.assign(fits=pd.array([False] * 6, dtype="boolean"))
    (best,) = best_of(asked, none)
    assert (best["case"], best["fits"]) == (5, False)
    unknown = cases.assign(fits=pd.array([None] * 6, dtype="boolean"))
    (best,) = best_of(asked, unknown)
    assert best["case"] == 5
    assert "fits" not in best


def test_a_network_of_another_device_is_told(scaleout, tmp_path):
    keys = {"workload": "llama-small", "topology": ["dgx-h200-1", "dgx-h100-1"], "device": "h200"}
    keys["set"] = {"data_parallel": 8}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(keys))
    code, out, err = scaleout("study", tmp_path / "study.yaml", "--output", tmp_path / "o", "--workers", "1", "--json")
    assert code == 0, err
    (note,) = json.loads(out)["notes"]
    assert note.startswith("topology dgx-h100-1 is a network of H100: ")
    assert scaleout_package.sweep(**keys, workers=1).notes == [note]
