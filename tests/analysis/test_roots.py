"""Who is the root of a wait: the rank that made the last one late, through any chain, and all idle time is divided."""

from collections import Counter
from dataclasses import replace
from math import fsum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import contests, exchanges, jobs, pipelines

import scaleout
from scaleout import SimulationOptions
from scaleout.analysis.breakdown import covered
from scaleout.analysis.roots import Roots, _before, _users_and_streams
from scaleout.analysis.waits import blamed
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import SimulationError
from scaleout.program.graph import NONE, GraphBuilder, NodeKind, TimeSource
from scaleout.program.program import GroupFamily, Program
from scaleout.simulation.run import simulate


def idle_s(result):
    """Time in which each class neither computes nor communicates."""
    return [result.makespan_s - covered(line.start_s, line.end_s) for line in result.timelines]


def by_root(result):
    """Idle time of all ranks by the ranks that are its root."""
    sums = Counter()
    for (number, root, _), seconds in blamed(result, Roots(result)).items():
        sums[result.timelines[root].ranks] += seconds * len(result.timelines[number].ranks)
    return sums


@st.composite
def at_once(draw):
    """Any job, or one whose messages take no time and whose kernels take a multiple of 4 us: much is at once."""
    program, topology = draw(jobs(max_roles=3, streams=3, priorities=2) | pipelines() | exchanges() | contests())
    if draw(st.booleans()):
        return program, topology
    dimensions = [each if each.fabric else replace(each, latency_s=0.0) for each in topology.dimensions]
    graphs = [
        graph.with_columns(duration_s=np.floor(graph.duration_s / 4e-6) * 4e-6, bytes=graph.bytes * 0)
        for graph in program.graphs
    ]
    return replace(program, graphs=tuple(graphs)), replace(topology, dimensions=tuple(dimensions), startup_s=0.0)


@given(at_once())
def test_all_idle_time_is_somebody_s(job):
    """And each wait is told after those that it comes of: one that is not raises `KeyError`."""
    try:
        result = simulate(*job)
    except SimulationError:
        return  # roles that wait for one another for ever
    sums = Counter()
    for (number, _, _), seconds in blamed(result, Roots(result)).items():
        assert seconds > 0
        sums[number] += seconds
    expected = idle_s(result)
    assert [sums[number] for number in range(len(expected))] == pytest.approx(expected, rel=1e-9, abs=1e-12)


sizes = st.sampled_from([1 << 10, 1 << 20, 1 << 24])


@st.composite
def layered(draw):
    """A tensor and data parallel job on one switch: kernels, collectives that the next one needs, gradients beside."""
    tensor, data = draw(st.sampled_from([(2, 2), (4, 2), (2, 4), (1, 4), (4, 1)]))
    ranks = np.arange(tensor * data).reshape(data, tensor)
    groups = (
        GroupFamily("tensor", tuple(map(tuple, ranks.tolist()))),
        GroupFamily("data", tuple(map(tuple, ranks.T.tolist()))),
    )
    graph, last = GraphBuilder(), ()
    gradients, stream = [], draw(st.sampled_from([0, 2]))
    for _ in range(draw(st.integers(1, 4))):
        work_s = draw(st.sampled_from([1e-4, 2e-4, 5e-4]))
        last = (graph.add(last, name="kernel", duration_s=work_s, time_source=TimeSource.GIVEN),)
        if draw(st.booleans()):
            last = (
                graph.collective("all_reduce", draw(sizes), group=0, after=last, stream=draw(st.sampled_from([0, 1]))),
            )
        if draw(st.booleans()):
            gradients.append(graph.collective("all_reduce", draw(sizes), group=1, after=last, stream=stream))
    graph.add((*last, *gradients), name="optimizer", duration_s=1e-4, time_source=TimeSource.GIVEN)
    return graph.build(), groups, load_topology(f"switch({tensor * data},nvlink4)")


@given(layered(), st.data())
def test_idle_time_beyond_the_healthy_job_s_is_the_slow_rank_s(job, data):
    """In a job whose ranks are alike one is slowed down.

    Not all of it: what frees a link at the very moment at which a collective is complete counts as what it waited for.
    """
    graph, groups, topology = job
    slow = data.draw(st.integers(0, topology.num_ranks - 1))
    slowed = graph.with_columns(duration_s=graph.duration_s * data.draw(st.sampled_from([1.1, 1.5, 3.0])))
    is_slow = (np.arange(topology.num_ranks) == slow).astype(np.int64)
    before = simulate(Program("healthy", (graph,), is_slow * 0, groups), topology)
    after = simulate(Program("slowed", (graph, slowed), is_slow, groups), topology)
    more_s = sum(by_root(after).values()) - sum(by_root(before).values())
    assert by_root(after)[slow,] >= 0.9 * more_s - 1e-12


def test_blame_goes_on_through_a_chain():
    """Rank 3 waits for 2, which waited for 1, which waited for 0; 2 itself works longer than 3, by less."""
    pairs = GroupFamily("pairs", ((0, 1), (2, 3))), GroupFamily("middle", ((1, 2), (0, 3)))
    built = []
    for first_s, second_s in ((10.0, 0.0), (1.0, 0.0), (1.0, 2.0), (1.0, 0.0)):
        graph = GraphBuilder()
        last = graph.add((), name="kernel", duration_s=first_s, time_source=TimeSource.GIVEN)
        last = graph.collective("all_reduce", 8, group=0, after=[last])
        last = graph.collective("all_reduce", 8, group=1, after=[last])
        last = graph.add([last], name="kernel", duration_s=second_s, time_source=TimeSource.GIVEN)
        graph.collective("all_reduce", 8, group=0, after=[last])
        built.append(graph.build())
    program = Program("chain", tuple(built), np.arange(4), pairs)
    result = simulate(program, load_topology("switch(4,nvlink4)"))
    of = {
        (number, root): round(seconds, 3)
        for (number, root, _), seconds in blamed(result, Roots(result)).items()
        if seconds > 0.001
    }
    assert of == {(1, 0): 9.0, (2, 0): 9.0, (3, 0): 9.0, (3, 2): 2.0, (0, 2): 2.0, (1, 2): 2.0}


def test_of_two_that_come_at_the_same_time_the_one_that_did_not_wait_is_the_root():
    """Rank 0 waits for 1, who worked, and for 2, who waited for 3 until the same moment; in either order of ranks."""
    for worked, waited in ((1, 2), (2, 1)):
        families = GroupFamily("pair", ((waited, 3), (0, worked))), GroupFamily("three", ((0, 1, 2), (3,)))
        built = {}
        for rank, seconds in ((0, 1.0), (worked, 10.0), (waited, 1.0), (3, 10.0)):
            graph = GraphBuilder()
            last = graph.add((), name="kernel", duration_s=seconds, time_source=TimeSource.GIVEN)
            if rank in (waited, 3):
                last = graph.collective("all_reduce", 0, group=0, after=[last])
            graph.collective("all_reduce", 8, group=1, after=[last])
            built[rank] = graph.build()
        program = Program("tie", tuple(built[rank] for rank in range(4)), np.arange(4), families)
        result = simulate(program, load_topology("switch(4,nvlink4)"))
        found = {
            (number, root) for (number, root, _), seconds in blamed(result, Roots(result)).items() if seconds > 0.001
        }
        assert found == {(0, worked), (waited, 3)}


def test_puts_to_other_receivers_and_what_happens_while_one_is_in_flight_make_nobody_late():
    """A random job, whose waits came of later ones: puts lay in one row, and counted until their last byte arrived."""
    keys = {
        "tensor_parallel": 1, "pipeline_parallel": 2, "data_parallel": 4, "expert_parallel": 1, "sequence": 1024,
        "microbatch": 1, "batch_per_replica": 5, "layers": 2, "zero": 2, "sequence_parallel": False,
        "capacity_factor": 0.5,
    }  # fmt: skip
    options = SimulationOptions(host="eager", network="link", clocks="unthrottled", contention=True)
    answer = scaleout.run(
        "mixtral-8x7b",
        changes=keys,
        topology="dgx-b200-1",
        device="b200",
        network_changes={"slow": {6: 2.0}},
        options=options,
        schedules=["fused-oblivious"],
    )
    (outcome,) = answer.outcomes
    for line in outcome.result.timelines:
        before, _ = _before(line, *_users_and_streams(line.graph))
        at = np.flatnonzero((line.graph.kind == NodeKind.SEND) & (before != NONE))
        held_s = np.minimum(line.occupancy_s, line.duration_s)[before[at]]
        assert (line.start_s[before[at]] + held_s <= line.start_s[at] + 1e-12).all()
    assert fsum(outcome.waits.by_cause_s.values()) == pytest.approx(outcome.breakdown.idle_s, rel=1e-6)


def test_waits_at_one_moment_that_come_of_one_another_in_a_circle_are_told():
    """Rank 0's kernels of no length on stream 1 begin at one moment in the other order than the graph's."""
    families = GroupFamily("apart", ((0, 2), (1, 3))), GroupFamily("pairs", ((0, 1), (2, 3)))

    def kernel(graph, after, seconds, stream=0):
        return graph.add(after, name="kernel", duration_s=seconds, time_source=TimeSource.GIVEN, stream=stream)

    first = GraphBuilder()
    worked = kernel(first, (), 1.0)
    waited = first.collective("all_reduce", 0, group=1, stream=2)
    last = kernel(first, [waited], 0.0, stream=1)
    begun = kernel(first, [worked], 0.0, stream=1)
    kernel(first, [last, first.collective("all_reduce", 0, group=0, after=[begun], stream=3)], 0.5)
    built = [first.build()]
    for groups in ((0, 1), (0, 1), (1, 0)):
        graph = GraphBuilder()
        one = graph.collective("all_reduce", 0, group=groups[0], stream=3)
        graph.collective("all_reduce", 0, group=groups[1], after=[kernel(graph, [one], 0.0)], stream=2)
        built.append(graph.build())
    topology = load_topology("switch(2,nvlink4) x switch(2,nvlink4)")
    dimensions = tuple(replace(each, latency_s=0.0) for each in topology.dimensions)
    result = simulate(Program("circle", tuple(built), np.arange(4), families), replace(topology, dimensions=dimensions))
    sums = Counter()
    for (number, _, _), seconds in blamed(result, Roots(result)).items():
        sums[number] += seconds
    assert [sums[number] for number in range(4)] == pytest.approx([0.0, 1.5, 1.5, 1.5])


def test_what_a_sender_does_while_its_message_is_in_flight_makes_nobody_late():
    """Rank 1 waits for 0, whose message is long: meanwhile 0 waits for 2, and works."""
    built = []
    for rank in range(3):
        graph = GraphBuilder()
        if rank == 0:
            worked = graph.add((), name="kernel", duration_s=1.0, time_source=TimeSource.GIVEN)
            graph.add([worked], name="send", kind=NodeKind.SEND, peer=1, bytes=1 << 36)
            got = graph.add((), name="receive", kind=NodeKind.RECV, peer=2, bytes=8)
            graph.add([got, worked], name="kernel", duration_s=0.01, time_source=TimeSource.GIVEN)
        elif rank == 1:
            graph.add((), name="receive", kind=NodeKind.RECV, peer=0, bytes=1 << 36)
        else:
            late = graph.add((), name="kernel", duration_s=1.05, time_source=TimeSource.GIVEN)
            graph.add([late], name="send", kind=NodeKind.SEND, peer=0, bytes=8)
        built.append(graph.build())
    result = simulate(Program("in flight", tuple(built), np.arange(3), ()), load_topology("switch(3,nvlink4)"))
    assert blamed(result, Roots(result)) == {
        (1, 0, 1): pytest.approx(result.makespan_s),
        (2, 0, 2): pytest.approx(result.makespan_s - result.timelines[2].end_s.max()),
    }
