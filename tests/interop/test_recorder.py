"""What recording cost the host is told by operators that only make views, and is left out of what is edited."""

import tarfile

import numpy as np
import pytest
from kineto_builder import Rank

from scaleout.cluster.device.spec import load_device
from scaleout.interop.pytorch.load import load_recording
from scaleout.program.graph import NodeRole
from scaleout.program.recorded import HOST, LAUNCH, RECORDER
from scaleout.simulation.options import SimulationOptions
from scaleout.study.edits import edited
from scaleout.study.edits.recorder import with_recorder, without_recorder
from scaleout.study.job import Job, run
from scaleout.study.recording import described, replayed

CALLS = 50


def job(folder, *, kernel_us=40.0, every_us=60.0, cost_us=10.0, operators=True):
    """Write a rank that launches a kernel each `every_us`; entering and leaving an operator takes `cost_us`.

    Between two launches are three operators. A kernel begins 2 us after its launch or the one before.
    """
    rank = Rank()
    rank.step(1, 0, every_us * CALLS + 10)
    free_us = 0.0
    for number in range(CALLS):
        begin = number * every_us
        if operators:
            rank.operator("aten::t", begin + 1, cost_us + 2)
            rank.operator("aten::transpose", begin + 2, 2)
            rank.operator("aten::mm", begin + cost_us + 5, every_us - cost_us - 8)
        launch = begin + every_us - 5
        free_us = max(free_us, launch) + 2
        rank.kernel(free_us, kernel_us, launch=launch)
        free_us += kernel_us
    rank.write(folder)
    return load_recording((folder,))


def makespan_us(program):
    topology, options = replayed(program, SimulationOptions())
    return run(Job(program, "h200", topology, "recorded", options, traced=True)).makespan_s * 1e6


def host_us(program, name):
    (graph,) = program.graphs
    those = np.array([each == name for each in graph.names]) & graph.has_role(NodeRole.HOST)
    return graph.duration_s[those].sum() * 1e6


def longer_kernels(program, times):
    return program.map_graphs(
        lambda graph: graph.with_columns(
            duration_s=graph.duration_s * np.where(graph.has_role(NodeRole.HOST), 1, times)
        )
    )


def test_three_operators_of_ten_microseconds_between_launches(tmp_path):
    """Of 60 us between launches 30 are the recorder's; kernels of 40 us then wait for each other alone."""
    program, facts, _ = job(tmp_path)
    assert host_us(program, RECORDER) == pytest.approx(30 * CALLS, abs=30)
    assert makespan_us(program) == pytest.approx(float(facts["recorded_s"]) * 1e6, abs=0.1)
    quiet, slowed = without_recorder(program)
    assert host_us(quiet, RECORDER) == 0
    assert makespan_us(quiet) == pytest.approx(40 * CALLS, abs=60)
    assert slowed == pytest.approx(60 / 40, rel=0.03)


@pytest.mark.parametrize(("times", "ratio"), [(0.25, 30 / 40), (0.5, 30 / 40), (1, 1), (2, 2), (4, 4)])
def test_what_binds_is_the_host_or_the_kernels(tmp_path, times, ratio):
    """By itself the host takes 30 us a kernel of 40 us; what is edited is as much longer as what was recorded."""
    program, _, _ = job(tmp_path)
    quiet, slowed = without_recorder(program)
    changed = with_recorder(longer_kernels(quiet, times), slowed)
    assert makespan_us(changed) / makespan_us(program) == pytest.approx(ratio, rel=0.03)
    assert host_us(changed, RECORDER) == pytest.approx((slowed - 1) / slowed * makespan_us(changed))


def test_little_more_waiting_for_the_host_changes_little(tmp_path):
    """The share of the time in which the GPU waits passes 10% without a step in what halved kernels would take."""
    ratios = []
    for number, kernel_us in enumerate(np.linspace(50, 57, 8)):
        program, facts, _ = job(tmp_path / str(number), kernel_us=float(kernel_us))
        recording = described(program, facts, "h200")
        quiet, slowed = without_recorder(recording.program)
        ratios.append((recording.host_bound, makespan_us(with_recorder(longer_kernels(quiet, 0.5), slowed))))
    bounds, spans = np.array(ratios).T / np.array([[1.0], [makespan_us(program)]])
    assert bounds.min() < 0.1 < bounds.max()
    assert np.abs(np.diff(spans)).max() < 0.05


def test_without_operators_the_host_is_as_recorded(tmp_path):
    program, facts, _ = job(tmp_path, operators=False)
    assert without_recorder(program) == (program, 1.0)
    changed = edited(described(program, facts, load_device("h200")), {}, device=load_device("h100"))
    assert "kept as recorded" in changed.notes[0]
    assert host_us(changed.program, HOST) == host_us(program, HOST)


def test_a_recorder_that_holds_nothing_up_costs_nothing(tmp_path):
    program, _, _ = job(tmp_path, kernel_us=80)
    quiet, slowed = without_recorder(program)
    assert slowed == pytest.approx(1, rel=0.02)
    assert len(quiet.graphs[0]) < len(program.graphs[0])


@pytest.mark.parametrize(("times", "late_us"), [(2, 4000), (0.5, 4000), (2, 0)])
def test_ranks_that_begin_to_be_recorded_one_after_another(tmp_path, times, late_us):
    """Of a step of 1.1 ms the first rank waits 4 ms for the other's profiler; twice the kernels take twice the step."""
    for number, begin in enumerate((0, late_us)):
        rank = Rank(number, 2)
        for each in range(10):
            rank.kernel(begin + 5 + 100 * each, 100, launch=begin + 5 * each)
        rank.collective(begin + 1005, late_us + 100 - begin, launch=begin + 60, stream=7)
        rank.write(tmp_path)
    program, facts, _ = load_recording((tmp_path,))
    assert makespan_us(program) == pytest.approx(late_us + 1100, abs=20)
    quiet, slowed = without_recorder(program)
    assert makespan_us(quiet) == pytest.approx(1100, abs=20)
    changed = with_recorder(longer_kernels(quiet, times), slowed)
    assert makespan_us(changed) / makespan_us(program) == pytest.approx(times, rel=0.03)
    told = " ".join(edited(described(program, facts, "h200"), {"batch": "2x"}).notes)
    assert ("4 ms by which ranks began" in told) == bool(late_us)


def test_an_edit_says_what_recording_cost(tmp_path, scaleout):
    """Also behind a round trip by Chakra."""
    job(tmp_path / "recording")
    code, _, err = scaleout("import", "pytorch", tmp_path / "recording", "--output", tmp_path / "traces", "--json")
    assert code == 0, err
    code, out, err = scaleout("run", "--trace", tmp_path / "traces", "--device", "h100")
    assert code == 0, err
    assert "the recorded steps would take 0.669" in " ".join(out.split())


def test_an_operator_whose_name_has_spaces_survives_as_chakra(tmp_path, scaleout):
    """A public recording calls one `<forward op>`."""
    rank = Rank()
    rank.step(1, 0, 200)
    rank.operator("<forward op>", 5, 20, dims=[[512, 256]])
    rank.kernel(20, 100, launch=10)
    rank.write(tmp_path / "recording")
    code, _, err = scaleout("import", "pytorch", tmp_path / "recording", "--output", tmp_path / "traces", "--json")
    assert code == 0, err
    code, _, err = scaleout("run", "--trace", tmp_path / "traces", "--json")
    assert code == 0, err


def test_archives_in_a_folder_are_read(tmp_path):
    job(tmp_path / "job")
    with tarfile.open(tmp_path / "kineto.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "job", "job")
    (tmp_path / "job" / "job.rank0.kineto.json").unlink()
    assert load_recording((tmp_path,))[2].kernels_kept == CALLS


@pytest.mark.parametrize("kernel_us", [30.0, 70.0])
def test_a_launch_is_no_time_of_its_kernel(tmp_path, kernel_us):
    """A kernel begins 2 us after its call, each 60 us; of 70 us it runs as soon as the one before has ended."""
    program, facts, _ = job(tmp_path / "in", kernel_us=kernel_us, operators=False)
    graph = program.graphs[0]
    works = ~graph.has_role(NodeRole.HOST)
    waits = CALLS if kernel_us < 60 else 1
    # back to back a kernel's time holds the 2 us before it, as no wait for its launch
    assert graph.duration_s[works].sum() * 1e6 == pytest.approx(CALLS * kernel_us + (CALLS - waits) * 2)
    assert host_us(program, LAUNCH) == pytest.approx(2 * waits)
    assert makespan_us(program) == pytest.approx(float(facts["recorded_s"]) * 1e6, abs=0.1)
    # twice as long, a kernel ends after the next one is called: what that launch takes is hidden
    longer = makespan_us(longer_kernels(program, 4))
    assert longer == pytest.approx(55 + 2 + 4 * graph.duration_s[works].sum() * 1e6, abs=0.1)
