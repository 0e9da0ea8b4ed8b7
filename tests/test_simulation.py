"""Simulation: small programs worked by hand, what cannot finish is explained, the same input gives the same bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import contests, jobs, pipelines

from scaleout.errors import ConfigError, GraphError, SimulationError
from scaleout.graph import COLLECTIVES, GraphBuilder, NodeKind
from scaleout.network.alpha_beta import collective_cost
from scaleout.operations import TimeSource, kernel
from scaleout.parallelism import Mesh
from scaleout.placement import place
from scaleout.program import GroupFamily, Program
from scaleout.simulation import simulate
from scaleout.topology import Dimension, Topology

ALPHA, BANDWIDTH = 1e-6, 25e9
SWITCH = Topology("switch", (Dimension("switch", 2, BANDWIDTH, ALPHA),))
GRID = Topology("grid", (Dimension("switch", 2, BANDWIDTH, ALPHA), Dimension("switch", 2, BANDWIDTH, ALPHA)))
N = 2_500_000  # 100 us on a link
REDUCE = ALPHA + N / BANDWIDTH  # two ranks exchange their buffers in one step, the fastest way


def work(graph, seconds, after=(), **columns):
    return graph.add(after, name="work", duration_s=seconds, time_source=TimeSource.GIVEN, **columns)


def reduce(graph, group=0, *, kind="all_reduce", size_bytes=N, after=(), name="reduce", **columns):
    return graph.add(
        after, name=name, kind=NodeKind.COLLECTIVE, collective=COLLECTIVES.index(kind), bytes=size_bytes, group=group,
        **columns,
    )  # fmt: skip


def message(graph, kind, peer, *, tag=0, after=(), size_bytes=N):
    return graph.add(after, name=kind.name.lower(), kind=kind, peer=peer, tag=tag, bytes=size_bytes)


def program(*writers, ranks=2, groups=None, roles=None):
    """A role for each function that writes a graph; one a rank unless there is only one, or roles are given."""
    graphs = []
    for write in writers:
        graph = GraphBuilder()
        write(graph)
        graphs.append(graph.build())
    if roles is None:
        roles = range(ranks) if len(graphs) > 1 else [0] * ranks
    groups = groups or (GroupFamily("world", (tuple(range(ranks)),)),)
    return Program("test", tuple(graphs), np.array(list(roles), np.int64), groups)


def of_rank(result, rank):
    return next(line for line in result.timelines if rank in line.ranks)


def refused(error, what, topology=SWITCH, **options):
    with pytest.raises(error) as caught:
        simulate(what, topology, **options)
    return str(caught.value)


# ---- Worked by hand


def test_kernels_then_a_collective_then_a_kernel():
    def write(graph):
        first = work(graph, 3e-6)
        work(graph, 5e-6, [reduce(graph, after=[first])])

    result = simulate(program(write), SWITCH)
    (line,) = result.timelines
    assert line.ranks == (0, 1)
    assert line.start_s.tolist() == pytest.approx([0, 3e-6, 3e-6 + REDUCE])
    assert result.makespan_s == pytest.approx(8e-6 + REDUCE)
    assert line.duration_s[1] == pytest.approx(REDUCE)
    assert line.algorithm[1] != ""
    assert line.algorithm[0] == line.algorithm[2] == ""
    assert line.is_communication.tolist() == [False, True, False]


def test_the_fast_rank_waits_for_the_slow_one():
    def of(seconds):
        return lambda graph: reduce(graph, after=[work(graph, seconds)])

    result = simulate(program(of(1e-6), of(9e-6)), SWITCH)
    assert of_rank(result, 0).start_s.tolist() == [0, 9e-6]
    assert of_rank(result, 1).start_s.tolist() == [0, 9e-6]
    assert result.makespan_s == pytest.approx(9e-6 + REDUCE)


def test_two_collectives_of_a_group_share_its_wire():
    def write(graph):
        reduce(graph, stream=1)
        reduce(graph, stream=2)

    result = simulate(program(write), SWITCH)
    assert result.makespan_s == pytest.approx(2 * REDUCE, rel=1e-12)
    assert sorted(result.timelines[0].start_s.tolist()) == pytest.approx([0, REDUCE])


def grid_program(groups):
    def write(graph):
        reduce(graph, 0, stream=1)
        reduce(graph, 1, stream=2)

    mesh = Mesh(tensor=2, data=2)
    return program(write, ranks=4, groups=tuple(mesh.groups(axis) for axis in groups))


def test_collectives_on_different_dimensions_run_side_by_side():
    result = simulate(grid_program(("tensor", "data")), GRID)
    assert result.makespan_s == pytest.approx(REDUCE, rel=1e-12)
    assert result.timelines[0].start_s.tolist() == [0, 0]


def test_a_collective_over_both_dimensions_shares_with_either():
    result = simulate(grid_program(("world", "data")), GRID)
    whole = collective_cost("all_reduce", N, place(GRID, range(4))).time_s
    assert result.makespan_s == pytest.approx(whole + REDUCE, rel=1e-12)


def test_slices_of_a_transfer_pay_its_latency_once():
    """4 slices of a transfer of N: each on the wire for a quarter, and the latency behind it in flight."""

    def write(graph):
        last = ()
        for _ in range(4):
            last = (reduce(graph, size_bytes=N // 4, pieces=4, stream=1),)
        work(graph, 1e-6, last)

    line = simulate(program(write), SWITCH, algorithms={"all_reduce": "ring"}).timelines[0]
    wire, latency = N / BANDWIDTH, 2 * ALPHA
    assert line.start_s.tolist() == pytest.approx([0, wire / 4, wire / 2, wire * 3 / 4, wire + latency])


def test_a_message_arrives_latency_and_bytes_later():
    def sender(graph):
        message(graph, NodeKind.SEND, 1, after=[work(graph, 2e-6)])
        work(graph, 50e-6)  # the message does not hold it up

    def receiver(graph):
        work(graph, 3e-6, [message(graph, NodeKind.RECV, 0)])

    result = simulate(program(sender, receiver), SWITCH)
    arrival = 2e-6 + ALPHA + N / BANDWIDTH
    assert of_rank(result, 0).start_s.tolist() == pytest.approx([0, 2e-6, 2e-6])
    assert of_rank(result, 1).start_s.tolist() == pytest.approx([arrival, arrival])
    assert result.makespan_s == pytest.approx(arrival + 3e-6)


def test_messages_of_a_tag_arrive_in_the_order_they_were_sent():
    def sender(graph):
        for seconds in (1e-6, 4e-6):
            message(graph, NodeKind.SEND, 1, after=[work(graph, seconds)], tag=7)
        message(graph, NodeKind.SEND, 1, tag=8, size_bytes=0)

    def receiver(graph):
        first = message(graph, NodeKind.RECV, 0, tag=7)
        second = message(graph, NodeKind.RECV, 0, tag=7)
        third = message(graph, NodeKind.RECV, 0, tag=8)
        for arrived in (first, second, third):
            work(graph, 0.0, [arrived])

    starts = of_rank(simulate(program(sender, receiver), SWITCH), 1).start_s.tolist()
    wire = N / BANDWIDTH
    # The empty message has nothing to wait for; the others go one after another over the rank's sending stream.
    assert starts[2] == 0
    assert starts[:2] == pytest.approx([1e-6 + wire + ALPHA, 1e-6 + 2 * wire + ALPHA])


def test_a_group_of_one_and_no_bytes_cost_nothing():
    alone = (GroupFamily("alone", ((0,), (1,))),)
    assert simulate(program(reduce, groups=alone), SWITCH).makespan_s == 0
    assert simulate(program(lambda graph: reduce(graph, size_bytes=0)), SWITCH).makespan_s == 0


def test_a_barrier_is_a_message_to_everyone():
    result = simulate(program(lambda graph: reduce(graph, kind="barrier", size_bytes=0)), SWITCH)
    assert result.makespan_s == collective_cost("all_reduce", 1.0, place(SWITCH, [0, 1])).time_s


def test_an_algorithm_can_be_asked_for():
    result = simulate(program(reduce), SWITCH, algorithms={"all_reduce": "ring"})
    assert result.timelines[0].algorithm == ("ring",)
    said = refused(ConfigError, program(reduce), algorithms={"all_reduce": "rings"})
    assert "unknown collective algorithm 'rings'; did you mean 'ring'?" in said


def test_an_empty_program_takes_no_time():
    assert simulate(program(lambda graph: None), SWITCH).makespan_s == 0


# ---- What is refused


def test_an_unknown_network_and_an_unknown_kind_of_collective():
    assert "unknown network model 'alpha-beta'; did you mean 'alpha_beta'?" in refused(
        ConfigError, program(reduce), network="alpha-beta"
    )
    assert "unknown collective 'allreduce'; did you mean 'all_reduce'?" in refused(
        ConfigError, program(reduce), algorithms={"allreduce": "ring"}
    )


def test_ranks_that_differ():
    said = refused(ConfigError, program(reduce, ranks=4))
    assert "the workload has 4 ranks and topology 'switch' has 2" in said


def test_a_kernel_without_a_time():
    call = kernel("gemm", dtype="bf16", M=2, N=2, K=2)
    said = refused(GraphError, program(lambda graph: graph.compute(call, name="first")))
    assert said == "rank 0, node 0 ('first') is a kernel with no time; name the device that it runs on (--device)"


def test_a_rank_outside_the_group_that_it_calls():
    said = refused(GraphError, program(reduce, groups=(GroupFamily("half", ((0,),)),)))
    assert "rank 1, node 0 ('reduce'): the rank is in no group 'half'" in said


def test_a_collective_that_a_member_never_calls():
    calls = program(lambda graph: reduce(graph, after=[work(graph, 1e-6)]), lambda graph: work(graph, 1e-6))
    said = refused(SimulationError, calls)
    assert "rank 0, node 1 ('reduce') waits in all_reduce of 2500000 B for rank 1, which never calls it" in said
    assert "all members of a group must call the same collectives in the same order" in said


def test_a_collective_that_several_members_never_call():
    mesh = Mesh(tensor=2, data=2)
    calls = program(
        lambda graph: reduce(graph, name="lonely"), lambda graph: work(graph, 1e-6), ranks=4, roles=[0, 1, 1, 1],
        groups=(mesh.groups("world"),),
    )  # fmt: skip
    said = refused(SimulationError, calls, GRID, unfold=True)
    assert "rank 0, node 0 ('lonely') waits in all_reduce of 2500000 B for rank 1, 2, 3, which never calls it" in said


@pytest.mark.parametrize(
    ("other", "message_part"),
    [
        ({"size_bytes": 5}, "differ in bytes: all_reduce of 2500000 B against all_reduce of 5 B"),
        ({"kind": "all_gather"}, "differ in collective: all_reduce of 2500000 B against all_gather of 2500000 B"),
        ({"pieces": 2}, "differ in pieces"),
    ],
)
def test_members_that_do_not_agree(other, message_part):
    said = refused(SimulationError, program(reduce, lambda graph: reduce(graph, name="mine", **other)))
    assert "rank 0, node 0 ('reduce') meets rank 1, node 0 ('mine') on the same group" in said
    assert message_part in said


def test_two_groups_in_opposite_orders():
    """Ranks 0 and 1 share two groups; one calls x then y, the other y then x, each on one stream."""
    pair = GroupFamily("x", ((0, 1),)), GroupFamily("y", ((0, 1),))

    def ordered(*groups):
        return lambda graph: [reduce(graph, group, name=f"reduce_{'xy'[group]}") for group in groups]

    said = refused(SimulationError, program(ordered(0, 1), ordered(1, 0), groups=pair))
    assert "the program cannot finish" in said
    assert "rank 0, node 0 ('reduce_x') waits in all_reduce of 2500000 B for rank 1, which has not reached it" in said
    assert "rank 1, node 0 ('reduce_y') waits in all_reduce of 2500000 B for rank 0, which has not reached it" in said


def test_many_reasons_are_cut_short():
    def caller(graph):
        for stream in range(5):
            reduce(graph, stream, stream=stream)

    groups = tuple(GroupFamily(f"g{number}", ((0, 1),)) for number in range(5))
    said = refused(SimulationError, program(caller, lambda graph: work(graph, 1e-6), groups=groups))
    assert said.count("waits in") == 3
    assert "(and 2 more like it)" in said


@pytest.mark.parametrize(
    ("sends", "receives", "node"),
    [
        (1, 0, "rank 0, node 0 ('send')"),
        (0, 1, "rank 1, node 0 ('recv')"),
        (1, 2, "rank 1, node 1 ('recv')"),
        (3, 2, "rank 0, node 2 ('send')"),
    ],
)
def test_messages_without_another_end(sends, receives, node):
    def sender(graph):
        for _ in range(sends):
            message(graph, NodeKind.SEND, 1, tag=4)

    def receiver(graph):
        for _ in range(receives):
            message(graph, NodeKind.RECV, 0, tag=4)

    said = refused(SimulationError, program(sender, receiver))
    assert said == (
        f"{node}: rank 0 sends {sends} messages to rank 1 with tag 4, which receives {receives}; "
        f"every send needs its receive"
    )


def test_tags_are_told_apart():
    def sender(graph):
        message(graph, NodeKind.SEND, 1, tag=1)

    def receiver(graph):
        message(graph, NodeKind.RECV, 0, tag=2)

    assert "with tag 1, which receives 0" in refused(SimulationError, program(sender, receiver))


def test_a_message_to_nobody():
    said = refused(GraphError, program(lambda graph: message(graph, NodeKind.SEND, 9), lambda graph: None))
    assert said == "rank 0, node 0 ('send') names rank 9, which the job does not have"


def test_messages_that_wait_for_each_other():
    def of(peer):
        def write(graph):
            message(graph, NodeKind.SEND, peer, after=[message(graph, NodeKind.RECV, peer)])

        return write

    said = refused(SimulationError, program(of(1), of(0)))
    assert "rank 0, node 0 ('recv') waits for a message that depends on it" in said


# ---- Laws


@given(st.one_of(jobs(), pipelines(), contests()))
def test_the_same_input_gives_the_same_bits_and_laws_hold(job):
    given_program, topology = job
    first, second = simulate(given_program, topology), simulate(given_program, topology)
    for line, again in zip(first.timelines, second.timelines, strict=True):
        for column in ("start_s", "end_s", "duration_s", "occupancy_s", "cause"):
            assert getattr(line, column).tobytes() == getattr(again, column).tobytes()
        assert line.algorithm == again.algorithm
        assert (line.occupancy_s <= line.duration_s).all()
        for node in range(len(line.graph)):
            assert all(line.start_s[node] >= line.end_s[before] for before in line.graph.dependencies_of(node))
    assert sorted(rank for line in first.timelines for rank in line.ranks) == list(range(given_program.num_ranks))
    assert first.offsets.tolist() == [0, *np.cumsum([len(line.graph) for line in first.timelines])]
    for number, line in enumerate(first.timelines):
        for node in range(len(line.graph)):
            assert first.locate(int(first.offsets[number]) + node) == (number, node)


@given(jobs(max_roles=3))
def test_all_members_of_a_collective_run_at_the_same_time(job):
    given_program, topology = job
    result = simulate(given_program, topology, unfold=True)
    met = {}
    for line in result.timelines:
        (rank,) = line.ranks
        count = {}
        for node in np.flatnonzero(line.graph.kind == NodeKind.COLLECTIVE):
            family = int(line.graph.group[node])
            key = (family, given_program.groups[family].of(rank), count.setdefault(family, 0))
            count[family] += 1
            met.setdefault(key, []).append((line.start_s[node], line.end_s[node]))
    for (_, members, _), times in met.items():
        assert len(times) == len(members)
        assert len(set(times)) == 1
