"""Breakdowns add up, unions of intervals equal a naive oracle, and critical paths explain the whole makespan."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import contests, jobs, longest_chain_s, pipelines

from scaleout.analysis.breakdown import breakdown, by_operation, by_phase, covered, critical_path
from scaleout.cluster.topology.topology import Dimension, Topology
from scaleout.program.graph import GraphBuilder, NodeKind
from scaleout.program.labels import label
from scaleout.program.operations import TimeSource
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import apply_schedule
from scaleout.simulation.run import simulate

WIRE = 100e-6  # what a message of N takes
N = 2_500_000
SWITCH = Topology("switch", (Dimension("switch", 2, 25e9, 0.0),))

schedules = st.sampled_from(["baseline", "overlap", "fused", "overlap+fused"])
results = st.one_of(
    st.builds(lambda job, schedule: simulate(apply_schedule(job[0], schedule), job[1]), jobs(), schedules),
    st.builds(lambda job: simulate(*job), pipelines()),
    st.builds(lambda job: simulate(*job), contests()),
)


def by_hand():
    """Rank 0 computes for 20 us and reduces beside 30 us more; rank 1 computes for 60 us, then reduces.

    rank 0: kernel 0-20, kernel 20-50, reduce 60-160; rank 1: kernel 0-60, reduce 60-160, kernel 160-170.
    """
    first, second = GraphBuilder(phase="forward"), GraphBuilder(phase="forward")

    def work(graph, name, seconds, after=(), source=TimeSource.MEASURED):
        return graph.add(after, name=name, duration_s=seconds, time_source=source)

    made = work(first, "a", 20e-6)
    first.collective("all_reduce", N, group=0, after=[made])
    work(first, "b", 30e-6, source=TimeSource.ROOFLINE)
    made = work(second, "c", 60e-6)
    second.phase = "backward"
    work(second, "d", 10e-6, [second.collective("all_reduce", N, group=0, after=[made])])
    program = Program("two", (first.build(), second.build()), np.array([0, 1]), (GroupFamily("world", ((0, 1),)),))
    # The reduction first in program order would hold the stream: give collectives one of their own.
    return simulate(apply_schedule(program, "overlap"), SWITCH)


def test_a_breakdown_by_hand():
    found = breakdown(by_hand())
    assert found.makespan_s == pytest.approx(170e-6)
    assert found.compute_s == pytest.approx((50e-6 + 70e-6) / 2)
    assert found.communication_s == found.exposed_communication_s == pytest.approx(WIRE)
    assert found.idle_s == pytest.approx((20e-6 + 0) / 2)  # rank 0: 50 to 60, and 160 to 170
    assert found.kernel_time_sources == pytest.approx({"measured": 90 / 120, "interpolated": 0, "roofline": 30 / 120})


def test_rows_by_hand():
    rows = {(row.name, row.communication): (row.count, row.busy_s) for row in by_phase(by_hand())}
    assert rows == {
        ("forward", False): (1.5, pytest.approx((20e-6 + 30e-6 + 60e-6) / 2)),
        ("forward", True): (0.5, pytest.approx(WIRE / 2)),
        ("backward", True): (0.5, pytest.approx(WIRE / 2)),
        ("backward", False): (0.5, pytest.approx(10e-6 / 2)),
    }
    operations = by_operation(by_hand())
    assert [row.name for row in operations] == ["all_reduce", "c", "b", "a", "d"]  # kernels of no known operation
    assert [row.communication for row in operations] == [True, False, False, False, False]
    assert [row.busy_s for row in operations] == pytest.approx([WIRE, 30e-6, 15e-6, 10e-6, 5e-6])


def test_a_critical_path_by_hand():
    path = critical_path(by_hand())
    assert [(segment.name, segment.rank) for segment in path] == [("c", 1), ("all_reduce", 1), ("d", 1)]
    assert [segment.start_s for segment in path] == pytest.approx([0, 60e-6, 160e-6])
    assert [segment.phase for segment in path] == ["forward", "backward", "backward"]
    assert [segment.communication for segment in path] == [False, True, False]
    assert path[1].operation == "all_reduce"


def test_a_critical_path_goes_over_waiting_for_a_wire():
    """Two reductions on streams of their own want one wire; what follows the second waited for the first."""
    graph = GraphBuilder()
    graph.add((), name="first", kind=NodeKind.COLLECTIVE, collective=0, bytes=N, group=0, stream=1)
    graph.add((), name="second", kind=NodeKind.COLLECTIVE, collective=0, bytes=N, group=0, stream=2)
    graph.add([1], name="last", duration_s=1e-6, time_source=TimeSource.GIVEN)
    world = GroupFamily("world", ((0, 1),))
    result = simulate(Program("wire", (graph.build(),), np.zeros(2, np.int64), (world,)), SWITCH)
    assert [segment.name for segment in critical_path(result)] == ["first", "second", "last"]


def test_given_times_are_named_only_where_there_are_some():
    graph = GraphBuilder()
    graph.add((), name="x", duration_s=1e-6, time_source=TimeSource.GIVEN)
    result = simulate(Program("given", (graph.build(),), np.zeros(2, np.int64), ()), SWITCH)
    assert breakdown(result).kernel_time_sources["given"] == 1
    assert "given" not in breakdown(by_hand()).kernel_time_sources


def test_an_empty_result():
    result = simulate(Program("empty", (GraphBuilder().build(),), np.zeros(2, np.int64), ()), SWITCH)
    assert critical_path(result) == []
    assert breakdown(result).makespan_s == 0
    assert breakdown(result).kernel_time_sources == {}


# ---- Laws


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8))))
def test_a_union_of_intervals_equals_the_naive_one(intervals):
    """Oracle: mark every unit of time that an interval covers."""
    marked = {moment for start, length in intervals for moment in range(start, start + length)}
    start = np.array([start for start, _ in intervals], np.float64)
    length = np.array([length for _, length in intervals], np.float64)
    assert covered(start, start + length) == len(marked)


@given(results)
def test_a_breakdown_adds_up(result):
    found = breakdown(result)
    parts = found.compute_s + found.exposed_communication_s + found.idle_s
    assert parts == pytest.approx(found.makespan_s, rel=1e-9, abs=1e-18)
    assert found.makespan_s == result.makespan_s
    assert min(found.compute_s, found.communication_s, found.idle_s) >= 0
    assert -1e-18 <= found.exposed_communication_s <= found.communication_s * (1 + 1e-9) + 1e-18
    if found.kernel_time_sources:
        assert sum(found.kernel_time_sources.values()) == pytest.approx(1)
    ranks = result.program.num_ranks
    busy = sum(len(line.ranks) * line.duration_s.sum() for line in result.timelines) / ranks
    count = sum(len(line.ranks) * len(line.graph) for line in result.timelines) / ranks
    for rows in (by_phase(result), by_operation(result)):
        assert sum(row.busy_s for row in rows) == pytest.approx(busy, rel=1e-9, abs=1e-18)
        assert sum(row.count for row in rows) == pytest.approx(count)


@given(results)
def test_a_critical_path_has_no_gap_and_adds_up_to_the_makespan(result):
    path = critical_path(result)
    if result.makespan_s == 0:
        assert path == []
        return
    assert path[0].start_s == 0
    assert path[-1].end_s == result.makespan_s
    assert sum(segment.end_s - segment.start_s for segment in path) == pytest.approx(result.makespan_s, rel=1e-12)
    lines = {line.ranks[0]: line for line in result.timelines}
    for segment, after in zip(path, [*path[1:], None], strict=True):
        line = lines[segment.rank]
        assert segment.start_s == line.start_s[segment.node]
        assert segment.name == line.graph.names[segment.node]
        assert after is None or segment.end_s == after.start_s
        # It ends when the node is done, or when it lets go of what the next one waited for.
        released = line.start_s[segment.node] + line.occupancy_s[segment.node]
        assert segment.end_s in (line.end_s[segment.node], released)


@given(results)
def test_no_step_is_shorter_than_its_longest_chain_of_dependencies(result):
    for line in result.timelines:
        assert longest_chain_s(line) <= result.makespan_s * (1 + 1e-12)


@given(results)
def test_rows_are_those_of_a_loop_over_nodes(result):
    """Added up in the order of ranks and nodes, to the last bit."""
    totals = {}
    for line in result.timelines:
        share = len(line.ranks) / result.program.num_ranks
        for node in range(len(line.graph)):
            entry = totals.setdefault((label(line.graph, node), bool(line.is_communication[node])), [0.0, 0.0])
            entry[0] += share
            entry[1] += share * float(line.duration_s[node])
    rows = sorted(totals.items(), key=lambda row: -row[1][1])
    assert [((row.name, row.communication), [row.count, row.busy_s]) for row in by_operation(result)] == rows


def test_estimates_beside_measured_kernels_are_told(scaleout):
    """H200's GEMMs in bf16 were measured, those in fp8 by blocks are the roofline, and seem fastest."""
    job = ("run", "llama-3-8b", "--set=layers=2", "--schedule=baseline")
    told = ("not measured on h200: gemm_fp8_blockwise ", "of their time is a roofline estimate")
    words = " ".join(scaleout(*job, "--set=linear_dtype=fp8_blockwise")[1].split())
    assert all(each in words for each in told)
    words = " ".join(scaleout(*job)[1].split())
    assert not any(each in words for each in told)


def test_a_study_names_the_fastest_case_with_fewer_estimates(scaleout, tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text("workload: llama-3-8b\nschedule: baseline\nset: {layers: 2, linear_dtype: [same, fp8_blockwise]}\n")
    words = " ".join(scaleout("study", file, "--output", tmp_path / "out", "--no-report")[1].split())
    assert "of kernel time is a roofline estimate of kernels not measured; the fastest with less: " in words
    assert "set.linear_dtype=same" in words
    words = " ".join(scaleout("search", "llama-3-8b", "--set=layers=2", "--set=linear_dtype=fp8_blockwise",
                              "--global-batch", "8", "--set=tensor_parallel=1")[1].split())  # fmt: skip
    assert "not measured on h200: gemm_fp8_blockwise " in words
