"""Simulation: small programs worked by hand, what cannot finish is explained, the same input gives the same bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import contests, jobs, pipelines

from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import Dimension, Topology
from scaleout.errors import ConfigError, GraphError, SimulationError
from scaleout.network.alpha_beta.cost import collective_cost
from scaleout.program.graph import COLLECTIVES, GraphBuilder, NodeKind
from scaleout.program.mesh import Mesh
from scaleout.program.operations import TimeSource, kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import SCHEDULES, apply_schedule
from scaleout.simulation.options import NETWORKS
from scaleout.simulation.run import simulate

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


def test_a_dimension_is_held_for_as_long_as_its_bytes_need_there():
    """A ring over 2 x 2 ranks leaves by the outer ports with half its messages, 100 times slower here."""
    slow = Topology("slow", (GRID.dimensions[0], Dimension("switch", 2, BANDWIDTH / 100, ALPHA)))
    cost = collective_cost("all_reduce", N, place(slow, range(4)), "ring")
    assert cost.shares == pytest.approx((0.02, 1.0))
    result = simulate(grid_program(("world", "tensor")), slow, algorithms={"all_reduce": "ring"})
    (line,) = result.timelines
    assert line.start_s.tolist() == pytest.approx([0, 0.02 * cost.serialization_s])
    assert result.makespan_s == pytest.approx(cost.time_s)  # while the world's is still on the way


def test_slices_of_a_transfer_pay_its_latency_once():
    """4 slices of a transfer of N: each on the wire for a quarter, and the latency behind it in flight."""

    def write(graph):
        last = ()
        for _ in range(4):
            last = (reduce(graph, size_bytes=N // 4, slices=4, stream=1),)
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
        third = message(graph, NodeKind.RECV, 0, tag=8, size_bytes=0)
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
    assert result.timelines[0].algorithm == ["ring"]
    said = refused(ConfigError, program(reduce), algorithms={"all_reduce": "rings"})
    assert "unknown collective algorithm 'rings'; did you mean 'ring'?" in said


def test_an_empty_program_takes_no_time():
    assert simulate(program(lambda graph: None), SWITCH).makespan_s == 0


# ---- Under the link model


RING = Topology("ring", (Dimension("ring", 4, BANDWIDTH, ALPHA),))
PORTS = Topology("ports", (Dimension("switch", 4, BANDWIDTH, ALPHA),))
WIRE = N / BANDWIDTH


def on_links(what, topology=SWITCH, **options):
    return simulate(what, topology, network="link", **options)


def two_at_once(first, second):
    def write(graph):
        reduce(graph, kind=first, stream=1)
        reduce(graph, kind=second, stream=2)

    return program(write, ranks=4)


def test_one_collective_takes_as_long_as_under_alpha_beta():
    for topology, ranks in ((SWITCH, 2), (RING, 4), (PORTS, 4)):
        for kind in ("all_reduce", "all_to_all", "broadcast", "barrier"):
            given_program = program(lambda graph, kind=kind: reduce(graph, kind=kind), ranks=ranks)
            expected = simulate(given_program, topology).makespan_s
            assert on_links(given_program, topology).makespan_s == pytest.approx(expected, rel=1e-12)


def test_two_all_reduces_on_a_ring_get_half_of_it_each():
    """Both start at once; all of the 6 steps of both take twice as long on the wire, and the latency once."""
    result = on_links(two_at_once("all_reduce", "all_reduce"), RING, algorithms={"all_reduce": "ring"})
    (line,) = result.timelines
    assert line.start_s.tolist() == [0, 0]
    assert line.end_s.tolist() == pytest.approx([6 * (ALPHA + 2 * WIRE / 4)] * 2, rel=1e-12)
    assert line.duration_s.tolist() == line.occupancy_s.tolist() == line.end_s.tolist()
    (use,) = result.busiest_links
    assert (use.link, use.alike, use.size_bytes) == ("0-1", 4, pytest.approx(2 * 6 / 4 * N))
    assert use.utilisation == pytest.approx(3 * WIRE / result.makespan_s, rel=1e-12)


def test_an_all_to_all_and_an_all_reduce_in_flight_together():
    """On a switch both send 3 shards out of each port, and share until both have; then the second step is alone."""
    result = on_links(two_at_once("all_to_all", "all_reduce"), PORTS, algorithms={"all_reduce": "direct"})
    step = 3 / 4 * WIRE
    expected = [ALPHA + 2 * step, 2 * ALPHA + 3 * step]
    assert result.timelines[0].end_s.tolist() == pytest.approx(expected, rel=1e-12)


def test_one_that_starts_later_slows_the_first_down_from_then_on():
    """The second starts when half of the first has left; the other half takes as long as a whole."""

    def write(graph):
        reduce(graph, kind="all_to_all", stream=1)
        reduce(graph, kind="all_to_all", stream=2, after=[work(graph, 3 / 8 * WIRE)])

    (line,) = on_links(program(write, ranks=4), PORTS, algorithms={"all_to_all": "direct"}).timelines
    assert line.end_s[0] == pytest.approx(ALPHA + 9 / 8 * WIRE, rel=1e-12)
    assert line.end_s[2] == pytest.approx(ALPHA + 3 / 2 * WIRE, rel=1e-12)


def test_groups_on_different_dimensions_do_not_disturb_each_other():
    both = on_links(grid_program(["tensor", "data"]), GRID)
    assert both.makespan_s == pytest.approx(REDUCE, rel=1e-12)
    assert len(both.timelines) == 1


def test_slices_follow_each_other_and_pay_the_latency_once():
    """Four slices of a quarter each, on one stream: like alpha-beta."""

    def write(graph):
        for _ in range(4):
            reduce(graph, kind="all_to_all", size_bytes=N // 4, slices=4)

    sliced = program(write, ranks=4)
    result = on_links(sliced, PORTS, algorithms={"all_to_all": "direct"})
    assert result.makespan_s == pytest.approx(3 / 4 * WIRE + ALPHA, rel=1e-12)
    assert result.timelines[0].start_s.tolist() == pytest.approx([k * 3 / 16 * WIRE for k in range(4)], rel=1e-12)
    expected = simulate(sliced, PORTS, algorithms={"all_to_all": "direct"})
    assert result.timelines[0].end_s == pytest.approx(expected.timelines[0].end_s, rel=1e-12)


def test_two_messages_into_one_port_share_it():
    def sender(graph):
        message(graph, NodeKind.SEND, 2)

    def receiver(graph):
        message(graph, NodeKind.RECV, 0)
        message(graph, NodeKind.RECV, 1)

    roles = [0, 0, 1, 2]
    result = on_links(program(sender, receiver, lambda graph: None, ranks=4, roles=roles), PORTS)
    assert result.makespan_s == pytest.approx(ALPHA + 2 * WIRE, rel=1e-12)
    assert of_rank(result, 0).occupancy_s.tolist() == pytest.approx([2 * WIRE], rel=1e-12)


def test_ranks_on_a_line_are_alike_if_their_messages_cross_alike_links():
    """Pairs of neighbours, and groups of every second rank: alike under alpha-beta, and on the links of a line of 4.

    There each rank sends to its neighbour over a link that carries one message more, and on over the middle. On a line
    of 6 the pair in the middle has a busier link than those at the ends.
    """

    def write(graph):
        reduce(graph, 0, stream=1)
        reduce(graph, 1, stream=2)

    for size, expected in ((4, [(0, 1, 2, 3)]), (6, [(0, 1, 4, 5), (2, 3)])):
        line, mesh = Topology("line", (Dimension("mesh", size, BANDWIDTH, ALPHA),)), Mesh(tensor=2, data=size // 2)
        both = program(write, ranks=size, groups=(mesh.groups("tensor"), mesh.groups("data")))
        assert len(simulate(both, line).timelines) == 1
        assert [line.ranks for line in on_links(both, line).timelines] == expected


def test_who_never_comes_is_named_under_the_link_model_too():
    calls = program(reduce, lambda graph: work(graph, 1e-6))
    assert "for rank 1, which never calls it" in refused(SimulationError, calls, network="link")


@given(
    st.one_of(contests(), jobs(max_roles=3, streams=3, priorities=3), pipelines()),
    st.sampled_from(sorted(name for name, each in SCHEDULES.items() if not each.decides and not each.needs)),
)
@settings(max_examples=200)
def test_folded_and_unfolded_are_equal_on_links(job, schedule):
    """Ranks whose links are alike are one, and their messages one flow; nothing changes but for rounding.

    A transfer that is alone on its links ends at its start plus what it takes; two groups may meet when unfolded.
    """
    given_program, topology = job

    def times(unfold):
        try:
            result = on_links(apply_schedule(given_program, schedule), topology, unfold=unfold)
        except SimulationError:
            return None
        lines = [of_rank(result, rank) for rank in range(result.program.num_ranks)]
        columns = np.concatenate([np.stack((line.start_s, line.end_s, line.occupancy_s)).ravel() for line in lines])
        used = sum(use.utilisation > 0 for use in result.busiest_links) > 0
        return columns, [line.algorithm for line in lines], used

    folded, unfolded = times(False), times(True)
    assert (folded is None) == (unfolded is None)
    if folded is not None:
        assert folded[0] == pytest.approx(unfolded[0], rel=1e-12, abs=0)
        assert folded[1:] == unfolded[1:]


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
    assert "the job has 4 ranks and topology 'switch' has 2" in said


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
        ({"slices": 2}, "differ in slices"),
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
    assert "rank 0, node 0 ('recv') waits for a message from rank 1" in said
    assert "rank 1, node 0 ('recv') waits for a message from rank 0" in said
    assert "send before it receives" in said


def test_receives_end_with_their_own_sends_whatever_the_order_of_the_ranks():
    """Rank 1 sends first to rank 2, then to rank 0: 40 ns each on its one port, and 1 us on the way."""

    def middle(graph):
        message(graph, NodeKind.SEND, 2, size_bytes=1000)
        message(graph, NodeKind.SEND, 0, size_bytes=1000)

    def end(graph):
        message(graph, NodeKind.RECV, 1, size_bytes=1000)

    topology = Topology("switch", (Dimension("switch", 3, BANDWIDTH, ALPHA),))
    lines = simulate(program(end, middle, end, ranks=3), topology).timelines
    assert [[round(end_s * 1e9) for end_s in line.end_s] for line in lines] == [[1080], [1040, 1080], [1040]]


def test_both_ends_of_a_message_have_one_size():
    said = refused(
        SimulationError,
        program(
            lambda graph: message(graph, NodeKind.SEND, 1, size_bytes=1000),
            lambda graph: message(graph, NodeKind.RECV, 0, size_bytes=5),
        ),
    )
    assert "sends 1000 B and rank 1, node 0 ('recv') receives 5 B" in said


# ---- Laws


@given(st.one_of(jobs(), pipelines(), contests()), st.sampled_from(NETWORKS))
def test_the_same_input_gives_the_same_bits_and_laws_hold(job, network):
    given_program, topology = job
    first, second = (simulate(given_program, topology, network=network) for _ in range(2))
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


@given(jobs(max_roles=3), st.sampled_from(NETWORKS))
def test_all_members_of_a_collective_run_at_the_same_time(job, network):
    given_program, topology = job
    result = simulate(given_program, topology, network=network, unfold=True)
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
