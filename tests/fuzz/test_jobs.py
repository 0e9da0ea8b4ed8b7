"""Laws over random jobs of all families, plans, networks and schedules.

`JOBS=5000 python -m pytest -n 0 tests/fuzz/test_jobs.py --hypothesis-seed=N` takes as many new ones, and tells all that
break a law; by default 25, the same ones every time.
"""

import json
import os
import tempfile
import traceback
from pathlib import Path

import chakra_messages as chakra
import numpy as np
from hypothesis import Phase, assume, event, given, settings
from hypothesis import strategies as st
from random_jobs import conditions, faulty, random_jobs

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import ConfigError
from scaleout.simulation.options import SimulationOptions
from scaleout.study.comparison import compare
from scaleout.study.job import Job, run
from scaleout.workloads.config import load_workload
from scaleout.workloads.generate import generate

JOBS = int(os.environ.get("JOBS", "0"))
ROUNDING = 1 + 1e-12
NO_LONGER = {
    "overlap": "baseline",
    "centauri": "overlap",
    "fused": "baseline",
    "overlap+fused": "overlap",
    "centauri+fused": "centauri",
    "concurrent+fused": "concurrent",
    "blocking-tp+fused": "blocking-tp",
    "overlap+async-tp+fused": "overlap+async-tp",
    "centauri:group+fused": "centauri:group",
    "overlap:always+fused": "overlap:always",
    "out-of-order": "overlap:always",
    "coconet": "overlap:always",
}
"""Schedule to the one than which it is never longer, as it decides by a simulated step."""
ALWAYS = ("overlap", "centauri", "fused")
"""Of these, those that every job runs under."""
OTHERS = (
    *("centauri:primitive", "centauri:workload", "centauri:order", "centauri:model", "centauri:workload=M"),
    *("centauri:model-group", "chunked", "chunked:4", "substituted", "substituted:rooted", "fused-oblivious"),
    *("overlap+substituted+fused", "track-and-trigger", "async-tp"),
)
"""Schedules that promise no more than any."""
UNTIMED = ("slices of its own", "does not say how it runs GEMMs in stages")
"""What a schedule may fail with, as it says: more puts than are simulated, and a device of which nothing is known."""


def pairs():
    """Schedules of a job, each behind the one than which it is no longer."""
    more = [name for name in NO_LONGER if name not in ALWAYS]
    return st.sampled_from([*(((NO_LONGER[name], name)) for name in more), *((name,) for name in OTHERS)])


def broken(job, under, more):
    """Yield in words what laws a job breaks under some schedules; a ConfigError says that its keys make no job."""
    (name, keys, topology, device), (options, faults) = job, under
    options = options | {"topology": faulty(load_topology(topology), faults), "device": device}
    names = dict.fromkeys(["baseline", *ALWAYS, *more])
    found = compare(name, changes=keys, schedules=list(names), **options)
    json.dumps(found.summary(), allow_nan=False)
    yield from (str(each) for each in found.failures if not any(words in str(each) for words in UNTIMED))
    outcomes = {each.schedule: each for each in found.outcomes}
    for schedule, than in NO_LONGER.items():
        if {schedule, than} <= outcomes.keys():
            times = outcomes[schedule].makespan_s, outcomes[than].makespan_s
            if times[0] > times[1] * ROUNDING:
                yield f"{schedule} is {times[0] / times[1] - 1:.2%} longer than {than}, {times[1] * 1e3:.4g} ms"
    for schedule, outcome in outcomes.items():
        times = outcome.breakdown
        parts = times.compute_s, times.exposed_communication_s, times.idle_s
        if min(parts) < -1e-9 * outcome.makespan_s or times.exposed_communication_s > times.communication_s * ROUNDING:
            yield f"{schedule}: {parts} are no parts of {outcome.makespan_s} s"


def differs(job, network, schedule):
    """Yield how a job and its traces differ in time, to the last bit, on a network as it was built."""
    name, keys, topology, device = job
    machine, options = (load_device(device), load_topology(topology)), SimulationOptions(network=network)
    program = time_kernels(generate(load_workload(name, keys)), machine[0])
    whole = run(Job(program, *machine, schedule, options))
    with tempfile.TemporaryDirectory() as folder:
        chakra.save_program(program, Path(folder), name="job", facts={})
        loaded = chakra.load_program(Path(folder)).program
    again = run(Job(loaded, *machine, schedule, options, traced=True))
    if again.makespan_s != whole.makespan_s:
        yield f"traces under {schedule} on {network}: {again.makespan_s} s, the job {whole.makespan_s} s"


@st.composite
def cases(draw):
    """A job, what it runs under, its schedules, and how its traces are run."""
    job = draw(random_jobs())
    traced = draw(st.sampled_from(["alpha_beta", "link"])), draw(
        st.sampled_from(["baseline", "overlap:always", "concurrent"])
    )
    return job, draw(conditions(job)), draw(pairs()), traced


def test_laws_over_random_jobs():
    """None is longer than what it is held against, parts add up, and traces take as long as their job."""
    found = []

    @given(cases())
    @settings(max_examples=JOBS or 25, derandomize=not JOBS, phases=[Phase.generate], database=None)
    def check(case):
        job, under, more, traced = case
        try:
            told = [*broken(job, under, more), *differs(job, *traced)]
        except ConfigError as error:
            event(str(error).partition(":")[2][:60])
            assume(False)  # keys that make no job
        except Exception:
            told = [traceback.format_exc()]
        found.extend(f"{words}\n{job!r}\n{under!r}" for words in told)
        for words in told if JOBS else ():
            print(words, job, under, more, sep="\n", flush=True)

    check()
    assert not found, "\n\n".join(found)
