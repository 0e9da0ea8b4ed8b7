"""The host: when it has issued each node, worked by hand; laws over random workloads; what it refuses."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.analysis import breakdown as analysis
from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.host import call_s, calls_of, host_costs_s, issue
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import ConfigError
from scaleout.program.graph import NONE, GraphBuilder, NodeKind, NodeRole
from scaleout.program.operations import kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import apply_schedule
from scaleout.simulation.engine import run
from scaleout.simulation.run import simulate
from scaleout.study.comparison import compare
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate
from tests.simulation.test_engine import tasks

H200 = load_device("h200")
NODE = load_topology("h200-node-4")
US = 1e-6


def program_of(graph, ranks=4):
    world = GroupFamily("world", (tuple(range(ranks)),))
    return time_kernels(Program("hand", (graph.build(),), np.zeros(ranks, np.int64), (world,)), H200)


def small_layers(count):
    graph = GraphBuilder("layers_forward", NodeRole.FORWARD)
    node = graph.compute(kernel("gelu_fwd", dtype="bf16", elements=1024))
    for _ in range(count - 1):
        node = graph.compute(kernel("gelu_fwd", dtype="bf16", elements=1024), after=(node,))
    return graph


def test_the_clock_holds_a_task_back_until_it_is_issued():
    # 1 could start at 1 and is issued at 5; 2 follows on the stream, and 3 on another one is issued at 2.
    given_tasks = replace(tasks([1.0, 1.0, 1.0, 4.0], stream=[0, 0, 0, 1]), issue_s=np.array([0.0, 5.0, 5.5, 2.0]))
    times = run(given_tasks)
    assert times.start_s.tolist() == [0, 5, 6, 2]
    assert times.cause.tolist()[1:3] == [-1, 1]


def test_a_later_task_that_is_issued_does_not_overtake_its_stream():
    """On one stream the host issues in order, and so they run in order."""
    times = run(replace(tasks([1.0] * 3), issue_s=np.array([2.0, 4.0, 6.0])))
    assert times.start_s.tolist() == [2, 4, 6]


def test_a_step_of_small_kernels_takes_as_long_as_its_calls():
    calls = 50
    result = simulate(issue(program_of(small_layers(calls)), H200, host="eager"), NODE)
    per_call_s = H200.host_launch_s["gelu_no_grad"]
    last_s = float(result.timelines[0].duration_s[-1])
    start_s = H200.host_launch_s["start_no_grad"]
    assert result.makespan_s == pytest.approx(start_s + calls * per_call_s + last_s)
    segments = analysis.critical_path(result)
    assert segments[0].name == "host"
    assert all(one.end_s == two.start_s for one, two in pairwise(segments))
    assert segments[0].start_s == 0
    assert segments[-1].end_s == result.makespan_s


def test_one_rank_alone_pays_its_own_costs():
    """Its calls and its start; `gelu` costs what is measured of one rank, and what is not known alone costs as ever."""
    costs_s = H200.host_launch_s
    assert costs_s["gelu_no_grad_alone"] < costs_s["gelu_no_grad"]
    (graph,) = issue(program_of(small_layers(3), ranks=1), H200, host="eager").graphs
    expected = costs_s["start_no_grad_alone"] + costs_s["gelu_no_grad_alone"] * np.arange(1, 4)
    np.testing.assert_allclose(graph.issue_s, expected)
    shared = {name: seconds for name, seconds in costs_s.items() if not name.endswith("_alone")}
    unknown = replace(H200, host_launch_s=shared)
    one, several = (issue(program_of(small_layers(3), ranks=ranks), unknown, host="eager") for ranks in (1, 4))
    np.testing.assert_array_equal(one.graphs[0].issue_s, several.graphs[0].issue_s)


def test_calls_by_hand():
    """Forward, then backward, which has a cost to start; a node without a kernel is no call."""
    graph = GraphBuilder("layer_forward", NodeRole.FORWARD)
    gemm = graph.compute(kernel("gemm", dtype="bf16", M=64, N=64, K=64))
    sent = graph.collective("all_reduce", 1024, group=0, after=(gemm,))
    other = graph.compute(kernel("softmax_fwd", dtype="bf16", tokens=8, keys=8), after=(sent,))
    pause = graph.add((other,), name="pause", duration_s=0.0)
    graph.enter("layer_backward", NodeRole.BACKWARD)
    graph.compute(kernel("gemm", dtype="bf16", M=64, N=64, K=64), after=(pause,))
    launch = H200.host_launch_s
    calls = [launch["gemm_forward"], launch["all_reduce_forward"], launch["pointwise_forward"], 0.0]
    calls[0] += launch["start_forward"]
    calls.append(launch["gemm_backward"] + launch["start_backward"])
    plain = program_of(graph)
    issued = issue(plain, H200, host="eager")
    assert issued.graphs[0].issue_s == pytest.approx(np.cumsum(calls))
    gaps = issued.graphs[0].duration_s - plain.graphs[0].duration_s
    assert gaps[[0, 2, 4]] == pytest.approx(H200.launch_gap_s)
    assert gaps[3] == 0


def test_calls_of_plain_modules_cost_what_they_were_measured_at():
    """Indexing's gradient and PyTorch's bags by their own names; B200's own is a point-wise call."""
    costs_s, alone_s = host_costs_s(H200, alone=False), host_costs_s(H200, alone=True)
    for call, us in (
        (("rms_norm_fwd", "forward"), 26), (("swiglu_fwd_unfused", "no_grad"), 17.9),
        (("swiglu_bwd", "backward"), 53.7),
        (("embedding_bag_bwd_dense", "backward"), 122.7), (("moe_permute_rows_bwd", "backward"), 98.1),
        (("moe_permute_rows", "backward"), 20.3), (("embedding_bag_bwd_sparse", "backward"), 20.3),
    ):  # fmt: skip
        assert call_s(call, alone_s) == pytest.approx(us * US)
        assert call_s(call, costs_s) > call_s(call, alone_s)
    b200 = host_costs_s(load_device("b200"), alone=False)
    assert call_s(("rms_norm_bwd", "backward"), b200) == pytest.approx(b200["pointwise_backward"], rel=1e-3)


def test_reductions_of_gradients_are_calls_in_a_loop_and_exchanges_of_autograd_are_not():
    graph = GraphBuilder("layer_backward", NodeRole.BACKWARD)
    graph.collective("all_reduce", 1024, group=0, role=NodeRole.EXCHANGE)
    for _ in range(2):
        graph.collective("all_reduce", 1024, group=0, role=NodeRole.GRADIENTS)
    launch = H200.host_launch_s
    first_s = launch["start_backward"] + launch["all_reduce_backward"]
    (issued,) = issue(program_of(graph), H200, host="eager").graphs
    assert issued.issue_s == pytest.approx(first_s + launch["all_reduce_loop"] * np.arange(3))


DOES = {
    "gemm": lambda graph: graph.compute(kernel("gemm", dtype="bf16", M=8, N=8, K=8)),
    "larger gemm": lambda graph: graph.compute(kernel("gemm", dtype="bf16", M=16, N=8, K=8)),
    "gelu": lambda graph: graph.compute(kernel("gelu_fwd", dtype="bf16", elements=8)),
    "all_reduce": lambda graph: graph.collective("all_reduce", 8, group=0),
    "all_gather": lambda graph: graph.collective("all_gather", 8, group=0),
    "send": lambda graph: graph.add((), name="sent", kind=NodeKind.SEND, peer=1, bytes=8),
    "put": lambda graph: graph.add((), name="sent", kind=NodeKind.SEND, peer=1, bytes=8, collective=0),
    "join": lambda graph: graph.join(()),
}
ROLES = (NodeRole.FORWARD, NodeRole.BACKWARD, NodeRole.RECOMPUTE, NodeRole.LOOP, NodeRole.OPTIMIZER)


@given(st.lists(st.tuples(st.sampled_from(sorted(DOES)), st.sampled_from(ROLES)), max_size=30))
def test_calls_of_a_graph_are_those_of_its_nodes(nodes):
    builder = GraphBuilder("any")
    for does, role in nodes:
        builder.enter("any", role)
        DOES[does](builder)
    graph = builder.build()
    calls, numbers = calls_of(graph)
    trains = any(role & (NodeRole.BACKWARD | NodeRole.RECOMPUTE) for _, role in nodes)
    plain = "forward" if trains else "no_grad"
    directions = {NodeRole.LOOP: "loop", NodeRole.BACKWARD: "backward"}
    assert len(calls) == len(set(calls)) == numbers.max(initial=NONE) + 1
    for node, (does, role) in enumerate(nodes):
        call = None if does == "join" else (graph.operation(node), directions.get(role, plain))
        assert (None if numbers[node] == NONE else calls[numbers[node]]) == call


def test_each_microbatch_starts_its_own_passes():
    job = load_workload("gpt-3", {"layers": 8, "pipeline_parallel": 4, "tensor_parallel": 1, "batch_per_replica": 4,
                                  "microbatch": 1, "data_parallel": 1})  # fmt: skip
    graph = issue(time_kernels(generate(job), H200), H200, host="eager").graphs[0]
    costs = np.diff(graph.issue_s, prepend=0.0)
    starts = min(H200.host_launch_s[f"start_{name}"] for name in ("forward", "backward"))
    assert (costs >= starts).sum() == 2 * 4


@given(host=st.sampled_from(["none", "eager"]), schedule=st.sampled_from(["baseline", "overlap", "fused"]))
def test_folded_and_unfolded_agree_and_an_eager_host_only_delays(host, schedule):
    job = load_workload("llama-3-8b", {"layers": 2, "data_parallel": 2, "tensor_parallel": 2, "sequence": 128})
    timed = time_kernels(generate(job), H200)
    scheduled = apply_schedule(issue(timed, H200, host=host), schedule)
    folded, unfolded = (simulate(scheduled, NODE, unfold=unfold) for unfold in (False, True))
    assert folded.makespan_s == unfolded.makespan_s
    for line in folded.timelines:
        assert (line.start_s >= line.graph.issue_s).all()
    if schedule == "baseline":  # one stream: no anomaly, so waiting for the host never helps
        assert folded.makespan_s >= simulate(apply_schedule(timed, schedule), NODE).makespan_s


def test_by_default_nothing_waits_for_the_host():
    plain, eager = (
        compare("dlrm-128", device="h200", schedules=["baseline"], **options).outcomes[0].makespan_s
        for options in ({}, {"host": "eager"})
    )
    assert plain < eager


@pytest.mark.parametrize(
    ("device", "host", "message"),
    [
        ("mi210", "eager", "device 'mi210' does not say what its host spends on a call"),
        ("h200", "egaer", "unknown host 'egaer'; did you mean 'eager'?"),
    ],
)
def test_what_is_refused(device, host, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(").replace("?", r"\?")):
        issue(program_of(small_layers(2)), load_device(device), host=host)


def test_a_host_that_blocks_adds_its_calls_to_the_kernels():
    """By hand: the next call comes when the kernel before is done; a collective's call comes with the next kernel."""
    graph = GraphBuilder("layer_forward", NodeRole.FORWARD)
    first = graph.compute(kernel("gemm", dtype="bf16", M=64, N=64, K=64))
    sent = graph.collective("all_reduce", 1024, group=0, after=(first,))
    graph.compute(kernel("gelu_fwd", dtype="bf16", elements=1024), after=(sent,))
    program, costs = program_of(graph), H200.host_launch_s
    (alone,), (found,) = program.graphs, issue(program, H200, host="blocking").graphs
    added = found.duration_s[[0, 2]] - alone.duration_s[[0, 2]] - H200.launch_gap_s
    called = [costs["start_no_grad"] + costs["gemm_no_grad"], costs["all_reduce_no_grad"] + costs["gelu_no_grad"]]
    assert added == pytest.approx(called)
    assert not found.issue_s.any()


@given(calls=st.integers(1, 40))
def test_a_step_is_never_shorter_where_the_host_blocks(calls):
    program = program_of(small_layers(calls))
    waits, ahead = (simulate(issue(program, H200, host=host), NODE).makespan_s for host in ("blocking", "eager"))
    assert waits >= ahead


def test_a_host_that_blocks_leaves_nothing_to_overlap():
    job = load_workload("llama-3-8b", {"layers": 2, "data_parallel": 4, "batch_per_replica": 1})
    found = compare(job, topology=NODE, device=H200, schedules=("baseline", "overlap"), host="blocking")
    assert found.outcomes[0].makespan_s == found.outcomes[1].makespan_s


@pytest.mark.parametrize("op", ["moe_rows_by_mask", "moe_probs_by_mask"])
def test_the_device_waits_for_a_host_that_reads_a_value(op):
    """Once it is read, whatever it takes to choose; not where no host issues calls."""
    graph = GraphBuilder("route_forward", NodeRole.FORWARD)
    chosen = graph.compute(kernel(op, dtype="bf16", tokens=1024, experts=8, topk=2))
    graph.compute(kernel("gelu_fwd", dtype="bf16", elements=1024), after=(chosen,))
    program = program_of(graph)
    (timed,), (issued,) = program.graphs, issue(program, H200, host="eager").graphs
    waits = [116 * US, 0]
    assert issued.duration_s - timed.duration_s == pytest.approx(np.array(waits) + H200.launch_gap_s)
    assert issue(program, H200, host="none") is program


@given(ranks=st.integers(1, 4))
def test_a_check_of_a_collective_costs_the_host_its_ranks(ranks):
    """By hand: other calls cost what they cost an eager host, whose kernels take as long."""
    graph = GraphBuilder("layer_forward", NodeRole.FORWARD)
    gemm = graph.compute(kernel("gemm", dtype="bf16", M=64, N=64, K=64))
    sent = graph.collective("all_reduce", 1024, group=0, after=(gemm,))
    graph.compute(kernel("gelu_fwd", dtype="bf16", elements=1024), after=(sent,))
    program = program_of(graph, ranks)
    eager, checking = (issue(program, H200, host=host).graphs[0] for host in ("eager", "checking"))
    check_s = ranks * H200.host_launch_s["collective_check"]
    assert checking.issue_s - eager.issue_s == pytest.approx(np.array([0.0, check_s, check_s]))
    assert checking.duration_s == pytest.approx(eager.duration_s, nan_ok=True)


def test_a_device_without_the_cost_of_a_check_is_refused():
    costs = {call: cost for call, cost in H200.host_launch_s.items() if call != "collective_check"}
    with pytest.raises(ConfigError, match="collective_check in host_launch"):
        issue(program_of(small_layers(2)), replace(H200, host_launch_s=costs), host="checking")
