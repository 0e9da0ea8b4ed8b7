"""Laws of the schedules that decide; out-of-order and coconet, which Centauri is compared with, by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import jobs, pipelines
from test_layer_tier import JOBS, check_only_reordered
from test_layer_tier import program_of as job_of
from test_partition import check_conserved, columns_of
from test_workload_partition import CLUSTER, MACHINE, add_product, program_of

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta.cost import collective_cost
from scaleout.program.graph import COLLECTIVES, GraphBuilder, NodeKind
from scaleout.schedule import SCHEDULES, apply_schedule, plan_schedule
from scaleout.schedule.out_of_order import defer, layers_of
from scaleout.simulation.run import simulate
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate

DEVICE = load_device("a100-80g")
RINGS = MACHINE.algorithms
DECIDING = [name for name, each in SCHEDULES.items() if each.decides]
EXCLUSIVE = [name for name in DECIDING if SCHEDULES[name].exclusive]
each_job = pytest.mark.parametrize("job", JOBS)


@pytest.mark.parametrize("schedule", DECIDING)
@given(job=st.one_of(jobs(max_roles=2), pipelines()))
@settings(max_examples=40)
def test_work_is_conserved_and_the_input_untouched(schedule, job):
    program, topology = job
    before = columns_of(program)
    machine = Machine(DEVICE, topology)
    found = apply_schedule(program, schedule, machine=machine)
    assert columns_of(program) == before
    assert columns_of(apply_schedule(program, schedule, machine=machine)) == columns_of(found)
    check_conserved(program, found)
    assert simulate(found, topology).makespan_s >= 0


@pytest.mark.parametrize("schedule", DECIDING)
@pytest.mark.parametrize("job", ["fsdp", "ddp", "sequence", "pipeline"])
def test_a_step_is_never_longer_than_overlapped(schedule, job):
    program = time_kernels(job_of(job), DEVICE)
    before_s, after_s = (
        simulate(apply_schedule(program, name, machine=MACHINE), CLUSTER, algorithms=RINGS).makespan_s
        for name in ("overlap", schedule)
    )
    assert after_s <= before_s


@pytest.mark.parametrize("schedule", DECIDING)
def test_without_a_machine_there_is_nothing_to_weigh(schedule):
    with pytest.raises(ConfigError, match=f"{schedule} weighs what collectives cost; say which device and network"):
        apply_schedule(job_of("ddp"), schedule)


@pytest.mark.parametrize("schedule", EXCLUSIVE)
def test_what_another_schedule_cuts_is_refused(schedule):
    with pytest.raises(ConfigError, match=f"fused and {schedule} replace the same operators"):
        apply_schedule(job_of("ddp"), f"fused+{schedule}", machine=MACHINE)


# ---- Out-of-order


@each_job
@pytest.mark.parametrize("k", [1, 2, 100])
def test_putting_off_only_reorders(job, k):
    program = job_of(job)
    check_only_reordered(program, defer(program, k))


def test_the_first_layers_come_last_and_in_reverse():
    """Of three layers the first two: behind everything else of backward, gradients of the first layer ahead."""
    (graph,) = defer(job_of("ddp"), 2).graphs
    names = [name for name in graph.names if name.endswith("_gradient") and name.startswith("layer_")]
    layers = [name.split("_")[1] for name in names if name.endswith("weight_gradient")]
    assert layers == ["2"] * 4 + ["0"] * 4 + ["1"] * 4
    first = graph.names.index("layer_0_attention_qkv_weight_gradient")
    assert "layer_0_attention_qkv_input_gradient" in graph.names[:first]
    assert "embedding_bwd" in graph.names[:first]
    reductions = [
        int(graph.bytes[node])
        for node in np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)
        if any(graph.dependencies_of(node) >= first)
    ]
    qkv = 2 * 3 * 4096 * 4096
    assert reductions[0] == qkv  # as soon as the first deferred gradient is made
    assert len(reductions) == 8


def test_each_micro_batch_puts_off_its_own():
    for graph in defer(job_of("pipeline"), 100).graphs:
        sends = [node for node in range(len(graph)) if graph.names[node] == "gradients_send"]
        for layer in layers_of(graph):
            late = [send for send in sends if graph.microbatch[send] == graph.microbatch[layer.nodes[0]] + 1]
            assert all(node < send for node in layer.weights for send in late)


def test_a_pipeline_gains_and_says_of_how_many_layers():
    """Stages wait for gradients of activations, which no longer wait for those of weights."""
    changes = {"layers": 12, "pipeline_parallel": 4, "data_parallel": 4, "batch_per_replica": 4, "microbatch": 1}
    program = time_kernels(generate(load_workload("llama-small", changes)), DEVICE)
    planned = plan_schedule(program, "out-of-order", machine=MACHINE)
    (words,) = map(str, planned.decisions)
    assert words.startswith("gradients of weights of the first 3 of 3 layers: deferred")
    before_s = simulate(apply_schedule(program, "overlap"), CLUSTER, algorithms=RINGS).makespan_s
    found_s = simulate(planned.program, CLUSTER, algorithms=RINGS).makespan_s
    assert found_s < 0.99 * before_s
    assert planned.result.makespan_s == found_s


# ---- CoCoNet


ROWS, WIDTH = 8192, 4096


def product_and_all_reduce(compute_s, more_bytes=0):
    graph = GraphBuilder()
    made = add_product(graph, compute_s, (), m=ROWS, n=WIDTH, k=WIDTH)
    graph.collective("all_reduce", 2 * ROWS * WIDTH + more_bytes, group=0, after=(made,))
    return program_of(graph)


def test_a_product_and_its_all_reduce_are_a_pipeline_of_scatters_and_gathers():
    """The first part of the GEMM, and then chunk after chunk, each a reduce-scatter and an all-gather."""
    program = product_and_all_reduce(1.3e-3)
    found = apply_schedule(program, "coconet", machine=MACHINE)
    (graph,) = found.graphs
    kinds = [COLLECTIVES[kind] for kind in graph.collective if kind >= 0]
    chunks = len(kinds) // 2
    assert chunks > 1
    assert kinds == ["reduce_scatter", "all_gather"] * chunks
    assert found.groups == program.groups
    placement = place(CLUSTER, tuple(range(16)))
    chunk_s = sum(
        collective_cost(kind, 2 * ROWS * WIDTH / chunks, placement, "ring").time_s
        for kind in ("reduce_scatter", "all_gather")
    )
    makespan_s = simulate(found, CLUSTER, algorithms=RINGS).makespan_s
    assert makespan_s == pytest.approx(float(graph.duration_s[0]) + chunks * chunk_s, rel=1e-6)


def test_groups_stay_whole_and_nothing_changes_places():
    program = time_kernels(generate(load_workload("llama-big", {"batch_per_replica": 8, "layers": 3})), DEVICE)
    planned = plan_schedule(program, "coconet", machine=MACHINE)
    assert planned.program.groups == program.groups
    order = [name for name in planned.program.graphs[0].names if name in program.graphs[0].names]
    assert order == [name for name in program.graphs[0].names if name in order]
    assert any("all_reduce of 254 MiB over data: cut into" in words for words in map(str, planned.decisions))


def test_where_chunks_lose_the_program_stays_whole():
    """All is communication: chunks only pay latencies again."""
    program = product_and_all_reduce(1e-6, 2)
    planned = plan_schedule(program, "coconet", machine=Machine(DEVICE, load_topology("a100-cluster-a-2")))
    assert [COLLECTIVES[kind] for kind in planned.program.graphs[0].collective if kind >= 0] == ["all_reduce"]
    (decision,) = planned.decisions
    assert (decision.choice, list(decision.alternatives_s)) == ("whole", ["substituted and in chunks"])
    assert decision.alternatives_s["substituted and in chunks"] >= decision.time_s
    assert planned.runs_as == "overlap"
