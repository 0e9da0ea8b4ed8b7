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
import pytest
from hypothesis import Phase, assume, event, given, settings
from hypothesis import strategies as st
from random_jobs import conditions, random_jobs
from strategies import faulty

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import ConfigError
from scaleout.simulation.clocks import SETTLED
from scaleout.simulation.options import SimulationOptions
from scaleout.study.comparison import compare
from scaleout.study.job import Job, run
from scaleout.workloads.families import load_workload
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
UNTIMED = ("slices of its own", "does not say how it runs GEMMs in stages", "found no GEMM whose output", "no plan of ")
"""What a schedule may fail with, as it says: too many puts, a device of which nothing is known, nothing to
track, no memory."""


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
            if times[0] > times[1] * (ROUNDING if options.get("clocks") == "unthrottled" else 1 + 2 * SETTLED):
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
    traced = (
        draw(st.sampled_from(["alpha_beta", "link"])),
        draw(st.sampled_from(["baseline", "overlap:always", "concurrent"])),
    )
    return job, draw(conditions(job)), draw(pairs()), traced


def test_laws_over_random_jobs():
    """None is longer than what it is held against, parts add up, and traces take as long as their job."""
    found, held = [], []

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
        held.append(not told)
        found.extend(f"{words}\n{job!r}\n{under!r}" for words in told)
        for words in told if JOBS else ():
            print(words, job, under, more, sep="\n", flush=True)  # noqa: T201 - pytest -s

    try:
        check()
    finally:
        print(f"{len(held):,} jobs, of which {held.count(False)} break a law")  # noqa: T201 - pytest -s
    assert not found, "\n\n".join(found)


# ---- Jobs that once broke a law

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
PIPELINE_WITH_CONTEXT = {
    "layers": 8, "pipeline_parallel": 2, "context_parallel": 2, "tensor_parallel": 2, "data_parallel": 2,
    "batch_per_replica": 8, "microbatch": 1, "sequence_parallel": True, "pipeline_schedule": "interleaved_1f1b",
    "virtual_stages": 2,
}  # fmt: skip
TWO_WAYS = {
    "layers": 8, "hidden": 1024, "tensor_parallel": 1, "pipeline_parallel": 4, "context_parallel": 4,
    "data_parallel": 1, "sequence_parallel": False, "context_exchange": "ring", "sequence": 8192, "microbatch": 1,
    "batch_per_replica": 8, "pipeline_schedule": "dualpipe_v", "zero": 2, "recompute": "full",
}  # fmt: skip
DECODE = {
    "layers": 4, "tensor_parallel": 8, "data_parallel": 1, "mode": "decode", "sequence_parallel": False,
    "pipeline_parallel": 1,
}  # fmt: skip
TABLES = {"data_parallel": 8, "global_batch": 512, "sharding": "table_wise", "interaction": "dot", "optimizer": "sgd"}
THREE_LEVELS = "ring(2,ndr) x ring(2,hdr) x ring(2,nvlink4)"
PLACED_AT_RANDOM = np.random.RandomState(1).permutation(32).tolist()
ONCE = {
    "overlap 3% longer": (("llama-3-8b", PLACED, "dgx-h200-4", "h200"), {"placement": PLACED_AT_RANDOM}),
    "overlap 18% longer": (("llama-3-8b", SERVED, "sierra-16", "b200"), {}),
    "centauri 1.4% longer, its gathers wait for a host": (
        ("llama-3-8b", ISSUED, "dgx-h200-2", "h200"),
        {"host": "eager"},
    ),
    "fused waits for ever": (("llama-3-8b", PIPELINE_WITH_CONTEXT, "dgx-h200-2", "h200"), {}),
    "two rings of a pass each way meet": (("llama-3-8b", TWO_WAYS, "switch(16,nvlink5)", "a100-40g"), {"host": "none"}),
    "fused 6% longer": (("llama-3-70b", DECODE, "dgx-h200-1", "h200"), {}),
    "centauri has members of a group disagree": (("dlrm-dcnv2", TABLES, THREE_LEVELS, "a100-40g"), {}),
}


def test_ranks_of_equal_graphs_have_one_role():
    """Whose experts have as many rows in all, and differ one by one; traces of it once took a last bit longer."""
    keys = {"mode": "decode", "tensor_parallel": 1, "data_parallel": 16, "sequence_parallel": False, "experts": 16}
    keys |= {"expert_parallel": 2, "expert_tensor_parallel": 2, "imbalance": 0.72, "imbalance_seed": 7, "layers": 2}
    job = "gpt-oss-120b", keys | {"batch_per_replica": 64, "microbatch": 16}, "mesh(16,nvlink4)", "h100"
    workload = load_workload(*job[:2])
    assert len(workload.loads) == 2
    assert len(generate(workload).graphs) == 1
    assert not list(differs(job, "link", "baseline"))


@pytest.mark.parametrize("what", ONCE)
def test_a_job_that_once_broke_a_law_breaks_none(what):
    job, options = ONCE[what]
    assert not list(broken(job, (options, {}), ["overlap", "overlap+fused"]))
