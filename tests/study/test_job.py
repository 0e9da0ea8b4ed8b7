"""One path: a job means the same whoever runs it, and what a job refuses it refuses everywhere."""

import json

import chakra_messages as chakra
import pytest

import scaleout
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import ConfigError
from scaleout.program.program import alike
from scaleout.simulation.options import SimulationOptions
from scaleout.study.buckets import sweep_buckets
from scaleout.study.comparison import compare, compare_program
from scaleout.study.job import Job, annotated, prepare, run, simulated, timed
from scaleout.study.search.request import request_of
from scaleout.study.search.search import search
from scaleout.study.strategies import follow
from scaleout.workloads.families import load_workload

H200, NODE = load_device("h200"), load_topology("h200-node-4")
EAGER = SimulationOptions(host="eager", clocks="sustained", contention=False)
SIZES = {"layers": 2, "data_parallel": 4, "batch_per_replica": 1, "recompute": "none"}


def job(**changes):
    return load_workload("llama-3-8b", {**SIZES, **changes})


def test_options_mean_the_same_in_a_comparison_a_strategy_a_sweep_and_a_search():
    workload = job(zero=0, overlap_gradient_reduce=False, overlap_parameter_gather=False)
    expected_s = run(Job(workload, H200, NODE, "overlap", EAGER)).makespan_s
    assert expected_s > run(Job(workload, H200, NODE, "overlap")).makespan_s
    compared = compare(workload, topology=NODE, device=H200, schedules=["overlap"], options=EAGER)
    assert compared.outcomes[0].makespan_s == expected_s
    assert follow("ddp", workload, topology=NODE, device=H200, options=EAGER).outcome.makespan_s == expected_s
    (swept,) = sweep_buckets(Job(job(), H200, NODE, "overlap", EAGER), sizes_bytes=[2**25])
    bucketed = run(Job(job(gradient_bucket="32 MiB"), H200, NODE, "overlap", EAGER))
    assert swept.step_s == bucketed.makespan_s


@pytest.mark.parametrize("options", [SimulationOptions(), EAGER, SimulationOptions(placement="transposed")])
@pytest.mark.parametrize("changes", [{}, {"zero": 1}, {"pipeline_parallel": 2, "data_parallel": 2}])
def test_a_program_that_the_schedule_has_simulated_is_that_of_the_workload(options, changes):
    for prepared in prepare(Job(job(**changes), H200, NODE, "centauri", options)):
        assert prepared.program is not None
        anew = prepared._replace(program=None)
        assert alike(annotated(prepared), annotated(anew))
        found, other = simulated(prepared, annotated(prepared)), simulated(anew, annotated(anew))
        assert (found.makespan_s, found.decisions) == (other.makespan_s, other.decisions)


def test_a_search_simulates_plans_as_run_does_under_a_host_and_clocks():
    changes = {key: value for key, value in SIZES.items() if key != "batch_per_replica"}
    request = request_of(
        "llama-3-8b", NODE, H200, batch=4, changes=changes, schedules=("overlap",), top=2, simulations=1, options=EAGER
    )
    for found in search(request, workers=1).fastest:
        ran = run(Job(request.workload(found.plan), H200, NODE, found.schedule, EAGER))
        assert found.estimate.step_s == ran.makespan_s


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SimulationOptions(clocks="cold_start"), "take clocks sustained or unthrottled"),
        (SimulationOptions(network="link"), "a search weighs blocks of plans on the alpha-beta network"),
    ],
)
def test_a_search_refuses_what_its_bounds_do_not_hold_under(options, message):
    with pytest.raises(ConfigError, match=message):
        request_of("llama-3-8b", NODE, H200, batch=4, changes=SIZES, options=options)


def test_keywords_of_compare_are_attributes_of_options():
    by_keyword = compare(job(), topology=NODE, device=H200, schedules=["overlap"], host="eager", contention=False)
    options = SimulationOptions(host="eager")
    mixed = compare(job(), topology=NODE, device=H200, schedules=["overlap"], options=options, contention=False)
    assert by_keyword.summary() == mixed.summary()


def test_contention_holds_for_a_trace_as_for_the_workload_that_it_was_written_of(tmp_path):
    workload = job()
    chakra.save_program(timed(workload, H200), tmp_path, name="job", facts={})
    program = chakra.load_program(str(tmp_path)).program
    for contention in (True, False):
        ran = compare(workload, topology=NODE, device=H200, schedules=["overlap"], contention=contention)
        traced = compare_program(program, topology=NODE, device=H200, schedules=["overlap"], contention=contention)
        assert traced.outcomes[0].makespan_s == ran.outcomes[0].makespan_s


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "eager"}, "a trace's kernels say when they ran"),
        ({"clocks": "sustained"}, "a trace's kernels say how long they took"),
        ({"policy": "nccl_ring"}, "--policy is for workloads"),
    ],
)
def test_a_trace_refuses_what_it_says_itself(options, message):
    program = timed(job(), H200)
    with pytest.raises(ConfigError, match=message):
        compare_program(program, topology=NODE, device=H200, schedules=["baseline"], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network": "alphabeta"}, "unknown network model 'alphabeta'; did you mean 'alpha_beta'"),
        ({"host": "eagre"}, "unknown host 'eagre'; did you mean 'eager'"),
        ({"clocks": "sustaned"}, "unknown clocks 'sustaned'; did you mean 'sustained'"),
        ({"algorithms": {"all_reduse": "ring"}}, "all_reduse"),
        ({"injection_bytes_per_s": 1e9}, "one of the link model"),
    ],
)
def test_wrong_options_are_refused_where_they_are_made(options, message):
    with pytest.raises(ConfigError, match=message):
        scaleout.SimulationOptions(**options)


def test_schedules_that_all_fail_are_named_with_why(monkeypatch):
    def fails(job, programs):
        raise ConfigError(f"not {'this' if job.schedule == 'baseline' else 'that'}")

    monkeypatch.setattr("scaleout.study.job.run", fails)
    with pytest.raises(ConfigError, match=r"^schedule baseline: not this; schedule overlap: not that$"):
        compare("dlrm-128", schedules=["baseline", "overlap"])
    with pytest.raises(ConfigError, match=r"^not that$"):
        compare("dlrm-128", schedules=["fused", "overlap"])


def test_a_text_is_no_list_of_schedules():
    with pytest.raises(ConfigError, match=r"^compare\(\): schedules: must be a list, not 'baseline'$"):
        scaleout.compare("dlrm-128", schedules="baseline")


def test_no_schedule_is_nothing_to_compare():
    program = timed(job(), H200)
    with pytest.raises(ConfigError, match="no schedules to compare; give at least one"):
        scaleout.compare_program(program, topology=NODE, device=H200, schedules=[])


def test_buckets_say_what_does_not_fit_and_what_is_gained_over_the_default(scaleout):
    """A job that does not fit had a best size like any other, and no row was of the size that a run takes."""
    job = ("llama-3-8b", "--set", "zero=0", "--set", "data_parallel=2", "--set", "layers=16", "--topology")
    job += ("ring(2,nvlink4)", "--device", "h100")
    swept = ("buckets", *job, "--bytes", "64MiB,4MiB")
    found = json.loads(scaleout(*swept, "--json")[1])
    ran = json.loads(scaleout("run", *job, "--schedule", "overlap:always", "--json")[1])
    assert not found["memory"]["fits"]
    advice, with_steps = found["memory"].pop("advice"), ran["memory"].pop("advice")
    assert found["memory"] == ran["memory"]
    assert sorted(map(repr, advice)) == sorted(repr({key: each[key] for key in advice[0]}) for each in with_steps)
    assert found["default"]["bucket_bytes"] == 25 * 2**20
    for name in ("makespan_s", "compute_s", "communication_s", "exposed_communication_s", "idle_s"):
        assert found["default"][name] == ran["results"][0][name]
    for row in found["results"]:
        parts_s = row["compute_s"] + row["exposed_communication_s"] + row["idle_s"]
        assert parts_s == pytest.approx(row["makespan_s"])
    box, table = scaleout(*swept)[1].split("gradient buckets")
    assert box.count("if it fitted") == 1
    assert box.index("memory ") < box.index("best ")
    assert [line.split()[1:3] for line in table.splitlines() if "default" in line] == [["default", "25"]]
    assert (
        json.loads(scaleout(*swept, "--algorithm=ring", "--algorithm=auto", "--json")[1])["default"] == found["default"]
    )
