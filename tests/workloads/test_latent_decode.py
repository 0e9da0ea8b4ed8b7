"""Decode of latent attention in its absorbed form: FLOPs, bytes and parameters against a count of single elements.

Symbols: b sequences; s tokens in the cache; h heads of a rank; c rank of keys and values; r rotary width.
Source: DeepSeek-V2, arXiv:2405.04434, 2.1.2 and appendix C; FlashMLA's README (github.com/deepseek-ai/FlashMLA).
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.cluster.device.kernel_times import kernel_time
from scaleout.cluster.device.spec import load_device
from scaleout.program.graph import NodeKind
from scaleout.program.operations import kernel
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate
from scaleout.workloads.memory import peak

widths = st.integers(1, 24).map(lambda number: 8 * number)
LATENT = st.fixed_dictionaries(
    {"query_rank": st.none() | widths, "key_value_rank": widths}
    | dict.fromkeys(("plain_dim", "rotary_dim", "value_dim"), widths)
)


def decoding(latent, **keys):
    small = {
        "kv_heads": None, "layers": 2, "hidden": 256, "heads": 8, "ffn": 512, "vocabulary": 512, "latent": latent,
        "data_parallel": 1, "topology": "ring-1024", "zero": 0, "mode": "decode",
    }  # fmt: skip
    return load_workload("llama-3-8b", small | keys)


def calls(workload):
    """Return the kernels of a step on a rank, by the name of their node."""
    (graph,) = generate(workload).graphs
    nodes = np.flatnonzero(graph.kind == NodeKind.COMPUTE)
    return [(graph.names[node], graph.kernels[graph.kernel[node]]) for node in nodes]


@given(b=st.integers(1, 3), h=st.integers(1, 3), s=st.integers(1, 4), c=st.integers(1, 3), r=st.integers(1, 3))
def test_kernel_agrees_with_a_count_of_single_elements(b, h, s, c, r):
    flops = elements = 0
    for _ in range(b):
        elements += sum(c + r for _ in range(s))  # of a token in the cache, for all heads
        for _ in range(h):
            elements += (c + r) + c  # query and output
            for _ in range(s):
                flops += 2 * (c + r) + 2 * c  # score, then value
    found = kernel("attention_decode_latent", dtype="bf16", batch=b, heads=h, kv_seq=s, rank=c, rotary=r)
    assert (found.flops, found.bytes) == (flops, 2 * elements)


@settings(max_examples=40)
@given(latent=LATENT, b=st.integers(1, 9), s=st.integers(1, 999), tensor=st.sampled_from((1, 2, 4, 8)))
def test_step_reads_the_cache_that_memory_counts_and_all_weights_once(latent, b, s, tensor):
    keys = {"batch_per_replica": b, "sequence": s, "tensor_parallel": tensor}
    w = decoding(latent, **keys)
    c, r, heads = latent["key_value_rank"], latent["rotary_dim"], w.heads // tensor
    found = calls(w)
    attends = [call for _, call in found if call.op.startswith("attention")]
    assert [call.op for call in attends] == ["attention_decode_latent"] * 2
    cache_bytes = sum(call.bytes for call in attends) - 2 * b * heads * (2 * c + r) * 2
    # Memory has the token that is being made as well; the cache is of all heads, whole on each tensor-parallel rank.
    assert peak(w).bytes_of["kv_cache"] == cache_bytes + 2 * b * (c + r) * 2 == 2 * b * (s + 1) * (c + r) * 2
    up = [call for name, call in found if call.op == "batched_gemm"]
    assert [(call.sizes["M"], call.sizes["N"], call.sizes["K"]) for call in up[:2]] == [
        (b, c, latent["plain_dim"]), (b, latent["value_dim"], c),
    ]  # fmt: skip
    expanded = b * heads * 2 * c * (latent["plain_dim"] + latent["value_dim"])
    assert sum(call.flops for call in up) == 2 * expanded
    prefill = decoding(latent, **keys | {"mode": "prefill"})
    assert peak(w).bytes_of["parameters"] == peak(prefill).bytes_of["parameters"]


def test_prefill_and_training_make_keys_and_values_of_all_heads():
    latent = {"key_value_rank": 64, "plain_dim": 32, "rotary_dim": 16, "value_dim": 32}
    for mode in ("prefill", "training"):
        names = {name for name, _ in calls(decoding(latent, mode=mode, batch_per_replica=2, sequence=64))}
        assert any(name.endswith("key_value_up") for name in names)
        assert not any("latent" in name for name in names)


@pytest.mark.parametrize("cached", [4096, 16384])
@pytest.mark.parametrize(("heads", "unit", "published"), [(128, "flops", 660e12), (16, "bytes", 3000e9)])
def test_rates_are_those_of_flashmla_on_h800(heads, unit, published, cached):
    """Its README: up to 660 TFLOP/s bound by compute, 3,000 GB/s bound by memory."""
    sizes = {"batch": 128, "heads": heads, "kv_seq": cached, "rank": 512, "rotary": 64}
    call = kernel("attention_decode_latent", dtype="bf16", **sizes)
    rate = getattr(call, unit) / kernel_time(load_device("h800"), call).seconds
    assert rate == pytest.approx(published, rel=0.1)
