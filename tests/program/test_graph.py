"""Execution graphs: the builder, the laws that every graph keeps, and what is said when one is broken."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import jobs, pipelines

from scaleout.errors import GraphError
from scaleout.program.graph import (
    COLLECTIVES,
    FLOAT_COLUMNS,
    NONE,
    ExecutionGraph,
    GraphBuilder,
    NodeKind,
    compress,
    topological_order,
)
from scaleout.program.operations import TimeSource, kernel

GEMM = kernel("gemm", dtype="bf16", M=2, N=3, K=5)  # 2 * 30 FLOPs, (10 + 15 + 6) * 2 bytes


def small():
    """Two GEMMs, an all-reduce of the second, and a join of all."""
    graph = GraphBuilder(phase="forward")
    first = graph.compute(GEMM, name="first")
    second = graph.compute(GEMM, after=[first])
    graph.phase = "backward"
    reduced = graph.collective("all_reduce", 1024, group=1, after=[second, second], priority=3)
    graph.join([reduced, first])
    return graph


def columns_of(graph):
    return {
        field.name: getattr(graph, field.name)
        for field in dataclasses.fields(graph)
        if isinstance(getattr(graph, field.name), np.ndarray)
    }


def test_what_was_added_is_what_is_built():
    graph = small().build()
    assert len(graph) == 4
    assert graph.names == ("first", "gemm", "all_reduce", "join")
    assert graph.kernels == (GEMM,)  # stored once
    assert graph.phases == ("forward", "backward")
    assert graph.phase.tolist() == [0, 0, 1, 1]
    assert graph.kind.tolist() == [NodeKind.COMPUTE, NodeKind.COMPUTE, NodeKind.COLLECTIVE, NodeKind.COMPUTE]
    assert graph.flops.tolist() == [60, 60, 0, 0]
    assert graph.bytes.tolist() == [62, 62, 1024, 0]
    assert graph.kernel.tolist() == [0, 0, NONE, NONE]
    assert graph.collective.tolist() == [NONE, NONE, COLLECTIVES.index("all_reduce"), NONE]
    assert graph.group.tolist() == [NONE, NONE, 1, NONE]
    assert graph.priority.tolist() == [0, 0, 3, 0]
    assert graph.slices.tolist() == [1, 1, 1, 1]
    assert [graph.dependencies_of(node).tolist() for node in range(4)] == [[], [0], [1], [0, 2]]
    assert np.isnan(graph.duration_s).tolist() == [True, True, True, False]
    assert graph.time_source.tolist() == [TimeSource.UNKNOWN] * 3 + [TimeSource.GIVEN]
    assert [graph.operation(node) for node in range(4)] == ["gemm", "gemm", "all_reduce", "compute"]
    assert graph.total_flops == 120
    assert graph.payload_bytes == 1024


def test_a_send_is_payload_and_its_receive_is_not():
    graph = GraphBuilder()
    graph.add((), name="send", kind=NodeKind.SEND, peer=1, bytes=100)
    graph.add((), name="receive", kind=NodeKind.RECV, peer=1, bytes=100)
    built = graph.build()
    assert built.payload_bytes == 100
    assert [built.operation(node) for node in range(2)] == ["send", "recv"]


def test_a_join_of_one_is_that_one():
    graph = small()
    assert graph.join([2]) == 2
    assert len(graph) == 4


def test_an_empty_graph_is_a_graph():
    graph = GraphBuilder().build()
    assert len(graph) == 0
    assert graph.total_flops == graph.payload_bytes == 0


@pytest.mark.parametrize("name", columns_of(small().build()))
def test_columns_cannot_be_written(name):
    column = columns_of(small().build())[name]
    with pytest.raises(ValueError, match="read-only"):
        column[:] = 0


def test_a_graph_cannot_be_changed_but_copied():
    graph = small().build()
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.names = ()
    changed = graph.with_columns(priority=np.array([1, 2, 3, 4]))
    assert changed.priority.tolist() == [1, 2, 3, 4]
    assert graph.priority.tolist() == [0, 0, 3, 0]
    with pytest.raises(ValueError, match="read-only"):
        changed.priority[0] = 7


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("flops", [0, 0, 0, -1], "node 3 ('join') has flops = -1; give zero or more"),
        ("bytes", [0, -8, 0, 0], "node 1 ('gemm') has bytes = -8; give zero or more"),
        ("slices", [1, 1, -2, 1], "node 2 ('all_reduce') has slices = -2; give zero or more"),
        ("duration_s", [0.0, -1e-6, np.nan, 0.0], "node 1 ('gemm') has duration_s = -1e-06; give zero or more"),
        (
            "dependencies",
            [2, 1, 0, 2],
            "node 1 ('gemm') depends on node 2, which does not precede it; sort the nodes topologically or break",
        ),
        ("dependencies", [0, 2, 0, 2], "node 2 ('all_reduce') depends on node 2, which does not precede it"),
        ("dependencies", [0, 1, -1, 2], "node 3 ('join') depends on node -1"),
    ],
)
def test_broken_laws_are_named(column, values, message):
    graph = small().build()
    with pytest.raises(GraphError) as caught:
        graph.with_columns(**{column: np.array(values)})
    assert message in str(caught.value)


def test_a_dependency_on_a_later_node_is_refused_when_built():
    graph = small()
    graph.add([9], name="early", duration_s=0.0)
    with pytest.raises(GraphError, match=r"node 4 \('early'\) depends on node 9"):
        graph.build()


def test_columns_of_another_length_are_refused():
    """Schedules of one's own may give any."""
    with pytest.raises(GraphError, match=r"column stream has shape \(3,\) for 4 nodes"):
        small().build().with_columns(stream=np.zeros(3, np.int64))


@given(st.one_of(jobs(max_roles=2), pipelines()))
def test_dependencies_precede_their_users_and_totals_add_up(job):
    program, _ = job
    for graph in program.graphs:
        for node in range(len(graph)):
            assert all(dependency < node for dependency in graph.dependencies_of(node))
    assert program.total_flops == sum(
        int(program.graphs[role].flops[program.graphs[role].kind == NodeKind.COMPUTE].sum())
        for role in program.role_of_rank
    )
    assert program.payload_bytes == sum(
        int(graph.bytes[node])
        for graph in (program.graphs[role] for role in program.role_of_rank)
        for node in range(len(graph))
        if graph.kind[node] in (NodeKind.COLLECTIVE, NodeKind.SEND)
    )


def test_compressed_rows():
    offsets, flat = compress([[], [0], [], [0, 2]])
    assert offsets.tolist() == [0, 0, 1, 1, 3]
    assert flat.tolist() == [0, 0, 2]


@st.composite
def dags(draw):
    """Dependencies without a cycle, the nodes in any order."""
    order = draw(st.permutations(range(draw(st.integers(0, 10)))))
    rows = [[] for _ in order]
    for position, node in enumerate(order):
        if position:
            rows[node] = sorted(draw(st.sets(st.sampled_from(order[:position]), max_size=3)))
    return rows


@given(dags())
def test_topological_order_puts_dependencies_first_and_takes_the_lowest(rows):
    order = topological_order(rows, [str(node) for node in range(len(rows))])
    assert sorted(order) == list(range(len(rows)))
    done = set()
    for node in order:
        ready = [other for other in range(len(rows)) if other not in done and done.issuperset(rows[other])]
        assert node == min(ready)
        done.add(node)


def test_a_cycle_is_named_and_what_hangs_on_it_is_not():
    with pytest.raises(GraphError) as caught:
        topological_order([[], [3, 0], [1], [2], [3]], ["a", "b", "c", "d", "e"])
    assert str(caught.value) == (
        "the dependencies form a cycle: 1 ('b') -> 3 ('d') -> 2 ('c') -> 1 ('b'); remove one of these dependencies"
    )


def test_a_node_that_waits_for_itself_is_a_cycle():
    with pytest.raises(GraphError, match=r"cycle: 0 \('a'\) -> 0 \('a'\)"):
        topological_order([[0]], ["a"])


def test_graphs_are_what_their_type_says():
    graph = small().build()
    assert isinstance(graph, ExecutionGraph)
    for name, column in columns_of(graph).items():
        assert column.dtype == (np.float64 if name in FLOAT_COLUMNS else np.int64), name
