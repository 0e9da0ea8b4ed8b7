"""Fusing never loses: what a pair is credited with and pays, and what is refused.

The law over random jobs is in `tests/fuzz/test_jobs.py`.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import ConfigError
from scaleout.program.graph import GraphBuilder, NodeKind
from scaleout.program.operations import TimeSource, kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import apply_schedule, plan_schedule
from scaleout.schedule.fusion.passes import candidates, fuse
from scaleout.schedule.overlap import baseline, in_program_order
from scaleout.simulation.run import simulate
from scaleout.study.comparison import compare

ROUNDING = 1 + 1e-12


def test_under_links_the_step_that_decides_is_that_of_the_links():
    """Under the alpha-beta model a ring's slices have it to themselves, on links they share it."""
    for schedule in ("baseline", "overlap"):
        found = compare(
            "mixtral-8x7b", changes={"layers": 2, "data_parallel": 8, "expert_parallel": 8}, topology="t3-ring-8",
            device="h200", schedules=[schedule, f"{schedule}+fused"], network="link",
        )  # fmt: skip
        alone, fused = found.outcomes
        assert fused.result.network == "link"
        assert fused.makespan_s <= alone.makespan_s * ROUNDING


# ---- What a pair is credited with is what the graph pays

POOL = kernel("embedding_bag_fwd", dtype="fp32", batch=256, tables=8, dim=256, pooling=70, rows=1000)
UPDATE = kernel("embedding_sgd_sparse", dtype="fp32", batch=256, tables=8, dim=256, pooling=70)
GEMM = kernel("gemm", dtype="bf16", M=64, N=48, K=40)
GEMV = kernel("gemv", dtype="bf16", M=100, N=30)


def pair(call, kind, kernel_s, size_bytes, topology):
    """A kernel and the collective behind it, or in front of one that consumes its data, on all ranks."""
    graph = GraphBuilder()
    columns = {"name": call.op, "kernel": graph.kernel_index(call), "flops": call.flops, "bytes": call.bytes}
    columns |= {"duration_s": kernel_s, "time_source": TimeSource.GIVEN}
    if call is UPDATE:
        graph.add([graph.collective(kind, size_bytes, group=0)], **columns)
    else:
        graph.collective(kind, size_bytes, group=0, after=[graph.add((), **columns)])
    world = GroupFamily("world", (tuple(range(topology.num_ranks)),))
    return Program("pair", (graph.build(),), np.zeros(topology.num_ranks, np.int64), (world,))


PAIRS = [
    (POOL, "all_to_all"), (UPDATE, "all_to_all"), (GEMM, "all_to_all"), (GEMM, "all_reduce"), (GEMV, "all_reduce"),
    (GEMM, "reduce_scatter"),
]  # fmt: skip


@given(
    st.sampled_from(PAIRS), st.floats(1e-6, 1e-2), st.integers(20, 30), st.sampled_from(["h200", "mi210"]),
    st.sampled_from(["dgx-h200-1", "dgx-h200-2", "h200-node-4", "mi210-pair", "sierra-8"]),
)  # fmt: skip
@settings(max_examples=60)
def test_a_pair_saves_what_its_estimate_says(which, kernel_s, power, device, name):
    """An isolated pair: calls, gaps, flags and latency that the estimate counts are those that are simulated."""
    topology = load_topology(name)
    topology = replace(topology, library=replace(topology.library, resource_use=None)) if topology.library else topology
    machine, program = Machine(load_device(device), topology), pair(*which, kernel_s, 2**power, topology)
    (found,) = candidates(program, machine)
    assume(found)
    steps_s = [
        simulate(in_program_order(each), topology).makespan_s
        for each in (baseline(program), fuse(baseline(program), machine))
    ]
    assert steps_s[0] - steps_s[1] == pytest.approx(found[0][1].saves_s, rel=1e-3, abs=1e-9)


def test_slices_pay_no_start_of_the_library():
    """64 slices of a GEMM's all-reduce over NVLink: each lasts its share of the links, and none the library's start."""
    topology = load_topology("dgx-h200-1")
    machine = Machine(load_device("h200"), topology)
    program = fuse(baseline(pair(GEMV, "all_reduce", 1e-4, 2**26, topology)), machine)
    (line,) = simulate(in_program_order(program), topology).timelines
    sent = np.flatnonzero(line.graph.kind == NodeKind.COLLECTIVE)
    assert len(sent) > 8
    whole = simulate(baseline(pair(GEMV, "all_reduce", 1e-4, 2**26, topology)), topology).timelines[0]
    assert (line.duration_s[sent] - line.occupancy_s[sent]).max() < 0.2 * topology.startup_s + 8e-6
    assert line.occupancy_s[sent].sum() < whole.duration_s[1]


def test_messages_are_not_held_up_by_a_fused_kernel():
    """A kernel polls for its slices, and holds the kernels behind it; messages have streams of their own."""
    graph = GraphBuilder()
    made = graph.add((), name="gemm", kernel=graph.kernel_index(GEMM), flops=GEMM.flops, bytes=GEMM.bytes,
                     duration_s=1e-5, time_source=TimeSource.GIVEN)  # fmt: skip
    graph.collective("all_reduce", 10**6, group=0, after=[made])
    graph.add((), name="send", kind=NodeKind.SEND, group=0, peer=1, bytes=10)
    graph.add((), name="receive", kind=NodeKind.RECV, group=0, peer=1, bytes=10)
    graph.add((), name="next", duration_s=1e-6, time_source=TimeSource.GIVEN)
    program = Program("poll", (graph.build(),), np.zeros(2, np.int64), (GroupFamily("world", ((0, 1),)),))
    (found,) = fuse(program).graphs
    polled = found.names.index("gemm_poll")
    assert found.dependencies_of(found.names.index("next")).tolist() == [polled]
    for name in ("send", "receive"):
        assert not len(found.dependencies_of(found.names.index(name)))


# ---- What is taken, and what is left

JOB = {"layers": 4, "tensor_parallel": 8, "data_parallel": 1}


def test_a_machine_decides_by_simulated_steps_and_says_so():
    found = compare("llama-3-8b", changes=JOB, device="a100-80g", schedules=["overlap", "overlap+fused"])
    alone, fused = found.outcomes
    assert fused.makespan_s < alone.makespan_s
    assert str(fused.decisions[0]).startswith("5 of 5 kinds of pairs: fused, ")
    assert all(each.choice == "fused" and ", after gemm" in each.about for each in fused.decisions[1:])


def test_each_kind_of_pair_says_which_kernel_of_which_pass_and_what_it_saves():
    """One after the other, what the kinds save, each isolated, is what a step is shorter."""
    changes = {**JOB, "layers": 2, "tensor_parallel": 4, "sequence_parallel": True}
    found = compare("llama-3-8b", changes=changes, device="h200", topology="h200-node-4", schedules=["fused"])
    whole, *rows = found.outcomes[0].decisions
    kernels = [each.called for each in rows]
    assert kernels[:2] == ["attention_output in attention_forward", "feed_forward_2 in feed_forward_forward"]
    assert "attention_qkv_input_gradient in attention_backward" in kernels
    assert len(set(kernels)) == len(kernels)
    saved_s = sum(each.saved_s for each in rows if each.choice == "fused")
    assert whole.time_s == found.outcomes[0].makespan_s
    assert saved_s == pytest.approx(whole.alternatives_s["not fused"] - whole.time_s, rel=0.05)
    first = rows[0]
    assert first.saved_s == pytest.approx(first.count * (first.alternatives_s["not fused"] - first.time_s))
    assert f"{first.count} x all_reduce" in str(first) or f"{first.count} x reduce_scatter" in str(first)
    assert "(each, isolated; all save " in str(first)


def test_a_collective_that_is_overlapped_already_is_left_alone():
    """100 us of GEMM, an all-reduce, and 1 ms of other work: one after the other fusing saves, overlapped it does not.

    The GEMM takes 27% longer on H200, and nothing but the work behind it had to wait for the all-reduce.
    """
    topology = load_topology("h200-node-4")
    machine, graph = Machine(load_device("h200"), topology), GraphBuilder()
    made = graph.add((), name="gemm", kernel=graph.kernel_index(GEMM), flops=GEMM.flops, bytes=GEMM.bytes,
                     duration_s=1e-4, time_source=TimeSource.GIVEN)  # fmt: skip
    graph.collective("all_reduce", 20_000_000, group=0, after=[made])
    graph.add((), name="other", duration_s=1e-3, time_source=TimeSource.GIVEN)
    program = Program("hidden", (graph.build(),), np.zeros(4, np.int64), (GroupFamily("world", (tuple(range(4)),)),))
    serial, overlapped = (plan_schedule(program, name, machine=machine) for name in ("fused", "overlap+fused"))
    assert len(serial.program.graphs[0]) > 3
    assert "all_reduce of 20 MB over world, after gemm: fused, " in str(serial.decisions[1])
    assert len(overlapped.program.graphs[0]) == 3
    whole, words = map(str, overlapped.decisions)
    assert whole.startswith("0 of 1 kind of pairs: not fused, ")
    assert ", rather than fused, " in whole
    assert whole.endswith(" (a step)")
    assert "all_reduce of 20 MB over world, after gemm: not fused, " in words
    assert ", though fused takes " in words
    assert words.endswith(" (each, isolated; a step would be longer)")
    assert (serial.runs_as, overlapped.runs_as) == ("", "overlap")


def test_what_centauri_cut_is_left_as_it_cut_it():
    """Fused takes pairs of whole kernels and collectives alone, and a step is no longer for it."""
    changes = JOB | {"tensor_parallel": 2, "data_parallel": 4}
    names = ["centauri", "centauri+fused"]
    found = compare("llama-3-8b", changes=changes, device="a100-80g", schedules=names)
    assert not found.failures
    assert found.outcomes[1].makespan_s <= found.outcomes[0].makespan_s * ROUNDING
    machine = Machine(load_device("h200"), load_topology("h200-node-4"))
    program = pair(GEMM, "reduce_scatter", 1e-4, 10**7, machine.topology)
    (graph,) = program.graphs
    cut = program.map_graphs(lambda graph: graph.with_columns(flops=graph.flops // 2))
    assert len(fuse(program).graphs[0]) > len(graph)
    assert len(fuse(cut).graphs[0]) == len(graph)


# ---- Schedules that contradict each other, and one that fails among others

EMPTY = Program("empty", (GraphBuilder().build(),), np.zeros(2, np.int64), ())


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("fused+fused", "fused and fused are the same pass twice; leave one of them out"),
        ("fused+fused-oblivious", "fused and fused-oblivious are the same pass twice"),
        ("centauri:model+centauri:order", "centauri:model and centauri:order are the same pass twice"),
        ("overlap+baseline", "baseline puts all kernels and collectives on streams, and so undoes what overlap did; "
         "give one of them, or each as a schedule of its own"),
        ("fused+overlap", "undoes what fused did; give overlap first"),
        ("async-tp+blocking-tp", "blocking-tp would move what async-tp has rewritten; give it before that"),
        ("track-and-trigger+fused", "track-and-trigger and fused replace the same operators"),
        ("fused+centauri", "fused and centauri replace the same operators"),
        ("centauri+coconet", "centauri and coconet replace the same operators"),
        ("centauri+fused+track-and-trigger", "centauri and track-and-trigger replace the same operators"),
    ],
)  # fmt: skip
def test_schedules_that_contradict_each_other_are_refused_before_anything_runs(schedule, message, scaleout):
    with pytest.raises(ConfigError, match=f"^schedule '{schedule.replace('+', '[+]')}': ") as caught:
        plan_schedule(EMPTY, schedule)
    assert message in str(caught.value)
    code, out, err = scaleout("run", "dlrm-128", "--schedule", "baseline", "--schedule", schedule)
    assert (code, out) == (2, "")
    assert message in err


def test_a_schedule_that_fails_leaves_the_others(scaleout):
    """An A100's file says nothing of stages: track-and-trigger fails, and is named with the reason."""
    asked = ("run", "llama-3-8b", "--set", "layers=1", "--device", "a100-80g")
    code, out, err = scaleout(*asked, "--schedule", "track-and-trigger", "--schedule", "baseline")
    assert code == 2
    assert "baseline" in out
    assert "track-and-trigger" not in out
    assert err.startswith("error: schedule track-and-trigger: device 'a100-80g' does not say how it runs GEMMs in sta")
    code, out, err = scaleout(*asked, "--schedule", "track-and-trigger")
    assert (code, out) == (2, "")
    assert err.startswith("error: device 'a100-80g' does not say")
    found = compare("llama-3-8b", changes={"layers": 1}, device="a100-80g", schedules=["baseline", "track-and-trigger"])
    assert [each.schedule for each in found.outcomes] == ["baseline"]
    assert list(found.summary()["failures"]) == ["track-and-trigger"]


def test_without_a_machine_all_is_fused():
    topology = load_topology("h200-node-4")
    program = pair(GEMM, "reduce_scatter", 1e-3, 10**4, topology)
    assert len(apply_schedule(program, "fused").graphs[0]) > 2
    assert len(apply_schedule(program, "fused", machine=Machine(load_device("h200"), topology)).graphs[0]) == 2
