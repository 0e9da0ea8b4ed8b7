"""Families written against the protocol alone: published sizes and FLOPs, and that everything runs on them."""

import pytest

from scaleout.errors import ConfigError
from scaleout.schedule import SCHEDULES
from scaleout.study.comparison import compare
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate

SMALL = {
    "mamba-2-hybrid-8b": {"hidden": 1024, "ffn": 2048, "heads": 8, "layers": 4, "pattern": "M-*M", "vocabulary": 4096,
                          "sequence": 1024, "batch_per_replica": 4, "data_parallel": 2, "microbatch": 1},
    "dit-xl-2": {"hidden": 256, "ffn": 1024, "heads": 4, "layers": 4, "batch_per_replica": 4, "data_parallel": 2,
                 "microbatch": 1},
}  # fmt: skip
PLANS = (
    {"data_parallel": 8},
    {"data_parallel": 8, "zero": 1},
    {"data_parallel": 8, "zero": 3},
    {"data_parallel": 8, "recompute": "full"},
    {"tensor_parallel": 4},
    {"tensor_parallel": 2, "pipeline_parallel": 2},
    {"tensor_parallel": 2, "pipeline_parallel": 2, "pipeline_schedule": "interleaved_1f1b"},
    {"tensor_parallel": 2, "pipeline_parallel": 2, "pipeline_schedule": "zb_h1"},
)
each_family = pytest.mark.parametrize("name", SMALL)


def small(name, **changes):
    return load_workload(name, {**SMALL[name], "zero": 0, **changes})


@pytest.mark.parametrize(
    ("name", "changes", "published", "within"),
    [
        # arXiv:2212.09748, Table 1: 675M, of which 256 positions are fixed
        ("dit-xl-2", {}, 675e6 - 256 * 1152, 1e-3),
        # huggingface.co/state-spaces/mamba2-2.7b, model card and weights
        ("mamba-2-hybrid-8b", {"hidden": 2560, "layers": 64, "pattern": "M" * 64, "state_groups": 1, "heads": 20,
                               "kv_heads": 20, "vocabulary": 50288, "tied_embedding": True}, 2.7e9, 2e-3),
        # arXiv:2406.07887: 8.66B
        ("mamba-2-hybrid-8b", {}, 8.66e9, 1e-3),
    ],
)  # fmt: skip
def test_parameters_are_those_that_are_published(name, changes, published, within):
    assert load_workload(name, changes).num_parameters == pytest.approx(published, rel=within)


def test_a_forward_pass_of_dit_takes_the_published_flops():
    """118.6 GFLOPs an image in arXiv:2212.09748, Table 1, which counts a multiply-add as one."""
    image = load_workload("dit-xl-2", {"mode": "prefill"})
    assert image.flops_per_token * image.sequence / 2 == pytest.approx(118.6e9, rel=1e-3)


@each_family
def test_graphs_hold_the_flops_that_the_model_needs(name):
    """The graph leaves out nothing but what a causal mask saves, and the gradient of the first input."""
    workload = load_workload(name, {"zero": 0})
    needed = workload.flops_per_token * workload.tokens
    assert generate(workload).graphs[0].total_flops == pytest.approx(needed, rel=0.01)


@each_family
@pytest.mark.parametrize("schedule", [name for name, each in SCHEDULES.items() if not each.needs])
def test_every_schedule_runs(name, schedule):
    changes = {**SMALL[name], "zero": 0, "data_parallel": 8}
    one, other = compare(name, changes=changes, schedules=("baseline", schedule) if schedule != "baseline" else
                         ("baseline", "overlap")).outcomes  # fmt: skip
    assert 0 < other.makespan_s <= 1.1 * one.makespan_s
    assert 0 < other.efficiency.mfu < 1


@each_family
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: ",".join(f"{key}={value}" for key, value in plan.items()))
def test_every_plan_runs(name, plan):
    """On pipelines, cut over tensor-parallel ranks, sharded, and computed again: FLOPs of all ranks stay."""
    plan = {"data_parallel": 8 // (plan.get("tensor_parallel", 1) * plan.get("pipeline_parallel", 1)), **plan}
    (outcome,) = compare(name, changes={**SMALL[name], "zero": 0, **plan}, schedules=["overlap"]).outcomes
    assert outcome.makespan_s > 0


@each_family
def test_cutting_a_model_conserves_flops(name):
    whole = generate(small(name, data_parallel=1)).graphs[0].total_flops
    cut = generate(small(name, data_parallel=1, tensor_parallel=4)).graphs[0].total_flops
    assert whole <= 4 * cut <= 1.35 * whole  # norms, and DiT's modulation, are made by every rank


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mamba-2-hybrid-8b", {"context_parallel": 2}, "context_parallel 2 would cut the sequence"),
        ("mamba-2-hybrid-8b", {"pattern": "M" * 55}, "55 letters for layers 56"),
        ("mamba-2-hybrid-8b", {"pattern": "M" * 55 + "x"}, "'x' among them"),
        ("mamba-2-hybrid-8b", {"state_groups": 3}, "choose state_head_size and state_groups that divide"),
        ("mamba-2-hybrid-8b", {"sequence": 4000}, "does not divide into chunks"),
        ("dit-xl-2", {"sequence": 255}, "gives 256 tokens"),
        ("dit-xl-2", {"mode": "decode"}, "with causal false, choose prefill"),
        ("dit-xl-2", {"sequence_parallel": True, "tensor_parallel": 2}, "would cut the tokens that one condition"),
    ],
)
def test_what_a_family_does_not_support_is_refused(name, changes, message):
    with pytest.raises(ConfigError, match=message):
        load_workload(name, changes)
