"""Recorded kernels next to the collectives of their data: what runs as part of what, and what each still follows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.program.graph import GraphBuilder, NodeKind, NodeRole
from scaleout.program.operations import TimeSource, kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.program.recorded import HOST, recorded
from scaleout.study.neighbours import beside_collectives

TIMED = {"time_source": TimeSource.RECORDED, "role": NodeRole.FORWARD}
GEMM = kernel("gemm", dtype="bf16", M=64, N=32, K=16)
COPY = recorded("aten::copy_", dtype="bf16", token_bytes=4096, other_bytes=0)


def program_of(builder):
    return Program("job", (builder.build(),), np.zeros(2, np.int64), (GroupFamily("tensor", ((0, 1),)),))


def made(copies=1, call=GEMM, size_bytes=64 * 32 * 2, role=NodeRole.FORWARD):
    """A launch, a kernel, copies of its result, and a reduce-scatter on a stream of its own."""
    builder = GraphBuilder()
    launch = builder.add((), name=HOST, duration_s=1e-6, stream=2, role=NodeRole.HOST, time_source=TimeSource.RECORDED)
    last = first = builder.compute(call, after=(launch,), duration_s=10e-6, **TIMED | {"role": role})
    for _ in range(copies):
        last = builder.compute(COPY, after=(first, last, launch), duration_s=2e-6, **TIMED)
    sums = builder.collective("reduce_scatter", size_bytes, group=0, after=(first, last), stream=1, **TIMED)
    builder.compute(GEMM, after=(last, sums), duration_s=10e-6, **TIMED)
    return program_of(builder)


@pytest.mark.parametrize("copies", [0, 1, 3])
def test_copies_run_as_part_of_the_kernel_whose_result_they_move(copies):
    graph = beside_collectives(made(copies)).graphs[0]
    assert [graph.operation(node) for node in range(len(graph))] == ["gemm", "reduce_scatter", "gemm"]
    assert graph.duration_s[0] == pytest.approx((10 + 2 * copies) * 1e-6)
    assert graph.dependencies_of(1).tolist() == [0]
    assert graph.dependencies_of(2).tolist() == [1]


@pytest.mark.parametrize(
    "other",
    [
        {"size_bytes": 64 * 32 * 4},  # not what the kernel makes
        {"call": GEMM.counting("K"), "role": NodeRole.BACKWARD},  # the gradient of a weight
        {"call": recorded("aten::mul", dtype="bf16", token_bytes=4096, other_bytes=0)},
    ],
)
def test_copies_of_other_data_stay(other):
    graph = beside_collectives(made(**other)).graphs[0]
    assert len(graph) == 4
    assert graph.operation(1) == "aten::copy_"


def test_copies_of_what_was_gathered_run_as_part_of_the_kernel_that_takes_it():
    builder = GraphBuilder()
    gathered = builder.collective("all_gather", 64 * 16 * 2, group=0, after=(), stream=1, **TIMED)
    copied = builder.compute(COPY, after=(gathered,), duration_s=2e-6, **TIMED)
    cleared = builder.add((copied,), name="Memset (Device)", duration_s=1e-6, **TIMED)
    taken = builder.compute(GEMM, after=(cleared,), duration_s=10e-6, **TIMED)
    builder.compute(GEMM, after=(taken,), duration_s=10e-6, **TIMED)
    graph = beside_collectives(program_of(builder)).graphs[0]
    assert len(graph) == 3
    assert graph.duration_s[1] == pytest.approx(13e-6)


@st.composite
def recordings(draw):
    """Kernels and collectives on three streams, each behind the one before it on its stream and some others."""
    builder, last = GraphBuilder(), {}
    for node in range(draw(st.integers(2, 25))):
        stream = draw(st.integers(0, 2))
        after = {last[stream]} if stream in last else set()
        after |= set(draw(st.lists(st.integers(0, node - 1), max_size=3))) if node else set()
        if stream == 1:
            last[stream] = builder.collective("all_reduce", 64, group=0, after=after, stream=1, **TIMED)
        else:
            call = draw(st.sampled_from([GEMM, COPY]))
            last[stream] = builder.compute(call, after=after, duration_s=1e-6, stream=stream, **TIMED)
    return program_of(builder)


def ancestors(graph):
    found = []
    for node in range(len(graph)):
        needs = graph.dependencies_of(node).tolist()
        found.append(set(needs).union(*(found[need] for need in needs)))
    return found


@given(program=recordings())
def test_what_follows_what_stays_and_no_time_is_lost(program):
    graph, found = program.graphs[0], beside_collectives(program).graphs[0]
    compute = [each.duration_s[each.kind == NodeKind.COMPUTE].sum() for each in (graph, found)]
    assert compute[1] == pytest.approx(compute[0])
    if len(found) == len(graph):  # nothing was merged
        assert ancestors(found) == ancestors(graph)
        assert len(found.dependencies) <= len(graph.dependencies)
