"""Reordering, the two orders of backward, and the layer tier: laws over random programs, equation (1) by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import jobs, pipelines
from test_partition import columns_of

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import load_topology
from scaleout.program.graph import HEAD, GraphBuilder, NodeKind
from scaleout.program.operations import TimeSource
from scaleout.program.program import GroupFamily, Program
from scaleout.program.reorder import early, reorder
from scaleout.schedule import apply_schedule
from scaleout.schedule.centauri.layer_tier import LayerCosts, costs_of, gathers_first
from scaleout.schedule.cost import ProgramCosts
from scaleout.schedule.out_of_order import layers_of, weight_gradients_first
from scaleout.simulation.cost_model import CostModel
from scaleout.simulation.run import simulate
from scaleout.study.comparison import compare
from scaleout.validation.papers import centauri
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate

DEVICE = load_device("a100-80g")
CLUSTER = load_topology("a100-cluster-a-2")
RINGS = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), "ring")
MACHINE = Machine(DEVICE, CLUSTER, RINGS)

JOBS = {
    "fsdp": ("llama-small", {"zero": 3, "layers": 3}),
    "ddp": ("llama-small", {"layers": 3}),
    "sequence": (
        "llama-small",
        {"layers": 2, "tensor_parallel": 4, "data_parallel": 4, "sequence_parallel": True, "zero": 3},
    ),
    "experts": ("mixtral-8x7b", {"layers": 2}),
    "pipeline": (
        "llama-small",
        {"layers": 4, "pipeline_parallel": 4, "data_parallel": 4, "batch_per_replica": 4, "microbatch": 1},
    ),
    "zero bubble": (
        "llama-small",
        {"layers": 4, "pipeline_parallel": 4, "data_parallel": 4, "batch_per_replica": 4, "microbatch": 1,
         "pipeline_schedule": "zb_h1"},
    ),
    "fp8": ("llama-small", {"layers": 2, "zero": 3, "linear_dtype": "fp8_rowwise", "separate_projections": True}),
    "recompute": ("llama-small", {"layers": 2, "recompute": "full", "flat_gradients": True, "zero": 3}),
}  # fmt: skip
each_job = pytest.mark.parametrize("job", JOBS)


def program_of(job, **changes):
    name, keys = JOBS[job]
    return generate(load_workload(name, {**keys, **changes}))


def check_only_reordered(program, found):
    """The same nodes with the same work, each behind the same nodes as before."""
    for old, new in zip(program.graphs, found.graphs, strict=True):
        assert (new.total_flops, new.payload_bytes, len(new)) == (old.total_flops, old.payload_bytes, len(old))
        rows = [nodes_of(graph) for graph in (old, new)]
        assert sorted(rows[0]) == sorted(rows[1])


def nodes_of(graph):
    """What each node is, and what it is behind, by all that tells nodes apart."""

    def row(node):
        columns = ("kind", "kernel", "flops", "bytes", "collective", "group", "peer", "tag", "stream", "microbatch")
        numbers = tuple(int(getattr(graph, column)[node]) for column in columns)
        return (graph.names[node], graph.phases[graph.phase[node]], *numbers, f"{graph.duration_s[node]:.9e}")

    rows = [row(node) for node in range(len(graph))]
    return [
        (*rows[node], tuple(sorted(rows[old] for old in graph.dependencies_of(node)))) for node in range(len(graph))
    ]


# ---- Reordering


@given(st.one_of(jobs(max_roles=3, streams=2), pipelines()), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_any_keys_only_reorder(job, random):
    """A graph refuses a dependency behind its user, so what is built has every one of them in front."""
    program, topology = job
    before = columns_of(program)
    found = reorder(program, lambda graph: {node: (random.random(),) for node in range(len(graph))})
    assert columns_of(program) == before
    check_only_reordered(program, found)
    assert simulate(apply_schedule(found, "overlap"), topology).makespan_s >= 0  # members still meet


@given(jobs(max_roles=2), st.sets(st.integers(0, 15)))
def test_what_is_early_stands_behind_what_it_waits_for(job, moved):
    program, _ = job
    graph = program.graphs[0]
    moved = {node for node in moved if node < len(graph)}
    (found,) = reorder(
        Program("one", (graph,), np.zeros(program.num_ranks, np.int64), program.groups),
        lambda graph: early(graph, moved, tail=lambda old, node: False),
    ).graphs
    assert len(found) == len(graph)
    tagged = graph.with_columns(tag=np.arange(len(graph)))
    (found,) = reorder(
        Program("one", (tagged,), np.zeros(program.num_ranks, np.int64), program.groups),
        lambda graph: early(graph, moved, tail=lambda old, node: False),
    ).graphs
    place = np.argsort(found.tag)
    stay = [node for node in range(len(graph)) if node not in moved]
    assert (np.diff(place[stay]) > 0).all()
    for node in moved:
        needs = graph.dependencies_of(node)
        between = {int(found.tag[at]) for at in range(place[needs].max(initial=-1) + 1, place[node])}
        assert between <= moved  # nothing that stays is in between


def test_keys_that_members_would_disagree_on_change_nothing():
    """Two roles of one group: only one of them would call its second collective first."""

    def graph(name):
        built = GraphBuilder()
        for number in range(2):
            built.collective("all_reduce", 100 * (1 + number), group=0, name=f"{name}_{number}")
        return built.build()

    family = GroupFamily("pairs", ((0, 1),))
    program = Program("two roles", (graph("a"), graph("b")), np.array([0, 1]), (family,))
    found = reorder(program, lambda graph: {0: (1.0,), 1: (0.0,)} if graph.names[0] == "a_0" else {})
    assert found is program
    both = reorder(program, lambda graph: {0: (1.0,), 1: (0.0,)})
    assert [graph.names for graph in both.graphs] == [("a_1", "a_0"), ("b_1", "b_0")]


def test_the_host_issues_calls_in_the_new_order():
    graph = GraphBuilder()
    for number, issue_s in enumerate((1.0, 3.0, 4.0)):
        graph.add((), name=f"kernel_{number}", duration_s=1.0, time_source=TimeSource.GIVEN, issue_s=issue_s)
    program = Program("host", (graph.build(),), np.zeros(1, np.int64), ())
    (found,) = reorder(program, lambda graph: {0: (2.0,), 1: (0.0,), 2: (1.0,)}).graphs
    assert found.names == ("kernel_1", "kernel_2", "kernel_0")
    assert found.issue_s.tolist() == [2.0, 3.0, 4.0]  # calls of 2, 1 and 1 s


# ---- Backward


@each_job
def test_layers_hold_all_products_of_weights_that_a_pipeline_does_not_put_off(job):
    for graph in program_of(job).graphs:
        found = [node for layer in layers_of(graph) for node in layer.weights]
        assert len(found) == len(set(found))
        named = [node for node, name in enumerate(graph.names) if name.endswith("weight_gradient")]
        put_off = [node for node in named if graph.phases[graph.phase[node]] == "weight_gradients"]
        assert sorted(found + put_off) == named
        assert bool(put_off) == (job == "zero bubble")
        for layer in layers_of(graph):
            assert {graph.microbatch[node] for node in layer.nodes} == {graph.microbatch[layer.nodes[0]]}


@each_job
def test_weight_gradients_go_first_and_nothing_else_changes(job):
    program = program_of(job)
    found = weight_gradients_first(program)
    check_only_reordered(program, found)
    for old, new in zip(program.graphs, found.graphs, strict=True):
        for graph, earlier in ((old, False), (new, True)):
            pairs = [pair for layer in layers_of(graph) for pair in order_of_gradients(graph, layer)]
            assert all(first_is_weight == earlier for first_is_weight in pairs)
            assert bool(pairs) == (job != "zero bubble")
        collectives = [[graph.names[node] for node in np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)]
                       for graph in (old, new)]  # fmt: skip
        assert collectives[0] == collectives[1]


def order_of_gradients(graph, layer):
    """Of each pair of GEMMs of one weight: whether its own gradient goes first, where both wait for the same."""
    inputs = {graph.names[node].removesuffix("_input_gradient"): node for node in layer.nodes}
    for node in layer.weights:
        other = inputs.get(graph.names[node].removesuffix("_weight_gradient"))
        if other is not None and set(graph.dependencies_of(node)) <= set(graph.dependencies_of(other)):
            yield node < other


def test_what_accumulates_a_gradient_goes_along():
    program = weight_gradients_first(program_of("pipeline", batch_per_replica=8, fused_accumulation=False))
    for graph in program.graphs:
        adds = [node for node, name in enumerate(graph.names) if name == "accumulate_gradient"]
        makers = [int(graph.dependencies_of(node).max()) for node in adds]
        of_products = [(node, made) for node, made in zip(adds, makers, strict=True) if "weight" in graph.names[made]]
        assert of_products
        assert all(node == made + 1 for node, made in of_products)


# ---- Equation (1)


def test_fsdp_of_big_on_two_nodes_by_hand():
    """Batch 4, 1,070 MB by levels: 1/16 at 2 GB/s (through the host), 7/8 at 300 GB/s; GEMMs at 250 TFLOP/s."""
    program = time_kernels(
        generate(load_workload("llama-big", {"zero": 3, "layers": 3, "batch_per_replica": 4})), DEVICE
    )
    graph = program.graphs[0]
    layer = next(layer for layer in layers_of(graph) if layer.number == 1)
    (found,) = costs_of(graph, [layer], ProgramCosts(program, CostModel(MACHINE)))
    parameters = 4 * 6656**2 + 3 * 6656 * 17920 + 2 * 6656
    by_levels_s = 2 * parameters * (1 / 8 / 2 / 2e9 + 7 / 8 / 300e9)
    products_s = 2 * 8192 * (parameters - 2 * 6656) / 250e12
    assert found.gather_parameters_s == pytest.approx(by_levels_s, rel=0.01)
    assert found.reduce_gradients_s == pytest.approx(by_levels_s, rel=0.01)
    assert found.activation_gradients_s == pytest.approx(products_s, rel=0.02)
    assert found.weight_gradients_s == pytest.approx(products_s, rel=0.02)
    assert found.gather_activations_s == found.scatter_activations_s == 0
    assert found.activation_first_s == pytest.approx(2 * by_levels_s + 2 * products_s, rel=0.02)  # 143 ms
    assert found.weight_first_s == pytest.approx(2 * by_levels_s + found.others_s, rel=0.02)  # 82 ms


seconds = st.floats(0, 10)


@given(st.builds(LayerCosts, *[seconds] * 7))
def test_both_orders_are_within_their_bounds(costs):
    """No order beats what computes or what communicates, nor takes longer than one thing after another."""
    computes_s = costs.activation_gradients_s + costs.weight_gradients_s
    activations_s = costs.gather_activations_s + costs.scatter_activations_s
    total_s = computes_s + activations_s + costs.gather_parameters_s + costs.reduce_gradients_s + costs.others_s
    for found_s in (costs.activation_first_s, costs.weight_first_s):
        assert max(computes_s, activations_s) * (1 - 1e-12) <= found_s <= total_s * (1 + 1e-12)
    if costs.gather_parameters_s == costs.reduce_gradients_s == 0:
        assert costs.activation_first_s <= costs.weight_first_s * (1 + 1e-12)  # tensor parallelism alone


def test_tensor_parallelism_alone_has_activations_first():
    changes = {"layers": 2, "tensor_parallel": 8, "data_parallel": 2, "sequence_parallel": True, "zero": 0}
    program = time_kernels(generate(load_workload("llama-small", changes)), DEVICE)
    graph = program.graphs[0]
    layers = [layer for layer in layers_of(graph) if layer.number != HEAD]
    for costs in costs_of(graph, layers, ProgramCosts(program, CostModel(MACHINE))):
        assert costs.gather_activations_s > 0 < costs.scatter_activations_s
        assert costs.gather_parameters_s == 0


# ---- The schedule


def test_gathers_go_ahead_of_reductions_they_need_not_wait_for():
    program = program_of("fsdp")
    found = gathers_first(program)
    check_only_reordered(program, found)
    (graph,) = found.graphs
    names = [graph.names[node] for node in np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)]
    backward = names[names.index("gradients_reduce_scatter") :]
    assert backward[:1] == ["gradients_reduce_scatter"]
    last_gather = len(backward) - 1 - backward[::-1].index("parameters_all_gather")
    assert backward[last_gather:].count("gradients_reduce_scatter") == 3  # of two layers, and the embedding's


@pytest.mark.parametrize("batch", [1, 4])
def test_an_order_is_taken_only_where_a_step_is_no_longer(batch):
    workload = load_workload("llama-big", {"zero": 3, "layers": 3, "batch_per_replica": batch})
    found = compare(workload, schedules=("centauri:workload", "centauri"), algorithms=RINGS).outcomes
    assert found[1].makespan_s <= found[0].makespan_s
    about = [{each.about for each in outcome.decisions} for outcome in found]
    assert ["backward of a layer" in each for each in about] == [False, True]


def test_a_pipeline_takes_weight_gradients_first_where_its_step_is_shorter():
    """Gradients of the last micro-batch are reduced beside the gradients of activations that are left."""
    chosen = centauri.pipelined(centauri.DEGREES["TP4 PP3 DP4"], 1, "centauri")
    assert any(each.choice == "weight gradient first" for each in chosen.decisions)
    (step,) = [each for each in chosen.decisions if each.about == "weight gradients first"]
    assert step.choice == "where that is shorter"
    assert step.time_s < step.alternatives_s["nowhere"]


def test_what_is_kept_says_what_the_other_order_would_take():
    """At batch 2 communication and computation take as long, and equation (1) knows no layer before."""
    workload = load_workload("llama-big", {"zero": 3, "batch_per_replica": 2})
    found = compare(workload, schedules=("centauri",), algorithms=RINGS).outcomes[0]
    words = "7 x backward of a layer: activation gradient first, 109 ms, though weight gradient first takes 77.2 ms"
    assert any(str(each).startswith(words) for each in found.decisions)


def test_a_barrier_is_no_obstacle():
    graph = GraphBuilder()
    graph.collective("barrier", 0, group=0)
    program = Program("one", (graph.build(),), np.zeros(16, np.int64), (GroupFamily("world", (tuple(range(16)),)),))
    found = apply_schedule(program, "centauri", machine=Machine(DEVICE, CLUSTER))
    assert simulate(found, CLUSTER).makespan_s > 0
