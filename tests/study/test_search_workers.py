"""The workers of a search: who gets which plan, what is simulated once, and what a resumed search remembers."""

from collections import Counter
from concurrent.futures import Executor, Future
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scaleout
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import Dimension, Topology
from scaleout.study.job import Job, run
from scaleout.study.search import scheduled
from scaleout.study.search.checkpoint import Memory
from scaleout.study.search.execution import Execution, execution_of
from scaleout.study.search.explanation import fastest_step
from scaleout.study.search.request import SearchRequest
from scaleout.study.search.scheduled import estimate_of, estimate_under
from scaleout.study.search.search import found_by
from scaleout.study.search.space import Plan
from scaleout.workloads.families import load_workload

DEVICE = load_device("h200")
SMALL = {
    "layers": 4, "hidden": 512, "heads": 4, "kv_heads": 4, "ffn": 1024, "sequence": 2048, "vocabulary": 3000,
    "batch_per_replica": 1,
}  # fmt: skip
SLOW = Topology("small", (Dimension("switch", 2, 1e11, 2e-6), Dimension("switch", 2, 5e9, 2e-6)))
PLAN = Plan(1, 1, 1, 4, 1, 1, "1f1b", None, "none", 0, False)


def request_with(**wanted):
    # A batch of its own, as what a process knows of plans goes with the request.
    return SearchRequest(
        load_workload("llama-3-8b", SMALL), SLOW, DEVICE, **{"batch": 8, "memory_bytes": 80e9} | wanted
    )


@pytest.fixture
def simulations(monkeypatch):
    """The schedules of plans that are simulated."""
    found, simulated = [], scheduled.simulated

    def counted(prepared, program):
        found.append(prepared.job.schedule)
        return simulated(prepared, program)

    monkeypatch.setattr("scaleout.study.search.scheduled.simulated", counted)
    return found


# ---- Plans of one workload


def test_plans_of_one_workload_are_simulated_once(simulations):
    """Centauri shards what plans of ZeRO 0 do not, which makes them those of ZeRO 1."""
    request = request_with(batch=16)
    plans = [PLAN, PLAN._replace(zero=1)]
    found = [estimate_under(request, (plan, "centauri")) for plan in plans]
    workloads = {each.work for plan in plans for each in scheduled.prepare(scheduled._job(request, (plan, "centauri")))}
    assert len(simulations) == len(workloads) < 2 * len(plans)
    apart = [estimate_of(run(scheduled._job(request, (plan, "centauri")))) for plan in plans]
    assert found == apart


def test_what_differs_is_simulated_apart(simulations):
    """Schedules, plans, memory and options: each has an estimate of its own, which is that of the job by itself."""
    request = request_with(batch=24)
    wanted = [
        (request, (PLAN, "overlap")),
        (request, (PLAN, "baseline")),
        (request, (PLAN._replace(zero=3), "overlap")),
        (replace(request, memory_bytes=60e9), (PLAN, "overlap")),
        (replace(request, options=replace(request.options, clocks="sustained")), (PLAN, "overlap")),
    ]
    for number, each in enumerate(wanted, 1):
        assert estimate_under(*each) == estimate_of(run(scheduled._job(*each)))
        assert len(simulations) == number
    assert estimate_under(*wanted[0]) == estimate_under(*wanted[0])
    assert len(simulations) == len(wanted)


# ---- Who gets which plan


class Later(Executor):
    """A worker of a number, which writes down what it gets; it is done when it is told."""

    def __init__(self, number, given_out):
        self.number, self.given_out = number, given_out

    def submit(self, function, request, choice):
        self.given_out.append((self.number, choice))
        return Future()


@st.composite
def pools_and_plans(draw):
    """Plans of a few kinds of layers, some no longer wanted, for one to three workers, who end in any order."""
    microbatches = draw(st.lists(st.integers(1, 4), max_size=12))
    choices = [(PLAN._replace(microbatch=each, zero=number), "overlap") for number, each in enumerate(microbatches)]
    unwanted = draw(st.sets(st.sampled_from(choices))) if choices else set()
    return draw(st.integers(1, 3)), choices, unwanted, draw(st.randoms(use_true_random=False))


@given(pools_and_plans())
def test_every_plan_is_simulated_once_by_its_worker_or_one_that_has_none(drawn):
    workers, choices, unwanted, random = drawn
    given_out = []
    execution = Execution([Later(number, given_out) for number in range(workers)], Memory())
    execution.share(Counter(plan.alike for plan, _ in choices))

    def waited(running, return_when):
        ended = random.sample(list(running), min(len(running), 1))
        for future in ended:
            future.set_result("an estimate")
        return SimpleNamespace(done=ended)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scaleout.study.search.execution.wait", waited)
        yielded = list(execution.simulate(None, None, choices, lambda choice: choice not in unwanted))
    assert Counter(choice for choice, _ in yielded) == Counter(choices)
    assert {choice for choice, estimate in yielded if estimate is None} == unwanted
    todo = [choice for choice in choices if choice not in unwanted]
    assert Counter(choice for _, choice in given_out) == Counter(todo)
    for worker, choice in given_out:
        own = [each for each in todo if execution.worker_of(each[0].alike) == worker]
        assert choice == (own or todo)[0]
        todo.remove(choice)


def test_the_largest_kinds_of_layers_go_first_by_hand():
    execution = Execution([Later(number, []) for number in range(2)], Memory())
    execution.share({"one": 4, "two": 4, "most": 8})
    assert execution.worker_of("one") == execution.worker_of("two") != execution.worker_of("most")


@given(st.dictionaries(st.integers(), st.integers(1, 50), max_size=6), st.integers(1, 3))
def test_workers_get_about_as_many_plans(groups, workers):
    execution = Execution([Later(number, []) for number in range(workers)], Memory())
    execution.share(groups)
    loads = [0] * workers
    for alike, number in groups.items():
        loads[execution.worker_of(alike)] += number
    assert max(loads) - min(loads) <= max(groups.values(), default=0)
    # Graham, 1969: the largest first are within a third of the best, which is no less than these.
    assert max(loads) <= 4 / 3 * max(_least(sorted(groups.values(), reverse=True), workers), 1)


def _least(sizes, workers):
    """Return the smallest largest load there is, by trying all."""
    return min(
        (
            max(sum(size for size, at in zip(sizes, places, strict=True) if at == worker) for worker in range(workers))
            for places in product(range(workers), repeat=len(sizes))
        ),
    )


# ---- Error bars and explanation


def test_error_bars_come_from_a_worker_and_are_those_of_the_plan():
    """Two processes say what one says, and what the job by itself has; the parent simulates nothing."""
    request = request_with(schedules=("overlap",), simulations=4, top=8)
    found = []
    for workers in (1, 2):
        with execution_of(workers) as execution:
            answer = found_by(request, execution)
            if workers == 2:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("scaleout.study.search.explanation.run_plan", None)  # here; workers have theirs
                    found.append(fastest_step(request, answer, execution))
            else:
                found.append(fastest_step(request, answer, execution))
    assert found[0] == found[1]
    plan, schedule = answer.fastest[0].choice
    outcome = run(Job(request.workload(plan), DEVICE, SLOW, schedule, request.options))
    assert found[0].interval == outcome.interval
    plan, schedule = answer.fastest[-1].choice
    other = run(Job(request.workload(plan), DEVICE, SLOW, schedule, request.options))
    assert None is not found[0].interval != other.interval


def test_a_resumed_search_simulates_nothing(tmp_path, monkeypatch):
    """Estimates, error bars and what the explanation needs are in its log."""
    asked = {"topology": "dgx-h200-1", "changes": SMALL, "schedules": ["overlap"], "simulations": 2, "top": 2}
    asked |= {"directory": tmp_path, "workers": 1}
    first = scaleout.search("llama-3-8b", **asked).to_dict()
    ran = []
    for name in ("scheduled.simulated", "scheduled.run", "explanation.run_plan"):
        monkeypatch.setattr(f"scaleout.study.search.{name}", lambda *_asked, name=name: ran.append(name))
    assert scaleout.search("llama-3-8b", **asked).to_dict() == first
    assert not ran
    assert first["fastest"][0]["step_low_s"] < first["fastest"][0]["step_high_s"]
