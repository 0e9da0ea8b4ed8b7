"""Fusing never loses on what ships: every workload on every topology of 8 to 128 ranks, in training and in decode.

By default one job in 97. ``SHIPPED_JOBS=all pytest tests/schedule/test_fused_shipped.py`` takes all of them, on each
workload's own device, or on that of SHIPPED_DEVICE; SHIPPED_JOBS=3/12 takes the third of twelve parts. A workload
keeps its own degrees of parallelism as far as they divide the ranks, data parallelism takes the rest. A model keeps its
widths and has few layers, all kinds of its own among them, and at most four stages, as layers that are alike are fused
alike; SHIPPED_DEPTH=own keeps all its layers and stages.
"""

import os
from functools import cache
from itertools import product
from math import gcd

import pytest

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.config import library
from scaleout.errors import ConfigError
from scaleout.study.comparison import compare
from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.families import load_workload

RANKS = range(8, 129)
DEVICE = os.environ.get("SHIPPED_DEVICE")
DEPTH = os.environ.get("SHIPPED_DEPTH", "few")
SCHEDULES = ("baseline", "fused", "overlap", "overlap+fused", "centauri:group", "centauri:group+fused")
ROUNDING = 1 + 1e-12


def own_keys(name, ranks, mode):
    """Keys of a shipped workload on so many ranks, near its own."""
    model = load_workload(name)
    if not isinstance(model, LayeredModel):
        batch = {"data_parallel": ranks, "global_batch": model.global_batch // model.data_parallel * ranks}
        return batch if mode == "training" else batch | {"mode": "forward"}
    tensor = gcd(model.tensor_parallel, ranks)
    stages = model.pipeline_parallel if DEPTH == "own" else gcd(model.pipeline_parallel, 4)
    pipeline = gcd(stages, ranks // tensor) if mode == "training" else 1
    data = ranks // tensor // pipeline
    keys = {"tensor_parallel": tensor, "pipeline_parallel": pipeline, "data_parallel": data, "mode": mode}
    keys |= {"expert_parallel": gcd(model.expert_parallel, data), "context_parallel": 1}
    if tensor == 1 or mode == "decode":
        keys["sequence_parallel"] = False
    if pipeline == 1:
        keys |= {"pipeline_schedule": "1f1b", "virtual_stages": None}
    if mode == "decode":
        batch = {"batch_per_replica": 16, "microbatch": 16 if model.microbatch else None}
        return keys | {**batch, "zero": 0, "recompute": "none", **_layers(name, 2)}
    microbatch = model.microbatch or model.batch_per_replica
    keys |= {"microbatch": microbatch, "batch_per_replica": microbatch * (2 * pipeline if pipeline > 1 else 1)}
    if model.shard_ranks and data % model.shard_ranks:
        keys["shard_ranks"] = None
    chunks = pipeline * (model.virtual_stages or 1 if pipeline > 1 else 1)
    return keys | _layers(name, max(2, chunks))


def _layers(name, layers):
    if DEPTH == "own":
        return {}
    if name == "mamba-2-hybrid-8b":
        return {"layers": 4, "pattern": "M-*-"}
    model, keys = load_workload(name), {"layers": layers}
    if getattr(model, "stage_layers", ()):
        keys["stage_layers"] = []
    if getattr(model, "dense_layers", 0):
        keys["dense_layers"] = 1
    return keys


@cache
def jobs():
    topologies = [name for name in library.names("topology") if load_topology(name).num_ranks in RANKS]
    return tuple(product(library.names("workload"), topologies, ("training", "decode")))


def asked():
    """Return the jobs of SHIPPED_JOBS."""
    which = os.environ.get("SHIPPED_JOBS", "1/97")
    if which == "all":
        return jobs()
    part, parts = map(int, which.split("/"))
    return jobs()[part - 1 :: parts]


@pytest.mark.parametrize(("name", "topology", "mode"), asked())
def test_fusing_loses_on_no_workload_and_topology_that_ship(name, topology, mode):
    keys = own_keys(name, load_topology(topology).num_ranks, mode)
    load_device(DEVICE or load_workload(name).device)  # a file that does not load is no job that cannot be
    try:
        found = compare(name, topology=topology, device=DEVICE, changes=keys, schedules=SCHEDULES)
    except ConfigError as error:
        pytest.skip(f"no such job: {error}")
    assert not found.failures
    step_s = {each.schedule: each.makespan_s for each in found.outcomes}
    for schedule in SCHEDULES[::2]:
        fused = "fused" if schedule == "baseline" else f"{schedule}+fused"
        assert step_s[fused] <= step_s[schedule] * ROUNDING, (schedule, step_s)
