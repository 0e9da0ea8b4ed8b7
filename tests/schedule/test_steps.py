"""The anomalies of list scheduling for which `overlap` leaves the baseline; laws are in `tests/fuzz/test_jobs.py`."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.cluster.device.annotate import annotate
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import load_topology
from scaleout.program.program import GroupFamily
from scaleout.schedule import steps
from scaleout.schedule.overlap import baseline, overlap
from scaleout.schedule.steps import step
from scaleout.study.comparison import compare
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate

SHARED_LINKS = "llama-3-8b", "sierra-32", {
    "layers": 4, "hidden": 4096, "tensor_parallel": 8, "pipeline_parallel": 2, "context_parallel": 2,
    "data_parallel": 1, "zero": 0, "sequence": 8192, "sequence_parallel": True, "microbatch": 1, "batch_per_replica": 4,
    "pipeline_schedule": "interleaved_1f1b", "virtual_stages": 2,
}  # fmt: skip
SHARED_DEVICES = "mixtral-8x7b", "dgx-h200-4", {
    "layers": 4, "hidden": 1024, "tensor_parallel": 4, "pipeline_parallel": 4, "data_parallel": 2, "zero": 0,
    "sequence": 1024, "sequence_parallel": True, "microbatch": 1, "batch_per_replica": 4,
    "pipeline_schedule": "gpipe", "expert_parallel": 1,
}  # fmt: skip


@pytest.mark.parametrize(("job", "contended"), [(SHARED_LINKS, False), (SHARED_DEVICES, True)])
def test_where_overlap_is_longer_the_baseline_stays(job, contended):
    """Two anomalies of list scheduling, which `overlap:always` has and `overlap` leaves.

    The all-reduce of one stage's gradients takes the links that the tensor-parallel collectives of another stage's last
    backward need, for which all wait; and GEMMs that collectives slow down are those for which the next stage waits.
    """
    name, topology, keys = job
    schedules = ["baseline", "overlap:always", "overlap"]
    found = compare(name, changes=keys, topology=topology, device="h200", schedules=schedules)
    baseline, always, overlap = found.outcomes
    assert always.makespan_s > 1.01 * baseline.makespan_s
    assert overlap.makespan_s == baseline.makespan_s
    (decision,) = overlap.decisions
    assert (decision.choice, decision.time_s) == ("as under baseline", baseline.makespan_s)
    assert decision.alternatives_s == {"as scheduled": always.makespan_s}
    assert [each.runs_as for each in (baseline, always, overlap)] == ["", "", "baseline"]
    rows = found.summary()["results"]
    assert [row.get("runs_as") for row in rows] == [None, None, "baseline"]
    free = compare(name, changes=keys, topology=topology, device="h200", schedules=schedules, contention=False)
    baseline, always, _ = free.outcomes
    assert (always.makespan_s < baseline.makespan_s) == contended


@settings(max_examples=20)
@given(st.dictionaries(st.integers(0, 7), st.sampled_from([0.3, 0.9, 1.2, 4.0]), max_size=8))
def test_no_baseline_is_shorter_than_its_bound(factors):
    """Whichever ranks are slow or fast; without a pipeline the slowest rank waits for nobody, so that it is tight."""
    slowed = replace(MACHINE, topology=replace(MACHINE.topology, slow_ranks=tuple(sorted(factors.items()))))
    made, bound_s = program(), steps._serial_s(program(), slowed)
    assert bound_s == pytest.approx(step(baseline(made), slowed).makespan_s, rel=1e-9)


def test_a_baseline_that_is_longer_by_its_bound_is_not_simulated(simulations):
    """The slowest rank's own kernels bound it: the first rank's would not."""
    slowed = replace(MACHINE, topology=replace(MACHINE.topology, slow_ranks=((7, 3.0),)))
    steps.overlap_where_shorter(program(), slowed)
    assert len(simulations) == 1


def test_overlap_takes_one_option(scaleout):
    code, out, err = scaleout("run", "dlrm-128", "--schedule", "overlap:never")
    assert (code, out) == (2, "")
    assert err == "error: overlap takes the option 'always' alone, not 'never'; give overlap or overlap:always\n"


SMALL = {"layers": 2, "data_parallel": 2, "tensor_parallel": 4, "batch_per_replica": 1}
MACHINE = Machine(load_device("h200"), load_topology("dgx-h200-1"))


@pytest.fixture
def simulations(monkeypatch):
    """The programs that are simulated."""
    found, simulate = [], steps.simulate

    def counted(program, *given, **how):
        found.append(program)
        return simulate(program, *given, **how)

    monkeypatch.setattr(steps, "simulate", counted)
    steps._simulated.cache_clear()
    return found


def program():
    return annotate(generate(load_workload("llama-3-8b", SMALL)), MACHINE.device, host="none")


def test_an_equal_program_is_simulated_once(simulations):
    """Another tier's program is made anew, and may have groups that no node names."""
    results = [step(overlap(program()), MACHINE)]
    more = (*program().groups, GroupFamily("levels", ((0, 1), (2, 3))))
    results.append(step(overlap(replace(program(), groups=more)), replace(MACHINE)))
    assert len(simulations) == 1
    assert results[0] is results[1]


def test_what_differs_in_anything_is_simulated(simulations):
    """One kernel's last bit, one stream, who runs what, a group, the machine: each by itself, beside the first."""
    first = overlap(program())
    graph = first.graphs[0]
    kernel = int(np.flatnonzero(graph.duration_s > 0)[0])
    durations_s = graph.duration_s.copy()
    durations_s[kernel] = np.nextafter(durations_s[kernel], 1)
    swapped = tuple(replace(each, members=each.members[::-1]) for each in first.groups)
    others = [
        (replace(first, graphs=(graph.with_columns(duration_s=durations_s), *first.graphs[1:])), MACHINE),
        (baseline(first), MACHINE),
        (replace(first, groups=swapped), MACHINE),
        (first, replace(MACHINE, algorithms={"all_reduce": "ring"})),
        (first, replace(MACHINE, topology=replace(MACHINE.topology, slow_ranks=((3, 2.0),)))),
        (replace(first, name="another job"), MACHINE),  # whose name the answer has
    ]
    step(first, MACHINE)
    for number, other in enumerate(others, 2):
        step(*other)
        step(first, MACHINE)
        assert len(simulations) == number
