"""Graphs written anew: what new nodes wait for."""

from scaleout.program.graph import GraphBuilder
from scaleout.schedule.rewrite import Rewrite


def test_what_is_added_waits_for_what_it_is_told_once_and_for_what_holds_its_stream():
    graph = GraphBuilder()
    for name in ("first", "second"):
        graph.add((), name=name, duration_s=1.0)
    new = Rewrite(graph.build())
    first = new.add(0, ())
    new.holds[0] = first
    second, third = new.add_all(1, [(), ()], name=["part_0", "part_1"])
    on_another = new.add(1, [third, second, third], stream=1)
    built = new.build()
    assert [built.dependencies_of(node).tolist() for node in range(len(built))] == [
        [],
        [first],
        [first],
        [second, third],
    ]
    assert built.names[second:on_another] == ("part_0", "part_1")
    assert built.users_of(first) == (second, third)
    assert built.users_of(on_another) == ()
