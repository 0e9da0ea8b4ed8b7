"""Recorded jobs under other schedules, networks, ranks and devices: what works, and what is refused in one message."""

import json
from pathlib import Path

import pytest

import scaleout as package
from scaleout.interop.chakra.load import load_program
from scaleout.interop.chakra.save import save_program
from scaleout.interop.pytorch.load import load_recording
from scaleout.program.graph import NodeRole

RECORDINGS = Path(package.__file__).parents[1] / "traces" / "h200-pair" / "recordings"
MACHINE = ("--topology", RECORDINGS.parent / "machine.yaml")
FOUR = ("--topology", "h200-node-4")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return the folder of traces of each shipped recording, imported when first asked for."""
    made = {}

    def folder(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            program, facts, report = load_recording((RECORDINGS / f"{name}-base",))
            save_program(program, made[name], name=report.name, facts=facts)
        return made[name]

    return folder


@pytest.fixture
def run(folders, scaleout):
    """Run a recording; give the exit code, the values printed and the error."""

    def run(name, *arguments):
        code, out, err = scaleout("run", "--trace", folders(name), *arguments, "--json")
        assert "Traceback" not in err
        return code, json.loads(out) if out.strip() else None, err

    return run


def makespan_s(found):
    code, summary, err = found
    assert code == 0, err
    return summary["results"][0]["makespan_s"]


@pytest.mark.parametrize("name", ["tp", "ddp", "moe"])
def test_a_recording_on_its_own_network_takes_as_long(run, name):
    """Kernels were slowed by what ran at the same time as they were recorded, and are not again."""
    found = run(name, *MACHINE)
    assert makespan_s(found) == pytest.approx(found[1]["recorded_s"], rel=0.01)


@pytest.mark.parametrize(
    ("name", "edit"), [("tp", "tensor=2->4"), ("ddp", "data=2->4"), ("moe", "expert=2->4"), ("fsdp", "data=2x")]
)
def test_more_ranks_with_and_without_a_network(run, name, edit):
    code, summary, err = run(name, "--edit", edit)
    assert (code, summary["ranks"]) == (0, 4), err
    result = summary["results"][0]
    assert sum(result[f"{each}_share"] for each in ("recorded", "scaled", "modelled")) == pytest.approx(1)
    on_four = run(name, "--edit", edit, *FOUR)
    assert makespan_s(on_four) == pytest.approx(result["makespan_s"], rel=0.06)
    assert on_four[1]["results"][0]["modelled_share"] > 0 == result["modelled_share"]
    code, _, err = run(name, "--edit", edit, *MACHINE)
    assert code == 2
    assert "the job has 4 ranks" in err


@pytest.mark.parametrize("option", [("--degrade", "0-switch=0.25"), ("--slow", "1=1.5")])
@pytest.mark.parametrize("edits", [(), ("tensor=2->4",), ("tensor=2->4", "batch=2->1", "layers=4->2")])
def test_a_fault_makes_an_edited_recording_longer(run, option, edits):
    chosen = [each for edit in edits for each in ("--edit", edit)]
    network = FOUR if edits else MACHINE
    whole, faulty = (makespan_s(run("tp", *network, *chosen, *given)) for given in ((), option))
    assert faulty > 1.01 * whole


def test_an_algorithm_is_taken_for_an_edited_recording(run):
    chosen = ("--edit", "data=2->4", *FOUR, "--algorithm")
    by_name = {name: run("ddp", *chosen, f"all_reduce={name}") for name in ("ring", "double_binary_tree")}
    busy = {name: found[1]["results"][0]["communication_s"] for name, found in by_name.items()}
    assert busy["ring"] != busy["double_binary_tree"]


@pytest.mark.parametrize("schedule", ["overlap", "overlap:always", "substituted"])
def test_schedules_that_place_or_substitute_run(run, schedule):
    assert makespan_s(run("ddp", *MACHINE, "--schedule", schedule)) > 0


@pytest.mark.parametrize("name", ["ddp", "dlrm", "moe"])
@pytest.mark.parametrize("schedule", ["concurrent", "blocking-tp", "coconet", "out-of-order", "overlap+async-tp"])
def test_schedules_that_find_nothing_to_change_are_refused(run, name, schedule):
    """Whatever kind they are: alone in one message, and beside others among the failures."""
    code, summary, err = run(name, *MACHINE, "--schedule", schedule)
    assert (code, summary) == (2, None)
    assert f"error: schedule {schedule}: changes nothing of this recording" in err
    code, summary, err = run(name, *MACHINE, "--schedule", schedule, "--schedule", "recorded")
    assert code != 0
    assert [each["schedule"] for each in summary["results"]] == ["recorded"]
    assert "changes nothing of this recording" in summary["failures"][schedule]


def test_a_replay_refuses_them_too(run):
    assert "schedule blocking-tp: changes nothing of this recording" in run("ddp", "--schedule", "blocking-tp")[2]


@pytest.mark.parametrize(
    ("name", "schedule"),
    [("tp", "async-tp"), ("tp", "fused"), ("tp", "centauri"), ("moe", "centauri"), ("dlrm", "fused")],
)
def test_schedules_that_join_or_cut_shorten_a_recording(run, name, schedule):
    """By no more than its communication; kernels that are cut count as scaled, and copies are kept."""
    code, summary, err = run(name, *MACHINE, "--schedule", "recorded", "--schedule", schedule)
    assert code == 0, err
    whole, cut = summary["results"]
    assert whole["makespan_s"] - whole["communication_s"] < cut["makespan_s"] < 0.9999 * whole["makespan_s"]
    assert cut["scaled_share"] > 0 == whole["scaled_share"]
    assert any("leave out the host" in note for note in summary["notes"])


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("tp", ("--schedule", "async-tp"), "give --topology as well"),
        ("ddp", ("--schedule", "centauri"), "give --topology as well"),
        ("moe", ("--schedule", "async-tp", *MACHINE), "schedule async-tp: changes nothing of this recording"),
        ("moe", ("--schedule", "fused", *MACHINE), "schedule fused: changes nothing of this recording"),
        ("tp", ("--schedule", "nothing"), "unknown schedule"),
        ("tp", ("--degrade", "0-1=0.5"), "give --topology"),
        ("tp", ("--algorithm", "all_reduce=ring"), "give --topology as well"),
        ("tp", ("--device", "nothing"), "unknown device"),
        ("fsdp", ("--topology", "dgx-h200-1"), "'data=2->8'"),
        ("tp", ("--topology", "dgx-h200-1"), "'tensor=2->8'"),
        ("moe", ("--topology", "dgx-h200-1"), "'expert=2->8'"),
        ("fsdp", ("--edit", "tensor=2x"), "no tensor-parallel group to change"),
        ("dlrm", ("--edit", "expert=2x"), "no GEMMs between exchanges"),
    ],
)
def test_what_a_recording_cannot_do_is_one_message(run, name, options, words):
    code, summary, err = run(name, *options)
    assert code == 2
    assert summary is None
    assert words in err, err


def test_schedules_that_change_nothing_stand_beside_those_that_do(run):
    code, summary, err = run("ddp", *MACHINE, "--schedule", "overlap", "--schedule", "fused")
    assert code != 0
    assert [each["schedule"] for each in summary["results"]] == ["overlap"]
    assert "changes nothing" in summary["failures"]["fused"]
    assert "changes nothing" in err


def test_another_device_scales_each_kernel(run):
    """From an H200 to an H100: GEMMs as the peaks, streams as the bandwidths, collectives as recorded."""
    found = run("tp", "--device", "h100")
    assert found[1]["device"] == "h100"
    result = found[1]["results"][0]
    base = run("tp")[1]["results"][0]
    assert result["communication_s"] == pytest.approx(base["communication_s"])
    assert 1 < result["makespan_s"] / base["makespan_s"] < 4.8 / 3.35
    assert result["scaled_share"] > 0.9
    assert any("GEMMs and attention" in note for note in found[1]["notes"])
    assert makespan_s(run("tp", "--device", "h200")) == pytest.approx(base["makespan_s"], rel=0.02)


@pytest.mark.parametrize(
    ("name", "edit", "told"),
    [
        ("ddp", "batch=3->1", "4 sequences were recorded in a kernel of attention, which 3 does not fit"),
        ("fsdp", "batch=4->1", "3 sequences were recorded in a kernel of attention, which 4 does not fit"),
        ("fsdp", "batch=0.5x", "3 sequences were recorded in a kernel of attention, and 1/2 of that is no whole"),
        ("fsdp", "sequence=3000->1500", "4096 tokens of a sequence were recorded"),
        ("moe", "layers=2->1", "4 layers follow each other on a rank"),
    ],
)
def test_an_old_number_that_the_recording_does_not_have_is_refused(run, name, edit, told):
    """It would scale by a factor that nobody meant: a third instead of a quarter."""
    code, _, err = run(name, "--edit", edit)
    assert code == 2
    assert f"--edit {edit}: " in err
    assert told in err


def test_an_old_number_may_be_of_a_rank_or_of_all(run):
    of_a_rank, of_all, factor = (makespan_s(run("ddp", "--edit", f"batch={text}")) for text in ("4->2", "8->4", "0.5x"))
    assert of_a_rank == of_all == factor


@pytest.mark.parametrize(
    ("name", "edit", "told"),
    [
        ("ddp", "batch=2->1", "4 sequences were recorded in a kernel of attention, of which 2 is taken for the sum or"),
        ("dlrm", "batch=2048->1024", "no kernel of attention tells how many sequences there were; 2048 is taken on"),
        ("dlrm", "sequence=2x", "no kernel of attention was recorded; all that counts tokens is scaled, as by batch"),
        ("moe", "layers=8->4", "8 is taken for those of the whole model"),
        ("moe", "layers=6->3", "of which they are no whole part: each 4 become 2"),
    ],
)  # fmt: skip
def test_what_is_taken_for_an_old_number_is_said(run, name, edit, told):
    assert any(told in note for note in run(name, "--edit", edit)[1]["notes"])


def test_time_of_the_host_has_one_name(folders):
    graph = load_program(folders("ddp")).program.graphs[0]
    operations = {graph.operation(node) for node in range(len(graph))}
    assert "host" in operations
    assert all(graph.operation(node) == "host" for node in range(len(graph)) if graph.role[node] & NodeRole.HOST)


def test_a_replay_says_what_a_step_takes_and_claims_no_network(folders, scaleout):
    _, out, _ = scaleout("run", "--trace", folders("moe"))
    assert "265 ms in 2 steps, 133 ms a step" in out
    assert "simulated: 132 ms a step, 1.00x what was recorded" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["recorded", "132", "ms"] in [row[:3] for row in rows]  # of the table, also of one step
    assert ["host", "host"] in [row[:2] for row in rows]
    assert "energy of a step" in out
    assert "collectives as recorded, contention as recorded" in out
    assert "names no communication library" not in out


def test_buckets_that_are_not_split_are_counted_among_all(run):
    _, summary, _ = run("ddp", "--edit", "bucket=5B")
    assert any(note.startswith("200 of 200 recorded buckets are more than twice 5 B") for note in summary["notes"])


def test_titles_and_differences_say_what_was_edited(folders, scaleout, tmp_path):
    _, out, _ = scaleout("run", "--trace", folders("moe"), "--edit", "batch=4->2", "--output", tmp_path / "edited")
    model = next(line.strip("│ ") for line in out.splitlines() if line.startswith("│ model"))
    assert model.endswith(", batch=4->2")
    _, out, _ = scaleout("diff", folders("moe"), tmp_path / "edited")
    assert "moe-base, recorded, on recorded network" in out
    assert "moe-base, recorded, on recorded network, batch=4->2" in out
    code, out, err = scaleout("diff", folders("moe"), tmp_path / "edited", "--json")
    assert code == 0, err
    makespan = json.loads(out)["makespan"]
    assert makespan["a_s"] == pytest.approx(0.1325, rel=0.01)
    assert makespan["b_s"] / makespan["a_s"] == pytest.approx(0.556, abs=0.01)
