"""Shards with copies (hybrid sharding) whose copies step a part each: what moves, who waits, memory, time, bad input.

Symbols: d ranks that shard; c copies of each shard; P parameters of a rank; m micro-batches.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.cli import main
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.program.graph import COLLECTIVES, NodeKind
from scaleout.schedule.centauri.model_tier import model_tier
from scaleout.study.comparison import compare
from scaleout.study.job import Job, run
from scaleout.study.search.lower_bound import lower_bounds_of
from scaleout.validation.papers.centauri import RINGS, gain, sharded
from scaleout.workloads.families import FAMILIES, load_workload
from scaleout.workloads.generate import generate
from scaleout.workloads.memory import peak
from scaleout.workloads.memory.advice import advise
from scaleout.workloads.pipeline import PIPELINES

A100, H200 = load_device("a100-80g"), load_device("h200")
HEADER = {"description": "a test", "source": "none", "topology": "ring-128", "device": "h200"}
MODEL = {
    "kind": "transformer", "hidden": 128, "layers": 8, "heads": 8, "kv_heads": 4, "ffn": 192, "vocabulary": 160,
    "sequence": 64, "batch_per_replica": 8, "gradient_bucket": 60_000, "zero": 3,
}  # fmt: skip
MOE = MODEL | {"kind": "moe", "experts": 4, "top_k": 2, "kv_heads": 8}
HYBRID = {"data_parallel": 8, "shard_ranks": 4, "batch_per_replica": 1}


def workload(model=MODEL, **keys):
    values = HEADER | dict(model) | keys
    return FAMILIES[values["kind"]].model_validate(values)


def levels(shard, copies, *, port=5e9, within=300e9):
    """Ranks that shard within a node, and copies between nodes."""
    return Topology("levels", (Dimension("switch", shard, within, 0.0), Dimension("switch", copies, port, 0.0)))


def payload(job):
    """Name of collective and family to the bytes that a rank of each role hands to it, added up."""
    program, found = generate(job), Counter()
    for graph in program.graphs:
        for node in np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist():
            family = program.groups[graph.group[node]].name
            found[COLLECTIVES[graph.collective[node]], family] += int(graph.bytes[node])
    return dict(found)


def step_s(job, schedule, topology, device=H200):
    return compare(job, topology=topology, device=device, schedules=(schedule,)).outcomes[0].makespan_s


# ---- What moves


@st.composite
def jobs(draw):
    """Jobs whose shards have copies, under any pipeline; dense, or with experts, which have none."""
    name = draw(st.sampled_from(sorted(PIPELINES)))
    stages = draw(st.sampled_from([1, 2, 4])) if PIPELINES[name].num_chunks == 1 else draw(st.sampled_from([2, 4]))
    model, tensor = draw(st.sampled_from([(MODEL, 1), (MODEL, 2), (MOE, 1)]))
    shards, copies, context = draw(st.sampled_from([(2, 2, 1), (4, 2, 1), (2, 4, 1), (2, 2, 2), (4, 2, 2)]))
    return workload(
        model, pipeline_schedule=name, pipeline_parallel=stages, tensor_parallel=tensor, context_parallel=context,
        data_parallel=shards * copies // context, shard_ranks=shards,
        microbatch=draw(st.sampled_from([1, 2])) if stages < 4 else 1,
        gradient_dtype=draw(st.sampled_from(["bf16", "fp32"])), replicas_at_end=draw(st.booleans()),
        layout_copies=draw(st.booleans()), prefetch=draw(st.sampled_from([0, 1])),
        rank_order=tuple(draw(st.permutations(["tensor", "context", "data", "pipeline"]))),
    )  # fmt: skip


def parted(job):
    return type(job).model_validate({**job.model_dump(), "overlap_parameter_gather": True})


@settings(max_examples=40)
@given(jobs())
def test_as_much_is_reduced_and_each_parameter_gathered_once(job):
    """An all-reduce is a reduce-scatter and an all-gather of as many bytes; the second moves parameters, and once."""
    whole, parts = payload(job), payload(parted(job))
    (axis,) = {name for kind, name in whole if kind == "all_reduce" and name.endswith("_copy")}
    summed, gathered = whole.pop(("all_reduce", axis)), parts.pop(("all_gather", axis))
    assert parts.pop(("reduce_scatter", axis)) == summed
    assert parts == whole
    reductions = 1 if job.replicas_at_end else job.num_microbatches / PIPELINES[job.pipeline_schedule].layout.copies
    assert gathered == pytest.approx(summed / reductions * job.item_bytes / job.gradient_bytes, rel=1e-2)
    assert generate(parted(job)).total_flops == generate(job).total_flops


@settings(max_examples=25)
@given(jobs(), st.sampled_from(["baseline", "overlap", "centauri:order"]))
def test_every_job_comes_to_its_end(job, schedule):
    result = compare(
        parted(job), topology=Topology("test", (Dimension("switch", job.num_ranks, 50e9, 1e-6),)), device=H200,
        schedules=(schedule,),
    ).outcomes[0].result  # fmt: skip
    busy_s = max(line.duration_s[line.graph.kind == NodeKind.COMPUTE].sum() for line in result.timelines)
    assert result.makespan_s >= busy_s * (1 - 1e-12)


def test_a_layer_by_hand():
    """One layer, d = 4 and c = 2: P = 2 h^2 + 2 h h/2 + 2 h f and two norms."""
    held = 2 * 128**2 + 2 * 128 * 64 + 2 * 128 * 192 + 2 * 128
    found = payload(workload(**HYBRID, layers=1, vocabulary=0, norm="rms_norm", overlap_parameter_gather=True))
    last_norm = 128
    assert found == {
        ("all_gather", "data_copy"): 2 * (held + last_norm) // 4,
        ("reduce_scatter", "data_copy"): 2 * (held + last_norm) // 4,
        ("all_gather", "data_shard"): 2 * 2 * (held + last_norm),
        ("reduce_scatter", "data_shard"): 2 * (held + last_norm),
    }


# ---- Who waits


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_layer_is_gathered_over_copies_before_it_gathers_itself_and_once_a_step(microbatches, eager):
    job = workload(
        **HYBRID | {"batch_per_replica": microbatches}, microbatch=1, layout_copies=eager, overlap_parameter_gather=True
    )
    program = generate(job)
    (graph,) = program.graphs
    family = [program.groups[number].name if number >= 0 else "" for number in graph.group.tolist()]
    of = [(name.rpartition("_clone")[0] or name, family[node]) for node, name in enumerate(graph.names)]
    over_copies = [node for node, each in enumerate(of) if each == ("parameters_all_gather", "data_copy")]
    assert over_copies == list(range(8 + 2))  # embedding, layers and head
    assert all(graph.dependencies_of(node).size == 0 for node in over_copies)
    waiting = {
        gather: node for node in range(len(graph)) for gather in graph.dependencies_of(node).tolist()
        if gather in over_copies
    }  # fmt: skip
    assert list(waiting) == over_copies
    own = [node for node, each in enumerate(of) if each == ("parameters_all_gather", "data_shard")][: len(over_copies)]
    if eager:
        own = [int(graph.dependencies_of(node)[0]) for node in own]  # what fills the buffer
        assert all(graph.names[node] == "parameters_copy_in" for node in own)
    assert list(waiting.values()) == own


def test_gradients_are_divided_over_copies_behind_their_shards_and_a_part_is_stepped():
    job = workload(**HYBRID, overlap_parameter_gather=True)
    program = generate(job)
    (graph,) = program.graphs
    names = [group.name for group in program.groups]
    parts = [
        node for node, name in enumerate(graph.names)
        if name == "gradients_reduce_scatter" and names[graph.group[node]] == "data_copy"
    ]  # fmt: skip
    assert len(parts) == 8 + 2
    for node in parts:
        (before,) = graph.dependencies_of(node).tolist()
        assert (graph.names[before], names[graph.group[before]]) == ("gradients_reduce_scatter", "data_shard")
        assert graph.bytes[before] == 4 * graph.bytes[node]
    (optimizer,) = (call for call in graph.kernels if call.op == "adamw_fused")
    (alone,) = (call for call in generate(workload(zero=0)).graphs[0].kernels if call.op == "adamw_fused")
    assert optimizer.sizes["parameters"] == -(-alone.sizes["parameters"] // 8)


# ---- Memory


@pytest.mark.parametrize(("at_end", "gradients"), [(False, 8), (True, 4)])
def test_states_are_divided_over_shards_and_copies_and_parameters_over_shards(at_end, gradients):
    """Gradients that wait for the end of the step are whole shards."""
    keys = {**HYBRID, "gradient_dtype": "fp32", "replicas_at_end": at_end}
    alone = peak(workload(zero=0)).bytes_of["parameters"] / 2
    before, after = (peak(workload(**keys, overlap_parameter_gather=on)).bytes_of for on in (False, True))
    for found, expected in ((before, (2 / 4, 4 / 4, 12 / 4)), (after, (2 / 4, 4 / gradients, 12 / 8))):
        kinds = ("parameters", "gradients", "optimizer_states")
        assert [found[kind] / alone for kind in kinds] == pytest.approx(list(expected), rel=1e-3)
    assert after["communication_buffers"] == before["communication_buffers"]


def test_what_would_fit_without_copies_is_still_said():
    job = workload(**HYBRID, overlap_parameter_gather=True)
    less = [each.settings for each in advise(job, 1.0)]
    assert any("shard_ranks=null" in each and "overlap_parameter_gather=false" in each for each in less), less


# ---- Time


def test_a_slow_port_is_idle_in_forward_no_more():
    """Where the port is slower than all kernels, what is saved is forward, but for its first gather and last layer.

    Before: forward, the head's and last layer's backward, then all-reduces. After: gathers, the last layer's forward
    and backward, reduce-scatters. A layer by hand: 2 (4 h^2 + 3 h f + 2 h) bytes, 1/4 of it, half of which crosses.
    """
    keys = {"layers": 4, "vocabulary": 0, **HYBRID, "shard_ranks": 4, "optimizer": "none"}
    job = load_workload("llama-big", keys | {"zero": 3})
    topology = levels(4, 2, port=1e9, within=1e15)
    found = {
        on: compare(job.model_copy(update={"overlap_parameter_gather": on}), topology=topology, device=A100,
                    schedules=("overlap",)).outcomes[0].result
        for on in (False, True)
    }  # fmt: skip
    one_way_s = 2 * (4 * 6656**2 + 3 * 6656 * 17920 + 2 * 6656) / 4 / 2 / 1e9
    line = found[True].timelines[0]
    lengths_s = line.duration_s[(line.graph.kind == NodeKind.COLLECTIVE) & (line.duration_s > 1e-3)]
    assert lengths_s == pytest.approx(one_way_s, rel=1e-3)
    assert len(lengths_s) == 2 * 4
    phases = np.array(line.graph.phases)[line.graph.phase]
    forward = (line.graph.kind == NodeKind.COMPUTE) & np.char.endswith(phases, "forward")
    layer_s = float(line.duration_s[forward].sum()) / 4
    assert layer_s < one_way_s
    saved_s = found[False].makespan_s - found[True].makespan_s
    assert saved_s == pytest.approx(3 * layer_s, rel=0.02)


@settings(max_examples=20)
@given(
    microbatches=st.integers(1, 3), dtype=st.sampled_from(["bf16", "fp32"]), at_end=st.booleans(),
    schedule=st.sampled_from(["baseline", "overlap", "centauri"]), port=st.sampled_from([1e7, 5e10]),
)  # fmt: skip
def test_no_schedule_beats_the_least_time_of_a_search(microbatches, dtype, at_end, schedule, port):
    """Nor by dividing an all-reduce of fp32 gradients, of which only parameters in bf16 are gathered, and once."""
    job = workload(
        **HYBRID | {"batch_per_replica": microbatches}, microbatch=1, gradient_dtype=dtype, replicas_at_end=at_end
    )
    topology = levels(4, 2, port=port)
    least_s = max(
        lower_bounds_of(topology, H200).kernels_s(job, ordered=True), lower_bounds_of(topology, H200).links_s(job)
    )
    assert least_s <= run(Job(job, H200, topology, schedule)).makespan_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("batch", "least", "most"), [(1, 1.07, 1.13), (2, 1.14, 1.20), (4, 1.05, 1.12), (8, 1.0, 1.02)]
)
def test_what_fig_10_gains_where_shards_stay_within_a_node(batch, least, most):
    """FSDP 8 x DP 6, by hand: half of T = 1.2 s over the ports runs beside forward, of a = 0.12 s a sequence.

    From a + max(2 a, T) to max(a, T / 2) + max(2 a, T / 2), and what is left at both ends: 1.09, 1.18, 1.10 and 1.00.
    """
    before, after = (sharded(8, batch, name) for name in ("zero-3", "centauri"))
    assert after.job.overlap_parameter_gather
    assert least < gain(before, after) < most


@pytest.mark.parametrize("ranks", [16, 4])
def test_nowhere_in_fig_10_is_the_whole_all_reduce_faster_but_for_a_quarter_of_a_percent(ranks):
    """Where kernels take as long as links: 0.2% of FSDP16 + DP3 at batch 8; the plan is chosen by layers, not steps."""
    for batch in (1, 2, 4, 8):
        whole = compare(
            sharded(ranks, batch, "zero-3").job, topology=load_topology("a100-cluster-a-6"), device=A100,
            schedules=("centauri:order",), algorithms=RINGS,
        ).outcomes[0]  # fmt: skip
        assert sharded(ranks, batch, "centauri").step_s < 1.0025 * whole.makespan_s


# ---- The model tier


def test_the_tier_says_what_moved():
    found = model_tier(workload(**HYBRID), Machine(A100, levels(4, 2)))
    assert found.changes == {"overlap_parameter_gather": True}
    assert str(found.decisions[0]).startswith(
        "model tier: zero 3, the all-reduce over 2 copies of shards divided: gradients reduce-scattered as backward "
        "makes them, parts of shards stepped, and gathered in the next forward, "
    )
    costs = found.costs
    shard_bytes = payload(found.workload)["all_gather", "data_copy"]
    assert [costs.gather_s, costs.reduce_s] == pytest.approx([shard_bytes / 2 / 5e9] * 2, rel=1e-6)
    assert found.workload.num_ranks == 8


def test_copies_that_are_summed_at_the_end_stay():
    job = workload(**HYBRID, replicas_at_end=True)
    found = model_tier(job, Machine(A100, levels(4, 2)))
    assert found.workload is job
    assert "replicas_at_end keeps the all-reduce over copies of shards whole" in found.decisions[0].reason


# ---- Bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["zero=3"],
            "layer by layer anyway, and of 16 shards over 16 ranks none has replicas; set shard_ranks to a divisor of "
            "16 between, or zero to 1 or 2",
        ),
        (["zero=3", "shard_ranks=16"], "of 16 shards over 16 ranks none has replicas"),
        (["zero=3", "shard_ranks=1"], "shard_ranks 1 shards nothing; set zero to 0, or shard_ranks to more"),
        (["zero=0"], "with zero 0 stepped parameters are gathered by nobody; set zero to 1 or 2, or leave it out"),
        (["zero=3", "shard_ranks=5"], "shard_ranks 5 does not divide the 16 ranks"),
    ],
)
def test_parts_of_shards_without_copies_end_with_2(settings, message, capsys, monkeypatch):
    arguments = [part for each in settings for part in ("--set", each)]
    monkeypatch.setattr(
        "sys.argv", ["scaleout", "run", "llama-small", "--set", "overlap_parameter_gather=true", *arguments]
    )
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in " ".join(error.split())
    assert "Traceback" not in error
