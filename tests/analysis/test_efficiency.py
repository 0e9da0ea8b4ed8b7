"""Steps of transformers: bubbles, exposed communication, memory over time up to its peak, and advice that is true."""

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import jobs

import scaleout as package
from scaleout.analysis.breakdown import breakdown, exposed_by_family
from scaleout.analysis.efficiency import fit
from scaleout.analysis.pipeline import actions, over_time
from scaleout.analysis.roots import Roots
from scaleout.analysis.waits import LEAST, waited_for, waits_of
from scaleout.cli.options import parse_settings
from scaleout.cli.tables import print_comparison
from scaleout.cluster.device.spec import load_device
from scaleout.report.box import box_of
from scaleout.report.plots.pipelines import MOST_PANELS, shown_ranks
from scaleout.simulation.run import simulate
from scaleout.workloads.families import FAMILIES, Transformer, load_workload
from scaleout.workloads.generate import generate
from scaleout.workloads.memory import peak, peaks
from scaleout.workloads.memory.advice import advise
from scaleout.workloads.pipeline import PIPELINES, Action, orders

HEADER = {"description": "a test", "source": "none", "topology": "h200-node-4", "device": "h200"}
MODEL = {
    "kind": "transformer", "name": "small", "hidden": 1024, "layers": 8, "heads": 16, "ffn": 4096, "sequence": 1024,
    "batch_per_replica": 8,
}  # fmt: skip
PIPELINE = {"pipeline_parallel": 4, "microbatch": 1}


def workload(**keys):
    keys = HEADER | MODEL | keys
    return FAMILIES[keys["kind"]].model_validate(keys)


def step(job, schedule="baseline", **options):
    (outcome,) = package.compare(job, schedules=[schedule], **options).outcomes
    return outcome


# ---- Analysis


@given(jobs(max_roles=2, streams=3, priorities=2))
def test_exposed_communication_and_idle_time_are_divided_in_full(job):
    program, topology = job
    try:
        result = simulate(program, topology)
    except package.SimulationError:
        return  # roles that wait for one another for ever
    parts = breakdown(result)
    assert sum(exposed_by_family(result).values()) == pytest.approx(parts.exposed_communication_s, abs=1e-15)
    assert waited_for(result, lambda line: np.ones(len(line.graph), bool)) == pytest.approx(parts.idle_s, abs=1e-15)
    assert waited_for(result, lambda line: np.zeros(len(line.graph), bool)) <= parts.idle_s + 1e-15
    found = waits_of(result, Roots(result))
    assert sum(found.by_cause_s.values()) == pytest.approx(parts.idle_s, abs=1e-15)
    named = sum(each.idle_s * len(each.ranks) for each in found.by_rank)
    assert named <= parts.idle_s * program.num_ranks * (1 + 1e-9)
    assert all(each.idle_s >= LEAST * result.makespan_s for each in found.by_rank)
    assert all(not set(each.ranks) & set(each.waits_for) for each in found.by_rank)


def test_all_wait_for_a_slow_rank(scaleout):
    """Its tensor peer waits for its collectives, replicas for its gradients."""
    job = ("run", "llama-3-8b", "--set", "tensor_parallel=2", "--set", "data_parallel=4", "--set", "layers=2")
    _, out, _ = scaleout(*job, "--schedule", "overlap", "--slow", "1=1.5", "-v")
    assert "most of all for rank 1: " in out
    assert "communication over tensor" in out
    assert "last rank" in out
    slowed, before = (
        json.loads(scaleout(*job, "--schedule", "overlap", *changes, "--json")[1])["results"][0]
        for changes in (("--slow", "1=1.5"), ())
    )
    of_one = {(*each["members"], each["until"]): each["idle_s"] for each in slowed["waits"] if each["waits_for"] == [1]}
    assert (3, 5, 7, "communication over data") in of_one
    assert sum(idle_s * (len(key) - 1) for key, idle_s in of_one.items()) > 0.8 * 8 * slowed["idle_s"]
    assert not before["waits"]


# ---- Efficiency


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2)])
def test_bubbles_are_the_published_ones(schedule, chunks):
    """``(p - 1) / (v m + p - 1)`` where stages are alike; Narayanan et al., arXiv:2104.04473."""
    job = workload(pipeline_schedule=schedule, optimizer="none", hidden=4096, ffn=16384, heads=32, **PIPELINE)
    found = step(job, contention=False).efficiency  # stages are alike while messages slow down no kernel
    published = 3 / (chunks * 8 + 3)
    assert found.bubble == pytest.approx(published, abs=0.005)
    waits = found.bubble + found.exposed_s["pipeline"] / found.step_s  # while its own message is on its way as well
    assert published <= waits < published + 0.02


def test_mfu_and_hfu_by_hand():
    plain, again = (workload(recompute=recompute, tensor_parallel=4) for recompute in ("none", "full"))
    found = step(plain)
    tokens, parameters = 8 * 1024, plain.active_parameters
    flops = 6 * parameters + 12 * 8 * 1024 * 1024  # per token: twelve for each layer, channel and key
    peak_flops = 4 * load_device("h200").peak("bf16")
    assert found.efficiency.tokens_per_s == pytest.approx(tokens / found.makespan_s)
    assert found.efficiency.tokens_per_s_per_rank == pytest.approx(tokens / found.makespan_s / 4)
    assert found.efficiency.mfu == pytest.approx(tokens * flops / found.makespan_s / peak_flops)
    slower = step(again)
    work = [generate(job).total_flops for job in (plain, again)]
    assert work[0] < work[1] < work[0] * 4 / 3
    assert slower.efficiency.hfu / slower.efficiency.mfu > found.efficiency.hfu / found.efficiency.mfu
    assert slower.efficiency.mfu < found.efficiency.mfu


def test_exposed_communication_is_told_by_axis():
    mixture = {"kind": "moe", "experts": 4, "top_k": 2}
    for axis, keys in (
        ("tensor", {"tensor_parallel": 4}),
        ("data", {"data_parallel": 4}),
        ("data", {"data_parallel": 4, "zero": 3, "shard_ranks": 2}),
        ("context", {"context_parallel": 4, "context_exchange": "all_gather", "data_parallel": 1, "zero": 0}),
        ("pipeline", PIPELINE),
        ("expert", mixture | {"data_parallel": 4, "expert_parallel": 4}),
    ):
        found = step(workload(**keys))
        assert axis in found.efficiency.exposed_s
        assert found.efficiency.exposed_s.keys() <= {axis, "data", "world"}
        total = sum(found.efficiency.exposed_s.values())
        assert total == pytest.approx(found.breakdown.exposed_communication_s)
        assert found.efficiency.bubble == 0 or axis == "pipeline"


# ---- Timelines


@pytest.mark.parametrize(
    ("schedule", "group"), [*((name, None) for name in sorted(PIPELINES)), *(("interleaved_1f1b", n) for n in (4, 8))]
)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_actions_run_in_the_order_of_the_schedule_and_memory_reaches_its_peak(schedule, group, recompute):
    job = workload(pipeline_schedule=schedule, microbatch_group=group, recompute=recompute, **PIPELINE)
    result = step(job).result
    done = actions(result, job)
    given = orders(schedule, stages=4, microbatches=8, chunks=job.chunks, group=group)
    assert [each.pipeline_rank for each in done] == [0, 1, 2, 3]
    for each, order in zip(done, given, strict=True):
        steps = sorted((s.action, s.chunk, s.microbatch) for slot in order for s in slot)
        columns = (each.action.tolist(), each.chunk.tolist(), each.microbatch.tolist())
        assert sorted(zip(*columns, strict=True)) == steps
        if all(len(slot) == 1 for slot in order):
            assert list(zip(*columns, strict=True)) == [(s.action, s.chunk, s.microbatch) for (s,) in order]
    for held, highest in zip(over_time(result, job), peaks(job), strict=True):
        assert held.total_bytes.max() <= highest.total_bytes * (1 + 1e-12)
        assert held.total_bytes.max() >= highest.total_bytes * (0.8 if schedule.startswith("dualpipe") else 1 - 1e-12)
        assert held.total_bytes[-1] == pytest.approx(held.total_bytes[0], abs=peak(job).bytes_of["activations"])
        assert (np.diff(held.time_s) >= 0).all()
        assert held.bytes_of["activations"][-1] == pytest.approx(0, abs=1)


def test_pipeline_ranks_are_found_wherever_ranks_lie():
    job = workload(**PIPELINE)
    plain, turned = (package.compare(job, schedules=["baseline"], placement=p) for p in ("linear", (2, 0, 3, 1)))
    for each, other in zip(*(actions(c.outcomes[0].result, job) for c in (plain, turned)), strict=True):
        assert (each.pipeline_rank, each.action.tolist()) == (other.pipeline_rank, other.action.tolist())
    assert plain.outcomes[0].efficiency.bubble == pytest.approx(turned.outcomes[0].efficiency.bubble, rel=1e-3)


def test_a_layer_holds_activations_from_its_forward_to_the_end_of_its_backward():
    """Activations of embedding, four equal layers and head grow in forward and shrink in backward, a part each."""
    job = workload(layers=4, microbatch=None, tensor_parallel=4)
    (held,) = over_time(step(job).result, job)
    activations = held.bytes_of["activations"]
    highest = peak(job).bytes_of["activations"]
    top = int(activations.argmax())
    assert activations[top] == pytest.approx(highest)
    assert (np.diff(activations[: top + 1]) >= 0).all()
    assert (np.diff(activations[top:]) <= 0).all()
    grows = np.diff(activations[: top + 1])
    assert len(grows[grows > 0.01 * highest]) >= 4
    assert max(grows) < 0.5 * highest


def test_memory_of_a_pass_without_backward_stands_still():
    job = workload(mode="prefill", tensor_parallel=4)
    (held,) = over_time(step(job).result, job)
    assert set(held.total_bytes.tolist()) == {peak(job).total_bytes}


def test_backward_is_told_from_its_parts():
    job = workload(pipeline_schedule="zb_h1", **PIPELINE)
    found = {Action(action) for each in actions(step(job).result, job) for action in each.action.tolist()}
    assert found == {Action.FORWARD, Action.INPUT_GRADIENT, Action.WEIGHT_GRADIENT}


# ---- Advice

BIG = (
    "gpt-3",
    {"tensor_parallel": 8, "batch_per_replica": 16, "virtual_stages": 3, "pipeline_schedule": "interleaved_1f1b"}
    | PIPELINE,
)


def test_a_plan_that_fits_needs_no_advice():
    assert advise(load_workload(*BIG), 2e12) == []


def test_advice_is_evaluated_and_true():
    job = load_workload(*BIG)
    now = peak(job).total_bytes
    for capacity in (0.98 * now, 0.8 * now, 0.3 * now):
        found = advise(job, capacity)
        assert found
        for advice in found:
            words = shlex.split(advice.settings)
            assert set(words[::2]) == {"--set"}
            changed = load_workload(BIG[0], BIG[1] | parse_settings(words[1::2]))
            assert advice.peak.total_bytes == peak(changed).total_bytes < now
            assert advice.fits == (advice.peak.total_bytes <= capacity)
            assert advice.ranks == changed.num_ranks
            assert changed.tokens * changed.data_parallel == job.tokens * job.data_parallel
    assert [advice.fits for advice in found].count(True) > 0


@pytest.mark.parametrize(("layers", "stages"), [(30, ""), (32, "--set 'stage_layers=[11,11,10]' ")])
def test_three_stages_are_tried_and_layers_that_do_not_divide_lie_unevenly(layers, stages):
    """Six replicas to three stages of two replicas each, on as many ranks."""
    keys = {"layers": layers, "tensor_parallel": 1, "data_parallel": 6, "zero": 0, "recompute": "none"}
    keys |= {"batch_per_replica": 4, "microbatch": 1}
    split = {"pipeline_parallel": 3, "data_parallel": 2, "batch_per_replica": 12}
    split |= {"stage_layers": [11, 11, 10]} if stages else {}
    enough = peak(load_workload("llama-3-8b", keys | split)).total_bytes
    found = [each for each in advise(load_workload("llama-3-8b", keys), enough) if "pipeline_parallel" in each.changes]
    settings = f"--set pipeline_parallel=3 {stages}--set data_parallel=2 --set batch_per_replica=12 --set microbatch=1"
    assert [(each.settings, each.ranks, each.fits) for each in found] == [(settings, 6, True)]


def test_several_changes_together_where_none_is_enough():
    job = workload(data_parallel=2, batch_per_replica=4, attention="unfused", vocabulary=0)
    alone = [each.peak.total_bytes for each in advise(job, 0.9 * peak(job).total_bytes)]
    here = [each.peak.total_bytes for each in advise(job, 0.9 * min(alone)) if each.ranks == job.num_ranks]
    *_, together = advise(job, 0.8 * min(here))  # where ZeRO with the smallest micro-batch is not enough either
    assert together.fits
    assert len(together.changes) > 1
    assert together.ranks == job.num_ranks


def test_nothing_helps_against_no_memory_at_all():
    found = advise(load_workload(*BIG), 1.0)
    assert found
    assert not any(advice.fits for advice in found)


def test_fit_says_by_how_much():
    job = load_workload(*BIG)
    found = fit(job, load_device("a100-80g"))
    assert not found.fits
    assert found.summary()["capacity_bytes"] == (81920 - 881) * 2**20  # nvidia-smi's, less the driver's
    assert found.summary()["peak_bytes"] == sum(found.summary()["bytes_of"].values()) == peak(job).total_bytes
    assert fit(job, load_device("h200")).advice == ()


# ---- The command line

SIZES = {"tensor_parallel": 8, "batch_per_replica": 16, "layers": 8, "hidden": 6144, "heads": 48, "ffn": 24576}


def arguments(topology, **keys):
    settings = [f"--set={key}={value}" for key, value in (SIZES | keys).items()]
    return ("run", "gpt-3", "--device=a100-80g", "--schedule=baseline", f"--topology={topology}", *settings)


def test_run_prints_and_draws_a_transformers_step(scaleout, tmp_path):
    code, out, _ = scaleout(*arguments("dgx-h200-4", **PIPELINE), "--output", tmp_path)
    assert code == 0
    for words in ("tokens/s", "MFU", "HFU", "bubble", "exposed tensor", "optimizer states", " in flight"):
        assert words in out
    assert "does not fit" not in out
    names = {path.name for path in tmp_path.iterdir()}
    assert {"pipeline.png", "memory.png"} <= names
    assert f"{tmp_path / 'pipeline.png'}  which micro-batch each rank works on" in out
    results = json.loads((tmp_path / "summary.json").read_text())
    assert results["memory"]["fits"]
    assert {"tokens_per_s", "mfu", "hfu", "bubble", "exposed_by_axis_s"} <= results["results"][0].keys()


@given(st.lists(st.floats(1, 1e12), min_size=1, max_size=70))
def test_the_worst_place_is_drawn(highest):
    shown = shown_ranks(highest)
    assert len(shown) == len(set(shown)) == min(len(highest), MOST_PANELS)
    assert {0, len(highest) - 1, int(np.argmax(highest))} <= set(shown)
    assert shown == sorted(shown)


def test_run_says_by_how_much_a_plan_does_not_fit_and_what_would_help(scaleout):
    code, out, _ = scaleout(*arguments("dgx-h200-1", sequence=8192))
    assert code == 0
    assert "does not fit" in out
    assert "--set recompute=full" in out
    assert "bubble" in out


def test_list_pipelines(scaleout):
    code, out, _ = scaleout("list", "pipelines", "--json")
    assert code == 0
    rows = json.loads(out)["listed"]["pipelines"]
    assert [row["name"] for row in rows] == list(PIPELINES)
    assert all("arXiv" in row["source"] or "et al." in row["source"] for row in rows)


def test_dlrm_has_no_such_table(scaleout):
    _, out, _ = scaleout("run", "dlrm-128", "--schedule", "baseline")
    assert "MFU" not in out
    assert "memory of the worst rank, at rank 0" in out


@pytest.mark.parametrize("name", ["dlrm-128", "alexnet"])
def test_models_without_stages_are_held_against_the_memory(name, capsys):
    """Of DLRM's 256 tables of 500,000 by 92 in fp32 47 GB, for one."""
    job, device = load_workload(name), load_device("h200")
    found = package.compare(job, device=device, schedules=["baseline"])
    assert found.fit.fits
    assert found.fit.advice == ()
    assert found.fit.peak.bytes_of["parameters"] >= (4 * 256 * 500_000 * 92 if name == "dlrm-128" else 0)
    small = replace(device, memory_bytes=found.fit.peak.total_bytes - 1.0, reserved_bytes=0.0)
    large = package.compare(job, device=small, schedules=["baseline"])
    print_comparison(large, box_of(large, None))
    assert "does not fit: 1 B too much" in capsys.readouterr().out


def test_transformers_only():
    assert isinstance(load_workload("mixtral-8x7b"), Transformer)
    comparison = package.compare("dlrm-128", schedules=["baseline"])
    assert comparison.outcomes[0].efficiency is None


def test_the_answer_offers_what_its_topology_can_run_and_else_names_the_ranks(scaleout):
    """It offered 16 stages to a server of 8 devices, which then was refused; a smaller batch is at hand."""
    cut = ["--set=mode=decode", "--set=tensor_parallel=8", "--set=data_parallel=1", "--set=batch_per_replica=4096"]
    _, out, _ = scaleout("run", "llama-3-70b", *cut, "--topology=dgx-h200-1", "--schedule=baseline")
    assert "with --set batch_per_replica=256 it does" in " ".join(out.replace("│", " ").split())
    alone = ["--set=mode=decode", "--set=tensor_parallel=1", "--set=data_parallel=1", "--set=batch_per_replica=1"]
    alone.append("--set=sequence=32768")
    _, out, _ = scaleout("run", "llama-3-70b", *alone, "--topology=ring(1,nvlink4)", "--schedule=baseline")
    assert "with --set tensor_parallel=2 on 2 ranks it does, step " in " ".join(out.replace("│", " ").split())
