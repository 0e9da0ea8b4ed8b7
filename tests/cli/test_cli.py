"""The command line as its users and their scripts see it: output, JSON keys, messages and exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from astra_inputs import coll, comp, recv, send, write_inputs

from scaleout.cli.console import print_facts, print_table
from scaleout.cli.list import KINDS
from scaleout.cli.verbs import VERBS
from scaleout.config import library
from scaleout.config.library import find
from scaleout.config.units import format_seconds
from scaleout.network.collectives import ALGORITHMS
from scaleout.schedule import SCHEDULES

HEAD = {"schema", "version", "command", "inputs", "models"}
RESULT_KEYS = {
    "schedule",
    "idle_by_cause_s",
    "waits",
    "bound_by",
    "bounds",
    "critical_path",
    "makespan_s",
    "compute_s",
    "communication_s",
    "exposed_communication_s",
    "idle_s",
    "step_low_s",
    "step_high_s",
    "causes",
    "next_measurement",
    "speedup",
    "kernel_time_sources",
    "busy",
    "energy",
    "step_dollars",
    "dollars_per_million_tokens",
}


@pytest.fixture
def summary(scaleout):
    """Run a command line that prints JSON, and decode it."""

    def run(*arguments):
        code, out, err = scaleout(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return run


def test_run_prints_the_128_node_table(scaleout):
    code, out, _ = scaleout("run", "dlrm-128")
    assert code == 0
    assert "critical path of" not in out
    assert "critical path of fused" in scaleout("run", "dlrm-128", "-v")[1]
    assert "ranks 128" in out
    for name in ("baseline", "overlap", "fused", "samples/s/GPU", "kernel times under fused: measured"):
        assert name in out


def test_run_json_has_the_promised_keys(summary):
    found = summary("run", "dlrm-128", "--schedule", "baseline", "--schedule", "fused")
    assert set(found) == HEAD | {
        "answer",
        "workload",
        "topology",
        "device",
        "ranks",
        "model",
        "samples",
        "memory",
        "cost",
        "results",
    }
    assert (found["workload"], found["topology"], found["device"], found["ranks"]) == (
        "dlrm-128",
        "torus-8x16",
        "h200",
        128,
    )
    assert [row["schedule"] for row in found["results"]] == ["baseline", "fused"]
    assert len(found["results"][1].pop("decisions")) == 3  # all together, and a row a kind of pair
    for row in found["results"]:
        assert set(row) - {"decisions"} == RESULT_KEYS
        assert set(row["kernel_time_sources"]) >= {"measured", "interpolated", "roofline"}
        assert sum(row["kernel_time_sources"].values()) == pytest.approx(1)
        parts = row["compute_s"] + row["exposed_communication_s"] + row["idle_s"]
        assert parts == pytest.approx(row["makespan_s"], rel=1e-12)
    baseline, fused = found["results"]
    assert baseline["speedup"] == 1
    assert fused["speedup"] == baseline["makespan_s"] / fused["makespan_s"] > 1


def test_no_kernel_was_measured_on_mi210_and_the_result_says_so(summary):
    sources = summary("run", "dlrm-128", "--device", "mi210")["results"][0]["kernel_time_sources"]
    assert {name for name, share in sources.items() if share} == {"roofline"}


def test_the_main_job_compares_four_schedules_on_measured_times(summary):
    results = {row["schedule"]: row for row in summary("run", "dlrm-128")["results"]}
    assert list(results) == ["baseline", "overlap", "centauri", "fused"]
    assert all(row["kernel_time_sources"]["measured"] > 0.99 for row in results.values())
    assert results["centauri"]["makespan_s"] <= 1.1 * results["fused"]["makespan_s"]
    assert results["fused"]["speedup"] >= 1.4


def test_settings_change_keys_of_the_workload(summary):
    small = summary("run", "dlrm-128", "--set", "global_batch=512", "--set", "tables_per_rank=8")
    large = summary("run", "dlrm-128", "--set", "global_batch=4096")
    assert small["results"][0]["makespan_s"] < large["results"][0]["makespan_s"]


def test_a_named_algorithm_is_used(summary):
    fastest = summary("run", "dlrm-128", "--schedule", "baseline")["results"][0]
    ring = summary("run", "dlrm-128", "--schedule", "baseline", "--algorithm", "all-to-all=ring")["results"][0]
    assert ring["communication_s"] > fastest["communication_s"]


def test_trace_and_run_trace_give_the_same_makespan_to_the_last_bit(scaleout, summary, tmp_path):
    assert scaleout("trace", "dlrm-128", "--output", tmp_path / "t")[0] == 0
    assert len(list((tmp_path / "t").glob("*.et"))) == 128
    direct = summary("run", "dlrm-128", "--ideal", "--schedule", "baseline")
    traced = summary("run", "--trace", tmp_path / "t", "--topology", "torus-8x16", "--schedule", "baseline")
    assert traced["results"][0]["makespan_s"] == direct["results"][0]["makespan_s"]
    assert traced["ranks"] == 128


def test_a_trace_is_written_into_a_new_folder_of_new_folders(scaleout, tmp_path):
    assert scaleout("trace", "dlrm-128", "--output", tmp_path / "a" / "b" / "c")[0] == 0
    assert (tmp_path / "a" / "b" / "c" / "dlrm-128.127.et").is_file()


def test_a_trace_of_so_many_gpus_names_the_network_that_has_them(scaleout, summary, tmp_path):
    job, folder = ("llama-3-8b", "--set", "layers=2", "--set", "zero=0"), str(tmp_path / "t")
    printed = scaleout("trace", *job, "--gpus", "24", "--output", folder)[1].rstrip()
    named = printed.rpartition("scaleout run ")[2].split()
    assert named[:3] == ["--trace", folder, "--topology"]
    assert named[-2:] == ["--nodes", "3"]
    traced = summary("run", *named, "--schedule", "baseline")
    direct = summary("run", *job, "--gpus", "24", "--ideal", "--schedule", "baseline")
    assert traced["results"][0]["makespan_s"] == direct["results"][0]["makespan_s"]
    assert (
        "both say how many ranks"
        in scaleout("trace", *job, "--set", "data_parallel=4", "--gpus", "8", "--output", folder)[2]
    )


def test_a_trace_can_be_timed_again_on_another_device(scaleout, summary, tmp_path):
    scaleout("trace", "dlrm-128", "--output", tmp_path)
    direct = summary("run", "dlrm-128", "--ideal", "--device", "h200", "--schedule", "fused")
    traced = summary("run", "--trace", tmp_path, "--device", "h200", "--schedule", "fused")
    assert traced["results"] == direct["results"]


def test_output_writes_summary_nodes_timeline_and_figure(scaleout, tmp_path):
    code, out, _ = scaleout("run", "dlrm-128", "--output", tmp_path / "results")
    assert code == 0
    written = {path.name for path in (tmp_path / "results").glob("[!.]*")}
    assert written == {"summary.json", "nodes.parquet", "timeline.json", "breakdown.png", "links.png"}
    for name in written:
        assert name in out


def test_algorithms_that_are_named_are_compared(scaleout, summary):
    asked = ("collective", "all_reduce", "--bytes", "1MiB,1GB", "--topology", "dgx-h200-16")
    found = summary(*asked, "--algorithm", "ring", "--algorithm", "hierarchical_tree")
    rows = [(row["bytes"], row["algorithm"]) for row in found["results"]]
    assert rows == [(size, name) for size in (2**20, 10**9) for name in ("hierarchical_tree", "ring")]
    assert found["inputs"]["algorithm"] == ["ring", "hierarchical_tree"]
    for row in found["results"]:
        alone = summary(*asked, "--algorithm", row["algorithm"])["results"]
        assert row in alone
    _, out, _ = scaleout(*asked, "--algorithm", "ring,hierarchical_tree")
    assert out.count("ring LL") == 2
    assert "auto" not in out


def test_algorithms_say_what_nccl_calls_them(summary):
    found = {each["name"]: each for each in summary("list", "algorithms")["listed"]["algorithms"]}
    assert set(found) == set(ALGORITHMS)
    nccl = {name: each["NCCL"] for name, each in found.items() if each["NCCL"]}
    assert nccl == {"ring": "Ring", "hierarchical_tree": "Tree", "nvls_tree": "NVLSTree", "in_network": "NVLS"}


def test_collective_prints_all_algorithms_the_chosen_first(summary):
    found = summary("collective", "all_reduce", "--bytes", "64MiB", "--topology", "torus-8x16")
    assert set(found) == HEAD | {"answer", "topology", "ranks", "model", "results"}
    assert found["ranks"] == 128
    times = [row["time_s"] for row in found["results"]]
    assert times == sorted(times)
    assert len(times) > 5
    first = found["results"][0]
    assert set(first) == {
        "collective",
        "algorithm",
        "network",
        "bytes",
        "time_s",
        "num_chunks",
        "algorithm_bandwidth_bytes_per_s",
        "bus_bandwidth_bytes_per_s",
        "bound_by",
        "busy_shares",
        "auto",
    }
    assert [row["auto"] for row in found["results"]] == [True] + [False] * (len(times) - 1)
    assert first["bytes"] == 64 * 2**20
    assert first["algorithm_bandwidth_bytes_per_s"] == pytest.approx(first["bytes"] / first["time_s"])
    assert first["bus_bandwidth_bytes_per_s"] == pytest.approx(2 * 127 / 128 * first["bytes"] / first["time_s"])


def test_collective_over_a_range_of_sizes(summary, scaleout):
    sizes = ("collective", "all-to-all", "--bytes", "1KiB:8KiB,1MiB", "--topology", "ring-128", "--algorithm", "direct")
    found = summary(*sizes)
    assert [row["bytes"] for row in found["results"]] == [1024, 2048, 4096, 8192, 2**20]
    code, out, _ = scaleout(*sizes)
    assert code == 0
    assert "bus bandwidth" in out
    assert "8 KiB" in out


def test_collective_over_a_group(summary):
    found = summary("collective", "send", "--bytes", "1MB", "--topology", "dgx-h200-16", "--group", "0,8")
    assert found["ranks"] == 2


def test_list_names_what_is_shipped(scaleout):
    _, out, _ = scaleout("list", "workloads")
    assert {"dlrm-128", "gpt-3", "llama-3-8b", "mixtral-8x7b"} <= set(out.split())
    found = json.loads(scaleout("list", "--json")[1])["listed"]
    assert list(found) == [*KINDS]
    assert all(entry["name"] and entry["description"] for entries in found.values() for entry in entries)
    rows = {row["name"]: row for row in found["workloads"]}
    assert (rows["dlrm-128"]["ranks"], rows["dlrm-128"]["device"]) == (128, "h200")


def test_list_takes_a_word(scaleout):
    found = json.loads(scaleout("list", "workloads", "MIXTRAL", "--json")[1])["listed"]["workloads"]
    assert {row["name"] for row in found} == {"mixtral-8x7b", "mixtral-8x7b-256"}
    found = json.loads(scaleout("list", "workloads", "moe", "--json")[1])["listed"]["workloads"]  # a family
    assert {"deepseek-v3", "gpt-oss-120b", "mixtral-8x7b"} <= {row["name"] for row in found}
    _, out, _ = scaleout("list", "torus-8x16")
    assert "dlrm-128" in out  # runs on it
    assert "switch-128" not in out
    for arguments, words in (
        (["list", "workloadz", "moe"], "no such kind; did you mean 'workloads'?"),
        (["list", "devices", "xyz"], "no devices has 'xyz'"),
        (["list", "mixtrl"], "no kind and no name has 'mixtrl'; did you mean 'mixtral-8x7b'?"),
        (
            ["list", "nonsense"],
            "no kind and no name has 'nonsense'; known: algorithms, collectives, devices, frameworks",
        ),
        (["run", "dlrm-128", "--topology", "torus-8x61"], "(`scaleout list topologies` names them all)"),
        (["list", "wrokloads"], "no kind and no name has 'wrokloads'; did you mean 'workloads'?"),
    ):
        code, out, err = scaleout(*arguments)
        assert (code, out) == (2, "")
        assert words in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("scaleout run dlrm-1", "dlrm-128"),
        ("scaleout run dlrm-128 --topology torus-8", "torus-8x16"),
        ("scaleout run dlrm-128 --device mi2", "mi210"),
        ("scaleout run dlrm-128 --schedule overlap+fus", "overlap+fused"),
        ("scaleout run dlrm-128 --set global_b", "global_batch="),
        ("scaleout search llama-3-8b --schedule centa", "centauri"),
        ("scaleout strategies llama-3-8b --strategy zero-", "zero-1"),
        ("scaleout show ndr", "ndr"),
        ("scaleout list work", "workloads"),
        ("scaleout list models mixtral", "mixtral-8x7b"),
        ("scaleout show --keys workload recompute_l", "recompute_layers"),
        ("scaleout run llama-3-8b --set recompute=fu", "recompute=full"),
        ("scaleout run llama-3-8b --set recompute =", "full"),  # as bash cuts it
        ("scaleout run llama-3-8b --set framework = meg", "megatron"),
        ("scaleout run llama-3-8b --bandwidth nv", "nvlink4="),
        ("scaleout run llama-3-8b --topology dgx-h200-2 --latency nvl", "nvlink="),
        ("scaleout run dlrm-128 --set sharding=row", "sharding=row_wise"),
        ("scaleout sear", "search"),
    ],
)
def test_a_shell_completes_names_and_keys(words, expected):
    asked = {"_SCALEOUT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    command = [sys.executable, "-c", "from scaleout.cli import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **asked})
    assert (done.returncode, done.stderr) == (0, "")
    assert f"plain,{expected}" in done.stdout.splitlines()


@pytest.mark.parametrize("words", ["scaleout run dlrm-128 --set hidd", "scaleout run dlrm-12 --set hidd"])
def test_what_the_workload_has_not_is_not_completed(words):
    """Hidden sizes are of transformers; of a workload that there is not, nothing is known, and nothing is printed."""
    asked = {"_SCALEOUT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "4"}
    command = [sys.executable, "-c", "from scaleout.cli import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **asked})
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", "")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_what_it_does_on_one_line(scaleout, verb):
    code, out, _ = scaleout(verb, "--help")
    assert code == 0
    assert f"scaleout {verb} " in out
    assert " ".join(out.split("\n\n")[1].split()) == VERBS[verb][1]
    _, out, _ = scaleout("--help")
    (line,) = [line for line in out.splitlines() if line.startswith(f"  {verb} ")]
    assert not line.endswith("...")


def test_list_says_what_each_schedule_does(scaleout):
    _, out, _ = scaleout("list", "schedules", "--json")
    rows = json.loads(out)["listed"]["schedules"]
    assert {row["name"]: row["description"] for row in rows} == {k: v.summary for k, v in SCHEDULES.items()}


@pytest.mark.parametrize("name", ["dlrm-128", "mixtral-8x7b", "torus-8x16", "dgx-h200-16", "h200", "mi210"])
def test_show_describes_everything_shipped(scaleout, summary, name):
    assert scaleout("show", name)[0] == 0
    assert name in summary("show", name).values()


def test_show_prints_the_leave_one_out_error_of_each_operation(scaleout):
    _, out, _ = scaleout("show", "h200")
    assert "leave one out error" in out
    assert "embedding_bag_fwd" in out


def test_show_describes_a_trace_file(scaleout, summary, tmp_path):
    scaleout("trace", "dlrm-128", "--output", tmp_path)
    found = summary("show", tmp_path / "dlrm-128.0.et")
    assert found["types"]["COMM_COLL_NODE"] == 5
    assert found["communication_bytes"] > 0


def refused(answer, *words):
    """Check that a command line ended in one message with these words, and nothing on standard output."""
    code, out, err = answer
    assert code == 2, (out, err)
    assert out == ""
    assert "Traceback" not in err
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "dlrm-12"], ["unknown workload 'dlrm-12'", "did you mean 'dlrm-128'?"]),
        (["operator", "gemm_reduce_scater"], ["unknown operator", "did you mean 'gemm_reduce_scatter'?"]),
        (["operator", "gemv", "--sweep", "M=64,128"], ["unknown operator 'gemv'; did you mean 'gemv_all_reduce'?"]),
        (["run", "dlrm-128", "--topology", "torus-8x15"], ["unknown topology", "torus-8x16"]),
        (["run", "dlrm-128", "--device", "h20"], ["unknown device", "'h200'"]),
        (["run", "dlrm-128", "--schedule", "fuse"], ["unknown schedule 'fuse'", "'fused'"]),
        (["run", "dlrm-128", "--set", "global_bach=1"], ["unknown key 'global_bach'", "'global_batch'"]),
        (["run", "dlrm-128", "--set", "zero=3"], ["unknown key 'zero'; none of its", "scaleout show --keys workload"]),
        (["collective", "all_reduce", "--bytes", "1MiB"], ["give --topology, or --device and --gpus"]),
        (["collective", "all_reduce", "--bytes", "1MiB", "--device", "h200"], ["--device h200", "give --gpus"]),
        (
            ["collective", "all_reduce", "--bytes", "1MiB", "--device", "h200", "--gpus", "100"],
            ["--gpus 100: no network"],
        ),
        (
            ["collective", "all_reduce", "--bytes", "1", "--topology", "dgx-h200-2", "--device", "h200"],
            ["give one of them"],
        ),
        (["collective", "all_reduce", "--bytes", "1", "--topology", "dgx-h200-2", "--gpus", "9"], ["give a multiple"]),
        (
            ["collective", "all_reduce", "--bytes", "1", "--topology", "dgx-h200-2", "--gpus", "16", "--nodes", "2"],
            ["--gpus 16 and --nodes both"],
        ),
        (["run", "dlrm-128", "--set", "global_batch"], ["key=value"]),
        (["run", "dlrm-128", "--set", "global_batch=130"], ["global_batch 130", "128"]),
        (["run", "dlrm-128", "--set", "global_batch=-128"], ["global_batch"]),
        (["run", "dlrm-128", "--set", "gradient_bucket=25 MX"], ["unknown unit 'MX'", "MiB"]),
        (["run", "llama-3-8b", "--set", "tensor_parallel=5"], ["heads 32", "tensor_parallel 5"]),
        (["run", "mixtral-8x7b", "--set", "expert_parallel=3"], ["expert"]),
        (["run", "llama-3-8b", "--set", "pipeline_parallel=3"], ["layers 32", "3 stages"]),
        (["run", "dlrm-128", "--topology", "ring-1024"], ["128 ranks", "1024"]),
        (["run", "dlrm-128", "--algorithm", "all_to_all=rings"], ["rings", "ring"]),
        (["run", "dlrm-128", "--network", "links"], ["unknown network model 'links'"]),
        (["run"], ["give a workload, such as"]),
        (["run", "--trace", "no-such-directory"], ["no-such-directory"]),
        (["run", "missing.yaml"], ["missing.yaml", "does not exist"]),
        (["collective", "all_reduces", "--bytes", "1MiB", "--topology", "ring-128"], ["all_reduce"]),
        (["collective", "all_reduce", "--bytes", "1Mi", "--topology", "ring-128"], ["unknown unit 'Mi'"]),
        (["collective", "all_reduce", "--bytes", "4KiB:1KiB", "--topology", "ring-128"], ["range"]),
        (
            ["collective", "all_reduce", "--bytes", "1MiB", "--topology", "ring-128", "--group", "0-200"],
            ["0-200", "ranks 0 to 127"],
        ),
        (["collective", "all_reduce", "--bytes", "1MiB", "--topology", "ring-128", "--algorithm", "rnig"], ["ring"]),
        (["trace", "dlrm-129", "--output", "unused"], ["unknown workload"]),
        (["collective", "all_reduce", "--bytes", "1MiB", "--topology", "ring-128", "--group", "²"], ["no rank"]),
        (["run", "dlrm-128", "--set", "global_batch=1099511627776"], ["than a node can count"]),
        (["run", "dlrm-128", "--set", "data_parallel=true"], ["data_parallel", "whole number"]),
        (["run", "dlrm-128", "--set", "global_batch=128", "--set", "global_batch=256"], ["given twice"]),
        (
            ["collective", "all_reduce", "--bytes", "1MiB", "--topology", "dgx-h200-2", "--algorithm", "tree"],
            ["did you mean 'hierarchical_tree', NCCL's Tree?"],
        ),
        (["run", "dlrm-128", "--algorithm", "all_reduce=NVLS"], ["did you mean 'in_network', NCCL's NVLS?"]),
        (["run", "dlrm-128", "--algorithm", "all_reduce="], ["--algorithm 'all_reduce=': write it as kind=name"]),
        (
            ["collective", "all_reduce", "--bytes", "1MiB", "--topology", "ring-128", "--algorithm", "auto,ring"],
            ["auto chooses from all"],
        ),
        (["run", "dlrm-128", "--algorithm", "all_to_all=null"], ["no algorithm of all_to_all"]),
        (["run", "dlrm-128", "--algorithm", "reduce=nope"], ["no algorithm of reduce"]),
        (
            ["run", "llama-3-70b", "--set", "mode=decode", "--set", "sequence_parallel=true"],
            ["sequence_parallel to false"],
        ),
        (["show", "torus-8x17"], ["unknown name", "torus-8x16"]),
    ],
)
def test_bad_input_ends_in_one_message_and_exit_code_2(scaleout, arguments, words):
    refused(scaleout(*arguments), *words)


def test_a_missing_rank_is_named(scaleout, tmp_path):
    scaleout("trace", "dlrm-128", "--output", tmp_path)
    (tmp_path / "dlrm-128.77.et").unlink()
    refused(scaleout("run", "--trace", tmp_path), "77")


@pytest.mark.parametrize(
    ("asked", "same"),
    [
        ("--device h200 --gpus 128", "--topology dgx-h200-16"),
        ("--topology dgx-h200-16 --gpus 64", "--topology dgx-h200-16 --nodes 8"),
        ("--device h200 --gpus 4", "--topology switch(4,nvlink4)"),
    ],
)
def test_a_collective_of_so_many_gpus_is_that_of_the_network_which_has_them(scaleout, asked, same):
    given, named = (
        scaleout("collective", "all_reduce", "--bytes", "1GB", *each.split(), "--json")[1] for each in (asked, same)
    )
    assert given == named


def test_a_truncated_trace_is_named(scaleout, tmp_path):
    scaleout("trace", "dlrm-128", "--output", tmp_path)
    path = tmp_path / "dlrm-128.5.et"
    path.write_bytes(path.read_bytes()[:-3])
    refused(scaleout("run", "--trace", tmp_path), "dlrm-128.5.et", "truncated")


def test_a_foreign_file_is_refused(scaleout, tmp_path):
    (tmp_path / "x.0.et").write_text("not a trace at all, but a text")
    refused(scaleout("run", "--trace", tmp_path, "--topology", "ring-128"), "x.0.et")


def test_the_program_itself_exits_with_2_and_prints_no_traceback():
    command = [sys.executable, "-m", "scaleout.cli", "run", "dlrm-12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: unknown workload 'dlrm-12'")
    assert done.stderr.count("\n") == 1


HEAVY = {"numpy", "pandas", "matplotlib", "networkx", "numba", "pydantic", "rich", "yaml", "google.protobuf"}


@pytest.mark.parametrize("job", ["help", "bare collective", "pipeline"])
def test_small_jobs_need_no_heavy_import(job, tmp_path):
    """The help page, and ASTRA-sim's inputs of one collective and of one message."""
    arguments = ["--help"]
    if job != "help":
        ranks = [[coll(0, "ALL_REDUCE", 1 << 20)]] * 8
        if job == "pipeline":
            ranks = [[comp(0), send(1, 1, 4096, deps=[0])], [recv(0, 0, 4096), comp(1, deps=[0])]]
        arguments = ["astra", *write_inputs(tmp_path, ranks)]
    code = (
        "import sys\n"
        "from scaleout.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"heavy = {HEAVY} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.DEVNULL)


def test_nothing_to_send_takes_no_time(summary):
    found = summary("collective", "all_reduce", "--bytes", "0", "--topology", "ring-128")
    assert {row["time_s"] for row in found["results"]} == {0}
    alone = summary("collective", "all_reduce", "--bytes", "1MiB", "--topology", "ring-128", "--group", "5")
    assert {row["time_s"] for row in alone["results"]} == {0}


def test_a_message_alone_has_the_links_for_itself(summary):
    """40 hops of 700 ns, and 64 MiB at 25 GB/s."""
    command = ("collective", "send", "--bytes", "64MiB", "--topology", "ring-128", "--group", "0,40")
    assert summary(*command)["results"][0]["time_s"] == pytest.approx(40 * 700e-9 + 2**26 / 25e9)


def test_paths_in_a_workload_are_relative_to_it(summary, tmp_path, monkeypatch):
    """So a workload and its own topology can be moved, and run from anywhere."""
    text = find("workload", "dlrm-128").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("topology: torus-8x16", "topology: ./net.yaml"))
    (tmp_path / "net.yaml").write_text(find("topology", "torus-8x16").read_text())
    monkeypatch.chdir("/")
    assert summary("run", tmp_path / "mine.yaml")["topology"] == "net"


def test_a_key_that_stands_twice_in_a_file_is_refused(scaleout, tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text("kind: dlrm\nkind: moe\n")
    refused(scaleout("run", path), "'kind' stands twice")


@pytest.mark.parametrize("arguments", [["run", "dlrm-128"], ["run", "dlrm-128", "--json"], ["show", "h200"], ["list"]])
def test_a_reader_that_has_seen_enough_is_no_error(arguments):
    command = " ".join([sys.executable, "-m", "scaleout.cli", *arguments])
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -1 >/dev/null"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_cannot_be_written_is_said():
    command = f"{sys.executable} -m scaleout.cli list > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write the output")


def test_input_that_cannot_be_read_is_named():
    name = 300 * "a" + ".yaml"  # longer than names of files may be: also refused to root, unlike what nobody may read
    command = [sys.executable, "-m", "scaleout.cli", "run", "dlrm-128", "--topology", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: '{name[:40]}")
    assert f"{name[-40:]}': cannot be read (" in done.stderr


def test_show_gives_numbers_in_si_units_and_parameters(summary):
    assert summary("show", "torus-8x16")["dimensions"][0]["bandwidth_bytes_per_s"] == 25e9
    assert summary("show", "llama-3-8b")["parameters"] == pytest.approx(8.03e9, rel=1e-3)
    assert summary("show", "mixtral-8x7b")["parameters"] == pytest.approx(46.7e9, rel=1e-3)
    assert summary("show", "h200")["power"]["limit_w"] == 700
    assert summary("show", "h200-node-4")["resource_use"]["num_sms"] == 24
    assert summary("show", "h200")["leave_one_out_error"][0]["median_error"] < 1


def test_words_are_printed_as_they_are(capsys):
    """Neither brackets nor colons mean anything: `:ring:` would be an emoji."""
    print_table("[bold]", ["[x]"], [[":ring: [red]a[/red]"]])
    print_facts({"[x]": ":ring: [red]a[/red]"})
    printed = [line.rstrip() for line in capsys.readouterr().out.split("\n")]
    assert printed == ["[bold]", "[x]", ":ring: [red]a[/red]", "", "[x]: :ring: [red]a[/red]", ""]


PIPES = [
    ("run", "pipe.yaml"), ("show", "pipe.yaml"), ("run", "dlrm-128", "--topology", "pipe.edgelist"),
    ("run", "dlrm-128", "--placement", "pipe.txt"), ("validate", "pipe.jsonl"), ("run", "--trace", "pipe"),
    ("run", "dlrm-128", "--topology", "sierra-128", "--policy", "nccl_ring=./pipe.txt", "--schedule", "baseline"),
    ("validate", "/dev/zero"),
]  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="makes pipes")
@pytest.mark.parametrize("arguments", PIPES, ids=" ".join)
def test_what_is_no_file_is_not_waited_for(scaleout, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    for name in ("pipe.yaml", "pipe.edgelist", "pipe.txt", "pipe.jsonl", "pipe.0.et"):
        os.mkfifo(name)
    code, out, err = scaleout(*(f"./{each}" if each.startswith("pipe") else each for each in arguments))
    assert (code, out) == (2, "")
    assert "it is a pipe or a device; write what it gives to a file" in err


def test_keys_are_found_by_nearly_their_name_and_shown_with_what_they_may_be(scaleout):
    code, out, _ = scaleout("show", "--keys", "workload", "recomputed")
    assert code == 0
    assert out.startswith("recompute: none, selective, up_projections, operations, full; default none")
    code, out, _ = scaleout("show", "llama-3-8b")
    assert code == 0
    assert "matrix_units, vector_units: attention unfused" in " ".join(out.split())  # its meaning has one of them alone
    assert "flash, flash2, triton, unfused" not in out  # whose meaning has them all


@pytest.mark.parametrize("name", ["net.txt", "net"])
@pytest.mark.parametrize("command", [("show",), ("run",), ("collective", "all_reduce", "--bytes", "1kB", "--topology")])
def test_a_file_without_its_folder_is_no_name_but_nearly(scaleout, tmp_path, monkeypatch, command, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("")
    code, _, err = scaleout(*command, name)
    assert code == 2
    assert f"{name!r}; for the file of this name write './{name}'" in err


def test_controls_of_a_name_are_not_printed(scaleout, tmp_path):
    """In titles of tables and in facts a name stays on its line."""
    file = tmp_path / "a\nb\x1b[31m.yaml"
    file.write_bytes(find("workload", "dlrm-128").read_bytes())
    _, out, _ = scaleout("run", file, "--schedule", "baseline")
    assert "a\\nb\\x1b[31m on torus-8x16, ranks 128" in out
    _, out, _ = scaleout("show", file)
    assert "│ workload a\\nb\\x1b[31m " in out


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--slow", "5=1e308"), "rank 5 is slowed by 1e+308; give how many times as long it takes, from 1 to 1e+09"),
        (
            ("--degrade", "0-1=1e-300"),
            "link '0-1' is degraded to 1e-300; give a factor from 1e-09 to 1",
        ),
    ],
)
def test_a_limit_is_said_as_it_is(scaleout, option, said):
    code, _, err = scaleout("run", "dlrm-128", *option)
    assert code == 2
    assert said in err


def test_an_unknown_verb_names_the_nearest(scaleout):
    code, _, err = scaleout("runn", "dlrm-128")
    assert code == 2
    assert "No such command 'runn'. Did you mean 'run'?" in err


def test_a_folder_is_no_workload(scaleout, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / "rank0.json").write_text("{}")
    code, _, err = scaleout("run", "rec")
    assert code == 2
    assert "'rec' is a folder here: traces are run by --trace rec, recordings read by `scaleout import pytorch`" in err
    code, _, err = scaleout("run", "--trace", "rec")
    assert code == 2
    assert "if it is of torch.profiler: scaleout import pytorch rec --output DIR, then --trace DIR" in err


def test_the_answer_of_a_recording_is_one_step(scaleout, tmp_path):
    """Two steps of about 320 ms were recorded one after the other."""
    folder = Path(__file__).parents[2] / "traces" / "h200-pair" / "recordings"
    files = [folder / f"fsdp-base.rank{rank}.kineto.json.gz" for rank in (0, 1)]
    assert scaleout("import", "pytorch", *files, "--output", tmp_path / "fsdp")[0] == 0
    _, out, _ = scaleout("run", "--trace", tmp_path / "fsdp")
    step, exposed = (re.search(rf"│ {word} +([0-9.]+) ms", out)[1] for word in ("step", "exposed"))
    assert "the mean of 2 recorded ones" in out
    assert 315 < float(step) < 330
    _, document, _ = scaleout("run", "--trace", tmp_path / "fsdp", "--json")
    (row,) = json.loads(document)["results"]
    assert float(exposed) == pytest.approx(1e3 * row["exposed_communication_s"] / 2, rel=0.01)


def test_a_mode_of_serving_says_what_of_training_it_leaves_out(scaleout):
    small = ["data_parallel=8", "tensor_parallel=1", "layers=2", "batch_per_replica=1"]
    sets = [each for word in small for each in ("--set", word)]
    code, out, err = scaleout(
        "run", "llama-3-70b-1024", *sets, "--set", "mode=decode", "--topology", "dgx-h200-1", "--json"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert "mode decode leaves out how training runs: zero 3, sequence_parallel true" in " ".join(
        found["model"]["notes"]
    )
    assert found["results"][0]["bounds"] == []  # no communication is left


def test_the_box_has_what_frameworks_run_today_beside_a_faster_schedule(scaleout):
    job = ("run", "llama-3-8b", "--set", "mode=decode", "--set", "tensor_parallel=8", "--set", "data_parallel=1")
    job += ("--set", "layers=2", "--set", "batch_per_replica=64")
    times = {row["schedule"]: row["makespan_s"] for row in json.loads(scaleout(*job, "--json")[1])["results"]}
    assert min(times, key=times.get) == "fused"
    line = f"today     {format_seconds(times['overlap'])} under overlap, nearest to what PyTorch and Megatron-LM run"
    assert line in scaleout(*job)[1]
    for schedules in (("overlap",), ("baseline", "overlap"), ("baseline", "fused")):
        named = (word for name in schedules for word in ("--schedule", name))
        assert "today  " not in scaleout(*job, *named)[1]


def test_kinds_are_listed_by_the_words_of_other_tools(scaleout):
    for word, kind in (("models", "workloads"), ("gpus", "devices"), ("networks", "topologies")):
        assert scaleout("list", word) == scaleout("list", kind)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("collective", "all_reduce", "--size", "4MB"), "Did you mean '--bytes'?"),
        (("run", "llama-3-8b", "--size", "4"), "Did you mean '--gpus' or '--nodes'?"),
        (("search", "llama-3-8b", "--batch-size", "8"), "Did you mean '--global-batch'?"),
        (("run", "llama-3-8b", "--tp", "8"), "a key of the workload: --set tensor_parallel=VALUE"),
        (("search", "llama-3-8b", "--global_batch", "32"), "Did you mean '--global-batch'?"),
        (("run", "llama-3-8b", "--global-batch", "32"), "--set global_batch=VALUE (of kind convolutional, dlrm);"),
        (("run", "llama-3-8b", "--zero", "3"), "a key of the workload: --set zero=VALUE"),
        (("run", "llama-3-8b", "--set", "fsdp=true"), "PyTorch's FSDP as it runs is framework=fsdp2"),
        (("list", "--size", "3"), "No such option '--size'."),
        (("run", "llama-3-8b", "--tensor-model-parallel-size", "8"), "--set tensor_parallel=VALUE"),
        (("run", "llama-3-8b", "--set", "use_distributed_optimizer=true"), "did you mean 'zero' (1 is Megatron's"),
        (("run", "llama-3-8b", "--set", "world_size=8"), "did you mean 'data_parallel' (replicas; --gpus N makes"),
        (("run", "llama-3-8b", "--set", "dtype=bfloat16"), "dtype: must be 'bf16', not 'bfloat16'"),
        (("run", "llama-3-8b", "--schedule", "fsdp"), "'fsdp' is how a framework trains; give it as --set framework"),
        (("run", "meta-llama/Llama-3-8B"), "is read from its config.json by `scaleout import model`"),
        (("run", "llama-3-8b", "--network", "congestion_aware"), "did you mean 'link'?"),
        (("run", "llama-3-8b", "--set", "activation_recompute=full"), "did you mean 'recompute'?"),
        (("run", "rank.0.et"), "traces are run by --trace FOLDER"),
        (("collective", "all_reduce", "-b", "8", "-e", "1G"), "No such option '-b'. Did you mean '--bytes'?"),
        (("collective", "all_reduce", "--ngpus", "8"), "Did you mean '--gpus'?"),
        (("show", "switch(8,400Gb/s)"), "'400Gb/s' is no link type; write bandwidth=400Gb/s and a latency"),
        (("show", "torus(4x4,ndr)"), "torus: write sizes with commas between them: 4,4"),
        (("run", "llama-3-8b", "--set", "ddp=true"), "did you mean 'framework' (a preset: framework=pytorch is eager"),
        (("run", "llama-3-8b", "--set", "framework=ddp"), "did you mean 'pytorch'?"),
        (
            ("goodput", "llama-3-8b", "--tokens", "1T", "--checkpoint", "10GB/s"),
            "error: --checkpoint: '10GB/s': unknown",
        ),
        (("goodput", "llama-3-8b", "--duration", "1", "--checkpoint", "10s"), "error: --duration: '1' has no unit"),
        (
            ("collective", "all_reduce", "--bytes", "1KiB:3s", "--topology", "dgx-h200-1"),
            "error: --bytes: '3s': unknown",
        ),
        (("run", "llama-3-8b", "--injection", "3s", "--network", "link"), "error: --injection: '3s': unknown unit"),
    ],
)
def test_words_of_other_tools_name_what_is_meant(scaleout, arguments, hint):
    code, _, err = scaleout(*arguments)
    assert code == 2
    assert hint in err


@pytest.mark.parametrize("name", ["llama-3-8b", "torus-8x16", "ndr", "h200", "topologies"])
def test_a_file_that_ships_is_printed_to_copy(scaleout, tmp_path, name):
    code, out, _ = scaleout("show", name, "--file")
    kind = next(kind for kind in library.FOLDERS if name in library.names(kind))
    assert (code, out) == (0, library.find(kind, name).read_text(encoding="utf-8"))
    (tmp_path / "own.yaml").write_text(out, encoding="utf-8")
    assert scaleout("show", tmp_path / "own.yaml", "--file")[1] == out


def test_what_has_no_file_to_print_is_refused(scaleout, tmp_path):
    scaleout("trace", "dlrm-128", "--output", tmp_path)
    refused(scaleout("show", tmp_path, "--file"), "is a trace, and --file prints files of text")
    refused(scaleout("show", "ring(4,ndr)", "--file"), "is an expression")
    refused(scaleout("show", "h200", "--file", "--json"), "--file prints a file as it is; leave the other options out")
    refused(scaleout("show", "--file"), "give what to show")
