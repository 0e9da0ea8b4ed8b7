"""`scaleout import pytorch` on small recordings by hand: what waits for what, to the microsecond, and bad input."""

import gzip
import json
import re
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_builder import Rank

from scaleout.errors import ConfigError, TraceError
from scaleout.interop.chakra.load import load_program
from scaleout.interop.chakra.save import save_program
from scaleout.interop.pytorch.load import load_recording
from scaleout.interop.pytorch.timeline import CLOCK_US
from scaleout.program.graph import NodeRole
from scaleout.program.program import alike
from scaleout.simulation.options import SimulationOptions
from scaleout.study.edits import edited
from scaleout.study.edits.slowdown import without_losses
from scaleout.study.job import Job, run
from scaleout.study.recording import described, replayed


def replay_us(folder, *, edits=None, **options):
    program, facts, report = load_recording((folder,), **options)
    recording = described(program, facts, "no device")
    chosen = edited(recording, edits or {}).program
    topology, simulated = replayed(chosen, SimulationOptions())
    outcome = run(Job(chosen, "no device", topology, "recorded", simulated, traced=True))
    return outcome.makespan_s * 1e6, report


def test_kernels_follow_their_launch_and_their_stream(tmp_path):
    rank = Rank()
    rank.kernel(10, 20, launch=2)  # waits for the launch and its latency
    rank.kernel(30, 5, launch=4)  # waits for the kernel before
    rank.kernel(60, 5, launch=55)  # waits for the host
    rank.write(tmp_path)
    makespan_us, report = replay_us(tmp_path)
    assert makespan_us == pytest.approx(63)  # from the first call
    assert (report.kernels, report.kernels_kept, report.kernels_linked) == (3, 3, 3)


def test_a_stream_that_waits_for_an_event_follows_the_other_stream(tmp_path):
    rank = Rank()
    rank.kernel(10, 100, launch=1)
    rank.call("cudaEventRecord", 2)
    rank.call("cudaStreamWaitEvent", 3)
    rank.kernel(112, 10, launch=4, stream=20)
    rank.write(tmp_path)
    makespan_us, report = replay_us(tmp_path)
    assert makespan_us == pytest.approx(121)
    assert report.waits_inferred == 1
    graph = load_recording((tmp_path,))[0].graphs[0]
    waiting, first = (graph.names.index("mm", start) for start in (graph.names.index("mm") + 1, 0))
    assert first in graph.dependencies_of(waiting)


def test_the_host_that_synchronises_goes_on_as_the_gpu_has_ended(tmp_path):
    rank = Rank()
    rank.kernel(10, 100, launch=1)
    rank.call("cudaDeviceSynchronize", 3, 109)
    rank.kernel(125, 10, launch=120)
    rank.write(tmp_path)
    assert replay_us(tmp_path)[0] == pytest.approx(134)
    graph = load_recording((tmp_path,))[0].graphs[0]
    resumed = [node for node, name in enumerate(graph.names) if name == "host" and graph.names.index("mm") in
               graph.dependencies_of(node)]  # fmt: skip
    assert resumed


@pytest.mark.parametrize("told", [True, False])
def test_a_collective_takes_the_shortest_of_its_kernels_once_all_are_there(tmp_path, told):
    for number, begins in enumerate((10, 60)):
        rank = Rank(number, 2, offset_us=5000 * number)  # clocks apart
        rank.kernel(begins, 20, launch=1)
        rank.collective(begins + 20, 70 - begins + 20, launch=2, stream=7, told=told)
        rank.write(tmp_path)
    makespan_us, report = replay_us(tmp_path)
    assert report.collectives == 2
    assert report.collectives_sized == (2 if told else 0)
    assert makespan_us == pytest.approx(109)
    assert any("clocks" in note for note in report.notes)


@pytest.mark.parametrize("where", ["record_param_comms", "c10d::_reduce_scatter_base_", "name of the kernel"])
def test_a_collective_without_metadata_on_its_kernel_is_told_by_what_called_it(tmp_path, where):
    """Of 4,000 floats a reduce-scatter over ranks 0 and 2 of 4, as far as each place tells it."""
    stated = {"Collective name": "_reduce_scatter_base", "In msg nelems": 4000, "Out msg nelems": 2000,
              "dtype": "Float", "Group size": 2, "Process Group Name": "5",
              "Process Group Ranks": "[0, 2]"}  # fmt: skip
    rank = Rank(0, 4)
    if where == "record_param_comms":
        rank.operator(where, 0, 3, **stated)
    elif where.startswith("c10d"):
        rank.operator(where, 0, 3, dims=[[2000], [4000], []], dtypes=["float", "float", ""])
    rank.collective(10, 20, launch=1, told=False, name="ncclDevKernel_ReduceScatter_Sum_f32_RING_LL")
    rank.write(tmp_path)
    program, _, report = load_recording((tmp_path,))
    (group,) = report.by_group
    assert group["kind"] == "reduce_scatter"
    assert group["bytes"] == (None if where.startswith("name") else 16000)
    assert group["ranks"] == (2 if where == "record_param_comms" else 4)
    assert report.collectives_sized == (0 if where.startswith("name") else 1)
    if where == "record_param_comms":
        assert sorted(program.groups[0].members) == [(0, 2), (1, 3)]


def test_clocks_of_stages_are_set_by_their_messages(tmp_path):
    """Stages begin at 0, 30 and 60; the last one shares nothing with the first."""
    first, second, third = (Rank(number, 3, offset_us=offset) for number, offset in enumerate((0, 5000, -3000)))
    first.kernel(10, 150, launch=0)
    first.collective(160, 40, launch=2, stream=7, kind="send", **{"Dst Rank": 1})
    second.collective(33, 167, launch=30, stream=7, kind="recv", **{"Src Rank": 0})
    second.kernel(200, 170, launch=35)
    second.collective(370, 30, launch=37, stream=7, kind="send", **{"Dst Rank": 2})
    third.collective(63, 337, launch=60, stream=7, kind="recv", **{"Src Rank": 1})
    third.kernel(400, 100, launch=65)
    for rank in (first, second, third):
        rank.write(tmp_path)
    makespan_us, report = replay_us(tmp_path)
    assert makespan_us == pytest.approx(500)
    assert report.steps[0].recorded_s == pytest.approx(500e-6)


def test_kernels_of_a_cuda_graph_keep_their_order(tmp_path):
    """One launch of four kernels: one, two beside each other, and one that waits for the longer of these."""
    rank = Rank()
    rank.operator("aten::mm", 0, 3, dims=[[512, 256], [256, 1024]])
    rank.graph(1, [(10, 20, 7), (31, 30, 7), (31, 60, 20), (92, 10, 7)])
    rank.write(tmp_path)
    makespan_us, report = replay_us(tmp_path)
    assert makespan_us == pytest.approx(101)
    assert (report.kernels_kept, report.kernels_linked) == (4, 4)
    graph = load_recording((tmp_path,))[0].graphs[0]
    first, short, long, last = (node for node, name in enumerate(graph.names) if name == "mm")
    needs = [graph.dependencies_of(node).tolist() for node in range(len(graph))]
    assert first in needs[short]
    assert first in needs[long]
    assert {short, long} <= set(needs[last])


def test_old_categories_and_compressed_files_are_read(tmp_path):
    rank = Rank(old_names=True)
    rank.kernel(10, 20, launch=2)
    rank.write(tmp_path, zipped=True)
    assert replay_us(tmp_path)[1].kernels_linked == 1


def test_a_small_file_takes_little_memory(tmp_path):
    rank = Rank().step(0, 0, 400)
    rank.kernel(10, 5, launch=2)
    (tmp_path / "job.rank0.json").write_text(json.dumps(rank.content()))
    tracemalloc.start()
    load_recording([tmp_path])
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 100e6


def test_steps_are_told_apart(tmp_path):
    rank = Rank()
    for number, at in enumerate((0, 100, 200)):
        rank.step(number, at, 100)
        rank.kernel(at + 10, 80, launch=at + 5)
    rank.write(tmp_path)
    makespan_us, report = replay_us(tmp_path)
    assert [step.step for step in report.steps] == [0, 1, 2]
    assert makespan_us == pytest.approx(sum(step.recorded_s for step in report.steps) * 1e6)
    one_us, one = replay_us(tmp_path, step=1)
    assert one_us == pytest.approx(one.steps[0].recorded_s * 1e6)
    assert one.kernels_kept == 1
    with pytest.raises(TraceError, match="--step 7: the recording marks 0, 1, 2"):
        load_recording((tmp_path,), step=7)


def test_one_rank_stands_for_all_where_groups_tell(tmp_path):
    rank = Rank(0, 8)
    rank.collective(10, 20, launch=1, group=[0, 2])
    rank.write(tmp_path)
    program, _, report = load_recording((tmp_path,))
    assert (report.ranks, report.recorded_ranks) == (8, 1)
    assert sorted(program.groups[0].members) == [(0, 2), (1, 3), (4, 6), (5, 7)]


@st.composite
def timelines(draw):
    """Kernels of one rank on two streams, launched in order, none before its launch or the one before it."""
    rank, host, ends = Rank(), 0.0, {7: 0.0, 20: 0.0}
    for _ in range(draw(st.integers(1, 12))):
        host += draw(st.integers(1, 30))
        stream = draw(st.sampled_from([7, 7, 20]))
        start = max(host, ends[stream]) + draw(st.integers(0, 40))
        lasts = draw(st.integers(1, 60))
        rank.kernel(start, lasts, launch=host, stream=stream)
        ends[stream] = start + lasts
    return rank


@given(rank=timelines())
def test_a_rank_replays_as_recorded_and_comes_back_from_its_traces(rank, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recording")
    rank.write(folder)
    makespan_us, report = replay_us(folder)
    # clocks of host and GPU are matched to a microsecond
    assert makespan_us == pytest.approx(report.steps[0].recorded_s * 1e6, abs=CLOCK_US * report.kernels)
    program, facts, _ = load_recording((folder,))
    save_program(program, folder / "traces", name="job", facts=facts)
    assert alike(load_program(folder / "traces").program, program)


def test_what_kernels_lose_beside_collectives_is_told_apart(tmp_path):
    """Kernels of 100 us take 130 beside a collective: they lose 30 of 130, and with twice the batch no more."""
    for number in (0, 1):
        rank = Rank(number, 2)
        rank.operator("aten::mm", 0, 90, dims=[[64, 64], [64, 64]])
        begin = 100.0
        for each in range(8):
            lasts = 130 if each % 2 else 100
            rank.kernel(begin, lasts, launch=1 + 4 * each)
            if each % 2:
                rank.collective(begin, lasts, launch=2 + 4 * each)
            begin += lasts
        rank.write(tmp_path)
    program, facts, _ = load_recording((tmp_path,))
    own, share = without_losses(described(program, facts, "no device").program)
    assert share == pytest.approx(30 / 130)
    kernels = own.graphs[0].duration_s[np.array(own.graphs[0].names) == "mm"]
    assert kernels == pytest.approx([100e-6] * 8)
    base_us, twice_us = (replay_us(tmp_path, edits=edits)[0] for edits in (None, {"batch": "2x"}))
    assert base_us == pytest.approx(1019, abs=2)
    assert twice_us == pytest.approx(2 * (base_us - 120) + 120, rel=0.02)


def test_steps_without_an_optimizer_are_edited_alike(tmp_path):
    """Two steps of inference of a lookup, four layers of two kernels, and a head; without two of the layers."""
    rank = Rank()
    for step in range(2):
        rank.step(step, 300 * step, 300)
        names = ["aten::index_select", *["aten::mm", "aten::silu"] * 4, "aten::sum"]
        for place, name in enumerate(names):
            at = 300 * step + 2 * place
            rank.operator(name, at, 1.5, dims=[[64, 64], [64, 64]])
            rank.kernel(300 * step + 50 + 20 * place, 20, launch=at + 0.2, name=name)
    rank.write(tmp_path)
    program, facts, _ = load_recording((tmp_path,))
    found = edited(described(program, facts, "no device"), {"layers": "4->2"}).program.graphs[0]
    counts = Counter(found.names)
    assert counts["aten::mm"] == counts["aten::silu"] == 2 * 2
    assert counts["aten::sum"] == 2


def test_the_gradient_of_a_table_touches_each_row_once(tmp_path):
    """Of 1,000 rows, all of which could be touched, 2,000 lookups touch 865 in the mean, and 4,000 touch 982."""
    rank = Rank()
    dims = [[200, 16], [2000], [2000], [200], [200], [], [], [], [], []]
    given = ["", "", "", "", "", "1000", "False", "0", "", "-1"]
    rank.operator("aten::_embedding_bag_dense_backward", 1, 5, dims=dims, **{"Concrete Inputs": given})
    rank.kernel(10, 1, launch=2, name="sort")
    rank.kernel(11, 101, launch=3, name="scatter")
    rank.write(tmp_path)
    assert replay_us(tmp_path)[0] == pytest.approx(110, abs=1)
    once, twice = (1000 * (1 - (1 - 1 / 1000) ** lookups) for lookups in (2000, 4000))
    assert replay_us(tmp_path, edits={"batch": "2x"})[0] == pytest.approx(
        110 * (1000 + twice) / (1000 + once), rel=0.02
    )


def test_the_order_of_products_tells_a_weights_gradient_where_shapes_do_not(tmp_path):
    """As many tokens as the model is wide: the first product of backward is the weight's, of addmm the second."""
    rank = Rank()
    for at, backward in ((0, "MmBackward0"), (20, "AddmmBackward0")):
        rank.operator(backward, at, 10)
        for each in (1, 5):
            rank.operator("aten::mm", at + each, 3, dims=[[64, 64], [64, 64]])
            rank.kernel(100 + at + each, 2, launch=at + each + 1)
    rank.operator("torch::autograd::AccumulateGrad", 50, 2, dims=[[64, 64]])
    rank.write(tmp_path)
    graph = load_recording((tmp_path,))[0].graphs[0]
    kernels = [graph.kernels[each] for each in graph.kernel.tolist() if each >= 0]
    assert [each.tokens for each in kernels] == ["K", "M", "M", "K"]


def test_an_edit_scales_activations_and_leaves_parameters(tmp_path):
    rank = Rank()
    for place, name in enumerate(("aten::mm", "aten::mul", "aten::_fused_adamw_")):
        at = 3 * place
        if name == "aten::_fused_adamw_":
            rank.operator("Optimizer.step#AdamW.step", at, 3)
        dims = [[512, 256], [256, 1024]] if name == "aten::mm" else [[512, 256]]
        rank.operator(name, at + 1, 1.5, dims=dims)
        rank.kernel(10 + 100 * place, 100, launch=at + 2)
    rank.write(tmp_path)
    base_us, _ = replay_us(tmp_path)
    twice_us, _ = replay_us(tmp_path, edits={"batch": "2x"})
    # a product of twice the FLOPs; others only what is beyond the shortest kernels, which all here are
    assert twice_us - base_us == pytest.approx(100, abs=15)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_forward_that_runs_again_is_known_and_left_out(tmp_path, reentrant):
    """Autograd numbers what it will differentiate: as PyTorch 2.13 records both kinds of checkpoint."""
    rank = Rank()

    def called(name, at, lasts, launches=(), **args):
        rank.operator(name, at, lasts, dims=[[512, 256], [256, 1024]], **args)
        for launch in launches:
            rank.kernel(10 * launch, 10, launch=launch, name=name)

    numbered = {"Sequence number": 7, "Fwd thread id": 0}
    called("aten::mm", 1, 2, [2], **({} if reentrant else numbered))
    node = "CheckpointFunctionBackward" if reentrant else "MmBackward0"
    called(f"autograd::engine::evaluate_function: {node}", 4, 20, **{"Sequence number": 7, "Fwd thread id": 1})
    called("aten::linear", 5, 4, **numbered)
    called("aten::mm", 6, 2, [7], **numbered)
    if reentrant:
        called("autograd::engine::evaluate_function: MmBackward0", 10, 10, **numbered)
    called("aten::mm", 11, 4, [12, 14])
    rank.write(tmp_path)
    program = load_recording((tmp_path,))[0]
    graph = program.graphs[0]
    works = [NodeRole(int(graph.role[node])) for node in range(len(graph)) if not graph.role[node] & NodeRole.HOST]
    backward = NodeRole.BACKWARD
    assert works == [NodeRole.FORWARD, backward | NodeRole.RECOMPUTE, backward, backward]
    left = edited(described(program, {"host_bound": "1"}, "no device"), {"recompute": "none"})
    assert len(left.program.graphs[0]) == len(graph) - 1
    assert "memory" in left.notes[-1]
    with pytest.raises(ConfigError, match="recomputes already"):
        edited(described(program, {}, "no device"), {"recompute": "full"})


def _write(folder, text):
    path = folder / "job.rank0.json"
    path.write_bytes(text)
    return path


WRONG = {
    "cut off": (lambda folder: _write(folder, b'{"traceEvents": [{"ph": "X"'), "no whole JSON"),
    "damaged": (lambda folder: (folder / "a.json.gz").write_bytes(gzip.compress(b"{}")[:-6]), "cannot be read"),
    "foreign": (lambda folder: _write(folder, b'{"nodes": 3}'), "no recording"),
    "no events": (lambda folder: _write(folder, b'{"traceEvents": 3}'), "no list of traceEvents"),
    "no number": (
        lambda folder: _write(folder, json.dumps({"traceEvents": [{"ph": "X", "name": "k", "ts": "x"}]}).encode()),
        "no number",
    ),
    "nothing ran": (
        lambda folder: (Rank().step(1, 0, 5).rank and None) or Rank().write(folder),
        "nothing ran on the GPU",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_bad_recording_is_one_message(tmp_path, scaleout, fault):
    make, words = WRONG[fault]
    make(tmp_path)
    code, _, err = scaleout("import", "pytorch", tmp_path, "--output", tmp_path / "out")
    assert code == 2
    assert words in err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_ranks_that_do_not_fit_together_are_refused(tmp_path):
    def recorded(folder, number, *, device="NVIDIA H200", kind="allreduce", step=1, name="job"):
        rank = Rank(number, 2, device=device)
        rank.step(step, 0, 100)
        rank.collective(10, 20, launch=1, kind=kind)
        rank.write(tmp_path / folder, name=name)

    recorded("twice", 0)
    recorded("twice", 0, name="other")
    recorded("mixed", 0)
    recorded("mixed", 1, device="NVIDIA A100")
    recorded("steps", 0)
    recorded("steps", 1, step=2)
    recorded("kinds", 0)
    recorded("kinds", 1, kind="broadcast")
    for folder, words in {
        "twice": "both are of rank 0", "mixed": "NVIDIA A100", "steps": "no step in common",
        "kinds": "all_reduce and broadcast on different ranks",
    }.items():  # fmt: skip
        with pytest.raises(TraceError, match=words):
            load_recording((tmp_path / folder,))


def test_ranks_that_number_their_steps_differently_are_refused(tmp_path):
    def recorded(folder, number, steps, *, offset_us=0.0):
        rank = Rank(number, 2, offset_us=offset_us)
        for at, step in enumerate(steps):
            rank.step(step, 100 * at, 90)
            rank.collective(100 * at + 10, 20, launch=100 * at + 1)
        rank.write(tmp_path / folder)

    recorded("numbers", 0, (3, 4, 5))
    recorded("numbers", 1, (4, 5, 6), offset_us=5.0)
    with pytest.raises(
        TraceError, match=r"step 4 of rank 1 ran when step 3 of rank 0 did, so their numbers differ by 1"
    ):
        load_recording((tmp_path / "numbers",))
    recorded("windows", 0, (3, 4, 5))
    recorded("windows", 1, (4, 5, 6), offset_us=100.0)
    assert [step.step for step in load_recording((tmp_path / "windows",))[2].steps] == [4, 5]


def test_what_some_ranks_lack_is_counted_and_goes_on_only_where_that_is_asked(tmp_path):
    def recorded(folder, number, world_size, *, calls=1, launch=2, device="NVIDIA H200"):
        rank = Rank(number, world_size, device=device)
        rank.kernel(5, 5, launch=launch)
        for call in range(calls):
            rank.collective(10 + 30 * call, 20, launch=3 + 30 * call)
        rank.write(tmp_path / folder)

    recorded("some", 0, 2, calls=3)
    recorded("some", 1, 2)
    recorded("missing", 0, 4)
    recorded("missing", 2, 4)
    recorded("mixed", 0, 2)
    recorded("mixed", 1, 2, device="NVIDIA A100")
    recorded("unlinked", 0, 1, launch=None)
    for folder, refused, noted in (
        ("some", "2 of 3 collectives .* some of their ranks only, the first: all_reduce 1 of ranks 0, 1 by 0",
         "2 of 3 collectives .* kept as kernels"),
        ("missing", "ranks 1, 3 of 4 are missing", "ranks 1, 3 of 4 were not recorded and are left out"),
        ("mixed", r"NVIDIA A100 \(rank 1\) and NVIDIA H200 \(rank 0\)", "recorded on NVIDIA A100"),
        ("unlinked", None, "in the order of their stream: 1 kernel without a call"),
    ):  # fmt: skip
        if refused:
            with pytest.raises(TraceError, match=refused):
                load_recording((tmp_path / folder,))
        notes = load_recording((tmp_path / folder,), allow_partial=refused is not None)[2].notes
        assert any(re.search(noted, note) for note in notes), notes


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("microbatches=2x", "no micro-batches that repeat alike on all ranks"),
        ("accumulate=0.5x", "no micro-batches that repeat alike on all ranks"),
        ("accumulate=1.5x", "give a whole factor"),
        ("batch=0x", "write a factor"),
        ("batch=1->999999999999999999", "of at most 1,000,000"),
        ("sequence=1e-9x", "of at most 1,000,000"),
        ("nothing=2x", "no such edit"),
        ("layers=2x", "no layers that repeat"),
        ("chunks=0", "from 1 to 1024"),
        ("bucket=1MB", "no DDP job"),
        ("bucket=0B", "a bucket of 0 B holds nothing"),
        ("recompute=some", "give full or none"),
        ("recompute=none", "there is nothing to leave out"),
        ("data=2x", "no data-parallel group to change: it communicates nothing"),
    ],
)
def test_an_edit_that_cannot_be_is_one_message(tmp_path, scaleout, edit, words):
    rank = Rank()
    rank.kernel(10, 20, launch=2)
    rank.write(tmp_path / "in")
    assert scaleout("import", "pytorch", tmp_path / "in", "--output", tmp_path / "out")[0] == 0
    code, _, err = scaleout("run", "--trace", tmp_path / "out", "--edit", edit)
    assert (code, words in err) == (2, True), err
