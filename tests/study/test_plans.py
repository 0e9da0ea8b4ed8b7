"""Plans evaluated block by block: the same step as kernel by kernel, bounds below it, and numbers that add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scaleout
from scaleout.analysis.bounds import of_memory
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.errors import ConfigError
from scaleout.study.search.cost import plan_costs_of
from scaleout.study.search.evaluate import evaluate
from scaleout.study.search.lower_bound import bound_of, lower_bounds_of, stage_bounds_of
from scaleout.study.search.stages import stages_of
from scaleout.workloads.families import load_workload

DEVICE = load_device("h200")
SWITCHES = Topology("switches", (Dimension("switch", 4, 340e9, 2e-6), Dimension("switch", 4, 50e9, 2.7e-6)), 1e-5)
TORUS = Topology("torus", (Dimension("ring", 4, 100e9, 1e-6), Dimension("ring", 4, 100e9, 1e-6)))
ONE_AFTER_ANOTHER = ("gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v")
"""Schedules of one step a slot: nothing of a rank runs beside anything else of it."""


def simulated_s(workload, topology, *, schedule="baseline", host="none"):
    """The same plan kernel by kernel."""
    found = scaleout.compare(workload, topology=topology, device=DEVICE, schedules=[schedule], host=host)
    return found.outcomes[0].makespan_s


@st.composite
def plans(draw, schedules=ONE_AFTER_ANOTHER, exchanges=("all_gather",)):
    """Small models under any mix of axes that 16 ranks have, some with experts, and all that a step can do."""
    pipeline = draw(st.sampled_from([1, 2, 4]))
    tensor = draw(st.sampled_from([n for n in (1, 2, 4) if n * pipeline <= 16]))
    context = draw(st.sampled_from([n for n in (1, 2) if n * tensor * pipeline <= 16]))
    data = 16 // (tensor * pipeline * context)
    microbatches = draw(st.sampled_from([8, 12])) if pipeline > 1 else draw(st.integers(1, 3))
    microbatch = draw(st.sampled_from([1, 2])) if microbatches > 1 else 1
    schedule = draw(st.sampled_from(schedules)) if pipeline > 1 else "1f1b"
    experts = draw(st.booleans())
    model = {
        "kind": "moe", "experts": 4, "top_k": 2, "dense_layers": draw(st.integers(0, 3)),
        "expert_parallel": draw(st.sampled_from([n for n in (1, 2, 4) if data % n == 0])),
    } if experts else {"kind": "transformer"}  # fmt: skip
    zero = draw(st.integers(0, 3))
    shards, group = None, None
    if schedule == "interleaved_1f1b":
        group = draw(st.sampled_from([None, *range(pipeline, microbatches * 2 // microbatch + 1, pipeline)]))
    if zero and not (experts and model["expert_parallel"] > 1):
        shards = draw(st.sampled_from([None, *(n for n in (2, 4) if (data * context) % n == 0)]))
    has_copies = shards is not None and shards < data * context
    return load_workload("llama-3-8b", model | {
        "layers": 8, "hidden": 1024, "heads": 8, "kv_heads": 4, "ffn": 2048, "sequence": 512,
        "vocabulary": draw(st.sampled_from([0, 32000])), "tied_embedding": draw(st.booleans()),
        "tensor_parallel": tensor, "pipeline_parallel": pipeline, "context_parallel": context, "data_parallel": data,
        "microbatch": microbatch, "microbatch_group": group,
        "overlap_gradient_reduce": draw(st.booleans()),
        "overlap_parameter_gather": draw(st.booleans()) and (zero in (1, 2) or (zero == 3 and has_copies)),
        "replicas_at_end": draw(st.booleans()),
        "pipeline_schedule": schedule, "context_exchange": draw(st.sampled_from(exchanges)),
        "rank_order": tuple(draw(st.permutations(["tensor", "context", "data", "pipeline"]))),
        "recompute": draw(st.sampled_from(["none", "full"])), "zero": zero, "shard_ranks": shards,
        "sequence_parallel": draw(st.booleans()) and tensor > 1, "clip_gradients": draw(st.booleans()),
        "scatter_messages": draw(st.booleans()), "loss": draw(st.sampled_from(["unfused", "vocabulary_parallel"])),
        "biases": draw(st.booleans()), "overlap_sends": draw(st.booleans()), "fused_accumulation": draw(st.booleans()),
        "gradient_dtype": draw(st.sampled_from(["bf16", "fp32"])),
        "gradient_bucket": draw(st.sampled_from([1e5, 25e6])),
    } | {"batch_per_replica": microbatches * 2 if microbatches > 1 else 1})  # fmt: skip


def fills_gaps(workload):
    """Whether a rank can reduce gradients of a chunk while it waits: no collective of another chunk comes before."""
    return (
        workload.chunks > 1 and workload.pipeline_parallel > 1 and workload.zero < 2 and workload.tensor_parallel == 1
    )


topologies = st.sampled_from([SWITCHES, TORUS])


@given(plans(), topologies)
def test_blocks_take_as_long_as_their_kernels(workload, topology):
    """To rounding: both add the same seconds, some thousands of them, in another order.

    With several chunks and no collectives but the reductions, these run where the rank waits anyway; on blocks they
    follow the last micro-batch. The most seen in 2,000 plans is 1.2%.
    """
    tolerance = 0.05 if fills_gaps(workload) else 1e-9
    assert evaluate(workload, topology, DEVICE).step_s == pytest.approx(simulated_s(workload, topology), rel=tolerance)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(("zero", "gathers"), [(0, False), (1, False), (1, True), (2, True)])
@pytest.mark.parametrize(("schedule", "group"), [("1f1b", None), ("interleaved_1f1b", 8), ("zb_h1", None)])
def test_blocks_know_what_is_done_once_a_step(schedule, group, zero, gathers, recompute):
    """Gathers before the first micro-batch, and reductions by the last one, of which the last ones hold up nobody."""
    workload = load_workload("llama-3-8b", {
        "layers": 8, "hidden": 1024, "heads": 8, "kv_heads": 4, "ffn": 2048, "sequence": 512, "tensor_parallel": 2,
        "pipeline_parallel": 2, "data_parallel": 4, "batch_per_replica": 8, "microbatch": 1, "zero": zero,
        "pipeline_schedule": schedule, "microbatch_group": group, "overlap_gradient_reduce": True,
        "overlap_parameter_gather": gathers, "recompute": recompute, "gradient_bucket": 1e6,
    })  # fmt: skip
    found = evaluate(workload, SWITCHES, DEVICE)
    assert found.step_s == pytest.approx(simulated_s(workload, SWITCHES), rel=1e-9)
    assert found.compute_s + sum(found.exposed_s.values()) + found.bubble_s == pytest.approx(found.step_s)


@given(plans(("1f1b", "dualpipe", "dualpipe_v"), ("ring", "all_gather")), topologies)
def test_blocks_that_overlap_come_near(workload, topology):
    """Two steps of a slot, and messages of a ring beside kernels, mix kernel by kernel; on blocks slot by slot."""
    assert evaluate(workload, topology, DEVICE).step_s == pytest.approx(simulated_s(workload, topology), rel=0.15)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("tensor", [2, 4])
def test_blocks_under_overlap_take_as_long_as_their_kernels(tensor, recompute):
    """Collectives beside gradients of weights, as Megatron-LM has them, hide within a layer."""
    workload = load_workload("megatron-22b", {
        "tensor_parallel": tensor, "layers": 4, "recompute": recompute, "pipeline_parallel": 4 // tensor,
        "sequence_parallel": False, "microbatch": 1,
    })  # fmt: skip
    topology = Topology("switch", (Dimension("switch", 4, 340e9, 2e-6),), 1e-5)
    found = evaluate(workload, topology, DEVICE, schedule="overlap")
    assert found.step_s == pytest.approx(simulated_s(workload, topology, schedule="overlap"), rel=1e-3)
    assert found.step_s < evaluate(workload, topology, DEVICE).step_s
    assert found.compute_s + sum(found.exposed_s.values()) + found.bubble_s == pytest.approx(found.step_s)


@pytest.mark.parametrize(("hidden", "pipeline"), [(256, 1), (1024, 1), (1024, 2), (8192, 1), (8192, 2)])
def test_blocks_wait_for_the_host_as_their_kernels_do(hidden, pipeline):
    """Small kernels take as long as their calls, large ones as alone; between, a lead that blocks do not carry on."""
    workload = load_workload("megatron-22b", {
        "tensor_parallel": 2, "pipeline_parallel": pipeline, "layers": 4, "hidden": hidden, "ffn": 4 * hidden,
        "heads": 8, "sequence": 1024, "microbatch": 1, "recompute": "full", "sequence_parallel": False,
    })  # fmt: skip
    topology = Topology("switch", (Dimension("switch", 2 * pipeline, 340e9, 2e-6),), 1e-5)
    found = evaluate(workload, topology, DEVICE, host="eager")
    assert 0.9 < found.step_s / simulated_s(workload, topology, host="eager") < 1.15
    assert found.step_s > evaluate(workload, topology, DEVICE).step_s
    parts_s = found.compute_s + sum(found.exposed_s.values()) + found.bubble_s + found.host_s
    assert parts_s == pytest.approx(found.step_s)


@given(plans((*ONE_AFTER_ANOTHER, "dualpipe", "dualpipe_v"), ("ring", "all_gather")), topologies)
def test_bounds_are_never_above(workload, topology):
    step_s = evaluate(workload, topology, DEVICE).step_s
    priced_s = bound_of(workload, stage_bounds_of(stages_of(workload, plan_costs_of(topology, DEVICE))))
    assert 0 < lower_bounds_of(topology, DEVICE).kernels_s(workload, ordered=True) <= step_s * (1 + 1e-12)
    assert 0 < priced_s <= step_s * (1 + 1e-12)


@given(plans(), topologies)
def test_times_add_up(workload, topology):
    found = evaluate(workload, topology, DEVICE)
    assert found.compute_s + sum(found.exposed_s.values()) + found.bubble_s == pytest.approx(found.step_s)
    assert found.tokens_per_s * found.step_s == pytest.approx(workload.tokens * workload.data_parallel)
    assert 0 < found.mfu < 1
    assert (found.bubble < 1e-9) >= (workload.pipeline_parallel == 1)


@pytest.mark.parametrize(("sequence", "bound_by"), [(128, "memory bandwidth"), (4096, "compute")])
def test_a_step_is_bound_by_what_a_run_of_it_is_bound_by(sequence, bound_by):
    """Few tokens of a model whose weights and optimizer's state are read for them, and many."""
    changes = {"layers": 2, "sequence": sequence, "batch_per_replica": 1, "data_parallel": 1, "tensor_parallel": 8}
    workload, topology = load_workload("llama-3-8b", changes), load_topology("dgx-h200-1")
    found = evaluate(workload, topology, DEVICE)
    answer = scaleout.run(workload, topology=topology, device=DEVICE, schedules=["baseline"], ideal=True)
    (row,) = answer.to_dict()["results"]
    assert found.bound_by == row["bound_by"] == bound_by
    share, _ = of_memory(answer.outcomes[0].result, DEVICE)
    assert found.memory_limited_s / found.compute_s == pytest.approx(share, rel=1e-9)


def test_bubble_of_stages_that_are_alike():
    """(p - 1) / (m + p - 1) of 1F1B, without embedding, head, optimizer and with next to no network (GPipe paper)."""
    fast = Topology("fast", (Dimension("switch", 4, 1e18, 0.0),))
    workload = load_workload("gpt-3", {
        "layers": 8, "vocabulary": 0, "tied_embedding": False, "optimizer": "none", "tensor_parallel": 1,
        "pipeline_parallel": 4, "batch_per_replica": 12, "microbatch": 1, "fused_accumulation": True,
    })  # fmt: skip
    assert evaluate(workload, fast, DEVICE).bubble == pytest.approx(3 / 15, abs=2e-3)  # a norm and a copy at the ends


@pytest.mark.parametrize(
    "sizes", [{"data_parallel": 4}, {"pipeline_parallel": 4, "batch_per_replica": 8, "microbatch": 2}]
)
def test_inference_runs_forward_only(sizes):
    for mode in ("prefill", "decode"):
        workload = load_workload("llama-3-8b", {"data_parallel": 1, "mode": mode, "tensor_parallel": 4} | sizes)
        assert evaluate(workload, SWITCHES, DEVICE).step_s == pytest.approx(simulated_s(workload, SWITCHES), rel=1e-9)


def test_ranks_must_agree():
    with pytest.raises(ConfigError, match="the job has 32 ranks and topology 'switches' has 16"):
        evaluate(load_workload("gpt-3"), SWITCHES, DEVICE)


def test_a_recommendation_model_has_no_plans():
    with pytest.raises(ConfigError, match="'dlrm-128' is of kind dlrm"):
        evaluate(load_workload("dlrm-128"), load_topology("torus-8x16"), DEVICE)


@pytest.mark.parametrize("key", [{"messages": "as_made"}, {"layout_copies": True}, {"copied_buckets": True}])
def test_what_blocks_do_not_know_is_refused(key):
    with pytest.raises(ConfigError, match=r"cannot be timed block by block; set it to (at_need|False)"):
        evaluate(load_workload("gpt-3", {"tensor_parallel": 16} | key), SWITCHES, DEVICE)
