"""Centauri's model tier: equation (2) by hand and by brute force, the paper's choices, and what does not fit."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.cli import main
from scaleout.cli.options import parse_settings
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta.cost import send_cost
from scaleout.schedule.centauri.model_tier import Costs, costs_of_stages, model_tier, step_s
from scaleout.study.comparison import compare
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate
from scaleout.workloads.memory import peak
from scaleout.workloads.pipeline import named

A100 = load_device("a100-80g")
CLUSTER = load_topology("a100-cluster-a-6")
RINGS = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), "ring")
NODES = Topology("nodes", (Dimension("switch", 4, 300e9, 0.0), Dimension("switch", 4, 5e9, 0.0)))
"""Tensor and pipeline axes within a node, data between nodes."""

INTERLEAVED = {
    "tensor_parallel": 4, "pipeline_parallel": 3, "data_parallel": 4, "layers": 30, "sequence_parallel": True,
    "pipeline_schedule": "interleaved_1f1b", "topology": "a100-cluster-a-6",
}  # fmt: skip


def big(microbatch=1, microbatches=6, **changes):
    sizes = {"microbatch": microbatch, "batch_per_replica": microbatch * microbatches}
    return load_workload("llama-big", INTERLEAVED | sizes | changes)


def small(**changes):
    keys = {
        "tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 4, "hidden": 1024, "heads": 8, "ffn": 2048,
        "layers": 4, "sequence": 512, "microbatch": 1, "batch_per_replica": 8, "vocabulary": 0,
        "pipeline_schedule": "interleaved_1f1b", "rank_order": ("tensor", "pipeline", "context", "data"),
    }  # fmt: skip
    return load_workload("llama-big", keys | changes)


# ---- Equation (2)


def test_the_objective_by_hand():
    costs = Costs(gather_s=10.0, reduce_s=9.0, forward_s=2.0, backward_s=4.0)
    assert [costs.exposed_s(launched) for launched in ((1, 1), (3, 2), (5, 2), (5, 3))] == [13.0, 5.0, 1.0, 0.0]


def test_costs_by_hand():
    """A chunk of one layer, 4 h^2 + 3 h f and two norms over 2 ranks; 3/4 of it passes a port of 5 GB/s, twice."""
    (*_, last) = costs_of_stages(
        small(zero=1, overlap_gradient_reduce=True, overlap_parameter_gather=True), Machine(A100, NODES, RINGS)
    )
    size_bytes = 2 * ((4 * 1024**2 + 3 * 1024 * 2048) / 2 + 3 * 1024)  # with the norm in front of the head
    assert last.gather_s == pytest.approx(3 / 4 * size_bytes / 5e9, rel=1e-6)
    assert last.reduce_s == pytest.approx(last.gather_s)
    assert 1.5 < last.backward_s / last.forward_s < 3


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_group_that_fits_takes_less_and_none_that_takes_as_little_is_smaller(data):
    m, chunks = data.draw(st.integers(2, 12)), data.draw(st.sampled_from([2, 4]))
    job = small(
        batch_per_replica=m, layers=8, virtual_stages=chunks, zero=data.draw(st.integers(0, 2)),
        sequence=data.draw(st.sampled_from([128, 512, 2048])),
    ) if m % 2 == 0 else small(batch_per_replica=m, microbatch_group=m, layers=8, virtual_stages=chunks)  # fmt: skip
    machine = Machine(A100, NODES, RINGS)
    chosen = model_tier(job, machine).workload
    groups = [
        size
        for size in range(2, m + 1)
        if named("interleaved_1f1b", size).check(2, m, chunks) is None and job.microbatch_group in (None, size)
    ]
    held = {size: peak(chosen.model_copy(update={"microbatch_group": size})).total_bytes for size in groups}
    memory_bytes = data.draw(st.sampled_from(sorted(held.values()))) * (1 + 1e-9)
    found = model_tier(job, machine, memory_bytes=memory_bytes)
    stages = costs_of_stages(found.workload, machine)
    exposed_s = {
        size: max(each.exposed_s((size, m % size or size)) for each in stages)
        for size in groups
        if held[size] <= memory_bytes
    }
    named_by_equation = min(exposed_s, key=exposed_s.__getitem__)
    hops_s = [send_cost(job.message_bytes, NODES, source=rank, destination=rank ^ 2).time_s for rank in (0, 2)]
    steps_s = {
        size: step_s(chosen.model_copy(update={"microbatch_group": size}), stages, hops_s)
        for size in exposed_s
        if m % size == 0 or size == named_by_equation
    }
    least_s = min(steps_s.values()) * (1 + 1e-9)
    assert found.workload.microbatch_group == min(size for size, each in steps_s.items() if each <= least_s)
    assert found.costs.exposed_s(found.launched) == exposed_s[found.workload.microbatch_group]
    assert peak(found.workload).total_bytes <= memory_bytes


@pytest.mark.parametrize(("microbatch", "group"), [(1, 6), (2, 6), (4, 6), (8, 3)])
def test_the_equation_launches_small_micro_batches_together_and_large_ones_by_the_depth(microbatch, group):
    """Sec. 5.2, TP4 + PP3 + DP4: the depth of the pipeline, 3, at batch 8 (there 4), 6 "in small batches"."""
    found = model_tier(big(microbatch), Machine(A100, CLUSTER, RINGS))
    stages = costs_of_stages(found.workload, Machine(A100, CLUSTER, RINGS))
    exposed_s = {size: max(each.exposed_s((size, size)) for each in stages) for size in (3, 6)}
    assert min(exposed_s, key=exposed_s.__getitem__) == group
    assert found.launched == (6, 6)  # at batch 8 for its messages, which the equation does not have
    assert ("in groups of 3, as equation (2) names" in found.decisions[-1].alternatives_s) == (group == 3)
    assert found.changes == {
        "zero": 1, "overlap_gradient_reduce": True, "overlap_parameter_gather": True, "microbatch_group": 6,
    }  # fmt: skip


@given(forward_s=st.floats(0.1, 10), backward_s=st.floats(0.1, 10), hop_s=st.floats(0, 1))
def test_a_pipeline_by_hand(forward_s, backward_s, hop_s):
    """Two places, four micro-batches in two chunks: (m v + p - 1)(F + B); in groups of two each waits for messages."""
    stages = [Costs(0.0, 0.0, forward_s, backward_s)] * 4
    depth_first, breadth_first = (
        step_s(small(batch_per_replica=4, microbatch_group=size), stages, [hop_s, hop_s]) for size in (2, 4)
    )
    plain_s = 9 * (forward_s + backward_s)
    assert plain_s * (1 - 1e-9) <= breadth_first <= depth_first + 1e-9
    assert step_s(small(batch_per_replica=4, microbatch_group=2), stages, [0.0, 0.0]) == pytest.approx(plain_s)
    if hop_s > 0.01:
        assert breadth_first < depth_first


@pytest.mark.parametrize(("group", "gathers_s", "reductions_s"), [(2, 35.0, 43.0), (4, 33.0, 39.0)])
def test_gathers_and_reductions_by_hand(group, gathers_s, reductions_s):
    """Two places of two chunks of one layer each, four micro-batches, F = 1 and B = 2: without communication 27 s.

    Gathers of 5 s a chunk: place 0 begins its second chunk at 10, not at 2 or, after all four micro-batches, at 4.
    Reductions of 10 s: of its second chunk with two or four backwards of the first to go, at 23 or 19; then the first.
    """

    def step_of(costs):
        return step_s(small(batch_per_replica=4, microbatch_group=group), [costs] * 4, [0.0, 0.0])

    assert step_of(Costs(5.0, 0.0, 1.0, 2.0)) == pytest.approx(gathers_s)
    assert step_of(Costs(0.0, 10.0, 1.0, 2.0)) == pytest.approx(reductions_s)


@pytest.mark.parametrize("microbatch", [1, 4])
def test_the_group_that_is_chosen_is_the_best_of_those_that_are_simulated(microbatch):
    """Equation (2) alone chooses groups of 2, which take 5% longer: each waits for its messages over the port."""
    topology = replace(CLUSTER, dimensions=(CLUSTER.dimensions[0], replace(CLUSTER.dimensions[1], size=2)))
    job = load_workload("llama-small", {
        "tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 4, "layers": 8, "sequence_parallel": True,
        "pipeline_schedule": "interleaved_1f1b", "batch_per_replica": 8 * microbatch, "microbatch": microbatch,
    })  # fmt: skip

    def simulated_s(job):
        return compare(job, topology=topology, schedules=("centauri",), algorithms=RINGS).outcomes[0].makespan_s

    steps_s = {size: simulated_s(job.model_copy(update={"microbatch_group": size})) for size in (2, 3, 4, 5, 6, 8)}
    assert simulated_s(job) <= 1.005 * min(steps_s.values())
    assert simulated_s(job) < 0.96 * steps_s[2]


@pytest.mark.parametrize("microbatch", [1, 4])
def test_what_it_chooses_is_faster_than_passes_alone(microbatch):
    found = compare(big(microbatch), schedules=("overlap", "centauri:order", "centauri"), algorithms=RINGS)
    overlapped, passes, chosen = (outcome.makespan_s for outcome in found.outcomes)
    assert chosen < passes < overlapped
    assert not any(each.about == "model tier" for each in found.outcomes[1].decisions)
    words = str(found.outcomes[2].decisions[0])
    assert words.startswith("model tier: zero 1, parameters gathered in the next forward")
    assert [outcome.workload.zero for outcome in found.outcomes] == [0, 0, 1]


def test_a_group_that_is_given_stays():
    found = model_tier(big(microbatch_group=4, microbatches=8), Machine(A100, CLUSTER, RINGS))
    assert found.workload.microbatch_group == 4
    assert found.launched == (4, 4)


def test_a_last_group_may_be_smaller():
    found = model_tier(big(microbatch_group=4, microbatches=7), Machine(A100, CLUSTER, RINGS))
    assert found.launched == (4, 3)
    assert "in groups of 4, the last of 3" in found.decisions[0].choice


# ---- Nothing to choose


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("dlrm-128", {}, "no training step of a transformer"),
        ("llama-3-8b", {"mode": "prefill"}, "no training step of a transformer"),
        ("llama-big", {"zero": 3}, "zero 3 gathers parameters and reduces gradients layer by layer already"),
        ("llama-big", {"data_parallel": 1, "tensor_parallel": 4}, "no ranks share parameters"),
    ],
)
def test_where_there_is_nothing_to_choose_the_workload_stays(name, changes, reason):
    workload = load_workload(name, changes)
    ranks = Topology("switch", (Dimension("switch", workload.num_ranks, 300e9, 1e-6),))
    found = model_tier(workload, Machine(A100, ranks))
    assert found.workload is workload
    assert reason in found.decisions[0].reason
    assert not found.changes


# ---- Memory


def test_what_is_short_and_what_would_fit_is_said():
    job, machine = big(), Machine(A100, CLUSTER, RINGS)
    with pytest.raises(ConfigError) as caught:
        model_tier(job, machine, memory_bytes=12e9)
    message = str(caught.value)
    least = peak(model_tier(job, machine).workload.model_copy(update={"microbatch_group": 3}))
    assert f"holds {least.total_bytes / 2**30:.3g} GiB on rank 0" in message
    assert "no plan of llama-big fits in the 12 GB of a100-80g" in message
    remedies = [each.partition(" (")[0] for each in message.partition("what would fit: ")[2].split("; or ")]
    assert remedies
    for each in remedies:
        changes = parse_settings(tuple(each.replace("--set ", "").split()))
        changed = type(job).model_validate({**job.model_dump(), **changes})
        ranks = Topology("switch", (Dimension("switch", changed.num_ranks, 25e9, 1e-6),))
        assert peak(model_tier(changed, Machine(A100, ranks), memory_bytes=12e9).workload).total_bytes <= 12e9


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["scaleout", "run", *arguments])
    main()


def test_the_command_says_what_was_chosen_first(capsys, monkeypatch):
    sizes = ["--set", "layers=1", "--set", "vocabulary=0", "--schedule", "centauri"]
    run(monkeypatch, "llama-small", *sizes, "--json")
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert found["decisions"][0]["about"] == "model tier"
    assert found["decisions"][0]["choice"].startswith("zero 1")
    assert len(found["decisions"]) > 1
    run(monkeypatch, "llama-small", *sizes, "-v")
    assert "model tier: zero 1" in capsys.readouterr().out.split("what centauri decided")[1]


def test_memory_is_that_of_what_each_schedule_runs(capsys, monkeypatch):
    sizes = ["--set", "layers=1", "--set", "vocabulary=0", "--schedule", "overlap", "--schedule", "centauri"]
    run(monkeypatch, "llama-small", *sizes, "--json")
    found = json.loads(capsys.readouterr().out)
    as_given, chosen = (load_workload("llama-small", {"layers": 1, "vocabulary": 0, "zero": zero}) for zero in (0, 1))
    assert found["memory"]["memory_by_kind_bytes"] == peak(as_given).bytes_of
    assert ["memory" in each for each in found["results"]] == [False, True]
    held = found["results"][1]["memory"]["memory_by_kind_bytes"]
    assert held["optimizer_states"] == peak(chosen).bytes_of["optimizer_states"] < peak(as_given).total_bytes / 8
    run(monkeypatch, "llama-small", *sizes, "-v")
    printed = capsys.readouterr().out
    assert "memory of the worst rank under overlap, at" in printed
    assert "memory of the worst rank under centauri, at" in printed


def test_a_job_that_does_not_fit_ends_with_2(capsys, monkeypatch):
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, "llama-large", "--set", "batch_per_replica=64", "--schedule", "centauri")
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert "no plan of llama-large fits in the" in error
    assert "Traceback" not in error


def test_more_stages_than_layers_end_with_2(capsys, monkeypatch):
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, "llama-big", "--set", "layers=4", "--set", "pipeline_parallel=8", "--schedule", "centauri")
    assert caught.value.code == 2
    assert "8 stages are more than layers 4" in capsys.readouterr().err


def test_other_schedules_run_the_workload_as_it_is():
    job = small()
    found = compare(job, topology=NODES, device=A100, schedules=("baseline", "overlap", "centauri"))
    own = generate(job)
    for outcome in found.outcomes[:2]:
        assert outcome.workload is job
        assert [graph.names for graph in outcome.result.program.graphs] == [graph.names for graph in own.graphs]
