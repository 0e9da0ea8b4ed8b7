"""What is known of a device by default, and `ideal`, which leaves it out: Python, command line and studies agree."""

import json

import pytest

import scaleout
from scaleout.cluster.device.spec import load_device
from scaleout.errors import ConfigError
from scaleout.simulation.options import SimulationOptions
from scaleout.study.realism import IDEAL, as_stated, options_for
from scaleout.study.sweep.cases import Resolver, run_line
from scaleout.workloads.families import load_workload

JOB = {"layers": 2, "data_parallel": 4, "batch_per_replica": 2}
REAL = {"host": "eager", "clocks": "sustained", "contention": True}


def three(options):
    return {name: getattr(options, name) for name in IDEAL}


@pytest.mark.parametrize(
    ("device", "changes", "known"),
    [
        ("h200", {}, REAL),
        ("h200", {"mode": "decode"}, {**REAL, "host": "none"}),
        ("h200", {"mode": "prefill"}, REAL),
        ("h200", {"framework": "maxtext"}, {**REAL, "host": "none"}),
        ("b200", {}, {**REAL, "clocks": "unthrottled"}),
        ("a100-40g", {}, {**REAL, "host": "none", "clocks": "unthrottled"}),
    ],
)
def test_what_is_known_of_a_device_holds_unless_a_step_is_issued_whole(device, changes, known):
    job = load_workload("llama-3-8b", JOB | changes)
    assert three(options_for(job, load_device(device))) == known


@pytest.mark.parametrize("given", [{"host": "none"}, {"clocks": "unthrottled"}, {"clocks": "cold_start"},
                                   {"contention": False}, {"network": "link"}])  # fmt: skip
def test_each_option_that_is_given_wins_alone(given):
    job, device = load_workload("llama-3-8b", JOB), load_device("h200")
    assert options_for(job, device, **given) == SimulationOptions(**{**REAL, **given})
    whole = SimulationOptions(**given)
    assert options_for(job, device, options=whole) == whole


@pytest.mark.parametrize("contrary", [{"host": "eager"}, {"clocks": "sustained"}, {"contention": True}])
def test_ideal_beside_its_contrary_is_refused(contrary):
    job, device = load_workload("llama-3-8b", JOB), load_device("h200")
    (name,) = contrary
    with pytest.raises(ConfigError, match=f"ideal leaves out host, clocks and contention, and {name} is"):
        options_for(job, device, ideal=True, **contrary)
    assert three(options_for(job, device, ideal=True, **{name: IDEAL[name]})) == IDEAL


def test_the_command_line_python_and_studies_agree(request):
    command = request.getfixturevalue("scaleout")
    words = [word for key, value in JOB.items() for word in ("--set", f"{key}={value}")]
    named = {"workload": "llama-3-8b", **{f"set.{key}": value for key, value in JOB.items()}}
    steps = []
    for option, given in (((), {}), (("--ideal",), {"ideal": True}), (("--host", "none"), {"host": "none"})):
        asked = "run", "llama-3-8b", *words, "--topology", "h200-node-4", "--schedule", "overlap", *option
        line = json.loads(command(*asked, "--json")[1])["results"][0]["makespan_s"]
        case = Resolver().resolve(0, {**named, "topology": "h200-node-4", "schedule": "overlap", **given})
        assert not case.error
        assert set(option) <= set(run_line(case.inputs).split())
        python = package_run(case.options)
        by_keyword = package_run(None, **given)
        assert line == python == by_keyword
        steps.append(line)
    assert len(set(steps)) == len(steps)
    assert steps[1] == min(steps)
    code, _, error = command("run", "dlrm-128", "--ideal", "--host", "eager")
    assert code == 2
    assert "ideal leaves out" in error


def package_run(options, **given):
    answer = scaleout.run(
        "llama-3-8b", changes=JOB, topology="h200-node-4", schedules=["overlap"], options=options, **given
    )
    return answer["overlap"].makespan_s


@pytest.mark.parametrize("given", [{}, {"ideal": True}, {"host": "none"}, {"contention": False},
                                   {"host": "none", "clocks": "unthrottled"}])  # fmt: skip
def test_options_are_stated_so_that_they_are_found_again(given):
    job, device = load_workload("llama-3-8b", JOB), load_device("h200")
    options = options_for(job, device, **given)
    assert as_stated(options, job, device) == given
    assert options_for(job, device, **as_stated(options, job, device)) == options


@pytest.mark.parametrize("given", [{}, {"ideal": True}, {"host": "none", "clocks": "unthrottled"}])
def test_all_plans_that_a_search_shows_take_what_run_says_to_the_bit(given):
    changes = {"layers": 2, "zero": 1}
    answer = scaleout.search(
        "llama-3-8b",
        topology="h200-node-4",
        changes=changes,
        global_batch=8,
        top=3,
        workers=1,
        **given,
    )
    for each in (*answer.plans.fastest, *answer.plans.front):
        case = Resolver().resolve(0, answer.jobs[each.choice])
        ran = scaleout.run(
            case.workload.value, topology=case.topology.value, device=case.device.value, schedules=[case.schedule],
            options=case.options,
        )  # fmt: skip
        assert ran.outcomes[0].makespan_s == each.estimate.step_s


def test_what_a_devices_file_lacks_is_said_once_and_not_where_all_is_left_out():
    asked = {"changes": {"layers": 2}, "topology": "dgx-h200-1", "device": "a100-40g", "schedules": ["baseline"]}
    for ideal, count in ((False, 1), (True, 0)):
        notes = scaleout.run("llama-3-8b", **asked, ideal=ideal).to_dict()["model"]["notes"]
        words = "does not say what its host spends on a call (host_launch) or what it draws (power)"
        assert sum(words in each for each in notes) == count
