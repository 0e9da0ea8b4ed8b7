"""Fused operators in oblivious order as puts: against the operators' own model, on both networks, and by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.analysis.breakdown import ends_of_ranks
from scaleout.cli.verbs import scaleout
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.config.library import folder
from scaleout.config.units import format_seconds
from scaleout.errors import ConfigError
from scaleout.program.graph import NONE, GraphBuilder, NodeKind
from scaleout.program.operations import TimeSource, kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import apply_schedule
from scaleout.schedule.fusion import FusedMachine, plan_operator
from scaleout.schedule.fusion.embedding import Pooling, most_work_groups, pooling_s
from scaleout.schedule.fusion.fused import run
from scaleout.schedule.fusion.passes import fuse
from scaleout.simulation.run import simulate
from scaleout.study.comparison import compare

US = 1e-6
POOL = kernel("embedding_bag_fwd", dtype="fp32", batch=8, tables=4, dim=256, pooling=70, rows=100)
ADD = kernel("add", dtype="bf16", elements=1000)
UPDATE = kernel("embedding_sgd_sparse", dtype="fp32", batch=8, tables=4, dim=256, pooling=70)
MI210 = load_device("mi210")
WITHOUT_CALLS = MI210.work_groups.model_copy(update={"put_call_s": 0.0, "launch_s": 0.0, "message_gap_s": 0.0})
ONLY_WIRES = replace(MI210, work_groups=WITHOUT_CALLS)
"""MI210 whose operators pay for nothing that a graph's do not."""


def switch(ranks, bytes_per_s=20e9, latency_s=0.7 * US):
    return Topology("switch", (Dimension("switch", ranks, bytes_per_s, latency_s),))


def pair(groups, size_bytes, compute_s, *, call=POOL, consumes=False, makers=1, kind="all_to_all"):
    """A program of a kernel and its collective, of all groups' ranks."""
    graph = GraphBuilder()

    def timed(after):
        return graph.add(
            after, name=call.op, kernel=graph.kernel_index(call), flops=call.flops, bytes=call.bytes,
            duration_s=compute_s, time_source=TimeSource.GIVEN, phase="operator",
        )  # fmt: skip

    if consumes:
        timed([graph.collective(kind, size_bytes, group=0, name="exchange")])
    else:
        made = graph.join([timed(()) for _ in range(makers)])
        graph.collective(kind, size_bytes, group=0, after=[made], name="exchange")
    ranks = sum(map(len, groups))
    return Program("pair", (graph.build(),), np.zeros(ranks, np.int64), (GroupFamily("world", tuple(groups)),))


def done_s(result):
    """When each rank's operator is done."""
    return {rank: each.phase_end_s["operator"] for each in ends_of_ranks(result) for rank in each.ranks}


def bits(result):
    """When every node of each rank ran, to the last bit."""
    return {rank: (line.start_s.tobytes(), line.end_s.tobytes()) for line in result.timelines for rank in line.ranks}


def puts_of(graph):
    return np.flatnonzero((graph.kind == NodeKind.SEND) & (graph.collective != NONE))


# ---- Against the operators


def both_models(topology, device, *, batch=1024, tables=256, network="alpha_beta"):
    """When each rank is done by `operators`, and in a graph with as many slices: shape (R,) each."""
    on, machine, ranks = FusedMachine(device, topology), Machine(device, topology), topology.num_ranks
    settings = {"batch": batch, "tables": tables}
    call = kernel("embedding_bag_fwd", dtype="fp32", dim=256, pooling=70, rows=1000, **settings)
    work = plan_operator("embedding_all_to_all", settings, on).recipes["oblivious"].work
    bag, most = Pooling(70, 256, "fp32", written=1.0), most_work_groups(device)
    fused = replace(bag, other_s=device.work_groups.book_keeping_s)
    fused_s = pooling_s(device, fused, work.slots) / work.slots
    slower = max(1.0, fused_s / (pooling_s(device, bag, most) / most))
    size_bytes = batch * tables * bag.vector_bytes
    program = pair([range(ranks)], size_bytes, work.isolated_s / slower, call=call)
    scheduled = apply_schedule(program, "fused-oblivious", machine=machine)
    first = scheduled.graphs[0]
    slices = int(first.slices[puts_of(first)[0]]) // ranks
    shard = batch * tables // ranks
    size = max(tasks for tasks in range(1, shard // slices + 1) if shard % tasks == 0)
    recipe = plan_operator("embedding_all_to_all", {**settings, "slice_size": size}, on).recipes["oblivious"]
    found = done_s(simulate(scheduled, topology, network=network))
    return [each.done_s for each in run(recipe, "oblivious").ranks], [found[rank] for rank in range(ranks)]


@pytest.mark.parametrize("network", ["alpha_beta", "link"])
def test_on_two_nodes_ranks_are_done_when_their_operators_are(network):
    """Node 1 waits for what node 0 makes last; node 0 has long got its own."""
    operator, graph = both_models(switch(2), ONLY_WIRES, network=network)
    assert graph == pytest.approx(operator, rel=1e-12)
    assert operator[1] > operator[0] * 1.01


def test_on_the_papers_two_nodes_the_difference_is_what_one_of_them_leaves_out():
    """The graph pays RCCL's 25 us, and calls one after the other; the operator launches and messages of its card."""
    operator, graph = both_models(load_topology("mi210-pair"), MI210)
    slices = 32
    assert np.abs(np.subtract(graph, operator)).max() <= 25 * US + slices * 2 * US + 3 * US + slices * US


@pytest.mark.parametrize("network", ["alpha_beta", "link"])
@pytest.mark.parametrize(("ranks", "tables"), [(4, 256), (16, 64)])
def test_on_more_nodes_they_agree_within_a_slice_or_two(ranks, tables, network):
    """The operator's ports take slices as they come; alpha-beta's by receiver, slice and sender."""
    operator, graph = both_models(switch(ranks), ONLY_WIRES, tables=tables, network=network)
    assert graph == pytest.approx(operator, rel=0.02)
    assert (np.diff(graph) >= -1e-12).all()


@pytest.mark.parametrize("bytes_per_s", [8e9, 3e9])
def test_between_links_of_their_own_a_port_stands_for_all_of_them(bytes_per_s):
    """Four ranks with a link to each other, where the kernel decides and where links do: there alpha-beta's ports take
    slices that are ready at once in another order."""
    topology = Topology("full", (Dimension("fully_connected", 4, bytes_per_s, 0.7 * US),))
    for network, off in (("alpha_beta", 0.01 if bytes_per_s > 5e9 else 0.06), ("link", 0.01)):
        operator, graph = both_models(topology, ONLY_WIRES, network=network)
        assert graph == pytest.approx(operator, rel=off)


# ---- By hand


def test_a_consumer_takes_the_shards_in_the_order_of_the_ranks():
    """Two ranks, an update of 40 us, a shard of 8 us on the link: rank 0 starts with its own, rank 1 waits for it."""
    program = pair([(0, 1)], 400_000, 40 * US, call=UPDATE, consumes=True)
    oblivious = fuse(program, slices=1, order="oblivious")
    assert done_s(simulate(oblivious, switch(2, 25e9, 0.0))) == pytest.approx({0: 40 * US, 1: 48 * US})
    assert simulate(fuse(program, slices=1), switch(2, 25e9, 0.0)).makespan_s == pytest.approx(40 * US)


def test_a_sender_does_not_wait_for_what_it_sends():
    """1 us of kernel, 60 us of link: rank 0, whose data come first, goes on while its own are in flight."""
    program = pair([(0, 1)], 3_000_000, 1 * US)
    found = simulate(fuse(program, slices=1, order="oblivious"), switch(2, 25e9, 0.0))
    assert done_s(found) == pytest.approx({0: 60.5 * US, 1: 61 * US})
    late = pair([(0, 1)], 3_000_000, 100 * US)
    assert done_s(simulate(fuse(late, slices=1, order="oblivious"), switch(2, 25e9, 0.0)))[0] == pytest.approx(110 * US)


def test_puts_wait_for_ports_that_a_collective_holds():
    """A collective of the same dimension and a put never share a port: together they take as long as one by one."""
    program = pair([(0, 1)], 1_000_000, 0.0)
    graph = program.graphs[0]
    builder = GraphBuilder()
    made = builder.add((), name="pool", kernel=builder.kernel_index(POOL), duration_s=0.0, time_source=TimeSource.GIVEN)
    builder.collective("all_to_all", 1_000_000, group=0, after=[made])
    builder.collective("all_reduce", 1_000_000, group=0)
    both = replace(program, graphs=(builder.build(),))
    topology = switch(2, 25e9, 0.0)
    isolated_s = simulate(fuse(replace(program, graphs=(graph,)), slices=1, order="oblivious"), topology).makespan_s
    assert isolated_s == pytest.approx(20 * US)
    together_s = simulate(apply_schedule(both, "overlap+fused-oblivious"), topology).makespan_s
    assert together_s == pytest.approx(60 * US)


def test_each_exchange_is_charged_by_its_own_bytes():
    """Two kernels in turn, with exchanges of 20 and 4 us: the second one's puts leave when the first have come."""
    builder = GraphBuilder()
    for size_bytes in (1_000_000, 200_000):
        kernel_of = builder.kernel_index(POOL)
        made = builder.add((), name="pool", kernel=kernel_of, duration_s=0.0, time_source=TimeSource.GIVEN)
        builder.collective("all_to_all", size_bytes, group=0, after=[made])
    program = replace(pair([(0, 1)], 0, 0.0), graphs=(builder.build(),))
    found = simulate(fuse(program, slices=1, order="oblivious"), switch(2, 25e9, 0.0))
    assert found.makespan_s == pytest.approx(24 * US)


# ---- Laws


@given(
    groups=st.sampled_from(
        [[(0, 1), (2, 3), (4, 5)], [(0, 2, 1), (3, 4, 5)], [(0, 2, 1), (3,), (5, 4)], [(3, 1, 0, 2, 5, 4)]]
    ),
    size_bytes=st.integers(0, 50_001),
    slices=st.integers(1, 9),
    makers=st.integers(1, 3),
    consumes=st.booleans(),
    kind=st.sampled_from(["switch", "ring", "fully_connected"]),
    network=st.sampled_from(["alpha_beta", "link"]),
)
@settings(max_examples=60)
def test_puts_are_the_collective_whatever_the_groups(*, groups, size_bytes, slices, makers, consumes, kind, network):
    """Payload is conserved, each rank sends all but its own, folding changes nothing, and no rank beats its port."""
    program = pair(groups, size_bytes, 5 * US, makers=makers, consumes=consumes, call=UPDATE if consumes else POOL)
    scheduled = fuse(program, slices=slices, order="oblivious")
    topology = Topology("t", (Dimension(kind, 6, 25e9, 0.25 * US),))
    assert scheduled.payload_bytes == program.payload_bytes
    assert scheduled.total_flops == program.total_flops
    results = [simulate(scheduled, topology, network=network, unfold=unfold) for unfold in (False, True)]
    folded, unfolded = map(bits, results)
    assert folded == unfolded
    for members in groups:
        for place, rank in enumerate(members):
            graph = scheduled.graphs[scheduled.role_of_rank[rank]]
            away = [node for node in puts_of(graph).tolist() if graph.peer[node]]
            if away:
                share = size_bytes * (place + 1) // len(members) - size_bytes * place // len(members)
                assert graph.bytes[away].sum() == size_bytes - share
                if network == "alpha_beta" and kind == "switch":
                    come_s = (len(members) - 1) / len(members) * size_bytes / 25e9
                    assert done_s(results[0])[rank] >= come_s * (1 - 1e-9)


@given(st.integers(10_000, 2_000_000), st.integers(0, 60), st.sampled_from([2, 3, 4]), st.integers(1, 8))
@settings(max_examples=40)
def test_aware_order_is_never_later_than_oblivious(size_bytes, micros, ranks, slices):
    """The last rank of oblivious order is no earlier than all of aware order, but for the size of a slice."""
    program, topology = pair([range(ranks)], size_bytes, micros * US), switch(ranks, 25e9)
    slices *= ranks - 1
    aware_s, oblivious_s = (
        simulate(fuse(program, slices=slices, order=order), topology).makespan_s for order in ("aware", "oblivious")
    )
    assert aware_s <= oblivious_s * (1 + 1e-9)


# ---- What stays as it is, and what is refused


def test_few_bytes_and_lonely_ranks_are_left_alone():
    for program in (pair([(0, 1, 2, 3)], 3, US), pair([(0,), (1,)], 1000, US)):
        assert not any(len(puts_of(graph)) for graph in fuse(program, order="oblivious").graphs)


def test_roles_that_cut_otherwise_are_left_alone():
    """Rank 0 makes its data in one kernel, rank 1 in two, of one slice each: their messages would not meet."""
    one, two = pair([(0, 1)], 1000, US), pair([(0, 1)], 1000, US, makers=2)
    program = replace(one, graphs=one.graphs + two.graphs, role_of_rank=np.array([0, 1]))
    scheduled = fuse(program, slices=1, order="oblivious")
    assert not any(len(puts_of(graph)) for graph in scheduled.graphs)
    simulate(scheduled, switch(2))
    assert all(len(puts_of(graph)) for graph in fuse(program, slices=2, order="oblivious").graphs)
    simulate(fuse(program, slices=2, order="oblivious"), switch(2))


def test_a_role_without_the_kernel_keeps_all_members_from_puts():
    """Rank 1 makes its data with a kernel that nothing is fused with."""
    one, other = pair([(0, 1)], 1000, US), pair([(0, 1)], 1000, US, call=ADD)
    program = replace(one, graphs=one.graphs + other.graphs, role_of_rank=np.array([0, 1]))
    scheduled = fuse(program, slices=1, order="oblivious")
    assert not any(len(puts_of(graph)) for graph in scheduled.graphs)
    simulate(scheduled, switch(2))


def test_too_many_puts_are_refused():
    with pytest.raises(ConfigError, match="360000 in all, more than 131072; take fewer ranks, or the schedule fused"):
        fuse(pair([range(600)], 10**9, US), slices=1, order="oblivious")


def test_a_run_says_when_each_rank_is_done():
    """Two nodes of the paper: node 1 is done with pooling later, and both again after the gradients' all-reduce."""
    changes = {"data_parallel": 2, "topology": "mi210-pair", "pooling": 30}
    found = compare("dlrm-128", changes=changes, device="mi210", schedules=("fused", "fused-oblivious")).summary()[
        "results"
    ]
    assert "ranks" not in found[0]
    first, second = found[1]["ranks"]
    assert (first["ranks"], second["ranks"]) == ((0,), (1,))
    ends = first["phase_end_s"], second["phase_end_s"]
    assert ends[0]["embedding_forward"] < ends[1]["embedding_forward"]
    assert ends[0]["optimizer"] == pytest.approx(ends[1]["optimizer"])
    asked = ["run", "dlrm-128", "--device", "mi210", "--schedule", "fused-oblivious", "-v"]
    for key, value in changes.items():
        asked += ["--set", f"{key}={value}"]
    printed = CliRunner().invoke(scaleout, asked).output
    late = format_seconds(ends[1]["embedding_forward"] - ends[0]["embedding_forward"])
    assert "ranks of fused-oblivious" in printed
    assert late in printed


def test_what_a_put_takes_on_h200_is_what_was_measured_between_two_h100():
    rows = [json.loads(line) for line in (folder("device") / "h100-pair" / "puts.jsonl").read_text().splitlines()[1:]]
    puts = {
        (row["how"], row["work_groups"], row["bytes"]): row["us"] * 1e-6 for row in rows if row["what"] == "put_train"
    }
    h200 = load_device("h200")
    assert h200.work_groups.put_call_s == pytest.approx(puts["store_release_each", 1, 4096], rel=0.01)
    low, _ = h200.brackets["message_gap"]
    assert low.message_gap_s == pytest.approx(puts["store_release_each", 132, 16] / 132 / 2, rel=0.05)  # and its flag
    rates = [row["GB_per_s"] for row in rows if row["what"] == "store_rate" and row["bytes"] == 2**28
             and row["work_groups"] >= 132 and not row["reads_memory"]]  # fmt: skip
    assert min(rates) == pytest.approx(load_topology("h200-node-4").dimensions[0].bytes_per_s * 1e-9, rel=0.04)
