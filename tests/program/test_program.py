"""Programs: roles, groups, totals, and groups that cannot be."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import jobs

from scaleout.errors import GraphError
from scaleout.program.graph import NEUTRAL, NONE, GraphBuilder
from scaleout.program.operations import kernel
from scaleout.program.program import GroupFamily, Program, alike

GEMM = kernel("gemm", dtype="bf16", M=2, N=3, K=5)  # 60 FLOPs
PAIRS = GroupFamily("tensor", ((0, 1), (2, 3)))
WORLD = GroupFamily("world", ((0, 1, 2, 3),))
CHECKED = {"kind", "group", "kernel", "collective", "phase"}
"""Columns in which a graph or its program takes no number but of what there is."""


def graph_of(num_kernels, *, group=0):
    graph = GraphBuilder()
    for _ in range(num_kernels):
        graph.compute(GEMM)
    graph.collective("all_reduce", 100, group=group)
    return graph.build()


def test_totals_count_every_rank_of_a_role():
    program = Program("two roles", (graph_of(1), graph_of(3)), np.array([0, 1, 1, 1]), (PAIRS,))
    assert program.num_ranks == 4
    assert program.ranks_of_role.tolist() == [1, 3]
    assert program.total_flops == 1 * 60 + 3 * 180
    assert program.payload_bytes == 400


def test_a_role_that_no_rank_has_counts_nothing():
    program = Program("one role", (graph_of(1), graph_of(3)), np.zeros(4, np.int64), (PAIRS,))
    assert program.ranks_of_role.tolist() == [4, 0]
    assert program.total_flops == 240


def test_groups_of_ranks():
    assert PAIRS.of(2) == (2, 3)
    assert PAIRS.group_of_rank == {0: 0, 1: 0, 2: 1, 3: 1}
    with pytest.raises(GraphError) as caught:
        PAIRS.of(4)
    assert str(caught.value) == "rank 4 is in no group 'tensor'; add it, or remove its collective there"


@pytest.mark.parametrize("members", [((0, 1), (1, 2)), ((0, 1, 1),)])
def test_a_rank_twice_in_a_family_is_refused(members):
    with pytest.raises(GraphError, match="group 'pairs' has rank 1 twice; a rank is in at most one group of an axis"):
        GroupFamily("pairs", members)


@pytest.mark.parametrize("group", [NONE, 2, 5])
def test_a_collective_over_no_group_is_refused(group):
    with pytest.raises(GraphError) as caught:
        Program("bad", (graph_of(1, group=group),), np.zeros(4, np.int64), (PAIRS, WORLD))
    assert f"node 1 ('all_reduce') is a collective over group {group}" in str(caught.value)
    assert "give it one of 2 groups" in str(caught.value)


@pytest.mark.parametrize("rank", [4, -1])
def test_a_group_of_ranks_that_the_job_has_not_is_refused(rank):
    family = GroupFamily("tensor", ((0, rank),))
    with pytest.raises(GraphError, match=f"'tensor' has rank {rank}, which the job does not have; give ranks 0 to 3"):
        Program("bad", (graph_of(1),), np.zeros(4, np.int64), (family,))


def test_graphs_are_mapped_and_the_program_stays():
    program = Program("one role", (graph_of(1),), np.zeros(4, np.int64), (PAIRS,))
    mapped = program.map_graphs(lambda graph: graph.with_columns(stream=np.array([0, 7])))
    assert mapped.graphs[0].stream.tolist() == [0, 7]
    assert program.graphs[0].stream.tolist() == [0, 0]
    assert mapped.groups is program.groups


def test_roles_of_ranks_cannot_be_written():
    program = Program("one role", (graph_of(1),), np.zeros(4, np.int64), (PAIRS,))
    with pytest.raises(ValueError, match="read-only"):
        program.role_of_rank[0] = 1


@given(jobs(max_roles=2), st.data())
def test_programs_are_alike_that_differ_in_no_column(job, data):
    program, _ = job
    copies = {id(graph): graph.with_columns(bytes=graph.bytes.copy()) for graph in program.graphs}
    assert alike(program, program.map_graphs(lambda graph: copies[id(graph)]))
    number = data.draw(st.integers(0, len(program.graphs) - 1))
    name = data.draw(st.sampled_from(sorted({*NEUTRAL} - CHECKED)))
    graphs = list(program.graphs)
    assume(len(graphs[number]))
    column = getattr(graphs[number], name).copy()
    column[-1] = 7 if column[-1] != 7 else 8
    graphs[number] = graphs[number].with_columns(**{name: column})
    assert not alike(program, replace(program, graphs=tuple(graphs)))


def test_graphs_that_share_what_a_change_reads_share_what_it_replaces():
    """Ranks of other kernel times alone: the change is asked once, and gives each what it would give it alone."""
    first, other = graph_of(3), graph_of(2)
    slower = first.with_columns(duration_s=np.full(len(first), 2.0))
    program = Program("three", (first, slower, other), np.array([0, 1, 2, 2]), (PAIRS,))
    asked = []

    def change(graph):
        asked.append(graph)
        return graph.with_columns(stream=graph.kind + 5)

    found = program.map_columns(change, ("kind",))
    assert asked == [first, other]
    assert alike(found, program.map_graphs(change))
    assert found.graphs[1].stream is found.graphs[0].stream
    assert found.graphs[1].duration_s is slower.duration_s
