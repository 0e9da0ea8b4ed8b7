"""The search over plans: the same as evaluating every plan, whatever is pruned; journals, and what cannot be."""

import itertools
import json
import subprocess
import sys
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scaleout as library
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.errors import ConfigError
from scaleout.simulation.options import SimulationOptions
from scaleout.study.search.best import SLACK, Best, EvaluatedPlan, fastest_first
from scaleout.study.search.checkpoint import FILE, Memory, PlanLog
from scaleout.study.search.evaluate import evaluate, peak_bytes_of
from scaleout.study.search.execution import Execution, pools_of
from scaleout.study.search.request import SearchRequest, request_of
from scaleout.study.search.scheduled import simulated_plans
from scaleout.study.search.search import search
from scaleout.study.search.space import Plan, divisors, families, fits, workload_of
from scaleout.workloads import memory
from scaleout.workloads.families import load_workload
from scaleout.workloads.pipeline import PIPELINES

DEVICE = load_device("h200")
SMALL = {
    "layers": 4, "hidden": 512, "heads": 4, "kv_heads": 4, "ffn": 1024, "sequence": 2048, "vocabulary": 3000,
    "batch_per_replica": 1,
}  # fmt: skip
EXPERTS = {"kind": "moe", "experts": 4, "top_k": 2}


def cluster(*sizes):
    return Topology("small", tuple(Dimension("switch", size, 1e11 / (1 + n), 2e-6) for n, size in enumerate(sizes)))


def model(changes):
    return load_workload("llama-3-8b", SMALL | changes)


@st.composite
def questions(draw):
    """Small models on four or eight ranks, some with experts, some with little memory, some with keys held."""
    changes = draw(st.sampled_from([{}, EXPERTS, {"tied_embedding": True, "attention": "unfused"}]))
    fixed = draw(st.sampled_from([{"recompute": "none"}, {"zero": 1}, {"sequence_parallel": False}]))
    topology = draw(st.sampled_from([cluster(4), cluster(2, 2)]))
    memory_bytes = draw(st.sampled_from([80e9, 0.35e9, 0.2e9]))
    batch, top = draw(st.sampled_from([8, 12])), draw(st.integers(1, 6))
    return SearchRequest(model(changes), topology, DEVICE, batch, memory_bytes, top, fixed)


def everything(request):
    """Evaluate every plan, in whatever order."""
    found, too_large = [], 0
    searched = families(request.base, request.num_ranks, request.batch, fixed=request.fixed)
    for plan in (plan for family in searched for plan in family.plans):
        estimate = evaluate(request.workload(plan), request.topology, request.device)
        assert estimate.peak_bytes * request.num_ranks >= request.base.num_parameters * request.base.item_bytes
        if estimate.peak_bytes <= request.memory_bytes:
            found.append(EvaluatedPlan(plan, estimate))
        else:
            too_large += 1
    return fastest_first(found), too_large


@settings(max_examples=10)
@given(questions())
def test_a_search_finds_what_evaluating_every_plan_finds(request):
    plans, _ = everything(request)
    answer = search(request, workers=1)
    with pools_of(1) as pools:
        found = simulated_plans(request, plans, Execution(pools, Memory())).simulated
    assert list(answer.fastest) == found[: request.top]
    last_s = SLACK * found[0].estimate.step_s if found else 0.0
    least, front = float("inf"), []
    for each in found:
        if each.estimate.peak_bytes < least and each.estimate.step_s <= last_s:
            least = each.estimate.peak_bytes
            front.append(each)
    assert list(answer.front) == front
    counts = answer.counts
    assert counts.enumerated == counts.indivisible + counts.bounded + counts.too_large + counts.evaluated


def test_some_plans_are_not_evaluated(monkeypatch):
    """Otherwise the test before says nothing of bounds; and best first, hardly any is that the answer rules out."""
    evaluated = []

    def counted(*arguments, **options):
        evaluated.append(evaluate(*arguments, **options))
        return evaluated[-1]

    monkeypatch.setattr("scaleout.study.search.branch_and_bound.evaluate", counted)
    request = SearchRequest(model({}), cluster(4, 2), DEVICE, 16, 80e9, 3)
    counts = search(request, workers=1).counts
    assert counts.bounded > counts.evaluated > 3
    assert len(evaluated) <= counts.evaluated + 16  # that were looked at together with those that rule them out


def test_processes_find_what_one_finds():
    request = SearchRequest(model({}), cluster(2, 2), DEVICE, 8, 80e9, 5)
    alone, together = search(request, workers=1), search(request, workers=2)
    assert alone == together


@settings(max_examples=300)
@given(st.data())
def test_a_plan_fits_if_a_workload_can_be_made_of_it(data):
    """Whole numbers say what the workload's own checks say."""
    ranks, batch = data.draw(st.sampled_from([6, 8, 12])), data.draw(st.sampled_from([8, 12, 24]))
    grouped = {"pipeline_schedule": "interleaved_1f1b", "batch_per_replica": 4, "microbatch": 1, "microbatch_group": 3}
    kinds = [{}, EXPERTS, {"stage_layers": (1, 3), "pipeline_parallel": 2}, grouped]
    base = model(data.draw(st.sampled_from(kinds)))
    any_of = st.sampled_from(divisors(ranks))
    pipeline = data.draw(any_of)
    plan = Plan(
        data.draw(any_of), data.draw(any_of), pipeline, data.draw(any_of), data.draw(any_of),
        data.draw(st.sampled_from([1, 2, 3, 4])), data.draw(st.sampled_from(list(PIPELINES))), None,
        data.draw(st.sampled_from(["none", "full"])), data.draw(st.integers(0, 3)), data.draw(st.booleans()),
    )  # fmt: skip
    changes = {**plan._asdict(), "batch_per_replica": max(1, batch // plan.data_parallel)}
    if PIPELINES[plan.pipeline_schedule].num_chunks is None:
        plan = plan._replace(virtual_stages=2)
    changes["stage_layers"] = workload_of(plan, base, batch).stage_layers
    try:
        made = load_workload("llama-3-8b", base.model_dump(exclude_none=True) | changes)
    except ConfigError:
        made = None
    divides = batch % plan.data_parallel == 0
    assert fits(plan, base, batch) == (made is not None and divides)
    if made is not None and divides:
        assert evaluate_key(made) == evaluate_key(workload_of(plan, base, batch))


def evaluate_key(workload):
    return workload.model_dump(exclude={"virtual_stages"}) | {"chunks": workload.chunks}


@pytest.mark.parametrize("name", [name for name in PIPELINES if name != "gpipe"])
@given(stages=st.sampled_from([2, 4]), more=st.integers(0, 9), recompute=st.sampled_from(["none", "full"]))
@settings(max_examples=15)
def test_more_microbatches_hold_no_more(name, stages, more, recompute):
    microbatches = (4 + more) * stages
    workload = load_workload("gpt-3", {
        "tensor_parallel": 1, "pipeline_parallel": stages, "microbatch": 1, "batch_per_replica": microbatches,
        "pipeline_schedule": name, "recompute": recompute,
    })  # fmt: skip
    assert peak_bytes_of(workload) == memory.peak(workload).bytes_of


def test_what_estimates_rule_out_is_looked_at_once_more():
    """A plan of the front lies above the estimate of another, which takes longer when it is simulated."""
    changes = {"recompute": "none", "sequence_parallel": True, "zero": 1, "microbatch": 1}

    def front(top):
        wanted = {"batch": 64, "memory_bytes": 140e9, "top": top}
        request = request_of("llama-3-8b", load_topology("dgx-h200-2"), DEVICE, changes=changes, **wanted)
        answer = search(request, workers=1)
        for each in answer.evaluated:  # nothing lies below the line of a picture, an estimate included
            better = [one for one in answer.front if one.estimate.peak_bytes <= each.estimate.peak_bytes]
            assert not better or min(one.estimate.step_s for one in better) <= each.estimate.step_s
        return answer.front

    assert front(3) == front(40)


def test_the_front_is_kept_in_order_of_time():
    best = Best(1)
    assert best.wants(1.0, 1e9)
    assert best.limit() == float("inf")


def test_last_bits_of_times_change_no_answer(monkeypatch):
    """Other versions of NumPy round sums otherwise."""
    request = SearchRequest(model({}), cluster(2, 2), DEVICE, 8, 80e9, 12)
    first, numbers = search(request, workers=1), itertools.count()

    def rough(*arguments, **options):
        found = evaluate(*arguments, **options)
        return replace(found, step_s=found.step_s * (1 + (next(numbers) * 7 % 5 - 2) * 2e-16))

    monkeypatch.setattr("scaleout.study.search.branch_and_bound.evaluate", rough)
    second = search(request, workers=1)
    assert next(numbers) > 12
    assert [each.choice for each in second.fastest] == [each.choice for each in first.fastest]
    assert [each.choice for each in second.front] == [each.choice for each in first.front]
    assert second.counts == first.counts


def test_a_search_goes_on_where_it_was(tmp_path, monkeypatch):
    request = SearchRequest(model({}), cluster(2, 2), DEVICE, 8, 80e9, 3)
    with PlanLog(tmp_path, request) as log:
        first = search(request, workers=1, memory=log)
    lines = (tmp_path / FILE).read_text().splitlines()
    assert sum('"plan"' in line for line in lines) >= first.counts.evaluated > 3
    for kept in range(1, len(lines), 7):
        (tmp_path / FILE).write_text("\n".join([*lines[:kept], lines[kept][:20]]))  # killed in the middle of a line
        with PlanLog(tmp_path, request) as log:
            assert search(request, workers=1, memory=log) == first
        assert sorted((tmp_path / FILE).read_text().splitlines()) == sorted(lines)
    for name in ("branch_and_bound.evaluate", "branch_and_bound._open", "search._weigh"):
        monkeypatch.setattr(f"scaleout.study.search.{name}", None)
    with PlanLog(tmp_path, request) as log:
        assert search(request, workers=1, memory=log) == first


def test_known_plans_are_not_evaluated_again(monkeypatch):
    request = SearchRequest(model({}), cluster(2, 2), DEVICE, 8, 80e9, 3)
    memory, wider = Memory(), SearchRequest(model({}), cluster(2, 2), DEVICE, 8, 80e9, 5)
    search(wider, workers=1, memory=memory)
    first = search(request, workers=1)
    memory.steps.clear()
    monkeypatch.setattr("scaleout.study.search.branch_and_bound.evaluate", None)
    assert search(request, workers=1, memory=memory) == first


def test_a_checkpoint_log_of_another_search_is_refused(tmp_path):
    request = SearchRequest(model({}), cluster(2, 2), DEVICE, 8, 80e9)
    PlanLog(tmp_path, request).__exit__(None, None, None)
    others = [
        SearchRequest(model({"ffn": 2048}), cluster(2, 2), DEVICE, 8, 80e9),
        SearchRequest(model({}), cluster(2, 2), replace(DEVICE, launch_gap_s=1.0), 8, 80e9),
        SearchRequest(model({}), cluster(2, 2), DEVICE, 8, 80e9, options=SimulationOptions(host="eager")),
    ]
    for other in others:
        with pytest.raises(ConfigError, match=r"holds plans of another search .*remove it, or give another --output"):
            PlanLog(tmp_path, other)
    (tmp_path / FILE).write_text('{"of": "somebody else"}\n{"without": "an end"}')
    with pytest.raises(ConfigError, match="is not the log of a search"), pytest.warns(UserWarning, match="no checksum"):
        PlanLog(tmp_path, request)
    assert (tmp_path / FILE).read_text() == '{"of": "somebody else"}\n{"without": "an end"}'
    (tmp_path / FILE).write_text("no log\n")
    with (
        pytest.warns(UserWarning, match="line 1: damaged"),
        pytest.raises(ConfigError, match="is not the log of a sea"),
    ):
        PlanLog(tmp_path, request)


DAMAGES = {
    "a digit": (lambda line: line.replace(b'"step_s": 0.', b'"step_s": 0.0'), "is not what its checksum says"),
    "NaN": (lambda line: signed(line, step_s=float("nan")), "'NaN' is no finite number"),
    "infinite": (lambda line: signed(line, step_s=1e308).replace(b"1e+308", b"1e+309"), "checksum says"),
    "negative": (lambda line: signed(line, step_s=-1.0), "no estimate of a plan"),
    "text": (lambda line: signed(line, step_s="0.1"), "no estimate of a plan"),
    "a key": (lambda line: signed(line, step=0.1), "no estimate of a plan"),
    "no checksum": (lambda line: line.partition(b', "crc32"')[0] + b"}", "it has no checksum"),
    "half": (lambda line: line[: len(line) // 2], "Unterminated|delimiter|Expecting|checksum"),
    "no text": (lambda line: bytes(255 - byte for byte in line), "checksum|decode"),
    "no object": (lambda line: b"[1, 2]", "it has no checksum"),
}


def signed(line, **changes):
    """Return a line of an estimate with some of it changed, and a checksum that holds."""
    row = json.loads(line)
    del row["crc32"]
    row["estimate"] |= changes
    body = json.dumps(row).encode()
    return body[:-1] + b', "crc32": "%08x"}' % zlib.crc32(body)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_line_is_named_and_left_out(tmp_path, damage):
    """Above all, no number of it becomes the fastest plan."""
    change, why = DAMAGES[damage]
    request = SearchRequest(model({}), cluster(2, 2), DEVICE, 8, 80e9, 3)
    with PlanLog(tmp_path, request) as log:
        first = search(request, workers=1, memory=log)
    lines = (tmp_path / FILE).read_bytes().splitlines()
    number, *others = (number for number, line in enumerate(lines) if b'"estimate"' in line)
    lines[number] = change(lines[number])
    (tmp_path / FILE).write_bytes(b"\n".join([*lines, b""]))
    with pytest.warns(UserWarning, match=rf"plans.jsonl, line {number + 1}: damaged \(.*({why}).*left out"):
        log = PlanLog(tmp_path, request)
    with log:
        assert len(log.estimates) == len(others)
        assert search(request, workers=1, memory=log) == first


def test_two_searches_in_one_folder(tmp_path, scaleout):
    """The second is refused; that of a process that is gone leaves nothing in the way."""
    holder = (
        "import sys, time\nfrom pathlib import Path\nfrom scaleout.config.checkpoint import locked\n"
        "with locked(Path(sys.argv[1]), sys.argv[2]):\n    print(flush=True)\n    time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", holder, tmp_path, FILE], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        code, _, err = scaleout(*SEARCH, "--workers", "1", "--output", tmp_path)
        assert code == 2
        assert (
            f"{tmp_path}: process {process.pid} works in this folder; wait until it has ended, or give another" in err
        )
        assert not (tmp_path / FILE).exists()
        process.kill()
    request = SearchRequest(model({}), cluster(2, 2), DEVICE, 8, 80e9, 3)
    with PlanLog(tmp_path, request):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


SEARCH = ("search", "llama-3-8b", "--topology", "dgx-h200-1", "--global-batch", "8")


def test_the_command_prints_plans_and_draws_them(scaleout, tmp_path):
    fixed = ("--set", "recompute=none", "--set", "zero=1", "--workers", "1")
    code, out, _ = scaleout(*SEARCH, *fixed, "--top", "3", "--output", tmp_path)
    assert code == 0
    assert "plan     tp" in out
    assert (tmp_path / "pareto.png").stat().st_size > 10_000
    code, out, _ = scaleout(*SEARCH, *fixed, "--top", "3", "--output", tmp_path, "--json")
    found = json.loads(out)
    assert code == 0
    assert len(found["fastest"]) == 3
    assert all(row["plan"]["zero"] == 1 for row in found["fastest"])
    assert json.loads((tmp_path / "summary.json").read_text()) == found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ranks", "4"), "--ranks 4: topology 'dgx-h200-1' has 8 ranks; give a topology of 4 ranks"),
        (("--memory", "80"), "--memory: '80' has no unit, and is to be a size; write it like '80MiB' or '80GB'"),
        (("--memory", "80 parsecs"), "unknown unit 'parsecs' for a size"),
        (
            ("--memory", "1GB"),
            "'llama-3-8b' take 16.1 GB, and 8 ranks of 1 GB each do",
        ),
        (("--memory", "3GB", "--workers", "1"), "more; give more ranks\n"),
        (("--memory", "17GB", "--workers", "1"), "more; give more ranks or a smaller batch"),
        (("--set", "tensor_paralel=8"), "unknown key 'tensor_paralel'; did you mean 'tensor_parallel'?"),
        (("--set", "tensor_parallel=3"), "has tensor_parallel 3; choose degrees whose product divides 8"),
        (("--set", "tensor_parallel=many"), "--set: tensor_parallel: must be a whole number"),
        (("--set", "pipeline_schedule=1f2b"), "unknown pipeline_schedule '1f2b'; did you mean '1f1b'?"),
        (("--set", "layers=7", "--set", "pipeline_parallel=8"), "divides: layers 7"),
        (("--set", "mode=prefill"), "in mode 'prefill'; a search is over plans of training"),
    ],
)
def test_what_cannot_be_searched(scaleout, options, message):
    code, out, err = scaleout(*SEARCH, *options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.splitlines()[-1].startswith("error: ")  # a slow machine shows progress before it


def test_the_nearest_number_of_ranks_is_named():
    request = request_of("llama-3-8b", cluster(7), DEVICE, batch=8, changes={"pipeline_parallel": 1})
    from scaleout.study.search.explanation import why_none

    message = why_none(request, search(request, workers=1))
    assert "on 7 ranks with a global batch of 8" in message
    assert "the nearest number of ranks with a plan is 8" in message


@pytest.mark.parametrize(
    ("changes", "levels"),
    [
        ({"framework": "fsdp2"}, {3}),
        ({"framework": "fsdp2", "zero": 1}, {1}),
        ({"framework": "megatron"}, {0, 1, 2, 3}),
    ],
)
def test_a_framework_with_one_way_to_shard_has_it_in_all_plans(changes, levels):
    asked = request_of("llama-3-8b", cluster(4), DEVICE, changes=SMALL | changes, batch=4)
    found = families(asked.base, asked.num_ranks, asked.batch, fixed=asked.fixed)
    assert {plan.zero for family in found for plan in family.plans} == levels


def test_plans_are_not_checked_against_the_stages_of_the_file():
    """Qwen's file has 8 unequal stages, which 6 layers do not divide over and which one node's plans need not have."""
    sizes = {"layers": 6, "experts": 8, "top_k": 2, "hidden": 512, "ffn": 512, "expert_ffn": 512, "sequence": 512}
    asked = {"topology": "dgx-h200-1", "global_batch": 16, "top": 1, "workers": 1}
    held = {"recompute": "full", "zero": 1, "microbatch": 1}
    changes = {**sizes, **held, "stage_layers": None, "expert_parallel": 8}
    found = library.search("qwen-3-235b-a22b", changes=changes, **asked)
    assert found.to_frame()["plan.pipeline_parallel"].tolist() == [1]
    with pytest.raises(ConfigError, match=r"no plan .* fits 140 GiB a rank; the nearest \(tp 1, pp 1, dp 8, ep 8"):
        library.search("qwen-3-235b-a22b", changes={"expert_parallel": 8}, **asked)


UNEVEN = {"layers": 13, "hidden": 512, "ffn": 512, "heads": 8, "kv_heads": 8, "sequence": 512, "tensor_parallel": 1}
"""A model whose layers divide over no stages."""


@pytest.mark.parametrize(("held", "stages"), [({}, (4, 3, 3, 3)), ({"stage_layers": (1, 4, 4, 4)}, (1, 4, 4, 4))])
def test_stages_are_uneven_where_layers_do_not_divide(held, stages):
    """As even as can be; stages that are set leave out plans of another number of stages."""
    changes = {**UNEVEN, "pipeline_parallel": 4, "recompute": "full", "zero": 1, "microbatch": 1, **held}
    found = library.search("llama-3-8b", topology="dgx-h200-1", global_batch=16, workers=1, changes=changes)
    plans = found.plans.fastest
    of_four = [each for each in plans if found.request.workload(each.plan).num_stages == 4]
    assert of_four
    assert all(found.jobs[each.choice]["set.stage_layers"] == stages for each in of_four)
    assert (len(of_four) == len(plans)) == bool(held)


def test_a_recommendation_model_is_not_searched(scaleout):
    code, _, err = scaleout("search", "dlrm-128")
    assert code == 2
    assert "'dlrm-128' is of kind dlrm; a search is over plans of training a model of layers" in err
