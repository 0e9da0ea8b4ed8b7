"""The anomalies of list scheduling for which `overlap` leaves the baseline; laws are in `tests/fuzz/test_jobs.py`."""

import pytest

from scaleout.study.comparison import compare

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
