"""Jobs that a command line sizes or changes: `--gpus` is replicas and nodes, and a changed network is not alone."""

import json
import re

import pytest

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.nodes import part_of_node
from scaleout.cluster.topology.topology import load_topology
from scaleout.config.units import SECONDS, format_seconds, parse
from scaleout.report.pages.document import facts_of
from scaleout.simulation.options import SimulationOptions
from scaleout.study.provenance import provenance

JOB = ("run", "llama-3-8b", "--topology", "dgx-h200-2", "--set", "layers=2", "--schedule", "overlap")


@pytest.mark.parametrize(
    ("gpus", "same"),
    [
        (("--gpus", "32"), ("--set", "data_parallel=32", "--nodes", "4")),
        (("--gpus", "16"), ("--set", "data_parallel=16")),
        (("--gpus", "32", "--set", "tensor_parallel=4"), ("--set", "tensor_parallel=4", "--nodes", "4")),
    ],
)
def test_gpus_are_replicas_and_nodes(scaleout, gpus, same):
    found, expected = (json.loads(scaleout(*JOB, *options, "--json")[1]) for options in (gpus, same))
    assert found["ranks"] == expected["ranks"] == int(gpus[1])
    assert found["results"] == expected["results"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("llama-3-70b", "--gpus", "60"), "a replica of this job takes 8 ranks; give a multiple, or other degrees"),
        (
            ("llama-3-8b", "--gpus", "16", "--topology", "dgx-h200-1", "--device", "h100"),
            "has 8 ranks and no nodes that there could be more of; give a topology of several nodes, such as "
            "--topology dgx-h100-2",
        ),
        (("llama-3-8b", "--gpus", "144", "--device", "gb200"), "nodes, such as 'switch(72,nvlink5) x switch(2,ndr)'"),
        (("dlrm-128", "--gpus", "4"), "a node of topology 'torus-8x16' has 8 ranks, of which no part is known; give 8"),
        (
            ("gpt-oss-120b", "--nodes", "8", "--topology", "gb200-nvl72-1"),
            "nodes, such as 'switch(72,nvlink5) x switch(2,ndr)', or 8 ranks of this one: 'switch(8,nvlink5)'",
        ),
        (
            ("llama-3-8b", "--gpus", "12", "--topology", "dgx-h200-1"),
            "give a multiple of 8 and a topology of several nodes",
        ),
        (("llama-3-8b", "--gpus", "12", "--topology", "dgx-h200-2"), "a node of topology 'dgx-h200-2' has 8"),
        (("dlrm-128", "--set", "global_batch=1920", "--gpus", "60"), "a node of topology 'torus-8x16' has 8"),
        (("--trace", "x", "--gpus", "64"), "--gpus 64 is for a workload, which has replicas; a trace or a plan has"),
        (("llama-3-8b", "--gpus", "64", "--nodes", "8"), "--gpus 64 and --nodes both say how many ranks there are"),
        (("llama-3-8b", "--gpus", "64", "--set", "data_parallel=8"), "--set data_parallel both say how many ranks"),
    ],
)
def test_gpus_that_cannot_be(scaleout, options, message):
    code, out, err = scaleout("run", *options)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("options", "topology", "ranks"),
    [
        (("--gpus", "64", "--device", "h100"), "dgx-h100-8", 64),
        (("--gpus", "24", "--device", "h100"), "dgx-h100-2", 24),
        (("--gpus", "16"), "dgx-h200-2", 16),  # of a file whose network is one node
        (("--gpus", "8", "--device", "gb200"), "switch(8,nvlink5)", 8),
        (("--gpus", "4", "--device", "a100-80g"), "switch(4,nvlink3)", 4),
        (("--gpus", "4"), "switch(4,nvlink4)", 4),
        (("--gpus", "4", "--topology", "dgx-h100-16"), "switch(4,nvlink4)", 4),
        (("--gpus", "16", "--topology", "dgx-h200-4", "--device", "h100"), "dgx-h200-4", 16),  # as it says
        (("--gpus", "64", "--device", "mi300x"), "mi300x-8", 64),
    ],
)
def test_gpus_without_a_topology_are_of_the_network_that_their_device_is_sold_with(scaleout, options, topology, ranks):
    asked = ("run", "llama-3-8b", "--set", "layers=1", "--schedule", "baseline")
    found = json.loads(scaleout(*asked, *options, "--json")[1])
    assert (found["topology"], found["ranks"]) == (topology, ranks)


@pytest.mark.parametrize("name", ["gb200-nvl72-1", "dgx-b200-1", "dgx-h200-1", "dgx-a100-1", "dgx-a100-16"])
def test_a_part_of_a_node_is_its_switch_with_fewer_ports(name):
    topology = load_topology(name)
    found = load_topology(part_of_node(topology, 4))
    port = topology.dimensions[0]
    (part,) = found.dimensions
    assert (part.kind, part.size, part.link) == ("switch", 4, port.link)
    assert (part.bytes_per_s, part.latency_s, found.library) == (port.bytes_per_s, port.latency_s, topology.library)


@pytest.mark.parametrize("name", ["p5-64", "dgx-h200-nvls-1", "torus-4x4x8", "mi300x-node-8", "fat-tree-131072"])
def test_no_part_is_known_of_what_no_link_type_says(name):
    assert part_of_node(load_topology(name), 4) == ""


def test_the_title_has_the_nodes_of_a_topology_that_is_another_size(scaleout):
    title = "llama-3-8b on dgx-h200-2 (nodes=3), ranks 24, device h200"
    assert title in scaleout("run", "llama-3-8b", "--set", "layers=1", "--schedule", "baseline", "--gpus", "24")[1]


def test_the_box_says_whose_network_it_is_where_it_is_not_that_of_the_device(scaleout):
    asked = ("run", "llama-3-8b", "--set", "layers=1", "--schedule", "baseline", "--device", "h100")
    assert "network   of H200, not of h100; its own: --topology dgx-h100-1" in scaleout(*asked)[1]
    assert "not of h100" not in scaleout(*asked, "--topology", "dgx-h100-1")[1]


def test_keys_are_checked_against_the_replicas_that_gpus_make(scaleout):
    """Of a file with 32 replicas: 64 experts' ranks divide those of --gpus 64, and none of --gpus 48."""
    job = ("run", "qwen-3-235b-a22b", "--set", "mode=decode", "--set", "pipeline_parallel=1", "--set", "layers=2")
    job += ("--set", "expert_parallel=64", "--set", "batch_per_replica=64", "--topology", "dgx-h200-8")
    found, expected = (
        json.loads(scaleout(*job, "--schedule", "overlap", *each, "--json")[1])["results"]
        for each in (("--gpus", "64"), ("--set", "data_parallel=64"))
    )
    assert found == expected
    assert "expert_parallel 64 does not divide data_parallel 48" in scaleout(*job, "--gpus", "48")[2]
    assert "tensor_parallel: must be greater than 0" in scaleout(*job, "--set", "tensor_parallel=0", "--gpus", "64")[2]


def test_gpus_of_a_model_without_stages_are_its_ranks(scaleout):
    found, expected = (
        json.loads(scaleout("run", "resnet-50", *each, "--schedule", "baseline", "--json")[1])["results"]
        for each in (("--gpus", "16"), ("--set", "data_parallel=16", "--nodes", "4"))
    )
    assert found == expected


def test_gpus_of_a_search_are_nodes(scaleout):
    job = ("search", "llama-3-8b", "--topology", "dgx-h200-2", "--set", "layers=2", "--top", "1", "--workers", "1")
    found, expected = (json.loads(scaleout(*job, *each, "--json")[1]) for each in (("--gpus", "32"), ("--nodes", "4")))
    assert found["ranks"] == 32
    assert found == expected
    assert "--gpus 32 and --nodes both" in scaleout(*job, "--gpus", "32", "--nodes", "4")[2]
    assert "a node of topology 'dgx-h200-2' has 8" in scaleout(*job, "--gpus", "12")[2]


@pytest.mark.parametrize(
    ("topology", "device", "whose"),
    [
        ("dgx-h200-1", "mi300x", "H200"),
        ("switch(8,nvlink4)", "mi300x", "H100 or H200 or H800"),
        ("dgx-a100-1", "h100", "A100"),
        ("dgx-h100-1", "h200", "H100"),
        ("dgx-h100-1", "h100-p5", ""),
        ("dgx-a100-2", "h200", "A100"),
        ("dgx-h200-1", "h200", ""),
        ("p5-64", "h100", ""),
        ("tpu-v4-128", "tpu-v4", ""),
        ("ring-128", "mi300x", ""),
    ],
)
def test_a_network_of_other_devices_is_told(topology, device, whose):
    notes = provenance(load_topology(topology), load_device(device), SimulationOptions()).notes
    told = [note for note in notes if "is a network of" in note]
    assert [note.startswith(f"topology {topology} is a network of {whose}:") for note in told] == [True] * bool(whose)


@pytest.mark.parametrize("family", ["dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200"])
def test_every_dgx_has_one_node_by_name(family):
    topology = load_topology(f"{family}-1")
    assert (topology.num_ranks, len(topology.dimensions)) == (8, 1)


def test_a_card_that_is_down_says_what_nccl_does_without_it(scaleout):
    asked = (
        "collective",
        "all_reduce",
        "--bytes",
        "1MiB",
        "--topology",
        "dgx-h200-2",
        "--nic-down",
        "5",
        "--nic-down",
        "6",
    )
    notes = json.loads(scaleout(*asked, "--nic-down", "9", "--json")[1])["model"]["notes"]
    assert "groups of whole nodes have 6 of 8 cards on every node" in notes[0]  # as the node that has the fewest left
    notes = json.loads(scaleout(*asked, "--network", "link", "--json")[1])["model"]["notes"]
    assert "--bandwidth infiniband=0.75x" in notes[0]


def test_why_an_algorithm_is_not_there_is_told_on_demand(scaleout):
    asked = ("collective", "all_reduce", "--bytes", "1MiB", "--topology", "dgx-h200-2")
    plain, verbose = (scaleout(*asked, *more)[1] for more in ((), ("-v",)))
    assert plain.count("not here") == 1
    assert verbose.count("not here: ") > 2
    assert "rings or meshes only" in verbose
    assert "rings or meshes only" not in plain


def test_other_ranks_than_the_topology_has_are_told_what_would_do(scaleout):
    _, _, err = scaleout("run", "llama-3-70b", "--topology", "dgx-h100-8", "--device", "h100")
    assert "take a topology of 32 ranks (--nodes 4), or run the job on 64 ranks (--set data_parallel=8)" in err


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        (2, "take a topology of 16 ranks (--topology dgx-h200-2), or run"),
        (6, "take a topology of 48 ranks (--topology dgx-h200-2 --nodes 6), or run"),
    ],
)
def test_more_ranks_than_a_node_has_are_more_of_these_nodes(scaleout, replicas, words):
    """A DGX has eight ranks on a switch: sixteen are two of them, not a larger switch."""
    _, _, err = scaleout("run", "llama-3-8b", "--set", "tensor_parallel=8", "--set", f"data_parallel={replicas}")
    assert words in err
    assert "switch(" not in err


def test_a_trace_has_the_ranks_that_it_has_and_a_recording_is_imported_first(scaleout, tmp_path):
    scaleout("trace", "llama-3-8b", "--output", tmp_path / "t")
    _, _, err = scaleout("run", "--trace", tmp_path / "t", "--topology", "dgx-h200-2")
    assert "error: the trace has 8 ranks and topology 'dgx-h200-2' has 16; take a topology of 8 ranks" in err
    assert "run the job" not in err
    (tmp_path / "k.json").write_text("{}")
    _, _, err = scaleout("run", "--trace", tmp_path / "k.json")
    assert f"scaleout import pytorch {tmp_path / 'k.json'} --output DIR, then --trace DIR" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "llama-3-8b", "--schedule", "dualpipe"), "give it as --set pipeline_schedule=dualpipe"),
        (("run", "llama-3-8b", "--set", "dtype=fp8"), "fp8 is of GEMMs alone: linear_dtype"),
        (("run", "llama-3-8b", "--set", "global_batch=64"), "the global batch over data_parallel"),
        (("study", "topologies", "--output", "o", "--bandwidth", "ndr=2x"), "by the key 'bandwidth'"),
        (("collective", "all_reduce", "--protocol", "LL128"), "which protocols there are, and the fastest is taken"),
        (("study", "topologies", "--output", "o", "--bandwith", "ndr=2x"), "No such option '--bandwith'."),
    ],
)
def test_what_other_verbs_call_otherwise_is_named(scaleout, arguments, message):
    code, out, err = scaleout(*arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("verb", [
    ("run", "--schedule", "baseline"), ("goodput", "--tokens", "1B", "--checkpoint", "10s"),
    ("search", "--global-batch", "8", "--workers", "1"), ("buckets", "--bytes", "25MiB"),
    ("strategies", "--strategy", "ddp"),
], ids=lambda verb: verb[0])  # fmt: skip
def test_every_verb_says_whose_network_it_is(scaleout, verb):
    """Kernels of H100 on the network of H200."""
    name, *more = verb
    job = ("llama-3-8b", "--set", "layers=2", "--topology", "dgx-h200-1", "--device")
    sizes = ("--set", "tensor_parallel=1", *(() if name == "search" else ("--set", "data_parallel=8")))
    code, out, err = scaleout(name, *job, "h100", *sizes, *more)
    assert code == 0, err
    words = " ".join(out.replace("│", " ").split())
    assert words.count("network of H200, not of h100; its own: --topology dgx-h100-1 ") == 1
    assert "its own: " not in scaleout(name, *job, "h200", *sizes, *more)[1]


def test_the_unchanged_network_stands_beside_the_changed_one(scaleout):
    job = (*JOB, "--set", "tensor_parallel=8", "--set", "data_parallel=4", "--nodes", "4")
    _, plain, _ = scaleout(*job)
    _, changed, _ = scaleout(*job, "--bandwidth", "nvlink=0.5x", "--slow", "3=1.2")
    assert "unchanged" not in plain
    said = (
        r"unchanged +([\d.]+ ms) under overlap; (bandwidth nvlink=0.5x, slow 3=1.2) cost ([\d.]+ ms), ([\d.]+)% longer"
    )
    (words, _, cost, longer) = re.findall(said, changed)[0]
    before, after = (json.loads(scaleout(*job, *more, "--json")[1])["results"][0]["makespan_s"] for more in (
        (), ("--bandwidth", "nvlink=0.5x", "--slow", "3=1.2"),
    ))  # fmt: skip
    assert parse(words, SECONDS) == pytest.approx(before, rel=5e-3)
    assert parse(cost, SECONDS) == pytest.approx(after - before, rel=5e-3)
    assert float(longer) == pytest.approx(100 * (after / before - 1), abs=0.06)
    asked = ("collective", "all_gather", "--bytes", "1GB", "--topology", "dgx-h200-2", "--bandwidth", "infiniband=2x")
    _, out, _ = scaleout(*asked)
    assert json.loads(scaleout(*asked, "--json")[1])["unchanged"]["algorithm"] == "hierarchical"
    assert re.search(r"unchanged +[\d.]+ ms by hierarchical; [\d.]+% shorter with the changes", out)


def test_documents_hold_the_unchanged_step_that_the_box_prints(scaleout, tmp_path):
    job = (*JOB, "--nodes", "1")
    plain, slow = (json.loads(scaleout(*job, *more, "--json")[1]) for more in ((), ("--slow", "5=1.2")))
    assert "unchanged" not in plain
    names = ("schedule", "makespan_s", "idle_s", "idle_by_cause_s")
    before = {key: plain["results"][0][key] for key in names}
    assert slow["unchanged"] == before
    scaleout(*job, "--slow", "5=1.2", "--output", tmp_path / "slow")
    assert json.loads((tmp_path / "slow" / "summary.json").read_text())["unchanged"] == before
    training = ("goodput", *job[1:], "--tokens", "1B", "--checkpoint", "10s")
    plain, slow = (json.loads(scaleout(*training, *more, "--json")[1]) for more in ((), ("--slow", "5=1.2")))
    assert slow["unchanged"] == {key: plain[key] for key in ("makespan_s", "training_s")}


def test_a_broken_link_between_nodes_names_the_option_for_a_network_card(scaleout):
    """It said to degrade the link, where a card that is down is what one wants."""
    sizes = ("--set=tensor_parallel=8", "--set=data_parallel=2", "--schedule=baseline", "--topology=dgx-h200-2")
    code, _, error = scaleout("run", "llama-3-8b", *sizes, "--break=1:5-switch")
    assert code == 2
    assert "give --nic-down RANK, whose card another of its node stands in for" in error


def test_the_box_and_the_page_name_the_few_for_whom_ranks_wait_in_the_same_words(scaleout):
    job = ("run", "llama-3-8b", "--set", "layers=2", "--set", "tensor_parallel=2", "--set", "data_parallel=4",
           "--topology", "dgx-h200-1", "--schedule", "baseline")  # fmt: skip
    assert "│ waits" not in scaleout(*job)[1]
    _, out, _ = scaleout(*job, "--slow", "5=1.2", "-v")
    document = json.loads(scaleout(*job, "--slow", "5=1.2", "--json")[1])
    now, before = (format_seconds(each["idle_s"]) for each in (document["results"][0], document["unchanged"]))
    beside = rf"; of {now} idle, {before} are there without the changes"
    out_in_a_line = re.sub(r"\s*│\n│\s{5,}", " ", out)
    ((words, mean),) = re.findall(
        rf"│ waits +(([\d.]+ ms) for rank 5, [\d.]+% of the step, the mean over ranks{beside}) +│", out_in_a_line
    )
    assert f"\nmost of all for rank 5: {mean} of {now} idle, the mean over ranks; {before} are idle without the" in out
    assert re.search(r"idle until +mean over ranks +of the step +without the changes\n", out)
    assert ("waits", words) in facts_of(document)


def test_a_collective_says_why_auto_takes_a_slower_algorithm_than_another(scaleout):
    """On 4 DGX H100 NCCL's model takes the ring at 256 MiB, where the tree is faster; of 1 MiB it takes the fastest."""
    asked = ("collective", "all_reduce", "--topology", "dgx-h100-4", "--bytes")
    rows = json.loads(scaleout(*asked, "256MiB", "--json")[1])["results"]
    auto_s = next(row["time_s"] for row in rows if row["auto"])
    assert rows[0]["time_s"] < auto_s
    one, several = (" ".join(scaleout(*asked, sizes)[1].split()) for sizes in ("256MiB", "1MiB,256MiB"))
    found = re.findall(r"own cost model prefers; another algorithm is faster here, at 256 MiB: (\w+) is ([\d.]+)%", one)
    assert found == [(rows[0]["algorithm"], f"{100 * (1 - rows[0]['time_s'] / auto_s):.1f}")]
    assert "is faster here, at 1 of 2 sizes, most at 256 MiB: " in several
    assert "auto takes what NCCL" not in scaleout(*asked, "1MiB")[1]
    assert "auto takes what NCCL" not in scaleout(*asked, "256MiB", "--algorithm", "ring")[1]


def test_a_comparison_of_algorithms_says_what_auto_takes_and_which_model_answers(scaleout):
    asked = ("collective", "all_reduce", "--topology", "dgx-h100-4", "--bytes", "1MiB,256MiB")
    small, large = (row for row in json.loads(scaleout(*asked, "--json")[1])["results"] if row["auto"])
    found = json.loads(scaleout(*asked, "--compare", "--json")[1])
    rows = {row["bytes"]: row for row in found["results"] if row["ranks"] == 32}
    for each in (small, large):
        row = rows[each["bytes"]]
        assert (row["auto_takes"], row["auto_s"]) == (each["algorithm"], each["time_s"])
    assert rows[large["bytes"]]["backend"] != large["algorithm"]
    assert found["models"]
    assert found["model"]["library"]
    _, out, _ = scaleout(*asked, "--compare")
    assert "model    alpha-beta network, protocols of NCCL" in out
    worst = max(found["results"], key=lambda row: row["auto_s"] / min(filter(None, row["time_by_backend_s"].values())))
    assert found["answer"]["auto"].startswith(f"at the worst {worst['auto_takes']} {format_seconds(worst['auto_s'])}, ")
    assert found["answer"]["auto"].endswith(f" longer than {worst['backend']}: of 256 MiB on {worst['ranks']} ranks")
    assert found["answer"]["fastest"] in " ".join(out.split())
    assert re.search(r"hierarchical_tree +ring +32 +256 MiB", out)


def test_training_says_what_it_assumed_and_where_that_is_from(scaleout):
    asked = ("goodput", "llama-3-8b", "--set", "layers=1", "--tokens", "1B", "--checkpoint", "20s")
    given = ("--restart", "5min", "--failures", "0.2/year", "--interval", "1h", "--jitter", "0.01")
    own, stated = (json.loads(scaleout(*asked, *more, "--json")[1]) for more in ((), given))
    assert own["assumed_from"]["failures_per_s"] == "file of h200 and of its links, nvlink4"
    assert own["assumed_from"]["jitter"] == "file of h200"
    assert own["disturbance"]["restart_s"] == 600
    assert set(stated["assumed_from"].values()) == {"given"}
    table = scaleout(*asked)[1].split("what was assumed")[1]
    assert re.search(r"a restart +default: Jiang et al., MegaScale, NSDI 2024 +600 s", table)
    assert re.search(r"training between checkpoints +default: the best for these +[\d.]+ h", table)
    assert re.search(r"a checkpoint +given +20 s", table)


def test_gpus_of_a_device_like_another_are_on_the_network_that_this_is_sold_with(scaleout, tmp_path):
    """The workload names one of H200, which the file was given before."""
    (tmp_path / "mine.yaml").write_text("like: h100\nrent: {value: 3 USD/h, source: a test}\n", encoding="utf-8")
    (tmp_path / "again.yaml").write_text(f"like: {tmp_path / 'mine.yaml'}\n", encoding="utf-8")
    for device in ("h100", tmp_path / "mine.yaml", tmp_path / "again.yaml"):
        code, out, _ = scaleout(
            "run", "llama-3-8b", "--device", device, "--gpus", "8", "--schedule", "baseline", "--json"
        )
        assert code == 0
        assert json.loads(out)["topology"] == "dgx-h100-1"


def test_a_number_of_a_device_without_its_source_is_told_the_form(scaleout, tmp_path):
    (tmp_path / "bare.yaml").write_text("like: h100\nmemory: 40 GiB\nsms: null\n", encoding="utf-8")
    code, _, error = scaleout("run", "llama-3-8b", "--device", tmp_path / "bare.yaml")
    assert code == 2
    assert "memory: must be {value: ..., source: ...}, a number with where it is from, not '40 GiB'\n" in error
    assert "sms: must be {value: ..., source: ...}, a number with where it is from, not null\n" in error
