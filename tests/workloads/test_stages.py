"""Stages that hold the same kinds of layers are written once: copies are what each would be, written by itself."""

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from scaleout.program.graph import NEUTRAL
from scaleout.workloads.families import FAMILIES
from scaleout.workloads.generate import generate, step
from scaleout.workloads.generate.stage import Stage
from scaleout.workloads.pipeline import PIPELINES

MODEL = {
    "description": "a test", "source": "none", "topology": "ring-128", "device": "h200", "hidden": 128, "heads": 8,
    "kv_heads": 8, "ffn": 192, "vocabulary": 160, "sequence": 64,
}  # fmt: skip
KINDS = {
    "transformer": {},
    "moe": {"experts": 4, "top_k": 2, "dense_layers": 2},
    "state_space": {"pattern": "M*-M" * 3, "state_size": 16},
}

sizes = {
    "pipeline_parallel": st.sampled_from((1, 2, 3)),
    "tensor_parallel": st.sampled_from((1, 2)),
    "data_parallel": st.sampled_from((1, 2)),
    "zero": st.sampled_from((0, 1, 2, 3)),
    "layers": st.just(12),
    "batch_per_replica": st.sampled_from((4, 6)),
    "pipeline_schedule": st.sampled_from(sorted(PIPELINES)),
    "recompute": st.sampled_from(("none", "full")),
    "overlap_gradient_reduce": st.booleans(),
}


@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow], max_examples=30)
@given(st.sampled_from(sorted(KINDS)), st.fixed_dictionaries(sizes))
def test_stages_alike_are_as_if_each_were_written(kind, keys):
    try:
        workload = FAMILIES[kind].model_validate({"kind": kind} | MODEL | KINDS[kind] | {"microbatch": 1} | keys)
    except ValidationError:
        assume(False)
    found = generate(workload)
    shared, step.Stage = step.Stage, lambda workload, axes, number, like: Stage(workload, axes, number)
    try:
        anew = generate(workload)
    finally:
        step.Stage = shared
    assert [(each.name, each.members) for each in found.groups] == [(each.name, each.members) for each in anew.groups]
    for one, other in zip(found.graphs, anew.graphs, strict=True):
        assert (one.names, one.kernels, one.phases) == (other.names, other.kernels, other.phases)
        for column in (*NEUTRAL, "dependency_offsets", "dependencies"):
            np.testing.assert_array_equal(getattr(one, column), getattr(other, column), column)
