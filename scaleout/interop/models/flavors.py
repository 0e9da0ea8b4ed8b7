"""The models that torchtitan has by name and flavor, as keys of a workload.

Source: github.com/pytorch/torchtitan at v0.2.2, torchtitan/models.
"""

from collections.abc import Mapping
from typing import Any

UNNAMED = "YOUR_MODEL"
"""Stands in an exported plan for a model that torchtitan lacks."""

_LLAMA: Mapping[str, Any] = {"kind": "transformer", "kv_heads": 8, "activation": "swiglu", "vocabulary": 128256}
_QWEN: Mapping[str, Any] = {
    "kind": "transformer", "kv_heads": 8, "head_size": 128, "query_key_norm": True, "activation": "swiglu",
    "vocabulary": 151936,
}  # fmt: skip
_QWEN_MOE: Mapping[str, Any] = {**_QWEN, "kind": "moe", "kv_heads": 4, "experts": 128, "top_k": 8}
_DEEPSEEK: Mapping[str, Any] = {"kind": "moe", "activation": "swiglu", "head_size": 128}
_GPT_OSS: Mapping[str, Any] = {
    "kind": "moe", "hidden": 2880, "heads": 64, "kv_heads": 8, "head_size": 64, "ffn": 2880, "expert_ffn": 2880,
    "top_k": 4, "activation": "swiglu", "vocabulary": 201088, "attention_biases": "all", "attention_sinks": True,
    "window": 128, "full_attention_every": 2, "router_bias": True, "expert_biases": True,
}  # fmt: skip


def _latent(query_rank: int | None) -> dict[str, Any]:
    return {"query_rank": query_rank, "key_value_rank": 512, "plain_dim": 128, "rotary_dim": 64, "value_dim": 128}


def _of(base: Mapping[str, Any], hidden: int, layers: int, heads: int, ffn: int, **keys: Any) -> Mapping[str, Any]:
    sizes = {"hidden": hidden, "layers": layers, "heads": heads, "ffn": ffn}
    return {**base, **sizes, **keys, "norm": "rms_norm", "rotary": True}


FLAVORS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("llama3", "8B"): _of(_LLAMA, 4096, 32, 32, 14336),
    ("llama3", "70B"): _of(_LLAMA, 8192, 80, 64, 28672),
    ("llama3", "405B"): _of(_LLAMA, 16384, 126, 128, 53248),
    ("qwen3", "0.6B"): _of(_QWEN, 1024, 28, 16, 3072, tied_embedding=True),
    ("qwen3", "1.7B"): _of(_QWEN, 2048, 28, 16, 6144, tied_embedding=True),
    ("qwen3", "4B"): _of(_QWEN, 2560, 36, 32, 9728, tied_embedding=True),
    ("qwen3", "8B"): _of(_QWEN, 4096, 36, 32, 12288),
    ("qwen3", "14B"): _of(_QWEN, 5120, 40, 40, 17408),
    ("qwen3", "32B"): _of(_QWEN, 5120, 64, 64, 25600),
    ("qwen3", "30B-A3B"): _of(_QWEN_MOE, 2048, 48, 32, 6144, expert_ffn=768),
    ("qwen3", "235B-A22B"): _of(_QWEN_MOE, 4096, 94, 64, 12288, expert_ffn=1536),
    ("deepseek_v3", "16B"): _of(
        _DEEPSEEK, 2048, 27, 16, 10944, kv_heads=16, expert_ffn=1408, experts=64, shared_experts=2, top_k=6,
        dense_layers=1, latent=_latent(None), vocabulary=102400, router_bias=True,
    ),
    ("deepseek_v3", "236B"): _of(
        _DEEPSEEK, 5120, 60, 128, 12288, kv_heads=128, expert_ffn=1536, experts=160, shared_experts=2, top_k=6,
        dense_layers=1, latent=_latent(1536), vocabulary=102400, router_bias=True,
    ),
    ("deepseek_v3", "671B"): _of(
        _DEEPSEEK, 7168, 61, 128, 18432, kv_heads=128, expert_ffn=2048, experts=256, shared_experts=1, top_k=8,
        dense_layers=3, latent=_latent(1536), vocabulary=129280, router_bias=True,
    ),
    ("gpt_oss", "20b"): _of(_GPT_OSS, 2880, 24, 64, 2880, experts=32),
    ("gpt_oss", "120b"): _of(_GPT_OSS, 2880, 36, 64, 2880, experts=128),
}  # fmt: skip
"""Name and flavor to the keys of a workload. Experts' router has a bias each that balances their load."""
