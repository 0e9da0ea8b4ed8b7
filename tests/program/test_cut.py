"""Graphs without some of their nodes, and graphs in which nodes run again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.program.cut import without, without_phase
from scaleout.program.graph import GraphBuilder
from scaleout.study.edits.repeats import repeated


def chain(names, *, phase=""):
    builder = GraphBuilder(phase=phase)
    for name in names:
        builder.add([len(builder) - 1] if len(builder) else [], name=name, duration_s=1.0)
    return builder


@st.composite
def graphs(draw):
    builder = GraphBuilder()
    for node in range(draw(st.integers(1, 12))):
        after = draw(st.sets(st.integers(0, node - 1), max_size=3)) if node else ()
        builder.add(after, name=str(node), duration_s=1.0)
    return builder.build()


def reached(graph):
    """Names of all that each node follows, however far before it."""
    found = []
    for node in range(len(graph)):
        needs = graph.dependencies_of(node).tolist()
        found.append({graph.names[need] for need in needs}.union(*(found[need] for need in needs)))
    return dict(zip(graph.names, found, strict=True))


@given(graph=graphs(), data=st.data())
def test_what_stays_follows_what_it_followed(graph, data):
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(graph), max_size=len(graph))))
    cut, before = without(graph, mask), reached(graph)
    stays = set(cut.names)
    assert stays == {name for name, gone in zip(graph.names, mask.tolist(), strict=True) if not gone}
    assert reached(cut) == {name: before[name] & stays for name in stays}


def test_a_phase_is_left_out():
    builder = chain("ab", phase="first")
    builder.phase = "second"
    builder.add([1], name="c", duration_s=1.0)
    found = without_phase("first")(builder.build())
    assert found.names == ("c",)
    assert not found.dependencies_of(0).size
    assert without_phase("none")(found) is found


@pytest.mark.parametrize("times", [1, 3])
def test_nodes_that_run_again_follow_each_other(times):
    graph = chain("abcdef").build()  # units ab, cd, and ef after them
    found = repeated(graph, 2, 4, times, before=0)
    assert "".join(found.names) == "ab" + "cd" * (1 + times) + "ef"
    assert [found.dependencies_of(node).tolist() for node in range(1, len(found))] == [
        [node - 1] for node in range(1, len(found))
    ]
