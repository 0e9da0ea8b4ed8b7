"""Schedules: what every pass and composition conserves, bounds that none may break, and fused kernels by hand."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import jobs, longest_chain_s, pipelines

from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import Dimension, Topology
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta.lower_bound import lower_bound_s
from scaleout.program.graph import COLLECTIVES, GraphBuilder, NodeKind
from scaleout.program.operations import TimeSource, kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import SCHEDULES, apply_schedule, passes_of
from scaleout.schedule.fusion.passes import fuse
from scaleout.schedule.overlap import in_program_order
from scaleout.simulation.run import simulate
from scaleout.testing import check_schedule
from scaleout.testing.schedules import columns_of, conserves, kernel_s

PLAIN = [name for name, each in SCHEDULES.items() if not each.decides and not each.needs]
"""Passes that take kernels' times as they are; those that need a device have laws of their own."""


def composes(name):
    """Whether the passes of a schedule do not contradict each other."""
    try:
        return bool(passes_of(name))
    except ConfigError:
        return False


COMPOSITIONS = [*PLAIN, *filter(composes, (f"{first}+{second}" for first in PLAIN for second in PLAIN))]
each_composition = pytest.mark.parametrize("schedule", COMPOSITIONS)
each_kind = pytest.mark.parametrize("schedule", [*PLAIN, "overlap+fused"])


# ---- Laws


@each_composition
@given(st.one_of(jobs(max_roles=2), pipelines()))
@settings(max_examples=25)
def test_work_is_conserved_and_the_input_untouched(schedule, job):
    conserves(schedule, job[0])


@pytest.mark.parametrize(
    "schedule", [name for name, each in SCHEDULES.items() if not each.needs and name != "recorded"]
)
def test_schedules_keep_the_contract_that_is_offered(schedule):
    check_schedule(schedule)


def link_bounds(program, topology, rank):
    """Seconds for which each dimension is needed, at the least, by the collectives of one rank."""
    graph = program.graphs[program.role_of_rank[rank]]
    needed = np.zeros(len(topology.dimensions))
    for node in np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist():
        members = program.groups[graph.group[node]].of(rank)
        kind = COLLECTIVES[graph.collective[node]]
        if kind != "barrier":
            along = np.ptp(topology.coordinates(members), axis=0) > 0
            needed[along] += lower_bound_s(kind, float(graph.bytes[node]), place(topology, members))
    return needed


@each_kind
@given(jobs())
@settings(max_examples=60)
def test_a_makespan_is_within_its_bounds_and_always_the_same(schedule, job):
    program, topology = job
    scheduled = apply_schedule(program, schedule)
    result = simulate(scheduled, topology)
    assert result.makespan_s == simulate(apply_schedule(program, schedule), topology).makespan_s
    makespan_s = result.makespan_s * (1 + 1e-12)
    for line in result.timelines:
        assert makespan_s >= longest_chain_s(line)
        assert makespan_s >= kernel_s(line.graph)
        for rank in (line.ranks[0], line.ranks[-1]):
            assert (makespan_s >= link_bounds(program, topology, rank) * (1 - 1e-9)).all()
    # Something runs at every moment.
    assert result.makespan_s <= sum(line.duration_s.sum() for line in result.timelines) * (1 + 1e-12)


@given(jobs())
def test_the_baseline_runs_one_thing_after_another(job):
    program, topology = job
    result = simulate(apply_schedule(program, "baseline"), topology)
    if len(result.timelines) == 1:
        (line,) = result.timelines
        assert result.makespan_s == pytest.approx(line.duration_s.sum(), rel=1e-12, abs=1e-20)
        assert (np.diff(line.start_s) >= 0).all()


def test_two_rewrites_of_the_same_operators_are_refused():
    program = Program("empty", (GraphBuilder().build(),), np.zeros(2, np.int64), ())
    with pytest.raises(ConfigError, match="fused and track-and-trigger:dedicated replace the same operators"):
        apply_schedule(program, "overlap+fused+track-and-trigger:dedicated")


def test_an_unknown_schedule_names_the_nearest():
    program = Program("empty", (GraphBuilder().build(),), np.zeros(2, np.int64), ())
    with pytest.raises(ConfigError) as caught:
        apply_schedule(program, "overlap+fuse")
    assert (
        str(caught.value)
        == "unknown schedule 'fuse'; did you mean 'fused' or 'fused-oblivious'? (join several with '+')"
    )


# ---- Worked by hand

P = 4
BANDWIDTH = 25e9
SWITCH = Topology("switch", (Dimension("switch", P, BANDWIDTH, 0.0),))
WORLD = (GroupFamily("world", (tuple(range(P)),)),)
POOL = kernel("embedding_bag_fwd", dtype="fp32", batch=7, tables=3, dim=5, pooling=9, rows=100)
UPDATE = kernel("embedding_sgd_sparse", dtype="fp32", batch=7, tables=3, dim=5, pooling=9)
GEMM = kernel("gemm", dtype="bf16", M=64, N=48, K=40)
ADD = kernel("add", dtype="bf16", elements=1000)
ALGORITHMS = {"all_to_all": "direct", "all_reduce": "ring"}


def latent(latency_s):
    return Topology("switch", (Dimension("switch", P, BANDWIDTH, latency_s),))


def timed(graph, call, seconds, after=()):
    return graph.add(
        after, name=call.op, kernel=graph.kernel_index(call), flops=call.flops, bytes=call.bytes, duration_s=seconds,
        time_source=TimeSource.GIVEN,
    )  # fmt: skip


def program_of(write):
    graph = GraphBuilder()
    write(graph)
    return Program("by hand", (graph.build(),), np.zeros(P, np.int64), WORLD)


def bytes_for(link_s, kind):
    """Payload that occupies a port of the switch for some time: 3/4 of an all-to-all, 2 * 3/4 of an all-reduce."""
    return round(link_s * BANDWIDTH * P / (P - 1) / (2 if kind == "all_reduce" else 1))


def produced(call, kind, compute_s, link_s):
    def write(graph):
        made = timed(graph, call, compute_s)
        graph.collective(kind, bytes_for(link_s, kind), group=0, after=[made])

    return program_of(write)


def fused_s(program, slices, topology=SWITCH):
    return simulate(fuse(program, slices=slices), topology, algorithms=ALGORITHMS).makespan_s


def scheduled_s(program, schedule):
    return simulate(apply_schedule(program, schedule), SWITCH, algorithms=ALGORITHMS).makespan_s


C, W = 40e-6, 24e-6  # a kernel of 40 us and 24 us on the link: payloads are whole bytes at these


def test_one_slice_overlaps_what_is_kept_and_nothing_else():
    """All-to-all of 4: 30 us of the kernel make what is sent, then 10 us what stays, under 24 us on the link."""
    assert fused_s(produced(POOL, "all_to_all", C, W), 1) == pytest.approx(30e-6 + 24e-6, rel=1e-9)
    # An all-reduce keeps nothing: one slice is the baseline.
    assert fused_s(produced(GEMM, "all_reduce", C, W), 1) == pytest.approx(40e-6 + 24e-6, rel=1e-9)


@pytest.mark.parametrize("slices", [1, 2, 8, 32])
@pytest.mark.parametrize(("compute_s", "link_s"), [(40e-6, 24e-6), (24e-6, 96e-6), (48e-6, 36e-6), (1e-6, 60e-6)])
@pytest.mark.parametrize("latency_s", [0.0, 2e-6])
def test_a_producer_and_its_collective_are_a_flow_of_equal_slices(compute_s, link_s, slices, latency_s):
    """Slices pass the kernel for a = 3/4 c / s each, then the link for b = w / s: a + (s - 1) max(a, b) + b, and the
    latency of the last; but never before the kernel, with the part that it keeps, is done.
    """
    a, b = 3 / 4 * compute_s / slices, link_s / slices
    expected = max(compute_s, a + (slices - 1) * max(a, b) + b + latency_s)
    found = fused_s(produced(POOL, "all_to_all", compute_s, link_s), slices, latent(latency_s))
    assert found == pytest.approx(expected, rel=1e-4)
    if latency_s == 0:  # about the longer of the two, and a slice
        assert max(compute_s, link_s) * (1 - 1e-4) <= found <= (max(compute_s, link_s) + max(a, b)) * (1 + 1e-4)


@pytest.mark.parametrize("slices", [1, 2, 8, 32])
@pytest.mark.parametrize(("compute_s", "link_s"), [(40e-6, 24e-6), (24e-6, 96e-6), (1e-6, 60e-6)])
def test_a_consumer_starts_with_what_it_has_and_takes_slices_as_they_arrive(compute_s, link_s, slices):
    program = program_of(
        lambda graph: timed(
            graph, UPDATE, compute_s, [graph.collective("all_to_all", bytes_for(link_s, "all_to_all"), group=0)]
        )
    )
    done = compute_s / P  # the kept part needs nobody
    for index in range(slices):
        done = max(done, (index + 1) * link_s / slices) + (1 - 1 / P) * compute_s / slices
    assert fused_s(program, slices) == pytest.approx(done, rel=1e-4)


def test_slices_that_are_sent_come_before_the_one_that_stays():
    graph = fuse(produced(POOL, "all_to_all", C, W), slices=3).graphs[0]
    kernels = [node for node in range(len(graph)) if graph.kind[node] == NodeKind.COMPUTE]
    assert [graph.names[node].removeprefix("embedding_bag_fwd_") for node in kernels] == [
        "slice_0", "slice_1", "slice_2", "kept", "poll",
    ]  # fmt: skip
    assert graph.duration_s[kernels].tolist() == pytest.approx([C / 4, C / 4, C / 4, C / 4, 0])
    for before, after in pairwise(kernels):
        assert before in graph.dependencies_of(after)
    sent = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)
    assert graph.slices[sent].tolist() == [3, 3, 3]
    assert [graph.dependencies_of(node).tolist() for node in sent] == [[kernels[0]], [kernels[1]], [kernels[2]]]
    assert set(sent.tolist()) <= set(graph.dependencies_of(kernels[-1]).tolist())


@pytest.mark.parametrize(("kind", "kept"), [("all_to_all", 1 / P), ("reduce_scatter", 1 / P), ("all_reduce", 0)])
def test_the_share_that_is_kept(kind, kept):
    graph = fuse(produced(GEMM, kind, C, W), slices=2).graphs[0]
    assert ("gemm_kept" in graph.names) == bool(kept)
    if kept:
        assert graph.duration_s[graph.names.index("gemm_kept")] == pytest.approx(kept * C)
    assert graph.duration_s[0] == pytest.approx((1 - kept) * C / 2)


def test_in_oblivious_order_the_own_share_comes_at_its_own_place():
    """Four ranks make shards of 10 us, in two slices each of 4 us on the link, those of rank 0 first.

    Rank 3 gets its first slices, one from each other rank, at 35 us, which pass its port until 47, and the others, made
    at 40, until 59; rank 2 has all of its own ten before. Rank 0 has them before its kernel ends, rank 1 at 41: rank
    3's last one for it waits from 35 to 37 for rank 3's port. Nobody waits for what it sends. In aware order 40 us do.
    """
    program = produced(POOL, "all_to_all", C, W)
    oblivious = fuse(program, slices=6, order="oblivious")
    assert oblivious.role_of_rank.tolist() == [0, 1, 2, 3]
    orders = []
    for graph in oblivious.graphs:
        names = [graph.names[node] for node in np.flatnonzero(graph.kind == NodeKind.COMPUTE)]
        orders.append([name.removeprefix("embedding_bag_fwd_") for name in names].index("kept"))
    assert orders == [0, 2, 4, 6]
    result = simulate(oblivious, SWITCH, algorithms=ALGORITHMS)
    ends = [line.end_s[line.graph.names.index("embedding_bag_fwd_poll")] for line in result.timelines]
    assert ends == pytest.approx([40e-6, 41e-6, 49e-6, 59e-6])
    assert result.makespan_s == pytest.approx(59e-6)
    assert fused_s(program, 6) == pytest.approx(40e-6)


def test_a_fused_kernel_holds_its_stream_until_its_last_slice_has_arrived():
    """1 us of kernel, 60 us of link: the kernel after it starts when the link is done, though it needs none of it."""

    def write(graph):
        made = timed(graph, GEMM, 1e-6)
        graph.collective("all_reduce", bytes_for(60e-6, "all_reduce"), group=0, after=[made])
        timed(graph, ADD, 5e-6)

    program = program_of(write)
    line = simulate(fuse(program, slices=2), SWITCH, algorithms=ALGORITHMS).timelines[0]
    assert line.start_s[line.graph.names.index("add")] == pytest.approx(60.5e-6)
    # With overlap alone it runs beside the link.
    assert scheduled_s(program, "overlap") == pytest.approx(61e-6)


def test_kernels_that_a_join_brings_together_are_fused_together():
    """Two experts of 10 us make an all-to-all of 8 us: each sends its slices as they come."""

    def write(graph):
        makers = [timed(graph, GEMM, 10e-6) for _ in range(2)]
        joined = graph.join(makers)
        graph.collective("all_to_all", bytes_for(8e-6, "all_to_all"), group=0, after=[joined])

    program = program_of(write)
    graph = fuse(program, slices=4).graphs[0]
    assert (graph.kind == NodeKind.COLLECTIVE).sum() == 4
    # Slices of 3.75 us made at 3.75, 7.5, then (10 +) 13.75, 17.5; the last is sent for 2; the kernel ends at 20.
    assert fused_s(program, 4) == pytest.approx(20e-6)
    assert scheduled_s(program, "overlap") == pytest.approx(28e-6)


@pytest.mark.parametrize(("call", "kind"), [(ADD, "all_reduce"), (POOL, "all_reduce"), (GEMM, "all_gather")])
def test_what_cannot_be_fused_stays_as_it_is(call, kind):
    program = produced(call, kind, C, W)
    assert columns_of(fuse(program)) == columns_of(program)


def test_a_collective_that_waits_for_two_kernels_is_not_fused():
    def write(graph):
        makers = [timed(graph, GEMM, 10e-6) for _ in range(2)]
        graph.collective("all_to_all", 1000, group=0, after=makers)

    program = program_of(write)
    assert columns_of(fuse(program)) == columns_of(program)


def test_counts_that_no_float_holds_are_conserved():
    huge = kernel("gemm", dtype="bf16", M=1_000_003, N=1_000_033, K=1_000_037)
    assert float(huge.flops) != huge.flops
    program = produced(huge, "all_to_all", C, W)
    assert fuse(program).total_flops == program.total_flops


@given(st.lists(st.sampled_from([(1, 1), (4, 1), (1, 2), (4, 2)]), min_size=1, max_size=12))
def test_a_collective_waits_for_the_whole_ones_before_it_on_its_stream(collectives):
    """Each is one of so many slices, on a stream; slices do not wait for each other, nor overtake what is before."""
    graph = GraphBuilder()
    for slices, stream in collectives:
        graph.collective("all_reduce", 100, group=0, slices=slices, stream=stream)
    chained = in_program_order(Program("chain", (graph.build(),), np.zeros(P, np.int64), WORLD)).graphs[0]
    for node, (slices, stream) in enumerate(collectives):
        before = [other for other in range(node) if collectives[other][1] == stream]
        if slices > 1:
            before = [other for other in before if collectives[other][0] == 1]
        assert chained.dependencies_of(node).tolist() == before[-1:]


def test_overlap_gives_every_group_a_stream_and_baseline_takes_them_back():
    def write(graph):
        for group in (0, 1, 0):
            graph.collective("all_reduce", 1000, group=group, priority=1)
        timed(graph, ADD, 1e-6)

    graph = GraphBuilder()
    write(graph)
    two = (*WORLD, GroupFamily("pairs", ((0, 1), (2, 3))))
    program = Program("two groups", (graph.build(),), np.zeros(P, np.int64), two)
    assert apply_schedule(program, "overlap").graphs[0].stream.tolist() == [1, 2, 1, 0]
    serial = apply_schedule(apply_schedule(program, "overlap"), "baseline").graphs[0]
    assert serial.stream.tolist() == serial.priority.tolist() == [0, 0, 0, 0]
    # Whatever streams a trace brought along, a schedule starts from one.
    scattered = program.map_graphs(lambda graph: graph.with_columns(stream=np.array([3, 1, 4, 1])))
    assert apply_schedule(scattered, "fused").graphs[0].stream.tolist() == [0, 0, 0, 0]


def test_overlap_hides_what_nobody_waits_for():
    """A reduction of 24 us beside 40 us of kernel: 65 one after the other, 41 together with the 1 us that makes it."""

    def write(graph):
        made = timed(graph, ADD, 1e-6)
        graph.collective("all_reduce", bytes_for(W, "all_reduce"), group=0, after=[made])
        timed(graph, GEMM, C, [made])

    program = program_of(write)
    assert scheduled_s(program, "baseline") == pytest.approx(65e-6)
    assert scheduled_s(program, "overlap") == pytest.approx(41e-6)


# ---- Several roles


def test_a_collective_is_fused_only_if_all_roles_can_fuse_it():
    """One role makes the data with a GEMM, the other with an addition, which cannot be fused: neither is."""
    fusable, plain = GraphBuilder(), GraphBuilder()
    fusable.collective("all_reduce", 1000, group=0, after=[timed(fusable, GEMM, 1e-6)])
    plain.collective("all_reduce", 1000, group=0, after=[timed(plain, ADD, 1e-6)])
    graphs = (fusable.build(), plain.build())
    program = Program("mixed", graphs, np.array([0, 1, 0, 1]), WORLD)
    fused = fuse(program)
    assert [len(graph) for graph in fused.graphs] == [2, 2]
    alone = Program("all alike", graphs[:1], np.zeros(P, np.int64), WORLD)
    assert len(fuse(alone).graphs[0]) > 2
    assert simulate(apply_schedule(program, "fused"), SWITCH).makespan_s > 0


@each_kind
def test_ranks_that_become_ready_in_different_orders_do_not_deadlock(schedule):
    """Role 0 has the data of the second collective first, role 1 that of the first: both start with the first."""
    graphs = []
    for role in (0, 1):
        graph = GraphBuilder()
        data = [timed(graph, ADD, 3e-6), timed(graph, ADD, 3e-6)]
        graph.collective("all_reduce", 1000, group=0, after=[data[1 - role]], name="first")
        graph.collective("all_reduce", 2000, group=0, after=[data[role]], name="second")
        graphs.append(graph.build())
    program = Program("crossed", tuple(graphs), np.array([0, 1, 0, 1]), WORLD)
    for line in simulate(apply_schedule(program, schedule), SWITCH).timelines:
        begin = dict(zip((name.partition("_")[0] for name in line.graph.names), line.start_s, strict=True))
        assert begin["first"] < begin["second"]


def test_urgent_collectives_take_a_shared_wire_first():
    """Under overlap a collective that the next kernel waits for goes before a gradient's, of another group."""
    graph = GraphBuilder()
    start = timed(graph, ADD, 1e-6)
    graph.collective("all_reduce", 1000, group=0, after=[start], name="gradient", priority=0)
    graph.collective("all_reduce", 1000, group=1, after=[start], name="activation", priority=1)
    program = Program(
        "two groups", (graph.build(),), np.zeros(P, np.int64), (*WORLD, GroupFamily("again", WORLD[0].members))
    )
    line = simulate(apply_schedule(program, "overlap"), SWITCH).timelines[0]
    begin = dict(zip(line.graph.names, line.start_s, strict=True))
    assert begin["activation"] < begin["gradient"]
