"""Arguments of Megatron-LM, or keys of Megatron-Bridge, to the keys of a workload.

Both have the same names for most; where an argument says the reverse of a key (`--disable-bias-linear`,
`add_bias_linear: false`), either is read. Defaults are Megatron-LM's.

Source: github.com/NVIDIA/Megatron-LM, megatron/training/arguments.py and megatron/core/transformer/
transformer_config.py (Megatron Core 0.14 and later); github.com/NVIDIA-NeMo/Megatron-Bridge.
"""

import re
from collections.abc import Mapping
from typing import Any

from scaleout.config.units import MOST_WRITTEN
from scaleout.errors import ConfigError, shown
from scaleout.interop.models.fields import Asked, Fields, Keys, Source, is_neutral
from scaleout.interop.models.megatron_text import Several

NEUTRAL = frozenset(
    """
    adam_* apply_layernorm_1p apply_query_key_layer_scaling apply_residual* async_save attention_softmax_in_fp32
    auto_detect_ckpt_format autocast_dtype aux_loss* barrier_with_L1_time batch_invariant* batch_p2p* beta_fast
    beta_slow bias_* calculate_per_token_loss check_* checkpoint_* ckpt_* config_logger_dir
    cpu_offloading_num_layers cuda_graph_warmup* data_* dataloader_* dataset* ddp_* deallocate_pipeline_outputs
    decoupled_* defer_embedding_wgrad_compute deterministic_mode disable_msc disable_parameter_transpose_cache
    disable_straggler_on_startup disable_symmetric_registration dist_* distributed_backend
    distributed_timeout_minutes embedding_init* empty_unused* enable_experimental enable_ft_package
    enable_gloo_process_groups enable_msc enable_one_logger end_weight_decay eod_* eval_* exit_* external_cuda_graph
    fim_* finalize_model_grads_func finetune fp16_lm_cross_entropy fp8_amax* fp8_interval fp8_margin fp8_wgrad
    generation_config grad_scale_func grad_sync_func gradient_accumulation_fusion_default gradient_reduce_div_fusion
    hf_model_id hidden_dropout_seed inference_* init_method* initial_loss_scale is_hybrid_model layernorm_*
    lazy_mpu_init load* local_rank log_* logging_level loss_scale* lr* lr_warmup* make_vocab_size_divisible_by
    manual_gc* masked_softmax_fusion master_addr master_port max_position_embeddings memory_efficient_layer_norm
    merge_file micro_batch_size_per_rank microbatch_group_size_per_vp_stage_default min_loss_scale min_lr mmap*
    mock_data model_parallel_size moe_aux_loss_coeff moe_pad_expert_input_to_capacity moe_per_layer_logging
    moe_permute_fusion moe_router_* moe_token_drop_policy moe_z_loss_coeff mscale* nccl_* nnodes no_async* no_bias_*
    no_check* no_create* no_load_* no_masked_softmax_fusion no_mmap* no_one_logger no_persist_layer_norm
    no_position_embedding no_rope_fusion no_save_* no_sync_func node_rank norm_epsilon nproc_per_node num_dataset*
    num_nodes num_workers one_logger* openai_gelu optimizer_* original_max* output_bert* parallel_output
    param_sync_func params_dtype perform_initialization persist_layer_norm pipeline_dtype profile* rampup* rdzv_*
    rerun_* reset_* result_* rope_* rotary_* save* scatter_embedding* seed seq_len_interpolation_factor
    should_pad_vocab softmax_scale spec split start_weight_decay straggler* te_* tensorboard* test_* tiktoken*
    timers timing* tokenizer* tp_comm_* train_data* train_iters train_samples train_sync* transformer_impl
    use_checkpoint* use_cpu_init* use_cpu_initialization use_dist_ckpt use_gloo* use_legacy* use_mcore_models
    use_mp_args* use_persistent* use_pytorch_profiler use_te* use_tokenizer* valid_* variable_seq_lengths
    virtual_pipeline_model_parallel_rank vocab_extra_ids vocab_file vocab_size_* wandb_* weight_decay*
    """.split()  # noqa: SIM905 - a list of strings hides them
)
"""Arguments that do not change what a step costs; a * is any end."""

_LEFT_OUT: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "tp_comm_overlap": ((None, False), "it is a schedule: scaleout run --schedule async-tp"),
    "moe_token_dispatcher_type": (("alltoall", None), "rows of experts go by all-to-all"),
    "moe_enable_deepep": ((None, False), "rows of experts go by all-to-all"),
    "moe_flex_dispatcher_backend": ((None,), "rows of experts go by all-to-all"),
    "moe_expert_rank_capacity_factor": ((None,), "capacities are of experts"),
    "cuda_graph_impl": ((None, "none"), "what the host costs is an option: scaleout run --host"),
    "enable_cuda_graph": ((None, False), "what the host costs is an option: scaleout run --host"),
    "cpu_offloading": ((None, False), "activations stay on the device"),
    "fine_grained_activation_offloading": ((None, False), "activations stay on the device"),
    "optimizer_cpu_offload": ((None, False), "states stay on the device"),
    "use_precision_aware_optimizer": ((None, False), "states are kept in fp32"),
    "distribute_saved_activations": ((None, False), "each tensor-parallel rank keeps its input whole"),
    "fp32_residual_connection": ((None, False), "residuals are in the model's data type"),
    **dict.fromkeys(
        ("fp8_param_gather", "fp8_param"), ((None, False), "parameters are kept and gathered in the model's data type")
    ),
    "fp8_dot_product_attention": ((None, False), "attention is in the model's data type"),
    "fp8_multi_head_attention": ((None, False), "attention is in the model's data type"),
    "overlap_moe_expert_parallel_comm": ((None, False), "it is a schedule: scaleout run --schedule centauri"),
    "overlap_param_gather_with_optimizer_step": ((None, False), "the gathers wait for the whole optimizer step"),
    "use_nccl_ub": ((None, False), "what NCCL's buffers save is in no library file"),
    "moe_layer_recompute": ((None, False), "experts are not recomputed alone"),
}  # fmt: skip

_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "encoder_num_layers": ((None,), "models of encoder and decoder are not written; give a decoder"),
    "experimental_attention_variant": ((None,), "no workload has such attention"),
    "attention_output_gate": ((None, False), "no workload has such attention"),
    "linear_attention_freq": ((None,), "no workload has linear attention"),
    "heterogeneous_layers_config_path": ((None,), "layers that differ are not written; write the workload by hand"),
    "pipeline_model_parallel_layout": ((None,), "give the layers of stages by --set stage_layers=[...] instead"),
    "account_for_embedding_in_pipeline_split": ((None, False), "give the layers by --set stage_layers=[...] instead"),
    "account_for_loss_in_pipeline_split": ((None, False), "give the layers by --set stage_layers=[...] instead"),
    "moe_latent_size": ((None,), "experts read the hidden state itself"),
    "fp4_format": ((None,), "GEMMs in fp4 are not measured; leave it out"),
    "fp4": ((None,), "GEMMs in fp4 are not measured; leave it out"),
    "enable_mhc_connections": ((None, False), "no workload has several residual streams"),
}

_WINDOW = re.compile(r"([\[(])?\s*(-1|0|[1-9]\d{0,12})\s*(?:,\s*(?:-1|0|[1-9]\d{0,12})?\s*)?(?(1)[\])])")
"""Tokens to the left and to the right, of which -1 is all."""
_NORMS = {"LayerNorm": "layer_norm", "RMSNorm": "rms_norm"}
_POSITIONS = {"learned_absolute": "learnt", "rope": "rotary", "yarn": "rotary", "none": "none"}


def read(values: Mapping[str, Any], told: list[str], where: str, asked: Asked) -> Source:
    """Return what arguments say; `told` is what the user is told of them already.

    Raises
    ------
    ConfigError
        If a size is missing, or an argument asks for what no workload can have.
    """
    once = {key: value for key, value in values.items() if not isinstance(value, Several)}
    for key, value in values.items():
        if key not in once and not is_neutral(key, NEUTRAL):
            stand = " and ".join(map(shown, value.values))
            raise ConfigError(f"{where}: --{key.replace('_', '-')} stands more than once, with {stand}; keep one")
    c = _Arguments(once, where, asked)
    for key, (harmless, why) in _REFUSED.items():
        c.must_be(key, harmless, why)
    keys = c.keys()
    c.left_out(_LEFT_OUT)
    c.finish(NEUTRAL)
    return Source(keys, (*told, *c.notes), "Megatron arguments")


class _Arguments(Fields):
    """Arguments by their names in Python."""

    def __init__(self, values: Mapping[str, Any], where: str, asked: Asked) -> None:
        super().__init__(values, where)
        self.asked = asked
        if "num_layers" not in values:
            raise ConfigError(
                f"{where}: num_layers is missing, so no model is described; give a script with all of its "
                f"arguments, or the run_config.yaml that Megatron-Bridge saves"
            )

    def keys(self) -> Keys:
        """Return the keys of a workload."""
        degrees = self._degrees()
        keys = {
            "framework": "megatron",
            **self._sizes(degrees["tensor_parallel"]),
            **degrees,
            **self._batch(degrees),
            **self._step(degrees["data_parallel"] * degrees["context_parallel"]),
            **self._precision(),
            **self._recompute(),
        }
        return {key: value for key, value in (keys | self._pipeline(keys)).items() if value is not None}

    def _either(self, key: str, reverse: str, *, default: bool) -> bool:
        """Read a truth value that one name says and another says in reverse."""
        if reverse in self and self.flag(reverse, default=False):
            self.any(key, None)
            return False
        return self.flag(key, default=default)

    def _sizes(self, tensor: int) -> Keys:
        hidden, heads = self.count("hidden_size"), self.optional("num_attention_heads")
        pattern = self.any("hybrid_override_pattern", None) or self.any("hybrid_layer_pattern", None)
        if heads is None and not pattern:
            heads = self.count("num_attention_heads")
        grouped = self.flag("group_query_attention", default="group_query_attention" not in self)
        groups = self.optional("num_query_groups")
        channels, activation = self.optional("kv_channels"), self._activation()
        usual = 4 * hidden if activation == "gelu" else int(4 * hidden * 2 / 3 / 64) * 64
        keys: Keys = {
            "kind": "transformer",
            "hidden": hidden,
            "layers": self.count("num_layers", most=MOST_WRITTEN),
            "heads": heads,
            "kv_heads": groups if grouped else None,
            "head_size": channels if heads and channels and channels * heads != hidden else None,
            "ffn": self.optional("ffn_hidden_size") or usual,
            "activation": activation,
            "norm": self.word("normalization", _NORMS, "LayerNorm"),
            "query_key_norm": self.flag("qk_layernorm", default=False) or None,
            "vocabulary": self._vocabulary(tensor),
            "predicted_ahead": self.optional("mtp_num_layers"),
            "tied_embedding": self._either(
                "share_embeddings_and_output_weights", "untie_embeddings_and_output_weights", default=True
            ),
            **self._biases(),
            **self._positions(),
            **self._attention(),
        }
        if pattern:
            return keys | self._hybrid(pattern)
        if self.flag("multi_latent_attention", default=False):
            keys |= self._latent()
        return keys | self._experts(keys)

    def _activation(self) -> str:
        flags = [name for name in ("swiglu", "quick_geglu", "squared_relu") if self.flag(name, default=False)]
        named = self.any("activation_func", None)
        gated = self.flag("gated_linear_unit", default=False)
        word = str(named.get("_target_", named) if isinstance(named, Mapping) else named)
        if named is not None and not re.search("gelu|silu|swish|relu", word):
            raise self.refusal("activation_func", "known are gelu, silu, swish and relu; a workload has no other")
        if flags == ["squared_relu"] or "relu" in word:
            self.note("squared ReLU is taken as GELU, which moves the same bytes")
            return "gelu"
        if flags or gated:
            return "swiglu" if "swiglu" in flags or "silu" in word or "swish" in word else "geglu"
        return "gelu"

    def _biases(self) -> Keys:
        linear = self._either("add_bias_linear", "disable_bias_linear", default=True)
        qkv = self.flag("add_qkv_bias", default=False)
        return {"biases": True} if linear else ({"attention_biases": "qkv"} if qkv else {})

    def _positions(self) -> Keys:
        usual = "rope" if self.flag("use_rotary_position_embeddings", default=False) else "learned_absolute"
        kind = self.word("position_embedding_type", _POSITIONS, usual)
        if kind == "learnt":
            return {"positions": self.count("max_position_embeddings"), "sequence": self.count("seq_length")}
        return {"rotary": True if kind == "rotary" else None, "sequence": self.count("seq_length")}

    def _attention(self) -> Keys:
        backend = self.any("attention_backend", "auto")
        self.any("use_flash_attn", None)
        unfused = backend in ("unfused", "local") or self.values.get("transformer_impl") == "local"
        sinks = self.any("softmax_type", "vanilla") == "learnable"
        window, every = self.any("window_size", None), self.optional("window_attn_skip_freq")
        keys: Keys = {"attention": "unfused" if unfused else None, "attention_sinks": sinks or None}
        if window is None:
            return keys
        found = _WINDOW.fullmatch(str(window))
        if found is None:
            raise self.refusal("window_size", "give the tokens to the left and to the right, such as 128,0")
        return keys if found[2] == "-1" else keys | {"window": int(found[2]) + 1, "full_attention_every": every}

    def _vocabulary(self, tensor: int) -> int | None:
        if "vocabulary" in self.asked.keys:
            return None
        padded, size = self.optional("padded_vocab_size"), self.optional("vocab_size")
        if padded or size is None:
            if not padded:
                raise ConfigError(
                    f"{self.where}: vocab_size is missing, and tokenizers are not read; add it, or give "
                    f"--set vocabulary=N"
                )
            return padded
        multiple = self.count("make_vocab_size_divisible_by", 128) * tensor
        return -(-size // multiple) * multiple

    def _hybrid(self, pattern: Any) -> Keys:
        keys = {
            "kind": "state_space",
            "pattern": pattern,
            "state_size": self.count("mamba_state_dim", 128),
            "state_head_size": self.count("mamba_head_dim", 64),
            "state_groups": self.count("mamba_num_groups", 8),
        }
        if not isinstance(pattern, str):
            raise self.refusal("hybrid_override_pattern", "give a letter for each layer, such as M-M*")
        number = self.optional("mamba_num_heads")
        if number is not None and number * keys["state_head_size"] != 2 * self.count("hidden_size"):
            raise self.refusal("mamba_num_heads", "heads x mamba_head_dim are twice the hidden size in a workload")
        return keys

    def _latent(self) -> Keys:
        value = self.count("v_head_dim", 128)
        return {
            "kv_heads": None,
            "head_size": value,
            "query_key_norm": None,  # the norms of the low ranks, which are always there
            "attention_biases": None,
            "latent": {
                "query_rank": self.optional("q_lora_rank"),
                "key_value_rank": self.count("kv_lora_rank", 512),
                "plain_dim": self.count("qk_head_dim", 128),
                "rotary_dim": self.count("qk_pos_emb_head_dim", 64),
                "value_dim": value,
            },
        }

    def _experts(self, keys: Keys) -> Keys:
        experts = self.optional("num_experts") or self.optional("num_moe_experts")
        if experts is None:
            return {}
        width = self.optional("moe_ffn_hidden_size") or keys["ffn"]
        shared = self.optional("moe_shared_expert_intermediate_size")
        if shared and shared % width:
            raise self.refusal("moe_shared_expert_intermediate_size", f"is no multiple of an expert's width {width}")
        factor = self.any("moe_expert_capacity_factor", None)
        pads = self.flag("moe_pad_expert_input_to_capacity", default=False)
        return {
            "kind": "moe",
            "experts": experts,
            "top_k": self.count("moe_router_topk", 2),
            "expert_ffn": None if width == keys["ffn"] else width,
            "shared_experts": shared // width if shared else None,
            "shared_gate": self.flag("moe_shared_expert_gate", default=False) or None,
            "dense_layers": self._dense_layers(keys["layers"]) or None,
            "grouped_experts": self.flag("moe_grouped_gemm", default=False) or None,
            "router_bias": self.flag("moe_router_enable_expert_bias", default=False) or None,
            "capacity_factor": None if factor is None else float(factor),
            "pad_to_capacity": None if pads or factor is None else False,
            "expert_groups": self.optional("moe_router_num_groups"),
            "groups_per_token": self.optional("moe_router_group_topk"),
            "overlap_shared": (bool(shared) and self.flag("moe_shared_expert_overlap", default=False)) or None,
            "expert_tensor_parallel": self._experts_shared_by(),
            "expert_biases": keys.get("biases"),
        }

    def _experts_shared_by(self) -> int | None:
        """Ranks that share an expert's matrices, where experts lie otherwise than within data-parallel ranks."""
        tensor, expert = self.count("tensor_model_parallel_size", 1), self.count("expert_model_parallel_size", 1)
        cut = self.optional("expert_tensor_parallel_size") or tensor
        folds = cut != tensor or (expert > 1 and self.count("context_parallel_size", 1) > 1)
        return cut if folds else None

    def _dense_layers(self, layers: int) -> int:
        found = self.any("moe_layer_freq", 1)
        text = re.sub(r"[\s\"']", "", str(found))
        if text == "1":
            return 0
        parts = re.findall(r"\[([01](?:,[01])*)\](?:\*(\d{1,5}))?", text)
        ones = [one for part, times in parts for one in part.split(",") * int(times or 1)]
        dense = ones.index("1") if "1" in ones else len(ones)
        if len(ones) != layers or "0" in ones[dense:]:
            raise self.refusal("moe_layer_freq", "layers without experts come first or nowhere in a workload")
        return dense

    def _degrees(self) -> Keys:
        tensor, pipeline, context, expert = (
            self.count(f"{axis}_parallel_size", 1)
            for axis in ("tensor_model", "pipeline_model", "context", "expert_model")
        )
        ranks, others = self._ranks(), tensor * pipeline * context
        if ranks is not None and ranks % others:
            raise ConfigError(
                f"{self.where}: {ranks} ranks do not divide by tensor x pipeline x context parallelism {others}; mend "
                f"the degrees, or give a topology of a multiple"
            )
        exchanges = {"p2p": "ring", "a2a": "ulysses", "all_gather": "all_gather", "allgather": "all_gather"}
        return {
            "tensor_parallel": tensor,
            "sequence_parallel": self.flag("sequence_parallel", default=False) and tensor > 1,
            "pipeline_parallel": pipeline,
            "context_parallel": context,
            "context_exchange": self.word("cp_comm_type", exchanges, "p2p") if context > 1 else None,
            "expert_parallel": expert,
            "data_parallel": ranks // others if ranks else max(8, others, expert * others) // others,
        }

    def _ranks(self) -> int | None:
        """Ranks of the job: those asked for, or those that a script launches."""
        nodes, each = self.any("nnodes", None), self.any("nproc_per_node", None)
        if self.asked.ranks is not None:
            return self.asked.ranks
        if isinstance(nodes, int) and isinstance(each, int):
            return nodes * each
        return None

    def _batch(self, degrees: Keys) -> Keys:
        micro, replicas = self.count("micro_batch_size", 1), degrees["data_parallel"]
        total = self.optional("global_batch_size") or micro * replicas
        if total % (micro * replicas):
            raise self.refusal(
                "global_batch_size", f"no multiple of {replicas} replicas' micro-batches of {micro}; mend it, or give "
                "another topology"
            )  # fmt: skip
        return {"batch_per_replica": total // replicas, "microbatch": micro}

    def _step(self, replicas: int) -> Keys:
        strategy = self.any("data_parallel_sharding_strategy", "no_shard")
        levels = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
        fsdp = self.flag("use_megatron_fsdp", default=False) or self.flag("use_custom_fsdp", default=False)
        distributed = self.flag("use_distributed_optimizer", default=False)
        zero = 1 if distributed else 0
        if self.flag("use_torch_fsdp2", default=False):
            zero = 3
        elif fsdp:
            if strategy not in levels:
                raise self.refusal("data_parallel_sharding_strategy", f"known are {', '.join(levels)}")
            zero = levels[strategy]
        self.must_be("optimizer", ("adam", "adamw"), "steps are those of Adam; take it")
        gathers = self.flag("overlap_param_gather", default=False) and zero in (1, 2)
        instances = self.count("num_distributed_optimizer_instances", 1)
        if replicas % instances:
            raise self.refusal("num_distributed_optimizer_instances", f"does not divide {replicas} replicas; mend it")
        return {
            "zero": zero,
            "shard_ranks": replicas // instances if zero and instances > 1 else None,
            "overlap_gradient_reduce": self.flag("overlap_grad_reduce", default=False) or None,
            "gradient_bucket": self._bucket(),
            "overlap_parameter_gather": gathers or None,
            "clip_gradients": self.number("clip_grad", 1.0) > 0,
            "dropout": self.number("hidden_dropout", 0.1) > 0 or self.number("attention_dropout", 0.1) > 0,
            "loss": "fused" if self._fuses_loss() else None,
        }

    def _bucket(self) -> float | None:
        """Gradients overlap in buckets of 40 million numbers, or of a million for each replica where that is more."""
        if not self.values.get("overlap_grad_reduce"):
            return None
        return 4.0 * self.count("ddp_bucket_size", 40_000_000)

    def _fuses_loss(self) -> bool:
        self.any("cross_entropy_fusion_impl", None)
        return self.flag("cross_entropy_loss_fusion", default=False)

    def _precision(self) -> Keys:
        named = str(self.any("mixed_precision", ""))
        half, single = self.flag("fp16", default=False), self.flag("bf16", default="bf16" in named)
        dtype = "bf16" if single or "bf16" in named else "fp16" if half or "fp16" in named else "fp32"
        reduces = self.flag("grad_reduce_in_bf16", default=False) or self.any("grad_reduce_in_fp32", None) is False
        self.any("accumulate_allreduce_grads_in_fp32", None)
        fused = self._either("gradient_accumulation_fusion", "no_gradient_accumulation_fusion", default=True)
        keys: Keys = {"dtype": dtype, "gradient_dtype": "bf16" if reduces and dtype == "bf16" else None}
        keys |= {} if fused else {"fused_accumulation": False}
        fp8 = self.any("fp8_format", None) or self.any("fp8", None) or ("hybrid" if "fp8" in named else None)
        if fp8 is None:
            self.any("fp8_recipe", None)
            return keys
        recipes = {"delayed": "fp8_delayed", "tensorwise": "fp8_tensorwise"}
        recipe = self.any("fp8_recipe", "delayed")
        if recipe not in recipes:
            raise self.refusal("fp8_recipe", f"GEMMs are written for {', '.join(recipes)}; take one, or leave fp8 out")
        return keys | {"linear_dtype": recipes[recipe]}

    def _recompute(self) -> Keys:
        selective = self.flag("recompute_activations", default=False)
        how = self.any("recompute_granularity", None) or ("selective" if selective else None)
        method, number = self.any("recompute_method", None), self.optional("recompute_num_layers")
        modules = self.any("recompute_modules", None)
        if how is None:
            return {}
        if how == "selective":
            of_parts = {"core_attn": "selective", "mla_up_proj": "up_projections"}
            module = modules[0] if isinstance(modules, list) and len(modules) == 1 else modules or "core_attn"
            if not isinstance(module, str) or module not in of_parts:
                raise self.refusal("recompute_modules", "of parts core_attn and mla_up_proj are written; take one")
            return {"recompute": of_parts[module]}
        if how != "full" or method not in (None, "uniform", "block") or (method != "block" and number not in (None, 1)):
            raise self.refusal(
                "recompute_granularity", f"with method {shown(method)} of {shown(number)} is not written"
            )
        if method != "block":
            return {"recompute": "full"}
        if number is None:
            raise self.refusal("recompute_num_layers", "is missing or 0, and method block needs it; give it")
        return {"recompute": "full"} | ({"recompute_layers": number} if number < self.values["num_layers"] else {})

    def _pipeline(self, keys: Keys) -> Keys:
        pipeline, layers = keys["pipeline_parallel"], keys["layers"]
        each = self.optional("num_layers_per_virtual_pipeline_stage")
        chunks = self.optional("num_virtual_stages_per_pipeline_rank") or self.optional(
            "virtual_pipeline_model_parallel_size"
        )
        if each and layers % (pipeline * each):
            raise self.refusal(
                "num_layers_per_virtual_pipeline_stage", f"does not divide the {layers // pipeline} layers of a rank"
            )
        chunks = layers // pipeline // each if each else chunks
        group = self.optional("microbatch_group_size_per_vp_stage")
        overlaps = self._either("overlap_p2p_comm", "no_overlap_p2p_communication", default=True)
        ends = [
            self.optional(f"decoder_{end}_pipeline_num_layers") or self.optional(f"num_layers_in_{end}_pipeline_stage")
            for end in ("first", "last")
        ]
        if pipeline == 1:
            return {}
        if not chunks or chunks == 1:
            return {"pipeline_schedule": "1f1b", "stage_layers": self._stage_layers(layers, pipeline, *ends)}
        if any(ends):
            raise ConfigError(
                f"{self.where}: layers of the first or last stage with virtual stages are not read; leave one out"
            )
        return {
            "pipeline_schedule": "interleaved_1f1b",
            "virtual_stages": chunks,
            "microbatch_group": None if group in (None, pipeline) else group,
            "overlap_sends": overlaps,
        }

    def _stage_layers(self, layers: int, stages: int, first: int | None, last: int | None) -> list[int] | None:
        fixed = [each for each in (first, last) if each]
        if not fixed:
            return None
        others = stages - len(fixed)
        left = layers - sum(fixed)
        if left < 0 or (others == 0 and left) or (others and left % others):
            raise ConfigError(
                f"{self.where}: {left} layers besides the first and last stage do not divide over {others} stages; "
                f"mend decoder_first_pipeline_num_layers or decoder_last_pipeline_num_layers"
            )
        middle = [left // others] * others if others else []
        return [*([first] if first else []), *middle, *([last] if last else [])]
