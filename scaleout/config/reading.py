"""Unknown words to the nearest known ones, and old names to new ones.

Apart from `yaml_files` and `validated`, which take long to import. Knows no keys.
"""

import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any

_SAID_ELSEWHERE = {
    "alpha_beta": ("analytical", "congestion_unaware"),
    "batch_per_replica": ("batch", "batch_size", "batchsize", "gbs", "global_batch", "global_batch_size"),
    "context_parallel": ("context_parallel_size", "cp"),
    "data_parallel": ("data_parallel_size", "dp", "n_gpus", "num_gpus", "world_size"),
    "dtype": ("allow_tf32", "bf16", "fp16", "mixed_precision", "precision", "tf32", "torch_dtype"),
    "expert_ffn": ("moe_ffn_hidden_size", "moe_intermediate_size"),
    "expert_parallel": ("ep", "expert_model_parallel_size", "expert_parallel_size"),
    "expert_tensor_parallel": ("etp", "expert_tensor_parallel_size"),
    "experts": ("n_experts", "n_routed_experts", "num_experts", "num_local_experts"),
    "ffn": ("d_ff", "feedforward", "ffn_hidden_size", "intermediate_size"),
    "framework": ("ddp", "deepspeed", "eager", "fsdp1", "fsdp2", "maxtext", "megatron", "nanotron", "pytorch", "torch"),
    "gradient_bucket": ("bucket_cap_mb", "bucket_size", "ddp_bucket_size", "reduce_bucket_size"),
    "heads": ("attn_heads", "n_heads", "num_attention_heads", "num_heads"),
    "hidden": ("d_model", "hidden_size", "n_embd"),
    "kv_heads": ("gqa", "n_kv_heads", "num_key_value_heads", "num_query_groups"),
    "layers": ("n_layer", "num_blocks", "num_hidden_layers", "num_layers"),
    "linear_dtype": ("fp8", "mxfp8"),
    "link": ("congestion_aware", "flow", "flows"),
    "microbatch": ("accumulation", "gradient_accumulation_steps", "mbs", "micro_batch_size", "num_microbatches"),
    "mode": ("decode", "inference", "phase", "prefill", "training"),
    "pipeline_parallel": ("pipeline_model_parallel_size", "pipeline_parallel_size", "pp"),
    "pytorch": ("ddp", "eager", "torch"),
    "recompute": (
        "activation_checkpointing",
        "activation_recompute",
        "checkpointing",
        "gradient_checkpointing",
        "recompute_activations",
        "recompute_granularity",
        "remat",
    ),
    "sequence": (
        "context_length",
        "max_position_embeddings",
        "max_seq_len",
        "seq_len",
        "seq_length",
        "seq_size",
        "seqlen",
    ),
    "sequence_parallel": ("sp",),
    "tensor_parallel": ("tensor_model_parallel_size", "tensor_parallel_size", "tp"),
    "top_k": ("moe_router_topk", "num_experts_per_tok", "topk"),
    "virtual_stages": (
        "interleave",
        "num_layers_per_virtual_pipeline_stage",
        "pipeline_interleaving",
        "virtual_pipeline_model_parallel_size",
        "vpp",
    ),
    "vocabulary": ("padded_vocab_size", "vocab_size"),
    "zero": (
        "distributed_optimizer",
        "fsdp",
        "full_shard",
        "optimizer_sharding",
        "sharding_strategy",
        "use_distributed_optimizer",
        "zero_stage",
    ),
}
"""Words of the field, to which no name of ours is near by its letters, by the name of ours."""


_WHAT = {
    "framework": "a preset: framework=pytorch is eager with DDP, fsdp2, megatron; scaleout list frameworks",
    "batch_per_replica": "sequences of a step of each replica: the global batch over data_parallel",
    "data_parallel": "replicas; --gpus N makes as many as N ranks need",
    "microbatch": "sequences of a microbatch; a step has batch_per_replica / microbatch of them",
    "mode": "training or inference",
    "zero": "1 is Megatron's distributed optimizer, 3 shards as FSDP; PyTorch's FSDP as it runs is framework=fsdp2",
}
"""What such a name is, where the word may mean something else."""

_FEW = 4
"""Names that begin with what was given, which are all named."""


def key_of(word: str, known: Collection[str]) -> str:
    """Return the known name for a word of the field, such as ``tensor_parallel`` for ``tp``; nothing if none is."""
    return next((name for name, words in _SAID_ELSEWHERE.items() if word in words and name in known), "")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the known word nearest to `name`, or all of them if none is near."""
    import difflib  # noqa: PLC0415 - only for messages

    words = sorted(known)
    meant = key_of(name, words)
    if meant:
        return f"did you mean {meant!r}{f' ({_WHAT[meant]})' if meant in _WHAT else ''}?"
    begun = [word for word in words if len(name) > 1 and word.lower().startswith(name.lower())]
    if begun and len(begun) <= _FEW:
        return f"did you mean {' or '.join(map(repr, begun))}?"
    close = difflib.get_close_matches(name[:100], words, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(words)}"


def renamed(word: str, names: Mapping[str, str], *, what: str) -> str:
    """Return the new name of a renamed word, with a warning; any other word as it is.

    `names` are old names to new ones; `what` is what the word is, such as ``key`` or ``--clocks``.
    """
    if word not in names:
        return word
    warnings.warn(f"{what} {word!r} is now {names[word]!r}; the old name goes with the next release", FutureWarning, 2)
    return names[word]


def with_new_names(values: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    """Return values under the new names of their keys, with a warning for each key that was renamed."""
    old = [key for key in values if key in names]
    for key in old:
        if names[key] in values:
            raise ValueError(f"{key!r} is the old name of {names[key]!r}; give the new one alone")
    return {renamed(key, names, what="key"): value for key, value in values.items()} if old else values
