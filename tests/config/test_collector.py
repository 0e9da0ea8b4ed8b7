"""What is said of the collector holds while scaleout works, and no longer; what the user said of it stays."""

import gc

import pytest

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.config.collector import SELDOM, seldom_collected
from scaleout.study import job
from scaleout.workloads.families import load_workload


@pytest.fixture(autouse=True)
def as_before():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_the_collector_is_as_before_even_after_an_error():
    gc.set_threshold(700, 10, 10)
    seen = []

    @seldom_collected()
    def fail():
        seen.append(gc.get_threshold())
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        fail()
    assert seen == [SELDOM]
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("chosen", [(0, 10, 10), (1_000_000, 1, 1)], ids=["off", "more seldom still"])
def test_what_the_user_chose_stays(chosen):
    gc.set_threshold(*chosen)
    with seldom_collected():
        assert gc.get_threshold() == chosen
    assert gc.get_threshold() == chosen


def test_a_job_from_python_is_run_so(monkeypatch):
    gc.set_threshold(700, 10, 10)
    seen, simulated = [], job.simulated
    monkeypatch.setattr(job, "simulated", lambda *given: (seen.append(gc.get_threshold()), simulated(*given))[1])
    job.run(job.Job(load_workload("dlrm-128"), load_device("h200"), load_topology("torus-8x16")))
    assert seen == [SELDOM]
    assert gc.get_threshold() == (700, 10, 10)
