"""Schedules ask nodes' roles and layers, never their names; traces of ours carry both."""

from functools import lru_cache

import chakra_messages as chakra
import numpy as np
import pytest
from strategies import examples

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.host import issue
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import ConfigError
from scaleout.program.graph import COLLECTIVES, HEAD, NONE, NodeKind, NodeRole
from scaleout.schedule import SCHEDULES, plan_schedule
from scaleout.schedule.out_of_order import layers_of
from scaleout.simulation.run import simulate
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate

DEVICE = load_device("a100-80g")
CLUSTER = load_topology("a100-cluster-a-2")
TRACKS = load_device("t3-gpu")
"""The device of schedules that need a section of its file."""
H200 = load_device("h200")
SMALL = {"layers": 2, "data_parallel": 16}
PIPELINE = {"pipeline_parallel": 4, "data_parallel": 4, "batch_per_replica": 4, "microbatch": 1}

JOBS = {
    "ddp": ("llama-small", SMALL),
    "fsdp": ("llama-small", {**SMALL, "zero": 3, "recompute": "full"}),
    "tensor": ("llama-small", {"layers": 2, "tensor_parallel": 4, "sequence_parallel": True, "data_parallel": 4}),
    "interleaved": ("llama-small", {**PIPELINE, "layers": 8, "pipeline_schedule": "interleaved_1f1b"}),
    "zero bubble": ("llama-small", {**PIPELINE, "layers": 4, "pipeline_schedule": "zb_h1"}),
    "experts": ("mixtral-8x7b", {"layers": 2, "data_parallel": 16}),
    "dlrm": ("dlrm-128", {"data_parallel": 16}),
    "resnet": ("resnet-50", {"data_parallel": 16, "input_per_sample": "1 ms"}),
}
_TRIED = {load_workload(name).kind for name, _ in JOBS.values()}
JOBS |= {
    kind: (each.name, {"data_parallel": 16 * each.data_parallel // each.num_ranks})
    for kind, each in examples().items()
    if kind not in _TRIED
}
"""Besides, a shipped workload of each family that is not among these."""
each_job = pytest.mark.parametrize("job", JOBS)
each_schedule = pytest.mark.parametrize("schedule", [*SCHEDULES, "overlap+fused", "centauri:order"])


@lru_cache
def program_of(job):
    return time_kernels(generate(load_workload(*JOBS[job])), DEVICE)


def renamed(program):
    """The program with nodes and phases whose names say nothing."""
    return program.map_graphs(
        lambda graph: graph.with_columns(
            names=tuple(f"n{node}" for node in range(len(graph))),
            phases=tuple(f"p{number}" for number in range(len(graph.phases))),
        )
    )


def outcome(program, schedule):
    """How long a step takes, and what was decided; or why there is no such step."""
    machine = Machine(TRACKS if getattr(SCHEDULES.get(schedule), "needs", "") else DEVICE, CLUSTER)
    try:
        planned = plan_schedule(program, schedule, machine=machine)
    except ConfigError as error:
        return str(error), ()
    return simulate(planned.program, CLUSTER).makespan_s, planned.decisions


@each_job
@each_schedule
def test_no_schedule_reads_names(job, schedule):
    program = program_of(job)
    assert outcome(renamed(program), schedule) == outcome(program, schedule)


@each_job
def test_no_host_reads_names(job):
    program = program_of(job)
    named, nameless = (issue(each, H200, host="eager") for each in (program, renamed(program)))
    for one, other in zip(named.graphs, nameless.graphs, strict=True):
        assert (one.issue_s == other.issue_s).all()


@each_schedule
@pytest.mark.parametrize("job", ["fsdp", "tensor", "interleaved"])
def test_schedules_work_on_traces_as_on_what_was_traced(job, schedule, tmp_path):
    program = program_of(job)
    chakra.save_program(program, tmp_path, name="job", facts={})
    assert outcome(chakra.load_program(tmp_path).program, schedule) == outcome(program, schedule)


def test_a_trace_that_states_no_roles_is_scheduled_by_what_it_depends_on():
    plain = program_of("fsdp").map_graphs(
        lambda graph: graph.with_columns(role=np.zeros(len(graph), np.int64), layer=np.full(len(graph), NONE))
    )
    assert all(layers_of(graph) == [] for graph in plain.graphs)
    found, overlapped = outcome(plain, "out-of-order"), outcome(plain, "overlap")
    assert found == overlapped


@each_job
def test_a_node_has_one_pass_and_one_job(job):
    jobs = [role for role in NodeRole if role >= NodeRole.WEIGHTS]
    passes = [role for role in NodeRole if role < NodeRole.WEIGHTS]
    for graph in program_of(job).graphs:
        for roles in (passes, jobs):
            assert (sum(graph.has_role(role).astype(int) for role in roles) <= 1).all()


@pytest.mark.parametrize("job", ["ddp", "fsdp", "tensor", "interleaved", "zero bubble", "experts"])
def test_roles_and_layers_are_those_of_a_transformer(job):
    workload = load_workload(*JOBS[job])
    graphs = program_of(job).graphs
    layers = {*range(workload.layers), HEAD}
    assert {*np.concatenate([graph.layer for graph in graphs]).tolist()} == {*layers, NONE}
    for graph in graphs:
        weights, inputs = (
            graph.has_role(role) & (graph.layer != HEAD)
            for role in (NodeRole.WEIGHT_GRADIENT, NodeRole.ACTIVATION_GRADIENT)
        )
        assert (graph.kind[weights | inputs] == NodeKind.COMPUTE).all()
        counts = [np.bincount(graph.layer[nodes], minlength=workload.layers) for nodes in (weights, inputs)]
        assert (counts[0] == counts[1]).all()  # each GEMM with weights has both
        gathers, reduces = graph.has_role(NodeRole.PARAMETERS), graph.has_role(NodeRole.GRADIENTS)
        assert {COLLECTIVES[kind] for kind in graph.collective[gathers].tolist()} <= {"all_gather"}
        assert {COLLECTIVES[kind] for kind in graph.collective[reduces].tolist()} <= {"all_reduce", "reduce_scatter"}
        assert gathers.any() == (workload.zero > 0)
        assert (graph.has_role(NodeRole.DEFERRED).any()) == (job == "zero bubble")
