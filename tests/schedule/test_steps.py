"""Schedules that say they are never longer than others, and the anomalies for which they leave the baseline.

STEPS_EXAMPLES sets the number of random jobs, such as 5000; by default 25.
"""

import os

import numpy as np
import pytest
from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st
from strategies import conditions, random_jobs, topology_of

from scaleout.errors import ConfigError
from scaleout.study.comparison import compare

EXAMPLES = int(os.environ.get("STEPS_EXAMPLES", "25"))
ROUNDING = 1 + 1e-12

PLACED = {
    "layers": 4, "hidden": 1024, "tensor_parallel": 8, "pipeline_parallel": 2, "data_parallel": 2, "sequence": 1024,
    "sequence_parallel": True, "microbatch": 1, "batch_per_replica": 2, "pipeline_schedule": "1f1b", "zero": 1,
}  # fmt: skip
SERVED = {
    "layers": 4, "hidden": 4096, "tensor_parallel": 2, "pipeline_parallel": 4, "context_parallel": 2,
    "data_parallel": 1, "sequence": 1024, "sequence_parallel": True, "microbatch": 1, "batch_per_replica": 4,
    "pipeline_schedule": "gpipe", "zero": 0,
}  # fmt: skip


ISSUED = {
    "layers": 4, "hidden": 1024, "tensor_parallel": 4, "pipeline_parallel": 2, "data_parallel": 2, "sequence": 8192,
    "microbatch": 1, "batch_per_replica": 2, "pipeline_schedule": "gpipe",
}  # fmt: skip
PLACED_AT_RANDOM = np.random.RandomState(1).permutation(32).tolist()


@given(random_jobs().flatmap(lambda job: st.tuples(st.just(job), conditions(job))))
@example((("llama-3-8b", PLACED, "dgx-h200-4", "h200"), {"placement": PLACED_AT_RANDOM}))  # once 3% longer
@example((("llama-3-8b", SERVED, "sierra-16", "b200"), {}))  # once 18% longer
@example((("llama-3-8b", ISSUED, "dgx-h200-2", "h200"), {"host": "eager"}))  # once 1.4% longer: gathers wait for a host
@settings(max_examples=EXAMPLES)
def test_overlap_is_never_longer_than_the_baseline_nor_centauri_than_either(case):
    """Wherever the ranks are placed, on either model of the network, with faults, hosts and clocks."""
    (name, keys, topology, device), options = case
    options = {"topology": topology_of(topology)} | options
    try:
        found = compare(name, changes=keys, device=device, schedules=["baseline", "overlap", "centauri"], **options)
    except ConfigError as error:
        event(str(error).partition(":")[2][:60])
        assume(False)  # keys that make no job
    assert not found.failures
    baseline_s, overlap_s, centauri_s = (each.makespan_s for each in found.outcomes)
    assert overlap_s <= baseline_s * ROUNDING
    assert centauri_s <= overlap_s * ROUNDING


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
    assert [each.startswith("all collectives: as under baseline, ") for each in overlap.decisions] == [True]
    free = compare(name, changes=keys, topology=topology, device="h200", schedules=schedules, contention=False)
    baseline, always, _ = free.outcomes
    assert (always.makespan_s < baseline.makespan_s) == contended


def test_overlap_takes_one_option(scaleout):
    code, out, err = scaleout("run", "dlrm-128", "--schedule", "overlap:never")
    assert (code, out) == (2, "")
    assert err == "error: overlap takes the option 'always' alone, not 'never'; give overlap or overlap:always\n"
