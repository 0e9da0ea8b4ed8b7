"""Search under schedules: lower bounds that no schedule beats, what is simulated, what is overlapped, bad input."""

import json
import re
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.errors import ConfigError
from scaleout.program.graph import GraphBuilder
from scaleout.program.mesh import Mesh
from scaleout.program.operations import kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import SCHEDULES, apply_schedule, in_order
from scaleout.schedule.centauri.partition.group import levels_of
from scaleout.simulation.run import simulate
from scaleout.study.comparison import compare
from scaleout.study.job import Job, run
from scaleout.study.search.best import SLACK, fastest_first
from scaleout.study.search.checkpoint import PlanLog
from scaleout.study.search.evaluate import BASELINE, evaluate
from scaleout.study.search.execution import Execution
from scaleout.study.search.explanation import BEGINNING, END, ISOLATED, LONGER, overlap_by_axis
from scaleout.study.search.lower_bound import bound_of, lower_bounds_of, stage_bounds_of
from scaleout.study.search.request import SearchRequest, request_of
from scaleout.study.search.scheduled import SIMULATED, estimate_of
from scaleout.study.search.search import search
from scaleout.study.search.space import families
from scaleout.study.search.stages import stages_of
from scaleout.workloads.families import load_workload

DEVICE = load_device("h200")
SMALL = {
    "layers": 4, "hidden": 512, "heads": 4, "kv_heads": 4, "ffn": 1024, "sequence": 2048, "vocabulary": 3000,
    "batch_per_replica": 1,
}  # fmt: skip
EXPERTS = {"kind": "moe", "experts": 4, "top_k": 2}
TRIED = [*(name for name, each in SCHEDULES.items() if not each.needs), "centauri:group", "overlap+fused"]
"""Schedules that H200 can run."""


def cluster(*sizes, kind="switch", bytes_per_s=1e11):
    """Levels of a network, each half as fast as the one within it, or slower."""
    dimensions = (Dimension(kind, size, bytes_per_s / (1 + 3 * n), 2e-6) for n, size in enumerate(sizes))
    return Topology("small", tuple(dimensions))


def model(changes):
    return load_workload("llama-3-8b", SMALL | changes)


# ---- Lower bounds


@st.composite
def plans(draw):
    """A plan of a small model on four or eight ranks, whose communication is long or short against its kernels."""
    changes = draw(st.sampled_from([{}, EXPERTS, {"tied_embedding": True, "attention": "unfused"}]))
    changes = changes | {"fused_accumulation": draw(st.booleans())}
    sizes, kind = draw(st.sampled_from([(4,), (2, 2), (4, 2)])), draw(st.sampled_from(["switch", "ring"]))
    topology = cluster(*sizes, kind=kind, bytes_per_s=draw(st.sampled_from([1e11, 5e9])))
    request = SearchRequest(model(changes), topology, DEVICE, draw(st.sampled_from([8, 12])), 80e9)
    found = [plan for family in families(request.base, request.num_ranks, request.batch) for plan in family.plans]
    return request.workload(draw(st.sampled_from(found))), topology


@settings(max_examples=60)
@given(plans(), st.sampled_from(TRIED))
def test_no_schedule_beats_the_lower_bound(job, schedule):
    workload, topology = job
    lower_bounds = lower_bounds_of(topology, DEVICE)
    bound_s = max(lower_bounds.kernels_s(workload, ordered=in_order(schedule)), lower_bounds.links_s(workload))
    assert lower_bounds.kernels_s(workload, ordered=False) <= lower_bounds.kernels_s(workload, ordered=True)
    assert lower_bounds.spread_s(workload, collectives=False) <= bound_s * (1 + 1e-9)
    assert bound_s <= run(Job(workload, DEVICE, topology, schedule)).makespan_s * (1 + 1e-9)


@settings(max_examples=60)
@given(plans(), st.sampled_from(["none", "operations", "full"]))
def test_what_is_recomputed_and_sharded_comes_on_top(job, recompute):
    """Plans of a family are bounded by the one that neither recomputes nor shards, before their layers are timed."""
    workload, topology = job
    workload = workload.model_copy(update={"recompute": recompute})
    closely = workload.model_copy(update={"zero": 0})
    least = closely.model_copy(update={"recompute": "none"})
    lower_bounds = lower_bounds_of(topology, DEVICE)
    path_s = bound_of(workload, stage_bounds_of(stages_of(workload, lower_bounds.costs)))
    paths_s = [lower_bounds.passes_s(least), lower_bounds.passes_s(closely), path_s]
    assert paths_s == pytest.approx(sorted(paths_s), rel=1e-9)
    assert lower_bounds.spread_s(least, collectives=True) <= path_s * (1 + 1e-9)
    kernels_s = [lower_bounds.kernels_s(each, ordered=True) for each in (least, closely, workload)]
    assert kernels_s[0] <= kernels_s[1] == kernels_s[2]


@given(plans())
def test_the_first_plan_of_a_family_does_the_least(job):
    workload, _ = job
    every = families(workload, workload.num_ranks, workload.batch_per_replica * workload.data_parallel)
    for family in (each for each in every if each.plans):
        first = family.plans[0]
        for plan in family.plans:
            least, closely = family.lighter(plan)
            assert (least.zero, least.recompute) == (first.zero, first.recompute) == (0, "none")
            assert closely == plan._replace(zero=first.zero)
            assert first == plan._replace(**{
                key: getattr(first, key) for key in ("zero", "recompute", "pipeline_schedule", "virtual_stages")
            })  # fmt: skip


def test_fsdp_on_slow_links_takes_what_its_wires_take():
    """Three times the parameters pass a port in a step, 1/2 of which crosses it by levels; all else overlaps it."""
    topology = cluster(2, 2, bytes_per_s=1e9)
    workload = model({"data_parallel": 4, "zero": 3, "hidden": 1024})
    bound_s = lower_bounds_of(topology, DEVICE).links_s(workload)
    inter_bytes_per_s = topology.dimensions[1].bytes_per_s
    crossing = 3 * workload.num_parameters * 2 * (1 / 2) / 2  # of 2 B, half of each half
    assert bound_s == pytest.approx(crossing / inter_bytes_per_s, rel=0.02)
    took_s = run(Job(workload, DEVICE, topology, "centauri")).makespan_s
    assert bound_s < took_s < 1.3 * bound_s


def test_levels_need_less_of_the_slow_links_than_whole_groups():
    """Lower bounds look at levels: a schedule that takes them passes fewer bytes over the outer links."""
    workload = model({"data_parallel": 4, "zero": 3, "hidden": 1024})
    flat, levels = cluster(4, bytes_per_s=1e9 / 4), cluster(2, 2, bytes_per_s=1e9)
    assert lower_bounds_of(levels, DEVICE).links_s(workload) < 0.8 * lower_bounds_of(flat, DEVICE).links_s(workload)


# ---- Estimates


@pytest.mark.parametrize("number", [0, 1, 2])
def test_plans_that_recompute_some_layers_are_simulated_as_evaluated(number):
    workload = model(
        {"layers": 4, "pipeline_parallel": 2, "data_parallel": 1, "recompute": "full", "recompute_layers": number}
    )
    blocks = evaluate(workload, cluster(2), DEVICE)
    found = estimate_of(run(Job(workload, DEVICE, cluster(2), BASELINE)))
    assert found.compute_s == pytest.approx(blocks.compute_s)
    assert found.memory_bytes == blocks.memory_bytes


@settings(max_examples=15)
@given(plans())
def test_simulated_under_baseline_is_what_blocks_say(job):
    """But where messages run concurrently with kernels or queue behind each other, or two actions share a slot."""
    workload, topology = job
    assume(workload.context_parallel == 1 and not workload.pipeline_schedule.startswith("dualpipe"))
    assume(workload.pipeline_parallel == 1 or topology.dimensions[0].bytes_per_s > 1e10)
    blocks = evaluate(workload, topology, DEVICE)
    found = estimate_of(run(Job(workload, DEVICE, topology, BASELINE)))
    assert found.step_s <= blocks.step_s * (1 + 1e-9)
    assert found.compute_s == pytest.approx(blocks.compute_s)
    assert found.memory_bytes == blocks.memory_bytes
    parts_s = found.compute_s + sum(found.exposed_s.values()) + found.bubble_s + found.host_s
    assert parts_s == pytest.approx(found.step_s)
    if found.step_s == pytest.approx(blocks.step_s, rel=1e-9):
        assert found.mfu == pytest.approx(blocks.mfu)
        for axis, seconds in blocks.exposed_s.items():  # a moment shared with a message counts half for the message
            messages_s = blocks.bubble_s if axis == "pipeline" else 0.0  # of which blocks say no more
            assert found.exposed_s.get(axis, 0.0) <= seconds + messages_s + 1e-6 * found.step_s
            if workload.pipeline_parallel == 1:
                assert found.exposed_s.get(axis, 0.0) == pytest.approx(seconds, abs=1e-6 * found.step_s)


def test_levels_count_for_the_axis_of_their_family():
    mesh, topology = Mesh(data=48), load_topology("a100-cluster-a-6")
    shard, copy = mesh.split("replica", 8)
    assert {family.axis for family in (mesh.groups("expert_data"), shard, copy)} == {"data"}
    levels = levels_of(mesh.groups("data"), topology)
    assert [(family.name, family.axis) for family in levels.families] == [
        ("data_intra", "data"),
        ("data_inter", "data"),
    ]


# ---- What is overlapped


def test_what_is_overlapped_and_why_the_rest_is_not_by_hand():
    """10 us at a kernel's side of 4, 5 that all wait for, 3 behind everything; and none is two things at once."""
    graph = GraphBuilder("forward")
    topology = Topology("pair", (Dimension("switch", 2, 1e9, 0.0),))
    first = graph.collective("all_gather", 4000, group=0, name="first")  # 2 us
    a = graph.compute(kernel("add", dtype="bf16", elements=1), after=(first,), name="a")
    beside = graph.collective("all_gather", 20_000, group=0, after=(a,), name="beside")  # 10 us
    b = graph.compute(kernel("add", dtype="bf16", elements=1), after=(a,), name="b")
    c = graph.compute(kernel("add", dtype="bf16", elements=1), after=(beside, b), name="c")
    alone = graph.collective("all_gather", 10_000, group=1, after=(c,), name="alone")  # 5 us
    d = graph.compute(kernel("add", dtype="bf16", elements=1), after=(alone,), name="d")
    graph.collective("all_gather", 6000, group=1, after=(d,), name="last")  # 3 us
    groups = (GroupFamily("data", ((0, 1),)), GroupFamily("tensor", ((0, 1),)))
    seconds = {a: 3e-6, b: 4e-6, c: 1e-6, d: 1e-6}
    built = graph.build()
    timed = built.with_columns(duration_s=np.array([seconds.get(node, np.nan) for node in range(len(built))]))
    program = Program("by hand", (timed,), np.zeros(2, np.int64), groups)
    data, tensor = overlap_by_axis(simulate(apply_schedule(program, "overlap"), topology))
    assert (data.axis, tensor.axis) == ("data", "tensor")
    assert (data.communication_s, data.overlapped_s) == pytest.approx((12e-6, 4e-6))
    assert data.exposed_s == pytest.approx({BEGINNING: 2e-6, ISOLATED: 0.0, LONGER: 6e-6, END: 0.0}, abs=1e-15)
    assert (tensor.communication_s, tensor.overlapped_s) == pytest.approx((8e-6, 0.0), abs=1e-15)
    assert tensor.exposed_s == pytest.approx({BEGINNING: 0.0, ISOLATED: 5e-6, LONGER: 0.0, END: 3e-6}, abs=1e-15)


@settings(max_examples=20)
@given(plans(), st.sampled_from([BASELINE, "overlap", "centauri"]))
def test_overlapped_and_exposed_are_all_communication(job, schedule):
    workload, topology = job
    result = run(Job(workload, DEVICE, topology, schedule)).result
    for each in overlap_by_axis(result):
        assert each.overlapped_s + sum(each.exposed_s.values()) == pytest.approx(each.communication_s)
        assert min(each.overlapped_s, *each.exposed_s.values()) >= 0
        if schedule == BASELINE and each.axis not in ("pipeline", "context"):
            assert each.overlapped_s == pytest.approx(0.0, abs=1e-12)


# ---- The search


def request_of_two_schedules(**changes):
    fixed = {"recompute": "none", "sequence_parallel": False, "pipeline_schedule": "1f1b"}
    made = SearchRequest(model({"hidden": 1024}), cluster(2, 2, bytes_per_s=2e10), DEVICE, 8, 80e9, 3, fixed)
    return replace(made, schedules=("overlap", "centauri"), **changes)


def test_enough_simulations_find_what_simulating_every_plan_finds():
    request = request_of_two_schedules(simulations=1000)
    every = [
        (estimate.step_s, schedule)
        for family in families(request.base, 4, 8, fixed=request.fixed)
        for workload in map(request.workload, family.plans)
        for schedule in (BASELINE, *request.schedules)
        for estimate in [
            evaluate(workload, request.topology, DEVICE)
            if schedule == BASELINE
            else estimate_of(run(Job(workload, DEVICE, request.topology, schedule)))
        ]
    ]
    answer = search(request, workers=1)
    assert [found.estimate.step_s for found in answer.fastest] == sorted(step_s for step_s, _ in every)[:3]
    assert answer.simulated.left == 0
    assert answer.simulated.lower_bound_s is None
    assert 0 < len(answer.simulated.found) < answer.simulated.choices


def test_what_is_left_keeps_its_lower_bound():
    whole, few = (
        search(request_of_two_schedules(simulations=1000), workers=1),
        search(request_of_two_schedules(simulations=1), workers=1),
    )
    assert len(few.simulated.found) == 2
    assert few.simulated.left > 0
    assert few.simulated.choices == few.simulated.bounded + few.simulated.left + len(few.simulated.found)
    assert few.fastest[0].estimate.step_s >= whole.fastest[0].estimate.step_s
    if few.simulated.lower_bound_s is not None:
        assert few.simulated.lower_bound_s <= whole.fastest[0].estimate.step_s


def test_processes_simulate_what_one_simulates():
    alone, together = search(request_of_two_schedules(), workers=1), search(request_of_two_schedules(), workers=2)
    assert alone == together


def test_a_front_compares_plans_under_one_schedule():
    """Of all under `baseline`, of those simulated under the others; the front of the fastest schedule is first."""
    request = replace(request_of_two_schedules(), memory_bytes=80e9, fixed={"recompute": "none"}, simulations=12)
    answer = search(request, workers=1)
    fronts = {schedule: list(found) for schedule, found in groupby(answer.front, key=attrgetter("schedule"))}
    assert set(fronts) == {BASELINE, "overlap", "centauri"}
    assert next(iter(fronts)) == answer.fastest[0].schedule
    assert any(len(front) > 1 for front in fronts.values())
    for schedule, front in fronts.items():
        of = fastest_first(found for found in answer.evaluated if found.schedule == schedule)
        least = [
            found
            for n, found in enumerate(of)
            if all(found.estimate.peak_bytes < each.estimate.peak_bytes for each in of[:n])
        ]
        assert front == [found for found in least if found.estimate.step_s <= SLACK * of[0].estimate.step_s]


def test_a_front_does_not_depend_on_what_is_simulated_first(monkeypatch):
    """Plans that a faster one rules out may have been simulated before it was known."""
    request = replace(request_of_two_schedules(), fixed={"recompute": "none"}, simulations=12)
    first = search(request, workers=1)
    backwards = Execution.simulate
    monkeypatch.setattr(
        Execution,
        "simulate",
        lambda self, function, asked, choices, wanted=lambda _choice: True: backwards(
            self, function, asked, reversed(list(choices))
        ),
    )
    assert search(request, workers=1) == first


def test_a_search_under_schedules_goes_on_where_it_was(tmp_path, monkeypatch):
    with PlanLog(tmp_path, request_of_two_schedules()) as log:
        first = search(request_of_two_schedules(), workers=1, memory=log)
    with PlanLog(tmp_path, request_of_two_schedules()) as log:
        assert {choice[1] for choice in log.estimates} == {BASELINE, SIMULATED, "overlap", "centauri"}
        monkeypatch.setattr("scaleout.study.search.scheduled.prepare", None)
        second = search(request_of_two_schedules(), workers=1, memory=log)
    assert first == second


def test_what_was_simulated_counts_for_the_same_memory_only(tmp_path):
    """A schedule may fill the memory."""
    with PlanLog(tmp_path, request_of_two_schedules()) as log:
        search(request_of_two_schedules(), workers=1, memory=log)
    with PlanLog(tmp_path, replace(request_of_two_schedules(), memory_bytes=70e9)) as log:
        assert {schedule for _, schedule in log.estimates} == {BASELINE}


def test_a_plan_takes_what_run_says():
    """The same generator, passes and clock, with what runs at the same time sharing SMs and memory."""
    node, schedules = load_topology("h200-node-4"), ("overlap", "centauri")
    request = request_of(
        "llama-3-8b", node, DEVICE, batch=8, changes={"recompute": "none", "layers": 4}, schedules=schedules
    )
    several = search(replace(request, simulations=2), workers=1).simulated.found
    assert {found.schedule for found in several} == set(schedules)
    for found in several:
        ran, alone = (
            compare(
                request.workload(found.plan), topology=node, device=DEVICE, schedules=[found.schedule], contention=each
            )
            for each in (True, False)
        )
        assert ran.outcomes[0].makespan_s == found.estimate.step_s > alone.outcomes[0].makespan_s


def test_the_fastest_under_baseline_are_what_run_says():
    """Messages of a pipeline and kernels take from each other: blocks do not know, so the fastest are simulated."""
    node = load_topology("h200-node-4")
    changes = {"recompute": "none", "layers": 4, "pipeline_parallel": 2}
    request = request_of(
        "llama-3-8b", node, DEVICE, batch=8, changes=changes, schedules=("overlap",), top=3, simulations=1
    )
    answer = search(request, workers=1)
    plans = [found for found in answer.fastest if found.schedule == BASELINE]
    assert plans
    for found in plans:
        workload = request.workload(found.plan)
        ran = compare(workload, topology=node, device=DEVICE, schedules=[BASELINE]).outcomes[0]
        assert ran.makespan_s == found.estimate.step_s
        assert ran.makespan_s > (1 - 1e-3) * evaluate(workload, node, DEVICE).step_s
    every = [
        compare(request.workload(plan), topology=node, device=DEVICE, schedules=[BASELINE]).outcomes[0].makespan_s
        for family in families(request.base, 4, 8, fixed=request.fixed)
        for plan in family.plans
    ]
    assert min(every) == answer.best_under(BASELINE).estimate.step_s


# ---- The command

SEARCH = ("search", "llama-3-8b", "--topology", "dgx-h200-1", "--global-batch", "8", "--set", "recompute=none")
NARROW = ("--set", "zero=1", "--set", "microbatch=1", "--set", "pipeline_schedule=1f1b", "--set", "context_parallel=1")


def test_the_command_says_what_the_fastest_overlaps(scaleout):
    options = (*NARROW, "--schedule", "overlap", "--schedule", "centauri:group", "--simulations", "2", "--workers", "1")
    code, out, _ = scaleout(*SEARCH, *options)
    assert code == 0
    assert "communication of the fastest plan: overlapped with kernels" in out
    assert "the fastest under baseline: " in out
    assert re.search(r"plans under overlap, centauri:group, each once under every schedule: \d+ simulated", out)
    code, out, _ = scaleout(*SEARCH, *options, "--json")
    found = json.loads(out)
    assert code == 0
    explanation = found["explanation"]
    assert explanation["plan"] == found["fastest"][0]["plan"]
    assert [row["schedule"] for row in explanation["same_plan"]] == ["baseline", "overlap", "centauri:group"]
    assert {each["axis"] for each in explanation["overlap"]} >= {"data"}
    assert explanation["gain_over_best_under_baseline"] >= 1
    assert found["simulations"]["done"] <= 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--schedule", "centaur"), "unknown schedule 'centaur'; did you mean 'centauri'?"),
        (("--schedule", "centauri:groups"), "unknown dimension 'groups' of centauri's partition space"),
        (("--schedule", "centauri:"), "unknown dimension '' of centauri's partition space"),
        (("--schedule", "concurrent:2"), "schedule 'concurrent' takes no option '2'"),
        (("--schedule", "fused+centauri"), "replace the same operators"),
        (("--simulations", "4"), "--simulations is for schedules that are simulated; give --schedule as well"),
        (("--schedule", "overlap", "--memory", "3GB"), "more; give more ranks"),
        (("--schedule", "overlap", "--set", "tensor_parallel=3"), "has tensor_parallel 3 x context_parallel 1"),
    ],
)
def test_what_cannot_be_searched_under_schedules(scaleout, options, message):
    code, out, err = scaleout(*SEARCH, *NARROW, "--workers", "1", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.splitlines()[-1].startswith("error: ")  # a slow machine shows progress before it


def test_a_back_end_that_blocks_the_host_has_one_schedule():
    topology = load_topology("dgx-h200-1")
    topology = replace(topology, library=replace(topology.library, blocks_host=True))
    with pytest.raises(ConfigError, match="blocks the host, so that every schedule is the baseline"):
        request_of("llama-3-8b", topology, DEVICE, batch=8, schedules=("overlap",))
