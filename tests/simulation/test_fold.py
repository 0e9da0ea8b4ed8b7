"""Folding: ranks that do the same share a class, those that do not part, and results do not depend on it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import contests, exchanges, jobs, pipelines

from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.errors import SimulationError
from scaleout.program.graph import NONE, GraphBuilder, NodeKind
from scaleout.program.mesh import Mesh
from scaleout.program.operations import TimeSource
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import apply_schedule
from scaleout.simulation.fold import fold
from scaleout.simulation.run import simulate

SWITCH = Topology("switch", (Dimension("switch", 4, 25e9, 1e-6),))
GRID = Topology("grid", (Dimension("ring", 4, 25e9, 1e-6), Dimension("switch", 2, 25e9, 1e-6)))


def job(roles, families, *, groups=(0,), seconds=1e-6):
    """Every role computes, for longer the higher its number, and joins one collective of each of some families."""
    graphs = []
    for role in range(max(roles) + 1):
        graph = GraphBuilder()
        graph.add((), name="work", duration_s=seconds * (role + 1), time_source=TimeSource.GIVEN)
        for group in groups:
            graph.collective("all_reduce", 1000, group=group)
        graphs.append(graph.build())
    return Program("job", tuple(graphs), np.array(roles), families)


def classes(program, topology, **options):
    return fold(program, topology, **options).class_of_rank.tolist()


def test_spmd_ranks_are_one_class():
    mesh = Mesh(tensor=4, data=2)
    program = job([0] * 8, (mesh.groups("tensor"), mesh.groups("data")), groups=(0, 1))
    folding = fold(program, GRID)
    assert folding.class_of_rank.tolist() == [0] * 8
    assert folding.representative.tolist() == [0]
    assert np.bincount(folding.class_of_rank).tolist() == [8]
    assert folding.families[0].dimensions_of_class == ((0,),)
    assert folding.families[1].dimensions_of_class == ((1,),)


def test_all_ranks_are_apart_when_unfolded():
    program = job([0] * 4, (Mesh(data=4).groups("data"),))
    assert classes(program, SWITCH, unfold=True) == [0, 1, 2, 3]


def test_a_straggler_parts_its_group_from_the_others():
    """Rank 1 is slow: its peer waits for it, and differs from those of the other pair, who are alike."""
    program = job([0, 1, 0, 0], (Mesh(tensor=2, data=2).groups("tensor"),))
    assert classes(program, SWITCH) == [0, 1, 2, 2]


def test_difference_travels_through_groups_of_another_axis():
    """Pairs (0 1) (2 3), and pairs (0 2) (1 3): rank 3 meets the straggler, 0, only through others."""
    mesh = Mesh(tensor=2, data=2)
    program = job([1, 0, 0, 0], (mesh.groups("tensor"), mesh.groups("data")), groups=(0, 1))
    assert classes(program, SWITCH) == [0, 1, 2, 3]


def test_groups_that_lie_otherwise_are_apart():
    """On a ring of 4, neighbours and opposites: one hop and two."""
    ring = Topology("ring", (Dimension("ring", 8, 25e9, 1e-6),))
    family = GroupFamily("odd", ((0, 1), (2, 3), (4, 6), (5, 7)))
    assert classes(job([0] * 8, (family,)), ring) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_ranks_in_no_group_are_apart():
    program = job([0, 0, 1, 1], (GroupFamily("first", ((0, 1),)),), groups=())
    assert classes(program, SWITCH) == [0, 0, 1, 1]
    graphs = job([0, 0, 0, 0], (GroupFamily("first", ((0, 1),)),))
    assert classes(graphs, SWITCH) == [0, 0, 1, 1]
    assert fold(graphs, SWITCH).families[0].group_of_rank.tolist() == [0, 0, NONE, NONE]


def ring(*sends, num_ranks=8):
    """Ranks that send 1 kB, 2 kB ... to those so many further on, and receive them, the last first, with one tag."""
    steps = list(dict.fromkeys([*sends, *(-step for step in sends)]))
    graph = GraphBuilder()
    ends = [(NodeKind.SEND, *each) for each in enumerate(sends)]
    ends += [(NodeKind.RECV, number, -step) for number, step in reversed(list(enumerate(sends)))]
    for kind, number, step in ends:
        graph.add((), name="m", kind=kind, peer=steps.index(step), tag=3, bytes=1000 * (1 + number))
    peers = (np.arange(num_ranks)[:, None] + steps) % num_ranks
    return Program("ring", (graph.build(),), np.zeros(num_ranks, np.int64), (), peers)


def test_ranks_whose_messages_name_peers_alike_are_one_class():
    """A ring that wraps around: 40 ns a kB and 1 us a hop; the second message leaves when the first has left."""
    topology = Topology("ring", (Dimension("ring", 8, 25e9, 1e-6),))
    for sends, ends_ns in (
        ((1,), [1040, 1040]),
        ((1, -1), [1040, 1120, 1120, 1040]),
        ((3, -2), [3040, 2120, 2120, 3040]),
    ):
        program = ring(*sends)
        assert classes(program, topology) == [0] * 8
        (line,) = simulate(program, topology).timelines
        assert [round(end * 1e9) for end in line.end_s] == ends_ns


def test_a_peer_that_names_its_ranks_otherwise_parts_them():
    """Pairs (0 1) and (2 3): but rank 3 names rank 0 too, before rank 2."""
    peers = np.array([[1, -1], [0, -1], [3, -1], [0, 2]])
    program = Program("pairs", (ring(1).graphs[0],), np.zeros(4, np.int64), (), peers)
    assert classes(program, SWITCH) == [0, 0, 1, 2]


def test_ranks_with_messages_stay_alone():
    graph = GraphBuilder()
    graph.add((), name="send", kind=NodeKind.SEND, peer=0, bytes=10)
    program = Program("messages", (graph.build(),), np.zeros(4, np.int64), ())
    assert classes(program, SWITCH) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "degrees"), [("torus-32x32", {"tensor": 32, "data": 32}), ("ring-1024", {"data": 1024})]
)
def test_a_thousand_equal_ranks_are_one_class(name, degrees):
    mesh = Mesh(**degrees)
    program = job([0] * 1024, (mesh.groups("tensor"), mesh.groups("data")), groups=(0, 1))
    assert classes(program, load_topology(name)) == [0] * 1024


@given(jobs(max_roles=3))
def test_classes_keep_roles_and_sizes_apart_and_are_stable(random_job):
    program, topology = random_job
    folding = fold(program, topology)
    of_rank = folding.class_of_rank
    for number, representative in enumerate(folding.representative):
        members = np.flatnonzero(of_rank == number)
        assert members[0] == representative
        assert len(set(program.role_of_rank[members].tolist())) == 1
        for index in folding.families:  # every member's group has the same classes in it, equally often
            seen = {tuple(sorted(of_rank[list(program.groups[index].of(int(rank)))])) for rank in members}
            assert len(seen) == 1


def times_of(program, topology, unfold):
    """Start and end of every node of every rank, or nothing if the program cannot finish."""
    try:
        result = simulate(program, topology, unfold=unfold)
    except SimulationError:
        return None
    ranks = {}
    for line in result.timelines:
        for rank in line.ranks:
            ranks[rank] = (line.start_s.tobytes(), line.end_s.tobytes(), line.algorithm)
    assert sorted(ranks) == list(range(program.num_ranks))
    return result.makespan_s, ranks


def test_meetings_that_want_a_wire_at_once_begin_in_program_order():
    """Three collectives, each on a stream of its own, all ready at 0: in pairs, of all, in pairs again.

    They go in program order, folded or not: 1 KB between two ports 40 ns, and 2 us for two steps each.
    """
    mesh = Mesh(tensor=2, data=2)
    graph = GraphBuilder()
    for stream, group in enumerate((1, 0, 1)):
        graph.add(
            (), name="reduce", kind=NodeKind.COLLECTIVE, collective=0, bytes=1000, group=group, stream=stream,
        )  # fmt: skip
    program = Program("one", (graph.build(),), np.zeros(4, np.int64), (mesh.groups("world"), mesh.groups("tensor")))
    for unfold in (False, True):
        for line in simulate(program, SWITCH, unfold=unfold).timelines:
            assert line.start_s.argsort().tolist() == [0, 1, 2]


@given(contests())
@settings(max_examples=250)
def test_folded_and_unfolded_decide_alike_who_takes_a_wire(random_job):
    assert times_of(*random_job, False) == times_of(*random_job, True)


@given(jobs(max_roles=3, streams=3, priorities=3))
@settings(max_examples=150)
def test_folded_and_unfolded_are_equal_bit_for_bit(random_job):
    program, topology = random_job
    assert times_of(program, topology, False) == times_of(program, topology, True)


@given(jobs(max_roles=2), st.sampled_from(["baseline", "overlap", "fused", "overlap+fused", "fused-oblivious"]))
@settings(max_examples=125)
def test_folded_and_unfolded_are_equal_under_every_schedule(random_job, schedule):
    program, topology = random_job
    scheduled = apply_schedule(program, schedule)
    assert times_of(scheduled, topology, False) == times_of(scheduled, topology, True)


@given(exchanges())
@settings(max_examples=150)
def test_folded_and_unfolded_exchanges_are_equal(random_job):
    assert times_of(*random_job, False) == times_of(*random_job, True)


@given(exchanges())
@settings(max_examples=40)
def test_folded_and_unfolded_exchanges_are_equal_on_links(random_job):
    program, topology = random_job
    folded, unfolded = (simulate(program, topology, network="link", unfold=unfold) for unfold in (False, True))
    assert folded.makespan_s == pytest.approx(unfolded.makespan_s, rel=1e-12)


@given(pipelines())
def test_folded_and_unfolded_pipelines_are_equal(random_job):
    assert times_of(*random_job, False) == times_of(*random_job, True)
