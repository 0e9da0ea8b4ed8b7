"""Graphs end to end and side by side: every node keeps what it is and whom it waits for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scaleout.program.concat import Splice, interleave
from scaleout.program.graph import NONE, GraphBuilder
from scaleout.program.operations import kernel

KERNELS = [kernel("add", dtype="bf16", elements=n) for n in (1, 2, 3)]


@st.composite
def graphs(draw):
    """Small graphs of any shape."""
    builder = GraphBuilder()
    for node in range(draw(st.integers(1, 6))):
        builder.phase = draw(st.sampled_from(["a", "b"]))
        after = draw(st.lists(st.integers(0, node - 1), max_size=3)) if node else []
        builder.compute(draw(st.sampled_from(KERNELS)), after=after, name=f"node {node}")
    return builder.build()


def facts(graph, node):
    return graph.names[node], graph.kernels[graph.kernel[node]], graph.phases[graph.phase[node]]


@given(graphs(), graphs())
def test_parts_follow_each_other(first, second):
    splice = Splice()
    assert splice.add(first) == 0
    last = len(first) - 1
    offset = splice.add(second, after=[last], microbatch=7)
    whole = splice.build()
    assert (offset, len(whole)) == (len(first), len(first) + len(second))
    for graph, start in ((first, 0), (second, offset)):
        for node in range(len(graph)):
            assert facts(whole, start + node) == facts(graph, node)
            own = (graph.dependencies_of(node) + start).tolist()
            assert whole.dependencies_of(start + node).tolist() == (own or [last] * (start > 0))
    assert set(whole.microbatch[offset:].tolist()) == {7}
    assert set(whole.microbatch[:offset].tolist()) == {NONE}


@given(graphs(), graphs(), st.data())
def test_some_nodes_of_a_part_wait_for_more(first, second, data):
    pair = st.tuples(st.integers(0, len(second) - 1), st.integers(0, len(first) - 1))
    waits, after = data.draw(st.lists(pair, max_size=5)), data.draw(st.booleans())
    splice = Splice()
    splice.add(first)
    offset = splice.add(second, after=[0] if after else [], waits=waits)
    whole = splice.build()
    for node in range(len(second)):
        own = set((second.dependencies_of(node) + offset).tolist()) or ({0} if after else set())
        assert set(whole.dependencies_of(offset + node).tolist()) == own | {to for user, to in waits if user == node}


@given(graphs(), graphs())
def test_graphs_side_by_side_take_turns(first, second):
    merged, *positions = interleave(first, second)
    assert sorted(np.concatenate(positions).tolist()) == list(range(len(first) + len(second)))
    for graph, position in zip((first, second), positions, strict=True):
        assert (np.diff(position) > 0).all()
        for node in range(len(graph)):
            assert facts(merged, position[node]) == facts(graph, node)
            assert merged.dependencies_of(position[node]).tolist() == position[graph.dependencies_of(node)].tolist()
    talks = [bool((graph.collective != NONE)[:-1].any()) for graph in (first, second)]
    if len(first) == len(second) and not any(talks):
        assert np.abs(positions[0] - positions[1]).max() == 1


def test_a_turn_ends_behind_what_is_communicated():
    """Each graph's kernels run while the other's exchanges are in flight."""
    builders = [GraphBuilder(), GraphBuilder()]
    for builder in builders:
        for _ in range(2):
            made = builder.compute(KERNELS[0], name="kernel")
            made = builder.compute(KERNELS[0], after=(made,), name="kernel")
            builder.collective("all_to_all", 8, group=0, after=(made,), name="exchange")
    merged, first, second = interleave(*(builder.build() for builder in builders))
    turn = ["kernel", "kernel", "exchange"]
    assert list(merged.names) == 4 * turn
    assert [first.tolist(), second.tolist()] == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]


def test_an_empty_splice_is_an_empty_graph():
    assert len(Splice().build()) == 0


def test_columns_are_one_value_or_one_a_node():
    builder = GraphBuilder()
    for _ in range(3):
        builder.compute(KERNELS[0])
    splice = Splice()
    splice.add(builder.build(), stage=np.array([4, 5, 6]))
    assert splice.build().stage.tolist() == [4, 5, 6]
