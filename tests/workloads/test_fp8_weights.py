"""Weights of fp8 inference: memory holds what GEMMs read."""

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.program.graph import NONE
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate
from scaleout.workloads.memory import peak
from scaleout.workloads.memory.advice import advise

SMALL = {"layers": 3, "hidden": 256, "heads": 8, "ffn": 512, "vocabulary": 512, "sequence": 32, "topology": "ring-1024"}
LLAMA = ("llama-3-8b", {**SMALL, "kv_heads": 4})
DEEPSEEK = (
    "deepseek-v3-h800",
    {
        **SMALL, "dense_layers": 1, "experts": 16, "expert_ffn": 64, "top_k": 2, "expert_groups": 4,
        "groups_per_token": 2, "stage_layers": [3], "pipeline_parallel": 1, "pipeline_schedule": "1f1b",
        "microbatch": None, "kept_dtype": None, "recompute_modules": [], "predicted_ahead": 0,
    },
)  # fmt: skip


@settings(max_examples=30)
@given(
    model=st.sampled_from((LLAMA, DEEPSEEK)),
    keys=st.fixed_dictionaries(
        {
            "mode": st.sampled_from(("prefill", "decode")),
            "linear_dtype": st.sampled_from(("fp8_delayed", "fp8_tensorwise", "fp8_rowwise", "fp8_blockwise")),
            "tensor_parallel": st.sampled_from((1, 2)),
            "batch_per_replica": st.sampled_from((2, 8)),
            "data_parallel": st.sampled_from((4, 8)),
            "zero": st.sampled_from((0, 1, 2)),
        }
    ),
)
def test_memory_holds_a_byte_of_each_weight_that_a_gemm_reads_in_fp8(model, keys):
    name, sizes = model
    experts = {"expert_parallel": 4} if name == DEEPSEEK[0] else {}
    served, plain = (load_workload(name, sizes | keys | experts | more) for more in ({}, {"linear_dtype": "same"}))
    graph = generate(served).graphs[0]
    calls = [graph.kernels[number] for number in graph.kernel if number != NONE]
    gemms = [call for call in calls if "gemm_fp8" in call.op]
    in_fp8 = sum(prod(call.sizes.get(size, 1) for size in ("groups", "N", "K")) for call in gemms)
    assert in_fp8 > 0
    assert peak(served).bytes_of["parameters"] == peak(plain).bytes_of["parameters"] - in_fp8
    assert not any("weight" in node and "cast" in node for node in graph.names)


@pytest.mark.parametrize("keys", [{"mode": "training"}, {"mode": "prefill", "zero": 3}])
def test_trainers_and_their_shards_keep_their_data_type(keys):
    name, sizes = LLAMA
    fp8, plain = (
        load_workload(name, {"data_parallel": 4, **sizes, **keys, "linear_dtype": dtype})
        for dtype in ("fp8_tensorwise", "same")
    )
    assert peak(fp8).bytes_of["parameters"] == peak(plain).bytes_of["parameters"]


def test_servers_are_not_advised_to_shard_parameters():
    keys = {"zero": 0, "data_parallel": 16, "tensor_parallel": 1, "batch_per_replica": 2}
    served, trained = (
        advise(load_workload("llama-3-70b", keys | {"mode": mode}), 80e9) for mode in ("decode", "training")
    )
    assert served
    assert not any("zero" in advice.changes for advice in served)
    assert any("zero" in advice.changes for advice in trained)
